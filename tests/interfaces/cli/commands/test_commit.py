"""`retinue commit`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.interfaces.cli.commands.commit import clean_message

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script

MESSAGE = "Say good morning\n\nIt is early."
WRITES = (
    'rules: [{match: "", steps: [{say: "```text\\nSay good morning\\n\\nIt is early.\\n```"}]}]'
)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def model(script: Script) -> str:
    return script(WRITES)


@pytest.fixture
def repository(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One commit, and a staged change. The editor saves what it is given."""
    (tmp_path / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n")
    monkeypatch.setenv("GIT_EDITOR", "true")
    git("init", "-q", "-b", "main")
    (project / "a.txt").write_text("hello\n")
    git("add", "a.txt")
    git("commit", "-qm", "Greet everybody")
    (project / "a.txt").write_text("good morning\n")
    git("add", "a.txt")
    return project


def hook(repository: Path, name: str, text: str) -> None:
    path = repository / ".git" / "hooks" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_message_is_committed_with_hooks_and_options(
    cli: Cli, model: str, repository: Path
) -> None:
    hook(repository, "commit-msg", 'echo "Checked-by: hook" >> "$1"')
    done = cli("commit", "-m", model, "--", "--signoff")
    assert done.code == 0, done.err
    committed = git("log", "-1", "--format=%B")
    assert committed.startswith(f"{MESSAGE}\n\nSigned-off-by: Ada <ada@example.org>\n")
    assert committed.endswith("\nChecked-by: hook\n\n")
    assert not (repository / ".git" / "RETINUE_COMMIT_MSG").exists()
    # The child got the diff and the style, and no tools.
    shown = cli("show", "--json", "a1").out
    assert "+good morning" in shown
    assert "Greet everybody" in shown


@pytest.mark.usefixtures("repository")
def test_a_dry_run_prints_the_message_alone(cli: Cli, model: str) -> None:
    done = cli("commit", "-m", model, "--dry-run")
    assert (done.code, done.out) == (0, f"{MESSAGE}\n")
    assert git("log", "--format=%s") == "Greet everybody\n"


def test_a_refusing_hook_keeps_the_message(cli: Cli, model: str, repository: Path) -> None:
    hook(repository, "pre-commit", "exit 3")
    done = cli("commit", "-m", model)
    kept = repository / ".git" / "RETINUE_COMMIT_MSG"
    assert done.code == 1
    assert done.err.endswith(
        "retinue: git has not committed (exit code 1); what it printed above says why. The message"
        f" is kept: git commit -e -F {kept}\n"
    )
    assert kept.read_text() == f"{MESSAGE}\n"


def test_what_the_user_wrote_is_kept_if_a_later_hook_refuses(
    cli: Cli, model: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook(repository, "commit-msg", "exit 1")
    monkeypatch.setenv("GIT_EDITOR", "sed -i s/morning/evening/")
    assert cli("commit", "-m", model).code == 1
    kept = repository / ".git" / "RETINUE_COMMIT_MSG"
    assert kept.read_text().startswith("Say good evening\n")


def test_an_emptied_message_commits_nothing(
    cli: Cli, model: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_EDITOR", "truncate -s 0")
    done = cli("commit", "-m", model)
    assert done.code == 1
    assert "The message is kept" not in done.err
    assert not (repository / ".git" / "RETINUE_COMMIT_MSG").exists()


@pytest.mark.usefixtures("repository")
def test_a_failed_child_commits_nothing(cli: Cli, script: Script) -> None:
    done = cli("commit", "-m", script("steps: [{fail: refused, message: No.}]"))
    assert (done.code, done.out) == (1, "")
    assert git("log", "--format=%s") == "Greet everybody\n"
    done = cli("commit", "-m", script("steps: [{say: '``'}]"))
    assert done.code == 1
    assert done.err.endswith(
        "retinue: The model wrote no message; `git commit` lets you write one.\n"
    )


def test_there_must_be_something_to_commit(cli: Cli, project: Path, model: str) -> None:
    assert cli("commit", "-m", model) == (
        2, "", f"retinue: {project} is not in a git repository; `git init` makes one.\n"
    )  # fmt: skip
    git("init", "-q")
    assert cli("commit", "-m", model) == (
        2, "", "retinue: Nothing is staged; choose what to commit with `git add`.\n"
    )  # fmt: skip


def test_a_merge_is_left_to_git(cli: Cli, model: str, repository: Path) -> None:
    git("commit", "-qm", "Ours")
    git("checkout", "-q", "-b", "other", "HEAD~1")
    (repository / "a.txt").write_text("good night\n")
    git("commit", "-qam", "Theirs")
    subprocess.run(["git", "merge", "main"], check=False, capture_output=True)
    done = cli("commit", "-m", model)
    assert done.err == "retinue: A merge has conflicts; resolve them, and stage the files.\n"
    (repository / "a.txt").write_text("hello again\n")
    git("add", "a.txt")
    done = cli("commit", "-m", model)
    assert done.err == (
        "retinue: A merge is in progress, and has a message; finish it: git commit.\n"
    )


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("Add a  \n\nBecause. \n", "Add a\n\nBecause."),
        ("```\nAdd a\n```\n", "Add a"),
        ('"Add a"', "Add a"),
        ("Here it is:\n\n```text\nAdd a\n\nWhy.\n```", "Add a\n\nWhy."),
        ("Add \x1b]0;title\x07a\n\n\tTab\x9b31m.\r\n", "Add ]0;titlea\n\n\tTab31m."),
        ("", ""),
    ],
)
def test_fences_quotes_and_control_characters_are_removed(reply: str, message: str) -> None:
    assert clean_message(reply) == message
