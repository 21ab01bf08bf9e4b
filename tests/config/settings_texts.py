"""Settings files of tests, and the messages about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.settings_file import read_settings
from retinue.errors import ConfigError


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def refusal(path: Path, text: str) -> str:
    """The message about a file, without its path, which it must begin with."""
    with pytest.raises(ConfigError) as caught:
        read_settings(written(path, text))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")
