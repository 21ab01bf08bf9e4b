"""A runtime in a directory of its own, whose journal can be cut off anywhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.runtime.runtime import Runtime


@pytest.fixture
def home_directory(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def environment(home_directory: Path) -> Environment:
    return Environment(variables={"HOME": str(home_directory), "PATH": "/usr/bin:/bin"})


@pytest.fixture
def opened(
    project: Path,
    environment: Environment,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    """`retinue.open` of the project, untouched by the environment of whoever runs the tests."""
    return partial(open_project, project, environment=environment, shell=False)
