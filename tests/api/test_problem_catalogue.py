from __future__ import annotations

import re
from http import HTTPStatus

import pytest

from api.problem_catalogue import CATALOGUE, ProblemType, problem_type, slug_of_status


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=lambda kind: kind.slug)
def test_every_type_is_complete(kind: ProblemType) -> None:
    assert re.fullmatch(r"[a-z][a-z-]+[a-z]", kind.slug)
    assert kind.uri == f"/problems/{kind.slug}"
    assert 400 <= kind.status < 600
    assert HTTPStatus(kind.status)
    assert kind.title
    assert kind.title[0].isupper()
    assert kind.title[-1] not in ".!"
    assert kind.meaning.endswith(".")


def test_slugs_and_titles_are_unique() -> None:
    titles = [kind.title for kind in CATALOGUE.values()]
    assert len(set(titles)) == len(titles)
    assert all(slug == kind.slug for slug, kind in CATALOGUE.items())


def test_an_unknown_slug_is_a_fault_of_the_code() -> None:
    with pytest.raises(KeyError):
        problem_type("no-such-problem")


@pytest.mark.parametrize("status", [400, 401, 404, 405, 406, 409, 412, 413, 414, 415, 422, 428])
def test_a_status_has_a_general_type(status: int) -> None:
    assert problem_type(slug_of_status(status)).status == status


def test_unknown_statuses_have_one_too() -> None:
    assert slug_of_status(418) == "unreadable-request"
    assert slug_of_status(500) == "internal-error"
    assert slug_of_status(599) == "internal-error"
