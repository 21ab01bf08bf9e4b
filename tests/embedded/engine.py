"""A stand-in for llama.cpp, so that the program that starts it runs as it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from retinue.embedded.adapter import PROMPT_FORMAT, Adapter
from retinue.embedded.weights import WeightsPackage

ENGINE = Path(__file__).parent / "programs" / "engine" / "xllamacpp.py"
CONTENT = b"GGUF" + bytes(100)
ADAPTER = b"GGUF" + bytes(10)


def install_engine(
    folder: Path,
    *,
    address: str = "http://127.0.0.1:1",
    adapters: bool = True,
    error: str = "",
    signal: int = 0,
) -> Path:
    """Make an engine in `folder`, which belongs into PYTHONPATH.

    It serves at `address`, where something else has to listen. `adapters`: whether it can load
    them; `error`: what it raises; `signal`: what ends its process.
    """
    folder.mkdir(exist_ok=True)
    shutil.copy(ENGINE, folder)
    plan = {"address": address, "adapters": adapters, "error": error, "signal": signal}
    (folder / "engine.json").write_text(json.dumps(plan))
    return folder


def loaded(folder: Path) -> Any:
    """The parameters with which the engine was started."""
    return json.loads((folder / "params.json").read_text())


def weights_in(folder: Path) -> WeightsPackage:
    """Weights that are in the cache already."""
    folder.mkdir(exist_ok=True)
    (folder / "model.gguf").write_bytes(CONTENT)
    return WeightsPackage(
        requirement="small-weights==1.0",
        wheel_sha256="",
        wheel_bytes=0,
        file="small_weights/model.gguf",
        file_sha256=_sha256(CONTENT),
    )


def adapter_in(folder: Path, **changes: Any) -> Adapter:
    path = folder / "adapter.gguf"
    path.write_bytes(ADAPTER)
    adapter = Adapter(
        path=path,
        sha256=_sha256(ADAPTER),
        base_sha256=_sha256(CONTENT),
        prompt_format=PROMPT_FORMAT,
    )
    return msgspec.structs.replace(adapter, **changes)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
