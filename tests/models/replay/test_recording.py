"""Reading recordings: whole, cut off, damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import (
    UserMessage,
)
from retinue.errors import ConfigError
from retinue.models.replay.recording import read_recording
from retinue.models.scripted.model import call, say
from tests.models.replay.recordings import OPENING, asked, recorded


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "r"
    steps = [call("read_file", path="a.txt"), say("Größe: ½."), say("Ja.")]
    asyncio.run(
        recorded(path, *steps, asking=(asked(), asked(*OPENING, UserMessage("Und?")), asked()))
    )
    return path.read_bytes()


@given(data=st.data())
def test_recording_cut_off_anywhere_can_be_read(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    first = whole.index(b"\n") + 1
    cut = data.draw(st.integers(first, len(whole)))
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(whole)
    takes = read_recording(path).exchanges
    path.write_bytes(whole[:cut])
    ended = [line for line in whole[:cut].split(b"\n") if b'"type":"exchange"' in line]
    left = read_recording(path).exchanges
    assert left == takes[: len(left)]
    assert len(left) in (len(ended), len(ended) - 1)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not a recording; make one with --record."),
        (b"# Notes\n", "is not a recording; make one with --record."),
        (b'{"type":"tools","id":1,"tools":[]}\n', "is not a recording; make one with --record."),
        (
            b'{"type":"recording","format":9,"retinue":"7.0"}\n{"type":"new"}\n',
            "is of format 9, by retinue 7.0; this is retinue",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_recording(tmp_path / "r")
    assert str(tmp_path / "r") in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nix' cannot be read: No such file or directory"):
        read_recording(tmp_path / "nix")


@pytest.mark.parametrize("without", [2, 3])
async def test_damage_is_reported_with_its_line(tmp_path: Path, without: int) -> None:
    path = tmp_path / "r"
    later = asked(*OPENING, UserMessage("And?"))
    await recorded(path, say("One."), say("Two."), asking=(asked(), later))
    lines = path.read_bytes().split(b"\n")
    lines[without - 1] = lines[without - 1][:30]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ConfigError, match=f"Line {without} of the recording .* is damaged"):
        read_recording(path)
    # The same if the line is missing altogether: what goes on from it has lost its beginning.
    path.write_bytes(b"\n".join(lines[: without - 1] + lines[without:]))
    with pytest.raises(ConfigError, match=f"Line {without} of the recording .* is damaged"):
        read_recording(path)
