"""What is known of a request before its blocks are verified: how it samples, what kind it is.

Read once for each request, by a function of the engine's own, and not on the engine's thread: that
keeps references alone. Whatever is missing is unknown; nothing here depends on what the drafter
proposed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "FORCED",
    "STOPPED",
    "TARGET_ONLY",
    "WARMUP",
    "RequestTags",
    "Said",
    "flags_of",
    "hashed_name",
    "tag_text",
]

_PENALTIES = (("frequency_penalty", 0.0), ("presence_penalty", 0.0), ("repetition_penalty", 1.0))
WARMUP, FORCED, TARGET_ONLY, STOPPED = 1, 4, 8, 16  # bits of the column ``flags``
_LONGEST_TEXT = 128
_LOG = logging.getLogger("dspark_calib_client")


class Said(NamedTuple):
    """What an engine's request says of itself.

    Attributes:
        name: its id, of which only a hash is kept.
        temperature: it samples at; 0 is greedy.
        tags: its own words by key, or anything else for none.
        domain_key: key of its domain in ``tags``.
        tenant_key: key of its tenant, which is hashed.
        adapter: name of its adapter, or anything else for none.
        flags: bits that are the same in all its rows.
        stops: tokens that end its text.
    """

    name: str
    temperature: float
    tags: Any
    domain_key: str
    tenant_key: str
    adapter: Any
    flags: int
    stops: frozenset[int]


_UNREADABLE = Said("", 0.0, None, "", "", None, 0, frozenset())


class RequestTags:
    """One request as its rows name it; :meth:`settle` comes before all attributes but ``ended``.

    Args:
        read: what the request says; called once, by whoever settles it.

    Attributes:
        request: hash of its id.
        temperature: it samples at; 0 is greedy.
        greedy: whether it takes the likeliest token.
        domain: of its traffic, or None.
        tenant: hash of its tenant, or None.
        adapter: name of its adapter, or None.
        flags: bits that are the same in all its rows.
        stops: tokens that end its text.
        ended: whether one of them was emitted; what the engine still decodes then is no text. Also
            True for a request that cannot be read.
    """

    __slots__ = (
        *("request", "temperature", "greedy", "domain", "tenant", "adapter", "flags", "stops"),
        *("ended", "_read"),
    )

    def __init__(self, read: Callable[[], Said]) -> None:
        self._read: Callable[[], Said] | None = read
        self.ended = False

    def settle(self) -> None:
        """Read the request, if that was not done before; one that cannot be read has no rows."""
        if self._read is None:
            return
        try:
            said = self._read()
        except Exception:  # noqa: BLE001  (an odd request costs the others nothing)
            _LOG.warning("a request could not be read; it sends no rows", exc_info=True)
            said, self.ended = _UNREADABLE, True
        tags = said.tags if isinstance(said.tags, Mapping) else {}
        tenant = tag_text(tags.get(said.tenant_key))
        self.request = hashed_name(said.name)
        self.temperature = said.temperature
        self.greedy = said.temperature == 0.0
        self.domain = tag_text(tags.get(said.domain_key))
        self.tenant = None if tenant is None else hashed_name(tenant)
        self.adapter = tag_text(said.adapter)
        self.flags = said.flags
        self.stops = said.stops
        self._read = None  # nothing of the request is kept


def flags_of(
    name: str, parameters: Any, *, warmups: tuple[str, ...], least: str, constraints: Sequence[str]
) -> int:
    """Bits that are the same in all rows of a request.

    Args:
        name: its id.
        parameters: its sampling parameters.
        warmups: how names begin of requests that the engine sends itself.
        least: attribute of ``parameters`` that forbids an end before so many tokens.
        constraints: its attributes that restrict or bias what may be sampled.
    """
    penalties = (*_PENALTIES, (least, 0))
    changed = any(getattr(parameters, field, usual) != usual for field, usual in penalties)
    bound = any(getattr(parameters, field, None) for field in constraints)
    # The drafter sees none of these, so acceptance is another question for such a request.
    return (WARMUP if name.startswith(warmups) else 0) | (TARGET_ONLY if changed or bound else 0)


def hashed_name(name: str) -> str:
    """A name that tells apart and tells nothing: 16 hexadecimal digits."""
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=8).hexdigest()


def tag_text(value: Any) -> str | None:
    """A tag as short printable text; None for anything else."""
    if not isinstance(value, str) or not value.isprintable():
        return None
    return value[:_LONGEST_TEXT] or None
