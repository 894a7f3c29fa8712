"""What a row teaches: labels that were observed, and masks that say which.

With verified length ℓ and accepted length n ≤ ℓ ≤ γ a block is right-censored survival data.

=================  =====================  ========================================
statement          label at position k    known where
=================  =====================  ========================================
conditional        [k ≤ n]                k ≤ min(n + 1, ℓ)      (``observed_mask``)
survival, usable   [n ≥ k]                k ≤ ℓ          (``survival_informed_mask``)
survival, known    [n ≥ k]                k ≤ ℓ or n < ℓ      (``known_survival_mask``)
=================  =====================  ========================================

Known is not usable: a zero at k > ℓ is known only *because* the block was rejected earlier, its
ones are missing, and a fit on known labels is off by up to 0.14 in calibration error. Fit and
report survival on ℓ ≥ k alone.

Every function takes either records, or verified lengths [N], accepted lengths [N] and γ.
Letters: N rows, γ (gamma) positions; arrays use index 0 for position 1.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import RecordError
from calib.record_schema import check_gamma
from calib.records import AcceptanceRecords


class LabelKind(StrEnum):
    """Where the labels of a fit come from."""

    HARD = "hard"  # acceptance by the engine, 0 or 1
    SOFT_FULL = "soft_full"  # c* over the whole vocabulary
    SOFT_TRUNCATED = "soft_truncated"  # bounds on c* from the largest probabilities only


def observed_mask(
    source: AcceptanceRecords | ArrayLike,  # records, or verified [N]
    accepted: ArrayLike | None = None,  # [N]
    gamma: int | None = None,
) -> NDArray[np.bool_]:
    """Where a conditional label was observed, [N, γ]: k ≤ min(n + 1, ℓ).

    Raises:
        RecordError: lengths that are no whole numbers or do not keep 0 ≤ n ≤ ℓ ≤ γ.
    """
    verified, reached, positions = _lengths(source, accepted, gamma)
    mask: NDArray[np.bool_] = positions <= np.minimum(reached + 1, verified)
    return mask


def conditional_labels(
    source: AcceptanceRecords | ArrayLike,  # records, or verified [N]
    accepted: ArrayLike | None = None,  # [N]
    gamma: int | None = None,
) -> NDArray[np.float32]:
    """Conditional labels [k ≤ n] in {0, 1}, [N, γ]; NaN where unobserved.

    Raises:
        RecordError: as :func:`observed_mask`.
    """
    verified, reached, positions = _lengths(source, accepted, gamma)
    labels = (positions <= reached).astype(np.float32)
    labels[positions > np.minimum(reached + 1, verified)] = np.nan
    return labels


def survival_informed_mask(
    source: AcceptanceRecords | ArrayLike,  # records, or verified [N]
    accepted: ArrayLike | None = None,  # [N]
    gamma: int | None = None,
) -> NDArray[np.bool_]:
    """Where a row may enter a survival statement, [N, γ]: ℓ ≥ k, whatever the outcome.

    Raises:
        RecordError: as :func:`observed_mask`.
    """
    verified, _, positions = _lengths(source, accepted, gamma)
    mask: NDArray[np.bool_] = positions <= verified
    return mask


def survival_labels(
    source: AcceptanceRecords | ArrayLike,  # records, or verified [N]
    accepted: ArrayLike | None = None,  # [N]
    gamma: int | None = None,
) -> NDArray[np.float32]:
    """Survival labels [n ≥ k] in {0, 1}, [N, γ]; NaN where ℓ < k.

    Raises:
        RecordError: as :func:`observed_mask`.
    """
    verified, reached, positions = _lengths(source, accepted, gamma)
    labels = (positions <= reached).astype(np.float32)
    labels[positions > verified] = np.nan
    return labels


def known_survival_mask(
    source: AcceptanceRecords | ArrayLike,  # records, or verified [N]
    accepted: ArrayLike | None = None,  # [N]
    gamma: int | None = None,
) -> NDArray[np.bool_]:
    """Where [n ≥ k] is known, [N, γ]: k ≤ ℓ, and every k once a block was rejected (n < ℓ).

    For bookkeeping and tests. Not a mask to fit on; see the module docstring.

    Raises:
        RecordError: as :func:`observed_mask`.
    """
    verified, reached, positions = _lengths(source, accepted, gamma)
    mask: NDArray[np.bool_] = (positions <= verified) | (reached < verified)
    return mask


def coverage(
    source: AcceptanceRecords | ArrayLike,  # records, or verified [N]
    accepted: ArrayLike | None = None,  # [N]
    gamma: int | None = None,
) -> NDArray[np.float64]:
    """Share of rows with ℓ ≥ k, [γ]; NaN when there are no rows.

    Raises:
        RecordError: as :func:`observed_mask`.
    """
    return _share(survival_informed_mask(source, accepted, gamma))


def observed_share(
    source: AcceptanceRecords | ArrayLike,  # records, or verified [N]
    accepted: ArrayLike | None = None,  # [N]
    gamma: int | None = None,
) -> NDArray[np.float64]:
    """Share of rows with an observed conditional label, [γ]; NaN when there are no rows.

    Raises:
        RecordError: as :func:`observed_mask`.
    """
    return _share(observed_mask(source, accepted, gamma))


def _share(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    rows = mask.shape[0]
    if rows == 0:
        return np.full(mask.shape[1], np.nan)
    share: NDArray[np.float64] = mask.sum(axis=0) / rows
    return share


def _lengths(
    source: AcceptanceRecords | ArrayLike, accepted: ArrayLike | None, gamma: int | None
) -> tuple[NDArray[np.int16], NDArray[np.int16], NDArray[np.int16]]:
    """ℓ [N, 1], n [N, 1] and k [1, γ] as int16, wide enough for n + 1 at γ = 254."""
    if isinstance(source, AcceptanceRecords):
        verified, reached, width = source.verified, source.accepted, source.gamma
    else:
        width = check_gamma(gamma)
        verified, reached = checked_lengths(source, accepted, width)
    positions = np.arange(1, width + 1, dtype=np.int16)[None, :]
    return verified.astype(np.int16)[:, None], reached.astype(np.int16)[:, None], positions


def checked_lengths(
    verified: ArrayLike | None,  # [N]; γ each when None
    accepted: ArrayLike | None,  # [N]
    gamma: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """ℓ [N] and n [N] as arrays of whole numbers.

    Raises:
        RecordError: no whole numbers, unequal lengths, or not 0 ≤ n ≤ ℓ ≤ γ.
    """
    reached = np.asarray(accepted)
    full = np.broadcast_to(np.int16(gamma), reached.shape)
    longest = full if verified is None else np.asarray(verified)
    given = (
        {"accepted": reached} if verified is None else {"verified": longest, "accepted": reached}
    )
    for name, lengths in given.items():
        if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
            shown = (lengths.dtype.name, lengths.shape)
            raise RecordError(name, shown, "give one whole number per row")
    if longest.shape != reached.shape:
        raise RecordError("accepted", reached.shape, f"give {longest.size} rows, as in verified")
    if verified is not None:
        _check_range("verified", longest, full)
    _check_range("accepted", reached, longest)
    return longest, reached


def _check_range(name: str, lengths: NDArray[Any], limits: NDArray[Any]) -> None:
    if not lengths.size:
        return
    low, high = int(lengths.min()), int(lengths.max())
    # One limit for all, written once: nothing to compare row by row.
    single = limits.strides == (0,)
    if low >= 0 and (high <= int(limits[0]) if single else bool((lengths <= limits).all())):
        return
    wrong = (lengths < 0) | (lengths > limits)
    row = int(np.argmax(wrong))
    remedy = f"row {row}: give a whole number from 0 to {int(limits[row])}"
    raise RecordError(name, int(lengths[row]), remedy)
