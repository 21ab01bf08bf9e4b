"""Suspending a run: the callback is called once, when no agent is busy any more."""

from __future__ import annotations

from retinue.runtime.core.suspension import Suspension


def test_callback_is_called_once_when_idle() -> None:
    busy, calls = True, list[str]()
    suspension = Suspension(lambda: busy)
    suspension.request("stop", lambda: calls.append("idle"))
    assert suspension.reason == "stop"
    suspension.check_idle()
    assert calls == []
    busy = False
    suspension.check_idle()
    suspension.check_idle()
    assert calls == ["idle"]


def test_callback_is_called_at_once_without_busy_agents() -> None:
    calls: list[str] = []
    Suspension(lambda: False).request("stop", lambda: calls.append("idle"))
    assert calls == ["idle"]


def test_every_request_is_told_when_idle() -> None:
    """A second interrupt does not take the place of the first, nor does one without a callback."""
    busy, calls = True, list[str]()
    suspension = Suspension(lambda: busy)
    suspension.request("one", lambda: calls.append("one"))
    suspension.request("two")
    suspension.request("three", lambda: calls.append("three"))
    busy = False
    suspension.check_idle()
    assert (suspension.reason, calls) == ("three", ["one", "three"])
