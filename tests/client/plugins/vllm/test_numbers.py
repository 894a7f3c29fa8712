"""Slopes and intercepts change together, at their step, in the memory they have."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client import Source, State, Temperatures  # noqa: E402
from dspark_calib_client.plugins.vllm.numbers import ServedNumbers  # noqa: E402

pytestmark = pytest.mark.torch


def answer(*values: float, **more: Any) -> Temperatures:
    plain = (2, 1, None, None, State.FRESH, Source.SERVICE, 0.0)
    return Temperatures(values, *plain, **more)


def test_temperatures_are_slopes_without_intercept() -> None:
    told: list[str] = []
    numbers = ServedNumbers(2, "cpu", applied=lambda _, form: told.append(form))
    address = numbers.tensor.data_ptr()
    assert numbers.stage(answer(2.0, 0.5), 7)
    assert numbers.at_step(6) is None
    assert numbers.tensor.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert numbers.at_step(7) is not None
    assert numbers.tensor.tolist() == [[0.5, 2.0], [0.0, 0.0], [1.0, 1.0]]
    assert numbers.tensor.data_ptr() == address
    assert (told, numbers.late) == (["temperatures"], 0)


def test_identity_leaves_the_engines_own_estimate_on() -> None:
    numbers = ServedNumbers(2, "cpu")
    numbers.stage(answer(2.0, 2.0), 0)
    numbers.at_step(0)
    numbers.stage(answer(1.0, 1.0), 1)
    numbers.at_step(2)  # a step was left out
    assert numbers.tensor[2].tolist() == [0.0, 0.0]
    assert numbers.late == 1


def test_a_listener_that_fails_does_not_undo_them() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no")

    numbers = ServedNumbers(1, "cpu", applied=broken)
    numbers.stage(answer(2.0), 0)
    assert numbers.at_step(0) is not None
    assert (numbers.tensor[0].item(), numbers.failed) == (0.5, 1)
