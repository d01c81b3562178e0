"""Predictions of collectives along the axes of a mesh."""

from __future__ import annotations

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, MeshError, MeshlabError, TopologyError
from meshlab.prediction._costs import cost
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._prediction_text import spelled
from meshlab.prediction._tuner import NcclSettings


def test_every_row_has_its_parts_its_band_and_its_bound() -> None:
    prediction = ml.predict("pp=2, dp=4, tp=8", "dgx-h100", ["all_reduce", "all_gather"], "8:4G")
    frame = prediction.frame()
    assert len(frame) == len(frame.drop_duplicates(["axis", "collective", "size_bytes"]))
    np.testing.assert_allclose(frame["time_us"], frame["latency_us"] + frame["transfer_us"])
    assert (frame["time_us_lo"] <= frame["time_us"]).all()
    assert (frame["time_us"] <= frame["time_us_hi"]).all()
    assert set(frame["basis"]) == {"published", "formula only"}
    assert (frame["sources"].ne("") == frame["basis"].eq("published")).all()
    assert (frame["bound_gbs_lo"] <= frame["bound_gbs"]).all()
    np.testing.assert_allclose(
        frame["of_bound"].dropna(), (frame["busbw_gbs"] / frame["bound_gbs"])[frame["size_bytes"] >= 2**24]
    )
    assert frame["of_bound"].isna().equals(frame["size_bytes"] < 2**24)
    assert frame["of_bound"].max() <= 1.05
    assert set(frame["constants"]) == {NcclSettings().version}
    assert frame["nccl_estimate_us"].isna().all()
    _, busbw = ml.frames.bandwidth(
        frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"]
    )
    np.testing.assert_allclose(frame["busbw_gbs"], busbw)


def test_times_are_those_of_the_cost_model() -> None:
    placement = ml.place("dp=4, tp=4", ml.preset("dgx-h100", nodes=2))
    line = next(line for line in ml.predict(placement, sizes="1K:1G").lines if line.axis == "dp")
    links, _ = GroupLinks.of(placement, "dp")
    expected = cost(links, "all_reduce", line.size_bytes.astype(np.int64))
    np.testing.assert_allclose(line.time_us, expected.time_us[0])
    assert line.groups == 4
    assert (line.nodes, line.ranks_per_node) == (2, 2)


def test_bands_are_two_sided_narrower_with_published_runs_and_never_beyond_the_bound() -> None:
    sizes = "1K, 64K, 16M, 256M, 1G, 8G"
    line = ml.predict("dp=16", "dgx-h100", sizes=sizes).lines[0]
    alone = ml.predict("dp=16", "dgx-h100", sizes=sizes, calibration=False).lines[0]
    assert set(alone.basis) == {"formula only"}
    assert alone.sources == ()
    assert "published" in line.basis
    assert line.sources
    assert (line.time_us_hi / line.time_us < alone.time_us_hi / alone.time_us).all()
    assert (line.band[1] > -line.band[0]).all()  # runs are more often slower than faster
    assert (line.time_us_lo >= line.bound_us * (1 - 1e-9)).all()
    # More nodes, wider bands.
    more = ml.predict("dp=4096", "dgx-h100", sizes=sizes).lines[0]
    assert (more.band[1] > line.band[1]).all()


def test_groups_with_different_links_have_their_own_lines() -> None:
    """Groups of 3 on hosts of 8: some cross a host, others do not."""
    prediction = ml.predict("dp=5, tp=3", ml.preset("dgx-h100", nodes=2), sizes="1G", axis="tp")
    assert sorted((line.nodes, line.groups) for line in prediction.lines) == [(1, 4), (2, 1)]
    assert sorted(np.concatenate([line.members for line in prediction.lines])) == list(range(5))


def test_collectives_are_those_of_the_axes_unless_they_are_given() -> None:
    mesh = "pp=2, ep=2, tp=2"
    default = ml.predict(mesh, "dgx-h100", sizes="1M")
    assert [(line.axis, line.collective) for line in default.lines] == [
        ("pp", "send_recv"),
        ("ep", "all_to_all"),
        ("tp", "all_reduce"),
    ]
    by_axis = ml.predict(mesh, "dgx-h100", {"tp": "all_gather, reduce_scatter"}, "1M")
    assert [(line.axis, line.collective) for line in by_axis.lines] == [("tp", "all_gather"), ("tp", "reduce_scatter")]
    union = ml.predict(mesh, "dgx-h100", "all_reduce", "1M", axis="ep-tp")
    assert [(line.axis, line.n_ranks) for line in union.lines] == [("ep-tp", 4)]


def test_a_preset_gets_as_many_hosts_as_the_mesh_needs() -> None:
    prediction = ml.predict("dp=6, tp=8", "dgx-h100", sizes="1M")
    assert prediction.cluster is not None
    assert prediction.cluster.n_nodes == 6
    with pytest.raises(TopologyError):
        ml.predict("dp=6, tp=8", ml.preset("dgx-h100", nodes=2))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("tp=2",), BenchError, "needs a cluster or a calibration"),
        (
            ("tp=2", "dgx-h100", "gather"),
            BenchError,
            "gather has no cost model; choose all_gather, which is the nearest",
        ),
        (("tp=2", "dgx-h100", "all_to_all_v"), BenchError, "choose all_to_all, which is the nearest"),
        (("tp=1", "dgx-h100"), BenchError, "has one rank, so nothing is sent"),
        (("tp=2", "dgx-h10"), TopologyError, "did you mean 'dgx-h100'"),
        (("tp=2", "dgx-h100", {"dp": "all_reduce"}), MeshError, "dp"),
    ],
)
def test_bad_input_is_described(arguments, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ml.predict(*arguments)


def test_without_a_cluster_only_what_was_measured_is_predicted(make_results) -> None:
    results = make_results("dp=2, tp=2")
    line = ml.predict("dp=2, tp=2", None, "broadcast", "1K:16M", axis="tp", calibration=results).lines[0]
    assert set(line.basis) == {"calibrated"}
    assert np.isnan(line.bound_gbs)
    measured = results.query("axis == 'tp' and collective == 'broadcast'").groupby("size_bytes")["time_us"].max()
    np.testing.assert_allclose(line.time_us, measured)
    with pytest.raises(BenchError, match=r"all_to_all on 2 groups of 2 ranks was not measured"):
        ml.predict("dp=2, tp=2", None, "all_to_all", axis="tp", calibration=results)
    with pytest.raises(BenchError, match=r"all_reduce on 2 groups of 4 ranks was not measured"):
        ml.predict("dp=2, tp=4", None, "all_reduce", axis="tp", calibration=results)


def test_measured_rows_of_a_line_are_its_slowest_group(make_results) -> None:
    results = make_results("dp=2, tp=2")
    prediction = ml.predict("dp=2, tp=2", None, "all_reduce", axis="tp", calibration=results)
    sizes, times = prediction.measured(prediction.lines[0], results)
    expected = results.query("axis == 'tp' and collective == 'all_reduce'").groupby("size_bytes")["time_us"].max()
    assert sizes.tolist() == expected.index.tolist()
    np.testing.assert_allclose(times, expected)
    mixed = results.assign(mode=["graph", "isolated"] * (len(results) // 2))
    with pytest.raises(BenchError, match="mix the modes graph, isolated; choose one"):
        prediction.measured(prediction.lines[0], mixed)


def test_the_explanation_has_the_choices_the_bound_and_the_evidence() -> None:
    text = ml.predict("dp=2, tp=8", "dgx-h100", sizes="1K:1G").explain().replace("\u2009", " ")
    assert (
        "all_reduce · tp (2 groups of 8): inside one NVLink domain. NCCL takes ring LL, then NVLS Simple from" in text
    )
    assert "The bound is 482 to 491 GB/s: NVSwitch reduction. busbw may exceed the bandwidth of a wire: " in text
    assert "Basis: published (measured by others on machines of this class)" in text
    assert "Published runs: " in text
    rows = ml.example().query("mode == 'graph'")
    calibrated = ml.predict("tp=2", "dgx-h200", sizes="8:2G", calibration=ml.calibrate(rows, "dgx-h200")).explain()
    calibrated = calibrated.replace("\u2009", " ")
    assert "Basis: calibrated (measured on these groups) from 8 B to 512 MiB; extrapolated" in calibrated
    assert "published" not in calibrated


def test_the_display_needs_no_javascript() -> None:
    prediction = ml.predict("dp=2, tp=8", "dgx-h100", sizes="1K:1G")
    html = prediction._repr_html_()
    assert "<svg" in html
    assert "<script" not in html
    assert "NVLS Simple" in html
    assert repr(prediction).startswith("<Prediction dp=2, tp=8 on DGX H100")
    assert "NCCL takes" in str(prediction)


def test_estimates_need_nccl() -> None:
    with ml.launch(2, backend="threads") as engines, pytest.raises(MeshlabError, match="estimate a call"):
        ml.predict("tp=2", "dgx-h100", sizes="1K", engines=engines)


def test_algorithms_are_spelled_as_nccl_spells_them() -> None:
    names = [("nvls", "simple"), ("ring", "ll128"), ("", "")]
    assert [spelled(*name) for name in names] == ["NVLS Simple", "ring LL128", ""]
