from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.embedded.llama_server import (
    MAX_THREADS,
    NEEDED_MB,
    CannotServe,
    check_memory,
    spare_threads,
)


def test_one_processor_stays_free() -> None:
    assert 1 <= spare_threads() <= max(1, min(MAX_THREADS, (os.cpu_count() or 1) - 1))


@pytest.mark.parametrize(
    ("available_kb", "limit_mb"), [(300 * 1000, 4000), (8_000_000, 890), (8_000_000, 100)]
)
def test_too_little_memory_is_said_first(tmp_path: Path, available_kb: int, limit_mb: int) -> None:
    meminfo, group = _memory(tmp_path, available_kb, limit_mb)
    with pytest.raises(
        CannotServe, match=rf"needs {NEEDED_MB} MB of memory, and -?\d+ MB are free\. Close other"
    ):
        check_memory(meminfo, group)


def test_enough_memory(tmp_path: Path) -> None:
    check_memory(*_memory(tmp_path, 800_000, 1100))
    (tmp_path / "memory.max").write_text("max\n")
    check_memory(tmp_path / "meminfo", tmp_path)
    check_memory(tmp_path / "none", tmp_path / "none")


def _memory(folder: Path, available_kb: int, limit_mb: int) -> tuple[Path, Path]:
    """A machine with so much memory; of the group's, 600 MB are in use, 100 of them as a cache."""
    (folder / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:  {available_kb} kB\n")
    (folder / "memory.max").write_text(f"{limit_mb * 1_000_000}\n")
    (folder / "memory.current").write_text("600000000\n")
    (folder / "memory.stat").write_text("anon 5\ninactive_file 100000000\n")
    return folder / "meminfo", folder
