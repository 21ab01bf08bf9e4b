"""A guess at what a shell command does, from its text alone.

The guess decides only when a person is asked. The sandbox is the security boundary, not the guess.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from itertools import dropwhile


class Safety(StrEnum):
    """What a command does, as far as its text shows."""

    READ_ONLY = "read-only"
    CHANGING = "changing"
    DESTRUCTIVE = "destructive"


# Pipes, lists, substitutions and redirections: with them, a text is more than one plain command.
_SHELL_SYNTAX = re.compile(r"[;&|<>$`(){}!#\\\n\r]")
_SPLIT = re.compile(r"[;&|<>$`(){}\n\r]+")
_REDIRECTION = re.compile(r"\d{0,2}[<>]{1,3}[&|]?[ \t]*[^\s;&|<>$`(){}]+")
# Assignments and keywords that may stand before the name of a command.
_PREFIX = re.compile(
    r"[A-Za-z_]\w*(\[.*\])?\+?=.*|!|coproc|do|elif|else|if|then|until|while", re.DOTALL
)
# Programs that run the command, or the shell text, that they are given.
_RUNNERS = frozenset(
    {"ash", "bash", "busybox", "builtin", "chroot", "chrt", "command", "dash", "doas", "env",
     "eval", "exec", "fish", "flock", "ionice", "ksh", "nice", "nohup", "parallel", "script",
     "setsid", "sh", "stdbuf", "strace", "su", "sudo", "taskset", "time", "timeout", "unshare",
     "watch", "xargs", "zsh"}
)  # fmt: skip
_BATCH_RUNNERS = frozenset({"find", "parallel", "xargs"})
_FIND_RUNNING = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

# These write nothing and run nothing, whatever their options. Left out although they mostly
# read: awk, env, file (-C), find, less, man, rg (--pre), sed, sort (-o), tree (-o), uniq
# (its second file), xargs.
_READERS = frozenset(
    {"basename", "cat", "cmp", "cut", "df", "diff", "dirname", "du", "echo", "false", "grep",
     "head", "id", "ls", "nl", "pwd", "printf", "realpath", "stat", "tail", "test", "tr", "true",
     "tty", "type", "uname", "wc", "which", "whoami"}
)  # fmt: skip


@cache
def _options(letters: str, names: str) -> re.Pattern[str]:
    """Matches bundles of these letters, with an optional number, and these long names in full."""
    # Compiled when a command needs it, since all of them take 7 ms of each start.
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
# Git accepts any prefix of a long option, and reading commands have options that write a file or
# run a program (--output, --ext-diff, grep -O). So only the options listed here pass.
_GIT_READING = {
    "blame": (
        "bCcefhLlMnpSstw",
        "abbrev date first-parent incremental line-porcelain porcelain reverse root show-email"
        " show-name show-number show-stats since",
    ),
    "describe": (
        "",
        "abbrev all always candidates contains dirty exact-match exclude first-parent long match"
        " tags",
    ),
    "diff": ("aBbCDGIMpRrSsUuWwz", _DIFF),
    "grep": (
        "AaBCcEeFfGHhIiLlmnoPpqrvWwz",
        "after-context all-match and basic-regexp before-context break cached color column context"
        " count exclude-standard extended-regexp files-with-matches files-without-match"
        " fixed-strings function-context heading ignore-case invert-match line-number max-count"
        " max-depth name-only no-color no-index not null only-matching or perl-regexp quiet"
        " recursive show-function text untracked word-regexp",
    ),
    "log": ("aBbCcDEFGgIiLMmnPpRrSstUuWwz", _LOG),
    "ls-files": (
        "cdfikmostuvxz",
        "abbrev cached deduplicate deleted directory eol error-unmatch exclude exclude-standard"
        " full-name ignored modified others stage unmerged",
    ),
    "ls-tree": ("dlrtz", "abbrev full-name full-tree long name-only name-status"),
    "rev-parse": (
        "q",
        "abbrev-ref absolute-git-dir all branches git-common-dir git-dir is-bare-repository"
        " is-inside-git-dir is-inside-work-tree quiet remotes short show-cdup show-prefix"
        " show-toplevel symbolic symbolic-full-name tags verify",
    ),
    "shortlog": ("cens", "all author email no-merges numbered since summary until"),
    "show": ("aBbCcDEFGgIiLMmnPpRrSstUuWwz", _LOG),
    "status": (
        "bsuvz",
        "ahead-behind branch ignored long no-renames porcelain renames short show-stash"
        " untracked-files verbose",
    ),
}
_GIT_SIDE_EFFECTS = ("output", "ext-diff", "textconv", "open-files-in-pager")
# A file may be named like an option, and an unquoted wildcard would pass its name as one.
_LEADING_WILDCARD = re.compile(r"(?:^|\s)[*?\[]")
_OPTION_WILDCARD = re.compile(r"(?:^|\s)(?:-\S*)?[*?\[]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

_DESTROYERS = frozenset(
    {"dd", "doas", "fdisk", "halt", "mkfs", "poweroff", "reboot", "shred", "shutdown", "sudo",
     "wipefs"}
)  # fmt: skip
_GIT_DESTROYING = frozenset({"clean", "filter-branch", "prune", "push", "reset"})
_GIT_WITH_VALUE = frozenset(
    {"-C", "-c", "--config-env", "--exec-path", "--git-dir", "--namespace", "--work-tree"}
)
# How deep, and in how many words, commands are looked for in the arguments of others.
_MAX_DEPTH = 4
_MAX_WORDS = 64


def classify(command: str) -> Safety:
    """Classify a command. A text that is more than one plain command is never READ_ONLY."""
    if not _SHELL_SYNTAX.search(command) and _only_reads(command):
        return Safety.READ_ONLY
    if any(_destroys(words, many) for words, many in commands_in(command)):
        return Safety.DESTRUCTIVE
    return Safety.CHANGING


def split_words(command: str) -> list[str]:
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
                and not _LEADING_WILDCARD.search(_QUOTED.sub("", command))
                and all(_options(*known).fullmatch(w) for w in rest if w.startswith("-"))
            )
        case ["date"]:
            return True  # With anything else it may set the clock.
        case [name, *_]:
            return name in _READERS
    return False


def commands_in(text: str, depth: int = 0) -> Iterator[tuple[list[str], bool]]:
    """Every command that `text` could run, as words from its name on.

    The flag says that the command runs on many files at once. The result has rather too many
    commands than too few: the text is split without regard to quotes.
    """
    text = text.replace("\\\n", "")
    for part in {*_SPLIT.split(text), *_SPLIT.split(_REDIRECTION.sub(" ", text))}:
        words = _from_name(split_words(part))
        if not words:
            continue
        yield words, False
        many = not _BATCH_RUNNERS.isdisjoint(words)
        inner: Iterable[int] = range(1, min(len(words), _MAX_WORDS))
        if words[0] not in _RUNNERS:
            inner = [at + 1 for at, word in enumerate(words[:-1]) if word in _FIND_RUNNING]
        for at in inner:
            if rest := _from_name(words[at:]):
                yield rest, many
            # One word may be a whole shell text, as after `sh -c`.
            if depth < _MAX_DEPTH and re.search(r"\s", words[at]):
                yield from commands_in(words[at], depth + 1)


def _from_name(words: Sequence[str]) -> list[str]:
    """A command from its name on; for git, without the options before the subcommand."""
    rest = list(dropwhile(_PREFIX.fullmatch, words))
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
    return name in _DESTROYERS or name.startswith("mkfs.")


def is_plain(command: str) -> bool:
    """Whether `command` is a single command without shell syntax."""
    return not _SHELL_SYNTAX.search(command)


def runs_its_arguments(words: Sequence[str]) -> bool:
    """Whether the first word says nothing about what is done: `sudo …`, `env …`, `X=1 …`."""
    return bool(_PREFIX.fullmatch(words[0])) or words[0].rpartition("/")[2] in _RUNNERS


def has_git_side_effect(command: str) -> bool:
    """Whether a reading git command has an option that writes a file or runs a program.

    A rule that allows `git log *` does not mean `git log --output=notes.md`. Git accepts any prefix
    of an option.
    """
    match split_words(command):
        case ["git", sub, *rest] if sub in _GIT_READING:
            names = [word[2:].partition("=")[0] for word in rest if word.startswith("--")]
            return (
                _OPTION_WILDCARD.search(_QUOTED.sub("", command)) is not None
                or any(word.startswith("-O") for word in rest)
                or any(
                    name and (option.startswith(name) or name.startswith(option))
                    for name in names
                    for option in _GIT_SIDE_EFFECTS
                )
            )
    return False


def spellings(command: str) -> set[str]:
    """Every text that a rule against a command in `command` is compared with."""
    parts = {command, *_SPLIT.split(command)}
    found = {single_spaced(part) for part in parts} | {part.strip() for part in parts}
    return found | {" ".join(words) for words, _ in commands_in(command)}


def single_spaced(command: str) -> str:
    """`command` with single spaces between words; unchanged if quotes may hold spaces."""
    if re.search(r"[\"'\\]", command):
        return command.strip()
    return re.sub(r"[ \t]+", " ", command).strip()
