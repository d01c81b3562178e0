"""What engines give when nothing goes wrong, on processes and on threads."""

from __future__ import annotations

import re
import threading
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.engines import engines as verify
from meshlab.errors import CommunicatorError, EngineError, MeshError

MESH = ml.DeviceMesh("dp=2, tp=2")


def test_run_gives_one_row_per_rank(engines: ml.Engines) -> None:
    frame = engines.run(lambda comm, factor: (comm.name, comm.rank * factor), MESH, axis="tp", arguments=(10,))
    assert frame["rank"].tolist() == [0, 1, 2, 3]
    assert frame["group"].tolist() == ["tp_0", "tp_0", "tp_1", "tp_1"]
    assert frame["value"].tolist() == [("tp_0", 0), ("tp_0", 10), ("tp_1", 0), ("tp_1", 10)]
    assert frame["error"].isna().all()


def test_run_needs_no_mesh_for_the_world(engines: ml.Engines) -> None:
    assert engines.run(lambda comm: float(comm.all_reduce(np.ones(1))[0]))["value"].tolist() == [4.0] * 4


def test_a_function_may_use_what_stands_around_it(engines: ml.Engines) -> None:
    offset = 7

    def add(comm: Any) -> int:
        return int(comm.rank + offset + np.int64(0))

    assert engines.run(add)["value"].tolist() == [7, 8, 9, 10]


def test_ranks_outside_a_custom_group_do_not_take_part(engines: ml.Engines) -> None:
    mesh = MESH.with_group("pair", [3, 0])
    frame = engines.run(lambda comm: (comm.rank, comm.ranks), mesh, axis="pair")
    assert frame["rank"].tolist() == [0, 3]
    assert frame["value"].tolist() == [(1, (3, 0)), (0, (3, 0))]


def test_an_error_on_every_rank_is_a_value_not_an_end(engines: ml.Engines) -> None:
    def fail(comm: Any) -> None:
        raise ValueError(f"not on rank {comm.rank}")

    frame = engines.run(fail)
    assert frame["error"].tolist() == [f"ValueError: not on rank {rank}" for rank in range(4)]
    assert engines.state == "ready"
    assert engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


def test_errors_come_with_their_tracebacks_or_are_raised(engines: ml.Engines) -> None:
    def fail_on_odd(comm: Any) -> None:
        if comm.world_rank % 2:
            raise ValueError(f"{'long ' * 40}on rank {comm.world_rank}")

    frame = engines.run(fail_on_odd)
    assert list(frame.attrs["tracebacks"]) == [1, 3]
    for rank, text in frame.attrs["tracebacks"].items():
        assert "in fail_on_odd" in text
        assert text.rstrip().endswith(f"long on rank {rank}")
    with pytest.raises(EngineError, match=r"rank 1 failed while running fail_on_odd: .*1 other failed") as stop:
        engines.run(fail_on_odd, check=True)
    assert stop.value.rank == 1
    assert "in fail_on_odd" in stop.value.log
    assert engines.run(lambda comm: comm.rank, check=True).attrs["tracebacks"] == {}


def test_verify_proves_every_group(engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("pp=2, tp=2").with_group("diagonal", [3, 0])
    proof = engines.verify(mesh)
    assert proof["group"].tolist() == ["world", "pp_0", "pp_1", "tp_0", "tp_1", "diagonal"]
    assert proof["is_right"].all()
    assert proof["seen"].tolist() == proof["ranks"].tolist()
    assert proof["ranks"].tolist()[-1] == (3, 0)


def test_verify_finds_a_group_with_the_wrong_ranks(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = verify._who_is_here

    def swapped(comm: Any) -> Any:
        members, total = honest(comm)
        return ([0, 2], total) if comm.name == "tp_0" else (members, total)

    monkeypatch.setattr(verify, "_who_is_here", swapped)
    with pytest.raises(CommunicatorError, match=r"group tp_0 should be \[0, 1\], but rank 0 is together with \[0, 2\]"):
        thread_engines.verify(MESH)


def test_a_mesh_of_another_size_is_refused(engines: ml.Engines) -> None:
    with pytest.raises(MeshError, match=r"tp=8 is 8 ranks, but there are 4 engines; start 8, or let an axis fill"):
        engines.run(lambda comm: 1, ml.DeviceMesh("tp=8"), axis="tp")


def test_an_axis_without_a_mesh_is_refused(engines: ml.Engines) -> None:
    with pytest.raises(MeshError, match="to run along 'tp', say on which mesh"):
        engines.run(lambda comm: 1, axis="tp")


def test_an_unknown_axis_is_refused(engines: ml.Engines) -> None:
    with pytest.raises(MeshError, match="unknown axis or group 'ep'"):
        engines.run(lambda comm: 1, MESH, axis="ep")


def test_what_cannot_travel_is_refused(mpi_engines: ml.Engines) -> None:
    lock = threading.Lock()
    with pytest.raises(EngineError, match="cannot be sent to the engines"):
        mpi_engines.run(lambda comm: lock.locked())
    with pytest.raises(EngineError, match="the function or its arguments cannot be sent to the engines"):
        mpi_engines.run(lambda comm, given: given, arguments=(lock,))
    assert mpi_engines.state == "ready"


def test_a_value_that_cannot_travel_back_is_an_error_of_its_rank(mpi_engines: ml.Engines) -> None:
    frame = mpi_engines.run(lambda comm: threading.Lock() if comm.rank == 1 else comm.rank)
    assert frame["error"].isna().tolist() == [True, False, True, True]
    assert "pickle" in frame["error"][1]


def test_status_has_one_row_per_rank(engines: ml.Engines) -> None:
    engines.run(lambda comm: comm.barrier())
    status = engines.status()
    assert status["rank"].tolist() == [0, 1, 2, 3]
    assert (status["backend"] == engines.backend).all()
    assert (status["state"] == "ready").all()
    assert (status["calls"] > 0).all()
    assert (status["communicators"] > 0).all()
    assert (status["memory_bytes"] > 1_000_000).all()
    assert status["pid"].nunique() == (4 if engines.backend == "mpi" else 1)


def test_busy_engines_refuse_and_say_what_they_do(engines: ml.Engines) -> None:
    with engines.lease("a long tea"):
        assert engines.state == "busy"
        with pytest.raises(EngineError, match="the engines are busy with a long tea; wait for it, or cancel it"):
            engines.run(lambda comm: 1)
        assert engines.status()["state"].tolist() == ["busy with a long tea"] * 4
    assert engines.state == "ready"


def test_a_status_never_makes_another_call_fail(thread_engines: ml.Engines) -> None:
    is_over = threading.Event()
    faults: list[BaseException] = []

    def poll() -> None:
        while not is_over.is_set():
            try:
                thread_engines._repr_html_()
            except Exception as error:
                faults.append(error)

    pollers = [threading.Thread(target=poll) for _ in range(2)]
    for poller in pollers:
        poller.start()
    try:
        for _ in range(20):
            assert thread_engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]
    finally:
        is_over.set()
        for poller in pollers:
            poller.join()
    assert not faults


def test_many_group_sets_close_the_least_used(thread_engines: ml.Engines) -> None:
    for number in range(40):
        mesh = MESH.with_group(f"g{number}", [0, 1])
        assert thread_engines.run(lambda comm: comm.size, mesh, axis=f"g{number}")["value"].tolist() == [2, 2]
    assert thread_engines.status()["communicators"].max() <= 32


def test_reprs_say_where_and_how(engines: ml.Engines) -> None:
    where = {"mpi": "MPI on this CPU", "threads": "threads in this process"}[engines.backend]
    assert repr(engines) == f"<Engines: 4 ranks · {where}, ready>"
    page = engines._repr_html_()
    assert where in page
    assert len(re.findall("<tr>", page)) == 5


def test_closed_engines_say_so() -> None:
    engines = ml.launch(1, backend="threads")
    engines.close()
    engines.close()
    with pytest.raises(EngineError, match="the engines are closed; launch\\(\\) starts new ones"):
        engines.run(lambda comm: 1)
    with pytest.raises(EngineError, match="closed"):
        engines.restart()


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "4"])
def test_launch_needs_a_number_of_ranks(n: Any) -> None:
    with pytest.raises(EngineError, match="needs a whole number of ranks, at least 1"):
        ml.launch(n)


def test_more_ranks_than_the_memory_holds_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHLAB_MPIEXEC", "false")  # should the check be lost one day, nothing starts all the same
    with pytest.raises(EngineError, match=r"16,777,216 ranks need about .*; start at most [\d,]+, or use"):
        ml.launch(1 << 24, backend="mpi")


@pytest.mark.skipif(find_spec("nccl") is not None, reason="the parts for GPUs are installed here")
def test_the_parts_for_gpus_are_asked_for_before_anything_starts() -> None:
    with pytest.raises(
        EngineError, match=r"^the backend nccl needs (CuPy and )?nccl4py, which .* or use backend='mpi'$"
    ):
        ml.launch(1, backend="nccl")


def test_one_rank_is_singular() -> None:
    with ml.launch(1, backend="threads") as engines:
        assert engines.where == "1 rank · threads in this process"


def test_launch_refuses_what_it_does_not_know() -> None:
    with pytest.raises(EngineError, match="there is no backend 'smoke'; there are nccl, mpi and threads"):
        ml.launch(1, backend="smoke")
    with pytest.raises(EngineError, match="threads share this process's environment"):
        ml.launch(1, backend="threads", env={"A": "1"})


def test_the_client_is_a_plain_ipyparallel_client(mpi_engines: ml.Engines) -> None:
    client = mpi_engines.client
    assert len(client.ids) == 4
    assert client[:].apply_sync(lambda: 1 + 1) == [2, 2, 2, 2]


def test_attached_engines_work_and_stay(mpi_engines: ml.Engines) -> None:
    with ml.attach(mpi_engines.client) as attached:
        assert attached.verify(MESH)["is_right"].all()
        assert attached.run(lambda comm: comm.ranks, MESH, axis="dp")["value"].tolist() == [(0, 2), (1, 3)] * 2
        with pytest.raises(EngineError, match="started by somebody else; restart them there"):
            attached.restart()
    assert mpi_engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


def test_the_environment_reaches_the_engines(tmp_path: Any) -> None:
    def read(comm: Any) -> Any:
        import os

        return os.environ.get("NCCL_ALGO"), os.environ.get("MESHLAB_RUN") is not None

    with ml.launch(1, env={"NCCL_ALGO": "Ring"}) as engines:
        assert engines.run(read)["value"].tolist() == [("Ring", True)]
