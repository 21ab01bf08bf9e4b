"""List scheduling: what is begun when, and how good that is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.plan.schedule import Schedule, cycles, in_order, ranks, run_through, upstream

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def test_critical_path_goes_first() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 5.0, "d": 1.0}
    assert ranks(DIAMOND, weights) == {"a": 7.0, "b": 2.0, "c": 6.0, "d": 1.0}
    schedule = Schedule(DIAMOND, weights)
    assert [schedule.start_next(), schedule.start_next()] == ["a", None]
    schedule.finish("a")
    assert [schedule.start_next(), schedule.start_next(), schedule.start_next()] == ["c", "b", None]
    assert len(schedule.running) == 2
    assert [*schedule.waiting] == ["d"]


def test_without_weights_steps_start_in_plan_order() -> None:
    schedule = Schedule({"x": (), "b": (), "a": ("b",)}, {})
    assert [schedule.start_next(), schedule.start_next(), schedule.start_next()] == ["x", "b", None]


def test_dependents_of_a_failed_step_never_start() -> None:
    schedule = Schedule({"d": ("c",), "a": (), "b": (), "c": ("a",)}, {})
    assert schedule.start_next() == "a"
    assert schedule.fail("a") == ["d", "c"]
    assert [schedule.start_next(), schedule.start_next()] == ["b", None]


def test_step_can_be_retried() -> None:
    schedule = Schedule(DIAMOND, {})
    assert schedule.start_next() == "a"
    schedule.retry("a")
    assert schedule.start_next() == "a"


def test_nothing_starts_after_a_stop() -> None:
    schedule = Schedule(DIAMOND, {})
    schedule.stopped = True
    assert schedule.start_next() is None
    assert [*schedule.waiting] == ["a", "b", "c", "d"]


def test_unknown_need_counts_as_met() -> None:
    assert Schedule({"a": ("earlier",)}, {}).start_next() == "a"


def test_upstream_is_transitive() -> None:
    assert upstream(DIAMOND, "d") == {"a", "b", "c"}
    assert upstream(DIAMOND, "a") == set()


@pytest.mark.parametrize(
    ("needs", "found"),
    [
        ({"a": ("b",), "b": ("a",)}, [["a", "b"]]),
        ({"a": ("b",), "b": ("a",), "c": ("d",), "d": ("c",)}, [["a", "b"], ["c", "d"]]),
        ({"x": ("a",), "a": ("b",), "b": ("a",)}, [["a", "b"]]),
        (DIAMOND, []),
    ],
)
def test_cycles_are_found(needs: dict[str, tuple[str, ...]], found: list[list[str]]) -> None:
    assert list(cycles(needs)) == found


def diamond(numbers: random.Random, steps: int = 30) -> dict[str, tuple[str, ...]]:
    """A source, layers in between that lean on one or two of the layer before, and a sink."""
    needs: dict[str, tuple[str, ...]] = {"s0": ()}
    above = ["s0"]
    while len(needs) < steps - 1:
        width = min(numbers.randint(3, 9), steps - 1 - len(needs))
        layer = [f"s{len(needs) + n}" for n in range(width)]
        for name in layer:
            needs[name] = tuple(sorted(set(numbers.choices(above, k=2))))
        above = layer
    leaned_on = {need for on in needs.values() for need in on}
    needs[f"s{steps - 1}"] = tuple(name for name in needs if name not in leaned_on)
    return needs


def makespan(times: dict[str, tuple[float, float]]) -> float:
    return max(end for _, end in times.values())


def best_list_schedule(
    needs: dict[str, tuple[str, ...]], took_s: dict[str, float], slots: int, numbers: random.Random
) -> float:
    """The shortest of many list schedules: every order of the steps makes one."""
    names = list(needs)
    found = []
    for _ in range(60):
        order = {name: numbers.random() for name in names}
        found.append(makespan(run_through(needs, order, took_s, slots=slots)))
    return min(found)


@pytest.mark.parametrize("slots", [2, 3, 6])
def test_makespan_is_close_to_the_best_list_schedule(slots: int) -> None:
    for seed in range(4):
        numbers = random.Random(seed)
        needs = diamond(numbers)
        took_s = {name: numbers.uniform(1, 20) for name in needs}
        # What is expected is not what happens: a third off to either side.
        expected = {name: took * numbers.uniform(0.67, 1.5) for name, took in took_s.items()}
        mine = makespan(run_through(needs, expected, took_s, slots=slots))
        assert mine <= 1.1 * best_list_schedule(needs, took_s, slots, numbers)


@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.lists(st.floats(0.5, 20), min_size=12, max_size=12),
)
def test_schedule_keeps_to_needs_and_slots(seed: int, slots: int, took: list[float]) -> None:
    needs = diamond(random.Random(seed), 12)
    took_s = dict(zip(needs, took, strict=True))
    times = run_through(needs, took_s, took_s, slots=slots)
    assert set(times) == set(needs)
    for name, on in needs.items():
        assert all(times[need][1] <= times[name][0] for need in on)
    for start, _ in times.values():
        assert sum(begin <= start < end for begin, end in times.values()) <= slots
    longest = max(ranks(needs, took_s).values())
    assert makespan(times) >= max(longest, sum(took) / slots) - 1e-9
    # Graham's bound, which holds for every list schedule.
    assert makespan(times) <= sum(took) / slots + longest * (1 - 1 / slots) + 1e-6


@given(st.integers(0, 10**6), st.lists(st.sampled_from(["next", "done", "again", "failed"])))
def test_best_ready_step_is_always_next(seed: int, acts: list[str]) -> None:
    needs = diamond(random.Random(seed), 12)
    weights = {name: float(number % 3) for number, name in enumerate(needs)}
    rank, place = ranks(needs, weights), list(needs)
    schedule = Schedule(needs, weights)
    waiting, running, over = set(needs), [], set()
    for act in acts:
        if act == "next":
            ready = [n for n in waiting if all(need in over for need in needs[n])]
            best = min(ready, key=lambda n: (-rank[n], place.index(n)), default=None)
            assert schedule.start_next() == best
            if best is not None:
                waiting.discard(best)
                running.append(best)
        elif running:
            name = running.pop(0)
            if act == "done":
                schedule.finish(name)
                over.add(name)
            elif act == "again":
                schedule.retry(name)
                waiting.add(name)
            else:
                lost = [n for n in needs if name in upstream(needs, n)]
                assert schedule.fail(name) == lost
                waiting -= set(lost)
    assert set(schedule.waiting) == waiting
    assert [*schedule.running] == running


def test_exclusive_steps_run_one_at_a_time() -> None:
    needs: dict[str, tuple[str, ...]] = {"a": (), "b": (), "c": (), "d": ()}
    weights = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    schedule = Schedule(needs, weights, exclusive=("a", "b", "c"))
    assert (schedule.start_next(), schedule.start_next(), schedule.start_next()) == ("a", "d", None)
    schedule.finish("a")
    assert (schedule.start_next(), schedule.start_next()) == ("b", None)
    schedule.retry("b")
    assert (schedule.start_next(), [*schedule.waiting]) == ("b", ["c"])
    took = dict.fromkeys(needs, 1.0)
    times = run_through(needs, weights, took, slots=4, exclusive=("a", "b", "c"))
    assert makespan(times) == 3.0


def test_in_order_puts_needs_first() -> None:
    assert list(in_order({"b": ("a",), "a": (), "c": ("c",)})) == ["a", "b"]
