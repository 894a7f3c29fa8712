"""One verdict on every rank, whoever is late, missing or of another mind."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.common.agreement import agreed  # noqa: E402

pytestmark = pytest.mark.torch


def verdicts(terms: list[str | None], patience: float = 20.0) -> list[bool]:
    """What each rank hears; each runs in a thread of its own."""
    store = torch.distributed.HashStore()
    heard: dict[int, bool] = {}

    def run(rank: int) -> None:
        heard[rank] = agreed(
            store, "g", rank=rank, size=len(terms), terms=terms[rank], patience=patience
        )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(terms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return [heard[rank] for rank in range(len(terms))]


@pytest.mark.parametrize(
    ("terms", "verdict"),
    [
        (["every 32"], True),
        ([None], False),
        (["every 32"] * 4, True),
        (["every 32", "every 16"], False),  # ranks that would wait for each other at other steps
        (["every 32", None, "every 32"], False),
        ([None, None], False),
    ],
)
def test_all_or_none(terms: list[str | None], verdict: bool) -> None:
    assert verdicts(terms) == [verdict] * len(terms)


def test_nobody_waits_without_end_for_a_rank_that_never_comes() -> None:
    store = torch.distributed.HashStore()
    asked: dict[str, Any] = {"size": 2, "terms": "t", "patience": 0.1}
    assert not agreed(store, "a", rank=0, **asked)
    assert not agreed(store, "a", rank=1, **asked)  # comes late, hears the verdict
    assert not agreed(store, "b", rank=1, **asked)  # rank 0 never comes
    assert not agreed(store, "b", rank=0, **asked)  # and may no longer decide otherwise


def test_the_engines_own_kind_of_store_decides_once() -> None:
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = torch.distributed.TCPStore("127.0.0.1", store.port, wait_for_workers=False)
    asked: dict[str, Any] = {"size": 2, "terms": "t", "patience": 0.2}
    assert not agreed(other, "g", rank=1, **asked)
    assert not agreed(store, "g", rank=0, **asked)
