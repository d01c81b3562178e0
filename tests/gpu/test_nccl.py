"""NCCL on real GPUs: the conformance suite of all backends, features of NCCL only, and lost ranks."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import EngineError
from tests.comm import test_conformance as suite
from tests.gpu.launching import launch, n_gpus

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(suite)


def nccl_version(engines: ml.Engines) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", engines.ranks[0].capabilities.library))


def values(engines: ml.Engines, function: Any, mesh: ml.DeviceMesh, axis: str = "tp", **arguments: Any) -> list[Any]:
    return list(engines.run(function, mesh, axis=axis, **arguments)["value"])


@pytest.mark.parametrize("check", [suite.check_all, suite.check_large, suite.check_nan])
def test_every_collective_has_the_result_of_numpy(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, check: Any) -> None:
    for axis in dict.fromkeys(["world", *mesh.axis_names]):
        wrong = [call for value in values(gpu_engines, check, mesh, axis, deadline_s=300) for call in value]
        assert wrong == [], axis


def test_groups_are_verified(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    assert gpu_engines.verify(mesh)["is_right"].all()


def fill_and_reduce(comm: Any) -> int:
    """Use arrays on CuPy's default stream. Without synchronisation in both directions, results are wrong at once."""
    xp, wrong = comm.xp, 0
    for round_number in range(200):
        x = xp.full(1 << 20, comm.rank + round_number, dtype=xp.float32)
        total = comm.all_reduce(x)
        expected = sum(rank + round_number for rank in range(comm.size))
        wrong += int((total + 0 != expected).sum())
    return wrong


def test_calls_are_ordered_with_the_users_stream(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    assert set(values(gpu_engines, fill_and_reduce, mesh)) == {0}


def reuse_memory(comm: Any) -> list[str]:
    """Release arrays in NCCL's memory while calls on them may still be running."""
    xp, wrong = comm.xp, []
    for shape, dtype in [((), "int64"), (0, "float32"), (7, "uint8"), ((3, 5), "float64"), (1 << 24, "float32")]:
        x = comm.empty(shape, dtype)
        if not (isinstance(x, xp.ndarray) and x.dtype == dtype and x.shape == xp.empty(shape, dtype).shape):
            wrong.append(f"{shape} {dtype} is {x.shape} {x.dtype}")
        x[...] = comm.rank + 1
        total = comm.all_reduce(x)
        del x
        if not bool((total == sum(range(1, comm.size + 1))).all()):
            wrong.append(f"{shape} {dtype} sums up wrongly")
    try:
        comm.empty(1 << 50, "uint8")
    except Exception as error:
        if "are free" not in str(error):
            wrong.append(str(error))
    else:
        wrong.append("a petabyte was allocated")
    return wrong


def test_memory_of_nccl_can_be_released_at_any_time(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    assert [problem for value in values(gpu_engines, reuse_memory, mesh) for problem in value] == []


def rejections(comm: Any) -> list[str]:
    xp, messages = comm.xp, []
    calls: list[Any] = [
        lambda: comm.all_reduce(xp.ones((4, 4))[:, ::2]),
        lambda: comm.all_reduce(np.ones(4)),
        lambda: comm.broadcast(xp.ones(4), root=comm.size),
    ]
    if xp.cuda.runtime.getDeviceCount() > 1:
        with xp.cuda.Device((comm.world_rank + 1) % xp.cuda.runtime.getDeviceCount()):
            elsewhere = xp.ones(4)
        calls.append(lambda: comm.all_reduce(elsewhere))
    for call in calls:
        try:
            call()
        except Exception as error:
            messages.append(str(error))
    return messages


def test_wrong_arrays_never_reach_nccl(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    expected = ["must be contiguous", "must be a cupy array", "root", *(["is on GPU"] if n_gpus() > 1 else [])]
    for messages in values(gpu_engines, rejections, mesh):
        for message, part in zip(messages, expected, strict=True):
            assert part in message


def extras(comm: Any) -> dict[str, Any]:
    xp = comm.xp
    x = xp.ones(1 << 18, xp.float32)
    call = comm.prepare("all_reduce", x, x, op="max")
    with comm.registered(x):
        call()
    found: dict[str, Any] = {
        "registered": float(x.sum()),
        "estimate_us": call.estimate_us(),
        "memory": comm.memory_bytes(),
        "facts": comm.capabilities().facts,
    }
    times = {}
    for algorithm in ("ring", "tree"):
        try:
            chosen = comm.configured(algorithm=algorithm)
        except Exception as error:
            found["no choice"] = str(error)
            break
        for size in (1 << 20, 256 << 20):
            y = xp.zeros(size // 4, xp.float32)
            times[algorithm, size] = float(
                np.median(chosen.prepare("all_reduce", y, y).measure("pipelined", 5, 10).time_us)
            )
    return found | {"times": times}


@pytest.mark.usefixtures("whole_gpus")
def test_features_of_nccl_only(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    found = values(gpu_engines, extras, mesh)[0]
    print(found)
    assert found["registered"] == 1 << 18
    assert 1 < found["estimate_us"] < 1000
    if nccl_version(gpu_engines) < (2, 31):
        assert "cannot configure calls, which requires 2.31" in found["no choice"]
        assert found["facts"]["algorithm choice per call"].startswith("no: NCCL 2.")
        assert found["facts"]["properties"] == "absent"
        assert found["memory"] is None
    else:
        times = found["times"]
        ring, tree = times["ring", 1 << 20], times["tree", 1 << 20]
        assert max(ring, tree) / min(ring, tree) > 1.2, times
        assert found["facts"]["properties"] == "yes"
        assert found["memory"] > 0


def held_by_split(comm: Any) -> float:
    before = comm.xp.cuda.runtime.memGetInfo()[0]
    with comm.split(0) as child:
        child.all_reduce(comm.xp.ones(1 << 20))
        comm.xp.cuda.runtime.deviceSynchronize()
        return (before - comm.xp.cuda.runtime.memGetInfo()[0]) / 2**20


def test_a_split_takes_less_than_a_gibibyte(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    held = values(gpu_engines, held_by_split, mesh)
    print("MiB held by a split:", held)
    assert all(0 <= mib < 1024 for mib in held)


def test_a_benchmark_in_all_modes_has_correct_results(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    names = [row.name for row in ml.comm.CATALOG.values() if row.is_measurable]
    run = ml.bench(
        gpu_engines,
        mesh,
        names,
        sizes="8, 1M, 64M",
        mode="graph, pipelined, isolated",
        sampling=ml.Sampling(max_s=0.1),
        deadline_s=60,
    )
    results = run.wait(300)
    assert (results["status"] == "ok").all(), results.loc[results["status"] != "ok", ["collective", "stop_reason"]]
    assert (results["n_wrong"] == 0).all()
    if n_gpus() >= gpu_engines.world_size:
        small = results[(results["size_bytes"] == 8) & (results["collective"] == "all_reduce")].set_index("mode")
        assert small["time_us"].groupby("mode").median()["graph"] < 20
    assert "NCCL" in results.attrs["where"]


@pytest.mark.usefixtures("whole_gpus")
def test_overlap_is_measured(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    frame = ml.benchmark.overlap(gpu_engines, mesh, axis="tp", sizes="64M, 256M", matrix=8192)
    print(frame.round(2).to_string())
    assert (frame["both_us"] < frame["compute_us"] + frame["communication_us"]).all()
    assert (frame["overlap"] > 0.2).all()


def test_the_log_of_nccl_is_kept_for_each_rank(n_ranks: int) -> None:
    with launch(2, env={"NCCL_DEBUG": "INFO"}) as engines:
        engines.run(lambda comm: comm.barrier())
        logs = engines.library_logs()
    for log in logs:
        assert "NCCL INFO" in log


def in_two_levels(comm: Any, nodes: Any) -> list[str]:
    """Return the calls that differ from the flat communicator, and the modes that could not be measured."""
    xp, wrong, n, me = comm.xp, [], comm.size, comm.rank
    with ml.comm.Hierarchical.cut(comm, nodes) as levels:
        for dtype in ("float32", "int32"):
            for count in (0, 1, 7, 4096, 100_003):
                whole = xp.arange(n * count).astype(dtype) % 64 + me
                part = whole[:count].copy()
                pairs = [
                    (f"{op} {dtype}", levels.all_reduce(part, op=op), comm.all_reduce(part, op=op))
                    for op in ("sum", "avg", "max")
                ]
                pairs.append(("reduce_scatter", levels.reduce_scatter(whole), comm.reduce_scatter(whole)))
                pairs.append(("all_gather", levels.all_gather(part), comm.all_gather(part)))
                pairs += [
                    (f"broadcast {root}", levels.broadcast(part, root=root), comm.broadcast(part, root=root))
                    for root in range(n)
                ]
                wrong += [
                    f"{what} {dtype} {count}" for what, actual, expected in pairs if not xp.allclose(actual, expected)
                ]
        x = comm.empty(1 << 20, "float32")
        x[...] = 0
        call = levels.prepare("all_reduce", x, x)
        for mode in levels.capabilities().modes:
            time_us = call.measure(mode, 1 if mode == "isolated" else 5, 6).time_us
            wrong += [] if (time_us > 1).all() else [f"{mode} took {time_us}"]
    return wrong


def test_two_levels_have_the_results_of_one(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    for nodes in (1, gpu_engines.world_size // 2, gpu_engines.world_size):
        found = values(gpu_engines, in_two_levels, mesh, "world", arguments=(nodes,), deadline_s=60)
        assert [wrong for value in found for wrong in value] == [], nodes


def test_eight_ranks_share_the_gpus_in_a_cube(gpu_engines: ml.Engines) -> None:
    if nccl_version(gpu_engines) < (2, 30):
        pytest.skip("several ranks on one GPU need NCCL 2.30")
    cube = ml.DeviceMesh("pp=2, dp=2, tp=2")
    with launch(8) as engines:
        assert engines.verify(cube)["is_right"].all()
        for axis in ("world", *cube.axis_names):
            wrong = [call for value in values(engines, suite.check_all, cube, axis, deadline_s=120) for call in value]
            assert wrong == [], axis
        found = values(engines, in_two_levels, cube, "world", arguments=(8 // gpu_engines.world_size,), deadline_s=120)
        assert [wrong for value in found for wrong in value] == []
        results = ml.bench(engines, cube, sizes="1M", sampling=ml.Sampling(max_s=0.1), deadline_s=60).wait(120)
        assert (results["n_wrong"] == 0).all()
        assert f"8 ranks share {n_gpus()} GPU" in results.attrs["note"]


# -- faults ------------------------------------------------------------------------------------------------------------


def die_in_a_collective(comm: Any) -> None:
    x = comm.xp.ones(1 << 20)
    for round_number in range(100_000):
        comm.all_reduce(x, x, op="max")
        if round_number == 200 and comm.world_rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if round_number % 50 == 0:
            comm.barrier()


def never_call(comm: Any) -> None:
    comm.barrier()
    if comm.world_rank == 0:
        time.sleep(60)
    comm.barrier()


def raise_on_last(comm: Any) -> None:
    if comm.rank == comm.size - 1:
        raise ValueError("a bad cable")
    comm.barrier()


def unequal(comm: Any) -> None:
    comm.all_reduce(comm.xp.ones(1 << (20 + comm.rank)))
    comm.barrier()


@pytest.mark.parametrize(
    ("function", "message", "lost"),
    [
        (die_in_a_collective, r"rank \d+ \(process .*\) was killed by signal 9", 1),
        (never_call, r"rank 0 entered \d+ of its group's \d+ collective calls? within", 1),
        (raise_on_last, r"raised ValueError: a bad cable", 0),
    ],
)
def test_a_lost_rank_is_named_and_replaced_and_the_others_survive(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh, function: Any, message: str, lost: int, capsys: Any
) -> None:
    before = {info.rank: info.pid for info in gpu_engines.ranks}
    begin = time.monotonic()
    with pytest.raises(EngineError, match=message):
        gpu_engines.run(function, deadline_s=3)
    known = time.monotonic() - begin
    begin = time.monotonic()
    gpu_engines.restart()
    again = time.monotonic() - begin
    with capsys.disabled():
        print(f"\n    {function.__name__}: detected after {known:.1f} s, restart {again:.1f} s")
    after = {info.rank: info.pid for info in gpu_engines.ranks}
    assert sum(before[rank] != after[rank] for rank in before) == lost
    assert known + again < 15
    assert gpu_engines.verify(mesh)["is_right"].all()


def test_a_rank_lost_while_graphs_are_replayed_is_replaced(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh, capsys: Any
) -> None:
    before = {info.rank: info.pid for info in gpu_engines.ranks}
    long = ml.Sampling(precision=1e-9, max_batches=10**6, max_s=60)
    run = ml.bench(gpu_engines, mesh, axis=mesh.axis_names[-1], sizes="64M", mode="graph", sampling=long, deadline_s=90)
    time.sleep(3)
    begin = time.monotonic()
    os.kill(before[max(before)], signal.SIGKILL)
    with pytest.raises(EngineError, match="was killed by signal 9"):
        run.wait(60)
    known = time.monotonic() - begin
    gpu_engines.restart()
    with capsys.disabled():
        print(f"\n    in graphs: detected after {known:.1f} s, recovered after {time.monotonic() - begin:.1f} s")
    after = {info.rank: info.pid for info in gpu_engines.ranks}
    assert sum(before[rank] != after[rank] for rank in before) == 1
    assert gpu_engines.verify(mesh)["is_right"].all()


def kill_last(comm: Any) -> None:
    comm.barrier()
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.to_host(comm.all_reduce(comm.xp.ones(4)))


def test_engines_shrink_to_the_ranks_that_are_left(n_ranks: int) -> None:
    with launch(n_ranks) as engines:
        pids = [info.pid for info in engines.ranks]
        with pytest.raises(EngineError):
            engines.run(kill_last)
        assert engines.shrink(mesh="dp=-1") == (f"rank {n_ranks - 1}",)
        assert [info.pid for info in engines.ranks] == pids[:-1]
        assert engines.verify(f"dp={n_ranks - 1}")["is_right"].all()
        engines.restart()
        assert engines.world_size == n_ranks - 1
