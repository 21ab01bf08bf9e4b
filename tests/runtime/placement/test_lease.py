"""A host ends itself when its run has not heard of it for too long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from retinue.runtime.placement.lease import ALARM_S, LEASE_S, TAKEOVER_S, Lease


class Host:
    """A host's clock, and what its lease did."""

    def __init__(self, seconds: float | None = 7.0) -> None:
        self.now = 100.0
        self.ended: list[str] = []
        self.alarm = 0.0
        self.lease = Lease(
            seconds, end=self.ended.append, set_alarm=self.set_alarm, now=lambda: self.now
        )

    def set_alarm(self, seconds: float) -> None:
        self.alarm = self.now + seconds


def test_it_counts_from_when_a_report_was_made_not_from_when_the_answer_came() -> None:
    host = Host()
    host.lease.reported(1)
    host.now += 6.0
    host.lease.heard(1)
    assert host.ended == []
    assert host.alarm == 100.0 + 7.0 + ALARM_S
    host.now += 1.1
    host.lease.check()
    assert host.ended == ["its run has not answered for 7 s"]


def test_the_newest_report_that_was_heard_counts() -> None:
    host = Host()
    for number in (1, 2, 3):
        host.lease.reported(number)
        host.now += 2.0
    host.lease.heard(2)
    host.now = 102.0 + 7.0
    host.lease.check()
    assert host.ended == []
    assert host.alarm == 102.0 + 7.0 + ALARM_S


def test_a_host_that_was_frozen_ends_by_the_first_message_that_it_reads() -> None:
    host = Host()
    host.lease.reported(1)
    host.now += 60.0
    host.lease.heard(1)
    assert host.ended == ["its run has not answered for 60 s"]


def test_a_host_of_this_machine_has_no_lease() -> None:
    host = Host(None)
    host.lease.reported(1)
    host.now += 1_000.0
    host.lease.check()
    host.lease.heard(1)
    assert host.ended == []
    assert not host.alarm


def test_its_alarm_is_over_before_another_host_takes_over() -> None:
    assert LEASE_S + ALARM_S < TAKEOVER_S


BLOCKED = """
import signal
from retinue.runtime.placement.lease import Lease
Lease(-1.5, end=print, set_alarm=lambda s: signal.setitimer(signal.ITIMER_REAL, s))
while True:
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="hosts on nodes run on Linux")
def test_a_host_that_does_nothing_but_compute_is_ended() -> None:
    ended = subprocess.run([sys.executable, "-c", BLOCKED], check=False)
    assert ended.returncode == -14
