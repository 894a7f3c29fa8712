from __future__ import annotations

import numpy as np
import pytest

from calib.clusters import (
    BinMoments,
    cluster_codes,
    clustered_mean,
    effective_rows,
    expected_variance,
)
from calib.errors import InvalidInputError
from calib.reliability import ReliabilitySums, bin_index
from tests.calib.predictions import draw


def _same_partition(codes: np.ndarray, expected: list[int]) -> bool:
    pairs = set(zip(codes.tolist(), expected, strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_codes_of_numbers_text_and_unknown_rows() -> None:
    assert _same_partition(cluster_codes([7, 7, -3]), [0, 0, 1])
    assert _same_partition(cluster_codes(["a", "b", "a"]), [0, 1, 0])
    mixed = np.array(["a", None, "a", None], dtype=object)
    assert _same_partition(cluster_codes(mixed), [0, 1, 0, 2])  # unknown rows stand alone
    with pytest.raises(InvalidInputError):
        cluster_codes([[1], [2]])


def _moments(p: np.ndarray, y: np.ndarray, codes: np.ndarray) -> BinMoments:
    sums = ReliabilitySums.from_predictions(p, y).position(0)
    residual = y - p.astype(np.float32)
    return BinMoments.of_clusters(sums, bin_index(p), residual, None, codes)


def test_one_cluster_a_row_equals_independent_rows() -> None:
    rows = draw(np.random.default_rng(0), 300)
    sums = ReliabilitySums.from_predictions(rows.p, rows.y).position(0)
    plain = BinMoments.of_independent_rows(sums)
    clustered = _moments(rows.p, rows.y, np.arange(300))
    for name in BinMoments.__dataclass_fields__:
        assert getattr(clustered, name) == pytest.approx(getattr(plain, name), abs=1e-5), name


def test_moments_by_hand() -> None:
    p, y = np.array([0.1, 0.1, 0.1, 0.9]), np.array([1.0, 0.0, 1.0, 1.0])
    moments = _moments(p, y, np.array([0, 0, 1, 1]))
    # Bin 1 holds p = .1: cluster 0 sums to .9 - .1 = .8, cluster 1 to .9. Bin 13 only has .1.
    assert moments.residual[[1, 13]] == pytest.approx([1.7, 0.1], abs=1e-6)
    assert moments.squared_residual[[1, 13]] == pytest.approx([0.8**2 + 0.9**2, 0.01], abs=1e-6)
    assert moments.squared_weight[[1, 13]].tolist() == [2**2 + 1, 1]
    assert moments.clusters[[1, 13]].tolist() == [2, 1]
    assert moments.total_clusters == 2
    centred = np.array([0.8 - 2 * 1.7 / 3, 0.9 - 1.7 / 3])
    assert moments.centred_square[1, 1] == pytest.approx(np.sum(centred**2), abs=1e-6)
    assert moments.centred_square[1, 13] == pytest.approx(0.0, abs=1e-6)  # bin 13 has no spread


def test_expected_variance_is_the_coin_for_hard_labels_and_empirical_for_soft() -> None:
    hard = ReliabilitySums.from_predictions([0.2, 0.2], [0, 1], n_bins=1).position(0)
    assert expected_variance(hard)[0] == pytest.approx(0.32, abs=1e-7)
    soft = ReliabilitySums.from_predictions([0.2, 0.2], [0.1, 0.3], n_bins=1).position(0)
    assert expected_variance(soft)[0] == pytest.approx(0.04, abs=1e-7)  # 2 rows of variance .02


def test_effective_rows_by_hand() -> None:
    residual = np.array([0.5, -0.5, 0.5, -0.5])
    assert effective_rows(residual, None, None) == 4.0
    assert effective_rows(residual, np.array([1.0, 1.0, 1.0, 3.0]), None) == 36 / 12  # Kish
    # Two clusters of equal rows: variance of the mean over 2 clusters, 2 · 2/1 against 1 · 4/3.
    assert effective_rows(residual, None, np.array([0, 1, 0, 1])) == pytest.approx(4 / 3)
    assert effective_rows(residual, None, np.array([0, 0, 1, 1])) == 4.0  # never above N
    assert effective_rows(residual, None, np.zeros(4, dtype=np.intp)) == 1.0
    assert effective_rows(np.array([]), None, None) == 0.0


@pytest.mark.statistical
def test_effective_rows_give_the_spread_of_the_mean() -> None:
    """sd of the mean residual over seeds equals √(mean p(1 - p) / effective N)."""
    rng = np.random.default_rng(5)
    means, effective, variance = [], [], []
    for _ in range(400):
        rows = draw(rng, 2000, cluster_size=20, correlation=0.4)
        residual = rows.y - rows.p
        means.append(residual.mean())
        effective.append(effective_rows(residual, None, rows.clusters))
        variance.append(np.mean(rows.p * (1 - rows.p)))
    assert np.mean(effective) < 700
    expected = np.sqrt(np.mean(variance) / np.mean(effective))
    assert np.std(means) == pytest.approx(expected, rel=0.1)


def test_a_clustered_mean_by_hand() -> None:
    values = np.array([1.0, 2.0, 3.0, 6.0])
    counts = np.array([1, 1, 2, 2])
    # Mean 12 / 6 = 2; clusters are off by 3 - 4, 3 - 4 and 6 - 4; number 1 is left out.
    mean, error = clustered_mean(values, counts, np.array([0, 0, 2, 3]))
    assert mean == 2.0
    expected = np.sqrt((1.0 + 1.0 + 4.0) * 3 / 2) / 6
    assert error == pytest.approx(expected)
    assert clustered_mean(values, counts, np.zeros(4, dtype=np.intp)) == (2.0, np.inf)
    assert clustered_mean(values[:0], counts[:0], np.zeros(0, dtype=np.intp)) == (0.0, 0.0)
