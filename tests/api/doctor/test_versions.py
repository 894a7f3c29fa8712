from __future__ import annotations

import pytest

from api.doctor.findings import Level
from api.doctor.versions import KNOWN, version_finding
from dspark_calib_client.plugins.sglang.compatibility import KNOWN as SGLANG
from dspark_calib_client.plugins.vllm.compatibility import KNOWN as VLLM


def test_the_versions_are_those_of_the_plugins() -> None:
    """The service is installed without the client, so it says them itself."""
    assert {known.package: (known.oldest, known.newest) for known in (SGLANG, VLLM)} == KNOWN


@pytest.mark.parametrize(
    ("engine", "version", "level"),
    [
        ("sglang", "0.5.22", Level.OK),
        ("sglang", "0.5.23.post1", Level.OK),
        ("sglang", "0.5.24", Level.FAIL),
        ("vllm", "0.32.1", Level.FAIL),
        ("vllm", "dev", Level.UNKNOWN),
    ],
)
def test_versions(engine: str, version: str, level: Level) -> None:
    assert version_finding(engine, version).level is level
