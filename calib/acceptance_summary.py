"""Acceptance numbers that mean one thing: three named counts, pooled, with nulls.

Everything is kept as counts and divided once, when read. Summaries of shards, hours or engines
add up exactly, and a mean of means never arises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import RecordError
from calib.labels import checked_lengths, observed_mask, survival_informed_mask
from calib.record_schema import Flag, check_gamma
from calib.records import AcceptanceRecords

# Coverage differing by more than this shifts which blocks a rate speaks about.
COMPARABLE_COVERAGE_GAP = 0.01


@dataclass(frozen=True, slots=True)
class PositionAcceptance:
    """Rates of one position, each with its counts; a rate nobody observed is None, never 0.

    Attributes:
        position: k, from 1.
        reached: rows with ℓ ≥ k.
        observed: rows with k ≤ min(n + 1, ℓ): all before k accepted, and k verified.
        survived: rows with n ≥ k.
        coverage: reached / rows.
        marginal: survived / reached, P(n ≥ k) among rows that verified k.
        conditional: survived / observed, P(k accepted given all before it).
    """

    position: int
    reached: int
    observed: int
    survived: int
    coverage: float | None
    marginal: float | None
    conditional: float | None


@dataclass(frozen=True, slots=True)
class AcceptanceSummary:
    """Additive acceptance counts of many blocks of one γ.

    Attributes:
        gamma: block size.
        rows: N, draft rounds.
        verified_tokens: Σℓ.
        accepted_tokens: Σn, without bonus and anchor.
        emitted_tokens: tokens that reached the text: n + 1, or n where the block ended with an
            accepted stop token and no bonus followed.
        reached: rows with ℓ ≥ k, by position.
        observed: rows with k ≤ min(n + 1, ℓ), by position.
        survived: rows with n ≥ k, by position.
    """

    gamma: int
    rows: int
    verified_tokens: int
    accepted_tokens: int
    emitted_tokens: int
    reached: tuple[int, ...]
    observed: tuple[int, ...]
    survived: tuple[int, ...]

    @classmethod
    def from_records(cls, records: AcceptanceRecords) -> AcceptanceSummary:
        """Counts over the usable rows: warm-up, replays and forced acceptance are left out."""
        rows = records.fitting_rows()
        stopped = (rows.flags & np.uint8(Flag.STOP_TRUNCATED)) != 0
        return cls.from_lengths(rows.verified, rows.accepted, records.gamma, stopped)

    @classmethod
    def from_lengths(
        cls,
        verified: ArrayLike,  # [N]
        accepted: ArrayLike,  # [N]
        gamma: int,
        stop_truncated: NDArray[np.bool_] | None = None,  # [N]
    ) -> AcceptanceSummary:
        """Counts over lengths.

        Raises:
            RecordError: lengths that are no whole numbers or do not keep 0 ≤ n ≤ ℓ ≤ γ.
        """
        gamma = check_gamma(gamma)
        longest, reached = checked_lengths(verified, accepted, gamma)
        accepted_tokens = int(reached.sum(dtype=np.int64))
        no_bonus = 0
        if stop_truncated is not None:
            no_bonus = int(np.count_nonzero(stop_truncated & (reached == longest)))
        return cls(
            gamma=gamma,
            rows=len(longest),
            verified_tokens=int(longest.sum(dtype=np.int64)),
            accepted_tokens=accepted_tokens,
            emitted_tokens=accepted_tokens + len(longest) - no_bonus,
            reached=_by_position(survival_informed_mask(longest, reached, gamma)),
            observed=_by_position(observed_mask(longest, reached, gamma)),
            survived=_by_position(np.arange(1, gamma + 1) <= reached[:, None]),
        )

    def __add__(self, other: AcceptanceSummary) -> AcceptanceSummary:
        if self.gamma != other.gamma:
            remedy = "pool rows of one gamma only: positions of different blocks differ"
            raise RecordError("gamma", (self.gamma, other.gamma), remedy)
        return AcceptanceSummary(
            gamma=self.gamma,
            rows=self.rows + other.rows,
            verified_tokens=self.verified_tokens + other.verified_tokens,
            accepted_tokens=self.accepted_tokens + other.accepted_tokens,
            emitted_tokens=self.emitted_tokens + other.emitted_tokens,
            reached=_added(self.reached, other.reached),
            observed=_added(self.observed, other.observed),
            survived=_added(self.survived, other.survived),
        )

    @property
    def positions(self) -> tuple[PositionAcceptance, ...]:
        """Rates and counts of every position, k = 1 first."""
        counts = zip(self.reached, self.observed, self.survived, strict=True)
        return tuple(
            PositionAcceptance(
                position=k,
                reached=reached,
                observed=observed,
                survived=survived,
                coverage=_ratio(reached, self.rows),
                marginal=_ratio(survived, reached),
                conditional=_ratio(survived, observed),
            )
            for k, (reached, observed, survived) in enumerate(counts, start=1)
        )

    @property
    def accepted_length(self) -> float | None:
        """Mean accepted length with the bonus token, 1 + Σn / N; None without rows."""
        mean = _ratio(self.accepted_tokens, self.rows)
        return None if mean is None else 1.0 + mean

    @property
    def emitted_per_round(self) -> float | None:
        """Mean tokens that reached the text per round; None without rows.

        Below :attr:`accepted_length` where blocks end with an accepted stop token.
        """
        return _ratio(self.emitted_tokens, self.rows)

    @property
    def mean_rate(self) -> float | None:
        """Σn / (N γ), as engines report an acceptance rate; None without rows.

        It falls with γ though no position got worse: never compare it across γ.
        """
        return _ratio(self.accepted_tokens, self.rows * self.gamma)

    def incomparable_because(self, other: AcceptanceSummary) -> tuple[str, ...]:
        """Notes on why rates of the two must not be set side by side; empty where they may."""
        if self.gamma != other.gamma:
            return (
                f"gamma {self.gamma} against {other.gamma}: mean rates and positions"
                " of different block sizes are not comparable",
            )
        notes = []
        for mine, theirs in zip(self.positions, other.positions, strict=True):
            if mine.coverage is None or theirs.coverage is None:
                return ("no rows on one side",)
            if abs(mine.coverage - theirs.coverage) > COMPARABLE_COVERAGE_GAP:
                notes.append(
                    f"position {mine.position}: coverage {mine.coverage:.2f} against"
                    f" {theirs.coverage:.2f}: the rates speak about different blocks"
                )
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; what was not observed is null."""
        return {
            "gamma": self.gamma,
            "rows": self.rows,
            "verified_tokens": self.verified_tokens,
            "accepted_tokens": self.accepted_tokens,
            "emitted_tokens": self.emitted_tokens,
            "accepted_length": self.accepted_length,
            "emitted_per_round": self.emitted_per_round,
            "mean_rate": self.mean_rate,
            "positions": [
                {name: getattr(position, name) for name in position.__slots__}
                for position in self.positions
            ],
        }


def _by_position(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(count) for count in mask.sum(axis=0))


def _added(mine: tuple[int, ...], theirs: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(mine, theirs, strict=True))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
