"""Trains the adapter on one GPU, or slowly without one. `training/README.md` says how to call it.

The machine needs PyTorch, numpy and gguf, which may lie in a folder on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from training.model import DEVICE, Model, read_weights

BATCH_TOKENS = 49_152
LEARNING_RATE = 1e-3
LAST_RATE = 0.02  # of the learning rate
WARM_UP_STEPS = 60
SAVE_EVERY_S = 45.0


class Data(NamedTuple):
    """Conversations, one after the other, on the device."""

    tokens: torch.Tensor
    replies: torch.Tensor
    starts: torch.Tensor
    lengths: np.ndarray
    kinds: np.ndarray
    tools: np.ndarray
    names: list[str]


class Batch(NamedTuple):
    rows: list[int]
    ids: torch.Tensor
    replies: torch.Tensor
    shared: int
    """How many first tokens are read once for all rows."""


def read(path: Path) -> Data:
    with np.load(path) as arrays:
        lengths = arrays["lengths"]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        return Data(
            torch.from_numpy(arrays["tokens"].astype(np.int32)).to(DEVICE),
            torch.from_numpy(arrays["replies"]).to(DEVICE),
            torch.from_numpy(starts).to(DEVICE),
            lengths,
            arrays["kinds"],
            arrays["tools"],
            arrays["names"].tolist(),
        )


def batch(data: Data, rows: list[int]) -> Batch:
    longest = -(-int(data.lengths[rows].max()) // 32) * 32
    column = torch.arange(longest, device=DEVICE)
    index = data.starts[rows][:, None] + column
    there = column < torch.from_numpy(data.lengths[rows]).to(DEVICE)[:, None]
    index = index.clamp(max=len(data.tokens) - 1)
    # Padding is on the right, where causal attention does not see it.
    ids, replies = (data.tokens[index] * there).long(), (data.replies[index] * there).long()
    return Batch(rows, ids, replies, 0 if DEVICE == "cuda" else _shared(ids, replies))


def _shared(ids: torch.Tensor, replies: torch.Tensor) -> int:
    """How many first tokens are the same in all rows, before the last one that asks for a reply."""
    same = int((ids == ids[:1]).all(0).long().cumprod(0).sum())
    begins = int(replies.any(0).long().argmax()) - 1
    return max(0, min(same, begins))


def batches(data: Data, tokens: int, draw: random.Random) -> Iterator[list[int]]:
    """Rows of similar length, again and again."""
    order = list(range(len(data.lengths)))
    while True:
        draw.shuffle(order)
        made: list[list[int]] = []
        for start in range(0, len(order), 4096):
            rows: list[int] = []
            some = order[start : start + 4096]
            for row in sorted(some, key=lambda row: (data.tools[row], data.lengths[row])):
                if rows and (
                    (data.lengths[row] + 31) * (len(rows) + 1) > tokens
                    or data.tools[row] != data.tools[rows[0]]
                ):
                    made.append(rows)
                    rows = []
                rows.append(row)
            made.append(rows)
        draw.shuffle(made)
        yield from made


def scores(model: Model, given: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores of each next token that is to be learned, the right one, and the number of its reply
    in the batch."""
    first = given.shared
    hidden = model(given.ids, first).view(len(given.rows), len(given.ids[0]) - first, -1)[:, :-1]
    replies = given.replies[:, first + 1 :]
    chosen = replies > 0
    row = torch.arange(len(given.rows), device=DEVICE)[:, None] * 256
    return (
        functional.linear(hidden[chosen], model.embedding).float(),
        given.ids[:, first + 1 :][chosen],
        (row + replies)[chosen],
    )


@torch.no_grad()
def watch(model: Model, data: Data, tokens: int) -> str:
    """How many replies and conversations are exactly right, given the right tokens before."""
    replies: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in data.names}
    order = sorted(range(len(data.lengths)), key=lambda row: int(data.lengths[row]))
    while order:
        count = max(1, tokens // (int(data.lengths[order[-1]]) + 31))
        rows, order = order[-count:], order[:-count]
        found, wanted, number = scores(model, batch(data, rows))
        wrong = set(number[found.argmax(-1) != wanted].tolist())
        failed = {one // 256 for one in wrong}
        for one in set(number.tolist()):
            sums = replies[data.names[data.kinds[rows[one // 256]]]]
            sums[0] += one not in wrong
            sums[1] += 1
        for k, row in enumerate(rows):
            replies[data.names[data.kinds[row]]][2] += k not in failed
            replies[data.names[data.kinds[row]]][3] += 1
    right, count, done, of = (sum(column) for column in zip(*replies.values(), strict=True))
    lines = [f"  {name}: {a}/{b} replies, {c}/{d} tasks" for name, (a, b, c, d) in replies.items()]
    return "\n".join([*lines, f"  all: {right / count:.4f} of replies, {done / of:.4f} of tasks"])


def compiled_if_possible(model: Model, rows: Batch) -> None:
    """Compile the layers, which makes training faster; a compiler may be missing."""
    try:
        model.compile_layers()
        scores(model, rows)[0].sum().backward()
    except Exception as error:  # The compiler raises many kinds.
        print(f"not compiled: {type(error).__name__}: {str(error)[:300]}", flush=True)
        model.do_not_compile()
    model.zero_grad()


def learn(
    model: Model, data: Data, out: Path, given: argparse.Namespace, start: float, end: float
) -> None:
    """Train until the clock shows `end`. Save now and then."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=given.rate, weight_decay=0.0, betas=(0.9, 0.98))
    stream = batches(data, given.batch_tokens, random.Random(1))
    step = count = 0
    begun = saved = time.monotonic()
    while (now := time.monotonic()) < end:
        rows = batch(data, next(stream))
        done = (now - begun) / (end - begun)
        share = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * done)) / 2
        for group in optimizer.param_groups:
            group["lr"] = given.rate * share * min(1, (step + 1) / given.warm_up)
        found, wanted, _ = scores(model, rows)
        loss = functional.cross_entropy(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step, count = step + 1, count + int(data.lengths[rows.rows].sum())
        if step in (1, 10) or step % given.report_every == 0:
            print(
                f"step {step} loss {loss.item():.4f} {count / 1e6:.2f} M tokens"
                f" {time.monotonic() - start:.0f} s", flush=True,
            )  # fmt: skip
        if now - saved > SAVE_EVERY_S:
            model.adapter.save(out)
            saved = now
    model.adapter.save(out)
    print(f"{step} steps, {count / 1e6:.2f} M tokens", flush=True)


def main() -> None:
    start = time.monotonic()
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path, help="the folder that encode.py wrote")
    options.add_argument("weights", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--start", type=Path, help="an adapter to begin with")
    options.add_argument("--seconds", type=float, default=270, help="all in all")
    options.add_argument("--rank", type=int, default=8)
    options.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    options.add_argument("--rate", type=float, default=LEARNING_RATE, help="the highest one")
    options.add_argument("--warm-up", type=int, default=WARM_UP_STEPS, help="steps")
    options.add_argument("--report-every", type=int, default=100, help="steps")
    options.add_argument("--threads", type=int, help="without a GPU")
    options.add_argument("--no-watch", action="store_true", help="only train")
    options.add_argument("--eager", action="store_true", help="do not compile the layers")
    given = options.parse_args()
    torch.manual_seed(1)
    if given.threads:
        torch.set_num_threads(given.threads)
    model = Model(read_weights(given.weights), given.rank)
    if given.start:
        model.adapter.load(given.start)
    learned, watched = read(given.data / "learned.npz"), read(given.data / "watched.npz")
    print(f"{len(learned.lengths):,} conversations {time.monotonic() - start:.0f} s", flush=True)
    if DEVICE == "cuda" and not given.eager:
        compiled_if_possible(model, batch(learned, next(batches(learned, 4096, random.Random(1)))))

    def report() -> None:
        if not given.no_watch:
            seen = watch(model, watched, given.batch_tokens)
            print(seen, f"{time.monotonic() - start:.0f} s", flush=True)

    report()
    learn(model, learned, given.out, given, start, start + given.seconds - 8)
    report()


if __name__ == "__main__":
    main()
