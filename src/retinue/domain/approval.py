"""What needs a person's word: rules of the user's, and a guess at what a command does.

None of it is the boundary, which is the sandbox; it decides only who is bothered when.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from retinue.errors import ConfigError


class Safety(StrEnum):
    """What a command does, as far as one can tell by looking at it."""

    READ_ONLY = "read-only"
    CHANGING = "changing"
    DESTRUCTIVE = "destructive"


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


# What makes more than one plain command of a text: pipes, lists, substitutions, redirections.
_MORE = re.compile(r"[;&|<>$`(){}!#\\\n\r]")
_SPLIT = re.compile(r"[;&|<>$`(){}\n\r]+")
# By name alone; what `uniq` or `file` could write to is the sandbox's business.
_READING = frozenset(
    {"basename", "cat", "cmp", "cut", "date", "df", "diff", "dirname", "du", "echo", "false",
     "file", "grep", "head", "id", "ls", "nl", "pwd", "printf", "realpath", "stat", "tail", "test",
     "tr", "true", "tty", "type", "uname", "uniq", "wc", "which", "whoami"}
)  # fmt: skip
_GIT_READING = frozenset(
    {"blame", "describe", "diff", "grep", "log", "ls-files", "ls-tree", "rev-parse", "shortlog",
     "show", "status"}
)  # fmt: skip
# Options by which a command that reads writes, or runs another one.
_TURNED = re.compile(r"-(o|O|-output|-ext-diff|-open-files-in-pager|c|-exec).*")
_DESTROYING = frozenset(
    {"dd", "fdisk", "halt", "mkfs", "poweroff", "reboot", "shred", "shutdown", "sudo", "wipefs"}
)
_GIT_DESTROYING = frozenset({"clean", "filter-branch", "prune", "push", "reset"})
# What runs the command that comes after it.
_BEFORE = frozenset(
    {"command", "do", "else", "env", "exec", "nice", "nohup", "then", "time", "timeout", "xargs"}
)


def safety(command: str) -> Safety:
    """A guess. Where a text is more than one plain command, it is never read-only."""
    words = _words(command)
    if words and not _MORE.search(command) and _only_reads(words):
        return Safety.READ_ONLY
    if any(_destroys(_words(part)) for part in _SPLIT.split(command)):
        return Safety.DESTRUCTIVE
    return Safety.CHANGING


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _only_reads(words: Sequence[str]) -> bool:
    name, *rest = words
    if any(_TURNED.fullmatch(word) for word in rest):
        return False
    if name == "git":
        return bool(rest) and rest[0] in _GIT_READING
    return name in _READING


def _destroys(words: Sequence[str]) -> bool:
    names = [word.rpartition("/")[2] for word in words]
    for at, name in enumerate(names):
        rest = names[at + 1 :]
        if at and not _BEFORE.intersection(names[:at]):
            return False
        if name in _DESTROYING or name.startswith("mkfs."):
            return True
        if name == "rm" and any(re.fullmatch(r"-\w*[rRf]\w*|--(recursive|force)", w) for w in rest):
            return True
        if name == "git" and any(word in _GIT_DESTROYING for word in rest[:3]):
            return True
        if name == "find" and "-delete" in rest:
            return True
    return False


class Rule(msgspec.Struct, frozen=True, gc=False):
    """A tool, and a pattern for what it is used on: `run_command(git log *)`; * is anything."""

    tool: str
    pattern: str = "*"

    def __str__(self) -> str:
        return self.tool if self.pattern == "*" else f"{self.tool}({self.pattern})"

    def fits(self, tool: str, subject: str) -> bool:
        if not fnmatchcase(tool, self.tool):
            return False
        # `git log *` means `git log` as well, and never `git logout`.
        whole = self.pattern.removesuffix(" *")
        return self.pattern == "*" or _like(subject, self.pattern) or subject == whole


def _like(text: str, pattern: str) -> bool:
    """Only * means something: brackets and question marks are common in commands."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def rule(text: str) -> Rule:
    """Read a rule. ConfigError for what is none."""
    found = re.fullmatch(r"([A-Za-z0-9_*-]+)(?:\((.+)\))?", text.strip(), re.DOTALL)
    if found is None:
        raise ConfigError(
            f"{text!r} is no rule; write a tool, or a tool and a pattern: run_command(git log *)."
        )
    return Rule(found[1], (found[2] or "*").strip())


def rule_for(tool: str, subject: str) -> Rule:
    """What a person means by "always" to this: the command and what it is to do, not its details.

    Where that cannot be told, exactly this.
    """
    words = _words(subject)
    if not words or _MORE.search(subject) or safety(subject) is Safety.DESTRUCTIVE:
        return Rule(tool, subject or "*")
    known = 2 if len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1]) else 1
    return Rule(tool, " ".join((*words[:known], "*")))


class Why(StrEnum):
    """Why a person is asked."""

    MODE = "its mode asks first"
    DESTRUCTIVE = "it destroys things"
    STRANGERS = "it has read text that nobody vouches for"
    CALLS = "it has made many calls"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent wants that needs a person's yes.

    `path` says who wants it, as in `root/executor.1`; `arguments` are those of the call. `subject`
    is the command, and `scope` what it could touch, in words.
    """

    path: str
    tool: str
    arguments: str
    why: Why
    subject: str = ""
    scope: str = ""

    @property
    def rule(self) -> Rule:
        """What "always" would mean. For a write that is writing, not this file."""
        return rule_for(self.tool, self.subject)

    @property
    def detail(self) -> str:
        """What is to be done: the command, else all that the model sent."""
        return self.subject or self.arguments

    @property
    def terms(self) -> str:
        """Why a person is asked, unless they always are, and what could be touched."""
        why = "" if self.why in (Why.MODE, Why.CALLS) else self.why
        return "; ".join(filter(None, (why, self.scope)))

    def covered_by(self, rules: Rules) -> bool:
        """Has a person said yes to this already?"""
        told = rules.judge(self.tool, self.subject, is_command=True, asked=True)
        return told is Verdict.ALLOW


class Rules(msgspec.Struct, frozen=True):
    """`deny` before asking, asking before `allow`."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()

    def judge(self, tool: str, subject: str, *, is_command: bool, asked: bool) -> Verdict:
        """What to do about a call; `asked` says that the contract wants a person's yes.

        A rule that allows one command does not allow others that are hidden in it.
        """
        parts = [subject, *(part.strip() for part in _SPLIT.split(subject))]
        if any(
            r.fits(tool, part) for r in self.deny for part in (parts if is_command else [subject])
        ):
            return Verdict.DENY
        kind = safety(subject) if is_command else Safety.CHANGING
        plain = not is_command or not _MORE.search(subject)
        allowed = any(r.fits(tool, subject) for r in self.allow if plain or "*" not in r.pattern)
        if allowed or (not asked and kind is not Safety.DESTRUCTIVE):
            return Verdict.ALLOW
        return Verdict.ALLOW if kind is Safety.READ_ONLY else Verdict.ASK
