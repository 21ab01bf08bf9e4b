"""The API: runs, contracts, diffs, and the stream of changes without a gap or a repetition."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from retinue import Runtime
from retinue.config.environment import Environment
from retinue.errors import ConfigError, UsageError
from retinue.interfaces.cli.commands.web import address_of
from retinue.interfaces.web.service import Address, WebService, make_tls
from retinue.models.scripted.model import ScriptedModel, hold, say

if TYPE_CHECKING:
    from tests.interfaces.web.conftest import Message, Site

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


async def until_end(stream: Any) -> list[dict[str, Any]]:
    """All changes up to the message that says whether a process works on the run."""
    found: list[dict[str, Any]] = []
    async for message in stream:
        if message.event == "live":
            return found
        assert message.event == "message", message
        assert message.id == message.data[-1]["seq"]
        found += message.data
    raise AssertionError("the stream has ended")


async def test_empty_project_has_no_runs(site: Site, project: Path) -> None:
    assert (await site.get("/api/runs"))["runs"] == []
    assert not (project / ".retinue").exists()


async def test_runs_are_listed(site: Site, run_id: str, project: Path) -> None:
    found = await site.get("/api/runs")
    assert found["project"] == str(project)
    (run,) = found["runs"]
    assert run["id"] == run_id
    assert (run["status"], run["live"], run["sealed"]) == ("error", False, True)
    assert (run["agents"], run["waits_for_person"], run["kind"]) == (3, False, "program")
    assert run["tokens"] > 0
    assert run == await site.get(f"/api/runs/{run_id[:5]}")


async def test_statistics(site: Site, run_id: str) -> None:
    rows = {row["name"]: row for row in await site.get("/api/stats")}
    assert rows.keys() == {"program", "executor", "researcher"}
    assert (rows["executor"]["count"], rows["executor"]["ok"]) == (1, 1)
    assert "ok" not in rows["researcher"]
    (kind,) = await site.get("/api/stats?by=kind")
    assert kind["name"] == "program"
    refused = await site.get("/api/stats?by=colour", status=400)
    assert refused["error"] == "by must be one of role, model, tool, kind, project, not 'colour'."


async def test_statistics_of_projects(
    site: Site,
    serving: Callable[..., AbstractAsyncContextManager[Site]],
    run_id: str,
    project: Path,
) -> None:
    (row,) = await site.get("/api/stats?by=project")
    assert (row["name"], row["count"]) == (str(project), 3)
    async with serving(read_only=True) as others:
        told = await others.get("/api/stats?by=project", status=400)
    assert told["error"] == "With --read-only, the server shows this project only."


async def test_agent_has_contract_and_events(site: Site, run_id: str) -> None:
    found = await site.get(f"/api/runs/{run_id}/agents/a1")
    assert found["contract"]["execution"]["role"] == "executor"
    types = [event["type"] for event in found["events"]]
    assert types[0] == "agent.subagent_created"
    assert types[-1] == "agent.subagent_closed"
    seq = found["events"][3]["seq"]
    rest = await site.get(f"/api/runs/{run_id}/agents/a1?after={seq}")
    assert rest["events"] == found["events"][4:]


async def test_changes_of_files_are_shown(site: Site, run_id: str) -> None:
    (change,) = await site.get(f"/api/runs/{run_id}/diff")
    assert (change["state"], change["agent_id"]) == ("made", "a1")
    assert "+two" in change["patch"]
    assert await site.get(f"/api/runs/{run_id}/diff?agent=a2") == []


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/runs/nonesuch", 404, "No run 'nonesuch' in "),
        ("/api/runs/nonesuch/events", 404, "No run 'nonesuch' in "),
        ("/api/runs/RUN/agents/a9", 400, "No agent 'a9' in run "),
        ("/api/runs/RUN/diff?agent=a9", 400, "No agent 'a9' in run "),
        ("/api/runs?limit=x", 400, "limit must be a number, not 'x'."),
        ("/api/nothing", 404, "404: Not Found"),
    ],
)
async def test_what_is_missing_is_said_in_one_sentence(
    site: Site, run_id: str, path: str, status: int, message: str
) -> None:
    found = await site.get(path.replace("RUN", run_id), status)
    assert found["error"].startswith(message)


async def test_damaged_journal_is_reported(
    site: Site, run_id: str, project: Path, damage: Callable[[Path], None]
) -> None:
    damage(project / ".retinue" / "retinue.db")
    found = await site.get(f"/api/runs/{run_id}/agents/a1", 503)
    assert "retinue.db is damaged" in found["error"]


async def test_journal_of_a_newer_version_is_reported(
    site: Site, run_id: str, project: Path
) -> None:
    with sqlite3.connect(project / ".retinue" / "retinue.db") as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    found = await site.get("/api/runs", 503)
    assert "was written by a newer retinue (schema 999" in found["error"]


async def test_reconnecting_at_any_event_has_no_gap_and_no_repetition(
    site: Site, run_id: str
) -> None:
    async with site.stream(f"/api/runs/{run_id}/events") as stream:
        whole = await until_end(stream)
    assert [change["seq"] for change in whole] == list(range(1, len(whole) + 1))
    for seq in range(len(whole) + 1):
        headers = {"Last-Event-ID": str(seq)}
        async with site.stream(f"/api/runs/{run_id}/events", **headers) as stream:
            assert await until_end(stream) == whole[seq:]


async def test_payload_of_every_event_is_sent_on_demand(site: Site, run_id: str) -> None:
    async with site.stream(f"/api/runs/{run_id}/events?payload=1") as stream:
        assert all("payload" in change for change in await until_end(stream))
    async with site.stream(f"/api/runs/{run_id}/events") as stream:
        assert not any("payload" in change for change in await until_end(stream))


async def test_run_at_work_is_followed_until_its_end(site: Site, opened: Opened) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([hold(gate, say("Done."))])
    before: list[Message] = []
    after: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        rt = await stack.enter_async_context(opened(model=model, clock=None))
        job = await rt.start("researcher", "Wait")
        run_id = job.run_id
        async with site.stream(f"/api/runs/{run_id}/events") as stream:
            async for message in stream:
                before.append(message)
                if message.event == "live":
                    break
            assert before[-1].data == {"live": True}
            (run,) = (await site.get("/api/runs"))["runs"]
            assert (run["status"], run["live"]) == ("running", True)
            gate.set()
            await rt.join()
            await stack.aclose()
            async for message in stream:
                if message.event == "live":
                    break
                after += message.data
            assert message.data == {"live": False}
    seqs = [change["seq"] for m in before if m.event == "message" for change in m.data]
    seqs += [change["seq"] for change in after]
    assert seqs == list(range(1, len(seqs) + 1))
    assert after[-1]["type"] == "run.finished"


async def test_description_has_every_route(site: Site) -> None:
    found = await site.get("/api/openapi.json")
    assert found["openapi"].startswith("3.1")
    assert {"/api/runs", "/api/runs/{run}", "/api/runs/{run}/events"} <= found["paths"].keys()
    for path in found["paths"].values():
        for operation in path.values():
            assert operation["responses"]["200"]["content"]


async def test_server_without_the_page(
    serving: Callable[..., AbstractAsyncContextManager[Site]],
) -> None:
    async with serving(page=False) as site:
        for path in ("/", "/page.js", "/page.css"):
            async with site.client.get(site.service.origin + path) as response:
                assert response.status == 404
        await site.get("/api/runs")


async def test_port_in_use_is_reported(site: Site, project: Path, environment: Environment) -> None:
    port = int(site.service.origin.rpartition(":")[2])
    service = WebService(project, environment)
    with pytest.raises(UsageError) as error:
        async with service.serving(Address(port=port), page=True, read_only=True):
            pass
    assert str(error.value) == (
        f"127.0.0.1:{port} cannot be used (Address already in use); name another port with --port,"
        " or 0 for any free one."
    )


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\nX: " + "x" * 10_000 + "\r\n\r\n",
        "GET / HTTP/9.x\r\nHost: {host}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: {host}\r\n\r\n\0\r\n\r\n",
        "CONNECT host:99999 HTTP/1.1\r\nHost: {host}\r\n\r\n",
        "POST /api/runs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{{}}",
    ],
)
async def test_malformed_request_is_answered_and_not_logged(
    site: Site, request_text: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = site.service.origin.partition("//")[2]
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(request_text.format(host=host, token=site.service.token).encode())
    assert b" 400 Bad Request" in await reader.read()
    writer.close()
    assert not caplog.records


async def test_first_load_is_small_and_whole(site: Site) -> None:
    """250 kB gzipped at most, and no address of another host."""
    sizes = []
    for path in ("/", "/page.js", "/page.css"):
        async with aiohttp.ClientSession(auto_decompress=False) as client:
            headers = {"Authorization": f"Bearer {site.service.token}", "Accept-Encoding": "gzip"}
            async with client.get(site.service.origin + path, headers=headers) as response:
                sizes.append(len(await response.read()))
                assert response.headers["Content-Encoding"] == "gzip"
    assert sum(sizes) < 250_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "On 0.0.0.0, other machines can connect. Give --tls-cert and"),
        ({"tls_cert": "a.pem"}, "--tls-cert and --tls-key belong together; give both."),
    ],
)
def test_addresses_that_are_refused(options: dict[str, Any], message: str) -> None:
    given = {"host": "127.0.0.1", "port": 0, "tls_cert": None, "tls_key": None}
    with pytest.raises(UsageError) as refused:
        address_of({**given, "unsafe_no_tls": False, **options})
    assert str(refused.value).startswith(message)
    if "host" in options:
        assert address_of({**given, "unsafe_no_tls": True, **options}).host == options["host"]


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.pem"
    file.write_text("x")
    with pytest.raises(ConfigError, match=r"a\.pem are no certificate and key: "):
        make_tls(Address(tls_cert=str(file), tls_key=str(file)))
