"""How GPU kernels are timed: CUDA-graph replay, L2 warm and cold, against a measured floor.

A *case* is one operation on one shape: what every contender computes, how many bytes an ideal
implementation would move, and a check against float64. A *contender* is one implementation. Files
that provide cases have a function ``cases(setting: Setting) -> Iterator[Case]``.

The floor of a case is its bytes over the bandwidth of a device-to-device copy on the same card in
the same run, so that a percentage needs no data sheet.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

_SAMPLES = 20
_COLD_SAMPLES = 12
_SAMPLE_SECONDS = 2e-3  # a warm sample replays until it is this long: events resolve 0.5 µs
_COPY_BYTES = 1 << 30
# What a contender that cannot run on this card raises.
_REFUSALS = (torch.cuda.OutOfMemoryError, RuntimeError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how large.

    Attributes:
        device: of the tensors.
        tiny: shapes for the interpreter, to prove that the script runs.
        batches: requests of a step.
    """

    device: torch.device
    tiny: bool
    batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation of a case.

    Attributes:
        name: ``eager``, ``compiled``, ``unfused``, or a form of our kernels.
        run: computes the case once; returns what must stay alive.
        captured: whether it may be captured into a CUDA graph.
    """

    name: str
    run: Callable[[], object]
    captured: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one shape.

    Attributes:
        operation: what is computed.
        model: whose shape it is.
        batch: requests of the step.
        shape: for people.
        floor_bytes: bytes an ideal implementation reads and writes.
        contenders: implementations, ours last.
        check: largest errors against float64 by name; raises where one is too large.
    """

    operation: str
    model: str
    batch: int
    shape: str
    floor_bytes: int
    contenders: Sequence[Contender]
    check: Callable[[], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one contender; None where nothing was timed, with the reason in ``note``.

    Attributes:
        warm_us: median of repeated replays, L2 as the last replay left it.
        warm_low_us: 20 % quantile.
        warm_high_us: 80 % quantile.
        cold_us: median with L2 overwritten before each replay.
        first_call_s: seconds of the first call, compilation included.
        captured: whether a CUDA graph was replayed.
        note: why numbers are missing.
    """

    warm_us: float | None = None
    warm_low_us: float | None = None
    warm_high_us: float | None = None
    cold_us: float | None = None
    first_call_s: float | None = None
    captured: bool = False
    note: str = ""


class Timer:
    """Times contenders until the time is over.

    Args:
        device: a GPU; anything else is run once and not timed.
        seconds: until contenders are skipped; see also :meth:`allow`.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._gpu = device.type == "cuda"
        self.allow(seconds)
        if self._gpu:
            size = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
            self._eviction = torch.empty(max(2 * size, 1 << 26), dtype=torch.uint8, device=device)

    def allow(self, seconds: float) -> None:
        """From now on, this long."""
        self._deadline = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._deadline

    def copy_bandwidth(self) -> float | None:
        """Bytes a second, read and written, of a large device-to-device copy; None off a GPU."""
        if not self._gpu:
            return None
        source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=self._eviction.device)
        target = torch.empty_like(source)
        timing = self.time(Contender("copy", lambda: target.copy_(source)))
        return None if timing.warm_us is None else 2 * _COPY_BYTES / (timing.warm_us * 1e-6)

    def time(self, contender: Contender) -> Timing:
        """Time one contender; what it cannot do becomes a note."""
        if self.is_over:
            return Timing(note="out of time")
        begin = time.monotonic()
        try:
            contender.run()
            if not self._gpu:
                return Timing(note="not timed: there is no GPU")
            torch.cuda.synchronize()
            first = time.monotonic() - begin
            replay, captured = self._replay(contender)
            return self._sampled(replay, first, captured)
        except _REFUSALS as error:
            return Timing(note=f"{type(error).__name__}: {str(error).splitlines()[0][:160]}")

    def _replay(self, contender: Contender) -> tuple[Callable[[], object], bool]:
        for _ in range(3):
            contender.run()
        torch.cuda.synchronize()
        if not contender.captured:
            return contender.run, False
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            contender.run()
        return graph.replay, True

    def _sampled(self, replay: Callable[[], object], first: float, captured: bool) -> Timing:
        replay()
        estimate = max(self._elapsed(replay, 3), 1e-7)
        count = max(1, min(1000, round(_SAMPLE_SECONDS / estimate)))
        warm = sorted(self._elapsed(replay, count) for _ in range(_SAMPLES))
        cold = []
        for _ in range(_COLD_SAMPLES):
            self._eviction.zero_()
            cold.append(self._elapsed(replay, 1))
        return Timing(
            warm_us=1e6 * statistics.median(warm),
            warm_low_us=1e6 * warm[_SAMPLES // 5],
            warm_high_us=1e6 * warm[-1 - _SAMPLES // 5],
            cold_us=1e6 * statistics.median(cold),
            first_call_s=first,
            captured=captured,
        )

    @staticmethod
    def _elapsed(replay: Callable[[], object], count: int) -> float:
        """Seconds a replay takes on the device."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / count


def run_cases(
    cases: Iterator[Case], timer: Timer, bandwidth: float | None
) -> Iterator[dict[str, Any]]:
    """Check and time every case; one row a contender, each given out when it is known.

    A case that fails its check is not timed, and its row says so under ``failed``.
    """
    for case in cases:
        if timer.is_over:
            return
        floor = None if bandwidth is None else 1e6 * case.floor_bytes / bandwidth
        try:
            errors = case.check()
        except Exception as error:  # noqa: BLE001  # the other cases still count
            failed = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            contender = Contender("check", lambda: None)
            yield _row(case, contender, Timing(note=failed), floor) | {"failed": True}
            continue
        for contender in case.contenders:
            timing = timer.time(contender)
            yield _row(case, contender, timing, floor) | {"failed": False, "errors": errors}


def _row(case: Case, contender: Contender, timing: Timing, floor: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "operation": case.operation,
        "model": case.model,
        "batch": case.batch,
        "shape": case.shape,
        "contender": contender.name,
        "floor_bytes": case.floor_bytes,
        "floor_us": floor,
        **asdict(timing),
    }
    for name in ("warm", "cold"):
        microseconds = row[f"{name}_us"]
        known = microseconds is not None and floor is not None
        row[f"{name}_gb_per_s"] = case.floor_bytes / microseconds / 1e3 if known else None
        row[f"{name}_percent_of_floor"] = 100.0 * floor / microseconds if known else None
    return row


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    where = f"{row['operation']:<22} {row['model']:<12} B={row['batch']:<4} {row['contender']:<14}"
    if row["warm_us"] is None:
        return f"{where} {row['note']}"
    percent = row["warm_percent_of_floor"]
    floor = "" if percent is None else f" {percent:5.1f} % of the floor"
    return f"{where} warm {row['warm_us']:9.1f} µs, cold {row['cold_us']:9.1f} µs{floor}"
