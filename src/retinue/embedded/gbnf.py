"""Parts of grammars in GBNF, the notation of llama.cpp."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

_PIECE = re.compile(r"[A-Za-z0-9_]+|[^A-Za-z0-9_]", re.DOTALL)
# Longer texts fill the window of the model anyway.
_MAX_PIECES = 8_000


def part_of(name: str, texts: Sequence[str]) -> Iterator[str]:
    """Rules of a text that stands in one of these."""
    pieces: list[str | None] = []
    for text in texts:
        pieces += [*_PIECE.findall(text), None]
    if not any(pieces) or len(pieces) > _MAX_PIECES:
        yield f"{name}-0 ::= part+"
        return
    states = _suffixes(pieces)
    seen, todo = {0}, [0]
    while todo:
        state = todo.pop()
        options = {}
        for piece, following in states[state].items():
            if piece is None:
                continue
            goes_on = any(states[following])
            options[escaped(piece)] = f"{name}-{following}?" if goes_on else ""
            if goes_on and following not in seen:
                seen.add(following)
                todo.append(following)
        yield f"{name}-{state} ::= {either(options)}"


def _suffixes(pieces: Sequence[str | None]) -> list[dict[str | None, int]]:
    """The smallest automaton that reads each part of a sequence, from state 0 on.

    It is a suffix automaton, made piece by piece as Blumer and others describe it.
    """
    following: list[dict[str | None, int]] = [{}]
    link, length = [-1], [0]
    last = 0
    for piece in pieces:
        made = len(following)
        following.append({})
        length.append(length[last] + 1)
        link.append(0)
        state, last = last, made
        while state >= 0 and piece not in following[state]:
            following[state][piece] = made
            state = link[state]
        if state < 0:
            continue
        other = following[state][piece]
        if length[other] != length[state] + 1:
            copy = len(following)
            following.append(dict(following[other]))
            length.append(length[state] + 1)
            link.append(link[other])
            while state >= 0 and following[state].get(piece) == other:
                following[state][piece] = copy
                state = link[state]
            link[other] = copy
            other = copy
        link[made] = other
    return following


def one_of(texts: Iterable[str]) -> str:
    return either({escaped(text): "" for text in texts if text})


def either(options: Mapping[str, str], start: int = 0) -> str:
    """GBNF for one of these texts with what follows it.

    Texts that begin alike stand together, so that llama.cpp has few of them open at a time.
    """
    parts = []
    for first, some in groupby(sorted(options), key=lambda text: text[start : start + 1]):
        group = list(some)
        end = _alike(group[0], group[-1])
        if not first:
            parts.append(options[group[0]] or '""')
        elif len(group) == 1:
            parts.append(f"{literal(group[0][start:])} {options[group[0]]}".rstrip())
        else:
            rest = either({text: options[text] for text in group}, end)
            parts.append(f"{literal(group[0][start:end])} ({rest})")
    return " | ".join(parts)


def _alike(one: str, other: str) -> int:
    """How many first characters are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def json_literal(text: str) -> str:
    return literal(json.dumps(text, ensure_ascii=False))
