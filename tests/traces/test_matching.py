"""Calls of all ranks: which are one call, who waits, which axis they are along, and who is late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, MeshError
from meshlab.traces._gloo_groups import with_groups
from meshlab.traces._joining import join_ranks
from meshlab.traces._kineto import read_trace
from meshlab.traces._rank_trace import PROFILE, CallRows, ProcessGroup, RankTrace
from tests.traces.trace_maker import document, event, group_of, kernel_event, write

TRANSFER_US = 200.0


def trace_of(starts: Sequence[Sequence[float]], shifts: Sequence[float] = (), **header: Any) -> list[dict[str, Any]]:
    """A document per rank, of calls that begin at these times and end 200 µs after the last rank."""
    world = len(starts)
    groups = [group_of("0", "default_pg", range(world))]
    ends = np.max(starts, axis=0) + TRANSFER_US
    shifts = shifts or [0.0] * world
    return [
        document(
            [
                kernel_event(start + shift, end - start, group=groups[0])
                for start, end in zip(starts[rank], ends, strict=True)
            ],
            rank,
            world,
            groups,
            **header,
        )
        for rank, shift in zip(range(world), shifts, strict=True)
    ]


def read(folder: Path, documents: Sequence[Any]) -> ml.Trace:
    return ml.Trace.read(write(folder, *documents))


def test_the_ranks_wait_for_the_last(tmp_path: Path) -> None:
    frame = read(tmp_path, trace_of([[1000, 3000], [1500, 2900], [1100, 3000]])).frame()
    assert frame["wait_us"].tolist() == [500, 0, 400, 0, 100, 0]
    assert frame["transfer_us"].tolist() == [TRANSFER_US] * 6
    assert frame["lateness_us"].tolist() == [-300, 450, -150, 50, -100, 50]
    assert frame["is_last"].sum() == 2


def test_clocks_of_different_hosts_are_aligned(tmp_path: Path) -> None:
    starts = [[1000.0 * k + 90 * (k % 3) for k in range(1, 20)], [1000.0 * k + 50 * (k % 2) for k in range(1, 20)]]
    same = read(tmp_path, trace_of(starts)).frame()
    apart = read(tmp_path, trace_of(starts, (0.0, -5e6))).frame()
    assert apart["wait_us"].to_numpy() == pytest.approx(same["wait_us"].to_numpy())


def test_ends_that_only_vary_show_no_error_of_a_clock(tmp_path: Path) -> None:
    documents = trace_of([[1000.0 * k for k in range(1, 30)]] * 2)
    for number, call in enumerate(documents[1]["traceEvents"]):
        call["dur"] += 20 * (number % 3 - 0.5)
    trace = read(tmp_path, documents)
    assert trace.frame()["wait_us"].tolist() == [0.0] * 58
    assert trace.error_us > 5


def test_a_rank_that_began_to_record_later_is_matched(tmp_path: Path) -> None:
    first, second = trace_of([[1000.0 * k for k in range(1, 12)], [1000.0 * k + 10 for k in range(1, 12)]])
    second["traceEvents"] = second["traceEvents"][3:]
    frame = read(tmp_path, [first, second]).frame()
    assert frame["n_files"].tolist() == [1] * 3 + [2] * 16
    assert frame.loc[frame["n_files"].eq(2), "wait_us"].tolist() == [10.0, 0.0] * 8


def test_steps_and_sequence_numbers_match_calls(tmp_path: Path) -> None:
    first, second = trace_of([[1000.0 * k for k in range(1, 7)], [1000.0 * k + 10 for k in range(1, 7)]])
    for number, (one_call, other) in enumerate(zip(first["traceEvents"], second["traceEvents"], strict=True)):
        one_call["args"]["Seq"] = other["args"]["Seq"] = 40 + number
    del first["traceEvents"][0], second["traceEvents"][2]
    frame = read(tmp_path, [first, second]).frame()
    assert frame["sequence"].tolist() == [40, 41, 41, 42, 43, 43, 44, 44, 45, 45]
    assert frame["call"].tolist() == [0, 1, 1, 2, 3, 3, 4, 4, 5, 5]


def test_calls_that_differ_between_ranks_are_not_matched(tmp_path: Path) -> None:
    first, second = trace_of([[1000.0, 2000.0, 3000.0]] * 2)
    for call, count in zip(second["traceEvents"], (1, 2, 3), strict=True):
        call["args"] |= {"In msg nelems": count, "Out msg nelems": count}
    trace = read(tmp_path, [first, second])
    assert trace.frame()["wait_us"].isna().all()
    assert any("differ between its ranks, and are not matched" in line for line in trace.sentences())


def test_without_all_ranks_there_is_no_wait(tmp_path: Path) -> None:
    trace = read(tmp_path, trace_of([[1000.0], [1500.0], [1100.0]])[:2])
    frame = trace.frame()
    for name in ("wait_us", "transfer_us", "lateness_us", "busbw_gbs"):
        assert frame[name].isna().all()
    assert not frame["is_last"].any()
    text = trace.explain()
    assert "only ranks 0 and 1 of 3 have files (rank 2 missing): the durations contain the waits" in text
    assert "waits" not in str(trace).partition("\n\n")[0]
    assert trace.by_axis()["wait_us"].isna().all()
    with pytest.raises(BenchError, match="no call has all ranks of its group"):
        trace.plot("lateness")


def test_a_root_does_not_wait_as_a_group_does(tmp_path: Path) -> None:
    documents = trace_of([[1000.0], [1500.0]])
    for content in documents:
        content["traceEvents"][0]["args"]["Collective name"] = "broadcast"
    frame = read(tmp_path, documents).frame()
    assert frame["wait_us"].isna().all()
    assert frame["lateness_us"].tolist() == [-500.0, 500.0]


# -- axes --------------------------------------------------------------------------------------------------------------


def groups_of(mesh: ml.DeviceMesh, axes: Sequence[str], prefix: str = "mesh_") -> list[ProcessGroup]:
    return [
        ProcessGroup(f"{axis}{number}", f"{prefix}{axis}", group.ranks)
        for axis in axes
        for number, group in enumerate(mesh[axis])
    ]


def traces_of(groups: Sequence[ProcessGroup], world: int, ranks: Sequence[int]) -> ml.Trace:
    """A trace with a call of each group on each rank."""
    traces = []
    for rank in ranks:
        rows = CallRows()
        members = [group for group in groups if rank in group.ranks]
        for number in range(len(members)):
            rows.add("all_reduce", 1000.0 * number, 100.0, group=number, size_bytes=1024.0, kernel="nccl")
        traces.append(RankTrace(f"rank{rank}", PROFILE, rank, world, tuple(members), rows.columns(), zero_ns=0))
    return ml.Trace(join_ranks(traces))


@pytest.mark.parametrize(
    "text", ["dp=2", "dp=2, tp=2", "pp=2, dp=3, tp=4", "dp_replicate=2, dp_shard=3, cp=2, tp=2", "pp=4, ep=8"]
)
@pytest.mark.parametrize("is_single", [True, False])
def test_a_mesh_is_inferred_from_the_groups_of_one_rank_or_of_all(text: str, is_single: bool) -> None:
    mesh = ml.DeviceMesh(text)
    world = ProcessGroup("0", "default_pg", tuple(range(mesh.world_size)))
    trace = traces_of(
        [world, *groups_of(mesh, mesh.axis_names)], mesh.world_size, [1] if is_single else range(mesh.world_size)
    )
    assert trace.mesh() == mesh
    assert trace.unexplained().empty
    axes = set(trace.frame()["axis"])
    assert set(mesh.axis_names) <= axes


def test_names_of_frameworks_are_axes_and_other_groups_are_listed() -> None:
    mesh = ml.DeviceMesh("pp=2, tp=4")
    words = {"pp": "PIPELINE_MODEL_PARALLEL_GROUP", "tp": "tp:0"}
    groups = [group._replace(description=words[group.name[:2]]) for group in groups_of(mesh, ("pp", "tp"))]
    odd = ProcessGroup("9", "odd", (0, 1, 5))
    trace = traces_of([*groups, odd], 8, range(8))
    assert trace.mesh() == mesh
    assert trace.unexplained()["process_group"].tolist() == ["9"]
    assert "Process group '9' (odd) with ranks 0, 1, 5 is not along axes of the mesh (3 calls)." in trace.sentences()


def test_groups_along_several_axes_have_their_names() -> None:
    mesh = ml.DeviceMesh("dp=2, cp=2, tp=2")
    trace = traces_of([*groups_of(mesh, ("dp", "cp", "tp")), ProcessGroup("x", "", mesh["dp", "cp"][0].ranks)], 8, [0])
    places = trace.groups("dp=2, cp=2, tp=2").set_index("process_group")
    assert places.loc["x", ["axis", "group"]].tolist() == ["dp-cp", "dp-cp_0"]
    assert places.loc["tp0", ["axis", "group"]].tolist() == ["tp", "tp_0"]


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(MeshError, match=r"the mesh dp=2 has 2 ranks, but the job of the trace has 4; pass the mesh"):
        ml.Trace.example().frame("dp=2")


def test_without_ranks_of_groups_there_is_no_mesh(tmp_path: Path) -> None:
    call = kernel_event(1.0, 2.0)
    call["args"]["Process Group Ranks"] = "[0, ...]"
    trace = read(tmp_path, [document([call], groups=[])])
    with pytest.raises(MeshError, match="does not contain the ranks of any process group; pass the mesh"):
        trace.mesh()
    assert trace.frame()["axis"].isna().all()


# -- tables and sentences ----------------------------------------------------------------------------------------------


def test_time_by_axis_is_that_of_an_average_rank() -> None:
    trace = ml.Trace.example()
    table = trace.by_axis(steps=False).set_index("axis")
    assert table["calls"].to_dict() == {"dp": 4, "tp": 8}
    frame = trace.frame()
    tp = frame[frame["axis"].eq("tp")]
    assert table.loc["tp", "wait_us"] == pytest.approx(tp["wait_us"].sum() / 4)
    assert table.loc["tp", "transfer_us"] == pytest.approx(tp.loc[tp["is_last"], "transfer_us"].sum() / 2)
    assert table.loc["tp", ["late_rank", "late_calls", "counted_calls"]].tolist() == [3, 8, 8]
    by_step = trace.by_axis()
    assert by_step["step"].tolist() == [0, 1, 0, 1]
    assert by_step.groupby("axis")["transfer_us"].sum()["dp"] == pytest.approx(table.loc["dp", "transfer_us"])


def with_idle_hosts(starts: list[list[float]], gaps: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    """Return traces in which each host runs an operation until 20 µs, or another gap, before each call."""
    documents = trace_of(starts)
    for rank, content in enumerate(documents):
        before = 0.0
        for number, start in enumerate(starts[rank]):
            end = start - gaps.get((rank, number), 20.0)
            content["traceEvents"].append(event("cpu_op", "aten::mm", before, end - before))
            before = start
            content["traceEvents"].append(
                event("cuda_runtime", "cudaLaunchKernel", start - 1, 1.0, correlation=int(start * 10))
            )
    return documents


def test_a_host_that_is_idle_before_a_late_call_is_named(tmp_path: Path) -> None:
    starts = [[1000.0 * k for k in range(1, 21)], [1000.0 * k + 10.0 for k in range(1, 21)]]
    starts[1][12] += 700.0
    trace = read(tmp_path, with_idle_hosts(starts, {(1, 12): 750.0}))
    delays = trace.delays()
    assert delays[["rank", "call"]].to_numpy().tolist() == [[1, 12]]
    assert delays["idle_us"].tolist() == pytest.approx([749.0], abs=2)
    sentence = "The host of rank 1 was idle for 749 µs before a call of all_reduce, and the rank came 710 µs after"
    assert any(line.replace("\u2009", " ").startswith(sentence) for line in trace.sentences())


def test_a_delay_has_less_effect_if_the_other_rank_was_late_as_well(tmp_path: Path) -> None:
    starts = [[1000.0 * k for k in range(1, 21)], [1000.0 * k + 10.0 for k in range(1, 21)]]
    starts[1][12] += 700.0
    starts[0][12] += 400.0  # computes for longer
    delays = read(tmp_path, with_idle_hosts(starts, {(1, 12): 750.0})).delays()
    assert delays[["rank", "idle_us", "lateness_us"]].to_numpy().tolist() == [[1, pytest.approx(749, abs=2), 310.0]]


def test_a_gap_that_all_ranks_have_is_not_a_delay(tmp_path: Path) -> None:
    starts = [[1000.0 * k for k in range(1, 21)], [1000.0 * k + 10.0 for k in range(1, 21)]]
    starts[0][12] += 500.0
    starts[1][12] += 700.0
    assert read(tmp_path, with_idle_hosts(starts, {(0, 12): 550.0, (1, 12): 750.0})).delays().empty


def test_calls_are_compared_with_the_curve_of_their_group() -> None:
    trace = ml.Trace.example()
    sizes = [1 << 20, 1 << 30]
    rows = [("all_reduce", 2, size, size / 1e5) for size in sizes]
    machine = pd.DataFrame(rows, columns=["collective", "n_ranks", "size_bytes", "time_us"])
    calls = trace.against(machine)
    assert calls["expected_us"].to_numpy() == pytest.approx(calls["size_bytes"].astype("float64").to_numpy() / 1e5)
    assert trace.against(machine[:1])["share"].isna().all()  # beyond the sizes of the curve
    assert not calls["is_slow"].any()
    faster = trace.against(machine.assign(time_us=machine["time_us"] / 4))
    assert faster.loc[faster["axis"].eq("tp"), "is_slow"].all()
    assert any(
        "fall off the curve" in line for line in trace.sentences(machine=machine.assign(time_us=rows[0][3] / 40))
    )
    with pytest.raises(BenchError, match="has no times of all_reduce of 2 ranks"):
        trace.against(machine.assign(n_ranks=8))


def test_predictions_and_runs_are_machines() -> None:
    trace = ml.Trace.example()
    prediction = ml.predict("dp=2, tp=2", "dgx-h100")
    assert trace.against(prediction)["share"].notna().all()
    graph = ml.example().query("mode == 'graph'")
    assert trace.against(graph)["share"].notna().any()
    with pytest.raises(BenchError, match="the results mix the modes"):
        trace.against(ml.example())


def test_calls_are_compared_with_published_curves_and_their_sources_named() -> None:
    trace = ml.Trace.example()
    table = trace.published("H200")  # with GPUs that have the same NVLink
    assert set(table["n_ranks"]) == {2}
    calls = trace.against(table)
    compared = calls[calls["share"].notna()]
    assert set(compared["collective"]) == {"all_reduce"}
    assert compared["source"].str.contains("H100").all()
    assert any("of published curves" in line and "H100 (" in line for line in trace.sentences(machine=table))
    with pytest.raises(BenchError, match="the trace does not contain the name of its GPUs"):
        trace.published()
    with pytest.raises(BenchError, match="no published run has"):
        trace.published("T4")


def published_rows(**columns: Any) -> pd.DataFrame:
    rows = {"curve": "a", "system": "two hosts", "source": "S", "nodes": 1, "in_place": False, "verdict": None}
    sizes = [1 << 20, 1 << 30]
    facts = {"collective": "all_reduce", "n_ranks": 2, "size_bytes": sizes, "time_us": [size / 1e5 for size in sizes]}
    return pd.DataFrame(rows | facts | columns)


def test_published_curves_that_disagree_or_are_slow_do_not_count() -> None:
    trace = ml.Trace.example()
    first = published_rows()
    other = published_rows(curve="b", time_us=first["time_us"] * 2)
    assert trace.against(first)["share"].notna().all()
    assert trace.against(pd.concat([first, other]))["share"].isna().all()
    slow = pd.concat([first, other.assign(verdict="slow")])
    more_hosts = pd.concat([first, other.assign(nodes=2)])
    for table in (slow, more_hosts):
        assert trace.against(table)["expected_us"].equals(trace.against(first)["expected_us"])


# -- Gloo --------------------------------------------------------------------------------------------------------------


def gloo_documents(late: int = 0) -> list[dict[str, Any]]:
    """Four ranks on dp=2, tp=2, whose calls have threads instead of groups, and overlap within their groups only."""
    mesh = ml.DeviceMesh("dp=2, tp=2")
    documents = []
    for rank in range(4):
        lists = [
            group_of("0", "default_pg", range(4)),
            group_of("1", "mesh_dp", mesh["dp"].of(rank).ranks),
            group_of("2", "mesh_tp", mesh["tp"].of(rank).ranks),
        ]
        for item in lists:
            item["backend_config"] = "cpu:gloo,cuda:gloo"
            item["pg_name"] = f"{item['pg_desc']}{item['ranks']}"
        events = []
        for number in range(8):
            time = 1000.0 * number + 400 * mesh.coordinates(rank)["dp"]
            extra = 60.0 if rank == late else 0.0
            thread = 50 + number % 2
            events.append(event("user_annotation", "gloo:all_reduce", time + extra, 100.0 - extra, thread))
        for number in range(4):
            time = 10_000 + 1000.0 * number + 400 * mesh.coordinates(rank)["tp"]
            events.append(event("user_annotation", "gloo:all_gather", time, 100.0, 40 + number % 2))
        documents.append(document(events, rank, 4, lists))
    return documents


def test_the_groups_of_gloo_follow_from_threads_and_times(tmp_path: Path) -> None:
    trace = read(tmp_path, gloo_documents())
    frame = trace.frame()
    assert trace.mesh() == ml.DeviceMesh("dp=2, tp=2")
    assert frame.groupby("axis")["collective"].unique().map(list).to_dict() == {
        "dp": ["all_gather"],
        "tp": ["all_reduce"],
    }
    assert frame["exposed_us"].isna().all()
    assert frame["wait_us"].notna().all()
    tp = trace.by_axis(steps=False).set_index("axis").loc["tp"]
    assert tp["late_rank"] == 0


def test_messages_of_gloo_between_two_ranks_have_a_sender_and_a_receiver(tmp_path: Path) -> None:
    """Their events name neither the peer nor, for a receive, the size."""
    documents = []
    for rank in range(2):
        groups = [group_of("1", "mesh_pp", range(2)) | {"backend_config": "cpu:gloo"}]
        sent, received = ("gloo:send", "gloo:recv") if rank == 0 else ("gloo:recv", "gloo:send")
        events = [
            event("user_annotation", name, time + 30.0 * (name == "gloo:send"), 100.0, 40)
            for name, time in ((sent, 1000.0), (received, 2000.0), (sent, 3000.0))
        ]
        for item in events:
            if item["name"] == "gloo:send":
                item["args"] |= {"Input Dims": [[256]], "Input type": ["float"]}
        documents.append(document(events, rank, 2, groups))
    frame = read(tmp_path, documents).frame()
    assert frame.groupby("call")["collective"].agg(sorted).map(tuple).tolist() == [("recv", "send")] * 3
    waits = frame[frame["collective"].eq("recv")].set_index("call")
    assert waits["rank"].tolist() == [1, 0, 1]
    assert waits["wait_us"].tolist() == pytest.approx([30.0] * 3, abs=1)


def test_groups_of_gloo_that_several_choices_explain_are_unknown() -> None:
    documents = gloo_documents()
    for content in documents:
        for call in content["traceEvents"]:
            call["ts"], call["dur"] = float(int(call["ts"]) // 1000 * 1000), 900.0
    traces = with_groups([read_trace(content, f"rank{rank}") for rank, content in enumerate(documents)])
    assert all((trace.calls["group"] < 0).all() for trace in traces)
