"""Figures of a diagnosis: acceptance along the block, lengths, waste, and the threshold sweep.

Colours are those of Okabe and Ito; lines differ in marker as well, bars in hatching, so that
nothing is lost without colour. matplotlib draws with its file-only backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from calib.block_diagnosis import BlockDiagnosis, GroupDiagnosis

__all__ = [
    "acceptance_figure",
    "diagnosis_figures",
    "length_figure",
    "threshold_figure",
    "waste_figure",
]

_DPI = 200
_TEXT, _SMALL, _TITLE = 7.5, 6.4, 9.0
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_FEW_ROWS = 30  # a share of fewer rows is drawn open
_FATES = (
    ("accepted", "accepted", "#009E73", ""),
    ("rejected", "rejected", "#D55E00", "////"),
    ("in_vain", "verified after a rejection", "#E69F00", "...."),
    ("not_verified", "not verified", "#DDDDDD", ""),
)


def diagnosis_figures(found: BlockDiagnosis) -> Mapping[str, Figure]:
    """All figures that the numbers allow, by file name without ending."""
    figures = {
        "acceptance": acceptance_figure(found),
        "accepted_length": length_figure(found),
        "waste": waste_figure(found),
    }
    if any(group.sweep for group in found.groups):
        figures["threshold_sweep"] = threshold_figure(found)
    return figures


def acceptance_figure(found: BlockDiagnosis) -> Figure:
    """Conditional acceptance by position with 95 % intervals, and mean confidence beside it."""
    figure, (left, right) = _figure(5.6, 2.5, 2)
    for group, style in _styled(found.groups):
        known = [each for each in group.positions if each.acceptance is not None]
        at = [each.position for each in known]
        rate = np.array([each.acceptance for each in known], dtype=float)
        low = np.array([each.acceptance_low for each in known], dtype=float)
        high = np.array([each.acceptance_high for each in known], dtype=float)
        errors = np.maximum(np.stack([rate - low, high - rate]), 0.0)
        left.errorbar(at, rate, yerr=errors, elinewidth=0.6, **style)
        mean = np.array([each.confidence for each in known], dtype=float)
        right.plot(at, mean - rate, **style)
    _finish(left, "position $k$", "accepted, of those that reached $k$")
    left.set_ylim(0.0, 1.0)
    right.axhline(0.0, color="#888888", linewidth=0.6)
    _finish(right, "position $k$", "raw confidence − acceptance")
    for axes in (left, right):
        axes.set_xticks(range(1, found.gamma + 1))
    _legend(figure, left)
    return figure


def length_figure(found: BlockDiagnosis) -> Figure:
    """Mean accepted length by group, and how many tokens blocks had accepted."""
    figure, (left, right) = _figure(5.6, 2.5, 2)
    names = [group.name for group in found.groups]
    means = [group.accepted_length for group in found.groups]
    errors = [1.96 * (group.accepted_length_error or 0.0) for group in found.groups]
    colours = [style["color"] for _, style in _styled(found.groups)]
    left.bar(names, means, yerr=errors, color=colours, width=0.6, error_kw={"elinewidth": 0.7})
    for place, mean in enumerate(means):
        left.text(place, mean + errors[place] + 0.03, f"{mean:.2f}", ha="center", fontsize=_SMALL)
    left.set_ylim(0.0, max(means) * 1.18)
    _finish(left, "", "accepted length, bonus counted")
    if len(names) > 4:
        left.tick_params(axis="x", rotation=30)
    for group, style in _styled(found.groups):
        right.plot(range(found.gamma + 1), group.length_shares, **style)
    right.set_ylim(bottom=0.0)
    right.set_xticks(range(found.gamma + 1))
    _finish(right, "accepted drafted tokens $n$", "share of blocks")
    _legend(figure, right)
    return figure


def waste_figure(found: BlockDiagnosis) -> Figure:
    """What became of the drafted tokens of each position, by group."""
    groups = found.groups[:4]
    figure, panels = _figure(1.9 * len(groups) + 0.4, 2.5, len(groups))
    at = np.arange(1, found.gamma + 1)
    for group, axes in zip(groups, panels, strict=True):
        base = np.zeros(found.gamma)
        for field, label, colour, hatch in _FATES:
            share = np.array([getattr(each, field) for each in group.positions])
            axes.bar(
                at,
                share,
                bottom=base,
                color=colour,
                hatch=hatch,
                label=label,
                width=0.8,
                edgecolor="white",
                linewidth=0.3,
            )
            base = base + share
        axes.set_title(f"{group.name} ({group.rows:,})", fontsize=_TEXT)
        axes.set_xticks(at)
        axes.set_ylim(0.0, 1.0)
        _finish(axes, "position $k$", "share of blocks" if axes is panels[0] else "")
    _legend(figure, panels[0])
    return figure


def threshold_figure(found: BlockDiagnosis) -> Figure:
    """Acceptance rate, accepted length and wasted tokens against a static threshold."""
    figure, panels = _figure(8.0, 2.5, 3)
    for group, style in _styled(found.groups):
        points = group.sweep
        at = [point.threshold for point in points]
        rate = [point.acceptance_rate for point in points]
        shown = [(x, y) for x, y in zip(at, rate, strict=True) if y is not None]
        small = {**style, "markersize": 2.4}
        if shown:
            panels[0].plot(*zip(*shown, strict=True), **small)
        panels[1].plot(at, [point.accepted_length for point in points], **small)
        panels[2].plot(at, [point.wasted for point in points], **small)
    words = ("accepted / verified", "accepted length, bonus counted", "wasted tokens per block")
    for axes, word in zip(panels, words, strict=True):
        _finish(axes, "threshold on raw confidence", word)
    panels[0].set_ylim(0.0, 1.0)
    panels[1].set_ylim(bottom=1.0)
    panels[2].set_ylim(bottom=0.0)
    _legend(figure, panels[0])
    return figure


def _figure(width: float, height: float, panels: int) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    found = figure.subplots(1, panels, squeeze=False, gridspec_kw={"wspace": 0.08})[0]
    return figure, list(found)


def _styled(groups: Sequence[GroupDiagnosis]) -> list[tuple[GroupDiagnosis, dict[str, Any]]]:
    styles = []
    pairs = zip(groups, cycle(_COLOURS), cycle(_MARKERS), strict=False)
    for group, colour, marker in pairs:
        style = {
            "color": colour,
            "marker": marker,
            "markersize": 3.2,
            "linewidth": 0.9,
            "markerfacecolor": colour if group.rows >= _FEW_ROWS else "white",
            "label": f"{group.name} ({group.rows:,})",
        }
        styles.append((group, style))
    return styles


def _finish(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across, fontsize=_TEXT)
    axes.set_ylabel(up, fontsize=_TEXT)
    axes.tick_params(labelsize=_SMALL, width=0.5, length=2.5)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(len(labels), 5),
        fontsize=_SMALL,
        frameon=False,
    )
