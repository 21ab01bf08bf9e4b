"""Every example is run as a newcomer would run it, with a script for the model."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from retinue.embedded.model import is_available
from retinue.interfaces.cli.commands.demo import copy_tree, demo_files

EXAMPLES = Path(__file__).parents[1] / "examples"
# name: its arguments, the script, and what it prints.
RUNS = {
    "ask": (["How is it tested?"], "steps: [{call: list_dir}, {say: By pytest.}]", "By pytest.\n"),
    "batch": (
        ["docs/*.md"],
        "rules: [{match: docs/abuse.md, steps: [{say: Spam.}]}, {match: '', steps: "
        "[{say: Else.}, {say: Else.}, {say: Else.}]}]",
        "docs/abuse.md: Spam.\ndocs/history.md: Else.\ndocs/hosting.md: Else.\n"
        "docs/privacy.md: Else.\n",
    ),
    "custom_tool": (
        [],
        "steps: [{calls: [{call: in_stock, args: {item: pears}},"
        " {call: in_stock, args: {item: x}}]}, {say: Pears.}]",
        "Pears.\n  in_stock: ok\n  in_stock: failed\n",
    ),
    "custom_role": (
        [],
        "rules: [{match: You write one line for a changelog, steps: [{say: Codes are longer.}]}]",
        "Codes are longer.\n",
    ),
    "structured": (
        ["snip/links.py"],
        """steps: [{say: '{"findings": [{"line": 16, "problem": "A code may be taken."}]}'}]""",
        "snip/links.py:16: A code may be taken.\n",
    ),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy_tree(demo_files() / "snip", tmp_path / "snip")
    return tmp_path / "snip"


def _run(name: str, project: Path, arguments: list[str], **variables: str) -> tuple[int, str, str]:
    own = ("RETINUE_", "OPENAI_", "ANTHROPIC_", "OLLAMA_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(project), *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_every_example_is_tested_and_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(RUNS)
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in RUNS if f"[{name}.py]({name}.py)" not in listed] == []


@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name: str, project: Path, tmp_path: Path) -> None:
    arguments, script, expected = RUNS[name]
    (tmp_path / "script.yaml").write_text(script)
    model = f"scripted:{tmp_path / 'script.yaml'}"
    code, out, err = _run(name, project, arguments, RETINUE_MODEL=model, HOME=str(tmp_path))
    assert (code, out) == (0, expected), err


@pytest.mark.parametrize("name", RUNS)
def test_example_without_arguments_prints_its_usage(name: str) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"python examples/{name}.py DIR" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.services
@pytest.mark.parametrize(
    ("name", "package", "expected"),
    [
        ("langchain_model", "langchain_core", "It is a fake answer.\n"),
        ("pydantic_ai_model", "pydantic_ai", '{"list_dir":"[The directory is empty.]"}\n'),
    ],
)
def test_adapted_models(name: str, package: str, expected: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    (tmp_path / "empty").mkdir()
    code, out, err = _run(f"models/{name}", tmp_path / "empty", ["What?"], HOME=str(tmp_path))
    assert (code, out) == (0, expected), err


@pytest.mark.services
def test_web_application(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    script = "steps: [{call: write_file, args: {path: a.txt, content: x}}, {say: Tidy.}]"
    (tmp_path / "script.yaml").write_text(script)
    (tmp_path / "project").mkdir()
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = str(EXAMPLES / "web")
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "web_app:app", "--app-dir", folder, "--port", str(port)],
        env={
            **os.environ,
            "HOME": str(tmp_path / "home"),
            "RETINUE_MODEL": f"scripted:{tmp_path / 'script.yaml'}",
            "RETINUE_PROJECT": str(tmp_path / "project"),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        assert server.stderr is not None
        next(line for line in server.stderr if "running on" in line)
        with urllib.request.urlopen(f"{address}/runs?task=Tidy") as run:
            asked = b"{}"
            while asked == b"{}":
                with urllib.request.urlopen(f"{address}/approvals") as found:
                    asked = found.read()
            assert b"root wants write_file" in asked
            answer = urllib.request.Request(f"{address}/approvals/1?allow=true", method="POST")
            urllib.request.urlopen(answer).close()
            *_, last = run
        assert json.loads(last) == {"status": "completed", "answer": "Tidy."}
        assert (tmp_path / "project" / "a.txt").read_text() == "x"
    finally:
        server.terminate()
        server.communicate()


@pytest.mark.live
def test_batch_example_with_the_embedded_model(project: Path) -> None:
    if not is_available():
        pytest.skip("llama.cpp is missing: run script/servers")
    code, out, err = _run("batch", project, ["docs/*.md"], RETINUE_MODEL="embedded")
    assert code == 0, err
    assert [line.partition(":")[0] for line in out.splitlines() if line.startswith("docs/")] == [
        "docs/abuse.md", "docs/history.md", "docs/hosting.md", "docs/privacy.md",
    ]  # fmt: skip
