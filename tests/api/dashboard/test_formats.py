from __future__ import annotations

import pytest

from api.dashboard.formats import (
    ago,
    count,
    evidence,
    moment,
    plural,
    points,
    power_of_ten,
    seconds_of,
    signed,
    signed_points,
)


def test_probabilities_are_told_in_points() -> None:
    assert [points(v) for v in (0.0421, -0.0001, None)] == ["4.2", "0.0", "–"]
    assert [signed(v) for v in (0.006, -0.013, -0.0001, None)] == ["+0.6", "-1.3", "0.0", "–"]
    assert signed_points(0.04) == "overconfident by 4.0 points"
    assert signed_points(-0.04) == "underconfident by 4.0 points"


def test_counts_agree_with_their_nouns() -> None:
    assert [plural(n, "row") for n in (0, 1, 31006)] == ["0 rows", "1 row", "31,006 rows"]
    assert (count(1e6), count(None)) == ("1,000,000", "–")


def test_evidence_is_a_number_or_a_power() -> None:
    found = [str(evidence(v)) for v in (0.0, 1.3, 6.0, 7.25, -400.0, None)]
    assert found == ["1", "20", "10<sup>6</sup>", "10<sup>7.2</sup>", "0", "–"]
    assert power_of_ten(-1.5) == "10⁻¹·⁵"


def test_moments_are_in_utc() -> None:
    told = '<time datetime="2026-11-29T23:41:07Z">2026-11-29 23:41 UTC</time>'
    assert moment("2026-11-30T00:41:07.250+01:00") == told
    assert moment(1795995667.25) == told
    # What is no moment is a dash, not an error.
    assert [moment(v) for v in (None, "", "soon", 1e300)] == ["–"] * 4
    assert seconds_of("1970-01-01T00:01:00") == 60.0


@pytest.mark.parametrize(
    ("seconds", "told"), [(5, "5 s"), (90, "2 min"), (5400, "2 h"), (200_000, "2 days")]
)
def test_ages_have_one_unit(seconds: float, told: str) -> None:
    assert ago(seconds) == told
