"""What the harness saw, against what an agent says: claims that no receipt bears out.

A claim that tests pass is borne out by acceptance checks that passed, or by a command that ran
tests and succeeded after the last change: one of the agent's own, or of a child that worked for it.
"""

from __future__ import annotations

import re

from retinue.domain.result import Receipt

_CLAIM = re.compile(
    r"\b(?:tests?|specs?|test suite|checks?|suite|build)\b[^.!?\n]{0,60}?"
    r"\b(?:pass(?:es|ed|ing)?|succeed(?:s|ed)?|(?:is|are) green)\b"
    r"|\b\d+ (?:tests? )?passed\b"
    r"|\ball (?:green|passing)\b",
    re.IGNORECASE,
)
# Wishes, conditions and denials are no claims.
_NO_CLAIM = re.compile(
    r"\b(?:not|no|never|cannot|can't|won't|don't|doesn't|didn't|couldn't|wasn't|weren't|isn't|aren't"
    r"|should|would|will|could|might|may|must|if|once|until|unless|whether|ensure|make sure|so that"
    r"|to make|fails?|failed|failing|before|without)\b",
    re.IGNORECASE,
)
_TESTING = re.compile(
    r"\b(?:py)?tests?\b|unittest|\b(?:tox|nox|jest|vitest|mocha|rspec|ctest|phpunit|karma|ava|bats)\b"
    r"|\bmake (?:check|verify)\b|\bnpm t\b|\bmvn\b|\bgradlew?\b|\bcheck\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
MAX_CHARS = 160


def unverified(response: str, *, tested: bool) -> str:
    """The first sentence of `response` that claims what nothing shows; "" if there is none."""
    # Most answers speak of nothing of the kind, and are not read closely.
    if tested or ("pass" not in response and "succe" not in response and "green" not in response):
        return ""
    claim = _claim(response)
    return claim if len(claim) <= MAX_CHARS else claim[: MAX_CHARS - 1] + "…"


def still_tested(before: bool, receipt: Receipt) -> bool:
    """Have tests gone well since the files last changed, after what `receipt` tells of?"""
    if receipt.exit_code == 0 and _TESTING.search(receipt.command or ""):
        return True
    return before and not receipt.changed


def _claim(response: str) -> str:
    for sentence in _SENTENCE.split(response):
        if _CLAIM.search(sentence) and not _NO_CLAIM.search(sentence):
            return " ".join(sentence.split())
    return ""
