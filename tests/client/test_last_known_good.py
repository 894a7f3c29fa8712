"""The last-known-good file: written whole, believed only when everything about it is right."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from dspark_calib_client.errors import InvalidFileError
from dspark_calib_client.last_known_good import LastKnownGoodFile
from dspark_calib_client.validation import Expected, read_publication
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, etag_of, publication_body

EXPECTED = Expected(DRAFTER, GAMMA, KEY)


def save(path: Path, expected: Expected = EXPECTED, **changes: Any) -> None:
    body = publication_body(publication=4, temperatures=[1.5, 1.25, 1.0], **changes)
    found = read_publication(body, etag_of(body), expected)
    LastKnownGoodFile(path, {}).save(body, found, expected, 1000.5)


def kind_of(path: Path, expected: Expected = EXPECTED) -> str:
    with pytest.raises(InvalidFileError) as caught:
        LastKnownGoodFile(path, {}).load(expected)
    return caught.value.kind


def rewrite(path: Path, **changes: Any) -> None:
    """Change fields and make the checksum right again."""
    fields = {**json.loads(path.read_bytes().partition(b"\n")[2]), **changes}
    rest = json.dumps(fields).encode()
    path.write_bytes(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    save(path)
    found = LastKnownGoodFile(path, {}).load(EXPECTED)
    assert found is not None
    assert found.received_at == 1000.5
    assert found.publication.values == (1.5, 1.25, 1.0)
    assert found.publication.number == 4


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert LastKnownGoodFile(tmp_path / "none", {}).load(EXPECTED) is None


def test_every_cut_and_every_flipped_byte_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "good.json"
    save(path)
    whole = path.read_bytes()
    for length in (0, 1, 64, 65, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert kind_of(path) == "file_corrupt"
    for place in range(0, len(whole), 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert kind_of(path) == "file_corrupt"


@pytest.mark.parametrize(
    "expected",
    [
        Expected("another", GAMMA, KEY),
        Expected(DRAFTER, 2, KEY),
        Expected(DRAFTER, GAMMA, "ee" * 32),
    ],
)
def test_a_file_of_something_else_is_foreign(tmp_path: Path, expected: Expected) -> None:
    save(tmp_path / "good.json")
    assert kind_of(tmp_path / "good.json", expected) == "file_foreign"


def test_a_file_of_another_segment_is_foreign(tmp_path: Path) -> None:
    save(tmp_path / "good.json")
    with pytest.raises(InvalidFileError, match="file_foreign"):
        LastKnownGoodFile(tmp_path / "good.json", {"domain": "code"}).load(EXPECTED)


def test_without_a_key_any_key_will_do(tmp_path: Path) -> None:
    save(tmp_path / "good.json")
    file = LastKnownGoodFile(tmp_path / "good.json", {})
    assert file.load(Expected(DRAFTER, GAMMA, None)) is not None


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"format": "something/2"}, "file_foreign"),
        ({"body": "{}"}, "file_corrupt"),
        ({"body": None}, "file_corrupt"),
        ({"etag": '"' + "0" * 64 + '"'}, "file_corrupt"),
        ({"etag": 7}, "file_corrupt"),
        ({"received_at": "yesterday"}, "file_corrupt"),
        ({"received_at": float("nan")}, "file_corrupt"),
    ],
)
def test_a_right_checksum_is_not_enough(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    save(tmp_path / "good.json")
    rewrite(tmp_path / "good.json", **changes)
    assert kind_of(tmp_path / "good.json") == kind


@pytest.mark.parametrize("rest", [b"[1]", b"nothing", b"[" * 100_000])
def test_a_checksum_of_something_else(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "good.json"
    path.write_bytes(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
    assert kind_of(path) in ("file_corrupt", "file_foreign")


def test_odd_files_do_not_hold_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert kind_of(tmp_path / "pipe") == "file_corrupt"
    assert kind_of(tmp_path) in ("file_corrupt", "file_unreadable")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(2**30)
    assert kind_of(tmp_path / "huge") == "file_corrupt"
    assert kind_of(Path("nul\0byte")) == "file_unreadable"


def test_saving_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    for _ in range(3):
        save(tmp_path / "good.json")
    assert [path.name for path in tmp_path.iterdir()] == ["good.json"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "good.json"
    save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(path, evidence={"rows": 3})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["good.json"]


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        save(tmp_path / "nowhere" / "good.json")


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    link = tmp_path / "link.json"
    save(real)
    link.symlink_to(real)
    save(link, evidence={"rows": 3})
    assert link.is_symlink()
    assert b"rows" in real.read_bytes()
    LastKnownGoodFile(link, {}).remove()
    assert not real.exists()


def test_removing_twice_is_no_error(tmp_path: Path) -> None:
    save(tmp_path / "good.json")
    file = LastKnownGoodFile(tmp_path / "good.json", {})
    file.remove()
    file.remove()
    assert file.load(EXPECTED) is None


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """Four writers replace the file while it is read 500 times."""
    path = tmp_path / "good.json"
    save(path)
    over = threading.Event()

    def write() -> None:
        count = 0
        while not over.is_set():
            count += 1
            save(path, evidence={"rows": count})

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            assert LastKnownGoodFile(path, {}).load(EXPECTED) is not None
    finally:
        over.set()
        for thread in threads:
            thread.join(30.0)
