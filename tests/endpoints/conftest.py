"""A project and a user's settings, for real clients of real servers on loopback."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.runtime.runtime import Runtime


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], None]:
    """Write the user's own settings."""
    path = tmp_path / ".config" / "retinue" / "config.toml"
    path.parent.mkdir(parents=True)

    def write(text: str) -> None:
        path.write_text(text)

    return write


@pytest.fixture
def opened(
    tmp_path: Path, project: Path, open_project: Callable[..., AbstractAsyncContextManager[Runtime]]
) -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    """`retinue.open` of the project, untouched by the environment of whoever runs the tests."""
    environment = Environment(variables={"HOME": str(tmp_path)})
    return partial(open_project, project, environment=environment)
