"""The conformance suite of MCP, against `retinue mcp --http`.

Many of its scenarios call tools that only a server made for the suite has. Those for tasks,
questions and results run against a server that has such tools and is ours in all else. Left out are
scenarios for what this server does not offer: completion, logging, sampling, subscriptions, audio.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import npm
from tests.interfaces.cli.rpc_client import RETINUE
from tests.interfaces.mcp_server.authorizing_proxy import authorizing_proxy

pytestmark = pytest.mark.services

OURS = [sys.executable, "-c", RETINUE, "mcp", "--http", "0"]
WITH_TOOLS = [sys.executable, "-m", "tests.interfaces.mcp_server.conformance_server", "."]
ROOT = Path(__file__).parents[3]

BOTH = ["tools-list", "resources-list", "prompts-list", "dns-rebinding-protection"]
CALLS = ["tools-call-simple-text", "tools-call-error", "tools-call-with-progress"]
SCENARIOS = {
    ("2025-11-25", "ours"): [
        *BOTH, "server-initialize", "ping", "server-sse-multiple-streams",
        "server-session-lifecycle",
    ],
    ("2025-11-25", "with tools"): [*CALLS, "tools-call-elicitation"],
    ("2026-07-28", "ours"): [
        *BOTH, "server-sse-multiple-streams", "sep-2164-resource-not-found", "caching",
        "input-required-result-unsupported-methods", "http-header-validation",
    ],
    ("2026-07-28", "with tools"): [
        *CALLS, "input-required-result-request-state", "input-required-result-multi-round",
        "input-required-result-tampered-state", "tasks-lifecycle", "tasks-capability-negotiation",
        "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
        "tasks-request-headers", "tasks-dispatch-and-envelope",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("version", "server"), SCENARIOS)
async def test_scenarios_pass(version: str, server: str, tmp_path: Path) -> None:
    suite = npm.program("conformance")
    command = OURS if server == "ours" else WITH_TOOLS
    variables = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(  # noqa: ASYNC220
        command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            origin, token = process.stdout.readline(), "conformance"
            if server == "ours":
                token = process.stdout.readline().removeprefix("Token: ").strip()
            origin = origin.removeprefix("Serving ").strip().removesuffix("/mcp")
            async with authorizing_proxy(origin, token) as proxy:
                done = await asyncio.to_thread(
                    npm.run,
                    *(suite, "server", "--url", f"{proxy}/mcp", "--requirements", version),
                    cwd=tmp_path,
                )
        finally:
            process.terminate()
    passed = dict(re.findall(r"^✓ (\S+): (\d+) passed", done.stdout, re.MULTILINE))
    missing = [name for name in SCENARIOS[version, server] if int(passed.get(name, 0)) == 0]
    assert missing == [], done.stdout[-6_000:]
