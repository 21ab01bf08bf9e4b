"""Approval rules that a person has granted."""

from __future__ import annotations

import tomllib

from retinue.domain.approval import Rule
from retinue.interfaces.consent import permanent_rule_hint

TITLE, CSI, RIGHT_TO_LEFT = "\x1b]0;taken over\x07", "\x9b31m", "\u202e"


EVIL = f"evil {TITLE}{CSI}{RIGHT_TO_LEFT} words"


def test_rule_hint_is_valid_toml() -> None:
    rule = Rule("run_command", f"echo {EVIL}")
    text = permanent_rule_hint(rule)
    assert text.isprintable()
    (read,) = tomllib.loads(text.rpartition("your settings: ")[2])["allow"]
    assert read == str(rule)
