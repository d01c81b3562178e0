"""Comparisons of sides that took turns: the signed-rank test, its error rates on recorded turns, and the sentences."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.analysis._launches import student_quantile
from meshlab.analysis._turn_ratios import RoundRatio, ratio_of_rounds, round_ratio
from meshlab.analysis._turns import TurnComparison, TurnRow, compare_turns

RECORDED = {
    size: [np.array(pairs) for pairs in rounds]
    for size, rounds in json.loads(Path(__file__).with_name("recorded_turns.json").read_text()).items()
}
"""Pairs of equal calls in µs: all_reduce of 16 and 256 KiB, two ranks of MPI on two cores under a load of 25."""


def rounds_of(*log_ratios: float) -> list[RoundRatio]:
    return [RoundRatio(value, 100, 10.0, 10.0 * math.exp(value)) for value in log_ratios]


def comparison_of(*rows: TurnRow, **facts: object) -> TurnComparison:
    return compare_turns(rows, ("a", "b"), effect=0.05, **facts)  # type: ignore[arg-type]


def columns(size: int = 1024) -> dict[str, object]:
    return {"collective": "all_reduce", "axis": "tp", "group": "tp_0", "size_bytes": size}


@pytest.mark.parametrize("n", [7, 10])
def test_the_p_value_is_the_share_of_signs_that_are_as_extreme(n: int) -> None:
    values = np.random.default_rng(n).normal(0.3, 1.0, n)
    ranks = np.argsort(np.argsort(np.abs(values))) + 1
    half = n * (n + 1) / 4
    sums = np.array([ranks[list(signs)].sum() for signs in itertools.product([False, True], repeat=n)])
    extreme = np.abs(sums - half) >= abs(ranks[values > 0].sum() - half)
    assert ratio_of_rounds(values).p == pytest.approx(extreme.mean())


@given(st.lists(st.floats(-2, 2, allow_subnormal=False), min_size=7, max_size=40, unique=True))
def test_a_significant_ratio_has_an_interval_without_1_and_sides_may_be_exchanged(values: list[float]) -> None:
    there, back = ratio_of_rounds(values), ratio_of_rounds([-value for value in values])
    assert there.low <= there.value <= there.high
    assert there.p == pytest.approx(back.p)
    assert (there.low, there.value) == pytest.approx((1 / back.high, 1 / back.value))
    if there.p > 0.05:
        assert there.low <= 1 <= there.high
    else:
        assert there.low >= 1 or there.high <= 1


def test_rounds_that_were_disturbed_hardly_change_the_interval() -> None:
    calm = [0.18, 0.19, 0.17, 0.2, 0.18, 0.21, 0.16, 0.18, 0.19, 0.17]
    disturbed = ratio_of_rounds([*calm, -2.0, 3.0])
    assert disturbed.value == pytest.approx(ratio_of_rounds(calm).value, rel=0.02)
    assert 1.1 < disturbed.low < disturbed.high < 1.3


def test_fewer_than_seven_rounds_have_student_s_interval() -> None:
    ratio = ratio_of_rounds([0.1, 0.2, 0.3])
    half = student_quantile(0.95, 2) * 0.1 / math.sqrt(3)
    assert (math.log(ratio.low), math.log(ratio.high)) == pytest.approx((0.2 - half, 0.2 + half))
    assert ratio_of_rounds([0.2, 0.2]).high > 1.2  # two rounds may agree by chance
    assert math.isnan(ratio_of_rounds([0.2]).low)
    assert math.isnan(ratio_of_rounds([]).value)


def test_a_batch_that_lost_its_core_does_not_count() -> None:
    pairs = np.array([[10.0, 12.0]] * 60 + [[4000.0, 12.0]] * 20 + [[10.0, 8000.0]] * 19)
    assert math.exp(round_ratio(pairs).log_ratio) == pytest.approx(1.2)
    assert round_ratio(pairs).n_pairs == 99


@pytest.mark.parametrize("size", RECORDED)
def test_equal_sides_rarely_differ_on_recorded_turns(size: str) -> None:
    counts = trials(RECORDED[size], factor=1.0, n_rounds=20, n_trials=200)
    assert counts["SLOWER"] + counts["FASTER"] <= 10, counts


@pytest.mark.parametrize(("factor", "n_rounds"), [(1.2, 40), (1.5, 20)])
@pytest.mark.parametrize("size", RECORDED)
def test_planted_slowdowns_are_detected_on_recorded_turns(size: str, factor: float, n_rounds: int) -> None:
    counts = trials(RECORDED[size], factor=factor, n_rounds=n_rounds, n_trials=100)
    assert counts["SLOWER"] >= 90, counts


def trials(rounds: list[np.ndarray], *, factor: float, n_rounds: int, n_trials: int) -> Counter[str]:
    """Resample rounds, exchange the sides of some of them, multiply the second time, and count the verdicts."""
    rng = np.random.default_rng(1)
    counts: Counter[str] = Counter()
    for _ in range(n_trials):
        chosen = [rounds[index][:, :: rng.choice([-1, 1])] for index in rng.integers(0, len(rounds), n_rounds)]
        row = TurnRow(columns(), [round_ratio(pairs * [1.0, factor]) for pairs in chosen], (0, 0))
        counts.update(comparison_of(row).rows["verdict"])
    return counts


def test_one_row_is_a_sentence() -> None:
    comparison = comparison_of(TurnRow(columns(), rounds_of(*np.log([1.28, 1.3, 1.31, 1.32, 1.31, 1.33, 1.3]))))
    assert comparison.headline == (
        "Slower: b takes 1.31× (1.29 to 1.32) as long as a, 10.0\u2009µs → 13.1\u2009µs, 700 pairs in 7 rounds."
    )
    assert comparison.oversubscribed == ""


def test_the_words_on_a_busy_host_are_relative() -> None:
    rows = [TurnRow(columns(size), rounds_of(*[0.3] * 8)) for size in (1024, 2048)]
    comparison = comparison_of(*rows, waiting=0.31, sharing="4 ranks share 2 cores", duration_s=20.0)
    assert comparison.oversubscribed == "4 ranks share 2 cores and ranks waited 31 % of the time for a core"
    assert comparison.headline == (
        "2 rows compared: 2 slower. Slowest: all_reduce 1\u2009KiB, 1.35× (1.35 to 1.35). Relative, on a busy host."
    )
    assert any(note.startswith("relative, on a busy host (4 ranks share 2 cores") for note in comparison.notes)
    assert "8 rounds of turns in 20\u2009s, each on new communicators" in comparison.notes
    assert "µs" not in str(comparison)  # the times are those of the scheduler
    assert "b takes 1.35×" in str(comparison)
    assert repr(comparison).startswith("<TurnComparison of a with b; next: .frame(), .plot()>")
    assert "Relative, on a busy host" in comparison._repr_html_()
    assert comparison.reservation.startswith("relative, on a busy host: 4 ranks share")


def test_quiet_ranks_have_no_reservation() -> None:
    assert comparison_of(TurnRow(columns(), rounds_of(*[0.0] * 8)), waiting=0.01).oversubscribed == ""
    assert comparison_of(TurnRow(columns(), rounds_of(*[0.0] * 8)), waiting=math.nan).oversubscribed == ""


@pytest.mark.parametrize(
    ("row", "verdict", "note"),
    [
        (TurnRow(columns(), rounds_of(*[0.01] * 8), (0, 0)), "SAME", ""),
        (TurnRow(columns(), rounds_of(*[-0.3] * 8)), "FASTER", ""),
        (TurnRow(columns(), rounds_of(0.3)), "UNCLEAR", "1 round does not show how much rounds differ"),
        (TurnRow(columns(), rounds_of(*[0.0] * 8), (0, 4)), "WRONG", "results are wrong after"),
        (TurnRow(columns(), rounds_of(*[0.0] * 8), (3, 4)), "WRONG", "results are wrong before and after"),
        (TurnRow(columns(), rounds_of(*[0.3] * 8), (3, 0)), "UNCLEAR", "results were wrong before"),
        (TurnRow(columns(), note="its buffers take 1 TiB"), "UNCLEAR", "its buffers take 1 TiB"),
    ],
)
def test_verdicts(row: TurnRow, verdict: str, note: str) -> None:
    comparison = comparison_of(row, TurnRow(columns(4096), rounds_of(*[0.0] * 8)))
    first = comparison.frame().iloc[0]
    assert (first["verdict"], first["note"]) == (verdict, note)
    assert any(note in cells for cells in comparison.table()[1]) or not note
    assert comparison.plot() is not None


def test_verdicts_are_adjusted_for_the_number_of_rows() -> None:
    barely = rounds_of(*[0.3] * 6, -0.01, 0.3)  # p = 0.016
    assert comparison_of(TurnRow(columns(), barely)).counts["SLOWER"] == 1
    equal = [TurnRow(columns(1024 * number), rounds_of(*[0.01, -0.01] * 4)) for number in range(2, 12)]
    assert comparison_of(TurnRow(columns(), barely), *equal).counts["SLOWER"] == 0
