"""Names that other agents have for the fields of our tools, and for the parts of a call.

Models fall back to the tools of the agents they were trained on; `domain.tool_aliases` has the
names of tools.
"""

from __future__ import annotations

import re

FIELD_NAMES = {
    "path": "file_path filepath filename file_name file absolute_path absolute_file_path "
    "target_file relative_workspace_path relative_path pathname directory dir folder "
    "directory_path dir_path target_directory dir_name folder_path location cwd root base_path",
    "pattern": "query regex search text glob_pattern pattern_regex regexp search_term "
    "search_pattern search_query glob keyword expression name_pattern",
    "glob": "include file_pattern include_pattern file_glob file_type",
    "command": "cmd script bash shell command_line shell_command commands input",
    "content": "contents text body file_text file_content file_contents data code new_content "
    "code_edit value",
    "old_text": "old_string old_str old search find old_content original target_content "
    "original_text search_text from",
    "new_text": "new_string new_str new replace replacement replace_with new_content updated "
    "replacement_content replacement_text to",
    "all": "replace_all allow_multiple global expected_replacements_all",
    "task": "prompt instruction instructions goal task_description message objective query request "
    "description",
    "role": "agent agent_type subagent_type agent_name agent_role profile subagent type",
    "job_ids": "ids job_id jobs agent_ids agent_id task_ids task_id id agents handles handle",
    "job_id": "id agent_id task_id job handle",
    "id": "job_id agent_id task_id agent job target recipient to",
    "agent_id": "id agent job_id target recipient to",
    "message": "text content body prompt msg instruction",
    "text": "content message body fact memory note value",
    "query": "q search search_query question pattern text keywords topic",
    "max_turns": "max_iterations max_steps turns iterations",
    "max_tool_calls": "budget tool_budget max_calls",
    "tools": "allowed_tools tool_names",
    "start": "start_line line_start offset from_line begin_line first_line line_offset",
    "end": "end_line line_end to_line last_line",
    "timeout_s": "timeout_seconds timeout_sec",
}
"""By field: its names in other agents, the likeliest first."""
FIELD_ALIASES = {target: tuple(others.split()) for target, others in FIELD_NAMES.items()}

READ_ONLY_TOOLS = frozenset({"read_file", "list_dir", "find_files", "search_files", "recall"})
"""Tools that change nothing: for them, the end of a cut argument may be guessed."""

NAME_FIELDS = ("name", "tool_name", "function_name", "tool", "action", "recipient_name", "method")
ARGUMENT_FIELDS = (
    *("arguments", "parameters", "input", "args", "params", "tool_input", "action_input"),
    *("function_arguments", "tool_args", "kwargs"),
)
"""Fields that hold the name or the arguments of a call, in the JSON of other APIs."""

_WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MARKUP = re.compile(r"</?\w*>?")
_NOT_WORD = re.compile(r"\W+|_+")


def to_snake_case(name: str) -> str:
    """`filePath`, `File-Path` and `file_path</arg_key>` are all file_path."""
    parts = _NOT_WORD.split(_WORD_END.sub("_", _MARKUP.sub("", name)))
    return "_".join(part for part in parts if part).lower()
