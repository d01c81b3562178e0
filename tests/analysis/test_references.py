from __future__ import annotations

import datetime
import re

import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._references import matching_references, published_references, reference_lines
from meshlab.comm._catalog import CATALOG


def measured(gpu, *pairs):
    frame = pd.DataFrame(pairs, columns=["collective", "n_ranks"]).assign(size_bytes=1 << 30, time_us=1e4)
    frame.attrs["gpu"] = gpu
    return frame


def test_every_reference_has_a_source_a_date_and_a_plausible_value():
    table = published_references()
    assert table.notna().all().drop("note").all()
    assert table["source"].str.match(r"https://\S+").all()
    assert all(datetime.date.fromisoformat(date) <= datetime.date(2026, 11, 27) for date in table["date"])
    assert table["busbw_gbs"].between(1, 1000).all()
    assert (table["n_ranks"] >= table["nodes"]).all()
    assert not table.duplicated(["system", "n_ranks", "collective"]).any()
    assert set(table["collective"]) <= set(CATALOG) | {"all_to_all", "send_recv"}


def test_references_match_by_gpu_collective_and_number_of_ranks():
    found = matching_references(measured("NVIDIA H100 80GB HBM3", ("all_reduce", 8), ("all_gather", 8), ("reduce", 8)))
    assert found["collective"].tolist() == ["all_reduce", "all_gather"]
    assert (found["system"] == "H100 SXM").all()


@pytest.mark.parametrize("gpu", ["NVIDIA H100 PCIe", "NVIDIA GH200 480GB", "", "NVIDIA H20", "XH200"])
def test_a_different_gpu_matches_no_reference(gpu):
    assert matching_references(measured(gpu, ("all_reduce", 8))).empty


def test_several_nodes_match_only_if_the_system_is_named():
    results = measured("NVIDIA GH200 120GB", ("all_reduce", 16), ("all_reduce", 4))
    assert matching_references(results)["n_ranks"].tolist() == [4]
    assert matching_references(results, system="gh200 alps")["n_ranks"].tolist() == [4, 16]


def test_reference_lines_are_labelled(make_log):
    text = make_log("2.17").text().replace("NVIDIA X1", "NVIDIA H100 80GB HBM3")
    lines = reference_lines(ml.nccl_tests.read(text).results)
    assert len(lines) == 1
    assert re.fullmatch(r"8 × H100 SXM all_reduce, \d{4}-\d\d", next(iter(lines)))
