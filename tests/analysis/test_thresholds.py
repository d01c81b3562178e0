"""Thresholds: what a file may say, which results it selects, and what is passed, missed or not measured."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.analysis._thresholds import METRICS, Threshold, Thresholds
from meshlab.base._errors import BenchError, ParseError
from meshlab.base._units import THIN
from tests.examples import examples

FAST = "[[limits]]\nmetric = 'busbw_gbs'\ncollective = 'all_reduce'\n"


def check(results, *limits, **machine):
    return Thresholds(tuple(Threshold(**limit) for limit in limits), **machine).check(results)


@pytest.fixture
def results(make_results):
    frame = make_results(axes=["tp"], collectives=["all_reduce", "broadcast"], exponents=[20, 30], source="nccl")
    return frame.assign(busbw_gbs=frame["group"].map({"tp_0": 100.0, "tp_1": 90.0}).astype(float))


@pytest.mark.parametrize("name", Thresholds.presets())
def test_every_preset_can_be_read_and_has_sources(name):
    thresholds = Thresholds.read(name)
    assert thresholds.title
    assert thresholds.gpu
    assert all(limit.source.startswith("https://") for limit in thresholds.limits)


def test_a_file_has_all_keys(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(
        "title = 'rack 7'\n" + FAST + "axis = 'tp'\ndtype = 'float32'\nmode = 'graph'\nn_ranks = 8\n"
        "min_size = '1M'\nmax_size = 4194304\nat_least = 400\ntolerance = '2.5%'\nsource = 'last month'\n"
    )
    (limit,) = Thresholds.read(path).limits
    assert limit == Threshold(
        metric="busbw_gbs", collective="all_reduce", axis="tp", dtype="float32", mode="graph", n_ranks=8,
        min_size=1 << 20, max_size=4 << 20, at_least=400.0, tolerance=0.025, source="last month",
    )  # fmt: skip
    assert str(limit).replace(THIN, " ") == (
        "all_reduce, on tp, float32, graph, 8 ranks, from 1 MiB, up to 4 MiB: busbw at least 400 GB/s, 2.5 % tolerated"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[limit]]", "unknown key 'limit' in a file of thresholds (did you mean 'limits'?)"),
        ("title = 1\n" + FAST + "at_least = 1", "title must be a string, not 1"),
        ("", "no file '' exists"),
        ("# nothing = here\n", "the file has no limits; write a table [[limits]] for each one"),
        ("limits = 3\n", "the file has no limits"),
        ("[[limits]]\ncolective = 'all_reduce'", "unknown key 'colective' in limit 1 (did you mean 'collective'?)"),
        ("[[limits]]\nat_least = 1", "limit 1 has no metric"),
        ("[[limits]]\nmetric = 'busbw'\nat_least = 1", "unknown metric 'busbw' (did you mean 'busbw_gbs'?)"),
        (FAST, "a threshold needs at_least or at_most, but has neither; write at_least = a number"),
        (FAST + "at_least = 1\nat_most = 2", "but has both"),
        (FAST + "at_least = 'x'", "at_least must be a number, not 'x'"),
        (FAST + "at_least = nan", "at_least must be a number, not nan"),
        (FAST + "at_least = true", "at_least must be a number, not True"),
        (FAST + "at_least = 1\ntolerance = '200%'", "the tolerance must be from 0 to 1, not 2"),
        (FAST + "at_least = 1\nmin_size = '3Q'", "limit 1: '3Q' is not a size"),
        (FAST + "at_least = 1\nmin_size = '2G'\nmax_size = '1G'", "exceeds max_size 1 GiB; exchange them"),
        (FAST + "at_least = 1\nn_ranks = 0", "n_ranks must be a positive integer, not 0"),
        (FAST + "at_least = 1\naxis = 3", "axis must be a string, not 3"),
        (FAST + "at_least =", "not TOML"),
        ("dgx-h10", "no file 'dgx-h10' exists (did you mean 'dgx-h100'?)"),
    ],
)
def test_a_typo_is_named_with_the_nearest_key(text, message):
    with pytest.raises(ParseError) as caught:
        Thresholds.read(text)
    assert message in str(caught.value).replace(THIN, " ")


def test_the_slowest_group_decides(results):
    found = check(results, {"metric": "busbw_gbs", "collective": "all_reduce", "at_least": 95, "min_size": 1 << 30})
    assert found.outcomes == ("failed",)
    assert not found.is_passed
    (row,) = found.frame().to_dict("records")
    assert (row["group"], row["value"], row["size_bytes"]) == ("tp_1", 90.0, 1 << 30)
    assert row["margin"] == pytest.approx(-5 / 95)
    assert found.verdict.replace(THIN, " ") == (
        "The only threshold is MISSED: all_reduce on tp at 1 GiB has busbw 90.0 GB/s in tp_1, "
        "required: at least 95.0 GB/s."
    )


def test_cases_with_different_numbers_of_ranks_are_named(results):
    other = results.assign(n_ranks=4, busbw_gbs=80.0)
    found = check(pd.concat([results, other], ignore_index=True), {"metric": "busbw_gbs", "at_least": 95})
    assert "(4 ranks)" in found.verdict


def test_the_tolerance_counts(results):
    limit = {"metric": "busbw_gbs", "at_least": 95}
    assert not check(results, limit).is_passed
    assert check(results, limit | {"tolerance": 0.06}).is_passed
    assert check(results, {"metric": "busbw_gbs", "at_most": 95, "tolerance": 0.06}).is_passed
    assert not check(results, {"metric": "busbw_gbs", "at_most": 95}).is_passed


def test_a_slow_launch_does_not_decide(results):
    launches = [results.assign(launch=number) for number in range(3)]
    launches[1] = launches[1].assign(busbw_gbs=1.0)
    assert check(pd.concat(launches, ignore_index=True), {"metric": "busbw_gbs", "at_least": 80}).is_passed


def test_what_was_not_measured_is_not_passed(results):
    found = check(results, {"metric": "busbw_gbs", "collective": "all_to_all", "at_least": 1})
    assert found.outcomes == ("not measured",)
    assert not found.is_passed
    assert found.verdict == "The only threshold was not measured: all_to_all."
    unknown = check(results, {"metric": "of_bound", "at_least": 0.5})
    assert unknown.frame()["note"].tolist() == ["the cluster is unknown"]
    without = check(results.assign(p99_us=math.nan), {"metric": "p99_us", "at_most": 1e9})
    assert without.frame()["note"].tolist() == ["p99 is unknown"]


def test_wrong_and_unfinished_results_miss_every_threshold_but_that_of_wrong_elements(results):
    results.loc[results.index[0], ["status", "n_wrong"]] = ["wrong", 3]
    found = check(results, {"metric": "busbw_gbs", "at_least": 1}, {"metric": "n_wrong", "at_most": 2})
    assert found.outcomes == ("failed", "failed")
    assert "has a wrong result" in found.verdict
    assert check(results, {"metric": "n_wrong", "at_most": 3}).is_passed


def test_a_limit_of_wrong_elements_is_not_met_by_results_that_were_not_checked(results):
    limit = {"metric": "n_wrong", "at_most": 0}
    unchecked = results.astype({"n_wrong": "Int64"}).assign(n_wrong=0)
    unchecked.loc[unchecked["size_bytes"] == 1 << 30, "n_wrong"] = pd.NA
    found = check(unchecked, limit)
    assert found.outcomes == ("not measured",)
    assert not found.is_passed
    assert "all_reduce on tp at 1 GiB was not checked" in str(found).replace(THIN, " ")
    assert check(pd.concat([unchecked, results.assign(n_wrong=0, in_place=True)]), limit).is_passed
    barrier = results[:1].assign(collective="barrier", n_wrong=None, size_bytes=None)
    assert check(pd.concat([results.assign(n_wrong=0), barrier]), limit).is_passed


def test_the_share_of_the_bound_can_be_limited():
    bounded = ml.prediction.with_bounds(ml.example(), "dgx-h200", mesh="tp=2")
    limit = {"metric": "of_bound", "collective": "broadcast", "min_size": 1 << 28}
    assert check(bounded, limit | {"at_least": 0.9}).is_passed
    assert not check(bounded, limit | {"at_least": 0.99}).is_passed


def test_other_gpus_are_noted():
    found = check(ml.example(), {"metric": "n_wrong", "at_most": 0}, gpu="H100 80GB HBM3")
    assert found.note == "The thresholds are for H100 80GB HBM3, but the results are from NVIDIA H200."
    assert found.is_passed
    assert check(ml.example(), {"metric": "n_wrong", "at_most": 0}, gpu="H200").note == ""


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    value=st.floats(1e-3, 1e3),
    limit=st.floats(1e-3, 1e3),
    tolerance=st.floats(0, 0.99),
    is_floor=st.booleans(),
)
def test_the_margin_is_negative_exactly_if_the_limit_itself_is_missed(value, limit, tolerance, is_floor):
    threshold = Threshold(metric="time_us", tolerance=tolerance, **{"at_least" if is_floor else "at_most": limit})
    frame = pd.DataFrame({"collective": ["all_reduce"], "size_bytes": [8], "time_us": [value]})
    (row,) = Thresholds((threshold,)).check(frame).frame().to_dict("records")
    assert (row["margin"] >= 0) == (value >= limit if is_floor else value <= limit)
    assert row["outcome"] == ("passed" if threshold.is_met_by(value) else "failed")
    if row["margin"] >= 0:
        assert row["outcome"] == "passed"


def test_the_table_and_the_html_begin_with_the_largest_misses(results):
    found = check(
        results,
        {"metric": "busbw_gbs", "at_least": 50, "source": "<b>"},
        {"metric": "busbw_gbs", "at_least": 91},
        {"metric": "busbw_gbs", "at_least": 900},
        {"metric": "busbw_gbs", "axis": "pp", "at_least": 900},
    )
    _, rows = found.table()
    assert [row[0] for row in rows[:1]] == ["✕ failed"]
    margins = [float(row[4].split()[0]) for row in rows if row[0] == "✕ failed"]
    assert margins == sorted(margins)
    assert "&lt;b&gt;" in found._repr_html_()
    assert re.search("– not measured +every collective, on pp", str(found))


def test_unknown_metrics_are_refused_in_code_too():
    with pytest.raises(BenchError, match="unknown metric 'speed'; choose one of busbw_gbs"):
        Threshold(metric="speed", at_least=1)
    assert set(METRICS) >= {"busbw_gbs", "time_us", "n_wrong"}
