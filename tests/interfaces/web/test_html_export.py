"""`retinue export --html`: one file with the page and a run, without secrets."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from retinue import Runtime
from retinue.config.environment import Environment
from retinue.interfaces.web.html_export import export_html
from retinue.interfaces.web.run_reader import RunReader
from retinue.model_registry import redaction_of
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.store.export import export_run

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
TOKEN = "ghp_" + "a1B2" * 10


def content(html: bytes) -> Any:
    found = re.search(rb'id="retinue-export">([^<]*)</script>', html)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


async def test_page_holds_the_whole_run(
    project: Path, environment: Environment, run_id: str
) -> None:
    reader = RunReader(project, environment, None)
    found = await export_html(reader, run_id[:6], redaction_of(project, environment))
    assert (found.run_id, found.agents, found.changes) == (run_id, 3, 1)
    data = content(found.html)
    assert [change["seq"] for change in data["changes"]] == list(range(1, found.events + 1))
    assert sum(len(agent["events"]) for agent in data["agents"].values()) == found.events
    assert "+two" in data["diff"][0]["patch"]
    assert data["run"]["id"] == run_id
    assert b"http://" not in found.html.split(b"</style>")[0]


async def test_secrets_and_the_path_of_the_project_are_hidden(
    project: Path, tmp_path: Path, opened: Opened
) -> None:
    (project / "notes").write_text(f"key {TOKEN} and pass-of-mine-1234 in {project}\n")
    model = ScriptedModel([call("read_file", path="notes"), say(f"It is {TOKEN}.</script>")])
    async with opened(model=model) as rt:
        run_id = (await rt.run("Read.")).run_id
    environment = Environment(variables={"HOME": str(tmp_path), "DB_PASSWORD": "pass-of-mine-1234"})
    reader = RunReader(project, environment, None)
    found = await export_html(reader, run_id, redaction_of(project, environment))
    text = json.dumps(content(found.html), ensure_ascii=False)
    assert TOKEN not in text
    assert "pass-of-mine-1234" not in text
    assert str(project) not in text
    assert "It is ⟨hidden⟩.</script>" in text
    assert found.html.count(b"</script>") == 2


async def test_exported_journal_becomes_a_page_too(
    project: Path, environment: Environment, run_id: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.retinue"
    export_run(project / ".retinue" / "retinue.db", run_id, file)
    reader = RunReader(tmp_path, environment, str(file))
    found = await export_html(reader, str(file), redaction_of(tmp_path, environment))
    assert (found.run_id, found.changes) == (run_id, 0)
