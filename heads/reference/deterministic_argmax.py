"""An argmax that does not depend on order: scores and ids packed into one ordered word.

::

    bits 63 … 32   the float32 score as an integer of the same order
    bits 31 … 0    id ^ 0x7fffffff, so that of equal scores the lowest id is the largest word

The best token is the largest word, whatever the order in which words are compared, so tiles,
programs and shards of the vocabulary merge exactly. −0.0 counts as 0.0, and NaN lies above +∞, as
in ``torch.argmax``; of several NaN the lowest id wins. Kernels use the same words
(:mod:`heads.kernels.deterministic_argmax`).
"""

from __future__ import annotations

import torch
from torch import Tensor

ID_BITS = 0x7FFFFFFF
# Below the word of any score: where a maximum starts.
LEAST_WORD = -(1 << 63)


def packed_words(
    scores: Tensor,  # [...] float32
    ids: Tensor,  # [...] long, 0 … 2³¹ − 1
) -> Tensor:
    """Words whose order is that of the scores, then of falling ids; [...] long."""
    bits = (scores + 0.0).view(torch.int32)  # −0.0 + 0.0 is 0.0
    ordered = bits ^ ((bits >> 31) & ID_BITS)
    ordered = torch.where(scores.isnan(), ID_BITS, ordered)
    return (ordered.long() << 32) | (ids ^ ID_BITS)


def decoded_ids(words: Tensor) -> Tensor:
    """Ids of packed words; [...] long."""
    return (words & ID_BITS) ^ ID_BITS


def best_words(
    scores: Tensor,  # [B, N] float32
    first_id: int,
) -> Tensor:
    """Word of each row's best score, where column 0 has id ``first_id``; [B] long."""
    ids = torch.arange(scores.shape[1], device=scores.device) + first_id
    return packed_words(scores, ids).amax(dim=1)
