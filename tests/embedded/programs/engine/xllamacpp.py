"""Stands in for llama.cpp. `engine.json` beside it says how: see `tests/embedded/engine.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_HERE = Path(__file__).parent
_PLAN = json.loads((_HERE / "engine.json").read_text())


class CommonParams(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(
            model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace(),
            sampling=SimpleNamespace(), lora_adapters=[],
        )  # fmt: skip


if _PLAN["adapters"]:

    def CommonAdapterLoraInfo(path: str, scale: float) -> tuple[str, float]:  # noqa: N802
        return (path, scale)


class Server:
    def __init__(self, params: CommonParams) -> None:
        if _PLAN["signal"]:
            os.kill(os.getpid(), _PLAN["signal"])
        if _PLAN["error"]:
            raise RuntimeError(_PLAN["error"])
        self.listening_address: str = _PLAN["address"]
        (_HERE / "params.json").write_text(json.dumps(params, default=_plain))


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else vars(value)
