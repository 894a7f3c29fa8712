"""The folder of a pyfunc model that calibrates logits, ready to be uploaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np

from calib.calibration import Calibration
from calib.segment_tags import segment_name

__all__ = ["write_model"]

_CODE = Path(__file__).with_name("calibration_model.py")
_REQUIREMENTS = ["mlflow>=3.1", "numpy>=1.26"]


def write_model(
    folder: Path,
    calibration: Calibration,
    metadata: dict[str, Any],
    *,
    segments: Mapping[str, Any] | None = None,
) -> None:
    """Write the model of ``calibration``: its code, its numbers, its signature, two requirements.

    Args:
        folder: to be made.
        calibration: pooled numbers, applied unless a segment is asked for.
        metadata: shown with the model, as plain JSON.
        segments: those that the revision carries (:mod:`monitoring.segment_match`), or None.

    Raises:
        OSError: the folder cannot be written.
    """
    from mlflow.models import ModelSignature
    from mlflow.pyfunc import save_model
    from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

    logits = TensorSpec(np.dtype(np.float32), (-1, calibration.gamma))
    parameters = [
        ParamSpec("quantity", "string", "conditional"),
        ParamSpec("form", "string", "temperatures"),
        ParamSpec("segment", "string", ""),
    ]
    numbers = folder.parent / "calibration.json"
    numbers.write_text(
        json.dumps(_numbers(calibration, segments), allow_nan=False), encoding="utf-8"
    )
    signature = ModelSignature(Schema([logits]), Schema([logits]), ParamSchema(parameters))
    with catch_warnings():
        # It asks for an example of the input; the signature says it all.
        filterwarnings("ignore", message=".*input example was not provided")
        save_model(
            path=str(folder),
            python_model=str(_CODE),
            artifacts={"calibration": str(numbers)},
            signature=signature,
            pip_requirements=_REQUIREMENTS,
            metadata=metadata,
        )


def _numbers(calibration: Calibration, segments: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "gamma": calibration.gamma,
        "temperatures": calibration.temperatures,
        "slopes": calibration.slopes,
        "intercepts": calibration.intercepts,
        "digest": calibration.digest,
        "segments": {
            segment_name(entry["tags"]): _of_segment(entry)
            for entry in (segments or {}).get("segments", ())
            if entry["tags"]
        },
    }


def _of_segment(entry: Mapping[str, Any]) -> dict[str, Any]:
    affine = entry["affine"] or {}
    return {
        "temperatures": entry["temperatures"],
        "slopes": affine.get("slopes"),
        "intercepts": affine.get("intercepts"),
    }
