"""Tool calls as editors show them: kind, locations and diffs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from retinue.domain.events import ToolFinished
from retinue.interfaces.view.tool_calls import decode_object

KINDS = {
    "read_file": "read", "list_dir": "read", "git_read": "read", "overview": "read",
    "find_files": "search", "search_files": "search", "find_symbol": "search",
    "write_file": "edit", "edit_file": "edit", "run_command": "execute",
    "run_tests": "execute", "web_fetch": "fetch", "web_search": "fetch",
}  # fmt: skip
MAX_OUTPUT_CHARS = 8_000
MAX_DIFFS = 50
MAX_OLD_BYTES = 2**20
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")

Content = list[dict[str, Any]]


def text_content(text: str) -> Content:
    """A text as the content of a tool call, cut in the middle if it is long."""
    if len(text) > MAX_OUTPUT_CHARS:
        half = MAX_OUTPUT_CHARS // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"
    return [{"type": "content", "content": {"type": "text", "text": text}}] if text else []


def call_fields(tool: str, arguments: str, root: Path, *, live: bool) -> dict[str, Any]:
    """Kind, locations, diff and input of a call. A `live` call has not changed its file yet."""
    given = decode_object(arguments) or {}
    fields: dict[str, Any] = {"kind": KINDS.get(tool, "other"), "rawInput": given or arguments}
    path = given.get("path")
    if not isinstance(path, str) or "\0" in path:
        return fields
    location: dict[str, Any] = {"path": str(root / path)}
    if isinstance(line := given.get("start"), int):
        location["line"] = line
    fields["locations"] = [location]
    old, new = given.get("old_text"), given.get("new_text")
    if tool == "write_file":
        old, new = _text_of(path, root) if live else None, given.get("content")
    if tool in ("edit_file", "write_file") and isinstance(new, str):
        fields["content"] = [
            {"type": "diff", "path": str(root / path), "oldText": old, "newText": new}
        ]
    return fields


def open_terminal(name: str, root: Path) -> dict[str, Any]:
    """Fields of a call whose output the editor shows in a terminal. The editor runs nothing.

    The command runs in our sandbox. Editors that have `_meta.terminal_output` among their
    capabilities show what they are sent.
    """
    return {
        "content": [{"type": "terminal", "terminalId": name}],
        "_meta": {"terminal_info": {"terminal_id": name, "cwd": str(root)}},
    }


def fill_terminal(name: str, fact: ToolFinished) -> dict[str, Any]:
    """Fields of a call that has ended: its output, for the terminal."""
    output = {"terminal_id": name, "data": fact.content.replace("\n", "\r\n")}
    code = fact.receipt.exit_code
    end = {"terminal_id": name, "exit_code": code, "signal": None}
    return {"_meta": {"terminal_output": output, "terminal_exit": end}}


def patch_diffs(patch: str, root: Path) -> Content:
    """A unified diff as diffs for an editor, one for each hunk."""
    diffs: Content = []
    name, is_new, in_hunk = "", False, False
    # Not `splitlines`: a form feed would hide the rest of its line from whoever approves it.
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            in_hunk = is_new = False
        elif not in_hunk and line.startswith("--- "):
            is_new = line == "--- /dev/null"
            name = line[6:] if line.startswith("--- a/") else name
        elif not in_hunk and line.startswith("+++ b/"):
            name = line[6:]
        elif found := _HUNK.match(line):
            in_hunk = True
            old: str | None = None if is_new else ""
            diff = {"type": "diff", "path": str(root / name), "oldText": old, "newText": ""}
            diffs.append(diff | {"_meta": {"line": int(found[1])}})
        elif in_hunk and line[:1] in (" ", "-", "+"):
            text = line[1:] + "\n"
            if line[0] != "+" and diffs[-1]["oldText"] is not None:
                diffs[-1]["oldText"] += text
            if line[0] != "-":
                diffs[-1]["newText"] += text
    return diffs[:MAX_DIFFS]


def _text_of(name: str, root: Path) -> str | None:
    """The text of a file of the project; None if there is none, or it is large or no text."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root) or path.stat().st_size > MAX_OLD_BYTES:
            return None
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None
