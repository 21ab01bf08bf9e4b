"""The windows that servers really give: no contract is wider, and no call asks for more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.contract import Contract
from retinue.domain.events import AgentCreated, ContextCompacted, Event
from retinue.errors import UsageError
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]


def vllm(window: int, *names: str) -> dict[str, Any]:
    cards = [
        {"id": name, "object": "model", "owned_by": "vllm", "max_model_len": window}
        for name in names or ("m",)
    ]
    return {"/v1/models": {"object": "list", "data": cards}}


def named(server: ModelServer, model: str = "m") -> str:
    return f"openai:{model}@{server.base_url}"


def notes(events: list[Event]) -> list[tuple[str, ...]]:
    return [event.fact.notes for event in events if isinstance(event.fact, AgentCreated)]


SMALL = (
    "m has a window of 4,096 tokens at vLLM, and an agent needs 8,192:"
    " start vLLM with a larger --max-model-len"
)


# Contracts


@pytest.mark.parametrize(
    ("window", "root", "child"),
    [(4096, 3_072, 3_072), (16_384, 12_288, 12_288), (200_000, 191_808, 191_808)],
)
async def test_context_is_the_window_less_room_for_the_answer(
    opened: Opened, contracts: Contracts, window: int, root: int, child: int
) -> None:
    script: list[ScriptedReply] = [
        call("spawn_agent", role="researcher", task="Look"),
        say("seen"),
        say("done"),
    ]
    async with ModelServer(script, pages=vllm(window)) as server, opened(model=named(server)) as rt:
        assert (await rt.run("Go.")).ok
    found = await contracts()
    assert found["a0"].execution.max_context_tokens == root
    assert found["a1"].execution.max_context_tokens == child


async def test_files_of_a_task_have_to_fit_into_half_of_the_context(
    opened: Opened, project: Path
) -> None:
    (project / "long.txt").write_text("word " * 2_500)
    async with (
        ModelServer(lambda _: say("ok"), pages=vllm(4096)) as server,
        opened(model=named(server)) as rt,
    ):
        with pytest.raises(UsageError, match=r"its 3,125 tokens do not fit the 1,536 that are"):
            await rt.run("Go.", context_files=["long.txt"])


async def test_notes_say_what_the_window_took_away(opened: Opened) -> None:
    async with (
        ModelServer([say("ok")], pages=vllm(16_384)) as server,
        opened(model=named(server)) as rt,
    ):
        result = await rt.spawn("researcher", "Look", max_context_tokens=20_000)
    assert result.notes == (f"max_context_tokens became 16384: the window of {named(server)}",)


async def test_a_server_is_asked_once(opened: Opened) -> None:
    async with (
        ModelServer(lambda _: say("ok"), pages=vllm(16_384)) as server,
        opened(model=named(server)) as rt,
    ):
        await rt.fan_out([("researcher", f"Task {n}") for n in range(5)])
        await rt.run("Go.")
    assert [visit.target for visit in server.visits] == ["/v1/models"]


UNKNOWN = (
    "the context window of m is not known: 32,768 tokens are assumed; set max_context_tokens"
    " under [budget]"
)


async def test_unknown_window_is_assumed_and_mentioned_once(
    opened: Opened, contracts: Contracts
) -> None:
    seen: list[Event] = []
    script: list[ScriptedReply] = [call("spawn_agent", task="Look"), say("seen"), say("done")]
    async with (
        ModelServer(script) as server,
        opened(model=named(server), on_event=seen.append) as rt,
    ):
        assert (await rt.run("Go.")).ok
    found = await contracts()
    assert [one.execution.max_context_tokens for one in found.values()] == [24_576, 24_576]
    assert [UNKNOWN in noted for noted in notes(seen)] == [True, False]


async def test_setting_decides_about_an_unknown_window(
    opened: Opened, contracts: Contracts
) -> None:
    seen: list[Event] = []
    async with (
        ModelServer([say("ok")]) as server,
        opened(
            model=named(server), limits={"max_context_tokens": 100_000}, on_event=seen.append
        ) as rt,
    ):
        assert (await rt.run("Go.")).ok
    assert (await contracts())["a0"].execution.max_context_tokens == 100_000
    assert notes(seen) == [()]


async def test_replies_are_no_longer_than_the_model_can_write(opened: Opened) -> None:
    card = {"id": "m", "context_length": 50_000, "top_provider": {"max_completion_tokens": 4_096}}
    async with (
        ModelServer([say("ok")], pages={"/v1/models": {"data": [card]}}) as server,
        opened(model=named(server)) as rt,
    ):
        assert (await rt.run("Go.")).ok
    assert server.requests[0].json["max_tokens"] == 4_096


async def test_attachments_fit_the_window(opened: Opened, project: Path) -> None:
    (project / "AGENTS.md").write_text("word " * 3_000)
    async with (
        ModelServer([say("ok")], pages=vllm(4096)) as server,
        opened(model=named(server)) as rt,
    ):
        result = await rt.spawn("researcher", "Look", context="word " * 5_000)
    assert "AGENTS.md was cut to 768 tokens" in result.notes
    prompt = sum(len(m["content"]) for m in server.requests[0].json["messages"])
    assert prompt < 4 * 4096


# What is told


@pytest.mark.parametrize("how", ["run", "spawn"])
async def test_too_small_window_is_noted_once_at_the_start(opened: Opened, how: str) -> None:
    seen: list[Event] = []
    async with (
        ModelServer(lambda _: say("ok"), pages=vllm(4096)) as server,
        opened(model=named(server), on_event=seen.append) as rt,
    ):
        if how == "run":
            await rt.run("Go.")
        else:
            await rt.fan_out([("researcher", "a"), ("researcher", "b")])
    assert notes(seen) == [(SMALL,), *([(), ()] if how == "spawn" else [])]


@pytest.mark.parametrize("who", ["model", "program"])
async def test_notes_about_another_model_are_on_its_agent(opened: Opened, who: str) -> None:
    seen: list[Event] = []

    def answer(request: Received) -> ScriptedReply:
        if request.json["model"] == "m" or "tool" in {m["role"] for m in request.json["messages"]}:
            return say("ok")
        return call("spawn_agent", role="researcher", task="Look", model="m")

    pages = vllm(65_536, "large")
    pages["/v1/models"]["data"] += vllm(4096)["/v1/models"]["data"]
    async with (
        ModelServer(answer, pages=pages) as server,
        opened(model=named(server, "large"), on_event=seen.append) as rt,
    ):
        if who == "model":
            assert (await rt.run("Go.")).ok
        else:
            assert (await rt.spawn("researcher", "Look", model="m")).ok
    assert notes(seen) == [(), (SMALL,)]


# Calls


async def test_requested_answer_length_fits_the_window(opened: Opened) -> None:
    """vLLM refuses a call whose prompt and longest answer do not fit together."""
    async with (
        ModelServer(lambda _: say("ok"), pages=vllm(6_000)) as server,
        opened(model=named(server)) as rt,
    ):
        assert (await rt.spawn("researcher", "Look")).ok
    body = server.requests[0].body
    longest = server.requests[0].json["max_tokens"]
    assert 256 <= longest <= 6_000 - len(body) // 5


async def test_the_conversation_is_kept_inside_the_window(opened: Opened, project: Path) -> None:
    for number in range(8):
        (project / f"{number}.txt").write_text("word " * 600)
    seen: list[Event] = []
    script: list[ScriptedReply] = [
        *(call("read_file", path=f"{n}.txt") for n in range(8)),
        say("read"),
    ]
    async with (
        ModelServer(script, pages=vllm(4096)) as server,
        opened(model=named(server), on_event=seen.append) as rt,
    ):
        assert (await rt.spawn("researcher", "Read", tools=("read_file",))).ok
    assert any(isinstance(event.fact, ContextCompacted) for event in seen)
    largest = max(len(request.body) for request in server.requests)
    assert largest / 4 < 4096
