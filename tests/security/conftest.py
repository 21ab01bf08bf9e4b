"""Fixture: a runtime in a temporary directory with a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock


@pytest.fixture
def home_directory(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def opened(
    home_directory: Path,
    project: Path,
    clock: FakeClock,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    """`retinue.open` of the project, untouched by the environment of whoever runs the tests.

    Without shell commands, which a machine has or has not.
    """
    variables = {"HOME": str(home_directory), "PATH": "/usr/bin:/bin"}
    environment = Environment(variables=variables)
    return partial(open_project, project, clock=clock, environment=environment, shell=False)
