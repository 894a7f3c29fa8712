"""Keys of requests: which are allowed, and which are running."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from api.idempotency import LONGEST_KEY, RunningRequests, fingerprint, idempotency_key
from api.problems import ProblemError


def headers(*values: str) -> Headers:
    return Headers(raw=[(b"idempotency-key", value.encode("latin-1")) for value in values])


@pytest.mark.parametrize(
    "key",
    ["a", "8e03978e-40d5-43dd-bc93-6894a57f9324", '"quoted"', "~!@#$%^&*()", "k" * LONGEST_KEY],
)
def test_keys_that_are_taken(key: str) -> None:
    assert idempotency_key(headers(key)) == key


def test_no_key() -> None:
    assert idempotency_key(headers()) is None


@pytest.mark.parametrize(
    "values",
    [
        [""],
        [" "],
        ["a b"],
        ["a\tb"],
        ["schlüssel"],
        ["k" * (LONGEST_KEY + 1)],
        ["a", "b"],
        ["a", "a"],
    ],
)
def test_keys_that_are_refused(values: list[str]) -> None:
    with pytest.raises(ProblemError) as caught:
        idempotency_key(headers(*values))
    assert caught.value.kind.status == 422
    assert caught.value.errors[0].pointer == "header:idempotency-key"


def test_a_running_key_is_refused_until_it_has_ended() -> None:
    running = RunningRequests()
    end = running.claim("drafter", "token", "key")
    with pytest.raises(ProblemError) as caught:
        running.claim("drafter", "token", "key")
    assert (caught.value.kind.status, caught.value.kind.slug) == (409, "request-in-progress")
    assert caught.value.headers["Retry-After"] == "1"
    running.claim("other", "token", "key")
    running.claim("drafter", "other", "key")
    end()
    end()
    running.claim("drafter", "token", "key")


def test_fingerprints_tell_parts_apart() -> None:
    assert fingerprint(b"ab", b"c") != fingerprint(b"a", b"bc")
    assert fingerprint(b"a") == fingerprint(b"a")
    assert len(fingerprint(b"")) == 64
