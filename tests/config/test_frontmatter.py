from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.frontmatter import (
    FrontMatter,
    Value,
    as_bool,
    as_list,
    as_number,
    as_prose,
    as_text,
    normalize_key,
    parse_front_matter,
)

KNOWN = ("name", "description", "tools", "model", "maxturns")


def fields_of(*lines: str) -> FrontMatter:
    return parse_front_matter("\n".join(["---", *lines, "---", "Body."]), known=KNOWN)


def test_fields_and_body() -> None:
    found = fields_of("name: a", "tools: [Read, Grep]", "permission:", "  edit: deny")
    assert found.fields == {"name": "a", "tools": ["Read", "Grep"], "permission": {"edit": "deny"}}
    assert found.body == "Body."
    assert found.problems == ()


def test_values_stay_text() -> None:
    found = fields_of("name: 007", "when: 2024-13-99", "on: yes", "version: 1.10")
    assert found.fields == {"name": "007", "when": "2024-13-99", "on": "yes", "version": "1.10"}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff---\nname: a\n---\nBody.",
        "---\r\nname: a\r\n---\r\nBody.",
        "\n \n---\nname: a\n---\nBody.",
        "----\nname: a\n-----  \nBody.",
        "---  \nname: a\n...\nBody.",
    ],
    ids=["bom", "crlf", "blank lines", "more dashes", "dots"],
)
def test_fence_variants(text: str) -> None:
    found = parse_front_matter(text)
    assert (found.fields, found.body, found.problems) == ({"name": "a"}, "Body.", ())


def test_title_above_the_fields_belongs_to_the_body() -> None:
    found = parse_front_matter("# Title\n<!-- made by hand -->\n\n---\nname: a\n---\nBody.")
    assert found.fields == {"name": "a"}
    assert found.body == "# Title\n<!-- made by hand -->\nBody."


def test_unclosed_front_matter() -> None:
    found = parse_front_matter("---\nname: a\n\ntools: Read\n\nSome text: here.\n", known=KNOWN)
    assert found.fields == {"name": "a", "tools": "Read"}
    assert found.body == "Some text: here."
    assert found.problems == ("the front matter has no closing ---",)


def test_unopened_front_matter() -> None:
    found = parse_front_matter("name: a\ntools: Read\n---\nBody.", known=KNOWN)
    assert found.fields == {"name": "a", "tools": "Read"}
    assert found.body == "Body."
    assert found.problems == ("the front matter has no opening ---",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Just text.",
        "---\nA rule above, and text.",
        "# Title\n\nText\n---\nmore",
        "---\nhm\n---\n",
    ],
)
def test_text_without_fields_is_body(text: str) -> None:
    found = parse_front_matter(text, known=KNOWN)
    assert found == FrontMatter({}, text.strip(), found=False)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("description: Use it for: this and that", "Use it for: this and that"),
        ("description: *bold* words", "*bold* words"),
        ("description: @home", "@home"),
        ("description: `code` first", "`code` first"),
        ("description: %done", "%done"),
        ("description: 'isn't it'", "isn't it"),
        ('description: "never closed', "never closed"),
        ('description: "one" and two', '"one" and two'),
        ("description:no space", "no space"),
    ],
)
def test_invalid_line_is_taken_as_text(line: str, value: str) -> None:
    found = fields_of("name: a", line, "tools: Read, Grep", "broken: a: b")
    assert found.fields["name"] == "a"
    assert found.fields["description"] == value
    assert found.fields["tools"] == "Read, Grep"
    assert "read line by line" in found.problems[0]


def test_problem_names_the_line() -> None:
    found = parse_front_matter("---\nname: a\ndescription: b: c\n---\n")
    assert found.problems == (
        "not valid YAML (line 3: mapping values are not allowed here); read line by line",
    )


def test_valid_fields_keep_their_structure_beside_an_invalid_one() -> None:
    found = fields_of(
        "description: a: b",
        "tools:",
        "  - Read",
        "  - Grep",
        "permission: { edit: deny, bash: { '*': ask } }",
        "note: |",
        "  one",
        "  two",
    )
    assert found.fields["tools"] == ["Read", "Grep"]
    assert found.fields["permission"] == {"edit": "deny", "bash": {"*": "ask"}}
    assert found.fields["note"] == "one\ntwo"


def test_lists_and_maps_with_tabs() -> None:
    found = fields_of("tools:", "\t- Read", "\t- 'Grep'", "permission:", "\tedit: deny")
    assert found.fields == {"tools": ["Read", "Grep"], "permission": {"edit": "deny"}}


def test_unclosed_list() -> None:
    assert fields_of("tools: [Read, 'Grep'", "model: x").fields == {
        "tools": ["Read", "Grep"],
        "model": "x",
    }


def test_only_a_known_key_ends_prose() -> None:
    found = fields_of(
        "description: Looks at things.",
        "",
        "Context: Somebody asks.",
        'user: "Look!"',
        "Tools: many",
        "<end>",
        "tools: Read",
        "custom: x",
    )
    assert found.fields["description"] == (
        'Looks at things.\n\nContext: Somebody asks.\nuser: "Look!"\nTools: many\n<end>'
    )
    assert found.fields["tools"] == "Read"
    assert found.fields["custom"] == "x"


def test_last_of_duplicate_keys_wins() -> None:
    found = fields_of("name: a", "name: b")
    assert found.fields == {"name": "b"}
    assert "'name' is given twice" in found.problems[0]


def test_tags_and_aliases_are_ignored() -> None:
    found = fields_of("name: !!python/object/apply:os.system ['true']", "tools: [&a x, *a]")
    assert found.fields == {"name": ["true"], "tools": ["x", "x"]}


def test_bracket_depth_is_limited() -> None:
    def nested(depth: int) -> FrontMatter:
        return fields_of("name: a", f"odd: {'[' * depth}x{']' * depth}")

    assert nested(50).problems == ()
    found = nested(51)
    assert found.fields["name"] == "a"
    assert found.problems == (
        "not valid YAML (more than 50 brackets in each other); read line by line",
    )


@pytest.mark.parametrize("text", ["[" * 50_000, "- " * 20_000, "{a: " * 20_000, "x" * 100_000])
def test_hostile_yaml_is_read_by_line(text: str) -> None:
    found = fields_of("name: a", f"odd: {text}")
    assert found.fields["name"] == "a"
    assert len(found.problems) == (0 if text.startswith("x") and len(text) < 64_000 else 1)


def test_scalar_conversions() -> None:
    assert (
        normalize_key("maxTurns")
        == normalize_key("max_turns")
        == normalize_key("max-turns")
        == "maxturns"
    )
    none: list[Value | None] = ["", "~", "null", ["a"], {"a": "b"}, None]
    assert [as_text(value) for value in none] == [None] * len(none)
    assert as_text(" a ") == "a"
    assert [as_bool(v) for v in ("true", "Yes", "off", "0", "maybe", None)] == [
        True, True, False, False, None, None,
    ]  # fmt: skip
    assert [as_number(v) for v in ("5", "1_000", "2.5", "-3", "many", "1e9", "9" * 5000)] == [
        5, 1000, 2.5, -3, None, None, None,
    ]  # fmt: skip
    assert as_prose({"Use this": "for x", "b": ["c"]}) == "Use this: for x"
    assert as_prose(["a", "b"]) == "a\nb"


def test_list_conversions() -> None:
    assert as_list("Read, 'Grep',, Bash(a, b)") == ["Read", "Grep", "Bash(a, b)"]
    assert as_list(["Read, Write", {"Bash(git log": "*)"}, ["deep"]]) == [
        "Read", "Write", "Bash(git log",
    ]  # fmt: skip
    assert as_list({"read": "true", "bash": "false"}) == ["read", "bash"]
    assert as_list("[Read, Grep]") == ["Read", "Grep"]
    assert as_list(None) == as_list("") == []


LINES = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            ["---", "----", "...", "", "name: a", "tools:", "- Read", "  - b", "\tx: y", "# t", ":"]
        ),
        st.builds("{}: {}".format, st.sampled_from(KNOWN), st.text(max_size=40)),
        st.builds(
            "{}:{}".format, st.text(max_size=9), st.text("[]{}'\"|>&*!%@`-,: #\t", max_size=20)
        ),
    ),
    max_size=30,
)


@given(st.text() | LINES.map("\n".join) | LINES.map(lambda x: "\n".join(["---", *x, "---", "z"])))
def test_parser_never_raises(text: str) -> None:
    found = parse_front_matter(text, known=KNOWN)
    for value in found.fields.values():
        as_list(value), as_text(value), as_prose(value), as_bool(value), as_number(value)
