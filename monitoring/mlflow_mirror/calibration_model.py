"""The registered model: this very file is stored with it and run where it is loaded.

It needs NumPy and MLflow, not this project: whoever loads a version gets calibrated confidences
from raw logits, bit for bit those of :class:`calib.calibration.Calibration` (a test compares them).
The numbers lie beside it in ``calibration.json``: of all traffic, and of each segment by its name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel
from numpy.typing import NDArray

__all__ = ["CalibrationModel"]

# As calib.calibration.FORMS, which is not there where the model is loaded; a test compares them.
FORMS = ("temperatures", "affine")
QUANTITIES = ("conditional", "survival")
_MOST_NAMES = 20  # of segments in a message


class CalibrationModel(PythonModel):
    """Conditional confidences c_k or survivals a_k = c_1 · … · c_k from raw logits z_k."""

    def load_context(self, context: Any) -> None:
        """Read the numbers that were stored with the model."""
        text = Path(context.artifacts["calibration"]).read_text(encoding="utf-8")
        self._numbers = json.loads(text)

    def predict(
        self,
        context: Any,
        model_input: np.ndarray,  # [n, gamma] fp32 raw logits, finite; MLflow knows this hint
        params: dict[str, Any] | None = None,
    ) -> NDArray[np.float32]:
        """Confidences in [0, 1], fp32 [n, gamma].

        Args:
            context: of MLflow; not used.
            model_input: raw logits, one column a position.
            params: ``quantity``: ``"conditional"`` (default) or ``"survival"``; ``form``:
                ``"temperatures"`` (default) for σ(z / T), ``"affine"`` for σ(s z + b);
                ``segment``: name of the segment whose numbers are applied to all rows, such as
                ``"domain=code, sampling_temperature=0"``; the pooled ones when empty.

        Raises:
            ValueError: another quantity, form or segment, another number of positions, or logits
                that are not finite.
        """
        chosen = params or {}
        quantity = chosen.get("quantity", QUANTITIES[0])
        if quantity not in QUANTITIES:
            raise ValueError(f"quantity: got {quantity!r}; give one of {QUANTITIES}")
        logits = np.asarray(model_input, dtype=np.float32)
        if logits.ndim != 2 or logits.shape[1] != self._numbers["gamma"]:
            gamma = self._numbers["gamma"]
            raise ValueError(f"logits: got shape {logits.shape}; give [n, {gamma}]")
        if not np.isfinite(logits).all():
            raise ValueError("logits: NaN or infinity among them; give the head's raw output")
        numbers = self._of_segment(str(chosen.get("segment") or ""))
        conditional = _sigmoid(_argument(numbers, logits, chosen.get("form", FORMS[0])))
        if quantity == "conditional":
            return conditional
        survival: NDArray[np.float32] = np.cumprod(conditional, axis=-1, dtype=np.float32)
        return survival

    def _of_segment(self, name: str) -> Any:
        segments = self._numbers.get("segments") or {}
        if not name:
            return self._numbers
        if name not in segments:
            known = "; ".join(sorted(segments)[:_MOST_NAMES]) or "none: it has pooled numbers only"
            raise ValueError(f"segment: got {name!r}; this version knows {known}")
        return segments[name]


def _argument(numbers: Any, logits: NDArray[np.float32], form: str) -> NDArray[np.float32]:
    if form not in FORMS or (form == "affine" and numbers["slopes"] is None):
        raise ValueError(f"form: got {form!r}; give 'temperatures', or 'affine' if published")
    with np.errstate(over="ignore"):  # the argument may reach infinity: σ is 0 or 1
        if form == "temperatures":
            divided: NDArray[np.float32] = logits / np.float32(numbers["temperatures"])
            return divided
        scaled: NDArray[np.float32] = logits * np.float32(numbers["slopes"])
        return scaled + np.float32(numbers["intercepts"])


def _sigmoid(argument: NDArray[np.float32]) -> NDArray[np.float32]:
    """The exponential in fp64, the result in fp32: alike on every build of NumPy."""
    with np.errstate(over="ignore"):
        return (1.0 / (1.0 + np.exp(-argument.astype(np.float64)))).astype(np.float32)


set_model(CalibrationModel())
