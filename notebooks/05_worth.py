# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What it is worth in tokens per second
#
# A smaller calibration error is not yet a faster engine. This notebook takes a recording in which
# everything was verified, schedules it again with every way of making confidences, and counts
# what would have come out: accepted tokens over the seconds of a step curve. No model of
# acceptance is needed, the outcomes are those that were recorded.
#
# Your own curve and telemetry: `dspark-calib regret FILE --cost-table CURVE`.

# %%
from __future__ import annotations

import numpy as np
from drawing import BLUE, GREEN, GREY, INK, ORANGE, PINK, YELLOW, panels, show

from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table_shapes import analytic_cost_table
from calib.formats.arrow import read_parquet
from calib.prefix_scheduler import schedule_early_stop
from calib.prompt_split import split_by_prompt
from calib.shipped import shipped_telemetry, shipped_telemetry_early
from calib.throughput_arms import fit_arms
from calib.throughput_study import StudyRules, throughput_study

GAMMA = 7
LOADS = (1, 8, 16, 32, 64, 96, 128, 256)

# %% [markdown]
# ## Three engines
#
# How long a step takes as it verifies more tokens. Memory-bound steps are flat: verifying is
# free. Past the knee compute is the limit and each token costs. A staircase is what captured
# graphs and tiles make of it. These are formulas; `dspark-calib regret` reads SGLang's, vLLM's
# and measured tables.

# %%
curves = {
    shape: analytic_cost_table(shape, max_batch_tokens=max(LOADS) * (GAMMA + 1), knee=256)
    for shape in ("smooth", "kneed", "staircase")
}
tokens = np.arange(1, 1025)
figure, (left, right) = panels(2)
for (name, curve), colour in zip(curves.items(), (GREEN, BLUE, ORANGE), strict=True):
    left.plot(tokens, 1000 * curve.step_seconds(tokens, 64), color=colour, label=name)
left.set(title="Step time", xlabel="tokens verified in a step", ylabel="ms", ylim=(0, None))
left.legend()

# One step of 64 requests, as Algorithm 1 sees it: take the next likeliest token while Θ rises.
records = read_parquet(shipped_telemetry(), gamma=GAMMA).fitting_rows()
parts = split_by_prompt(records)
arms = fit_arms(parts.fit, parts.evaluation)
step = arms.survival["raw"][:64]
gains = np.sort(step.ravel())[::-1]
believed = 64 + np.r_[0, np.cumsum(gains)]
batch = 64 + np.arange(len(believed))
for (name, curve), colour in zip(curves.items(), (GREEN, BLUE, ORANGE), strict=True):
    right.plot(batch, believed / curve.step_seconds(batch, 64), color=colour)
    chosen = schedule_early_stop(step, curve)
    right.plot(chosen.batch_tokens, chosen.theta, "o", color=colour)
    print(f"{name:>9}: verifies {chosen.budget} of {step.size} drafted tokens")
right.set(title="Forecast Θ of one step, and the choice", xlabel="tokens verified in a step")
right.set_ylabel("tokens per second")
show(figure, "05_curves")

# %% [markdown]
# ## Over all loads
#
# Every arm is fitted on half of the prompts and replayed on the other half; intervals resample
# blocks of consecutive steps. `fixed` is the best fixed length and `threshold` the best static
# confidence threshold, each chosen on the fit half for every load, which no deployment does so
# well. `hindsight` schedules with the outcomes: how much *no* confidence could tell.

# %%
rules = StudyRules(loads=LOADS, replicates=100)
shown_curves = {name: curves[name] for name in ("smooth", "kneed")}
study = throughput_study(parts.fit, parts.evaluation, arms, shown_curves, rules)
loads = [load for load in LOADS if any(cell.load == load for cell in study.cells)]
STYLE = {
    "full": (GREY, "all γ"),
    "fixed": (YELLOW, "best fixed length"),
    "threshold": (PINK, "best static threshold"),
    "raw": (ORANGE, "prefix scheduler, raw"),
    "segmented": (BLUE, "prefix scheduler, segments"),
}
figure, (panel,) = panels(1, height=3.2)
for name, (colour, words) in STYLE.items():
    values = [
        study.cell("kneed", load, name).replay.theta
        / study.cell("kneed", load, "hindsight").replay.theta
        for load in loads
    ]
    panel.plot(range(len(loads)), values, "o-", markersize=3.5, color=colour, label=words)
panel.set(title="Throughput, as a share of what hindsight gets; kneed curve")
panel.set(xlabel="requests a step", ylabel="Θ / Θ of hindsight", ylim=(0.6, 1.01))
panel.set_xticks(range(len(loads)), [str(load) for load in loads])
panel.legend(loc="lower left")
show(figure, "05_throughput")
for load in (16, 64, 128):
    full, raw = (study.cell("kneed", load, name).replay.theta for name in ("full", "raw"))
    print(f"{load:4d} requests: prefix scheduler with raw confidence {raw / full:.2f} × all γ")

# %% [markdown]
# ## What calibration adds to that
#
# The same, against raw confidence, in percent. Where verifying is free every arm verifies
# everything and there is nothing to gain; at the highest loads nothing is worth verifying.

# %%
figure, axes = panels(2, height=3.0)
shown = {"sts": GREY, "affine": GREEN, "segmented": BLUE, "oracle": INK}
for panel, name in zip(axes, ("smooth", "kneed"), strict=True):
    panel.axhline(0, color=ORANGE, linewidth=1)
    for shift, (arm, colour) in enumerate(shown.items()):
        cells = [study.cell(name, load, arm) for load in loads]
        gain = 100 * np.array([cell.gain for cell in cells])
        low = [-100 * cell.against_raw.loss_high for cell in cells]
        high = [-100 * cell.against_raw.loss_low for cell in cells]
        spread = np.maximum(np.stack([gain - np.array(low), np.array(high) - gain]), 0)
        place = np.arange(len(loads)) + 0.12 * (shift - 1.5)
        panel.errorbar(place, gain, spread, fmt="o-", color=colour, markersize=3, label=arm)
        best = int(np.argmax(gain))
        print(
            f"{name:>7}, {arm:<9}: most at {loads[best]:3d} requests, {gain[best]:+.2f} % "
            f"[{low[best]:+.2f}, {high[best]:+.2f}]"
        )
    panel.set_xticks(range(len(loads)), [str(load) for load in loads], fontsize=7)
    panel.set(title=f"Θ against raw, {name}", xlabel="requests a step", ylabel="%")
axes[0].legend()
show(figure, "05_gain")

# %% [markdown]
# ## Forecasts: where miscalibration shows first
#
# Throughput loses little where confidence is off by little, because the order of tokens hardly
# changes. What the scheduler *believes* about throughput is off in the first order: whoever plans
# capacity or admission by it needs calibrated numbers. Beside the shipped drafter, its earlier
# build, whose first positions only an intercept can mend. The affine form asks for more rows than
# that file has before it is served; it is fitted on fewer here to show what it would do.

# %%
early = split_by_prompt(read_parquet(shipped_telemetry_early(), gamma=GAMMA).fitting_rows())
few_rows = ConditionalLikelihood("affine", minimum_affine_rows=300).fit_records(early.fit)
old_arms = fit_arms(early.fit, early.evaluation, extra={"affine, few rows": few_rows.calibration()})
few = (8, 16, 32, 64, 128)
old = throughput_study(
    early.fit,
    early.evaluation,
    old_arms,
    {"kneed": curves["kneed"]},
    StudyRules(loads=few, replicates=20),
)
figure, axes = panels(2, height=2.8)
colours = {"raw": ORANGE, "sts": GREY, "affine": GREEN, "segmented": BLUE}
drafters = (
    (axes[0], study, "Shipped drafter", colours),
    (axes[1], old, "Earlier build", {"raw": ORANGE, "sts": GREY, "affine, few rows": GREEN}),
)
for panel, found, title, drawn in drafters:
    panel.axhline(0, color=INK, linewidth=0.8)
    for arm, colour in drawn.items():
        bias = [100 * found.cell("kneed", load, arm).replay.forecast_bias for load in few]
        width = 3.5 if arm == "raw" else 1.2
        panel.plot(range(len(few)), bias, "o-", color=colour, lw=width, markersize=3, label=arm)
        print(f"{title}, {arm:<9}: forecast off by {np.abs(bias).max():.1f} % at most")
    panel.set_xticks(range(len(few)), [str(load) for load in few])
    panel.set(title=title, xlabel="requests a step", ylabel="forecast over realised Θ, %")
    panel.legend(fontsize=8)
show(figure, "05_forecast")

# %% [markdown]
# The reading: most of what the prefix scheduler gains over verifying everything comes with raw
# confidence already. Calibration adds to it where slices of traffic differ, and brings the forecast
# nearer to what happens. On a head as little off as the shipped one, throughput alone is a weak
# reason to recalibrate; after a swap, the forecast is a strong one.
