"""The launches of the soft-label operations, for the compiler."""

from __future__ import annotations

from typing import Any

import torch

from heads.kernels import soft_label, soft_label_gradient
from heads.kernels.soft_label import Form
from tests.heads.kernels.compilation import Compilation
from tests.heads.kernels.recorded_launches import recorded

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Qwen3's vocabulary: 19 spans. The number of rows is no multiple of anything.
_ROWS, _VOCABULARY = 7, 151_936


def _forward(
    draft: torch.dtype,
    target: torch.dtype,
    name: str,
    known: bool = False,
    size: tuple[int, int] = (_ROWS, _VOCABULARY),
    **options: Any,
) -> list[Compilation]:
    scores = [torch.empty(size, dtype=dtype) for dtype in (draft, target)]
    column = torch.empty(size[0])
    given = {"draft_log_sum_exp": column, "target_log_sum_exp": column} if known else {}
    with recorded(soft_label, name) as jobs:
        soft_label.soft_label_terms(*scores, column, column, **given, **options)
    return jobs


def _backward(
    draft: torch.dtype, target: torch.dtype, name: str, labelled: bool = True
) -> list[Compilation]:
    scores = [torch.empty(_ROWS, _VOCABULARY, dtype=dtype) for dtype in (draft, target)]
    column, statistics = torch.empty(_ROWS), torch.empty(7, _ROWS)
    labels = torch.empty(_ROWS, dtype=torch.long) if labelled else None
    with recorded(soft_label_gradient, name) as jobs:
        soft_label_gradient.soft_label_gradient(
            column, column if labelled else None, *scores, column, column, labels, statistics
        )
    return jobs


def _losses() -> dict[str, Any]:
    return {
        "labels": torch.empty(_ROWS, dtype=torch.long),
        "confidence_logits": torch.empty(_ROWS),
    }


# Scan, compare and finish of each type; what differs of the others.
JOBS = [
    *_forward(BF16, BF16, "bf16"),
    *_forward(FP32, FP32, "fp32"),
    *_forward(FP16, FP32, "fp16-fp32", **_losses())[:2],
    _forward(BF16, FP32, "bf16-fp32-outside", outside=True, **_losses())[1],
    _forward(BF16, BF16, "bf16-single-pass", known=True, needs_slope=False)[0],
    _forward(FP32, FP32, "fp32-single-pass", known=True, needs_slope=False)[0],
    _forward(FP16, FP16, "fp16-exact-match", exact_match=True, needs_slope=False)[1],
    _forward(BF16, FP32, "losses", outside=True, **_losses())[2],
    *_forward(BF16, BF16, "bf16", form=Form.ONE_LAUNCH, **_losses()),
    *_forward(FP32, FP32, "fp32", form=Form.ONE_LAUNCH),
    *_backward(BF16, BF16, "bf16"),
    *_backward(FP32, FP32, "fp32"),
    *_backward(FP16, FP32, "fp16-fp32", labelled=False),
]
STREAMING = [job for job in JOBS if not job.name.startswith("finish")]
ROW = [job for job in JOBS if job.name.startswith("finish")]
# Sizes that Triton turns into constants, and strides that it finds odd.
ODD = [
    *_forward(BF16, BF16, "one-token", size=(1, 1)),
    *_forward(BF16, FP32, "one-row-of-7", size=(1, 7), form=Form.ONE_LAUNCH),
]
