"""The picture beside a run: reliability per position from a stored report, for a glance in MLflow.

Drawn from the report's JSON, since a stored report is all that a mirror has, with the bins and
bands of its page (:mod:`monitoring.reports.reliability_chart`); the figures of
:mod:`monitoring.reports.figures` are drawn from rows and say more.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from monitoring.reports.document_node import Node
from monitoring.reports.reliability_chart import FEW_ROWS, Bin, bins_of, runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["report_picture"]

_COLUMNS: Final = 4
_SIDE: Final = 2.2  # inches
_DPI: Final = 110
# Okabe and Ito: told apart by all colour vision; the markers differ as well.
_SERIES: Final[tuple[tuple[str, str, str, Literal["-", "--"]], ...]] = (
    ("raw", "#D55E00", "s", "--"),
    ("calibrated", "#0072B2", "o", "-"),
)


def report_picture(document: Mapping[str, Any]) -> bytes | None:
    """A PNG of predicted survival against the observed share, or None without an evaluation.

    Args:
        document: a telemetry report as :mod:`monitoring.telemetry_report` makes it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    overall = Node(document).at("evaluation", "overall")
    sides = {name: list(overall.at(name, "survival", "positions")) for name, *_ in _SERIES}
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
    styles = [
        Line2D([], [], label=name, color=colour, marker=marker, linestyle=line, markersize=3)
        for name, colour, marker, line in _SERIES
    ]
    panels[0].legend(handles=styles, fontsize=6, frameon=False, loc="upper left")
    figure.supxlabel("predicted survival", fontsize=8)
    figure.supylabel("observed share of n ≥ k", fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI, metadata={"Software": None})
    return drawn.getvalue()


def _draw(axes: Axes, index: int, sides: Mapping[str, Node]) -> None:
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=0.8)
    served = bins_of(sides["calibrated"])
    for run in runs(served):
        low, high = [found.low for found in run], [found.high for found in run]
        axes.fill_between(_predictions(run), low, high, color="#0072B2", alpha=0.2, linewidth=0)
    for name, colour, marker, line in _SERIES:
        bins = bins_of(sides[name]) if name in sides else []
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 3,
            "linewidth": 0.9,
        }
        few = [found for found in bins if found.count < FEW_ROWS]
        axes.plot(*_places(few), linestyle="none", alpha=0.3, **style)
        for run in runs(bins):
            axes.plot(*_places(run), linestyle=line, **style)
    eces = [sides[name].at("ece").number if name in sides else None for name, *_ in _SERIES]
    shown = " → ".join("–" if ece is None else f"{100.0 * ece:.1f}" for ece in eces)
    axes.set_title(f"position {index + 1}: ECE {shown}", fontsize=7)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.tick_params(labelsize=6)


def _predictions(bins: Sequence[Bin]) -> list[float]:
    return [found.mean_prediction for found in bins]


def _places(bins: Sequence[Bin]) -> tuple[list[float], list[float]]:
    return _predictions(bins), [found.mean_label for found in bins]
