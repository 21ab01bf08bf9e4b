"""Approval rules that a person has granted with "always", for as long as this process lives."""

from __future__ import annotations

import msgspec

from retinue.domain.approval import ApprovalRequest, Rule, Rules


class Consent:
    """The rules that were granted so far."""

    def __init__(self) -> None:
        self._rules: set[Rule] = set()

    def add(self, rule: Rule) -> None:
        self._rules.add(rule)

    def covers(self, request: ApprovalRequest) -> Rule | None:
        """The granted rule that already allows this request, if there is one."""
        return request.covered_by(Rules(allow=tuple(self._rules)))


def permanent_rule_hint(rule: Rule) -> str:
    """The line for the settings file that grants `rule` in every run."""
    quoted = msgspec.json.encode(str(rule)).decode()
    # TOML shares JSON's escapes, but not for every unprintable character; \\U works in TOML.
    shown = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
    return f"To allow it in every run, add to your settings: allow = [{shown}]"
