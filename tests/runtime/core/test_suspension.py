"""Suspending a run: the callback is called once, when no agent is busy any more."""

from __future__ import annotations

from retinue.runtime.core.suspension import Suspension


def test_callback_is_called_once_when_idle() -> None:
    suspension, busy, calls = Suspension(), True, list[str]()
    suspension.request("stop", is_busy=lambda: busy, when_idle=lambda: calls.append("idle"))
    assert suspension.reason == "stop"
    suspension.check_idle()
    assert calls == []
    busy = False
    suspension.check_idle()
    suspension.check_idle()
    assert calls == ["idle"]


def test_callback_is_called_at_once_without_busy_agents() -> None:
    calls: list[str] = []
    Suspension().request("stop", is_busy=lambda: False, when_idle=lambda: calls.append("idle"))
    assert calls == ["idle"]
