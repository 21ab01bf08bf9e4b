"""The tools of the MCP server: their arguments as types, and what clients are told about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

AgentId = Annotated[str, Meta(description="such as a1")]


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool. Clients see the fields as the tool's JSON schema."""


class Child(ToolArguments, frozen=True):
    """Work for one sub-agent."""

    task: Annotated[
        str, Meta(description="all it needs to know: it sees none of your conversation")
    ]
    role: str | UnsetType = UNSET
    tools: list[str] | UnsetType = UNSET
    scope: Annotated[
        list[str] | UnsetType, Meta(description="paths to keep to, such as src/**")
    ] = UNSET
    mode: Literal["plan", "normal", "auto"] | UnsetType = UNSET
    max_tokens: int | UnsetType = UNSET
    schema: Annotated[dict[str, Any] | UnsetType, Meta(description="JSON schema of the answer")] = (
        UNSET
    )


class FanOut(ToolArguments, frozen=True):
    tasks: list[Child]
    max_concurrent: int | UnsetType = UNSET


class Agents(ToolArguments, frozen=True):
    agents: Annotated[list[str] | UnsetType, Meta(description="default: all")] = UNSET


class ResultOf(ToolArguments, frozen=True):
    agent: AgentId
    start: Annotated[int, Meta(ge=0, description="first character, to read on")] = 0


class Message(ToolArguments, frozen=True):
    agent: AgentId
    text: str


class Agent(ToolArguments, frozen=True):
    agent: AgentId


class Goal(ToolArguments, frozen=True):
    goal: str


class PlanToRun(ToolArguments, frozen=True):
    plan: Annotated[dict[str, Any], Meta(description="from `plan`; you may change it")]


class Changes(ToolArguments, frozen=True):
    agent: AgentId | UnsetType = UNSET
    run: Annotated[str | UnsetType, Meta(description="default: this connection's")] = UNSET


TOOLS: dict[str, tuple[type[ToolArguments], str]] = {
    "delegate": (
        Child,
        "Have a sub-agent do a task in this project; wait for its report, changes, checks, cost."
        " Roles: researcher, reviewer and planner read; executor and tester write.",
    ),
    "fan_out": (FanOut, "Have sub-agents do several tasks at once; results in order."),
    "start": (Child, "Like delegate, in the background: returns the agent's id at once."),
    "status": (Agents, "What background agents are doing."),
    "result": (ResultOf, "Wait for an agent and return its whole report."),
    "message": (Message, "Tell a running agent something."),
    "cancel": (Agent, "Stop a running agent."),
    "plan": (Goal, "Have a planner write a plan with steps. Nothing is changed."),
    "execute": (PlanToRun, "Run a plan."),
    "changes": (Changes, "Show what agents changed, as a diff."),
    "undo": (Changes, "Undo what agents changed."),
}
FIRST_TURN = frozenset({"delegate", "fan_out"})
"""Claude Code hides other tools until its model searches for them."""
LONG_TOOLS = frozenset({"delegate", "fan_out", "plan", "execute", "result"})
"""Calls of these become tasks, for clients that know tasks."""
READ_ONLY = frozenset({"status", "result", "plan", "changes"})


def tool_list() -> list[dict[str, Any]]:
    """The tools as `tools/list` returns them."""
    types = [arguments for arguments, _ in TOOLS.values()]
    _, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    return [
        {
            "name": name,
            "description": description,
            "inputSchema": _inlined(components[arguments.__name__], components),
            **({"annotations": {"readOnlyHint": True}} if name in READ_ONLY else {}),
            **({"_meta": {"anthropic/alwaysLoad": True}} if name in FIRST_TURN else {}),
        }
        for name, (arguments, description) in TOOLS.items()
    ]


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    """A JSON schema without references, and without fields that only cost tokens."""
    if isinstance(schema, list):
        return [_inlined(item, components) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(components[schema["$ref"].rpartition("/")[2]], components)
    if "properties" in schema:
        fields = schema["properties"].items()
        properties = {name: _inlined(value, components) for name, value in fields}
        return {"type": "object", "properties": properties, "required": schema["required"]}
    kept = schema.keys() - {"title", "default"}
    return {key: _inlined(schema[key], components) for key in schema if key in kept}
