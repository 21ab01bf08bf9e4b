"""Races: candidates work under the same contract, and the work of one of them is merged."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from retinue.domain.result import Result, Status

BEST, FIRST = "best", "first"
"""How a race is decided: among all candidates, or by the first that passes its checks. They are
stored in the journal."""


class Standing(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a race knows about a candidate when it is decided.

    ```python
    standing = retinue.Standing(agent_id="a2", passed=True, changed_lines=12, tokens=3_000)
    print(standing.agent_id, standing.cost_usd, standing.duration_s)
    ```
    """

    agent_id: str
    passed: bool = False
    """Whether all checks passed on its work."""
    changed_lines: int = 0
    """Lines added and removed."""
    cost_usd: float = 0.0
    tokens: int = 0
    duration_s: float = 0.0


def rank(standings: Iterable[Standing]) -> list[Standing]:
    """The candidates that passed their checks, the best first.

    Work comes before none, then fewer changed lines, lower cost, fewer tokens, less time. If all
    are equal, the order in which the candidates were named decides.
    """
    return sorted(
        (one for one in standings if one.passed),
        key=lambda s: (s.changed_lines == 0, s.changed_lines, s.cost_usd, s.tokens, s.duration_s),
    )


class RaceResult(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How a race ended. The work of the `winner` was merged; `redo` applies that of another.

    ```python
    race = retinue.RaceResult(run_id="r1", status=retinue.Status.ERROR, error="none passed")
    assert not race.ok
    for standing in race.standings:
        print(standing.agent_id, standing.passed, standing.changed_lines)
    ```
    """

    run_id: str
    status: Status
    winner: Result | None = None
    results: tuple[Result, ...] = ()
    """The results of all candidates, in the order in which they were named."""
    standings: tuple[Standing, ...] = ()
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a candidate has won."""
        return self.winner is not None


def no_winner(results: Iterable[Result]) -> str:
    """The error of a race without a winner."""
    reasons = [f"{result.agent_id} {result.status}: {result.error}" for result in results]
    return f"none of {len(reasons)} candidates passed its checks and was merged: " + "; ".join(
        reasons
    )
