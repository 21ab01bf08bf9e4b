"""What a person has said "always" to, for as long as this process lives."""

from __future__ import annotations

import msgspec

from retinue.domain.approval import Rule, Rules, Wish


class Consent:
    def __init__(self) -> None:
        self._rules: set[Rule] = set()

    def add(self, rule: Rule) -> None:
        self._rules.add(rule)

    def covers(self, wish: Wish) -> Rule | None:
        """The rule for which nobody need be asked about this."""
        return wish.covered_by(Rules(allow=tuple(self._rules)))


def for_good(rule: Rule) -> str:
    """How a person is spared the question in the runs to come."""
    return f"For good: allow = [{msgspec.json.encode(str(rule)).decode()}] in your settings."
