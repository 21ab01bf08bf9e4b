"""Tasks as the text that the model reads and the text that it shall write."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from retinue.embedded.prompt import END, prompt, reply_text
from training import wording
from training.kinds import WEIGHTS, task
from training.project import Project
from training.tasks import Ask, Call, Choice, Slip, Task

NO_SCHEMA = msgspec.Raw(b"{}")
MISTAKES = 0.12


class Turn(NamedTuple):
    """What the model reads since its last reply, and the reply. `learn`: whether it is right."""

    reads: str
    writes: str
    learn: bool
    before: tuple[Message, ...] = ()
    """The messages before the reply."""


def specs(names: Sequence[str]) -> list[ToolSpec]:
    return [ToolSpec(name, "", NO_SCHEMA) for name in names]


def conversation(made: Task, project: Project) -> list[Turn]:
    """Play the task in the project."""
    tools = specs(made.tools)
    messages: list[Message] = []
    turns: list[Turn] = []
    before = ""

    def say(message: AssistantMessage, learn: bool) -> None:
        nonlocal before
        reads, writes = prompt(messages, tools), reply_text(message) + END
        turns.append(Turn(reads[len(before) :], writes, learn, tuple(messages)))
        messages.append(message)
        before = f"{reads}{writes}"

    def act(calls: Sequence[Call], learn: bool) -> list[str]:
        made_calls = [
            ToolCall(
                f"c{len(messages)}_{n}", call.name, json.dumps(call.arguments, ensure_ascii=False)
            )
            for n, call in enumerate(calls)
        ]
        say(AssistantMessage("", tuple(made_calls)), learn)
        answers = []
        for call, written in zip(calls, made_calls, strict=True):
            answer = call.answer
            if answer is None:
                answer = project.call(call.name, written.arguments)
            answers.append(answer)
            messages.append(ToolMessage(written.id, answer))
        return answers

    answers: list[str] | None = None
    script = made.script
    while True:
        try:
            step = script.send(answers)
        except StopIteration:
            return turns
        answers = None
        if isinstance(step, Ask):
            messages.append(UserMessage(step.text))
        elif isinstance(step, str):
            say(AssistantMessage(step), True)
        else:
            if all(call.answer is None for call in step) and (wrong := _misspelt(step)):
                act(wrong, False)
            answers = act(step, not isinstance(step, Slip))


def _misspelt(calls: Sequence[Call]) -> Sequence[Call] | None:
    """Sometimes the calls with a slip, as a small model makes them when it copies a name."""
    draw = random.Random(repr(calls))
    if draw.random() > MISTAKES:
        return None
    call = draw.choice(list(calls))
    fields = {
        "read_file": "path", "list_dir": "path", "search_files": "path", "edit_file": "old_text",
    }  # fmt: skip
    if fields.get(call.name) not in call.arguments:
        return None
    text = str(call.arguments[fields[call.name]])
    if len(text) < 6:
        return None
    at = draw.randrange(len(text) - 3)
    slips = [text[:at] + text[at + 1 :], text[:at] + text[at] + text[at:], text.replace("_", "", 1)]
    slips += [text.rpartition("/")[2], text[:at] + text[at + 3 :]]
    slip = draw.choice(slips)
    if call.name == "edit_file" and draw.random() < 0.5:
        slip = str(call.arguments["new_text"])
    return [Call(call.name, {**call.arguments, fields[call.name]: slip})] if slip != text else None


def sample(
    files: Sequence[tuple[str, dict[str, str]]],
    seed: int,
    words: ModuleType = wording,
    weights: Mapping[str, int] = WEIGHTS,
) -> tuple[Task, Project]:
    """A task, and the project in which it is to be done."""
    draw = random.Random(seed)
    name, content = files[draw.randrange(len(files))]
    project = Project(name, content)
    return task(Choice(project, draw, words), weights), project
