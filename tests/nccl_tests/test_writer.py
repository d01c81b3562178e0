from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.frames._schema import RESULTS, conform
from meshlab.frames._statistics import bandwidth
from tests.examples import examples

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


@settings(max_examples=examples(40), deadline=None)
@given(tables, st.sampled_from(["graph", "pipelined", "isolated", None]), st.sampled_from([2, 8, 1000]))
def test_a_written_log_can_be_read_back(cells, mode, n_ranks):
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
def test_every_collective_of_the_tool_can_be_written(make_log, collective):
    name = {"all_to_all": "alltoall", "send_recv": "sendrecv"}.get(collective, collective)
    log = ml.nccl_tests.read(make_log("2.13", name).text())
    back = ml.nccl_tests.read(ml.nccl_tests.write(log.results))
    pd.testing.assert_frame_equal(back.results[KEPT], log.results[KEPT])
    assert back.sections[0].average_matches_rows


def test_runs_and_groups_become_separate_tables():
    rows = [row(group=group, axis="tp", launch=launch) for group in ("tp_0", "tp_1") for launch in (0, 1)]
    log = ml.nccl_tests.read(ml.nccl_tests.write(results(rows)))
    assert len(log.sections) == 4
    assert "group tp_1" in ml.nccl_tests.write(results(rows))


def test_groupings_and_concurrent_axes_become_separate_tables():
    plain = row(axis="tp", group="tp_0", grouping="together")
    alone = plain | {"grouping": "alone"}
    busy = plain | {"concurrent_axis": "dp", "concurrent_collective": "broadcast"}
    other = plain | {"concurrent_axis": "dp", "concurrent_collective": "reduce"}
    text = ml.nccl_tests.write(results([plain, alone, busy, other]))
    assert len(ml.nccl_tests.read(text).sections) == 4
    assert "axis tp; group tp_0" in text
    assert "axis tp, one group at a time; group tp_0" in text
    assert "axis tp, while dp runs broadcast; group tp_0" in text


def test_every_pair_of_ranks_becomes_a_table():
    pair = row(collective="send_recv", op=None, axis="world", group="world", grouping="pairs", n_ranks=2)
    text = ml.nccl_tests.write(results([pair | {"src_rank": 0, "dst_rank": dst} for dst in (1, 2, 3)]))
    assert len(ml.nccl_tests.read(text).sections) == 3
    assert "pairs of all ranks; group world; ranks 0 and 3" in text


def test_a_run_and_its_folder_can_be_written(thread_engines, tmp_path):
    run = ml.bench(thread_engines, ml.DeviceMesh("tp=4"), sizes="1K, 4K", sampling=ml.Sampling(max_s=0.02))
    run.wait(120)
    text = ml.nccl_tests.write(run)
    assert text == run.to_nccl_tests() == ml.nccl_tests.write(run.save(tmp_path / "run"))


def test_a_size_that_was_measured_twice_is_written_twice():
    log = ml.nccl_tests.read(ml.nccl_tests.write(results([row(time=10.0), row(time=12.0)])))
    assert log.results["time_us"].tolist() == [10.0, 12.0]


def test_rows_without_a_time_become_comments():
    text = ml.nccl_tests.write(
        results([row(), row(size=1 << 22, time=None, status="failed", stop_reason="rank 3 died")])
    )
    assert "# error: all_reduce of 4194304 bytes is omitted: rank 3 died" in text
    assert len(ml.nccl_tests.read(text).results) == 1


def test_a_value_without_results_is_rejected():
    with pytest.raises(BenchError, match="int has no results; pass a run"):
        ml.nccl_tests.write(3)


def test_nothing_to_write_is_an_error():
    with pytest.raises(BenchError, match="nothing to write"):
        ml.nccl_tests.write(results([row(collective="barrier")]))
