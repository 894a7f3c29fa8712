"""What an SGLang request says of itself before its blocks are verified."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from dspark_calib_client.plugins.common.request_tags import (
    TARGET_ONLY,
    RequestTags,
    Said,
    flags_of,
)

__all__ = ["TagTable", "tags_of"]

_WARMUPS = ("HEALTH_CHECK",)  # how SGLang names requests it sends itself
_CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag", "logit_bias")


def tags_of(req: Any, domain_key: str, tenant_key: str) -> RequestTags:
    """Tags of a ``Req``, from attributes that its scheduler keeps on the host.

    Args:
        req: SGLang's; nothing keeps it alive.
        domain_key: key of ``custom_params`` with its domain.
        tenant_key: and with its tenant.
    """
    parameters, name = req.sampling_params, req.rid
    ends = (getattr(req, "eos_token_ids", None), getattr(req, "tokenizer", None))
    adapter = getattr(req, "lora_id", None)
    processed = getattr(req, "custom_logit_processor", None) is not None

    def said() -> Said:
        flags = flags_of(
            *(str(name), parameters),
            warmups=_WARMUPS,
            least="min_new_tokens",
            constraints=_CONSTRAINTS,
        )
        return Said(
            name=str(name),
            temperature=0.0 if int(parameters.top_k) == 1 else float(parameters.temperature),
            tags=parameters.custom_params,
            domain_key=domain_key,
            tenant_key=tenant_key,
            adapter=adapter,
            flags=flags | (TARGET_ONLY if processed else 0),
            stops=_stops(parameters, *ends),
        )

    return RequestTags(said)


class TagTable:
    """Tags of the requests at hand; forgets those that are gone.

    Args:
        domain_key: key of ``custom_params`` with a request's domain.
        tenant_key: and with its tenant.
    """

    def __init__(self, domain_key: str, tenant_key: str) -> None:
        self._keys = (domain_key, tenant_key)
        self._known: dict[int, RequestTags] = {}  # by address, while a request lives
        self._owners: dict[int, Any] = {}
        self._last: tuple[list[int], list[RequestTags]] = ([], [])

    def __len__(self) -> int:
        return len(self._known)

    def of(self, reqs: Sequence[Any]) -> list[RequestTags]:
        """Tags of a batch, in its order."""
        addresses = list(map(id, reqs))
        before, found = self._last
        if addresses == before:
            return found
        known = self._known
        found = [known.get(address) or self._new(req) for address, req in zip(addresses, reqs)]
        self._last = (addresses, found)
        return found

    def _new(self, req: Any) -> RequestTags:
        address = id(req)
        tags = tags_of(req, *self._keys)

        def gone(_: Any) -> None:  # before the address is used again
            self._known.pop(address, None)
            self._owners.pop(address, None)
            self._last = ([], [])

        self._owners[address] = weakref.ref(req, gone)
        self._known[address] = tags
        return tags


def _stops(parameters: Any, ends: Any, tokenizer: Any) -> frozenset[int]:
    if getattr(parameters, "ignore_eos", False):
        return frozenset()
    stops = {int(token) for token in ends or ()}
    stops |= {int(token) for token in getattr(parameters, "stop_token_ids", None) or ()}
    if tokenizer is not None:
        end = getattr(tokenizer, "eos_token_id", None)
        stops |= set() if end is None else {int(end)}
        stops |= {int(t) for t in getattr(tokenizer, "additional_stop_token_ids", None) or ()}
    return frozenset(stops)
