"""`retinue export --html`: the page and one run in one file, which needs no server."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from contextlib import suppress
from importlib.resources import files
from string import Template
from typing import Any

import msgspec

from retinue.errors import UsageError, WorkspaceError
from retinue.interfaces.web.built_page import page_file
from retinue.interfaces.web.run_changes import RunFold
from retinue.interfaces.web.run_reader import AgentEvents, RunReader
from retinue.models.replay.redaction import Redaction
from retinue.runtime.history.audit import read_all
from retinue.version import VERSION

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:;"
    " base-uri 'none'; form-action 'none'"
)


class HtmlExport(msgspec.Struct, frozen=True, kw_only=True):
    """The page, and how much of the run it contains."""

    html: bytes
    run_id: str
    agents: int
    events: int
    changes: int


async def export_html(reader: RunReader, run: str, redaction: Redaction) -> HtmlExport:
    """Put a run into a page. Secrets are replaced as in recordings. Raises UnknownRun."""
    item = await reader.run(run)
    async with reader.open() as store:
        events = await read_all(store, item.id)
        contracts = {row.id: row.context_json for row in await store.agents(item.id)}
    by_agent: dict[str, list[Any]] = {id: [] for id in contracts}
    for event in events:
        if event.agent_id in by_agent:
            by_agent[event.agent_id].append(event)
    fold = RunFold()
    diff = []
    # Diffs stay in the project, and git may be missing here.
    with suppress(WorkspaceError, UsageError):
        diff = await reader.diff(item.id, None)
    content = {
        "version": VERSION,
        "project": str(reader.directory),
        "run": item,
        "changes": [fold.apply(event) for event in events],
        "agents": {
            id: AgentEvents(contract=msgspec.Raw(contracts[id].encode()), events=tuple(found))
            for id, found in by_agent.items()
        },
        "diff": diff,
    }
    plain = msgspec.json.decode(msgspec.json.encode(content))
    data = gzip.compress(msgspec.json.encode(redaction.redact(plain)), mtime=0)
    # An end tag inside the script would end it; in JavaScript, the backslash means nothing.
    script = re.sub("</(?=script)", r"<\\/", page_file("page.js").decode())
    style = page_file("page.css").decode()
    page = (files(__package__) / "exported_run.html").read_text("utf-8")
    html = Template(page).substitute(
        policy=POLICY.format(script=_hash(script), style=_hash(style)),
        version=VERSION,
        style=style,
        script=script,
        data=base64.b64encode(data).decode(),
    )
    return HtmlExport(
        html=html.encode(),
        run_id=item.id,
        agents=len(contracts),
        events=len(events),
        changes=len(diff),
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
