"""The metrics of journals, read back by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from retinue.errors import ProviderError
from retinue.models.scripted.model import ScriptedModel, call, fail, say
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime
from retinue.telemetry.journal_metrics import JournalMetrics
from retinue.telemetry.measurements import METRICS, Measurement, Metric
from retinue.telemetry.prometheus import MetricTotals

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(text: str, name: str, **labels: str) -> float:
    return sum(
        value
        for (found, having), value in parsed(text).items()
        if found == name and labels.items() <= dict(having).items()
    )


async def test_metrics_of_a_journal_grow_by_what_is_new(opened: Opened, project: Path) -> None:
    metrics = JournalMetrics()

    async def read() -> str:
        async with open_journal(project) as store:
            return await metrics.text(store, lambda _: True)

    model = ScriptedModel(
        {
            "bad": [fail(ProviderError("No.", retryable=False))],
            "": [call("list_dir"), say("Done.")],
        },
        strict=False,
    )
    async with opened(model=model, cache=False, limits={"max_tokens": 900_000}) as rt:
        await rt.fan_out([("researcher", "good"), ("researcher", "bad")])
        during = await read()
        assert 0 < total(during, "retinue_budget_remaining") < 900_000
        assert total(during, "retinue_agents_active") == 0
        assert total(during, "retinue_run_duration_seconds_count") == 0
    first = await read()
    researcher = {"gen_ai_agent_name": "researcher"}
    agents = "retinue_agent_duration_seconds_count"
    assert total(first, agents, **researcher, retinue_status="completed") == 1
    assert total(first, agents, **researcher, retinue_status="error") == 1
    assert total(first, "retinue_model_failures_total") == 1
    assert total(first, "retinue_tool_duration_seconds_count", gen_ai_tool_name="list_dir") == 1
    assert total(first, "retinue_run_duration_seconds_count", retinue_run_kind="program") == 1
    tokens = "gen_ai_client_token_usage_sum"
    assert total(first, tokens, gen_ai_token_type="output") > 0
    assert await read() == first
    async with opened(model=ScriptedModel([say("Done.")])) as rt:
        await rt.run("Go.")
    second = await read()
    assert total(second, "retinue_run_duration_seconds_count") == 2
    async with open_journal(project) as store:
        runs = await store.runs()
        used = [await store.usage(run.id) for run in runs]
    assert total(second, tokens, gen_ai_token_type="input") == sum(u.tokens_in for u in used)


labels = st.dictionaries(st.sampled_from(["gen_ai.tool.name", "error.type"]), st.text())
values = st.floats(0, 1e9, allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from(METRICS), values, labels)))
def test_the_text_says_what_was_added(added: list[tuple[Metric, float, dict[str, str]]]) -> None:
    totals = MetricTotals()
    for one in added:
        totals.add(Measurement(*one))
    read = parsed(totals.text())
    for metric in METRICS:
        name = metric.name.replace(".", "_") + {"s": "_seconds", "USD": "_usd"}.get(metric.unit, "")
        suffix = "_sum" if metric.buckets else "_total"
        found = [value for (sample, _), value in read.items() if sample == name + suffix]
        given_values = [value for one, value, _ in added if one is metric]
        assert abs(sum(found) - sum(given_values)) <= 1e-6 * max(1, sum(given_values))
        if metric.buckets:
            counts = [v for (sample, _), v in read.items() if sample == f"{name}_count"]
            assert sum(counts) == len(given_values)
