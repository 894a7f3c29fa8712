"""All ranks of an engine take part, or none does.

Ranks that wait for each other in a collective hang when one of them never comes: because the
plugin is missing on its node, is set differently there, or failed to start. So before anything is
touched every rank says in the engine's own key-value store what it is about to do, and one value,
written once, decides. Nobody waits without end, and whoever runs out of patience decides for "no".
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["agreed"]

_YES, _NO = "yes", "no"
_LOOK_SECONDS = 0.05


def agreed(
    store: Any,
    name: str,
    *,
    rank: int,
    size: int,
    terms: str | None,
    patience: float,
) -> bool:
    """Whether every rank offered the same terms.

    Args:
        store: ``torch.distributed`` store that all ranks share; ignored for one rank.
        name: of this agreement; the same on all ranks, and used once.
        rank: of this process, 0 to ``size`` - 1.
        size: number of ranks.
        terms: what this rank is about to do; None where it cannot take part.
        patience: seconds that rank 0 waits for the others, who wait twice as long for its word.

    Returns:
        The same on every rank. False also where the store fails.
    """
    if size == 1:
        return terms is not None
    prefix = f"dspark_calib/{name}"
    store.set(f"{prefix}/terms/{rank}", _NO if terms is None else f"{_YES} {terms}")
    if rank == 0:
        others = [f"{prefix}/terms/{other}" for other in range(size)]
        equal = _all_there(store, others, patience) and _all_equal(store, others)
        return _decide(store, prefix, _YES if equal and terms is not None else _NO)
    if _all_there(store, [f"{prefix}/verdict"], 2.0 * patience):
        return _text(store.get(f"{prefix}/verdict")) == _YES
    return _decide(store, prefix, _NO)


def _decide(store: Any, prefix: str, verdict: str) -> bool:
    """Write the verdict unless there is one; whether the one that stands is a yes."""
    return _text(store.compare_set(f"{prefix}/verdict", "", verdict)) == _YES


def _all_there(store: Any, names: Sequence[str], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    for name in names:
        left = ends - time.monotonic()
        if left <= 0.0 or not _there(store, name, left):
            return False
    return True


def _there(store: Any, name: str, seconds: float) -> bool:
    try:
        store.wait([name], datetime.timedelta(seconds=max(seconds, _LOOK_SECONDS)))
    except Exception:  # noqa: BLE001  (each kind of store has its own time-out)
        return False
    return True


def _all_equal(store: Any, names: Sequence[str]) -> bool:
    found = {_text(store.get(name)) for name in names}
    return len(found) == 1 and _NO not in found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
