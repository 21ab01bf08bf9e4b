"""Trains the adapter on one GPU. `training/README.md` says how to call it.

The machine needs PyTorch and transformers; `gguf` and `msgspec` may lie in a folder on PYTHONPATH.
The base model is the same quantised file that retinue downloads, so the adapter corrects exactly
the weights that it will run on.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import multiprocessing
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from retinue.embedded.prompt import prompt
from training import wording
from training.conversations import Turn, conversation, no_mistake, sample
from training.evaluation import wording as other_wording
from training.project import READ_TOOLS, WRITE_TOOLS
from training.tasks import Call

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAX_TOKENS = 1_900
BATCH_TOKENS = int(os.environ.get("BATCH_TOKENS", "48000"))
LEARNING_RATE = 1e-3
HELD_OUT = 20  # projects that are only used to watch the training
_CALL = re.compile(r"<tool_call>(\{.*?\})</tool_call>", re.S)
_corpus: list[tuple[str, dict[str, str]]] = []
_mistakes: dict[str, list[Call]] = {}
_tokenizer: list[Any] = []  # for processes that are forked


class Adapted(nn.Module):
    """A linear layer with a correction of low rank."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale
        self.down = nn.Parameter(
            torch.randn(rank, layer.in_features) / math.sqrt(layer.in_features)
        )
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = functional.linear(x, self.down)
        return self.layer(x) + functional.linear(low, self.up) * self.scale


def adapt(model: nn.Module, rank: int, alpha: float) -> dict[str, Adapted]:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    adapted = {}
    for name, module in list(model.named_modules()):
        for child, layer in list(module.named_children()):
            if child in PROJECTIONS:
                wrapped = Adapted(layer, rank, alpha / rank)
                setattr(module, child, wrapped)
                adapted[f"{name}.{child}"] = wrapped
    return adapted


def play(seed: int) -> list[Turn]:
    """A conversation; after own mistakes of the model that are known, with them."""
    made, project = sample(_corpus, seed)
    return conversation(
        made, project, lambda messages, tools: _mistakes.pop(prompt(messages, tools), None)
    )


def encoded(seed: int) -> tuple[list[int], list[int]]:
    return encode(_tokenizer[0], play(seed))


def encode(tokenizer: Any, turns: Sequence[Turn]) -> tuple[list[int], list[int]]:
    """Tokens, and labels: -100 where nothing is to be learned."""
    tokens: list[int] = []
    labels: list[int] = []
    for turn in turns:
        reads = tokenizer.encode(turn.reads, add_special_tokens=False)
        writes = tokenizer.encode(turn.writes, add_special_tokens=False)
        tokens += reads + writes
        labels += [-100] * len(reads) + (writes if turn.learn else [-100] * len(writes))
    return tokens, labels


def save(adapted: dict[str, Adapted], path: Path, rank: int) -> None:
    tensors = {}
    for name, layer in adapted.items():
        tensors[f"{name}.down"] = layer.down.detach().float().cpu().contiguous()
        tensors[f"{name}.up"] = layer.up.detach().float().cpu().contiguous()
    save_file(tensors, path, metadata={"alpha": str(2 * rank)})


def batches(data: list[tuple[list[int], list[int]]]) -> Iterator[list[tuple[list[int], list[int]]]]:
    while True:
        random.shuffle(data)
        made: list[list[tuple[list[int], list[int]]]] = []
        for start in range(0, len(data), 2048):
            batch: list[tuple[list[int], list[int]]] = []
            for row in sorted(data[start : start + 2048], key=lambda row: len(row[0])):
                if batch and len(row[0]) * (len(batch) + 1) > BATCH_TOKENS:
                    made.append(batch)
                    batch = []
                batch.append(row)
            made.append(batch)
        random.shuffle(made)
        yield from made


def learn(
    model: Any, data: Any, parameters: Any, optimizer: Any, *, seconds: float, span: Any, end: int
) -> None:
    """Train for so long. `span` is the part of the whole schedule that this is."""
    start = time.monotonic()
    stream = batches(data)
    step = 0
    first, last = span
    model.train()
    while (spent := (time.monotonic() - start) / seconds) < 1:
        rows = next(stream)
        longest = max(len(tokens) for tokens, _ in rows)
        x = torch.full((len(rows), longest), end)
        y = torch.full((len(rows), longest), -100)
        for k, (tokens, labels) in enumerate(rows):
            x[k, : len(tokens)] = torch.tensor(tokens)
            y[k, : len(labels)] = torch.tensor(labels)
        x, y = x.to(DEVICE), y.to(DEVICE)
        done = first + (last - first) * spent
        rate = LEARNING_RATE * (0.475 * (1 + math.cos(math.pi * done)) + 0.05)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, (step + 1) / 50) if first == 0 else rate
        with torch.autocast(DEVICE, torch.bfloat16):
            # Padding is on the right, where causal attention does not see it.
            hidden = model.model(input_ids=x).last_hidden_state[:, :-1]
            wanted = y[:, 1:]
            chosen = wanted != -100
            loss = functional.cross_entropy(model.lm_head(hidden[chosen]).float(), wanted[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(
                f"step {step} loss {loss.item():.4f} {time.monotonic() - start:.0f} s", flush=True
            )


@torch.no_grad()
def generate(
    model: Any, tokenizer: Any, prompts: Sequence[str], lengths: Sequence[int], end: int
) -> list[str]:
    """Replies to prompts; `lengths` are the lengths that are expected, in tokens."""
    model.eval()
    tokenizer.padding_side = "left"
    order = sorted(range(len(prompts)), key=lambda k: (lengths[k] // 32, len(prompts[k])))
    replies = [""] * len(prompts)
    for start in range(0, len(order), 192):
        part = order[start : start + 192]
        given = tokenizer(
            [prompts[k] for k in part], return_tensors="pt", padding=True, add_special_tokens=False
        )
        width = given["input_ids"].shape[1]
        with torch.autocast(DEVICE, torch.bfloat16):
            out = model.generate(
                input_ids=given["input_ids"].to(DEVICE),
                attention_mask=given["attention_mask"].to(DEVICE),
                max_new_tokens=max(lengths[k] for k in part) + 24, do_sample=False,
                eos_token_id=end, pad_token_id=end,
            )  # fmt: skip
        for k, tokens in zip(part, out[:, width:].cpu(), strict=True):
            replies[k] = (
                tokenizer.decode(tokens, skip_special_tokens=False)
                .partition("<|im_end|>")[0]
                .strip()
            )
    return replies


def replies_of(
    model: Any, tokenizer: Any, conversations: Sequence[list[Turn]], end: int
) -> list[tuple[str, Turn, str]]:
    """For each right reply: what the model reads, the reply, and what the model writes."""
    prompts, turns = [], []
    for one in conversations:
        text = ""
        for turn in one:
            text += turn.reads
            if turn.learn and len(text) < 6_000:
                prompts.append(text)
                turns.append(turn)
            text += turn.writes
    lengths = [len(tokenizer.encode(turn.writes)) for turn in turns]
    return list(zip(prompts, turns, generate(model, tokenizer, prompts, lengths, end), strict=True))


def calls_in(text: str) -> list[Call]:
    found = []
    for match in _CALL.finditer(text):
        try:
            call = json.loads(match[1])
            found.append(Call(call["name"], call["arguments"]))
        except (ValueError, KeyError, TypeError):
            return []
    return found


def watch(
    model: Any, tokenizer: Any, projects: Any, words: ModuleType, count: int, end: int
) -> None:
    """Print how many replies are exactly right, given the right conversation so far."""
    made = [sample(projects, 900_000 + seed, words) for seed in range(count)]
    played = [conversation(task, project, no_mistake) for task, project in made]
    kind_of = {
        id(turn): task.kind for (task, _), turns in zip(made, played, strict=True) for turn in turns
    }
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    for _, turn, reply in replies_of(model, tokenizer, played, end):
        kind = kind_of[id(turn)]
        total[kind] += 1
        right[kind] += reply + "<|im_end|>" == turn.writes
        if reply + "<|im_end|>" != turn.writes and shown[kind] < 3:
            shown[kind] += 1
            print(
                f"  {kind}: {turn.reads[-230:-24]!r}\n    wrote {reply[:220]!r}"
                f"\n    right {turn.writes[:220]!r}"
            )
    print(
        {k: f"{right[k]}/{total[k]}" for k in sorted(total)},
        f"{sum(right.values()) / sum(total.values()):.3f}",
    )


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("weights", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--seconds", type=float, default=420)
    options.add_argument("--conversations", type=int, default=60_000)
    options.add_argument("--rank", type=int, default=8)
    options.add_argument(
        "--own", type=int, default=4_000, help="tasks to find the model's own mistakes"
    )
    options.add_argument("--watch", type=int, default=300, help="tasks to print the progress for")
    given = options.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    with lzma.open(given.corpus, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    random.shuffle(rows)
    projects = [(row["name"], row["files"]) for row in rows]
    held_out, _corpus[:] = projects[:HELD_OUT], projects[HELD_OUT:]
    tokenizer = AutoTokenizer.from_pretrained(given.weights.parent, gguf_file=given.weights.name)
    model = AutoModelForCausalLM.from_pretrained(
        given.weights.parent, gguf_file=given.weights.name, dtype=torch.bfloat16
    )
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.pad_token = "<|im_end|>"
    _tokenizer.append(tokenizer)
    context = multiprocessing.get_context("fork")
    with context.Pool(14) as pool:
        rows = pool.map(encoded, range(given.conversations), chunksize=200)
    data = [row for row in rows if len(row[0]) <= MAX_TOKENS]
    print(
        f"{len(data)} conversations, {sum(len(t) for t, _ in data) / 1e6:.1f} M tokens", flush=True
    )
    adapted = adapt(model, given.rank, 2 * given.rank)
    model.to(DEVICE)
    parameters = [p for layer in adapted.values() for p in (layer.down, layer.up)]
    print(f"{sum(p.numel() for p in parameters) / 1e6:.2f} M parameters", flush=True)
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=0.0, betas=(0.9, 0.98))
    spans = (0.0, 0.6), (0.6, 1.0)
    learn(model, data, parameters, optimizer, seconds=given.seconds * 0.6, span=spans[0], end=end)
    save(adapted, given.out, given.rank)
    if given.own:
        # What the model itself gets wrong, and what it should do then.
        seeds = range(1_000_000, 1_000_000 + given.own)
        with context.Pool(14) as pool:
            fresh = pool.map(play, seeds, chunksize=100)
        wrong = right = 0
        for text, turn, reply in replies_of(model, tokenizer, fresh, end):
            if reply + "<|im_end|>" == turn.writes:
                right += 1
                continue
            wrong += 1
            calls, wanted = calls_in(reply), calls_in(turn.writes)
            if calls and wanted and all(c.name in (*READ_TOOLS, *WRITE_TOOLS) for c in calls):
                _mistakes[text] = calls
        print(
            f"own replies: {right} right, {wrong} wrong, {len(_mistakes)} of them calls", flush=True
        )
        with context.Pool(14) as pool:
            rows = pool.map(encoded, seeds, chunksize=50)
        data += [row for row in rows if len(row[0]) <= MAX_TOKENS]
    learn(model, data, parameters, optimizer, seconds=given.seconds * 0.4, span=spans[1], end=end)
    save(adapted, given.out, given.rank)
    if given.watch:
        watch(model, tokenizer, held_out, wording, given.watch, end)
        watch(model, tokenizer, held_out, other_wording, given.watch, end)


if __name__ == "__main__":
    main()
