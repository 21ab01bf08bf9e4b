"""Adds the token to requests of programs that cannot send one. All else passes as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

HOP_BY_HOP = ("transfer-encoding", "connection", "content-length", "content-encoding")


@asynccontextmanager
async def authorizing_proxy(origin: str, token: str) -> AsyncIterator[str]:
    """The address of a proxy for the server at `origin`."""

    async def forward(request: web.Request) -> web.StreamResponse:
        own, target = f"127.0.0.1:{port}", origin.removeprefix("http://")
        headers = {
            name: value.replace(own, target)
            for name, value in request.headers.items()
            if name.lower() not in HOP_BY_HOP
        }
        headers.setdefault("Authorization", f"Bearer {token}")
        async with client.request(
            request.method,
            origin + request.path_qs,
            headers=headers,
            data=await request.read() or None,
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as client:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
