import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import BenchError
from meshlab.frames._labels import title_parts, where_text
from meshlab.frames._schema import RESULTS, conform
from meshlab.frames._statistics import bandwidth
from meshlab.plans._plan import Plan
from meshlab.plots._lines import KEYS, Line, line_key, line_names, lines_of, stroke_note, with_groups
from tests.examples import examples


def by_hand(**columns):
    """Two groups of two ranks at 1,000 and 2,000 bytes. Group 1 is slower at both sizes."""
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


def test_the_groups_of_an_axis_are_one_line_at_the_slowest_with_its_own_band():
    (line,) = lines_of(by_hand(), "time_us")
    assert line.name == ""
    assert line.size.tolist() == [1000, 2000]
    assert line.value.tolist() == [2.0, 4.0]
    assert line.low.tolist() == [1.9, 4.0]
    assert line.high.tolist() == [2.5, 5.0]
    assert line.groups.tolist() == [[1.0, 2.0], [2.0, 4.0]]
    assert line.n_groups == 2


def test_the_slowest_group_is_found_at_each_size():
    results = by_hand()
    results.loc[2, ["time_us", "time_us_lo", "time_us_hi"]] = [9.0, 8.5, 9.5]
    (line,) = lines_of(results, "time_us")
    assert [part.tolist() for part in (line.value, line.low, line.high)] == [[2.0, 9.0], [1.9, 8.5], [2.5, 9.5]]


@given(
    times=st.lists(st.lists(st.floats(1, 1e6), min_size=3, max_size=3), min_size=2, max_size=5),
    spread=st.floats(1.01, 50),
)
@settings(deadline=None, max_examples=examples(15))
def test_the_band_is_that_of_one_group_and_the_line_is_inside_it(times, spread):
    rows = [
        {"group": f"tp_{group}", "size_bytes": 1000 * 2**index, "time_us": time, "time_us_lo": time / spread}
        for group, values in enumerate(times)
        for index, time in enumerate(values)
    ]
    frame = pd.DataFrame(rows).assign(time_us_hi=lambda rows: rows["time_us"] * spread)
    results = by_hand().iloc[:0].reindex(range(len(rows))).assign(**frame)
    results = results.assign(collective="all_reduce", axis="tp", n_ranks=2, status="ok")
    results["algbw_gbs"], results["busbw_gbs"] = bandwidth(
        ["all_reduce"] * len(rows), results["size_bytes"], results["n_ranks"], results["time_us"]
    )
    (time,), (rate,) = (lines_of(conform(results, RESULTS), quantity) for quantity in ("time_us", "busbw_gbs"))
    slowest = np.array(times).max(axis=0)
    assert time.value == pytest.approx(slowest)
    assert time.low == pytest.approx(slowest / spread)
    assert time.high == pytest.approx(slowest * spread)
    assert rate.value == pytest.approx(rate.groups.min(axis=0))
    assert rate.low == pytest.approx(rate.value / spread)
    assert rate.high == pytest.approx(rate.value * spread)


def test_an_axis_with_one_group_has_no_group_lines():
    (line,) = lines_of(by_hand().query("group == 'tp_1'"), "busbw_gbs")
    assert (len(line.groups), line.n_groups) == (0, 1)


def test_a_group_that_failed_at_a_size_is_missing_there():
    results = by_hand()
    results.loc[2, "status"] = "failed"
    (line,) = lines_of(results, "time_us")
    assert line.groups[0, 0] == 1.0
    assert np.isnan(line.groups[0, 1])
    assert line.value.tolist() == [2.0, 4.0]


def test_bandwidth_follows_from_the_slowest_groups_time():
    (line,) = lines_of(by_hand(), "busbw_gbs")
    assert line.value == pytest.approx([1000 / 2.0 / 1e3, 2000 / 4.0 / 1e3])
    assert line.low == pytest.approx([1000 / 2.5 / 1e3, 2000 / 5.0 / 1e3])
    assert line.high == pytest.approx([1000 / 1.9 / 1e3, 2000 / 4.0 / 1e3])
    assert line.groups[0] == pytest.approx([1000 / 1.0 / 1e3, 2000 / 2.0 / 1e3])


def test_several_launches_are_one_line_at_the_median_of_the_slowest_groups():
    launches = pd.concat([by_hand(launch=number, time_us=time) for number, time in enumerate((3.0, 5.0, 40.0))])
    (line,) = lines_of(launches, "time_us")
    assert line.value.tolist() == [5.0, 5.0]
    assert line.rows.tolist() == list(range(12))
    assert line.n_launches == 3


def test_the_band_of_several_launches_is_that_of_the_slowest_group_in_all_of_them():
    slower = by_hand(launch=1).assign(time_us_lo=lambda rows: rows["time_us"] * 0.5, time_us_hi=60.0)
    (line,) = lines_of(pd.concat([by_hand(), slower]), "time_us")
    assert line.value.tolist() == [2.0, 4.0]
    assert line.low.tolist() == [1.0, 2.0]
    assert line.high.tolist() == [60.0, 60.0]


def test_notes_explain_the_strokes():
    def note(results):
        return stroke_note(with_groups(lines_of(results, "time_us")))

    slowest = "thick: slowest group at each size"
    assert note(by_hand()) == [slowest, "band: its 95 % interval", "thin: every group"]
    launches = pd.concat([by_hand(launch=number) for number in range(2)])
    assert note(launches)[1] == "band: its 95 % intervals of all launches"
    assert note(by_hand(time_us_lo=None, time_us_hi=None)) == [slowest, "thin: every group"]
    assert note(by_hand(group="tp_0", grouping="alone").iloc[::2]) == ["band: 95 % interval"]
    pairs = pd.concat([by_hand(grouping="pairs", src_rank=0, dst_rank=rank) for rank in (1, 2)])
    assert note(pairs)[0] == "thick: slowest pair at each size"
    six = pd.concat([by_hand(dtype=dtype) for dtype in ("int8", "int32", "int64", "float16", "float32", "float64")])
    assert note(six) == ["line: slowest group at each size", "band: its 95 % interval"]


def test_wrong_rows_are_separate_and_unfinished_rows_are_omitted():
    results = by_hand()
    results.loc[1, ["status", "n_wrong"]] = ["wrong", 3]
    results.loc[3, "status"] = "failed"
    (line,) = lines_of(results, "time_us")
    assert line.value.tolist() == [1.0, 2.0]
    assert (line.wrong_size.tolist(), line.wrong_value.tolist()) == ([1000], [2.0])


def test_a_row_with_wrong_elements_is_wrong_regardless_of_its_status():
    results = by_hand()
    results.loc[1, "n_wrong"] = 1
    assert lines_of(results, "time_us")[0].wrong_size.tolist() == [1000]


def test_sizes_without_interval_have_none():
    (line,) = lines_of(by_hand(time_us_lo=None, time_us_hi=None), "busbw_gbs")
    assert np.isnan(line.low).all()
    assert np.isnan(line.high).all()
    assert np.isfinite(line.value).all()


def test_lines_are_named_by_the_fewest_columns_that_distinguish_them():
    reduce = by_hand(collective="all_reduce", op="sum")
    gather = by_hand(collective="all_gather", op=None)
    names = [line.name for line in lines_of(pd.concat([reduce, gather]), "busbw_gbs")]
    assert names == ["all_reduce", "all_gather"]


def test_columns_that_vary_independently_are_all_in_the_name():
    parts = [by_hand(in_place=place, dtype=dtype) for place in (True, False) for dtype in ("float32", "float64")]
    names = [line.name for line in lines_of(pd.concat(parts), "busbw_gbs")]
    assert names == [f"{dtype} · {p}" for p in ("in place", "out of place") for dtype in ("float32", "float64")]


def test_rows_that_differ_only_in_the_run_are_two_lines():
    names = [line.name for line in lines_of(pd.concat([by_hand(run_id="a"), by_hand(run_id="b")]), "time_us")]
    assert names == ["run a", "run b"]


def test_imported_rows_without_axis_group_and_launch_are_a_line():
    results = by_hand(axis=None, group=None, launch=None, source="nccl-tests", n_ranks=8)
    (line,) = lines_of(results, "busbw_gbs")
    assert line.size.tolist() == [1000, 2000]
    assert title_parts(results) == ["all_reduce", "8 ranks", "nccl-tests", "pipelined"]


def test_only_constant_columns_are_in_the_title(make_results):
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
def test_numbers_from_a_cpu_are_always_labelled(source, where, text):
    results = by_hand(source=source)
    if where:
        results.attrs["where"] = where
    assert where_text(results) == text


def test_mixed_results_name_all_sources():
    assert where_text(pd.concat([by_hand(source="nccl"), by_hand(source="mpi")])) == "NCCL and MPI on this CPU"


def test_other_frames_are_rejected_with_the_missing_column():
    with pytest.raises(BenchError, match="no column busbw_gbs"):
        lines_of(by_hand().drop(columns="busbw_gbs"), "busbw_gbs")
    with pytest.raises(BenchError, match="unknown quantity 'speed'; choose one of busbw_gbs, algbw_gbs, time_us"):
        lines_of(by_hand(), "speed")


LOADS = [
    {"grouping": "together"},
    {"grouping": "alone"},
    {"grouping": "pairs", "src_rank": 0, "dst_rank": 1},
    {"grouping": "together", "concurrent_axis": "dp", "concurrent_collective": "broadcast"},
    {"grouping": "together", "concurrent_axis": "dp", "concurrent_collective": "all_gather"},
]


def test_rows_of_one_axis_under_different_loads_are_different_lines():
    lines = lines_of(pd.concat([by_hand(**load, time_us=9.0 + i) for i, load in enumerate(LOADS)]), "time_us")
    assert [line.name for line in lines] == [
        "tp",
        "tp, one group at a time",
        "pairs of tp",
        "tp, while dp runs broadcast",
        "tp, while dp runs all_gather",
    ]
    assert [line.value.tolist() for line in lines] == [[9.0 + i] * 2 for i in range(len(LOADS))]


def test_all_pairs_of_an_axis_are_one_line_at_the_slowest():
    pairs = [by_hand(grouping="pairs", src_rank=0, dst_rank=rank, time_us=float(rank)) for rank in (1, 2, 3)]
    (line,) = lines_of(pd.concat(pairs), "time_us")
    assert line.value.tolist() == [3.0, 3.0]
    assert line.n_groups == 6  # by_hand() has two groups


def test_the_steps_of_a_plan_name_the_lines_of_its_results():
    plan = Plan(
        ["all_reduce", "broadcast"],
        "tp",
        sizes="1K",
        in_place=[False, True],
        grouping=["together", "alone"],
        concurrent={"dp": "reduce_scatter"},
    )
    parts = [part for step in plan.steps("dp=2, tp=2") for part in step.parts]
    names = line_names(map(line_key, parts))
    rows = [dict(zip(KEYS, line_key(part), strict=True)) for part in parts]
    results = pd.concat([by_hand(**row | {"run_id": None, "source": None}) for row in rows])
    found = lines_of(results, "time_us", names=names)
    assert {line.name for line in found} == set(names.values())
    assert len({line.name for line in found}) == len(names) == len(found)
    assert "all_reduce · tp, while dp runs reduce_scatter · in place" in names.values()


def test_points_are_sorted_by_size():
    line = Line.of([4096, 1024], [2.0, 1.0], [1.9, 0.9], [2.1, 1.1])
    assert [part.tolist() for part in (line.size, line.value, line.low, line.high)] == [
        [1024, 4096],
        [1, 2],
        [0.9, 1.9],
        [1.1, 2.1],
    ]


def test_lines_can_be_joined_and_points_without_an_interval_have_nan():
    line = Line.of([2048], [2.0], [1.9], [2.1]).then(Line.of([1024], [1.0]))
    assert line.size.tolist() == [1024, 2048]
    assert np.isnan(line.low[0])
    assert line.high[1] == 2.1
    assert line.has_band
    assert not Line.of([1024], [1.0]).has_band


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([1, 2], [1.0]), "size, value, low and high must have the same length, not 2, 1"),
        (([1], [1.0], [0.5]), "an interval needs two bounds; pass both low and high, or neither"),
        (([0], [1.0]), "size must be positive"),
        (([[1, 2]], [[1, 2]]), "must have the same length"),
    ],
)
def test_points_that_cannot_be_drawn_are_rejected(columns, message):
    with pytest.raises(BenchError, match=message):
        Line.of(*columns)
