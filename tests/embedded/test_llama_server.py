from __future__ import annotations

import os

from retinue.embedded.llama_server import MAX_THREADS, spare_threads


def test_one_processor_stays_free() -> None:
    assert 1 <= spare_threads() <= max(1, min(MAX_THREADS, (os.cpu_count() or 1) - 1))
