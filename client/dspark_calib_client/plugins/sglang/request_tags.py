"""What is known of a request before its blocks are verified: how it samples, what kind it is.

Read once for each request, from attributes that its scheduler keeps on the host. Whatever is
missing is unknown; nothing here depends on what the drafter proposed.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from typing import Any

__all__ = [
    "FORCED",
    "STOPPED",
    "TARGET_ONLY",
    "WARMUP",
    "RequestTags",
    "TagBatch",
    "TagTable",
    "hashed_name",
    "tag_text",
]

WARMUP, FORCED, TARGET_ONLY, STOPPED = 1, 4, 8, 16  # bits of the column ``flags``
_HEALTH_CHECK = "HEALTH_CHECK"  # how SGLang names requests it sends itself
_LONGEST_TEXT = 128
_FEWEST = 64  # requests that are remembered in any case
_PENALTIES = (
    ("frequency_penalty", 0.0),
    ("presence_penalty", 0.0),
    ("repetition_penalty", 1.0),
    ("min_new_tokens", 0),
)
_CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag", "logit_bias")


class RequestTags:
    """One request as its rows name it.

    Attributes:
        request: hash of its id.
        temperature: it samples at; 0 is greedy.
        greedy: whether it takes the likeliest token.
        domain: of its traffic, or None.
        tenant: hash of its tenant, or None.
        adapter: name of its adapter, or None.
        flags: bits that are the same in all its rows.
        stops: tokens that end its text.
        ended: whether one of them was emitted; what the engine still decodes then is no text.
    """

    __slots__ = (
        *("request", "temperature", "greedy", "domain", "tenant", "adapter", "flags", "stops"),
        *("ended", "owner"),
    )

    def __init__(self, req: Any, domain_key: str, tenant_key: str) -> None:
        self.owner = weakref.ref(req)
        parameters = req.sampling_params
        name = str(req.rid)
        self.request = hashed_name(name)
        self.greedy = int(parameters.top_k) == 1
        self.temperature = 0.0 if self.greedy else float(parameters.temperature)
        custom = parameters.custom_params if isinstance(parameters.custom_params, dict) else {}
        self.domain = tag_text(custom.get(domain_key))
        tenant = tag_text(custom.get(tenant_key))
        self.tenant = None if tenant is None else hashed_name(tenant)
        self.adapter = tag_text(getattr(req, "lora_id", None))
        self.flags = _flags(req, name)
        self.stops = _stops(req)
        self.ended = False


class TagBatch:
    """Tags of a batch, and what is the same in all its steps.

    Attributes:
        tags: by row.
        stops: of the batch where all rows have the same; None where they differ.
        columns: columns of the row contract that depend on the requests alone.
        flags: [rows] uint8, bits that are the same in all steps.
    """

    __slots__ = ("columns", "flags", "stops", "tags")

    def __init__(self, tags: Sequence[RequestTags]) -> None:
        import numpy

        self.tags = tags
        kinds = {entry.stops for entry in tags}
        self.stops = kinds.pop() if len(kinds) == 1 else None
        self.flags = numpy.array([entry.flags for entry in tags], dtype=numpy.uint8)
        self.columns: dict[str, Any] = {
            "request": [entry.request for entry in tags],
            "sampling_temperature": numpy.array([entry.temperature for entry in tags]),
        }
        for name in ("domain", "tenant", "adapter"):
            cells = [getattr(entry, name) for entry in tags]
            if any(cell is not None for cell in cells):
                self.columns[name] = cells

    def __len__(self) -> int:
        return len(self.tags)


class TagTable:
    """Tags of the requests at hand; forgets those that are gone.

    Args:
        domain_key: key of ``custom_params`` with a request's domain.
        tenant_key: and with its tenant.
    """

    def __init__(self, domain_key: str, tenant_key: str) -> None:
        self._keys = (domain_key, tenant_key)
        self._known: dict[int, RequestTags] = {}
        self._last = TagBatch(())

    def __len__(self) -> int:
        return len(self._known)

    def of(self, reqs: Sequence[Any]) -> TagBatch:
        """Tags of a batch, in its order; the same object while the requests are the same."""
        last = self._last.tags
        if len(last) == len(reqs) and all(t.owner() is req for t, req in zip(last, reqs)):
            return self._last
        known = self._known
        found = []
        for req in reqs:
            tags = known.get(id(req))
            if tags is None or tags.owner() is not req:  # an address is used again
                tags = known[id(req)] = RequestTags(req, *self._keys)
            found.append(tags)
        if len(known) > 2 * max(len(found), _FEWEST):
            self._known = {id(req): tags for req, tags in zip(reqs, found)}
        self._last = TagBatch(found)
        return self._last


def hashed_name(name: str) -> str:
    """A name that tells apart and tells nothing: 16 hexadecimal digits."""
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).hexdigest()


def tag_text(value: Any) -> str | None:
    """A tag as short printable text; None for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        return None
    return value[:_LONGEST_TEXT] or None


def _flags(req: Any, name: str) -> int:
    flags = WARMUP if name.startswith(_HEALTH_CHECK) else 0
    parameters = req.sampling_params
    changed = any(getattr(parameters, field, usual) != usual for field, usual in _PENALTIES)
    bound = any(getattr(parameters, field, None) is not None for field in _CONSTRAINTS)
    custom = getattr(req, "custom_logit_processor", None) is not None
    # The drafter sees none of these, so acceptance is another question for such a request.
    return flags | (TARGET_ONLY if changed or bound or custom else 0)


def _stops(req: Any) -> frozenset[int]:
    parameters = req.sampling_params
    if getattr(parameters, "ignore_eos", False):
        return frozenset()
    stops = {int(token) for token in getattr(req, "eos_token_ids", None) or ()}
    stops |= {int(token) for token in getattr(parameters, "stop_token_ids", None) or ()}
    tokenizer = getattr(req, "tokenizer", None)
    if tokenizer is not None:
        end = getattr(tokenizer, "eos_token_id", None)
        stops |= set() if end is None else {int(end)}
        stops |= {int(t) for t in getattr(tokenizer, "additional_stop_token_ids", None) or ()}
    return frozenset(stops)
