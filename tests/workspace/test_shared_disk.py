"""A process finds the tokens of another one only on the same machine and the same disk."""

from __future__ import annotations

import os
from pathlib import Path

from retinue.workspace.shared_disk import DiskToken, disk_tokens, machine_id, shares_disk


def test_the_same_disk(tmp_path: Path) -> None:
    folders = [tmp_path / "state", tmp_path / "cache"]
    with disk_tokens(folders) as tokens:
        assert shares_disk(machine_id(), tokens)
        assert len({token.content for token in tokens}) == 2
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_another_machine(tmp_path: Path) -> None:
    with disk_tokens([tmp_path]) as tokens:
        assert not shares_disk("another", tokens)


def test_another_disk_with_the_same_paths(tmp_path: Path) -> None:
    with disk_tokens([tmp_path]) as tokens:
        (token,) = tokens
        Path(token.path).write_text("copied from an earlier run")
        assert not shares_disk(machine_id(), tokens)
        assert not shares_disk(machine_id(), [DiskToken(str(tmp_path / "none"), token.content)])


def test_tokens_of_killed_processes_are_removed(tmp_path: Path) -> None:
    left, new = tmp_path / ".host-token-left", tmp_path / ".host-token-new"
    for file in (left, new):
        file.write_text("x")
    os.utime(left, (0, 0))
    with disk_tokens([tmp_path]):
        assert not left.exists()
        assert new.exists()
