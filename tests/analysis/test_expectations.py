"""Measured bandwidths beside the bound, the prediction and published values."""

from __future__ import annotations

import math

import pytest

import meshlab as ml
from meshlab.analysis._expectations import describe_expectation, expectations
from meshlab.base._units import THIN


@pytest.fixture
def gpus():
    return ml.example().query("mode == 'graph'")


def slower(results, factor):
    changed = results.assign(
        **{name: results[name] * factor for name in ("time_us", "time_us_lo", "time_us_hi")},
        busbw_gbs=results["busbw_gbs"] / factor,
    )
    changed.attrs = dict(results.attrs)
    return changed


def test_a_healthy_machine_is_as_expected_in_every_mode():
    rows = expectations(ml.example(), "dgx-h200", mesh="tp=2")
    # Published runs have the all_reduce of two H100 with the same NVLink, and the prediction decides the others.
    assert set(rows.loc[rows["collective"] == "all_reduce", "verdict"]) == {"normal"}
    assert set(rows.loc[rows["collective"] != "all_reduce", "verdict"]) == {"as expected"}
    assert len(rows) == 12
    assert (rows["size_bytes"] == 1 << 29).all()
    assert rows["of_bound"].between(0.6, 1).all()
    assert (rows["predicted_us_lo"] < rows["predicted_us"]).all()


def test_a_machine_at_half_of_its_speed_is_slow(gpus):
    rows = expectations(slower(gpus, 2.2), "dgx-h200", mesh="tp=2")
    assert set(rows["verdict"]) == {"slow"}
    text = describe_expectation(rows.iloc[0]).replace(THIN, " ")
    assert text.startswith(
        "all_reduce on tp at 512 MiB reaches 143 GB/s busbw, 39 % of the 371 GB/s that NVLink allows"
    )
    assert " GB/s is predicted" in text


@pytest.mark.parametrize(("factor", "verdict"), [(1, "normal"), (1.9, "slow"), (12, "suspiciously slow")])
def test_published_runs_of_the_same_machine_decide_without_a_cluster(gpus, factor, verdict):
    (row,) = expectations(slower(gpus[gpus["collective"] == "all_reduce"], factor)).to_dict("records")
    assert row["verdict"] == verdict
    assert 348 < row["published_gbs"] < 367
    assert row["of_published"] == pytest.approx(row["busbw_gbs"] / row["published_gbs"])
    assert "https://github.com/NVIDIA/nccl/issues/1455" in {run.curve.source for run in row["published"].runs}


def test_published_runs_that_do_not_decide_are_not_overruled_by_the_prediction(gpus):
    (row,) = expectations(slower(gpus[gpus["collective"] == "all_reduce"], 1.22), "dgx-h200", mesh="tp=2").to_dict(
        "records"
    )
    assert row["verdict"] == "unknown"
    assert "neither normal nor clearly slow" in row["published"].reason


def test_one_wrong_result_leaves_no_verdict_on_speed(gpus):
    rows = gpus[gpus["collective"] == "all_reduce"].assign(status="ok")
    rows.loc[rows.index[0], "status"] = "wrong"
    (row,) = expectations(rows, "dgx-h200", mesh="tp=2").to_dict("records")
    assert row["verdict"] == "unknown"
    assert row["published"].reason == f"1 of its {len(rows)} results are wrong"


def test_nothing_is_expected_of_a_cpu_of_small_messages_or_of_wrong_results(make_results, gpus):
    assert expectations(make_results(exponents=[28])).empty
    assert expectations(gpus[gpus["size_bytes"] < 1 << 20], "dgx-h200", mesh="tp=2").empty
    assert expectations(gpus.assign(status="wrong"), "dgx-h200", mesh="tp=2").empty


def test_without_a_cluster_or_on_another_mesh_nothing_is_known(gpus):
    gpus = gpus[gpus["collective"] != "all_reduce"]
    rows = expectations(gpus)
    assert set(rows["verdict"]) == {"unknown"}
    assert rows["of_bound"].isna().all()
    assert set(expectations(gpus, "dgx-h200", mesh="dp=2")["verdict"]) == {"unknown"}


def test_the_slowest_group_of_the_median_launch_counts(gpus):
    import pandas as pd

    one = gpus[(gpus["collective"] == "broadcast") & (gpus["size_bytes"] == 1 << 29)]
    launches = pd.concat([slower(one, factor).assign(launch=number) for number, factor in enumerate((1, 1.1, 5))])
    launches.attrs = dict(gpus.attrs)
    (row,) = expectations(launches, "dgx-h200", mesh="tp=2").to_dict("records")
    assert row["time_us"] == pytest.approx(1.1 * float(one["time_us"].iloc[0]))
    assert math.isclose(row["busbw_gbs"], float(one["busbw_gbs"].iloc[0]) / 1.1, rel_tol=1e-6)
