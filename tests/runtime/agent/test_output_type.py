"""Answers as objects of the caller's type, from every call that starts an agent."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from retinue.domain.messages import UserMessage
from retinue.domain.result import Status
from retinue.errors import ContractError, RunError, UsageError
from retinue.models.scripted.model import ScriptedModel, say
from retinue.runtime.delegation.task import Task
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class StructInvoice(msgspec.Struct):
    total: int
    due: datetime.date


@dataclasses.dataclass
class DataInvoice:
    total: int
    due: datetime.date


class ModelInvoice(pydantic.BaseModel):
    total: int
    due: datetime.date

    @pydantic.field_validator("total")
    @classmethod
    def positive(cls, total: int) -> int:
        if total <= 0:
            raise ValueError("must be positive")
        return total


class DictInvoice(TypedDict):
    total: int
    due: str


ANSWER = '{"total": 7, "due": "2026-01-31"}'
DUE = datetime.date(2026, 1, 31)


@pytest.mark.parametrize("kind", [StructInvoice, DataInvoice, ModelInvoice])
async def test_data_is_an_object_of_the_type(opened: Opened, kind: type[Any]) -> None:
    async with opened(model=ScriptedModel([say(ANSWER)])) as rt:
        result = await rt.spawn("researcher", "Which invoice?", output=kind)
    assert result.data == result.unwrap() == kind(total=7, due=DUE)
    assert isinstance(result.data, kind)


async def test_typed_dict_and_generic_types(opened: Opened) -> None:
    model = ScriptedModel([say(ANSWER), say(f"[{ANSWER}]"), say(f"[{ANSWER}]")])
    async with opened(model=model) as rt:
        one = await rt.spawn("researcher", "one", output=DictInvoice)
        structs = await rt.spawn("researcher", "structs", output=list[StructInvoice])
        models = await rt.spawn("researcher", "models", output=list[ModelInvoice])
    assert one.data == {"total": 7, "due": "2026-01-31"}
    assert structs.data == [StructInvoice(total=7, due=DUE)]
    assert models.data == [ModelInvoice(total=7, due=DUE)]


async def test_what_only_the_type_refuses_is_sent_back_to_the_model(opened: Opened) -> None:
    model = ScriptedModel([say(ANSWER.replace("7", "-7")), say(ANSWER)])
    async with opened(model=model) as rt:
        result = await rt.spawn("researcher", "Which?", output=ModelInvoice)
    assert result.unwrap().total == 7
    told = model.requests[1].messages[-1]
    assert isinstance(told, UserMessage)
    assert told.content.startswith("That does not fit: total: Value error, must be positive.")


async def test_an_answer_that_never_fits_is_a_failed_result(opened: Opened) -> None:
    bad = ANSWER.replace("7", "-7")
    async with opened(model=ScriptedModel([say(bad)] * 2)) as rt:
        result = await rt.spawn("researcher", "Which?", output=ModelInvoice)
    assert (result.status, result.data) == (Status.ERROR, None)
    assert result.error == (
        "the answer does not fit the output schema: total: Value error, must be positive"
    )
    with pytest.raises(RunError, match=r"researcher a1: error: the answer does not fit"):
        result.unwrap()


async def test_every_call_takes_an_output(opened: Opened) -> None:
    wanted = StructInvoice(total=7, due=DUE)
    async with opened(model=ScriptedModel([say(ANSWER)] * 5)) as rt:
        run = await rt.run("one", output=StructInvoice)
        job = await rt.start("researcher", "two", output=StructInvoice)
        [joined] = await rt.join([job])
        assert await rt.join() == [joined]
        many = await rt.fan_out(
            [("researcher", "three"), Task(role="researcher", task="four")], output=StructInvoice
        )
        own = Task(role="researcher", task="five", output=StructInvoice)
        [alone] = await rt.fan_out([own])
        with pytest.raises(UsageError, match="Both the call and the task 'five' have an output"):
            await rt.fan_out([own], output=StructInvoice)
    assert [r.data for r in (run, joined, *many, alone)] == [wanted] * 5


async def test_a_type_without_a_schema_is_refused_before_any_work(opened: Opened) -> None:
    class Opaque:
        pass

    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(ContractError) as caught:
            await rt.spawn("researcher", "Who?", output=Opaque)
    assert str(caught.value).endswith(
        "Use a pydantic model, a msgspec struct, a dataclass, a TypedDict or a JSON schema."
    )
    assert "Opaque" in str(caught.value)
