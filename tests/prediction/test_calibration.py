"""Calibrations: what they accept, what they refuse, and what they keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, ParseError
from meshlab.frames._schema import RESULTS, conform
from meshlab.prediction._calibration import Calibration, Signature, as_calibration
from meshlab.prediction._costs import cost
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._published_errors import no_errors
from meshlab.prediction._tuner import NcclSettings

SIZES = 2 ** np.arange(3, 33, 2)


def rows_of(placement: ml.topology.Placement, collective: str = "all_reduce", factor: float = 1.3) -> pd.DataFrame:
    """Results of a machine that takes longer than the model by a factor."""
    axis = placement.mesh.axis_names[0]
    links, of_group = GroupLinks.of(placement, axis)
    priced = cost(links, collective, SIZES, evidence=no_errors())
    parts = [
        pd.DataFrame(
            {"group": name, "size_bytes": SIZES, "time_us": factor * priced.time_us[row], "n_ranks": links.n_ranks[row]}
        )
        for name, row in zip(placement.mesh[axis].names, of_group, strict=True)
    ]
    shared = {"collective": collective, "axis": axis, "grouping": "together", "source": "nccl", "status": "ok"}
    frame = pd.concat(parts).assign(**shared, dtype="float32", mode="pipelined", in_place=False, run_id="r", launch=0)
    return conform(frame.assign(count=frame["size_bytes"] // 4).reset_index(drop=True), RESULTS)


def placed(n: int, nodes: int = 1) -> ml.topology.Placement:
    return ml.place(f"dp={n}", ml.preset("dgx-h100", nodes=nodes))


def test_a_slower_machine_is_predicted_slower_at_all_sizes() -> None:
    calibration = ml.calibrate(rows_of(placed(8)), mesh=placed(8))
    line = ml.predict(placed(8), sizes="1K:1G", calibration=calibration).lines[0]
    formula = ml.predict(placed(8), sizes="1K:1G", calibration=False).lines[0]
    np.testing.assert_allclose(line.time_us, 1.3 * formula.time_us, rtol=0.03)
    assert set(line.basis) == {"calibrated"}
    assert (line.time_us_hi / line.time_us).max() < 1.1


def test_a_collective_that_was_not_measured_gets_the_shared_scales() -> None:
    calibration = ml.calibrate(rows_of(placed(16, 2)), mesh=placed(16, 2))
    line = ml.predict(placed(16, 2), None, "all_gather", "4M:2G", calibration=calibration).lines[0]
    formula = ml.predict(placed(16, 2), None, "all_gather", "4M:2G", calibration=False).lines[0]
    same = [one == "ring simple" for one in map(" ".join, zip(line.algorithm, line.protocol, strict=True))]
    np.testing.assert_allclose((line.time_us / formula.time_us)[same], 1.3, rtol=0.1)
    assert set(line.basis) == {"other collective"}
    np.testing.assert_allclose(line.time_us_hi / line.time_us, 1.25)


def test_more_ranks_are_extrapolated_up_to_four_times_and_not_beyond() -> None:
    calibration = ml.calibrate(rows_of(placed(16, 2), factor=1.5), mesh=placed(16, 2))
    for nodes, basis in ((2, "calibrated"), (4, "extrapolated"), (8, "extrapolated"), (16, "formula only")):
        placement = placed(8 * nodes, nodes)
        line = ml.predict(placement, sizes="1K:1G", calibration=calibration).lines[0]
        otherwise = None if basis == "formula only" else False
        ratio = line.time_us / ml.predict(placement, sizes="1K:1G", calibration=otherwise).lines[0].time_us
        assert set(line.basis) <= ({"published", "formula only"} if basis == "formula only" else {basis})
        np.testing.assert_allclose(ratio, 1.0 if basis == "formula only" else 1.5, rtol=0.1)


def test_the_largest_measured_number_of_ranks_is_extrapolated() -> None:
    parts = [ml.calibrate(rows_of(placed(8 * k, k), factor=f), mesh=placed(8 * k, k)) for k, f in ((2, 9.0), (4, 1.2))]
    both = replace(parts[0], fits=parts[0].fits + parts[1].fits)
    line = ml.predict(placed(64, 8), sizes="1G", calibration=both).lines[0]
    formula = ml.predict(placed(64, 8), sizes="1G", calibration=False).lines[0]
    assert line.time_us[0] == pytest.approx(1.2 * formula.time_us[0], rel=0.05)


def test_sizes_beyond_the_measured_ones_are_extrapolated_with_a_wider_band() -> None:
    rows = rows_of(placed(8)).query("1024 <= size_bytes <= 2 ** 28")
    line = ml.predict(placed(8), sizes="8:4G", calibration=ml.calibrate(rows, mesh=placed(8))).lines[0]
    sizes = line.size_bytes
    outside = (sizes < rows["size_bytes"].min()) | (sizes > rows["size_bytes"].max())
    assert {one for one, far in zip(line.basis, outside, strict=True) if far} == {"extrapolated"}
    assert {one for one, far in zip(line.basis, outside, strict=True) if not far} == {"calibrated"}
    widest = line.time_us_hi / line.time_us
    assert widest[~outside].max() < widest[outside].min()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows.assign(n_wrong=1, status="wrong"), "15 of 15 rows have wrong results"),
        (lambda rows: rows.assign(n_ranks=1), "has one rank"),
        (lambda rows: rows.head(3), "has 3 sizes, but a fit needs 4"),
        (lambda rows: rows[(rows["size_bytes"] >= 2**11) & (rows["size_bytes"] <= 2**17)], "needs two decades"),
        (lambda rows: rows.assign(mode=["graph", "pipelined", "graph"] * 5), "mix the modes graph, pipelined"),
        (lambda rows: rows.assign(in_place=[True, False, True] * 5), "mix the placements in place, out of place"),
        (lambda rows: rows.assign(dtype=["float32", "int8", "int8"] * 5), "mix the element types float32, int8"),
        (lambda rows: rows.assign(source=["mpi", "nccl", "nccl"] * 5), "mix the systems mpi, nccl"),
        (lambda rows: rows.assign(grouping="alone"), "no measured rows"),
        (lambda rows: rows.assign(status="failed"), "no measured rows"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_with_the_reason(change, reason: str) -> None:
    with pytest.raises(BenchError, match=f"cannot calibrate: .*{reason}"):
        ml.calibrate(change(rows_of(placed(8))))


def test_results_of_several_systems_are_refused() -> None:
    one, other = rows_of(placed(8)), rows_of(placed(8))
    one.attrs, other.attrs = {"gpu": "NVIDIA H100"}, {"gpu": "NVIDIA H200"}
    with pytest.raises(BenchError, match="several systems or configurations, whose gpu differs"):
        ml.calibrate([one, other])
    other.attrs = {"gpu": "NVIDIA H100", "environment": {"NCCL_ALGO": "Ring"}}
    with pytest.raises(BenchError, match="whose environment differs"):
        ml.calibrate([one, other])


def test_results_of_another_gpu_than_the_clusters_are_refused() -> None:
    rows = rows_of(placed(8))
    rows.attrs = {"gpu": "NVIDIA A100-SXM4-40GB"}
    with pytest.raises(BenchError, match="results are of NVIDIA A100-SXM4-40GB, but the cluster has H100 80GB"):
        ml.calibrate(rows, "dgx-h100")


def test_a_choice_makes_mixed_rows_acceptable_and_a_collective_that_lacks_rows_is_left_out() -> None:
    rows = rows_of(placed(8))
    mixed = pd.concat([rows, rows.assign(mode="graph"), rows.head(2).assign(collective="broadcast")])
    calibration = ml.calibrate(mixed, mode="pipelined")
    assert calibration.collectives == ("all_reduce",)
    assert calibration.left_out == ("broadcast along dp has 2 sizes, but a fit needs 4",)
    assert "left out: broadcast" in calibration.explain()


def test_an_outlier_is_reported_and_not_part_of_the_fit_unless_confirmed() -> None:
    rows = rows_of(placed(8))
    far = rows["size_bytes"] == 2**15
    rows["time_us"] = rows["time_us"].mask(far, 10 * rows["time_us"])
    calibration = ml.calibrate(rows, mesh=placed(8))
    [(collective, axis, size, time)] = calibration.outliers
    assert (collective, axis, size, time) == ("all_reduce", "dp", 2**15, rows["time_us"][far].iloc[0])
    assert "more than three times off" in calibration.explain()
    assert calibration.frame()["is_outlier"].sum() == 1
    confirmed = ml.calibrate(rows, mesh=placed(8), keep_outliers=True)
    assert confirmed.outliers == ()
    line = ml.predict(placed(8), sizes="32K", calibration=confirmed).lines[0]
    assert line.time_us[0] == pytest.approx(time)


def test_rows_that_jump_everywhere_are_refused_unless_they_are_kept() -> None:
    rows = rows_of(placed(8))
    rows["time_us"] *= np.where(np.arange(len(rows)) % 3 == 1, 30.0, 1.0)
    with pytest.raises(BenchError, match=r"too noisy: \d of 15 sizes are three times off their neighbours"):
        ml.calibrate(rows)
    kept = ml.calibrate(rows, keep_outliers=True)
    assert kept.lines[0].fit.half_width > np.log(3)


def test_the_slowest_group_counts_and_the_median_of_launches() -> None:
    rows = rows_of(placed(8))
    slow = rows.assign(group="dp_1", time_us=2 * rows["time_us"])
    both = pd.concat([rows, slow])
    launches = [both.assign(launch=k, time_us=f * both["time_us"]) for k, f in enumerate((1.0, 1.1, 1.5))]
    times = ml.calibrate(pd.concat(launches)).lines[0].time_us
    np.testing.assert_allclose(times, 2.2 * rows["time_us"])


def test_a_run_keeps_its_calibration_when_it_is_saved_and_redacted(tmp_path: Path) -> None:
    with ml.launch(2, backend="threads") as engines:
        run = ml.bench(engines, "tp=2", "all_reduce", axis="tp", sizes="64:64K", sampling="quick")
        run.wait()
    assert run.calibration is None
    calibration = ml.calibrate(run, keep_outliers=True)
    assert run.calibration is calibration
    again = ml.Run.load(run.save(tmp_path / "run"))
    assert again.calibration == calibration
    assert run.redacted().calibration == calibration
    assert as_calibration(tmp_path / "run") == calibration
    line = ml.predict("tp=2", calibration=tmp_path / "run", sizes="1K").lines[0]
    assert line.time_us[0] == pytest.approx(
        calibration.lines[0].time_us[calibration.lines[0].fit.size_bytes.index(1024)]
    )


def test_a_calibration_of_nccl_survives_json() -> None:
    import json

    settings = NcclSettings(algorithms=("ring", "tree"), nvls=False)
    calibration = ml.calibrate(rows_of(placed(16, 2)), mesh=placed(16, 2), settings=settings)
    text = json.dumps(calibration.to_document(), allow_nan=False)
    assert Calibration.from_document(json.loads(text)) == calibration
    document = json.loads(text)
    del document["fits"][0]["fit"]["residual"]
    with pytest.raises(ParseError, match=r"incomplete: calibration\.fits\[0\]\.fit\.residual is missing"):
        Calibration.from_document(document)


def test_a_log_of_nccl_tests_is_read_and_its_ranks_are_placed(make_log, tmp_path: Path) -> None:
    rows = rows_of(placed(16, 2)).assign(axis=None, group=None, source="nccl-tests")
    path = tmp_path / "log.txt"
    path.write_text(ml.nccl_tests.write(rows))
    calibration = ml.calibrate(path, "dgx-h100", in_place=False)
    assert calibration.lines[0].signature.domains == 2
    line = ml.predict("dp=16", "dgx-h100", sizes="1G", calibration=calibration).lines[0]
    assert line.basis == ("calibrated",)


def test_signatures_of_pairs_domains_and_single_ranks_per_domain_are_not_mixed() -> None:
    inside, across = Signature(8, 1, 1, 8, 370.0), Signature(16, 1, 2, 8, 370.0, 384.0)
    assert inside.matches(replace(inside, groups=4))
    assert not inside.is_smaller_kin(across)
    assert across.is_smaller_kin(replace(across, n_ranks=64, domains=8))
    assert not across.is_smaller_kin(replace(across, n_ranks=128, domains=16))
    assert not across.is_smaller_kin(replace(across, n_ranks=32, domains=4, network_gbs=48.0))
    assert not replace(inside, n_ranks=2, ranks_per_domain=2).is_smaller_kin(replace(inside, n_ranks=4))
    assert not Signature(4, 2).matches(Signature(4, 1))
    assert not Signature(4, 1).is_smaller_kin(Signature(8, 1))


def test_the_frame_has_the_error_at_left_out_sizes(make_results) -> None:
    calibration = ml.calibrate(make_results(axes=("tp",)))
    frame = calibration.frame()
    assert len(frame) == 4 * 15
    np.testing.assert_allclose(frame["left_out_us"] / frame["time_us"] - 1, frame["error"])
    assert (frame["error"].abs() <= frame["band"] - 1).mean() >= 0.85
    assert "9 of 10 within" in calibration.explain()
    assert "all_reduce" in repr(calibration)
    assert "<div>" in calibration._repr_html_()
