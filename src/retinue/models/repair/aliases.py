"""Names that other agents have for our tools and fields.

Models fall back to the tools of the agents they were trained on. An alias is looked up only when no
offered tool has that name.
"""

from __future__ import annotations

import re

TOOL_ALIASES = {
    "read_file": "read cat open_file open view view_file read_files get_file show_file file_read "
    "fs_read load_file read_text_file get_file_contents file_reader",
    "list_dir": "ls list dir list_directory list_files directory_list list_folder read_dir "
    "list_directory_contents view_directory get_directory_contents",
    "find_files": "glob find file_search find_file search_files_by_name glob_search locate "
    "find_by_name",
    "search_files": "grep rg ripgrep search search_code grep_search code_search search_file "
    "search_text find_in_files search_content search_file_content content_search codebase_search",
    "write_file": "write create_file save_file create new_file file_write fs_write create_new_file "
    "write_to_file overwrite_file",
    "edit_file": "edit str_replace replace apply_edit replace_in_file search_replace file_edit "
    "string_replace search_and_replace edit_existing_file update_file modify_file",
    "run_command": "bash shell exec execute terminal run_shell_command run_terminal_cmd sh cmd "
    "execute_command run run_bash execute_bash shell_command run_in_terminal execute_shell "
    "exec_command local_shell console",
    "spawn_agent": "spawn spawn_task task agent delegate launch_agent sub_agent subagent new_task "
    "dispatch_agent create_agent run_agent start_agent spawn_subagent spawn_sub_agent "
    "call_agent new_agent",
    "spawn_await": "await wait spawn_wait wait_agent join join_agents await_agent wait_for_agent "
    "wait_for_agents get_result collect_results",
    "delegate_task": "delegate plan_tasks delegate_tasks split_task",
    "agent_message": "send_message message_agent tell_agent send_to_agent message reply_to_agent "
    "send_agent_message",
    "agent_cancel": "cancel kill_agent stop_agent cancel_agent abort_agent terminate_agent kill "
    "cancel_job stop_job",
    "recall": "search_memory memory_search retrieve_memory query_memory read_memory get_memory "
    "recall_memory memory_read retrieve",
    "remember": "save_memory store_memory memory_add add_memory memorize memory_write write_memory "
    "save_to_memory store_fact take_note",
}
"""By tool: its names in other agents."""

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


def normalize_name(name: str) -> str:
    """A name in lower case without separators, for comparison."""
    return _NOT_WORD.sub("", name).lower()


def _by_alias() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for target, others in TOOL_ALIASES.items():
        for other in others.split():
            key = normalize_name(other)
            # The closer name comes first: `delegate` is delegate_task where that is offered.
            near = target.startswith(other)
            found[key] = (target, *found.get(key, ())) if near else (*found.get(key, ()), target)
    return found


TOOLS_BY_ALIAS = _by_alias()
"""By normalized alias: the tools it may mean, the likeliest first."""
