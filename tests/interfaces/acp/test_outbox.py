from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.acp.outbox import MAX_CHILD_UPDATES, Outbox

TEXTS = st.lists(st.tuples(st.sampled_from(["message", "thought", "call"]), st.text(min_size=1)))


def chunk(kind: str, text: str) -> dict[str, Any]:
    if kind == "call":
        return {"sessionUpdate": "tool_call", "toolCallId": text}
    return {"sessionUpdate": f"agent_{kind}_chunk", "content": {"type": "text", "text": text}}


def progress(name: str, number: int) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": name, "number": number}


@given(TEXTS)
def test_merged_chunks_have_the_same_text_in_the_same_order(parts: list[tuple[str, str]]) -> None:
    sent: list[dict[str, Any]] = []
    outbox = Outbox(sent.append, lambda: False)
    for kind, text in parts:
        outbox.put(chunk(kind, text))
    outbox.flush()

    def flat(updates: list[dict[str, Any]]) -> list[tuple[str, str]]:
        return [
            (update["sessionUpdate"], char)
            for update in updates
            for char in (update["content"]["text"] if "content" in update else ["call"])
        ]

    assert flat(sent) == flat([chunk(kind, text) for kind, text in parts])
    kinds = [update["sessionUpdate"] for update in sent]
    assert not any(a == b != "tool_call" for a, b in pairwise(kinds))


async def test_many_children_are_sent_in_portions_with_their_latest_state() -> None:
    sent: list[dict[str, Any]] = []
    portion = asyncio.Event()

    def send(update: dict[str, Any]) -> None:
        sent.append(update)
        portion.set()

    outbox = Outbox(send, lambda: False)
    for number in range(20):
        for child in range(200):
            outbox.put_progress(progress(f"a{child}", number))
    sending = asyncio.ensure_future(outbox.keep_sending())
    await portion.wait()
    assert len(sent) == MAX_CHILD_UPDATES
    assert {update["number"] for update in sent} == {19}
    sending.cancel()
    outbox.flush()
    assert sorted(update["toolCallId"] for update in sent) == sorted(f"a{n}" for n in range(200))


async def test_nothing_is_sent_to_an_editor_that_does_not_read() -> None:
    sent: list[dict[str, Any]] = []
    looked, was_sent = asyncio.Event(), asyncio.Event()
    congested = True

    def send(update: dict[str, Any]) -> None:
        sent.append(update)
        was_sent.set()

    def is_congested() -> bool:
        looked.set()
        return congested

    outbox = Outbox(send, is_congested)
    outbox.put(chunk("message", "a"))
    sending = asyncio.ensure_future(outbox.keep_sending())
    await looked.wait()
    outbox.put(chunk("message", "b"))
    assert sent == []
    congested = False
    await was_sent.wait()
    assert sent == [chunk("message", "ab")]
    sending.cancel()


def test_end_of_a_call_replaces_its_progress() -> None:
    sent: list[dict[str, Any]] = []
    outbox = Outbox(sent.append, lambda: False)
    outbox.put_progress(progress("a1", 1))
    outbox.put(progress("a1", 2))
    outbox.flush()
    assert [update["number"] for update in sent] == [2]
