"""Asks a server which models it serves, their context windows, and its number of slots.

Every server lists its models at `/v1/models`, and the list shows what kind of server it is. The
rest is asked in the API of that kind. An inspection never raises and never exceeds its timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from retinue.domain.server_info import (
    DEFAULT_PORTS,
    LLAMA_CPP,
    LM_STUDIO,
    OLLAMA,
    ServedModel,
    ServerInventory,
)
from retinue.errors import ConfigError
from retinue.models.http.endpoint import Endpoint, without_userinfo
from retinue.models.http.error_mapping import parse_error
from retinue.models.http.transport import tls_context
from retinue.models.server_info import model_cards as cards
from retinue.version import VERSION

INSPECTION_TIMEOUT_S = 1.0
LOADING_TIMEOUT_S = 300.0

_MAX_BYTES = 16 * 1024 * 1024
_SERVER_BY_PORT = {port: server for server, port in DEFAULT_PORTS.items()}


async def inspect_server(
    endpoint: Endpoint,
    *,
    timeout_s: float = INSPECTION_TIMEOUT_S,
    provider: str = "openai",
    only: bool = False,
) -> ServerInventory:
    """List what is served at `endpoint`; with `only`, just the endpoint's own model.

    The endpoint's key is sent, if it has one. Facts that the server does not send in time are left
    out.
    """
    try:
        if endpoint.read_key is not None:
            endpoint = msgspec.structs.replace(endpoint, api_key=await endpoint.read_key(None))
        async with _session(endpoint) as session:
            deadline = asyncio.get_running_loop().time() + timeout_s
            inspection = _Inspection(session, endpoint, provider, deadline)
            return await _inspect(inspection, endpoint, only=only)
    except ConfigError as error:
        return ServerInventory(address=endpoint.address, problem=str(error).rstrip("."))
    except _NoAnswer as unanswered:
        return ServerInventory(
            address=endpoint.address, problem=str(unanswered), no_server=unanswered.no_server
        )


async def _inspect(inspection: _Inspection, endpoint: Endpoint, *, only: bool) -> ServerInventory:
    time = asyncio.get_running_loop().time
    started_at = time()
    page = await inspection.get_json(f"{inspection.base}/models")
    latency_s = time() - started_at
    listed = cards.parse_model_list(page)
    if listed is None:
        raise _NoAnswer("it has no list of models; is that a model server?", no_server=True)

    def inventory(server: str) -> ServerInventory:
        models = tuple(cards.chat_models(listed, server))
        return ServerInventory(
            address=endpoint.address, server=server, models=models, latency_s=latency_s
        )

    detected = cards.detect_server(listed)
    usual = _SERVER_BY_PORT.get(urlsplit(endpoint.base_url).port or 0, "")
    found = inventory(detected or usual)
    models = found.models
    if only:
        models = tuple(one for one in models if one == found.find(endpoint.model))
    detailed = await _with_details(inspection, found.server, models)
    if detailed is not None:
        return msgspec.structs.replace(found, models=tuple(detailed))
    # The server that usually has this port would have answered, so it is another one.
    return inventory(detected)


async def inspect_model(endpoint: Endpoint, dialect: str = "openai") -> ServedModel | None:
    """Ask the server about the endpoint's model; None if it does not tell.

    Ollama and LM Studio choose the window of a model when they load it. A model that is not loaded
    is asked for one token: the first call would load it anyway, but without knowing whether its
    prompt fits.
    """
    endpoint = _listing(endpoint, dialect)
    found = (await inspect_server(endpoint, provider=dialect, only=True)).find(endpoint.model)
    if found is None or found.loaded is not False or found.window is not None:
        return found
    async with _session(endpoint) as session:
        inspection = _Inspection(
            session, endpoint, "openai", asyncio.get_running_loop().time() + LOADING_TIMEOUT_S
        )
        question = [{"role": "user", "content": "Hi"}]
        body = {"model": endpoint.model, "messages": question, "max_tokens": 1}
        if await inspection.get_json_or_none(f"{inspection.base}/chat/completions", body) is None:
            return found
    return (await inspect_server(endpoint, only=True)).find(endpoint.model) or found


async def nearest_names(endpoint: Endpoint, dialect: str = "openai") -> list[str]:
    """Names of models there that are like the endpoint's; none if it has exactly that one."""
    inventory = await inspect_server(_listing(endpoint, dialect), provider=dialect)
    if inventory.find(endpoint.model) is not None:
        return []
    names = [one.model for one in inventory.models]
    return get_close_matches(endpoint.model, names, n=3, cutoff=0.4) or names[:3]


def _listing(endpoint: Endpoint, dialect: str) -> Endpoint:
    """The endpoint whose base URL lists models. That of Anthropic has no /v1."""
    if dialect != "anthropic":
        return endpoint
    base_url = endpoint.base_url.rstrip("/").removesuffix("/v1") + "/v1"
    return msgspec.structs.replace(endpoint, base_url=base_url)


async def _with_details(
    inspection: _Inspection, server: str, served: Sequence[ServedModel]
) -> Sequence[ServedModel] | None:
    """Add what this kind of server says in its own API; None if it does not have that API."""
    if server == LLAMA_CPP:
        pages = await asyncio.gather(*(_llama_cpp_props(inspection, one) for one in served))
        if not any(pages):
            return None
        return list(map(cards.add_llama_cpp_props, served, pages))
    if server == OLLAMA:
        running = await inspection.get_json_or_none(f"{inspection.root}/api/ps")
        if running is None:
            return None
        served = cards.add_ollama_running(served, running)
        show = f"{inspection.root}/api/show"
        pages = await asyncio.gather(
            *(inspection.get_json_or_none(show, {"model": one.model}) for one in served)
        )
        detailed = map(cards.add_ollama_details, served, pages)
        return [one for one in detailed if one is not None]
    if server == LM_STUDIO:
        for version in ("v1", "v0"):
            page = await inspection.get_json_or_none(f"{inspection.root}/api/{version}/models")
            if (found := cards.parse_lm_studio(page)) is not None:
                names = {one.model for one in served}
                return [one for one in found if one.model in names]
    return None


async def _llama_cpp_props(inspection: _Inspection, served: ServedModel) -> Any:
    if served.loaded is False:
        return None
    # Without autoload=false, a server of many models would load this one to answer.
    query = f"model={quote(served.model, safe='')}&autoload=false"
    return await inspection.get_json_or_none(f"{inspection.root}/props?{query}")


class _NoAnswer(Exception):
    """The server gave no usable answer; with `no_server`, because it is no model server."""

    def __init__(self, problem: str, *, no_server: bool = False) -> None:
        super().__init__(problem)
        self.no_server = no_server


class _Inspection:
    """The requests of one inspection, which share a deadline."""

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: Endpoint, provider: str, deadline: float
    ) -> None:
        url = endpoint.base_url.strip().rstrip("/")
        # If there are a key and a password, the key counts; both together would be refused.
        self.base = without_userinfo(url) if endpoint.api_key else url
        self.root = self.base.removesuffix("/v1")
        self._session = session
        self._headers = _headers(endpoint, provider)
        self._endpoint = endpoint
        self._deadline = deadline

    async def get_json(self, url: str, body: Any = None) -> Any:
        """The JSON at `url`; a `body` is posted. Raises _NoAnswer and nothing else."""
        started_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._deadline):
                status, data = await self._request(url, body)
        except TimeoutError:
            raise _NoAnswer(f"no answer within {self._deadline - started_at:.2g} s") from None
        except aiohttp.ClientConnectorDNSError as error:
            raise _NoAnswer(f"no host {error.host!r} is known") from None
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            why = "nothing listens there" if refused else "it cannot be reached"
            raise _NoAnswer(why, no_server=refused) from None
        except (aiohttp.ClientError, ValueError):
            raise _NoAnswer("it does not speak HTTP", no_server=True) from None
        if status != 200:
            raise self._refusal(status, data)
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _NoAnswer(
                "it does not answer in JSON; is that a model server?", no_server=True
            ) from None

    async def get_json_or_none(self, url: str, body: Any = None) -> Any:
        try:
            return await self.get_json(url, body)
        except _NoAnswer:
            return None

    async def _request(self, url: str, body: Any) -> tuple[int, bytes]:
        data = None if body is None else msgspec.json.encode(body)
        method = "GET" if body is None else "POST"
        # With each request: aiohttp sends the headers of a session to the proxy, too.
        async with self._session.request(
            method, url, data=data, headers=self._headers, allow_redirects=False
        ) as response:
            pieces, size = [], 0
            while size < _MAX_BYTES and (piece := await response.content.readany()):
                pieces.append(piece)
                size += len(piece)
            return response.status, b"".join(pieces)

    def _refusal(self, status: int, data: bytes) -> _NoAnswer:
        endpoint = self._endpoint
        if status in (401, 403):
            if endpoint.api_key:
                return _NoAnswer(f"it refuses the key from {endpoint.key_source} ({status})")
            if endpoint.key_source:
                return _NoAnswer(f"it wants a key ({status}); set {endpoint.key_source}")
            return _NoAnswer(
                f"it wants a key ({status}), which only an address that you name is sent:"
                f" -m openai:MODEL@{endpoint.address}"
            )
        if status >= 500:
            return _NoAnswer(f"it answers {status}{_error_text(data)}")
        return _NoAnswer(f"it answers {status}; is that a model server?", no_server=True)


def _error_text(data: bytes) -> str:
    try:
        text = parse_error(msgspec.json.decode(data)).message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return f" ({''.join(c for c in text[:100] if c.isprintable())})" if text else ""


def _headers(endpoint: Endpoint, provider: str) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": f"retinue/{VERSION}"}
    key = (endpoint.api_key or "").strip()
    if provider == "anthropic":
        headers |= {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}
    elif key:
        headers["Authorization"] = f"Bearer {key}"
    if key and endpoint.key_header:
        headers[endpoint.key_header] = key
    return headers


def _session(endpoint: Endpoint) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=8, ssl=tls_context(endpoint)),
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=endpoint.proxy,
        timeout=aiohttp.ClientTimeout(total=None),
    )
