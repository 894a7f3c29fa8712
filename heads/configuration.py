"""Shape of a drafter, under the names that DeepSpec's ``config.json`` uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, get_args

from calib.errors import ConfigurationError

MarkovHeadType = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class DrafterConfiguration:
    """Everything needed to build a drafter's modules.

    Attributes:
        vocab_size: of the target, V.
        draft_vocab_size: tokens the drafter can propose, at most V; the mapping is a buffer of the
            drafter.
        hidden_size: of target and drafter, D.
        intermediate_size: inner width of the feed-forward layers.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads.
        head_dim: width of one head.
        num_hidden_layers: draft layers.
        target_layer_ids: layers whose outputs are the context features, -1 the embedding.
        block_size: γ, the draft positions of one block; the anchor is not one of them.
        mask_token_id: token whose embedding stands for a position yet to be drafted.
        markov_rank: r; 0 leaves the Markov head out.
        markov_head_type: vanilla, gated or rnn.
        enable_confidence_head: whether there is a confidence head.
        confidence_head_with_markov: whether it also reads W1[x_{k−1}].
        rms_norm_eps: of all norms.
        rope_theta: base of the rotary positions.
        qk_norm: whether queries and keys are normalised per head (Qwen3 does, Llama does not).
        attention_bias: whether the attention projections have biases.

    Raises:
        ConfigurationError: a value out of range, or two that exclude each other.
    """

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    target_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    markov_rank: int = 256
    markov_head_type: MarkovHeadType = "vanilla"
    enable_confidence_head: bool = True
    confidence_head_with_markov: bool = True
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    qk_norm: bool = False
    attention_bias: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_layer_ids", tuple(self.target_layer_ids))
        self._check_shapes()
        self._check_inputs()
        self._check_heads()

    def _check_shapes(self) -> None:
        for field in (
            "vocab_size",
            "draft_vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "num_hidden_layers",
            "block_size",
        ):
            if getattr(self, field) < 1:
                raise ConfigurationError(field, getattr(self, field), "give 1 or more")
        if self.draft_vocab_size > self.vocab_size:
            raise ConfigurationError(
                "draft_vocab_size",
                self.draft_vocab_size,
                f"give at most the target's vocabulary, {self.vocab_size}",
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigurationError(
                "num_key_value_heads",
                self.num_key_value_heads,
                f"give a divisor of num_attention_heads, {self.num_attention_heads}",
            )
        if self.head_dim % 2:
            raise ConfigurationError(
                "head_dim", self.head_dim, "give an even width: rotary positions turn pairs"
            )

    def _check_inputs(self) -> None:
        ids = list(self.target_layer_ids)
        if not ids or ids[0] < -1 or ids != sorted(set(ids)):
            raise ConfigurationError(
                "target_layer_ids",
                ids,
                "name target layers in rising order, each once; -1 is the embedding",
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ConfigurationError(
                "mask_token_id",
                self.mask_token_id,
                f"give a token of the target, 0 to {self.vocab_size - 1}",
            )
        for field in ("rms_norm_eps", "rope_theta"):
            if not 0.0 < getattr(self, field) < float("inf"):
                raise ConfigurationError(field, getattr(self, field), "give a number above 0")

    def _check_heads(self) -> None:
        if self.markov_rank < 0:
            raise ConfigurationError("markov_rank", self.markov_rank, "give 0 (no head) or more")
        if self.markov_head_type not in get_args(MarkovHeadType):
            raise ConfigurationError(
                "markov_head_type", self.markov_head_type, "give vanilla, gated or rnn"
            )
        markov_fed = self.enable_confidence_head and self.confidence_head_with_markov
        if markov_fed and self.markov_rank == 0:
            raise ConfigurationError(
                "markov_rank",
                0,
                "confidence_head_with_markov feeds the confidence head from the Markov head: "
                "set markov_rank above 0 or confidence_head_with_markov to false",
            )

    @property
    def gamma(self) -> int:
        """γ under the name the rest of the project uses."""
        return self.block_size

    @property
    def confidence_width(self) -> int:
        """Inputs of the confidence head."""
        return self.hidden_size + (self.markov_rank if self.confidence_head_with_markov else 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "target_layer_ids": list(self.target_layer_ids)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DrafterConfiguration:
        """Build from a ``config.json``; keys of other tools are ignored.

        Keys that DeepSpec leaves to the target's family are filled in: a missing
        ``draft_vocab_size`` is the whole vocabulary, a missing ``head_dim`` the hidden size over
        the heads, a missing ``num_key_value_heads`` all heads, and a Qwen3 drafter normalises
        queries and keys.

        Raises:
            ConfigurationError: a key is missing, of the wrong type or out of range.
        """
        known = {field.name: field for field in fields(cls)}
        given = {k: v for k, v in values.items() if k in known and v is not None}
        _fill_in(given, values)
        for name, field in known.items():
            if name in given:
                given[name] = _typed(name, str(field.type), given[name])
            elif field.default is MISSING:
                raise ConfigurationError(
                    name, None, f"add it to config.json, which has {', '.join(sorted(values))}"
                )
        return cls(**given)


def _fill_in(given: dict[str, Any], values: Mapping[str, Any]) -> None:
    """What a ``config.json`` says in other places, or leaves to its family."""
    if "vocab_size" in given:
        given.setdefault("draft_vocab_size", given["vocab_size"])
    heads, width = given.get("num_attention_heads"), given.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        given.setdefault("head_dim", width // heads)
        given.setdefault("num_key_value_heads", heads)
    rope = values.get("rope_parameters")
    if isinstance(rope, Mapping) and rope.get("rope_theta") is not None:
        given.setdefault("rope_theta", rope["rope_theta"])
    if any(str(name).startswith("Qwen3") for name in values.get("architectures") or ()):
        given.setdefault("qk_norm", True)


def _typed(name: str, kind: str, value: Any) -> Any:
    """The value, if it is of the field's type; a whole number may stand for a float."""
    expected = {
        "int": ("a whole number", isinstance(value, int) and not isinstance(value, bool)),
        "float": ("a number", isinstance(value, int | float) and not isinstance(value, bool)),
        "bool": ("true or false", isinstance(value, bool)),
        "MarkovHeadType": ("vanilla, gated or rnn", isinstance(value, str)),
        "tuple[int, ...]": (
            "a list of whole numbers",
            isinstance(value, list | tuple)
            and all(isinstance(i, int) and not isinstance(i, bool) for i in value),
        ),
    }
    words, right = expected[kind]
    if not right:
        raise ConfigurationError(name, value, f"give {words} in config.json")
    return tuple(value) if kind == "tuple[int, ...]" else value
