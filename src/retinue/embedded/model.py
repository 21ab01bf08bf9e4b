"""The embedded model as a `Model`: starts its server at the first call, and leaves tools out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from retinue.domain.messages import Message, Reply, Request, UserMessage
from retinue.domain.server_info import LLAMA_CPP, ServedModel
from retinue.embedded.llama_server import CONTEXT_TOKENS, MODEL_ALIAS, SLOTS
from retinue.embedded.serving import RunningServer, ServerShare, running_server
from retinue.embedded.weights import fetch_weights, is_intact
from retinue.errors import EndpointUnusable, UsageError
from retinue.extras import is_installed, require
from retinue.ports.model import Model

NAME = "embedded"
DESCRIPTION = (
    "the embedded model is small (135 million parameters) and ignores tools: it summarises, titles,"
    " classifies, and answers from attached files (-f FILE); it is no coding agent"
)
SERVED = ServedModel(
    model=MODEL_ALIAS,
    server=LLAMA_CPP,
    window=CONTEXT_TOKENS,
    max_window=CONTEXT_TOKENS,
    slots=SLOTS,
    tools=False,
    images=False,
    about=DESCRIPTION,
)
# The model answers in a few sentences; after that it repeats itself.
MAX_OUTPUT_TOKENS = 192
# The model reads about 80 tokens a second, fewer on a busy processor, and is silent meanwhile. The
# time limit of the agent ends a call that takes too long.
PATIENCE_S = 600.0
_HEARTBEAT_S = 5.0
# Variables for the server. It outlives the process that started it, and needs no keys.
_SERVER_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")


def is_available() -> bool:
    return is_installed(NAME)


def _repeat_question(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Repeat the question at the end: after a page of text, the model forgets it."""
    *before, last = messages
    if not isinstance(last, UserMessage):
        return messages
    question, gap, rest = last.content.partition("\n\n")
    if not gap:
        return messages
    return (*before, UserMessage(f"{question}\n\n{rest}\n\n{question}"))


@asynccontextmanager
async def _repeating(interval_s: float, tick: Callable[[], None]) -> AsyncIterator[None]:
    """Call `tick` at intervals while inside."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(interval_s)
            tick()

    task = asyncio.ensure_future(repeat())
    try:
        yield
    finally:
        task.cancel()


class EmbeddedModel:
    """The embedded model. `connect` makes a client of its server.

    `folder` has the weights and the server's address, and is the same for all processes.
    """

    def __init__(
        self, folder: Path, variables: Mapping[str, str], connect: Callable[[RunningServer], Model]
    ) -> None:
        require(NAME, "The embedded model")
        self._folder = folder
        self._variables = variables
        self._connect = connect
        self._share: ServerShare | None = None
        self._model: Model | None = None
        self._address: RunningServer | None = None

    @property
    def name(self) -> str:
        return NAME

    async def open(self, on_progress: Callable[[str], None] = lambda _: None) -> Model:
        """Return a client of the server, and start the server first if none runs."""
        if self._model is not None:
            if running_server(self._folder) == self._address:
                return self._model
            await self._disconnect()  # The server ended; another one may run.
        weights = await fetch_weights(self._folder, self._variables, on_progress=on_progress)
        # -P: a file in the current directory may have the name of a module.
        command = [sys.executable, "-P", "-m", "retinue.embedded.llama_server"]
        command += [str(self._folder), str(weights)]
        seen = {
            name: self._variables[name] for name in _SERVER_VARIABLES if name in self._variables
        }
        self._share = self._share or ServerShare(self._folder, command, seen)
        try:
            address = await self._share.acquire(lambda: on_progress("starting the embedded model"))
        except EndpointUnusable as error:
            if await asyncio.to_thread(is_intact, weights):
                raise
            weights.unlink(missing_ok=True)
            raise EndpointUnusable(
                f"{weights} was damaged and has been removed. Try again to fetch it anew."
            ) from error
        if self._model is None:
            self._model, self._address = self._connect(address), address
        return self._model

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        def alive() -> None:
            if on_text is not None:
                on_text("")

        try:
            model = await self.open(lambda _: alive())
        except UsageError as error:
            raise EndpointUnusable(str(error)) from error
        most = min(request.max_output_tokens or MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)
        asked = msgspec.structs.replace(
            request, messages=_repeat_question(request.messages), tools=(), max_output_tokens=most
        )
        async with _repeating(_HEARTBEAT_S, alive):
            return await model.reply(asked, on_text)

    async def _disconnect(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            await model.aclose()

    async def aclose(self) -> None:
        await self._disconnect()
        if self._share is not None:
            self._share.release()
            self._share = None
