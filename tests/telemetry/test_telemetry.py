"""Traces and metrics of real runs, as a collector on loopback receives them."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.domain.events import Event, RunStarted
from retinue.domain.trace_context import span_of
from retinue.errors import ProviderError, RunSuspended, Unreachable
from retinue.models.scripted.model import ScriptedModel, call, fail, say
from retinue.project import open_journal
from retinue.runtime.history.audit import read_all
from retinue.runtime.runtime import Runtime
from retinue.telemetry import exporter
from retinue.telemetry.spans import AGENT, CHAT, TOOL, WORKFLOW, Span, SpanFold
from retinue.threads import in_thread
from tests.telemetry.collector import Collector, attributes, collector

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LATER = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
async def receiver() -> AsyncIterator[Collector]:
    async with collector() as receiving:
        yield receiving


@pytest.fixture
def traced(
    opened: Opened, receiver: Collector, tmp_path: Path
) -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    """`opened`, for a user whose variables name the collector, and these."""

    def open_traced(variables: dict[str, str] | None = None, **options: Any) -> Any:
        named = {"HOME": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        environment = Environment(variables=named | (variables or {}))
        return opened(environment=environment, **options)

    return open_traced


async def recorded(project: Path, run_id: str) -> list[Event]:
    async with open_journal(project) as store:
        return list(await read_all(store, run_id))


def spans_of(events: Iterable[Event], **options: Any) -> list[Span]:
    fold = SpanFold(**options)
    return [*(span for event in events for span in fold.apply(event)), *fold.unfinished()]


def by_id(found: Iterable[Any]) -> dict[str, Any]:
    return {span.span_id.hex(): span for span in found}


async def test_fifty_concurrent_children_are_one_trace(
    traced: Opened, receiver: Collector, project: Path
) -> None:
    spawn = call("spawn_agent", role="reviewer", task="Look deeper.")
    model = ScriptedModel(
        {
            "Look deeper": [call("list_dir"), say("Deep.")],
            "Part 7": [spawn, say("Asked.")],
            "Part 13": [fail(ProviderError("No.", retryable=False))],
            "": [call("list_dir"), say("Done.")],
        },
        strict=False,
    )
    async with traced(model=model, mode="auto", max_concurrent=50) as rt:
        tasks = [("executor", f"Part {n}.") for n in range(50)]
        results = await rt.fan_out(tasks)
    run_id = results[0].run_id
    received = by_id(receiver.spans)
    assert len(received) == len(receiver.spans)
    assert {span.trace_id for span in receiver.spans} == {bytes.fromhex(span_of(run_id).trace_id)}
    assert receiver.service == "retinue"
    (run,) = receiver.named(WORKFLOW)
    assert not run.parent_span_id
    events = await recorded(project, run_id)
    agents = {e.agent_id: e.parent_agent_id for e in events if e.type == "agent.subagent_created"}
    assert len(agents) == 52
    for agent_id, parent in agents.items():
        span = received[span_of(run_id, agent_id).span_id]
        assert span.name.startswith(AGENT)
        assert span.parent_span_id.hex() == span_of(run_id, parent or "").span_id
    for span in (*receiver.named(CHAT), *receiver.named(TOOL)):
        above = received[span.parent_span_id.hex()]
        own, of_agent = attributes(span.attributes), attributes(above.attributes)
        assert own["gen_ai.agent.id"] == of_agent["gen_ai.agent.id"]
        assert own["gen_ai.conversation.id"] == of_agent["gen_ai.conversation.id"] == run_id
        assert above.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= above.end_time_unix_nano
    (failed,) = [span for span in receiver.named(f"{AGENT} executor") if span.status.code == 2]
    assert attributes(failed.attributes)["error.type"] == "error"
    # The sums of the spans are the sums of the journal.
    sums = {"gen_ai.usage.input_tokens": 0, "gen_ai.usage.output_tokens": 0}
    for span in receiver.named(CHAT):
        assert span.name == f"{CHAT} {attributes(span.attributes)['gen_ai.request.model']}"
        for name, value in attributes(span.attributes).items():
            if name in sums:
                sums[name] += int(value)
    async with open_journal(project) as store:
        usage = await store.usage(run_id)
    assert list(sums.values()) == [usage.tokens_in, usage.tokens_out]
    assert receiver.metrics["gen_ai.client.token.usage"] == usage.tokens_in + usage.tokens_out
    assert receiver.metrics["retinue.model.failures"] == 1
    assert receiver.metrics["retinue.agents.active"] == 0


async def test_exporting_a_run_again_gives_the_same_spans(
    traced: Opened, receiver: Collector, project: Path
) -> None:
    model = ScriptedModel([call("list_dir"), say("Done.")])
    async with traced(model=model) as rt:
        result = await rt.run("Look.")
    live = by_id(receiver.spans)
    receiver.spans.clear()
    found = spans_of(await recorded(project, result.run_id))
    await in_thread(lambda: exporter.export_spans(found, receiver.url))
    assert by_id(receiver.spans) == live


async def test_a_resumed_run_stays_in_its_trace_and_links_to_its_second_caller(
    traced: Opened, receiver: Collector, project: Path
) -> None:
    gone = ScriptedModel([call("list_dir"), fail(Unreachable("Gone."))])
    async with traced({"TRACEPARENT": CALLER}, model=gone) as rt:
        with pytest.raises(RunSuspended) as suspended:
            await rt.run("Look.")
    assert not receiver.named(WORKFLOW)
    first = by_id(receiver.spans)
    async with traced({"TRACEPARENT": LATER}, model=ScriptedModel([say("Done.")])) as rt:
        await rt.resume(suspended.value.run_id)
    received = by_id(receiver.spans)
    assert len(received) == len(receiver.spans), "each span came once"
    assert first.items() <= received.items()
    assert {span.trace_id.hex() for span in receiver.spans} == {CALLER.split("-")[1]}
    (run,) = receiver.named(WORKFLOW)
    assert run.parent_span_id.hex() == CALLER.split("-")[2]
    assert [link.span_id.hex() for link in run.links] == [LATER.split("-")[2]]
    started = (await recorded(project, suspended.value.run_id))[0].fact
    assert isinstance(started, RunStarted)
    assert started.traceparent == CALLER


def own_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "retinue.telemetry"]


async def test_a_collector_that_refuses_costs_spans_and_nothing_else(
    traced: Opened,
    receiver: Collector,
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver.status = 400  # The SDK does not repeat what was refused.
    with caplog.at_level(logging.WARNING, "retinue.telemetry"):
        async with traced(model=ScriptedModel([say("Done.")])) as rt:
            result = await rt.run("Go.")
    assert result.ok
    assert own_messages(caplog) == ["telemetry: 3 of 3 spans were not sent"]


async def test_nobody_listens_at_the_endpoint(
    traced: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with caplog.at_level(logging.WARNING, "retinue.telemetry"):
        async with traced(nobody, model=ScriptedModel([say("Done.")])) as rt:
            result = await rt.run("Go.")
    assert result.ok
    assert own_messages(caplog) == ["telemetry: 3 of 3 spans were not sent"]


async def test_spans_have_content_only_on_request_and_never_a_secret(
    traced: Opened, receiver: Collector
) -> None:
    key = "sk-proj-4f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
    steps = [call("read_file", path=key), say(f"The marmot says {key}.")]
    capture = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    for variables, has_content in (({}, False), (capture, True)):
        receiver.spans.clear()
        async with traced(variables, model=ScriptedModel(steps)) as rt:
            await rt.run("Ask the marmot.")
        text = str(receiver.spans)
        assert key not in text
        assert ("marmot says" in text) is has_content
        assert ("Ask the marmot" in text) is has_content


async def test_an_unsampled_caller_gets_no_spans(traced: Opened, receiver: Collector) -> None:
    unsampled = CALLER[:-2] + "00"
    async with traced({"TRACEPARENT": unsampled}, model=ScriptedModel([say("Done.")])) as rt:
        await rt.run("Go.")
    assert not receiver.spans
    assert "gen_ai.client.operation.duration" in receiver.metrics


async def test_commands_get_the_span_of_their_call(
    traced: Opened, receiver: Collector, project: Path
) -> None:
    command = call("run_command", command="echo $TRACEPARENT > parent.txt")
    options = {"mode": "auto", "shell": True, "unsafe_no_sandbox": True}
    model = ScriptedModel([command, say("Done.")])
    async with traced(model=model, **options) as rt:
        await rt.run("Go.")
    (tool,) = receiver.named(TOOL)
    expected = f"00-{tool.trace_id.hex()}-{tool.span_id.hex()}-01\n"
    assert (project / "parent.txt").read_text() == expected


async def test_without_telemetry_commands_get_the_callers_span(
    opened: Opened, project: Path, tmp_path: Path
) -> None:
    command = call("run_command", command="echo $TRACEPARENT > parent.txt")
    environment = Environment(variables={"HOME": str(tmp_path), "TRACEPARENT": CALLER})
    options = {"mode": "auto", "shell": True, "unsafe_no_sandbox": True}
    model = ScriptedModel([command, say("Done.")])
    async with opened(model=model, environment=environment, **options) as rt:
        await rt.run("Go.")
    assert (project / "parent.txt").read_text() == CALLER + "\n"


async def test_steps_link_to_the_steps_that_they_depend_on(opened: Opened, project: Path) -> None:
    steps = [
        {"name": "look", "role": "researcher", "task": "Look."},
        {"name": "tell", "role": "researcher", "task": "Tell.", "depends_on": ["look"]},
    ]
    async with opened(model=ScriptedModel({"": [say("Done.")]}, strict=False)) as rt:
        result = await rt.execute({"goal": "Know it", "steps": steps})
    found = {
        s.attributes["gen_ai.agent.id"]: s
        for s in spans_of(await recorded(project, result.run_id))
        if s.operation == AGENT
    }
    look, tell = (found[step.result.agent_id] for step in result.steps if step.result)
    assert tell.links == (look.context,)
    assert look.links == ()


async def test_a_child_that_continues_another_links_to_it(opened: Opened, project: Path) -> None:
    model = ScriptedModel({"": [say("Done.")]}, strict=False)
    async with opened(model=model, cache=False) as rt:
        first = await rt.spawn("researcher", "Look.")
        then = await rt.spawn("researcher", "Go on.", continues=first)
    agents = [s for s in spans_of(await recorded(project, then.run_id)) if s.operation == AGENT]
    (span,) = [s for s in agents if s.attributes["gen_ai.agent.id"] == then.agent_id]
    assert span.links == (span_of(first.run_id, first.agent_id),)


async def test_a_denied_call_and_an_unfinished_run_have_spans(
    opened: Opened, project: Path
) -> None:
    model = ScriptedModel([call("write_file", path="a", content="b"), say("Done.")])
    async with opened(model=model, mode="plan") as rt:
        result = await rt.run("Write.")
    events = await recorded(project, result.run_id)
    (tool,) = [span for span in spans_of(events) if span.operation == TOOL]
    assert tool.attributes["error.type"] == "denied"
    # A journal that was cut off anywhere: every span has the id that it has at the end.
    complete = {span.context: span for span in spans_of(events)}
    for count in range(1, len(events)):
        cut = spans_of(events[:count])
        assert {span.context for span in cut} <= {*complete}
        unfinished = [span for span in cut if "retinue.unfinished" in span.attributes]
        assert unfinished
        assert all(span.end == events[count - 1].time for span in unfinished)


async def test_telemetry_without_its_packages_is_a_note(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.app.is_installed", lambda extra: extra != "otel")
    variables = {"HOME": str(tmp_path), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    environment = Environment(variables=variables)
    async with opened(model=ScriptedModel([]), environment=environment) as rt:
        assert (
            "OTEL_… variables are set, but telemetry is not installed:"
            " pip install 'retinue[otel]'" in rt.notes
        )


async def test_a_process_that_cannot_be_started_is_a_note(
    traced: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with traced(model=ScriptedModel([say("Done.")])) as rt:
        result = await rt.run("Go.")
        notes = rt.notes
    assert result.ok
    note = "telemetry is off: its process cannot be started (No such file or directory)"
    assert note in notes


async def test_metrics_and_spans_on_the_console(
    opened: Opened, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    variables = {
        "HOME": str(tmp_path),
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "console",
    }
    environment = Environment(variables=variables)
    model = ScriptedModel([call("list_dir"), say("Done.")])
    async with opened(model=model, environment=environment) as rt:
        assert (await rt.run("Look.")).ok
    out, err = capfd.readouterr()
    assert "invoke_workflow" in err
    assert '"gen_ai.client.token.usage"' in err
    assert not out, "standard output is the result's"
