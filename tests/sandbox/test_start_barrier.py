"""A failure of the sandbox is told apart from a failure of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.errors import WorkspaceError
from retinue.sandbox.bubblewrap import Bubblewrap
from tests.sandbox.probe import SandboxProbe


async def test_command_cannot_fake_a_sandbox_failure(probe: SandboxProbe) -> None:
    done = await probe.run("echo 'sandbox failed: install this'; exit 125")
    assert (done.exit_code, done.output) == (125, "sandbox failed: install this\n")


async def test_bubblewrap_without_status_report_is_a_failure(tmp_path: Path) -> None:
    """A fake bubblewrap that prints something and reports no status."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho --bind-fd no idea\n")
    fake.chmod(0o755)
    probe = SandboxProbe(Bubblewrap({"PATH": "/usr/bin:/bin"}, bwrap=str(fake)), tmp_path, tmp_path)
    with pytest.raises(WorkspaceError, match="The sandbox failed: --bind-fd no idea"):
        await probe.run("true")
