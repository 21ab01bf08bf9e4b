"""What is written into the file of a recording."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import msgspec
import pytest

from retinue.domain.messages import (
    AssistantMessage,
    Request,
    ToolMessage,
)
from retinue.errors import RateLimited, StoreError, UsageError
from retinue.models.replay.recorder import RecordedModel, Recorder
from retinue.models.replay.recording import RecordedFailure, read_recording
from retinue.models.replay.redaction import Redaction
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, Step, call, fail, hold, say
from retinue.ports.model import Model
from retinue.testing.clock import FakeClock
from retinue.testing.model_contract import SPEC, ModelContract
from tests.models.replay.recordings import OPENING, asked, recorded, recorder


class TestRecorded(ModelContract):
    @pytest.fixture(autouse=True)
    def _somewhere(self, tmp_path: Path) -> None:
        self.path = tmp_path / "run.jsonl"

    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Model]:
        with closing(recorder(self.path)) as writing:
            yield RecordedModel(ScriptedModel(steps), writing)


async def test_an_exchange_can_be_read_again(tmp_path: Path) -> None:
    clock = FakeClock()
    with closing(Recorder(tmp_path / "r", redaction=Redaction(), clock=clock)) as writing:
        clock.advance(1.5)
        gate = asyncio.Event()
        model = RecordedModel(ScriptedModel([hold(gate, say("It is empty."))]), writing)
        task = asyncio.create_task(model.reply(asked()))
        await asyncio.sleep(0)
        clock.advance(2.25)
        gate.set()
        reply = await task
    (take,) = read_recording(tmp_path / "r").exchanges
    exchange = take.exchange
    assert take.request == asked()
    assert (exchange.agent, exchange.model) == ("root", "scripted")
    assert (exchange.at_s, exchange.took_s) == (1.5, 2.25)
    assert exchange.reply == reply
    assert exchange.pieces == ((2.25, 2), (2.25, 3), (2.25, 7))


async def test_repeated_content_is_written_once(tmp_path: Path) -> None:
    first, second = call("read_file", path="a.txt"), say("Empty.")
    went_on = (*OPENING, AssistantMessage("", ()), ToolMessage("call_0", ""))
    takes = await recorded(
        tmp_path / "r", first, second, say("Other."), asking=(asked(), asked(*went_on), asked())
    )
    assert [take.exchange.follows for take in takes] == [None, 1, None]
    assert takes[1].exchange.messages == went_on[2:]
    assert [take.request.messages for take in takes] == [OPENING, went_on, OPENING]
    assert (tmp_path / "r").read_text().count('"type":"tools"') == 1


async def test_failure_keeps_its_kind_and_attributes(tmp_path: Path) -> None:
    error = RateLimited("Too many.", retry_after_s=3.0)
    (take,) = await recorded(tmp_path / "r", fail(error), asking=(asked(),))
    assert take.exchange.failure == RecordedFailure(
        kind="RateLimited", message="Too many.", fields={"retry_after_s": 3.0}
    )


async def test_unexpected_exception_is_recorded_and_raised(tmp_path: Path) -> None:
    def broken(_: Request) -> Step:
        raise KeyError("choices")

    with closing(recorder(tmp_path / "r")) as writing, pytest.raises(KeyError):
        await RecordedModel(ScriptedModel([broken]), writing).reply(asked())
    (take,) = read_recording(tmp_path / "r").exchanges
    assert take.exchange.failure == RecordedFailure(
        kind="ProviderError", message="KeyError: 'choices'"
    )


async def test_cancelled_call_is_recorded(tmp_path: Path) -> None:
    with closing(recorder(tmp_path / "r")) as writing:
        model = RecordedModel(ScriptedModel([hold(asyncio.Event(), say("Never."))]), writing)
        task = asyncio.create_task(model.reply(asked()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (take,) = read_recording(tmp_path / "r").exchanges
    assert take.exchange.reply is None
    assert take.exchange.failure is None


async def test_no_secret_is_written(tmp_path: Path) -> None:
    secret, path = "correct-horse-battery", tmp_path / "r"
    leaking = (*OPENING, ToolMessage("call_0", f"PASS={secret} in {tmp_path}/a.txt"))
    spec = msgspec.structs.replace(SPEC, description=f"Reads with {secret}.")
    request = Request(messages=leaking, tools=(spec,))
    steps = [call("read_file", path=f"/{secret}"), say(f"It is {secret}.")]
    with closing(recorder(path, directory=str(tmp_path), secrets={"PASS": secret})) as writing:
        model = RecordedModel(ScriptedModel(steps), writing)
        await model.reply(request)
        await model.reply(request)
    text = path.read_text()
    assert secret not in text
    assert text.count("⟨hidden PASS⟩") == 4
    assert "in ⟨project⟩/a.txt" in text


async def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    await recorded(tmp_path / "r", say("x"), asking=(asked(),))
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o600


async def test_second_recording_is_appended(tmp_path: Path) -> None:
    await recorded(tmp_path / "r", say("One."), asking=(asked(),))
    takes = await recorded(tmp_path / "r", say("Two."), asking=(asked(),))
    replies = [take.exchange.reply for take in takes]
    assert [reply and reply.message.content for reply in replies] == ["One.", "Two."]


async def test_recording_continues_after_one_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r"
    await recorded(path, say("One."), say("Cut."), asking=(asked(), asked()))
    path.write_bytes(path.read_bytes()[:-20])
    takes = await recorded(path, say("Two."), asking=(asked(),))
    replies = [take.exchange.reply for take in takes]
    assert [reply and reply.message.content for reply in replies] == ["One.", "Two."]


def test_other_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine\n")
    with pytest.raises(UsageError, match="it holds something else"):
        recorder(tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine\n"


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="x/r': No such file or directory"):
        recorder(tmp_path / "x" / "r")


def test_two_runs_cannot_record_to_one_file_at_once(tmp_path: Path) -> None:
    first = recorder(tmp_path / "r")
    with pytest.raises(UsageError, match="another run is being recorded there"):
        recorder(tmp_path / "r")
    first.close()
    recorder(tmp_path / "r").close()


async def test_write_error_ends_the_recording_and_not_the_run(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def read_the_first_line() -> None:
        with open(pipe) as reading:
            reading.readline()

    reader = threading.Thread(target=read_the_first_line)
    reader.start()
    writing = recorder(pipe)
    reader.join()
    model = RecordedModel(ScriptedModel([say("One."), say("Two.")]), writing)
    await model.reply(asked())
    assert (await model.reply(asked())).message.content == "Two."
    with pytest.raises(
        StoreError, match=r"pipe' is incomplete: Broken pipe\. The run is not affected"
    ):
        writing.close()
