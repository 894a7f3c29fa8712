"""Names under which checkpoints of other projects keep the tensors of a DSpark drafter.

* DeepSpec and speculators, dense: ``markov_head.markov_w1.weight``, perhaps behind ``model.``;
  speculators may carry the verifier's tensors (``verifier_…``) and ``t2d``, which are training's.
* DeepSeek V4, bundled with its target: ``mtp.{i}.markov_head.…`` and, in the last layer,
  ``mtp.{i}.confidence_head.proj.weight`` without a bias. The Markov factors are also called
  ``embed`` and ``head``.
* MiniMax: everything behind ``dspark.``, perhaps within ``model.`` or ``language_model.model.``.

The heads are the same everywhere; the backbones are not. A V4 or MiniMax backbone is not built
here, but the heads of such a checkpoint can be told: :func:`head_tensors`, which
``dspark-calib doctor --checkpoint`` looks at. No torch: a header of names and shapes will do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from calib.errors import TargetLoadError

__all__ = ["Shaped", "head_tensors", "is_training_only", "plain_name"]


class Shaped(Protocol):
    """A tensor, or what a file's header says of one."""

    @property
    def shape(self) -> Any:
        """Its sizes."""


ShapedT = TypeVar("ShapedT", bound=Shaped)

_PREFIX = re.compile(r"(?:language_model\.model\.|model\.)?dspark\.|model\.")
_V4 = re.compile(r"(?:model\.)?mtp\.(?P<layer>\d+)\.(?P<rest>.+)")
_MARKOV = {
    "markov_head.embed.weight": "markov_head.markov_w1.weight",
    "markov_head.head.weight": "markov_head.markov_w2.weight",
}
_HEADS = ("markov_head.", "confidence_head.")


def plain_name(name: str) -> str:
    """A tensor's name as DeepSpec has it; V4's layers keep theirs.

    Examples:
        >>> plain_name("language_model.model.dspark.markov_head.embed.weight")
        'markov_head.markov_w1.weight'
    """
    found = _PREFIX.match(name)
    plain = name if found is None else name[found.end() :]
    return _MARKOV.get(plain, plain)


def is_training_only(name: str) -> bool:
    """Whether a tensor is of use to training alone and may be left out."""
    return plain_name(name).startswith("verifier_")


def head_tensors(tensors: Mapping[str, ShapedT]) -> dict[str, ShapedT]:
    """Markov and confidence head of a checkpoint of any of these projects, under DeepSpec's names.

    Args:
        tensors: of the drafter, or of the target that it is bundled with.

    Returns:
        Both heads' tensors. Where the confidence head has no bias (V4), there is none.

    Raises:
        TargetLoadError: neither head is there, or more than one confidence head.
    """
    found: dict[str, ShapedT] = {}
    for name in sorted(tensors, key=_layer):
        layered = _V4.fullmatch(name)
        plain = plain_name(name if layered is None else layered["rest"])
        if not plain.startswith(_HEADS):
            continue
        if plain in found and plain.startswith("confidence_head."):
            shown = tuple(tensors[name].shape)
            raise TargetLoadError(name, shown, "one confidence head was expected")
        found[plain] = tensors[name]  # of Markov factors in several layers the last counts
    if not found:
        remedy = "give a DSpark checkpoint: it has a markov_head or a confidence_head"
        raise TargetLoadError("heads", None, remedy)
    return found


def _layer(name: str) -> int:
    found = _V4.fullmatch(name)
    return -1 if found is None else int(found["layer"])
