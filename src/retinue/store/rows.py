"""Rows of the database as values, with tampered columns detected.

SQLite stores values of any type in any column, so a tampered row may hold other types than ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from retinue.domain.events import Event
from retinue.errors import ChainBroken
from retinue.ports.store import AgentRow, RunRow
from retinue.store.blobs import BlobRefs, decode_refs, encode_refs, restore

T = TypeVar("T", bound=msgspec.Struct)

_MISSING_BLOB = "blob {name} is gone or was changed"

_EVENT_TYPES = {
    (int, str, str, parent, int, int, float, str, str, str, str, int, blobs)
    for parent in (str, type(None))
    for blobs in (str, type(None))
}
_SHOWN_TYPES = (str, str, str, int, int, float, str, str, str, str, int)


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
    refs = blob_refs(row[-1]) if row[-1] is not None else []
    if tuple(map(type, row)) not in _EVENT_TYPES or (row[-1] is not None and not refs):
        row = _repaired(row)
    (
        seq, run_id, agent_id, parent, attempt, epoch, time, kind, summary, payload, digest,
        version, _,
    ) = row  # fmt: skip
    whole = payload.encode()
    if refs:
        missing = [_MISSING_BLOB.format(name=name[:12]) for _, name in refs if blobs[name] is None]
        strings = {name: blobs[name] or missing[0].encode() for _, name in refs}
        whole = restore(whole, refs, strings)
        digest = missing[0] if missing else digest
    # Each field by its name: building it from pairs takes twice as long.
    return Event(
        seq=seq,
        run_id=run_id,
        agent_id=agent_id,
        parent_agent_id=parent,
        attempt=attempt,
        epoch=epoch,
        time=time,
        type=kind,
        summary=summary,
        payload=msgspec.Raw(whole),
        hash=digest,
        version=version,
    )


def _repaired(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row that can be shown. Its hash fits no chain, so an audit reports the event."""
    # The sequence number stays: readers page by it.
    seq, *columns, _ = row
    *shown, _, version = map(_as, _SHOWN_TYPES, columns)
    return seq, *shown, "", version, None


def _as(kind: type, value: object) -> object:
    if type(value) is kind:
        return value
    return str(value) if kind is str else 0


def run_of(row: Any) -> RunRow:
    """Raises ChainBroken for a row that was tampered with."""
    *columns, pruned, sealed, last_child, title, _ = row
    values = (*columns, bool(pruned), bool(sealed), last_child, title)
    found = _row_of(RunRow, values, f"run {row[0]}")
    if (found.status is None) != (found.finished_at is None):
        raise _changed(f"run {found.id}")
    return found


def agent_of(row: Any) -> AgentRow:
    """Raises ChainBroken for a row that was tampered with."""
    return _row_of(AgentRow, row, f"agent {row[1]}")


def _row_of(kind: type[T], row: Sequence[Any], name: str) -> T:
    fields = dict(zip(kind.__struct_fields__, row, strict=True))
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        raise _changed(name) from None


def _changed(name: str) -> ChainBroken:
    return ChainBroken(f"The row of {name} was changed after it was written.")


def session_ids(row: Any) -> Sequence[str]:
    """The ids of the earlier runs of a session, from the row of a run."""
    earlier = row[-1]
    if earlier is None:
        return ()
    try:
        return msgspec.json.decode(str(earlier), type=tuple[str, ...])
    except msgspec.DecodeError:
        raise ChainBroken(
            "The first event of a run was changed after it was written.", seq=1
        ) from None
