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
# # Labels from draft and target
#
# What confidence should say is a number that nobody has to estimate: given the drafter's
# distribution q and the target's p, the chance that a drafted token is accepted is known exactly.
# This notebook derives it for every acceptance rule, checks it by drawing tokens, and shows what
# the exact labels buy. It needs torch (CPU).

# %%
from __future__ import annotations

import numpy as np
import torch
from drawing import BLUE, GREEN, GREY, ORANGE, PINK, SKY, diagonal, panels, show

from calib.conditional_likelihood import ConditionalLikelihood
from calib.formats.arrow import read_parquet
from calib.label_consistency import check_label_consistency
from calib.labels import conditional_labels, observed_mask
from calib.shipped import shipped_telemetry
from calib.soft_labels import soft_labels

# %% [markdown]
# ## One position
#
# Rejection sampling accepts x ~ q with probability min(1, p(x)/q(x)), so the chance of acceptance
# is Σ_v min(q(v), p(v)): what the two distributions share. It is also 1 − TV(q, p), which is why
# the distance between drafter and target *is* the label.

# %%
draft = torch.tensor([0.42, 0.28, 0.14, 0.08, 0.05, 0.03]).log()
target = torch.tensor([0.30, 0.12, 0.34, 0.10, 0.06, 0.08]).log()
q, p = draft.exp().numpy(), target.exp().numpy()
label = float(soft_labels(draft, target, rule="rejection", draft_mode="sampled"))

figure, (panel,) = panels(1, height=2.6)
token = np.arange(len(q))
panel.bar(token, np.minimum(q, p), 0.7, color=SKY, label=f"shared: {label:.2f}")
panel.step(np.r_[token - 0.35, token[-1] + 0.35], np.r_[q, q[-1]], where="post", color=ORANGE)
panel.step(np.r_[token - 0.35, token[-1] + 0.35], np.r_[p, p[-1]], where="post", color=BLUE)
panel.plot([], [], color=ORANGE, label="drafter q")
panel.plot([], [], color=BLUE, label="target p")
panel.set(title="What drafter and target share is what gets accepted", xlabel="token")
panel.set_ylabel("probability")
panel.legend()
show(figure, "02_shared_mass")

# %% [markdown]
# ## Every rule has its own label
#
# Engines mix greedy and sampled requests in a batch, and the formula changes with the rule and
# with how the drafter picked its token. Drawing a few hundred thousand tokens must agree with
# each.

# %%
draws = np.random.default_rng(7)
count = 400_000
sampled = draws.choice(len(q), count, p=q / q.sum())
from_target = draws.choice(len(p), count, p=p / p.sum())
coin = draws.random(count)
trials = {
    ("rejection", "sampled"): coin < np.minimum(1.0, p[sampled] / q[sampled]),
    ("rejection", "greedy"): coin < p[q.argmax()],
    ("exact_match", "sampled"): sampled == from_target,
    ("greedy", "sampled"): sampled == p.argmax(),
    ("greedy", "greedy"): np.full(count, q.argmax() == p.argmax()),
}
print("rule         drafter    exact   drawn")
for (rule, mode), accepted in trials.items():
    exact = float(soft_labels(draft, target, rule=rule, draft_mode=mode))
    print(f"{rule:<12} {mode:<8} {exact:7.4f} {accepted.mean():7.4f}")

# %% [markdown]
# The same pair of distributions, five different labels. Telemetry therefore carries the rule on
# every row, and `1 − TV` is used for rejection sampling of sampled drafts alone.

# %% [markdown]
# ## Real labels against real acceptance
#
# The shipped recording stores both: c* of every verified position from the two distributions, and
# whether the engine accepted. Grouped by c*, the observed share must lie on the diagonal. If it
# did not, the labels would belong to another temperature, vocabulary or rule than the engine
# used; the fit refuses such rows as `label_inconsistent`.

# %%
records = read_parquet(shipped_telemetry(), gamma=7).fitting_rows()
hard, known = conditional_labels(records), observed_mask(records)
found = check_label_consistency(records)
for one in found.positions[:3]:
    print(
        f"position {one.position}: mean label {one.mean_soft_label:.4f}, accepted "
        f"{one.mean_acceptance:.4f} on {one.rows:,} rows, z = {one.z:+.2f}"
    )
print("inconsistent:", found.inconsistent)

with np.errstate(invalid="ignore"):
    usable = known & np.isfinite(records.soft_labels)
soft, seen = records.soft_labels[usable], hard[usable]
edges = np.quantile(soft, np.linspace(0, 1, 13))
group = np.clip(np.searchsorted(edges, soft, side="right") - 1, 0, 11)
size = np.maximum(np.bincount(group, minlength=12), 1)
middle = np.bincount(group, soft, 12) / size
share = np.bincount(group, seen, 12) / size

figure, (left, right) = panels(2, height=3.0)
diagonal(left)
error = 1.96 * np.sqrt(share * (1 - share) / size)
left.errorbar(middle, share, error, fmt="o", color=BLUE, markersize=4)
left.set(title="Acceptance by exact label", xlabel="c*", ylabel="accepted", xlim=(0, 1))
left.set_ylim(0, 1)
left.set_aspect("equal")
spread = [
    np.bincount(np.minimum((soft * 20).astype(int), 19), minlength=20),
    np.array([(seen == 0).sum(), (seen == 1).sum()]),
]
right.bar(np.arange(20) / 20 + 0.025, spread[0] / len(soft), 0.045, color=GREEN, label="exact c*")
right.bar([0.0, 1.0], spread[1] / len(seen), 0.02, color=GREY, label="what the engine tells")
right.set(title="Two kinds of label of the same rows", xlabel="label", ylabel="share of rows")
right.legend(loc="upper center")
show(figure, "02_labels_and_acceptance")

# %% [markdown]
# ## What exact labels buy
#
# An accepted/rejected label is a coin thrown with probability c*; the coin's noise goes into the
# fit. Below, temperatures of position 1 are fitted on many small samples, once with the coin and
# once with c*. Both aim at the same number; the spread says how many rows each needs.

# %%
sizes = (100, 200, 400, 800, 1600)
spreads: dict[str, list[float]] = {"hard": [], "soft": []}
means: dict[str, list[float]] = {"hard": [], "soft": []}
for size in sizes:
    chosen = [draws.choice(len(records), size, replace=False) for _ in range(40)]
    for kind in ("hard", "soft"):
        fits = [
            ConditionalLikelihood("temperature", minimum_rows=0, labels=kind, ridge=0.0)
            .fit_records(records.select(rows))
            .slopes_[0]
            for rows in chosen
        ]
        spreads[kind].append(float(np.std(np.log(fits))))
        means[kind].append(float(np.exp(np.mean(np.log(fits)))))
ratio = np.mean((np.array(spreads["hard"]) / np.array(spreads["soft"])) ** 2)
print("slope 1/T of position 1, geometric mean over samples of", sizes[-1], "rows:")
print({kind: round(1 / values[-1], 3) for kind, values in means.items()}, "as temperatures")
print(f"To be as certain, acceptance alone needs {ratio:.1f} times the rows.")

figure, (panel,) = panels(1, width=5.4, height=2.8)
panel.loglog(sizes, spreads["hard"], "s-", color=ORANGE, label="accepted or rejected")
panel.loglog(sizes, spreads["soft"], "o-", color=BLUE, label="exact label c*")
panel.set_xticks(sizes, [str(size) for size in sizes])
panel.minorticks_off()
panel.set_yticks((0.05, 0.1, 0.2, 0.4), ("5 %", "10 %", "20 %", "40 %"))
panel.set(title="Uncertainty of the first temperature", xlabel="rows", ylabel="spread of log T")
panel.legend()
show(figure, "02_what_labels_buy")

# %% [markdown]
# ## A trap: zeros that are known for the wrong reason
#
# When a block was cut at ℓ and a token before the cut was rejected, survival to k > ℓ is known to
# be zero. Using those zeros looks free. But rows enter *because* they failed, so the share of
# successes among known rows is too low. The shipped rows were fully verified, so the truth is
# known; let a coin cut two thirds of them at ℓ = 3, as an hour of load would, and compare.

# %%
cut = 3
accepted = records.accepted
truth = np.array([(accepted >= k).mean() for k in range(1, 8)])
verified = np.where(draws.random(len(accepted)) < 2 / 3, cut, 7)
stopped = np.minimum(accepted, verified)
informed = [verified >= k for k in range(1, 8)]
every = [rows | (stopped < verified) for rows in informed]
trapped = np.array(
    [(stopped[rows] >= k).mean() for k, rows in zip(range(1, 8), every, strict=True)]
)
honest = np.array(
    [(stopped[rows] >= k).mean() for k, rows in zip(range(1, 8), informed, strict=True)]
)
figure, (panel,) = panels(1, width=5.4, height=2.6)
panel.semilogy(range(1, 8), truth, "o-", color=BLUE, label="truth, all verified")
panel.semilogy(range(1, 8), honest, "x", color=GREEN, markersize=8, label="rows with ℓ ≥ k")
panel.semilogy(range(1, 8), trapped, "s--", color=PINK, label="every label that is known")
panel.axvline(cut + 0.5, color=GREY, linewidth=0.8)
panel.set(title="Survival by position", xlabel="position k", ylabel="share n ≥ k")
panel.legend()
show(figure, "02_trap")
for k in range(cut, 7):
    print(
        f"survival to {k + 1}: truth {truth[k]:.4f}, rows with ℓ ≥ k {honest[k]:.4f}, "
        f"all known labels {trapped[k]:.4f}"
    )

# %% [markdown]
# Whether a row informs a statement about position k must be decided before its outcome: ℓ ≥ k
# does, "we happen to know" does not. The fits of this project take conditional labels up to min(n
# + 1, ℓ) and impute survival from conditionals.
