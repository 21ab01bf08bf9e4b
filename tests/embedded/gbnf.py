"""Matches texts with the grammars of llama.cpp."""

from __future__ import annotations

import ast
import re
from functools import cache

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[\d,]+\}|[\w-]+|[()|*?+]')
Node = tuple[str, object]


class Grammar:
    """A grammar whose rules do not begin with themselves."""

    def __init__(self, text: str) -> None:
        lines = [line.partition(" ::= ") for line in text.strip().splitlines() if line]
        bodies = {name: _TOKEN.findall(body) for name, _, body in lines}
        for name, tokens in bodies.items():
            missing = {token for token in tokens if re.fullmatch(r"[\w-]+", token)} - bodies.keys()
            assert tokens, f"{name} is empty"
            assert not missing, f"{name} needs {missing}"
        self._rules = {name: _parsed(list(tokens)) for name, tokens in bodies.items()}

    def admits(self, text: str) -> bool:
        @cache
        def rule_ends(name: str, start: int) -> frozenset[int]:
            return ends(self._rules[name], start)

        def ends(node: Node, start: int) -> frozenset[int]:
            """Where the part of the text may end that begins at `start`."""
            match node:
                case ("any", list(options)):
                    return frozenset().union(*(ends(option, start) for option in options))
                case ("all", list(parts)):
                    found = frozenset([start])
                    for part in parts:
                        found = frozenset().union(*(ends(part, at) for at in found))
                    return found
                case ("times", (tuple(inner), int(least), int(most))):
                    now = frozenset([start])
                    every = now if least == 0 else frozenset()
                    for count in range(1, most + 1):
                        now = frozenset(end for at in now for end in ends(inner, at)) - every
                        every |= now if count >= least else frozenset()
                        if not now:
                            break
                    return every
                case ("rule", str(name)):
                    return rule_ends(name, start)
                case ("literal", str(literal)):
                    end = start + len(literal)
                    return frozenset([end] if text.startswith(literal, start) else [])
                case ("class", re.Pattern() as expression):
                    found_one = expression.match(text, start)
                    return frozenset([found_one.end()] if found_one else [])
            raise AssertionError(node)

        return len(text) in rule_ends("root", 0)


def _parsed(tokens: list[str]) -> Node:
    options: list[list[Node]] = [[]]
    while tokens:
        token = tokens.pop(0)
        parts = options[-1]
        if token == "|":
            options.append([])
        elif token == ")":
            break
        elif token == "(":
            parts.append(_parsed(tokens))
        elif token in "*?+":
            least, most = {"*": (0, 10**9), "?": (0, 1), "+": (1, 10**9)}[token]
            parts.append(("times", (parts.pop(), least, most)))
        elif token[0] == "{":
            least, most = map(int, token[1:-1].split(","))
            parts.append(("times", (parts.pop(), least, most)))
        elif token[0] == '"':
            parts.append(("literal", ast.literal_eval(token)))
        elif token[0] == "[":
            parts.append(("class", re.compile(token, re.DOTALL)))
        else:
            parts.append(("rule", token))
    return ("any", [("all", parts) for parts in options])
