"""TensorRT-LLM's key, and SGLang's, which its loader takes as well."""

from __future__ import annotations

import json

import pytest

from calib.errors import CalibrationValueError, FormatError
from calib.formats.tensorrt_llm import parse_tensorrt_llm, tensorrt_llm_bytes


def test_the_engines_own_key_is_written() -> None:
    data = tensorrt_llm_bytes([0.75, 1.0, 1.25], {"revision": 4})
    assert json.loads(data) == {"sts_temperatures": [0.75, 1.0, 1.25], "revision": 4}
    assert parse_tensorrt_llm(data, 3) == (0.75, 1.0, 1.25)


def test_sglangs_key_is_read() -> None:
    assert parse_tensorrt_llm(b'{"temperatures": [0.5]}') == (0.5,)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"sts_temperatures": []}', b'{"a": NaN}'])
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_tensorrt_llm(data)


def test_another_gamma_and_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(FormatError):
        parse_tensorrt_llm(tensorrt_llm_bytes([1.0, 1.0]), 3)
    for bad in ([], [0.0], [float("nan")]):
        with pytest.raises(CalibrationValueError):
            tensorrt_llm_bytes(bad)
