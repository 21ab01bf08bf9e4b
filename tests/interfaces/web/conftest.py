"""Fixtures: the server of a project with a run, clients, browsers, and earlier journals."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

import retinue
from retinue import Runtime
from retinue.config.environment import Environment
from retinue.errors import ProviderError
from retinue.interfaces.web.service import Address, WebService
from retinue.models.scripted.model import ScriptedModel, call, fail, say
from retinue.runtime.history.audit import read_all
from retinue.store.sqlite import SqliteStore

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def two_tasks() -> ScriptedModel:
    return ScriptedModel(
        {
            "task bad": [fail(ProviderError("No."))],
            "": [call("write_file", path="a.txt", content="one\ntwo\n"), say("Written.")],
        },
        strict=False,
    )


class Site(NamedTuple):
    """A server, and a client that has its token."""

    service: WebService
    client: aiohttp.ClientSession

    async def get(self, path: str, status: int = 200) -> Any:
        async with self.client.get(self.service.origin + path) as response:
            assert response.status == status, await response.text()
            return json.loads(await response.read())

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        async with self.client.post(self.service.origin + path, json=body or {}) as response:
            assert response.status == status, await response.text()
            return json.loads(await response.read())

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[AsyncIterator[Message]]:
        async with self.client.get(self.service.origin + path, headers=headers) as response:
            assert response.status == 200, await response.text()
            yield messages(response)

    async def until(self, run: str, kind: str, count: int = 1) -> Any:
        """Wait until the stream of a run has so many events of a type; return the last of them."""
        async with self.stream(f"/api/runs/{run}/events") as stream:
            async for message in stream:
                for change in message.data if message.event == "message" else ():
                    count -= change["type"] == kind
                    if not count:
                        return change
        raise AssertionError("the stream has ended")

    async def until_idle(self, run: str) -> Any:
        """Wait until no process works on a run; return the run."""
        async with self.stream(f"/api/runs/{run}/events") as stream:
            async for message in stream:
                if message.event == "live" and not message.data["live"]:
                    return await self.get(f"/api/runs/{run}")
        raise AssertionError("the stream has ended")


class Message(NamedTuple):
    """A message of a stream of server-sent events."""

    event: str
    id: int
    data: Any


async def messages(response: aiohttp.ClientResponse) -> AsyncIterator[Message]:
    fields: dict[str, str] = {}
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if text and not text.startswith(":"):
            name, _, value = text.partition(": ")
            fields[name] = value
        elif fields:
            message = json.loads(fields["data"])
            yield Message(fields.get("event", "message"), int(fields.get("id", 0)), message)
            fields = {}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path)})


@pytest.fixture
def serving(
    project: Path, environment: Environment
) -> Callable[..., AbstractAsyncContextManager[Site]]:
    """Serve the project."""

    @asynccontextmanager
    async def serve(
        *, read_only: bool = False, page: bool = True, port: int = 0
    ) -> AsyncIterator[Site]:
        service = WebService(project, environment)
        async with (
            service.serving(Address(port=port), page=page, read_only=read_only),
            aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {service.token}"}, read_bufsize=2**24
            ) as client,
        ):
            yield Site(service, client)

    return serve


@pytest.fixture
async def site(
    serving: Callable[..., AbstractAsyncContextManager[Site]],
) -> AsyncIterator[Site]:
    async with serving() as found:
        yield found


@pytest.fixture
async def run_id(opened: Opened) -> str:
    """A fan-out of two: one has written a file, the other has failed."""
    async with opened(model=two_tasks(), mode="auto") as rt:
        results = await rt.fan_out([("executor", "task good"), ("researcher", "task bad")])
    return results[0].run_id


FOLDER = Path(__file__).parents[2] / "store" / "corpus"
CORPUS = sorted([*FOLDER.glob("*.db.gz"), *FOLDER.glob("*.tar.gz")])


def unpack(archive: Path, folder: Path) -> Path:
    """The database of an earlier version; after a kill, its last events are in a log beside it."""
    path = folder / "retinue.db"
    if archive.name.endswith(".db.gz"):
        path.write_bytes(gzip.decompress(archive.read_bytes()))
        return path
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if "retinue.db" in member.name else None
            if file is not None:
                (folder / Path(member.name).name).write_bytes(file.read())
    return path


@pytest.fixture(params=CORPUS, ids=lambda path: path.name.split(".")[0])
async def journals(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[list[list[retinue.Event]]]:
    store = SqliteStore(unpack(request.param, tmp_path), write=False)
    yield [await read_all(store, row.id) for row in await store.runs()]
    await store.aclose()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one browser for all tests: starting one takes longer than most of them."""
    pytest.importorskip("playwright.async_api")
    if (program := shutil.which("chromium")) is None:
        pytest.skip("chromium is not installed")
    profile = tmp_path_factory.mktemp("chromium")
    options = ("--headless", "--no-sandbox", "--disable-dev-shm-usage", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [program, *options, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("DevTools listening on "):
            break
    else:
        pytest.fail("chromium has ended")
    # Nobody reads the rest, which must not fill the pipe.
    reading = threading.Thread(target=process.stderr.read, daemon=True)
    reading.start()
    yield line.split()[-1]
    process.terminate()
    process.wait()
    reading.join()
    process.stderr.close()


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    async with async_playwright() as started:
        connected = await started.chromium.connect_over_cdp(chromium)
        yield connected
        await connected.close()


@pytest.fixture
async def page(browser: Any, site: Site) -> AsyncIterator[Any]:
    """A page whose errors fail the test, as does a request to another host."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    opened = await context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: check_message(message, problems))
    opened.on("request", lambda request: _check_host(request.url, problems))
    yield opened
    await context.close()
    assert problems == []


def check_message(message: Any, problems: list[str]) -> None:
    if message.type == "error":
        problems.append(message.text)


def _check_host(url: str, problems: list[str]) -> None:
    if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
        problems.append(f"request to {url}")
