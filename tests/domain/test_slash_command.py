from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.slash_command import SlashCommand, split_command


def parts(
    body: str, arguments: str, *, first: int = 1, rest: bool = False
) -> list[tuple[str, bool]]:
    command = SlashCommand(
        name="n", description="", body=body, place="", first=first, last_takes_rest=rest
    )
    return command.parts(arguments)


@pytest.mark.parametrize(
    ("body", "first", "rest", "text"),
    [
        ("fix $ARGUMENTS!", 1, False, "fix a 'b c' d!"),
        ("$1|$2|$9", 1, False, "a|b c|"),
        ("$0|$1", 0, False, "a|b c"),
        ("$ARGUMENTS[1]", 0, False, "b c"),
        ("$1|$2", 1, True, "a|b c d"),
        ("text", 1, False, "text\n\na 'b c' d"),
        ("text", 0, False, "text\n\nARGUMENTS: a 'b c' d"),
    ],
)
def test_arguments_as_the_owners_define_them(body: str, first: int, rest: bool, text: str) -> None:
    assert "".join(t for t, _ in parts(body, "a 'b c' d", first=first, rest=rest)) == text


def test_a_text_without_arguments_stays_as_it_is() -> None:
    assert parts("text", "") == [("text", False)]
    assert parts("don't $1", "don't") == [("don't don't", False)]


def test_arguments_are_quoted_in_shell_commands() -> None:
    assert parts("See !`git log $1` for $1", "'a; rm -rf /'") == [
        ("See ", False),
        ("git log 'a; rm -rf /'", True),
        (" for a; rm -rf /", False),
    ]


@given(st.text(max_size=40))
def test_an_argument_is_never_a_shell_command(argument: str) -> None:
    found = parts("Do $ARGUMENTS and $1", f"!`{argument}` {argument}")
    assert [is_shell for _, is_shell in found] == [False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/grp:hi a  b", ("grp:hi", "a  b")),
        (" /x\ny", ("x", "y")),
        ("no /x", ("", "")),
        ("", ("", "")),
    ],
)
def test_a_command_begins_with_a_slash(text: str, expected: tuple[str, str]) -> None:
    assert split_command(text) == expected
