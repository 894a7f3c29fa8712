from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from calib.errors import CalibrationValueError, FormatError
from calib.formats.sglang_sts import parse_sts
from calib.segment_serving import SegmentTable
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from calib.served_segment import ServedSegment
from calib.statuses import PositionStatus, ServingStatus
from monitoring.published_document import document_maker, iso_time, publication_document, render
from monitoring.store.drafters import Drafter
from monitoring.store.revisions import Revision

GAMMA = 4
KEY = CalibrationKey("t", "w1", "none", "d", "v1", "none", GAMMA, "anchor_excluded")
DRAFTER = Drafter("drafter", GAMMA, KEY, version=3, created_at=0.0)
FITS = [
    {"position": k + 1, "rows": 5000 - 1000 * k, "ece_before": 0.1 + k, "ece_after": 0.01 * k}
    for k in range(GAMMA)
]
CODE_GREEDY = SegmentKey.of({"sampling_temperature": "0", "domain": "code"})
SEGMENTS: dict[str, Any] = SegmentTable(
    gamma=GAMMA,
    buckets=SegmentBuckets(),
    levels=SegmentLevels((("sampling_temperature", "domain"),)),
    segments={
        POOL: ServedSegment(POOL, 5000, (1.5, 1.25, 1.0, 0.75)),
        CODE_GREEDY: ServedSegment(
            key=CODE_GREEDY,
            rows=900,
            temperatures=(2.0, 2.0, 2.0, 2.5),
            slopes=(0.5,) * GAMMA,
            intercepts=(0.25,) * GAMMA,
            statuses=(PositionStatus.OK,) * 3 + (PositionStatus.INSUFFICIENT,),
        ),
    },
    seen={"sampling_temperature": ("0",), "domain": ("code",)},
).to_dict()


def revision_of(calibration: Calibration, **fields: Any) -> Revision:
    values: dict[str, Any] = {"segments": None, "provenance": {}, **fields}
    return Revision("drafter", 2, calibration, created_at=1.0, created_by="test", **values)


def fitted(**changes: Any) -> Calibration:
    values: dict[str, Any] = {
        "temperatures": [1.5, 1.25, 1.0, 0.75],
        "gamma": GAMMA,
        "key": KEY,
        "method": "sts",
        "label_kind": "hard",
        "evidence": {"positions": FITS},
        "fitted_at": "2026-11-29T12:00:00+00:00",
    }
    return Calibration.from_temperatures(**{**values, **changes})


def document(revision: Revision, **changes: Any) -> bytes:
    values: dict[str, Any] = {"publication": 5, "published_at": 1000.0, "valid_until": None}
    return publication_document(DRAFTER, revision, **{**values, **changes})


def test_the_document_holds_every_field_and_is_canonical() -> None:
    calibration = fitted()
    body = document(revision_of(calibration), valid_until=4600.5)
    fields = json.loads(body)
    assert fields == {
        "affine": None,
        "derived_from_gamma": None,
        "digest": calibration.digest,
        "drafter": "drafter",
        "evidence": {"positions": FITS},
        "fitted_at": "2026-11-29T12:00:00+00:00",
        "gamma": 4,
        "key": KEY.digest,
        "label_kind": "hard",
        "method": "sts",
        "position_statuses": ["ok"] * 4,
        "publication": 5,
        "published_at": "1970-01-01T00:16:40.000Z",
        "revision": 2,
        "segment": None,
        "segments": None,
        "status": "fitted",
        "temperatures": [1.5, 1.25, 1, 0.75],
        "valid_until": "1970-01-01T01:16:40.500Z",
    }
    # RFC 8785 for ASCII keys and these numbers is what the standard library writes without spaces.
    shortest = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    assert body.decode() == shortest


def test_identity_is_all_ones_with_its_status() -> None:
    fields = json.loads(document(revision_of(Calibration.identity(GAMMA, KEY))))
    assert fields["status"] == "identity"
    assert fields["temperatures"] == [1, 1, 1, 1]


def test_equal_arguments_give_equal_bytes() -> None:
    assert document(revision_of(fitted())) == document(revision_of(fitted()))


def test_a_revision_of_another_gamma_is_refused() -> None:
    other = Calibration.from_temperatures([1.0], gamma=1)
    with pytest.raises(CalibrationValueError, match="gamma 4"):
        document(revision_of(other))


def test_the_full_json_variant_is_the_stored_bytes() -> None:
    body = document(revision_of(fitted()))
    assert render(body, gamma=GAMMA) is body


@given(gamma=st.integers(1, GAMMA - 1))
def test_a_shorter_gamma_gets_the_prefix_of_everything(gamma: int) -> None:
    calibration = fitted()
    full = json.loads(document(revision_of(calibration, segments=SEGMENTS)))
    short = json.loads(render(document(revision_of(calibration, segments=SEGMENTS)), gamma=gamma))
    assert short["gamma"] == gamma
    assert short["derived_from_gamma"] == GAMMA
    assert short["temperatures"] == full["temperatures"][:gamma]
    assert short["position_statuses"] == full["position_statuses"][:gamma]
    assert short["digest"] == full["digest"]
    pool, entry = short["segments"]["segments"]
    assert pool["temperatures"] == full["temperatures"][:gamma]
    assert entry["temperatures"] == [2, 2, 2, 2.5][:gamma]
    assert entry["affine"] == {"slopes": [0.5] * gamma, "intercepts": [0.25] * gamma}
    assert len(entry["statuses"]) == gamma
    assert SegmentTable.from_dict(short["segments"]).gamma == gamma  # still a table


def test_a_prefix_has_the_status_of_its_own_positions() -> None:
    statuses = [PositionStatus.OK, PositionStatus.OK, PositionStatus.AT_BOUND, PositionStatus.OK]
    body = document(revision_of(fitted(position_statuses=statuses)))
    assert json.loads(body)["status"] == "partial"
    assert json.loads(render(body, gamma=3))["status"] == "partial"
    assert json.loads(render(body, gamma=2))["status"] == "fitted"


def test_the_affine_form_is_cut_too() -> None:
    affine = Calibration(
        gamma=GAMMA,
        temperatures=(1.0, 1.0, 1.0, 1.0),
        slopes=(0.5, 0.6, 0.7, 0.8),
        intercepts=(0.1, 0.2, 0.3, 0.4),
        key=KEY,
    )
    fields = json.loads(render(document(revision_of(affine)), gamma=2))
    assert fields["affine"] == {"slopes": [0.5, 0.6], "intercepts": [0.1, 0.2]}


def test_a_longer_gamma_is_refused() -> None:
    with pytest.raises(CalibrationValueError, match="4 positions are published"):
        render(document(revision_of(fitted())), gamma=5)


def test_what_is_no_publication_is_refused() -> None:
    with pytest.raises(FormatError):
        render(b"[]", gamma=1)


def test_the_sglang_variant_is_what_the_engine_reads() -> None:
    body = render(document(revision_of(fitted())), gamma=3, media="sts")
    read = parse_sts(body, 3)
    assert read.temperatures == (1.5, 1.25, 1.0)
    assert read.dataset == "drafter"
    assert read.num_samples == 5000
    assert read.ece_before == (0.1, 1.1, 2.1)
    assert read.ece_after == (0.0, 0.01, 0.02)
    fields = json.loads(body)
    assert (fields["publication"], fields["revision"], fields["status"]) == (5, 2, "fitted")


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"positions": []},
        {"positions": [{"rows": 10, "ece_before": None, "ece_after": 0.1}] * GAMMA},
        {"positions": ["text"] * GAMMA},
        {"positions": 3},
    ],
)
def test_the_sglang_variant_leaves_out_lists_with_a_null(evidence: dict[str, Any]) -> None:
    body = render(document(revision_of(fitted(evidence=evidence))), gamma=GAMMA, media="sts")
    assert "ece_before" not in json.loads(body)
    assert parse_sts(body, GAMMA).temperatures == (1.5, 1.25, 1.0, 0.75)


def test_r65_another_sampling_temperature_is_flagged_not_matched() -> None:
    """Numbers of one bucket are not served for another: the pooled ones are, and say so."""
    body = document(revision_of(fitted(), segments=SEGMENTS))
    greedy = {"sampling_temperature": "0", "domain": "code"}
    found = json.loads(render(body, gamma=GAMMA, segment=greedy))
    assert found["temperatures"] == [2, 2, 2, 2.5]
    assert found["affine"] == {"slopes": [0.5] * 4, "intercepts": [0.25] * 4}
    assert found["segment"]["level"] == "segment"
    assert found["position_statuses"] == ["ok", "ok", "ok", "insufficient"]
    assert (found["status"], found["revision"]) == ("partial", 2)

    sampled = {"sampling_temperature": "1.0", "domain": "code"}
    found = json.loads(render(body, gamma=GAMMA, segment=sampled))
    assert found["temperatures"] == [1.5, 1.25, 1, 0.75]
    assert found["segment"] == {"requested": sampled, "matched": None, "level": "pooled"}


def test_r65_another_sampling_temperature_gets_identity_by_setting() -> None:
    body = document(revision_of(fitted(), segments=SEGMENTS))
    wanted = {"sampling_temperature": "1.0", "domain": "code"}
    found = json.loads(render(body, gamma=3, segment=wanted, unmatched="identity"))
    assert found["temperatures"] == [1, 1, 1]
    assert found["status"] == "uncalibrated"
    assert found["digest"] is None
    assert found["segment"] == {"requested": wanted, "matched": None, "level": "identity"}
    read = parse_sts(
        render(body, gamma=3, segment=wanted, media="sts", unmatched="identity"), gamma=3
    )
    assert read.temperatures == (1.0, 1.0, 1.0)


def test_numbers_of_a_segment_come_without_errors_of_the_pooled_fit() -> None:
    body = document(revision_of(fitted(), segments=SEGMENTS))
    code = {"sampling_temperature": "0", "domain": "code"}
    read = parse_sts(render(body, gamma=GAMMA, segment=code, media="sts"), GAMMA)
    assert read.temperatures == (2.0, 2.0, 2.0, 2.5)
    assert read.ece_before == ()


def test_the_maker_knows_how_long_a_publication_is_fresh() -> None:
    revision = revision_of(fitted())
    fields = json.loads(document_maker(60.0)(7, revision, DRAFTER, 1000.0))
    assert fields["publication"] == 7
    assert fields["valid_until"] == "1970-01-01T00:17:40.000Z"
    assert json.loads(document_maker()(7, revision, DRAFTER, 1000.0))["valid_until"] is None


def test_times_are_utc_and_cut_to_the_millisecond() -> None:
    assert iso_time(1764417600.1239) == "2025-11-29T12:00:00.123Z"


def test_the_digest_can_be_recomputed_from_key_and_numbers() -> None:
    """By hand: RFC 8785 of these values is the standard library's shortest form."""
    fields = json.loads(document(revision_of(fitted())))
    values = {
        "gamma": fields["gamma"],
        "intercepts": None,
        "key": KEY.to_dict(),
        "slopes": None,
        "temperatures": fields["temperatures"],
    }
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == fields["digest"]


def test_slopes_alone_leave_engines_with_temperatures_what_they_had() -> None:
    statuses = (PositionStatus.TEMPERATURE_CANNOT_FIT,) * GAMMA
    found = replace(
        fitted(position_statuses=statuses),
        slopes=(1.0,) * GAMMA,
        intercepts=(-0.5,) * GAMMA,
        status=ServingStatus.PARTIAL,
    )
    whole = document(revision_of(found))
    short = json.loads(render(whole, gamma=2))
    assert (short["status"], short["temperatures"]) == ("partial", [1.5, 1.25])
    assert short["affine"] == {"slopes": [1.0, 1.0], "intercepts": [-0.5, -0.5]}
    file = json.loads(render(whole, gamma=GAMMA, media="sts"))
    assert file["temperatures"] == [1.5, 1.25, 1.0, 0.75]
    assert "slopes" not in file
