"""SGLang's plugin: fresh temperatures without a restart, telemetry from the verify step.

SGLang finds :func:`register` by the entry point group ``sglang.srt.plugins`` in every process it
starts. Without ``DSPARK_CALIB_URL`` nothing happens. torch and SGLang are imported only there.
"""

from __future__ import annotations

from dspark_calib_client.plugins.common.entry import register_hooks_of

__all__ = ["register"]


def register() -> None:
    """Hook into the SGLang that is loading plugins; never raises."""
    register_hooks_of("dspark_calib_client.plugins.sglang.registration")
