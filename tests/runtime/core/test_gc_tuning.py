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


async def test_it_is_patient_while_a_runtime_is_open_and_as_before_afterwards(
    tmp_path: Path,
) -> None:
    async with retinue.open(tmp_path, model=ScriptedModel([])):
        patient = gc.get_threshold()
        assert patient[0] > DEFAULT[0]
        async with retinue.open(tmp_path, model=ScriptedModel([])):
            assert gc.get_threshold() == patient
        assert gc.get_threshold() == patient
    assert gc.get_threshold() == DEFAULT


async def test_a_program_with_a_mind_of_its_own_is_left_alone(tmp_path: Path) -> None:
    gc.set_threshold(5_000, 10, 10)
    async with retinue.open(tmp_path, model=ScriptedModel([])):
        assert gc.get_threshold() == (5_000, 10, 10)
    assert gc.get_threshold() == (5_000, 10, 10)


async def test_what_the_program_sets_meanwhile_stays(tmp_path: Path) -> None:
    async with retinue.open(tmp_path, model=ScriptedModel([])):
        gc.set_threshold(0)
    assert gc.get_threshold()[0] == 0
