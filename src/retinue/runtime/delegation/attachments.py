"""Attachments of a child's task, framed as data: text, files, reports of earlier steps."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from retinue.domain.framing import frame
from retinue.domain.images import Image, is_image, read_image
from retinue.domain.messages import estimate_tokens
from retinue.domain.result import Result, cap
from retinue.domain.server_info import ServedModel
from retinue.errors import ToolFailure, UsageError
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.prompts import read_file_fast
from retinue.threads import in_thread

MAX_FILES = 20
MAX_BYTES = 1024 * 1024
MAX_FILE_BYTES = 20 * 1024 * 1024  # of an image, before it is made smaller
EVIDENCE_TOKENS = 1_000


class NamedData(msgspec.Struct, frozen=True):
    """A text or an image that the caller has, and attaches like a file of that name.

    ```python
    notes = retinue.NamedData("notes.txt", b"The launch is on Friday.")
    run = await rt.run("When is the launch?", context_files=[notes])
    ```
    """

    name: str
    data: bytes


class Attached(msgspec.Struct, frozen=True, gc=False):
    """Attachments of a task: framed text and images, and a note for each part that is left out."""

    text: str = ""
    images: tuple[Image, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """The notes as people read them."""


NOTHING_ATTACHED = Attached()


async def attach(
    workspace: Workspace,
    *,
    context: str,
    files: Sequence[str | NamedData],
    max_tokens: int,
    served: ServedModel | None,
    outside: bool = False,
) -> Attached:
    """Read what comes with a task, as far as it fits in `max_tokens`.

    `served` is the model that gets it; images are left out if the model cannot see. With `outside`,
    images may lie outside of the workspace: the user has named them.
    """
    parts: list[str] = []
    images: list[Image] = []
    notes: list[str] = []
    problems: list[str] = []
    room = max_tokens
    if context.strip():
        kept, cut = cap(context, room)
        if cut:
            notes.append(f"context was cut to {room:,} tokens")
            problems.append(notes[-1])
        parts.append(frame(kept, kind="context", source="parent"))
        room -= estimate_tokens(kept)
    for number, file in enumerate(dict.fromkeys(files)):
        name = file if isinstance(file, str) else file.name
        try:
            if number >= MAX_FILES:
                raise ToolFailure(f"more than {MAX_FILES} files")
            if isinstance(file, NamedData):
                data = file.data
            elif outside and os.path.isabs(name) and workspace.inside(name) is None:
                data = await in_thread(partial(_read_outside, name))
            else:
                data = await read_file_fast(workspace, name, MAX_FILE_BYTES)
            if is_image(data):
                image = await _image(name, data, room, served)
                images.append(image)
                parts.append(f"[{image} is attached]")
                room -= image.tokens
                continue
            text = _text(data, room)
        except ToolFailure as failure:
            notes.append(f"skipped {name}: {failure}")
            problems.append(f"{name}: {failure.shown or failure}")
            continue
        parts.append(frame(text, kind="file", source=name))
        room -= estimate_tokens(text)
    return Attached("\n\n".join(parts), tuple(images), tuple(notes), tuple(problems))


async def attach_all(
    workspace: Workspace,
    *,
    context: str,
    files: Sequence[str | NamedData],
    max_tokens: int,
    served: ServedModel | None,
    outside: bool = False,
) -> Attached:
    """Like `attach` for a person: raises UsageError if not everything fits and there are files."""
    attached = await attach(
        workspace,
        context=context,
        files=files,
        max_tokens=max_tokens,
        served=served,
        outside=outside,
    )
    if attached.problems and files:
        text = "; ".join(problem.rstrip(".") for problem in attached.problems)
        end = "" if text.endswith("?") else "."
        raise UsageError(f"Nothing was sent, since not everything can be attached: {text}{end}")
    return attached


def _text(data: bytes, max_tokens: int) -> str:
    if len(data) > MAX_BYTES:
        raise ToolFailure(f"its {len(data):,} bytes are more than {MAX_BYTES:,}")
    if b"\0" in data:
        raise ToolFailure("it is not text")
    text = data.decode("utf-8", "replace")
    _check_fits(estimate_tokens(text), max_tokens)
    return text


async def _image(name: str, data: bytes, max_tokens: int, served: ServedModel | None) -> Image:
    if served is not None and served.images is False:
        raise ToolFailure(
            f"{served.model} cannot see images: choose another model; `retinue models` lists them"
        )
    image = await in_thread(partial(read_image, name, data))
    _check_fits(image.tokens, max_tokens)
    return image


def _read_outside(path: str) -> bytes:
    """An image that the user named. Other files outside of the workspace stay unread."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ToolFailure("it is no regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ToolFailure(f"it cannot be read: {error.strerror}") from None
    if not is_image(data):
        raise ToolFailure("it is outside of the project, where only images can be attached from")
    if len(data) > MAX_FILE_BYTES:
        raise ToolFailure(f"it has more than {MAX_FILE_BYTES:,} bytes")
    return data


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # A FIFO without a writer would block.


def _check_fits(tokens: int, max_tokens: int) -> None:
    if tokens > max_tokens:
        shown = f"its {tokens:,} tokens do not fit the {max(max_tokens, 0):,} that are left"
        raise ToolFailure(f"{shown}; read it with read_file", shown=shown)


def handover_context(
    purpose: str, reports: Mapping[str, str], *, max_tokens: int
) -> tuple[str, tuple[str, ...]]:
    """The purpose and the reports, each cut to an equal share; and a note for each cut."""
    purpose, _ = cap(purpose, max_tokens // 4)
    parts = [frame(purpose, kind="context", source="parent")]
    notes = []
    share = (max_tokens - estimate_tokens(purpose)) // max(1, len(reports))
    for source, report in reports.items():
        kept, cut = cap(report, share)
        parts.append(frame(kept, kind="report", source=source))
        if cut:
            notes.append(f"the report of {source} was cut to {share:,} tokens for it")
    return "\n\n".join(parts), tuple(notes)


def failure_report(result: Result) -> str:
    """Why a child failed, for the child that tries again."""
    lines = [f"{result.status}: {result.error}"]
    for check in result.checks:
        if not check.ok:
            lines += [f"{check}", check.output.strip()]
    lines += [f"conflict: {conflict}" for conflict in result.conflicts]
    if result.response.strip():
        lines += ["What it said last:", result.response.strip()]
    kept, _ = cap("\n".join(lines), EVIDENCE_TOKENS)
    return kept
