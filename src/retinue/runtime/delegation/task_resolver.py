"""Resolve a task of a program into the spec of its agent: role, model, files, limits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.domain.agent_spec import AgentSpec, RequestedOutput, RequestedPermissions
from retinue.domain.budget import UNKNOWN_WINDOW, Budget, Limits, context_of_window
from retinue.domain.permissions import unavailable_tools
from retinue.domain.role import Role, find_role
from retinue.domain.server_info import ServedModel
from retinue.domain.tool_names import select_names
from retinue.domain.web_hosts import canonical_hosts
from retinue.errors import UsageError
from retinue.ports.workspace import Workspace
from retinue.runtime.delegation.attachments import NOTHING_ATTACHED, attach_all
from retinue.runtime.delegation.continuation import continue_from
from retinue.runtime.delegation.task import (
    Task,
    check_not_empty,
    check_unicode,
    requested_output,
)
from retinue.runtime.history.recorded_conversation import find_ended, load_conversation
from retinue.runtime.services import Services

NO_WINDOW = (
    "the context window of {model} is not known: {window:,} tokens are assumed; set"
    " max_context_tokens under [budget]"
)


class TaskResolver:
    """Resolves tasks with the roles, models and files of this runtime."""

    def __init__(self, services: Services) -> None:
        self._policy = services.policy
        self._services = services

    async def resolve(self, task: Task) -> AgentSpec:
        """The spec for `task`. Raises UsageError for a task that no child could do."""
        _check_texts(task)
        task.sampling.check()
        services, policy = self._services, self._policy
        found, role_name = None, task.role
        model = services.models.resolve(task.model, task.endpoint)
        if task.continues:
            store = services.storage.store
            reference, agent = await find_ended(store, task.continues)
            found = await load_conversation(store, reference, agent=agent)
            role_name = role_name or found.contract.execution.role
            model = model or found.contract.execution.model
        role = find_role(services.roles, role_name)
        used = model or role.model or policy.model
        services.models.get(used)
        served = await services.models.served(used)
        notes_about, role = server_notes(served, role.budget), fit_role(role, served)
        effects = services.tools.effects
        if task.tools:
            # Here only for its error: the contract notes the tools that this set-up lacks.
            unavailable_tools(select_names(sorted(task.tools), effects)[1], effects)
        limits, narrowed = _fit_limits(task.given(), served, used)
        notes = (*(() if used == policy.model else notes_about), *narrowed)
        directory = self._directory(task.directory)
        workspace = services.file_tree.workspace(directory or policy.directory)
        output = requested_output(task.output)
        attached = NOTHING_ATTACHED
        if task.context or task.context_files:
            attached = await attach_all(
                workspace,
                context=task.context,
                files=task.context_files,
                max_tokens=limits.get("max_context_tokens", role.budget.context_tokens) // 2,
                served=served,
            )
        spec = AgentSpec(
            role=role,
            task=task.task,
            context=attached.text,
            images=attached.images,
            system_prompt=task.system_prompt,
            model=model,
            sampling=task.sampling,
            permissions=RequestedPermissions(
                tools=task.tools,
                mode=task.mode,
                scope=relative_paths(workspace, task.scope),
                write=None if task.write is None else relative_paths(workspace, task.write),
                directory=directory,
                workspace=task.workspace,
                network=task.network,
                skills=task.skills,
                web_hosts=None if task.web_hosts is None else canonical_hosts(task.web_hosts),
            ),
            limits=Limits(**limits),
            output=RequestedOutput(
                schema=output.schema,
                convert=output.convert,
                success_criteria=task.success_criteria,
                checks=task.checks,
                on_conflict=task.on_conflict,
            ),
            cache=task.cache,
            notes=(*attached.notes, *notes),
        )
        return spec if found is None else continue_from(spec, found, policy.directory, effects)

    def _directory(self, name: str | None) -> str | None:
        if name is None:
            return None
        root = self._policy.directory
        path = os.path.realpath(os.path.join(root, name))
        if os.path.commonpath([root, path]) != root or not os.path.isdir(path):
            raise UsageError(f"{name!r} is no directory inside {root}.")
        return path


def _check_texts(task: Task) -> None:
    check_not_empty(task.task)
    check_unicode(task=task.task, context=task.context, system_prompt=task.system_prompt)
    for field in ("scope", "write", "success_criteria", "context_files", "checks"):
        if texts := getattr(task, field):
            check_unicode(**{field: "".join(texts)})


def _fit_limits(
    limits: dict[str, Any], served: ServedModel | None, model: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The limits of a task inside the window of its model, and a note if that is smaller.

    Raises ContractError for a limit that makes no sense.
    """
    if not limits:
        return limits, ()
    largest = fit_budget(Budget(**limits), served).context_tokens
    if largest >= limits.get("max_context_tokens", 0):
        return limits, ()
    note = f"max_context_tokens became {largest}: the window of {model}"
    return limits | {"max_context_tokens": largest}, (note,)


def relative_paths(workspace: Workspace, paths: Iterable[str]) -> tuple[str, ...]:
    """`paths` relative to the workspace. Raises UsageError for a path outside of it.

    Models often write absolute paths, with the directory that their prompt names.
    """
    found = []
    for path in paths:
        inside = workspace.inside(path.strip())
        if inside is None and ".." in path.split("/"):
            raise UsageError(f"{path!r} leads out of the directory; name paths inside of it.")
        found.append(path if inside is None else inside)
    return tuple(found)


def fit_role(role: Role, served: ServedModel | None) -> Role:
    """`role` with a context as large as the window of its model, or smaller if the role says so."""
    key = role.name, None if served is None else served.window
    known = _fitted_roles.get(key)
    # Siblings get the same object, so that what is computed from it is computed once.
    if known is None or known[0] is not role:
        budget = fit_budget(role.budget, served)
        fitted = role
        if budget is not role.budget:
            fitted = msgspec.structs.replace(role, budget=budget)
        known = _fitted_roles[key] = role, fitted
    return known[1]


_fitted_roles: dict[tuple[str, int | None], tuple[Role, Role]] = {}


def fit_budget(budget: Budget, served: ServedModel | None) -> Budget:
    window = None if served is None else served.window
    given = budget.max_context_tokens
    if given is None:
        context = context_of_window(window or UNKNOWN_WINDOW)
    elif window is None or given <= window:
        return budget
    else:
        context = window
    return msgspec.structs.replace(budget, max_context_tokens=context)


def server_notes(served: ServedModel | None, budget: Budget) -> tuple[str, ...]:
    """Notes for the user about a model that an agent with `budget` uses."""
    if served is None:
        return ()
    if served.window is None and budget.max_context_tokens is None:
        return (*served.notes, NO_WINDOW.format(model=served.model, window=UNKNOWN_WINDOW))
    return served.notes
