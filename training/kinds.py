"""The kinds of tasks, and how often they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from training import edits, tasks
from training.tasks import Choice, Task

KINDS: Sequence[tuple[int, Callable[[Choice], Task | None]]] = (
    (9, tasks.project), (16, tasks.file), (5, tasks.files), (2, tasks.attached), (4, tasks.folder),
    (5, tasks.find), (12, tasks.where), (5, tasks.missing_name), (8, tasks.value),
    (3, tasks.version), (16, edits.set_value), (5, edits.set_version), (9, edits.replace),
    (12, edits.append), (3, edits.prepend), (6, edits.insert), (3, edits.add_setting),
    (4, edits.delete_line), (5, edits.rename), (9, edits.write), (4, edits.may_not_write),
    (13, tasks.each), (5, tasks.background), (9, tasks.child_set),
    (2, tasks.reads_itself), (2, tasks.sets_itself), (6, tasks.wrong_path),
    (15, tasks.answers_at_once), (3, tasks.follow_up),
)  # fmt: skip


WEIGHTS: Mapping[str, int] = {kind.__name__: weight for weight, kind in KINDS}


def task(c: Choice, weights: Mapping[str, int] = WEIGHTS) -> Task:
    """A random task in the project of `c`."""
    chances = [weights.get(kind.__name__, 0) for _, kind in KINDS]
    while True:
        (kind,) = c.draw.choices([make for _, make in KINDS], chances)
        if (made := kind(c)) is not None:
            return made
