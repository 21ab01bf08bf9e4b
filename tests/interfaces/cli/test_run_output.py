"""What `--json` and `--output json` print, against the published schemas."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from retinue.interfaces.view.run_output import event_schema, result_schema

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
WRITE = """
rules:
  - match: "Count."
    steps: [{call: list_dir}, {say: None.}]
  - match: ""
    steps:
      - {call: spawn_agent, args: {role: researcher, task: Count.}}
      - {call: write_file, args: {path: notes.txt, content: "a\\n"}}
      - {say: Done.}
"""


@pytest.fixture
def event_check() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(event_schema())


@pytest.fixture
def result_check() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(result_schema())


def test_published_schemas_are_those_of_the_code() -> None:
    """`python docs/reference.py --schemas docs/schemas` writes them."""
    for name, schema in (("event", event_schema()), ("result", result_schema())):
        assert json.loads((SCHEMAS / f"{name}.json").read_text()) == json.loads(json.dumps(schema))


def _lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_run_json_ends_with_the_result(
    cli: Callable[..., Any],
    project: Path,
    event_check: jsonschema_rs.Validator,
    result_check: jsonschema_rs.Validator,
) -> None:
    (project / "script.yaml").write_text(WRITE)
    done = cli("run", "--json", "--mode", "auto", "-m", "scripted:script.yaml", "Go.")
    *events, result = _lines(done.out)
    for event in events:
        event_check.validate(event)
    result_check.validate(result)
    assert events[-1]["type"] == "run.finished"
    assert result["type"] == "result"
    assert (result["status"], result["answer"], result["data"]) == ("completed", "Done.", None)
    assert result["run_id"] == events[0]["run_id"] == result["session"]
    assert [file["path"] for file in result["files"]] == ["notes.txt"]
    (child,) = result["children"]
    assert (child["agent_id"], child["role"], child["status"]) == ("a1", "researcher", "completed")
    assert child["answer"] == "None."
    assert result["usage"]["tool_calls"] == 3
    assert result["cost_usd"] == 0


@pytest.mark.parametrize(
    ("arguments", "script", "expected"),
    [
        (["run", "Go."], "steps: [{say: Hi.}]", ("completed", "Hi.", None, 0)),
        (["spawn", "researcher", "Go."], "steps: [{say: Hi.}]", ("completed", "Hi.", None, 1)),
        (
            ["fan-out", "a", "b"],
            "rules: [{match: '', steps: [{say: Hi.}, {say: Hi.}]}]",
            ("completed", "Hi.\n\nHi.", None, 2),
        ),
        (
            ["run", "Go."],
            "steps: [{fail: refused}]",
            ("error", "", "The script refused the request.", 0),
        ),
    ],
)
def test_output_json_is_one_object(
    cli: Callable[..., Any],
    project: Path,
    result_check: jsonschema_rs.Validator,
    arguments: list[str],
    script: str,
    expected: tuple[str, str, str | None, int],
) -> None:
    (project / "script.yaml").write_text(script)
    name, *rest = arguments
    done = cli(name, "--output", "json", "-m", "scripted:script.yaml", *rest)
    (result,) = _lines(done.out)
    result_check.validate(result)
    assert done.err == ""
    found = (result["status"], result["answer"], result["error"], len(result["children"]))
    assert found == expected
    assert done.code == (0 if result["status"] == "completed" else 1)


def test_output_json_of_a_plan(
    cli: Callable[..., Any], project: Path, result_check: jsonschema_rs.Validator
) -> None:
    plan = 'goal = "Look"\n[[steps]]\nname = "look"\nrole = "researcher"\ntask = "Look."\n'
    (project / "plan.toml").write_text(plan)
    (project / "script.yaml").write_text("steps: [{say: Seen.}]")
    done = cli("run", "--output", "json", "-m", "scripted:script.yaml", "--plan", "plan.toml")
    (result,) = _lines(done.out)
    result_check.validate(result)
    assert result["answer"].startswith("# Look\n")
    assert [child["answer"] for child in result["children"]] == ["Seen."]


def test_a_suspended_run_says_so(
    cli: Callable[..., Any], project: Path, result_check: jsonschema_rs.Validator
) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{unused.getsockname()[1]}"
        config = project.parent / ".config" / "retinue" / "config.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(f'[servers."{origin}"]\npatience_s = 0.4\n')
        done = cli("run", "--output", "json", "-m", f"openai:m@{origin}/v1", "Go.")
    (result,) = _lines(done.out)
    result_check.validate(result)
    assert (done.code, result["status"]) == (1, "suspended")
    assert result["error"].startswith(f"The agent waits for openai:m@{origin}/v1: ")
