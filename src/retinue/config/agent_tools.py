"""Reads which of our tools an agent file allows, and which roles its agent may spawn.

A file never gets more than it asks for: a rule that cannot be enforced here removes the tool.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from retinue.config.frontmatter import Value, as_bool, as_list, as_text
from retinue.config.tool_translation import (
    BUILTIN_TOOLS,
    EVERYTHING,
    PERMISSION_NAMES,
    SPAWN,
    Dialect,
    ToolTranslation,
    our_names,
    remove_denied,
    split_pattern,
    translate_allowed,
    translate_denied,
)

MAX_NAME = 64
_INVALID = re.compile(r"[^A-Za-z0-9_.:-]+")


class KnownNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names that an agent file can refer to."""

    tools: Collection[str] = BUILTIN_TOOLS
    """Tools of retinue, and `mcp__SERVER__*` for each MCP server."""
    models: Mapping[str, str] = {}
    """The user's short names for models, in lower case."""
    roles: tuple[str, ...] = ()
    """Roles that an agent may spawn if its file allows delegation without naming roles."""


class ResolvedTools(msgspec.Struct, frozen=True, kw_only=True):
    """`tools` None allows the parent's tools, `spawns` None the roles that any child may spawn."""

    tools: frozenset[str] | None
    spawns: tuple[str, ...] | None
    problems: tuple[str, ...]


class NotAnAgent(Exception):
    """A file defines no usable agent. The message is empty if the file is not meant to."""


def clean_name(name: str) -> str:
    """`name` as the name of a role: letters, digits and `_.:-` only, not too long."""
    return _INVALID.sub("-", name).strip("-.:")[:MAX_NAME]


class ToolResolver:
    """Applies the fields of a file that allow and deny tools. Their keys are normalized."""

    def __init__(self, fields: Mapping[str, Value], dialect: Dialect, names: KnownNames) -> None:
        self._fields = fields
        self._dialect = dialect
        self._names = names
        self._problems: list[str] = []

    def resolve(self) -> ResolvedTools:
        """Raises NotAnAgent if the file names tools and none of them can be used."""
        allowed = self._allowed()
        denied = self._disallowed() | self._not_permitted()
        tools, spawns = allowed.tools, self._spawns_field()
        if denied - {SPAWN}:
            tools = remove_denied(self._names.tools if tools is None else tools, denied)
            if not tools:
                raise NotAnAgent("none of its tools is left")
        delegates = allowed.delegates or self._permits_task()
        if delegates and SPAWN not in denied and not spawns:
            spawns = tuple(map(clean_name, allowed.spawns or self._names.roles))
        return ResolvedTools(tools=tools, spawns=spawns, problems=tuple(self._problems))

    def _allowed(self) -> ToolTranslation:
        value = self._fields.get("tools", self._fields.get("allowedtools"))
        if isinstance(value, dict):
            return self._switched(value)
        if value is None or (isinstance(value, str) and as_text(value) is None):
            return ToolTranslation(None)
        names = self._tool_list(value)
        if not names:
            return ToolTranslation(frozenset())
        found = self._translate(names)
        # An agent that only delegates has no tool of its own, which is fine.
        if found.tools is not None and not found.tools and not found.delegates:
            raise NotAnAgent(f"none of its tools is known here: {', '.join(names)}")
        return found

    def _tool_list(self, value: Value) -> list[str]:
        names = as_list(value)
        if isinstance(value, str) and len(names) == 1 and "(" not in value:
            words = value.split()
            is_one_name = names[0].casefold() in EVERYTHING or self._our_names(names[0])
            if len(words) > 1 and not is_one_name:
                return words  # Read Grep Glob
        return names

    def _switched(self, switches: dict[str, Value]) -> ToolTranslation:
        """`tools` as a mapping of switches. The tools that are on count only if none is off."""
        off = [key for key, value in switches.items() if _is_off(value)]
        on = [key for key in switches if key not in off and key != "*"]
        found = self._translate(on)
        if not off or "*" in off:
            if not found.tools and not found.delegates:
                raise NotAnAgent(
                    f"none of its tools is known here: {', '.join(on) or 'all are off'}"
                )
            return found
        denied = translate_denied(off, self._dialect, known=self._names.tools)
        left = remove_denied(self._names.tools, denied) if denied - {SPAWN} else None
        if left is not None and not left:
            raise NotAnAgent("all of its tools are off")
        return msgspec.structs.replace(found, tools=left)

    def _translate(self, names: list[str]) -> ToolTranslation:
        found = translate_allowed(names, self._dialect, known=self._names.tools)
        self._problems += found.problems
        return found

    def _disallowed(self) -> frozenset[str]:
        names = as_list(self._fields.get("disallowedtools"))
        for name in names:
            word, pattern = split_pattern(name)
            if pattern is not None and self._our_names(word):
                self._problems.append(f"{name} is denied: {word} is denied as a whole")
        return translate_denied(names, self._dialect, known=self._names.tools)

    def _not_permitted(self) -> frozenset[str]:
        """Tools that opencode's `permission` denies. A child cannot ask, so `ask` denies too."""
        value = self._fields.get("permission")
        if not isinstance(value, dict):
            word = (as_text(value) or "allow").casefold()
            if word != "allow":
                raise NotAnAgent(f"permission {word}: none of its tools is left")
            return frozenset()
        permitted: set[str] = set()
        denied: set[str] = set()
        for key, rule in value.items():
            if key == "*":
                continue
            ours = set(our_names(key, self._dialect, self._names.tools, PERMISSION_NAMES))
            decision = _decision(rule)
            if decision == "allow":
                permitted |= ours
                if not ours:
                    self._problems.append(f"unknown tool in permission: {key}")
                continue
            denied |= ours
            if ours and decision == "ask":
                self._problems.append(f"{key}: ask: left out, because a child cannot ask you")
            elif ours and decision == "by pattern":
                self._problems.append(f"{key}: left out, because its patterns are not enforced")
        if "*" in value and _decision(value["*"]) != "allow":
            denied |= {*self._names.tools, SPAWN} - permitted
        return frozenset(denied)

    def _permits_task(self) -> bool:
        value = self._fields.get("permission")
        return isinstance(value, dict) and _decision(value.get("task", "")) == "allow"

    def _spawns_field(self) -> tuple[str, ...] | None:
        if self._dialect is not Dialect.RETINUE or "spawns" not in self._fields:
            return None
        return tuple(clean_name(name) for name in as_list(self._fields["spawns"]))

    def _our_names(self, word: str) -> tuple[str, ...]:
        return our_names(word, self._dialect, self._names.tools)


def _is_off(value: Value) -> bool:
    word = (as_text(value) or "").casefold()
    return as_bool(value) is False or word in ("deny", "ask")


def _decision(rule: Value) -> str:
    """allow, deny or ask; "by pattern" if it depends on the call."""
    if isinstance(rule, dict):
        decisions = {_decision(value) for value in rule.values() if isinstance(value, str)}
        return decisions.pop() if len(decisions) == 1 else "by pattern"
    word = (as_text(rule) or "").casefold()
    if word in ("allow", "ask"):
        return word
    return "allow" if as_bool(rule) else "deny"
