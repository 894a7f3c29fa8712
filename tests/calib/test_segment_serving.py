from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import CalibrationValueError, ConfigurationError, FormatError
from calib.records import AcceptanceRecords
from calib.segment_serving import SegmentTable, Unseen
from calib.segment_tags import SegmentBuckets, SegmentKey, SegmentLevels
from calib.served_segment import ServedSegment

LEVELS = SegmentLevels((("domain",), ("sampling_temperature",), ("sampling_temperature", "domain")))


def served(scale: float, affine: bool = True, **tags: str) -> ServedSegment:
    return ServedSegment(
        key=SegmentKey.of(tags),
        rows=1000,
        temperatures=(scale, 2.0 * scale),
        slopes=(1.0 / scale, 0.5 / scale) if affine else None,
        intercepts=(0.25, -0.25) if affine else None,
    )


def table(unseen: Unseen = "identity", greedy_only: bool = False) -> SegmentTable:
    """Pool, two domains, greedy traffic, and greedy code."""
    segments = [
        served(1.5),
        served(1.2, domain="code"),
        served(1.8, domain="chat"),
        served(1.1, sampling_temperature="0"),
        served(1.0, sampling_temperature="0", domain="code"),
    ]
    temperatures = ("0",) if greedy_only else ("0", "0.5-0.85")
    return SegmentTable(
        gamma=2,
        buckets=SegmentBuckets(),
        levels=LEVELS,
        segments={segment.key: segment for segment in segments},
        seen={"domain": ("chat", "code"), "sampling_temperature": temperatures},
        unseen=unseen,
    )


def test_the_answer_to_a_poll() -> None:
    answer = table().answer({"domain": "code", "sampling_temperature": 0.7})
    assert answer.to_dict() == {
        "requested": {"sampling_temperature": "0.5-0.85", "domain": "code"},
        "matched": {"domain": "code"},
        "level": "domain",
        "unmatched": ["sampling_temperature"],
        "nearest": {},
        "rows": 1000,
        "temperatures": [1.2, 2.4],
        "affine": {"slopes": [0.833333, 0.416667], "intercepts": [0.25, -0.25]},
    }
    exact = table().answer({"domain": "code", "sampling_temperature": "0"})
    assert (exact.level, exact.unmatched) == ("sampling_temperature+domain", ())
    assert exact.temperatures == (1.0, 2.0)


@pytest.mark.parametrize(
    ("tags", "level", "first"),
    [
        ({}, "pool", 1.5),
        ({"domain": None}, "pool", 1.5),
        ({"domain": "law"}, "pool", 1.5),
        ({"adapter": "x", "domain": "chat"}, "domain", 1.8),
        ({"sampling_temperature": 0}, "sampling_temperature", 1.1),
        ({"sampling_temperature": 0, "domain": "chat"}, "sampling_temperature", 1.1),
        ({"sampling_temperature": 0.7}, "pool", 1.5),
        ({"acceptance_rule": "greedy"}, "pool", 1.5),
    ],
)
def test_traffic_of_no_known_segment_is_served_by_the_next_coarser(
    tags: dict[str, Any], level: str, first: float
) -> None:
    """The acceptance rule was recorded for no row, so it cannot tell anything apart."""
    answer = table().answer(tags)
    assert (answer.level, answer.temperatures[0]) == (level, first)
    known = {tag for tag, value in tags.items() if value is not None}
    assert set(answer.unmatched) == known - set(answer.matched)


def test_r65_an_unseen_sampling_temperature_is_never_matched_in_silence() -> None:
    """Fitted at 0 alone, asked for 1.0."""
    asked = {"sampling_temperature": 1.0, "domain": "code"}
    identity = table("identity", greedy_only=True).answer(asked)
    assert (identity.level, identity.temperatures, identity.affine) == (
        "identity",
        (1.0, 1.0),
        None,
    )
    assert (identity.matched, identity.rows) == ({}, 0)
    assert identity.unmatched == ("sampling_temperature", "domain")

    parent = table("parent", greedy_only=True).answer(asked)
    assert (parent.level, parent.unmatched) == ("domain", ("sampling_temperature",))
    assert parent.nearest == {}

    nearest = table("nearest", greedy_only=True).answer(asked)
    assert nearest.matched == {"sampling_temperature": "0", "domain": "code"}
    assert nearest.nearest == {"sampling_temperature": "0"}
    assert nearest.unmatched == ("sampling_temperature",)
    assert nearest.temperatures == (1.0, 2.0)


def test_r65_an_unseen_rule_is_another_event_even_to_the_nearest() -> None:
    base = table("nearest")
    known = SegmentTable(
        2, base.buckets, base.levels, base.segments, {"acceptance_rule": ("greedy",)}, "nearest"
    )
    assert known.answer({"acceptance_rule": "block"}).level == "identity"
    assert known.with_unseen("parent").answer({"acceptance_rule": "block"}).level == "pool"
    assert known.answer({"acceptance_rule": "greedy"}).level == "pool"


def test_the_nearest_is_fewest_edges_away_and_the_lower_of_two() -> None:
    base = table("nearest")
    for seen, wanted in ((("0", "over 1.15"), "over 1.15"), (("0-0.5", "0.85-1.15"), "0-0.5")):
        asked = 1.0 if wanted == "over 1.15" else 0.7
        other = SegmentTable(
            2, base.buckets, base.levels, base.segments, {"sampling_temperature": seen}, "nearest"
        )
        assert other.buckets.bucket("sampling_temperature", asked) not in seen
        place, nearest = other._placed(other.buckets.key({"sampling_temperature": asked}))
        assert nearest == {"sampling_temperature": wanted}
        assert place == SegmentKey.of({"sampling_temperature": wanted})


def test_r70_a_shorter_gamma_is_a_prefix_and_a_longer_one_refused() -> None:
    short = table().answer({"domain": "code"}, gamma=1)
    assert short.temperatures == (1.2,)
    assert short.affine == {"slopes": [0.833333], "intercepts": [0.25]}
    with pytest.raises(CalibrationValueError, match="gamma"):
        table().answer({}, gamma=3)


def test_wrong_tags_are_named() -> None:
    for tags in ({"mood": "good"}, {"sampling_temperature": "warm"}, {"domain": 3}):
        with pytest.raises(ConfigurationError, match=f"segment.{next(iter(tags))}"):
            table().answer(tags)


def log() -> AcceptanceRecords:
    columns = {
        "confidence_logits": [[2.0, -1.0]] * 4,
        "verified": [2] * 4,
        "accepted": [1] * 4,
        "domain": ["code", "law", "code", "code"],
        "sampling_temperature": [0.0, None, 2.0, None],
    }
    return AcceptanceRecords.from_columns(2, columns)


def test_rows_are_scored_as_they_would_be_served() -> None:
    """The third row's temperature was never seen: identity. σ(z / T) and products by hand."""

    def sigma(odds: float) -> float:
        return float(1.0 / (1.0 + np.exp(-odds)))

    found = table().survival(log())
    assert found[:, 0].tolist() == pytest.approx([sigma(2.0 / t) for t in (1.0, 1.5, 1.0, 1.2)])
    assert found[1, 1] == pytest.approx(sigma(2.0 / 1.5) * sigma(-1.0 / 3.0))
    affine = table().survival(log(), "affine")
    assert affine[1, 0] == pytest.approx(sigma(2.0 / 1.5 + 0.25), rel=1e-5)
    assert affine[2].tolist() == pytest.approx([sigma(2.0), sigma(2.0) * sigma(-1.0)])
    with pytest.raises(CalibrationValueError, match="gamma"):
        SegmentTable.of_pool(Calibration.identity(3)).survival(log())


def test_a_table_without_segments_serves_its_calibration() -> None:
    calibration = Calibration.from_temperatures([1.5, 1.25], gamma=2)
    pooled = SegmentTable.of_pool(calibration, rows=7)
    assert pooled.answer({"domain": "code"}).temperatures == (1.5, 1.25)
    assert pooled.answer({}).rows == 7
    survival = pooled.survival(log())
    assert survival == pytest.approx(calibration.survival(log().confidence_logits), rel=1e-6)


@pytest.mark.parametrize("unseen", ["identity", "parent", "nearest"])
def test_json_round_trip(unseen: Unseen) -> None:
    one = table(unseen)
    data = one.to_json()
    other = SegmentTable.from_json(data)
    assert other.to_json() == data
    assert other.digest == one.digest
    assert SegmentTable.from_dict(json.loads(data)).answer({}).to_dict() == one.answer({}).to_dict()
    assert one.digest != table("parent" if unseen != "parent" else "nearest").digest


def test_r71_equal_tables_are_equal_bytes() -> None:
    base = table()
    shuffled = SegmentTable(
        2,
        base.buckets,
        base.levels,
        dict(reversed(list(base.segments.items()))),
        dict(reversed(list(base.seen.items()))),
    )
    assert shuffled.to_json() == base.to_json()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"format": "other"}, FormatError),
        ({"segments": None}, FormatError),
        ({"levels": [["mood"]]}, ConfigurationError),
        ({"buckets": {}}, FormatError),
        ({"unseen": "guess"}, ConfigurationError),
        ({"gamma": 3}, CalibrationValueError),
        ({"segments": []}, ConfigurationError),
    ],
)
def test_wrong_json_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        SegmentTable.from_dict({**table().to_dict(), **change})
