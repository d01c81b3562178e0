from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.errors import BenchError
from meshlab.frames.schema import RESULTS, bandwidth, conform

KEPT = ["collective", "op", "dtype", "root", "in_place", "mode", "n_ranks", "count", "size_bytes", "n_wrong", "status"]


def results(rows):
    frame = pd.DataFrame([{"run_id": "r", "launch": 0, "source": "nccl", "status": "ok"} | row for row in rows])
    frame = conform(frame, RESULTS)
    algbw, busbw = bandwidth(frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"])
    return frame.assign(algbw_gbs=algbw, busbw_gbs=busbw)


def row(size=1 << 20, time=38.42, in_place=False, n_wrong=0, **other):
    return {
        "collective": "all_reduce",
        "op": "sum",
        "dtype": "float32",
        "in_place": in_place,
        "mode": "graph",
        "n_ranks": 8,
        "count": size // 4,
        "size_bytes": size,
        "time_us": time,
        "n_wrong": n_wrong,
    } | other


sizes = st.integers(0, 24).map(lambda power: 8 * 2**power)
tables = st.lists(
    st.tuples(sizes, st.floats(1.0, 9e5), st.booleans(), st.none() | st.integers(0, 99)),
    min_size=1,
    max_size=12,
    unique_by=lambda cell: (cell[0], cell[2]),
)


@settings(max_examples=60, deadline=None)
@given(tables, st.sampled_from(["graph", "pipelined", "isolated", None]), st.sampled_from([2, 8, 1000]))
def test_what_is_written_reads_back(cells, mode, n_ranks):
    frame = results(
        [
            row(size, time, in_place, n_wrong, mode=mode, n_ranks=n_ranks, status="wrong" if n_wrong else "ok")
            for size, time, in_place, n_wrong in cells
        ]
    )
    log = ml.nccl_tests.read(ml.nccl_tests.write(frame))
    assert log.status == "complete"
    assert all(section.unparsable_rows == 0 for section in log.sections)
    order = ["size_bytes", "in_place"]
    back, frame = (part.sort_values(order, ignore_index=True) for part in (log.results, frame))
    pd.testing.assert_frame_equal(back[KEPT], frame[KEPT])
    assert back["time_us"].to_numpy() == pytest.approx(frame["time_us"].to_numpy(), rel=1e-5, abs=0.5)
    assert back["group"].eq("world").all()


@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"]
)
def test_every_collective_that_the_tool_has_can_be_written(make_log, collective):
    name = {"all_to_all": "alltoall", "send_recv": "sendrecv"}.get(collective, collective)
    log = ml.nccl_tests.read(make_log("2.13", name).text())
    back = ml.nccl_tests.read(ml.nccl_tests.write(log.results))
    pd.testing.assert_frame_equal(back.results[KEPT], log.results[KEPT])
    assert back.sections[0].average_matches_rows


def test_runs_and_groups_become_tables_of_their_own():
    rows = [row(group=group, axis="tp", launch=launch) for group in ("tp_0", "tp_1") for launch in (0, 1)]
    log = ml.nccl_tests.read(ml.nccl_tests.write(results(rows)))
    assert len(log.sections) == 4
    assert "group tp_1" in ml.nccl_tests.write(results(rows))


def test_a_size_that_was_measured_twice_is_written_twice():
    log = ml.nccl_tests.read(ml.nccl_tests.write(results([row(time=10.0), row(time=12.0)])))
    assert log.results["time_us"].tolist() == [10.0, 12.0]


def test_rows_without_a_time_become_comments():
    text = ml.nccl_tests.write(
        results([row(), row(size=1 << 22, time=None, status="failed", stop_reason="rank 3 died")])
    )
    assert "# error: all_reduce of 4194304 bytes is left out: rank 3 died" in text
    assert len(ml.nccl_tests.read(text).results) == 1


def test_nothing_to_write_is_an_error():
    with pytest.raises(BenchError, match="nothing to write"):
        ml.nccl_tests.write(results([row(collective="barrier")]))
