"""The functions inside the soft-label kernels, one at a time."""

from __future__ import annotations

import math

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from heads.kernels.soft_label_parts import row_of, scale_of, scan

pytestmark = pytest.mark.torch


@triton.jit
def _scales(temperatures, out, ROWS: tl.constexpr):
    for row in range(ROWS):
        here = tl.program_id(0) + row
        side = (temperatures, 0, temperatures, 1, None)
        temperature, scale, greedy = scale_of(side, here)
        tl.store(out + 3 * here, temperature)
        tl.store(out + 3 * here + 1, scale)
        tl.store(out + 3 * here + 2, greedy.to(tl.float32))


@triton.jit
def _spans(scores, temperatures, sums, bests, out, span, vocabulary, splits, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    side = (scores, vocabulary, temperatures, 0, None)
    for split in range(splits):
        begin = row * 0 + split * span
        end = tl.minimum(begin + span, vocabulary)
        scan(side, sums, bests, row, row * splits + split, splits, begin, end, BLOCK)
    found = row_of(side, sums, bests, row, 1, splits, 4, False)
    tl.store(out, found[1])
    tl.store(out + 1, found[3])
    tl.store(out + 2, found[4].to(tl.float32))


def test_scales(device: torch.device) -> None:
    temperatures = torch.tensor([1.0, 0.5, 0.0, -1.0, float("nan"), 1e-35], device=device)
    out = torch.empty(6, 3, device=device)
    _scales[(1,)](temperatures, out, 6)
    log2_e = 1 / math.log(2)
    assert out[:3, 1].tolist() == pytest.approx([log2_e, 2 * log2_e, log2_e])
    assert out[:, 2].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert out[3:, 1].isnan().tolist() == [True, True, False]
    assert out[5, 1].isfinite()  # a temperature below float32's normal numbers


def spans(
    scores: Tensor, device: torch.device, *, temperature: float = 1.0, span: int = 64
) -> list[float]:
    """Shift, offset and best id of one row cut into spans."""
    vocabulary = scores.numel()
    splits = -(-vocabulary // span)
    sums = torch.full((2, splits), float("nan"), device=device)
    bests = torch.full((splits,), -1, dtype=torch.int32, device=device)
    out = torch.empty(3, device=device)
    warm = torch.tensor([temperature], device=device)
    _spans[(1,)](scores.to(device), warm, sums, bests, out, span, vocabulary, splits, 32)
    shift, offset, best = out.tolist()
    return [shift, offset, best]


def test_spans_add_up_to_the_row(device: torch.device) -> None:
    scores = torch.randn(201, generator=torch.Generator().manual_seed(0)) * 5
    scores[::4] = -math.inf
    shift, offset, best = spans(scores, device, temperature=0.7)
    truth = torch.exp2((scores.double() - shift) / 0.7 / math.log(2)).sum().log2()
    assert shift == scores.max()
    assert best == scores.argmax()
    assert offset == pytest.approx(float(truth), abs=1e-6)


def test_masked_spans_and_ties(device: torch.device) -> None:
    scores = torch.full((200,), -math.inf)
    scores[150], scores[199] = 3.0, 3.0
    assert spans(scores, device) == [3.0, 1.0, 150.0]
    lowest = torch.finfo(torch.float32).min  # what some engines mask with
    assert spans(scores.clamp(min=lowest), device) == [3.0, 1.0, 150.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_distribution_has_no_offset(value: float, device: torch.device) -> None:
    scores = torch.zeros(130)
    scores[129] = value
    assert math.isnan(spans(scores, device)[1])
    assert math.isnan(spans(torch.full((130,), -math.inf), device)[1])
