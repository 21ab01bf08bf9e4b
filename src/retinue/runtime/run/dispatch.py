"""Errands of a run's root: what a child is made for, once, whichever process makes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from retinue.domain.drafting import AgentSpec
from retinue.domain.result import Result, Status
from retinue.errors import UsageError
from retinue.runtime.agent.baseline import Baseline
from retinue.runtime.run.run import Run


async def employ(
    run: Run,
    origin_key: str,
    asked: Callable[[], Awaitable[AgentSpec]],
    *,
    heard_untrusted: bool = False,
) -> Result:
    """What a child makes of it: the one that the errand has made already, or another.

    Each makes a line of its own: nobody waits for it who need not.
    """
    child = run.employed(origin_key)
    if child is not None:
        child.heard_untrusted |= heard_untrusted
        return child.result or await run.see_through(child)
    spec = await asked()
    role, task = spec.role.name, spec.task
    if run.root.stop_reason is not None:
        return run.refused(role, task, run.root.stop_reason, Status.CANCELLED)
    try:
        child = await run.create(spec, run.root, Baseline(line=origin_key), origin_key=origin_key)
    except UsageError as error:
        spent_up = run.root.account.remaining().tokens == 0
        status = Status.BUDGET_EXCEEDED if spent_up else Status.REJECTED
        return run.refused(role, task, str(error), status)
    child.heard_untrusted |= heard_untrusted
    return await run.see_through(child)
