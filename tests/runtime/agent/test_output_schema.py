"""Answers that are data: asked for, checked, mended once, or an error that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.domain.contract import Contract
from retinue.domain.messages import ToolMessage, UserMessage
from retinue.errors import UsageError
from retinue.models.scripted.model import ScriptedModel, call, calls, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
GOOD = '{"name": "Anna", "age": 7}'
ANNA = {"name": "Anna", "age": 7}


@pytest.mark.parametrize(
    "schema",
    [SCHEMA, msgspec.json.encode(SCHEMA).decode()],
    ids=["dict", "text"],
)
async def test_a_schema_may_be_given_in_any_form(opened: Opened, schema: Any) -> None:
    model = ScriptedModel([say(GOOD)])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Who?", output=schema)
    assert (result.ok, result.data, result.response) == (True, ANNA, GOOD)
    asked = model.requests[0].messages[1].content
    assert "Answer with one JSON value and nothing else. It must fit this schema: {" in asked


async def test_the_schema_is_in_the_contract(opened: Opened, contracts: Contracts) -> None:
    async with opened(model=ScriptedModel([say(GOOD)])) as rt:
        await rt.spawn("researcher", "Who?", output=SCHEMA)
    kept = (await contracts())["a1"].outputs.output_schema
    assert kept is not None
    assert msgspec.json.decode(kept) == SCHEMA


@pytest.mark.parametrize(
    "answer",
    [
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"Here you are:\n```json\n{GOOD}\n```\nAnything else?",
        f"Surely: {GOOD} — that is all.",
        f"\n\n  {GOOD}  \n",
    ],
)
async def test_json_may_be_wrapped_in_text(opened: Opened, answer: str) -> None:
    async with opened(model=ScriptedModel([say(answer)])) as rt:
        result = await rt.spawn("researcher", "Who?", output=SCHEMA)
    assert result.data == ANNA
    assert result.response == answer


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("I do not know.", "it is not JSON"),
        ('{"name": "Anna"}', 'the answer: "age" is a required property'),
        ('{"name": "Anna", "age": "7"}', 'age: "7" is not of type "integer"'),
        # Parts of the answer fit worse than the whole.
        ('{"name": "Anna", "seen": [1, 2]}', 'the answer: "age" is a required property'),
        ('Well: {"name": "Anna", "seen": [1]}.', 'the answer: "age" is a required property'),
        (
            '```\n[1]\n```\n```\n{"name": 1}\n```\n```\n{"name": "Anna"}\n```',
            'the answer: "age" is a required property',
        ),
        ("[1, 2]", 'the answer: [1,2] is not of type "object"'),
    ],
)
async def test_answer_in_the_wrong_form_is_corrected_once(
    opened: Opened, wrong: str, problem: str
) -> None:
    model = ScriptedModel([say(wrong), say(GOOD)])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Who?", output=SCHEMA)
    assert (result.ok, result.data) == (True, ANNA)
    told = model.requests[1].messages[-1]
    assert told == UserMessage(f"That does not fit: {problem}. Send only the right JSON.")


async def test_an_answer_that_stays_wrong_is_an_error_with_the_reason(opened: Opened) -> None:
    model = ScriptedModel([say("I do not know."), say('{"name": "Anna"}')])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Who?", output=SCHEMA)
    assert (result.status, result.data) == ("error", None)
    assert result.error == (
        'the answer does not fit the output schema: the answer: "age" is a required property'
    )
    assert result.response == '{"name": "Anna"}', "what it said is kept"
    assert result.attempts == 1


async def test_data_at_a_limit_is_still_data(opened: Opened) -> None:
    model = ScriptedModel([calls(call("list_dir"), call("list_dir")), say(GOOD)])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Who?", output=SCHEMA, max_tool_calls=1)
    assert (result.status, result.data) == ("budget_exceeded", ANNA)


async def test_tools_come_before_the_answer(opened: Opened) -> None:
    model = ScriptedModel([call("list_dir"), say(GOOD)])
    async with opened(model=model) as rt:
        assert (await rt.spawn("researcher", "Who?", output=SCHEMA)).data == ANNA


@pytest.mark.parametrize("schema", [SCHEMA, msgspec.json.encode(SCHEMA).decode()])
async def test_spawn_agent_takes_an_output_schema(opened: Opened, schema: Any) -> None:
    root = "at work in the user's project"
    model = ScriptedModel(
        {
            root: [
                call("spawn_agent", role="researcher", task="Who", output_schema=schema),
                call(
                    "spawn_agent",
                    role="researcher",
                    task="What",
                    output_schema='{"type": "banana"}',
                ),
                call("spawn_agent", role="researcher", task="What", output_schema="banana"),
                say("ok"),
            ],
            "Who": [say("Anna."), say(f"```json\n{GOOD}\n```")],
        }
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 1
    told = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert told[0].startswith("[completed] a1 researcher: 2 turns, ")
    assert GOOD in told[0]
    assert told[1].startswith("[ERROR] The output schema cannot be used: ")
    assert told[2].startswith("[ERROR] The output schema is not JSON: ")


@pytest.mark.parametrize("schema", ["no json", {"type": "banana"}])
async def test_invalid_schema_raises_before_work_begins(opened: Opened, schema: Any) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match="The output schema "):
            await rt.spawn("researcher", "Who?", output=schema)


async def test_schema_references_load_nothing(opened: Opened, tmp_path: Path) -> None:
    """A model may write one: a reference must not be a way to the network, or around a scope."""
    outside = tmp_path / "outside.json"
    outside.write_text('{"enum": ["secret"]}')
    asked: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, opened(model=ScriptedModel([])) as rt:
        for address in (outside.as_uri(), f"http://127.0.0.1:{port}/x"):
            for schema in ({"$ref": address}, {"properties": {"a": {"$ref": address}}}):
                with pytest.raises(UsageError, match="is no part of it; write references") as told:
                    await rt.spawn("researcher", "Who?", output=schema)
                assert "secret" not in str(told.value)
            with pytest.raises(UsageError, match="Unknown meta-schema"):
                await rt.spawn("researcher", "Who?", output={"$schema": address})
    assert asked == []


@pytest.mark.parametrize("schema", ["null", None])
async def test_schema_must_be_json(opened: Opened, schema: Any) -> None:
    async with opened(model=ScriptedModel([say("Anna.")])) as rt:
        assert (await rt.spawn("researcher", "Who?", output=schema)).ok


async def test_deeply_nested_schema_is_refused(opened: Opened) -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"not": deep}
    async with opened(model=ScriptedModel([])) as rt:
        for schema in (deep, '{"not":' * 50_000 + "{}" + "}" * 50_000):
            with pytest.raises(UsageError, match="nested too deeply; make it flatter"):
                await rt.spawn("researcher", "Who?", output=schema)


@pytest.mark.parametrize("reference", ["$ref", "$dynamicRef"])
async def test_exponential_schema_is_refused(opened: Opened, reference: str) -> None:
    """Each part uses the next one twice, in place: a validator would be busy for an hour."""
    parts: dict[str, Any] = {
        f"p{n}": {"allOf": [{reference: f"#/$defs/p{n + 1}"}] * 2} for n in range(40)
    }
    schema = {"$defs": {**parts, "p40": {"type": "string"}}, reference: "#/$defs/p0"}
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match="more than 100,000 parts with its references"):
            await rt.spawn("researcher", "Who?", output=schema)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"$ref": "#/$defs/a~1b/1"}, "is no part of it; write references as #/$defs/NAME"),
        ({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}, "'#name' is no part of it"),
        ({"$defs": {"a": {"$id": "urn:x"}}}, "No part of an output schema can have an $id"),
    ],
)
async def test_schema_references_use_json_pointers(opened: Opened, schema: Any, told: str) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError) as raised:
            await rt.spawn("researcher", "Who?", output=schema)
    assert told in str(raised.value)


async def test_a_schema_may_refer_to_itself(opened: Opened) -> None:
    schema = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    async with opened(model=ScriptedModel([say('{"child": {"child": {}}}')])) as rt:
        result = await rt.spawn("researcher", "Who?", output=schema)
    assert result.data == {"child": {"child": {}}}


async def test_schema_error_is_one_short_line(opened: Opened) -> None:
    answer = msgspec.json.encode("x" * 4_000).decode()
    async with opened(model=ScriptedModel([say(answer), say(answer)])) as rt:
        result = await rt.spawn("researcher", "Who?", output=SCHEMA)
    assert result.error is not None
    assert result.error.startswith('the answer does not fit the output schema: the answer: "xxx')
    assert len(result.error) < 400
