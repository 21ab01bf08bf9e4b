"""Gives retinue tasks in projects that were not in the training, and counts what it solves.

`evaluate.py PROJECTS.jsonl.xz OUT_FOLDER -m embedded` runs each task as a user would: a project on
disk, `rt.run(question)`, and a look at the answer and the files. With a sandbox that allows no
writes, tasks that change files fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import random
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import retinue
from retinue.domain.events import ModelReplied
from retinue.domain.messages import AssistantMessage
from retinue.embedded.prompt import reply_text
from training.conversations import sample
from training.evaluation import wording
from training.facts import NOTHING_TO_SAY
from training.project import READ_TOOLS
from training.tasks import Task, Want

REFUSAL = re.compile(
    r"\b(there is no|cannot|can't|no (file|access|definition)|found no|not in|only look)\b", re.I
)
TIMEOUT_S = 600
# Fields that a call of each tool needs, and may have.
FIELDS = {
    "list_dir": (set(), {"path"}),
    "find_files": ({"pattern"}, {"pattern", "path"}),
    "read_file": ({"path"}, {"path", "start", "end"}),
    "search_files": ({"pattern"}, {"pattern", "path", "glob"}),
    "edit_file": ({"path", "old_text", "new_text"}, {"path", "old_text", "new_text", "all"}),
    "write_file": ({"path", "content"}, {"path", "content"}),
    "spawn_agent": ({"task"}, {"task", "role", "background"}),
    "spawn_await": (set(), {"job_ids"}),
}
# Kinds of tasks, as they are reported. The others ("talk", follow-ups) need no work.
FAMILIES = {
    "project": "what a project is", "file": "what files do", "where": "definitions",
    "value": "values", "find": "finding files", "folder": "finding files", "set": "edits",
    "set version": "edits", "replace": "edits", "append": "edits", "prepend": "edits",
    "insert": "edits", "add setting": "edits", "delete line": "edits", "rename": "edits",
    "write": "new files",
    "delegate": "delegation", "wrong path": "errors", "unanswerable": "unanswerable",
    "may not write": "unanswerable",
}  # fmt: skip


def well_formed(call: retinue.ToolCall) -> bool:
    """Whether it is a JSON object with the fields of a tool that the model knows."""
    fields = FIELDS.get(call.name)
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return False
    return fields is not None and isinstance(given, dict) and fields[0] <= set(given) <= fields[1]


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for command in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-q", "-m", "start"]):
        names = ["-c", "user.name=evaluation", "-c", "user.email=evaluation@localhost"]
        subprocess.run(["git", *names, *command], cwd=folder, check=True)


def _read(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in (".git", ".retinue")
    }


def solved(
    want: Want, answer: str, before: dict[str, str], after: dict[str, str], children: int
) -> bool:
    if after != {**before, **(want.files or {})} or children < want.children:
        return False
    if want.refuses and not REFUSAL.search(answer):
        return False
    if not all(text in answer for text in want.contains):
        return False
    words = set(re.findall(r"\w+", want.like.lower()))
    return len(words & set(re.findall(r"\w+", answer.lower()))) * 2 >= len(words)


async def attempt(model: str, task: Task, files: dict[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await asyncio.to_thread(_write, folder, files)
        mode = "plan" if tuple(task.tools) == READ_TOOLS else "auto"
        async with retinue.open(folder, model=model, mode=mode) as rt:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    run = await rt.run(task.question)
                answer, status = run.response, str(run.status)
            except (retinue.RetinueError, TimeoutError) as error:
                return {
                    "solved": False,
                    "answer": "",
                    "status": repr(error),
                    "steps": [],
                    "calls": 0,
                    "malformed": 0,
                }
            steps, children, calls, malformed = [], set(), 0, 0
            async for event in rt.events(run.id):
                if isinstance(event.fact, ModelReplied):
                    message = AssistantMessage(event.fact.content, event.fact.calls)
                    steps.append(f"{event.agent_id}: {reply_text(message)}")
                    lost = message.content.count("<tool_call")
                    calls += len(message.calls) + lost
                    malformed += sum(not well_formed(call) for call in message.calls) + lost
                if event.parent_agent_id:
                    children.add(event.agent_id)
        after = await asyncio.to_thread(_read, folder)
    ok = solved(task.want, answer, files, after, len(children))
    return {
        "solved": ok, "answer": answer, "status": status, "steps": steps,
        "calls": calls, "malformed": malformed,
    }  # fmt: skip


def choose(
    projects: list[tuple[str, dict[str, str]]], count: int
) -> list[tuple[Task, dict[str, str]]]:
    """`count` tasks, as evenly over the families as they come."""
    found: dict[str, list[tuple[Task, dict[str, str]]]] = {name: [] for name in FAMILIES.values()}
    share = -(-count // len(found))
    for seed in range(100 * count):
        task, project = sample(projects, 500_000 + seed, wording)
        family = FAMILIES.get(task.kind)
        if family is None or task.want == Want() or len(found[family]) >= share:
            continue
        if NOTHING_TO_SAY in task.want.like:
            continue  # There is no right answer to compare with.
        found[family].append((task, dict(project.files)))
        if all(len(chosen) >= share for chosen in found.values()):
            break
    chosen = [task for family in found.values() for task in family]
    random.Random(1).shuffle(chosen)
    return chosen[:count]


async def evaluate(model: str, tasks: Any, out: Path) -> None:
    """Do the tasks one after the other, and add a line for each to `out`."""
    with out.open("a", encoding="utf-8") as file:
        for task, files in tasks:
            about = {
                "family": FAMILIES[task.kind],
                "kind": task.kind,
                "question": task.question,
                "want": task.want,
            }
            result = await attempt(model, task, files)
            file.write(json.dumps({**about, **result}) + "\n")
            file.flush()


def report(paths: list[Path]) -> str:
    """A table of what was solved, from the lines that `evaluate` wrote."""
    results = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    total = Counter(r["family"] for r in results)
    right = Counter(r["family"] for r in results if r["solved"])
    calls, malformed = sum(r["calls"] for r in results), sum(r["malformed"] for r in results)
    lines = ["| family | solved | of |", "|---|---|---|"]
    lines += [f"| {name} | {right[name]} | {total[name]} |" for name in sorted(total)]
    share = right.total() / max(1, total.total())
    lines += [f"| **all** | **{right.total()}** ({share:.0%}) | **{total.total()}** |", ""]
    return "\n".join([*lines, f"{calls - malformed:,} of {calls:,} calls were well-formed."])


def read_projects(path: Path) -> list[tuple[str, dict[str, str]]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [(row["name"], row["files"]) for row in map(json.loads, file)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("projects", type=Path)
    options.add_argument("out", type=Path, help="a folder")
    options.add_argument("-m", "--model", default="embedded")
    options.add_argument("--tasks", type=int, default=220)
    options.add_argument(
        "--part", default="1/1", help="such as 2/4: the second quarter of the tasks"
    )
    options.add_argument("--family", default="", help="only tasks of this one, such as edits")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    part, parts = map(int, given.part.split("/"))
    tasks = choose(read_projects(given.projects), given.tasks)
    if given.family:
        tasks = [(task, files) for task, files in tasks if FAMILIES[task.kind] == given.family]
    results = given.out / f"results-{given.family.replace(' ', '-')}{part}.jsonl"
    # An evaluation that was interrupted goes on.
    done = len(results.read_text("utf-8").splitlines()) if results.exists() else 0
    asyncio.run(evaluate(given.model, tasks[part - 1 :: parts][done:], results))
    scores = report(sorted(given.out.glob("results-*.jsonl")))
    (given.out / "scores.md").write_text(scores + "\n", "utf-8")
    print(scores)


if __name__ == "__main__":
    main()
