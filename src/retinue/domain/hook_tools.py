"""Tool calls as hooks see them: names and fields of Claude Code, translated both ways."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from retinue.domain.framing import one_line
from retinue.domain.paths import is_below

# By our name: the names that matchers may use. The first is the one that hooks are told.
_NAMES = {
    "run_command": ("Bash",),
    "write_file": ("Write",),
    "edit_file": ("Edit", "MultiEdit"),
    "read_file": ("Read",),
    "list_dir": ("LS",),
    "find_files": ("Glob",),
    "search_files": ("Grep",),
    "spawn_agent": ("Agent", "Task"),
    "ask_user": ("AskUserQuestion",),
    "web_fetch": ("WebFetch",),
    "web_search": ("WebSearch",),
    "load_skill": ("Skill",),
}
# By our tool name: our parameters and Claude Code's fields, in the order for hooks.
_FIELDS = {
    "run_command": {"command": "command"},
    "write_file": {"path": "file_path", "content": "content"},
    "edit_file": {
        "path": "file_path",
        "old_text": "old_string",
        "new_text": "new_string",
        "all": "replace_all",
    },
    "read_file": {"path": "file_path"},
    "list_dir": {"path": "path"},
    "find_files": {"pattern": "pattern", "path": "path"},
    "search_files": {"pattern": "pattern", "path": "path", "glob": "glob"},
    "spawn_agent": {"task": "prompt", "role": "subagent_type"},
    "load_skill": {"name": "skill"},
}
_TITLE_CHARS = 60


def hook_names(tool: str) -> tuple[str, ...]:
    """Names of a tool that a matcher may use; hooks are told the first."""
    return (*_NAMES.get(tool, ()), tool)


def hook_input(tool: str, arguments: Mapping[str, Any], root: str) -> dict[str, Any]:
    """The arguments of a call with the fields of Claude Code. Paths become absolute."""
    fields = _FIELDS.get(tool, {})
    found = {theirs: arguments[ours] for ours, theirs in fields.items() if ours in arguments}
    found |= {name: value for name, value in arguments.items() if name not in fields}
    if "path" in fields and isinstance(found.get(fields["path"]), str):
        found[fields["path"]] = os.path.join(root, os.path.normpath(found[fields["path"]]))
    match tool:
        case "run_command":
            if isinstance(seconds := found.pop("timeout_s", None), int | float):
                found["timeout"] = round(seconds * 1_000)
            found.setdefault("description", "")
        case "read_file":
            start, end = found.pop("start", None), found.pop("end", None)
            if isinstance(start, int):
                found["offset"] = start
            if isinstance(end, int):
                found["limit"] = end - (start if isinstance(start, int) else 1) + 1
        case "spawn_agent":
            title = one_line(str(found.get("prompt", "")))[:_TITLE_CHARS]
            found = {"description": title, **found}
            found.setdefault("subagent_type", "")
    return found


def our_arguments(tool: str, given: Mapping[str, Any], root: str) -> dict[str, Any]:
    """The arguments that a hook's `updatedInput` means: the inverse of `hook_input`."""
    found, fields = dict(given), _FIELDS.get(tool, {})
    match tool:
        case "run_command":
            found.pop("description", None)
            if isinstance(milliseconds := found.pop("timeout", None), int | float):
                found["timeout_s"] = milliseconds / 1_000
        case "read_file":
            offset, limit = found.pop("offset", None), found.pop("limit", None)
            if isinstance(offset, int):
                found["start"] = offset
            if isinstance(limit, int):
                found["end"] = (offset if isinstance(offset, int) else 1) + limit - 1
        case "spawn_agent":
            found.pop("description", None)
            if not found.get("subagent_type"):
                found.pop("subagent_type", None)
    back = {theirs: ours for ours, theirs in fields.items()}
    found = {back.get(name, name): value for name, value in found.items()}
    if "path" in fields and isinstance(path := found.get("path"), str):
        found["path"] = os.path.relpath(path, root) if is_below(path, root) else path
    return found


def hook_response(
    tool: str, given: Mapping[str, Any], content: str, *, created: bool, interrupted: bool
) -> dict[str, Any]:
    """The result of a call as `tool_response`; `given` are the arguments as hooks have them.

    Retinue merges standard output and error, and keeps no copy of a file before its change.
    """
    match tool:
        case "run_command":
            return {
                # Before the output, the model is told how the command ended.
                "stdout": content.partition("\n")[2].rstrip("\n"),
                "stderr": "",
                "interrupted": interrupted,
                "isImage": False,
                "noOutputExpected": False,
            }
        case "write_file":
            return {
                "type": "create" if created else "update",
                "filePath": given.get("file_path"),
                "content": given.get("content"),
                "structuredPatch": [],
                "originalFile": None,
                "userModified": False,
            }
        case "edit_file":
            return {
                "filePath": given.get("file_path"),
                "oldString": given.get("old_string"),
                "newString": given.get("new_string"),
                "originalFile": None,
                "structuredPatch": [],
                "userModified": False,
                "replaceAll": bool(given.get("replace_all")),
            }
        case "read_file":
            file = {"filePath": given.get("file_path"), "content": content}
            return {"type": "text", "file": file}
    return {"content": [{"type": "text", "text": content}]}
