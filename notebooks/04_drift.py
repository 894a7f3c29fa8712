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
# # Drift, and what is done about it
#
# Calibration does not stay. A drafter is swapped, traffic changes, and the numbers that were
# right yesterday are wrong today. The loop of the service watches every row, asks for a fit when
# it is sure, tries the result beside the champion on rows that came later, and promotes it or
# does not. Here that very loop runs in memory over the shipped recording, with a shift put into
# it.

# %%
from __future__ import annotations

import numpy as np
from drawing import BLUE, GREEN, GREY, ORANGE, PALE, PINK, panels, show

from calib.calibration import Calibration
from calib.formats.arrow import read_parquet
from calib.shipped import shipped_telemetry, shipped_telemetry_early
from monitoring.loop_settings import LoopSettings
from monitoring.replay import Replay, ReplayOptions, ReplayResult, Stretch
from monitoring.replay_errors import served_changes
from monitoring.replay_shifts import Stream

records = read_parquet(shipped_telemetry(), gamma=7)
early = read_parquet(shipped_telemetry_early(), gamma=7)
settings = LoopSettings(refit_seconds=0.0)
options = ReplayOptions(batch_rows=512, baseline_rows=4000)


def first_rows(stream: Stream, rows: int) -> Stream:
    """The beginning of a stream, to keep this notebook short."""
    stretches = tuple(
        Stretch(part.name, part.first, min(part.rows, rows - part.first), part.announced)
        for part in stream.stretches
        if part.first < rows
    )
    return Stream(stream.records.select(slice(0, rows)), stretches, stream.synthetic)


def told(result: ReplayResult) -> None:
    """What happened, a line each."""
    for one in result.happenings:
        print(f"  row {one.row:6,}  {one.kind.replace('_', ' '):<14} {one.text[:88]}")


# %% [markdown]
# ## A shift of the logits
#
# At first a champion is fitted by hand. Later all logits grow by a factor, as after a change of
# quantisation or a merge gone wrong: order and tokens stay the same, but confidence becomes more
# extreme than the truth, too low where it is low and too high where it is high. This one is
# synthetic, and says so.

# %%
shift = first_rows(Stream.of(records).scaled(1.6, 12_000), 22_000)
print("synthetic:", *shift.synthetic)
result = Replay(shift.records, shift.stretches, settings=settings, options=options).run()
told(result)

# %% [markdown]
# ## What the detector saw
#
# Evidence is a likelihood ratio that restarts whenever it falls to one. While calibration holds,
# it stays below A for at least A rows in the mean, whatever traffic does; so crossing A = 10⁶ is
# no matter of taste. The error below it is measured on the rows of each batch by itself: too
# noisy to alarm on, which is why the detector adds evidence up instead.


# %%
def champion_at(row: int) -> int:
    """Revision that was served at a row."""
    return [number for first, number in result.champions if first <= row][-1]


def overconfidence(rows: slice) -> float:
    """Claimed minus accepted tokens of a block, by what was served."""
    part = shift.records.select(rows)
    part = part.select(part.verified == 7)
    served = result.revisions[champion_at(rows.start)].calibration
    return float((served.survival(part.confidence_logits).sum(axis=1) - part.accepted).mean())


edges = np.arange(4000, 22_000, 512)
claimed = [overconfidence(slice(start, start + 512)) for start in edges]
alarms = [one for one in result.happenings if one.kind == "alarm"]
swaps = [one for one in result.happenings if one.kind == "promote"]
start = shift.stretches[1].first

figure, (panel,) = panels(1, height=3.0)
panel.axvspan(start, 22_000, color=PALE, zorder=0)
panel.text(
    21_900, 0.97, "logits × 1.6", ha="right", transform=panel.get_xaxis_transform(), va="top"
)
panel.axhline(0, color=GREY, linewidth=0.9)
panel.plot(edges + 256, claimed, "o-", color=BLUE, markersize=3.5, linewidth=1)
marks = [(one.row, ORANGE, "act alarm") for one in alarms if one.details.get("level") == "act"]
marks += [(one.row, GREEN, "promoted") for one in swaps]
for row, colour, word in marks[:6]:
    panel.axvline(row, color=colour, linewidth=1.4)
    place = {"transform": panel.get_xaxis_transform(), "va": "top", "fontsize": 8}
    panel.text(row + 120, 0.88, word, color=colour, **place)
panel.set(title="Accepted tokens a block: claimed by what is served, less what came", xlabel="row")
panel.set(ylabel="claimed − accepted", xlim=(4000, 22_000))
panel.set_ylim(min(claimed) - 0.03, max(claimed) + 0.1)
show(figure, "04_shift")
if alarms:
    print(f"shift at row {start:,}, first alarm after {alarms[0].row - start:,} rows")

# %% [markdown]
# ## Was the promotion worth it?
#
# Both revisions on the rows after the change, which neither was fitted on.

# %%
for change in served_changes(shift.records, result):
    was, now, gap = change.ece_before, change.ece_after, change.difference
    print(
        f"revision {change.before} → {change.after} at row {change.row:,}: survival ECE "
        f"{was.value:.2%} → {now.value:.2%}, difference {gap.value:+.2%} "
        f"[{gap.low:+.2%}, {gap.high:+.2%}] on {change.rows:,} rows"
    )

# %% [markdown]
# ## A drafter swap that nobody announced
#
# Now the earlier build of the drafter takes over. Its head is of another kind: no temperature
# mends its first positions, and slopes and intercepts do. A loop that only knew how to refit would
# publish something anyway. This one judges every fit on held-out rows, refuses it with the reason
# while too few of them show that it helps, and tries what is left beside the champion before it
# serves it. Engines that apply temperatures alone then keep those they had.

# %%
swap = Stream.of(records.select(slice(0, 10_000))).then(early, "earlier build", announced=False)
swapped = Replay(swap.records, swap.stretches, settings=settings, options=options).run()
told(swapped)

# %% [markdown]
# ## The same swap, announced
#
# An engine that comes with the key of its new weights starts at identity: another key never
# inherits numbers. After as many rows as the first champion was fitted on, the new head has one of
# its own, and nothing of the old one was ever served to it.

# %%
announced = Stream.of(records.select(slice(0, 10_000))).then(early, "new key", announced=True)
known = Replay(announced.records, announced.stretches, settings=settings, options=options).run()
told(known)

# %% [markdown]
# ## Silence where nothing happens
#
# Rows whose outcomes are drawn from the confidence itself, so that calibration holds exactly,
# with traffic as uneven as the recording's. The most evidence that ever gathers, beside the
# thresholds:

# %%
draws = np.random.default_rng(3)
calm = Stream.of(records).records.select(slice(0, 16_000))
columns = dict(calm.columns())
conditional = Calibration.identity(7).conditional(calm.confidence_logits)
columns["accepted"] = np.cumprod(draws.random(conditional.shape) < conditional, axis=1).sum(axis=1)
columns["verified"] = np.full(len(calm), 7)
for name in ("soft_labels", "token_acceptance"):
    columns.pop(name, None)
honest = type(calm).from_columns(7, columns)
quiet = Replay(honest, settings=LoopSettings(refit_rows=10**6), options=ReplayOptions(512)).run()
history = quiet.state.history
alarms = [one for one in quiet.happenings if one.kind == "alarm"]
print(f"{quiet.rows:,} calibrated rows, {len(alarms)} alarms")

figure, (panel,) = panels(1, height=2.3)
panel.plot([p.rows for p in history], [p.evidence_log10_max for p in history], color=BLUE)
for level, colour, word in ((5, PINK, "warn"), (6, ORANGE, "act")):
    panel.axhline(level, color=colour, linewidth=1.2)
    panel.text(quiet.rows, level + 0.1, word, color=colour, ha="right", fontsize=8)
panel.set(title="Evidence against calibration, calibrated rows", xlabel="row", ylim=(0, 7))
panel.set_ylabel("10 to the power of")
show(figure, "04_silence")
