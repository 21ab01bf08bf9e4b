"""A program's own model that returns wrong types fails with a sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.errors import ProviderError
from retinue.models.checked import CheckedModel
from retinue.testing import ModelContract, ScriptedModel, ScriptedReply

USAGE, STOP = retinue.Usage(1, 0, 1), retinue.Finish.STOP
SAID = retinue.AssistantMessage("Hi.")


class Returns:
    """Returns whatever it is given."""

    name = "mine"

    def __init__(self, value: Any, text: Any = "") -> None:
        self._value, self._text = value, text

    async def reply(
        self, request: retinue.Request, on_text: Callable[[str], None] | None = None
    ) -> Any:
        if on_text is not None:
            on_text(self._text)
        return self._value

    async def aclose(self) -> None:
        pass


class TestCheckedModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> Any:
        yield CheckedModel(ScriptedModel(list(steps)))


def called(*calls: Any) -> Any:
    return retinue.Reply(
        message=retinue.AssistantMessage("", calls), usage=USAGE, finish=retinue.Finish.TOOLS
    )


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        (Returns(None), "must return a retinue.Reply, not None."),
        (Returns("Hi."), "must return a retinue.Reply, not a value of type str."),
        (
            Returns(retinue.Reply(message="Hi.", usage=USAGE, finish=STOP)),  # type: ignore[arg-type]
            "must return a Reply whose `message` is a retinue.AssistantMessage, not a value of"
            " type str.",
        ),
        (
            Returns(retinue.Reply(message=SAID, usage=None, finish=STOP)),  # type: ignore[arg-type]
            "must return a Reply whose `usage` is a retinue.Usage, not None.",
        ),
        (
            Returns(called(retinue.ToolCall("1", "list_dir", {}))),  # type: ignore[arg-type]
            "must return a valid Reply; `message.calls[0].arguments`: Expected `str`, got"
            " `object`.",
        ),
        (
            Returns(called(object())),
            "must return a valid Reply; `message.calls[0]`: Expected `object`, got `str`.",
        ),
        (
            Returns(retinue.Reply(message=SAID, usage=USAGE, finish="done")),  # type: ignore[arg-type]
            "must return a valid Reply; `finish`: Invalid enum value 'done'.",
        ),
        (Returns(None, text=7), "must call `on_text` with a str, not a value of type int."),
    ],
)
async def test_wrong_types_fail_with_one_sentence(model: Returns, problem: str) -> None:
    with pytest.raises(ProviderError) as raised:
        await CheckedModel(model).reply(retinue.Request(messages=()))
    assert str(raised.value) == f"The model mine: `reply` {problem}"


async def test_agent_of_a_wrong_model_ends_with_that_sentence(tmp_path: Path) -> None:
    environment = retinue.Environment(variables={"HOME": str(tmp_path / "home")})
    (project := tmp_path / "project").mkdir()
    async with retinue.open(project, model=Returns(None), environment=environment) as rt:
        result = await rt.spawn("researcher", "What?", max_retries=0)
    assert result.error == "The model mine: `reply` must return a retinue.Reply, not None."


async def test_strings_and_lists_become_enums_and_tuples() -> None:
    call = retinue.ToolCall("1", "list_dir", "{}")
    message = retinue.AssistantMessage("", [call])  # type: ignore[arg-type]
    reply = retinue.Reply(message=message, usage=USAGE, finish="tools")  # type: ignore[arg-type]
    got = await CheckedModel(Returns(reply)).reply(retinue.Request(messages=()))
    assert (got.message.calls, got.finish) == ((call,), retinue.Finish.TOOLS)
