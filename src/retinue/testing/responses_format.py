"""Scripted replies in the format of the Responses API, for `retinue.testing.server`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import msgspec

from retinue.domain.messages import Finish
from retinue.models.scripted.model import ScriptedReply
from retinue.testing.anthropic_format import split

_Fields = dict[str, Any]


def streamed(answer: ScriptedReply) -> bytes:
    """The reply as a stream of events with a few characters each."""
    numbers = count()
    sent = [*_events(answer)]
    return b"".join(event(each, sequence_number=next(numbers)) for each in sent)


def event(fields: Mapping[str, Any], **more: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        str(fields["type"]).encode(),
        msgspec.json.encode({**fields, **more}),
    )


def whole(answer: ScriptedReply) -> _Fields:
    """The reply as one response, as from a server that does not stream."""
    cut = answer.finish is Finish.LENGTH
    return {
        "id": "resp_test",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": None,
        "output": items(answer),
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": _usage(answer),
    }


def items(answer: ScriptedReply) -> list[_Fields]:
    """The output of the response. Reasoning is sealed: its text cannot be changed unnoticed."""
    made: list[_Fields] = []
    if answer.thought:
        summary = [{"type": "summary_text", "text": answer.thought}]
        sealed = {"encrypted_content": _seal(summary)}
        made.append({"type": "reasoning", "id": "rs_0", "summary": summary, **sealed})
    done = {"status": "completed"}
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
        phase = "commentary" if answer.calls else "final_answer"
        message = {"role": "assistant", "content": content, "phase": phase, **done}
        made.append({"type": "message", "id": "msg_0", **message})
    for number, plan in enumerate(answer.calls):
        call = {"call_id": f"call_{number}", "name": plan.name, "arguments": plan.arguments}
        made.append({"type": "function_call", "id": f"fc_{number}", **call, **done})
    return made


def refusal(request: Any) -> str | None:
    """Why the API refuses the request: changed reasoning, or items that do not belong together."""
    given = request.get("input") if isinstance(request, dict) else None
    if not isinstance(given, list):
        return "Missing required parameter: 'input'."
    if request.get("store") is not False:
        return "This server stores nothing: 'store' must be false."
    calls = [item["call_id"] for item in given if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in given if item.get("type") == "function_call_output"]
    for call_id in calls:
        if call_id not in outputs:
            return f"No tool output found for function call {call_id}."
    for call_id in outputs:
        if call_id not in calls:
            return f"No tool call found for function call output with call_id {call_id}."
    for place, item in enumerate(given):
        if item.get("type") != "reasoning":
            continue
        if item.get("encrypted_content") != _seal(item.get("summary")):
            return f"The encrypted content for item {item.get('id')} could not be verified."
        following = given[place + 1] if place + 1 < len(given) else {}
        if following.get("type") not in ("function_call", "reasoning") and (
            following.get("role") != "assistant"
        ):
            return f"Item '{item.get('id')}' of type 'reasoning' has no required following item."
    return None


def _events(answer: ScriptedReply) -> Iterator[_Fields]:
    done = whole(answer)
    begun = {**done, "status": "in_progress", "output": [], "usage": None}
    begun["incomplete_details"] = None
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(done["output"]):
        yield from _item_events(index, item)
    yield {"type": f"response.{done['status']}", "response": done}


def _item_events(index: int, item: _Fields) -> Iterator[_Fields]:
    place = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "reasoning":
            part = {**place, "summary_index": 0}
            text = item["summary"][0]["text"]
            empty = {"type": "summary_text", "text": ""}
            yield _added(index, {**item, "summary": [], "encrypted_content": "begun"})
            yield {"type": "response.reasoning_summary_part.added", **part, "part": empty}
            for piece in split(text):
                yield {"type": "response.reasoning_summary_text.delta", **part, "delta": piece}
            yield {"type": "response.reasoning_summary_text.done", **part, "text": text}
            yield {
                "type": "response.reasoning_summary_part.done",
                **part,
                "part": item["summary"][0],
            }
        case "message":
            part = {**place, "content_index": 0}
            (content,) = item["content"]
            yield _added(index, {**item, "status": "in_progress", "content": []})
            yield {
                "type": "response.content_part.added",
                **part,
                "part": {**content, "text": ""},
            }
            for piece in split(content["text"]):
                yield {
                    "type": "response.output_text.delta",
                    **part,
                    "delta": piece,
                    "logprobs": [],
                }
            done = {"text": content["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **part, **done}
            yield {"type": "response.content_part.done", **part, "part": content}
        case _:
            yield _added(index, {**item, "status": "in_progress", "arguments": ""})
            for piece in split(item["arguments"]):
                yield {
                    "type": "response.function_call_arguments.delta",
                    **place,
                    "delta": piece,
                }
            done = {"arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _added(index: int, item: _Fields) -> _Fields:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _seal(summary: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(summary)).hexdigest()


def _usage(answer: ScriptedReply) -> _Fields | None:
    usage = answer.usage
    if usage is None:
        return None
    return {
        "input_tokens": usage.tokens_in,
        "input_tokens_details": {
            "cached_tokens": usage.tokens_cached,
            "cache_write_tokens": usage.tokens_written,
        },
        "output_tokens": usage.tokens_out,
        "output_tokens_details": {"reasoning_tokens": usage.tokens_reasoning},
        "total_tokens": usage.tokens,
    }
