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
# # Temperatures, affine numbers, segments
#
# Three ways to mend a confidence head, in order of what they can express:
#
# | method | numbers | asks of the engine |
# |---|---|---|
# | `sts`, `temperature` | one T a position: σ(z/T) | what SGLang loads today |
# | `affine` | slope and intercept a position: σ(s·z + b) | an engine that applies both |
# | `segments` | the same per slice of traffic, shrunk towards the pool | one that knows the slice |
#
# Where does each help, and where does it fail?

# %%
from __future__ import annotations

import numpy as np
from drawing import BLUE, GREEN, GREY, ORANGE, PINK, diagonal, panels, show

from calib.calibration import Calibration
from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table_shapes import analytic_cost_table
from calib.evaluation import evaluate
from calib.formats.arrow import read_parquet
from calib.prompt_split import split_by_prompt
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.segment_fitting import fit_segments
from calib.segment_sketches import SegmentSketches
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.shipped import shipped_telemetry, shipped_telemetry_early

records = read_parquet(shipped_telemetry(), gamma=7).fitting_rows()
early = read_parquet(shipped_telemetry_early(), gamma=7).fitting_rows()
COLOURS = {"raw": ORANGE, "sts": GREY, "temperature": GREEN, "affine": BLUE, "segments": PINK}

# %% [markdown]
# ## What a temperature can and cannot do
#
# σ(z/T) turns the curve about one half: it makes a head bolder or shyer. It cannot move a head
# whose logits lie around zero while the truth lies elsewhere. The earlier build of the shipped
# drafter is of that kind at its first positions.

# %%
old = split_by_prompt(early)
sts = SequentialTemperatureScaling().fit_records(old.fit)
affine = ConditionalLikelihood("affine", minimum_affine_rows=500).fit_records(old.fit)
print("sts   ", [str(status) for status in sts.calibration().position_statuses[:3]], "…")
print("affine", [str(status) for status in affine.affine_statuses_[:3]], "…")
print(
    "slopes    ",
    np.round(affine.slopes_[:3], 2),
    " intercepts",
    np.round(affine.intercepts_[:3], 2),
)

raw = Calibration.identity(7)
moved = affine.calibration()
z = np.linspace(-4, 4, 200, dtype=np.float32)
figure, (left, right) = panels(2, height=3.0)
logits = old.fit.confidence_logits[:, 0]
left.hist(logits, bins=40, range=(-4, 4), density=True, color="#E8EAED")
left.plot(z, 1 / (1 + np.exp(-z)), color=ORANGE, label="raw: σ(z)")
for temperature in (0.5, 2.0):
    left.plot(z, 1 / (1 + np.exp(-z / temperature)), color=GREY, linewidth=0.9, linestyle="--")
left.plot([], [], color=GREY, linestyle="--", label="any temperature")
slope, intercept = affine.slopes_[0], affine.intercepts_[0]
left.plot(z, 1 / (1 + np.exp(-(slope * z + intercept))), color=BLUE, label="affine")
left.set(title="Position 1 of the earlier build", xlabel="logit z", ylabel="confidence, density")
left.legend(loc="upper left")
diagonal(right)
for name, calibration, form in (("raw", raw, "temperatures"), ("affine", moved, "affine")):
    confidence = calibration.conditional(old.evaluation.confidence_logits, form=form)[:, 0]
    accepted = old.evaluation.accepted >= 1
    group = np.minimum((confidence * 10).astype(int), 9)
    size = np.bincount(group, minlength=10)
    full = size >= 30
    mean = np.bincount(group, confidence, 10)[full] / size[full]
    share = np.bincount(group, accepted, 10)[full] / size[full]
    error = 1.96 * np.sqrt(share * (1 - share) / size[full])
    right.errorbar(mean, share, error, fmt="o-", color=COLOURS[name], markersize=4, label=name)
right.set(title="On prompts of the other half", xlabel="confidence", ylabel="accepted")
right.set(xlim=(0, 1), ylim=(0, 1))
right.set_aspect("equal")
right.legend(loc="upper left")
show(figure, "03_affine")

# %% [markdown]
# ## Trimmed telemetry: the everyday case
#
# An engine under load does not verify everything, so most rows are cut. Here the full recording
# is cut as the prefix scheduler would cut it at growing load. Sequential Temperature Scaling on
# accepted lengths, as if they were complete, takes "not verified" for "not accepted". The
# conditional likelihood asks each row only about positions that were verified and reached. Both
# are judged on untouched rows.


# %%
def trimmed(rows: AcceptanceRecords, load: int) -> AcceptanceRecords:
    """The rows as an engine at this load would have recorded them."""
    curve = analytic_cost_table("kneed", max_batch_tokens=load * 8, knee=128)
    lengths = ThroughputReplay.of(rows, curve, batch_size=load).lengths(raw)
    columns = dict(rows.columns())
    columns["verified"] = np.where(lengths < 0, 0, lengths).astype(np.uint8)
    columns["accepted"] = np.minimum(columns["accepted"], columns["verified"])
    for name in ("soft_labels", "token_acceptance", "scheduled"):
        columns.pop(name, None)
    return AcceptanceRecords.from_columns(rows.gamma, columns)


def as_if_complete(rows: AcceptanceRecords) -> AcceptanceRecords:
    """The mistake: accepted lengths taken for what a full verification would have given."""
    columns = dict(rows.columns())
    columns["verified"] = np.full(len(rows), rows.gamma, dtype=np.uint8)
    return AcceptanceRecords.from_columns(rows.gamma, columns)


parts = split_by_prompt(records)
loads = (8, 16, 24, 32, 48)
errors: dict[str, list[float]] = {"sts": [], "temperature": []}
for load in loads:
    log = trimmed(parts.fit, load)
    naive = SequentialTemperatureScaling().fit_records(as_if_complete(log)).calibration()
    right_one = ConditionalLikelihood("temperature").fit_records(log).calibration()
    for name, calibration in (("sts", naive), ("temperature", right_one)):
        errors[name].append(evaluate(parts.evaluation, calibration).survival.mean.ece)
    print(
        f"{load:3d} requests a step: {log.verified.mean():.2f} verified a block; ECE of a fit on "
        f"lengths {errors['sts'][-1]:.2%}, of the likelihood {errors['temperature'][-1]:.2%}"
    )
plain = evaluate(parts.evaluation, raw).survival.mean.ece

figure, (panel,) = panels(1, width=5.6, height=2.8)
panel.plot(
    loads, 100 * np.array(errors["sts"]), "s-", color=ORANGE, label="STS on accepted lengths"
)
panel.plot(loads, 100 * np.array(errors["temperature"]), "o-", color=BLUE, label="likelihood")
panel.axhline(100 * plain, color=GREY, linestyle="--", linewidth=0.9, label="raw")
panel.set(title="Survival ECE after a fit on trimmed rows", xlabel="requests a step", ylabel="%")
panel.set_ylim(bottom=0)
panel.legend()
show(figure, "03_trimmed")

# %% [markdown]
# ## Segments
#
# Acceptance depends on what is written and how it is sampled. Segments by sampling temperature
# and domain get slopes and intercepts of their own, shrunk towards their parents; how strongly is
# chosen by cross-validated likelihood, so a thin segment stays with the pool. Judged on the other
# half of the prompts, per segment.

# %%
pooled = ConditionalLikelihood("affine").fit_records(parts.fit).calibration()
model = fit_segments(SegmentSketches.from_records(parts.fit))
for level in model.evidence:
    print(f"level {' × '.join(level.tags)}: {level.segments} segments, weight {level.weight:.2f}")


# %%
class Fixed:
    """Confidences that depend on more than logits, as a model that can be judged."""

    def __init__(self, rows: AcceptanceRecords) -> None:
        self._rows = rows

    def conditional(self, _: np.ndarray) -> np.ndarray:
        return model.conditional(self._rows)

    def survival(self, _: np.ndarray) -> np.ndarray:
        return model.survival(self._rows)


class Affine:
    """The pooled slopes and intercepts."""

    def conditional(self, logits: np.ndarray) -> np.ndarray:
        return pooled.conditional(logits, form="affine")

    def survival(self, logits: np.ndarray) -> np.ndarray:
        return pooled.survival(logits, form="affine")


judged = parts.evaluation
names = sorted(
    {(d, float(t)) for d, t in zip(judged.domain, judged.sampling_temperature, strict=True)}
)
table: dict[str, list[float]] = {"raw": [], "affine": [], "segments": []}
for domain, temperature in names:
    mine = (judged.domain == domain) & (judged.sampling_temperature == np.float32(temperature))
    rows = judged.select(mine)
    for name, source in (("raw", raw), ("affine", Affine()), ("segments", Fixed(rows))):
        means = evaluate(rows, source).survival.mean
        table[name].append(100 * means.ece)
        level = 100 * means.null_level
    print(
        f"{domain:>5} at {temperature:g}: raw {table['raw'][-1]:.2f}, pooled affine "
        f"{table['affine'][-1]:.2f}, segments {table['segments'][-1]:.2f}, perfect {level:.2f}"
    )
print("mean over segments:", {name: round(float(np.mean(v)), 2) for name, v in table.items()})

figure, (panel,) = panels(1, height=2.9)
place = np.arange(len(names))
for shift, (name, values) in zip((-0.27, 0.0, 0.27), table.items(), strict=True):
    words = "affine, one for all" if name == "affine" else name
    panel.bar(place + shift, values, 0.25, color=COLOURS[name], label=words)
panel.set_xticks(place, [f"{d}\nT = {t:g}" for d, t in names])
panel.set(title="Survival ECE by segment, mean over positions", ylabel="%")
panel.set_ylim(0, 1.2 * max(max(values) for values in table.values()))
panel.legend(ncols=3)
show(figure, "03_segments")

# %% [markdown]
# The service chooses among these by itself (`method="auto"`): the smallest held-out log loss of
# what an engine would apply, the simplest method within one standard error (`survival` while rows
# are few, unless they speak clearly against it), segments where they lower it by more than one.
