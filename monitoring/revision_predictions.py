"""What a revision predicts for rows: its models, which monitors test, and what it serves.

Conditional and survival model are those of :class:`monitoring.revision_model.RevisionModel`, served
numbers those of :class:`monitoring.served_numbers.ServedNumbers`; here they stand together, with
the error of the fit as one number. Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from calib.records import AcceptanceRecords
from monitoring.revision_model import RevisionModel
from monitoring.served_numbers import ServedNumbers
from monitoring.store.revisions import Revision

__all__ = ["RevisionPredictions"]

Fp32 = NDArray[np.float32]

_LARGEST_ERROR = 0.2  # of a position with hardly any rows: it must not blind the others


@dataclass(frozen=True, slots=True, eq=False)
class RevisionPredictions:
    """Predictions of one revision.

    Attributes:
        model: conditional and survival model.
        served: what engines apply.
    """

    model: RevisionModel
    served: ServedNumbers

    @classmethod
    def of(cls, revision: Revision) -> Self:
        """Predictions of a stored revision.

        Raises:
            FormatError: its model or its segments are damaged.
        """
        return cls(RevisionModel.of(revision), ServedNumbers.of(revision))

    def conditional(self, records: AcceptanceRecords) -> Fp32:
        """Conditional confidences c of the model, fp32 [N, γ]."""
        return self.model.conditional(records)

    def survival(self, records: AcceptanceRecords, conditional: Fp32 | None = None) -> Fp32:
        """Survival S of the model, fp32 [N, γ]; its ``conditional`` may be given."""
        return self.model.survival(records, conditional)

    def served_survival(self, records: AcceptanceRecords) -> Fp32:
        """Survival by the served temperatures, fp32 [N, γ]."""
        return self.served.survival(records)

    def affine_survival(self, records: AcceptanceRecords) -> Fp32 | None:
        """Survival by the served slopes and intercepts; None where temperatures alone are served.

        Segments carry an affine form only where all traffic does.
        """
        if self.served.calibration.slopes is None:
            return None
        return self.served.survival(records, "affine")

    @property
    def standard_error(self) -> float | None:
        """Root mean square error of c over the labels of the fit; None where it states none."""
        pairs = zip(self.model.pooled.rows, self.model.confidence_errors, strict=True)
        known = [(float(rows), error) for rows, error in pairs if error is not None]
        total = sum(rows for rows, _ in known)
        if not total > 0.0:
            return None
        square = sum(rows * min(error, _LARGEST_ERROR) ** 2 for rows, error in known) / total
        # Rounded up to a ten-thousandth: detectors of nearly equal fits are the same detectors.
        return float(np.ceil(square**0.5 * 1e4) / 1e4)
