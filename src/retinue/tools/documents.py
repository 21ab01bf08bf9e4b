"""Documents as text: notebooks, and PDF files where the extra `pdf` is installed."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from retinue.errors import ToolFailure
from retinue.extras import install_command, is_installed
from retinue.processes.function_process import FunctionLimits, run_function

MAX_PAGES = 2_000
# A file of 100 KB can have thousands of pages that take seconds each.
PDF_LIMITS = FunctionLimits(cpu_s=30, wall_s=60.0)
MAX_OUTPUT_CHARS = 2_000


def is_pdf(data: bytes) -> bool:
    return data.startswith(b"%PDF-")


async def pdf_text(name: str, data: bytes, limits: FunctionLimits = PDF_LIMITS) -> str:
    """The text of a PDF file, page by page, read in a process with limits. Raises ToolFailure.

    Where a page cannot be read, the pages before it are the text.
    """
    if not is_installed("pdf"):
        raise ToolFailure(f"{name} is a PDF file, and reading it needs: {install_command('pdf')}")
    try:
        done = await run_function(__name__, write_pdf_pages.__name__, data, limits)
    except OSError as error:
        raise ToolFailure(f"{name} cannot be read: {error}") from None
    # The last line is empty, or cut where the process was killed.
    lines = [msgspec.json.decode(line, type=_PdfLine) for line in done.data.split(b"\n")[:-1]]
    pages = [line.text for line in lines if not line.error]
    problem = lines[-1].error if lines else ""
    if not problem and not done.complete:
        problem = "it takes too long" if done.timed_out else "it needs too much memory"
    if not any(pages):
        raise ToolFailure(
            f"{name} cannot be read as PDF: {problem}"
            if problem
            else f"{name} has {len(pages)} pages without text; they may be pictures"
        )
    parts = [f"[page {number}]\n{page}" for number, page in enumerate(pages, start=1)]
    if problem:
        parts.append(f"[page {len(pages) + 1} of {lines[0].total} cannot be read: {problem}]")
    return "\n\n".join(parts)


class _PdfLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of a file with `total` pages, or what ended the reading."""

    text: str = ""
    total: int = 0
    error: str = ""


def write_pdf_pages() -> None:
    """In the process: a PDF file on standard input, `_PdfLine`s on standard output."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # pypdf logs every oddity of a file.

    def write(line: _PdfLine) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()

    try:
        reader = pypdf.PdfReader(io.BytesIO(sys.stdin.buffer.read()))
        if reader.is_encrypted and not reader.decrypt(""):
            write(_PdfLine(error="it is encrypted"))
            return
        for page in islice(reader.pages, MAX_PAGES):
            write(_PdfLine(page.extract_text().strip(), len(reader.pages)))
    except MemoryError:
        write(_PdfLine(error="it needs too much memory"))
    except Exception as error:
        # A damaged file raises errors of many kinds.
        write(_PdfLine(error=f"{type(error).__name__}: {error}"))


def notebook_text(name: str, data: bytes) -> str:
    """The cells of a Jupyter notebook with their outputs. Raises ToolFailure."""
    try:
        notebook = msgspec.json.decode(data)
        cells = notebook["cells"]
        return "\n\n".join(
            "\n".join(_cell(number, cell)) for number, cell in enumerate(cells, start=1)
        )
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, RecursionError):
        raise ToolFailure(f"{name} is no notebook of format 4") from None


def _cell(number: int, cell: dict[str, Any]) -> Iterator[str]:
    kind = cell["cell_type"]
    run = cell.get("execution_count")
    yield f"[cell {number}: {kind}{f', run {run}' if run else ''}]"
    yield _joined(cell["source"])
    for output in cell.get("outputs", ()):
        if text := _output(output):
            cut = len(text) > MAX_OUTPUT_CHARS
            yield f"[output]\n{text[:MAX_OUTPUT_CHARS]}{'…' if cut else ''}"


def _output(output: dict[str, Any]) -> str:
    if output.get("output_type") == "error":
        return f"{output.get('ename')}: {output.get('evalue')}"
    if "text" in output:
        return _joined(output["text"])
    data = output.get("data", {})
    if "text/plain" in data and not any(kind.startswith("image/") for kind in data):
        return _joined(data["text/plain"])
    return ", ".join(f"({kind}, not shown)" for kind in data)


def _joined(text: Any) -> str:
    return "".join(text) if isinstance(text, list) else str(text)
