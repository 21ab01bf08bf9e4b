"""Helpers for your tests: a scripted model, a clock that you move, servers, conformance suites.

    from retinue.testing import ScriptedModel, call, say

    model = ScriptedModel([call("read_file", path="a.txt"), say("It is empty.")])

With `pytest_plugins = ["retinue.testing.plugin"]` in your `conftest.py`, pytest has fixtures for a
scripted runtime, recorded runs, a clock and a workspace; see `retinue.testing.plugin`.
"""

from __future__ import annotations

from retinue.models.replay.model import ReplayModel
from retinue.models.scripted.model import (
    ScriptedModel,
    ScriptedReply,
    call,
    calls,
    fail,
    hold,
    say,
    think,
)
from retinue.testing.clock import FakeClock
from retinue.testing.model_contract import ModelContract

__all__ = [
    "FakeClock", "ModelContract", "ReplayModel", "ScriptedModel", "ScriptedReply", "call", "calls",
    "fail", "hold", "say", "think",
]  # fmt: skip
