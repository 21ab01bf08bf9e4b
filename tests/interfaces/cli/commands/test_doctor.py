"""`retinue doctor`."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.config.environment import Environment
from retinue.models.scripted.model import call, say
from retinue.sandbox.selection import select_sandbox
from retinue.testing.server import failing

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve


Settings = Callable[[str], Path]
Finding = tuple[str, str, str]


def pages(*names: str, window: int = 65_536) -> dict[str, Any]:
    cards = [{"id": n, "owned_by": "vllm", "max_model_len": window} for n in names]
    return {"/v1/models": {"object": "list", "data": cards}}


@pytest.fixture(autouse=True)
def _alone(settings: Settings) -> None:
    settings("discovery = false\n")


@pytest.fixture
def examine(cli: Cli) -> Callable[..., tuple[int, list[Finding]]]:
    """Returns the exit code, and level, text and fix of each finding `about` a topic."""

    def call(about: str) -> tuple[int, list[Finding]]:
        done = cli("doctor", "--json")
        assert done.err == ""
        found = [json.loads(line) for line in done.out.splitlines()]
        mine = [(f["level"], f["text"], f["way_out"]) for f in found if f["about"] == about]
        return done.code, mine

    return call


Examine = Callable[[str], tuple[int, list[Finding]]]


def test_healthy_setup_has_no_problems(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_MODEL", script("steps: [{say: ok}]"))
    done = cli("doctor")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("ok       retinue: 0.")
    assert "ok       model: scripted:script.yaml (RETINUE_MODEL)" in lines
    assert lines[-1] == "No problems."


# The sandbox


def test_sandbox_tier_and_gaps_are_reported(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier depends on this machine; its gaps are listed."""
    choice = asyncio.run(select_sandbox(Environment.current().for_commands()))
    _, (found, *more) = examine("sandbox")
    assert [text for _, text, _ in more] == [
        *(f"not enforced: {leak}" for leak in choice.leaks),
        *(f"not available: {lack}" for lack in choice.unsupported),
    ]
    if choice.tier == "none":
        assert found[0] == "note"
        assert found[1].startswith("none, so agents have no shell commands (")
    else:
        assert found[0] == ("ok" if choice.tier == "full" else "note")
        assert found[1].startswith(f"{choice.tier}, by {choice.name}: files, network, ")


def test_missing_bubblewrap_is_a_note_with_a_fix(
    cli: Cli, examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _, (found, *_) = examine("sandbox")
    assert found[0] == "note"
    assert "bubblewrap: not found. Install bubblewrap" in found[1]
    assert found[2].startswith("For the full tier, install bubblewrap and allow it to make")
    # What can be done about a note stands below it.
    assert "         → For the full tier, install bubblewrap" in cli("doctor").out


def test_disabled_shell_is_a_note(examine: Examine, settings: Settings) -> None:
    settings("discovery = false\nshell = false\n")
    _, found = examine("sandbox")
    assert found == [("note", "shell commands are disabled in the settings", "")]


def test_doctor_writes_nothing(cli: Cli, project: Path) -> None:
    cli("doctor")
    assert list(project.iterdir()) == []


# The model


def test_missing_model_is_a_problem(cli: Cli, examine: Examine) -> None:
    assert examine("model") == (
        1,
        [
            (
                "problem",
                "No model was named, and discovery is off in the settings.",
                'Name one: -m NAME, or RETINUE_MODEL=NAME, or model = "NAME" in'
                " ~/.config/retinue/config.toml, such as openai:MODEL@http://127.0.0.1:8080/v1.\n"
                "Or set the key of a provider, such as OPENAI_API_KEY, and name a model with -m."
                " `retinue doctor` shows what was tried.",
            )
        ],
    )
    assert cli("doctor").out.endswith("\n\n1 problem\n")


def test_only_model_is_ok(serve: Serve, examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(pages=pages("qwen3", window=4096))
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    code, (using, small) = examine("model")
    assert code == 0
    assert using == (
        "ok",
        f"openai:qwen3@{server.url}  (vLLM, 4,096 tokens), the only model that is served",
        "",
    )
    assert small[0] == "note"
    assert small[1].startswith("qwen3 has a window of 4,096 tokens at vLLM")


def test_several_models_are_a_note(
    serve: Serve, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(pages=pages("a", "b"))
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    code, [(level, text, way_out)] = examine("model")
    assert (code, level) == (0, "note")
    assert text.startswith("No model was named, and there are several.")
    assert f"openai:b@{server.url}" in way_out


def test_model_that_is_served_is_ok(
    serve: Serve, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"openai:a@{serve(pages=pages('a', 'b')).url}"
    monkeypatch.setenv("RETINUE_MODEL", name)
    assert examine("model") == (0, [("ok", f"{name} (RETINUE_MODEL)", "")])


def test_model_that_is_not_served_is_a_problem(
    serve: Serve, examine: Examine, settings: Settings
) -> None:
    name = f"openai:c@{serve(pages=pages('a', 'b')).url}"
    settings(f'discovery = false\nmodel = "{name}"\n')
    where = "~/.config/retinue/config.toml"
    assert examine("model") == (
        1,
        [("problem", f"{name} ({where}) is not served there", "served: a, b")],
    )


def test_model_at_a_failing_server_is_a_problem(
    serve: Serve, examine: Examine, project: Path
) -> None:
    name = f"openai:a@{serve(pages={'/v1/models': failing(503, 'Loading model')}).url}"
    (project / "retinue.toml").write_text(f'model = "{name}"\n')
    assert examine("model") == (
        1,
        [
            (
                "problem",
                f"{name} (retinue.toml): it answers 503 (Loading model)",
                "start that server, or choose another model with -m; `retinue models` lists them",
            )
        ],
    )


def test_openai_model_needs_a_key(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_MODEL", "openai:gpt-5-mini")
    assert examine("model") == (
        1,
        [("problem", "openai:gpt-5-mini (RETINUE_MODEL) needs an API key", "set OPENAI_API_KEY")],
    )


def test_model_at_the_openai_base_url_is_found(
    serve: Serve, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", serve(pages=pages("a")).url)
    monkeypatch.setenv("RETINUE_MODEL", "openai:a")
    assert examine("model") == (0, [("ok", "openai:a (RETINUE_MODEL)", "")])


def test_unknown_provider_is_a_problem(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_MODEL", "opnai:gpt")
    message = "Unknown provider 'opnai' in model 'opnai:gpt'; write openai:…"
    assert examine("model") == (1, [("problem", message, "")])


# Servers and keys


def test_servers(serve: Serve, examine: Examine, settings: Settings) -> None:
    good, bad = serve(pages=pages("a")), serve(pages={"/v1/models": failing(401, "No.")})
    settings(f'discovery = false\nendpoints = ["{good.url}", "{bad.url}"]\n')
    _, [(level, text, _), second] = examine("servers")
    assert level == "ok"
    assert text.startswith(f"{good.url} (endpoints) is vLLM and serves 1 model, ")
    other = serve(pages={"/v1/models": {"data": [{"id": "a"}]}})
    settings(f'discovery = false\nendpoints = ["{other.url}"]\n')
    _, [(_, text, _)] = examine("servers")
    assert text.startswith(f"{other.url} (endpoints) serves 1 model, ")
    assert second == (
        "note",
        f"{bad.url} (endpoints): it wants a key (401); set OPENAI_API_KEY",
        "",
    )


def test_keys_are_reported_but_not_printed(
    cli: Cli, serve: Serve, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", serve(pages=pages("a")).url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    is_set, unset = examine("keys")[1]
    assert is_set == ("ok", "OPENAI_API_KEY is set", "")
    assert unset[1].startswith("not set: ANTHROPIC_API_KEY, GEMINI_API_KEY, ")
    assert "sk-secret" not in cli("doctor").out


def test_key_variable_of_a_server(
    examine: Examine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings('discovery = false\n[servers."http://box"]\nkey_variable = "TEAM_KEY"\n')
    assert examine("keys")[1][-1] == (
        "note", "TEAM_KEY is not set, the key of http://box", "set TEAM_KEY"
    )  # fmt: skip
    monkeypatch.setenv("TEAM_KEY", "x")
    assert examine("keys")[1][-1] == ("ok", "TEAM_KEY is set, the key of http://box", "")


# Settings


def test_settings(examine: Examine, project: Path) -> None:
    assert examine("settings")[1] == [
        ("ok", "~/.config/retinue/config.toml: read", ""),
        ("ok", f"~/{project.name}/retinue.toml: does not exist, which is fine", ""),
    ]


def test_invalid_settings_are_an_error(
    examine: Examine, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_MODEL", script("steps: [{say: ok}]"))
    (project / "retinue.toml").write_text("colour = 1\n")
    code, found = examine("settings")
    assert code == 1
    message = f"{project / 'retinue.toml'}: line 1, key colour: unknown key 'colour'."
    assert found[-1] == ("problem", message, "")
    # The other checks run all the same.
    assert examine("model")[1] == [("ok", "scripted:script.yaml (RETINUE_MODEL)", "")]


def test_broken_agent_file_is_a_note(examine: Examine, project: Path) -> None:
    folder = project / ".retinue" / "agents"
    folder.mkdir(parents=True)
    (folder / "broken.md").write_text("---\ntools: teleport\n---\nHi.")
    _, found = examine("agents")
    assert [level for level, *_ in found] == ["note"]
    assert ".retinue/agents/broken.md" in found[0][1]


# The state


def test_a_journal(cli: Cli, script: Script, examine: Examine) -> None:
    assert examine("state")[1] == [
        ("ok", "~/project/.retinue is writable; it has no journal yet", "")
    ]
    cli("run", "-q", "-m", script("steps: [{say: ok}]"), "x")
    assert examine("state")[1] == [
        ("ok", "~/project/.retinue is writable; 1 run in its journal", "")
    ]


def test_unusable_state_directory_is_a_problem(
    examine: Examine, project: Path, tmp_path: Path
) -> None:
    state = project / ".retinue"
    state.write_text("")
    assert examine("state")[1] == [
        ("problem", "~/project/.retinue is a file, not a directory", "rename it")
    ]
    state.unlink()
    state.symlink_to(tmp_path)
    assert examine("state")[1] == [
        ("problem", "~/project/.retinue is or contains a symbolic link", "remove it")
    ]
    state.unlink()
    state.mkdir()
    (state / "retinue.db").write_text("This is not a database. " * 100)
    ((_, text, _),) = examine("state")[1]
    assert text.endswith("retinue.db is damaged or not a database; restore it or move it away.")


def test_journal_of_a_newer_version_is_a_problem(
    cli: Cli, script: Script, examine: Examine, project: Path
) -> None:
    cli("run", "-q", "-m", script("steps: [{say: ok}]"), "x")
    with sqlite3.connect(project / ".retinue" / "retinue.db") as database:
        database.execute("PRAGMA user_version = 999")
    database.close()
    ((level, text, _),) = examine("state")[1]
    assert level == "problem"
    assert "was written by a newer retinue" in text


# Programs


def test_missing_git_and_ripgrep_are_notes(
    examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert examine("git")[1] == [
        ("note", "is not on the PATH", "install it: children write in git worktrees")
    ]
    assert examine("ripgrep")[1] == [
        ("note", "is not on the PATH", "searches work without it, but slower")
    ]


# MCP servers


def test_mcp_servers_are_checked_but_not_started(
    examine: Callable[..., tuple[int, list[Finding]]], settings: Settings, project: Path
) -> None:
    settings(
        'discovery = false\n[mcp.here]\ncommand = "sh"\n[mcp.gone]\ncommand = "no-such"\n'
        '[mcp.web]\nurl = "https://example.com/mcp?key=secret"\n'
        '[mcp.unset]\ncommand = "sh"\nargs = ["${UNSET}"]\n'
    )
    theirs = {"command": "touch", "args": ["started"]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": theirs}}))
    code, found = examine("mcp")
    assert code == 1
    assert found == [
        ("problem", "gone (settings): command 'no-such' not found", "install it"),
        ("ok", "here (settings) starts sh; `retinue tools` lists its tools", ""),
        ("ok", "web (settings) is at example.com", ""),
        (
            "note",
            "not trusted: MCP server theirs (.mcp.json): it starts touch started in the sandbox,"
            " without network",
            "to allow it, run: retinue trust",
        ),
        (
            "problem",
            "without the MCP server unset (settings): it needs the variable UNSET, which is not"
            " set",
            "",
        ),
    ]
    assert not (project / "started").exists()


def test_untrusted_model_is_a_problem(
    examine: Callable[..., tuple[int, list[Finding]]], project: Path
) -> None:
    (project / "retinue.toml").write_text('model = "scripted:a.yaml"')
    code, found = examine("model")
    assert code == 1
    assert found[-1] == (
        "problem",
        "not trusted: model scripted:a.yaml (retinue.toml): it is a script of the project, which"
        " then decides what agents do",
        "to allow it, run: retinue trust",
    )


def test_each_model_of_a_pool_is_checked(
    examine: Callable[..., tuple[int, list[Finding]]], serve: Serve, settings: Settings
) -> None:
    one, two = serve(pages=pages("big")), serve(pages=pages("small"))
    big, gone = f"openai:big@{one.url}", f"openai:gone@{two.url}"
    settings(
        f'discovery = false\nmodel = "smart"\n[pools.smart]\nendpoints = ["{big}", "{gone}"]\n'
    )
    code, found = examine("model")
    assert code == 1
    assert found == [
        ("ok", f"{big} (pools.smart)", ""),
        ("problem", f"{gone} (pools.smart) is not served there", "served: small"),
    ]


# Probes


def test_probe_asks_a_model_of_each_endpoint(
    cli: Cli, serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = serve(call("ping", word="pong").using(100, 20), pages=pages("m"))
    unable = serve(say("I cannot."), pages=pages("m"))
    locked = serve(failing(401, "No such key."), pages=pages("m"))
    monkeypatch.setenv("RETINUE_MODEL", f"openai:m@{able.url}")
    settings(
        f'discovery = false\n[models]\nfirst = "openai:m2@{able.url}"\n'
        f'second = "openai:m@{unable.url}"\nthird = "openai:m@{locked.url}"\n'
        "[prices.m]\ninput = 10\noutput = 100\n"
    )
    done = cli("doctor", "--probe")
    found = [line for line in done.out.splitlines() if "probe: " in line]
    assert done.code == 1
    assert re.fullmatch(
        rf"ok +probe: openai:m@{able.url} called a tool, \d+\.\ds, 120 tokens, \$0\.0030", found[0]
    )
    assert found[1].startswith(
        f"problem  probe: openai:m@{unable.url}: it answered without calling the tool; choose a"
    )
    assert found[2] == (
        f"problem  probe: openai:m@{locked.url}: {locked.url} wants an API key (401 Unauthorized)."
        " Set one in OPENAI_API_KEY. It said: No such key."
    )
    assert len(able.requests) == len(unable.requests) == len(locked.requests) == 1


def test_doctor_calls_no_model_without_probe(
    cli: Cli, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(pages=pages("m"))
    monkeypatch.setenv("RETINUE_MODEL", f"openai:m@{server.url}")
    assert cli("doctor").code == 0
    assert not server.requests


def test_nearest_names_of_a_model_that_is_not_served(
    serve: Serve, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(pages=pages("qwen3-coder", "qwen3-max", "gemma"))
    monkeypatch.setenv("RETINUE_MODEL", f"openai:qwen3-codr@{server.url}")
    ((level, _, fix),) = examine("model")[1]
    assert (level, fix) == ("problem", "did you mean qwen3-coder or qwen3-max?")


def test_provider_without_an_address(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_MODEL", "azure:gpt-5-mini")
    ((level, text, fix),) = examine("model")[1]
    assert (level, fix) == ("problem", "set AZURE_OPENAI_ENDPOINT")
    assert text == "azure:gpt-5-mini (RETINUE_MODEL) needs the address of Azure OpenAI"
