"""The verdicts of the comparison of tuned calls with nccl-tests, from planted times."""

from __future__ import annotations

import meshlab as ml
from tests.gpu.tune_side_by_side import SIDES, judge, table_of


def planted(factors: tuple[float, float, float, float], spread: float = 0.002) -> list[str]:
    """Times of each side as factors of the default of the example."""
    tuning = ml.example("tuning")
    times = {
        (row["collective"], row["size_bytes"], side, repeat): row["default_us"] * factor * (1 + (repeat - 2) * spread)
        for row in tuning.frame().to_dict("records")
        if row["collective"] == "all_reduce"
        for side, factor in zip(SIDES, factors, strict=True)
        for repeat in (1, 2, 3)
    }
    table = table_of(times, [tuning])
    assert table["option"].notna().all()
    return judge(table)


def test_a_tuning_that_is_faster_than_both_reaches_the_goal() -> None:
    mean, first, both = planted((1.0, 0.9, 1.0, 0.8))
    assert "0.800 of nccl-tests -R 0 (0.85 reached)" in mean
    assert (first, both) == (
        "all_reduce: nowhere slower than nccl-tests -R 0",
        "all_reduce: nowhere slower than the better of -R 0 and -R 2",
    )


def test_slower_sizes_are_listed_beyond_two_percent_or_the_spread() -> None:
    mean, first, both = planted((1.0, 0.9, 1.0, 0.95))
    assert "(0.85 missed)" in mean
    assert "nowhere slower" in first
    assert both.startswith("all_reduce: slower than the better of -R 0 and -R 2 at 8 B (+5.5%), ")
    assert "nowhere slower" in planted((1.0, 0.9, 1.0, 0.95), spread=0.03)[2]
    assert "nowhere slower" in planted((1.0, 0.9, 1.0, 0.91))[2]
