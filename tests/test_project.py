"""The state folder of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.errors import StoreError
from retinue.models.scripted.model import ScriptedModel


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path)})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    return project


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


async def test_the_state_folder_is_ignored_by_git_except_agents(
    project: Path, environment: Environment
) -> None:
    async with retinue.open(project, model=ScriptedModel([]), environment=environment):
        pass
    assert (project / ".retinue" / ".gitignore").read_text() == "*\n!/agents/\n!/agents/**\n"
