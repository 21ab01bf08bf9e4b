"""The reduced tier."""

from __future__ import annotations

import msgspec
import pytest

from retinue.errors import WorkspaceError
from tests.sandbox.conftest import ENVIRONMENT
from tests.sandbox.probe import SandboxProbe, with_environment


async def test_failed_setup_is_reported_as_the_sandbox(probe: SandboxProbe) -> None:
    """The command did not run, so it has no exit code."""
    if probe.full:
        pytest.skip("bubblewrap reports in another way")
    # The kernel takes no variable of this size, so the launcher cannot start the shell.
    sandbox = with_environment(probe.sandbox, {**ENVIRONMENT, "LONG": "x" * 4_000_000})
    broken = msgspec.structs.replace(probe, sandbox=sandbox)
    with pytest.raises(WorkspaceError) as refused:
        await broken.run("true")
    assert str(refused.value) == (
        "The sandbox failed: Argument list too long. See `retinue doctor`."
    )
