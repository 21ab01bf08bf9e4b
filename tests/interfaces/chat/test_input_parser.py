from __future__ import annotations

import pytest

from retinue.interfaces.chat.input_parser import (
    AddressedInput,
    CommandInput,
    MessageInput,
    ParsedInput,
    ShellInput,
    parse_input,
)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("/help", CommandInput("help", "")),
        ("  /spawn tester  Test\nit ", CommandInput("spawn", "tester  Test\nit")),
        ("/?", CommandInput("?", "")),
        ("/usr/bin is a folder", MessageInput("/usr/bin is a folder")),
        ("!make test", ShellInput("make test")),
        ("!", ShellInput("")),
        ("@tester Test it", AddressedInput("tester", "Test it")),
        ("@tester", MessageInput("@tester")),
        ("@nobody Test it", MessageInput("@nobody Test it")),
        (
            "Look at @a.py and @b/c.py.",
            MessageInput("Look at @a.py and @b/c.py.", ("a.py", "b/c.py")),
        ),
        ("@a.py @a.py", MessageInput("@a.py @a.py", ("a.py",))),
        ("mail me@a.py or @gone", MessageInput("mail me@a.py or @gone")),
        ("a / b", MessageInput("a / b")),
    ],
)
def test_parse_input(text: str, parsed: ParsedInput) -> None:
    assert (
        parse_input(text, names={"tester"}, is_file=lambda path: path in ("a.py", "b/c.py"))
        == parsed
    )
