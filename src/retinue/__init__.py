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
    from retinue.app import OpenOptions as OpenOptions
    from retinue.app import open_runtime as open
    from retinue.config.environment import Environment as Environment
    from retinue.domain.agent_state import AgentState as AgentState
    from retinue.domain.approval import Answer as Answer
    from retinue.domain.approval import ApprovalReason as ApprovalReason
    from retinue.domain.approval import ApprovalRequest as ApprovalRequest
    from retinue.domain.approval import ChildTerms as ChildTerms
    from retinue.domain.approval import Refusal as Refusal
    from retinue.domain.approval import Rule as Rule
    from retinue.domain.budget import Budget as Budget
    from retinue.domain.budget import LimitOptions as LimitOptions
    from retinue.domain.budget import Limits as Limits
    from retinue.domain.contract import OnConflict as OnConflict
    from retinue.domain.contract import WorkspaceKind as WorkspaceKind
    from retinue.domain.discovered_models import DiscoveredModels as DiscoveredModels
    from retinue.domain.discovered_models import InspectedServer as InspectedServer
    from retinue.domain.discovered_models import ModelOption as ModelOption
    from retinue.domain.discovered_models import ServerAddress as ServerAddress
    from retinue.domain.events import Event as Event
    from retinue.domain.grant import Mode as Mode
    from retinue.domain.grant import Network as Network
    from retinue.domain.images import Image as Image
    from retinue.domain.lifecycle import State as State
    from retinue.domain.messages import AssistantMessage as AssistantMessage
    from retinue.domain.messages import Effect as Effect
    from retinue.domain.messages import Finish as Finish
    from retinue.domain.messages import Message as Message
    from retinue.domain.messages import Reply as Reply
    from retinue.domain.messages import Request as Request
    from retinue.domain.messages import SystemMessage as SystemMessage
    from retinue.domain.messages import Thought as Thought
    from retinue.domain.messages import Thoughts as Thoughts
    from retinue.domain.messages import Timing as Timing
    from retinue.domain.messages import ToolCall as ToolCall
    from retinue.domain.messages import ToolMessage as ToolMessage
    from retinue.domain.messages import ToolSpec as ToolSpec
    from retinue.domain.messages import Usage as Usage
    from retinue.domain.messages import UserMessage as UserMessage
    from retinue.domain.plan.forecast import Forecast as Forecast
    from retinue.domain.plan.forecast import StepForecast as StepForecast
    from retinue.domain.plan.outcome import PlanResult as PlanResult
    from retinue.domain.plan.outcome import RunResult as RunResult
    from retinue.domain.plan.outcome import StepOutcome as StepOutcome
    from retinue.domain.plan.outcome import StepState as StepState
    from retinue.domain.plan.plan import OnFailure as OnFailure
    from retinue.domain.plan.plan import Plan as Plan
    from retinue.domain.plan.plan import PlanBudget as PlanBudget
    from retinue.domain.plan.plan import PlanStep as PlanStep
    from retinue.domain.plan.plan import StepBudget as StepBudget
    from retinue.domain.price import Price as Price
    from retinue.domain.price import PriceTier as PriceTier
    from retinue.domain.race import RaceResult as RaceResult
    from retinue.domain.race import Standing as Standing
    from retinue.domain.result import Check as Check
    from retinue.domain.result import ChildFailure as ChildFailure
    from retinue.domain.result import Conflict as Conflict
    from retinue.domain.result import FileChange as FileChange
    from retinue.domain.result import Receipt as Receipt
    from retinue.domain.result import Result as Result
    from retinue.domain.result import Spent as Spent
    from retinue.domain.result import Status as Status
    from retinue.domain.role import Role as Role
    from retinue.domain.run_state import RunState as RunState
    from retinue.domain.run_state import fold as fold
    from retinue.domain.sampling import Sampling as Sampling
    from retinue.domain.server_info import EndpointLoad as EndpointLoad
    from retinue.domain.server_info import ServedModel as ServedModel
    from retinue.domain.server_info import ServerInventory as ServerInventory
    from retinue.domain.slash_command import SlashCommand as SlashCommand
    from retinue.errors import RetinueError as RetinueError
    from retinue.interfaces.sync import fan_out_sync as fan_out_sync
    from retinue.interfaces.sync import run_sync as run_sync
    from retinue.interfaces.sync import spawn_sync as spawn_sync
    from retinue.models.replay.model import ReplayModel as ReplayModel
    from retinue.models.scripted.model import ScriptedModel as ScriptedModel
    from retinue.ports.clock import Clock as Clock
    from retinue.ports.clock import ClockGap as ClockGap
    from retinue.ports.model import Model as Model
    from retinue.ports.person import Listeners as Listeners
    from retinue.ports.person import Person as Person
    from retinue.ports.sandbox import Sandbox as Sandbox
    from retinue.runtime.delegation.attachments import NamedData as NamedData
    from retinue.runtime.delegation.task import Task as Task
    from retinue.runtime.delegation.task import TaskOptions as TaskOptions
    from retinue.runtime.history.undo import ChangePatch as ChangePatch
    from retinue.runtime.history.undo import UndoResult as UndoResult
    from retinue.runtime.run.command_expansion import ExpandedCommand as ExpandedCommand
    from retinue.runtime.run.job import Job as Job
    from retinue.runtime.run.stream import TextDelta as TextDelta
    from retinue.runtime.run.stream import ToolProgress as ToolProgress
    from retinue.runtime.runtime import Runtime as Runtime
    from retinue.tools.agent_context import AgentContext as AgentContext
    from retinue.tools.agent_context import AgentWorkspace as AgentWorkspace
    from retinue.tools.agent_context import Remaining as Remaining
    from retinue.tools.function import FunctionTool as FunctionTool
    from retinue.tools.function import tool as tool
    from retinue.version import VERSION as __version__  # noqa: N811 - the public name

_NAMES = {
    "retinue.app": "OpenOptions open_runtime:open",
    "retinue.config.environment": "Environment",
    "retinue.domain.agent_state": "AgentState",
    "retinue.domain.approval": "Answer ApprovalReason ApprovalRequest ChildTerms Refusal Rule",
    "retinue.domain.budget": "Budget LimitOptions Limits",
    "retinue.domain.contract": "OnConflict WorkspaceKind",
    "retinue.domain.discovered_models": (
        "DiscoveredModels InspectedServer ModelOption ServerAddress"
    ),
    "retinue.domain.events": "Event",
    "retinue.domain.grant": "Mode Network",
    "retinue.domain.images": "Image",
    "retinue.domain.lifecycle": "State",
    "retinue.domain.messages": (
        "AssistantMessage Effect Finish Message Reply Request SystemMessage"
        " Thought Thoughts Timing ToolCall ToolMessage ToolSpec Usage"
        " UserMessage"
    ),
    "retinue.domain.plan.forecast": "Forecast StepForecast",
    "retinue.domain.plan.outcome": "PlanResult RunResult StepOutcome StepState",
    "retinue.domain.plan.plan": "OnFailure Plan PlanBudget PlanStep StepBudget",
    "retinue.domain.price": "Price PriceTier",
    "retinue.domain.race": "RaceResult Standing",
    "retinue.domain.result": "Check ChildFailure Conflict FileChange Receipt Result Spent Status",
    "retinue.domain.role": "Role",
    "retinue.domain.run_state": "RunState fold",
    "retinue.domain.sampling": "Sampling",
    "retinue.domain.server_info": "EndpointLoad ServedModel ServerInventory",
    "retinue.domain.slash_command": "SlashCommand",
    "retinue.errors": "RetinueError",
    "retinue.interfaces.sync": "fan_out_sync run_sync spawn_sync",
    "retinue.models.replay.model": "ReplayModel",
    "retinue.models.scripted.model": "ScriptedModel",
    "retinue.ports.clock": "Clock ClockGap",
    "retinue.ports.model": "Model",
    "retinue.ports.person": "Listeners Person",
    "retinue.ports.sandbox": "Sandbox",
    "retinue.runtime.delegation.attachments": "NamedData",
    "retinue.runtime.delegation.task": "Task TaskOptions",
    "retinue.runtime.history.undo": "ChangePatch UndoResult",
    "retinue.runtime.run.command_expansion": "ExpandedCommand",
    "retinue.runtime.run.job": "Job",
    "retinue.runtime.run.stream": "TextDelta ToolProgress",
    "retinue.runtime.runtime": "Runtime",
    "retinue.tools.agent_context": "AgentContext AgentWorkspace Remaining",
    "retinue.tools.function": "FunctionTool tool",
    "retinue.version": "VERSION:__version__",
}
"""The public names of each module; `a:b` is `a` there and `b` here."""
_HOMES = {
    name.rpartition(":")[2]: (module, name.partition(":")[0])
    for module, names in _NAMES.items()
    for name in names.split()
}

__all__ = [
    "AgentContext", "AgentState", "AgentWorkspace", "Answer", "ApprovalReason",
    "ApprovalRequest", "AssistantMessage", "Budget", "ChangePatch", "Check", "ChildFailure",
    "ChildTerms", "Clock", "ClockGap", "Conflict", "DiscoveredModels", "Effect", "EndpointLoad",
    "Environment", "Event", "ExpandedCommand", "FileChange", "Finish", "Forecast",
    "FunctionTool", "Image", "InspectedServer", "Job", "LimitOptions", "Limits", "Listeners",
    "Message", "Mode", "Model", "ModelOption", "NamedData", "Network", "OnConflict", "OnFailure",
    "OpenOptions", "Person", "Plan", "PlanBudget", "PlanResult", "PlanStep", "Price", "PriceTier",
    "RaceResult", "Receipt", "Refusal",
    "Remaining", "ReplayModel", "Reply", "Request", "Result", "RetinueError", "Role", "Rule",
    "RunResult", "RunState", "Runtime", "Sampling", "Sandbox", "ScriptedModel", "ServedModel",
    "ServerAddress", "ServerInventory", "SlashCommand", "Spent", "Standing", "State", "Status",
    "StepBudget",
    "StepForecast", "StepOutcome", "StepState", "SystemMessage", "Task", "TaskOptions",
    "TextDelta", "Thought", "Thoughts", "Timing", "ToolCall", "ToolMessage", "ToolProgress",
    "ToolSpec", "UndoResult", "Usage", "UserMessage", "WorkspaceKind", "__version__", "errors",
    "events", "fan_out_sync", "fold", "open", "run_sync", "spawn_sync", "tool",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name in __all__ and name not in _HOMES:
        return import_module(f"retinue.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
