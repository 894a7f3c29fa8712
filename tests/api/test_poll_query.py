from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.poll_query import POLL_PARAMETERS, PollQuery, parse_poll_query
from api.problems import ProblemError
from monitoring.segment_match import SEGMENT_TAGS

DIGEST = "a1" * 32


def faults(raw: bytes) -> dict[str, str]:
    with pytest.raises(ProblemError) as caught:
        parse_poll_query(raw)
    assert caught.value.kind.status == 422
    return {fault.pointer: fault.detail for fault in caught.value.errors}


def test_everything_an_engine_says_is_read() -> None:
    raw = urlencode(
        {
            "gamma": "7",
            "key": DIGEST,
            "wait": "30",
            "engine": "decode-0",
            "client": "0.1.0",
            "applied_publication": "3",
            "applied_revision": "-1",
            "state": "fresh",
            "segment.domain": "code & prose",
            "segment.adapter": "é",
            "something_newer": "is ignored",
        }
    ).encode()
    assert parse_poll_query(raw) == PollQuery(
        gamma=7,
        key=DIGEST,
        wait=30,
        engine="decode-0",
        client="0.1.0",
        applied_publication=3,
        applied_revision=-1,
        state="fresh",
        segment=(("adapter", "é"), ("domain", "code & prose")),
    )


def test_the_order_of_segment_tags_does_not_matter() -> None:
    one = parse_poll_query(b"gamma=7&segment.domain=a&segment.adapter=b")
    other = parse_poll_query(b"segment.adapter=b&segment.domain=a&gamma=7")
    assert one == other


def test_r70_gamma_is_stated_by_the_caller() -> None:
    assert "query:gamma" in faults(b"")
    assert "query:gamma" in faults(b"wait=1")


@pytest.mark.parametrize(
    ("raw", "pointer"),
    [
        (b"gamma=0", "query:gamma"),
        (b"gamma=255", "query:gamma"),
        (b"gamma=-7", "query:gamma"),
        (b"gamma=7.0", "query:gamma"),
        (b"gamma=", "query:gamma"),
        (b"gamma=%20%37", "query:gamma"),
        ("gamma=７".encode(), "query:"),
        (b"gamma=%EF%BC%97", "query:gamma"),  # a digit, but not an ASCII one
        (b"gamma=1e1", "query:gamma"),
        (b"gamma=99999999999999999999", "query:gamma"),
        (b"gamma=5&gamma=7", "query:gamma"),
        (b"gamma=7&wait=61", "query:wait"),
        (b"gamma=7&wait=-1", "query:wait"),
        (b"gamma=7&wait=1.5", "query:wait"),
        (b"gamma=7&wait=30s", "query:wait"),
        (b"gamma=7&key=abc", "query:key"),
        (b"gamma=7&key=" + DIGEST.upper().encode(), "query:key"),
        (b"gamma=7&engine=", "query:engine"),
        (b"gamma=7&engine=a%00b", "query:engine"),
        (b"gamma=7&engine=a%0Ab", "query:engine"),
        (b"gamma=7&engine=" + b"x" * 129, "query:engine"),
        (b"gamma=7&client=%7F", "query:client"),
        (b"gamma=7&applied_publication=-1", "query:applied_publication"),
        (b"gamma=7&applied_revision=-2", "query:applied_revision"),
        (b"gamma=7&state=new", "query:state"),
        (b"gamma=7&segment.tenant=x", "query:segment.tenant"),
        (b"gamma=7&segment.=x", "query:segment."),
        (b"gamma=7&segment.domain=", "query:segment.domain"),
        (b"gamma=7&segment.domain=a&segment.domain=b", "query:segment.domain"),
        (b"gamma=7&engine=%FF", "query:"),  # no UTF-8
        (b"&".join(b"x%d=1" % number for number in range(40)), "query:"),
    ],
)
def test_a_wrong_value_is_named(raw: bytes, pointer: str) -> None:
    assert pointer in faults(raw)


def test_every_fault_is_named_at_once() -> None:
    found = faults(b"gamma=0&wait=99&state=odd")
    assert set(found) == {"query:gamma", "query:wait", "query:state"}


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    found: PollQuery | ProblemError
    try:
        found = parse_poll_query(raw)
    except ProblemError as error:
        found = error
    if isinstance(found, ProblemError):
        assert found.kind.status == 422
    else:
        assert 1 <= found.gamma <= 254


def test_a_repeated_query_is_not_read_again() -> None:
    raw = b"gamma=7&engine=decode-17"
    assert parse_poll_query(raw) is parse_poll_query(raw)


def test_a_long_query_is_read_but_not_kept() -> None:
    raw = b"gamma=7&unknown=" + b"x" * 600
    assert parse_poll_query(raw) is not parse_poll_query(raw)


def test_the_description_names_what_is_read() -> None:
    described = {parameter["name"] for parameter in POLL_PARAMETERS}
    segments = {f"segment.{tag}" for tag in SEGMENT_TAGS}
    fields = {"gamma", "key", "wait", "engine", "client"}
    fields |= {"applied_publication", "applied_revision", "state"}
    assert described == fields | segments
    assert [p["name"] for p in POLL_PARAMETERS if p["required"]] == ["gamma"]


def test_the_examples_of_the_description_are_valid() -> None:
    examples = {parameter["name"]: str(parameter["example"]) for parameter in POLL_PARAMETERS}
    assert parse_poll_query(urlencode(examples).encode()).gamma == 7
