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
# # A first look at one drafter
#
# A DSpark drafter proposes γ tokens at once. For each position k its confidence head gives a
# logit z_k; σ(z_k) should be the probability that the target accepts position k, given that it
# accepted everything before. The engine multiplies these to survivals a_k and verifies as many
# positions of each request as pay at the current load.
#
# That decision is as good as the probabilities are true. This notebook asks, for one drafter: are
# they? Would recalibration help? What would it bring?
#
# It runs on telemetry that comes with the package: a real drafter and a real target, small ones.
# To ask the same of **your** drafter, name your files, whatever the format (Parquet or Arrow of
# this project, or the `.pt` shards that SGLang's collector writes):
#
# ```
# DSPARK_TELEMETRY='shards/*.pt' DSPARK_GAMMA=7 python notebooks/01_first_look.py
# ```

# %%
from __future__ import annotations

import os

import numpy as np
from drawing import BLUE, GREY, ORANGE, SKY, diagonal, panels, show

from api.telemetry_input import read_telemetry
from calib.calibration import Calibration
from calib.cost_table_shapes import analytic_cost_table
from calib.evaluation import evaluate
from calib.labels import conditional_labels, observed_mask
from calib.prompt_split import split_by_prompt
from calib.regret import ThroughputReplay
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.shipped import shipped_telemetry, shipped_telemetry_early

source = os.environ.get("DSPARK_TELEMETRY")
gamma = int(os.environ.get("DSPARK_GAMMA", "7"))
own = read_telemetry([source or str(shipped_telemetry())], gamma)
records = own.records.fitting_rows()  # without warm-up, replays and rows whose outcome was forced
print(f"{own.source}: {len(own.records):,} draft blocks, {len(records):,} usable, γ = {gamma}")

# %% [markdown]
# ## What a row is
#
# One row is one block of one request: γ logits, the verified length ℓ (how many positions the
# target checked) and the accepted length n. It teaches positions up to n + 1 and no further than
# ℓ: they were accepted, then one was rejected. What comes after was never asked, which is not the
# same as rejected.

# %%
labels, known = conditional_labels(records), observed_mask(records)
print("   confidence logits" + " " * (6 * gamma - 12) + "  ℓ  n   what it teaches")
for row in np.unique(records.accepted, return_index=True)[1][:5]:  # one of every length
    logits = " ".join(f"{z:6.2f}" for z in records.confidence_logits[row])
    taught = "".join(
        ("·", "✗", "✓")[int(known[row, k]) * (1 + int(known[row, k] and labels[row, k]))]
        for k in range(gamma)
    )
    print(f"   {logits}   {records.verified[row]}  {records.accepted[row]}   {taught}")
print("   ✓ accepted   ✗ rejected   · not known")

# %% [markdown]
# ## What the head says, and what happens
#
# Per position: how often the target accepts (given that it got there), and the mean of σ(z_k) on
# the same rows. The shade shows how many rows reach a position at all: late positions are thin,
# and what is fitted there rests on few rows.

# %%
raw = Calibration.identity(gamma)
before = evaluate(records, raw)
position = np.arange(1, gamma + 1)
observed = np.array([m.mean_label for m in before.conditional], dtype=float)
claimed = np.array([m.mean_prediction for m in before.conditional], dtype=float)
rows = np.array([m.n for m in before.conditional], dtype=float)

figure, (left, right) = panels(2)
left.bar(position, observed, width=0.62, color=SKY, label="accepted by the target")
left.plot(position, claimed, "o", color=ORANGE, markersize=6, label="claimed by the head")
left.set(title="Given all before it", xlabel="position k", ylabel="probability", ylim=(0, 1))
left.legend(loc="upper left")
right.bar(position, rows, width=0.62, color=GREY)
right.set(title="Rows that say something", xlabel="position k", yscale="log")
show(figure, "01_head_and_target")
for k in range(gamma):
    print(f"position {k + 1}: claimed {claimed[k]:.3f}, accepted {observed[k]:.3f}, {rows[k]:,.0f}")

# %% [markdown]
# ## Fit on some prompts, judge on others
#
# Rows of one prompt share their luck, so the split is by prompt, never by row. The fit is
# Sequential Temperature Scaling, the paper's own: one temperature per position, left to right, so
# that the *survival* is right. ECE is the mean gap between claimed and observed over bins of
# equal width. A perfectly calibrated head does not show zero on finitely many rows, so the level
# that it would show stands beside.

# %%
column = next((c for c in ("prompt", "request") if getattr(records, c) is not None), None)
if column is not None:
    parts = split_by_prompt(records, column=column)
    fit, judge = parts.fit, parts.evaluation
else:
    print(
        "No prompts or requests: earlier rows are fitted on, later rows judged. Too kind a split."
    )
    half = len(records) // 2
    fit, judge = records.select(slice(0, half)), records.select(slice(half, None))
fitted = SequentialTemperatureScaling().fit_records(fit).calibration()
judged = {"raw": evaluate(judge, raw), "fitted": evaluate(judge, fitted)}
print("survival, percent        position " + " ".join(f"{k:6d}" for k in position))
for name, report in judged.items():
    cells = " ".join(f"{100 * m.ece:6.2f}" for m in report.survival)
    print(f"  ECE {name:<24}{cells}   mean {100 * report.survival.mean.ece:.2f}")
cells = " ".join(f"{100 * m.null_level:6.2f}" for m in judged["fitted"].survival)
print(f"  ECE of a perfect model      {cells}")
print("  temperature                 " + " ".join(f"{t:6.3f}" for t in fitted.temperatures))
print("  status                      " + " ".join(f"{s:>6.6}" for s in fitted.position_statuses))


# %%
def reliability(axes, report, colour, marker, name):
    """Claimed against observed survival, bins of 30 rows and more, with 95 % intervals."""
    bins = [b for b in report.bins if b is not None and b.count >= 30]
    claimed = np.array([b.mean_prediction for b in bins])
    seen = np.array([b.mean_label for b in bins])
    low = seen - np.array([b.mean_label_low for b in bins])
    high = np.array([b.mean_label_high for b in bins]) - seen
    spread = np.maximum(np.stack([low, high]), 0)
    axes.errorbar(
        claimed, seen, spread, color=colour, marker=marker, markersize=4, linewidth=1.1, label=name
    )


shown = min(3, gamma)
figure, axes = panels(shown, height=2.9)
for k, panel in enumerate(axes):
    diagonal(panel)
    reliability(panel, judged["raw"].survival[k], ORANGE, "s", "raw")
    reliability(panel, judged["fitted"].survival[k], BLUE, "o", "fitted")
    panel.set(title=f"Position {k + 1}", xlabel="claimed survival", xlim=(0, 1), ylim=(0, 1))
    panel.set_aspect("equal")
axes[0].set_ylabel("observed share n ≥ k")
axes[0].legend(loc="upper left")
show(figure, "01_reliability")

# %% [markdown]
# ## All traffic may look right where its slices are not
#
# One vector for all traffic can only mend what all traffic shares. The same question by domain
# and sampling temperature: how many tokens does the head expect of a fully verified block, and
# how many come?

# %%
tags = (records.domain, records.sampling_temperature)
tagged = column is not None and all(tag is not None for tag in tags)
if tagged:
    full = judge.select(judge.verified == gamma)
    expected = raw.survival(full.confidence_logits).sum(axis=1)
    names = sorted(
        {(d, float(t)) for d, t in zip(full.domain, full.sampling_temperature, strict=True)}
    )
    gaps = []
    for domain, temperature in names:
        mine = (full.domain == domain) & (full.sampling_temperature == np.float32(temperature))
        gap = full.accepted[mine] - expected[mine]
        prompts = np.unique(getattr(full, column)[mine], return_inverse=True)[1]
        sums = np.bincount(prompts, gap - gap.mean())  # rows of a prompt share their luck
        gaps.append((gap.mean(), 1.96 * np.sqrt((sums**2).sum()) / len(gap)))
    middle, half = np.array(gaps).T
    figure, (panel,) = panels(1, height=2.6)
    panel.axhline(0, color=GREY, linewidth=0.9)
    panel.bar(range(len(names)), middle, 0.6, yerr=half, color=SKY, ecolor=GREY, capsize=3)
    panel.set_xticks(range(len(names)), [f"{d}\nT = {t:g}" for d, t in names])
    panel.set(title="Accepted tokens beyond the head's expectation, per block", ylabel="tokens")
    show(figure, "01_slices")
    for (domain, temperature), (mean, spread) in zip(names, gaps, strict=True):
        print(f"{domain:>5} at {temperature:g}: {mean:+.3f} ± {spread:.3f} tokens a block")

# %% [markdown]
# ## What happens after a drafter swap
#
# The second shipped file is an earlier build of the same drafter. Its head learned confidence on
# the text that the drafter itself was trained on, where acceptance is higher than on fresh
# prompts. An engine that keeps its temperatures over a swap like this one serves those
# confidences.

# %%
early = read_telemetry([str(shipped_telemetry_early())], 7).records.fitting_rows()
swapped = evaluate(early, Calibration.identity(7))
first = swapped.survival[0]
print(f"earlier build, position 1: claimed {first.mean_prediction:.3f}, was {first.mean_label:.3f}")

figure, axes = panels(2, width=6.0, height=2.9)
for panel, report, title in zip(
    axes, (before, swapped), ("This drafter", "Its earlier build"), strict=True
):
    diagonal(panel)
    reliability(panel, report.survival[0], ORANGE, "s", "raw")
    panel.set(title=f"{title}, position 1", xlabel="claimed survival", xlim=(0, 1), ylim=(0, 1))
    panel.set_aspect("equal")
axes[0].set_ylabel("observed share n ≥ 1")
show(figure, "01_swap")

# %% [markdown]
# ## What it would bring
#
# Confidence earns nothing by itself; the schedule made of it does. The judged rows are scheduled
# again, many requests a step, on a step curve with a knee: up to it a verified token is free,
# beyond it each costs. Four schedules: verify everything, nothing, by raw confidence, by fitted
# confidence. Θ is tokens per second; the forecast is the Θ that the scheduler believed in when it
# chose.

# %%
load = 64
curve = analytic_cost_table("kneed", max_batch_tokens=load * (gamma + 1), knee=256)
replay = ThroughputReplay.of(judge, curve, batch_size=load)
count = len(judge)
arms = {
    "verify everything": replay.theta_of(np.full(count, gamma)),
    "verify nothing": replay.theta_of(np.zeros(count, dtype=int)),
    "raw confidence": replay.theta(raw),
    "fitted confidence": replay.theta(fitted),
}
print(f"{load} requests a step, knee at 256 tokens:")
for name, found in arms.items():
    bias = "" if found.forecast_bias is None else f", forecast off by {found.forecast_bias:+.1%}"
    print(f"  {name:<18} Θ {found.theta:8,.0f} tokens/s, {found.verified:.2f} verified{bias}")
gain = replay.regret(arms["raw confidence"], arms["fitted confidence"])
spread = "" if gain.loss_low is None else f" [{gain.loss_low:+.2%}, {gain.loss_high:+.2%}]"
print(f"  fitted over raw: {gain.loss:+.2%}{spread} of Θ")

# %% [markdown]
# ## Do I need this?

# %%
error, level = judged["raw"].survival.mean.ece, judged["raw"].survival.mean.null_level
print(f"Raw confidence is off by {error:.1%} in the mean; {level:.1%} would be luck alone.")
if error < 2 * level:
    print("The head is honest on this traffic. There is little to mend today; what remains is to")
    print("watch it (a swap, a new domain) and the slices above.")
else:
    better = judged["fitted"].survival.mean.ece
    print(f"Temperatures bring that to {better:.1%}.")
if gain.loss_low is None or gain.loss_low <= 0.0 <= gain.loss_high:
    print("At this load throughput does not tell raw and fitted confidence apart.")
else:
    verb = "gains" if gain.loss > 0 else "loses"
    print(f"At this load the fit {verb} {abs(gain.loss):.2%} of throughput. The prefix scheduler")
    print("itself is what most of the gain over fixed lengths comes from.")

# %% [markdown]
# Where to go on: `03_methods_and_segments` mends what one temperature cannot, `04_drift` shows a
# shift being found and mended, `05_worth` asks the last question at every load, and [the
# quickstart](../docs/quickstart.md) starts the service that does all this by itself.
