"""vLLM's own acceptance estimator with the plugin around it, for ``test_vllm_estimator.py``.

The module of the wheel runs as it is: its kernels in Triton's interpreter, which must be chosen
before Triton is imported, so this is a process of its own. What stands in: packages around it
without their ``__init__``, and vLLM's way of finding Triton, which refuses one without a GPU.

Arguments: folder of the unpacked wheel, address of a service, drafter, key, γ. One round of steps
up to the estimator's first fit is verified and drafted; then the service's numbers are awaited and
one more block is drafted. Prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton loads

import numpy as np
import torch
import triton
import triton.language

ESTIMATOR = "vllm.v1.worker.gpu.spec_decode.acceptance_estimator"
PACKAGES = (
    *("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.spec_decode"),
    *("vllm.v1.worker.gpu.sample", "vllm.v1.watermarking", "vllm.v1.watermarking.prfs"),
)
ROWS, VOCABULARY, STEPS, SECONDS = 3, 6, 6, 60.0


def estimator_of(wheel: str, gamma: int) -> Any:
    """The real class, made as vLLM makes it."""
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(wheel).joinpath(*name.split(".")))]
        sys.modules[name] = package
    utils: Any = types.ModuleType("vllm.triton_utils")
    utils.triton, utils.tl, utils.HAS_TRITON = triton, triton.language, True
    utils.tldevice = importlib.import_module("triton.language.extra.libdevice")
    sys.modules[utils.__name__] = utils
    module: Any = importlib.import_module(ESTIMATOR)
    module.OnlineAcceptanceEstimator.REFIT_INTERVAL = STEPS

    from dspark_calib_client.plugins.vllm import registration

    registration.hook_estimator(module)
    return module.OnlineAcceptanceEstimator(ROWS + 1, gamma, torch.device("cpu"))


class Walk:
    """An engine without a head that drafts, verifies and lets both observe."""

    def __init__(self, url: str, drafter: str, key: str, gamma: int, estimator: Any) -> None:
        from dspark_calib_client.plugins.vllm import registration
        from tests.client.plugins.vllm.host import Engine, environment_of, request

        self.gamma, self.estimator = gamma, estimator
        engine = Engine(gamma, rows=ROWS + 1, head=False)
        load = registration.attach
        registration.attach = lambda speculator, **options: self._attach(load, speculator, options)
        self.attached = engine.start(environment_of(url, drafter, key))
        registration.attach = load
        self.runner = engine.runner
        names = [f"r{row}" for row in range(ROWS)]
        engine.add(*map(request, names))
        self.slots = torch.tensor([2, 0, 3], dtype=torch.int32)  # not the order of the batch
        self.temperatures = torch.tensor([0.5, 1.0, 1.0, 0.0])
        self.batch = SimpleNamespace(
            req_ids=names,
            num_reqs=ROWS,
            idx_mapping=self.slots,
            num_draft_tokens_per_req=np.full(ROWS, gamma),
            is_prefilling_np=np.zeros(ROWS, dtype=bool),
            seq_lens=torch.full((ROWS,), 100, dtype=torch.int32),
        )
        self.draw = torch.Generator().manual_seed(5)
        self.probabilities = torch.zeros((ROWS, gamma))

    def _attach(self, load: Any, speculator: Any, options: dict[str, Any]) -> Any:
        speculator.acceptance_estimator = self.estimator
        return load(speculator, **options)

    def draft(self) -> list[list[list[float]]]:
        """One block for each request, as the captured graph would; its logits."""
        logits = torch.randn((ROWS, self.gamma, VOCABULARY), generator=self.draw) * 1.5
        for place in range(self.gamma):
            self.estimator.predict(
                logits[:, place].contiguous(),
                self.slots,
                torch.tensor(place),
                self.probabilities,
                self.temperatures,
            )
        self.attached.after_draft(self.batch)
        found: list[list[list[float]]] = logits.tolist()
        return found

    def verify(self, *, estimator: bool = True) -> None:
        """Blocks are judged; the plugin and vLLM's estimator hear of the same."""
        admitted = torch.randint(0, self.gamma + 1, (ROWS,), generator=self.draw)
        likely = torch.sigmoid(self.estimator.features[self.slots.long()])
        passed = torch.rand((ROWS, self.gamma), generator=self.draw) < likely
        accepted = torch.minimum(admitted, passed.long().cumprod(dim=1).sum(dim=1))
        sampled, rejected = (accepted + 1).int(), (admitted - accepted).int()
        texts = SimpleNamespace(sampled_token_ids=torch.full((ROWS, self.gamma + 1), 11))
        self.attached.after_sample(self.runner, self.batch, (texts, sampled, rejected))
        if estimator:
            self.estimator.step(self.slots, sampled, rejected)


def main() -> None:
    """One round, then the service's numbers."""
    wheel, url, drafter, key, gamma = sys.argv[1:]
    estimator = estimator_of(wheel, int(gamma))
    walk = Walk(url, drafter, key, int(gamma), estimator)
    walk.attached.applies = False  # the first round is vLLM's own
    logits = [walk.draft()]
    for _ in range(STEPS - 1):
        walk.verify()
        logits.append(walk.draft())
    before = [getattr(estimator, name).tolist() for name in ("info", "grad", "counts")]
    walk.verify()  # the fit is due
    walk.attached.applies = True
    ends = time.monotonic() + SECONDS
    while walk.attached.status()["publication"] < 2 and time.monotonic() < ends:
        walk.verify(estimator=False)
        time.sleep(0.01)
    logits.append(walk.draft())
    found = {
        "logits": logits,
        "temperatures": walk.temperatures[walk.slots.long()].tolist(),
        "before": before,
        "slope": float(estimator.slope),
        "intercepts": estimator.intercepts.tolist(),
        "served": walk.probabilities.tolist(),
        "features": estimator.features[walk.slots.long()].tolist(),
        "stopped": walk.attached.stop(20.0),
        "status": walk.attached.status(),
        "steps": STEPS,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
