"""Counters become marginal rates: by engine, over resets, and never zeros for nothing."""

from __future__ import annotations

import pytest

from calib.errors import FormatError
from calib.formats.vllm_metrics import (
    EngineSeries,
    parse_scrape,
    pooled_length,
    rates_of_scrapes,
)

ZERO = EngineSeries("m", "0")


def scrape(drafts: int, positions: list[int], engine: str = "0", model: str = "m") -> str:
    """What vLLM exposes; labels in the order of the client library, which is not promised."""
    own = f'engine="{engine}",model_name="{model}"'
    prefix = "vllm:spec_decode_num_"
    lines = [
        f"# TYPE {prefix}drafts_total counter",
        f"{prefix}drafts_total{{{own}}} {float(drafts)}",
        f"{prefix}drafts_created{{{own}}} 1.7e+09",
        f"{prefix}draft_tokens_total{{{own}}} {float(drafts * len(positions))}",
        f"{prefix}accepted_tokens_total{{{own}}} {float(sum(positions))}",
    ]
    for place, count in enumerate(positions):
        lines.append(
            f'{prefix}accepted_tokens_per_pos_total{{position="{place}",{own}}} {float(count)}'
        )
    return "\n".join([*lines, "vllm:num_requests_running 3.0", ""])


def test_r43_all_rejected_at_once() -> None:
    (rates,) = rates_of_scrapes([parse_scrape(scrape(10, [0, 0, 0]))])
    assert rates.marginal == (0.0, 0.0, 0.0)
    assert rates.ratio == (0.0, None, None)
    assert rates.accepted_length == 1.0


def test_r44_speculation_off_is_not_measured() -> None:
    """No counters, or counters that stand still: no rate, and no zero."""
    assert rates_of_scrapes([parse_scrape("vllm:num_requests_running 3.0\n")]) == ()
    still = parse_scrape(scrape(10, [6, 3]))
    (rates,) = rates_of_scrapes([still, still])
    assert (rates.measured, rates.accepted_length) == (False, None)
    assert rates.marginal == (None, None)


def test_r45_rounds_of_known_length() -> None:
    (rates,) = rates_of_scrapes([parse_scrape(scrape(200, [60, 30, 10]))])
    assert rates.accepted_length == 1.5
    assert rates.ratio == pytest.approx((0.3, 0.5, 1 / 3))


def test_r47_lengths_pool_over_rounds_and_leave_out_what_is_missing() -> None:
    silent = 'vllm:spec_decode_num_drafts_total{engine="2",model_name="m"} 4.0\n'
    text = scrape(1, [0], "0") + scrape(9, [9, 9, 9, 9], "1") + silent
    pooled = pooled_length(rates_of_scrapes([parse_scrape(text)]))
    assert pooled.accepted_length == pytest.approx(4.6)
    assert pooled.missing == ("m/2",)


def test_a_span_counts_from_its_first_scrape() -> None:
    first, second = parse_scrape(scrape(100, [50, 20])), parse_scrape(scrape(300, [250, 60]))
    (rates,) = rates_of_scrapes([first, second])
    assert (rates.drafts, rates.marginal) == (200, (1.0, 0.2))


def test_a_restart_counts_from_zero() -> None:
    """40 rounds after the restart; what was done just before it is lost, not negative."""
    steps = [scrape(100, [80, 40]), scrape(120, [90, 45]), scrape(40, [20, 10])]
    (rates,) = rates_of_scrapes([parse_scrape(text) for text in steps])
    assert (rates.drafts, rates.accepted, rates.resets) == (60, 45, 1)
    assert rates.marginal == pytest.approx((30 / 60, 15 / 60))


def test_a_restart_that_overtakes_rounds_is_seen_in_any_counter() -> None:
    steps = [scrape(100, [80, 40]), scrape(150, [70, 35])]
    (rates,) = rates_of_scrapes([parse_scrape(text) for text in steps])
    assert (rates.drafts, rates.resets) == (150, 1)


def test_a_restart_with_another_gamma_starts_anew() -> None:
    steps = [scrape(10, [8, 4]), scrape(20, [18, 9, 3])]
    (rates,) = rates_of_scrapes([parse_scrape(text) for text in steps])
    assert (rates.drafts, rates.resets) == (20, 1)
    assert rates.marginal == pytest.approx((0.9, 0.45, 0.15))


def test_engines_are_kept_apart_whatever_the_order_of_labels() -> None:
    swapped = scrape(10, [5]).replace('engine="0",model_name="m"', 'model_name="m",engine="7"')
    found = parse_scrape(scrape(10, [9]) + swapped)
    assert found[ZERO].per_position == (9,)
    assert found[EngineSeries("m", "7")].per_position == (5,)


def test_an_engine_that_joins_counts_from_its_start() -> None:
    early, late = scrape(10, [5]), scrape(20, [10]) + scrape(8, [4], "1")
    rates = rates_of_scrapes([parse_scrape(early), parse_scrape(late)])
    assert [entry.drafts for entry in rates] == [10, 8]


def test_labels_are_unescaped() -> None:
    text = 'vllm:spec_decode_num_drafts_total{model_name="a\\"b\\\\n,}",engine="0"} 1\n'
    assert list(parse_scrape(text)) == [EngineSeries('a"b\\n,}', "0")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>not found</html>",
        scrape(10, [5]).replace(" 10.0", " NaN"),
        scrape(10, [5]).replace(" 10.0", " -1"),
        scrape(10, [5]).replace(" 10.0", " 1.5"),
        scrape(10, [5, 6]),
        scrape(10, [11]),
        scrape(10, [5]) + scrape(10, [5]),
        scrape(10, [5, 2]).replace('position="1"', 'position="2"'),
        scrape(10, [5])
        .replace("accepted_tokens_total{engine", "accepted_tokens_total{engine", 1)
        .replace("} 5.0", "} 4.0", 1),
    ],
    ids=[
        *("empty", "page", "nan", "negative", "half", "rising", "above", "twice", "gap"),
        "contradiction",
    ],
)
def test_what_cannot_be_counted_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_scrape(text)
