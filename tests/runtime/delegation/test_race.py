"""Races: candidates under one contract, of which checks choose one; the others are kept."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinue
from retinue.domain.events import (
    AgentCreated,
    ApprovalRequested,
    Event,
    RaceDecided,
    RaceForecast,
    TurnStarted,
)
from retinue.domain.messages import Request, ToolMessage
from retinue.domain.race import RaceResult, Standing, rank
from retinue.errors import (
    ContractError,
    OutOfBudget,
    PlanError,
    RunSuspended,
    Unreachable,
    UsageError,
)
from retinue.models.scripted.model import (
    ScriptedHold,
    ScriptedModel,
    ScriptedReply,
    Step,
    call,
    fail,
    say,
)
from retinue.project import open_journal
from retinue.runtime.history.audit import audit, read_all
from retinue.runtime.runtime import Runtime

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
FIXED = "grep -q fixed a.txt"
BROKEN = "broken\n"


@pytest.fixture
def racing(opened: Opened, project: Path, repo: Repo) -> Opened:
    """`opened` for a repository in which commands run."""
    repo.root = project
    repo.init().commit({"a.txt": BROKEN})

    def open_(**options: Any) -> AbstractAsyncContextManager[Runtime]:
        return opened(**{"mode": "auto", "unsafe_no_sandbox": True, "cache": False} | options)

    return open_


def fixed(lines: int) -> str:
    return "fixed\n" * lines


def writes(content: str, path: str = "a.txt") -> list[ScriptedReply]:
    return [
        call("write_file", path=path, content=content).using(500, 20),
        say(f"Wrote {content.count(chr(10))}.").using(600, 10),
    ]


def held(gate: asyncio.Event, steps: Sequence[Step]) -> list[Step]:
    """The steps, the last of which waits for the gate."""
    *before, last = steps
    return [*before, ScriptedHold(gate, last)]


def prompts(*names: str) -> list[retinue.TaskOptions]:
    return [{"system_prompt": f"You are {name}."} for name in names]


def by_prompt(**steps: Sequence[Step]) -> ScriptedModel:
    return ScriptedModel({f"You are {name}.": each for name, each in steps.items()}, strict=False)


def copies(tmp_path: Path, run_id: str) -> list[Path]:
    return list((tmp_path / ".cache" / "retinue" / "worktrees").rglob(f"{run_id}*"))


async def journal(project: Path) -> list[Event]:
    async with open_journal(project) as store:
        (row,) = await store.runs()
        await audit(store, row.id)
        return await read_all(store, row.id)


def decisions(events: Sequence[Event]) -> list[RaceDecided]:
    return [event.fact for event in events if isinstance(event.fact, RaceDecided)]


NAMES = ("short", "long", "wrong")
SCRIPTS = {
    "short": writes(fixed(1)),
    "long": writes(fixed(5)),
    "wrong": [*writes("no\n"), say("?")],
}


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)))
@pytest.mark.parametrize("ends", [NAMES, NAMES[::-1], ("long", "short", "wrong")])
async def test_the_best_wins_in_every_order(
    racing: Opened, project: Path, tmp_path: Path, order: Sequence[str], ends: Sequence[str]
) -> None:
    """The order of the candidates, and that in which they end, decide nothing."""
    gates = {name: asyncio.Event() for name in NAMES}
    ended: dict[str, asyncio.Event] = {}

    def on_event(event: Event) -> None:
        if event.type in ("agent.subagent_closed", "agent.subagent_waiting_for_merge"):
            ended[event.agent_id].set()

    model = by_prompt(**{name: held(gates[name], SCRIPTS[name]) for name in NAMES})
    async with racing(model=model, on_event=on_event) as rt:
        ended |= {f"a{n}": asyncio.Event() for n in (0, 1, 2, 3)}
        working = asyncio.create_task(
            rt.race("executor", "Fix it.", prompts(*order), checks=[FIXED], max_retries=0)
        )
        for name in ends:
            gates[name].set()
            await ended[f"a{order.index(name) + 1}"].wait()
        race = await working
    assert race.ok
    assert race.winner is not None
    assert race.winner.agent_id == f"a{order.index('short') + 1}"
    assert (project / "a.txt").read_text() == fixed(1)
    assert {name: race.results[order.index(name)].kept for name in NAMES} == {
        "short": False,
        "long": True,
        "wrong": True,
    }
    assert [standing.passed for standing in race.standings] == [name != "wrong" for name in order]
    (decided,) = decisions(await journal(project))
    assert decided.winner == race.winner.agent_id
    assert not copies(tmp_path, race.run_id)


async def test_a_candidate_that_was_not_chosen_can_be_chosen_later(
    racing: Opened, project: Path
) -> None:
    model = by_prompt(**SCRIPTS)
    async with racing(model=model) as rt:
        race = await rt.race("executor", "Fix.", prompts("short", "long"), checks=[FIXED])
    async with racing(model=model) as rt:
        refused = await rt.redo(race.run_id, "a2")
        assert not refused.ok, "the winner's change is in the way"
        assert (await rt.undo(race.run_id, "a1")).ok
        assert (project / "a.txt").read_text() == BROKEN
        assert (await rt.redo(race.run_id, "a2")).ok
    assert (project / "a.txt").read_text() == fixed(5)


async def test_models_and_roles_race_several_times(racing: Opened) -> None:
    quick = ScriptedModel({"": writes(fixed(2))}, strict=False)
    other: retinue.TaskOptions = {"model": "quick", "max_turns": 9}
    async with racing(model=by_prompt(), models={"quick": quick}) as rt:
        race = await rt.race(
            "executor", "Fix.", ["quick", other], times=2, checks=[FIXED], max_concurrent=1
        )
        with pytest.raises(UsageError, match="Unknown model 'quik'"):
            await rt.race("executor", "Fix.", ["quik", "quick"], checks=[FIXED])
    assert len(race.results) == 4
    assert all(result.ok for result in race.results)
    assert race.winner is not None


async def test_first_stops_the_others_and_leaves_nothing(
    racing: Opened, project: Path, tmp_path: Path
) -> None:
    never = asyncio.Event()
    wrote = asyncio.Event()
    seen: list[Path] = []
    slow: list[Step] = [call("write_file", path="b.txt", content="half"), held(never, [say("")])[0]]

    def when_slow_has_written(request: Request) -> Step:
        if any(isinstance(m, ToolMessage) for m in request.messages):
            wrote.set()
            seen.extend(copies(tmp_path, ""))
        return slow[-1]

    model = by_prompt(
        slow=[slow[0], when_slow_has_written],
        silent=[ScriptedHold(never, say(""))],
        quick=held(wrote, writes(fixed(5))),
    )
    limits = {"max_tokens": 200_000}
    async with racing(model=model, limits=limits) as rt:
        race = await rt.race(
            "executor", "Fix.", prompts("slow", "silent", "quick"), checks=[FIXED], first=True,
            max_tokens=60_000,
        )  # fmt: skip
        # What they had reserved is there again.
        prompt = "You are quick."
        again = await rt.spawn("researcher", "x", system_prompt=prompt, max_tokens=150_000)
    assert race.winner is not None
    assert race.winner.agent_id == "a3"
    statuses = [str(result.status) for result in race.results]
    assert statuses == ["cancelled", "cancelled", "completed"]
    assert seen, "the copies are looked for where they are"
    assert race.results[0].error == "a3 passed its checks first"
    assert race.results[0].kept
    assert not any("became" in note for note in again.notes)
    events = await journal(project)
    assert events[-1].type == "run.finished"
    assert [fact.winner for fact in decisions(events)] == ["a3"]
    assert not copies(tmp_path, race.run_id)
    assert not (project / "b.txt").exists()


def processes(marker: str) -> list[str]:
    """The running commands with `marker`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return [command for command in found if marker in command]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
async def test_first_ends_the_commands_of_the_others(racing: Opened, tmp_path: Path) -> None:
    begun, marker = tmp_path / "begun", f"sleep 61{time.time_ns()}"
    slow = [call("run_command", command=f"touch {begun}; {marker}", timeout_s=100), say("?")]
    after = f"until [ -e {begun} ]; do sleep 0.02; done"
    quick = [call("run_command", command=after, timeout_s=100), *writes(fixed(1))]
    async with racing(model=by_prompt(slow=slow, quick=quick), shell=True) as rt:
        race = await rt.race(
            "executor", "Fix.", prompts("slow", "quick"), checks=[FIXED], first=True
        )
    assert race.ok
    assert str(race.results[0].status) == "cancelled"
    assert begun.exists()
    assert not processes(marker.replace(" ", "\0"))
    assert not copies(tmp_path, race.run_id)


async def test_a_candidate_that_leaves_its_scope_does_not_win(
    racing: Opened, project: Path
) -> None:
    outside = call("run_command", command="echo x > b.txt")
    scripts = by_prompt(short=[outside, *SCRIPTS["short"]], long=SCRIPTS["long"])
    async with racing(model=scripts, shell=True) as rt:
        race = await rt.race(
            "executor", "Fix.", prompts("short", "long"), checks=[FIXED], write=["a.txt"]
        )
    assert race.winner is not None
    assert race.winner.agent_id == "a2"
    said = "it changed what its contract does not let it write: b.txt"
    assert race.results[0].error == said
    assert (project / "a.txt").read_text() == fixed(5)
    assert not (project / "b.txt").exists()


async def test_a_candidate_that_changes_nothing_must_pass_the_checks_of_the_project(
    racing: Opened, project: Path
) -> None:
    scripts = by_prompt(lazy=[say("It is fine.")], long=SCRIPTS["long"])
    async with racing(model=scripts, checks=[FIXED]) as rt:
        race = await rt.race("executor", "Fix.", prompts("lazy", "long"), max_retries=0)
    assert race.winner is not None
    assert race.winner.agent_id == "a2"
    assert (race.results[0].status, race.results[0].kept) == ("error", False)
    assert str(race.results[0].error).startswith("a check failed")
    assert (project / "a.txt").read_text() == fixed(5)


async def test_a_candidate_that_contradicts_newer_files_does_not_win(
    racing: Opened, project: Path
) -> None:
    """The user edits what both change. A child that is made after that takes note of it."""
    gate, made = asyncio.Event(), asyncio.Event()

    def on_event(event: Event) -> None:
        if event.type == "agent.worktree_created" and event.agent_id == "a2":
            made.set()

    beside = [call("write_file", path="b.txt", content="b\n"), say("Wrote it.")]
    model = by_prompt(
        short=held(gate, SCRIPTS["short"]), long=held(gate, SCRIPTS["long"]), beside=beside
    )
    async with racing(model=model, on_event=on_event) as rt:
        working = asyncio.create_task(
            rt.race(
                "executor",
                "Fix.",
                prompts("short", "long"),
                checks=[FIXED],
                write=["a.txt"],
                max_retries=0,
            )
        )
        await made.wait()
        (project / "a.txt").write_text("the user's\n")
        other = await rt.spawn("executor", "B.", system_prompt="You are beside.", write=["b.txt"])
        gate.set()
        race = await working
    assert other.ok
    assert race.winner is None
    assert [result.status for result in race.results] == ["conflict"] * 2
    said = "conflict in a.txt (also changed by the user)"
    assert [result.error for result in race.results] == [said] * 2
    assert (project / "a.txt").read_text() == "the user's\n"


@pytest.mark.parametrize("first", [False, True])
async def test_a_race_that_nobody_wins(racing: Opened, project: Path, *, first: bool) -> None:
    async with racing(model=by_prompt(**SCRIPTS)) as rt:
        race = await rt.race(
            "executor",
            "Fix.",
            prompts("wrong", "wrong"),
            checks=[FIXED],
            max_retries=0,
            first=first,
        )
    assert not race.ok
    assert "none of 2 candidates passed its checks" in (race.error or "")
    assert (project / "a.txt").read_text() == BROKEN
    events = await journal(project)
    assert [fact.winner for fact in decisions(events)] == [""]
    assert "1 of 2 children failed" in events[-1].summary


async def test_the_next_one_wins_if_the_best_cannot_be_merged(
    racing: Opened, project: Path, repo: Repo
) -> None:
    """The user has edited a file of the best one meanwhile."""

    def on_event(event: Event) -> None:
        if event.type == "agent.race_decided":
            (project / "b.txt").write_text("the user's\n")

    best = [call("write_file", path="b.txt", content="x\n"), *writes(fixed(1))]
    async with racing(model=by_prompt(best=best, long=SCRIPTS["long"]), on_event=on_event) as rt:
        race = await rt.race("executor", "Fix.", prompts("best", "long"), checks=[FIXED])
    assert race.winner is not None
    assert race.winner.agent_id == "a2"
    assert race.results[0].kept
    assert [fact.winner for fact in decisions(await journal(project))] == ["a1", "a2"]
    assert (project / "b.txt").read_text() == "the user's\n"
    assert (project / "a.txt").read_text() == fixed(5)


async def test_a_winner_that_the_user_refuses_ends_the_race(racing: Opened, project: Path) -> None:
    asked: list[str] = []

    async def approve(request: retinue.ApprovalRequest) -> bool | retinue.Refusal:
        asked.append(request.diff)
        return retinue.Refusal("no") if request.diff else True

    async with racing(model=by_prompt(**SCRIPTS), mode="normal", approve=approve) as rt:
        race = await rt.race("executor", "Fix.", prompts("short", "long"), checks=[FIXED])
    assert race.winner is None
    assert len([diff for diff in asked if diff]) == 1
    assert (project / "a.txt").read_text() == BROKEN
    assert all(result.kept for result in race.results)


REFUSED = [
    pytest.param({"checks": []}, {}, ContractError, "needs checks", id="no checks"),
    pytest.param({"candidates": prompts("one")}, {}, ContractError, "two candidates", id="single"),
    pytest.param({"max_tokens": 60_000}, {"limits": {"max_tokens": 100_000}}, OutOfBudget,
                 r"2 candidates may use 120,000 tokens, and there are 100,000 tokens left.*"
                 r"--max-tokens 50000", id="tokens"),
    pytest.param({"max_cost_usd": 0.6}, {"limits": {"max_cost_usd": 1.0}}, OutOfBudget,
                 "2 candidates may use 1.2 USD", id="money"),
    pytest.param({}, {"mode": "plan"}, ContractError, "--mode auto", id="cannot write"),
    pytest.param({"workspace": "shared"}, {}, ContractError, "needs a copy", id="no copies"),
    pytest.param({"times": 0}, {}, UsageError, "times must be at least 1", id="times"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "opening", "error", "message"), REFUSED)
async def test_refused_before_the_first_call(
    racing: Opened, project: Path, settings: Callable[[str], None],
    options: dict[str, Any], opening: dict[str, Any], error: type[Exception], message: str,
) -> None:  # fmt: skip
    settings("[prices.scripted]\ninput = 1.0\noutput = 1.0\n")
    model = by_prompt(one=writes(fixed(1)))
    fields: dict[str, Any] = {"candidates": prompts("one", "one"), "checks": [FIXED]} | options
    async with racing(model=model, **opening) as rt:
        with pytest.raises(error, match=message):
            await rt.race("executor", "Fix.", **fields)
    assert not model.requests
    assert not any(event.agent_id == "a1" for event in (await journal_if_any(project)))


async def journal_if_any(project: Path) -> list[Event]:
    async with open_journal(project) as store:
        return [event for row in await store.runs() for event in await read_all(store, row.id)]


async def test_refused_without_copies(opened: Opened) -> None:
    async with opened(model=by_prompt(), mode="auto", unsafe_no_sandbox=True) as rt:
        with pytest.raises(ContractError, match=r"needs a copy of the files: .*no git repository"):
            await rt.race("executor", "Fix.", times=2, checks=[FIXED])


async def test_limits_that_only_the_run_has_are_shared(racing: Opened) -> None:
    async with racing(model=by_prompt(**SCRIPTS), limits={"max_billed_tokens": 100_000}) as rt:
        race = await rt.race("executor", "Fix.", prompts("short", "long"), checks=[FIXED])
    assert race.ok


async def test_the_whole_race_is_reserved_before_its_first_call(racing: Opened) -> None:
    """A child beside it gets only what is left."""
    gate = asyncio.Event()
    started = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event.fact, TurnStarted) and event.agent_id in ("a1", "a2"):
            started.set()

    model = by_prompt(held=held(gate, SCRIPTS["short"]), other=[say("Looked.")])
    async with racing(model=model, limits={"max_tokens": 130_000}, on_event=on_event) as rt:
        racing_ = asyncio.create_task(
            rt.race("executor", "Fix.", prompts("held", "held"), checks=[FIXED], max_tokens=60_000)
        )
        await started.wait()
        other = await rt.spawn("researcher", "Look.", system_prompt="You are other.")
        gate.set()
        race = await racing_
    assert race.ok
    assert any("max_tokens 65536 became 10000" in note for note in other.notes), other.notes


async def test_a_candidate_whose_endpoint_is_gone_is_out(racing: Opened, project: Path) -> None:
    gone = fail(Unreachable("nothing listens"))
    async with racing(model=by_prompt(gone=[gone], long=SCRIPTS["long"])) as rt:
        race = await rt.race("executor", "Fix.", prompts("gone", "long"), checks=[FIXED])
    assert race.winner is not None
    assert race.winner.agent_id == "a2"
    assert race.results[0].error == "the race is over: a2 has won"
    assert (await journal(project))[-1].type == "run.finished"


async def test_a_race_whose_endpoints_are_gone_can_be_resumed(
    racing: Opened, project: Path
) -> None:
    gone = fail(Unreachable("nothing listens"))
    async with racing(model=by_prompt(gone=[gone], wrong=SCRIPTS["wrong"])) as rt:
        with pytest.raises(RunSuspended) as suspended:
            await rt.race(
                "executor", "Fix.", prompts("gone", "wrong"), checks=[FIXED], max_retries=0
            )
    back = by_prompt(gone=SCRIPTS["long"], wrong=SCRIPTS["wrong"])
    async with racing(model=back) as rt:
        result = await rt.resume(suspended.value.run_id)
    assert result.ok, result.error
    assert (project / "a.txt").read_text() == fixed(5)


async def test_a_model_races_children_if_its_contract_has_checks(
    racing: Opened, project: Path
) -> None:
    lead = [
        call("race_agents", task="Fix it.", candidates=["quick", "slow"], role="executor"),
        say("Raced."),
    ]
    models = {
        "quick": ScriptedModel({"": writes(fixed(1))}, strict=False),
        "slow": ScriptedModel({"": writes(fixed(5))}, strict=False),
    }
    model = ScriptedModel({"": [*lead, *lead]}, strict=False)
    async with racing(model=model, models=models) as rt:
        without = await rt.run("Fix it.")
    assert "race_agents" not in {tool.name for tool in model.requests[0].tools}
    assert (project / "a.txt").read_text() == BROKEN
    assert without.children == 0
    async with racing(model=model, models=models, checks=[FIXED]) as rt:
        run = await rt.run("Fix it.")
    assert run.children == 2
    assert run.ok, run.error
    told = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert "a1 has won, and its work is merged." in told[-1].content


async def test_the_forecast_of_a_models_race_comes_first(racing: Opened, project: Path) -> None:
    """It is on record before the candidates are, and the person who approves them reads it."""
    lead = [call("race_agents", task="Fix it.", candidates=["quick", "slow"]), say("Raced.")]
    models = {
        "quick": ScriptedModel({"": writes(fixed(1)) * 2}, strict=False),
        "slow": ScriptedModel({"": writes(fixed(5)) * 2}, strict=False),
    }
    asked: list[retinue.ApprovalRequest] = []

    async def approve(request: retinue.ApprovalRequest) -> bool:
        asked.append(request)
        return True

    model = ScriptedModel({"": lead}, strict=False)
    options: dict[str, Any] = {"model": model, "models": models, "checks": [FIXED]}
    async with racing(**options, mode="normal", approve=approve) as rt:
        run = await rt.run("Fix it.")
    events = await journal(project)
    first, created = (
        next(event for event in events if isinstance(event.fact, kind) and event.agent_id == agent)
        for kind, agent in ((RaceForecast, "a0"), (AgentCreated, "a1"))
    )
    assert isinstance(first.fact, RaceForecast)
    assert first.seq < created.seq
    spawn = next(request for request in asked if not request.diff)
    assert [child.role for child in spawn.children] == ["general", "general"]
    assert spawn.scope == spawn.explanation == f"forecast: {first.fact.forecast}"
    assert str(first.fact.forecast).endswith(" s; 2 of 2 steps are a guess")
    requested = [e.fact for e in events if isinstance(e.fact, ApprovalRequested)]
    assert requested[0].scope == spawn.scope
    async with racing(**options) as rt:  # Now there is a history.
        again = await rt.run("Fix it.")
        later = [e.fact async for e in rt.events(again.id) if isinstance(e.fact, RaceForecast)]
    used = sorted(result.tokens for result in (await _spent(project, run.id)).values())
    assert later[0].forecast.tokens == sum(used)
    assert not later[0].forecast.guessed


async def _spent(project: Path, run_id: str) -> dict[str, retinue.Usage]:
    async with open_journal(project) as store:
        state = retinue.fold(await read_all(store, run_id))
    return {agent.id: agent.usage for agent in state.agents.values() if agent.race}


async def test_a_lost_race_of_a_model_is_its_failure(racing: Opened) -> None:
    lead = [
        call("race_agents", task="Fix it.", candidates=["bad", "bad"], max_tokens=9_000),
        call("race_agents", task="Fix it.", candidates="bad"),
        say("Raced."),
        say("Raced."),
    ]
    model = ScriptedModel({"": lead}, strict=False)
    bad = ScriptedModel({"": [*writes("no\n"), say("?"), say("?")]}, strict=False)
    async with racing(model=model, models={"bad": bad}, checks=[FIXED]) as rt:
        run = await rt.run("Fix it.")
    assert not run.ok
    assert [failure.agent_id for failure in run.failures] == ["a1"]
    told = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert told[0].startswith("[ERROR] none of 2 candidates passed its checks")
    assert told[1].startswith("[ERROR] A race needs at least two candidates")


async def test_candidates_race_for_a_step_of_a_plan(racing: Opened, project: Path) -> None:
    step = {
        "name": "fix", "role": "executor", "task": "Fix it.", "writes": ["a.txt"],
        "candidates": 2, "checks": [FIXED],
    }  # fmt: skip
    model = ScriptedModel({"": [*writes(fixed(1))]}, strict=False)
    async with racing(model=model) as rt:
        plan = await rt.check({"goal": "Fix", "steps": [step]})
        assert (await rt.forecast(plan)).tokens == 2 * (
            await rt.forecast(await rt.check({"goal": "Fix", "steps": [step | {"candidates": 1}]}))
        ).tokens
        result = await rt.execute(plan)
        for changed, message in (
            ({"checks": []}, "need checks"),
            ({"candidates": 0}, "must be at least 1"),
            ({"role": "researcher", "writes": None}, "a race compares changes"),
        ):
            with pytest.raises(PlanError, match=message):
                await rt.check({"goal": "Fix", "steps": [step | changed]})
    assert result.ok, result.error
    (outcome,) = result.steps
    assert outcome.result is not None
    (decided,) = decisions(await journal(project))
    assert decided.winner == outcome.result.agent_id
    assert (project / "a.txt").read_text() == fixed(1)


standings = st.builds(
    Standing,
    agent_id=st.sampled_from(["a1", "a2", "a3", "a4"]),
    passed=st.booleans(),
    changed_lines=st.integers(0, 3),
    cost_usd=st.sampled_from([0.0, 0.5]),
    tokens=st.integers(0, 2),
    duration_s=st.sampled_from([0.0, 1.0]),
)


@settings(max_examples=200)
@given(several=st.lists(standings, max_size=5, unique_by=lambda s: s.agent_id), data=st.data())
def test_the_order_of_comparison(several: list[Standing], data: st.DataObject) -> None:
    ranked = rank(several)
    assert {s.agent_id for s in ranked} == {s.agent_id for s in several if s.passed}
    for better, worse in itertools.pairwise(ranked):
        mine, theirs = (
            (s.changed_lines == 0, s.changed_lines, s.cost_usd, s.tokens, s.duration_s)
            for s in (better, worse)
        )
        assert mine <= theirs
    # A candidate that failed changes nothing.
    shuffled = data.draw(st.permutations([s for s in several if s.passed]))
    keys = [(s.changed_lines, s.cost_usd, s.tokens, s.duration_s) for s in rank(shuffled)]
    assert keys == [(s.changed_lines, s.cost_usd, s.tokens, s.duration_s) for s in ranked]


def test_a_result_without_a_winner_is_not_ok() -> None:
    assert not RaceResult(run_id="r", status=retinue.Status.ERROR).ok
