"""Writes the trained adapter for llama.cpp: `convert.py IN.safetensors OUT.gguf`."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

TENSORS = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip
HEADS = {"q_proj": 9, "k_proj": 3}


def rotated(x: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp keeps the halves of each head's rotation next to each other."""
    return (
        x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    )


def convert(trained: Path, out: Path) -> None:
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    with safe_open(trained, "numpy") as tensors:
        writer.add_float32("adapter.lora.alpha", float(tensors.metadata()["alpha"]))
        for name in sorted(tensors.keys()):
            parts = name.split(".")
            layer, kind = parts[parts.index("layers") + 1], parts[-2]
            x = tensors.get_tensor(name)
            if parts[-1] == "up" and kind in HEADS:
                x = rotated(x, HEADS[kind])
            half = {"down": "a", "up": "b"}[parts[-1]]
            tensor = f"blk.{layer}.{TENSORS[kind]}.weight.lora_{half}"
            writer.add_tensor(tensor, np.ascontiguousarray(x.astype(np.float16)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
