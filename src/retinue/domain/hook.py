"""Hooks: programs and functions of the user that run on events. The format is Claude Code's."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import msgspec

from retinue.domain.tool_aliases import tools_meant
from retinue.errors import UsageError

DEFAULT_TIMEOUT_S = 60.0
# A timeout this long is most likely meant in milliseconds.
MAX_TIMEOUT_S = 1_000
FEW_CALLS = 3
"""With so many tool calls left, or fewer, an agent and its hooks are warned."""
MAX_STOP_BLOCKS = 5
"""How often in an attempt hooks can keep an agent from ending."""
FROM_HOOK = "hook"
"""Source of messages to the model. It is stored in the journal."""


class HookEvent(StrEnum):
    SESSION_START = "SessionStart"
    USER_PROMPT_SUBMIT = "UserPromptSubmit"
    PRE_TOOL_USE = "PreToolUse"
    PERMISSION_REQUEST = "PermissionRequest"
    POST_TOOL_USE = "PostToolUse"
    POST_TOOL_USE_FAILURE = "PostToolUseFailure"
    POST_TOOL_BATCH = "PostToolBatch"
    SUBAGENT_START = "SubagentStart"
    SUBAGENT_STOP = "SubagentStop"
    STOP = "Stop"
    PRE_COMPACT = "PreCompact"
    NOTIFICATION = "Notification"
    SESSION_END = "SessionEnd"
    # Events that Claude Code does not have.
    CONTRACT_DRAFTED = "ContractDrafted"
    PRE_MERGE = "PreMerge"
    POST_MERGE = "PostMerge"
    BUDGET_WARNING = "BudgetWarning"
    RUN_FINISHED = "RunFinished"


class HookOutcome(StrEnum):
    """What a hook did. The values are stored in the journal."""

    PASSED = "passed"
    CONTEXT = "context"
    UPDATED = "updated"
    ASKED = "asked"
    BLOCKED = "blocked"
    STOPPED = "stopped"
    FAILED = "failed"


class HookSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One command that runs on an event."""

    event: HookEvent
    command: str
    matcher: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    source: str = ""
    """The file that configures the hook."""
    of_project: bool = False
    """Whether the project configures the hook. Then it runs in the sandbox."""
    code: str = ""
    """Hash of the files that the user has trusted; "" for hooks of the user."""


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the hooks of one event want. None of it widens what an agent may do."""

    blocked: str = ""
    """Why the call, prompt or end is blocked. The model reads it; for a prompt, the user does."""
    asks: str = ""
    """Why the user has to approve the call."""
    updated_input: dict[str, Any] | None = None
    context: tuple[str, ...] = ()
    """Text for the model."""
    stop: str = ""
    """Why the agent has to stop for good."""


def matches_name(matcher: str, names: tuple[str, ...]) -> bool:
    """Whether a matcher covers one of the names of a tool, or the kind of an event.

    A plain name, or names with `|` between them, match exactly, and a tool by what other agents
    call it; all else is a regular expression.
    """
    if matcher in ("", "*"):
        return True
    if re.fullmatch(r"[A-Za-z0-9_| -]+", matcher):
        return any(tools_meant(part.strip(), names) for part in matcher.split("|"))
    return any(re.search(matcher, name) for name in names)


def find_event(name: str) -> HookEvent:
    """The event with this name, in the form of Python (`pre_tool_use`) or of the settings.

    Raises UsageError.
    """
    key = name.replace("_", "").lower()
    for event in HookEvent:
        if event.lower() == key:
            return event
    known = ", ".join(re.sub("(?<=[a-z])(?=[A-Z])", "_", event).lower() for event in HookEvent)
    raise UsageError(f"Unknown event {name!r}; known: {known}.")
