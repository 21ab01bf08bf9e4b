"""Notebooks and PDF files as text."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import ToolMessage
from retinue.errors import ToolFailure
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.processes.function_process import FunctionLimits
from retinue.runtime.runtime import Runtime
from retinue.tools import documents
from retinue.tools.documents import notebook_text, pdf_text

NOTEBOOK = {
    "nbformat": 4,
    "cells": [
        {"cell_type": "markdown", "source": ["# Herons\n", "They stand."]},
        {
            "cell_type": "code",
            "execution_count": 3,
            "source": "count()",
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["12\n"]},
                {"output_type": "execute_result", "data": {"text/plain": "12"}},
                {"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": "x"}},
                {"output_type": "error", "ename": "ValueError", "evalue": "no bird"},
            ],
        },
    ],
}
TEXT = """[cell 1: markdown]
# Herons
They stand.

[cell 2: code, run 3]
count()
[output]
12

[output]
12
[output]
(image/png, not shown), (text/plain, not shown)
[output]
ValueError: no bird"""


def made_pdf(*pages: str, password: str = "") -> bytes:
    """A PDF with a line of text on each page, written by hand."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Resources << /Font << /F1 3 0 R"
            f" >> >> /Contents {5 + 2 * number} 0 R >>"
        )
        stream = f"BT /F1 12 Tf 10 100 Td ({text}) Tj ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    body, places = "%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n"
    start = len(body)
    body += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n"
    body += "".join(f"{place:010d} 00000 n \n" for place in places)
    body += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF"
    if not password:
        return body.encode("latin-1")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(body.encode("latin-1")))
    writer.encrypt(password, algorithm="RC4-128")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def test_cells_of_a_notebook() -> None:
    assert notebook_text("a.ipynb", msgspec.json.encode(NOTEBOOK)) == TEXT


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["cells", "cell_type", "source", "outputs", "data", "text"]),
                inner,
                max_size=4,
            )
        ),
    )
)
def test_any_json_is_a_notebook_or_one_clear_error(value: Any) -> None:
    try:
        notebook_text("a.ipynb", msgspec.json.encode(value))
    except ToolFailure as failure:
        said = str(failure)
    else:
        said = "a.ipynb is no notebook of format 4"
    assert said == "a.ipynb is no notebook of format 4"


async def test_pages_of_a_pdf() -> None:
    text = await pdf_text("a.pdf", made_pdf("A heron", "An egret"))
    assert text == "[page 1]\nA heron\n\n[page 2]\nAn egret"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"%PDF-1.4 broken", "a.pdf cannot be read as PDF: "),
        (made_pdf("", ""), "a.pdf has 2 pages without text; they may be pictures"),
        (made_pdf("A heron", password="x"), "a.pdf cannot be read as PDF: it is encrypted"),
    ],
    # pytest would take the bytes, and those of an encrypted file are different in each process.
    ids=["broken", "empty", "encrypted"],
)
async def test_pdf_files_that_cannot_be_read(data: bytes, words: str) -> None:
    with pytest.raises(ToolFailure) as refused:
        await pdf_text("a.pdf", data)
    assert words in str(refused.value)


async def test_without_the_extra_a_pdf_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "is_installed", lambda extra: False)
    with pytest.raises(ToolFailure, match=r"is a PDF file, and reading it needs: pip install"):
        await pdf_text("a.pdf", made_pdf("A heron"))


async def test_read_file_reads_both(
    opened: Callable[..., AbstractAsyncContextManager[Runtime]], project: Path
) -> None:
    (project / "a.ipynb").write_bytes(msgspec.json.encode(NOTEBOOK))
    (project / "a.pdf").write_bytes(made_pdf("A heron"))
    model = ScriptedModel(
        [
            call("read_file", path="a.ipynb", start=1, end=2),
            call("read_file", path="a.pdf"),
            say("Read."),
        ]
    )
    async with opened(model=model) as rt:
        await rt.run("Read them.")
    answers = [m.content for m in model.requests[2].messages if isinstance(m, ToolMessage)]
    assert answers[0].startswith("[cell 1: markdown]\n# Herons\n[lines 1-2 of")
    assert answers[1] == "[page 1]\nA heron"


def slow_page(seconds: int) -> str:
    """Text for a page that takes `seconds` or more: 60,000 pieces take one."""
    return "x) Tj (" * (60_000 * seconds)


async def test_a_page_that_takes_too_long_ends_the_text() -> None:
    data = made_pdf("One", slow_page(20), "Three")
    told = await pdf_text("x.pdf", data, FunctionLimits(cpu_s=1, wall_s=60.0))
    assert told == "[page 1]\nOne\n\n[page 2 of 3 cannot be read: it takes too long]"
    with pytest.raises(ToolFailure, match=r"^x\.pdf cannot be read as PDF: it takes too long$"):
        await pdf_text("x.pdf", data, FunctionLimits(cpu_s=5, wall_s=0.0))


async def test_a_page_that_needs_too_much_memory_ends_the_text() -> None:
    data = made_pdf("One", slow_page(20))
    limits = FunctionLimits(cpu_s=60, wall_s=60.0, memory_bytes=200 << 20)
    told = await pdf_text("x.pdf", data, limits)
    assert told == "[page 1]\nOne\n\n[page 2 of 2 cannot be read: it needs too much memory]"
