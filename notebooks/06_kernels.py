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
# # A walk through two kernels
#
# Exact labels need a pass over two vocabularies for every drafted token, and reliability sums a
# pass over every row. On a GPU both are Triton kernels; beside each stands a reference in eager
# torch of the same signature, and a dispatcher says which runs and why. Here the kernels run in
# Triton's interpreter on the CPU: every number is the kernel's own, no time means anything.

# %%
from __future__ import annotations

import os
from itertools import pairwise

os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is first imported

import numpy as np
import torch
from drawing import BLUE, GREEN, GREY, SKY, panels, show

from calib.formats.arrow import read_parquet
from calib.labels import conditional_labels, observed_mask
from calib.reliability import ReliabilitySums
from calib.shipped import shipped_telemetry
from heads.kernel_dispatch import why
from heads.kernels.reliability_bins import reliability_sums
from heads.kernels.row_spans import spans_of
from heads.kernels.soft_label import Form, soft_label_terms
from heads.reference.soft_label import soft_label_terms as reference_terms

# %% [markdown]
# ## What would run here

# %%
rows = torch.zeros(7, 4096)
os.environ.pop("DSPARK_CALIB_KERNELS", None)
for choice in ("auto", "reference", "triton"):
    os.environ["DSPARK_CALIB_KERNELS"] = choice
    print(f"{choice:>9} → {why('soft_label', [rows, rows])}")
os.environ["DSPARK_CALIB_KERNELS"] = "auto"

# %% [markdown]
# ## How a row is cut
#
# A row of scores is as long as the vocabulary. It is cut into spans, one program each, and each
# span into tiles that fit the registers. The cut depends on the vocabulary alone, never on the
# batch, and partial sums are merged in the order of programs: a row gives the same bits whatever
# stands beside it, so two engines never disagree about a row for no reason.

# %%
sizes = {"SmolLM2": 49_152, "Llama 3": 128_256, "Qwen 3": 151_936}
figure, (panel,) = panels(1, height=2.2)
for line, (name, vocabulary) in enumerate(sizes.items()):
    cut = spans_of(vocabulary)
    for program in range(cut.splits):
        first = program * cut.span
        last = min(first + cut.span, vocabulary)
        panel.barh(line, last - first, 0.6, left=first, color=(SKY, BLUE)[program % 2])
    print(f"{name}: {vocabulary:,} tokens, {cut.splits} programs of {cut.span // cut.block} tiles")
panel.set_yticks(range(len(sizes)), list(sizes))
panel.set(title="One row, its programs", xlabel="token id")
panel.grid(False)
show(figure, "06_spans")

# %% [markdown]
# ## Three passes, one answer
#
# *Scan*: every program finds maximum and sum of exponentials of its span, for draft and target.
# *Compare*: with both normalisers known, Σ min(q, p) and Σ |q − p| of the span. *Finish*: partial
# sums into c* = m / (m + distance/2), which is exactly one on equal rows and exactly zero on
# disjoint ones. `ONE_LAUNCH` does the same in a single launch and must give the same bits.

# %%
vocabulary = 3000
torch.manual_seed(1)
draft = torch.randn(4, vocabulary) * 3
target = draft + torch.tensor([[0.0], [0.3], [1.5], [8.0]]) * torch.randn(4, vocabulary)
warm = torch.ones(1)
with np.errstate(all="ignore"):  # a GPU does not warn of infinities either
    split = soft_label_terms(draft, target, warm, warm, span=512, block=256)
    single = soft_label_terms(draft, target, warm, warm, span=512, block=256, form=Form.ONE_LAUNCH)
    alone = soft_label_terms(draft[2:3], target[2:3], warm, warm, span=512, block=256)
eager = reference_terms(draft, target, warm, warm)
exact = torch.minimum(
    torch.softmax(draft.double(), dim=-1), torch.softmax(target.double(), dim=-1)
).sum(dim=-1)
for row, (kernel, twin, truth) in enumerate(zip(split.label, eager.label, exact, strict=True)):
    print(
        f"row {row}: kernel {kernel:.7f}, reference {twin:.7f}, float64 {truth:.7f}, "
        f"off by {abs(float(kernel) - float(truth)):.1e}"
    )
print("the same bits in one launch:", bool(torch.equal(split.label, single.label)))
print("the same bits without its neighbours:", bool(split.label[2] == alone.label[0]))
print("identical rows give exactly one:", bool(split.label[0] == 1.0))

# %% [markdown]
# ## Where the mass is shared
#
# What the comparison adds up, program by program, for the third row.

# %%
q, p = (torch.softmax(side[2].double(), dim=-1).numpy() for side in (draft, target))
edges = np.arange(0, vocabulary + 512, 512)
parts = [slice(a, b) for a, b in pairwise(edges)]
shared = [np.minimum(q[part], p[part]).sum() for part in parts]
lost = [q[part].sum() - part_shared for part, part_shared in zip(parts, shared, strict=True)]
figure, (panel,) = panels(1, width=5.6, height=2.5)
panel.bar(range(len(parts)), shared, 0.6, color=SKY, label="shared: accepted")
panel.bar(range(len(parts)), lost, 0.6, bottom=shared, color=GREY, label="draft only: rejected")
panel.set(title="Draft mass by program", xlabel="program", ylabel="probability")
panel.set_ylim(0, 1.3 * max(a + b for a, b in zip(shared, lost, strict=True)))
panel.legend(ncols=2, loc="upper right", fontsize=8)
panel.set_xticks(range(len(parts)))
show(figure, "06_shared")

# %% [markdown]
# ## Sums that do not depend on order
#
# Reliability sums are integers: predictions in units of 2⁻³⁰, added atomically. Integers add in
# any order, so shards, hours, GPUs and NumPy agree to the last bit. The kernel against NumPy on
# shipped rows, and two halves merged against the whole:

# %%
records = read_parquet(shipped_telemetry(), gamma=7).fitting_rows().select(slice(0, 384))
confidence = (1 / (1 + np.exp(-records.confidence_logits))).astype(np.float32)
labels = conditional_labels(records).astype(np.float32)
mask = observed_mask(records)
expected = ReliabilitySums.from_predictions(confidence, labels, mask)


def kernel_sums(rows: slice) -> torch.Tensor:
    """[sums, positions, cells] of some rows, by the kernel."""
    columns = (confidence[rows], np.nan_to_num(labels[rows]), mask[rows])
    return reliability_sums(*(torch.from_numpy(np.ascontiguousarray(c)) for c in columns)).sums


whole = kernel_sums(slice(None))
halves = kernel_sums(slice(0, 128)) + kernel_sums(slice(128, None))
print("kernel and NumPy count alike:", bool((whole[0].numpy() == expected.count).all()))
print("kernel and NumPy, Σp:", bool((whole[1].numpy() == expected.sum_p).all()))
print("two parts merged are the whole:", bool(torch.equal(whole, halves)))

count, claimed, seen = (whole[index, 0].numpy() for index in range(3))
full = count > 10
figure, (panel,) = panels(1, width=4.2, height=2.9)
panel.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle="--")
panel.plot(
    claimed[full] / count[full] / 2**30,
    seen[full] / count[full] / 2**30,
    "o-",
    color=GREEN,
    markersize=4,
)
panel.set(title="Position 1, from the kernel's integers", xlabel="claimed", ylabel="accepted")
panel.set(xlim=(0, 1), ylim=(0, 1))
panel.set_aspect("equal")
show(figure, "06_reliability")

# %% [markdown]
# ## What is known, and what is not
#
# All kernels pass in the interpreter and compile for the architectures that [decision
# 0008](../docs/decisions/0008-kernels.md) names. No GPU has timed them.
# `benchmarks/gpu_kernels.py` does so in ten minutes on a card.
