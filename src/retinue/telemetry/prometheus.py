"""Metrics of journals in Prometheus' text format.

The format is simple, so no library is needed; a test parses it with the official client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from retinue.telemetry.measurements import METRICS, Measurement, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = tuple[tuple[str, str], ...]
_UNITS = {"s": "_seconds", "USD": "_usd"}


class Histogram:
    """Counts of values by bucket, and their sum."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.sum += value


class MetricTotals:
    """The sum of all measurements so far."""

    def __init__(self) -> None:
        self._counters: dict[Metric, dict[_Labels, float]] = {}
        self._histograms: dict[Metric, dict[_Labels, Histogram]] = {}

    def add(self, measurement: Measurement) -> None:
        metric, value, labels = measurement
        key = tuple(sorted(labels.items()))
        if not metric.buckets:
            counter = self._counters.setdefault(metric, defaultdict(float))
            counter[key] += value
            return
        series = self._histograms.setdefault(metric, {})
        if (found := series.get(key)) is None:
            found = series[key] = Histogram(metric.buckets)
        found.add(value)

    def text(self, gauges: Iterable[tuple[Metric, Mapping[str, str], float]] = ()) -> str:
        """All metrics, and `gauges`: values of this moment."""
        lines: list[str] = []
        for metric in METRICS:
            lines += self._lines(metric)
        shown: set[Metric] = set()
        for metric, labels, value in gauges:
            if metric not in shown:
                shown.add(metric)
                lines += _head(metric, "gauge")
            lines.append(_sample(_name(metric), tuple(labels.items()), value))
        return "".join(f"{line}\n" for line in lines)

    def _lines(self, metric: Metric) -> Iterator[str]:
        name = _name(metric)
        if counters := self._counters.get(metric):
            yield from _head(metric, "counter", f"{name}_total")
            for labels, value in sorted(counters.items()):
                yield _sample(f"{name}_total", labels, value)
        if histograms := self._histograms.get(metric):
            yield from _head(metric, "histogram")
            for labels, histogram in sorted(histograms.items(), key=lambda item: item[0]):
                below = 0
                for bound, count in zip(
                    (*map(_number, metric.buckets), "+Inf"), histogram.counts, strict=True
                ):
                    below += count
                    yield _sample(f"{name}_bucket", (*labels, ("le", bound)), below)
                yield _sample(f"{name}_sum", labels, histogram.sum)
                yield _sample(f"{name}_count", labels, below)


def _name(metric: Metric) -> str:
    return metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")


def _head(metric: Metric, kind: str, name: str = "") -> Iterator[str]:
    yield f"# HELP {name or _name(metric)} {metric.description}"
    yield f"# TYPE {name or _name(metric)} {kind}"


def _sample(name: str, labels: _Labels, value: float) -> str:
    shown = ",".join(f'{key.replace(".", "_")}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else repr(value)
