"""How telemetry is sampled, queued and sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dspark_calib_client.errors import ClientConfigurationError

__all__ = ["TelemetryOptions"]

_MIB = 2**20
_CHOICES = {"drop": ("oldest", "newest"), "body": ("auto", "arrow", "json")}


@dataclass(frozen=True)
class TelemetryOptions:
    """Settings of the uploader.

    Attributes:
        share: share of requests that send rows, in [0, 1], chosen by a hash of their name.
        seed: of that choice; equal seeds choose equal requests on every engine.
        drop: which rows go when the queue is full: ``"oldest"`` or ``"newest"``.
        queue_rows: most rows that wait.
        queue_bytes: most memory that waiting rows take, estimated.
        batch_rows: rows of one request.
        batch_bytes: memory of the rows of one request, estimated.
        batch_seconds: longest time for which a row waits for company.
        retry_seconds: time after which a batch that cannot be delivered is given up; below the
            24 hours for which the service remembers a batch it has stored.
        body: ``"auto"`` (Arrow where pyarrow imports), ``"arrow"`` or ``"json"``.

    Raises:
        ClientConfigurationError: naming field, value and remedy.
    """

    share: float = 1.0
    seed: int = 0
    drop: str = "oldest"
    queue_rows: int = 65_536
    queue_bytes: int = 64 * _MIB
    batch_rows: int = 4096
    batch_bytes: int = 4 * _MIB
    batch_seconds: float = 5.0
    retry_seconds: float = 3600.0
    body: str = "auto"

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name in _CHOICES:
                if value not in _CHOICES[entry.name]:
                    raise ClientConfigurationError(
                        entry.name, value, f"give one of {_CHOICES[entry.name]}"
                    )
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ClientConfigurationError(entry.name, value, "give a number")
            if not math.isfinite(value):
                raise ClientConfigurationError(entry.name, value, "give a finite number")
            whole = entry.name.endswith(("_rows", "_bytes")) or entry.name == "seed"
            if whole and not isinstance(value, int):
                raise ClientConfigurationError(entry.name, value, "give a whole number")
            if value <= 0 and entry.name not in ("share", "seed"):
                raise ClientConfigurationError(entry.name, value, "give more than 0")
        if not 0.0 <= self.share <= 1.0:
            raise ClientConfigurationError("share", self.share, "give a share in [0, 1]")
