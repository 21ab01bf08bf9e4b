"""The garbage collector of a program that opens runtimes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import retinue
from retinue.models.scripted.model import ScriptedModel

DEFAULT = (700, 10, 10)


@pytest.fixture(autouse=True)
def before() -> Iterator[None]:
    found = gc.get_threshold()
    gc.set_threshold(*DEFAULT)
    yield
    gc.set_threshold(*found)


async def test_thresholds_are_raised_while_a_runtime_is_open(
    tmp_path: Path,
) -> None:
    async with retinue.open(tmp_path, model=ScriptedModel([])):
        patient = gc.get_threshold()
        assert patient[0] > DEFAULT[0]
        async with retinue.open(tmp_path, model=ScriptedModel([])):
            assert gc.get_threshold() == patient
        assert gc.get_threshold() == patient
    assert gc.get_threshold() == DEFAULT


async def test_thresholds_set_by_the_program_are_kept(tmp_path: Path) -> None:
    gc.set_threshold(5_000, 10, 10)
    async with retinue.open(tmp_path, model=ScriptedModel([])):
        assert gc.get_threshold() == (5_000, 10, 10)
    assert gc.get_threshold() == (5_000, 10, 10)


async def test_thresholds_set_while_open_are_kept(tmp_path: Path) -> None:
    async with retinue.open(tmp_path, model=ScriptedModel([])):
        gc.set_threshold(0)
    assert gc.get_threshold()[0] == 0
