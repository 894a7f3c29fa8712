"""One rank polls, all ranks apply the same vector at the same step.

Engines with tensor parallelism compute their verification budget on every rank from confidences
that they take to be equal. Ranks that change temperatures at different steps choose graphs of
different sizes, and hang. So rank 0 alone asks the service, and what it knows reaches the others
through a collective of the engine's own, at steps that all ranks count alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dspark_calib_client.application import SteppedApplication
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.errors import ClientConfigurationError
from dspark_calib_client.temperatures import Source, State, Temperatures

__all__ = ["Broadcast", "RankZeroBroadcaster"]

Broadcast = Callable[["list[Any]"], object]
"""Replaces the list's one element on every rank by that of rank 0, as
``torch.distributed.broadcast_object_list(box, src=0)`` does. It waits for the other ranks as the
engine's own collectives do; its time-out is the caller's."""

_NUMBERS = ("values", "publication", "revision", "digest", "etag", "age", "status")
_MORE = ("slopes", "intercepts", "valid_until", "exploration")
_LOG = logging.getLogger("dspark_calib_client")


class RankZeroBroadcaster:
    """Call :meth:`at_step` at the start of every step, on every rank, with equal step numbers.

    Every ``every``-th step rank 0 tells the others what it knows, if that changed; ``lead`` steps
    later all ranks apply it. Small lists of numbers are sent, no classes.

    Args:
        client: on rank 0; ignored on the others, where it may be None.
        broadcast: the collective.
        rank: of this process.
        application: what the vector is applied with on this rank.
        every: steps between two broadcasts; each costs one small collective.
        lead: steps from a broadcast to its application, 1 to ``every``.

    Attributes:
        broadcasts: broadcasts that this rank took part in.
        failed: broadcasts that raised, or brought what this rank cannot apply.

    Raises:
        ClientConfigurationError: rank 0 without a client, or steps out of range.
    """

    def __init__(
        self,
        client: CalibrationClient | None,
        broadcast: Broadcast,
        rank: int,
        *,
        application: SteppedApplication,
        every: int = 32,
        lead: int = 1,
    ) -> None:
        if rank == 0 and client is None:
            raise ClientConfigurationError("client", client, "give rank 0 a client")
        if every < 1:
            raise ClientConfigurationError("every", every, "give 1 or more steps")
        if not 1 <= lead <= every:
            raise ClientConfigurationError("lead", lead, f"give 1 to {every} steps")
        self._client = client if rank == 0 else None
        self._broadcast = broadcast
        self._application = application
        self._every = every
        self._lead = lead
        self._next: int | None = None  # step of the next broadcast
        self._told: tuple[object, ...] | None = None  # what rank 0 last told
        self.broadcasts = 0
        self.failed = 0

    def at_step(self, step: int) -> Temperatures | None:
        """Apply what is due, and take part in the broadcast if one is; what was applied, or None.

        Waits as long as the collective does; never raises.
        """
        try:
            applied = self._application.at_step(step)
            if self._next is None or step >= self._next:
                self._next = step + self._every
                self._exchange(step)
            return applied
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self.failed += 1
            _LOG.exception("a broadcast of temperatures failed")
            return None

    def _exchange(self, step: int) -> None:
        now = None if self._client is None else self._client.current()
        told = None if now is None else _what_is_applied(now)
        box: list[Any] = [None]
        if now is not None and told != self._told:
            box = [_packed(now, step + self._lead)]
        self._broadcast(box)
        self._told = told
        self.broadcasts += 1
        if box[0] is not None:
            news = dict(box[0])
            if not self._application.stage(_unpacked(news), news["step"]):
                self.failed += 1


def _what_is_applied(now: Temperatures) -> tuple[object, ...]:
    """What is worth a message. Not state and age: they change nothing that is applied."""
    numbers = (now.values, now.slopes, now.intercepts, now.exploration)
    return (*numbers, now.publication, now.revision, now.source)


def _packed(now: Temperatures, step: int) -> dict[str, Any]:
    numbers = {name: getattr(now, name) for name in (*_NUMBERS, *_MORE)}
    return {**numbers, "step": step, "state": str(now.state), "source": str(now.source)}


def _unpacked(news: dict[str, Any]) -> Temperatures:
    numbers = {name: news[name] for name in (*_NUMBERS, *_MORE)}
    return Temperatures(state=State(news["state"]), source=Source(news["source"]), **numbers)
