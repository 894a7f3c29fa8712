from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from api import publication_variants
from api.publication_variants import Published
from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from monitoring.published_document import publication_document
from monitoring.store.drafters import Drafter
from monitoring.store.publications import Publication
from monitoring.store.revisions import Revision
from tests.support.service import KEY

KEY_7 = CalibrationKey.from_dict(KEY)
DRAFTER = Drafter("drafter", 7, KEY_7, version=1, created_at=0.0)


def published(number: int = 3) -> Published:
    calibration = Calibration.from_temperatures([1.5] * 7, gamma=7, key=KEY_7)
    revision = Revision("drafter", 1, calibration, None, {}, 0.0, "test")
    body = publication_document(
        DRAFTER, revision, publication=number, published_at=0.0, valid_until=None
    )
    return Published(DRAFTER, Publication("drafter", number, 1, 0.0, None, body))


def test_the_tag_is_the_digest_of_the_body() -> None:
    variant = published().variant(gamma=5)
    digest = hashlib.sha256(variant.body).hexdigest()
    assert variant.tag == f'"{digest}"'
    assert variant.tag_bytes == variant.tag.encode()
    assert json.loads(variant.body)["gamma"] == 5


def test_headers_say_what_was_answered() -> None:
    variant = published(number=12).variant(gamma=7, media="sts")
    headers = dict(variant.headers)
    assert headers == {
        b"content-type": b"application/vnd.sglang.dspark-sts+json",
        b"content-length": str(len(variant.body)).encode(),
        b"etag": variant.tag_bytes,
        b"cache-control": b"no-cache, stale-if-error=86400",
        b"vary": b"Accept",
        b"publication": b"12",
    }
    unchanged = dict(variant.unchanged_headers)
    assert unchanged == {k: v for k, v in headers.items() if not k.startswith(b"content-")}


def test_a_variant_is_made_once() -> None:
    held = published()
    assert held.variant(gamma=7) is held.variant(gamma=7)
    tags = {
        held.variant(gamma=7).tag,
        held.variant(gamma=6).tag,
        held.variant(gamma=7, media="sts").tag,
        held.variant(gamma=7, segment=(("domain", "code"),)).tag,
    }
    assert len(tags) == 4


def test_two_replicas_make_the_same_bytes() -> None:
    one, other = published(), published()
    for gamma in range(1, 8):
        assert one.variant(gamma=gamma).body == other.variant(gamma=gamma).body


def test_variants_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_variants, "_MOST_VARIANTS", 10)
    held = published()
    for number in range(35):
        held.variant(gamma=7, segment=(("domain", f"d{number}"),))
        assert len(held._variants) <= 10


def test_a_shorter_engine_may_send_its_own_key() -> None:
    """Its key differs in gamma alone, and the prefix is meant for it."""
    held = published()
    shorter = replace(KEY_7, gamma=5)
    assert held.accepted_digests(5) == {KEY_7.digest, shorter.digest}
    assert held.accepted_digests(7) == {KEY_7.digest}
    assert shorter.digest not in held.accepted_digests(6)
