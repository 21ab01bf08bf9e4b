from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from retinue.domain.messages import AssistantMessage, Request, ToolMessage, Usage, UserMessage
from retinue.errors import (
    ConfigError,
    ContextOverflow,
    ModelError,
    ModelTimeout,
    ProviderError,
    RateLimited,
)
from retinue.models.scripted import script_file
from retinue.models.scripted.model import ScriptedModel
from retinue.models.scripted.script_file import parse_script

HI = Request(messages=(UserMessage("Hi."),))


def example(number: int) -> str:
    """An example of the module's documentation."""
    assert script_file.__doc__ is not None
    blocks: list[list[str]] = [[]]
    for line in script_file.__doc__.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line)
        elif line and blocks[-1]:
            blocks.append([])
    return dedent("\n".join(blocks[number]))


async def test_the_first_example_of_the_documentation() -> None:
    model = ScriptedModel.from_text(example(0), strict=True)
    first = await model.reply(HI)
    assert first.message.calls[0].arguments == '{"path":"notes.txt"}'
    assert (await model.reply(HI)).message.content == "The notes say nothing."
    await model.aclose()


async def test_the_second_example_of_the_documentation(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    # The pause is for people.
    path.write_text(example(1).replace("delay_s: 0.5", "delay_s: 0.00001"), encoding="utf-8")
    model = ScriptedModel.from_yaml(path)
    assert model.name == f"scripted:{path}"
    opening = UserMessage("You are a researcher.")
    first = await model.reply(Request(messages=(opening,)))
    assert first.message.content == "I look at both files."
    assert [made.arguments for made in first.message.calls] == [
        '{"path":"a.txt"}',
        '{"path":"b.txt"}',
    ]
    answers = (ToolMessage(made.id, "") for made in first.message.calls)
    later = Request(messages=(opening, first.message, *answers))
    with pytest.raises(RateLimited, match="Too many requests"):
        await model.reply(later)
    last = await model.reply(later)
    assert last.message == AssistantMessage("Both are empty.")
    assert last.usage == Usage(900, 800, 12)


@pytest.mark.parametrize(
    ("kind", "error", "retryable"),
    [
        ("rate_limited", RateLimited, True),
        ("timeout", ModelTimeout, True),
        ("overflow", ContextOverflow, False),
        ("unavailable", ProviderError, True),
        ("refused", ProviderError, False),
    ],
)
async def test_failures(kind: str, error: type[ModelError], retryable: bool) -> None:
    model = ScriptedModel.from_text(f"steps: [{{fail: {kind}}}]")
    with pytest.raises(error) as caught:
        await model.reply(HI)
    assert caught.value.retryable is retryable


async def test_unquoted_numbers_are_text() -> None:
    assert (await ScriptedModel.from_text("steps: [{say: 42}]").reply(HI)).message.content == "42"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the script, line 1: the script is empty. Write 'steps:' in it."),
        ("steps: [", "the script, line 1: this is not YAML"),
        ("- say: hi", "line 1: a script is a mapping with rules, steps."),
        ("steps: []\nrules: []", "line 1: write either 'steps:' or 'rules:'."),
        ("{}", "line 1: write either 'steps:' or 'rules:'."),
        ("stops: []", "line 1: unknown field 'stops' in a script; known: rules, steps."),
        ("steps: hi", "line 1: 'steps' is a list; begin each item with '- '."),
        ("steps: []", "line 1: there are no steps; write at least {say: TEXT}."),
        ("steps:\n  - hi", "line 2: a step is a mapping with "),
        ("steps:\n  - {say: a}\n  - {sya: b}", "line 3: unknown field 'sya' in a step; known: "),
        ("steps:\n  - {args: {}}", "line 2: a step is {say: TEXT}, {call: TOOL, args: {…}}, "),
        ("steps:\n  - {call: x, calls: []}", "line 2: a step is "),
        ("steps:\n  - {fail: timeout, say: x}", "line 2: a step is "),
        ("steps:\n  - {say: x, args: {}}", "line 2: 'args' belongs to 'call'"),
        ("steps:\n  - {say: x, message: y}", "line 2: 'message' belongs to 'fail'; write 'say'."),
        ("steps:\n  - {fail: explode}", "unknown failure 'explode'; known: rate_limited, timeout"),
        (
            "steps:\n  - {fail: timeout, delay_s: 1}",
            "a failing step is {fail: KIND, message: TEXT}.",
        ),
        (
            "steps:\n  - call: x\n    args: [1]",
            "line 3: 'args' is a mapping, such as {path: a.txt}.",
        ),
        ("steps:\n  - calls: [{args: {}}]", "line 2: a call is {call: TOOL, args: {…}}."),
        ("steps:\n  - say: [a]", "line 2: 'say' is a text; quote it if it holds : or #."),
        ("steps:\n  - {say: a, say: b}", "line 2: 'say' is there twice."),
        ("steps:\n  - {say: a, delay_s: soon}", "'delay_s' is a number of seconds, such as 0.5."),
        ("steps:\n  - {say: a, delay_s: -1}", "'delay_s' is a number of seconds, such as 0.5."),
        ("steps:\n  - {say: a, tokens: 5}", "'tokens' is a mapping with cached, in, out."),
        ("steps:\n  - {say: a, tokens: {in: x}}", "'in' is a number of tokens, such as 120."),
        ("steps:\n  - {call: x, args: !!python/none }", "line 2: "),
        ("rules:\n  - {match: a}", "line 2: a rule is {match: TEXT, steps: […]}."),
        (
            "rules:\n  - {match: a, steps: [{say: x}]}\n  - {match: a, steps: [{say: y}]}",
            "line 3: the rule 'a' is there twice; join their steps.",
        ),
    ],
)
def test_a_malformed_script_names_the_line_and_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_script(text)
    assert message in str(caught.value)


def test_a_script_that_cannot_be_read_names_the_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(ConfigError) as caught:
        ScriptedModel.from_yaml(missing)
    assert str(caught.value) == f"Cannot read the script {missing}: No such file or directory."
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        ScriptedModel.from_yaml(binary)


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("steps: hi")
    with pytest.raises(ConfigError) as caught:
        ScriptedModel.from_yaml(path)
    assert str(caught.value).startswith(f"{path}, line 1: ")
