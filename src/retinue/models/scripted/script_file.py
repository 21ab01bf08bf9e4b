"""Scripts for a `ScriptedModel`, as YAML or JSON.

One conversation is a list of steps:

    steps:
      - call: read_file
        args: {path: notes.txt}
      - say: The notes say nothing.

Several kinds of conversation are rules. `match` is a text in the system message or in the first
user message; the first rule that matches is used, and "" matches every conversation:

    rules:
      - match: researcher
        steps:
          - say: I look at both files.        # text beside calls is fine
            calls:
              - {call: read_file, args: {path: a.txt}}
              - {call: read_file, args: {path: b.txt}}
          - fail: rate_limited                # or timeout, overflow, unavailable, refused
            message: Too many requests.
          - say: Both are empty.
            delay_s: 0.5                      # the reply takes that long
            tokens: {in: 900, cached: 800, out: 12}

A reply without `tokens` is counted at one token for four bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from retinue.domain.messages import Usage
from retinue.errors import (
    ConfigError,
    ContextOverflow,
    ModelError,
    ModelTimeout,
    ProviderError,
    RateLimited,
)
from retinue.models.scripted.model import Script, ScriptedCall, ScriptedReply, Step, fail

_FAILURES: dict[str, tuple[Callable[[str], ModelError], str]] = {
    "rate_limited": (RateLimited, "The script limits the rate of requests."),
    "timeout": (ModelTimeout, "The script went silent."),
    "overflow": (ContextOverflow, "The prompt is larger than the script's window."),
    "unavailable": (lambda text: ProviderError(text, retryable=True), "The script is unavailable."),
    "refused": (ProviderError, "The script refused the request."),
}
_STEP_FORMS = "{say: TEXT}, {call: TOOL, args: {…}}, {calls: […]} or {fail: KIND}"


def read_script(path: str | Path) -> Script:
    """Read a script. ConfigError names the file, the line, and what to write instead."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"Cannot read the script {path}: {reason}.") from None
    return parse_script(text, source=str(path))


def parse_script(text: str, *, source: str = "the script") -> Script:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise ConfigError(
            f"{source}, line {line}: this is not YAML ({problem}). Quote texts that hold : or #."
        ) from None
    return _Parser(source).script(root)


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source

    def script(self, root: Node | None) -> Script:
        if root is None:
            raise ConfigError(f"{self._source}, line 1: the script is empty. Write 'steps:' in it.")
        fields = self._mapping(root, "a script", {"steps", "rules"})
        if ("steps" in fields) == ("rules" in fields):
            raise self._error(root, "write either 'steps:' or 'rules:'")
        if "steps" in fields:
            return self._steps(fields["steps"])
        rules: dict[str, list[Step]] = {}
        for node in self._sequence(fields["rules"], "rules"):
            match, steps = self._rule(node)
            if match in rules:
                raise self._error(node, f"the rule {match!r} is there twice; join their steps")
            rules[match] = steps
        return rules

    def _rule(self, node: Node) -> tuple[str, list[Step]]:
        fields = self._mapping(node, "a rule", {"match", "steps"})
        if fields.keys() != {"match", "steps"}:
            raise self._error(node, "a rule is {match: TEXT, steps: […]}")
        return self._text(fields["match"], "match"), self._steps(fields["steps"])

    def _steps(self, node: Node) -> list[Step]:
        steps = [self._step(item) for item in self._sequence(node, "steps")]
        if not steps:
            raise self._error(node, "there are no steps; write at least {say: TEXT}")
        return steps

    def _step(self, node: Node) -> Step:
        known = {"say", "call", "args", "calls", "fail", "message", "delay_s", "tokens"}
        fields = self._mapping(node, "a step", known)
        kinds = fields.keys() & {"say", "call", "calls", "fail"}
        if not kinds or {"call", "calls"} <= kinds or ("fail" in kinds and len(kinds) > 1):
            raise self._error(node, f"a step is {_STEP_FORMS}")
        if "fail" in kinds:
            return self._failure(node, fields)
        if "message" in fields:
            raise self._error(fields["message"], "'message' belongs to 'fail'; write 'say'")
        if "args" in fields and "call" not in fields:
            raise self._error(
                fields["args"], "'args' belongs to 'call'; write {call: TOOL, args: …}"
            )
        planned: tuple[ScriptedCall, ...] = ()
        if "call" in kinds:
            planned = (self._call(fields),)
        elif "calls" in kinds:
            planned = tuple(
                self._listed_call(item) for item in self._sequence(fields["calls"], "calls")
            )
        return ScriptedReply(
            text=self._text(fields["say"], "say") if "say" in fields else "",
            calls=planned,
            usage=self._tokens(fields["tokens"]) if "tokens" in fields else None,
            delay_s=self._seconds(fields["delay_s"]) if "delay_s" in fields else 0.0,
        )

    def _listed_call(self, node: Node) -> ScriptedCall:
        fields = self._mapping(node, "a call", {"call", "args"})
        if "call" not in fields:
            raise self._error(node, "a call is {call: TOOL, args: {…}}")
        return self._call(fields)

    def _call(self, fields: dict[str, Node]) -> ScriptedCall:
        name = self._text(fields["call"], "call")
        if "args" not in fields:
            return ScriptedCall(name, "{}")
        arguments = self._value(fields["args"])
        if not isinstance(arguments, dict):
            raise self._error(fields["args"], "'args' is a mapping, such as {path: a.txt}")
        try:
            return ScriptedCall(name, msgspec.json.encode(arguments).decode())
        except TypeError as error:
            raise self._error(fields["args"], f"'args' must be JSON ({error})") from None

    def _failure(self, node: Node, fields: dict[str, Node]) -> Step:
        if fields.keys() - {"fail", "message"}:
            raise self._error(node, "a failing step is {fail: KIND, message: TEXT}")
        kind = self._text(fields["fail"], "fail")
        if kind not in _FAILURES:
            raise self._error(
                fields["fail"], f"unknown failure {kind!r}; known: {', '.join(_FAILURES)}"
            )
        make, message = _FAILURES[kind]
        if "message" in fields:
            message = self._text(fields["message"], "message")
        return fail(make(message))

    def _tokens(self, node: Node) -> Usage:
        fields = self._mapping(node, "'tokens'", {"in", "cached", "out"})
        counts: dict[str, int] = {}
        for name, value_node in fields.items():
            value = self._value(value_node)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self._error(value_node, f"'{name}' is a number of tokens, such as 120")
            counts[name] = value
        return Usage(counts.get("in", 0), counts.get("cached", 0), counts.get("out", 0))

    def _seconds(self, node: Node) -> float:
        value = self._value(node)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 3600:
            raise self._error(node, "'delay_s' is a number of seconds, such as 0.5")
        return float(value)

    def _mapping(self, node: Node, what: str, known: set[str]) -> dict[str, Node]:
        if not isinstance(node, MappingNode):
            raise self._error(node, f"{what} is a mapping with {', '.join(sorted(known))}")
        fields: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, ScalarNode) else "{…}"
            if key not in known:
                raise self._error(
                    key_node, f"unknown field {key!r} in {what}; known: {', '.join(sorted(known))}"
                )
            if key in fields:
                raise self._error(key_node, f"{key!r} is there twice")
            fields[key] = value_node
        return fields

    def _sequence(self, node: Node, name: str) -> list[Node]:
        if not isinstance(node, SequenceNode):
            raise self._error(node, f"'{name}' is a list; begin each item with '- '")
        return list(node.value)

    def _text(self, node: Node, name: str) -> str:
        # Not only strings: {say: 42} and {say: yes} mean the text as it is written.
        if not isinstance(node, ScalarNode):
            raise self._error(node, f"'{name}' is a text; quote it if it holds : or #")
        return str(node.value)

    def _value(self, node: Node) -> Any:
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_document(node)
        except yaml.YAMLError as error:
            problem = getattr(error, "problem", None) or "it cannot be read"
            raise self._error(node, problem) from None
        finally:
            loader.dispose()

    def _error(self, node: Node, problem: str) -> ConfigError:
        return ConfigError(f"{self._source}, line {node.start_mark.line + 1}: {problem}.")
