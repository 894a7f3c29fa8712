from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import KEY, Service, empty_database, running_service

PATH = "/v1/drafters/drafter"
BODY = json.dumps({"key": KEY}).encode()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Service]:
    """A service that reads at most 1,024 bytes of JSON."""
    with running_service(empty_database(tmp_path), max_json_bytes=1024) as service:
        yield service


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/x+json",
    ],
)
def test_json_is_read(service: Service, media_type: str) -> None:
    answer = service.client.put(PATH, content=BODY, headers={"Content-Type": media_type})
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/xml"},
        {"Content-Type": "json"},
        {"Content-Type": "application/"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
def test_another_form_is_415(service: Service, headers: dict[str, str]) -> None:
    answer = service.client.put(PATH, content=BODY, headers=headers)
    assert answer.status_code == 415
    assert answer.json()["supported"]


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"key": }',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"key": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b"1" * 5000,
        b"\x00",
        b"{} {}",
    ],
    ids=["cut", "hole", "bytes", "open", "deep", "long number", "nul", "two"],
)
def test_what_is_no_json_is_4xx(service: Service, raw: bytes) -> None:
    answer = service.client.put(PATH, content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_body_beyond_the_limit_is_413(small: Service) -> None:
    headers = {"Content-Type": "application/json"}
    large = BODY + b" " * 1024
    answer = small.client.put(PATH, content=large, headers=headers)
    assert answer.status_code == 413
    assert answer.json()["limit_bytes"] == 1024
    assert answer.headers["Connection"] == "close"


def test_a_body_of_unknown_length_is_counted(small: Service) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 100

    headers = {"Content-Type": "application/json"}
    answer = small.client.put(PATH, content=chunks(), headers=headers)
    assert answer.status_code == 413


@pytest.mark.parametrize("length", ["-1", "x", "1e3"])
def test_a_length_that_is_none_does_no_harm(service: Service, length: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": length}
    answer = service.client.put(PATH, content=BODY, headers=headers)
    assert answer.status_code in (201, 400)


def test_a_body_within_the_limit_is_read(small: Service) -> None:
    padded = BODY + b" " * (1024 - len(BODY))
    headers = {"Content-Type": "application/json"}
    assert small.client.put(PATH, content=padded, headers=headers).status_code == 201


def test_a_missing_body_is_named(service: Service) -> None:
    answer = service.client.put(PATH)
    assert answer.status_code == 422
    assert answer.json()["errors"]
