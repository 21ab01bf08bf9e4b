"""Writes conversations as tokens, for `train.py`. This needs processors and no GPU.

`python -m training.encode CORPUS.jsonl.xz TOKENIZER OUT.npz`; the tokenizer is a tokenizer.json, or
the file of the weights.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from training import wording
from training.conversations import Turn, conversation, sample
from training.evaluation import wording as other_wording
from training.kinds import WEIGHTS

MAX_TOKENS = 1_900
HELD_OUT = 20  # projects that are only used to watch the training
WATCHED = 1_500  # conversations in them
_weights: dict[str, int] = dict(WEIGHTS)
_held_out: list[tuple[str, dict[str, str]]] = []
_corpus: list[tuple[str, dict[str, str]]] = []
_tokenizer: list[Tokenizer] = []  # for processes that are forked


class Encoded(NamedTuple):
    """A conversation. `replies` has the number of the reply that a token is learned in, or 0."""

    kind: str
    tokens: np.ndarray
    replies: np.ndarray
    tools: int
    """How many tools its prompt offers; conversations with as many have the same prompt."""


def read_tokenizer(path: Path) -> Tokenizer:
    if path.suffix == ".json":
        return Tokenizer.from_file(str(path))
    from transformers import AutoTokenizer

    read: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return read.backend_tokenizer


def encode(tokenizer: Tokenizer, kind: str, turns: Sequence[Turn], tools: int) -> Encoded:
    tokens: list[int] = []
    replies: list[int] = []
    number = 0
    for turn in turns:
        reads = tokenizer.encode(turn.reads, add_special_tokens=False).ids
        writes = tokenizer.encode(turn.writes, add_special_tokens=False).ids
        number += turn.learn
        tokens += reads + writes
        replies += [0] * len(reads) + [number if turn.learn else 0] * len(writes)
    return Encoded(kind, np.array(tokens, np.uint16), np.array(replies, np.uint8), tools)


def learned(seed: int) -> Encoded:
    made, project = sample(_corpus, seed, weights=_weights)
    return encode(_tokenizer[0], made.kind, conversation(made, project), len(made.tools))


def watched(seed: int) -> Encoded:
    """A conversation that is not learned, half of them in the words of the evaluation."""
    words = other_wording if seed % 2 else wording
    made, project = sample(_held_out, seed, words)
    kind = f"{made.kind}{' *' if seed % 2 else ''}"
    return encode(_tokenizer[0], kind, conversation(made, project), len(made.tools))


def save(path: Path, rows: Sequence[Encoded]) -> None:
    kinds = sorted({row.kind for row in rows})
    np.savez(
        path,
        tokens=np.concatenate([row.tokens for row in rows]),
        replies=np.concatenate([row.replies for row in rows]),
        lengths=np.array([len(row.tokens) for row in rows]),
        kinds=np.array([kinds.index(row.kind) for row in rows]),
        tools=np.array([row.tools for row in rows]),
        names=np.array(kinds),
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("tokenizer", type=Path)
    options.add_argument("out", type=Path, help="a folder")
    options.add_argument("--conversations", type=int, default=200_000)
    options.add_argument("--seconds", type=float, default=600, help="stop after that time")
    options.add_argument("--processes", type=int, default=14)
    options.add_argument("--watched", type=int, default=WATCHED, help="conversations")
    options.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="of a conversation")
    options.add_argument(
        "--weights", default="", help="only these kinds of tasks, such as append=3,rename=1"
    )
    given = options.parse_args()
    if given.weights:
        _weights.clear()
        _weights.update(
            (k, int(n)) for k, n in (kind.split("=") for kind in given.weights.split(","))
        )
    start = time.monotonic()
    with lzma.open(given.corpus, "rt", encoding="utf-8") as file:
        projects = [(row["name"], row["files"]) for row in map(json.loads, file)]
    random.Random(1).shuffle(projects)
    _held_out[:], _corpus[:] = projects[:HELD_OUT], projects[HELD_OUT:]
    _tokenizer.append(read_tokenizer(given.tokenizer))
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        save(given.out / "watched.npz", pool.map(watched, range(given.watched), chunksize=25))
        for row in pool.imap_unordered(learned, range(given.conversations), chunksize=50):
            if len(row.tokens) <= given.max_tokens:
                rows.append(row)
            if time.monotonic() - start > given.seconds:
                break
        pool.terminate()
    save(given.out / "incomplete.npz", rows)
    (given.out / "incomplete.npz").rename(given.out / "learned.npz")
    count = sum(len(row.tokens) for row in rows)
    print(
        f"{len(rows):,} conversations, {count / 1e6:.1f} M tokens,"
        f" {time.monotonic() - start:.0f} s", flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
