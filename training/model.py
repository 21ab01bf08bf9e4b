"""The embedded model in PyTorch, with an adapter that is trained. Its file stays as it is.

The weights are those of the file that retinue downloads, in the order of llama.cpp, so the adapter
corrects exactly the weights that it will run on, and is saved as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from torch import nn
from torch.nn import functional

PROJECTIONS = (
    "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD = 30, 576, 9, 3, 64
FREQUENCIES = 100_000.0
EPSILON = 1e-5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16


class Corrected(NamedTuple):
    """A matrix and its correction, which are applied one beside the other."""

    weight: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor


# Parts of a matrix, such as those of q, k and v, that are applied to the same numbers.
Matrix = Sequence[torch.Tensor | Corrected]


class LayerMatrices(NamedTuple):
    qkv: Matrix
    output: Matrix
    gate_up: Matrix
    down: Matrix


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    return {
        tensor.name: torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
        for tensor in gguf.GGUFReader(path).tensors
    }


class Adapter(nn.Module):
    """Corrections of low rank: for each projection, the matrices of all layers in one tensor."""

    def __init__(self, sizes: Mapping[str, tuple[int, int]], rank: int) -> None:
        super().__init__()
        self.rank, self.alpha = rank, 2.0 * rank
        self.down = nn.ParameterDict(
            {n: torch.randn(LAYERS, rank, i) / math.sqrt(i) for n, (_, i) in sizes.items()}
        )
        self.up = nn.ParameterDict({n: torch.zeros(LAYERS, o, rank) for n, (o, _) in sizes.items()})

    def load(self, path: Path) -> None:
        """Start from a trained adapter of the same rank or a lower one."""
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
        alpha = float(reader.get_field("adapter.lora.alpha").contents())
        with torch.no_grad():
            for name in self.down:
                for layer in range(LAYERS):
                    start = f"blk.{layer}.{name}.weight.lora_"
                    down = torch.from_numpy(tensors[f"{start}a"].astype(np.float32))
                    up = torch.from_numpy(tensors[f"{start}b"].astype(np.float32))
                    rank = len(down)
                    self.down[name][layer, :rank] = down
                    # The scale of a correction is alpha / rank.
                    self.up[name][layer, :, :rank] = up * (alpha / rank) / (self.alpha / self.rank)

    def save(self, path: Path) -> None:
        """Write the file that llama.cpp loads."""
        incomplete = path.with_suffix(".incomplete")
        writer = gguf.GGUFWriter(str(incomplete), "llama")
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", self.alpha)
        for name in self.down:
            for half, tensors in (("a", self.down[name]), ("b", self.up[name])):
                matrices = tensors.detach().cpu().numpy().astype(np.float16)
                for layer, matrix in enumerate(matrices):
                    writer.add_tensor(
                        f"blk.{layer}.{name}.weight.lora_{half}", np.ascontiguousarray(matrix)
                    )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        incomplete.rename(path)

    def merged(self, weights: Mapping[str, torch.Tensor]) -> list[LayerMatrices]:
        """The matrices of each layer with their corrections in them: fast on a GPU."""
        scale = self.alpha / self.rank
        corrected = []
        for name in PROJECTIONS:
            both = torch.baddbmm(weights[name], self.up[name], self.down[name], alpha=scale)
            corrected.append(both.to(DTYPE).unbind())
        return [
            LayerMatrices([torch.cat([q, k, v])], [output], [torch.cat([gate, up])], [down])
            for q, k, v, output, gate, up, down in zip(*corrected, strict=True)
        ]

    def beside(self, weights: Mapping[str, torch.Tensor]) -> list[LayerMatrices]:
        """The matrices of each layer with their corrections beside them.

        So a weight has no gradient, which is a third of the work on a processor.
        """
        scale = self.alpha / self.rank
        corrected = []
        for name in PROJECTIONS:
            downs, ups = self.down[name].to(DTYPE), (self.up[name] * scale).to(DTYPE)
            corrected.append(list(map(Corrected, weights[name], downs.unbind(), ups.unbind())))
        return [
            LayerMatrices([q, k, v], [output], [gate, up], [down])
            for q, k, v, output, gate, up, down in zip(*corrected, strict=True)
        ]


class Model(nn.Module):
    """Reads token ids of shape (rows, columns), padded at the right; returns the hidden states."""

    def __init__(self, read: Mapping[str, torch.Tensor], rank: int) -> None:
        super().__init__()
        self.embedding = read["token_embd.weight"].to(DEVICE, DTYPE)
        self.output_norm = read["output_norm.weight"].to(DEVICE, DTYPE)
        self.attention_norm, self.ffn_norm = (
            [read[f"blk.{k}.{name}.weight"].to(DEVICE, DTYPE) for k in range(LAYERS)]
            for name in ("attn_norm", "ffn_norm")
        )
        # On a GPU they are not rounded: the sum of a weight and its correction is.
        dtype = torch.float32 if DEVICE == "cuda" else DTYPE
        self.matrices = {
            name: torch.stack([read[f"blk.{k}.{name}.weight"] for k in range(LAYERS)]).to(
                DEVICE, dtype
            )
            for name in PROJECTIONS
        }
        sizes = {name: (m.shape[1], m.shape[2]) for name, m in self.matrices.items()}
        self.adapter = Adapter(sizes, rank).to(DEVICE)
        self.do_not_compile()

    def do_not_compile(self) -> None:
        self.before, self.after = _before_attention, _after_attention

    def compile_layers(self) -> None:
        self.before = torch.compile(_before_attention, dynamic=True)
        self.after = torch.compile(_after_attention, dynamic=True)

    def forward(self, ids: torch.Tensor, shared: int = 0) -> torch.Tensor:
        """`shared` first tokens are those of all rows. They are read once, are not learned from,
        and have no hidden states in the result."""
        adapter = self.adapter.merged if DEVICE == "cuda" else self.adapter.beside
        layers = adapter(self.matrices)
        if not shared:
            return self._read(ids, layers, [])[0]
        with torch.no_grad():
            _, past = self._read(ids[:1, :shared], layers, [])
        return self._read(ids[:, shared:], layers, past)[0]

    def _read(
        self,
        ids: torch.Tensor,
        layers: Sequence[LayerMatrices],
        past: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """The hidden states, and the keys and values of each layer, after those of `past`."""
        rows, columns = ids.shape
        first = past[0][0].shape[2] if past else 0
        angles = torch.arange(first, first + columns, device=DEVICE)[:, None] / FREQUENCIES ** (
            torch.arange(0, HEAD, 2, device=DEVICE) / HEAD
        )
        turn = torch.stack([angles.cos(), angles.sin()]).to(DTYPE).repeat(1, rows, 1)[:, :, None]
        x = self.embedding[ids.flatten()]
        read = []
        for layer, matrices in enumerate(layers):
            heads = self.before(x, self.attention_norm[layer], matrices.qkv, turn)
            q, k, v = (h.view(rows, columns, HEADS, HEAD).transpose(1, 2) for h in heads)
            if past:
                k, v = (
                    torch.cat([before.expand(rows, -1, -1, -1), now], 2)
                    for before, now in zip(past[layer], (k, v), strict=True)
                )
            read.append((k, v))
            seen = _attention(q, k, v).transpose(1, 2).reshape(rows * columns, WIDTH)
            x = self.after(
                x, seen, matrices.output, self.ffn_norm[layer], matrices.gate_up, matrices.down
            )
        return functional.rms_norm(x, (WIDTH,), self.output_norm, EPSILON), read


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if DEVICE == "cuda":
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    # On a processor, PyTorch's own attention takes longer than these products.
    after = torch.full((q.shape[2], k.shape[2]), -math.inf, dtype=DTYPE)
    after = after.triu(1 + k.shape[2] - q.shape[2])
    scores = torch.matmul(q / math.sqrt(HEAD), k.transpose(2, 3)) + after
    return torch.matmul(scores.softmax(-1), v)


def _times(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    products = []
    for part in matrix:
        if isinstance(part, Corrected):
            correction = functional.linear(functional.linear(x, part.down), part.up)
            products.append(functional.linear(x, part.weight) + correction)
        else:
            products.append(functional.linear(x, part))
    return products[0] if len(products) == 1 else torch.cat(products, -1)


def _before_attention(
    x: torch.Tensor, norm: torch.Tensor, qkv: Matrix, turn: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    h = _times(functional.rms_norm(x, (WIDTH,), norm, EPSILON), qkv)
    h = h.view(-1, HEADS + 2 * KV_HEADS, HEAD // 2, 2)
    turned, v = h[:, : HEADS + KV_HEADS], h[:, HEADS + KV_HEADS :]
    cos, sin = turn
    even, odd = turned.unbind(-1)
    # llama.cpp turns pairs of neighbours.
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(2)
    shared = HEADS // KV_HEADS
    q, k = turned[:, :HEADS], turned[:, HEADS:].repeat_interleave(shared, 1)
    return q, k, v.flatten(2).repeat_interleave(shared, 1)


def _after_attention(
    x: torch.Tensor, seen: torch.Tensor, output: Matrix,
    norm: torch.Tensor, gate_up: Matrix, down: Matrix,
) -> torch.Tensor:  # fmt: skip
    x = x + _times(seen, output)
    h = _times(functional.rms_norm(x, (WIDTH,), norm, EPSILON), gate_up)
    gate, up = h.chunk(2, -1)
    return x + _times(functional.silu(gate) * up, down)
