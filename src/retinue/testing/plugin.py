"""Fixtures for tests of your own agents, opt-in: `pytest_plugins = ["retinue.testing.plugin"]`
in your `conftest.py`.

```text
from retinue.testing import call, say

async def test_reads_the_file(workspace, scripted_runtime):
    (workspace / "a.txt").write_text("hello\\n")
    async with scripted_runtime(call("read_file", path="a.txt"), say("Hello.")) as rt:
        result = await rt.spawn("researcher", "What is in a.txt?")
    assert result.files_read == ("a.txt",)
```

- `workspace`: an empty folder for agents to work in, as a `Path`.
- `scripted_runtime(*replies, **options)`: opens a runtime in it whose model gives these replies, in
  order. Replies that are left over fail the test.
- `recorded_runtime(file, **options)`: opens a runtime that plays back the model traffic of a file
  beside the test. `pytest --record-retinue` records it, with the model of `RETINUE_MODEL`.
- `fake_clock`: a `FakeClock`, for `scripted_runtime(…, clock=fake_clock)`.
- `retinue_environment`: the environment of these runtimes, with a home of its own, and without your
  keys and settings.

The options are those of `retinue.open`; `directory` is another folder than `workspace`. For type
checkers, the fixtures are a `ScriptedRuntime` and a `RecordedRuntime` of `retinue.testing.plugin`.

The tests are coroutines: use pytest-asyncio with `asyncio_mode = "auto"`, or anyio with
`anyio_mode = "auto"`. No fixture reads your settings, your keys or the network.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from retinue.app import open_runtime
from retinue.config.environment import Environment
from retinue.models.scripted.model import ScriptedModel, Step
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

__all__ = ["RecordedRuntime", "ScriptedRuntime"]

RECORD_OPTION = "--record-retinue"


class ScriptedRuntime(Protocol):
    """Opens a runtime in the workspace whose model gives these replies, in order.

    The test fails if replies are left over. Keyword arguments go to `retinue.open`.
    """

    def __call__(self, *steps: Step, **options: Any) -> AbstractAsyncContextManager[Runtime]: ...


class RecordedRuntime(Protocol):
    """Opens a runtime that plays back the model traffic of a file beside the test.

    With `pytest --record-retinue`, it uses the model of `RETINUE_MODEL` and writes the file.
    """

    def __call__(self, file: str, **options: Any) -> AbstractAsyncContextManager[Runtime]: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        RECORD_OPTION, action="store_true", help="record model traffic instead of replaying it"
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty project for agents to work in."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock whose time passes only in `advance`; give it to `scripted_runtime`."""
    return FakeClock()


@pytest.fixture
def retinue_environment(tmp_path: Path) -> Environment:
    """An environment with a home of its own, and without keys and settings of the user."""
    home = tmp_path / "home"
    home.mkdir()
    return Environment(variables={"HOME": str(home)})


@pytest.fixture
def scripted_runtime(workspace: Path, retinue_environment: Environment) -> ScriptedRuntime:
    """See `ScriptedRuntime`."""
    opened = partial(open_runtime, environment=retinue_environment)

    def start(*steps: Step, **options: Any) -> AbstractAsyncContextManager[Runtime]:
        directory = options.pop("directory", workspace)
        return opened(directory, model=ScriptedModel(list(steps)), **options)

    return start


@pytest.fixture
def recorded_runtime(
    workspace: Path, retinue_environment: Environment, request: pytest.FixtureRequest
) -> RecordedRuntime:
    """See `RecordedRuntime`."""
    beside: Callable[[str], Path] = request.path.parent.joinpath
    recording = bool(request.config.getoption(RECORD_OPTION))

    def start(file: str, **options: Any) -> AbstractAsyncContextManager[Runtime]:
        directory, path = options.pop("directory", workspace), beside(file)
        if recording:
            return open_runtime(directory, record=path, **options)
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist; make it with pytest {RECORD_OPTION}")
        model = f"replay:{path}"
        return open_runtime(directory, model=model, environment=retinue_environment, **options)

    return start
