"""Executables are found on the PATH, but not in folders that a project controls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.executables import exclude_project, find_program


def make_program(folder: Path, name: str = "tool") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def test_program_in_a_folder_of_the_user_is_found(project: Path, tmp_path: Path) -> None:
    program = make_program(tmp_path / "bin")
    assert find_program("tool", path=str(program.parent)) == str(program)
    assert find_program("other", path=str(program.parent)) is None


@pytest.mark.parametrize("folder", ["project/bin", "elsewhere/node_modules/.bin", "venv/bin"])
def test_program_in_a_folder_of_the_project_is_skipped(
    project: Path, tmp_path: Path, folder: str
) -> None:
    theirs, mine = make_program(tmp_path / folder), make_program(tmp_path / "bin")
    if folder == "venv/bin":
        (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    path = os.pathsep.join([str(theirs.parent), str(mine.parent)])
    assert find_program("tool", path=path) == str(mine)


def test_relative_folder_and_link_into_the_project_are_skipped(
    project: Path, tmp_path: Path
) -> None:
    make_program(project / "bin")
    (tmp_path / "link").symlink_to(project / "bin")
    assert find_program("tool", path=f"bin{os.pathsep}{tmp_path / 'link'}") is None


def test_link_in_the_project_is_skipped_wherever_it_leads(project: Path, tmp_path: Path) -> None:
    """An agent could replace the link after the program was found."""
    make_program(tmp_path / "bin")
    (project / "link").symlink_to(tmp_path / "bin")
    assert find_program("tool", path=str(project / "link")) is None


def test_system_folders_come_first(project: Path, tmp_path: Path) -> None:
    make_program(tmp_path / "bin", "sh")
    found = find_program("sh", path=os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"]))
    assert found in ("/usr/bin/sh", "/bin/sh")


def test_program_in_an_opened_project_is_skipped_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`retinue -C project`, or `retinue.open("project")`."""
    make_program(tmp_path / "project" / "bin")
    monkeypatch.chdir("/")
    exclude_project(str(tmp_path / "project"))
    assert find_program("tool", path=str(tmp_path / "project" / "bin")) is None
