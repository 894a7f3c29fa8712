"""In place or not at all: the storage that captured graphs read stays, and so do wrong buffers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from dspark_calib_client import (
    ClientConfigurationError,
    Source,
    State,
    SteppedApplication,
    Temperatures,
    apply_in_place,
    refusal,
)


def temperatures(*values: float, publication: int = 2) -> Temperatures:
    return Temperatures(
        values, publication, 1, None, None, State.FRESH, Source.SERVICE, 0.0, "fitted"
    )


GOOD = temperatures(1.5, 1.25, 0.75)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_is_written_in_place(dtype: type[Any]) -> None:
    buffer = np.ones(3, dtype)
    view = buffer.view()
    assert apply_in_place(buffer, GOOD)
    assert view.tolist() == [1.5, 1.25, 0.75]
    assert buffer.dtype == dtype


def test_every_second_cell_of_an_array() -> None:
    whole = np.ones(6, np.float32)
    assert apply_in_place(whole[::2], GOOD)
    assert whole.tolist() == [1.5, 1.0, 1.25, 1.0, 0.75, 1.0]


def test_a_plain_list_of_numbers_will_do() -> None:
    buffer = np.ones(3, np.float32)
    assert apply_in_place(buffer, [1.5, 1.25, 0.75])
    assert buffer.tolist() == [1.5, 1.25, 0.75]


@pytest.mark.parametrize(
    ("buffer", "word"),
    [
        (np.ones(2, np.float32), "shape"),
        (np.ones(4, np.float32), "shape"),
        (np.ones((1, 3), np.float32), "shape"),
        (np.ones((), np.float32), "scalar"),
        (np.ones(3, np.float16), "float16"),
        (np.ones(3, np.int64), "int64"),
        (np.ones(3, np.complex64), "complex64"),
        ([1.0, 1.0, 1.0], "list"),
        (None, "NoneType"),
    ],
)
def test_a_wrong_buffer_is_left_alone(buffer: Any, word: str) -> None:
    before = repr(buffer)
    assert not apply_in_place(buffer, GOOD)
    assert repr(buffer) == before
    assert word in (refusal(buffer, GOOD) or "")


def test_a_read_only_array_is_left_alone() -> None:
    buffer = np.ones(3, np.float32)
    buffer.flags.writeable = False
    assert not apply_in_place(buffer, GOOD)
    assert "read-only" in (refusal(buffer, GOOD) or "")


@pytest.mark.parametrize(
    "values",
    [
        (float("nan"), 1.0, 1.0),
        (float("inf"), 1.0, 1.0),
        (0.0, 1.0, 1.0),
        (-1.0, 1.0, 1.0),
        (1.0, 20.5, 1.0),
        (1.0, 0.01, 1.0),
    ],
)
def test_numbers_that_no_service_publishes_touch_nothing(values: tuple[float, ...]) -> None:
    buffer = np.ones(3, np.float32)
    assert not apply_in_place(buffer, values)
    assert buffer.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("values", [None, 5, "abc", ["x", 1.0, 1.0], object()])
def test_what_is_no_vector_touches_nothing(values: Any) -> None:
    buffer = np.ones(3, np.float32)
    assert not apply_in_place(buffer, values)
    assert refusal(buffer, values)
    assert buffer.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.torch
def test_a_tensor_keeps_storage_dtype_and_device() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64):
        buffer = torch.ones(3, dtype=dtype)
        address, view = buffer.data_ptr(), buffer.view(3)
        assert apply_in_place(buffer, GOOD)
        assert view.tolist() == [1.5, 1.25, 0.75]
        assert (buffer.data_ptr(), buffer.dtype) == (address, dtype)
        assert buffer.device.type == "cpu"


@pytest.mark.torch
def test_all_kinds_of_tensors_that_engines_hold() -> None:
    torch = pytest.importorskip("torch")
    leaf = torch.ones(3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(3))
    with torch.inference_mode():
        inference = torch.ones(3)
    strided = torch.ones(6)[::2]
    for buffer in (leaf, parameter, inference, strided):
        assert apply_in_place(buffer, GOOD), buffer
        assert buffer.tolist() == [1.5, 1.25, 0.75]
    assert leaf.requires_grad
    assert leaf.grad_fn is None
    with torch.inference_mode():
        assert apply_in_place(leaf, temperatures(2.0, 2.0, 2.0))
    assert leaf.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.torch
def test_a_wrong_tensor_is_left_alone() -> None:
    torch = pytest.importorskip("torch")
    for buffer in (
        torch.tensor(1.0),
        torch.ones(2),
        torch.ones(1, 3),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float16),
        torch.ones(3, dtype=torch.int32),
    ):
        assert not apply_in_place(buffer, GOOD)
        assert (buffer == 1).all()
    assert "ones[3]" in (refusal(torch.tensor(1.0), GOOD) or "")


@pytest.mark.torch
def test_a_module_that_divides_by_its_buffer_sees_the_change() -> None:
    """As SGLang applies them: sigmoid(z / T) with a registered buffer [gamma]."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Module()
    module.register_buffer("sts_temperatures", torch.ones(3), persistent=False)
    logits = torch.tensor([[3.0, 2.5, -1.5]])
    seen_at_capture = module.sts_temperatures  # what a captured graph goes on reading
    assert apply_in_place(module.sts_temperatures, GOOD)
    expected = torch.sigmoid(torch.tensor([[2.0, 2.0, -2.0]]))
    assert torch.equal(torch.sigmoid(logits / seen_at_capture), expected)


def test_a_vector_is_applied_at_its_step() -> None:
    buffer = np.ones(3, np.float32)
    told: list[Temperatures] = []
    stepped = SteppedApplication(buffer, 3, applied=told.append)
    assert stepped.stage(GOOD, 5)
    for step in range(5):
        assert stepped.at_step(step) is None
        assert buffer.tolist() == [1.0, 1.0, 1.0]
    assert stepped.at_step(5) is GOOD
    assert buffer.tolist() == [1.5, 1.25, 0.75]
    assert stepped.at_step(6) is None
    assert told == [GOOD]
    assert stepped.late == stepped.failed == 0


def test_a_later_vector_takes_the_place_of_one_that_waits() -> None:
    buffer = np.ones(3, np.float32)
    stepped = SteppedApplication(buffer, 3)
    stepped.stage(temperatures(2.0, 2.0, 2.0), 5)
    stepped.stage(GOOD, 6)
    assert stepped.at_step(5) is None
    assert stepped.at_step(6) is GOOD


def test_a_step_that_is_left_out_is_caught_up_and_counted() -> None:
    """Going without would leave this rank different from the others for good."""
    buffer = np.ones(3, np.float32)
    stepped = SteppedApplication(buffer, 3)
    stepped.stage(GOOD, 5)
    assert stepped.at_step(7) is GOOD
    assert stepped.late == 1


def test_what_cannot_be_applied_is_not_staged() -> None:
    buffer = np.ones(3, np.float32)
    stepped = SteppedApplication(buffer, 3)
    assert not stepped.stage(temperatures(1.0, 1.0), 5)
    assert not stepped.stage(temperatures(1.0, float("nan"), 1.0), 5)
    assert not stepped.stage(None, 5)  # type: ignore[arg-type]
    assert stepped.failed == 3
    assert stepped.at_step(5) is None
    assert buffer.tolist() == [1.0, 1.0, 1.0]


def test_a_report_that_raises_is_counted() -> None:
    buffer = np.ones(3, np.float32)

    def fail(now: Temperatures) -> None:
        raise RuntimeError("broken")

    stepped = SteppedApplication(buffer, 3, applied=fail)
    stepped.stage(GOOD, 1)
    assert stepped.at_step(1) is GOOD  # the buffer holds them all the same
    assert stepped.failed == 1
    assert buffer.tolist() == [1.5, 1.25, 0.75]


def test_a_wrong_buffer_is_refused_at_start() -> None:
    with pytest.raises(ClientConfigurationError, match="shape"):
        SteppedApplication(np.ones(4, np.float32), 3)
    with pytest.raises(ClientConfigurationError, match="scalar"):
        SteppedApplication(np.ones((), np.float32), 3)


def test_staging_from_another_thread_never_mixes_vectors() -> None:
    """A thread stages as fast as it can; the steps only ever see whole vectors."""
    buffer = np.ones(3)
    stepped = SteppedApplication(buffer, 3)
    over = threading.Event()

    def stage() -> None:
        number = 0
        while not over.is_set():
            number = number % 1000 + 1
            stepped.stage(temperatures(*(1.0 + number / 1000.0,) * 3), 0)

    thread = threading.Thread(target=stage)
    thread.start()
    try:
        for step in range(5000):
            stepped.at_step(step)
            assert len(set(buffer.tolist())) == 1
    finally:
        over.set()
        thread.join(10.0)
    assert stepped.failed == 0
