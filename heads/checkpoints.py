"""Drafters on disk, under the names that DeepSpec gives their tensors and options.

A drafter is a folder with ``model.safetensors`` and ``config.json``. Token embedding and
language-model head are the frozen target's and are left out; where a foreign checkpoint carries
them they are checked against the target. A reduced draft vocabulary adds ``d2t`` [V'], target id
minus draft id. ``config.json`` holds DeepSpec's keys and, under ``dspark_calib``, what only this
project reads: the digest of the weights, what was left out, and how the drafter was made.

Letters: V target vocabulary, V' draft vocabulary, D hidden size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as dump_safetensors
from torch import Tensor

from calib.atomic_files import write_bytes_atomically
from calib.canonical_json import parse_json_object, plain_json
from calib.errors import FormatError, TargetLoadError
from heads.checkpoint_names import is_training_only, plain_name
from heads.configuration import DrafterConfiguration
from heads.drafter import Drafter
from heads.targets import HuggingFaceTarget

WEIGHTS_FILE = "model.safetensors"
CONFIGURATION_FILE = "config.json"
_OWN_KEY = "dspark_calib"
_PREFIX = "model."
_TARGET_TENSORS = ("embed_tokens.weight", "lm_head.weight")
# Of no use here: t2d is the inverse of d2t, frequencies follow from the configuration.
_IGNORED = ("t2d", "rotary_emb.inv_freq")
# Quantising a target moves its embedding by a few percent; another target's shares nothing.
_LARGEST_DIFFERENCE = 0.25


def save_drafter(
    drafter: Drafter,
    folder: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    extra: Mapping[str, Any] | None = None,
    num_target_layers: int | None = None,
) -> str:
    """Write a drafter and return the SHA-256 of its weights file.

    Each file is replaced atomically, and the configuration, written last, names the weights'
    digest: a folder that was cut off between the two does not load.

    Args:
        drafter: what to save; embedding and head stay with the target.
        folder: made when missing.
        dtype: of the floating-point weights in the file.
        extra: how the drafter was made, plain JSON values.
        num_target_layers: stated in the configuration where given, as DeepSpec does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = dump_safetensors(_tensors_to_save(drafter, dtype), metadata={"format": "pt"})
    digest = hashlib.sha256(data).hexdigest()
    own = {
        "format": 1,
        "left_to_target": list(_TARGET_TENSORS),
        "provenance": plain_json(dict(extra or {}), "extra"),
        "weights_sha256": digest,
    }
    values = {
        **_family(drafter.configuration),
        **drafter.configuration.to_dict(),
        "dtype": str(dtype).removeprefix("torch."),
        _OWN_KEY: own,
    }
    if num_target_layers is not None:
        values["num_target_layers"] = num_target_layers
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_bytes_atomically(folder / WEIGHTS_FILE, data)
    write_bytes_atomically(folder / CONFIGURATION_FILE, text.encode() + b"\n")
    return digest


def read_configuration(folder: Path) -> DrafterConfiguration:
    """The configuration of a saved drafter.

    Raises:
        TargetLoadError: the folder has none.
        FormatError: it is no JSON object.
        ConfigurationError: a key is missing, of the wrong type or out of range.
    """
    return DrafterConfiguration.from_dict(_read_values(folder))


def load_drafter(
    folder: Path, target: HuggingFaceTarget, *, new_confidence_head: bool = False
) -> Drafter:
    """A saved drafter in float32 over the target's embedding and head, in evaluation mode.

    Args:
        folder: written by :func:`save_drafter`, or a dense checkpoint of DeepSpec; names may
            begin with ``model.`` or ``dspark.``.
        target: the target it was trained for.
        new_confidence_head: leave the saved confidence head, if any, and start a new one.

    Raises:
        TargetLoadError: files or tensors that are missing, superfluous or of the wrong shape,
            weights that are not finite, or another target.
        FormatError: a file that is damaged, or weights that the configuration does not belong to.
        ConfigurationError: see :func:`read_configuration`.
    """
    values = _read_values(folder)
    if new_confidence_head:
        values = {**values, "enable_confidence_head": False}
    configuration = DrafterConfiguration.from_dict(values)
    _check_target(configuration, target)
    tensors = _read_tensors(folder, values)
    for name in _TARGET_TENSORS:
        _check_target_tensor(name, tensors.pop(name, None), target)
    embedding, head = target.embed_tokens.weight.float(), target.lm_head.weight.float()
    drafter = Drafter(configuration, embedding, head, _mapping(configuration, tensors))
    if new_confidence_head:
        tensors = {n: t for n, t in tensors.items() if not n.startswith("confidence_head.")}
    _fill(drafter, tensors)
    if new_confidence_head:
        drafter.renew_confidence_head()
    return drafter.eval()


def _tensors_to_save(drafter: Drafter, dtype: torch.dtype) -> dict[str, Tensor]:
    reduced = drafter.configuration.draft_vocab_size < drafter.configuration.vocab_size
    return {
        name.removeprefix(_PREFIX): (value.to(dtype) if value.is_floating_point() else value)
        .detach()
        .cpu()
        .contiguous()
        for name, value in drafter.state_dict().items()
        if reduced or name != "d2t"
    }


def _family(configuration: DrafterConfiguration) -> dict[str, Any]:
    """Keys that say to an engine which kind of model this is."""
    family = "Qwen3" if configuration.qk_norm else "Llama"
    return {
        "architectures": [f"{family}DSparkModel"],
        "hidden_act": "silu",
        "model_type": family.lower(),
        # Engines read a missing key in opposite ways.
        "sample_from_anchor": True,
        "tie_word_embeddings": False,
    }


def _read_values(folder: Path) -> dict[str, Any]:
    path = folder / CONFIGURATION_FILE
    return parse_json_object(_read_bytes(path), str(path))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TargetLoadError(
            "drafter",
            str(path),
            f"give a folder with {CONFIGURATION_FILE} and {WEIGHTS_FILE} ({error.strerror})",
        ) from error


def _read_tensors(folder: Path, values: Mapping[str, Any]) -> dict[str, Tensor]:
    path = folder / WEIGHTS_FILE
    data = _read_bytes(path)
    own = values.get(_OWN_KEY)
    stated = own.get("weights_sha256") if isinstance(own, Mapping) else None
    if stated is not None and stated != hashlib.sha256(data).hexdigest():
        raise FormatError(
            path, f"not the weights that {CONFIGURATION_FILE} names", "copy the whole folder again"
        )
    try:
        tensors = load_safetensors(data)
    except SafetensorError as error:
        raise FormatError(path, f"no safetensors file ({error})", "copy it again") from error
    return {
        plain_name(name): tensor for name, tensor in tensors.items() if not is_training_only(name)
    }


def _check_target(configuration: DrafterConfiguration, target: HuggingFaceTarget) -> None:
    for name, found in (("vocab_size", target.vocab_size), ("hidden_size", target.hidden_size)):
        stated = getattr(configuration, name)
        if stated != found:
            raise TargetLoadError(
                name, stated, f"load the drafter of this target: {target.name} has {found}"
            )
    layers = int(target.config.num_hidden_layers)
    if configuration.target_layer_ids[-1] >= layers:
        raise TargetLoadError(
            "target_layer_ids",
            list(configuration.target_layer_ids),
            f"load the drafter of this target: {target.name} has layers 0 to {layers - 1}",
        )


def _check_target_tensor(name: str, tensor: Tensor | None, target: HuggingFaceTarget) -> None:
    """A checkpoint's copy of a target tensor must be the target's, up to quantisation."""
    if tensor is None:
        return
    module = target.embed_tokens if name == _TARGET_TENSORS[0] else target.lm_head
    own = module.weight.float().cpu()
    if tensor.shape != own.shape:
        raise TargetLoadError(
            name, tuple(tensor.shape), f"{target.name} has {list(own.shape)}: load its own drafter"
        )
    difference = float((tensor.float() - own).norm() / own.norm().clamp(min=1e-12))
    if not difference <= _LARGEST_DIFFERENCE:
        raise TargetLoadError(
            name,
            f"relative difference {difference:.3g}",
            f"this drafter was made for another target than {target.name}",
        )


def _mapping(configuration: DrafterConfiguration, tensors: dict[str, Tensor]) -> Tensor | None:
    """Target id of each draft id; takes ``d2t`` out of the tensors."""
    offsets = tensors.pop("d2t", None)
    if offsets is None:
        if configuration.draft_vocab_size < configuration.vocab_size:
            raise TargetLoadError(
                "d2t",
                None,
                f"a draft vocabulary of {configuration.draft_vocab_size} of "
                f"{configuration.vocab_size} tokens needs it: copy the whole checkpoint",
            )
        return None
    if offsets.dim() != 1 or offsets.is_floating_point():
        shown = f"{offsets.dtype} {tuple(offsets.shape)}"
        raise TargetLoadError("d2t", shown, f"give {configuration.draft_vocab_size} whole numbers")
    return offsets.long() + torch.arange(len(offsets))


def _fill(drafter: Drafter, tensors: Mapping[str, Tensor]) -> None:
    own = {n.removeprefix(_PREFIX): t for n, t in drafter.state_dict().items() if n != "d2t"}
    given = {n: t for n, t in tensors.items() if not n.endswith(_IGNORED)}
    missing = sorted(own.keys() - given.keys())
    if missing:
        raise TargetLoadError("weights", f"no {', '.join(missing)}", _remedy(drafter))
    unknown = sorted(given.keys() - own.keys())
    if unknown:
        raise TargetLoadError("weights", f"also {', '.join(unknown)}", _remedy(drafter))
    for name, value in own.items():
        tensor = given[name]
        if tensor.shape != value.shape or not tensor.is_floating_point():
            shown = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise TargetLoadError(name, shown, f"{_remedy(drafter)}: {list(value.shape)}")
        if not bool(tensor.isfinite().all()):
            raise TargetLoadError(name, "NaN or infinity", "train the drafter again")
        value.copy_(tensor)


def _remedy(drafter: Drafter) -> str:
    configuration = drafter.configuration
    return (
        f"give the weights that {CONFIGURATION_FILE} describes, {configuration.num_hidden_layers} "
        f"layers, {configuration.markov_head_type} Markov head of rank {configuration.markov_rank}"
    )
