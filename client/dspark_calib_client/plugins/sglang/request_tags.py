"""What an SGLang request says of itself before its blocks are verified."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from dspark_calib_client.plugins.common.request_tags import (
    TARGET_ONLY,
    RequestTags,
    Said,
    flags_of,
)

__all__ = ["tags_of", "tags_of_batch"]

_WARMUPS = ("HEALTH_CHECK",)  # how SGLang names requests it sends itself
_CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag", "logit_bias")
_NAME = "_dspark_calib_tags"
_held = attrgetter(_NAME)


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


def tags_of_batch(reqs: Sequence[Any], domain_key: str, tenant_key: str) -> list[RequestTags]:
    """Tags of a batch, in its order. Each request holds its own, so they live as long as it does.

    Args:
        reqs: SGLang's.
        domain_key: as for :func:`tags_of`.
        tenant_key: as for :func:`tags_of`.
    """
    try:
        return list(map(_held, reqs))
    except AttributeError:  # somebody is new
        for req in reqs:
            if getattr(req, _NAME, None) is None:
                setattr(req, _NAME, tags_of(req, domain_key, tenant_key))
        return list(map(_held, reqs))


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
