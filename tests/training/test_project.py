"""The tools of the training answer like the real ones, and its tasks can be solved as it says."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import retinue
from retinue.domain.messages import ToolMessage
from retinue.models.scripted.model import call, say
from training import wording
from training.conversations import conversation
from training.evaluate import FAMILIES, solved
from training.evaluation import wording as other_wording
from training.kinds import task
from training.project import Project
from training.tasks import Choice, Want

FILES = {
    "README.md": "# Links\n\nA small service that shortens the addresses of pages.\n",
    "pyproject.toml": '[project]\nname = "links"\nversion = "1.4.0"\ndescription = "Links."\n',
    "docs/install.md": "# Install\n\nInstall the service with the package manager.\n",
    "docs/use.md": "# Use\n\nOpen the page and paste an address into the field.\n",
    "src/links/store.py": '"""Stores links."""\n\nMAX_LINKS = 500\n\n\nclass LinkStore:\n',
    "src/links/server.py": '"""Serves the short links."""\n\nPORT = 8080\n\n\ndef serve():\n',
    "scripts/build.sh": "#!/bin/sh\n# Builds the package and checks it.\nset -e\nTARGET=dist\n",
    "config/server.toml": '[server]\nhost = "localhost"\nworkers = 4\n',
    "web/app.js": "// Shows the list of links on the page.\nfunction showLinks() {}\n",
}
CALLS: list[tuple[str, dict[str, object]]] = [
    ("list_dir", {}),
    ("list_dir", {"path": "src/links/"}),
    ("list_dir", {"path": "nowhere"}),
    ("list_dir", {"path": "README.md"}),
    ("find_files", {"pattern": "*.py"}),
    ("find_files", {"pattern": "docs/**"}),
    ("find_files", {"pattern": "*.rs"}),
    ("read_file", {"path": "./docs/use.md"}),
    ("read_file", {"path": "src"}),
    ("read_file", {"path": "lib/store.py"}),
    ("read_file", {"path": "src/links/none.py"}),
    ("read_file", {"path": "../secret"}),
    ("read_file", {"path": "src/links/store.py", "start": 2, "end": 3}),
    ("search_files", {"pattern": "(class|def) \\w+"}),
    ("search_files", {"pattern": "PORT.{0,3}[:=]", "path": "src/links/server.py"}),
    ("search_files", {"pattern": "nothing like this"}),
    ("search_files", {"pattern": "x", "path": "nowhere"}),
    ("edit_file", {"path": "none.py", "old_text": "a", "new_text": "b"}),
    ("edit_file", {"path": "docs/use.md", "old_text": "the field", "new_text": "the field"}),
    ("edit_file", {"path": "docs/use.md", "old_text": "Open a page", "new_text": "Close"}),
    ("edit_file", {"path": "src/links/server.py", "old_text": "PORT", "new_text": "P"}),
    ("edit_file", {"path": "src/links/server.py", "old_text": "8080", "new_text": "80"}),
    ("write_file", {"path": "notes/new.txt", "content": "one\ntwo\n"}),
    ("write_file", {"path": "docs/use.md", "content": "# Use\n\nRead this.\n"}),
]


def write(folder: Path) -> None:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


async def test_tools_answer_like_the_real_ones(tmp_path: Path) -> None:
    write(tmp_path)
    steps = [call(name, **arguments) for name, arguments in CALLS]
    model = retinue.ScriptedModel([*steps, say("Done.")])
    async with retinue.open(tmp_path, model=model, mode="auto") as rt:
        assert (await rt.run("Use the tools.")).ok
    real = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    project = Project("links", FILES)
    assert [project.call(name, json.dumps(given)) for name, given in CALLS] == real


@pytest.mark.parametrize("words", [wording, other_wording], ids=["training", "evaluation"])
def test_what_is_taught_solves_the_task(words: ModuleType) -> None:
    kinds = Counter[str]()
    for seed in range(600):
        project = Project("links", FILES)
        made = task(Choice(project, random.Random(seed), words))
        if made.kind not in FAMILIES or made.want == Want():
            continue  # Not a part of the evaluation.
        turns = conversation(made, project)
        # What comes after the first answer is about another question.
        answer = next(turn.writes for turn in turns if "<tool_call>" not in turn.writes)
        changed = made.want.files or {}
        if not made.want.children:  # Children are not played.
            assert all(project.files[path] == text for path, text in changed.items())
        after = {**FILES, **changed}
        assert solved(made.want, answer, FILES, after, made.want.children), (made.question, answer)
        kinds[made.kind] += 1
    assert set(kinds) == set(FAMILIES)
