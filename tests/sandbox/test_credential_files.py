"""The search for credentials among the files of tools."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from retinue.sandbox.credential_files import without_credentials


def test_a_pipe_is_no_settings_file_to_wait_for(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    os.mkfifo(tmp_path / "config")
    signal.alarm(10)  # Ends the process if it waits for somebody to write.
    try:
        assert without_credentials(str(tmp_path)) == [str(tmp_path)]
    finally:
        signal.alarm(0)
