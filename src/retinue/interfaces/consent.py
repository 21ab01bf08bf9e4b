"""What a person has said "always" to, for as long as this process lives."""

from __future__ import annotations

import msgspec

from retinue.domain.approval import Rule, Rules, Verdict, rule_for
from retinue.runtime.toolbox import subject_of

COMMAND = "run_command"


class Consent:
    def __init__(self) -> None:
        self._rules: set[Rule] = set()

    def rule(self, tool: str, arguments: str) -> Rule:
        """What "always" would mean for this call. For a write that is writing, not this file."""
        return rule_for(tool, _subject(tool, arguments))

    def add(self, rule: Rule) -> None:
        self._rules.add(rule)

    def covers(self, tool: str, arguments: str) -> bool:
        """Need nobody be asked about this call?"""
        rules = Rules(allow=tuple(self._rules))
        subject = _subject(tool, arguments)
        return rules.judge(tool, subject, is_command=True, asked=True) is Verdict.ALLOW


def for_good(rule: Rule) -> str:
    """How a person is spared the question in the runs to come."""
    return f"For good: allow = [{msgspec.json.encode(str(rule)).decode()}] in your settings."


def _subject(tool: str, arguments: str) -> str:
    if tool != COMMAND:
        return ""
    try:
        found = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return ""
    return subject_of(found) if isinstance(found, dict) else ""
