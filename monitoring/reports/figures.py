"""Reliability figures for print: one panel per position, raw against calibrated.

In the manner of Figure 6 of the paper: survival on the x axis, observed acceptance of the prefix on
the y axis, the diagonal of a perfect model, and a histogram of the predictions below each panel.
Colours are those of Okabe and Ito, which all colour vision tells apart; marker and line differ as
well, so that nothing is lost without colour.

matplotlib draws with its file-only backend (Agg): no display, no state shared with a caller.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from calib.atomic_files import atomic_writer
from calib.position_metrics import PositionMetrics
from calib.reliability_bins import ReliabilityBin
from monitoring.reports.evaluation_report import Comparison

__all__ = ["domain_error_figure", "note_figure", "png_bytes", "reliability_figure", "save_figure"]

View = Literal["conditional", "survival"]

_DPI = 200
# Inches. A block of 7, four panels a row, is as wide as a page of text.
_SIDE = 1.5  # of a square panel
_STRIP = 0.4  # height of its histogram
_BETWEEN = 0.1  # panel and histogram
_ACROSS = 0.3  # between neighbours
_LEFT = 0.52
_BELOW = 0.34  # room for the labels under a histogram
_FIRST_LINE, _SECOND_LINE = 0.06, 0.18  # baselines of the two lines over a panel
_ABOVE = 0.32  # room for them
_CELL_HEIGHT = _BELOW + _STRIP + _BETWEEN + _SIDE + _ABOVE
_GRID = 0.6  # line width
_TEXT = 7.5
_SMALL = 6.4
_TITLE = 9.0
# Fewer rows than this say little: such bins are drawn pale, and no line runs through them.
_FEW_ROWS = 30

_LABELS = {
    "survival": ("predicted survival $a_k$", "observed share $n \\geq k$"),
    "conditional": ("predicted confidence $c_k$", "observed acceptance"),
}


@dataclass(frozen=True, slots=True)
class _Series:
    """How one side is drawn."""

    name: str
    colour: str
    marker: str
    filled: bool

    def style(self) -> dict[str, Any]:
        """Keyword arguments of ``Axes.errorbar`` and ``Line2D``."""
        return {
            "color": self.colour,
            "marker": self.marker,
            # Open markers are larger, so that equal points show both.
            "markersize": 3.2 if self.filled else 4.8,
            "markerfacecolor": self.colour if self.filled else "white",
            "markeredgewidth": 0.9,
            "linewidth": 0.9,
            "linestyle": "-" if self.filled else (0, (3, 1.5)),
        }


_RAW = _Series("raw", "#D55E00", "s", filled=False)
_CALIBRATED = _Series("calibrated", "#0072B2", "o", filled=True)


def reliability_figure(
    comparison: Comparison, *, view: View = "survival", title: str | None = None
) -> Figure:
    """Reliability per position before and after calibration, in two rows of panels.

    Points are bins with 95 % intervals; bins without rows are left out. Each panel states ECE
    before and after, the level that a perfect model would show on these rows, and AUC.

    Args:
        comparison: raw and calibrated metrics of the same rows.
        view: ``"survival"`` as the paper, or ``"conditional"``.
        title: printed above; none when None.
    """
    raw = getattr(comparison.raw.report, view)
    calibrated = getattr(comparison.calibrated.report, view)
    layout = _Layout.of(len(raw), has_title=title is not None)
    figure = Figure(figsize=(layout.width, layout.height), dpi=_DPI)
    FigureCanvasAgg(figure)
    for index in range(layout.gamma):
        panel = figure.add_axes(layout.panel(index))
        strip = figure.add_axes(layout.strip(index))
        _draw_panel(panel, raw[index], calibrated[index], index + 1)
        _draw_histogram(strip, raw[index], calibrated[index])
        if index % layout.columns == 0:
            panel.set_ylabel(_LABELS[view][1], fontsize=_TEXT)
            strip.set_ylabel("share", fontsize=_TEXT)
        if index + layout.columns >= layout.gamma:
            strip.set_xlabel(_LABELS[view][0], fontsize=_TEXT, labelpad=2)
    _add_legend(figure, layout)
    if title:
        figure.text(0.5, 1.0 - 0.06 / layout.height, title, ha="center", va="top", fontsize=_TITLE)
    return figure


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where panels lie, in inches from the lower left corner; all panels are of one size.

    Attributes:
        gamma: panels.
        columns: panels in a row.
        panel_rows: one, or two from three panels on.
        top: room above the panels, for the title.
        bottom: room below them, for the legend where no cell is free.
    """

    gamma: int
    columns: int
    panel_rows: int
    top: float
    bottom: float

    @classmethod
    def of(cls, gamma: int, *, has_title: bool) -> _Layout:
        # One or two panels are narrower than the legend below them: it stands beside them.
        panel_rows = 1 if gamma <= 2 else 2
        columns = gamma + 1 if gamma <= 2 else math.ceil(gamma / 2)
        free = panel_rows * columns > gamma
        return cls(gamma, columns, panel_rows, 0.24 if has_title else 0.02, 0.02 if free else 0.32)

    @property
    def has_free_cell(self) -> bool:
        """Whether the last cell of the grid has no panel; the legend goes there."""
        return self.panel_rows * self.columns > self.gamma

    @property
    def width(self) -> float:
        """Width of the figure."""
        return _LEFT + self.columns * (_SIDE + _ACROSS)

    @property
    def height(self) -> float:
        """Height of the figure."""
        return self.bottom + self.panel_rows * _CELL_HEIGHT + self.top

    def panel(self, index: int) -> tuple[float, float, float, float]:
        """Main axes of a cell, as fractions of the figure."""
        return self._box(index, _BELOW + _STRIP + _BETWEEN, _SIDE)

    def strip(self, index: int) -> tuple[float, float, float, float]:
        """Histogram axes of a cell, as fractions of the figure."""
        return self._box(index, _BELOW, _STRIP)

    def free_cell(self) -> tuple[float, float, float, float]:
        """The cell without a panel, as fractions of the figure."""
        last = self.panel_rows * self.columns - 1
        return self._box(last, _BELOW, _SIDE + _BETWEEN + _STRIP)

    def _box(self, index: int, up: float, tall: float) -> tuple[float, float, float, float]:
        row, column = divmod(index, self.columns)
        left = _LEFT + column * (_SIDE + _ACROSS)
        base = self.bottom + (self.panel_rows - 1 - row) * _CELL_HEIGHT + up
        return left / self.width, base / self.height, _SIDE / self.width, tall / self.height


def domain_error_figure(comparison: Comparison, name: str, *, view: View = "survival") -> Figure:
    """Debiased calibration error by position, raw and calibrated, for one slice of the rows.

    Points carry their 95 % intervals. The grey steps are the plug-in ECE that a perfect model would
    show on these rows: an error below them is no evidence of anything.

    Args:
        comparison: raw and calibrated metrics of the slice.
        name: what the slice is called.
        view: ``"survival"`` or ``"conditional"``.
    """
    raw = getattr(comparison.raw.report, view)
    calibrated = getattr(comparison.calibrated.report, view)
    figure = Figure(figsize=(3.5, 2.5), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    level = [_percent(metrics.null_level) for metrics in calibrated]
    edges = [index + 0.5 for index in range(len(level) + 1)]
    axes.stairs(level, edges, fill=True, color="#DDDDDD", linewidth=0, zorder=1)
    for series, metrics, shift in ((_RAW, raw, -0.13), (_CALIBRATED, calibrated, 0.13)):
        _draw_errors(axes, series, metrics, shift)
    rows = comparison.acceptance.rows
    axes.set_title(f"{name} ({rows:,} blocks)", fontsize=_TEXT + 1)
    axes.set_xlabel("position $k$", fontsize=_TEXT)
    axes.set_ylabel(f"{view} ECE, debiased (%)", fontsize=_TEXT)
    axes.set_xticks(range(1, len(level) + 1))
    axes.set_xlim(0.5, len(level) + 0.5)
    axes.set_ylim(0.0, None)
    _tidy(axes)
    handles = [*_handles(), Patch(color="#DDDDDD", label="perfect model's ECE")]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3, fontsize=_SMALL, frameon=False
    )
    return figure


def note_figure(text: str) -> Figure:
    """A small picture that says why there is no other."""
    figure = Figure(figsize=(4.0, 1.0), dpi=_DPI)
    FigureCanvasAgg(figure)
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=_TEXT, parse_math=False)
    return figure


def png_bytes(figure: Figure, *, dpi: int = 120) -> bytes:
    """A figure as PNG, without a timestamp."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, metadata={"Software": None})
    return drawn.getvalue()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG, PDF or SVG by the name's ending, atomically and without a timestamp.

    Raises:
        OSError: the file cannot be written.
    """
    ending = Path(path).suffix.removeprefix(".").lower() or "png"
    nameless: dict[str, Any] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
    metadata = nameless.get(ending, {"Date": None})
    with atomic_writer(path) as file:
        figure.savefig(file, format=ending, metadata=metadata)


def _draw_panel(
    axes: Axes, raw: PositionMetrics, calibrated: PositionMetrics, position: int
) -> None:
    axes.plot([0, 1], [0, 1], color="#888888", linewidth=0.8, zorder=1)
    for series, metrics in ((_RAW, raw), (_CALIBRATED, calibrated)):
        bins = [found for found in metrics.bins if found is not None]
        _draw_bins(axes, series, [found for found in bins if found.count >= _FEW_ROWS], few=False)
        _draw_bins(axes, series, [found for found in bins if found.count < _FEW_ROWS], few=True)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["", "", "", "", ""])
    axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    _tidy(axes)
    _head(axes, position, raw, calibrated)


def _draw_bins(axes: Axes, series: _Series, bins: Sequence[ReliabilityBin], *, few: bool) -> None:
    """Bins as points with 95 % intervals, which always hold the observed share."""
    style = series.style() | ({"linestyle": "none", "alpha": 0.3} if few else {})
    axes.errorbar(
        [found.mean_prediction for found in bins],
        [found.mean_label for found in bins],
        yerr=[
            [found.mean_label - found.mean_label_low for found in bins],
            [found.mean_label_high - found.mean_label for found in bins],
        ],
        elinewidth=0.7,
        zorder=3 if series.filled else 2,
        clip_on=False,
        **style,
    )


def _head(axes: Axes, position: int, raw: PositionMetrics, calibrated: PositionMetrics) -> None:
    """Name and numbers of a panel, above it, where no curve can run into them."""
    auc = "AUC –" if calibrated.auc is None else f"AUC {calibrated.auc:.3f}"
    texts = (
        (0.0, _SECOND_LINE, "left", f"position {position}", _TEXT),
        (1.0, _SECOND_LINE, "right", auc, _SMALL),
        (0.0, _FIRST_LINE, "left", f"ECE {_shown(raw.ece)} → {_shown(calibrated.ece)} %", _SMALL),
        (1.0, _FIRST_LINE, "right", f"perfect {_shown(calibrated.null_level)}", _SMALL),
    )
    for x, inches, side, text, size in texts:
        axes.text(
            x,
            1.0 + inches / _SIDE,
            text,
            transform=axes.transAxes,
            ha=side,
            va="baseline",
            fontsize=size,
        )


def _draw_histogram(axes: Axes, raw: PositionMetrics, calibrated: PositionMetrics) -> None:
    """Share of rows per bin; the axis ends at the larger of the two modes."""
    count = max(len(raw.sharpness), 1)
    edges = [index / count for index in range(count + 1)]
    highest = 0.0
    for series, metrics in ((_RAW, raw), (_CALIBRATED, calibrated)):
        shares = [rows / max(metrics.n, 1) for rows in metrics.sharpness]
        highest = max([highest, *shares])
        axes.stairs(
            shares,
            edges,
            fill=series.filled,
            color=series.colour,
            alpha=0.35 if series.filled else 1.0,
            linewidth=0.0 if series.filled else 0.9,
            linestyle="-" if series.filled else (0, (3, 1.5)),
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.3 * (highest or 1.0))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    if highest > 0.0:
        axes.set_yticks([0, highest], ["0", f"{highest:.2f}".lstrip("0")])
    else:
        axes.set_yticks([0], ["0"])
    axes.text(
        0.99,
        1.0,
        f"{calibrated.n:,} rows",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=_SMALL,
    )
    _tidy(axes)


def _draw_errors(
    axes: Axes, series: _Series, metrics: Sequence[PositionMetrics], shift: float
) -> None:
    """Debiased errors in percent with their intervals; positions without one are left out."""
    known = [
        (position + shift, found.debiased_ece, found.debiased_ece_low, found.debiased_ece_high)
        for position, found in enumerate(metrics, start=1)
    ]
    points = [
        (x, value, low, high)
        for x, value, low, high in known
        if value is not None and low is not None and high is not None
    ]
    # The point lies outside its interval where a negative square was read as 0.
    arms = [
        [100.0 * max(value - low, 0.0) for _, value, low, _ in points],
        [100.0 * max(high - value, 0.0) for _, value, _, high in points],
    ]
    style = series.style() | {"linestyle": "none"}
    axes.errorbar(
        [x for x, *_ in points],
        [100.0 * value for _, value, *_ in points],
        yerr=arms,
        elinewidth=0.9,
        capsize=1.5,
        zorder=3,
        clip_on=False,
        **style,
    )


def _add_legend(figure: Figure, layout: _Layout) -> None:
    handles = [*_handles(), Line2D([], [], color="#888888", linewidth=0.8, label="perfect model")]
    if not layout.has_free_cell:
        figure.legend(handles=handles, loc="lower center", ncols=3, fontsize=_TEXT, frameon=False)
        return
    axes = figure.add_axes(layout.free_cell())
    axes.set_axis_off()
    axes.legend(handles=handles, loc="upper center", fontsize=_TEXT, frameon=False)
    note = f"bars: 95 % intervals\npale: fewer than {_FEW_ROWS} rows\nbelow: share of rows per bin"
    axes.text(
        0.5, 0.42, note, ha="center", va="center", fontsize=_SMALL, color="#444444", linespacing=1.5
    )


def _handles() -> list[Artist]:
    return [Line2D([], [], label=series.name, **series.style()) for series in (_RAW, _CALIBRATED)]


def _tidy(axes: Axes) -> None:
    axes.tick_params(labelsize=_SMALL, length=2.0, width=_GRID, pad=1.5)
    for name, spine in axes.spines.items():
        spine.set_linewidth(_GRID)
        spine.set_visible(name in ("left", "bottom"))


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{100.0 * value:.1f}"


def _percent(value: float | None) -> float:
    return 0.0 if value is None else 100.0 * value
