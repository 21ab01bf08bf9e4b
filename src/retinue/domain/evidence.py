"""Finds claims that tests pass which nothing supports.

Such a claim is supported by acceptance checks that passed, or by a command of the agent or of one
of its children that ran tests and succeeded after the last change. A command succeeds by its exit
code, so only those parts of a command count that decide its exit code: `pytest | tail` has the exit
code of `tail`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from retinue.domain.result import Receipt

_CLAIM = re.compile(
    r"\b(?:tests?|specs?|test suite|checks?|suite|build)\b[^.!?\n]{0,60}?"
    r"\b(?:pass(?:es|ed|ing)?|succeed(?:s|ed)?|(?:is|are) green)\b"
    r"|\b\d+ (?:tests? )?passed\b"
    r"|\ball (?:green|passing)\b",
    re.IGNORECASE,
)
# A sentence with an intention, a condition or a negation is not a claim.
_NO_CLAIM = re.compile(
    r"\b(?:not|no|never|cannot|can't|won't|don't|doesn't|didn't|couldn't|wasn't|weren't|isn't|aren't"
    r"|should|would|will|could|might|may|must|if|once|until|unless|whether|ensure|make sure|so that"
    r"|to make|fails?|failed|failing|before|without)\b",
    re.IGNORECASE,
)
_TESTING = re.compile(
    r"(?:\b|_)(?:py)?tests?(?:\b|_)|unittest|\b(?:tox|nox|jest|vitest|mocha|rspec|ctest|phpunit|karma|ava|bats)\b"
    r"|\bmake (?:check|verify)\b|\bnpm t\b|\bmvn\b|\bgradlew?\b|\bcheck\b",
    re.IGNORECASE,
)
_NO_TEST_PROGRAMS = frozenset({
    "[", "awk", "cat", "cd", "command", "cp", "diff", "echo", "egrep", "export", "file", "find",
    "git", "grep", "head", "ls", "less", "mkdir", "more", "mv", "nl", "printf", "pwd", "rg",
    "rm", "sed", "sort", "stat", "tail", "tee", "test", "touch", "tree", "true", "type", "wc",
    "which", "xxd",
})  # fmt: skip
"""Programs that do not run tests, although their arguments may name some."""
_NO_RUN_OPTIONS = frozenset({
    "--version", "--help", "-h", "--collect-only", "--co", "--dry-run", "--listTests", "install",
})  # fmt: skip
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_FAILING = frozenset({"exit", "false", "return"})
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
MAX_CHARS = 160


def unverified(response: str, *, tested: bool) -> str:
    """The first sentence of `response` that claims that tests pass; "" if they were `tested`."""
    # Fast path: most answers contain none of these words.
    words = "" if tested else response.lower()
    if "pass" not in words and "succe" not in words and "green" not in words:
        return ""
    claim = _claim(response)
    return claim if len(claim) <= MAX_CHARS else claim[: MAX_CHARS - 1] + "…"


def still_tested(before: bool, receipt: Receipt) -> bool:
    """Whether tests have passed since the last change of a file, after the call of `receipt`."""
    is_test_run = receipt.tool == "run_tests" or ran_tests(receipt.command or "")
    if receipt.exit_code == 0 and is_test_run:
        return True
    return before and not receipt.changed


def ran_tests(command: str) -> bool:
    """Whether the success of `command` shows that tests ran and passed."""
    if not _TESTING.search(command):
        return False
    try:
        return any(map(_is_test_run, _decisive(command)))
    except ValueError:
        return False  # What cannot be parsed, no shell has run.


def _decisive(command: str) -> Iterator[Sequence[str]]:
    """The words of each program that must have succeeded if `command` has."""
    lexer = shlex.shlex(command.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    statements: list[list[str]] = [[]]
    for token in lexer:
        if token in (";", "&", "(", ")", ";;"):
            statements.append([])
        else:
            statements[-1].append(token)
    written = [statement for statement in statements if statement]
    stops_on_error = bool(written) and (
        written[0][0] == "set" and any(re.match(r"-\w*e", word) for word in written[0][1:])
    )
    decisive = written if stops_on_error else written[-1:]
    for statement in decisive:
        certain, _, otherwise = _split(statement, "||")
        if otherwise and otherwise[0] not in _FAILING:
            continue
        while certain:
            pipeline, _, certain = _split(certain, "&&")
            while "|" in pipeline:
                _, _, pipeline = _split(pipeline, "|")
            yield pipeline


def _split(words: Sequence[str], at: str) -> tuple[Sequence[str], str, Sequence[str]]:
    if at not in words:
        return words, "", ()
    place = words.index(at)
    return words[:place], at, words[place + 1 :]


def _is_test_run(words: Sequence[str]) -> bool:
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if not words or _NO_RUN_OPTIONS & {*words}:
        return False
    program = words[0].rpartition("/")[2]
    if program in _SHELLS and "-c" in words[:-1]:
        return ran_tests(words[words.index("-c") + 1])
    if program in _NO_TEST_PROGRAMS or (program.startswith("python") and "-c" in words):
        return False
    return _TESTING.search(" ".join(words)) is not None


def _claim(response: str) -> str:
    for sentence in _SENTENCE.split(response):
        if _CLAIM.search(sentence) and not _NO_CLAIM.search(sentence):
            return " ".join(sentence.split())
    return ""
