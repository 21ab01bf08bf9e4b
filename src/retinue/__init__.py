"""retinue: children for your agent, bound by contracts.

    import retinue

    async with retinue.open(".", model="openai:qwen3@http://127.0.0.1:8080/v1") as rt:
        found = await rt.spawn("researcher", "How does auth work here?")
        print(found.summary)

Everything is imported when it is first used, so that `import retinue` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module

# Not from `typing`: with `python -m retinue`, the current directory is still on `sys.path`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from retinue import errors as errors
    from retinue import events as events
    from retinue.app import open_runtime as open
    from retinue.domain.approval import Refusal as Refusal
    from retinue.domain.budget import Budget as Budget
    from retinue.domain.budget import Limits as Limits
    from retinue.domain.events import Event as Event
    from retinue.domain.grant import Mode as Mode
    from retinue.domain.plan.forecast import Forecast as Forecast
    from retinue.domain.plan.outcome import PlanResult as PlanResult
    from retinue.domain.plan.outcome import RunResult as RunResult
    from retinue.domain.plan.plan import Plan as Plan
    from retinue.domain.plan.plan import PlanStep as PlanStep
    from retinue.domain.result import Result as Result
    from retinue.domain.result import Status as Status
    from retinue.domain.run_state import fold as fold
    from retinue.domain.sampling import Sampling as Sampling
    from retinue.errors import RetinueError as RetinueError
    from retinue.models.replay.model import ReplayModel as ReplayModel
    from retinue.models.scripted.model import ScriptedModel as ScriptedModel
    from retinue.ports.person import Listeners as Listeners
    from retinue.ports.person import Person as Person
    from retinue.runtime.delegation.children import Job as Job
    from retinue.runtime.delegation.task import Task as Task
    from retinue.runtime.runtime import Runtime as Runtime
    from retinue.tools.function import tool as tool
    from retinue.version import VERSION as __version__  # noqa: N811 - the public name

_HOMES = {
    "Budget": "retinue.domain.budget:Budget",
    "Event": "retinue.domain.events:Event",
    "Forecast": "retinue.domain.plan.forecast:Forecast",
    "Job": "retinue.runtime.delegation.children:Job",
    "Limits": "retinue.domain.budget:Limits",
    "Listeners": "retinue.ports.person:Listeners",
    "Mode": "retinue.domain.grant:Mode",
    "Person": "retinue.ports.person:Person",
    "Plan": "retinue.domain.plan.plan:Plan",
    "PlanResult": "retinue.domain.plan.outcome:PlanResult",
    "PlanStep": "retinue.domain.plan.plan:PlanStep",
    "Refusal": "retinue.domain.approval:Refusal",
    "ReplayModel": "retinue.models.replay.model:ReplayModel",
    "Result": "retinue.domain.result:Result",
    "RetinueError": "retinue.errors:RetinueError",
    "RunResult": "retinue.domain.plan.outcome:RunResult",
    "Runtime": "retinue.runtime.runtime:Runtime",
    "Sampling": "retinue.domain.sampling:Sampling",
    "ScriptedModel": "retinue.models.scripted.model:ScriptedModel",
    "Status": "retinue.domain.result:Status",
    "Task": "retinue.runtime.delegation.task:Task",
    "__version__": "retinue.version:VERSION",
    "errors": "retinue.errors",
    "events": "retinue.events",
    "fold": "retinue.domain.run_state:fold",
    "open": "retinue.app:open_runtime",
    "tool": "retinue.tools.function:tool",
}

__all__ = [
    "Budget", "Event", "Forecast", "Job", "Limits", "Listeners", "Mode", "Person", "Plan",
    "PlanResult", "PlanStep", "Refusal", "ReplayModel", "Result", "RetinueError", "RunResult",
    "Runtime", "Sampling", "ScriptedModel", "Status", "Task", "__version__", "errors", "events",
    "fold", "open", "tool",
]  # fmt: skip


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    value = getattr(import_module(module), attribute) if attribute else import_module(module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
