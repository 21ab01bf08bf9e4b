"""Continue an agent that has ended: what its successor takes over, and what changed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from retinue.domain.agent_spec import AgentSpec, Continued
from retinue.domain.contract import WorkspaceKind
from retinue.domain.messages import Effect, Message
from retinue.domain.permissions import COULD_NOT_WRITE, Effects
from retinue.domain.plural import listed
from retinue.domain.role import Role
from retinue.domain.scope import intersect
from retinue.domain.tool_names import READING_MCP_TOOLS, is_mcp_tool, select_names
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.agent import Agent
from retinue.runtime.history.recorded_conversation import RecordedConversation, load_conversation
from retinue.runtime.services import Services

SHOWN = 20


def continue_from(
    spec: AgentSpec, found: RecordedConversation, parent_directory: str, effects: Effects
) -> AgentSpec:
    """`spec`, with the fields that it leaves open taken from the agent that it continues.

    Fields that are taken over only narrow what the role allows now. Mode, network and limits are
    those of `spec`.
    """
    contract, permissions = found.contract, spec.permissions
    execution, grant = contract.execution, contract.permissions
    same_role = spec.role.name == execution.role
    taken: dict[str, object] = {}
    if same_role and permissions.tools is None and COULD_NOT_WRITE not in found.agent.notes:
        earlier = (*grant.allowed_tools, *grant.ask_tools)
        taken["tools"] = tuple(n for n in earlier if _has_tool(spec.role, n, effects))
    if not permissions.scope:
        taken["scope"] = contract.step.scope
    if permissions.directory is None and execution.working_directory != parent_directory:
        taken["directory"] = execution.working_directory
    role = spec.role
    if same_role:
        both = intersect(role.write_scope, grant.write_scope)
        role = msgspec.structs.replace(role, write_scope=both)
    output = spec.output
    if not output.checks:
        output = msgspec.structs.replace(output, checks=contract.outputs.checks)
    return msgspec.structs.replace(
        spec,
        role=role,
        permissions=msgspec.structs.replace(permissions, **taken),
        output=output,
        continues=Continued(
            reference=found.reference,
            instructions=execution.instructions if same_role else "",
            tainted=found.agent.tainted,
            read_untrusted=found.agent.read_untrusted,
        ),
        notes=(f"continues {found.reference}", *spec.notes),
    )


def _has_tool(role: Role, name: str, effects: Effects) -> bool:
    """Whether `role` lists a tool. Tools to delegate follow from the roles that it may spawn."""
    effect = effects.get(name)
    if role.tools is None or effect is Effect.DELEGATE:
        return True
    if READING_MCP_TOOLS in role.tools and is_mcp_tool(name) and effect is Effect.READ:
        return True
    return bool(select_names(role.tools, (name,))[0])


async def load_earlier(agent: Agent, services: Services) -> tuple[tuple[Message, ...], str]:
    """The conversation that `agent` continues, and what changed since, in words for its model.

    Both are empty for an agent that begins anew. Raises UsageError or UnknownRun if the
    conversation is gone.
    """
    if not agent.state.continues:
        return (), ""
    found = await load_conversation(services.storage.store, agent.state.continues)
    tree = services.file_tree if agent.parent is None else agent.parent.files.tree
    workspace = tree.workspace(agent.contract.execution.working_directory)
    changed, deleted = await asyncio.to_thread(_changed_since, workspace, found)
    lines = ["You continue from above, with a new budget."]
    if changed:
        lines.append(f"Changed since by others: {listed(changed, SHOWN)}.")
    if deleted:
        lines.append(f"Deleted since by others: {listed(deleted, SHOWN)}.")
    if not changed and not deleted:
        lines.append("No file has changed since.")
    if agent.files.to_resolve:
        paths = ", ".join(agent.files.to_resolve)
        lines.append(f"Your earlier change conflicts with theirs: resolve the markers in {paths}.")
    return found.messages, "\n".join(lines)


def _changed_since(
    workspace: Workspace, found: RecordedConversation
) -> tuple[Sequence[str], Sequence[str]]:
    """Files that others have changed, and files that they have deleted, since the agent saw them.

    Nothing lists deleted files, so the second are those that the agent has read or written.
    """
    ended = found.agent
    closed_at = ended.closed_at or 0.0
    copied = found.contract.execution.workspace is WorkspaceKind.WORKTREE
    # A copy has the files as they were when the agent started.
    seen_at = (ended.started_at or closed_at) if copied else closed_at
    changed = [
        path
        for path, time in workspace.changed_after(seen_at)
        if time > closed_at or path not in ended.files_modified
    ]
    # Files that the agent has deleted itself, or made in a copy that was not merged.
    own = {
        path
        for path, change in ended.files_modified.items()
        if change.gone or (change.new and ended.unmerged_files)
    }
    seen = dict.fromkeys((*ended.files_read, *ended.files_modified))
    return changed, workspace.missing(path for path in seen if path not in own)
