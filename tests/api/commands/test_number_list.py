from __future__ import annotations

import pytest

from api.commands.number_list import number_list
from calib.errors import ConfigurationError


def test_numbers_between_commas() -> None:
    assert number_list(int, "target_layers", "8, 16,22", "8,16") == (8, 16, 22)
    assert number_list(float, "temperatures", "1.0,0.6,0", "1,0") == (1.0, 0.6, 0.0)
    assert number_list(int, "target_layers", "", "8,16") == ()


@pytest.mark.parametrize("text", ["8;16", "8,x", "1.5"])
def test_what_is_no_number_is_named_with_field_value_and_remedy(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"target_layers: got .*as 8,16") as caught:
        number_list(int, "target_layers", text, "8,16")
    assert caught.value.value == text
