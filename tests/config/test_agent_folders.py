from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.config import agent_folders as folders
from retinue.config.agent_folders import FolderFile, project_folders, read_folder, user_folders
from retinue.config.environment import Environment
from retinue.config.tool_translation import Dialect

TEXT = "---\nname: x\n---\nDo it."


def found_in(project: Path, place: str = ".claude/agents") -> list[FolderFile]:
    return [
        found
        for folder in project_folders(project)
        if folder.display_path == place
        for found in read_folder(folder)
    ]


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / ".claude" / "agents"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def project(agents: Path) -> Path:
    return agents.parent.parent


def test_project_and_user_folders(tmp_path: Path) -> None:
    assert [(f.display_path, f.dialect) for f in project_folders(tmp_path)][:2] == [
        (".retinue/agents", Dialect.RETINUE),
        (".claude/agents", Dialect.CLAUDE),
    ]
    environment = Environment(variables={"HOME": "/home/me", "XDG_CONFIG_HOME": "/cfg"})
    display_path = [f.display_path for f in user_folders(environment)]
    assert display_path[:3] == ["/cfg/retinue/agents", "~/.claude/agents", "/cfg/opencode/agent"]


def test_a_missing_folder_has_no_files(tmp_path: Path) -> None:
    assert [found for folder in project_folders(tmp_path) for found in read_folder(folder)] == []


def test_files_are_sorted_and_include_subfolders(project: Path, agents: Path) -> None:
    (agents / "team").mkdir()
    for name in ("b.md", "a.md", "team/c.md", "skipped.txt", ".hidden.md"):
        (agents / name).write_text(TEXT)
    found = found_in(project)
    assert [f.name for f in found] == ["a.md", "b.md", "team/c.md"]
    assert found[2].display_path == ".claude/agents/team/c.md"
    assert found[0].text == TEXT


def test_display_path_is_printable(project: Path, agents: Path) -> None:
    (agents / "a\x1b[2J\n.md").write_text(TEXT)
    (agents / os.fsdecode(b"b\xff.md")).write_text(TEXT)
    display_path = [f.display_path for f in found_in(project)]
    assert display_path == [".claude/agents/a?[2J?.md", ".claude/agents/b?.md"]


def test_link_out_of_the_project_is_not_followed(
    tmp_path: Path, project: Path, agents: Path
) -> None:
    (tmp_path / "secret.md").write_text("a secret")
    (agents / "out.md").symlink_to(tmp_path / "secret.md")
    (agents / "real.md").write_text(TEXT)
    (agents / "within.md").symlink_to(agents / "real.md")
    found = {f.name: f for f in found_in(project)}
    assert found["out.md"].text == ""
    assert "leads out of the project" in found["out.md"].problem
    assert found["within.md"].text == TEXT


def test_folder_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.md").write_text("a secret")
    (tmp_path / "project" / ".claude").mkdir(parents=True)
    (tmp_path / "project" / ".claude" / "agents").symlink_to(tmp_path / "elsewhere")
    (found,) = found_in(tmp_path / "project")
    assert found.display_path == ".claude/agents"
    assert "leads out of the project" in found.problem


def test_user_folders_may_contain_links(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "a.md").write_text(TEXT)
    home = tmp_path / "home"
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "agents").symlink_to(tmp_path / "dotfiles")
    environment = Environment(variables={"HOME": str(home)})
    found = [f for folder in user_folders(environment) for f in read_folder(folder)]
    assert [f.display_path for f in found] == ["~/.claude/agents/a.md"]


def test_unreadable_files_are_problems(project: Path, agents: Path) -> None:
    (agents / "latin.md").write_bytes(b"caf\xe9")
    (agents / "large.md").write_bytes(b"x" * (folders.MAX_FILE_BYTES + 1))
    (agents / "largest.md").write_bytes(b"x" * folders.MAX_FILE_BYTES)
    (agents / "lost.md").symlink_to(agents / "nowhere")
    os.mkfifo(agents / "pipe.md")
    found = {f.name: f.problem for f in found_in(project)}
    assert found == {
        "latin.md": "not UTF-8 text",
        "large.md": "larger than 256 KB",
        "largest.md": "",
        "lost.md": "cannot be read: No such file or directory",
        "pipe.md": "cannot be read: it is not a regular file",
    }


def test_number_of_files_is_limited(project: Path, agents: Path) -> None:
    for i in range(folders.MAX_FILES + 3):
        (agents / f"{i:04}.md").write_text("x")
    problem, *files = found_in(project)
    assert problem.problem == "only 500 of 503 files are read"
    assert len(files) == folders.MAX_FILES
