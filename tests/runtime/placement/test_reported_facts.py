"""Answers of the user that a host reports: only those that the user has given."""

from __future__ import annotations

import pytest

from retinue.domain.agent_state import AgentState
from retinue.domain.approval import Answer, ApprovalReason, ApprovalRequest, Rule
from retinue.domain.events import ApprovalDecided
from retinue.domain.lifecycle import State
from retinue.runtime.placement.reported_facts import problem_of

AGENT = AgentState(
    id="a1", path="root/researcher.1", role="researcher", title="", depth=1, step_idx=1,
    contract_sha256="", created_at=0.0, state=State.RUNNING, attempt=1,
)  # fmt: skip
ASKED = ApprovalRequest(
    path="root/researcher.1",
    tool="web_fetch",
    arguments='{"url":"https://docs.example/a"}',
    why=ApprovalReason.MODE,
    subject="docs.example",
)
ALLOWED = {5: ASKED}
RULES = [Rule("web_fetch", "*.example"), Rule("run_command", "make *")]


def answer(
    host: str, *, tool: str = "web_fetch", rule: str = "", request: int = 0
) -> ApprovalDecided:
    """A yes that lets the agent and its descendants fetch from a host."""
    return ApprovalDecided(
        tool=tool,
        wanted=host,
        why="mode",
        answer=Answer.YES,
        rule=rule,
        keys=(f"web_fetch {host}",),
        request=request,
    )


@pytest.mark.parametrize(
    "fact",
    [
        answer("docs.example", request=5),
        answer("docs.example", rule="web_fetch(*.example)"),
    ],
)
def test_an_answer_of_the_user_is_reported(fact: ApprovalDecided) -> None:
    assert problem_of(fact, 1, AGENT, ALLOWED, RULES) == ""


@pytest.mark.parametrize(
    "fact",
    [
        answer("evil.test", request=5),
        answer("docs.example", request=6),
        answer("evil.test", rule="web_fetch(*.example)"),
        answer("evil.test", rule="run_command(make *)"),
    ],
    ids=["of another question", "of no question", "by a rule of other hosts", "by any rule"],
)
def test_an_answer_that_nobody_has_given(fact: ApprovalDecided) -> None:
    assert problem_of(fact, 1, AGENT, ALLOWED, RULES) == "nobody has said yes"


@pytest.mark.parametrize(
    "fact",
    [
        answer("docs.example", tool="run_command", request=5),
        ApprovalDecided(
            tool="web_fetch", wanted="docs.example", why="mode", answer=Answer.YES, request=5,
            keys=("web_fetch docs.example", "web_fetch evil.test"),
        ),
        ApprovalDecided(
            tool="spawn_agent", wanted="docs.example", why="mode", answer=Answer.NO, keys=("1:a",)
        ),
    ],
    ids=["for another tool", "for another host too", "about a child"],
)  # fmt: skip
def test_an_answer_to_something_else(fact: ApprovalDecided) -> None:
    assert problem_of(fact, 1, AGENT, ALLOWED, RULES) == "it did not ask about that"
