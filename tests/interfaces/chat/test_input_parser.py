from __future__ import annotations

import pytest

from retinue.interfaces.chat.input_parser import Addressed, Line, Message, Shell, Slash, parse


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("/help", Slash("help", "")),
        ("  /spawn tester  Test\nit ", Slash("spawn", "tester  Test\nit")),
        ("/?", Slash("?", "")),
        ("/usr/bin is a folder", Message("/usr/bin is a folder")),
        ("!make test", Shell("make test")),
        ("!", Shell("")),
        ("@tester Test it", Addressed("tester", "Test it")),
        ("@tester", Message("@tester")),
        ("@nobody Test it", Message("@nobody Test it")),
        ("Look at @a.py and @b/c.py.", Message("Look at @a.py and @b/c.py.", ("a.py", "b/c.py"))),
        ("@a.py @a.py", Message("@a.py @a.py", ("a.py",))),
        ("mail me@a.py or @gone", Message("mail me@a.py or @gone")),
        ("a / b", Message("a / b")),
    ],
)
def test_what_a_line_means(text: str, line: Line) -> None:
    assert parse(text, names={"tester"}, is_file=lambda path: path in ("a.py", "b/c.py")) == line
