"""From what a program asks for to orders, which contracts are drafted from."""

from __future__ import annotations

import os

from retinue.domain.budget import Budget, Limits
from retinue.domain.drafting import AgentSpec
from retinue.domain.role import find_role
from retinue.domain.tool_names import select_names
from retinue.errors import ContractError, UsageError
from retinue.runtime.agent.context_window import fitted, notes_on, within
from retinue.runtime.agent.output_schema import schema_text
from retinue.runtime.delegation.attachments import enclose
from retinue.runtime.delegation.paths import named
from retinue.runtime.delegation.task import Task, check_task, check_text
from retinue.runtime.services import Services


class TaskResolver:
    """Makes orders of tasks, with what this runtime has to carry them out."""

    def __init__(self, services: Services) -> None:
        self._policy = services.policy
        self._services = services

    async def resolve(self, task: Task) -> AgentSpec:
        """`task` as an order. Raises UsageError for what can never be done."""
        check_task(task.task)
        check_text(task=task.task, context=task.context, system_prompt=task.system_prompt)
        for field in ("scope", "write", "success_criteria", "context_files", "checks"):
            if texts := getattr(task, field):
                check_text(**{field: "".join(texts)})
        services, policy = self._services, self._policy
        role = find_role(services.roles, task.role)
        model = services.models.resolve(task.model, task.endpoint)
        used = model or role.model or policy.model
        services.models.get(used)
        served = await services.models.served(used)
        role = fitted(role, served)
        effects = services.tools.effects
        if task.tools and (unknown := select_names(sorted(task.tools), effects)[1]):
            raise ContractError(
                f"Unknown tool {unknown[0]!r}; there are: {', '.join(sorted(effects))}."
            )
        limits = task.given()
        notes = () if used == policy.model else notes_on(served)
        if limits:
            largest = within(Budget(**limits), served).max_context_tokens
            if largest < limits.get("max_context_tokens", 0):
                limits["max_context_tokens"] = largest
                notes = (*notes, f"max_context_tokens became {largest}: the window of {used}")
        directory = self._directory(task.directory)
        workspace = services.file_tree.workspace(directory or policy.directory)
        context, left_out = await enclose(
            workspace,
            context=task.context,
            files=task.context_files,
            max_tokens=limits.get("max_context_tokens", role.budget.max_context_tokens) // 2,
        )
        if left_out and task.context_files:
            raise UsageError("; ".join(left_out) + ".")
        return AgentSpec(
            role=role,
            task=task.task,
            extra_instructions=task.system_prompt,
            tools=task.tools,
            mode=task.mode,
            scope=named(workspace, task.scope),
            write=None if task.write is None else named(workspace, task.write),
            context=context,
            success_criteria=task.success_criteria,
            output_schema=schema_text(task.output_schema),
            model=model,
            directory=directory,
            workspace=task.workspace,
            checks=task.checks,
            on_conflict=task.on_conflict,
            cache=task.cache,
            notes=(*left_out, *notes),
            limits=Limits(**limits),
        )

    def _directory(self, name: str | None) -> str | None:
        if name is None:
            return None
        root = self._policy.directory
        path = os.path.realpath(os.path.join(root, name))
        if os.path.commonpath([root, path]) != root or not os.path.isdir(path):
            raise UsageError(f"{name!r} is no directory inside {root}.")
        return path
