"""The file tools. What they are and are not allowed to touch is the workspace's business; whether a
contract lets an agent write a path is asked here, before anything is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from retinue.domain.messages import Effect
from retinue.errors import ToolFailure
from retinue.ports import Entry, Hands, Outcome, Workspace, Written
from retinue.threads import in_thread, to_the_end
from retinue.tools.edits import edited
from retinue.tools.excerpt import MAX_BYTES, excerpt, fitting
from retinue.tools.function import tool

MAX_READ_BYTES = 10 * 1024 * 1024
MAX_FOUND = 200
MAX_HITS = 100
MAX_HIT_CHARS = 300


@tool(effect=Effect.READ)
async def read_file(
    hands: Hands,
    path: str,
    start: Annotated[int | None, Meta(description="first line, from 1")] = None,
    end: Annotated[int | None, Meta(description="last line")] = None,
) -> Outcome:
    """Read a text file, or a range of its lines."""
    # In memory it takes 25 µs. A thread beside a busy loop takes 350, most of it spent on handing
    # the interpreter lock to and fro.
    data = hands.workspace.read_now(path, max_bytes=MAX_BYTES)
    if data is not None:
        return _shown(hands.workspace, path, data, start, end)
    return await in_thread(partial(_read, hands.workspace, path, start, end))


@tool(effect=Effect.READ)
async def list_dir(hands: Hands, path: str = ".") -> Outcome:
    """List a directory."""
    entries = hands.workspace.list_now(path)
    if entries is not None:
        return _listing(entries)
    return await in_thread(lambda: _listing(hands.workspace.list(path)))


@tool(effect=Effect.READ)
async def find_files(
    hands: Hands,
    pattern: Annotated[str, Meta(description="glob, e.g. *.py or src/**/test_*.py")],
    path: Annotated[str, Meta(description="directory to look in")] = ".",
) -> Outcome:
    """Find files by name. Ignored files are left out."""
    return await in_thread(
        partial(_looked, hands, path, partial(_find, hands.workspace, pattern, path))
    )


@tool(effect=Effect.READ)
async def search_files(
    hands: Hands,
    pattern: Annotated[str, Meta(description="regular expression")],
    path: Annotated[str, Meta(description="file or directory")] = ".",
    glob: Annotated[str | None, Meta(description="only these files, e.g. *.py")] = None,
) -> Outcome:
    """Search file contents; gives path:line: text."""
    return await in_thread(
        partial(_looked, hands, path, partial(_search, hands.workspace, pattern, path, glob))
    )


@tool(effect=Effect.WRITE)
async def write_file(hands: Hands, path: str, content: str) -> Outcome:
    """Create a file, or replace all of it. Directories are created."""
    return await to_the_end(partial(_write, hands, path, content))


@tool(effect=Effect.WRITE)
async def edit_file(
    hands: Hands,
    path: str,
    old_text: Annotated[str, Meta(description="exact text, unique in the file")],
    new_text: str,
    all: Annotated[bool, Meta(description="replace every match")] = False,
) -> Outcome:
    """Replace a piece of a file."""
    return await to_the_end(partial(_edit, hands, path, old_text, new_text, all))


def _read(workspace: Workspace, path: str, start: int | None, end: int | None) -> Outcome:
    data = workspace.read(path, max_bytes=MAX_READ_BYTES)
    return _shown(workspace, path, data, start, end)


def _shown(
    workspace: Workspace, path: str, data: bytes, start: int | None, end: int | None
) -> Outcome:
    return Outcome(
        content=excerpt(path, data, start, end),
        read=(_clean(workspace, path),),
        # Of the whole file: a part of it was asked for, and all of it may matter.
        before_sha256=hashlib.sha256(data).hexdigest(),
    )


def _listing(found: Sequence[Entry]) -> Outcome:
    entries = [_line(entry) for entry in found]
    if not entries:
        return Outcome(content="[The directory is empty.]")
    content = "\n".join(entries)
    data = content.encode(errors="replace")
    if len(data) >= MAX_BYTES:
        shown = fitting(entries, MAX_BYTES)
        shown.append(f"[{len(shown):,} of {len(entries):,} entries; find_files finds the others]")
        content = "\n".join(shown)
    return Outcome(content=content, before_sha256=hashlib.sha256(data).hexdigest())


def _line(entry: Entry) -> str:
    match entry.kind:
        case "file":
            return f"{entry.name} ({entry.size_bytes:,} bytes)"
        case "dir":
            return f"{entry.name}/"
        case kind:
            return f"{entry.name} ({kind})"


def _find(workspace: Workspace, pattern: str, path: str) -> Outcome:
    found, more = workspace.find(pattern, under=path, limit=MAX_FOUND)
    if not found and not more:
        return Outcome(content=f"[No file matches '{pattern}'.]")
    lines = fitting(found, MAX_BYTES)
    if more or len(lines) < len(found):
        lines.append(f"[the first {len(lines)}; there are more: narrow the pattern or the path]")
    return Outcome(content="\n".join(lines))


def _search(workspace: Workspace, pattern: str, path: str, glob: str | None) -> Outcome:
    found, more = workspace.search(pattern, under=path, glob=glob, limit=MAX_HITS)
    if not found and not more:
        return Outcome(content=f"[No line matches '{pattern}'.]")
    hits = [f"{hit.path}:{hit.line}: {_clipped(hit.text)}" for hit in found]
    lines = fitting(hits, MAX_BYTES)
    if more or len(lines) < len(hits):
        lines.append(f"[the first {len(lines)}; there are more: narrow the pattern, path or glob]")
    return Outcome(content="\n".join(lines))


def _looked(hands: Hands, path: str, look: Callable[[], Outcome]) -> Outcome:
    """What `look` finds, with the state of everything that it looked at."""
    outcome = look()
    if not hands.remembered:
        return outcome
    return msgspec.structs.replace(outcome, before_sha256=hands.workspace.fingerprint(path))


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_HIT_CHARS else text[:MAX_HIT_CHARS] + "…"


def _write(hands: Hands, path: str, content: str) -> Outcome:
    _check_scope(hands, path)
    return _written("Wrote", hands.workspace.write(path, _bytes("content", content)))


def _edit(hands: Hands, path: str, old_text: str, new_text: str, all: bool) -> Outcome:
    _check_scope(hands, path)
    data = hands.workspace.read(path, max_bytes=MAX_READ_BYTES)
    after = edited(path, data, _bytes("old_text", old_text), _bytes("new_text", new_text), all=all)
    return _written("Edited", hands.workspace.write(path, after))


def _written(verb: str, written: Written) -> Outcome:
    return Outcome(
        content=f"{verb} {written.change}.",
        changed=(written.change,),
        before_sha256=written.before_sha256,
        after_sha256=written.after_sha256,
    )


def _check_scope(hands: Hands, path: str) -> None:
    clean = hands.workspace.inside(path)
    # What is outside is refused by the workspace, which can say more about it.
    if clean is not None and not hands.reach.may_write(clean):
        raise ToolFailure(f"The contract does not let you write '{clean}'.")


def _clean(workspace: Workspace, path: str) -> str:
    return workspace.inside(path) or path


def _bytes(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolFailure(f"'{name}' is not valid Unicode: it has half a surrogate pair.") from None
