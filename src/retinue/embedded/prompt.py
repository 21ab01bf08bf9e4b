"""Prompts of the embedded model with its adapter: a conversation as one text.

The adapter was trained with exactly these texts, so a change here needs a new training
(`training/README.md`). Each tool is one line instead of a JSON schema, which a model of this size
cannot read. Instructions of roles and projects are left out for the same reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from retinue.domain.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    UserMessage,
)

END = "<|im_end|>"
MAX_RESULT_CHARS = 2_000
"""How much of a tool's result the model sees. More takes it long to read, and misleads it."""

_TOOLS = {
    "list_dir": "list_dir(path) lists a folder",
    "find_files": "find_files(pattern) finds files by glob",
    "read_file": "read_file(path) reads a file",
    "search_files": "search_files(pattern, path) finds lines by regex",
    "edit_file": "edit_file(path, old_text, new_text) replaces text",
    "write_file": "write_file(path, content) writes a small file",
    "spawn_agent": "spawn_agent(role, task, background) gives a task to a child",
    "spawn_await": "spawn_await(job_ids) waits for background children",
}
TOOLS = frozenset(_TOOLS)
"""The tools that the model knows; it is offered no others."""

_INTRODUCTION = (
    "You are an agent in a project folder. Look with the tools before you answer. Answer briefly."
    " If you cannot do something, say so."
)
_CALL_RULE = 'Call a tool: <tool_call>{"name": …, "arguments": {…}}</tool_call>'
_NO_TOOLS = "You have no tools now. Answer with what you know."
# A page by the arguments of the call that read it.
_PAGE = re.compile(r"\.(?:md|markdown|rst)\"", re.I)
# Badges and pictures of Markdown and reStructuredText, and HTML tags and comments.
_DECORATION = re.compile(
    r"\[!\[[^\]]*\](?:\([^)\n]*\)|\[[^\]\n]*\])\](?:\([^)\n]*\)|\[[^\]\n]*\])"
    r"|!\[[^\]]*\](?:\([^)\n]*\)|\[[^\]\n]*\])"
    r"|^\.\. (?:image|\|[^|\n]+\| image)::[^\n]*(?:\n[ \t]+[^\n]*)*"
    r"|<!--.*?-->|</?(?:a|b|br|center|div|h[1-6]|hr|i|img|kbd|p|picture|source|span|sub|sup|table"
    r"|tbody|td|th|tr)\b[^<>]*>",
    re.M | re.S | re.I,
)
_GAP = re.compile(r"\n(?:[ \t]*\n){2,}")
# Facts about the contract, in the first message of a task.
_CONTRACT_LINES = re.compile(r"\n\nDirectory: [^\n]*\nBudget: [^\n]*")


def prompt(messages: Iterable[Message], tools: Sequence[ToolSpec]) -> str:
    """The text that the model continues with its reply, up to `END`."""
    blocks = [_block("system", _system_text(tool.name for tool in tools))]
    results: list[str] = []
    for message, shown in with_shown_texts(messages):
        if isinstance(message, ToolMessage):
            results.append(f"<tool_response>\n{_shortened(shown)}\n</tool_response>")
            continue
        if results:
            blocks.append(_block("user", "\n".join(results)))
            results = []
        match message:
            case UserMessage():
                blocks.append(_block("user", shown))
            case AssistantMessage():
                blocks.append(_block("assistant", reply_text(message)))
            case SystemMessage():
                pass
    if results:
        blocks.append(_block("user", "\n".join(results)))
    return "".join(blocks) + "<|im_start|>assistant\n"


def with_shown_texts(messages: Iterable[Message]) -> Iterator[tuple[Message, str]]:
    """Each message and what the model sees of its text, before a tool's result is shortened.

    Pages have no badges and no HTML: the model takes these for their content.
    """
    pages: set[str] = set()
    for message in messages:
        shown = "" if isinstance(message, SystemMessage) else message.content
        if isinstance(message, AssistantMessage):
            pages |= {
                call.id
                for call in message.calls
                if call.name == "read_file" and _PAGE.search(call.arguments)
            }
        elif isinstance(message, ToolMessage) and message.call_id in pages:
            shown = _without_decoration(shown)
        elif isinstance(message, UserMessage):
            shown = _CONTRACT_LINES.sub("", shown)
        yield message, shown


def reply_text(message: AssistantMessage) -> str:
    """A reply as the model writes it."""
    calls = [
        f'<tool_call>{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}</tool_call>'
        for call in message.calls
    ]
    return "\n".join([message.content, *calls] if message.content else calls)


def _system_text(names: Iterable[str]) -> str:
    offered = set(names)
    lines = [line for name, line in _TOOLS.items() if name in offered]
    return "\n".join([_INTRODUCTION, "Tools:", *lines, _CALL_RULE] if lines else [_NO_TOOLS])


def _without_decoration(page: str) -> str:
    head, rest = page[: 4 * MAX_RESULT_CHARS], page[4 * MAX_RESULT_CHARS :]
    text = _DECORATION.sub("", head)
    return page if text == head else _GAP.sub("\n\n", text).lstrip("\n") + rest


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_RESULT_CHARS else f"{text[:MAX_RESULT_CHARS]}\n[cut]"


def _block(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}{END}\n"
