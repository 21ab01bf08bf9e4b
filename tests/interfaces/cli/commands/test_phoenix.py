"""`retinue export --otel` to Arize Phoenix; `script/services --phoenix` installs it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.project import open_journal
from retinue.runtime.history.audit import read_all
from retinue.telemetry.spans import Span, SpanFold

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli

PHOENIX = Path(__file__).parents[3] / "clients" / "phoenix" / "bin" / "phoenix"
TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"

pytestmark = pytest.mark.services


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    """The address of a Phoenix with an empty database."""
    if not PHOENIX.exists():
        pytest.skip("Phoenix is not installed: script/services --phoenix")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        port, grpc_port = one.getsockname()[1], other.getsockname()[1]
    variables = {
        "PHOENIX_WORKING_DIR": str(tmp_path / "phoenix"),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    log = tmp_path / "phoenix.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [PHOENIX, "serve"], env=os.environ | variables, stdout=subprocess.PIPE, stderr=output
        ) as process,
    ):
        try:
            assert process.stdout is not None
            while b"Phoenix is up" not in (line := process.stdout.readline()):
                assert line, log.read_text()
            url = f"http://127.0.0.1:{port}"
            while "Uvicorn running" not in log.read_text():
                assert process.poll() is None, log.read_text()
            yield url
        finally:
            process.kill()


def received(url: str, count: int) -> dict[str, dict[str, Any]]:
    """All spans by id, once there are `count`: Phoenix answers before it stores."""
    while True:
        page = f"{url}/v1/projects/default/spans?limit=1000"
        with urllib.request.urlopen(page, timeout=60) as response:
            spans = json.load(response)["data"]
        if len(spans) >= count:
            found = {span["context"]["span_id"]: span for span in spans}
            assert len(found) == len(spans)
            return found


def spans_of(project: Path, run_id: str) -> list[Span]:
    async def recorded() -> Any:
        async with open_journal(project) as store:
            return await read_all(store, run_id)

    fold = SpanFold()
    return [span for event in asyncio.run(recorded()) for span in fold.apply(event)]


def test_phoenix_has_each_span_once_with_parents_and_tokens(
    phoenix: str, cli: Cli, run_id: str, project: Path
) -> None:
    sent = spans_of(project, run_id)
    for _ in range(2):
        assert cli("export", run_id, "--otel", phoenix).code == 0
    # Another run, so that what the second export might add has been stored before it.
    assert cli("spawn", "researcher", "Look", "-m", "scripted:script.yaml").code == 0
    last = json.loads(cli("runs", "--json").out.splitlines()[0])["id"]
    assert cli("export", last, "--otel", phoenix).code == 0
    everything = received(phoenix, len(sent) + len(spans_of(project, last)))
    trace = sent[0].context.trace_id
    found = {i: span for i, span in everything.items() if span["context"]["trace_id"] == trace}
    assert {i: span["parent_id"] or None for i, span in found.items()} == {
        span.context.span_id: span.parent and span.parent.span_id for span in sent
    }
    for name in TOKENS:
        stored = sum(span["attributes"].get(name, 0) for span in found.values())
        assert stored == sum(int(str(span.attributes.get(name, 0))) for span in sent) > 0
