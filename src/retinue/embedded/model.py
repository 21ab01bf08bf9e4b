"""The embedded model as a `Model`: starts its server at the first call. Its adapter knows tools."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from retinue.domain.messages import Message, Reply, Request, ToolMessage, UserMessage
from retinue.domain.result import Result
from retinue.domain.server_info import LLAMA_CPP, ServedModel
from retinue.embedded.adapter import Adapter
from retinue.embedded.calls import (
    TextBeforeCalls,
    conversation,
    with_calls,
    without_control_tokens,
)
from retinue.embedded.grammar import call_grammar
from retinue.embedded.llama_server import BASE_SAMPLING, CONTEXT_TOKENS, MODEL_ALIAS, SLOTS
from retinue.embedded.prompt import TOOLS, prompt
from retinue.embedded.serving import RunningServer, ServerShare, running_server
from retinue.embedded.weights import WEIGHTS, WeightsPackage, fetch_weights, is_intact
from retinue.errors import EndpointUnusable, UsageError
from retinue.extras import is_installed, require
from retinue.ports.model import Model

NAME = "embedded"
WITHOUT_ADAPTER = (
    "the embedded model is small (135 million parameters) and ignores tools: it summarises, titles,"
    " classifies, and answers from attached files (-f FILE); it is no coding agent"
)
WITH_ADAPTER = (
    "the embedded model is small (135 million parameters): it says what a project or a file is"
    " about, finds definitions, sets a value in a file, and gives each file to a child; for other"
    " work choose a larger model with -m"
)
# Without the adapter the model answers in a few sentences; after that it repeats itself.
MAX_OUTPUT_TOKENS = 192
# Enough for a small file, or for eight calls in one reply.
MAX_OUTPUT_TOKENS_WITH_TOOLS = 512
# The model reads about 80 tokens a second, fewer on a busy processor, and is silent meanwhile. The
# time limit of the agent ends a call that takes too long.
PATIENCE_S = 600.0
_HEARTBEAT_S = 5.0
# It may not have found what a larger model would find, or would have made.
_DECLINED = re.compile(
    r"\A\s*(?:Sorry|I (?:can't|cannot|am not able|could not|couldn't|found no)|There is no file)\b"
    r"|\bI changed nothing\b",
    re.I,
)
_DONE = re.compile(r"\A\s*Done\b", re.I)
# Fields of a request that is answered without the adapter.
_BASE_FIELDS = {"lora": [{"id": 0, "scale": 0.0}], **BASE_SAMPLING}
# A file that was attached to a task (`domain.framing`).
_FILE = re.compile(r"^<file-[0-9a-f]+ from=", re.MULTILINE)
# Variables for the server. It outlives the process that started it, and needs no keys.
_SERVER_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
# Without this, glibc keeps the large pieces of memory that the cache of prompts gives back.
_MEMORY_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


def is_available() -> bool:
    return is_installed(NAME)


def served_model(adapter: Adapter | None) -> ServedModel:
    """Describe the model with that adapter, or without one."""
    about = WITHOUT_ADAPTER
    if adapter is not None:
        about = f"{WITH_ADAPTER} ({adapter.scores})" if adapter.scores else WITH_ADAPTER
    return ServedModel(
        model=MODEL_ALIAS,
        server=LLAMA_CPP,
        window=CONTEXT_TOKENS,
        max_window=CONTEXT_TOKENS,
        max_output=None if adapter is None else MAX_OUTPUT_TOKENS_WITH_TOOLS,
        slots=SLOTS,
        tools=adapter is not None,
        images=False,
        about=about,
    )


def suggestion(model: str, result: Result) -> str:
    """Advice for the user about a task that may have been too much for this model; else ""."""
    if model != NAME:
        return ""
    claims_nothing_done = _DONE.search(result.response) and not result.files_modified
    if (
        result.ok
        and result.usage.tool_calls
        and not _DECLINED.search(result.response)
        and not claims_nothing_done
    ):
        return ""
    return (
        "The embedded model does small tasks only: questions about files, and small edits. Choose a"
        " larger model for others, with `retinue setup` or -m."
    )


def server_folder(folder: Path, adapter: Adapter | None) -> Path:
    """Folder of the server with that adapter. Processes with another adapter have another one."""
    return folder if adapter is None else folder / f"adapter-{adapter.sha256[:16]}"


def _repeat_question(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Repeat the question at the end: after a page of text, the model forgets it."""
    *before, last = messages
    if not isinstance(last, UserMessage):
        return messages
    question, gap, rest = last.content.partition("\n\n")
    if not gap:
        return messages
    return (*before, UserMessage(f"{question}\n\n{rest}\n\n{question}"))


def _answers_from_text(request: Request) -> bool:
    """Whether the model answers better without its adapter, which was trained with tools.

    It does if the request has files in it, and for an agent that never had a tool.
    """
    if any(isinstance(m, ToolMessage) for m in request.messages):
        return False
    texts = (m.content for m in request.messages if isinstance(m, UserMessage))
    return not any(tool.name in TOOLS for tool in request.tools) or any(map(_FILE.search, texts))


def _without_tools(request: Request) -> Request:
    """The request for a short answer in text, with the question repeated."""
    most = min(request.max_output_tokens or MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)
    messages = _repeat_question(request.messages)
    return msgspec.structs.replace(request, messages=messages, tools=(), max_output_tokens=most)


def _without_adapter(request: Request) -> Request:
    """The same request to a server with an adapter, which takes prompts as one text."""
    sampling = request.sampling
    sampling = msgspec.structs.replace(sampling, extra_body=sampling.extra_body | _BASE_FIELDS)
    text = conversation(without_control_tokens(request.messages))
    return msgspec.structs.replace(request, messages=(UserMessage(text),), sampling=sampling)


def _with_tools_in_prompt(request: Request) -> Request:
    """The request for the adapter, which reads the tools as text."""
    grammar = call_grammar((tool.name for tool in request.tools), request.messages)
    sampling = request.sampling
    if grammar:
        extra = {"grammar": grammar, **sampling.extra_body}
        sampling = msgspec.structs.replace(sampling, extra_body=extra)
    return msgspec.structs.replace(
        request,
        messages=(UserMessage(prompt(without_control_tokens(request.messages), request.tools)),),
        tools=(),
        sampling=sampling,
        max_output_tokens=min(
            request.max_output_tokens or MAX_OUTPUT_TOKENS_WITH_TOOLS, MAX_OUTPUT_TOKENS_WITH_TOOLS
        ),
        # A schema would forbid calls. The prompt asks for it too.
        schema=None if request.tools else request.schema,
    )


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

    `folder` has the weights, and is the same for all processes.
    """

    def __init__(
        self,
        folder: Path,
        variables: Mapping[str, str],
        connect: Callable[[RunningServer], Model],
        adapter: Adapter | None = None,
        weights: WeightsPackage = WEIGHTS,
    ) -> None:
        require(NAME, "The embedded model")
        self._folder = folder
        self._weights = weights
        self._adapter = adapter
        self._server_folder = server_folder(folder, adapter)
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
            if running_server(self._server_folder) == self._address:
                return self._model
            await self._disconnect()  # The server ended; another one may run.
        weights = await fetch_weights(
            self._folder, self._variables, package=self._weights, on_progress=on_progress
        )
        if running_server(self._server_folder) is None:
            await asyncio.to_thread(self._check_files, weights)
        # -P: a file in the current directory may have the name of a module.
        command = [sys.executable, "-P", "-m", "retinue.embedded.llama_server"]
        command += [str(self._server_folder), str(weights)]
        command += [] if self._adapter is None else [str(self._adapter.path)]
        seen = {
            name: self._variables[name] for name in _SERVER_VARIABLES if name in self._variables
        }
        seen |= _MEMORY_VARIABLES
        self._share = self._share or ServerShare(self._server_folder, command, seen)
        address = await self._share.acquire(lambda: on_progress("starting the embedded model"))
        if self._model is None:
            self._model, self._address = self._connect(address), address
        return self._model

    def _check_files(self, weights: Path) -> None:
        """Raise EndpointUnusable if a file is not what it should be."""
        if not is_intact(weights, self._weights):
            weights.unlink(missing_ok=True)
            raise EndpointUnusable(
                f"{weights} was damaged or of another version, and has been removed. Try again to"
                " fetch it anew."
            )
        if self._adapter is not None and (problem := self._adapter.problem(self._weights)):
            raise EndpointUnusable(problem)

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        def alive() -> None:
            if on_text is not None:
                on_text("")

        try:
            model = await self.open(lambda _: alive())
        except UsageError as error:
            raise EndpointUnusable(str(error)) from error
        async with _repeating(_HEARTBEAT_S, alive):
            if self._adapter is None:
                return await model.reply(_without_tools(request), on_text)
            if _answers_from_text(request):
                return await model.reply(_without_adapter(_without_tools(request)), on_text)
            filtered = None if on_text is None else TextBeforeCalls(on_text)
            reply = await model.reply(_with_tools_in_prompt(request), filtered)
            if filtered is not None:
                filtered.end()
            return with_calls(reply, request)

    async def _disconnect(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            await model.aclose()

    async def aclose(self) -> None:
        await self._disconnect()
        if self._share is not None:
            self._share.release()
            self._share = None
