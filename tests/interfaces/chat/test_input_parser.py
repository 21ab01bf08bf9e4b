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


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("What is wrong in /tmp/a.png?", "/tmp/a.png"),
        ("/tmp/a.PNG", "/tmp/a.PNG"),
        (r"/home/me/Screen\ shot\ \(1\).jpeg is broken", "/home/me/Screen shot (1).jpeg"),
        ("see '/home/me/Screen shot.webp'", "/home/me/Screen shot.webp"),
        ('see "/home/me/it\'s.gif"', "/home/me/it's.gif"),
        ("file:///tmp/a.png", "/tmp/a.png"),
    ],
)
def test_pasted_paths_of_images_are_attached(text: str, path: str) -> None:
    assert parse_input(text, is_image=lambda found: found == path) == MessageInput(text, (path,))


@pytest.mark.parametrize("text", ["/tmp/a.py", "a/b.png", "x/tmp/a.png", "/tmp/a.png.txt"])
def test_other_paths_are_only_text(text: str) -> None:
    assert parse_input(text, is_image=lambda _: True) == MessageInput(text)
