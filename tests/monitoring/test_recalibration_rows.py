from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.errors import FitRefusedError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from monitoring.recalibration_rows import FitRows, decided_in_advance, trimmed_mask, trusted_rows

GAMMA = 3


def records(verified: list[int], **columns: Any) -> AcceptanceRecords:
    rows = len(verified)
    logits = np.random.default_rng(3).normal(1.0, 1.0, (rows, GAMMA)).astype(np.float32)
    accepted = np.minimum(verified, 1)
    given = {"confidence_logits": logits, "verified": verified, "accepted": accepted, **columns}
    return AcceptanceRecords.from_columns(GAMMA, given)


def test_a_stop_token_trims_nothing_but_the_policy_does() -> None:
    stop = int(Flag.STOP_TRUNCATED)
    found = records([3, 2, 2, 0], flags=[0, 0, stop, 0])
    assert trimmed_mask(found).tolist() == [False, True, False, True]
    # What the policy had scheduled counts where it is known; 255 is not.
    told = records([3, 2, 2, 2], flags=[0, 0, stop, stop], scheduled=[3, 3, 2, 255])
    assert trimmed_mask(told).tolist() == [False, False, True, False]


def test_decided_in_advance_is_load_or_a_coin_and_never_high_confidence() -> None:
    found = records(
        [3, 3, 3, 3, 2],
        propensity=[1.0, 0.01, 0.3, np.nan, 1.0],
        explored=[False, True, False, False, False],
    )
    assert decided_in_advance(found).tolist() == [True, True, False, False, False]


def test_survival_rows_are_all_full_ones_where_hardly_any_is_trimmed() -> None:
    rows = FitRows.of(records([3] * 999 + [2]))
    assert len(rows.survival_rows(1000)) == 999  # a tenth of a percent


def test_trimmed_rows_need_enough_that_were_full_anyway() -> None:
    propensity = np.r_[np.ones(40), np.full(60, np.nan)]
    rows = FitRows.of(records([3] * 40 + [1] * 60, propensity=propensity))
    assert len(rows.survival_rows(40)) == 40
    with pytest.raises(FitRefusedError, match=r"60.0% of the rows were trimmed.*'survival'") as no:
        rows.survival_rows(41)
    assert no.value.status == "trimmed_rows"


def test_r53_a_tenant_of_95_percent_weighs_no_more_than_its_cap() -> None:
    names = np.array(["large"] * 950 + ["a"] * 25 + ["b"] * 25, dtype=object)
    rows = FitRows.of(records([3] * 1000, tenant=names), 0.5)
    assert [(round(weight, 6), len(part)) for weight, part in rows.parts] == [
        (1.0, 50),
        (round(50 / 950, 6), 950),
    ]
    (capped,) = rows.describe()["tenants"]["capped"]
    assert (capped["tenant"], capped["share"]) == ("large", 0.95)
    assert capped["weighted_share"] == pytest.approx(0.5)
    kept = rows.thinned.tenant
    assert kept is not None
    counts = {name: int((kept == name).sum()) for name in ("large", "a", "b")}
    assert (counts["a"], counts["b"]) == (25, 25)
    assert 25 < counts["large"] < 80  # 50 expected, 7 of standard deviation
    assert len(FitRows.of(records([3] * 10), 0.5).thinned) == 10  # nobody named, nobody capped


def test_rows_that_no_fit_may_use_are_counted() -> None:
    warm = records([3] * 5).with_flag(Flag.WARMUP, np.arange(5))
    with pytest.raises(FitRefusedError, match="'warmup': 5"):
        trusted_rows(warm, 1)
    with pytest.raises(FitRefusedError, match="5 usable rows; at least 6"):
        trusted_rows(records([3, 3, 3, 0, 0]), 6)
