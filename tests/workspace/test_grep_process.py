from __future__ import annotations

import io

from retinue.workspace import grep_process as grep


def answers(pattern: bytes, *files: bytes) -> bytes:
    out = io.BytesIO()
    framed = b"".join(b"%d\n%b" % (len(data), data) for data in files)
    grep.main(io.BytesIO(pattern + b"\n" + framed), out)
    return out.getvalue()


def test_hits_have_file_and_line() -> None:
    assert answers(b'"x"', b"x\ny\nx", b"", b"\n\nx\n") == b"[0,1]\n[0,3]\n[2,3]\n"


def test_invalid_pattern() -> None:
    assert answers(b'"("', b"x").startswith(b'{"error": "missing )')


def test_end_of_a_very_long_line_is_not_searched() -> None:
    assert answers(b'"x"', b"." * grep.MAX_LINE_CHARS + b"x") == b""
