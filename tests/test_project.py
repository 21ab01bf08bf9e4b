"""The state folder of a project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.errors import StoreError, UsageError
from retinue.models.scripted.model import ScriptedModel
from retinue.project import open_journal, refuse_links


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path)})


@pytest.mark.parametrize("what", ["folder", "database"])
async def test_state_behind_a_link_is_refused(
    project: Path, tmp_path: Path, environment: Environment, what: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    if what == "folder":
        (project / ".retinue").symlink_to(outside)
    else:
        (project / ".retinue").mkdir()
        (project / ".retinue" / "retinue.db").symlink_to(outside / "retinue.db")
    with pytest.raises(StoreError, match="a link to somewhere else; remove it"):
        async with retinue.open(project, model=ScriptedModel([]), environment=environment):
            pass
    assert list(outside.iterdir()) == []


async def test_the_state_folder_is_ignored_by_git_except_what_people_write(
    project: Path, environment: Environment
) -> None:
    async with retinue.open(project, model=ScriptedModel([]), environment=environment):
        pass
    assert (project / ".retinue" / ".gitignore").read_text() == (
        "*\n!/agents/\n!/agents/**\n!/skills/\n!/skills/**\n!/commands/\n!/commands/**\n"
    )


async def test_gitignore_is_not_created_through_a_link(
    project: Path, tmp_path: Path, environment: Environment
) -> None:
    (project / ".retinue").mkdir()
    (project / ".retinue" / ".gitignore").symlink_to(tmp_path / "planted")
    async with retinue.open(project, model=ScriptedModel([]), environment=environment):
        pass
    assert not (tmp_path / "planted").exists()


async def test_journal_behind_a_link_is_not_read(project: Path, tmp_path: Path) -> None:
    (project / ".retinue").mkdir()
    (project / ".retinue" / "retinue.db").symlink_to(tmp_path / "other.db")
    with pytest.raises(StoreError, match="a link to somewhere else; remove it"):
        async with open_journal(project):
            pass


async def test_pipe_in_the_place_of_the_journal_is_refused(project: Path) -> None:
    (project / ".retinue").mkdir()
    os.mkfifo(project / ".retinue" / "retinue.db")
    with pytest.raises(StoreError, match=r"retinue\.db is not a file; remove it"):
        async with open_journal(project):
            pass


def test_files_are_not_written_through_links_of_the_project(project: Path, tmp_path: Path) -> None:
    (project / "file").symlink_to(tmp_path / "planted")
    (project / "folder").symlink_to(tmp_path)
    (tmp_path / "own").symlink_to(project)
    for path in (project / "file", project / "folder" / "new", tmp_path / "own" / "file"):
        with pytest.raises(UsageError, match=r"is a symbolic link; remove it, or name another"):
            refuse_links(project, path)
    refuse_links(project, tmp_path / "own" / "new")
