"""Measured bandwidth as a share of the bandwidth that the hardware allows, in frames, tables, curves and reports."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.prediction._bounds import bound_lines, bound_note, with_bounds
from meshlab.prediction._tuner import NcclSettings

NO_NVLS = NcclSettings(nvls=False)


@pytest.fixture(scope="module")
def graph() -> pd.DataFrame:
    return ml.example().query("mode == 'graph'")


@pytest.fixture(scope="module")
def bounded(graph: pd.DataFrame) -> pd.DataFrame:
    return with_bounds(graph, "dgx-h200", mesh="tp=2", settings=NO_NVLS)


def test_shares_start_at_16_mib(bounded: pd.DataFrame, graph: pd.DataFrame) -> None:
    assert len(bounded) == len(graph)
    large = bounded["size_bytes"] >= 2**24
    np.testing.assert_allclose(bounded["of_bound"][large], (bounded["busbw_gbs"] / 370.8)[large])
    assert bounded["of_bound"][~large].isna().all()
    assert bounded["of_bound"].max() < 1


def test_rows_of_a_cpu_pairs_and_single_groups_have_no_bound(graph: pd.DataFrame, make_results) -> None:
    assert with_bounds(make_results(), "dgx-h100", mesh="dp=2, tp=2")["bound_gbs"].isna().all()
    for change in (
        {"grouping": "alone"},
        {"grouping": "pairs"},
        {"concurrent_axis": "dp"},
        {"axis": "pp"},
        {"n_ranks": 4},
    ):
        rows = graph.assign(**change)
        assert with_bounds(rows, "dgx-h200", mesh="tp=2")["bound_gbs"].isna().all(), change


def test_an_nvswitch_may_exceed_the_wire_and_a_sentence_gives_the_reason(graph: pd.DataFrame) -> None:
    rows = graph.assign(n_ranks=8, group="tp_0")
    note = bound_note(with_bounds(rows, "dgx-h200", mesh="tp=8"))
    assert "491\u2009GB/s for all_reduce" in note[0]
    assert note[1].startswith("busbw may exceed the bandwidth of a wire: NVSwitch reduces")


def test_the_label_names_the_collectives_only_if_their_bounds_differ(
    bounded: pd.DataFrame, graph: pd.DataFrame
) -> None:
    assert bound_lines(bounded) == {"bound (NVLink)": pytest.approx(370.8)}
    rows = with_bounds(graph.assign(n_ranks=8, group="tp_0"), "dgx-h200", mesh="tp=8")
    assert any(label.startswith("bound of all_reduce") for label in bound_lines(rows))
    assert bound_lines(graph) == {}
    assert bound_note(with_bounds(graph.query("size_bytes < 2 ** 20"), "dgx-h200", mesh="tp=2")) == []


def test_curves_have_the_bound_and_the_share_at_their_ends(graph: pd.DataFrame) -> None:
    ax = ml.plot.bandwidth(graph, cluster="dgx-h200", mesh="tp=2", ax=Figure((8, 4)).add_subplot())
    texts = [text.get_text().replace("\u2009", " ") for text in ax.texts]
    assert any(text.startswith("bound (NVLink)") for text in texts)
    assert "broadcast · 97 % of bound" in texts
    with pytest.raises(BenchError, match="bounds are bus bandwidths"):
        ml.plot.bandwidth(graph, cluster="dgx-h200", mesh="tp=2", y="algbw_gbs")


def test_reports_have_a_column_a_sentence_and_a_line(graph: pd.DataFrame) -> None:
    report = ml.Report(graph, mesh="tp=2", cluster="dgx-h200")
    text = report.markdown().replace("\u2009", " ")
    assert "broadcast on tp at 512 MiB reaches 361 GB/s busbw, 97 % of the 371 GB/s that NVLink allows." in text
    assert re.search(r"68 % of the 371 GB/s that NVLink allows, with 2\d\d to 2\d\d GB/s predicted", text)
    assert "The bound is 371 GB/s" not in text  # the same bound once more
    assert "| broadcast busbw | broadcast of bound |" in text
    assert "of bound" in report.html()
    assert "of bound" not in ml.Report(graph, mesh="tp=2").markdown()


def test_a_report_on_a_machine_without_rates_gives_the_reason(graph: pd.DataFrame) -> None:
    cluster = ml.topology.read("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n")
    text = ml.Report(graph, mesh="tp=2", cluster=cluster).markdown()
    assert "of bound" not in text
    assert "Bandwidths have no bound: " in text


def test_tables_of_a_run_have_the_share(graph: pd.DataFrame) -> None:
    run = ml.frames.RunData(
        ml.Plan("all_reduce", "tp", sizes="8:512M*4"),
        ml.DeviceMesh("tp=2"),
        run_id="r",
        source="nccl",
        where="2 × H200",
        state="done",
        results=graph.query("collective == 'all_reduce'"),
    )
    assert "% of bound" not in str(run.table())
    text = str(run.table("dgx-h200"))
    assert "µs  busbw GB/s  % of bound" in text
    assert text.splitlines()[-1].startswith("The bound is 371")
    assert "% of bound" in run.table("dgx-h200")._repr_html_()
