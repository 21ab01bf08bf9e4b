"""File tools. The workspace keeps them inside the project; the tools check the write scope."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from retinue.domain.images import is_image, read_image
from retinue.domain.messages import Effect
from retinue.domain.plural import plural
from retinue.domain.result import FileChange
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.ports.workspace import DirEntry, Workspace
from retinue.threads import in_thread, in_thread_shielded
from retinue.tools.documents import is_pdf, notebook_text, pdf_text
from retinue.tools.edits import replace_text, unified_diff
from retinue.tools.excerpt import MAX_BYTES, excerpt, lines_that_fit
from retinue.tools.function import tool

MAX_READ_BYTES = 10 * 1024 * 1024
MAX_FILES_FOUND = 200
MAX_MATCHES = 100
MAX_MATCH_CHARS = 300
UNSAVED = (
    "[The user's editor has unsaved changes in this file; this is its text. Edits apply to disk.]"
)


@tool(effect=Effect.READ)
async def read_file(
    ctx: ToolContext,
    path: str,
    start: int | None = None,
    end: int | None = None,
) -> ToolOutcome:
    """Read a file, or its lines start to end (from 1); shows images."""
    # From memory this takes 25 µs. A thread beside a busy loop takes 350, most of it for passing
    # the interpreter lock back and forth.
    data = ctx.workspace.read_now(path, max_bytes=MAX_BYTES)
    if data is None:
        data = await in_thread(partial(ctx.workspace.read, path, max_bytes=MAX_READ_BYTES))
    elif ctx.read_buffer is None and not (is_image(data) or is_pdf(data)):
        return _read_outcome(ctx.workspace, path, data, start, end)
    # The workspace was asked first: it knows what may be read.
    unsaved = await _unsaved_text(ctx, path, data)
    if unsaved is not None:
        found = await in_thread(
            partial(_read_outcome, ctx.workspace, path, data, start, end, unsaved)
        )
        return msgspec.structs.replace(found, content=f"{UNSAVED}\n{found.content}")
    text = None
    if is_pdf(data):
        with ctx.waiting():  # Reading a PDF has its own time limit.
            text = (await pdf_text(path, data)).encode()
    return await in_thread(partial(_read_outcome, ctx.workspace, path, data, start, end, text))


async def _unsaved_text(ctx: ToolContext, path: str, data: bytes) -> bytes | None:
    """The text of a file in the user's editor, if it is not what was saved."""
    inside = ctx.workspace.inside(path)
    if ctx.read_buffer is None or inside is None:
        return None
    text = await ctx.read_buffer(f"{ctx.access.root}/{inside}")
    return None if text is None or text.encode() == data else text.encode()


@tool(effect=Effect.READ)
async def list_dir(ctx: ToolContext, path: str = ".") -> ToolOutcome:
    """List a directory."""
    entries = ctx.workspace.list_now(path)
    if entries is not None:
        return _listing_outcome(entries)
    return await in_thread(lambda: _listing_outcome(ctx.workspace.list(path)))


@tool(effect=Effect.READ)
async def find_files(ctx: ToolContext, pattern: str, path: str = ".") -> ToolOutcome:
    """Find files by glob, e.g. *.py or src/**/test_*.py; not ignored ones."""
    return await in_thread(
        partial(_with_fingerprint, ctx, path, partial(_find, ctx.workspace, pattern, path))
    )


@tool(effect=Effect.READ)
async def search_files(
    ctx: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
) -> ToolOutcome:
    """Search a file or directory by regex, in files like glob (*.py); gives path:line: text."""
    return await in_thread(
        partial(_with_fingerprint, ctx, path, partial(_search, ctx.workspace, pattern, path, glob))
    )


async def _preview_write(ctx: ToolContext, path: str, content: str) -> str:
    return await in_thread(partial(_write_diff, ctx, path, content))


async def _preview_edit(
    ctx: ToolContext, path: str, old_text: str, new_text: str, all: bool = False
) -> str:
    return await in_thread(partial(_edit_diff, ctx, path, old_text, new_text, all))


@tool(effect=Effect.WRITE, preview=_preview_write)
async def write_file(ctx: ToolContext, path: str, content: str) -> ToolOutcome:
    """Write a whole file; creates directories."""
    return await in_thread_shielded(partial(_write, ctx, path, content))


@tool(effect=Effect.WRITE, preview=_preview_edit)
async def edit_file(
    ctx: ToolContext,
    path: str,
    old_text: str,
    new_text: str,
    all: bool = False,
) -> ToolOutcome:
    """Replace old_text, exact and unique in the file; with all, every match."""
    return await in_thread_shielded(partial(_edit, ctx, path, old_text, new_text, all))


def _read_outcome(
    workspace: Workspace,
    path: str,
    data: bytes,
    start: int | None,
    end: int | None,
    text: bytes | None = None,
) -> ToolOutcome:
    """The content of a file: `text` if it is given, else its image, its cells or its bytes."""
    images = (read_image(path, data),) if is_image(data) else ()
    if text is None:
        text = notebook_text(path, data).encode() if path.endswith(".ipynb") else data
    return ToolOutcome(
        content=f"[{images[0]}]" if images else excerpt(path, text, start, end),
        images=images,
        read=(workspace.inside(path) or path,),
        # Of the whole file: a change outside of the excerpt counts too.
        before_sha256=hashlib.sha256(data).hexdigest(),
    )


def _listing_outcome(found: Sequence[DirEntry]) -> ToolOutcome:
    entries = [_entry_line(entry) for entry in found]
    if not entries:
        return ToolOutcome(content="[The directory is empty.]")
    content = "\n".join(entries)
    data = content.encode(errors="replace")
    if len(data) >= MAX_BYTES:
        shown = lines_that_fit(entries, MAX_BYTES)
        shown.append(f"[{len(shown):,} of {len(entries):,} entries; find_files finds the others]")
        content = "\n".join(shown)
    return ToolOutcome(content=content, before_sha256=hashlib.sha256(data).hexdigest())


def _entry_line(entry: DirEntry) -> str:
    match entry.kind:
        case "file":
            return f"{entry.name} ({plural(entry.size_bytes, 'byte')})"
        case "dir":
            return f"{entry.name}/"
        case kind:
            return f"{entry.name} ({kind})"


def _find(workspace: Workspace, pattern: str, path: str) -> ToolOutcome:
    found, more = workspace.find(pattern, under=path, limit=MAX_FILES_FOUND)
    if not found and not more:
        return ToolOutcome(content=f"[No file matches '{pattern}'.]")
    return _lines_outcome(found, more, "the pattern or the path")


def _search(workspace: Workspace, pattern: str, path: str, glob: str | None) -> ToolOutcome:
    found, more = workspace.search(pattern, under=path, glob=glob, limit=MAX_MATCHES)
    if not found and not more:
        return ToolOutcome(content=f"[No line matches '{pattern}'.]")
    hits = [f"{hit.path}:{hit.line}: {_clip(hit.text)}" for hit in found]
    return _lines_outcome(hits, more, "the pattern, path or glob")


def _lines_outcome(found: Sequence[str], more: bool, to_narrow: str) -> ToolOutcome:
    lines = lines_that_fit(found, MAX_BYTES)
    if more or len(lines) < len(found):
        lines.append(f"[the first {len(lines)}; there are more: narrow {to_narrow}]")
    return ToolOutcome(content="\n".join(lines))


def _with_fingerprint(ctx: ToolContext, path: str, find: Callable[[], ToolOutcome]) -> ToolOutcome:
    """Result of `find`, with the fingerprint of everything below `path`."""
    outcome = find()
    if not ctx.remembered:
        return outcome
    return msgspec.structs.replace(outcome, before_sha256=ctx.workspace.fingerprint(path))


def _clip(text: str) -> str:
    return text if len(text) <= MAX_MATCH_CHARS else text[:MAX_MATCH_CHARS] + "…"


def _write(ctx: ToolContext, path: str, content: str) -> ToolOutcome:
    _check_scope(ctx, path)
    return _write_outcome("Wrote", ctx.workspace.write(path, _encode("content", content)))


def _edit(ctx: ToolContext, path: str, old_text: str, new_text: str, all: bool) -> ToolOutcome:
    _check_scope(ctx, path)
    _, after = _edited(ctx, path, old_text, new_text, all)
    return _write_outcome("Edited", ctx.workspace.write(path, after))


def _edited(
    ctx: ToolContext, path: str, old_text: str, new_text: str, all: bool
) -> tuple[bytes, bytes]:
    """The file before and after an edit."""
    data = ctx.workspace.read(path, max_bytes=MAX_READ_BYTES)
    after = replace_text(
        path, data, _encode("old_text", old_text), _encode("new_text", new_text), all=all
    )
    return data, after


def _write_diff(ctx: ToolContext, path: str, content: str) -> str:
    before: bytes | None
    try:
        before = ctx.workspace.read(path, max_bytes=MAX_READ_BYTES)
    except ToolFailure:
        before = None  # A new file, or one that the write will refuse.
    return unified_diff(ctx.workspace.inside(path) or path, before, _encode("content", content))


def _edit_diff(ctx: ToolContext, path: str, old_text: str, new_text: str, all: bool) -> str:
    before, after = _edited(ctx, path, old_text, new_text, all)
    return unified_diff(ctx.workspace.inside(path) or path, before, after)


def _write_outcome(verb: str, change: FileChange) -> ToolOutcome:
    return ToolOutcome(
        content=f"{verb} {change}.",
        changed=(change,),
        before_sha256=change.before_sha256,
        after_sha256=change.after_sha256,
    )


def _check_scope(ctx: ToolContext, path: str) -> None:
    clean = ctx.workspace.inside(path)
    # The workspace refuses paths outside, with a better message.
    if clean is not None and not ctx.access.may_write(clean):
        raise ToolFailure(f"The contract does not let you write '{clean}'.")


def _encode(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolFailure(f"'{name}' is not valid Unicode: it has half a surrogate pair.") from None
