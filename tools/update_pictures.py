"""Draw the pictures of README and docs into docs/images.

    python tools/update_pictures.py              # schemes, and figures of the notebooks
    python tools/update_pictures.py --schemes    # the schemes alone, in a second

Schemes are drawn here. Figures with measured numbers come from the notebooks, by the code that a
reader can run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8A8F98", "#22262B"
PALE_BLUE, PALE_GREEN, PALE_GREY = "#DCEBF5", "#DDF1EA", "#EEF0F2"

# Notebook, and its figures with their names in docs/images.
FIGURES = {
    "01_first_look.py": {"01_slices": "slices", "01_swap": "swap"},
    "03_methods_and_segments.py": {"03_trimmed": "trimmed", "03_segments": "segments"},
    "04_drift.py": {"04_shift": "shift"},
    "05_worth.py": {"05_curves": "curves", "05_throughput": "throughput", "05_gain": "gain"},
}


def _canvas(width: float, height: float) -> tuple[plt.Figure, Axes]:
    figure = plt.figure(figsize=(width, height), dpi=150)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def _box(
    axes: Axes, at: tuple[float, float], size: tuple[float, float], title: str, text: str, fill: str
) -> None:
    (x, y), (width, height) = at, size
    shape = "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(at, width, height, shape, facecolor=fill, edgecolor=GREY))
    top = y + height - 0.2
    axes.text(x + 0.13, top, title, fontsize=9.5, weight="bold", color=INK, va="center")
    axes.text(x + 0.13, top - 0.2, text, fontsize=7.8, color=INK, va="top", linespacing=1.35)


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0
) -> None:
    style = f"arc3,rad={bend}"
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle=style,
            arrowstyle="-|>",
            mutation_scale=11,
            color=BLUE,
            lw=1.5,
        )
    )


def loop() -> None:
    """The way of a row from an engine back to the engine."""
    figure, axes = _canvas(8.2, 3.5)
    words = "draft γ tokens, verify ℓ,\naccept n; the head gives a\nlogit z for each position"
    tall, wide = 1.15, 2.15
    _box(
        axes, (0.1, 1.1), (wide, 1.3), "Engines",
        words, PALE_BLUE,
    )  # fmt: skip
    store = "rows validated, named when\nbad, durable before the\nanswer"
    watch = "confidence against what\nhappens; false alarms\nat a stated rate"
    fit = "on a frozen window, judged\non prompts that it has not\nseen; or refused"
    trial = "challenger beside champion\non rows after its fit; or\nrolled back"
    steps = (
        ((3.0, 2.2), "1  Store", store),
        ((5.8, 2.2), "2  Watch", watch),
        ((5.8, 0.15), "3  Fit", fit),
        ((3.0, 0.15), "4  Try, promote", trial),
    )
    for at, title, text in steps:
        _box(axes, at, (wide + 0.15, tall), title, text, PALE_GREEN)
    _arrow(axes, (1.5, 2.4), (3.0, 2.85), -0.25)
    _arrow(axes, (5.3, 2.78), (5.8, 2.78))
    _arrow(axes, (7.0, 2.2), (7.0, 1.3))
    _arrow(axes, (5.8, 0.72), (5.3, 0.72))
    _arrow(axes, (3.0, 0.65), (1.5, 1.1), -0.25)
    axes.text(1.0, 2.95, "telemetry", fontsize=8.5, color=BLUE, style="italic")
    axes.text(0.62, 0.55, "temperatures,\nby poll", fontsize=8.5, color=BLUE, style="italic")
    axes.text(7.12, 1.72, "alarm or schedule", fontsize=7.8, color=BLUE, style="italic")
    axes.text(
        3.1, 1.72, "no restart, no shared state with the engine; when the", fontsize=7.8, color=GREY
    )
    axes.text(
        3.1, 1.52, "service is away engines keep the numbers they have", fontsize=7.8, color=GREY
    )
    figure.savefig(IMAGES / "loop.png")
    plt.close(figure)


def rows() -> None:
    """What four rows teach."""
    figure, axes = _canvas(7.0, 2.75)
    cases = (
        (7, 2, "all verified, third rejected"),
        (7, 7, "all verified, all accepted"),
        (3, 3, "cut after three, all accepted"),
        (3, 1, "cut after three, second rejected"),
    )
    for line, (verified, accepted, words) in enumerate(cases):
        y = 1.95 - 0.5 * line
        axes.text(0.1, y + 0.2, f"ℓ = {verified}, n = {accepted}", fontsize=9, va="center")
        for k in range(1, 8):
            known = k <= min(accepted + 1, verified)
            is_accepted = k <= accepted
            fill = (GREEN if is_accepted else ORANGE) if known else PALE_GREY
            axes.add_patch(Rectangle((1.3 + 0.45 * (k - 1), y), 0.4, 0.4, facecolor=fill))
            mark = ("✓" if is_accepted else "✗") if known else "?"
            axes.text(
                1.5 + 0.45 * (k - 1), y + 0.2, mark, ha="center", va="center",
                color="white" if known else GREY, fontsize=10, family="DejaVu Sans",
            )  # fmt: skip
            if line == 0:
                axes.text(1.5 + 0.45 * (k - 1), 2.5, str(k), ha="center", fontsize=8.5, color=GREY)
        axes.text(4.6, y + 0.2, words, fontsize=8.5, va="center", color=INK)
    axes.text(0.1, 2.5, "position", fontsize=8.5, color=GREY)
    axes.text(
        0.1, 0.12, "✓ accepted   ✗ rejected   ? never asked, which is not the same as rejected",
        fontsize=8.5, color=INK, family="DejaVu Sans",
    )  # fmt: skip
    figure.savefig(IMAGES / "rows.png")
    plt.close(figure)


def figures() -> None:
    """Run the notebooks and take their figures."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MPLBACKEND": "Agg", "DSPARK_CALIB_FIGURES": folder}
        for notebook, names in FIGURES.items():
            command = [sys.executable, f"notebooks/{notebook}"]
            subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=600)
            for name, image in names.items():
                picture = Image.open(Path(folder) / f"{name}.png").convert("RGB")
                picture.quantize(64).save(IMAGES / f"{image}.png", optimize=True)


def main(arguments: list[str]) -> int:
    """Draw; returns the exit code."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    loop()
    rows()
    if "--schemes" not in arguments:
        figures()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
