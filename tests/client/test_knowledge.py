"""The rules by which what is known may change."""

from __future__ import annotations

from typing import Any

import pytest

from dspark_calib_client.errors import InvalidAnswerError
from dspark_calib_client.knowledge import BakedIn, Knowledge
from dspark_calib_client.temperatures import Source
from dspark_calib_client.validation import Expected, Publication, read_publication
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, etag_of, publication_body

EXPECTED = Expected(DRAFTER, GAMMA, KEY)


def publication(number: int, first: float = 1.0, **changes: Any) -> Publication:
    body = publication_body(publication=number, temperatures=[first, 1.0, 1.0], **changes)
    key = changes.get("key", KEY)
    return read_publication(body, etag_of(body), Expected(DRAFTER, GAMMA, key))


def accept(knowledge: Knowledge, new: Publication, source: Source = Source.SERVICE) -> bool:
    return knowledge.accept(knowledge.question(), new, source, 0.0)


def test_it_begins_with_identity_or_what_is_baked_in() -> None:
    assert Knowledge(EXPECTED, None).held.source is Source.IDENTITY
    assert Knowledge(EXPECTED, BakedIn((1.5,) * 3)).held.source is Source.BAKED_IN


def test_publications_only_grow() -> None:
    knowledge = Knowledge(EXPECTED, None)
    assert accept(knowledge, publication(3, 1.5))
    assert accept(knowledge, publication(5, 1.25))
    with pytest.raises(InvalidAnswerError, match="publication_went_back: 4 after 5"):
        accept(knowledge, publication(4, 2.0))
    held = knowledge.held.publication
    assert held is not None
    assert (held.number, held.values[0]) == (5, 1.25)


def test_the_file_counts_too() -> None:
    knowledge = Knowledge(EXPECTED, None)
    accept(knowledge, publication(7), Source.FILE)
    with pytest.raises(InvalidAnswerError, match="publication_went_back"):
        accept(knowledge, publication(6))


def test_a_publication_has_one_meaning() -> None:
    knowledge = Knowledge(EXPECTED, None)
    accept(knowledge, publication(3, 1.5))
    assert not accept(knowledge, publication(3, 1.5))
    with pytest.raises(InvalidAnswerError, match="publication_conflict"):
        accept(knowledge, publication(3, 1.75))
    # Other words about the same numbers are no conflict.
    assert accept(knowledge, publication(3, 1.5, evidence={"rows": 9}))


def test_exploration_may_rise_and_fall_under_one_publication() -> None:
    knowledge = Knowledge(EXPECTED, None)
    accept(knowledge, publication(3, 1.5), Source.FILE)
    for share in (0.005, None, 0.001):
        more = {} if share is None else {"exploration": share}
        assert accept(knowledge, publication(3, 1.5, **more))
        held = knowledge.held.publication
        assert held is not None
        assert (held.number, held.exploration) == (3, share)
        assert knowledge.question().etag == held.etag


def test_a_segment_may_be_matched_anew() -> None:
    knowledge = Knowledge(EXPECTED, None, one_segment=True)
    accept(knowledge, publication(3, 1.5))
    assert accept(knowledge, publication(3, 1.75))


def test_another_key_begins_a_new_count_where_none_was_asked_for() -> None:
    knowledge = Knowledge(Expected(DRAFTER, GAMMA, None), None)
    accept(knowledge, publication(9, 1.5))
    assert accept(knowledge, publication(1, 1.0, key="ee" * 32))


def test_the_etag_is_asked_with_and_confirmed() -> None:
    knowledge = Knowledge(EXPECTED, None)
    assert knowledge.question().etag is None
    new = publication(3)
    accept(knowledge, new, Source.FILE)
    question = knowledge.question()
    assert question.etag == new.etag
    assert not knowledge.key_confirmed
    knowledge.confirm(question, 42.0)
    assert (knowledge.held.source, knowledge.held.confirmed_at) == (Source.SERVICE, 42.0)
    assert knowledge.key_confirmed


def test_a_mismatch_is_identity_at_once_and_a_new_count() -> None:
    knowledge = Knowledge(EXPECTED, BakedIn((1.5,) * 3))
    accept(knowledge, publication(9, 2.0))
    assert knowledge.mismatch(knowledge.question())
    assert knowledge.held.source is Source.IDENTITY  # not what is baked in: it has a key too
    assert knowledge.held.mismatch
    assert not knowledge.key_confirmed
    assert knowledge.question().etag is None
    assert accept(knowledge, publication(1, 1.1))
    assert not knowledge.held.mismatch


def test_a_key_change_voids_answers_on_their_way() -> None:
    knowledge = Knowledge(EXPECTED, None)
    accept(knowledge, publication(9, 2.0))
    old = knowledge.question()
    knowledge.change_key("ee" * 32, BakedIn((1.25,) * 3))
    assert knowledge.held.source is Source.BAKED_IN
    assert knowledge.key == "ee" * 32
    assert not knowledge.accept(old, publication(10, 3.0), Source.SERVICE, 0.0)
    assert not knowledge.mismatch(old)
    knowledge.confirm(old, 1.0)
    assert knowledge.held.source is Source.BAKED_IN
    assert not knowledge.key_confirmed
    assert accept(knowledge, publication(1, 1.0, key="ee" * 32))


def test_without_a_key_nothing_needs_to_be_confirmed() -> None:
    assert Knowledge(Expected(DRAFTER, GAMMA, None), None).key_confirmed


def test_older_publications_can_be_allowed() -> None:
    knowledge = Knowledge(EXPECTED, None)
    accept(knowledge, publication(9, 2.0))
    knowledge.forget_publications()
    held = knowledge.held.publication
    assert held is not None
    assert held.values[0] == 2.0  # in use until there is something else
    assert not knowledge.question().etag
    assert accept(knowledge, publication(2, 1.5))


def test_a_child_can_lock() -> None:
    knowledge = Knowledge(EXPECTED, None)
    with knowledge._lock:
        knowledge.reset_lock_after_fork()
        knowledge.question()
