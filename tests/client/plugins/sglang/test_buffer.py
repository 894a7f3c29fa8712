from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.common.compatibility import AsideError  # noqa: E402
from dspark_calib_client.plugins.sglang.buffer import install_vector  # noqa: E402
from tests.client.plugins.sglang.host import Head  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_scalar_becomes_a_vector_of_the_same_number() -> None:
    head = Head()
    assert install_vector(head, 5, "cpu") == (1.0,) * 5
    assert (head.sts_temperatures.shape, head.sts_temperatures.dtype) == ((5,), torch.float32)
    assert "sts_temperatures" not in head.state_dict()  # still no part of a checkpoint


def test_a_vector_from_a_file_stays_the_same_tensor() -> None:
    head = Head()
    head.sts_temperatures = torch.tensor([1.5, 2.0])
    before = head.sts_temperatures
    assert install_vector(head, 2, "cpu") == (1.5, 2.0)
    assert head.sts_temperatures is before


@pytest.mark.parametrize(
    "found", [torch.ones(3), torch.ones(2, dtype=torch.float16), torch.ones(2).int()]
)
def test_another_kind_of_buffer_is_refused(found: torch.Tensor) -> None:
    head = Head()
    head.sts_temperatures = found
    with pytest.raises(AsideError):
        install_vector(head, 2, "cpu")
    with pytest.raises(AsideError, match="no tensor"):
        install_vector(object(), 2, "cpu")
