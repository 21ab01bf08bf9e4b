"""Progress in a notebook: the tree of agents as text."""

from __future__ import annotations

from pathlib import Path

import retinue
from retinue.interfaces.notebook import NotebookProgress, in_notebook
from retinue.models.scripted.model import ScriptedModel, call, say


async def test_the_tree_of_a_run(tmp_path: Path) -> None:
    progress = NotebookProgress(draw=lambda html: None)
    model = ScriptedModel(
        {
            "<b> files": [call("list_dir", path="."), say("None.")],
            "Go.": [call("spawn_agent", role="researcher", task="<b> files"), say("Done.")],
        }
    )
    async with retinue.open(tmp_path, model=model, listeners=progress.listeners) as rt:
        assert (await rt.run("Go.")).ok
    lines = progress.html(0.0).splitlines()
    assert lines[0].startswith("<pre>✓ lead")
    assert lines[1].startswith("  ✓ researcher.1")


def test_a_test_is_no_notebook() -> None:
    assert not in_notebook()
