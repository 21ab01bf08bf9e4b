"""Approvals: the user's rules for tool calls, and requests to a person.

Approval decides only when a person is asked. The sandbox is the security boundary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from retinue.domain.command_safety import (
    Safety,
    classify,
    has_git_side_effect,
    is_plain,
    runs_its_arguments,
    single_spaced,
    spellings,
    split_words,
)
from retinue.domain.paths import simplify_path
from retinue.domain.tool_aliases import TOOL_ALIASES, tools_meant
from retinue.domain.web_hosts import WEB_FETCH
from retinue.errors import ConfigError


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Answer(StrEnum):
    """Answer to a request. `NO_PERSON`: no person could be asked.

    ```python
    run = await rt.run("Look around.")
    async for event in rt.events(run.id):
        if isinstance(event.fact, retinue.events.ApprovalDecided):
            print(event.fact.answer is retinue.Answer.YES)
    ```
    """

    YES = "yes"
    NO = "no"
    NO_PERSON = "nobody"


_SUBCOMMAND = re.compile(r"[a-z][a-z:-]*")


class Rule(msgspec.Struct, frozen=True, gc=False):
    """A tool, and a pattern for what it acts on: `run_command(git log *)`. Only * is special.

    The tool may have the name of another agent: `Bash(git log:*)`.

    ```python
    rule = retinue.Rule("run_command", "git log *")
    assert rule.matches("run_command", "git log --oneline")
    assert not rule.matches("run_command", "git push")
    ```
    """

    tool: str
    pattern: str = "*"

    def __str__(self) -> str:
        return self.tool if self.pattern == "*" else f"{self.tool}({self.pattern})"

    def covers_tool(self, tool: str) -> bool:
        """Whether the rule is about calls of that tool."""
        return fnmatchcase(tool, self.tool) or tool in tools_meant(self.tool, (tool,))

    def matches(self, tool: str, subject: str) -> bool:
        """Whether a call of `tool` on `subject` falls under the rule."""
        if not self.covers_tool(tool):
            return False
        # `git log *` matches `git log` too, and never `git logout`.
        whole = self.pattern.removesuffix(" *")
        return self.pattern == "*" or _matches_pattern(subject, self.pattern) or subject == whole


def _matches_pattern(text: str, pattern: str) -> bool:
    # Not fnmatch: brackets and question marks are common in commands.
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def parse_rule(text: str) -> Rule:
    """Read a rule as settings have it. Raises ConfigError."""
    found = re.fullmatch(r"([A-Za-z0-9_*-]+)(?:\((.+)\))?", text.strip(), re.DOTALL)
    if found is None:
        raise ConfigError(
            f"{text!r} is no rule; write a tool, or a tool and a pattern: run_command(git log *)."
        )
    tool, pattern = found[1], (found[2] or "*").strip()
    if tool not in TOOL_ALIASES and pattern.endswith(":*"):
        pattern = f"{pattern[:-2]} *"  # Other agents write `Bash(git log:*)` for any arguments.
    if tools_meant(tool, (WEB_FETCH,)):
        pattern = pattern.removeprefix("domain:")  # As Claude Code writes it.
    return Rule(tool, pattern)


def rule_for(tool: str, subject: str) -> Rule:
    """The rule that a person agrees to by saying "always": the command and its subcommand.

    If the subject is more than a plain command, the rule is for exactly this subject.
    """
    if tool == WEB_FETCH:
        return Rule(tool, subject)  # The subject is a host.
    words = split_words(subject)
    if not words or not is_plain(subject) or classify(subject) is Safety.DESTRUCTIVE:
        return Rule(tool, subject or "*")
    if runs_its_arguments(words):
        return Rule(tool, subject)
    known: tuple[str, ...] = ()
    match words:
        case [_, "-m", module, *_]:  # python -m unittest
            known = ("-m", module)
        case [_, "run" | "exec" | "tool", script, *_] if _SUBCOMMAND.fullmatch(script):
            known = (words[1], script)  # npm run build
        case [_, subcommand, *_] if _SUBCOMMAND.fullmatch(subcommand):
            known = (subcommand,)
    return Rule(tool, " ".join((words[0], *known, "*")))


def file_rule(tool: str, path: str) -> Rule:
    """The rule for "always" of a tool that writes files: those in the same folder.

    In the top folder, which holds the whole project, it is this file only.
    """
    folder = path.rpartition("/")[0]
    return Rule(tool, f"{folder}/*" if folder else path)


class Refusal(msgspec.Struct, frozen=True):
    """A person's no, with the reason that the model is told. It is falsy, like `False`.

    ```python
    refusal = retinue.Refusal("Not on a Friday.")
    assert not refusal
    ```
    """

    reason: str = ""

    def __bool__(self) -> bool:
        return False


class ApprovalReason(StrEnum):
    """Why a person is asked.

    ```python
    async def approve(request: retinue.ApprovalRequest) -> bool:
        return request.why is not retinue.ApprovalReason.DESTRUCTIVE
    ```
    """

    CONTRACT = "a child would write or run commands"
    MERGE = "its change is about to be merged"
    MODE = "its mode asks first"
    DESTRUCTIVE = "it destroys things"
    UNTRUSTED_TEXT = "it has read untrusted text"
    CALLS = "it has made many calls"
    RULE = "a rule is about it"
    HOOK = "a hook asks"


def agent_label(path: str) -> str:
    """The agent of that path at the beginning of a sentence: "The agent", or "tester.2"."""
    return path.rpartition("/")[2] if "/" in path else "The agent"


class ChildTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The contract of a child that can write or run commands, in words.

    ```python
    async def approve(request: retinue.ApprovalRequest) -> bool:
        for child in request.children:
            print(child.role, "may use", child.tools, child.access, child.budget)
        return not any(child.network for child in request.children)
    ```
    """

    role: str
    task: str
    tools: tuple[str, ...]
    """The child's tools that write, run commands or act elsewhere."""
    access: str
    """Where it can write, and which network its commands have."""
    network: bool = False
    budget: str = ""
    files: str = ""
    """Whether it works in a copy."""

    @property
    def kind(self) -> str:
        """What "yes to all like this" means: the same role, tools, paths and network."""
        return f"{self.role} with {', '.join(self.tools)}; {self.access}"


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent wants to do that needs a person's yes.

    With `children`, the agent wants to spawn them; with `diff` too, the change of that one child
    is to be merged.

    ```python
    async def approve(request: retinue.ApprovalRequest) -> bool:
        print(request.path, "wants", request.tool, request.detail)
        print(request.preview or request.explanation)
        return request.tool == "write_file"

    person = retinue.Person(approve=approve)
    ```
    """

    path: str
    """The agent, as in `root/executor.1`."""
    tool: str
    arguments: str
    """Arguments of the call, as the model sent them."""
    why: ApprovalReason
    subject: str = ""
    """The command that would run."""
    scope: str = ""
    """Files and hosts that the call could touch, in words."""
    directory: str = ""
    """Where the command would run."""
    children: tuple[ChildTerms, ...] = ()
    diff: str = ""
    file: str = ""
    """The file that a tool would write."""
    preview: str = ""
    """The change that the call would make to that file, as a unified diff."""

    @property
    def rule(self) -> Rule:
        """What "always" would allow: the narrowest sensible rule."""
        return self.rules[0]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules for "yes to all like this": of children, one for each kind."""
        if self.file:
            return (file_rule(self.tool, self.file),)
        if not self.children:
            return (rule_for(self.tool, self.subject),)
        return tuple(dict.fromkeys(Rule(self.tool, child.kind) for child in self.children))

    @property
    def detail(self) -> str:
        """The action to approve: the command, or else all arguments."""
        return self.subject or self.arguments

    @property
    def explanation(self) -> str:
        """The reason for asking, unless it is the usual one, and what could be touched."""
        usual = (
            ApprovalReason.MODE,
            ApprovalReason.CALLS,
            ApprovalReason.CONTRACT,
            ApprovalReason.MERGE,
        )
        why = "" if self.why in usual else self.why
        return "; ".join(filter(None, (why, self.scope)))

    def covered_by(self, rules: Rules) -> Rule | None:
        """The rule by which a person has already agreed; None if there is none."""
        if self.children:
            return self._children_covered_by(rules)
        verdict, rule = rules.judge(
            self.tool, self.file or self.subject, is_command=not self.file, asked=True
        )
        return rule if verdict is Verdict.ALLOW else None

    def _children_covered_by(self, rules: Rules) -> Rule | None:
        """A rule for this kind of child. Rules that allow all its tools will do too."""

        def allowing(tool: str) -> Rule | None:
            return next((r for r in rules.allow if r.pattern == "*" and r.covers_tool(tool)), None)

        found = None
        for child in self.children:
            # Not `matches`: a * in a path that the model chose is no wildcard of the user's.
            own = Rule(self.tool, child.kind)
            found = allowing(self.tool) or (own if own in rules.allow else None)
            if found is None:
                by_tools = [allowing(name) for name in child.tools]
                if not child.network and all(by_tools):
                    found = by_tools[0]
            if found is None:
                return None
        return found


WRITING_TOOLS = ("write_file", "edit_file")
READING_TOOLS = ("read_file", "search_files")


class Rules(msgspec.Struct, frozen=True):
    """Rules of the user. `deny` goes before asking, and asking before `allow`.

    A rule that denies a path to a tool that writes denies it to every tool; see `denied_paths`.
    """

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()

    def judge(
        self, tool: str, subject: str, *, is_command: bool, asked: bool
    ) -> tuple[Verdict, Rule | None]:
        """Decide about a call, by a rule if one applies.

        `asked` says that the contract requires a person's yes. A rule that allows a command does
        not allow others inside it, or variables set for it (`PATH=. make`). A rule that denies a
        command denies it wherever it occurs.
        """
        if not is_command:
            return self._judge_path(tool, simplify_path(subject), asked=asked)
        texts = spellings(subject) if self.deny else ()
        for rule in self.deny:
            if any(rule.matches(tool, spelling) for spelling in texts):
                return Verdict.DENY, rule
        kind = classify(subject)
        if kind is Safety.READ_ONLY or not (asked or kind is Safety.DESTRUCTIVE):
            return Verdict.ALLOW, None
        allowed = self._allowing_command(tool, subject)
        return (Verdict.ALLOW if allowed else Verdict.ASK), allowed

    def covers(self, tool: str, subject: str, *, is_command: bool) -> bool:
        """Whether a rule of `allow` covers a call: the whole tool, or what the call acts on."""
        if any(rule.pattern == "*" and rule.covers_tool(tool) for rule in self.allow):
            return True
        if is_command:
            return self._allowing_command(tool, subject) is not None
        return self._judge_path(tool, simplify_path(subject), asked=True)[1] is not None

    def _allowing_command(self, tool: str, subject: str) -> Rule | None:
        # A wildcard must not let through more than the command that the user thought of.
        wildcards = is_plain(subject) and not has_git_side_effect(subject)
        same = (subject, single_spaced(subject))
        for rule in self.allow:
            if not wildcards and "*" in rule.pattern:
                continue
            if any(rule.matches(tool, text) for text in same):
                return rule
        return None

    @property
    def denied_paths(self) -> tuple[str, ...]:
        """Patterns of paths that no tool may change: of rules that deny writing them."""
        return self._paths_denied_to(WRITING_TOOLS)

    @property
    def unreadable_paths(self) -> tuple[str, ...]:
        """Patterns of paths that no tool may read: of rules that deny reading or searching them."""
        return self._paths_denied_to(READING_TOOLS)

    def _paths_denied_to(self, tools: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            simplify_path(rule.pattern)
            for rule in self.deny
            if rule.pattern != "*" and any(map(rule.covers_tool, tools))
        )

    def _judge_path(self, tool: str, path: str, *, asked: bool) -> tuple[Verdict, Rule | None]:
        def found(rules: Iterable[Rule]) -> Rule | None:
            return next(
                (r for r in rules if Rule(r.tool, simplify_path(r.pattern)).matches(tool, path)),
                None,
            )

        if denied := found(self.deny):
            return Verdict.DENY, denied
        if not asked:
            return Verdict.ALLOW, None
        allowed = found(self.allow)
        return (Verdict.ALLOW if allowed else Verdict.ASK), allowed
