"""What a conversation shows the embedded model: paths, names, quoted texts and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from retinue.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage
from retinue.embedded.prompt import MAX_RESULT_CHARS, with_shown_texts

WORD = re.compile(r"[A-Za-z0-9_]+")
_END_OF_CALL = "</tool_call>"
_SIGNS = "./@+-"
_RUN = re.compile(r"[A-Za-z0-9_./@+-]+")
_GLOB = re.compile(r"[\w./@+-]*\*[\w./@+*?-]*")
_FREE = re.compile(r"[A-Za-z]+(-[A-Za-z]+)*")
_QUOTED = re.compile(r"""(?<!\w)(["'`])(.+?)\1(?!\w)""")
_IS_PATH = re.compile(r"\w/|\.[A-Za-z]")
_HIT = re.compile(r"^([^:\n]+):\d+: ", re.M)
_SIZE = re.compile(r" \([\d,]+ bytes?\)$")


class Shown:
    """What the conversation shows the model, and may be copied."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self.questions: list[str] = []
        self.results: list[str] = []
        self.files: dict[str, str] = {}
        """What the model saw of each file that it read, and that was not changed since."""
        self.file_to_read = ""
        """A file that was not read before a text was added to it at a place that it lacks."""
        self.several_places = False
        """Whether the last call was an edit of a text of the question that has several places."""
        self.found: set[str] = set()
        """Paths that the last call has found by their names."""
        self.paths: set[str] = set()
        made: dict[str, tuple[str, dict[str, str]]] = {}
        for message, shown in with_shown_texts(messages):
            text = shown.replace(_END_OF_CALL, "\0")  # No call may have it.
            if isinstance(message, AssistantMessage):
                made |= {call.id: (call.name, _arguments(call.arguments)) for call in message.calls}
                self.results.append(text)
            elif isinstance(message, UserMessage):
                self.questions.append(text)
                self.paths |= {run for run in _whole_runs(text) if _IS_PATH.search(run)}
            elif isinstance(message, ToolMessage):
                name, given = made.get(message.call_id, ("", {}))
                self._add_result(name, given, text[:MAX_RESULT_CHARS])
        self.paths = {path.removeprefix("./").rstrip("/") or "." for path in self.paths}
        self.paths |= {
            path[:at] for path in self.paths for at, sign in enumerate(path) if sign == "/" and at
        }
        self.names = {run for text in self.unquoted() for run in _whole_runs(text)}
        self.texts = self.questions + self.results

    def _add_result(self, tool: str, given: dict[str, str], text: str) -> None:
        self.results.append(text)
        self.paths |= {run for run in _whole_runs(text) if _IS_PATH.search(run)}
        path = given.get("path", "")
        self.file_to_read = ""
        self.found = set()
        is_asked = any(given.get("old_text", "\0") in question for question in self.questions)
        self.several_places = "send all=true" in text and is_asked
        if text.startswith("[ERROR]"):
            if "old_text" in given and path not in self.files and "No file" not in text:
                added = [one for one in self.quoted() if one in given.get("new_text", "")]
                if len(self.quoted()) == 1 == len(added) and not self.several_places:
                    self.file_to_read = path
            return
        if tool == "read_file":
            self.files[path] = text
        elif tool in ("edit_file", "write_file"):
            self.files.pop(path, None)
            self.results.append(given.get("new_text", given.get("content", "")))
        elif not text.startswith("["):
            listed = set(_listed_paths(tool, path, text))
            self.paths |= listed
            self.found = listed if tool == "find_files" else set()

    def quoted(self) -> set[str]:
        """Texts that the last question has in quotation marks."""
        last = self.questions[-1] if self.questions else ""
        found = {match[2] for match in _QUOTED.finditer(last)}
        return {text for text in found if len(text) > 1 and text not in self.paths}

    def unquoted(self) -> list[str]:
        """The questions between the texts in quotation marks."""
        return [part for text in self.questions for part in _QUOTED.split(text)[::3]]

    def globs(self) -> set[str]:
        """Patterns of file names in the questions, with a question mark that may end one."""
        found = {match[0] for text in self.questions for match in _GLOB.finditer(text)}
        return {end for glob in found for end in (glob.rstrip("."), glob.rstrip(".?"))}

    def asked(self) -> list[str]:
        """The same without the path of a file that is to be edited."""
        paths = {run for text in self.questions for run in _whole_runs(text)} & self.paths
        if len(paths) != 1:
            return self.unquoted()
        (path,) = paths
        return [part for text in self.unquoted() for part in text.split(path)]

    def rare_runs(self) -> set[str]:
        """Names, numbers and paths that a text may have, besides words."""
        runs = {*self.paths, "0"}.union(*map(_runs, self.texts))
        return {run for run in runs if not _FREE.fullmatch(run)} - {"/tool_call"}

    def words(self) -> set[str]:
        return {word for text in self.texts for word in WORD.findall(text)}


def _arguments(text: str) -> dict[str, str]:
    try:
        given = json.loads(text)
    except ValueError:
        given = {}
    return {k: v for k, v in given.items() if isinstance(v, str)} if isinstance(given, dict) else {}


def _whole_runs(text: str) -> Iterator[str]:
    """Names, numbers and paths, without the full stop of a sentence."""
    for match in _RUN.finditer(text):
        if run := match[0].rstrip(_SIGNS):
            yield run


def _runs(text: str) -> Iterator[str]:
    """Names, numbers and paths, and the parts of each."""
    for run in _whole_runs(text):
        parts = run.split("/")
        # a/b.c has a, b.c, a/b.c, and of b.c the parts b and c.
        for first in range(len(parts)):
            for end in range(first + 1, len(parts) + 1):
                part = "/".join(parts[first:end])
                yield from (part, part.lstrip(_SIGNS))
        yield from WORD.findall(run)


def _listed_paths(tool: str, folder: str, text: str) -> Iterator[str]:
    lines = [line for line in text.split("\n") if line and not line.startswith("[")]
    if tool == "list_dir":
        start = folder.strip("/")
        start = "" if start in ("", ".") else f"{start}/"
        yield from (start + _SIZE.sub("", line) for line in lines)
    elif tool == "find_files":
        yield from lines
    elif tool == "search_files":
        yield from (match[1] for match in _HIT.finditer(text))
