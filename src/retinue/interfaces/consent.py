"""What a person has said "always" to, for as long as this process lives."""

from __future__ import annotations

import msgspec

from retinue.domain.approval import ApprovalRequest, Rule, Rules


class Consent:
    def __init__(self) -> None:
        self._rules: set[Rule] = set()

    def add(self, rule: Rule) -> None:
        self._rules.add(rule)

    def covers(self, wish: ApprovalRequest) -> Rule | None:
        """The rule for which nobody need be asked about this."""
        return wish.covered_by(Rules(allow=tuple(self._rules)))


def for_good(rule: Rule) -> str:
    """How a person is spared the question in the runs to come."""
    quoted = msgspec.json.encode(str(rule)).decode()
    # As TOML has them too; what is written there must still be the same command.
    shown = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return f"For good: allow = [{shown}] in your settings."
