"""Typed events: the facts of a journal, one class each, for `match`.

```python
from retinue.events import AgentClosed, ToolFinished

run = await rt.run("Look around.")
async for event in rt.events(run.id, follow=True):
    match event.fact:
        case ToolFinished(tool=tool, failed=True):
            print(event.time, event.agent_id, tool)
        case AgentClosed(final_status=status):
            print(event.agent_id, status)
```

An `Event` says who, where and when (`run_id`, `agent_id`, `parent_agent_id`, `seq`, `time`), and
its `fact` says what happened. `Fact` is the union of all classes, so that a type checker can tell
whether a `match` is complete. Later versions may add classes: end a `match` with `case _`.
"""

from __future__ import annotations

from retinue.domain.events import *  # noqa: F403 (`__all__` says which)

__all__ = [  # noqa: F405
    "AgentClosed", "AgentCompleted", "AgentCreated", "AgentFailed", "AgentPlaced",
    "AgentRecord", "AgentStarted", "ApprovalDecided", "ApprovalRequested", "AttemptStarted",
    "CachedResultUsed", "ChangesRedone", "ChangesUndone", "CheckFinished",
    "CircuitBreakerTripped", "ClockGapDetected", "CommandReceived", "ContextCompacted", "Event",
    "Fact", "FilesChanged", "ForkOrigin", "HookFinished", "LimitReached", "MessageReceived",
    "ModelFailed", "ModelReplied",
    "PlanAdopted", "PlanStepFinished", "PlanStepStarted", "RaceDecided", "RaceForecast",
    "ResultProposed", "RunFinished",
    "RunPruned", "RunResumed", "RunStarted", "RunSuspended", "SilenceDetected",
    "TasksSubmitted", "ToolDenied", "ToolFinished", "ToolStarted", "TurnStarted",
    "UnmergedWorkKept", "WorktreeCreated", "WorktreeMerged",
]  # fmt: skip
