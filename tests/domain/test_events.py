from __future__ import annotations

import enum
import types
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain import events
from retinue.domain.events import TYPES, Event, Fact, decode_fact, encode_fact
from retinue.domain.messages import ToolCall, Usage
from retinue.domain.result import FileChange, Receipt, Status

FACTS: tuple[type[Any], ...] = typing.get_args(Fact)

# Long, with several lines, and with what a terminal would obey.
texts = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from("ab \n\r\t\v\f\x1b\x85\u2028\u202e\u200b"), max_size=30),
    # Repeated, since to draw each letter takes long.
    st.builds(
        lambda some, length: (some * length)[:length],
        st.text(st.sampled_from("é\n "), min_size=1, max_size=9),
        st.integers(300, 900),
    ),
)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that a fact can hold."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.builds(hint, **{f.name: values(f.type) for f in msgspec.structs.fields(hint)})
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    match typing.get_origin(hint):
        case types.UnionType | typing.Union:
            return st.one_of([values(choice) for choice in typing.get_args(hint)])
        case origin if origin is tuple:
            first, *others = typing.get_args(hint)
            if others != [...]:
                return st.tuples(values(first), *map(values, others))
            return st.lists(values(first), max_size=3).map(tuple)
        case _:
            return PLAIN[hint]


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    int: st.integers(-(2**31), 2**53),
    # Seconds, of up to thirty years: a summary has no room for the 39 digits of the largest float.
    float: st.floats(-1e9, 1e9, width=32),
    bool: st.booleans(),
    type(None): st.none(),
    msgspec.Raw: texts.map(lambda text: msgspec.Raw(msgspec.json.encode(text))),
}

facts = {cls: values(cls) for cls in FACTS}
any_fact: st.SearchStrategy[Fact] = st.one_of([*facts.values()])


def test_the_union_has_every_fact_of_the_module() -> None:
    def tagged(cls: Any) -> bool:
        return (
            isinstance(cls, type)
            and issubclass(cls, msgspec.Struct)
            and cls.__module__ == events.__name__
            and cls.__struct_config__.tag is not None
            and not cls.__name__.startswith("_")
        )

    assert {cls for cls in vars(events).values() if tagged(cls)} == set(FACTS)


def test_tags_are_unique() -> None:
    tags = [cls.__struct_config__.tag for cls in FACTS]

    assert len(set(tags)) == len(tags)


STORED = {
    "run.started": (
        "kind task directory model mode retinue_version sandbox earlier seal tainted wary by "
        "traceparent origin"
    ),
    "run.finished": "status reason",
    "run.suspended": "reason",
    "run.resumed": "retinue_version sandbox by traceparent",
    "run.lapsed": "stalled_s jumped_s",
    "run.pruned": (
        "events head_hash kind task directory model mode sandbox started_at finished_at "
        "status reason earlier usage rewritten agents idle_s"
    ),
    "run.tasks_given": "first tasks max_concurrent race",
    "agent.subagent_created": (
        "sub_agent_id step_idx path depth role title contract_sha256 notes errand background "
        "replaces continues tainted read_untrusted images model race"
    ),
    "agent.placed": "host placement reason",
    "agent.subagent_started": "sub_agent_id",
    "agent.subagent_attempt": "number of timeout_s opening because continued",
    "turn.started": "turn of last without_tools retry",
    "model.replied": "turn content calls usage timing finish repairs thoughts model",
    "model.failed": "turn error retry_in_s usage",
    "tool.started": "call_id tool arguments",
    "tool.finished": (
        "call_id tool content receipt failed note about images only_tools snapshot shown"
    ),
    "tool.denied": "call_id tool arguments content counted failed note shown",
    "approval.decided": "tool wanted why answer rule scope call_id reason keys request",
    "approval.requested": "tool wanted why scope rules children diff",
    "command.received": "verb by text request answer",
    "hook.finished": "event hook outcome detail call_id",
    "agent.told": "content source about",
    "agent.context_compacted": "masked dropped content longest unread",
    "agent.silent": "quiet_s stopped",
    "agent.cached": "run_id agent_id",
    "agent.breaker": "stage tool_calls of",
    "agent.limit_reached": "limit detail",
    "agent.worktree_created": "base directory content",
    "agent.worktree_merged": "base commit snapshot",
    "agent.check_finished": "check",
    "agent.files_changed": "step commit files",
    "agent.work_kept": "files",
    "run.steps_undone": "files steps kept agent by",
    "run.steps_redone": "files steps kept agent by",
    "agent.subagent_waiting_for_merge": "sub_agent_id response files_modified commit",
    "agent.race_forecast": "race rule forecast",
    "agent.race_decided": "race rule standings winner",
    "agent.subagent_completed": "sub_agent_id",
    "agent.subagent_failed": "sub_agent_id status reason response conflicts",
    "agent.subagent_closed": "sub_agent_id step_idx final_status close_reason unverified unread",
    "plan.adopted": "plan because forecast max_tokens max_concurrent alone",
    "plan.step_started": "step attempt because",
    "plan.step_finished": "step status sub_agent_id reason then lost",
}
"""Types and fields as journals on disk have them."""


def test_stored_types_and_fields_keep_their_spelling() -> None:
    written = {cls.__struct_config__.tag: " ".join(cls.__struct_encode_fields__) for cls in FACTS}
    assert written == STORED
    assert " ".join(events.Event.__struct_encode_fields__) == (
        "seq run_id agent_id parent_agent_id attempt epoch time type summary payload hash version"
    )
    assert " ".join(events.AgentRecord.__struct_encode_fields__) == (
        "id path role title depth step_idx contract_sha256 created_at state parent_id "
        "started_at closed_at status error close_reason cached turn max_turns turns "
        "tool_calls usage"
    )


def test_a_closing_says_what_the_execution_spec_requires() -> None:
    closed = events.AgentClosed(
        sub_agent_id="a1", step_idx=0, final_status="completed", close_reason="integrated"
    )

    assert msgspec.json.decode(encode_fact(closed)) == {
        "type": "agent.subagent_closed",
        "sub_agent_id": "a1",
        "step_idx": 0,
        "final_status": "completed",
        "close_reason": "integrated",
    }


@pytest.mark.parametrize("cls", FACTS, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=15)
def test_every_fact_survives_its_json(cls: type[Any], data: st.DataObject) -> None:
    fact = data.draw(facts[cls])
    payload = encode_fact(fact)

    back = decode_fact(payload)

    assert type(back) is cls
    assert back == fact
    assert encode_fact(back) == payload
    assert decode_fact(payload.decode()) == decode_fact(msgspec.Raw(payload)) == fact
    assert msgspec.json.decode(payload)["type"] == TYPES[type(fact)]


@pytest.mark.parametrize("cls", FACTS, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=15)
def test_every_summary_is_one_short_row(cls: type[Any], data: st.DataObject) -> None:
    summary = str(data.draw(facts[cls]))

    assert summary.isprintable()
    assert len(summary) <= 340


@pytest.mark.parametrize(
    ("fact", "summary"),
    [
        (events.RunFinished(status=Status.COMPLETED), "run completed"),
        (events.RunFinished(status=Status.ERROR, reason="no\nmodel"), "run error: no model"),
        (events.TurnStarted(turn=2, of=50), "turn 2/50"),
        (events.TurnStarted(turn=50, of=50, last=True), "turn 50/50, the last, without tools"),
        (
            events.AttemptStarted(number=2, of=2, timeout_s=5.0, opening=(), because="timeout"),
            "attempt 2/2 after timeout",
        ),
        (events.ModelReplied(turn=1, content=" \n "), "(nothing)"),
        (events.ModelReplied(turn=1, content="Done.\nAll of it."), "Done. All of it."),
        # Behind much that is not shown there is still something to show, up to some point.
        (events.ModelReplied(turn=1, content="\n" * 300 + "Done."), "Done."),
        (events.ModelReplied(turn=1, content="\n" * 200 + "x" * 300), "x" * 99 + "…"),
        (
            events.ModelReplied(turn=1, content="x" * 90 + "\x1b" * 90 + "y" * 90),
            "x" * 90 + "y" * 9 + "…",
        ),
        (events.ModelReplied(turn=1, content="\n" * 400 + "Done."), "(nothing)"),
        (
            events.ModelReplied(
                turn=1,
                content="x",
                calls=(ToolCall("1", "read", "{}"), ToolCall("2", "shell\x1b[2J", "{}")),
            ),
            "asks for read, shell[2J",
        ),
        (
            events.ModelFailed(turn=1, error="busy", retry_in_s=2.0),
            "model failed: busy; again in 2.0s",
        ),
        (events.ToolStarted(call_id="1", tool="read", arguments='{"p":1}'), 'read {"p":1}'),
        (
            events.ToolFinished(
                call_id="1",
                tool="shell",
                content="exit 1",
                receipt=Receipt(tool="shell", ok=False, output_sha256=""),
            ),
            "shell failed: exit 1",
        ),
        (
            events.AgentFailed(sub_agent_id="a", status=Status.TIMEOUT, reason="x" * 301),
            "timeout: " + "x" * 299 + "…",
        ),
    ],
)
def test_what_a_summary_says(fact: Fact, summary: str) -> None:
    assert str(fact) == summary


def test_what_a_fact_does_not_say_is_not_written() -> None:
    fact = events.ModelReplied(turn=1, content="hi", usage=Usage(tokens_in=3))

    assert encode_fact(fact) == (
        b'{"type":"model.replied","turn":1,"content":"hi","usage":{"tokens_in":3}}'
    )


def test_a_field_from_a_later_version_does_not_make_a_journal_unreadable() -> None:
    payload = b'{"type":"turn.started","turn":1,"of":2,"mood":"good"}'

    assert decode_fact(payload) == events.TurnStarted(turn=1, of=2)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"turn\.imagined"):
        decode_fact(b'{"type":"turn.imagined"}')


@given(any_fact)
def test_an_event_carries_its_fact_through_json(fact: Fact) -> None:
    event = Event(
        seq=1,
        run_id="r",
        agent_id="a",
        parent_agent_id=None,
        attempt=1,
        epoch=1,
        time=1.5,
        type=TYPES[type(fact)],
        summary=str(fact),
        payload=msgspec.Raw(encode_fact(fact)),
        hash="h",
    )

    back = msgspec.json.decode(msgspec.json.encode(event), type=Event)

    assert back == event
    assert back.fact == fact


def test_facts_cannot_be_changed() -> None:
    fact = events.ResultProposed(
        sub_agent_id="a", response="r", files_modified=(FileChange(path="p"),)
    )
    with pytest.raises(AttributeError):
        fact.response = "better"  # type: ignore[misc]
