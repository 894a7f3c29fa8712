"""Nothing of an answer is used unless all of it is right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dspark_calib_client.errors import InvalidAnswerError
from dspark_calib_client.validation import (
    Expected,
    Publication,
    checked_scales,
    etag_digest,
    read_publication,
)
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, etag_of, publication_body

EXPECTED = Expected(DRAFTER, GAMMA, KEY)


def read(body: bytes, expected: Expected = EXPECTED) -> Publication:
    return read_publication(body, etag_of(body), expected)


def kind_of(body: bytes, etag: str | None = None, expected: Expected = EXPECTED) -> str:
    with pytest.raises(InvalidAnswerError) as caught:
        read_publication(body, etag_of(body) if etag is None else etag, expected)
    return caught.value.kind


def test_a_right_answer_is_read() -> None:
    body = publication_body(
        temperatures=[0.05, 1, 20.0],
        publication=12,
        revision=4,
        valid_until="1970-01-01T00:01:40Z",
        affine={"slopes": [1.0, 2.0, 0.5], "intercepts": [-3.5, 0, 40]},
        exploration=0.005,
    )
    found = read(body)
    assert found.values == (0.05, 1.0, 20.0)
    assert all(type(value) is float for value in found.values)
    assert (found.number, found.revision, found.status) == (12, 4, "fitted")
    assert (found.slopes, found.intercepts) == ((1.0, 2.0, 0.5), (-3.5, 0.0, 40.0))
    assert (found.valid_until, found.exploration, found.key) == (100.0, 0.005, KEY)
    assert found.etag == etag_of(body)


def test_the_document_of_the_service_is_read() -> None:
    """The very bytes that the service publishes, prefix included."""
    from calib.calibration import Calibration
    from calib.calibration_key import CalibrationKey
    from monitoring.published_document import publication_document, render
    from monitoring.store.drafters import Drafter
    from monitoring.store.revisions import Revision

    key = CalibrationKey(
        "target", "1", "none", "draft", "2", "none", gamma=4, slot_convention="anchor_excluded"
    )
    numbers = Calibration.from_temperatures([1.5, 1.25, 0.75, 2], gamma=4, key=key)
    drafter = Drafter(DRAFTER, 4, key, version=3, created_at=0.0)
    revision = Revision(DRAFTER, 2, numbers, None, {}, 0.0, "tests")
    full = publication_document(
        drafter, revision, publication=5, published_at=0.0, valid_until=86400.25
    )
    for gamma in (4, 2):
        found = read(render(full, gamma=gamma), Expected(DRAFTER, gamma, key.digest))
        assert found.values == (1.5, 1.25, 0.75, 2.0)[:gamma]
        assert (found.number, found.revision, found.valid_until) == (5, 2, 86400.25)
        assert found.digest == numbers.digest


def test_any_key_will_do_where_none_is_known() -> None:
    other = publication_body(key="ee" * 32)
    assert read(other, Expected(DRAFTER, GAMMA, None)).key == "ee" * 32
    assert kind_of(other) == "other_key"


def test_an_etag_may_be_weak() -> None:
    body = publication_body()
    assert read_publication(body, "W/" + etag_of(body), EXPECTED).etag.startswith("W/")


@pytest.mark.parametrize("etag", ["", '"abc"', "abc", etag_of(b"another body"), '"' + "0" * 64])
def test_a_wrong_etag_is_refused(etag: str) -> None:
    assert kind_of(publication_body(), etag) == "wrong_etag"


def test_no_etag_is_refused() -> None:
    with pytest.raises(InvalidAnswerError, match="wrong_etag"):
        read_publication(publication_body(), None, EXPECTED)


def test_a_body_that_was_cut_is_refused() -> None:
    body = publication_body()
    for length in (0, 1, len(body) // 2, len(body) - 1):
        assert kind_of(body[:length], etag_of(body)) == "wrong_etag"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>welcome</html>",
        b"[1, 2]",
        b"null",
        b'{"drafter":',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"gamma": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert kind_of(body) == "not_json"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_that_are_no_numbers_are_refused(word: str) -> None:
    text = publication_body().decode().replace("[1.0,1.0,1.0]", f"[1.0,{word},1.0]")
    assert kind_of(text.encode()) == "bad_field"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"drafter": "another"}, "other_drafter"),
        ({"drafter": None}, "other_drafter"),
        ({"gamma": 4, "temperatures": [1.0] * 4}, "other_gamma"),
        ({"gamma": True}, "bad_field"),
        ({"gamma": "3"}, "bad_field"),
        ({"key": "ee" * 32}, "other_key"),
        ({"key": None}, "other_key"),
        ({"key": 5}, "bad_field"),
        ({"digest": "short"}, "bad_field"),
        ({"status": 1}, "bad_field"),
        ({"status": "x\ny"}, "bad_field"),
        ({"publication": None}, "bad_field"),
        ({"publication": -1}, "bad_field"),
        ({"publication": 1.0}, "bad_field"),
        ({"publication": True}, "bad_field"),
        ({"publication": 2**60}, "bad_field"),
        ({"revision": "0"}, "bad_field"),
        ({"valid_until": "tomorrow"}, "bad_field"),
        ({"valid_until": 12}, "bad_field"),
        ({"affine": [1, 2]}, "bad_field"),
        ({"affine": {"slopes": [1.0] * 3}}, "bad_field"),
        ({"affine": {"slopes": [1.0, 0.0, 1.0], "intercepts": [0.0] * 3}}, "bad_field"),
        ({"exploration": 1.5}, "bad_field"),
        ({"exploration": "all"}, "bad_field"),
    ],
)
def test_a_field_that_is_wrong_refuses_the_whole(changes: dict[str, Any], kind: str) -> None:
    assert kind_of(publication_body(**changes)) == kind


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1.0, 1.0],
        [1.0] * 4,
        [1.0, None, 1.0],
        [1.0, "1.5", 1.0],
        [1.0, True, 1.0],
        [1.0, 0.0, 1.0],
        [1.0, -1.0, 1.0],
        [1.0, 0.0499, 1.0],
        [1.0, 20.001, 1.0],
        [1.0, [1.0], 1.0],
        1.0,
        "1.0",
        {"0": 1.0},
        None,
    ],
)
def test_r69_temperatures_that_are_no_temperatures_are_refused(values: Any) -> None:
    assert kind_of(publication_body(temperatures=values)) == "bad_field"


def test_r69_numbers_beyond_a_double_are_refused() -> None:
    text = publication_body().decode()
    for huge in ("1e400", "9" * 400):
        body = text.replace("[1.0,1.0,1.0]", f"[1.0,{huge},1.0]").encode()
        assert kind_of(body) == "bad_field"


def test_scales_are_checked_on_their_own() -> None:
    assert checked_scales("baked_in", [1, 2.5], 2) == (1.0, 2.5)
    with pytest.raises(InvalidAnswerError, match="baked_in"):
        checked_scales("baked_in", [1, float("nan")], 2)


def test_etags_hold_a_digest_or_nothing() -> None:
    assert etag_digest('"' + "ab" * 32 + '"') == "ab" * 32
    assert etag_digest("*") is None
    assert etag_digest(None) is None


def test_unknown_fields_do_no_harm() -> None:
    assert read(publication_body(news="from a later service")).number == 1


def test_details_stay_short() -> None:
    body = json.dumps({"drafter": "x" * 100_000}).encode()
    with pytest.raises(InvalidAnswerError) as caught:
        read(body)
    assert len(str(caught.value)) < 200
