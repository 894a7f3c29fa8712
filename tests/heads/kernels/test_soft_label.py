"""The soft-label kernels against float64: a pairwise list of what they may meet.

Accuracy asked for is 1e-5 (case R82); what is found is near 1e-7. Vocabularies are no powers of
two. Rows are few and tiles wide, because the interpreter pays per program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heads.kernels.soft_label import Form, soft_label_gradient, soft_label_terms
from heads.reference import soft_label as reference
from tests.heads.kernels.float64_labels import MINUS_INFINITY, expected, scores

pytestmark = pytest.mark.torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ONE = torch.ones(1)
COLD = torch.zeros(1)


@dataclass(frozen=True)
class Case:
    """One line of the pairwise list."""

    vocabulary: int
    rows: int
    dtypes: tuple[torch.dtype, torch.dtype]
    rule: str
    temperature: str
    masked: bool
    form: Form
    block: int | None = None

    def __str__(self) -> str:
        names = "-".join(str(d).removeprefix("torch.") for d in dict.fromkeys(self.dtypes))
        masked = "-masked" if self.masked else ""
        return (
            f"{self.vocabulary}x{self.rows}-{names}-{self.rule}-{self.temperature}"
            f"{masked}-{self.form}"
        )

    def temperatures(self) -> tuple[Tensor, Tensor]:
        """Of draft and target."""
        generator = torch.Generator().manual_seed(1)
        per_row = 0.3 + torch.rand(self.rows, generator=generator) * 1.5
        per_row[::3] = 0.0 if self.temperature == "mixed" else per_row[::3]
        shared = {"one": ONE, "low": torch.tensor([0.35])}.get(self.temperature, per_row)
        cold = torch.zeros_like(shared)
        draft = cold if self.rule in ("greedy-draft", "greedy-both") else shared
        target = cold if self.rule in ("greedy-target", "greedy-both") else shared
        return draft, target


SPLIT, ONE_LAUNCH = Form.SPLIT, Form.ONE_LAUNCH
CASES = [
    Case(7, 1, (FP32, FP32), "rejection", "one", False, SPLIT),
    Case(7, 16, (BF16, BF16), "exact-match", "rows", True, SPLIT),
    Case(7, 3, (FP16, FP32), "greedy-target", "mixed", False, ONE_LAUNCH),
    Case(257, 3, (BF16, FP32), "rejection", "mixed", True, SPLIT),
    Case(257, 1, (FP16, FP16), "greedy-draft", "low", True, SPLIT),
    Case(257, 3, (FP32, FP32), "exact-match", "low", False, ONE_LAUNCH),
    Case(1000, 3, (FP16, FP16), "rejection", "rows", False, ONE_LAUNCH, 256),
    Case(1000, 3, (FP32, BF16), "greedy-both", "one", True, SPLIT),
    Case(1000, 1, (BF16, BF16), "greedy-target", "one", True, SPLIT, 128),
    Case(1000, 3, (FP32, FP32), "greedy-draft", "rows", False, SPLIT),
]
LARGE = [
    Case(257, 64, (BF16, BF16), "rejection", "rows", True, SPLIT),
    Case(7, 64, (FP32, FP32), "greedy-both", "one", False, ONE_LAUNCH),
    Case(49_152, 3, (BF16, BF16), "rejection", "mixed", True, ONE_LAUNCH, 16_384),
    Case(49_152, 16, (FP32, FP32), "rejection", "one", False, SPLIT, 16_384),
    Case(151_936, 3, (BF16, BF16), "rejection", "rows", True, SPLIT, 32_768),
    Case(151_936, 1, (FP32, FP32), "rejection", "low", False, ONE_LAUNCH, 32_768),
    Case(151_936, 1, (FP16, BF16), "exact-match", "one", False, SPLIT, 32_768),
]


def check_against_float64(case: Case, device: torch.device) -> None:
    draft, target = scores(
        case.rows, case.vocabulary, draft=case.dtypes[0], target=case.dtypes[1], masked=case.masked
    )
    q, p = case.temperatures()
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, case.vocabulary, (case.rows,), generator=generator)
    labels[-1] = -1 if case.rows > 1 else 1
    labels[0] = 1  # never masked
    logits = torch.randn(case.rows, generator=generator) * 4
    exact_match = case.rule == "exact-match"
    inputs = [v.to(device) for v in (draft, target, q, p)]
    terms = soft_label_terms(
        *inputs,
        labels=labels.to(device),
        confidence_logits=logits.to(device),
        exact_match=exact_match,
        form=case.form,
        block=case.block,
    )
    truth = expected(
        draft, target, q, p, labels=labels, confidence_logits=logits, exact_match=exact_match
    )
    assert (terms.label.cpu() - truth.label).abs().max() < 1e-5
    assert (terms.confidence_error.cpu() - truth.confidence_error).abs().max() < 1e-4
    if not exact_match:
        assert (terms.distance.cpu() - truth.distance).abs().max() < 2e-5
    warm = q.expand(case.rows) > 0
    seen, wanted = terms.log_probability.cpu()[warm].double(), truth.log_probability[warm]
    assert torch.allclose(seen, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_r82_labels_and_losses_equal_float64(case: Case, device: torch.device) -> None:
    check_against_float64(case, device)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_r82_large_batches_and_vocabularies(case: Case, device: torch.device) -> None:
    check_against_float64(case, device)


def labels_of(
    draft: Tensor, target: Tensor, device: torch.device, **options: Any
) -> reference.SoftLabelTerms:
    temperature = options.pop("temperature", ONE).to(device)
    target_temperature = options.pop("target_temperature", temperature).to(device)
    return soft_label_terms(
        draft.to(device), target.to(device), temperature, target_temperature, **options
    )


EXACT = [(7, FP32, FP32), (257, BF16, BF16), (1000, BF16, FP32), (1000, FP16, FP16)]


@pytest.mark.parametrize(("vocabulary", "draft", "target"), EXACT)
def test_r33_equal_rows_are_one_and_disjoint_rows_zero(
    vocabulary: int, draft: torch.dtype, target: torch.dtype, device: torch.device
) -> None:
    narrow = draft if draft.itemsize <= target.itemsize else target
    x, _ = scores(3, vocabulary, draft=narrow, masked=True)
    temperature = torch.tensor([1.0, 0.7, 0.0])
    same = labels_of(x.to(draft), x.to(target), device, temperature=temperature)
    assert same.label.tolist() == [1.0, 1.0, 1.0]
    assert same.distance.tolist() == [0.0, 0.0, 0.0]
    left = torch.arange(vocabulary) < vocabulary // 2
    apart = labels_of(
        x.masked_fill(~left, MINUS_INFINITY).to(draft).index_fill(1, torch.tensor([0]), 0.0),
        x.masked_fill(left, MINUS_INFINITY)
        .to(target)
        .index_fill(1, torch.tensor([-1 % vocabulary]), 0.0),
        device,
        temperature=temperature,
        form=ONE_LAUNCH,
    )
    assert apart.label.tolist() == [0.0, 0.0, 0.0]
    assert apart.distance.tolist() == pytest.approx([2.0, 2.0, 2.0], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("form", Form)
def test_r82_exact_ends_at_151936(form: Form, device: torch.device) -> None:
    x, _ = scores(2, 151_936, draft=BF16)
    options = {"form": form, "block": 32_768, "temperature": torch.tensor([1.0, 0.6])}
    assert labels_of(x, x.float(), device, **options).label.tolist() == [1.0, 1.0]
    left = torch.arange(151_936) % 2 == 0
    draft, target = x.masked_fill(left, MINUS_INFINITY), x.masked_fill(~left, MINUS_INFINITY)
    assert labels_of(draft, target, device, **options).label.tolist() == [0.0, 0.0]


def test_saturated_rows(device: torch.device) -> None:
    """Scores whose exponentials leave float32, up to the largest there are."""
    largest = torch.finfo(FP32).max
    draft = torch.tensor(
        [[200.0, 0.0, -200.0], [1e4, -1e4, 0.0], [largest, 0.0, -largest], [-1e30, -2e30, -1e30]]
    )
    target = torch.tensor(
        [[0.0, 200.0, -200.0], [1e4, 0.0, 0.0], [largest, largest, -largest], [-1e30, -1e30, -1e30]]
    )
    found = labels_of(draft, target, device).label
    assert found.tolist() == pytest.approx([0.0, 1.0, 0.5, 2 / 3], abs=1e-6)
    nearly_greedy = labels_of(draft[:2], target[:2], device, temperature=torch.tensor([1e-30]))
    assert nearly_greedy.label.tolist() == [0.0, 1.0]


def test_ties_go_to_the_lowest_id(device: torch.device) -> None:
    draft = torch.tensor([[1.0, 3.0, 3.0, 3.0], [-0.0, 0.0, 0.0, -1.0], [2.0, 2.0, 2.0, 2.0]])
    target = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.4, 0.1]])
    greedy = labels_of(draft, target.log(), device, temperature=COLD, target_temperature=ONE)
    assert greedy.label.tolist() == pytest.approx([0.2, 0.4, 0.25], abs=1e-6)
    both = labels_of(draft, draft.flip(1), device, temperature=COLD)
    assert both.label.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("form", Form)
def test_rows_that_are_no_distribution_are_nan_alone(form: Form, device: torch.device) -> None:
    good, _ = scores(1, 300)
    rows = good.repeat(6, 1)
    rows[1, 7] = float("nan")
    rows[2, 290] = float("inf")
    rows[3] = MINUS_INFINITY
    temperature = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, float("nan")])
    bad = [False, True, True, True, True, True]
    target = good.repeat(6, 1)
    for side in ((rows, target), (target, rows)):
        found = labels_of(*side, device, temperature=temperature, form=form).label
        assert found.isnan().tolist() == bad
    greedy = labels_of(rows[:4], target[:4], device, temperature=COLD, form=form).label
    assert greedy.isnan().tolist() == bad[:4]


def test_both_forms_give_the_same_bits_every_time(device: torch.device) -> None:
    draft, target = scores(3, 1500, draft=BF16, target=BF16, masked=True)
    temperature = torch.tensor([0.5, 0.0, 2.0])
    options = {"temperature": temperature, "block": 512, "span": 512}
    first = labels_of(draft, target, device, **options)
    for again in (
        labels_of(draft, target, device, **options),
        labels_of(draft, target, device, **options, form=ONE_LAUNCH),
    ):
        for name in ("label", "distance", "statistics"):
            assert torch.equal(getattr(first, name), getattr(again, name)), name


def test_a_row_gives_the_same_bits_in_any_batch(device: torch.device) -> None:
    draft, target = scores(6, 1000, draft=BF16)
    together = labels_of(draft, target, device).label
    for row in (0, 5):
        alone = labels_of(draft[row : row + 1], target[row : row + 1], device).label
        assert torch.equal(together[row : row + 1], alone)
    turned = labels_of(draft.flip(0), target.flip(0), device, form=ONE_LAUNCH).label
    assert torch.equal(turned.flip(0), together)


def test_tiles_and_spans_change_nothing_but_rounding(device: torch.device) -> None:
    draft, target = scores(2, 1300, masked=True)
    truth = labels_of(draft, target, device).label
    for block, span in ((128, 256), (256, 1024), (2048, 2048)):
        found = labels_of(draft, target, device, block=block, span=span).label
        assert torch.allclose(found, truth, atol=2e-7, rtol=0)


@pytest.mark.parametrize("form", Form)
def test_known_log_sum_exps_save_the_first_pass(form: Form, device: torch.device) -> None:
    draft, target = scores(4, 1000, draft=BF16, target=BF16)
    temperature = torch.tensor([1.0, 0.7, 1.5, 1.0])
    q, p = ((v.double() / temperature[:, None]).logsumexp(-1).float() for v in (draft, target))
    options = {"temperature": temperature, "form": form}
    truth = labels_of(draft, target, device, **options)
    for known in (
        {"draft_log_sum_exp": q.to(device)},
        {"target_log_sum_exp": p.to(device)},
        {"draft_log_sum_exp": q.to(device), "target_log_sum_exp": p.to(device)},
    ):
        found = labels_of(draft, target, device, **options, **known)
        assert torch.allclose(found.label, truth.label, atol=5e-6, rtol=0)
    greedy = temperature.clone()
    greedy[1] = 0.0  # of a greedy row the log-sum-exp says nothing
    found = labels_of(draft, target, device, temperature=greedy, **known)
    assert found.label.isnan().tolist() == [False, True, False, False]


def test_target_mass_outside_the_rows_is_distance(device: torch.device) -> None:
    draft, whole = scores(3, 1200)
    draft, target = draft[:, :900], whole[:, :900]
    log_sum_exp = whole.double().logsumexp(-1)
    options = {"target_log_sum_exp": log_sum_exp.float().to(device), "outside": True}
    found = labels_of(draft.contiguous(), target.contiguous(), device, **options)
    q = torch.softmax(draft.double(), -1)
    p = torch.softmax(whole.double(), -1)[:, :900]
    assert (found.label.cpu() - torch.minimum(q, p).sum(-1)).abs().max() < 1e-5
    distance = (q - p).abs().sum(-1) + 1 - p.sum(-1)
    assert (found.distance.cpu() - distance).abs().max() < 2e-5


def test_rows_may_have_gaps_between_them(device: torch.device) -> None:
    draft, target = scores(4, 640, draft=BF16)
    wide = torch.full((4, 700), 9.0, dtype=BF16)
    wide[:, :640] = draft
    assert not wide[:, :640].is_contiguous()
    found = labels_of(wide[::2, :640], target[::2], device)
    assert torch.equal(found.label, labels_of(draft[::2], target[::2], device).label)


def test_columns_may_have_gaps(device: torch.device) -> None:
    draft, target = scores(3, 200)
    columns = torch.tensor([[1.0, 0.5], [0.6, -2.0], [2.0, 3.0]], device=device)
    assert columns[:, 0].stride() == (2,)
    options = {"temperature": columns[:, 0], "confidence_logits": columns[:, 1]}
    spread = labels_of(draft, target, device, **options)
    closed = labels_of(draft, target, device, **{n: c.contiguous() for n, c in options.items()})
    assert torch.equal(spread.label, closed.label)
    assert torch.equal(spread.confidence_error, closed.confidence_error)


def test_an_empty_batch(device: torch.device) -> None:
    found = labels_of(torch.zeros(0, 9), torch.zeros(0, 9), device)
    assert found.label.shape == (0,)
    gradient = soft_label_gradient(
        torch.zeros(0), None, torch.zeros(0, 9), torch.zeros(0, 9), ONE, ONE, None, found.statistics
    )
    assert gradient.shape == (0, 9)


class Allocations(TorchDispatchMode):
    """Bytes of every tensor that comes into being."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        result = function(*arguments, **(options or {}))
        made = any(word in str(function) for word in ("empty", "zeros", "_to_copy", "clone"))
        if made and isinstance(result, Tensor) and result.numel():
            self.bytes.append(result.numel() * result.element_size())
        return result


@pytest.mark.parametrize("form", Form)
def test_r82_no_copy_of_the_vocabulary(form: Form, device: torch.device) -> None:
    draft, target = (v.to(device) for v in scores(2, 3000, draft=BF16, target=BF16))
    with Allocations() as forward:
        terms = labels_of(draft, target, device, form=form)
    assert forward.bytes
    assert sum(forward.bytes) < draft.numel() * draft.element_size() / 10
    one = torch.ones(2, device=device)
    arguments = (one, None, draft, target, ONE.to(device), ONE.to(device), None, terms.statistics)
    with Allocations() as backward:
        soft_label_gradient(*arguments)
    assert backward.bytes == [draft.numel() * draft.element_size()]


def test_the_twins_agree(device: torch.device) -> None:
    draft, target = scores(5, 700, draft=BF16, masked=True)
    temperature = torch.tensor([1.0, 0.6, 0.0, 1.4, 1.0])
    options: dict[str, Any] = {
        "labels": torch.tensor([1, 1, 1, -1, 1]),
        "confidence_logits": torch.tensor([3.0, -3.0, 0.0, 40.0, -40.0]),
    }
    theirs = reference.soft_label_terms(draft, target, temperature, temperature, **options)
    placed = {name: value.to(device) for name, value in options.items()}
    ours = labels_of(draft, target, device, temperature=temperature, **placed)
    for name in ("label", "distance", "log_probability", "confidence_error", "statistics"):
        mine, other = getattr(ours, name).cpu(), getattr(theirs, name)
        if name == "statistics":  # a greedy draft's slope serves nothing
            mine, other = mine[:, temperature > 0], other[:, temperature > 0]
        assert torch.allclose(mine, other, atol=2e-6, rtol=2e-6), name
