"""Served back: which exchange a request gets, and what is said when there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Message,
    Reply,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.errors import ContextOverflow, ModelError, ProviderError, RateLimited
from retinue.models.replay.model import ReplayModel
from retinue.models.replay.recorder import RecordedModel, Recorder
from retinue.models.replay.recording import read_recording
from retinue.models.replay.redaction import Redaction
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, hold, say
from retinue.runtime.core.clock import SystemClock
from retinue.testing.clock import FakeClock
from retinue.testing.model_contract import SPEC

HI = (SystemMessage("Be brief."), UserMessage("Hi."))


def asked(
    *messages: Message,
    agent_path: str = "root",
    tools: tuple[ToolSpec, ...] = (),
    schema: str | None = None,
) -> Request:
    return Request(messages=messages or HI, agent_path=agent_path, tools=tools, schema=schema)


def answered(text: str, call_id: str = "call_0") -> tuple[Message, ...]:
    """A conversation whose one tool call was answered with that text."""
    made = AssistantMessage("", (ToolCall("call_0", "spawn_agent", "{}"),))
    return (*HI, made, ToolMessage(call_id, text))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


async def record(path: Path, *exchanges: tuple[Request, Step], directory: str = "") -> None:
    redaction = Redaction(directory=directory)
    with closing(Recorder(path, redaction=redaction, clock=SystemClock())) as recorder:
        model = RecordedModel(ScriptedModel([step for _, step in exchanges]), recorder)
        for request, _ in exchanges:
            with suppress(ModelError):
                await model.reply(request)


def replaying(path: Path, directory: str = "", clock: FakeClock | None = None) -> ReplayModel:
    redaction = Redaction(directory=directory)
    return ReplayModel(read_recording(path), name="replay:r", redaction=redaction, clock=clock)


async def said(model: ReplayModel, *requests: Request) -> list[str]:
    return [(await model.reply(request)).message.content for request in requests]


async def missed(model: ReplayModel, request: Request) -> str:
    with pytest.raises(ProviderError) as caught:
        await model.reply(request)
    assert not caught.value.retryable
    return str(caught.value)


# Which exchange


async def test_request_is_matched_by_content_and_not_by_order(path: Path) -> None:
    one, two = asked(UserMessage("One?")), asked(UserMessage("Two?"))
    await record(path, (one, say("1")), (two, say("2")))
    assert await said(replaying(path), two, one) == ["2", "1"]


async def test_a_reply_comes_back_as_it_was(path: Path) -> None:
    step = call("read_file", path="a3.txt").using(100, 7, tokens_cached=90)
    await record(path, (asked(tools=(SPEC,)), step))
    reply = await replaying(path).reply(asked(tools=(SPEC,)))
    assert reply == await ScriptedModel([step]).reply(asked())
    assert isinstance(reply, Reply)


async def test_equal_requests_get_their_replies_in_order_and_each_once(path: Path) -> None:
    await record(path, (asked(), say("1")), (asked(), say("2")))
    model = replaying(path)
    assert await said(model, asked()) == ["1"]
    assert model.leftovers() == ["line 3, of root"]
    assert await said(model, asked()) == ["2"]
    assert model.leftovers() == []
    assert await missed(model, asked()) == (
        "replay:r: root sent a request more often than it was recorded (2 times, last in line 3)."
        " Replay it on the files that it was recorded with, or record it again."
    )


async def test_of_equal_requests_each_agent_gets_its_own(path: Path) -> None:
    askers = ["root/tester.1", "root/tester.2", "root/tester.3"]
    await record(path, *((asked(agent_path=agent_path), say(agent_path)) for agent_path in askers))
    requests = [asked(agent_path=agent_path) for agent_path in reversed(askers)]
    assert await said(replaying(path), *requests) == list(reversed(askers))


async def test_many_ask_at_once(path: Path) -> None:
    await record(path, *((asked(), say(f"{n}")) for n in range(20)))
    model = replaying(path)
    replies = await asyncio.gather(*(model.reply(asked()) for _ in range(20)))
    assert sorted(int(reply.message.content) for reply in replies) == list(range(20))


async def test_max_output_tokens_may_differ(path: Path) -> None:
    await record(path, (asked(), say("Hi.")))
    request = msgspec.structs.replace(asked(), max_output_tokens=17)
    assert await said(replaying(path), request) == ["Hi."]


# What may differ


BILL = "[completed] {} researcher: 3 turns, 1,024 tokens, {}\n<report-{} from={}>\nfine\n"


async def test_ids_times_and_tags_may_differ(path: Path) -> None:
    there = answered(BILL.format("a1", "12.4s", "0123abcd", "a1"))
    here = answered(BILL.format("a7", "0.0s", "4567ef01", "a7"))
    await record(path, (asked(*there), say("Done.")))
    assert await said(replaying(path), asked(*here)) == ["Done."]


async def test_agent_ids_in_the_reply_are_adapted(path: Path) -> None:
    there, here = answered("a1 and a2 started; a1 first"), answered("a2 and a5 started; a2 first")
    await record(path, (asked(*there), call("spawn_await", job_ids="a1,a2,a9")))
    (made,) = (await replaying(path).reply(asked(*here))).message.calls
    assert made.arguments == '{"job_ids":"a2,a5,a9"}'


async def test_two_agents_do_not_match_one(path: Path) -> None:
    await record(path, (asked(*answered("a1, a2")), say("Two.")))
    assert "it speaks of a3, a3 where line 2, of root has a1, a2" in await missed(
        replaying(path), asked(*answered("a3, a3"))
    )


async def test_project_directory_may_differ(path: Path) -> None:
    there, here = (
        asked(UserMessage("Directory: /home/me/app")),
        asked(UserMessage("Directory: /srv/x")),
    )
    await record(path, (there, call("read_file", path="/home/me/app/a")), directory="/home/me/app")
    (made,) = (await replaying(path, "/srv/x").reply(here)).message.calls
    assert made.arguments == '{"path":"/srv/x/a"}'


async def test_from_file_uses_the_project_directory(path: Path, tmp_path: Path) -> None:
    await record(
        path, (asked(UserMessage("In /home/me/app")), say("Yes.")), directory="/home/me/app"
    )
    model = ReplayModel.from_file(path, directory=tmp_path)
    assert model.name == f"replay:{path}"
    assert await said(model, asked(UserMessage(f"In {tmp_path}"))) == ["Yes."]


# What is said where nothing fits


MADE = """'{"role":"assistant","calls":[{"id":"call_0","name":"spawn_ag'"""


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (
            asked(*answered("hello crow, how are you today, and what have you seen in the north?")),
            "message 4 (tool) is 'hello crow, how are you today, and what have you seen in the'…,"
            " and 'hello heron, how are you?' in line 2, of root",
        ),
        (
            asked(*answered("hello heron, how are you?"), UserMessage("A job has ended.")),
            "message 5 (user) is 'A job has ended.', and there is none in line 2, of root",
        ),
        (
            asked(*HI),
            f"message 3 (assistant) is missing; it is {MADE}… in line 2, of root",
        ),
        (
            asked(*HI, AssistantMessage("No."), agent_path="root/tester.1"),
            f"message 3 (assistant) is 'No.', and {MADE}… in line 2, of root",
        ),
        (
            asked(*answered("hello heron, how are you?", "x")),
            "message 4 (tool) is "
            """…'":"tool","call_id":"x","content":"hello heron, how are you?"'…"""
            """, and …'":"tool","call_id":"call_0","content":"hello heron, how are '… in line 2, """
            "of root",
        ),
        (
            asked(*answered("hello heron, how are you?"), tools=(SPEC,)),
            "the messages are those of line 2, of root, and these tools are not: read_file",
        ),
        (
            asked(*answered("hello heron, how are you?"), schema="{}"),
            "the messages are those of line 2, of root, and the output schema is not",
        ),
    ],
)
async def test_mismatch_names_the_first_difference(path: Path, request_: Request, why: str) -> None:
    await record(path, (asked(*answered("hello heron, how are you?")), say("Fine.")))
    told = await missed(replaying(path), request_)
    assert told == (
        f"replay:r: {request_.agent_path} sent a request that is not recorded: {why}. Replay it"
        " on the files that it was recorded with, or record it again."
    )


async def test_difference_in_a_long_text_is_shown_with_its_surroundings(path: Path) -> None:
    await record(path, (asked(*answered("line\n" * 40 + "heron")), say("Fine.")))
    told = await missed(replaying(path), asked(*answered("line\n" * 40 + "crow")))
    assert r"is …'line\nline\nline\nline\ncrow', and …'line\nline\nline\nline\nheron' in" in told


async def test_later_mismatches_report_the_first(path: Path) -> None:
    await record(path, (asked(), say("Hi.")))
    model = replaying(path)
    first = await missed(model, asked(UserMessage("Child?"), agent_path="root/tester.1"))
    assert "root/tester.1 sent a request that is not recorded" in first
    assert await missed(model, asked(*answered(first))) == first


async def test_an_empty_recording(path: Path) -> None:
    await record(path)
    told = "replay:r holds no exchanges; record a run with --record."
    assert await missed(replaying(path), asked()) == told


# How it is served


async def streamed(model: ReplayModel, request: Request) -> list[str]:
    pieces: list[str] = []
    await model.reply(request, pieces.append)
    return pieces


async def test_text_is_streamed_in_the_recorded_pieces(path: Path) -> None:
    await record(path, (asked(), say("Once upon a time.")))
    assert await streamed(replaying(path), asked()) == ["Once", " upon", " a", " time."]


async def test_streamed_pieces_add_up_with_a_longer_project_path(path: Path) -> None:
    await record(path, (asked(), say("See /p/a.txt, please.")), directory="/p")
    pieces = await streamed(replaying(path, "/a/long/way/off"), asked())
    assert "".join(pieces) == "See /a/long/way/off/a.txt, please."
    assert len(pieces) == 4


async def test_recorded_error_is_raised(path: Path) -> None:
    errors: Sequence[ModelError] = (
        RateLimited("Slow down.", retry_after_s=7.0),
        ContextOverflow("Too long."),
        ProviderError("Gone.", retryable=True),
    )
    await record(path, *((asked(), fail(error)) for error in errors), (asked(), say("Hi.")))
    model = replaying(path)
    for error in errors:
        with pytest.raises(type(error)) as caught:
            await model.reply(asked())
        assert str(caught.value) == str(error)
        assert caught.value.retryable == error.retryable
        # Without a clock nothing waits, so neither shall who tries again.
        assert caught.value.retry_after_s is None
    assert await said(model, asked()) == ["Hi."]


def test_unknown_error_kind_is_a_provider_error(path: Path) -> None:
    asyncio.run(record(path, (asked(), fail(ContextOverflow("Too long.")))))
    path.write_text(path.read_text().replace("ContextOverflow", "BudgetExceeded"))
    with pytest.raises(ProviderError, match="Too long"):
        asyncio.run(replaying(path).reply(asked()))


async def test_replay_at_the_recorded_pace(path: Path) -> None:
    clock = FakeClock()
    gate = asyncio.Event()
    slow = RateLimited("Slow down.", retry_after_s=7.0)
    with closing(Recorder(path, redaction=Redaction(), clock=clock)) as recorder:
        steps: list[Step] = [hold(gate, say("Two words.")), fail(slow)]
        model = RecordedModel(ScriptedModel(steps), recorder)
        task = asyncio.create_task(model.reply(asked()))
        await asyncio.sleep(0)
        clock.advance(2.5)
        gate.set()
        await task
        with pytest.raises(RateLimited):
            await model.reply(asked())

    replay = replaying(path, clock=clock)
    pieces: list[str] = []
    task = asyncio.create_task(replay.reply(asked(), pieces.append))
    await clock.asleep(2.5)
    assert pieces == []
    clock.advance(2.5)
    await task
    assert pieces == ["Two", " words."]
    with pytest.raises(RateLimited) as caught:
        await replay.reply(asked())
    assert caught.value.retry_after_s == 7.0


async def test_cancelled_call_is_never_answered(path: Path) -> None:
    with closing(Recorder(path, redaction=Redaction(), clock=SystemClock())) as recorder:
        model = RecordedModel(ScriptedModel([hold(asyncio.Event(), say("Never."))]), recorder)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await model.reply(asked())
    task = asyncio.create_task(replaying(path).reply(asked()))
    done, _ = await asyncio.wait({task}, timeout=0)
    assert not done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
