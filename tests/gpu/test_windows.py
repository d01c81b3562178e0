"""Symmetric windows and configured calls on real GPUs, with NCCL versions that have both, one or none of them."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError
from meshlab.benchmark.tuning._options import chooses_per_call
from tests.gpu.launching import launch
from tests.gpu.test_nccl import nccl_version, values

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 1 << 20


@pytest.fixture(autouse=True)
def has_windows(gpu_engines: ml.Engines) -> None:
    fact = gpu_engines.ranks[0].capabilities.facts["symmetric memory"]
    if fact.startswith("no"):
        pytest.skip(f"symmetric memory: {fact}")


@pytest.fixture
def can_choose(gpu_engines: ml.Engines) -> bool:
    return nccl_version(gpu_engines) >= (2, 31)


def why(call: Any) -> str:
    """Return the message of the error that a call raises, or an empty string."""
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


# -- results -----------------------------------------------------------------------------------------------------------


COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv"]


@pytest.mark.parametrize("mode", ["pipelined", "graph", "isolated"])
def test_every_collective_is_right_on_all_kinds_of_buffers(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh, mode: str
) -> None:
    results = ml.bench(
        gpu_engines,
        mesh,
        COLLECTIVES,
        axis=mesh.axis_names[-1],
        sizes="8, 4K, 1M, 32M",
        mode=mode,
        in_place=[False, True],
        buffers="plain, registered, symmetric",
        sampling="quick",
    ).wait(600)
    assert results["status"].eq("ok").all(), results[["collective", "buffers", "size_bytes", "status", "stop_reason"]]
    assert results["n_wrong"].eq(0).all()
    assert set(results["buffers"]) == {"plain", "registered", "symmetric"}
    print(results.pivot_table(index=["collective", "in_place", "size_bytes"], columns="buffers", values="time_us"))


def test_aggregated_and_misaligned_calls_are_right_on_windows(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    for options in ({"n_aggregated": 4}, {"alignment_bytes": 4}, {"n_aggregated": 3, "alignment_bytes": 12}):
        results = ml.bench(
            gpu_engines,
            mesh,
            ["all_reduce", "all_gather", "send_recv"],
            axis=mesh.axis_names[-1],
            sizes="64, 1M",
            buffers="plain, symmetric",
            sampling="quick",
            **options,
        ).wait(600)
        assert results["status"].eq("ok").all(), results[["collective", "buffers", "status", "stop_reason"]]
        assert results["n_wrong"].eq(0).all()


def test_pairs_work_on_windows(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    results = ml.bench_pairs(gpu_engines, mesh, sizes="1M", buffers="symmetric", sampling="quick").wait(600)
    assert results["n_wrong"].eq(0).all()
    assert results["buffers"].eq("symmetric").all()


def count_registrations(comm: Any) -> None:
    from meshlab.comm.backends._nccl import NcclBackend

    honest = NcclBackend.register_window
    NcclBackend.honest, NcclBackend.n_windows = honest, 0  # type: ignore[attr-defined]

    def register_window(self: Any, *arguments: Any, **options: Any) -> Any:
        NcclBackend.n_windows += 1  # type: ignore[attr-defined]
        return honest(self, *arguments, **options)

    NcclBackend.register_window = register_window  # type: ignore[method-assign]


def read_registrations(comm: Any) -> int:
    from meshlab.comm.backends._nccl import NcclBackend

    NcclBackend.register_window = NcclBackend.honest  # type: ignore[attr-defined,method-assign]
    return int(NcclBackend.n_windows)  # type: ignore[attr-defined]


def test_a_benchmark_registers_its_window_once(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    gpu_engines.run(count_registrations)
    run = ml.bench(
        gpu_engines, mesh, axis=mesh.axis_names[-1], sizes="8:64M", buffers="symmetric, plain", sampling="quick"
    )
    results = run.wait(600)
    assert results["status"].eq("ok").all()
    assert set(gpu_engines.run(read_registrations)["value"]) == {1}


def sums_on_windows(comm: Any) -> list[str]:
    xp, wrong = comm.xp, []
    expected = sum(range(1, comm.size + 1))
    x, out = comm.empty(MIB, "float32", symmetric=True), comm.empty(MIB, "float32", symmetric=True)
    y = comm.empty((4, 256), "int64")
    for name, arrays in (
        ("window to window", (x, out)),
        ("in place", (x, x)),
        ("window to plain", (x, xp.empty_like(x))),
        ("part of a window", (x[1000:5000], out[1000:5000])),
    ):
        for round_number in range(20):
            arrays[0][...] = comm.rank + 1
            comm.all_reduce(*arrays)
            if not bool((arrays[1] == expected).all()):
                wrong.append(f"{name}, round {round_number}")
                break
    with comm.registered(y, symmetric=True):
        y[...] = comm.rank + 1
        if not bool((comm.all_reduce(y) == expected).all()):
            wrong.append("registered")
    y[...] = comm.rank + 1  # the memory is still there
    if not bool((comm.all_reduce(y) == expected).all()):
        wrong.append("after the block")
    if comm.empty((0, 3), "int8", symmetric=True).shape != (0, 3):
        wrong.append("an empty array")
    return wrong


def test_sums_on_windows_are_right(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    for axis in dict.fromkeys(["world", *mesh.axis_names]):
        assert [found for found in values(gpu_engines, sums_on_windows, mesh, axis) if found] == []


def takes_symmetric_kernels(comm: Any) -> tuple[str, str, str]:
    """A call with algorithm="symk" is an error unless both arrays are in windows."""
    chosen = comm.configured(algorithm="symk")
    plain = comm.empty(1024, "float32")
    without = why(lambda: chosen.all_reduce(plain, plain))
    window = comm.empty(1024, "float32", symmetric=True)
    window[...] = 1
    within = why(lambda: chosen.all_reduce(window, window))
    with comm.registered(plain, symmetric=True):
        registered = why(lambda: chosen.all_reduce(plain, plain))
    return without, within, registered


def test_windows_are_used_by_symmetric_kernels(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, can_choose: bool) -> None:
    if not can_choose:
        pytest.skip("before NCCL 2.31 there is no choice per call")
    for without, within, registered in values(gpu_engines, takes_symmetric_kernels, mesh):
        assert "NCCL rejected all_reduce with algorithm='symk'" in without
        assert (within, registered) == ("", "")


def replay(comm: Any) -> tuple[bool, bool]:
    """Replay a graph of the user, and one of `measure`, on a window."""
    xp = comm.xp
    x, out = comm.empty(4096, "float32", symmetric=True), comm.empty(4096, "float32", symmetric=True)
    x[...] = comm.rank + 1
    call = comm.prepare("all_reduce", x, out)
    call()
    stream = comm.backend.stream
    comm.to_host(x)
    with stream:
        stream.begin_capture()
        for _ in range(20):
            call.enqueue()
        graph = stream.end_capture()
    out[...] = 0
    xp.cuda.Device().synchronize()
    for _ in range(50):
        graph.launch(stream)
    replayed = bool((comm.to_host(out) == sum(range(1, comm.size + 1))).all())
    del graph
    timings = call.measure("graph", 20, 10)
    return replayed, bool((timings.time_us > 0).all())


def test_graphs_are_replayed_on_a_window(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    assert set(values(gpu_engines, replay, mesh)) == {(True, True)}


# -- refused -----------------------------------------------------------------------------------------------------------


def refusals(comm: Any) -> dict[str, str]:
    xp = comm.xp
    last = comm.rank == comm.size - 1

    def register(array: Any) -> None:
        with comm.registered(array, symmetric=True):
            pass

    mine = comm.empty(8192, "float32")
    pool = xp.zeros(8192 + 1024, "float32")
    plain = pool[-pool.data.ptr % 4096 // 4 :][:8192]  # aligned like a window, but not in NCCL's memory
    return {
        "sizes": why(lambda: comm.empty(1024 + comm.rank, "float32", symmetric=True)),
        "registered sizes": why(lambda: register(comm.empty(1024 + comm.rank, "float32"))),
        "not NCCL's": why(lambda: register(plain if last else mine)),
        "a list": why(lambda: register([1, 2] if last else mine)),
        "a view": why(lambda: register(mine[1:])),
        "too large": why(lambda: comm.empty(1 << 50, "uint8", symmetric=True)),
        "afterwards": str(comm.all_reduce(xp.ones(1))[0] == comm.size),
    }


def test_windows_that_cannot_be_registered_are_refused_on_all_ranks(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh
) -> None:
    found = values(gpu_engines, refusals, mesh)
    for messages in found:
        for key in ("sizes", "registered sizes"):
            assert "must have the same size on all ranks" in messages[key]
            assert re.search(r"rank 0 of the group has 4,096 bytes and rank 1 has 4,100", messages[key])
        assert "starts 4 bytes after a multiple of 4,096" in messages["a view"]
        assert "are free" in messages["too large"]
        assert messages["afterwards"] == "True"
    *others, last = found
    assert "other GPUs cannot map its memory; allocate it with comm.empty()" in last["not NCCL's"]
    assert "needs a cupy array, not list" in last["a list"]
    for messages in others:
        assert re.search(r"rank \d+ passed an array that cannot be a symmetric window", messages["not NCCL's"])
        assert re.search(r"rank \d+ passed something that is not an array of cupy", messages["a list"])


def different_calls(comm: Any) -> None:
    if comm.rank:
        comm.empty(1024, "float32", symmetric=True)
    else:
        comm.all_reduce(comm.xp.ones(4))
    comm.barrier()


def test_a_window_on_some_ranks_only_is_a_disagreement(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    with pytest.raises(EngineError, match=r"rank \d+ call(s|ed) (window|all_reduce)"):
        gpu_engines.run(different_calls, deadline_s=5)
    gpu_engines.restart()
    assert gpu_engines.verify(mesh)["is_right"].all()


# -- lifetime ----------------------------------------------------------------------------------------------------------


def free_mib(comm: Any) -> float:
    comm.to_host(comm.xp.empty(0))
    comm.xp.cuda.Device().synchronize()
    return float(comm.xp.cuda.runtime.memGetInfo()[0]) / MIB


def reuse(comm: Any) -> float:
    """Allocate and delete windows while calls on them run. Return the MiB that are lost."""
    expected = sum(range(1, comm.size + 1))
    x = comm.empty(256 * MIB, "uint8", symmetric=True)
    del x
    before = free_mib(comm)
    for _ in range(40):
        x = comm.empty(256 * MIB, "uint8", symmetric=True)
        x[:1024] = comm.rank + 1
        total = comm.all_reduce(x[:1024])
        comm.all_reduce(x, x, op="max")
        del x
        if not bool((total == expected).all()):
            return float("nan")
    plain = comm.empty(256 * MIB, "uint8")
    for _ in range(40):
        with comm.registered(plain, symmetric=True):
            comm.all_reduce(plain, plain, op="max")
    del plain
    return before - free_mib(comm)


def test_windows_are_given_back(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    lost = values(gpu_engines, reuse, mesh, deadline_s=300)
    print(f"{lost} MiB lost after 80 windows of 256 MiB")
    assert max(lost) < 64


def close_in_any_order(comm: Any) -> list[str]:
    """Close communicators before and after the arrays die, and use a window of two communicators."""
    wrong = []
    expected = sum(range(1, comm.size + 1))

    def total(group: Any, x: Any) -> bool:
        x[...] = comm.rank + 1
        return bool((group.all_reduce(x, x) == expected).all())

    child = comm.split(0)
    x = child.empty(MIB, "float32", symmetric=True)
    wrong += [] if total(child, x) else ["before close"]
    child.close()  # the window ends here
    x[...] = 1  # and the memory is still valid
    wrong += [] if total(comm, x) else ["after close of the child"]
    del x
    comm.to_host(comm.xp.empty(0))

    child = comm.split(0)
    x = child.empty(MIB, "float32", symmetric=True)
    del x
    child.close()

    child = comm.split(0)
    x = comm.empty(MIB, "float32", symmetric=True)
    with child.registered(x, symmetric=True):
        wrong += [] if total(child, x) and total(comm, x) else ["two communicators"]
    wrong += [] if total(comm, x) else ["after the block"]
    with child.registered(x, symmetric=True):
        child.close()  # within the block
    wrong += [] if total(comm, x) else ["after a close within the block"]

    view = comm.configured(algorithm="ring") if chooses_per_call(comm.capabilities()) else None
    if view is not None and not why(lambda: total(view, x)):
        view.close()
        wrong += [] if total(comm, x) else ["after a view was closed"]
    return wrong


def test_communicators_and_arrays_end_in_any_order(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    assert [found for found in values(gpu_engines, close_in_any_order, mesh, deadline_s=60) if found] == []


def never_call(comm: Any) -> None:
    x = comm.empty(64 * MIB, "uint8", symmetric=True)
    y = comm.empty(64 * MIB, "uint8")
    with comm.registered(y, symmetric=True):
        if comm.world_rank == 0:
            time.sleep(60)
        comm.all_reduce(x, y, op="max")
        comm.to_host(y[:1])


def keep(comm: Any) -> None:
    comm.backend.kept_by_test = comm.empty(64 * MIB, "uint8", symmetric=True)


def test_an_abort_while_windows_are_registered_leaves_nothing_behind(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh
) -> None:
    # A communicator keeps memory from its first call on a window until it ends, so there are such calls at both ends.
    gpu_engines.run(sums_on_windows)
    before = gpu_engines.run(free_mib)["value"].min()
    for _ in range(3):
        gpu_engines.run(keep)
        with pytest.raises(EngineError):
            gpu_engines.run(never_call, deadline_s=3)
        gpu_engines.restart()
        assert gpu_engines.verify(mesh)["is_right"].all()
        assert [found for found in gpu_engines.run(sums_on_windows)["value"] if found] == []
    lost = before - gpu_engines.run(free_mib)["value"].min()
    print(f"{lost:.0f} MiB lost after three aborts with windows")
    # Before 2.30, NCCL itself keeps the windows that are open at an abort until the process ends.
    windows = 3 * 3 * 64 if nccl_version(gpu_engines) < (2, 30) else 0
    assert lost < windows + 128


def test_ranks_exit_with_windows(n_ranks: int) -> None:
    engines = launch(n_ranks)
    engines.run(keep)
    begin = time.monotonic()
    engines.close()
    assert time.monotonic() - begin < 20


# -- configured calls --------------------------------------------------------------------------------------------------


CONFIGURATIONS: list[dict[str, Any]] = [
    *({"algorithm": "ring", "protocol": protocol} for protocol in ("ll", "ll128", "simple")),
    *({"algorithm": "tree", "protocol": protocol} for protocol in ("ll", "ll128", "simple")),
    {"protocol": "ll"},
    {"protocol": "simple"},
    {"algorithm": "^symk"},
    {"max_ctas": 2},
    {"min_ctas": 8},
    {"cta_policy": "efficiency"},
    {"cta_policy": "default"},
]


def with_configurations(comm: Any) -> list[str]:
    wrong = []
    for options in CONFIGURATIONS:
        x = comm.xp.full(MIB, comm.rank + 1, dtype="float32")
        try:
            total = comm.configured(**options).all_reduce(x)
        except Exception as error:
            wrong.append(f"{options}: {error}")
            continue
        if not bool((total == sum(range(1, comm.size + 1))).all()):
            wrong.append(f"{options}: a wrong sum")
    return wrong


def test_configured_calls_are_right(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, can_choose: bool) -> None:
    found = values(gpu_engines, with_configurations, mesh)
    if can_choose:
        assert found == [[]] * len(found)
    else:
        assert all("cannot configure calls, which requires 2.31" in text for text in found[0])
        assert len(found[0]) == len(CONFIGURATIONS)


def test_a_benchmark_measures_configurations(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, can_choose: bool) -> None:
    arguments: dict[str, Any] = {
        "axis": mesh.axis_names[-1],
        "sizes": "64, 1M",
        "mode": "graph",
        "buffers": ["plain", "symmetric"],
        "algorithm": [None, "ring"],
        "protocol": [None, "ll"],
        "max_ctas": [None, 4],
        "sampling": "quick",
    }
    if not can_choose:
        with pytest.raises(BenchError, match="cannot choose algorithm and protocol and max_ctas per call: NCCL 2"):
            ml.bench(gpu_engines, mesh, **arguments)
        return
    results = ml.bench(gpu_engines, mesh, **arguments).wait(600)
    assert results["status"].eq("ok").all(), results[["buffers", "algorithm", "protocol", "status", "stop_reason"]]
    assert results["n_wrong"].eq(0).all()
    one = results[results["size_bytes"] == 64]
    assert len(one) == 16 * results["group"].nunique()
    assert one["algorithm"].isna().sum() == len(one) // 2
    print(results[["size_bytes", "buffers", "algorithm", "protocol", "max_ctas", "time_us"]].to_string())


def test_an_impossible_configuration_is_a_failed_step(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh, can_choose: bool
) -> None:
    if not can_choose:
        pytest.skip("before NCCL 2.31 there is no choice per call")
    results = ml.bench(
        gpu_engines,
        mesh,
        ["all_gather", "all_reduce"],
        axis=mesh.axis_names[-1],
        sizes="64K",
        algorithm=["tree", None],
        sampling="quick",
    ).wait(600)
    tree = results[results["algorithm"].eq("tree").fillna(False)]
    assert dict(zip(tree["collective"], tree["status"], strict=False))["all_reduce"] == "ok"
    failed = tree[tree["collective"] == "all_gather"]
    assert failed["status"].eq("failed").all()
    assert failed["stop_reason"].str.contains("NCCL rejected all_gather with algorithm='tree'").all()
    assert results[results["algorithm"].isna()]["status"].eq("ok").all()


def chosen_by_size(comm: Any) -> tuple[str, list[bool]]:
    from meshlab.comm import CallChoice, CallConfig

    small = CallChoice("all_reduce", 64 << 10, CallConfig(max_ctas=4), "symmetric")
    try:
        view = comm.chosen_by_size([small, CallChoice("all_reduce", None), CallChoice("all_gather", None)])
    except Exception as error:
        return str(error), []
    right = []
    for size in (2, 1024, 16 << 10, MIB, 16 * MIB):
        x, out = view.empty(size, "float32"), view.empty(size, "float32")
        for array in (x, out):
            array[...] = comm.rank + 1
        view.all_reduce(x, out)
        right.append(bool((out == sum(range(1, comm.size + 1))).all()))
        right.append(bool((view.all_gather(x).reshape(comm.size, -1)[-1] == comm.size).all()))
    return "", right


def test_calls_that_are_chosen_by_size_are_right(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh, can_choose: bool
) -> None:
    for error, right in values(gpu_engines, chosen_by_size, mesh):
        if can_choose:
            assert error == ""
            assert right == [True] * 10
        else:
            assert "cannot configure calls, which requires 2.31" in error


def least_us(comm: Any) -> dict[str, float]:
    found = {}
    for kind in ("plain", "symmetric"):
        x, out = (comm.empty(2, "float32", symmetric=kind == "symmetric") for _ in range(2))
        found[kind] = float(np.min(comm.prepare("all_reduce", x, out).measure("graph", 200, 20).time_us))
    return found


@pytest.mark.usefixtures("whole_gpus")
def test_small_calls_are_faster_on_windows(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, capsys: Any) -> None:
    found = values(gpu_engines, least_us, mesh)
    slowest = {kind: max(one[kind] for one in found) for kind in ("plain", "symmetric")}
    with capsys.disabled():
        print(f"\n    all_reduce of 8 B: {slowest}")
    assert slowest["symmetric"] < slowest["plain"]
