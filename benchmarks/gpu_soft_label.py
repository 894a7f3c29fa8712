"""Cases of the soft label, its gradient and the reliability sums for ``gpu_kernels.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_timing import Case, Contender, Setting
from calib.reliability import ReliabilitySums
from heads.kernels import reliability_bins, soft_label
from heads.kernels.soft_label import Form
from heads.reference import reliability_bins as reliability_reference
from heads.reference.soft_label import SoftLabelTerms
from tests.heads.kernels.float64_labels import expected, scores

_LARGEST_ERROR = 1e-5
_CHECKED_ROWS = 4


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    vocabulary: int
    gamma: int


_MODELS = (
    _Model("Qwen3", 151_936, 7),
    _Model("SmolLM2", 49_152, 7),
    _Model("Gemma-3", 262_144, 7),
)
_TINY = (_Model("tiny", 257, 2),)


def cases(setting: Setting) -> Iterator[Case]:
    """Forward and backward of the soft label in bfloat16, Qwen3's in float32 too, then the sums."""
    models = _TINY if setting.tiny else _MODELS
    for model in models:
        for batch in setting.batches:
            types = (torch.bfloat16, torch.float32) if model is models[0] else (torch.bfloat16,)
            for dtype in types:
                data = _Rows(model, batch, dtype, setting.device)
                yield data.forward()
                yield data.backward()
    for rows in (300,) if setting.tiny else (70_000, 1_000_000):
        yield _sums(rows, setting.device)


def _eager_label(draft: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """What one writes without kernels: two float32 softmaxes of the whole rows."""
    q, p = torch.softmax(draft.float(), -1), torch.softmax(target.float(), -1)
    distance = (q - p).abs().sum(-1)
    return 1.0 - 0.5 * distance, distance


@cache
def _compiled_label() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Inductor's version, compiled once for all shapes; as it is where there is no GPU."""
    if not torch.cuda.is_available():
        return _eager_label
    return torch.compile(_eager_label, fullgraph=True, dynamic=True)


class _Rows:
    """Scores of one batch and everything that is measured on them."""

    def __init__(self, model: _Model, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        self._model, self._batch, self._dtype = model, batch, dtype
        rows = batch * model.gamma
        draft, target = scores(_CHECKED_ROWS, model.vocabulary, draft=dtype, target=dtype)
        copies = -(-rows // _CHECKED_ROWS)
        self._draft = draft.to(device).repeat(copies, 1)[:rows]
        self._target = target.to(device).repeat(copies, 1)[:rows]
        self._one = torch.ones(1, device=device)
        self._weights = torch.ones(rows, device=device)
        self._known = tuple(v.float().logsumexp(-1) for v in (self._draft, self._target))

    @property
    def _bytes(self) -> int:
        return self._draft.numel() * self._draft.element_size()

    def _terms(self, form: Form, *, known: bool = False, slope: bool = False) -> SoftLabelTerms:
        lse = self._known if known else (None, None)
        return soft_label.soft_label_terms(
            self._draft, self._target, self._one, self._one, *lse, needs_slope=slope, form=form
        )

    def forward(self) -> Case:
        """Labels of every row."""
        contenders = [
            Contender("eager", lambda: _eager_label(self._draft, self._target)),
            Contender("compiled", lambda: _compiled_label()(self._draft, self._target)),
            Contender("unfused", self._unfused),
            Contender("split", lambda: self._terms(Form.SPLIT)),
            Contender("one_launch", lambda: self._terms(Form.ONE_LAUNCH)),
            Contender("single_pass", lambda: self._terms(Form.SPLIT, known=True)),
            Contender("single_pass_one", lambda: self._terms(Form.ONE_LAUNCH, known=True)),
        ]
        return self._case("soft_label", 2 * self._bytes, contenders, self._check_forward)

    def _unfused(self) -> object:
        """Our comparison behind two library reductions: five launches, both rows read twice."""
        known = tuple(v.float().logsumexp(-1) for v in (self._draft, self._target))
        return soft_label.soft_label_terms(self._draft, self._target, self._one, self._one, *known)

    def backward(self) -> Case:
        """Gradient of the distance to the draft scores, forward statistics given."""
        terms = self._terms(Form.SPLIT, slope=True)

        def ours() -> Tensor:
            return soft_label.soft_label_gradient(
                self._weights, None, self._draft, self._target, self._one, self._one, None,
                terms.statistics,
            )  # fmt: skip

        leaf = self._draft.detach().requires_grad_()

        def eager() -> object:  # forward included: autograd has no backward alone
            loss = _eager_label(leaf, self._target)[1].sum()
            return torch.autograd.grad(loss, leaf)

        contenders = [
            Contender("eager_both_ways", eager, captured=False),
            Contender("gradient", ours),
        ]
        return self._case(
            "soft_label_gradient", 3 * self._bytes, contenders, lambda: self._check_backward(ours())
        )

    def _case(
        self,
        operation: str,
        floor: int,
        contenders: list[Contender],
        check: Callable[[], dict[str, float]],
    ) -> Case:
        rows, vocabulary = self._draft.shape
        name = str(self._dtype).removeprefix("torch.")
        return Case(
            operation, self._model.name, self._batch, f"{rows} x {vocabulary} {name}", floor,
            contenders, check,
        )  # fmt: skip

    def _truth(self, leaf: Tensor) -> tuple[Tensor, Tensor]:
        count = len(leaf)
        nothing = torch.zeros(count, device=leaf.device)
        truth = expected(
            leaf, self._target[:count], self._one, self._one,
            labels=nothing.long(), confidence_logits=nothing,
        )  # fmt: skip
        return truth.label, truth.distance

    def _check_forward(self) -> dict[str, float]:
        label, _ = self._truth(self._draft[:_CHECKED_ROWS])
        errors = {}
        for form in Form:
            for known in (False, True):
                found = self._terms(form, known=known).label[:_CHECKED_ROWS]
                name = f"{form}{'_single_pass' if known else ''}"
                errors[name] = float((found - label).abs().max())
        same = soft_label.soft_label_terms(self._draft, self._draft, self._one, self._one).label
        errors["equal_rows"] = float((same - 1.0).abs().max())
        return _accepted(errors, _LARGEST_ERROR)

    def _check_backward(self, gradient: Tensor) -> dict[str, float]:
        leaf = self._draft[:_CHECKED_ROWS].double().requires_grad_()
        (truth,) = torch.autograd.grad(self._truth(leaf)[1].sum(), leaf)
        wrong = (gradient[:_CHECKED_ROWS].double() - truth).abs().max()
        return _accepted({"gradient": float(wrong / truth.abs().max())}, 1e-2)


def _accepted(errors: dict[str, float], largest: float) -> dict[str, float]:
    for name, error in errors.items():
        if not error <= largest:
            raise ArithmeticError(f"{name}: the error is {error:.3g}, above {largest:.3g}")
    return errors


def _sums(rows: int, device: torch.device) -> Case:
    gamma = 7
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(rows, gamma, generator=generator)
    y = (torch.rand(rows, gamma, generator=generator) < p).float()
    here = p.to(device), y.to(device)

    def check() -> dict[str, float]:
        found = reliability_bins.reliability_sums(*here).to_host(15)
        same = found == ReliabilitySums.from_predictions(p.numpy(), y.numpy())
        return _accepted({"differs_from_numpy": 0.0 if same else np.inf}, 0.0)

    contenders = [
        # Its boolean selection waits for the device, which a graph cannot hold.
        Contender("eager", lambda: reliability_reference.reliability_sums(*here), captured=False),
        Contender("kernel", lambda: reliability_bins.reliability_sums(*here)),
    ]
    size = 2 * rows * gamma * 4
    return Case("reliability_bins", "any", rows, f"{rows} x {gamma}", size, contenders, check)
