"""How the notebooks' figures look, and where they go.

Colours are those of Okabe and Ito, which all colour vision tells apart. In Jupyter figures appear
below their cell. As a script a notebook shows nothing; with ``DSPARK_CALIB_FIGURES`` naming a
folder, its figures are written there as PNG.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

VARIABLE = "DSPARK_CALIB_FIGURES"

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW, GREY, INK = "#56B4E9", "#E69F00", "#8A8F98", "#22262B"
PALE = "#E8EAED"

plt.rcParams.update(
    {
        "figure.constrained_layout.use": True,
        "figure.dpi": 110,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": PALE,
        "legend.frameon": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)


def panels(columns: int = 1, *, width: float = 7.2, height: float = 2.8) -> tuple[Figure, list]:
    """A figure with panels side by side, width and height in inches."""
    figure, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False)
    return figure, list(axes[0])


def diagonal(axes: Axes) -> None:
    """The line on which a calibrated model lies."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--", zorder=1)


def show(figure: Figure, name: str) -> None:
    """Show a figure below its cell, or write ``<name>.png`` to the folder of the environment."""
    folder = os.environ.get(VARIABLE)
    if folder:
        figure.savefig(Path(folder) / f"{name}.png", dpi=130)
    elif "ipykernel" in sys.modules:
        from IPython.display import display

        display(figure)
    plt.close(figure)
