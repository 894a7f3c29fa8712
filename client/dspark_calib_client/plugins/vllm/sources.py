"""Where confidence comes from inside vLLM, and where the served numbers go in.

Both kinds run inside the captured draft graph, so what they do here is plain tensor operations on
memory that never moves: no Python decides anything when the graph is replayed.

* ``head``: a trained confidence head. vLLM takes sigmoid(z) as it is; here its logits are kept and
  become s z + b.
* ``max_log_odds``: any drafter without a head. vLLM scores the drafter's distribution by
  f = logit(max q) and fits one slope of its own. f is the raw logit here, kept by vLLM for each
  request; once the service has numbers they take the place of vLLM's own estimate.
"""

from __future__ import annotations

from typing import Any

__all__ = ["EstimatorSource", "HeadSource"]


class HeadSource:
    """A trained head's logits, by batch row as drafted and by request slot as recorded.

    Args:
        gamma: draft positions.
        most_requests: rows of the engine's persistent batch.
        device: where it runs.
        numbers: [3, gamma], see :class:`ServedNumbers`.
    """

    name = "head"

    def __init__(self, gamma: int, most_requests: int, device: Any, numbers: Any) -> None:
        import torch

        self._gamma = gamma
        self._numbers = numbers
        with torch.inference_mode(False):
            shape = (most_requests, gamma)
            self._drafted = torch.zeros(shape, dtype=torch.float32, device=device)
            self._newest = self._drafted  # its rows of the last batch
            self._by_slot = torch.zeros(shape, dtype=torch.float32, device=device)

    def serve(self, logits: Any) -> Any:  # [rows * gamma] raw; rows ordered (request, position)
        """Keep raw logits and return calibrated ones, whose sigmoid the engine takes."""
        raw = logits.view(-1, self._gamma)
        self._drafted[: raw.shape[0]].copy_(raw)
        return (raw.float() * self._numbers[0] + self._numbers[1]).view(-1)

    def record(self, idx_mapping: Any, rows: int) -> None:
        """The draft of this batch is done: keep its logits by slot until they are graded."""
        if self._newest.shape[0] != rows:
            self._newest = self._drafted[:rows]
        slots = idx_mapping if idx_mapping.shape[0] == rows else idx_mapping[:rows]
        self._by_slot.index_copy_(0, slots.long(), self._newest)

    def logits(self, slots: Any) -> Any:  # [rows, gamma]
        """Raw logits of the drafts that are being graded."""
        return self._by_slot.index_select(0, slots)


class EstimatorSource:
    """The log-odds of vLLM's acceptance estimator, and its predictions replaced by served ones.

    Args:
        gamma: draft positions.
        estimator: vLLM's ``OnlineAcceptanceEstimator``.
        numbers: [3, gamma].
    """

    name = "max_log_odds"

    def __init__(self, gamma: int, estimator: Any, numbers: Any) -> None:
        self._gamma = gamma
        self._estimator = estimator
        self._numbers = numbers

    def after_predict(self, idx_mapping: Any, draft_step: Any, confidence_probs: Any) -> None:
        """vLLM has written its features and predictions: put the served ones over the latter.

        Args:
            idx_mapping: request slot of each row, -1 in padding.
            draft_step: position of all rows (no dimensions), or one of each row.
            confidence_probs: [requests, gamma], written in place.
        """
        import torch

        features, gamma = self._estimator.features, self._gamma
        if draft_step.dim() == 0:
            place = draft_step.long().view(1)
            slots = idx_mapping.long().clamp(min=0)
            column = features.index_select(0, slots).index_select(1, place)
            slope, intercept, used = self._numbers.index_select(1, place).unbind(0)
            part = confidence_probs[: column.shape[0]]
            own = part.index_select(1, place)
            part.index_copy_(
                1, place, torch.where(used > 0.0, torch.sigmoid(column * slope + intercept), own)
            )
            return
        slots = idx_mapping.long().view(-1, gamma)[:, 0].clamp(min=0)
        block = features.index_select(0, slots)
        slope, intercept, used = self._numbers.unbind(0)
        part = confidence_probs[: block.shape[0]]
        part.copy_(torch.where(used > 0.0, torch.sigmoid(block * slope + intercept), part))

    def record(self, idx_mapping: Any, rows: int) -> None:
        """Nothing to do: vLLM keeps its features by slot."""

    def logits(self, slots: Any) -> Any:  # [rows, gamma]
        """Features of the drafts that are being graded."""
        return self._estimator.features.index_select(0, slots)
