"""What engines apply of a revision to given rows: pooled numbers, or those of each row's segment.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from calib.calibration import Calibration, Form
from calib.errors import RecordError
from calib.records import AcceptanceRecords
from calib.segment_serving import FORMAT, SegmentTable
from calib.sigmoid import sigmoid_fp32

if TYPE_CHECKING:
    from monitoring.store.revisions import Revision

__all__ = ["ServedNumbers", "ServedOnRows", "stored_table"]

Values = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class ServedNumbers:
    """Served numbers of one revision.

    Attributes:
        calibration: for all traffic.
        table: for segments, or None.
    """

    calibration: Calibration
    table: SegmentTable | None = None

    @classmethod
    def of(cls, revision: Revision) -> Self:
        """What a stored revision serves.

        Raises:
            FormatError: its segments are damaged.
        """
        return cls(revision.calibration, stored_table(revision.segments))

    def conditional(self, records: AcceptanceRecords, form: Form = "temperatures") -> Values:
        """c of every row with the numbers it would be served, fp32 [N, γ].

        ``"affine"`` gives the temperatures where there is no affine form.
        """
        if self.table is not None:
            slopes, intercepts = self.table.numbers(records, form)
            odds = records.confidence_logits * slopes + intercepts
            return sigmoid_fp32(odds.astype(np.float32))
        served: Form = form if self.calibration.slopes is not None else "temperatures"
        return self.calibration.conditional(records.confidence_logits, form=served)

    def survival(self, records: AcceptanceRecords, form: Form = "temperatures") -> Values:
        """Running product of :meth:`conditional`, fp32 [N, γ]."""
        return np.cumprod(self.conditional(records, form), axis=1, dtype=np.float32)

    def on(self, records: AcceptanceRecords, form: Form = "temperatures") -> ServedOnRows:
        """The same as a confidence model of exactly these rows, for evaluations."""
        return ServedOnRows(self.conditional(records, form))


@dataclass(frozen=True, eq=False, slots=True)
class ServedOnRows:
    """Confidences of given rows, in the shape that :func:`calib.evaluation.evaluate` asks for.

    Attributes:
        served: [N, γ] conditional confidences of the rows, in their order.
    """

    served: Values

    def conditional(self, confidence_logits: NDArray[np.float32], /) -> Values:
        """The rows' c; the logits only prove that these are the rows.

        Raises:
            RecordError: another number of rows or positions.
        """
        if np.shape(confidence_logits) != self.served.shape:
            shown = np.shape(confidence_logits)
            raise RecordError("confidence_logits", shown, f"give the {self.served.shape} served")
        return self.served

    def survival(self, confidence_logits: NDArray[np.float32], /) -> Values:
        """Running product of c.

        Raises:
            RecordError: another number of rows or positions.
        """
        conditional = self.conditional(confidence_logits)
        return np.cumprod(conditional, axis=1, dtype=np.float32)


def stored_table(segments: Mapping[str, Any] | None) -> SegmentTable | None:
    """The table that a revision stores; None where it stores none, or entries made by hand.

    Raises:
        FormatError: a table that is damaged.
    """
    if segments is None or segments.get("format") != FORMAT:
        return None
    return SegmentTable.from_dict(segments)
