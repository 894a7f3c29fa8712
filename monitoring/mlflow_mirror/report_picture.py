"""The picture beside a run: reliability per position from a stored report, for a glance in MLflow.

Drawn from the report's JSON, since a stored report is all that a mirror has; the figures of
:mod:`monitoring.reports.figures` are drawn from rows and say more.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["report_picture"]

_COLUMNS: Final = 4
_SIDE: Final = 2.2  # inches
_DPI: Final = 110
_FEW_ROWS: Final = 30  # such bins say little: pale, and no line runs through them
# Okabe and Ito: told apart by all colour vision; the markers differ as well.
_SERIES: Final = (
    ("raw", "raw", "#D55E00", "o", "--"),
    ("calibrated", "calibrated", "#0072B2", "s", "-"),
)


def report_picture(document: Mapping[str, Any]) -> bytes | None:
    """A PNG of predicted survival against the observed share, or None without an evaluation.

    Args:
        document: a telemetry report as :mod:`monitoring.telemetry_report` makes it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    evaluation = document.get("evaluation")
    sides = {name: _positions(evaluation, name) for name, *_ in _SERIES}
    count = len(sides["calibrated"])
    if not count:
        return None
    rows = -(-count // _COLUMNS)
    figure = Figure(figsize=(_SIDE * min(count, _COLUMNS), _SIDE * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, min(count, _COLUMNS), squeeze=False).ravel()
    for index, axes in enumerate(panels):
        if index >= count:
            axes.set_axis_off()
            continue
        _draw(axes, index, {name: found[index] for name, found in sides.items() if found})
    panels[0].legend(fontsize=6, frameon=False, loc="upper left")
    figure.supxlabel("predicted survival", fontsize=8)
    figure.supylabel("observed share of n ≥ k", fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI, metadata={"Software": None})
    return drawn.getvalue()


def _draw(axes: Axes, index: int, sides: Mapping[str, Mapping[str, Any]]) -> None:
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=0.8)
    for name, label, colour, marker, line in _SERIES:
        bins = [b for b in sides.get(name, {}).get("bins") or () if b and b.get("count")]
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 3,
            "linewidth": 0.9,
        }
        few = [b for b in bins if b["count"] < _FEW_ROWS]
        axes.plot(*_places(few), linestyle="none", alpha=0.3, **style)
        many = [b for b in bins if b["count"] >= _FEW_ROWS]
        axes.plot(*_places(many), linestyle=line, label=label, **style)
    eces = [sides.get(name, {}).get("ece") for name, *_ in _SERIES]
    shown = " → ".join("–" if ece is None else f"{100.0 * ece:.1f}" for ece in eces)
    axes.set_title(f"position {index + 1}: ECE {shown}", fontsize=7)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.tick_params(labelsize=6)


def _places(bins: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    return [b["mean_prediction"] for b in bins], [b["mean_label"] for b in bins]


def _positions(evaluation: Any, side: str) -> Sequence[Mapping[str, Any]]:
    found: Any = evaluation
    for name in ("overall", side, "survival", "positions"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, list) else ()
