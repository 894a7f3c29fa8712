"""The tensor that the confidence head divides its logits by.

A head starts with a scalar, and a captured graph keeps reading the storage that the capture saw.
So a vector has to be there before graphs are captured; afterwards only its contents may change.
"""

from __future__ import annotations

from typing import Any

from dspark_calib_client.plugins.common.compatibility import AsideError

__all__ = ["NAME", "install_vector"]

NAME = "sts_temperatures"


def install_vector(head: Any, gamma: int, device: Any) -> tuple[float, ...]:
    """Put a float32 vector [gamma] into the head; the numbers in it.

    Call it before graphs are captured. A vector that a calibration file brought stays as it is.

    Args:
        head: SGLang's confidence head.
        gamma: draft positions.
        device: where the engine runs.

    Raises:
        AsideError: a buffer of another length or kind.
    """
    import torch

    found = getattr(head, NAME, None)
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        raise AsideError(f"the confidence head has no tensor {NAME!r}")
    if found.ndim == 0:
        # The one number of the scalar, in every position: nothing changes by this.
        vector = torch.full((gamma,), float(found), dtype=torch.float32, device=device)
        setattr(head, NAME, vector)
    elif tuple(found.shape) != (gamma,) or found.dtype != torch.float32:
        raise AsideError(f"{NAME} is {found.dtype} {tuple(found.shape)}, gamma is {gamma}")
    return tuple(float(value) for value in getattr(head, NAME).tolist())
