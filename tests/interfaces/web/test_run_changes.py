"""Adding up the changes of the events gives the state that `retinue.fold` has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import retinue
from retinue.domain.run_state import RunState
from retinue.errors import StoreError
from retinue.interfaces.web.run_changes import RunFold, agent_view, run_view


def plain(value: Any) -> Any:
    """`value` as the page receives it."""
    return msgspec.json.decode(msgspec.json.encode(value))


async def test_changes_add_up_to_the_fold_at_every_event(
    journals: list[list[retinue.Event]],
) -> None:
    for events in journals:
        run: dict[str, Any] = {}
        agents: dict[str, dict[str, Any]] = {}
        folded, fold = RunState(), RunFold()
        for event in events:
            change = plain(fold.apply(event))
            run.update(change.get("run", {}))
            for id, fields in change.get("agents", {}).items():
                agents.setdefault(id, {}).update(fields)
            folded.apply(event)
            assert agents == plain({a.id: agent_view(a) for a in folded.agents.values()})
            assert run == {k: v for k, v in plain(run_view(folded)).items() if k in run}
            assert all(v is None for k, v in run_view(folded).items() if k not in run)


def test_event_that_cannot_be_read_is_named() -> None:
    event = retinue.Event(
        seq=7, run_id="abc", agent_id="a0", parent_agent_id=None, attempt=0, epoch=1, time=1.0,
        type="agent.invented", summary="", hash="",
        payload=msgspec.Raw(b'{"type":"agent.invented"}'),
    )  # fmt: skip
    with pytest.raises(StoreError) as error:
        RunFold().apply(event)
    assert str(error.value) == (
        "Event 7 of run abc cannot be read: it is damaged, or a newer version of retinue wrote it."
        " `retinue audit abc` says more."
    )
