"""`SpanFold`: the events of a run become spans, one for the run, each agent, each call.

A run is `invoke_workflow`, an agent `invoke_agent` under its parent, a model call `chat`, and a
tool call `execute_tool`. The names are those of the GenAI conventions 1.41, the last version that
was published. They still change, so they are constants here. Only `chat` spans have tokens and
cost: a sum over a trace counts each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from retinue.domain import events as ev
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.messages import Message
from retinue.domain.result import Status
from retinue.domain.trace_context import TraceContext, parse_traceparent, span_of
from retinue.telemetry.model_names import read_model_name

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
WORKFLOW, AGENT, CHAT, TOOL = "invoke_workflow", "invoke_agent", "chat", "execute_tool"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH = "gen_ai.response.finish_reasons"
FIRST_TOKEN = "gen_ai.response.time_to_first_chunk"
TOKENS_IN = "gen_ai.usage.input_tokens"
TOKENS_OUT = "gen_ai.usage.output_tokens"
TOKENS_CACHED = "gen_ai.usage.cache_read.input_tokens"
TOKENS_WRITTEN = "gen_ai.usage.cache_creation.input_tokens"
TOKENS_REASONING = "gen_ai.usage.reasoning.output_tokens"
SESSION = "gen_ai.conversation.id"
AGENT_ID, AGENT_NAME = "gen_ai.agent.id", "gen_ai.agent.name"
TOOL_NAME, TOOL_TYPE = "gen_ai.tool.name", "gen_ai.tool.type"
CALL_ID = "gen_ai.tool.call.id"
ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
ERROR, DENIED = "error.type", "denied"
ADDRESS, PORT = "server.address", "server.port"
# Names that only retinue has.
RUN_ID, PATH, STATUS = "retinue.run.id", "retinue.agent.path", "retinue.status"
FULL_MODEL, COST, QUEUED = "retinue.model", "retinue.cost_usd", "retinue.queued_s"
CACHED = "retinue.cached"
HOST = "retinue.host"
UNFINISHED = "retinue.unfinished"

Value = str | int | float | bool | tuple[str, ...]


class Span(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A finished span. Times are seconds since 1970."""

    operation: str
    subject: str
    """What was invoked: the kind of run, the role, the model or the tool."""
    context: TraceContext
    parent: TraceContext | None
    start: float
    end: float
    attributes: Mapping[str, Value]
    links: tuple[TraceContext, ...] = ()
    error: str = ""
    """What went wrong, for people; "" if nothing did."""

    @property
    def name(self) -> str:
        return f"{self.operation} {self.subject}".rstrip()


class _OpenCall(NamedTuple):
    """A tool call under way; `seq` is the number of its event."""

    start: float
    seq: int
    arguments: str


class _OpenAgent(msgspec.Struct):
    id: str
    start: float
    context: TraceContext
    parent: TraceContext
    role: str
    path: str
    model: str
    links: tuple[TraceContext, ...] = ()
    cached: bool = False
    host: str = ""
    status: str = Status.COMPLETED
    error: str = ""
    opening: str = ""
    asked: tuple[float, int] | None = None
    """When the model was asked, and the number of that event."""
    calls: dict[str, _OpenCall] = msgspec.field(default_factory=dict)
    """Tool calls under way, by id."""


class SpanFold:
    """Folds the events of one run; `apply` yields the spans that an event ends.

    With `redact`, spans have the content of messages and calls, changed by it; without it, they
    have none. Errors are never content, but pass through `redact_error`.
    """

    def __init__(
        self,
        *,
        redact: Callable[[str], str] | None = None,
        redact_error: Callable[[str], str] = str,
    ) -> None:
        self._redact = redact
        self._redact_error = redact_error
        self._run = ev.RunStarted(
            kind="", task="", directory="", model="", mode="", retinue_version="", sandbox=""
        )
        self._run_id, self._start, self._last, self._is_open = "", 0.0, 0.0, False
        self._links: tuple[TraceContext, ...] = ()
        self._open: dict[str, _OpenAgent] = {}
        self._steps: dict[str, tuple[str, ...]] = {}
        """Steps that each step of the plan depends on."""
        self._step_agents: dict[str, str] = {}

    @property
    def caller(self) -> TraceContext | None:
        """The span of the program that started the run."""
        return parse_traceparent(self._run.traceparent)

    @property
    def _session(self) -> str:
        return next(iter(self._run.earlier), self._run_id)

    @property
    def active(self) -> int:
        """How many agents are not closed, without the root."""
        return sum(id != ROOT_ID for id in self._open)

    def apply(self, event: ev.Event) -> Iterator[Span]:
        """Yield the spans that end with `event`."""
        self._last = event.time
        if event.type not in _FACTS:
            return
        agent = self._open.get(event.agent_id)
        match event.fact:
            case ev.RunStarted() as started:
                self._run, self._run_id, self._start = started, event.run_id, event.time
                self._is_open = True
            case ev.RunResumed(traceparent=traceparent):
                caller = parse_traceparent(traceparent)
                if caller is not None and traceparent != self._run.traceparent:
                    self._links += (caller,)
            case ev.RunFinished(status=status, reason=reason):
                self._is_open = False
                yield self._end_run(event.time, str(status), reason)
            case ev.PlanAdopted(plan=plan):
                self._steps |= {step.name: step.depends_on for step in plan.work}
            case ev.PlanStepFinished(step=step, sub_agent_id=done):
                self._step_agents[step] = done
            case ev.AgentCreated() as created:
                self._open[event.agent_id] = self._opened(event, created)
            case fact if agent is not None:
                yield from self._apply_to_agent(event, fact, agent)

    def unfinished(self) -> Iterator[Span]:
        """The spans that are still open, as if they ended with the last event."""
        for agent in list(self._open.values()):
            for call_id, call in agent.calls.items():
                yield self._tool(agent, call_id, "", call)
            yield self._end_agent(agent, self._last, UNFINISHED)
        if self._is_open:
            yield self._end_run(self._last, UNFINISHED, "")

    def context(self, part: str = "") -> TraceContext:
        """The span of the run, or of a part of it, as in `span_of`."""
        return span_of(self._run_id, part, traceparent=self._run.traceparent)

    def _opened(self, event: ev.Event, created: ev.AgentCreated) -> _OpenAgent:
        above = event.parent_agent_id
        links = [
            self.context(self._step_agents[step])
            for step in self._steps.get(_step_of(created), ())
            if step in self._step_agents
        ]
        if created.continues:
            run_id, _, agent_id = created.continues.rpartition("/")
            own = run_id == self._run_id
            links.append(self.context(agent_id) if own else span_of(run_id, agent_id))
        return _OpenAgent(
            id=event.agent_id,
            start=event.time,
            context=self.context(event.agent_id),
            parent=self.context(above or ""),
            role=created.role,
            path=created.path,
            model=created.model or self._run.model,
            links=tuple(links),
        )

    def _apply_to_agent(self, event: ev.Event, fact: ev.Fact, agent: _OpenAgent) -> Iterator[Span]:
        match fact:
            case ev.AttemptStarted(opening=opening) if self._redact is not None:
                agent.opening = self._messages(opening)
            case ev.CachedResultUsed(run_id=run_id, agent_id=original):
                agent.cached = True
                agent.links += (span_of(run_id, original),)
            case ev.AgentPlaced(host=host):
                agent.host = host
            case ev.TurnStarted():
                agent.asked = event.time, event.seq
            case ev.ModelReplied() | ev.ModelFailed():
                yield self._chat(event, fact, agent)
            case ev.ToolStarted(call_id=call_id, arguments=arguments):
                agent.calls[call_id] = _OpenCall(event.time, event.seq, arguments)
            case ev.ToolFinished(call_id=call_id) if call_id in agent.calls:
                error = "tool_error" if fact.failed else ""
                call = agent.calls.pop(call_id)
                yield self._tool(agent, call_id, fact.tool, call, fact.content, error)
            case ev.ToolDenied(call_id=call_id, tool=tool, arguments=arguments, content=content):
                call = _OpenCall(event.time, event.seq, arguments)
                yield self._tool(agent, call_id, tool, call, content, DENIED)
            case ev.AgentFailed(status=status, reason=reason):
                agent.status, agent.error = status, reason
            case ev.AgentClosed():
                del self._open[event.agent_id]
                yield self._end_agent(agent, event.time, agent.status)

    def _end_run(self, end: float, status: str, reason: str) -> Span:
        run = self._run
        attributes: dict[str, Value] = {
            OPERATION: WORKFLOW,
            "gen_ai.workflow.name": run.kind,
            SESSION: self._session,
            RUN_ID: self._run_id,
            "retinue.mode": run.mode,
            "retinue.sandbox": run.sandbox,
        }
        links = self._links + tuple(span_of(run_id) for run_id in run.earlier[-1:])
        return Span(
            operation=WORKFLOW,
            subject=run.kind,
            context=self.context(),
            parent=parse_traceparent(run.traceparent),
            start=self._start,
            end=end,
            attributes=attributes | _ending(status),
            links=links,
            error=self._failure(status, reason),
        )

    def _end_agent(self, agent: _OpenAgent, end: float, status: str) -> Span:
        attributes = self._of_agent(agent, AGENT) | _of_model(agent.model) | {PATH: agent.path}
        attributes[FULL_MODEL] = agent.model
        if agent.cached:
            attributes[CACHED] = True
        if agent.host:
            attributes[HOST] = agent.host
        if agent.opening:
            attributes[INPUT] = agent.opening
        return Span(
            operation=AGENT,
            subject=agent.role,
            context=agent.context,
            parent=agent.parent,
            start=agent.start,
            end=end,
            attributes=attributes | _ending(status),
            links=agent.links,
            error=self._failure(status, agent.error),
        )

    def _chat(
        self, event: ev.Event, fact: ev.ModelReplied | ev.ModelFailed, agent: _OpenAgent
    ) -> Span:
        start, seq = agent.asked or (event.time, event.seq)
        # A failed call may be repeated without a new turn.
        agent.asked = event.time, event.seq
        usage = fact.usage
        # In a pool, the reply says which model was used.
        used = fact.model if isinstance(fact, ev.ModelReplied) else None
        attributes = self._of_agent(agent, CHAT) | _of_model(used or agent.model)
        attributes[FULL_MODEL] = agent.model
        counts = {
            TOKENS_IN: usage.tokens_in,
            TOKENS_OUT: usage.tokens_out,
            TOKENS_CACHED: usage.tokens_cached,
            TOKENS_WRITTEN: usage.tokens_written,
            TOKENS_REASONING: usage.tokens_reasoning,
            COST: usage.cost_usd,
        }
        attributes |= {name: count for name, count in counts.items() if count}
        error = ""
        if isinstance(fact, ev.ModelFailed):
            error = self._redact_error(fact.error)
            attributes[ERROR] = "model_error"
        else:
            attributes[FINISH] = (fact.finish or "stop",)
            attributes[RESPONSE_MODEL] = attributes[MODEL]
            attributes[QUEUED] = fact.timing.queued_s
            attributes[FIRST_TOKEN] = fact.timing.first_token_s
            if self._redact is not None:
                parts: list[dict[str, Any]] = [{"type": "text", "content": fact.content}]
                parts += [
                    {"type": "tool_call", "id": c.id, "name": c.name, "arguments": c.arguments}
                    for c in fact.calls
                ]
                attributes[OUTPUT] = self._encoded([{"role": "assistant", "parts": parts}])
        return Span(
            operation=CHAT,
            subject=str(attributes[MODEL]),
            context=self.context(str(seq)),
            parent=agent.context,
            start=start,
            end=event.time,
            attributes=attributes,
            error=error,
        )

    def _tool(
        self,
        agent: _OpenAgent,
        call_id: str,
        tool: str,
        call: _OpenCall,
        content: str = "",
        error: str = "",
    ) -> Span:
        attributes = self._of_agent(agent, TOOL) | {
            TOOL_NAME: tool,
            TOOL_TYPE: "function",
            CALL_ID: call_id,
        }
        if error:
            attributes[ERROR] = error
        if self._redact is not None:
            attributes[ARGUMENTS] = self._redact(call.arguments)
            attributes[TOOL_RESULT] = self._redact(content)
        return Span(
            operation=TOOL,
            subject=tool,
            context=self.context(str(call.seq)),
            parent=agent.context,
            start=call.start,
            end=self._last,
            attributes=attributes,
            error=error,
        )

    def _of_agent(self, agent: _OpenAgent, operation: str) -> dict[str, Value]:
        return {
            OPERATION: operation,
            SESSION: self._session,
            RUN_ID: self._run_id,
            AGENT_ID: agent.id,
            AGENT_NAME: agent.role,
        }

    def _failure(self, status: str, reason: str) -> str:
        return "" if status in (Status.COMPLETED, UNFINISHED) else self._redact_error(reason)

    def _messages(self, messages: tuple[Message, ...]) -> str:
        return self._encoded(
            [
                {
                    "role": type(message).__struct_config__.tag,
                    "parts": [{"type": "text", "content": message.content}],
                }
                for message in messages
            ]
        )

    def _encoded(self, messages: list[dict[str, Any]]) -> str:
        assert self._redact is not None, "content is wanted"
        return self._redact(msgspec.json.encode(messages).decode())


_FACTS = frozenset(
    ev.TYPES[kind]
    for kind in (
        *(ev.RunStarted, ev.RunResumed, ev.RunFinished, ev.PlanAdopted, ev.PlanStepFinished),
        *(ev.AgentCreated, ev.AgentPlaced, ev.AttemptStarted, ev.CachedResultUsed, ev.TurnStarted),
        *(ev.ModelReplied, ev.ModelFailed, ev.ToolStarted, ev.ToolFinished, ev.ToolDenied),
        *(ev.AgentFailed, ev.AgentClosed),
    )
)


def _of_model(name: str) -> dict[str, Value]:
    found = read_model_name(name)
    attributes: dict[str, Value] = {PROVIDER: found.provider, MODEL: found.model}
    if found.address:
        attributes |= {ADDRESS: found.address, PORT: found.port}
    return attributes


def _ending(status: str) -> dict[str, Value]:
    if status == UNFINISHED:
        return {UNFINISHED: True}
    return {STATUS: status} if status == Status.COMPLETED else {STATUS: status, ERROR: status}


def _step_of(created: ev.AgentCreated) -> str:
    """The plan's step that a child does; see `plan_run`."""
    kind, _, step = created.origin_key.partition(" ")
    return step.rpartition(" ")[0] if kind == "step" else ""
