from __future__ import annotations

import pytest
import typer.main

from api.commands.format_group import format_group


def test_commands_stand_in_order_under_the_names_that_are_typed() -> None:
    group = typer.main.get_command(format_group("import", ("vllm_metrics", "deepspec"), "Files."))
    assert list(getattr(group, "commands")) == ["vllm-metrics", "deepspec"]  # noqa: B009
    assert group.help == "Files."


def test_a_format_without_a_module_is_no_silent_gap() -> None:
    with pytest.raises(ModuleNotFoundError, match="export_nothing"):
        format_group("export", ("nothing", "sglang"), "Files.")
