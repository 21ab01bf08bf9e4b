"""Rows of the database as values, with tampered columns detected.

SQLite stores values of any type in any column, so a tampered row may hold other types than ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.errors import ChainBroken
from retinue.ports.store import AgentRow, RunRow
from retinue.store.blobs import BlobRefs, decode_refs, encode_refs, restore

_MISSING_BLOB = "blob {name} is gone or was changed"

_EVENT_TYPES = {
    (int, str, str, parent, int, int, float, str, int, str, str, str, places)
    for parent in (str, type(None))
    for places in (str, type(None))
}
_SHOWN_TYPES = (str, str, str, int, int, float, str, int, str, str)
_RUN_TYPES = [
    (str, str, str, *outcome, int, int, str, int, int, session)
    for outcome in ((type(None), float, type(None)), (str, float, float))
    for session in (str, type(None))
]
_AGENT_TYPES = [(str, str, parent, str, str, str, str) for parent in (str, type(None))]


def decode_text(data: bytes) -> str | bytes:
    """A text factory for sqlite3 that passes invalid UTF-8 on, instead of failing the query."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def blob_refs(text: object) -> BlobRefs:
    """The references in the column `blobs`; none if the column is not what we wrote."""
    try:
        found = decode_refs(text) if isinstance(text, str) else []
    except msgspec.DecodeError:
        return []
    return found if encode_refs(found) == text else []


def event_of(row: Any, blobs: Mapping[str, bytes | None]) -> Event:
    found = blob_refs(row[-1]) if row[-1] is not None else []
    if tuple(map(type, row)) not in _EVENT_TYPES or (row[-1] is not None and not found):
        row = _repaired(row)
    (
        seq, run_id, agent_id, parent, attempt, epoch, time, kind, version, summary, payload,
        digest, _,
    ) = row  # fmt: skip
    whole = payload.encode()
    if found:
        missing = [_MISSING_BLOB.format(name=name[:12]) for _, name in found if blobs[name] is None]
        strings = {name: blobs[name] or missing[0].encode() for _, name in found}
        whole = restore(whole, found, strings)
        digest = missing[0] if missing else digest
    return Event(
        seq=seq,
        run_id=run_id,
        agent_id=agent_id,
        parent_agent_id=parent,
        attempt=attempt,
        epoch=epoch,
        time=time,
        type=kind,
        version=version,
        summary=summary,
        payload=msgspec.Raw(whole),
        hash=digest,
    )


def _repaired(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row that can be shown. Its hash fits no chain, so an audit reports the event."""
    # The sequence number stays: readers page by it.
    seq, *columns, _, _ = row
    repaired = map(_as, _SHOWN_TYPES, columns)
    return seq, *repaired, "", None


def _as(kind: type, value: object) -> object:
    if type(value) is kind:
        return value
    return str(value) if kind is str else 0


def run_of(row: Any) -> RunRow:
    """Raises ChainBroken for a row that was tampered with."""
    if tuple(map(type, row)) not in _RUN_TYPES:
        raise ChainBroken(f"The row of run {row[0]} was changed after it was written.")
    (
        run_id, kind, task, status, started, finished, agents, head_seq, head_hash, epoch, pruned,
        session,
    ) = row  # fmt: skip
    return RunRow(
        id=run_id,
        kind=kind,
        task=task,
        status=status,
        started_at=started,
        finished_at=finished,
        agents=agents,
        head_seq=head_seq,
        head_hash=head_hash,
        epoch=epoch,
        session=session,
        pruned=bool(pruned),
    )


def session_ids(earlier: object) -> Sequence[str]:
    """The ids of the earlier runs of a session, from the first event of a run."""
    if earlier is None:
        return ()
    try:
        return msgspec.json.decode(str(earlier), type=tuple[str, ...])
    except msgspec.DecodeError:
        raise ChainBroken(
            "The first event of a run was changed after it was written.", seq=1
        ) from None


def agent_of(row: Any) -> AgentRow:
    """Raises ChainBroken for a row that was tampered with."""
    run_id, agent_id, parent, path, role, state, context_json = row
    if tuple(map(type, row)) not in _AGENT_TYPES or state not in list(State):
        raise ChainBroken(f"The row of agent {agent_id} was changed after it was written.")
    return AgentRow(
        run_id=run_id,
        id=agent_id,
        parent_agent_id=parent,
        path=path,
        role=role,
        state=State(state),
        context_json=context_json,
    )
