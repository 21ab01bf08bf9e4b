"""Tests that every adapter of the port `Store` must pass; its test class inherits them.

class TestMyStore(StoreContract):
    @asynccontextmanager
    async def opened(self, place):
        store = MyStore(...)  # the store at that path, created if it is missing
        try:
            yield store
        finally:
            await store.aclose()
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from retinue.domain.chain import verify
from retinue.domain.events import (
    AgentClosed,
    AgentCompleted,
    AgentFailed,
    AgentStarted,
    Fact,
    ModelReplied,
    ResultProposed,
)
from retinue.domain.lifecycle import State
from retinue.domain.messages import Timing, Usage
from retinue.domain.result import Status
from retinue.errors import StoreError, UnknownRun
from retinue.ports.store import Store
from retinue.runtime.history.audit import audit
from retinue.runtime.history.pruning import prune_journal
from retinue.store import group_commit
from retinue.testing.clock import EPOCH, FakeClock
from tests.store.journal_writer import JournalWriter

TEXTS = (
    "Grüße, 世界! 🪶",
    "quotes \" ' ` and \\ and {rows} and ? and :name",
    "lines\nand\r\ttabs\u2028",
    "nothing \0 and \x1b[31m",
    "long " * 50_000,
)


class StoreContract:
    def opened(self, place: Path) -> AbstractAsyncContextManager[Store]:
        """The store at that path, created if it is missing; leaving the context closes it.

        Two that are open at once are two processes' views of the same data.
        """
        raise NotImplementedError

    async def delete_unused_blobs(self, place: Path) -> None:
        """Delete the large values that no event refers to, as `retinue clean` does."""
        raise NotImplementedError

    # Events

    async def test_what_was_flushed_is_read_back_as_it_was(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            written = [writer.begin(), *(writer.note(text) for text in TEXTS), writer.finish()]
            await store.flush()
            assert list(await store.events("k3f9")) == written
            row = await store.run("k3f9")
        assert verify(written, head_seq=row.head_seq, head_hash=row.head_hash) == len(written)

    async def test_a_task_may_have_nul_bytes(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            # The escape of a NUL, and what looks like one, in the event that names the session.
            written = [writer.begin("Count \0 herons, \\u0000 and \uf8ff0.", earlier=("m2",))]
            await store.flush()
            row = await store.run("k3f9")
            assert (row.task, row.session) == ("Count \0 herons, \\u0000 and \uf8ff0.", "m2")
            assert list(await store.events("k3f9")) == written

    async def test_events_come_in_pages_behind_a_cursor(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            written = [writer.begin(), *(writer.note(str(n)) for n in range(6))]
            await store.flush()
            assert list(await store.events("k3f9", limit=3)) == written[:3]
            assert list(await store.events("k3f9", after=3, limit=3)) == written[3:6]
            assert list(await store.events("k3f9", after=6, limit=3)) == written[6:]
            assert list(await store.events("k3f9", after=7)) == []

    async def test_a_run_that_is_not_there_has_no_events_and_no_agents(
        self, tmp_path: Path
    ) -> None:
        async with self.opened(tmp_path) as store:
            assert list(await store.events("k3f9")) == []
            assert list(await store.agents("k3f9")) == []

    async def test_runs_are_kept_apart(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            one, two = JournalWriter(store, "one"), JournalWriter(store, "two")
            mine, theirs = [one.begin()], [two.begin()]
            for _ in range(3):
                mine.append(one.note())
                theirs.append(two.note())
            await store.flush()
            assert list(await store.events("one")) == mine
            assert list(await store.events("two")) == theirs

    async def test_a_batch_may_be_large(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            for number in range(10_000):
                writer.create_agent(f"a{number}")
            await store.flush()
            assert len(await store.agents("k3f9")) == 10_000
            assert (await store.run("k3f9")).head_seq == 10_001

    # Runs

    async def test_a_run_is_found_by_a_unique_beginning(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for run_id in ("ab", "abcd", "abce", "xyz9"):
                JournalWriter(store, run_id).begin()
            await store.flush()
            for beginning, run_id in {
                "x": "xyz9",
                "xyz9": "xyz9",
                "abcd": "abcd",
                # The whole id of one, although two more begin with it.
                "ab": "ab",
            }.items():
                assert (await store.run(beginning)).id == run_id

    async def test_an_ambiguous_beginning_is_told(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for run_id in ("abcd", "abce"):
                JournalWriter(store, run_id).begin()
            await store.flush()
            for beginning in ("a", "abc"):
                with pytest.raises(UnknownRun) as caught:
                    await store.run(beginning)
                assert str(caught.value) == (
                    f"{beginning!r} is the beginning of several run ids; type more of it."
                )

    async def test_a_run_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            JournalWriter(store, "abcd").begin()
            await store.flush()
            for name in ("", "b", "abcde", "ABCD", "%", "a%", "a_cd", "a'b", "ü", "\udcff", "\0"):
                with pytest.raises(UnknownRun, match=r"^No run .* `retinue runs` lists them\.$"):
                    await store.run(name)

    async def test_runs_come_newest_first(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for number, run_id in enumerate(("old", "older", "new")):
                clock = FakeClock(EPOCH + (5, 1, 9)[number])
                JournalWriter(store, run_id, clock=clock).begin()
            await store.flush()
            assert [row.id for row in await store.runs()] == ["new", "old", "older"]
            assert [row.id for row in await store.runs(limit=2)] == ["new", "old"]

    async def test_a_session_is_the_chain_of_its_runs(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            # All at the same time: it is the chain that says what comes after what.
            JournalWriter(store, "m2").begin()
            JournalWriter(store, "z9").begin(earlier=("m2",))
            JournalWriter(store, "b4").begin(earlier=("m2", "z9"))
            JournalWriter(store, "x1").begin()
            await store.flush()
            for run_id in ("m2", "z", "b4"):
                assert [row.id for row in await store.session(run_id)] == ["m2", "z9", "b4"]
            assert [row.id for row in await store.session("x1")] == ["x1"]
            sessions = {row.id: row.session for row in await store.runs()}
            assert sessions == {"m2": "m2", "z9": "m2", "b4": "m2", "x1": "x1"}

    async def test_of_two_chains_a_session_goes_on_with_the_longer(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            JournalWriter(store, "m2").begin()
            JournalWriter(store, "b4").begin(earlier=("m2",))
            JournalWriter(store, "z9").begin(earlier=("m2",))
            JournalWriter(store, "c5").begin(earlier=("m2", "b4"))
            await store.flush()
            assert [row.id for row in await store.session("z9")] == ["m2", "b4", "c5"]

    async def test_the_latest_session_is_that_of_the_latest_run_a_model_led(
        self, tmp_path: Path
    ) -> None:
        clock = FakeClock()
        async with self.opened(tmp_path) as store:
            with pytest.raises(UnknownRun, match="There is no session to continue yet"):
                await store.session()
            for run_id, kind, earlier in (
                ("m2", "run", ()),
                ("x1", "run", ()),
                ("b4", "run", ("m2",)),
                ("p3", "program", ()),
            ):
                JournalWriter(store, run_id, clock=clock).begin(kind=kind, earlier=earlier)
                clock.advance(1)
            await store.flush()
            assert [row.id for row in await store.session()] == ["m2", "b4"]
            assert (await store.run("p3")).session is None
            with pytest.raises(UnknownRun, match="Run p3 does not belong to a session"):
                await store.session("p3")

    async def test_a_run_says_how_far_it_is(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9", clock=clock)
            writer.begin("Count the herons.")
            writer.create_agent()
            last = writer.note()
            await store.flush()
            row = await store.run("k3f9")
            assert (row.kind, row.task, row.agents) == ("run", "Count the herons.", 1)
            assert (row.status, row.started_at, row.finished_at) == (None, EPOCH, None)
            assert (row.head_seq, row.head_hash) == (last.seq, last.hash)
            clock.advance(2.5)
            writer.finish(Status.BUDGET_EXCEEDED)
            await store.flush()
            row = await store.run("k3f9")
            assert (row.status, row.finished_at) == ("budget_exceeded", EPOCH + 2.5)
            assert list(await store.runs()) == [row]

    async def test_of_a_run_that_was_cleaned_away_the_outcome_is_left(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for run_id in ("k3f9", "x2"):
                writer = JournalWriter(store, run_id)
                writer.begin("Count the herons.", earlier=("m2",))
                writer.create_agent(cache_key=run_id)
                writer.run_agent("a0")
                writer.finish()
            await store.flush()
            before = await store.run("k3f9")
            await prune_journal(store, FakeClock(), "k3f9")
            (left,) = await store.events("k3f9")
            after = await store.run("k3f9")
            assert after == msgspec.structs.replace(
                before, head_seq=left.seq, head_hash=left.hash, epoch=before.epoch + 1, pruned=True
            )
            assert list(await store.agents("k3f9")) == []
            assert await store.cache_keys() == {"x2"}
            assert (await audit(store, "k3f9")).pruned == before.head_seq
            assert (await audit(store, "x2")).pruned == 0

    # Agents

    async def test_contracts_are_kept_to_the_byte(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            new_agent = [writer.create_agent(f"a{n}", text) for n, text in enumerate(TEXTS)]
            await store.flush()
            rows = await store.agents("k3f9")
        assert [row.context_json for row in rows] == [agent.context_json for agent in new_agent]
        for row, agent in zip(rows, new_agent, strict=True):
            assert (row.run_id, row.id) == (agent.run_id, agent.agent_id)
            assert (row.parent_agent_id, row.path) == (agent.parent_agent_id, agent.path)
            assert (row.role, row.state) == (agent.role, State.CREATED)

    async def test_agents_come_in_order_of_birth(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            for number in range(12):
                writer.create_agent(f"a{number}")
            await store.flush()
            assert [row.id for row in await store.agents("k3f9")] == [f"a{n}" for n in range(12)]

    async def test_states_follow_the_events(self, tmp_path: Path) -> None:
        closed = AgentClosed(sub_agent_id="a0", step_idx=0, final_status="x", close_reason="x")
        lives: list[list[tuple[Fact, State]]] = [
            [
                (AgentStarted(sub_agent_id="a0"), State.RUNNING),
                (ResultProposed(sub_agent_id="a0", response=""), State.WAITING_FOR_MERGE),
                (AgentCompleted(sub_agent_id="a0"), State.COMPLETED),
                (closed, State.CLOSED),
            ],
            [
                (
                    AgentFailed(sub_agent_id="a0", status=Status.ERROR, reason="No."),
                    State.FAILED,
                ),
                (closed, State.CLOSED),
            ],
        ]
        async with self.opened(tmp_path) as store:
            for number, life in enumerate(lives):
                writer = JournalWriter(store, f"run{number}")
                writer.begin()
                writer.create_agent()
                for fact, state in life:
                    writer.record(fact)
                    await store.flush()
                    (row,) = await store.agents(writer.run_id)
                    assert row.state is state

    async def test_an_illegal_move_is_refused(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            writer.create_agent()
            await store.flush()
            writer.record(AgentCompleted(sub_agent_id="a0"))
            with pytest.raises(StoreError, match="illegal move of an agent"):
                await store.flush()
            (row,) = await store.agents("k3f9")
            assert row.state is State.CREATED
            assert len(await store.events("k3f9")) == 2
            await _close_broken(store)

    async def test_what_a_role_has_used_is_told(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9", clock=clock)
            writer.begin()
            for number, agent_id in enumerate(("a0", "a1", "a2", "a3")):
                writer.create_agent(agent_id)
                writer.record(AgentStarted(sub_agent_id=agent_id), agent_id)
                clock.advance(number)
                if agent_id != "a2":  # That one asked no model.
                    reply = ModelReplied(
                        turn=1,
                        content="x",
                        usage=Usage(100 * number + 1, 0, 10),
                        timing=Timing(0.0, 0.0, 0.5),
                    )
                    writer.record(reply, agent_id)
                    writer.record(reply, agent_id)
                if agent_id != "a3":  # And that one is still at work.
                    writer.end(agent_id)
            await store.flush()
            found = await store.history("researcher", limit=9)
            used = sorted((u.tokens_in, u.tokens_out, u.duration_s, u.generating_s) for u in found)
            assert used == [(2, 20, 0.0, 1.0), (202, 20, 1.0, 1.0)]
            assert list(await store.history("planner")) == []

    async def test_closed_agents_are_found_by_their_cache_key(self, tmp_path: Path) -> None:
        clock = FakeClock()
        async with self.opened(tmp_path) as store:
            for run_id in ("one", "two"):
                writer = JournalWriter(store, run_id, clock=clock)
                writer.begin()
                for agent_id in ("a0", "a1", "a2", "a3"):
                    writer.create_agent(agent_id, cache_key=None if agent_id == "a3" else "key")
                writer.run_agent("a0")
                writer.run_agent("a1", failed=True)
                writer.run_agent("a3")
                clock.advance(1)
            await store.flush()
            # Not those that are not closed, nor those without a key.
            found = [("two", "a1"), ("two", "a0"), ("one", "a1"), ("one", "a0")]
            assert list(await store.cached("key", limit=9)) == found
            assert list(await store.cached("key", limit=1)) == found[:1]
            assert list(await store.cached("other")) == []
            assert await store.cache_keys() == {"key"}

    # All or nothing

    async def test_a_batch_is_written_whole_or_not_at_all(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer, other = JournalWriter(store, "k3f9"), JournalWriter(store, "x2")
            before = [writer.begin(), writer.note()]
            await store.flush()
            writer.note()
            other.begin()
            writer.create_agent("a0")
            writer.create_agent("a0")
            writer.note()
            with pytest.raises(StoreError):
                await store.flush()
            assert list(await store.events("k3f9")) == before
            assert list(await store.agents("k3f9")) == []
            assert [row.id for row in await store.runs()] == ["k3f9"]
            await _close_broken(store)

    async def test_after_an_error_nothing_more_is_written(self, tmp_path: Path) -> None:
        """A chain with a gap is worse than a chain that ends."""
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            await store.flush()
            writer.create_agent("a0")
            writer.create_agent("a0")
            with pytest.raises(StoreError) as first:
                await store.flush()
            writer.note()
            for _ in range(2):
                with pytest.raises(StoreError) as again:
                    await store.flush()
                assert str(again.value) == str(first.value)
            assert (await store.run("k3f9")).head_seq == 1
            await _close_broken(store)

    async def test_what_cannot_be_written_is_an_error_of_the_flush(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            event = JournalWriter(store, "k3f9").begin()
            await store.flush()
            store.append(msgspec.structs.replace(event, seq=2, summary="\udcff"))
            with pytest.raises(StoreError):
                await store.flush()
            await _close_broken(store)

    async def test_a_journal_begins_with_the_start_of_its_run(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            JournalWriter(store, "k3f9").note()
            with pytest.raises(StoreError):
                await store.flush()
            assert list(await store.runs()) == []
            await _close_broken(store)

    async def test_every_waiting_flush_raises_the_error(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            writer.create_agent("a0")
            writer.create_agent("a0")
            told = await asyncio.gather(*(store.flush() for _ in range(5)), return_exceptions=True)
            assert [type(error) for error in told] == [type(told[0])] * 5
            assert isinstance(told[0], StoreError)
            await _close_broken(store)

    async def test_closing_tells_what_could_not_be_made_durable(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            writer.create_agent("a0")
            writer.create_agent("a0")
            await _close_broken(store)

    # Owners

    async def test_a_run_that_another_has_taken_over_is_refused(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as mine, self.opened(tmp_path) as theirs:
            writer = JournalWriter(mine, "k3f9")
            first = writer.begin()
            await mine.flush()
            # Written by the owner first, whose own timer could write it at any moment; the other
            # store then writes an event that is new.
            noted = writer.note()
            await mine.flush()
            theirs.append(msgspec.structs.replace(noted, seq=noted.seq + 1))
            with pytest.raises(StoreError) as caught:
                await theirs.flush()
            assert str(caught.value) == (
                "Another process has taken over run k3f9; this one must stop."
            )
            # The owner goes on as if nothing had happened.
            await mine.flush()
            assert (await mine.run("k3f9")).head_seq == first.seq + 1
            await _close_broken(theirs)

    @pytest.mark.parametrize("written", [0, 1, 3])
    async def test_an_owner_that_slept_through_a_takeover_is_refused(
        self, tmp_path: Path, written: int
    ) -> None:
        """Also if its events have the numbers of those that the next owner has written."""
        async with self.opened(tmp_path) as mine, self.opened(tmp_path) as theirs:
            writer = JournalWriter(mine, "k3f9")
            writer.begin()
            writer.create_agent()
            await mine.flush()
            other = JournalWriter(theirs, "k3f9", row=await theirs.run("k3f9"))
            other.take_over()
            for _ in range(written):
                other.note()
            await theirs.flush()
            writer.create_agent("a1")
            writer.note()
            with pytest.raises(StoreError) as caught:
                await mine.flush()
            assert str(caught.value) == (
                "Another process has taken over run k3f9; this one must stop."
            )
            other.note()
            await theirs.flush()
            assert (await theirs.run("k3f9")).head_seq == written + 4
            assert [agent.id for agent in await theirs.agents("k3f9")] == ["a0"]
            await audit(theirs, "k3f9")
            await _close_broken(mine)

    async def test_of_owners_that_race_one_takes_over(self, tmp_path: Path) -> None:
        async with AsyncExitStack() as stack:
            first, *stores = [
                await stack.enter_async_context(self.opened(tmp_path)) for _ in range(5)
            ]
            JournalWriter(first, "k3f9").begin()
            await first.flush()
            row = await first.run("k3f9")
            for store in stores:
                JournalWriter(store, "k3f9", row=row).take_over()
            outcomes = await asyncio.gather(
                *(store.flush() for store in stores), return_exceptions=True
            )
            told = [str(outcome) for outcome in outcomes if outcome is not None]
            assert told == ["Another process has taken over run k3f9; this one must stop."] * 3
            assert (await first.run("k3f9")).epoch == row.epoch + 1
            await audit(first, "k3f9")
            for store, outcome in zip(stores, outcomes, strict=True):
                if outcome is not None:
                    await _close_broken(store)

    async def test_events_are_read_whole_while_their_run_is_cleaned_away(
        self, tmp_path: Path
    ) -> None:
        """In one snapshot: large values are rows of their own, which go with the last event."""
        async with self.opened(tmp_path) as store, self.opened(tmp_path) as reader:
            for number in range(10):
                run_id = f"k{number}"
                writer = JournalWriter(store, run_id)
                writer.begin()
                writer.create_agent()
                written = [writer.note(f"{run_id} {n} " * 2_000) for n in range(20)]
                writer.run_agent("a0")
                writer.finish()
                await store.flush()

                async def clean(run_id: str = run_id) -> None:
                    await prune_journal(store, FakeClock(), run_id)
                    await self.delete_unused_blobs(tmp_path)

                cleaning = asyncio.create_task(clean())
                whole = True
                while whole and not cleaning.done():
                    found = await reader.events(run_id)
                    whole = len(found) > 1
                    if whole:
                        assert list(found)[2:22] == written
                await cleaning

    async def test_a_run_is_started_once(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as mine, self.opened(tmp_path) as theirs:
            JournalWriter(mine, "k3f9").begin("First.")
            await mine.flush()
            JournalWriter(theirs, "k3f9").begin("Second.")
            with pytest.raises(StoreError):
                await theirs.flush()
            assert (await mine.run("k3f9")).task == "First."
            await _close_broken(theirs)

    @pytest.mark.parametrize("epoch", [1, 3])
    async def test_an_event_of_another_epoch_is_refused(self, tmp_path: Path, epoch: int) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9", epoch=2)
            event = writer.begin()
            await store.flush()
            stranger = msgspec.structs.replace(event, seq=2, epoch=epoch)
            store.append(stranger)
            with pytest.raises(StoreError, match="taken over run k3f9"):
                await store.flush()
            assert list(await store.events("k3f9")) == [event]
            await _close_broken(store)

    async def test_others_read_what_was_flushed(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store, self.opened(tmp_path) as reader:
            writer = JournalWriter(store, "k3f9")
            written = [writer.begin()]
            for _ in range(3):
                await store.flush()
                assert list(await reader.events("k3f9")) == written
                written.append(writer.note())

    # Waiting and closing

    async def test_a_flush_of_nothing_returns(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.flush()

    async def test_many_flush_at_once(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()

            async def work() -> None:
                for _ in range(5):
                    seq = writer.note().seq
                    await store.flush()
                    assert (await store.run("k3f9")).head_seq >= seq

            await asyncio.gather(*(work() for _ in range(40)))
            assert [e.seq for e in await store.events("k3f9")] == list(range(1, 202))

    async def test_a_cancelled_flush_loses_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            for _ in range(20):
                writer.note()
                waiting = asyncio.ensure_future(store.flush())
                # Once around the loop, so that it waits when the cancellation comes.
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await store.flush()
            assert [e.seq for e in await store.events("k3f9")] == list(range(1, 22))

    async def test_closing_makes_everything_durable(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            written = [writer.begin(), *(writer.note() for _ in range(100))]
        async with self.opened(tmp_path) as store:
            assert list(await store.events("k3f9")) == written

    async def test_a_cancelled_close_loses_nothing(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            closing = asyncio.ensure_future(store.aclose())
            for _ in range(3):  # Until the first event is being written.
                await asyncio.sleep(0)
            writer.note()
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
        async with self.opened(tmp_path) as store:
            assert (await store.run("k3f9")).head_seq == 2

    async def test_closing_twice_is_fine(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            JournalWriter(store, "k3f9").begin()
            await store.aclose()
            await store.aclose()

    async def test_what_comes_after_closing_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group_commit, "GROUP_COMMIT_S", 0.0)
        async with self.opened(tmp_path) as store:
            writer = JournalWriter(store, "k3f9")
            writer.begin()
            await store.aclose()
            writer.note()
            with pytest.raises(StoreError, match="closed"):
                await store.flush()
            with pytest.raises(StoreError, match="closed"):
                await store.events("k3f9")
            for _ in range(3):  # Until a writer would have begun.
                await asyncio.sleep(0)
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        async with self.opened(tmp_path) as store:
            assert (await store.run("k3f9")).head_seq == 1


async def _close_broken(store: Store) -> None:
    """Close a store that refused a write. The first close raises; a second one is fine."""
    with pytest.raises(StoreError):
        await store.aclose()
