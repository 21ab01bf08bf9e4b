"""Images on their way through a run: sent, stored once, and there again after any interruption."""

from __future__ import annotations

import base64
import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import pytest

from retinue.domain.contract import decode_contract
from retinue.domain.images import Image
from retinue.domain.messages import Request, ToolMessage, images_of
from retinue.errors import RunSuspended, Unreachable, UsageError
from retinue.models.scripted.model import ScriptedModel, call, calls, fail, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

# The header of a PNG of 400 × 300 pixels. The rest is not decoded, and large enough for a blob.
HEADER = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
SHOT = HEADER + (400).to_bytes(4, "big") + (300).to_bytes(4, "big") + bytes(range(256)) * 8
DATA = base64.b64encode(SHOT).decode()
SHA256 = Image("", DATA, 0, 0).sha256


@pytest.fixture
def shot(project: Path) -> Path:
    path = project / "shot.png"
    path.write_bytes(SHOT)
    return path


def names(request: Request) -> list[str]:
    found = images_of(request.messages)
    assert all(image.data == DATA for image in found)
    return [image.name for image in found]


def stored_blobs(project: Path) -> int:
    """How many blobs hold the image."""
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as database:
        query = "SELECT count(*) FROM blobs WHERE hash = ?"
        (count,) = database.execute(query, [SHA256]).fetchone()
    return int(count)


@pytest.mark.usefixtures("shot")
async def test_an_attached_image_is_sent_stored_once_and_in_the_next_run(
    opened: Opened, project: Path
) -> None:
    model = ScriptedModel([say("A heron."), say("Grey.")])
    async with opened(model=model) as rt:
        first = await rt.run("What is on it?", context_files=["shot.png"])
        await rt.run("Which colour?", session=first.session)
    assert [names(request) for request in model.requests] == [["shot.png"], ["shot.png"]]
    assert "[image shot.png (400×300 pixels) is attached]" in model.requests[0].messages[1].content
    assert stored_blobs(project) == 1
    async with open_journal(project) as store:
        (row,) = await store.agents(first.id)
        assert (await audit(store, first.id)).agents == 1
    assert decode_contract(row.context_json).step.images == (SHA256,)
    assert DATA not in row.context_json


@pytest.mark.usefixtures("shot")
async def test_an_image_that_was_read_is_there_again_after_a_resume(
    opened: Opened, project: Path
) -> None:
    before = ScriptedModel([call("read_file", path="shot.png"), fail(Unreachable("It is gone."))])
    async with opened(model=before) as rt:
        with pytest.raises(RunSuspended) as left:
            await rt.run("What is on it?", context_files=["shot.png"])
    os.unlink(project / "shot.png")
    after = ScriptedModel([say("A heron.")])
    async with opened(model=after) as rt:
        done = await rt.resume(left.value.run_id)
    assert done.response == "A heron."
    assert after.requests[0].messages == before.requests[1].messages
    assert names(after.requests[0]) == ["shot.png", "shot.png"]
    assert stored_blobs(project) == 1


@pytest.mark.usefixtures("shot")
async def test_a_child_keeps_its_image_in_a_second_attempt(opened: Opened) -> None:
    model = ScriptedModel([*[call("no_such_tool")] * 3, say("A heron.")])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Look.", context_files=["shot.png"], max_retries=1)
    assert (result.ok, result.attempts) == (True, 2)
    assert [names(request) for request in model.requests] == [["shot.png"]] * 4


@pytest.mark.usefixtures("shot")
async def test_a_recorded_run_with_images_is_replayed(opened: Opened, tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    steps = [call("read_file", path="shot.png"), say("A heron.")]
    async with ModelServer(steps) as server:
        name = f"openai:m@{server.base_url}"
        async with opened(model=name, record=recording) as rt:
            await rt.run("What is on it?", context_files=["shot.png"])
    assert recording.read_text().count(DATA) == 1
    async with opened(model=f"replay:{recording}") as rt:
        done = await rt.run("What is on it?", context_files=["shot.png"])
    assert done.response == "A heron."


@pytest.mark.usefixtures("shot")
async def test_a_model_that_cannot_see_gets_a_sentence_and_the_user_too(opened: Opened) -> None:
    pages = {
        "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]},
        "/props": {"modalities": {"vision": False}, "total_slots": 1},
    }
    steps = [call("read_file", path="shot.png"), say("I cannot see it.")]
    async with ModelServer(steps, pages=pages) as server:
        async with opened(model=f"openai:m@{server.base_url}") as rt:
            with pytest.raises(UsageError, match="m cannot see images: choose another"):
                await rt.run("What is on it?", context_files=["shot.png"])
            await rt.run("What is on it?")
        told = [r.json["messages"][-1]["content"] for r in server.requests if r.body]
    assert told[-1].endswith("[image shot.png (400×300 pixels) is left out: you cannot see images]")


async def test_images_that_do_not_fit_are_left_out_of_the_answers(
    opened: Opened, project: Path
) -> None:
    large = SHOT[:16] + (1_568).to_bytes(4, "big") * 2 + SHOT[24:]
    for number in range(4):
        (project / f"{number}.png").write_bytes(large)
    reads = [call("read_file", path=f"{number}.png") for number in range(4)]
    model = ScriptedModel([calls(*reads), say("Too many.")])
    async with opened(model=model) as rt:
        await rt.spawn("researcher", "Look.", max_context_tokens=16_000)
    answers = [m for m in model.requests[1].messages if isinstance(m, ToolMessage)]
    assert len(answers) == 4
    assert all(not answer.images for answer in answers)
    assert all("The images are left out" in answer.content for answer in answers)
