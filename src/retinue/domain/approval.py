"""What needs a person's word: rules of the user's, and a guess at what a command does.

None of it is the boundary, which is the sandbox; it decides only who is bothered when.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import dropwhile

import msgspec

from retinue.domain.paths import tidy
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


class Answer(StrEnum):
    """What was said to a wish; `NOBODY` was there to say anything."""

    YES = "yes"
    NO = "no"
    NOBODY = "nobody"


# What makes more than one plain command of a text: pipes, lists, substitutions, redirections.
_MORE = re.compile(r"[;&|<>$`(){}!#\\\n\r]")
_SPLIT = re.compile(r"[;&|<>$`(){}\n\r]+")
_REDIRECTION = re.compile(r"\d{0,2}[<>]{1,3}[&|]?[ \t]*[^\s;&|<>$`(){}]+")
# What may stand before the name of a command, which is not part of it.
_LEADING = re.compile(
    r"[A-Za-z_]\w*(\[.*\])?\+?=.*|!|coproc|do|elif|else|if|then|until|while", re.DOTALL
)
# What runs the command, or the text of one, that it is given.
_RUNNING = frozenset(
    {"ash", "bash", "busybox", "builtin", "chroot", "chrt", "command", "dash", "doas", "env",
     "eval", "exec", "fish", "flock", "ionice", "ksh", "nice", "nohup", "parallel", "script",
     "setsid", "sh", "stdbuf", "strace", "su", "sudo", "taskset", "time", "timeout", "unshare",
     "watch", "xargs", "zsh"}
)  # fmt: skip
_MANY = frozenset({"find", "parallel", "xargs"})
_FIND_RUNNING = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

# These write nothing and run nothing, whatever their options. Not among them, for all that they
# mostly read: awk, env, file (-C), find, less, man, rg (--pre), sed, sort (-o), tree (-o), uniq
# (its second file), xargs.
_READING = frozenset(
    {"basename", "cat", "cmp", "cut", "df", "diff", "dirname", "du", "echo", "false", "grep",
     "head", "id", "ls", "nl", "pwd", "printf", "realpath", "stat", "tail", "test", "tr", "true",
     "tty", "type", "uname", "wc", "which", "whoami"}
)  # fmt: skip


def _options(letters: str, names: str) -> re.Pattern[str]:
    """Bundles of these letters, with or without a number behind; and these names, in full."""
    return re.compile(rf"--|-[h{letters}]*[0-9]*|--({'|'.join(names.split())})(=.*)?", re.DOTALL)


_DIFF = """abbrev binary cached check color color-words compact-summary diff-algorithm diff-filter
 dirstat exit-code find-copies find-renames full-index function-context histogram
 ignore-all-space ignore-blank-lines ignore-space-at-eol ignore-space-change merge-base minimal
 name-only name-status no-color no-ext-diff no-patch no-prefix no-renames no-textconv numstat patch
 patch-with-stat patience quiet raw relative shortstat staged stat summary text unified word-diff"""
_LOG = f"""{_DIFF} abbrev-commit after all all-match author author-date-order before branches cherry
 cherry-mark cherry-pick children committer date date-order decorate extended-regexp first-parent
 fixed-strings follow format full-history graph grep invert-grep left-only left-right max-count
 merges min-parents no-abbrev-commit no-decorate no-merges no-notes no-walk oneline parents
 perl-regexp pickaxe-all pickaxe-regex pretty regexp-ignore-case remotes reverse right-only
 simplify-by-decoration since skip source tags topo-order until walk-reflogs"""
# Git takes any beginning of a long option for it, and its readers have some that write a file or
# run a program (--output, --ext-diff, grep -O), so only what is known here is let through.
_GIT_READING = {
    "blame": _options(
        "bCcefhLlMnpSstw",
        "abbrev date first-parent incremental line-porcelain porcelain reverse root show-email"
        " show-name show-number show-stats since",
    ),
    "describe": _options(
        "",
        "abbrev all always candidates contains dirty exact-match exclude first-parent long match"
        " tags",
    ),
    "diff": _options("aBbCDGIMpRrSsUuWwz", _DIFF),
    "grep": _options(
        "AaBCcEeFfGHhIiLlmnoPpqrvWwz",
        "after-context all-match and basic-regexp before-context break cached color column context"
        " count exclude-standard extended-regexp files-with-matches files-without-match"
        " fixed-strings function-context heading ignore-case invert-match line-number max-count"
        " max-depth name-only no-color no-index not null only-matching or perl-regexp quiet"
        " recursive show-function text untracked word-regexp",
    ),
    "log": _options("aBbCcDEFGgIiLMmnPpRrSstUuWwz", _LOG),
    "ls-files": _options(
        "cdfikmostuvxz",
        "abbrev cached deduplicate deleted directory eol error-unmatch exclude exclude-standard"
        " full-name ignored modified others stage unmerged",
    ),
    "ls-tree": _options("dlrtz", "abbrev full-name full-tree long name-only name-status"),
    "rev-parse": _options(
        "q",
        "abbrev-ref absolute-git-dir all branches git-common-dir git-dir is-bare-repository"
        " is-inside-git-dir is-inside-work-tree quiet remotes short show-cdup show-prefix"
        " show-toplevel symbolic symbolic-full-name tags verify",
    ),
    "shortlog": _options("cens", "all author email no-merges numbered since summary until"),
    "show": _options("aBbCcDEFGgIiLMmnPpRrSstUuWwz", _LOG),
    "status": _options(
        "bsuvz",
        "ahead-behind branch ignored long no-renames porcelain renames short show-stash"
        " untracked-files verbose",
    ),
}
_GIT_FURTHER = ("output", "ext-diff", "textconv", "open-files-in-pager")
# A file may be named like an option, and this would put it where options are read.
_ANY_NAME = re.compile(r"(?:^|\s)[*?\[]")
_ANY_OPTION = re.compile(r"(?:^|\s)(?:-\S*)?[*?\[]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

_DESTROYING = frozenset(
    {"dd", "doas", "fdisk", "halt", "mkfs", "poweroff", "reboot", "shred", "shutdown", "sudo",
     "wipefs"}
)  # fmt: skip
_GIT_DESTROYING = frozenset({"clean", "filter-branch", "prune", "push", "reset"})
_GIT_WITH_VALUE = frozenset(
    {"-C", "-c", "--config-env", "--exec-path", "--git-dir", "--namespace", "--work-tree"}
)
# How deep, and how far, commands are looked for in the arguments of others.
_NESTED = 4
_FURTHER = 64


def safety(command: str) -> Safety:
    """A guess. Where a text is more than one plain command, it is never read-only."""
    if not _MORE.search(command) and _only_reads(command):
        return Safety.READ_ONLY
    if any(_destroys(words, many) for words, many in _commands(command)):
        return Safety.DESTRUCTIVE
    return Safety.CHANGING


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return re.sub(r"[\"'\\]", "", command).split()


def _only_reads(command: str) -> bool:
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    match words:
        case ["git", "--no-pager", sub, *rest] | ["git", sub, *rest]:
            known = _GIT_READING.get(sub)
            return (
                known is not None
                and not _ANY_NAME.search(_QUOTED.sub("", command))
                and all(known.fullmatch(word) for word in rest if word.startswith("-"))
            )
        case ["date"]:
            return True  # With anything else it may set the clock.
        case [name, *_]:
            return name in _READING
    return False


def _commands(text: str, depth: int = 0) -> Iterator[tuple[list[str], bool]]:
    """What a text could run, each as words from its name on; and whether on many things at once.

    Rather too much than too little: quotes are not looked at where a text is taken apart.
    """
    text = text.replace("\\\n", "")
    for part in {*_SPLIT.split(text), *_SPLIT.split(_REDIRECTION.sub(" ", text))}:
        words = _from_name(_words(part))
        if not words:
            continue
        yield words, False
        many = not _MANY.isdisjoint(words)
        inner: Iterable[int] = range(1, min(len(words), _FURTHER))
        if words[0] not in _RUNNING:
            inner = [at + 1 for at, word in enumerate(words[:-1]) if word in _FIND_RUNNING]
        for at in inner:
            if rest := _from_name(words[at:]):
                yield rest, many
            # One word may be a whole text, as that of `sh -c`.
            if depth < _NESTED and re.search(r"\s", words[at]):
                yield from _commands(words[at], depth + 1)


def _from_name(words: Sequence[str]) -> list[str]:
    """A command from its name on; for git, without the options before what it is to do."""
    rest = list(dropwhile(_LEADING.fullmatch, words))
    if rest:
        rest[0] = rest[0].rpartition("/")[2]
    while rest[:1] == ["git"] and len(rest) > 1 and rest[1].startswith("-"):
        del rest[1 : 3 if rest[1] in _GIT_WITH_VALUE else 2]
    return rest


def _destroys(words: Sequence[str], many: bool) -> bool:
    name, *rest = words
    match name:
        case "rm":
            forced = re.compile(r"-\w*[rRf]\w*|--(r|f)[a-z]*")
            return many or any(forced.fullmatch(word) for word in rest)
        case "git":
            return rest[:1] != [] and rest[0] in _GIT_DESTROYING
        case "find":
            return "-delete" in rest
    return name in _DESTROYING or name.startswith("mkfs.")


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
    if _LEADING.fullmatch(words[0]) or words[0].rpartition("/")[2] in _RUNNING:
        return Rule(tool, subject)  # It says nothing yet of what is done.
    known = 2 if len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1]) else 1
    return Rule(tool, " ".join((*words[:known], "*")))


class Why(StrEnum):
    """Why a person is asked."""

    MODE = "its mode asks first"
    DESTRUCTIVE = "it destroys things"
    STRANGERS = "it has read text that nobody vouches for"
    CALLS = "it has made many calls"
    RULE = "a rule is about it"


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
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

    def covered_by(self, rules: Rules) -> Rule | None:
        """The rule by which a person has said yes to this already."""
        verdict, rule = rules.ruling(self.tool, self.subject, is_command=True, asked=True)
        return rule if verdict is Verdict.ALLOW else None


class Rules(msgspec.Struct, frozen=True):
    """`deny` before asking, asking before `allow`."""

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()

    def judge(self, tool: str, subject: str, *, is_command: bool, asked: bool) -> Verdict:
        """What to do about a call; `asked` says that the contract wants a person's yes.

        A rule that allows one command does not allow others that are hidden in it, nor what is set
        for it (`PATH=. make`); one that denies a command denies it wherever it is seen.
        """
        return self.ruling(tool, subject, is_command=is_command, asked=asked)[0]

    def ruling(
        self, tool: str, subject: str, *, is_command: bool, asked: bool
    ) -> tuple[Verdict, Rule | None]:
        """As `judge`, with the rule that decides, where there would be a question without it."""
        if not is_command:
            return self._judge_path(tool, tidy(subject), asked=asked)
        spellings = _spellings(subject) if self.deny else ()
        for rule in self.deny:
            if any(rule.fits(tool, spelling) for spelling in spellings):
                return Verdict.DENY, rule
        kind = safety(subject)
        if kind is Safety.READ_ONLY or not (asked or kind is Safety.DESTRUCTIVE):
            return Verdict.ALLOW, None
        wild = not _MORE.search(subject) and not _goes_further(subject)
        told = (subject, _single_spaced(subject))
        for rule in self.allow:
            if (wild or "*" not in rule.pattern) and any(rule.fits(tool, text) for text in told):
                return Verdict.ALLOW, rule
        return Verdict.ASK, None

    def _judge_path(self, tool: str, path: str, *, asked: bool) -> tuple[Verdict, Rule | None]:
        def found(rules: Iterable[Rule]) -> Rule | None:
            return next((r for r in rules if Rule(r.tool, tidy(r.pattern)).fits(tool, path)), None)

        if denied := found(self.deny):
            return Verdict.DENY, denied
        if not asked:
            return Verdict.ALLOW, None
        allowed = found(self.allow)
        return (Verdict.ALLOW if allowed else Verdict.ASK), allowed


def _goes_further(command: str) -> bool:
    """Has a git that only reads an option by which it writes a file, or runs a program?

    Whoever allowed `git log *` did not mean `git log --output=notes.md`. Git takes any beginning of
    an option for it.
    """
    match _words(command):
        case ["git", sub, *rest] if sub in _GIT_READING:
            names = [word[2:].partition("=")[0] for word in rest if word.startswith("--")]
            return (
                _ANY_OPTION.search(_QUOTED.sub("", command)) is not None
                or any(word.startswith("-O") for word in rest)
                or any(
                    name and (further.startswith(name) or name.startswith(further))
                    for name in names
                    for further in _GIT_FURTHER
                )
            )
    return False


def _spellings(command: str) -> set[str]:
    """All that a rule against a command in it could mean."""
    parts = {command, *_SPLIT.split(command)}
    found = {_single_spaced(part) for part in parts} | {part.strip() for part in parts}
    return found | {" ".join(words) for words, _ in _commands(command)}


def _single_spaced(command: str) -> str:
    """A command with one blank between words, unless there is some inside of one."""
    if re.search(r"[\"'\\]", command):
        return command.strip()
    return re.sub(r"[ \t]+", " ", command).strip()
