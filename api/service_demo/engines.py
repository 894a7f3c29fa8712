"""Three engines, played with the client that real ones use."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from api.service_demo.replay import EngineRows
from calib.errors import ConfigurationError

__all__ = ["Arrival", "Engines", "client_package"]

_CLIENT: Final = "dspark_calib_client"
_SETTLE_SECONDS: Final = 0.05


def client_package() -> Any:
    """The engine client: installed, or from the checkout that this code runs from.

    Raises:
        ConfigurationError: it is neither.
    """
    if find_spec(_CLIENT) is None:
        checkout = Path(__file__).resolve().parents[2] / "client"
        if not (checkout / _CLIENT).is_dir():
            raise ConfigurationError(
                "demo", _CLIENT, "the engine client is missing: pip install dspark-calib-client"
            )
        sys.path.append(str(checkout))
    return import_module(_CLIENT)


@dataclass(frozen=True, slots=True)
class Arrival:
    """New temperatures at an engine.

    Attributes:
        engine: its name.
        publication: number of the publication.
        revision: number of the revision.
        values: temperatures by position.
        at: monotonic seconds.
    """

    engine: str
    publication: int
    revision: int
    values: tuple[float, ...]
    at: float


class Engines:
    """The clients of all engines, polling until they are stopped.

    Args:
        url: address of the service.
        drafter: name of the drafter.
        key: fields of its calibration key.
        names: one engine each.
        token: bearer token, or None.
    """

    def __init__(
        self,
        url: str,
        drafter: str,
        key: Mapping[str, Any],
        names: Sequence[str],
        *,
        token: str | None = None,
    ) -> None:
        package = client_package()
        self._arrivals: queue.Queue[Arrival] = queue.Queue()
        self._clients = {
            name: package.CalibrationClient(
                url,
                drafter,
                key["gamma"],
                key,
                engine_id=name,
                token=token,
                interval=1.0,
                wait=30,
                start_delay=0.0,
                telemetry=package.TelemetryOptions(batch_rows=2048, batch_seconds=0.2),
            )
            for name in names
        }
        for name, client in self._clients.items():
            client.on_change(self._noted(name, client))

    def start(self) -> None:
        """Start polling."""
        for client in self._clients.values():
            client.start()

    def stop(self) -> None:
        """Stop all clients, side by side."""
        threads = [
            threading.Thread(target=client.stop, args=(2.0,)) for client in self._clients.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def arrivals(self, publication: int, seconds: float) -> list[Arrival]:
        """The first arrival of this publication, or a later one, at each engine, in time order.

        Args:
            publication: least number that counts.
            seconds: how long to wait; engines that have not answered are missing then.
        """
        found: dict[str, Arrival] = {}
        ends = time.monotonic() + seconds
        while len(found) < len(self._clients):
            try:
                arrival = self._arrivals.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                break
            if arrival.publication >= publication:
                found.setdefault(arrival.engine, arrival)
        return sorted(found.values(), key=lambda arrival: arrival.at)

    def next_arrival(self, seconds: float) -> Arrival | None:
        """The next arrival at any engine, or None when none came in time."""
        try:
            return self._arrivals.get(timeout=seconds)
        except queue.Empty:
            return None

    def send(
        self,
        rows: Sequence[EngineRows],
        progress: Callable[[int], object],
        *,
        seconds: float,
    ) -> dict[str, int]:
        """Send rows as their engines would, side by side, and wait until they are stored.

        Args:
            rows: of engines played here.
            progress: told the rows stored so far.
            seconds: how long to wait for the service.

        Returns:
            Counters over all engines: ``rows_accepted``, ``rows_rejected``, ``rows_duplicate``,
            ``batches`` and ``batch_retries``, and ``rows_lost``, those that were not delivered.
        """
        return self.await_stored(self.record(rows), progress, seconds=seconds)

    def record(self, rows: Sequence[EngineRows]) -> int:
        """Hand rows over to their engines' clients, without waiting; how many they took."""
        taken = 0
        for part in rows:
            client = self._clients[part.engine]
            taken += sum(client.record_rows(step) for step in part.steps())
        return taken

    def await_stored(
        self, total: int, progress: Callable[[int], object], *, seconds: float
    ) -> dict[str, int]:
        """Wait until so many rows in all, of every call, are stored; the counters of :meth:`send`.

        Args:
            total: rows handed over since the start.
            progress: told the rows stored so far.
            seconds: how long to wait for the service.
        """
        ends = time.monotonic() + seconds
        while True:
            counted = self._counted()
            settled = counted["rows_delivered"] + counted["rows_refused"]
            progress(counted["rows_accepted"])
            if settled >= total or time.monotonic() >= ends:
                return {**counted, "rows_lost": total - counted["rows_delivered"]}
            time.sleep(_SETTLE_SECONDS)

    def _counted(self) -> dict[str, int]:
        metrics = [client.metrics() for client in self._clients.values()]
        names = (
            "rows_accepted",
            "rows_rejected",
            "rows_duplicate",
            "rows_delivered",
            "rows_refused",
            "batches",
            "batch_retries",
        )
        return {name: sum(int(found[name]) for found in metrics) for name in names}

    def _noted(self, name: str, client: Any) -> Callable[[Any], None]:
        def noted(temperatures: Any) -> None:
            at = time.monotonic()
            # An engine would copy them into its buffer here, at one step on every rank.
            client.report_applied(temperatures)
            arrival = Arrival(
                name, temperatures.publication, temperatures.revision, temperatures.values, at
            )
            self._arrivals.put(arrival)

        return noted
