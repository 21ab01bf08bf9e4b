"""A wrong model fails when a runtime is opened, and the message says what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.errors import UsageError


class Nothing:
    pass


class Blocking:
    name = "blocking"

    def reply(self, request: Any, on_text: Any = None) -> None: ...

    async def aclose(self) -> None: ...


class Short:
    name = "short"

    async def reply(self, request: Any) -> None: ...

    async def aclose(self) -> None: ...


class Fine:
    name = "fine"

    async def reply(
        self, request: retinue.Request, on_text: Callable[[str], None] | None = None
    ) -> retinue.Reply:
        raise NotImplementedError

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            Nothing(),
            "Nothing is no retinue.Model: it lacks `name`, a string, `async def reply(self,"
            " request, on_text=None) -> Reply`, `async def aclose(self)`.",
        ),
        (Blocking(), "Blocking is no retinue.Model: it lacks an async `reply`."),
        (
            Short(),
            "Short is no retinue.Model: it lacks a `reply` that takes `request` and `on_text` (too"
            " many positional arguments).",
        ),
        (
            Fine,
            "Fine is a class; pass an instance of it as the model.",
        ),
    ],
)
async def test_a_wrong_object_fails_at_open(tmp_path: Path, model: Any, said: str) -> None:
    for options in ({"model": model}, {"models": {"mine": model}}):
        with pytest.raises(UsageError) as caught:
            async with retinue.open(tmp_path, **options):
                pytest.fail("it opened")
        assert str(caught.value) == said


async def test_an_object_with_the_three_members_is_a_model(tmp_path: Path) -> None:
    async with retinue.open(tmp_path, model=Fine()) as rt:
        assert rt.model == "fine"
