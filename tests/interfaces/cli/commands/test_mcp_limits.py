"""A caller of `retinue mcp` gets no more than the flags allow, whatever it asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interfaces.cli.mcp_client import WRITES, Client, HttpServer

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Script

Connect = Callable[..., Client | HttpServer]
WRITES_ELSEWHERE = """
rules:
  - match: ""
    steps:
      - {call: write_file, args: {path: ../out.txt, content: "hi"}}
      - {call: write_file, args: {path: "%s/out.txt", content: "hi"}}
      - {say: Done.}
"""
WRITE = {"task": "Write", "role": "executor"}


@pytest.fixture(params=["stdio", "http"])
def any_connect(request: pytest.FixtureRequest) -> Connect:
    """Starts `retinue mcp` with these arguments, over each transport."""

    def connect(*argv: str) -> Client | HttpServer:
        if request.param == "http":
            server: HttpServer = request.getfixturevalue("serve_http")(*argv)
            return server
        client: Client = request.getfixturevalue("connect")(*argv)
        client.initialize()
        return client

    return connect


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def test_mode(any_connect: Connect, script: Script, project: Path) -> None:
    client = any_connect("-m", script(WRITES), "--mode", "plan")
    dangerous = client.call("delegate", **WRITE, mode="dangerous")
    assert dangerous["isError"]
    assert "Invalid enum value 'dangerous'" in text(dangerous)
    note = "note: mode auto became plan: the parent has no more than that"
    assert note in text(client.call("delegate", **WRITE, mode="auto"))
    assert note in text(client.call("fan_out", tasks=[WRITE | {"mode": "auto"}]))
    agent = client.call("start", **WRITE, mode="auto")["structuredContent"]["agent"]
    assert note in text(client.call("result", agent=agent))
    step = {"name": "w", **WRITE, "mode": "auto"}
    planned = client.call("execute", plan={"goal": "x", "steps": [step]})
    assert "mode: is not a field of a step" in text(planned)
    del step["mode"]
    client.call("execute", plan={"goal": "x", "steps": [step]})
    assert not (project / "a.txt").exists()


def test_tokens(any_connect: Connect, script: Script) -> None:
    client = any_connect("-m", script(WRITES), "--mode", "auto", "--max-tokens", "5000")
    first = client.call("delegate", **WRITE, max_tokens=10**9)
    assert "note: max_tokens 1000000000 became 5000: the parent has no more" in text(first)
    used = first["structuredContent"]["usage"]["tokens"]
    second = client.call("fan_out", tasks=[WRITE | {"max_tokens": 10**9}])
    assert f"note: max_tokens 1000000000 became {5000 - used}:" in text(second)


def test_role(any_connect: Connect, script: Script, project: Path) -> None:
    client = any_connect("-m", script(WRITES), "--mode", "auto", "--role", "researcher")
    refusal = "Unknown role 'executor'; there are: researcher."
    assert text(client.call("delegate", **WRITE)) == refusal
    assert text(client.call("start", **WRITE)) == refusal
    assert text(client.call("fan_out", tasks=[WRITE])) == refusal
    planned = client.call("execute", plan={"goal": "x", "steps": [{"name": "w", **WRITE}]})
    assert "role: 'executor' is unknown; there are: researcher" in text(planned)
    for tool in ("write_file", "Write", "mcp__files__*"):
        more = client.call("delegate", task="Write", role="researcher", tools=["list_dir", tool])
        assert text(more).startswith(f"The role 'researcher' has no tool {tool!r}; it has: docs_")
    less = client.call("delegate", task="Write", role="researcher", tools=["list_dir", "mcp:read"])
    assert less["structuredContent"]["status"] == "completed"
    client.call("delegate", task="Write", role="researcher", tools=["*"])
    assert not (project / "a.txt").exists()


def test_directory(
    any_connect: Connect, script: Script, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    client = any_connect("-m", script(WRITES_ELSEWHERE % elsewhere), "--mode", "auto")
    named = client.call("delegate", **WRITE, directory=str(elsewhere))
    assert "unknown field `directory`" in text(named)
    above = client.call("delegate", **WRITE, scope=["../**"])
    assert text(above) == "'../**' leads out of the directory; name paths inside of it."
    for scope in (["**"], [f"{elsewhere}/**"]):
        client.call("delegate", **WRITE, scope=scope)
    assert not list(elsewhere.iterdir())
    assert not (project.parent / "out.txt").exists()
