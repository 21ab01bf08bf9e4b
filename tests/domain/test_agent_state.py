"""The rules that a live agent and the fold of a journal share."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from retinue.domain import events as ev
from retinue.domain.account import Resources
from retinue.domain.agent_state import (
    CONDENSING,
    CUT_OFF,
    TAINTED,
    AgentState,
    plain_id,
    result_of,
)
from retinue.domain.lifecycle import State
from retinue.domain.messages import Finish, ToolCall, Usage
from retinue.domain.plan.plan import Plan, PlanStep
from retinue.domain.result import Check, FileChange, Receipt, Result, Spent, Status


def agent(id: str = "a1", origin_key: str = "", **fields: Any) -> AgentState:
    return AgentState(
        id=id,
        parent_id="a0",
        path=f"root/{id}",
        role="coder",
        title="the work",
        depth=1,
        step_idx=0,
        contract_sha256="0" * 64,
        created_at=1.0,
        origin_key=origin_key,
        **{"state": State.CREATED} | fields,
    )


def apply(state: AgentState, *facts: ev.Fact) -> AgentState:
    for fact in facts:
        event = ev.Event(
            seq=1,
            run_id="k3f9",
            agent_id=state.id,
            parent_agent_id=state.parent_id,
            attempt=1,
            epoch=1,
            time=2.0,
            type=ev.TYPES[type(fact)],
            summary=str(fact),
            payload=msgspec.Raw(ev.encode_fact(fact)),
            hash="",
        )
        state.apply(event, fact)
    return state


def receipt(**fields: Any) -> Receipt:
    return Receipt(tool="t", ok=True, output_sha256="0", **fields)


def result(state: AgentState, **fields: Any) -> Result:
    return result_of(
        state, run_id="k3f9", task="Do it.", summary_tokens=2, duration_s=3.0, **fields
    )


STARTED = ev.AgentStarted(sub_agent_id="a1")
PROPOSED = ev.ResultProposed(sub_agent_id="a1", response="All tests pass.")
PASSED = receipt(command="pytest", exit_code=0)
EDIT = receipt(changed=(FileChange(path="a.py", added=1),))


def test_a_failed_call_is_over_when_the_next_turn_begins() -> None:
    failed = ev.ModelFailed(turn=1, error="the process ended before the reply")
    again = ev.TurnStarted(turn=1, of=9, retry=1)
    assert apply(agent(), ev.TurnStarted(turn=1, of=9), failed, again).model_error
    assert not apply(agent(), failed, ev.TurnStarted(turn=2, of=9)).model_error


@pytest.mark.parametrize("text", ["a3", "[a3]", ' "A3"\n', "'a3'"])
def test_models_write_ids_in_several_ways(text: str) -> None:
    assert plain_id(text) == "a3"


@pytest.mark.parametrize(
    ("receipts", "tested"),
    [([PASSED], True), ([PASSED, EDIT], False), ([EDIT, PASSED], True), ([EDIT], False)],
)
def test_tests_count_until_a_file_changes(receipts: list[Receipt], tested: bool) -> None:
    state = agent()
    for one in receipts:
        state.add_receipt(one)
    assert state.tested is tested
    assert apply(state, STARTED, PROPOSED).claim == ("" if tested else "All tests pass.")


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_check_decides_whether_the_work_is_tested(exit_code: int) -> None:
    check = Check(command="pytest", exit_code=exit_code, output_sha256="0")
    state = apply(agent(tested=exit_code != 0), ev.CheckFinished(check=check))
    assert state.tested is (exit_code == 0)
    assert state.checks == [check]


def test_a_check_that_runs_again_replaces_its_result() -> None:
    lint, failed, passed = (
        Check(command=command, exit_code=exit_code, output_sha256="0")
        for command, exit_code in (("lint", 0), ("pytest", 1), ("pytest", 0))
    )
    state = apply(agent(), *(ev.CheckFinished(check=one) for one in (failed, lint, passed)))
    assert state.checks == [lint, passed]


@pytest.mark.parametrize(
    ("child", "tested"),
    [
        ({"tested": True}, True),
        ({}, True),
        ({"files_modified": {"a": FileChange(path="a")}}, False),
        # Work that was not integrated changes nothing for the parent.
        (
            {
                "files_modified": {"a": FileChange(path="a")},
                "unmerged_files": (FileChange(path="a"),),
            },
            True,
        ),
    ],
)
def test_integrated_work_of_a_child_decides_about_its_parent(
    child: dict[str, Any], tested: bool
) -> None:
    parent = agent("a0", tested=True)
    parent.child_closed(agent(**child))
    assert parent.tested is tested


def test_a_child_inherits_what_its_parent_has_heard() -> None:
    parent, child = agent("a0", read_untrusted=True), agent()
    parent.add_child(child)
    assert child.read_untrusted
    assert not child.tainted


@pytest.mark.parametrize(
    ("sender", "receiver", "heard"),
    [(False, False, False), (True, False, True), (False, True, True)],
)
def test_a_message_passes_on_what_its_sender_has_heard(
    sender: bool, receiver: bool, heard: bool
) -> None:
    state = agent(read_untrusted=receiver)
    state.message_from(agent("a0", read_untrusted=sender))
    assert state.read_untrusted is heard


def test_a_call_is_charged_for_each_further_child() -> None:
    parent = agent("a0")
    for key in ("c1/0", "c1/1", "c1/2", "c2"):
        parent.add_child(agent(origin_key=key))
    apply(parent, ev.ToolStarted(call_id="c1", tool="delegate_task", arguments="{}"))
    assert parent.spent.tool_calls == 3
    assert parent.next_step == 4


def test_what_an_agent_has_spent_is_what_its_account_was_charged() -> None:
    """Tokens count once; servers count prompts that were sent again as well."""
    usage = Usage(900, 800, 20, cost_microusd=7, tokens_repeated=850)
    replied = ev.ModelReplied(turn=1, content="", usage=usage)
    failed = ev.ModelFailed(turn=2, error="gone", usage=Usage(1, 0, 2, cost_microusd=3))
    called = ev.ToolStarted(call_id="1", tool="t", arguments="{}")
    assert apply(agent(), STARTED, replied, called, failed).spent == Resources(
        tool_calls=1, turns=1, tokens=73, cost_microusd=10, billed_tokens=923
    )


def test_steps_of_a_plan_have_the_first_numbers() -> None:
    steps = tuple(PlanStep(name=name, role="r", task="t") for name in "abc")
    root = apply(agent("a0"), ev.PlanAdopted(plan=Plan(goal="g", steps=steps)))
    assert root.next_step == 3
    root.add_child(agent())
    assert root.next_step == 4
    more = Plan(goal="g", steps=(PlanStep(name="d", role="r", task="t"),))
    assert apply(root, ev.PlanAdopted(plan=more, because="the review")).next_step == 4


def test_limits_of_loaded_skills_last_until_another_conversation() -> None:
    def finished(*only_tools: str) -> ev.ToolFinished:
        return ev.ToolFinished(
            call_id="1", tool="load_skill", content="", receipt=receipt(), only_tools=only_tools
        )

    attempt = ev.AttemptStarted(number=2, of=2, timeout_s=5.0, opening=())
    state = apply(agent(), STARTED, finished(), finished("grep"))
    assert list(state.tool_limits) == [("grep",)]
    state = apply(state, msgspec.structs.replace(attempt, continued=True))
    assert list(state.tool_limits) == [("grep",)]
    assert list(apply(state, attempt).tool_limits) == []


def test_calls_of_a_reply_are_queued_until_they_start_or_are_denied() -> None:
    state = apply(agent(), STARTED)
    calls = tuple(ToolCall(id=str(n), name="t", arguments="{}") for n in range(3))
    denied = ev.ToolDenied(call_id="1", tool="t", arguments="{}", content="no", counted=False)
    facts = (
        ev.ModelReplied(turn=1, content="", calls=calls),
        ev.ToolStarted(call_id="0", tool="t", arguments="{}"),
        denied,
        ev.ToolStarted(call_id="2", tool="t", arguments="{}"),
        ev.ToolStarted(call_id="3", tool="t", arguments="{}"),
        denied,
        ev.ModelReplied(turn=2, content="", calls=calls),
        ev.TurnStarted(turn=3, of=9),
    )
    queued = [apply(state, fact).queued_calls for fact in facts]
    assert queued == [3, 2, 1, 0, 0, 0, 3, 0]


def test_an_attempt_that_is_interrupted_in_its_summary_leaves_none_to_the_next() -> None:
    attempt = ev.AttemptStarted(number=1, of=2, timeout_s=5.0, opening=())
    asked = ev.MessageReceived(content="Summarize.", source=CONDENSING)
    summary = ev.ModelReplied(turn=1, content="A summary.")
    answer = ev.ModelReplied(turn=2, content="An answer.")
    state = apply(agent(), STARTED, attempt, asked, summary)
    assert (state.condensed, state.last_text) == ("A summary.", "")
    state = apply(state, asked, attempt, answer)
    assert (state.condensed, state.last_text) == ("", "An answer.")


def test_the_context_includes_what_earlier_requests_had() -> None:
    replied = ev.ModelReplied(turn=2, content="", usage=Usage(900, 800, 20, tokens_repeated=850))
    assert apply(agent(), STARTED, replied).context_tokens == 920


def test_the_result_of_a_completed_agent() -> None:
    state = apply(
        agent(notes=("narrowed",)),
        STARTED,
        ev.AttemptStarted(number=1, of=1, timeout_s=5.0, opening=()),
        ev.ModelReplied(turn=1, content="", usage=Usage(5, 1, 2)),
    )
    state.add_receipt(receipt(untrusted=True, read=("b.py",)))
    apply(state, PROPOSED, ev.AgentCompleted(sub_agent_id="a1"))

    assert result(state, data=[1]) == Result(
        status=Status.COMPLETED,
        agent_id="a1",
        run_id="k3f9",
        role="coder",
        task="Do it.",
        summary="All test",
        response="All tests pass.",
        data=[1],
        tainted=True,
        notes=("narrowed", TAINTED),
        usage=Spent(turns=1, tokens_in=5, tokens_cached=1, tokens_out=2, duration_s=3.0),
        context_tokens=7,
        files_read=("b.py",),
        receipts=tuple(state.receipts),
        unverified="All tests pass.",
    )


@pytest.mark.parametrize(
    ("response", "condensed", "summary"),
    [
        ("Too long an answer.", "Shorter.", "Shorter."),
        ("Too long an answer.", "", "Too long"),
        ("Too long an answer.", "Too long as well.", "Too long"),
        ("Done.", "Shorter.", "Done."),
    ],
)
def test_a_summary_is_the_condensed_answer_where_the_answer_is_too_long(
    response: str, condensed: str, summary: str
) -> None:
    found = result(agent(response=response, condensed=condensed))
    assert (found.summary, found.response) == (summary, response)


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
def test_a_result_says_whether_its_answer_was_cut_off(finish: Finish) -> None:
    cut = ev.ModelReplied(turn=1, content="All", finish=finish)
    notes = result(apply(agent(notes=("narrowed",)), STARTED, cut, PROPOSED)).notes
    assert notes == ("narrowed", *([CUT_OFF] if finish is Finish.LENGTH else []))


def test_an_agent_has_ended_when_its_ending_is_on_record() -> None:
    ended = [state for state in State if agent(state=state).has_ended]
    assert ended == [State.WAITING_FOR_MERGE, State.COMPLETED, State.FAILED, State.CLOSED]


@pytest.mark.parametrize(
    ("started_at", "closed_at", "duration_s"),
    [(None, None, 0.0), (2.0, None, 0.0), (None, 2.0, 0.0), (2.0, 5.0, 3.0), (5.0, 2.0, 0.0)],
)
def test_an_agent_lasts_from_its_start_to_its_end(
    started_at: float | None, closed_at: float | None, duration_s: float
) -> None:
    """It lasts no time if the clock was set back."""
    assert agent(started_at=started_at, closed_at=closed_at).duration_s == duration_s


def test_an_agent_that_waits_to_be_merged_counts_as_completed() -> None:
    state = apply(agent(), STARTED, PROPOSED)
    assert state.state is State.WAITING_FOR_MERGE
    assert result(state).status is Status.COMPLETED
    assert result(state).error is None


def test_the_result_of_a_failed_agent() -> None:
    failed = ev.AgentFailed(sub_agent_id="a1", status=Status.TIMEOUT, reason="late", response="so")
    found = result(apply(agent(), STARTED, failed))
    assert (found.status, found.error, found.response) == (Status.TIMEOUT, "late", "so")
