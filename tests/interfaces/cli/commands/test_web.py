"""What `retinue web` and `retinue serve` print, and the certificate of `--tls-cert`."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
import signal
import sqlite3
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.config.environment import Environment
from retinue.interfaces.web.abandoned_runs import LOOK_EVERY_S, AbandonedRuns
from retinue.interfaces.web.hosted_runs import HostedRuns
from retinue.interfaces.web.run_reader import RunReader
from retinue.models.scripted.model import say
from retinue.testing.clock import FakeClock
from retinue.testing.server import Response, ResponseEnding

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script, Serve, Serving

Start = Callable[..., subprocess.Popen[bytes]]
HANG = Response(ending=ResponseEnding.HANG)
SAYS = 'rules: [{match: "", steps: [{say: Done.}]}]'


@pytest.fixture
def start(program: Program) -> Iterator[Start]:
    """Starts `retinue` with these arguments; the test ends it."""
    with ExitStack() as stack:

        def run(*argv: str) -> subprocess.Popen[bytes]:
            process = stack.enter_context(program(*argv))
            stack.callback(process.kill)
            return process

        yield run


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def interrupt(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)
    assert process.returncode == 0
    return rest


def fetch(address: str, token: str, context: ssl.SSLContext | None = None) -> bytes:
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, context=context, timeout=60) as response:
        body: bytes = response.read()
    return body


def test_web_prints_the_address_of_the_page(start: Start) -> None:
    process = start("web", "--no-open")
    told = line(process)
    found = re.fullmatch(r"Open (http://127\.0\.0\.1:\d+/)\?token=([\w-]{32})", told)
    assert found is not None, told
    assert line(process) == "Ctrl-C stops the server."
    assert b"<title>retinue</title>" in fetch(found[1], found[2])
    assert interrupt(process) == (b"", b"")


def test_web_opens_one_run_by_the_start_of_its_id(cli: Cli, script: Script, start: Start) -> None:
    assert cli("run", "-q", "-m", script(SAYS), "Say it").code == 0
    run = cli("runs").out.split()[0]
    assert line(start("web", "--no-open", run[:5])).endswith(f"#/run/{run}")


def test_browser_gets_another_token_that_works_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users of the machine can see the arguments of the browser."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    process = start("web")
    printed = line(process).removeprefix("Open ")
    assert line(process) == "Ctrl-C stops the server."
    address = opened.read_text().strip()
    assert address.partition("=")[0] == printed.partition("=")[0]
    assert address != printed
    with_cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with with_cookies.open(address, timeout=60) as response:
        assert b"<title>retinue</title>" in response.read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(address, timeout=60)


def test_address_is_printed_where_there_is_no_browser(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BROWSER", "/nonexistent/browser")
    process = start("web")
    assert line(process).startswith("Open http://127.0.0.1:")
    assert line(process) == "Ctrl-C stops the server."
    assert interrupt(process) == (b"", b"")


def test_serve_prints_the_address_of_the_description_and_the_token(start: Start) -> None:
    process = start("serve")
    address, token = line(process), line(process)
    assert re.fullmatch(r"Serving http://127\.0\.0\.1:\d+/api/openapi\.json", address)
    assert re.fullmatch(r"Token: [\w-]{32}", token)
    body = fetch(address.removeprefix("Serving "), token.removeprefix("Token: "))
    assert json.loads(body)["info"]["title"] == "retinue"
    assert interrupt(process) == (b"", b"")


def test_serve_with_a_certificate(start: Start, tmp_path: Path) -> None:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=retinue",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    process = start("serve", "--host", "127.0.0.1", "--tls-cert", str(cert), "--tls-key", str(key))
    address = line(process).removeprefix("Serving ")
    token = line(process).removeprefix("Token: ")
    assert address.startswith("https://127.0.0.1:")
    assert json.loads(fetch(address, token, ssl.create_default_context(cafile=str(cert))))
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(address, token, ssl.create_default_context())
    with pytest.raises(OSError, match=r"."):
        fetch(address.replace("https:", "http:"), token)
    assert interrupt(process) == (b"", b"")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("nonesuch",), "No run 'nonesuch' in "),
        (("--host", "0.0.0.0"), "On 0.0.0.0, other machines can connect. Give --tls-cert and"),
    ],
)
def test_web_refuses_in_one_sentence(
    cli: Cli, script: Script, argv: tuple[str, ...], message: str
) -> None:
    assert cli("run", "-q", "-m", script(SAYS), "Say it").code == 0
    done = cli("web", "--no-open", *argv)
    assert done.code == 2
    assert done.err.startswith(f"retinue: {message}")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (999, "was written by a newer retinue (schema 999"),
        (None, "run.retinue is damaged or not a database"),
    ],
)
def test_web_refuses_an_export_that_it_cannot_read(
    cli: Cli, script: Script, version: int | None, message: str
) -> None:
    assert cli("run", "-q", "-m", script(SAYS), "Say it").code == 0
    assert cli("export", cli("runs").out.split()[0], "-o", "run.retinue").code == 0
    if version is None:
        Path("run.retinue").write_bytes(b"<!doctype html>" * 100)
    else:
        with closing(sqlite3.connect("run.retinue")) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
    done = cli("web", "--no-open", "run.retinue")
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_web_shows_an_export_of_an_earlier_version(start: Start, tmp_path: Path) -> None:
    corpus = Path(__file__).parents[3] / "store" / "corpus"
    file = tmp_path / "old.retinue"
    file.write_bytes(gzip.decompress(min(corpus.glob("*.db.gz")).read_bytes()))
    found = re.fullmatch(
        r"Open (.*/)\?token=(.*)#/run/(\w+)", line(start("web", "--no-open", str(file)))
    )
    assert found is not None
    shown = json.loads(fetch(f"{found[1]}api/runs/{found[3]}", found[2]))
    assert shown["id"] == found[3]
    assert shown["events"] > 0


def killed_run(program: Program, cli: Cli, model: Serving) -> str:
    """A run whose process was killed while its model worked."""
    before = len(model.requests)
    process = program("run", "-q", "x", "-m", model.model)
    model.received(before + 1)
    process.kill()
    process.communicate()
    return cli("runs").out.split()[0]


def test_waiting_server_resumes_a_run_whose_process_is_gone(
    cli: Cli, serve: Serve, program: Program, start: Start
) -> None:
    model = serve(HANG, HANG, say("Done after all."))
    stopped = program("run", "-q", "x", "-m", model.model)
    model.received(1)
    stopped.send_signal(signal.SIGINT)
    stopped.communicate()
    waiting = start("serve", "--resume")
    assert line(waiting).startswith("Serving ")
    assert line(waiting).startswith("Token: ")
    run = killed_run(program, cli, model)
    # Not the run that a person has stopped.
    assert line(waiting) == f"Run {run} continues here: its process was gone."
    assert cli("watch", run).code == 0
    statuses = [row.split()[5] for row in cli("runs").out.splitlines()]
    assert statuses == ["completed", "interrupted"]
    assert interrupt(waiting) == (b"", b"")


def test_run_that_cannot_be_resumed_is_told_once(
    cli: Cli, serve: Serve, program: Program, project: Path
) -> None:
    run = killed_run(program, cli, serve(HANG))
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection:
        connection.execute("DROP TRIGGER events_append_only_update")
        connection.execute("UPDATE events SET summary = 'x' WHERE seq = 2")
        connection.commit()
    told: list[str] = []

    async def look() -> None:
        clock, environment = FakeClock(), Environment.current()
        reader = RunReader(project, environment, None)
        async with HostedRuns(project, environment) as hosted:
            abandoned = AbandonedRuns(reader, hosted, clock, told.append)
            looking = asyncio.create_task(abandoned.keep_resuming())
            for count in (1, 2, 3):
                await clock.slept(count)
                clock.advance(LOOK_EVERY_S)
            # The journal is gone for a while, and comes back.
            (project / ".retinue" / "retinue.db").rename(project / "away")
            (project / ".retinue" / "retinue.db").write_text("no database " * 100)
            for count in (4, 5, 6):
                await clock.slept(count)
                clock.advance(LOOK_EVERY_S)
            looking.cancel()

    asyncio.run(look())
    assert told[0].startswith(f"Run {run} cannot be resumed: Event 2 ")
    assert told[1].endswith("is damaged or not a database; restore it or move it away.")
    assert len(told) == 2


@pytest.mark.parametrize("damage", ["payload = '{}'", "type = 'run.unknown'", "payload = 'x'"])
def test_unreadable_run_keeps_no_other_from_being_resumed(
    damage: str, cli: Cli, serve: Serve, program: Program, project: Path, start: Start
) -> None:
    model = serve(HANG, HANG, say("Done."))
    broken, other = (killed_run(program, cli, model) for _ in range(2))
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection:
        connection.execute("DROP TRIGGER events_append_only_update")
        connection.execute(f"UPDATE events SET {damage} WHERE seq = 1 AND run_id = ?", (broken,))
        connection.commit()
    waiting = start("serve", "--resume")
    said = [line(waiting) for _ in range(4)]
    assert said[2].startswith(f"Run {broken} cannot be resumed: ")
    assert said[3] == f"Run {other} continues here: its process was gone."
    assert cli("watch", other).code == 0
    assert interrupt(waiting) == (b"", b"")


def test_server_that_accepts_no_commands_resumes_nothing(cli: Cli) -> None:
    refused = cli("serve", "--resume", "--read-only")
    assert refused.code == 2
    assert "--read-only accepts no commands, and --resume works on runs; use one." in refused.err
