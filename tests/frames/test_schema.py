from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.frames._files import (
    frame_from_csv,
    frame_from_json,
    frame_from_parquet,
    frame_to_csv,
    frame_to_json,
    frame_to_parquet,
)
from meshlab.frames._schema import RESULTS, SAMPLES, conform, describe, empty_results, empty_samples
from meshlab.frames._statistics import bandwidth

DESIGN = {
    "results": """run_id launch step source collective op dtype root in_place mode
        buffers algorithm protocol min_ctas max_ctas cta_policy alignment_bytes n_aggregated traffic axis group grouping
        concurrent_axis concurrent_collective src_rank dst_rank n_ranks count size_bytes imbalance
        n_samples calls time_us time_us_lo time_us_hi p95_us p99_us min_us max_us skew_us alignment_us n_modes
        trend algbw_gbs busbw_gbs n_wrong status stop_reason mesh_fingerprint process_set""",
    "samples": """run_id launch step axis grouping concurrent_axis group src_rank dst_rank rank batch block
        calls time_us host_us start_offset_us is_warmup status""",
}


def rows(n: int = 3) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "run_id": ["a"] * n,
            "step": range(n),
            "collective": ["all_reduce"] * n,
            "op": ["sum", None, "=1+1"][:n],
            "in_place": [True, False, None][:n],
            "size_bytes": [2**53 + 1, 8, 1][:n],
            "time_us": [0.1, np.nan, 1 / 3][:n],
            "n_wrong": [0, None, 5][:n],
            "status": ["ok", "failed", 'wrong, it says "no"\n'][:n],
        }
    )
    frame.attrs = {"where": "4 ranks · MPI on this CPU"}
    return conform(frame, RESULTS)


def test_the_columns_are_those_of_the_design() -> None:
    for name, columns, empty in (("results", RESULTS, empty_results()), ("samples", SAMPLES, empty_samples())):
        assert [column.name for column in columns] == DESIGN[name].split()
        assert list(empty.columns) == DESIGN[name].split()


def test_columns_with_units_describe_them() -> None:
    for column in (*RESULTS, *SAMPLES):
        for suffix, unit in (("_us", "µs"), ("_gbs", "GB/s")):
            if column.name.endswith(suffix) and column.name != "host_us":
                assert column.dtype == "float64"
                assert unit in column.text or "that median" in column.text or "of it" in column.text
    assert describe().loc["busbw_gbs", "dtype"] == "float64"


@pytest.mark.parametrize("way", ["parquet", "csv", "json"])
@pytest.mark.parametrize("frame", [rows(), empty_results()], ids=["rows", "empty"])
def test_frames_survive_a_round_trip(tmp_path: Path, way: str, frame: pd.DataFrame) -> None:
    path = tmp_path / "frame"
    if way == "parquet":
        frame_to_parquet(frame, path)
        again = frame_from_parquet(path, RESULTS)
    elif way == "csv":
        frame_to_csv(frame, path)
        again = frame_from_csv(path, RESULTS)
    else:
        again = frame_from_json(frame_to_json(frame), RESULTS)
    pd.testing.assert_frame_equal(again, frame)
    if way != "csv":
        assert again.attrs == frame.attrs


def test_strings_are_not_formulas_in_a_spreadsheet(tmp_path: Path) -> None:
    frame_to_csv(rows(), tmp_path / "frame.csv")
    assert ",'=1+1," in (tmp_path / "frame.csv").read_text()


def test_missing_is_not_zero() -> None:
    frame = rows()
    assert frame["n_wrong"].isna().tolist() == [False, True, False]
    assert frame["n_wrong"].iloc[0] == 0


def test_an_unknown_column_is_rejected() -> None:
    with pytest.raises(BenchError, match="unknown columns speed"):
        conform(pd.DataFrame({"speed": [1]}), RESULTS)


def test_a_value_of_the_wrong_type_is_rejected() -> None:
    with pytest.raises(BenchError, match="column time_us must be float64"):
        conform(pd.DataFrame({"time_us": ["fast"]}), RESULTS)


@pytest.mark.parametrize("ranks", [{"src_rank": [0, 1]}, {"src_rank": [0, 1], "dst_rank": [1, None]}])
def test_half_of_a_pair_is_rejected(ranks: dict[str, list[int | None]]) -> None:
    with pytest.raises(BenchError, match=r"of 2 rows have only one of src_rank and dst_rank.* dst_rank missing"):
        conform(pd.DataFrame(ranks), RESULTS)
    complete = conform(pd.DataFrame({"src_rank": [0, 1], "dst_rank": [1, 2]}), RESULTS)
    with pytest.raises(BenchError, match="src_rank missing and dst_rank 2"):
        conform(complete.assign(src_rank=complete["src_rank"].where([True, False])), RESULTS)


@pytest.mark.parametrize(
    ("collective", "n", "factor"),
    [("all_reduce", 4, 1.5), ("all_gather", 4, 0.75), ("reduce_scatter", 8, 0.875), ("broadcast", 4, 1.0)],
)
def test_bandwidth_is_that_of_nccl_tests(collective: str, n: int, factor: float) -> None:
    algbw, busbw = bandwidth([collective], [2_000_000], [n], [1000.0])
    assert algbw[0] == pytest.approx(2.0)
    assert busbw[0] == pytest.approx(2.0 * factor)


def test_one_rank_has_no_bus_bandwidth() -> None:
    algbw, busbw = bandwidth(["all_reduce", None, "all_reduce"], [8, 8, None], [1, 4, 4], [1.0, 1.0, 1.0])
    assert algbw[0] == pytest.approx(0.008)
    assert np.isnan(busbw).all()
    assert np.isnan(algbw[2])


@given(st.integers(2, 64), st.integers(1, 10**9), st.floats(0.1, 1e6))
def test_bus_bandwidth_never_exceeds_twice_the_algorithm_bandwidth(n: int, size: int, time_us: float) -> None:
    algbw, busbw = bandwidth(["all_reduce"], [size], [n], [time_us])
    assert algbw[0] <= busbw[0] < 2 * algbw[0]


@pytest.mark.parametrize("columns", ["busbw", 3, empty_results()], ids=["text", "number", "frame"])
def test_describe_names_the_expected_columns(columns: Any) -> None:
    with pytest.raises(BenchError, match=r"must be a sequence of Column, not .*; describe\(\) without arguments lists"):
        describe(columns)


@pytest.mark.parametrize(
    "use",
    [
        ml.plot.bandwidth,
        ml.plot.latency,
        ml.analysis.contention,
        ml.analysis.interference,
        ml.analysis.pair_table,
        ml.analysis.pair_matrix,
        ml.analysis.reference_lines,
        ml.nccl_tests.write,
        lambda frame: ml.analysis.find_stragglers(frame, frame),
        lambda frame: ml.analysis.find_spikes(frame, frame),
        lambda frame: ml.plot.stragglers(frame, frame),
        lambda frame: ml.plot.batches(frame, frame),
    ],
)
def test_objects_without_results_are_rejected_with_a_fix(use: Any) -> None:
    with pytest.raises(BenchError, match=r"expected a (results|samples) frame, but this one has no column"):
        use(pd.DataFrame({"a": [1]}))
    with pytest.raises(BenchError, match=r"int has no results; pass a run or its folder|expected a samples frame, not"):
        use(3)


def test_only_a_comparison_can_be_drawn_as_one() -> None:
    with pytest.raises(BenchError, match=r"must be a Comparison, not DataFrame; pass ml\.compare\(before, after\)"):
        ml.plot.comparison(empty_results())  # type: ignore[arg-type]
