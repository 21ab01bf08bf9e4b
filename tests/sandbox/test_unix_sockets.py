from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from retinue.sandbox.unix_sockets import has_sockets

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux lists them")


@pytest.mark.parametrize("spelled", ["s", "./s", "{folder}/s", "{folder}/../{name}/s", "link/s"])
def test_a_socket_is_seen_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    here, there = tmp_path / "h", tmp_path / "t"
    for folder in (here, there):
        folder.mkdir()
    os.symlink(here, here / "link")
    monkeypatch.chdir(here)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(spelled.format(folder=here, name=here.name))
        assert has_sockets([str(here)])
        assert has_sockets([str(tmp_path)])
        assert not has_sockets([str(there)])


def test_one_without_a_file_is_in_no_folder(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0retinue-{os.getpid()}")
        assert not has_sockets([str(tmp_path)])
