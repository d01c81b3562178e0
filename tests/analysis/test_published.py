"""The library of published curves, and the reference lines that are made from it."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._published import matching_references, published, reference_lines
from meshlab.base._collectives import COLLECTIVES
from meshlab.prediction._published import published_curves
from meshlab.traces._joining import join_ranks
from meshlab.traces._rank_trace import PROFILE, CallRows, ProcessGroup, RankTrace

SINGLE_VALUES = (
    # The values at the largest size that meshlab compared with before it had curves.
    ("A100-SXM4-40GB", 8, "all_reduce", 235.3),
    ("A100-SXM4-40GB", 8, "all_to_all", 224.3),
    ("A100-SXM4-40GB", 8, "broadcast", 232.8),
    ("H100 80GB HBM3", 2, "all_reduce", 367),
    ("H100 80GB HBM3", 4, "all_reduce", 367),
    ("H100 80GB HBM3", 8, "all_reduce", 482.3),
    ("H100 80GB HBM3", 8, "all_gather", 361.9),
    ("H100 80GB HBM3", 8, "reduce_scatter", 364.8),
    ("H100 80GB HBM3", 8, "all_to_all", 348.0),
    ("H100 80GB HBM3", 8, "send_recv", 367.3),
    ("H200", 8, "all_reduce", 475),
    ("GH200 120GB", 4, "all_reduce", 339.0),
    ("GH200 120GB", 8, "all_reduce", 158.2),
    ("GH200 120GB", 16, "all_reduce", 92.5),
    ("GH200 120GB", 64, "all_reduce", 92.1),
    ("GH200 120GB", 512, "all_reduce", 89.5),
    ("H100 80GB HBM3", 16, "all_reduce", 486.9),
    ("GB200", 72, "all_reduce", 834.6),
    ("GB200", 1440, "all_reduce", 405.7),
)


def measured(gpu, *pairs):
    frame = pd.DataFrame(pairs, columns=["collective", "n_ranks"]).assign(size_bytes=1 << 30, time_us=1e4)
    frame.attrs["gpu"] = gpu
    return frame


def test_every_row_has_a_source_and_a_plausible_value():
    table = published()
    complete = ["curve", "system", "gpu", "gpus_per_node", "nodes", "n_ranks", "collective", "dtype", "source"]
    assert table[complete].notna().all().all()
    assert table["date"].dropna().str.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?").all()
    assert table["time_us"].gt(0).all()
    assert table["size_bytes"].gt(0).all()
    assert table["busbw_gbs"].between(0, 1000).all()
    assert (table["n_ranks"] >= table["nodes"]).all()
    assert set(table["collective"]) <= set(COLLECTIVES)
    assert set(table["verdict"].dropna()) == {"normal", "slow"}
    assert table["remark"].dropna().str.len().max() < 80


def test_a_run_has_the_same_facts_in_all_of_its_rows():
    facts = ["system", "gpu", "gpus_per_node", "nodes", "n_ranks", "nic_gbps_per_node", "source", "date", "verdict"]
    assert (published().groupby("curve")[facts].nunique(dropna=False) == 1).all().all()


@pytest.mark.parametrize(("gpu", "n_ranks", "collective", "busbw"), SINGLE_VALUES)
def test_the_single_values_of_earlier_versions_are_in_the_library(gpu, n_ranks, collective, busbw):
    table = published(gpu, collective=collective).query("n_ranks == @n_ranks")
    assert (table["busbw_gbs"] / busbw - 1).abs().min() < 0.01


def test_the_library_is_small():
    from importlib.resources import files

    assert len(files("meshlab.prediction").joinpath("published_curves.csv.gz").read_bytes()) < 1 << 20


def test_filters_keep_the_rows_of_a_gpu_of_a_number_of_hosts_and_of_a_collective():
    table = published(gpu="NVIDIA A100-SXM4-40GB", nodes=2, collective="all_gather")
    assert set(table["nodes"]) == {2}
    assert set(table["collective"]) == {"all_gather"}
    assert set(table["gpu"]) == {"A100 40GB"}
    assert published("H100 PCIe")["gpu"].unique().tolist() == ["H100 PCIe"]
    assert not len(published("unknown"))


def test_curves_are_the_rows_of_the_frame():
    curves = published_curves()
    assert sum(len(curve.size_bytes) for curve in curves) == len(
        published().drop_duplicates(["curve", "collective", "in_place", "size_bytes"])
    )
    assert all((np.diff(curve.size_bytes) > 0).all() for curve in curves)
    table = published().groupby(["curve", "collective", "in_place"])["busbw_gbs"].max()
    for curve in curves:
        assert curve.busbw_gbs.max() == pytest.approx(table[curve.curve, curve.collective, curve.in_place], rel=0.02)


def test_curves_of_the_site_are_added(tmp_path, monkeypatch):
    library = tmp_path / "curves.parquet"
    monkeypatch.setenv("MESHLAB_CURVES", str(library))
    before = len(published_curves())
    rows = published("H200", nodes=2).drop(columns=["algbw_gbs", "busbw_gbs"])
    rows.assign(curve="site", source="this site").to_parquet(library)
    added = published_curves()[before:]
    assert {curve.source for curve in added} == {"this site"}
    assert all(curve.is_of_site for curve in added)
    assert "this site" in set(published("H200")["source"])


def test_a_library_with_other_columns_is_refused(tmp_path, monkeypatch):
    library = tmp_path / "curves.parquet"
    monkeypatch.setenv("MESHLAB_CURVES", str(library))
    pd.DataFrame({"curve": ["a"]}).to_parquet(library)
    with pytest.raises(ml.MeshlabError, match="lacks the column collective"):
        published_curves()


def test_calls_whose_number_of_ranks_is_unknown_are_not_compared():
    def trace(**group):
        calls = CallRows()
        calls.add("all_reduce", 0.0, 10.0, size_bytes=1024.0)
        calls.add("all_reduce", 20.0, 10.0, size_bytes=1024.0, **group)
        groups = (ProcessGroup("0", "world", tuple(range(8))),)
        return ml.Trace(join_ranks([RankTrace("rank0", PROFILE, 0, 8, groups, calls.columns(), host="a", zero_ns=0)]))

    assert trace(group=0).frame()["n_ranks"].isna().tolist() == [True, False]
    table = trace(group=0).published("H100")
    assert set(zip(table["collective"], table["n_ranks"], strict=True)) == {("all_reduce", 8)}
    with pytest.raises(ml.MeshlabError, match="no published run has the calls of the trace on"):
        trace().published("H100")


def test_references_match_by_gpu_collective_and_number_of_ranks():
    table = matching_references(measured("NVIDIA H100 80GB HBM3", ("all_reduce", 8), ("all_gather", 8), ("reduce", 8)))
    assert set(table["collective"]) == {"all_reduce", "all_gather"}
    assert set(table["gpu"]) == {"H100"}


@pytest.mark.parametrize("gpu", ["NVIDIA H100 PCIe", "NVIDIA GH200 480GB", "", "NVIDIA H20", "XH200"])
def test_a_different_gpu_matches_no_reference(gpu):
    assert matching_references(measured(gpu, ("all_reduce", 6))).empty


def test_several_nodes_match_only_if_the_system_is_named():
    results = measured("NVIDIA GH200 120GB", ("all_reduce", 16), ("all_reduce", 4))
    assert set(matching_references(results)["n_ranks"]) == {4}
    assert set(matching_references(results, system="alps, 4 x gh200")["n_ranks"]) == {4, 16}


def test_reference_lines_are_labelled(make_log):
    text = make_log("2.17").text().replace("NVIDIA X1", "NVIDIA H100 80GB HBM3")
    lines = reference_lines(ml.nccl_tests.read(text).results)
    assert len(lines) == 1
    assert re.fullmatch(r"8 × H100 cluster 01 all_reduce, \d{4}-\d\d", next(iter(lines)))
