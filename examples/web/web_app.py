"""A web application with streaming and approvals: uvicorn --app-dir examples/web web_app:app

Needs `pip install fastapi uvicorn`. RETINUE_MODEL names the model, and RETINUE_PROJECT the folder.

    curl -N 'http://127.0.0.1:8000/runs?task=Tidy+up'          the run, a line of JSON at a time
    curl http://127.0.0.1:8000/approvals                         what waits for an answer
    curl -X POST 'http://127.0.0.1:8000/approvals/1?allow=true'  the answer
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import retinue
from retinue.events import Event

waiting: dict[int, tuple[retinue.ApprovalRequest, asyncio.Future[bool]]] = {}
numbers = count(1)


async def approve(request: retinue.ApprovalRequest) -> bool:
    """Wait until somebody answers by POST. The time limits of the agents stand still meanwhile."""
    number = next(numbers)
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    waiting[number] = request, answer
    try:
        return await answer
    finally:
        del waiting[number]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    person = retinue.Person(approve=approve)
    async with retinue.open(os.environ.get("RETINUE_PROJECT", "."), person=person) as rt:
        app.state.runtime = rt
        yield


app = FastAPI(lifespan=lifespan)


async def lines(task: str) -> AsyncIterator[str]:
    # If the client leaves, FastAPI closes this generator, and the run is cancelled.
    async for item in app.state.runtime.stream(task):
        match item:
            case retinue.TextDelta(agent_id=agent, text=text):
                yield json.dumps({"agent": agent, "text": text}) + "\n"
            case Event(agent_id=agent, type=kind, summary=summary):
                yield json.dumps({"agent": agent, "event": kind, "summary": summary}) + "\n"
            case retinue.RunResult(status=status, response=response):
                yield json.dumps({"status": status, "answer": response}) + "\n"


@app.get("/runs")
async def run(task: str) -> StreamingResponse:
    return StreamingResponse(lines(task), media_type="application/x-ndjson")


@app.get("/approvals")
async def approvals() -> dict[int, str]:
    return {
        number: f"{request.path} wants {request.tool}: {request.detail}"
        for number, (request, _) in waiting.items()
    }


@app.post("/approvals/{number}")
async def answer(number: int, allow: bool) -> None:
    if number not in waiting:
        raise HTTPException(404, f"There is no question {number}.")
    waiting[number][1].set_result(allow)
