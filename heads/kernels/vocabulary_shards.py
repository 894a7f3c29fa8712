"""A vocabulary cut over devices: shards draft on their own ids and merge exactly.

Every shard runs the same block over its rows of W2 and its columns of U. After each position the
rows' words are merged by a maximum, 8 bytes a row; the next position begins from the merged words
on every shard, so tokens, confidences and survival are the same everywhere and the same as without
shards, to the last bit where the logits are. Between devices::

    block.prepare()
    for index in range(gamma):
        block.position(index)
        torch.distributed.all_reduce(block.workspace.words[index], ReduceOp.MAX)
    write_tokens(block)

Log-sum-exps of shards are merged once after the block, in the order of shards, corrected logits by
concatenation. Either implementation of :class:`heads.draft_block.DraftBlock` serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads.draft_block import DraftBlock, DraftBlockOutput
from heads.draft_block_weights import DraftBlockWeights
from heads.reference.deterministic_argmax import decoded_ids


def shard_ranges(draft_vocabulary: int, shards: int, *, multiple: int = 16) -> tuple[range, ...]:
    """Draft ids of each shard: equal parts but for the last, each beginning at a multiple.

    Args:
        draft_vocabulary: V' of all shards.
        shards: how many.
        multiple: of 4, for the random stream; 16 keeps loads of U wide.

    Raises:
        ConfigurationError: a multiple that is none of 4, or more shards than the ids fill.
    """
    if shards < 1 or multiple % 4 or multiple < 4:
        raise ConfigurationError("multiple", multiple, "give 1 shard or more, and a multiple of 4")
    size = -(-draft_vocabulary // (shards * multiple)) * multiple
    if (shards - 1) * size >= draft_vocabulary:
        raise ConfigurationError(
            "shards", shards, f"{draft_vocabulary} ids in parts of {size} fill fewer shards"
        )
    return tuple(
        range(first, min(first + size, draft_vocabulary)) for first in range(0, shards * size, size)
    )


def shard_of(weights: DraftBlockWeights, ids: range) -> DraftBlockWeights:
    """Weights whose W2 holds these draft ids alone; views.

    Raises:
        ConfigurationError: ids that are no part of these weights, or begin at no multiple of 4.
    """
    first, last = ids.start - weights.vocabulary_offset, ids.stop - weights.vocabulary_offset
    if not 0 <= first < last <= weights.shard_size or ids.step != 1:
        raise ConfigurationError("ids", ids, f"give some of {weights.shard_size} consecutive ids")
    scales = weights.w2_scales
    return replace(
        weights,
        w2=weights.w2[first:last],
        w2_scales=None if scales is None else scales[first:last],
        vocabulary_offset=ids.start,
    )


def merge_words(words: Sequence[Tensor]) -> None:
    """Leave the largest words in every shard's [B]; what an all-reduce does between devices."""
    best = torch.stack([w.to(words[0].device) for w in words]).amax(dim=0)
    for shard in words:
        shard.copy_(best)


def merge_log_sum_exps(parts: Sequence[Tensor]) -> Tensor:
    """Log-sum-exp over all shards, taken in their order; shaped as each part."""
    merged = parts[0]
    for part in parts[1:]:
        merged = torch.logaddexp(merged, part.to(merged.device))
    return merged


def write_tokens(block: DraftBlock) -> None:
    """Write a block's tokens and draft ids from its merged words."""
    rows, results = block.inputs.rows, block.workspace.results
    ids = decoded_ids(block.workspace.words[:, :rows]).T
    mapping = block.weights.draft_to_target
    results.draft_ids[:rows] = ids
    results.tokens[:rows] = ids if mapping is None else mapping[ids]


def draft_block_in_shards(blocks: Sequence[DraftBlock]) -> DraftBlockOutput:
    """Draft a block over all shards in one process, position by position.

    Args:
        blocks: one a shard, in the order of their ids, over the same rows.

    Returns:
        Results as of one block over the whole vocabulary; all but logits and log-sum-exp are
        views of the first shard's workspace.

    Raises:
        ConfigurationError: shards that leave ids out or differ in rows.
    """
    _check_shards(blocks)
    rows = blocks[0].inputs.rows
    for block in blocks:
        block.prepare()
    for index in range(blocks[0].inputs.gamma):
        for block in blocks:
            block.position(index)
        merge_words([block.workspace.words[index, :rows] for block in blocks])
    for block in blocks:
        write_tokens(block)
    outputs = [block.workspace.output(rows) for block in blocks]
    logits = [o.logits for o in outputs if o.logits is not None]
    sums = [o.log_sum_exp for o in outputs if o.log_sum_exp is not None]
    return replace(
        outputs[0],
        logits=torch.cat(logits, dim=-1) if len(logits) == len(blocks) else None,
        log_sum_exp=merge_log_sum_exps(sums) if len(sums) == len(blocks) else None,
    )


def _check_shards(blocks: Sequence[DraftBlock]) -> None:
    if not blocks:
        raise ConfigurationError("blocks", 0, "give at least one shard")
    expected = 0
    for block in blocks:
        weights, shape = block.weights, block.inputs.hidden.shape[:2]
        if weights.vocabulary_offset != expected or shape != blocks[0].inputs.hidden.shape[:2]:
            raise ConfigurationError(
                "blocks",
                (weights.vocabulary_offset, tuple(shape)),
                f"the next shard begins at id {expected} and has the rows of the first",
            )
        expected += weights.shard_size
