"""What a reader of traces must not fall for, and the other formats of calls."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import MeshlabError, ParseError
from tests.traces.trace_maker import WORLD_OF_TWO, comms, document, event, group_of, kernel_event, write


def frame_of(folder: Path, *documents: Any) -> Any:
    return ml.Trace.read(write(folder, *documents)).frame()


def launch(start: float, correlation: int, thread: int = 1) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernelExC", start, 5.0, thread, correlation=correlation)


# -- the nine traps ----------------------------------------------------------------------------------------------------


def test_a_range_that_the_gpu_repeats_counts_once(tmp_path: Path) -> None:
    events = [
        kernel_event(100.0, 50.0),
        event("user_annotation", "nccl:all_reduce", 80.0, 10.0),
        event("gpu_user_annotation", "nccl:all_reduce", 100.0, 50.0, 7),
        launch(82.0, 1000),
    ]
    assert len(frame_of(tmp_path, document(events))) == 1


@pytest.mark.parametrize(
    ("kernel", "collective"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "reduce_scatter"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
    ],
)
def test_the_name_of_a_kernel_is_not_its_collective(tmp_path: Path, kernel: str, collective: str) -> None:
    inside = event("user_annotation", "nccl:_reduce_scatter_base", 80.0, 10.0)
    events = [event("kernel", kernel, 100.0, 50.0, 7, correlation=9), inside, launch(82.0, 9)]
    frame = frame_of(tmp_path, document(events))
    assert frame["collective"].tolist() == [collective]
    alone = frame_of(tmp_path, document(events[:1]))
    assert alone["collective"].isna().all()


def test_a_kernel_whose_name_has_the_collective_is_named_without_a_call(tmp_path: Path) -> None:
    kernel = event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)", 1.0, 2.0, 7)
    frame = frame_of(tmp_path, document([kernel]))
    assert frame["collective"].tolist() == ["all_reduce"]
    assert frame["size_bytes"].isna().all()


def test_sizes_are_in_the_kernel_the_call_the_dims_or_nowhere(tmp_path: Path) -> None:
    plain = event("kernel", "ncclKernel_SendRecv(x)", 100.0, 50.0, 7, correlation=9)
    outer = event("cpu_op", "record_param_comms", 79.0, 12.0, **comms("allreduce", 1000, WORLD_OF_TWO))
    inner = event("user_annotation", "nccl:all_reduce", 80.0, 10.0)
    dims = {"Input Dims": [[10, 100]], "Input type": ["float"]}
    with_dims = event("user_annotation", "nccl:all_reduce", 80.0, 10.0, **dims)
    all_to_all = event("user_annotation", "nccl:all_to_all", 80.0, 10.0, **dims)
    sizes = [
        frame_of(tmp_path, document(events))["size_bytes"].astype("float64").tolist()
        for events in (
            [kernel_event(1.0, 2.0, count=500)],
            [plain, launch(82.0, 9), outer, inner],
            [plain, launch(82.0, 9), with_dims],
            [plain, launch(82.0, 9), inner],
            [plain, launch(82.0, 9), all_to_all],  # its chunks may differ
        )
    ]
    assert sizes[:3] == [[1000.0], [2000.0], [4000.0]]
    assert np.isnan(sizes[3:]).all()


def test_an_external_id_that_is_the_correlation_joins_nothing(tmp_path: Path) -> None:
    numbers = {"correlation": 9, "External id": 9}
    kernel = event("kernel", "ncclKernel_SendRecv(x)", 100.0, 50.0, 7, **numbers)
    other = event(
        "cpu_op", "record_param_comms", 10.0, 5.0, **{**comms("broadcast", 7, WORLD_OF_TWO), "External id": 9}
    )
    right = event("user_annotation", "nccl:all_reduce", 80.0, 10.0)
    frame = frame_of(tmp_path, document([kernel, other, right, launch(82.0, 9)]))
    assert frame.loc[frame["duration_us"].notna(), "collective"].tolist() == ["all_reduce"]
    newer = event("kernel", "ncclDevKernel_Generic(x)", 100.0, 50.0, 7, **{"correlation": 5, "External id": 9})
    assert frame_of(tmp_path, document([newer, other]))["collective"].tolist() == ["broadcast"]


def test_the_wait_for_a_call_is_not_a_call(tmp_path: Path) -> None:
    waiting = event("cpu_op", "record_param_comms", 200.0, 5.0, **{**comms("wait", 0, WORLD_OF_TWO), "dtype": "Byte"})
    assert len(frame_of(tmp_path, document([kernel_event(100.0, 50.0), waiting]))) == 1


def test_files_without_a_common_zero_are_aligned_by_the_ends_of_calls(tmp_path: Path) -> None:
    first = [kernel_event(1000.0 * k, 500.0) for k in range(1, 9)]
    second = [kernel_event(7e9 + 1000.0 * k + 300.0, 200.0) for k in range(1, 9)]
    trace = ml.Trace.read(write(tmp_path, document(first, base=None), document(second, rank=1, base=None)))
    frame = trace.frame()
    assert frame["wait_us"].tolist() == pytest.approx([300.0, 0.0] * 8)
    assert frame["transfer_us"].tolist() == pytest.approx([200.0] * 16)


@pytest.mark.parametrize("as_text", [True, False])
def test_groups_may_be_cut_a_string_or_keyed_by_an_id(tmp_path: Path, as_text: bool) -> None:
    content = document([kernel_event(1.0, 2.0)])
    if as_text:
        content["distributedInfo"]["pg_config"] = json.dumps(content["distributedInfo"]["pg_config"])
    assert frame_of(tmp_path, content)["group_ranks"].tolist() == [(0, 1)]
    content["distributedInfo"] |= {"pg_config": [], "pg_count": 71}
    trace = ml.Trace.read(write(tmp_path, content))
    assert trace.frame()["group_ranks"].tolist() == [(0, 1)]  # of the call
    assert "The files list 1 of 71 process groups." in trace.sentences()
    old = kernel_event(1.0, 2.0)
    del old["args"]["Process Group Name"]
    old["args"]["Process Group ID"] = 0
    assert frame_of(tmp_path, document([old]))["process_group"].tolist() == ["0"]


def test_ranks_that_are_cut_are_missing(tmp_path: Path) -> None:
    cut = kernel_event(1.0, 2.0)
    cut["args"] |= {"Process Group Ranks": "[0, 1, 2, 3, ...]", "Group size": 64}
    trace = ml.Trace.read(write(tmp_path, document([cut], world=64, groups=[])))
    assert trace.frame()["group_ranks"].isna().all()
    assert trace.frame()["n_ranks"].tolist() == [64]


def test_a_file_without_its_rank_is_not_rank_0(tmp_path: Path) -> None:
    trace = ml.Trace.read(write(tmp_path, document([kernel_event(1.0, 2.0)], rank=None)))
    assert trace.ranks == ()
    assert trace.frame()["rank"].isna().all()
    assert any("does not contain its rank" in line for line in trace.sentences())
    paths = write(tmp_path, document([kernel_event(1.0, 2.0)], rank=None), document([kernel_event(1.0, 2.0)], rank=1))
    with pytest.raises(ParseError, match="does not contain its rank, so it cannot be joined"):
        ml.Trace.read(paths)


# -- collectives -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "collective", "size"),
    [
        ("allreduce", 100, 100, "all_reduce", 200),
        ("allreduce_coalesced", 100, 100, "all_reduce", 200),
        ("_allgather_base", 100, 200, "all_gather", 400),
        ("allgather_into_tensor_coalesced", 100, 200, "all_gather", 400),
        ("reduce_scatter_tensor_coalesced", 200, 100, "reduce_scatter", 400),
        ("_reduce_scatter_base", 200, 100, "reduce_scatter", 400),
        ("all_to_all", 200, 200, "all_to_all", 400),
        ("broadcast", 100, 100, "broadcast", 200),
        ("_reduce_oop", 100, 100, "reduce", 200),
        ("gather", 100, 0, "gather", 400),
        ("scatter", 0, 100, "scatter", 400),
        ("send", 100, 100, "send", 200),
        ("recv", 100, 100, "recv", 200),
    ],
)
def test_a_size_is_that_of_nccl_tests(
    name: str, inputs: int, outputs: int, collective: str, size: int, tmp_path: Path
) -> None:
    frame = frame_of(tmp_path, document([kernel_event(1.0, 2.0, name, inputs, outputs=outputs)]))
    assert frame[["collective", "size_bytes", "dtype"]].to_numpy().tolist() == [[collective, size, "bfloat16"]]


def test_an_all_to_all_with_uneven_chunks_is_another_collective(tmp_path: Path) -> None:
    call = kernel_event(1.0, 2.0, "all_to_allv", 300, outputs=200, **{"In split size": "[100, 200]"})
    assert frame_of(tmp_path, document([call]))["collective"].tolist() == ["all_to_all_v"]


def test_grouped_calls_have_no_size(tmp_path: Path) -> None:
    events = [
        event("kernel", "ncclDevKernel_SendRecv(x)", 100.0, 50.0, 7, correlation=9),
        launch(82.0, 9),
        event("user_annotation", "nccl:coalesced", 80.0, 10.0),
    ]
    frame = frame_of(tmp_path, document(events))
    assert frame["collective"].tolist() == ["coalesced"]
    assert frame["size_bytes"].isna().all()


def test_kernels_of_other_libraries_are_named(tmp_path: Path) -> None:
    other = event("kernel", "void vllm::cross_device_reduce_1stage<__half, 4>(vllm::RankData*)", 200.0, 9.0, 7)
    trace = ml.Trace.read(write(tmp_path, document([kernel_event(1.0, 2.0), other])))
    assert trace.n_calls == 1
    assert any("1 kernels of vLLM" in line for line in trace.sentences())
    with pytest.raises(ParseError, match=r"contains 1 kernels of vLLM.*, but no call of a process group"):
        ml.Trace.read(write(tmp_path, document([other])))


def test_a_call_of_a_single_rank_has_no_kernel_and_no_duration(tmp_path: Path) -> None:
    call = event("cpu_op", "record_param_comms", 1.0, 2.0, **comms("allreduce", 10, group_of("0", "", (0,))))
    frame = frame_of(tmp_path, document([call], world=1, groups=[group_of("0", "", (0,))]))
    assert frame["size_bytes"].tolist() == [20]
    assert frame["duration_us"].isna().all()


def test_messages_of_two_ranks_are_one_call(tmp_path: Path) -> None:
    peers = {"Src Rank": 0, "Dst Rank": 1}
    sends = [kernel_event(100.0 * k, 40.0, "send", **peers) for k in (1, 2)]
    receives = [kernel_event(100.0 * k - 30.0, 75.0, "recv", **peers) for k in (1, 2)]
    frame = frame_of(tmp_path, document(sends), document(receives, rank=1))
    assert frame["call"].tolist() == [0, 0, 1, 1]
    assert frame["wait_us"].tolist() == [0.0, 30.0, 0.0, 30.0]


# -- overlap and steps -------------------------------------------------------------------------------------------------


def test_hidden_time_is_next_to_kernels_that_compute(tmp_path: Path) -> None:
    events = [
        kernel_event(100.0, 100.0),
        event("kernel", "gemm", 90.0, 30.0, 1),
        event("kernel", "gemm", 110.0, 40.0, 2),
        event("gpu_memcpy", "Memcpy HtoD", 150.0, 50.0, 3),  # computes nothing
    ]
    frame = frame_of(tmp_path, document(events))
    assert frame[["hidden_us", "exposed_us"]].to_numpy().tolist() == [[50.0, 50.0]]


def test_the_step_is_that_of_the_launch(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "ProfilerStep#7", 0.0, 100.0),
        event("user_annotation", "ProfilerStep#8", 101.0, 100.0),
        kernel_event(150.0, 10.0),
        launch(90.0, 1500),
    ]
    assert frame_of(tmp_path, document(events))["step"].tolist() == [7]


# -- other formats -----------------------------------------------------------------------------------------------------


def inspected(rank: int, number: int, time: float, name: str = "AllGather", size: int = 1000, **more: Any) -> str:
    header = {"id": "0x1", "rank": rank, "n_ranks": 2, "nnodes": 1, **more}
    metadata = {"inspector_output_format_version": "v4.0", "hostname": "n1", "pid": rank, "dump_timestamp_us": number}
    prefix = "p2p" if name in ("Send", "Recv") else "coll"
    call = {prefix: name, f"{prefix}_sn": number, f"{prefix}_msg_size_bytes": size, f"{prefix}_exec_time_us": time}
    if prefix == "p2p":
        call["p2p_peer"] = 1 - rank
    return json.dumps({"header": header, "metadata": metadata, f"{prefix}_perf": call})


def test_a_log_of_inspector_has_durations_only(tmp_path: Path) -> None:
    for rank, times in enumerate(([50, 80], [20, 90])):
        lines = [inspected(rank, number, time) for number, time in enumerate(times)]
        (tmp_path / f"node-{rank}.log").write_text("\n".join([*lines, lines[0][:40]]))  # the last line is cut
    trace = ml.read(tmp_path)
    frame = trace.frame()
    assert trace.kind == "NCCL Inspector log"
    assert frame["size_bytes"].tolist() == [2000] * 4
    assert frame["wait_us"].tolist() == [30.0, 0.0, 0.0, 10.0]
    assert frame["start_us"].isna().all()
    assert np.isnan(trace.error_us)


def test_messages_and_names_of_newer_inspectors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(inspected(rank, 0, 9.0, name, comm_name="pp") for rank, name in enumerate(("Send", "Recv")))
    )
    frame = ml.Trace.read(path).frame()
    assert frame["collective"].tolist() == ["send", "recv"]
    assert frame["description"].unique().tolist() == ["pp"]


def test_a_communicator_of_some_ranks_gets_their_ranks_from_their_files(tmp_path: Path) -> None:
    for rank in (0, 1, 2, 3):
        world = inspected(rank, 0, 10.0, id="0xw", n_ranks=4)
        pair = json.loads(inspected(rank % 2, 0, 10.0, id=f"0x{rank // 2}"))
        pair["metadata"]["pid"] = rank
        (tmp_path / f"{rank}.log").write_text(f"{world}\n{json.dumps(pair)}\n")
    trace = ml.read(tmp_path)
    assert trace.ranks == (0, 1, 2, 3)
    assert sorted(trace.groups()["ranks"]) == [(0, 1), (0, 1, 2, 3), (2, 3)]


def test_a_dump_of_the_flight_recorder_is_read(tmp_path: Path) -> None:
    entry = {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "profiling_name": "nccl:_reduce_scatter_base",
        "time_created_ns": 10**18,
        "duration_ms": 0.5,
        "input_sizes": [[4, 5]],
        "input_dtypes": ["Float"],
        "output_sizes": [[2, 5]],
        "is_p2p": False,
    }
    dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}
    for rank, duration in enumerate((0.5, 0.2)):
        content = {**dump, "entries": [{**entry, "duration_ms": duration}]}
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(content))
    frame = ml.read(tmp_path).frame()
    assert frame[["rank", "size_bytes", "wait_us"]].to_numpy().tolist() == [[0, 80, 300.0], [1, 80, 0.0]]


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_folders_and_gzip_are_read(tmp_path: Path) -> None:
    first, second = write(tmp_path, *(document([kernel_event(1.0, 2.0)], rank=rank) for rank in (0, 1)))
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(second.read_bytes()))
    second.unlink()
    (tmp_path / "notes.json").write_text("{}")
    for source in (tmp_path, str(tmp_path), [first, packed]):
        assert ml.read(source).ranks == (0, 1)
    assert ml.read(first).ranks == (0,)
    assert isinstance(ml.read(str(first)), ml.Trace)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": [{"ph": "X"', "the trace is cut or damaged: it is not valid JSON"),
        ('{"traceEvents": []}', "contains no collective"),
        ('{"a": 1}', "this file is not a trace: its keys are 'a'"),
        ("hello", "this file is not a trace"),
        ("\x80\x04", "not a trace|pickle"),
    ],
)
def test_other_files_are_refused_in_a_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=message):
        ml.Trace.read(path)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    call = [kernel_event(1.0, 2.0)]
    for documents, message in (
        ((document(call), document(call, rank=1, world=8)), "of different jobs"),
        ((document(call), document(call)), "rank 0 has 2 files"),
        ((document(call), document(call, rank=1, base=10**18 + 10**15)), "of different recordings"),
    ):
        with pytest.raises(ParseError, match=message):
            ml.Trace.read(write(tmp_path, *documents))
    with pytest.raises(ParseError, match="no file was passed"):
        ml.Trace.read([])
    (tmp_path / "log.json").write_text(inspected(0, 0, 1.0))
    with pytest.raises(ParseError, match="of different kinds: profiler trace and NCCL Inspector log"):
        ml.Trace.read([*write(tmp_path, document(call)), tmp_path / "log.json"])


JUNK = [None, "x", -1, 10**30, 1e308, float("inf"), [], {}, [[]], True, "9" * 500, "[1,2", [1, "a"], {"a": 1}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


@pytest.mark.parametrize("kind", ["trace", "log", "dump"])
def test_damaged_values_are_missing_or_refused(kind: str, tmp_path: Path) -> None:
    peers = {"Src Rank": 0, "Dst Rank": 1}
    entry = {"process_group": ["0", "x"], "profiling_name": "nccl:send 0->1", "duration_ms": 0.5, "input_sizes": [[4]]}
    source: Any = {
        "trace": document([kernel_event(100.0, 50.0), kernel_event(300.0, 9.0, "send", **peers), launch(82.0, 1000)]),
        "log": json.loads(inspected(0, 0, 5.0)),
        "dump": {"pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "entries": [entry]},
    }[kind]
    path = tmp_path / "trace_0.json"
    for number, place in enumerate(places(source)):
        content = json.loads(json.dumps(source))
        part = content
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = JUNK[number % len(JUNK)]
        path.write_text(json.dumps(content))
        with contextlib.suppress(MeshlabError):
            ml.Trace.read(path).explain()
