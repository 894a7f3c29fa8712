"""The models behind a revision: what its labels should look like, not what engines apply.

A revision serves temperatures (and slopes and intercepts); monitors test models. Its conditional
model gives c, its survival model S = ∏ g·c, both by segment where it has segments. They are stored
in ``provenance["model"]``, which no poll carries:

    {"format": "dspark-calib/model/1", "slopes": [γ], "intercepts": [γ], "rows": [γ],
     "confidence_errors": [γ], "hazards": [{…} γ − 1], "segments": {…} | null}

A revision without one (made by hand, or identity) is its own model: the product of what it serves.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from calib.calibration import Calibration
from calib.canonical_json import round_numbers
from calib.errors import CalibrationError, FormatError
from calib.records import AcceptanceRecords
from calib.segment_model import SegmentModel
from calib.survival_model import Hazard, SurvivalModel
from monitoring.segment_models import read_segment_model, segment_model_dict, segmented_survival

if TYPE_CHECKING:
    from monitoring.store.revisions import Revision

__all__ = ["MODEL", "RevisionModel"]

MODEL: Final = "model"
"""Where a revision's provenance holds its models."""

FORMAT: Final = "dspark-calib/model/1"

Values = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class RevisionModel:
    """Conditional and survival model of all traffic, and of segments.

    Attributes:
        pooled: of all traffic.
        confidence_errors: [γ] standard error of c, root mean square over the fitted rows; None
            where unknown, as for a revision that nobody fitted.
        segments: conditional models by segment, or None.
    """

    pooled: SurvivalModel
    confidence_errors: tuple[float | None, ...]
    segments: SegmentModel | None = None

    @classmethod
    def of(cls, revision: Revision) -> Self:
        """The models of a stored revision.

        Raises:
            FormatError: ``provenance["model"]`` is damaged.
        """
        stored = revision.provenance.get(MODEL)
        if isinstance(stored, Mapping):
            return cls.from_dict(stored)
        return cls.of_calibration(revision.calibration)

    @classmethod
    def of_calibration(cls, calibration: Calibration) -> Self:
        """The product of what a calibration serves, in its affine form where it has one."""
        slopes, intercepts = calibration.slopes, calibration.intercepts
        if slopes is None or intercepts is None:
            slopes = tuple(1.0 / temperature for temperature in calibration.temperatures)
            intercepts = (0.0,) * calibration.gamma
        return cls(_product(slopes, intercepts), (None,) * calibration.gamma)

    @property
    def gamma(self) -> int:
        """Draft positions."""
        return self.pooled.gamma

    def conditional(self, records: AcceptanceRecords) -> Values:
        """Conditional confidences of rows, by their segments where there are some, fp32 [N, γ].

        Raises:
            RecordError: records of another γ.
        """
        if self.segments is None or not len(records):
            return self._of_rows(records, self.pooled.conditional)
        return self.segments.conditional(records)

    def survival(self, records: AcceptanceRecords, conditional: Values | None = None) -> Values:
        """S of rows, by their segments where there are some, fp32 [N, γ]; may rise along k.

        Args:
            records: the rows.
            conditional: their :meth:`conditional`, where it is known already.

        Raises:
            RecordError: records of another γ.
        """
        if self.segments is None or not len(records):
            return self._of_rows(records, lambda logits: self.pooled.survival(logits, conditional))
        return segmented_survival(self.segments, self.pooled, records)

    def _of_rows(
        self, records: AcceptanceRecords, score: Callable[[NDArray[np.float32]], Values]
    ) -> Values:
        if not len(records):
            return np.zeros((0, self.gamma), dtype=np.float32)
        return score(records.confidence_logits)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values at nine significant digits, more than fp32 confidences can show."""
        segments = None if self.segments is None else segment_model_dict(self.segments)
        found: dict[str, Any] = round_numbers(
            {
                "format": FORMAT,
                "slopes": self.pooled.slopes,
                "intercepts": self.pooled.intercepts,
                "rows": self.pooled.rows,
                "confidence_errors": self.confidence_errors,
                "hazards": [asdict(hazard) for hazard in self.pooled.hazards],
            },
            digits=9,
        )
        return {**found, "segments": segments}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The models that :meth:`to_dict` wrote.

        Raises:
            FormatError: another format, or fields that are missing or wrong.
        """
        if values.get("format") != FORMAT:
            raise FormatError("revision model", f"'format' is not {FORMAT!r}", "fit it again")
        try:
            pooled = SurvivalModel(
                tuple(values["slopes"]),
                tuple(values["intercepts"]),
                tuple(Hazard(**hazard) for hazard in values["hazards"]),
                tuple(values["rows"]),
            )
            segments = values["segments"]
            return cls(
                pooled,
                tuple(values["confidence_errors"]),
                None if segments is None else read_segment_model(segments),
            )
        except (KeyError, TypeError, AttributeError, CalibrationError) as error:
            raise FormatError("revision model", f"{error}", "fit it again") from error


def _product(slopes: Sequence[float], intercepts: Sequence[float]) -> SurvivalModel:
    pairs = zip(intercepts[:-1], slopes[:-1], strict=True)
    hazards = tuple(
        Hazard(index + 1, intercept, slope, 0.0, 0.0)
        for index, (intercept, slope) in enumerate(pairs)
    )
    return SurvivalModel(tuple(slopes), tuple(intercepts), hazards, (0,) * len(slopes))
