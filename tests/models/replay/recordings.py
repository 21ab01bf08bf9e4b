"""Makes recordings for the tests of the recorder and of its file format."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from retinue.domain.messages import Message, Request, SystemMessage, UserMessage
from retinue.errors import RateLimited
from retinue.models.replay.recorder import RecordedModel, Recorder
from retinue.models.replay.recording import LoadedExchange, read_recording
from retinue.models.replay.redaction import Redaction
from retinue.models.scripted.model import ScriptedModel, Step
from retinue.runtime.core.clock import SystemClock
from retinue.testing.model_contract import SPEC

OPENING = (SystemMessage("Be brief."), UserMessage("What is in a.txt?"))


def recorder(path: Path, **redaction: Any) -> Recorder:
    return Recorder(path, redaction=Redaction(**redaction), clock=SystemClock())


async def recorded(path: Path, *steps: Step, asking: tuple[Request, ...]) -> list[LoadedExchange]:
    with closing(recorder(path)) as writing:
        model = RecordedModel(ScriptedModel(steps), writing)
        for request in asking:
            with suppress(RateLimited):
                await model.reply(request)
    return read_recording(path).exchanges


def asked(*messages: Message, agent_path: str = "root") -> Request:
    return Request(messages=messages or OPENING, tools=(SPEC,), agent_path=agent_path)
