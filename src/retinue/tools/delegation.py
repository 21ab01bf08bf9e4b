"""Tools with which a model spawns and manages children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from retinue.domain.budget import Limits
from retinue.domain.grant import Grant, Network
from retinue.domain.messages import Effect, ToolSpec
from retinue.domain.permissions import SPAWN_AWAIT
from retinue.domain.role import GENERAL, Role
from retinue.domain.sampling import Sampling
from retinue.errors import ToolFailure
from retinue.ports.tool import (
    Delegation,
    RaceRequest,
    SpawnRequest,
    Subtask,
    Tool,
    ToolContext,
    ToolOutcome,
)
from retinue.tools.function import FunctionTool, tool

HIDDEN = (
    "system_prompt", "temperature", "top_p", "seed", "max_output_tokens", "endpoint", "max_tokens",
)  # fmt: skip
"""Arguments of `spawn_agent` that its schema does not show."""
SHOWN_TO_ROLES = frozenset({"task", "role", "profile", "scope", "continues"})
"""The only arguments that it shows to an agent whose list of tools has no `spawn_await`."""


@tool(effect=Effect.DELEGATE)
async def spawn_agent(
    ctx: ToolContext,
    task: Annotated[str, Meta(description="All it needs; it sees nothing of yours")],
    role: str | None = None,
    profile: str | None = None,
    scope: Annotated[str | list[str] | None, Meta(description="Paths to keep to")] = None,
    context: str | None = None,
    context_files: list[str] | str | None = None,
    tools: list[str] | str | None = None,
    mode: Annotated[str | None, Meta(description="plan only reads")] = None,
    network: str | None = None,
    web_hosts: list[str] | str | None = None,
    model: str | None = None,
    endpoint: str | None = None,
    max_tool_calls: int | None = None,
    max_turns: int | None = None,
    max_tokens: int | None = None,
    timeout_s: float | None = None,
    max_output_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    output_schema: dict[str, Any] | str | None = None,
    replaces: str | None = None,
    continues: str | None = None,
    background: Annotated[bool, Meta(description="Get an id at once")] = False,
    system_prompt: str | None = None,
) -> ToolOutcome:
    """Give a task to a child agent, or to an ended one (continues), and get its report. Calls in
    one reply run side by side."""
    request = SpawnRequest(
        task=task,
        role=role,
        profile=profile,
        scope=scope,
        context=context,
        context_files=context_files,
        tools=tools,
        mode=mode,
        network=network,
        web_hosts=web_hosts,
        model=model,
        endpoint=endpoint,
        system_prompt=system_prompt,
        output_schema=output_schema,
        limits=Limits(
            max_tool_calls=max_tool_calls,
            max_turns=max_turns,
            max_tokens=max_tokens,
            timeout_s=timeout_s,
        ),
        sampling=Sampling(
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            max_output_tokens=max_output_tokens,
        ),
        replaces=replaces,
        continues=continues,
        background=background,
    )
    return await _delegation(ctx).spawn(request, ctx.call)


@tool(effect=Effect.DELEGATE)
async def spawn_await(
    ctx: ToolContext, job_ids: Annotated[list[str] | str, Meta(description="ids, or *")] = "*"
) -> ToolOutcome:
    """Wait for background children; get their reports."""
    ids = job_ids if isinstance(job_ids, str) else ",".join(job_ids)
    return await _delegation(ctx).wait(ids, ctx.call)


@tool(effect=Effect.DELEGATE)
async def delegate_task(
    ctx: ToolContext,
    plan: str,
    subtasks: Annotated[
        list[Subtask | str] | str, Meta(description="At most 5; depends_on: index from 0")
    ],
) -> ToolOutcome:
    """Let children do subtasks one after the other; each gets the reports it depends on."""
    if isinstance(subtasks, str):
        try:
            subtasks = msgspec.json.decode(subtasks, type=list[Subtask | str], strict=False)
        except msgspec.MsgspecError as error:
            raise ToolFailure(f"delegate_task: subtasks is not a list: {error}.") from None
    each = [Subtask(task=one) if isinstance(one, str) else one for one in subtasks]
    return await _delegation(ctx).delegate(plan, each, ctx.call)


@tool(effect=Effect.DELEGATE)
async def race_agents(
    ctx: ToolContext,
    task: Annotated[str, Meta(description="All they need; they see nothing of yours")],
    candidates: Annotated[
        list[str] | str, Meta(description="Models or roles; a name twice takes part twice")
    ],
    role: str | None = None,
    scope: Annotated[str | list[str] | None, Meta(description="Paths to keep to")] = None,
    first: Annotated[bool, Meta(description="The first that passes the checks wins")] = False,
    max_tokens: int | None = None,
) -> ToolOutcome:
    """Let several children do the same task in copies. The project's checks decide, then the
    smaller change; the best work is merged."""
    limits = Limits(max_tokens=max_tokens)
    request = RaceRequest(
        task=task, candidates=candidates, role=role, scope=scope, first=first, limits=limits
    )
    return await _delegation(ctx).race(request, ctx.call)


@tool(effect=Effect.DELEGATE)
async def agent_message(ctx: ToolContext, id: str, text: str) -> ToolOutcome:
    """Tell a running child something."""
    return await _delegation(ctx).message(id, text)


@tool(effect=Effect.DELEGATE)
async def agent_cancel(ctx: ToolContext, id: str) -> ToolOutcome:
    """Stop a child."""
    return await _delegation(ctx).cancel(id, ctx.call)


@tool(effect=Effect.DELEGATE)
async def agent_result(ctx: ToolContext, id: str, start: int = 0) -> ToolOutcome:
    """Read on in a cut report."""
    return await _delegation(ctx).result(id, start)


def _delegation(ctx: ToolContext) -> Delegation:
    if ctx.delegation is None:
        raise ToolFailure("This agent may not delegate; do the work with your other tools.")
    return ctx.delegation


class DelegationTool:
    """A tool whose schema is shorter than what it accepts.

    If an argument may have several types, the schema shows one. `spawn_agent` names only the roles
    and profiles that the caller may spawn. To agents that have it for one kind of child, such as an
    executor for its reviewers, it shows few arguments.
    """

    def __init__(self, function: FunctionTool[Any, Any], roles: Mapping[str, Role]) -> None:
        self.spec: Final = function.spec
        self.effect: Final = function.effect
        self.run: Final = function.run
        self._profiles = frozenset(name for name, role in roles.items() if role.profile)

    def spec_for(self, grant: Grant) -> ToolSpec:
        spec = self.spec
        schema = _first_alternative(msgspec.json.decode(bytes(spec.parameters)))
        properties = schema["properties"]
        if "profile" in properties:
            # Accepted, but models should not be encouraged to choose them.
            for name in (*HIDDEN, *([] if grant.web_hosts else ["web_hosts"])):
                properties.pop(name)
            properties["mode"]["enum"] = ["plan", "auto"]
            properties["network"]["enum"] = list(Network)
            if SPAWN_AWAIT not in grant.allowed_tools:
                for name in properties.keys() - SHOWN_TO_ROLES:
                    properties.pop(name)
            profiles = [name for name in grant.spawn_roles if name in self._profiles]
            others = {*self._profiles, GENERAL}  # `general` is what a call without a role gets.
            roles = [name for name in grant.spawn_roles if name not in others]
            for field, names in (("role", roles), ("profile", profiles)):
                properties[field]["enum"] = names
                if not names:
                    del properties[field]
        return ToolSpec(spec.name, spec.description, msgspec.Raw(msgspec.json.encode(schema)))


def _first_alternative(node: Any) -> Any:
    if isinstance(node, list):
        return [_first_alternative(one) for one in node]
    if not isinstance(node, dict):
        return node
    if "anyOf" in node:
        options = node["anyOf"]
        # An object schema says more than the text that is accepted instead.
        chosen = next((one for one in options if "properties" in one), options[0])
        node = {**{k: v for k, v in node.items() if k != "anyOf"}, **chosen}
    return {key: _first_alternative(value) for key, value in node.items()}


def delegation_tools(roles: Mapping[str, Role]) -> tuple[Tool, ...]:
    """The delegation tools, for a project with these roles and profiles."""
    spawning = (spawn_agent, spawn_await, delegate_task, race_agents)
    managing = (agent_message, agent_cancel, agent_result)
    return tuple(DelegationTool(function, roles) for function in (*spawning, *managing))
