"""Servers that behave like one provider each: with its refusals, and what it needs back.

Every server makes two rounds of two calls at once, and then says "Done."; to a later message it
says "Again.". Nothing is remembered between requests, so that a resumed run finds the same server.
"""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.models.scripted.model import ScriptedReply, call, calls, say, think
from retinue.testing import anthropic_format
from retinue.testing.server import Answering, Received, Response, as_json, chunk, events, failing

Fields = dict[str, Any]

ROUNDS = 2
PLAN = calls(call("list_dir"), call("read_file", path="a.txt"))
THOUGHT = "Let me look at both of them first."


class Provider:
    """A provider with chat completions. `route` is the name of its model, without the address."""

    route = "openai:m"

    def __call__(self, request: Received) -> Answering:
        body = request.json
        messages: list[Fields] = body["messages"]
        users = [n for n, one in enumerate(messages) if one["role"] == "user"]
        current = messages[users[-1] + 1 :]
        refused = self.refusal(body, messages, current)
        if refused is not None:
            return refused
        rounds = sum(1 for one in current if one.get("tool_calls"))
        if any(one["role"] == "assistant" and not one.get("tool_calls") for one in messages):
            return self.streamed([{"content": "Again."}])
        if rounds < ROUNDS:
            made = [self.called(number, rounds) for number in range(2)]
            deltas = [*self.thinking(rounds), {"tool_calls": made}]
            return self.streamed(deltas, "tool_calls")
        return self.streamed([*self.thinking(rounds), {"content": "Done."}])

    def refusal(
        self, body: Fields, messages: list[Fields], current: list[Fields]
    ) -> Response | None:
        """Why the request is refused. `current` are the messages after the last of the user."""
        return None

    def thinking(self, number: int) -> list[Fields]:
        return []

    def called(self, number: int, rounds: int) -> Fields:
        plan = PLAN.calls[number]
        function = {"name": plan.name, "arguments": plan.arguments}
        call_id = f"call_{rounds}_{number}"
        return {"index": number, "id": call_id, "type": "function", "function": function}

    def streamed(self, deltas: list[Fields], finish: str = "stop") -> Response:
        ending = chunk({}, finish_reason=finish)
        return Response(body=events(*map(chunk, deltas), ending, b"[DONE]"))


def in_rounds(messages: list[Fields]) -> list[tuple[int, Fields]]:
    return list(enumerate(one for one in messages if one.get("tool_calls")))


class Gemini(Provider):
    """The first call of each step is signed, and each step of the current turn is checked."""

    def called(self, number: int, rounds: int) -> Fields:
        made = super().called(number, rounds)
        signature = {"google": {"thought_signature": f"sig-{rounds}"}}
        return made if number else {**made, "extra_content": signature}

    def refusal(
        self, body: Fields, messages: list[Fields], current: list[Fields]
    ) -> Response | None:
        for rounds, message in in_rounds(current):
            extra = message["tool_calls"][0].get("extra_content", {})
            signature = extra.get("google", {}).get("thought_signature")
            if signature not in (f"sig-{rounds}", "skip_thought_signature_validator"):
                told = "Function call is missing a thought_signature in functionCall parts."
                error = {"code": 400, "message": told, "status": "INVALID_ARGUMENT"}
                return as_json([{"error": error}], status=400)
        return None


class OpenRouter(Provider):
    """Reasoning comes in details, which must come back unmodified with the calls."""

    details: tuple[Fields, ...] = (
        {"type": "reasoning.text", "text": THOUGHT, "signature": "s", "index": 0, "format": "f"},
        {"type": "reasoning.encrypted", "data": "xyz", "id": "e", "index": 1, "format": "f"},
    )

    def thinking(self, number: int) -> list[Fields]:
        text, encrypted = self.details
        pieces = [
            {**text, "text": THOUGHT[:9], "signature": None},
            {**text, "text": THOUGHT[9:], "signature": None},
            {**text, "text": ""},
        ]
        sent = [[piece] for piece in pieces] + [[encrypted]]
        return [{"reasoning": one[0].get("text"), "reasoning_details": one} for one in sent]

    def refusal(
        self, body: Fields, messages: list[Fields], current: list[Fields]
    ) -> Response | None:
        for _, message in in_rounds(current):
            if message.get("reasoning_details") != list(self.details):
                told = "messages.1.content.0.type: Expected `thinking`, but found `tool_use`"
                inner = anthropic_format.error(told, kind="invalid_request_error")
                metadata = {
                    "provider_name": "Anthropic",
                    "raw": msgspec.json.encode(inner).decode(),
                }
                error = {"code": 400, "message": "Provider returned error", "metadata": metadata}
                return as_json({"error": error}, status=400)
        return None


class MiniMax(OpenRouter):
    """The same details; without `reasoning_split`, thoughts would be in the text."""

    details = (
        {"type": "reasoning.text", "id": "r-1", "index": 0, "format": "MiniMax", "text": THOUGHT},
    )

    def thinking(self, number: int) -> list[Fields]:
        (text,) = self.details
        pieces = ({**text, "text": piece} for piece in (THOUGHT[:9], THOUGHT[9:]))
        return [{"reasoning_details": [piece]} for piece in pieces]


class Kimi(Provider):
    """Every message with calls needs reasoning that is not empty."""

    def thinking(self, number: int) -> list[Fields]:
        return [{"reasoning_content": THOUGHT[:9]}, {"reasoning_content": THOUGHT[9:]}]

    def refusal(
        self, body: Fields, messages: list[Fields], current: list[Fields]
    ) -> Response | None:
        for index, message in enumerate(messages):
            if message.get("tool_calls") and not message.get("reasoning_content"):
                return failing(
                    400,
                    "thinking is enabled but reasoning_content is missing in assistant tool call"
                    f" message at index {index}",
                    kind="invalid_request_error",
                )
        return None


class DeepSeek(Kimi):
    """With tools, every message of the model needs its reasoning, with calls or without."""

    def refusal(
        self, body: Fields, messages: list[Fields], current: list[Fields]
    ) -> Response | None:
        own = [one for one in messages if one["role"] == "assistant"]
        if body.get("tools") and not all("reasoning_content" in one for one in own):
            told = "The `reasoning_content` in the thinking mode must be passed back to the API."
            return failing(400, told, kind="invalid_request_error")
        return None


class Mistral(Provider):
    """Thinking comes as a part of the content, and goes back as one."""

    def thinking(self, number: int) -> list[Fields]:
        return [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]}
            for piece in (THOUGHT[:9], THOUGHT[9:])
        ]

    def refusal(
        self, body: Fields, messages: list[Fields], current: list[Fields]
    ) -> Response | None:
        part = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}
        for _, message in in_rounds(current):
            if message["content"] != [part]:
                return failing(400, "The thinking part was not sent back.")
        return None


class Scripted(Provider):
    """A provider whose format the test server writes, and checks."""

    def scripted(self, rounds: int, later: bool) -> ScriptedReply:
        if later:
            return say("Again.")
        return think(THOUGHT, PLAN if rounds < ROUNDS else say("Done."))


class Anthropic(Scripted):
    """Calls must follow signed thoughts. The test server checks the signatures."""

    route = "anthropic:m+thinking=2000"

    def __call__(self, request: Received) -> Answering:
        turns = request.json["messages"]
        own = [turn["content"] for turn in turns if turn["role"] == "assistant"]
        kinds = [[block["type"] for block in content] for content in own]
        last = kinds[-1] if kinds else []
        if "tool_use" in last and last[0] != "thinking" and "thinking" in request.json:
            told = f"messages.{len(turns) - 2}.content.0.type: Expected `thinking`"
            return as_json(anthropic_format.error(told, kind="invalid_request_error"), status=400)
        rounds = sum("tool_use" in kind for kind in kinds)
        return self.scripted(rounds, later=any("tool_use" not in kind for kind in kinds))


class OpenAI(Scripted):
    """Refuses tools on chat completions. Reasoning and phases must come back by the other API."""

    def __call__(self, request: Received) -> Answering:
        if request.target.endswith("/chat/completions"):
            told = (
                "Function tools with reasoning_effort are not supported for gpt-6 in"
                " /v1/chat/completions. Please use /v1/responses instead."
            )
            return failing(400, told, kind="invalid_request_error")
        items = request.json["input"]
        current = items[max(n for n, one in enumerate(items) if one.get("role") == "user") :]
        called = [one for one in current if one["type"] == "function_call"]
        reasoning = [one for one in current if one["type"] == "reasoning"]
        rounds = len(called) // 2
        if called and len(reasoning) != rounds:
            return failing(400, "Reasoning items are missing from the input.")
        answers = [one for one in items if one.get("role") == "assistant"]
        # Messages of another model have none.
        own = any(one["type"] == "reasoning" for one in items)
        if own and any(one.get("phase") != "final_answer" for one in answers):
            return failing(400, "The phase of a message was not sent back.")
        return self.scripted(rounds, later=bool(answers))


class Responses(OpenAI):
    """The same model, by choice."""

    route = "responses:m"


PROVIDERS = (
    Gemini,
    OpenRouter,
    MiniMax,
    Kimi,
    DeepSeek,
    Mistral,
    Anthropic,
    OpenAI,
    Responses,
)
