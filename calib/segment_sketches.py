"""Mergeable sketches per segment: all that a segmented fit reads of its rows.

Rows are kept by their finest segment and by one of two folds, which never share a prompt, so that
ridge strengths can be cross-validated without going back to the rows. Sketches merge exactly over
engines, ranks and hours, in any order.

Weights enter when sketches are read. That is also how a tenant is capped: :func:`tenant_parts`
splits a log by the weight of its rows, and each part is a sketch of its own.

Letters: N rows, γ draft positions, G segments, C cells of a position.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from calib.errors import FormatError, InvalidInputError
from calib.logit_sketch import LabelSource, LogitSketch, grouped_sketches
from calib.observed_rows import ObservedRows
from calib.records import AcceptanceRecords
from calib.row_hashes import cluster_hashes
from calib.segment_tags import SegmentBuckets, SegmentKey, SegmentLevels, leaf_segments
from calib.tenant_weights import TenantWeights, capped_weights

__all__ = ["FOLDS", "SegmentSketches", "tenant_parts"]

FOLDS = 2
_MAGIC = b"DSSS"
_VERSION = 1
_HEADER = struct.Struct("<4sHI")
_REMEDY = "send it again, or rebuild it from the rows"


@dataclass(frozen=True, eq=False, slots=True)
class SegmentSketches:
    """Sketches by segment and fold; ``+`` merges exactly.

    Attributes:
        gamma: draft positions.
        buckets: edges that the rows were bucketed with.
        tags: tags that rows were told apart by.
        sketches: by finest segment, one sketch a fold.
    """

    gamma: int
    buckets: SegmentBuckets
    tags: tuple[str, ...]
    sketches: Mapping[SegmentKey, tuple[LogitSketch, ...]]

    @classmethod
    def from_records(
        cls,
        records: AcceptanceRecords,
        *,
        levels: SegmentLevels | None = None,
        buckets: SegmentBuckets | None = None,
        labels: LabelSource = "hard",
    ) -> Self:
        """Sketches of the usable rows of telemetry.

        Args:
            records: telemetry.
            levels: whose tags are told apart; the defaults when None.
            buckets: edges of numeric tags; the defaults when None.
            labels: ``"hard"`` acceptance, or ``"soft"`` labels where they are known.

        Raises:
            RecordError: soft labels that the records lack.
            ConfigurationError: another word.
        """
        tags = (levels or SegmentLevels()).tags
        edges = buckets or SegmentBuckets()
        usable = records.usable()
        rows = records if usable.all() else records.select(usable)
        codes, keys = leaf_segments(rows, edges, tags)
        folds = (cluster_hashes(rows) % np.uint64(FOLDS)).astype(np.intp)
        observed = ObservedRows.of_records(rows, labels)
        groups = codes * FOLDS + folds
        filled = grouped_sketches(rows.confidence_logits, observed, groups, FOLDS * len(keys))
        sketches = {key: filled[FOLDS * i : FOLDS * (i + 1)] for i, key in enumerate(keys)}
        return cls(records.gamma, edges, tags, MappingProxyType(sketches))

    def __add__(self, other: SegmentSketches) -> SegmentSketches:
        if not isinstance(other, SegmentSketches):
            return NotImplemented
        mine, theirs = self._identity, other._identity
        if mine != theirs:
            raise InvalidInputError("other", theirs, f"merge sketches of one shape, {mine}")
        joined = dict(self.sketches)
        for key, folds in other.sketches.items():
            known = joined.get(key)
            joined[key] = folds if known is None else _added(known, folds)
        ordered = {key: joined[key] for key in sorted(joined)}
        return SegmentSketches(self.gamma, self.buckets, self.tags, MappingProxyType(ordered))

    def __eq__(self, other: object) -> bool:
        """Whether all sums agree to the last bit."""
        if not isinstance(other, SegmentSketches):
            return NotImplemented
        return self._identity == other._identity and dict(self.sketches) == dict(other.sketches)

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def seen(self, tag: str) -> frozenset[str]:
        """Buckets of a tag that some row had."""
        return frozenset(
            bucket for key in self.sketches for name, bucket in key.items if name == tag
        )

    def segment(self, key: SegmentKey) -> tuple[LogitSketch, ...]:
        """Sketch of each fold of all rows of a segment, however coarse."""
        total = tuple(LogitSketch.empty(self.gamma) for _ in range(FOLDS))
        for leaf, folds in self.sketches.items():
            if leaf.restricted(key.tags) == key:
                total = _added(total, folds)
        return total

    def to_bytes(self) -> bytes:
        """Everything as bytes, versioned; sketches inside are checked by their checksums."""
        blobs = [sketch.to_bytes() for folds in self.sketches.values() for sketch in folds]
        header = {
            "gamma": self.gamma,
            "buckets": self.buckets.to_dict(),
            "tags": list(self.tags),
            "segments": [key.to_dict() for key in self.sketches],
            "sizes": [len(blob) for blob in blobs],
        }
        text = json.dumps(header, ensure_ascii=False).encode()
        return _HEADER.pack(_MAGIC, _VERSION, len(text)) + text + b"".join(blobs)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What :meth:`to_bytes` wrote.

        Raises:
            FormatError: other, damaged or truncated bytes.
        """
        header, body = _unpacked(data)
        try:
            sizes = [int(size) for size in header["sizes"]]
            keys = [SegmentKey.of(tags) for tags in header["segments"]]
            buckets = SegmentBuckets(**{k: tuple(v) for k, v in header["buckets"].items()})
            gamma, tags = int(header["gamma"]), tuple(header["tags"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError("segment sketches", f"header: {error}", _REMEDY) from error
        if len(sizes) != FOLDS * len(keys) or sum(sizes) != len(body) or min(sizes, default=0) < 0:
            raise FormatError("segment sketches", "sizes do not add up", _REMEDY)
        ends = np.cumsum([0, *sizes]).tolist()
        parts = [LogitSketch.from_bytes(body[start:end]) for start, end in pairwise(ends)]
        if any(part.gamma != gamma for part in parts):
            raise FormatError("segment sketches", "gamma differs among sketches", _REMEDY)
        sketches = {
            key: tuple(parts[FOLDS * index : FOLDS * (index + 1)]) for index, key in enumerate(keys)
        }
        return cls(gamma, buckets, tags, MappingProxyType(sketches))

    @property
    def _identity(self) -> tuple[int, SegmentBuckets, tuple[str, ...]]:
        return self.gamma, self.buckets, self.tags


def tenant_parts(
    records: AcceptanceRecords, max_share: float
) -> tuple[list[tuple[float, AcceptanceRecords]], TenantWeights]:
    """The usable rows by weight under a cap on each tenant's share, and what the cap did.

    Rows below the cap have weight 1 and form one part; each capped tenant forms another.

    Args:
        records: telemetry; without tenants all rows weigh 1.
        max_share: largest share of the total weight one tenant may hold, in (0, 1].

    Raises:
        RecordError: a share outside (0, 1].
    """
    rows = records.fitting_rows()
    if rows.tenant is None:
        capped_weights([], max_share)  # refuses a wrong share
        # Nobody is named, so nobody can be capped.
        one = TenantWeights(np.ones(len(rows)), {None: 1.0}, {None: 1.0}, 1.0, ())
        return [(1.0, rows)], one
    capped = capped_weights(rows.tenant, max_share)
    weights = capped.weights
    parts = [(float(weight), rows.select(weights == weight)) for weight in np.unique(weights)[::-1]]
    return parts, capped


def _added(
    mine: tuple[LogitSketch, ...], theirs: tuple[LogitSketch, ...]
) -> tuple[LogitSketch, ...]:
    return tuple(one + other for one, other in zip(mine, theirs, strict=True))


def _unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    source = "segment sketches"
    if len(data) < _HEADER.size:
        raise FormatError(source, "they end before the header does", _REMEDY)
    magic, version, size = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        reason = f"kind {magic!r} version {version} is not {_MAGIC!r} version {_VERSION}"
        raise FormatError(source, reason, "read it with the release that wrote it")
    try:
        header = json.loads(data[_HEADER.size : _HEADER.size + size])
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(source, f"header is no JSON: {error}", _REMEDY) from error
    if not isinstance(header, dict):
        raise FormatError(source, "header is no JSON object", _REMEDY)
    return header, data[_HEADER.size + size :]
