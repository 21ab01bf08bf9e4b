"""The work every contestant does: four model calls and three file tools, on the same small folder.

Standard library only, because the peers' interpreters import it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MODEL_CALLS = 4
TOOL_CALLS = 3

INSTRUCTIONS = (
    "You are a researcher. Read what you need with the tools you are given, and nothing else. "
    "Look at the notes before you answer, and quote the file for each claim you make. "
    "Do not guess what a file holds; open it. When you have seen enough, answer in one short "
    "paragraph for the agent that asked, with the facts first and what is still open last."
)

# Each of these must come back to the server inside the messages before it says that a child is
# done, so that a contestant whose tools fail quickly does not look fast.
MARKS = (b"heron-4417", b"ledger.txt", b"otter-9052")

NOTES = {
    "a.txt": (
        "Field notes, part one. Reference heron-4417.\n"
        "The queue is drained by one writer; readers never take the lock.\n"
        "A batch is closed after fifty milliseconds or two hundred rows, whichever is first.\n"
        "Retries are counted against the budget of the caller, not of the worker.\n"
        "Open: nobody has measured what happens when the disk is slower than the batch.\n"
    ),
    "b.txt": (
        "Field notes, part two. Reference otter-9052.\n"
        "The reader follows the log by sequence number and keeps no state of its own.\n"
        "A gap in the numbers is an error; a repeat is skipped without a word.\n"
        "Open: the page that draws the tree asks for the whole log each time it is opened.\n"
    ),
    "ledger.txt": "heading,amount\nbatches,1200\nretries,17\n",
}


def task(number: int) -> str:
    return f"Summarise the notes, part {number}"


def write_notes(workdir: Path) -> None:
    notes = workdir / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    for name, text in NOTES.items():
        (notes / name).write_text(text)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call that the server will ask for."""

    tool: str
    argument: str
    path: str


# The model's name picks the script. The second is for agents that bring file tools of their own
# with other names (deepagents: `ls`, and `file_path` for the argument).
SCRIPTS: dict[str, tuple[Call, ...]] = {
    "bench": (
        Call(tool="read_file", argument="path", path="notes/a.txt"),
        Call(tool="list_dir", argument="path", path="notes"),
        Call(tool="read_file", argument="path", path="notes/b.txt"),
    ),
    "bench-ls": (
        Call(tool="read_file", argument="file_path", path="/notes/a.txt"),
        Call(tool="ls", argument="path", path="/notes"),
        Call(tool="read_file", argument="file_path", path="/notes/b.txt"),
    ),
}

# A model that has children: it answers "Lead N children from part M." with N calls of spawn_agent.
LEADER = "bench-lead"

ANSWER = (
    "The notes describe a queue with one writer and readers that follow the log by sequence "
    "number. A batch closes after fifty milliseconds or two hundred rows. Retries are charged to "
    "the caller. A gap in the numbers is an error and a repeat is skipped. Two things are open: a "
    "disk slower than the batch, and a page that reads the whole log each time."
)

# Models for single calls: one answers in one piece, whatever was asked for, one streams, and one
# streams by the Responses API.
PLAIN = "bench-plain"
STREAM = "bench-stream"
RESPONSES = "bench-responses"
STREAM_CHUNKS = 200
