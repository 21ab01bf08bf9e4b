"""Documents as text: notebooks, and PDF files where the extra `pdf` is installed."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from retinue.errors import ToolFailure
from retinue.extras import install_command, is_installed

MAX_PAGES = 2_000
# A file of 100 KB can have thousands of pages that take seconds each.
MAX_PDF_S = 30.0
MAX_OUTPUT_CHARS = 2_000


def is_pdf(data: bytes) -> bool:
    return data.startswith(b"%PDF-")


def pdf_text(name: str, data: bytes) -> str:
    """The text of a PDF file, page by page. Blocks. Raises ToolFailure."""
    if not is_installed("pdf"):
        raise ToolFailure(f"{name} is a PDF file, and reading it needs: {install_command('pdf')}")
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # It logs every oddity of a file.
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolFailure(f"{name} is encrypted, so it cannot be read")
        deadline, note = time.monotonic() + MAX_PDF_S, ""
        pages: list[str] = []
        for number, page in zip(range(1, MAX_PAGES + 1), reader.pages, strict=False):
            pages.append(f"[page {number}]\n{page.extract_text().strip()}")
            if time.monotonic() > deadline and number < len(reader.pages):
                note = f"\n\n[{number} of {len(reader.pages)} pages; the others take too long]"
                break
    except ToolFailure:
        raise
    except Exception as error:
        # A damaged file raises errors of many kinds.
        raise ToolFailure(
            f"{name} cannot be read as PDF: {type(error).__name__}: {error}"
        ) from None
    if not any(page.partition("\n")[2] for page in pages):
        raise ToolFailure(f"{name} has {len(pages)} pages without text; they may be pictures")
    return "\n\n".join(pages) + note


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
