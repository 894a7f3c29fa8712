"""vLLM's plugin: calibrated confidence for a head that vLLM itself applies nothing to.

vLLM finds :func:`register` by the entry point group ``vllm.general_plugins`` in every process it
starts. Without ``DSPARK_CALIB_URL`` nothing happens. torch and vLLM are imported only there, and
vLLM's modules only when vLLM itself imports them.
"""

from __future__ import annotations

from dspark_calib_client.plugins.common.entry import register_hooks_of

__all__ = ["register"]


def register() -> None:
    """Hook into the vLLM that is loading plugins; never raises. A second call does nothing."""
    register_hooks_of("dspark_calib_client.plugins.vllm.registration")
