"""Engine client of dspark-calib: fresh temperatures without a restart, telemetry without a wait."""

from __future__ import annotations

from dspark_calib_client.application import SteppedApplication, apply_in_place, refusal
from dspark_calib_client.broadcast import RankZeroBroadcaster
from dspark_calib_client.client import CalibrationClient
from dspark_calib_client.errors import ClientConfigurationError, ClientError
from dspark_calib_client.keys import key_digest
from dspark_calib_client.telemetry_options import TelemetryOptions
from dspark_calib_client.temperatures import Source, State, Temperatures
from dspark_calib_client.version import VERSION as __version__

__all__ = [
    "CalibrationClient",
    "ClientConfigurationError",
    "ClientError",
    "RankZeroBroadcaster",
    "Source",
    "State",
    "SteppedApplication",
    "TelemetryOptions",
    "Temperatures",
    "__version__",
    "apply_in_place",
    "key_digest",
    "refusal",
]
