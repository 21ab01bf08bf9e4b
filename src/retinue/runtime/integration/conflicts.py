"""Have a third child resolve the merge conflict of two others, and verify what it did."""

from __future__ import annotations

from retinue.domain.agent_spec import AgentSpec, RequestedPermissions
from retinue.domain.contract import WorkspaceKind
from retinue.domain.role import Role
from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports.file_tree import WorkingCopy
from retinue.runtime.agent.agent import Agent
from retinue.threads import in_thread

MAX_BYTES = 10 * 1024 * 1024
_MARKERS = (b"<<<<<<< ", b">>>>>>> ")

TASK = """\
Two changes contradict each other in: {files}. In these files the lines of both stand between the\
 markers <<<<<<<, ======= and >>>>>>>: first those that are there already, then those of the change\
 to be brought in. Edit the files so that both changes do what they were meant to, and remove every\
 marker. Change nothing else.

The change that is to be brought in was made for this task:
{task}"""


def resolution_spec(agent: Agent, role: Role) -> AgentSpec:
    """The spec for a child that resolves the conflicts of `agent`."""
    files = tuple(conflict.path for conflict in agent.files.conflicts)
    return AgentSpec(
        task=TASK.format(files=", ".join(files), task=agent.contract.step.description),
        role=role,
        permissions=RequestedPermissions(write=files, workspace=WorkspaceKind.WORKTREE),
        cache=False,
    )


async def unresolved(agent: Agent, copy: WorkingCopy, directory: str) -> str:
    """Say which conflict of `agent` is left in the copy, or return ""."""
    workspace = copy.workspace(directory)
    try:
        proposal = await copy.propose(message="")
    except WorkspaceError as error:
        return str(error)
    if proposal.problems:
        return "; ".join(proposal.problems)
    changed = {file.path: file for file in proposal.files}
    for conflict in agent.files.conflicts:
        path = conflict.path
        file = changed.pop(path, None)
        if file is not None and file.gone:
            continue  # Removing the file resolves the conflict too.
        try:
            data = await in_thread(lambda: workspace.read(path, max_bytes=MAX_BYTES))  # noqa: B023
        except ToolFailure as failure:
            return str(failure)
        if any(line.startswith(_MARKERS) for line in data.splitlines()):
            return f"there are conflict markers left in {path}"
        if file is None:
            # A file that one side removed, or a binary file, has one version and no markers.
            return f"nothing was changed in {path}, which has the version of one side only"
    if changed:
        return f"it changed more than the conflicts: {', '.join(changed)}"
    return ""
