"""The numbers that a captured graph reads: slope, intercept and a switch for each position.

c_k = sigma(s_k z_k + b_k), where s_k = 1 / T_k and b_k = 0 for temperatures. All three lie in one
tensor, so one copy changes them together and no step sees half of a revision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dspark_calib_client.application import SteppedChange
from dspark_calib_client.temperatures import Temperatures
from dspark_calib_client.validation import LARGEST_TEMPERATURE, SMALLEST_TEMPERATURE

__all__ = ["ServedNumbers"]

# Log-odds beyond this are 0 or 1 in float32, and vLLM's own features end there.
_LARGEST_INTERCEPT = 40.0


class ServedNumbers(SteppedChange):
    """The tensor, and what changes it at a named step; for :class:`RankZeroBroadcaster`.

    Args:
        gamma: draft positions.
        device: where the engine runs.
        form: ``affine`` where an answer has that form, else ``temperatures``.
        applied: called with what was applied and its form.

    Attributes:
        tensor: float32 [3, gamma]: slopes, intercepts, and 1 where these numbers are used instead
            of the engine's own estimate (a trained head has none, and ignores this row).
    """

    def __init__(
        self,
        gamma: int,
        device: Any,
        *,
        form: str = "affine",
        applied: Callable[[Temperatures, str], object] | None = None,
    ) -> None:
        import torch

        super().__init__()
        with torch.inference_mode(False):
            self.tensor = torch.zeros((3, gamma), dtype=torch.float32, device=device)
            self.tensor[0] = 1.0
        self._gamma = gamma
        self._form = form
        self._applied = applied

    def _prepared(self, temperatures: Temperatures) -> tuple[Any, str]:
        rows, form = self._rows(temperatures)
        return self._on_host(rows), form

    def _put(self, prepared: tuple[Any, str]) -> None:
        import torch

        with torch.no_grad():
            self.tensor.copy_(prepared[0], non_blocking=True)

    def _report(self, temperatures: Temperatures, prepared: tuple[Any, str]) -> None:
        if self._applied is not None:
            self._applied(temperatures, prepared[1])

    def _rows(self, found: Temperatures) -> tuple[list[list[float]], str]:
        """Slopes, intercepts and switch for an answer, and the form they have.

        Raises:
            ValueError: a number that no captured graph should ever read.
        """
        affine = self._form == "affine" and found.slopes is not None and found.intercepts
        if affine and found.slopes is not None and found.intercepts is not None:
            slopes, intercepts = list(found.slopes), list(found.intercepts)
            _check_within("slope", slopes, SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE)
            _check_within("intercept", intercepts, -_LARGEST_INTERCEPT, _LARGEST_INTERCEPT)
            form = "affine"
        else:
            _check_within("temperature", found.values, SMALLEST_TEMPERATURE, LARGEST_TEMPERATURE)
            slopes = [1.0 / value for value in found.values]
            intercepts = [0.0] * len(slopes)
            form = "temperatures"
        if len(slopes) != self._gamma or len(intercepts) != self._gamma:
            raise ValueError(f"{len(slopes)} positions, the engine has {self._gamma}")
        if set(slopes) == {1.0} and set(intercepts) == {0.0}:
            form = "identity"
        switch = 0.0 if form == "identity" else 1.0
        return [slopes, intercepts, [switch] * self._gamma], form

    def _on_host(self, rows: list[list[float]]) -> Any:
        """The rows in host memory, pinned for a CUDA tensor: a pageable copy would wait."""
        import torch

        with torch.inference_mode(False):
            host = torch.tensor(rows, dtype=torch.float32)
            return host.pin_memory() if self.tensor.is_cuda else host


def _check_within(name: str, values: Any, least: float, most: float) -> None:
    for value in values:
        if not math.isfinite(value) or not least <= value <= most:
            raise ValueError(f"{name} {value} is outside [{least:g}, {most:g}]")
