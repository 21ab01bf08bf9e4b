"""`retinue agents`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retinue.interfaces.cli.main import main


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an agent file, and a user without any."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("COLUMNS", "90")
    agents = tmp_path / "project" / ".claude" / "agents"
    agents.mkdir(parents=True)
    (agents / "auditor.md").write_text(
        "---\nname: auditor\ndescription: Audits: with evidence.\ntools: Read, Bash(npm:*), Grep\n"
        "model: opus\nmaxTurns: 7\n---\nYou audit.\x1b[2J\n\nTwice."
    )
    (agents / "mcp.md").write_text("---\nname: mcp\ntools: mcp__a__b\n---\nTalk.")
    return tmp_path / "project"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["agents", *argv])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_roles_are_listed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-C", str(project)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "NAME", "KIND", "CALLS", "TURNS", "TOKENS", "MAY", "SPAWN", "MODEL", "SOURCE",
    ]  # fmt: skip
    executor = next(line for line in lines if line.startswith("executor"))
    assert executor.split() == [
        "executor", "role", "30", "50", "65,536", "reviewer", "the", "parent's", "built", "in",
    ]  # fmt: skip
    at = next(i for i, line in enumerate(lines) if line.startswith("auditor"))
    assert lines[at].split() == [
        "auditor", "profile", "15", "7", "65,536", "-", "the", "parent's",
        ".claude/agents/auditor.md",
    ]  # fmt: skip
    assert lines[at + 1 : at + 4] == [
        "    Audits: with evidence.",
        "    tools: read_file, search_files",
        "    writes: nowhere",
    ]
    problems = lines[lines.index("Problems:") + 1 :]
    assert len(problems) == 4
    assert all(line.startswith("  .claude/agents/") for line in problems)
    assert "none of its tools is known here: mcp__a__b" in problems[-1]


def test_roles_as_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-C", str(project), "--json") == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [o.get("name") for o in objects] == [
        "executor", "general", "planner", "researcher", "reviewer", "tester", "auditor", None,
    ]  # fmt: skip
    auditor = objects[6]
    assert auditor["kind"] == "profile"
    assert auditor["tools"] == ["read_file", "search_files"]
    assert auditor["budget"]["max_turns"] == 7
    assert len(auditor["problems"]) == 3
    assert "mcp.md" in objects[7]["problem"]


def test_role_is_shown_in_full(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-C", str(project), "auditor") == 0
    out = capsys.readouterr().out
    assert out.startswith("auditor: profile, .claude/agents/auditor.md\n  Audits: with evidence.\n")
    assert "  Tools: read_file, search_files\n" in out
    assert "  Limits: 15 tool calls, 7 turns, 65,536 tokens, 300 s per attempt\n" in out
    assert "  May spawn: no role\n" in out
    assert "  Problem: model 'opus' is not in your [models]" in out
    assert out.endswith("\n\nYou audit.[2J\n\nTwice.\n")


def test_role_as_json_has_its_instructions(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-C", str(project), "--json", "reviewer") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["instructions"].startswith("You are a reviewer.")
    assert found["write"] == [[]]


def test_write_scope_of_a_role(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-C", str(project), "tester") == 0
    assert "  Writes: **/*.spec.*, " in capsys.readouterr().out
    assert run("-C", str(project), "reviewer") == 0
    assert "  Writes: nowhere\n" in capsys.readouterr().out


def test_unknown_role_is_an_error(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-C", str(project), "auditer") == 2
    assert "Unknown role 'auditer'; there are: auditor, executor" in capsys.readouterr().err


WIDER = """
[roles.reviewer]
write = ["**"]
tools = ["read_file", "write_file", "run_command"]
"""


def test_roles_show_what_they_can_really_do(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "retinue.toml").write_text(WIDER)
    assert run("-C", str(project), "reviewer") == 0
    out = capsys.readouterr().out
    assert "  Tools: read_file, run_command\n" in out
    assert "  Writes: nowhere\n" in out
    assert (
        "  Problem: may not use write_file; write **: this folder is not trusted; `retinue trust`"
        " allows it\n"
    ) in out
    with pytest.raises(SystemExit):
        main(["trust", str(project)])
    assert "role reviewer (retinue.toml): it may use write_file; write **" in (
        capsys.readouterr().out
    )
    assert run("-C", str(project), "reviewer") == 0
    out = capsys.readouterr().out
    assert "  Tools: read_file, write_file, run_command\n" in out
    assert "  Writes: wherever the parent may\n" in out
    assert "Problem" not in out


def test_role_without_writing_tools_writes_nowhere(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-C", str(project), "researcher") == 0
    assert "  Writes: nowhere\n" in capsys.readouterr().out
