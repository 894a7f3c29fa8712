"""The metrics of one process, with a registry of its own and what the database says.

A scrape costs rendering: the database is read anew only when what is known is old. While the
database is away its values are shown for a minute more, then left out, so that rules about missing
values speak up instead of being fed the past.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from monitoring.metrics_catalogue import METRICS, MetricSpec
from monitoring.metrics_state import MetricsCache, Samples, read_samples

if TYPE_CHECKING:
    from monitoring.store.database import Database

__all__ = ["POLL_STATUSES", "ServiceMetrics"]

POLL_STATUSES: Final = (200, 304, 401, 403, 404, 406, 409, 422, 503)
"""Statuses that polls are counted by; every other one counts as ``other``."""

_TOO_OLD_SECONDS: Final = 60.0


class ServiceMetrics(Collector):
    """What ``/metrics`` of this process shows.

    Counting is cheap and may be done from any thread that holds the interpreter's lock for an
    addition; :meth:`refresh` is called by one thread at a time.

    Args:
        version: of the service.
        silent_after: age of the last poll from which an engine counts as silent, seconds.
        most_drafters: drafters with metrics of their own at most.
        refresh_seconds: age from which the database is read anew.
        monotonic: seconds from any origin.
    """

    def __init__(
        self,
        version: str,
        *,
        silent_after: float,
        most_drafters: int,
        refresh_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._version = version
        self._silent_after = silent_after
        self._most_drafters = most_drafters
        self._refresh_seconds = refresh_seconds
        self._monotonic = monotonic
        self._cache = MetricsCache()
        self._samples: Samples = {}
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._polls = dict.fromkeys([*map(str, POLL_STATUSES), "other"], 0)
        self._gauges: dict[str, Callable[[], float]] = {}
        self.store_up = False
        """Whether the last reading of the database succeeded."""
        # Not the library's global one: two applications in one process stay apart.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_poll(self, status: int) -> None:
        """Count a poll that was answered with this HTTP status."""
        label = str(status)
        self._polls[label if label in self._polls else "other"] += 1

    def watch(self, name: str, value: Callable[[], float]) -> None:
        """Show what ``value`` returns at each scrape, as the gauge of this process ``name``."""
        self._gauges[name] = value

    @property
    def is_due(self) -> bool:
        """Whether the database was not asked for longer than the refresh time."""
        tried = self._tried_at
        return tried is None or self._monotonic() - tried >= self._refresh_seconds

    def refresh(self, database: Database) -> None:
        """Read the database anew.

        Raises:
            StoreError: it cannot be read; what is known stays for a while.
        """
        self._tried_at = self._monotonic()
        self.store_up = False
        with database.read() as connection:
            samples = read_samples(
                connection,
                self._cache,
                silent_after=self._silent_after,
                most_drafters=self._most_drafters,
            )
        self._samples, self._read_at, self.store_up = samples, self._monotonic(), True

    def render(self, accept: str | None = None) -> tuple[bytes, str]:
        """The exposition and its media type, by an ``Accept`` header: OpenMetrics or text."""
        encoder, media_type = choose_encoder(accept or "")
        return encoder(self._registry), media_type

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Every family that has a value."""
        samples = {**self._of_database(), **self._of_process()}
        for spec in METRICS:
            values = samples.get(spec.name)
            if values:
                yield _family(spec, values)

    def _of_database(self) -> Samples:
        read_at = self._read_at
        known = read_at is not None and self._monotonic() - read_at < _TOO_OLD_SECONDS
        return self._samples if known else {}

    def _of_process(self) -> Samples:
        found: Samples = {name: {(): value()} for name, value in self._gauges.items()}
        found["polls_total"] = {(status,): count for status, count in self._polls.items()}
        found["store_up"] = {(): float(self.store_up)}
        found["build_info"] = {(self._version,): 1.0}
        return found


def _family(
    spec: MetricSpec, values: dict[tuple[str, ...], float]
) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    name = spec.full_name.removesuffix("_total") if spec.kind == "counter" else spec.full_name
    family = kind(name, spec.help, labels=spec.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
