"""NCCL on one axis and Gloo on another, on the same ranks with a GPU each. Needs torch too; its CPU build is enough."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, CommunicatorError, EngineError
from meshlab.comm.backends import _gloo as gloo
from tests.gpu.launching import launch, n_gpus

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def two_ranks(n_ranks: int) -> Iterator[ml.Engines]:
    try:
        gloo.check_installed()
    except CommunicatorError as error:
        pytest.skip(error.message)
    with launch(2, timeout_s=180) as engines:
        yield engines


@pytest.fixture
def engines(two_ranks: ml.Engines) -> ml.Engines:
    if two_ranks.state != "ready":
        two_ranks.restart()
    return two_ranks


# Two ranks: the axes of the mesh have all ranks or one, so a custom group is the second set with two ranks.
MESH = ml.DeviceMesh("tp=2").with_group("control", [1, 0], backend="gloo")
ON_GLOO = ml.DeviceMesh("pp=2, tp=1", backends={"pp": "gloo"})


def described(comm: Any) -> tuple[str, tuple[int, ...], str, float]:
    total = comm.all_reduce(comm.xp.full(1000, 1.0 + comm.rank, "float32"))
    return comm.capabilities().backend, comm.ranks, comm.xp.__name__, float(comm.to_host(total)[-1])


def works(engines: ml.Engines) -> bool:
    return bool(engines.verify(MESH)["is_right"].all() and engines.verify(ON_GLOO)["is_right"].all())


def test_each_group_uses_its_backend(engines: ml.Engines) -> None:
    assert engines.run(described, MESH, axis="tp")["value"].tolist() == [("nccl", (0, 1), "cupy", 3.0)] * 2
    assert engines.run(described, MESH, axis="control")["value"].tolist() == [("gloo", (1, 0), "numpy", 3.0)] * 2
    assert engines.run(described, ON_GLOO, axis="pp")["value"].tolist() == [("gloo", (0, 1), "numpy", 3.0)] * 2
    assert engines.run(described, ON_GLOO, axis="world")["value"].tolist() == [("nccl", (0, 1), "cupy", 3.0)] * 2
    assert works(engines)


def test_rows_name_the_backend_of_their_axis(engines: ml.Engines) -> None:
    run = ml.bench(engines, MESH, "all_reduce, send_recv", axis="tp, control", sizes="1K, 1M, 16M", mode="pipelined")
    results = run.wait()
    assert results["status"].eq("ok").all()
    assert results["n_wrong"].eq(0).all()
    assert results.groupby("axis")["source"].unique().str.join(" ").to_dict() == {"tp": "nccl", "control": "gloo"}
    assert run.where.endswith("(control: Gloo on this CPU)")
    if n_gpus() > 1:
        times = results[results["collective"] == "all_reduce"].groupby(["axis", "size_bytes"])["time_us"].max()
        assert times["tp", 16 << 20] * 5 < times["control", 16 << 20]
    print(run.table())


def test_modes_and_axes_that_cannot_be_mixed_are_rejected(engines: ml.Engines) -> None:
    with pytest.raises(BenchError, match="gloo does not support mode 'graph'; choose one of isolated, pipelined"):
        ml.bench(engines, MESH, "all_reduce", axis="tp, control", sizes="1K", mode="graph")
    with pytest.raises(
        BenchError, match="two axes cannot run at the same time on a GPU and a CPU: tp uses nccl and co"
    ):
        ml.bench(
            engines, MESH, "all_reduce", axis="tp", concurrent={"control": "all_reduce"}, sizes="1K", mode="pipelined"
        )
    with pytest.raises(EngineError, match=r"axis 'tp' .* 'mpi', but the engines can open 'nccl' and 'gloo'; create"):
        engines.verify(ml.DeviceMesh("tp=2", backends={"tp": "mpi"}))


def alternate(comm: Any, other: Any, n: int) -> list[float]:
    x, y = comm.xp.ones(1 << 16, "float32"), np.ones(1 << 16, "float32")
    for _ in range(n):
        comm.all_reduce(x, x, op="max")
        other.all_reduce(y, y, op="avg")
        x[:] = comm.xp.asarray(y) + 1
        y[:] = comm.to_host(x) - 1
    return [float(comm.to_host(x)[0]), float(y[-1])]


def test_calls_of_both_take_turns(engines: ml.Engines) -> None:
    from meshlab.engines._lease import Lease

    with Lease(engines, "a test") as lease:
        replies = lease.round(alternate, MESH, "tp", (50,), concurrent=[(MESH, "control")]).run()
    assert [reply.value for reply in replies] == [[2.0, 1.0]] * 2


def skip_on_one(comm: Any) -> None:
    comm.barrier()
    if comm.world_rank == 0:
        comm.all_reduce(np.ones(2))
    else:
        time.sleep(60)


def test_a_rank_that_waits_in_gloo_survives_a_fault_of_another(engines: ml.Engines) -> None:
    assert works(engines)
    before = {info.rank: info.pid for info in engines.ranks}
    with pytest.raises(EngineError, match="rank 1 entered 1 of its group's 2 collective calls within 3") as caught:
        engines.run(skip_on_one, MESH, axis="control", deadline_s=3)
    assert "rank 0 waits in all_reduce (call 2) of control" in str(caught.value)
    engines.restart()
    after = {info.rank: info.pid for info in engines.ranks}
    assert after[0] == before[0], "rank 0 polls the request to abort while it waits, so its process is kept"
    assert works(engines)


def test_unequal_calls_of_gloo_are_named(engines: ml.Engines) -> None:
    frame = engines.run(lambda c: c.all_reduce(np.ones(1 + c.rank)), MESH, axis="control", check=False)
    assert frame["error"].str.contains("rank 0 calls all_reduce count=2").all(), frame["error"].tolist()
    assert works(engines)


def test_predictions_are_for_nccl_alone() -> None:
    mesh = ml.DeviceMesh("pp=2, tp=4", backends={"pp": "gloo"})
    prediction = ml.predict(mesh, "dgx-h100", sizes="1M")
    assert [line.axis for line in prediction.lines] == ["tp"]
    with pytest.raises(BenchError, match="times of nccl are predicted, but pp of the mesh uses gloo"):
        ml.predict(mesh, "dgx-h100", sizes="1M", axis="pp")
