"""`retinue metrics`, `export --otel`, and the log of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.trace_context import span_of

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script

LOOKS = """
rules:
  - match: ""
    steps: [{call: list_dir}, {call: read_file, args: {path: nope}}, {say: Looked.}]
"""


def test_metrics(cli: Cli, script: Script) -> None:
    assert cli("metrics") == (0, "", "")
    assert cli("run", "-q", "-m", script(LOOKS), "Look").code == 0
    done = cli("metrics")
    assert done.code == 0
    assert 'retinue_run_duration_seconds_count{retinue_run_kind="run",' in done.out
    assert 'retinue_tool_duration_seconds_count{gen_ai_tool_name="list_dir"} 1\n' in done.out


def test_names_in_metrics_have_no_control_characters(cli: Cli, project: Path) -> None:
    evil = project / "evil\x1b]0;title\x07\x9b31m.yaml"
    evil.write_text(LOOKS)
    assert cli("run", "-q", "-m", f"scripted:{evil}", "Look").code == 0
    done = cli("metrics")
    assert "evil]0;title31m.yaml" in done.out
    assert not {"\x1b", "\x07", "\x9b"} & set(done.out)


def test_json_log(cli: Cli, script: Script) -> None:
    arguments = ("run", "-m", script(LOOKS), "--log-format", "json", "Look")
    done = cli(*arguments, "--log-level", "debug")
    assert (done.code, done.out) == (0, "Looked.\n")
    records = [json.loads(line) for line in done.err.splitlines() if line.startswith("{")]
    assert records[0]["event"] == "run.started"
    assert records[-1]["event"] == "run.finished"
    assert {record["trace_id"] for record in records} == {span_of(records[0]["run"]).trace_id}
    assert {record["level"] for record in records} == {"debug", "info"}
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    events = [json.loads(line)["event"] for line in cli(*arguments).err.splitlines() if "{" in line]
    assert "run.started" in events
    assert "tool.started" not in events


def test_text_log_has_only_what_matters_at_its_level(cli: Cli, script: Script) -> None:
    model = script('rules: [{match: "", steps: [{fail: refused}]}]')
    done = cli("run", "-m", model, "--log-format", "text", "--log-level", "error", "Look")
    assert done.code == 1
    lines = [line for line in done.err.splitlines() if " ERROR " in line]
    assert [line.split()[4].rstrip(":") for line in lines] == [
        "agent.subagent_failed",
        "run.finished",
    ]
    assert " INFO " not in done.err


def test_json_and_a_log_are_refused(cli: Cli, script: Script) -> None:
    done = cli("run", "-m", script(LOOKS), "--json", "--log-format", "json", "Look")
    assert done.code == 2
    assert "--json prints the events; --log-format is for runs without it." in done.err


def test_exporting_to_nobody(cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    assert cli("run", "-q", "-m", script(LOOKS), "Look").code == 0
    run = cli("runs").out.split()[0]
    done = cli("export", run, "--otel", "http://127.0.0.1:1")
    assert done.code == 1
    assert (
        "http://127.0.0.1:1/v1/traces did not take the spans: 0 of 7 were sent. Check that an"
        " OpenTelemetry collector listens there for OTLP over HTTP (usually port 4318); the"
        " command can be repeated." in done.err
    )
    done = cli("export", run, "--otel", "collector")
    assert done.err == "retinue: 'collector' is no URL of a collector; write http://HOST:4318.\n"
    assert done.code == 2
    both = cli("export", run, "--otel", "http://127.0.0.1:1", "--html", "x.html")
    assert both.code == 2
    assert "-o, --html, --md and --otel exclude each other; use one of them." in both.err
