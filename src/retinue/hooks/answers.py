"""Reads what a hook answers: its exit code, its output, and the JSON in its output."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.hook import HookAnswer, HookEvent, HookOutcome
from retinue.processes.child import ProcessResult

MAX_TEXT_CHARS = 10_000
BLOCKING_EXIT = 2
# For these events, output that is not JSON is text for the model.
_PLAIN_CONTEXT = (HookEvent.USER_PROMPT_SUBMIT, HookEvent.SESSION_START)
_CAN_BLOCK = (
    HookEvent.PRE_TOOL_USE,
    HookEvent.PERMISSION_REQUEST,
    HookEvent.POST_TOOL_USE,
    HookEvent.USER_PROMPT_SUBMIT,
    HookEvent.STOP,
    HookEvent.SUBAGENT_STOP,
    HookEvent.PRE_COMPACT,
    HookEvent.CONTRACT_DRAFTED,
    HookEvent.PRE_MERGE,
)


class Reading(msgspec.Struct, frozen=True):
    """The answer of one hook, and the line about it for the journal."""

    answer: HookAnswer
    outcome: HookOutcome
    detail: str = ""


def failed(detail: str) -> Reading:
    """The reading of a hook that failed: it decides nothing, and the agent continues."""
    return Reading(HookAnswer(), HookOutcome.FAILED, detail)


def read_result(event: HookEvent, label: str, done: ProcessResult, timeout_s: float) -> Reading:
    """Read how a hook's process ended and what it printed. `label` names the hook for the model."""
    errors = shorten(done.errors.strip())
    if done.timed_out:
        return failed(f"did not end within {timeout_s:g} s and was killed")
    if done.exit_code == BLOCKING_EXIT:
        reason = errors or "no reason was given"
        if event not in _CAN_BLOCK:
            return failed(f"exit code 2 cannot block {event}: {reason}")
        return _blocked(f"{label}: {reason}", reason)
    if done.exit_code:
        how = (
            f"ended with exit code {done.exit_code}"
            if done.exit_code > 0
            else f"was killed by signal {-done.exit_code}"
        )
        return failed(f"{how}: {errors}" if errors else how)
    if done.truncated_bytes:
        return failed(f"printed {done.truncated_bytes:,} bytes too many; its output is ignored")
    text = _without_notice(done.output.strip())
    if not text.startswith("{"):
        if text and event in _PLAIN_CONTEXT:
            return Reading(HookAnswer(context=(shorten(text),)), HookOutcome.CONTEXT, text)
        return Reading(HookAnswer(), HookOutcome.PASSED, text)
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return failed(f"printed broken JSON ({error}); its output is ignored")
    return read_answer(event, label, data)


def _without_notice(text: str) -> str:
    """Drop the line that asks to run the hook in the background: retinue waits for every hook."""
    line, _, rest = text.partition("\n")
    try:
        notice = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return text
    return rest.strip() if isinstance(notice, dict) and notice.get("async") is True else text


def read_answer(event: HookEvent, label: str, data: Any) -> Reading:
    """Read a JSON answer, or what a function returned. `allow` means nothing: hooks only narrow."""
    if data is None:
        return Reading(HookAnswer(), HookOutcome.PASSED)
    if not isinstance(data, dict):
        return failed(f"answered {type(data).__name__} instead of an object")
    more = data.get("hookSpecificOutput")
    more = more if isinstance(more, dict) else {}
    decision = more.get("permissionDecision") or data.get("decision") or ""
    why = more.get("permissionDecisionReason") or data.get("reason")
    if event is HookEvent.PERMISSION_REQUEST and isinstance(asked := more.get("decision"), dict):
        decision, why = asked.get("behavior"), asked.get("message")
    reason = shorten(str(why)) if why else ""
    message = shorten(str(data.get("systemMessage") or ""))
    updated = more.get("updatedInput")
    if updated is not None and not isinstance(updated, dict):
        return failed(f"updatedInput is {type(updated).__name__} instead of an object")
    context = more.get("additionalContext") or data.get("additionalContext")
    answer = HookAnswer(
        updated_input=updated if event is HookEvent.PRE_TOOL_USE else None,
        context=(shorten(str(context)),) if context else (),
    )
    if data.get("continue") is False:
        why_stop = shorten(str(data.get("stopReason") or "")) or reason or "no reason was given"
        stopped = msgspec.structs.replace(answer, stop=why_stop)
        return Reading(stopped, HookOutcome.STOPPED, why_stop)
    if decision in ("deny", "block"):
        if event not in _CAN_BLOCK:
            return failed(f"{decision!r} cannot block {event}: {reason}")
        reason = reason or message or "no reason was given"
        read = _blocked(f"{label}: {reason}", reason)
        kept = msgspec.structs.replace(read.answer, context=answer.context)
        return msgspec.structs.replace(read, answer=kept)
    if decision == "ask" and event is HookEvent.PRE_TOOL_USE:
        asking = msgspec.structs.replace(answer, asks=reason or "a hook asks")
        return Reading(asking, HookOutcome.ASKED, reason)
    if answer.updated_input is not None:
        changed = msgspec.json.encode(answer.updated_input).decode()
        return Reading(answer, HookOutcome.UPDATED, changed)
    if answer.context:
        return Reading(answer, HookOutcome.CONTEXT, answer.context[0])
    return Reading(answer, HookOutcome.PASSED, message)


def _blocked(text: str, reason: str) -> Reading:
    return Reading(HookAnswer(blocked=text), HookOutcome.BLOCKED, reason)


def shorten(text: str) -> str:
    """`text` with at most `MAX_TEXT_CHARS`, and no lone surrogates."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]} [cut]"
