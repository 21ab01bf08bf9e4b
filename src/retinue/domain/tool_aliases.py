"""Names that other agents have for our tools.

People write them in settings, rules and agent files, and models in their calls. An alias is looked
up only when no tool has that name.
"""

from __future__ import annotations

import re
from collections.abc import Container

TOOL_ALIASES = {
    "read_file": "read cat open_file open view view_file read_files get_file show_file file_read "
    "fs_read load_file read_text_file get_file_contents file_reader",
    "list_dir": "ls list dir list_directory list_files directory_list list_folder read_dir "
    "list_directory_contents view_directory get_directory_contents",
    "find_files": "glob find file_search find_file search_files_by_name glob_search locate "
    "find_by_name plan_files",
    "search_files": "grep rg ripgrep search search_code grep_search code_search search_file "
    "search_text find_in_files search_content search_file_content content_search codebase_search",
    "write_file": "write create_file save_file create new_file file_write fs_write create_new_file "
    "write_to_file overwrite_file",
    "edit_file": "edit str_replace replace apply_edit replace_in_file search_replace file_edit "
    "string_replace search_and_replace edit_existing_file update_file modify_file",
    "run_command": "bash shell exec execute terminal run_shell_command run_terminal_cmd sh cmd "
    "execute_command run run_bash execute_bash shell_command run_in_terminal execute_shell "
    "exec_command local_shell console git_commit",
    "spawn_agent": "spawn spawn_task task agent delegate launch_agent sub_agent subagent new_task "
    "dispatch_agent create_agent run_agent start_agent spawn_subagent spawn_sub_agent "
    "call_agent new_agent",
    "spawn_await": "await wait spawn_wait wait_agent join join_agents await_agent wait_for_agent "
    "wait_for_agents get_result collect_results",
    "delegate_task": "delegate plan_tasks delegate_tasks split_task",
    "race_agents": "race race_models compare_agents",
    "agent_message": "send_message message_agent tell_agent send_to_agent message reply_to_agent "
    "send_agent_message",
    "agent_cancel": "cancel kill_agent stop_agent cancel_agent abort_agent terminate_agent kill "
    "cancel_job stop_job",
    "find_symbol": "symbol_search search_symbols find_definition go_to_definition goto_definition "
    "find_references symbols list_code_usages",
    "overview": "repo_map repository_map code_map repo_overview project_overview list_symbols",
    "docs_coverage": "doc_coverage documentation_coverage",
    "git_read": "git git_diff git_log git_show git_blame git_status git_history diff blame",
    "run_tests": "test tests run_test test_runner runtests testfailure",
    "web_fetch": "webfetch fetch fetch_url browse read_url open_url url_fetch read_web_page",
    "web_search": "websearch google google_search google_web_search search_web internet_search",
    "ask_user": "ask_user_question ask_question ask_followup_question question",
    "recall": "search_memory memory_search retrieve_memory query_memory read_memory get_memory "
    "recall_memory memory_read retrieve",
    "remember": "save_memory store_memory memory_add add_memory memorize memory_write write_memory "
    "save_to_memory store_fact take_note",
}
"""By tool: its names in other agents."""

IMPLIED_ARGUMENTS = {
    **{f"git{what}": {"what": what} for what in ("diff", "log", "show", "blame")},
    "githistory": {"what": "log"},
    "blame": {"what": "blame"},
}
"""By normalized alias: what the name itself says about the call."""

_NOT_WORD = re.compile(r"\W+|_+")


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
_OWN_NAMES = {normalize_name(tool): tool for tool in TOOL_ALIASES}


def tools_meant(name: str, known: Container[str]) -> tuple[str, ...]:
    """The tool of `known` that `name` means, or none: `name` may be another agent's."""
    if name in known:
        return (name,)
    key = normalize_name(name)
    meant = (_OWN_NAMES[key],) if key in _OWN_NAMES else TOOLS_BY_ALIAS.get(key, ())
    return tuple(tool for tool in meant if tool in known)[:1]
