"""What is known of a vLLM request before its blocks are verified.

Read once, when the request reaches the worker. The domain and the tenant come from the request's
``vllm_xargs``, which vLLM hands down as ``SamplingParams.extra_args``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dspark_calib_client.plugins.common.request_tags import RequestTags, Said, flags_of

__all__ = ["TagTable", "VLLMTags"]

_WARMUPS = ("_warmup_", "_v2_mixed_warmup")  # how vLLM names requests it sends itself
_GREEDY = 1e-5  # temperatures below are greedy to vLLM
_CONSTRAINTS = ("structured_outputs", "logit_bias", "allowed_token_ids", "bad_words")


class VLLMTags(RequestTags):
    """Tags of a ``NewRequestData``.

    Attributes:
        drafted: what its last draft was made with, as the attachment counts; None before the first.
    """

    __slots__ = ("drafted",)

    def __init__(self, new: Any, domain_key: str, tenant_key: str) -> None:
        parameters, name = new.sampling_params, new.req_id
        adapter = getattr(new, "lora_request", None)

        def said() -> Said:
            given = float(getattr(parameters, "temperature", 1.0))
            return Said(
                name=str(name),
                temperature=0.0 if given < _GREEDY else given,
                tags=getattr(parameters, "extra_args", None),
                domain_key=domain_key,
                tenant_key=tenant_key,
                adapter=getattr(adapter, "lora_name", None),
                flags=flags_of(
                    *(str(name), parameters),
                    warmups=_WARMUPS,
                    least="min_tokens",
                    constraints=_CONSTRAINTS,
                ),
                stops=_stops(parameters),
            )

        super().__init__(said)
        self.drafted: int | None = None


class TagTable:
    """Tags of the requests at hand, by their id.

    Args:
        domain_key: key of ``extra_args`` with a request's domain.
        tenant_key: and with its tenant.
    """

    def __init__(self, domain_key: str, tenant_key: str) -> None:
        self._keys = (domain_key, tenant_key)
        self._known: dict[str, VLLMTags] = {}
        self._last: tuple[list[str], list[VLLMTags | None]] = ([], [])
        self._marked: tuple[list[VLLMTags | None], int] = ([], 0)  # whose, and what as

    def __len__(self) -> int:
        return len(self._known)

    def add(self, new_requests: Sequence[Any], alive: Any) -> None:
        """Requests that reach the worker now.

        Args:
            new_requests: vLLM's ``NewRequestData``.
            alive: ids that the worker holds; when there are far more tags, the others are dropped.
        """
        if new_requests:
            self._last = ([], [])
        for new in new_requests:
            if getattr(new, "sampling_params", None) is not None:
                self._known[new.req_id] = VLLMTags(new, *self._keys)
        if len(self._known) > 2 * len(alive) + 64:
            recent = {new.req_id for new in new_requests}
            self._known = {
                name: tags for name, tags in self._known.items() if name in alive or name in recent
            }

    def of(self, req_ids: Sequence[str]) -> list[VLLMTags | None]:
        """Tags of a batch, in its order; None for a request that was there before the plugin."""
        before, found = self._last
        if req_ids != before:
            found = list(map(self._known.get, req_ids))
            self._last = (list(req_ids), found)
        return found

    def mark(self, req_ids: Sequence[str], made_with: int) -> None:
        """The batch has been drafted, with this."""
        batch = self.of(req_ids)
        marked, before = self._marked
        if marked is batch and before == made_with:
            return  # as they were
        for tags in batch:
            if tags is not None:
                tags.drafted = made_with
        self._marked = (batch, made_with)

    def drafted(self, batch: Sequence[VLLMTags | None]) -> list[int | None]:
        """What the last draft of each was made with; for tags as :meth:`of` gave them."""
        marked, made_with = self._marked
        if marked is batch:
            return [made_with] * len(batch)
        return [None if tags is None else tags.drafted for tags in batch]


def _stops(parameters: Any) -> frozenset[int]:
    """Tokens that end its text. With ``ignore_eos`` only those that the request itself names."""
    if getattr(parameters, "ignore_eos", False):
        return frozenset(int(token) for token in getattr(parameters, "stop_token_ids", None) or ())
    stops = {int(token) for token in getattr(parameters, "all_stop_token_ids", None) or ()}
    end = getattr(parameters, "eos_token_id", None)
    return frozenset(stops if end is None else stops | {int(end)})
