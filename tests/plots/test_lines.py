import numpy as np
import pandas as pd
import pytest

from meshlab.errors import BenchError
from meshlab.frames.labels import title_parts, where_text
from meshlab.frames.schema import RESULTS, bandwidth, conform
from meshlab.plots.lines import lines_of


def by_hand(**columns):
    """Two groups of two ranks at 1,000 and 2,000 bytes; group 1 is the slower one at both."""
    rows = [
        {"group": "tp_0", "size_bytes": 1000, "time_us": 1.0, "time_us_lo": 0.8, "time_us_hi": 1.1},
        {"group": "tp_1", "size_bytes": 1000, "time_us": 2.0, "time_us_lo": 1.9, "time_us_hi": 2.5},
        {"group": "tp_0", "size_bytes": 2000, "time_us": 2.0, "time_us_lo": 1.0, "time_us_hi": 2.0},
        {"group": "tp_1", "size_bytes": 2000, "time_us": 4.0, "time_us_lo": 4.0, "time_us_hi": 5.0},
    ]
    frame = pd.DataFrame(rows).assign(
        collective="all_reduce", axis="tp", n_ranks=2, source="mpi", mode="pipelined", status="ok", n_wrong=0, launch=0
    )
    frame = frame.assign(**columns)
    frame["algbw_gbs"], frame["busbw_gbs"] = bandwidth(
        frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"]
    )
    return conform(frame, RESULTS)


def test_groups_of_an_axis_are_one_line_at_the_slowest_with_the_band_of_all():
    (line,) = lines_of(by_hand(), "time_us")
    assert line.name == ""
    assert line.size.tolist() == [1000, 2000]
    assert line.value.tolist() == [2.0, 4.0]
    assert line.low.tolist() == [0.8, 1.0]
    assert line.high.tolist() == [2.5, 5.0]


def test_bandwidth_follows_from_the_slowest_groups_time():
    (line,) = lines_of(by_hand(), "busbw_gbs")
    assert line.value == pytest.approx([1000 / 2.0 / 1e3, 2000 / 4.0 / 1e3])
    assert line.low == pytest.approx([1000 / 2.5 / 1e3, 2000 / 5.0 / 1e3])
    assert line.high == pytest.approx([1000 / 0.8 / 1e3, 2000 / 1.0 / 1e3])


def test_over_launches_the_median_of_the_slowest_groups_counts():
    launches = pd.concat([by_hand(launch=number, time_us=time) for number, time in enumerate((3.0, 5.0, 40.0))])
    (line,) = lines_of(launches, "time_us")
    assert line.value.tolist() == [5.0, 5.0]


def test_wrong_rows_are_apart_and_unfinished_rows_are_nowhere():
    results = by_hand()
    results.loc[1, ["status", "n_wrong"]] = ["wrong", 3]
    results.loc[3, "status"] = "failed"
    (line,) = lines_of(results, "time_us")
    assert line.value.tolist() == [1.0, 2.0]
    assert (line.wrong_size.tolist(), line.wrong_value.tolist()) == ([1000], [2.0])


def test_a_row_with_wrong_elements_is_wrong_whatever_its_status_says():
    results = by_hand()
    results.loc[1, "n_wrong"] = 1
    assert lines_of(results, "time_us")[0].wrong_size.tolist() == [1000]


def test_sizes_without_interval_have_none():
    (line,) = lines_of(by_hand(time_us_lo=None, time_us_hi=None), "busbw_gbs")
    assert np.isnan(line.low).all()
    assert np.isnan(line.high).all()
    assert np.isfinite(line.value).all()


def test_lines_are_named_by_what_tells_them_apart_and_by_nothing_else():
    reduce = by_hand(collective="all_reduce", op="sum")
    gather = by_hand(collective="all_gather", op=None)
    names = [line.name for line in lines_of(pd.concat([reduce, gather]), "busbw_gbs")]
    assert names == ["all_reduce", "all_gather"]


def test_keys_that_vary_on_their_own_are_all_in_the_name():
    parts = [by_hand(in_place=place, dtype=dtype) for place in (True, False) for dtype in ("float32", "float64")]
    names = [line.name for line in lines_of(pd.concat(parts), "busbw_gbs")]
    assert names == [f"{dtype} · {p}" for p in ("in place", "out of place") for dtype in ("float32", "float64")]


def test_rows_that_differ_in_the_run_alone_are_two_lines():
    names = [line.name for line in lines_of(pd.concat([by_hand(run_id="a"), by_hand(run_id="b")]), "time_us")]
    assert names == ["run a", "run b"]


def test_imported_rows_without_axis_group_and_launch_are_a_line():
    results = by_hand(axis=None, group=None, launch=None, source="nccl-tests", n_ranks=8)
    (line,) = lines_of(results, "busbw_gbs")
    assert line.size.tolist() == [1000, 2000]
    assert title_parts(results) == ["all_reduce", "8 ranks", "nccl-tests", "pipelined"]


def test_only_what_is_constant_is_in_the_title(make_results):
    results = make_results()
    one = results[(results["axis"] == "tp") & (results["collective"] == "all_reduce")]
    assert title_parts(one) == ["all_reduce", "tp (2 groups of 2)", "4 ranks · MPI on this CPU", "pipelined"]
    assert title_parts(results) == ["4 ranks · MPI on this CPU", "pipelined"]


@pytest.mark.parametrize(
    ("source", "where", "text"),
    [
        ("mpi", None, "MPI on this CPU"),
        ("threads", None, "threads in this process, not a machine's numbers"),
        ("nccl", None, "NCCL"),
        ("nccl-tests", None, "nccl-tests"),
        ("nccl", "8 × H200 · NCCL 2.32.3", "8 × H200 · NCCL 2.32.3"),
        ("mpi", "node17", "node17 · MPI on this CPU"),
        ("mpi", "4 ranks · MPI on this CPU", "4 ranks · MPI on this CPU"),
    ],
)
def test_numbers_from_a_cpu_always_say_so(source, where, text):
    results = by_hand(source=source)
    if where:
        results.attrs["where"] = where
    assert where_text(results) == text


def test_a_mixture_names_all_its_sources():
    assert where_text(pd.concat([by_hand(source="nccl"), by_hand(source="mpi")])) == "NCCL and MPI on this CPU"


def test_other_frames_are_refused_with_the_column_they_lack():
    with pytest.raises(BenchError, match="no column busbw_gbs"):
        lines_of(by_hand().drop(columns="busbw_gbs"), "busbw_gbs")
    with pytest.raises(BenchError, match="'speed' cannot be drawn"):
        lines_of(by_hand(), "speed")
