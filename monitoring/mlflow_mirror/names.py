"""Names that MLflow accepts, decided before it is asked.

MLflow refuses ``/`` and ``:`` in names of registered models, most signs in metric keys, and some
aliases; others it takes and then misreads (``latest`` and ``v3`` are its own words for versions).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from calib.errors import ConfigurationError
from monitoring.store.fields import checked_slug

__all__ = [
    "DEFAULT_ALIASES",
    "AliasNames",
    "checked_alias",
    "experiment_name",
    "metric_key",
    "registered_model_name",
]

DEFAULT_ALIASES: Final = "champion,challenger,previous"

_ALIAS: Final = re.compile(r"[a-z][a-z0-9_-]*")
_VERSION: Final = re.compile(r"v\d+")
_LONGEST_ALIAS: Final = 255
_LONGEST_KEY: Final = 250
_NOT_IN_KEYS: Final = re.compile(r"[^A-Za-z0-9_./ -]+")


@dataclass(frozen=True, slots=True)
class AliasNames:
    """What our three aliases are called in the model registry.

    Attributes:
        champion: what is served.
        challenger: what is compared with it.
        previous: where a rollback leads.
    """

    champion: str = "champion"
    challenger: str = "challenger"
    previous: str = "previous"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Three names with commas between them, champion first.

        Raises:
            ConfigurationError: not three different names, or one that :func:`checked_alias`
                refuses.
        """
        names = [checked_alias(name.strip()) for name in text.split(",")]
        if len(names) != 3 or len(set(names)) != 3:
            remedy = f"give three different names, such as {DEFAULT_ALIASES}"
            raise ConfigurationError("tracking_aliases", text, remedy)
        return cls(*names)


def checked_alias(name: str) -> str:
    """``name`` when an alias of a registered model can be called so.

    Raises:
        ConfigurationError: ``latest``, ``v3``, ``3``, capitals or other signs.
    """
    if name == "latest":
        reason = "MLflow's own name for the newest version; choose another"
    elif name.isdigit() or _VERSION.fullmatch(name):
        reason = "reads as a version number in MLflow; choose a word"
    elif name != name.lower():
        reason = "write it in lower case: a reader cannot tell two spellings of one alias apart"
    elif not _ALIAS.fullmatch(name) or len(name) > _LONGEST_ALIAS:
        reason = f"use a letter, then a-z, 0-9, '_' and '-', at most {_LONGEST_ALIAS}"
    else:
        return name
    raise ConfigurationError("tracking_aliases", name, reason)


def experiment_name(drafter: str) -> str:
    """The experiment that holds the runs of a drafter.

    Raises:
        InvalidInputError: the name is no slug.
    """
    return f"dspark-calib.{checked_slug('drafter', drafter)}"


def registered_model_name(drafter: str) -> str:
    """The registered model whose versions are a drafter's revisions; a slug has neither ``/`` nor
    ``:``.

    Raises:
        InvalidInputError: the name is no slug.
    """
    return checked_slug("drafter", drafter)


def metric_key(*parts: str) -> str:
    """Parts joined by ``/``, which groups charts, with every sign replaced that MLflow refuses."""
    clean = [_NOT_IN_KEYS.sub("_", part).strip("/. ") or "_" for part in parts]
    return "/".join(clean)[:_LONGEST_KEY]
