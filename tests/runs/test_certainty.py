"""The sentence about runs of which most intervals are wide, and the load that it names."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshlab.runs._certainty import Certainty, load_text, uncertainty_of

BUSY = {"host": "node1", "seconds": 1.0, "cores": 2, "other_cores": 1.4, "load": 9.06, "steal_percent": 0.0}


def _row(half_width: float) -> dict[str, float]:
    return {"time_us": 100.0, "time_us_lo": 100 - 100 * half_width, "time_us_hi": 100 + 100 * half_width}


def test_most_intervals_must_be_wider_than_a_tenth_of_their_times() -> None:
    assert not Certainty().is_low
    assert Certainty().with_rows([_row(0.05)]) == Certainty(1, 0)
    assert Certainty().with_rows([_row(0.051)]) == Certainty(1, 1)
    assert not Certainty().with_rows([_row(0.1), _row(0.05)]).is_low
    assert not Certainty().with_rows([_row(0.3), _row(0.05)]).is_low  # half of them
    assert Certainty().with_rows([_row(0.3)]).with_rows([_row(0.05), _row(0.11)]) == Certainty(3, 2)
    assert Certainty(3, 2).is_low
    # Times without an interval, such as those of failed steps and other tools, do not count.
    assert Certainty().with_rows([{"time_us": 1.0, "time_us_lo": math.nan, "time_us_hi": math.nan}, {}]) == Certainty()


def test_the_sentence_names_the_load() -> None:
    assert Certainty(240, 239).sentence([BUSY]) == (
        "239 of 240 intervals are wider than 10\u2009%: other programs use 1.4 of 2 cores, load 9.1."
    )
    assert Certainty(2, 2).sentence([]) == "All 2 intervals are wider than 10\u2009%."
    shared = Certainty(1, 1).sentence([], "4 ranks share 2 cores")
    assert shared == "The interval is wider than 10\u2009%: 4 ranks share 2 cores."


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"other_cores": 0.1, "load": 0.5}, ""),
        ({"other_cores": 0.1}, "load 9.1 on 2 cores"),
        ({"other_cores": 0.0, "load": 1.0, "steal_percent": 7.2}, "other virtual machines take 7\u2009% of the time"),
        ({"other_cores": 0.0, "load": 1.0, "gpu_other_processes": 1}, "1 other process on the GPUs"),
        ({"other_cores": 0.0, "load": 1.0, "gpu_throttle": "power cap"}, "GPU clocks reduced by power cap"),
        ({"other_cores": 0.0, "load": 1.0, "gpu_throttle": ""}, ""),
        ({"other_cores": "many", "load": None, "gpu_throttle": 3, "cores": True}, ""),  # a damaged file
        ({"seconds": 0.0}, ""),
    ],
)
def test_every_cause_has_its_clause(changes: dict[str, Any], text: str) -> None:
    assert load_text([{**BUSY, **changes}]) == text


def test_the_busiest_host_is_named() -> None:
    idle = {**BUSY, "host": "node0", "other_cores": 0.0, "load": 0.2}
    assert load_text([idle, BUSY]) == "other programs use 1.4 of 2 cores, load 9.1 on node1"
    assert load_text([idle, {**idle, "host": "node1"}]) == ""
    # Long intervals count more than short ones.
    assert load_text([{**BUSY, "seconds": 6.0, "load": 1.0}, {**BUSY, "other_cores": 0.0, "load": 1.0}]) == (
        "other programs use 1.2 of 2 cores"  # 1.4 in six of seven seconds
    )


def test_results_without_a_run_are_judged_too(make_results: Any) -> None:
    results = make_results(collectives=["all_reduce"], axes=["tp"])
    assert uncertainty_of(results) == ""
    wide = results.assign(time_us_lo=results["time_us"] / 2, time_us_hi=results["time_us"] * 2)
    assert uncertainty_of(wide).startswith(f"All {len(wide)} intervals are wider than")
