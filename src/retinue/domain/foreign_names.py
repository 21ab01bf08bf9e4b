"""Names that other sub-agent systems have for retinue's settings and options.

Such a name is an error, which says what retinue has instead.
"""

from __future__ import annotations

from retinue.domain.budget import LIMIT_NAMES
from retinue.domain.sampling import Sampling

_ROOT_CALLS = "`warn_at_calls`, `pause_at_calls` and `[budget] max_tool_calls`"
_OURS = {
    "subAgent": "`[sub_agents]`, `delegation`, `max_depth` and `max_concurrent`",
    "subagents": "`[sub_agents]`",
    "subAgents": "`[sub_agents]`",
    "enabled": "`delegation`, outside of this table",
    "maxDepth": "`max_depth`, outside of any table",
    "maxConcurrent": "`max_concurrent`, outside of any table",
    "defaultBudget": "`[sub_agents.budget]`",
    "inheritMode": "`[sub_agents] inherit_mode`",
    "defaultMode": "`mode`",
    "safety": _ROOT_CALLS,
    "circuitBreaker": _ROOT_CALLS,
    "permissions": "`allow` and `deny`",
    "mcpServers": "`[mcp.NAME]`, and reads `.mcp.json`",
    "mcp_servers": "`[mcp.NAME]`, and reads `.mcp.json`",
    "llm": "`model`, `[models]` and `[pools]`",
    "default_pool": "`model`",
    # Only as a table of a settings file: profiles have a `tools` of their own.
    "tools": "`[profiles.NAME]` and `delegation`",
    "spawn": "`[profiles.NAME]` and `delegation`",
    "allowed_tools": "`tools`",
    "can_spawn_subagents": "`spawns`, a list of roles",
    "can_spawn_children": "`spawns`, a list of roles",
    "max_delegation_depth": "`max_depth`, outside of any table",
    "tool_budget": "`max_tool_calls`",
    "maxToolCalls": "`max_tool_calls`",
    "maxTokens": "`max_tokens`",
    "max_iterations": "`max_turns`",
    "context_limit": "`max_context_tokens`",
    "timeoutMs": "`timeout_s`, in seconds",
    "timeout_seconds": "`timeout_s`",
    "attempt_timeout_ms": "`timeout_s`, in seconds",
    "working_directory": "`directory`",
    "report_path_pattern": "`report_path`",
    "inherit_context_file": "`bootstrap_files`; `[]` inherits none",
    "inherit_vault": "`tools`: children without `recall` and `remember` have no memory",
    "endpoint": "`model`, such as openai:MODEL@http://other-machine:8080/v1",
}


def our_name(name: str) -> str:
    """The setting that retinue has instead of `name`; "" if `name` is unknown."""
    if name in _OURS:
        return _OURS[name]
    if name in LIMIT_NAMES:
        return f"`budget.{name}`"
    return f"`sampling.{name}`" if name in Sampling.__struct_fields__ else ""
