"""The choice of an option per size: only what was clearly faster, also on new ranks, replaces the default."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.analysis.tuning._choice import best_options, choose, size_ranges
from meshlab.frames._trials import OPTION, TRIALS, TUNED, is_default, option_key
from tests.analysis.trial_maker import CAPPED, DEFAULT, RING, TREE, WINDOW, both, trial
from tests.examples import examples


def chosen(*rows: dict) -> dict:
    frame = choose(pd.DataFrame(rows))
    assert len(frame) == 1
    return frame.iloc[0].to_dict()


def test_the_fastest_option_of_the_search_is_to_be_confirmed() -> None:
    rows = [trial(DEFAULT, 1024, 6.0), trial(WINDOW, 1024, 4.5), trial(CAPPED, 1024, 4.0)]
    found = best_options(pd.DataFrame(rows))
    assert list(found.columns) == [column.name for column in TRIALS]
    assert found["max_ctas"].tolist() == [4]


def test_the_default_stays_if_intervals_overlap() -> None:
    rows = [trial(DEFAULT, 1024, 6.0), trial(WINDOW, 1024, 5.95)]
    assert is_default(best_options(pd.DataFrame(rows))).tolist() == [True]


def test_the_simplest_of_tied_options_is_chosen() -> None:
    rows = [trial(DEFAULT, 1024, 6.0), trial(CAPPED, 1024, 4.0), trial(WINDOW, 1024, 4.01), trial(TREE, 1024, 5.0)]
    found = best_options(pd.DataFrame(rows)).iloc[0]
    assert found["buffers"] == "symmetric"
    assert pd.isna(found["max_ctas"])


def test_options_within_two_percent_are_tied_but_not_with_the_default() -> None:
    near = [trial(CAPPED, 1024, 4.0), trial(WINDOW, 1024, 4.07)]
    found = best_options(pd.DataFrame([trial(DEFAULT, 1024, 6.0), *near])).iloc[0]
    assert pd.isna(found["max_ctas"])
    found = best_options(pd.DataFrame([trial(DEFAULT, 1024, 6.0), near[0], trial(WINDOW, 1024, 4.2)])).iloc[0]
    assert found["max_ctas"] == 4
    found = best_options(pd.DataFrame([trial(DEFAULT, 1024, 4.1), *near])).iloc[0]
    assert found["max_ctas"] == 4


def test_wrong_failed_and_dropped_options_are_never_chosen() -> None:
    rows = [
        trial(DEFAULT, 1024, 6.0),
        trial(WINDOW, 1024, 1.0, status="wrong", n_wrong=3),
        trial(CAPPED, 1024, 1.0, n_wrong=1),
        trial(TREE, 1024, 1.0, status="dropped"),
        trial(RING, 1024, math.nan, status="failed", message="an error"),
    ]
    assert is_default(best_options(pd.DataFrame(rows))).tolist() == [True]


def test_a_confirmed_option_has_the_times_of_the_new_ranks() -> None:
    row = chosen(*both(DEFAULT, 1024, 6.0, 6.2), *both(WINDOW, 1024, 4.0, 4.1))
    assert row["verdict"] == "faster"
    assert row["is_confirmed"]
    assert (row["time_us"], row["default_us"]) == (4.1, 6.2)
    assert row["gain"] == pytest.approx(1 - 4.1 / 6.2)
    assert row["option"] == "symmetric window"


def test_an_option_that_is_not_faster_again_leaves_the_default() -> None:
    row = chosen(*both(DEFAULT, 1024, 6.0, 4.1), *both(WINDOW, 1024, 4.0, 4.1))
    assert (row["verdict"], row["option"], row["gain"]) == ("not confirmed", "default", 0.0)
    assert (row["candidate"], row["candidate_us"]) == ("symmetric window", 4.0)
    assert row["candidate_gain"] == pytest.approx(1 / 3)


def test_an_option_that_was_not_repeated_leaves_the_default() -> None:
    row = chosen(trial(DEFAULT, 1024, 6.0), trial(WINDOW, 1024, 4.0))
    assert (row["verdict"], row["option"], row["gain"]) == ("not repeated", "default", 0.0)
    assert not row["is_confirmed"]


def test_nothing_is_confirmed_without_an_interval() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), *both(WINDOW, 1024, 4.0, 4.0)]
    for row in rows:
        row["time_us_lo"] = row["time_us_hi"] = math.nan
    assert chosen(*rows)["verdict"] == "not confirmed"


def test_a_call_without_a_default_is_left_out() -> None:
    frame = choose(pd.DataFrame([trial(WINDOW, 1024, 4.0), trial(DEFAULT, 2048, 6.0)]))
    assert frame["size_bytes"].tolist() == [2048]
    assert list(frame.columns) == [column.name for column in TUNED]


def test_no_trials_are_no_choice() -> None:
    assert choose(pd.DataFrame([], columns=[column.name for column in TRIALS])).empty
    assert best_options(pd.DataFrame([], columns=[column.name for column in TRIALS])).empty


options = st.sampled_from([DEFAULT, WINDOW, CAPPED, TREE])


@settings(deadline=None, max_examples=examples(25))
@given(
    times=st.lists(st.floats(1.0, 100.0), min_size=4, max_size=4),
    again=st.lists(st.floats(1.0, 100.0), min_size=4, max_size=4),
    spread=st.floats(0.001, 0.2),
)
def test_a_tuned_call_is_never_slower_than_the_default(times: list[float], again: list[float], spread: float) -> None:
    rows = []
    for option, time_us, again_us in zip((DEFAULT, WINDOW, CAPPED, TREE), times, again, strict=True):
        rows += both(option, 1024, time_us, again_us, spread=spread)
    row = chosen(*rows)
    assert row["time_us"] <= row["default_us"]
    assert 0 <= row["gain"] < 1
    assert row["is_confirmed"] == (row["gain"] > 0)


@settings(deadline=None, max_examples=examples(25))
@given(st.lists(st.tuples(st.integers(1, 1 << 40), options), min_size=1, max_size=12, unique_by=lambda pair: pair[0]))
def test_ranges_cover_the_measured_sizes_without_overlaps(pairs: list[tuple[int, dict]]) -> None:
    tuned = choose(pd.DataFrame([row for size, _ in pairs for row in both(DEFAULT, size, 6.0, 6.0)]))
    given_options = dict(pairs)
    for name in OPTION:
        values = [({"buffers": "plain"} | given_options[int(size)]).get(name) for size in tuned["size_bytes"]]
        tuned[name] = pd.Series(values, dtype=tuned[name].dtype)
    ranges = size_ranges(tuned)
    sizes = sorted(given_options)
    assert (ranges[0].min_bytes, ranges[-1].max_bytes) == (sizes[0], sizes[-1])
    assert [part.min_bytes for part in ranges[1:]] == [part.max_bytes + 1 for part in ranges[:-1]]
    for _, row in tuned.iterrows():
        (part,) = [one for one in ranges if one.min_bytes <= row["size_bytes"] <= one.max_bytes]
        assert option_key(part.row) == option_key(row)


def test_an_option_ends_half_way_to_the_next_size() -> None:
    tuned = choose(pd.DataFrame([*both(DEFAULT, 1024, 6.0, 6.0), *both(DEFAULT, 4096, 6.0, 6.0)]))
    tuned.loc[0, "buffers"] = "symmetric"
    assert [(part.min_bytes, part.max_bytes) for part in size_ranges(tuned)] == [(1024, 2048), (2049, 4096)]


def test_a_gap_between_distant_sizes_keeps_the_default() -> None:
    tuned = choose(pd.DataFrame([*both(DEFAULT, 1024, 6.0, 6.0), *both(DEFAULT, 1 << 20, 6.0, 6.0)]))
    tuned["buffers"] = "symmetric"
    ends = [(part.min_bytes, part.max_bytes, part.row is None) for part in size_ranges(tuned)]
    assert ends == [(1024, 2048, False), (2049, (1 << 19) - 1, True), (1 << 19, 1 << 20, False)]
