"""Engines without faults, on processes and on threads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError, MeshError
from meshlab.engines import _checks as checks
from meshlab.engines._lease import Lease
from meshlab.engines._memory import usable_bytes
from meshlab.engines._rank_hosts import ranks_label
from meshlab.engines._rounds import RankInfo

MESH = ml.DeviceMesh("dp=2, tp=2")


def test_run_returns_one_row_per_rank(engines: ml.Engines) -> None:
    frame = engines.run(lambda comm, factor: (comm.name, comm.rank * factor), MESH, axis="tp", arguments=(10,))
    assert frame["rank"].tolist() == [0, 1, 2, 3]
    assert frame["group"].tolist() == ["tp_0", "tp_0", "tp_1", "tp_1"]
    assert frame["value"].tolist() == [("tp_0", 0), ("tp_0", 10), ("tp_1", 0), ("tp_1", 10)]
    assert frame["error"].isna().all()


def test_run_needs_no_mesh_for_the_world(engines: ml.Engines) -> None:
    assert engines.run(lambda comm: float(comm.all_reduce(np.ones(1))[0]))["value"].tolist() == [4.0] * 4


def test_a_function_may_use_enclosing_variables(engines: ml.Engines) -> None:
    offset = 7

    def add(comm: Any) -> int:
        return int(comm.rank + offset + np.int64(0))

    assert engines.run(add)["value"].tolist() == [7, 8, 9, 10]


def test_ranks_outside_a_custom_group_do_not_take_part(engines: ml.Engines) -> None:
    mesh = MESH.with_group("pair", [3, 0])
    frame = engines.run(lambda comm: (comm.rank, comm.ranks), mesh, axis="pair")
    assert frame["rank"].tolist() == [0, 3]
    assert frame["value"].tolist() == [(1, (3, 0)), (0, (3, 0))]


@pytest.mark.full
def test_a_file_that_hides_a_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "comm.py").write_text("x = 1")
    code = "import meshlab as ml\ntry:\n    ml.launch(2)\nexcept ml.errors.EngineError as error:\n    print(error)"
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(ml.__file__).parents[1])}

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, env=environment)
        return done.stdout

    # With -c, the working folder is on the path of this process. With a script, only on that of the engines.
    assert f"rename {tmp_path / 'comm.py'}, which is imported instead of the package" in run("-c", code)
    printed = run(str(script))
    assert printed.startswith("the controller of the engines did not start")
    assert "'comm' is not a package" in printed


@pytest.mark.usefixtures("patient_rounds")
def test_an_error_on_every_rank_is_an_ordinary_result(engines: ml.Engines) -> None:
    def fail(comm: Any) -> None:
        raise ValueError(f"not on rank {comm.rank}")

    frame = engines.run(fail, check=False)
    assert frame["error"].tolist() == [f"ValueError: not on rank {rank}" for rank in range(4)]
    assert engines.state == "ready"
    assert engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("patient_rounds")
def test_errors_are_raised_by_default_and_have_tracebacks(engines: ml.Engines) -> None:
    def fail_on_odd(comm: Any) -> None:
        if comm.world_rank % 2:
            raise ValueError(f"{'long ' * 40}on rank {comm.world_rank}")

    frame = engines.run(fail_on_odd, check=False)
    assert list(frame.attrs["tracebacks"]) == [1, 3]
    for rank, text in frame.attrs["tracebacks"].items():
        assert "in fail_on_odd" in text
        assert text.rstrip().endswith(f"long on rank {rank}")
    with pytest.raises(
        EngineError,
        match=r"rank 1 failed while running fail_on_odd: ValueError: .*, and 1 other rank failed too; pass check=False",
    ) as stop:
        engines.run(fail_on_odd)
    assert stop.value.rank == 1
    assert "in fail_on_odd" in stop.value.log
    assert repr(stop.value.__cause__) == repr(ValueError(f"{'long ' * 40}on rank 1"))
    assert engines.state == "ready"
    checked, unchecked = (engines.run(lambda comm: comm.rank, check=check) for check in (True, False))
    pd.testing.assert_frame_equal(checked, unchecked)
    assert checked.attrs["tracebacks"] == {}


class DemandingError(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.usefixtures("patient_rounds")
def test_an_exception_that_cannot_be_pickled_arrives_as_text(mpi_engines: ml.Engines) -> None:
    def fail(comm: Any) -> None:
        comm.barrier()  # otherwise one rank may raise long before another, which is a different error
        raise DemandingError(1, 2)

    with pytest.raises(EngineError, match="rank 0 failed while running fail: DemandingError: 1 and 2, and 3") as stop:
        mpi_engines.run(fail)
    assert stop.value.__cause__ is None
    assert "in fail" in stop.value.log


def test_verify_checks_every_group(engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("pp=2, tp=2").with_group("diagonal", [3, 0])
    groups = engines.verify(mesh)
    assert groups["group"].tolist() == ["world", "pp_0", "pp_1", "tp_0", "tp_1", "diagonal"]
    assert groups["is_right"].all()
    assert groups["seen"].tolist() == groups["ranks"].tolist()
    assert groups["ranks"].tolist()[-1] == (3, 0)


def test_verify_finds_a_group_with_the_wrong_ranks(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = checks._members_and_sum

    def swapped(comm: Any) -> Any:
        members, total = correct(comm)
        return ([0, 2], total) if comm.name == "tp_0" else (members, total)

    monkeypatch.setattr(checks, "_members_and_sum", swapped)
    with pytest.raises(
        CommunicatorError,
        match=r"^group tp_0: expected ranks \[0, 1\], but rank 0 is grouped with \[0, 2\] \(rank-coded sum 3\); call",
    ):
        thread_engines.verify(MESH)


def test_a_mesh_of_a_different_size_is_rejected(engines: ml.Engines) -> None:
    with pytest.raises(MeshError, match="tp=8 has 8 ranks, but there are 4 engines; start 8, or let an axis take"):
        engines.run(lambda comm: 1, ml.DeviceMesh("tp=8"), axis="tp")


def test_an_axis_without_a_mesh_is_rejected(engines: ml.Engines) -> None:
    with pytest.raises(MeshError, match="axis 'tp' needs a mesh; pass mesh="):
        engines.run(lambda comm: 1, axis="tp")


def test_a_different_backend_for_an_axis_is_rejected(engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("pp=2, tp=2", backends={"pp": "nccl"})
    openable = " and ".join(map(repr, dict.fromkeys((engines.backend, "gloo"))))
    message = (
        rf"^axis 'pp' of the mesh has the backend 'nccl', but the engines can open {openable}; create the mesh without "
        "backends=, or start the engines with backend='nccl'$"
    )
    for use in (
        lambda: engines.run(lambda comm: 1, mesh, axis="tp"),
        lambda: engines.verify(mesh),
        lambda: ml.bench(engines, mesh, "all_reduce", axis="tp", sizes="1K"),
    ):
        with pytest.raises(EngineError, match=message):
            use()
    assert engines.state == "ready"


def test_the_backend_of_the_engines_is_accepted_for_an_axis(engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("pp=2, tp=2", backends={"pp": engines.backend})
    assert engines.verify(mesh)["is_right"].all()
    assert engines.run(lambda comm: comm.size, mesh, axis="pp")["value"].tolist() == [2] * 4


def test_the_fix_names_a_backend_that_can_be_launched(thread_engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("pp=2, tp=2", backends={"pp": "nccl", "tp": "nccl"})
    with pytest.raises(EngineError, match=r"without backends=, or start the engines with backend='nccl'$"):
        thread_engines.check_mesh(mesh)


def test_a_backend_of_a_framework_is_named(thread_engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("pp=2, tp=2").with_group("pair", [0, 3], backend="ucc")
    with pytest.raises(EngineError, match=r"group 'pair' .* 'ucc', but .*; create the group without backend=$"):
        thread_engines.verify(mesh)


def test_the_capabilities_are_those_of_a_backend_that_the_engines_can_open(engines: ml.Engines) -> None:
    assert engines.capabilities(engines.backend) is engines.capabilities() is engines.ranks[0].capabilities
    assert engines.capabilities("gloo").where == "Gloo on this CPU"
    with pytest.raises(EngineError, match=r"^unknown backend 'banana'; choose one of nccl, mpi, gloo, threads$"):
        engines.capabilities("banana")
    with pytest.raises(EngineError, match=r"^unknown backend 'cuda' \(did you mean 'nccl'\?\); choose one of nccl, "):
        engines.capabilities("cuda")
    also = "" if engines.backend == "gloo" else f" and can open '{engines.backend}' and 'gloo'"
    message = f"^the engines run '{engines.backend}'{also}, not 'nccl'; start engines with backend='nccl'$"
    with pytest.raises(EngineError, match=message):
        engines.capabilities("nccl")


def test_an_unknown_axis_is_rejected(engines: ml.Engines) -> None:
    with pytest.raises(MeshError, match="unknown axis or group 'ep'"):
        engines.run(lambda comm: 1, MESH, axis="ep")


def test_functions_that_cannot_be_pickled_are_rejected(mpi_engines: ml.Engines) -> None:
    lock = threading.Lock()
    with pytest.raises(
        EngineError,
        match=r"cannot pickle the function or its arguments: .*; remove open files, locks and widgets from them",
    ):
        mpi_engines.run(lambda comm: lock.locked())
    with pytest.raises(EngineError, match="cannot pickle the function or its arguments"):
        mpi_engines.run(lambda comm, argument: argument, arguments=(lock,))
    assert mpi_engines.state == "ready"


@pytest.mark.usefixtures("patient_rounds")
def test_a_value_that_cannot_be_pickled_is_an_error_of_its_rank(mpi_engines: ml.Engines) -> None:
    frame = mpi_engines.run(lambda comm: threading.Lock() if comm.rank == 1 else comm.rank, check=False)
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
    assert status["pid"].nunique() == (1 if engines.backend == "threads" else 4)


def test_busy_engines_name_their_task(engines: ml.Engines) -> None:
    with Lease(engines, "a long tea"):
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


def test_reprs_show_system_and_state(engines: ml.Engines) -> None:
    where = engines.ranks[0].capabilities.where
    assert where in ("MPI on this CPU", "Gloo on this CPU", "threads in this process")
    assert repr(engines).startswith(f"<Engines: 4 ranks · {where}, ready; next: .verify(mesh), ")
    page = engines._repr_html_()
    assert where in page
    assert len(re.findall("<tr>", page)) == 5


def test_closed_engines_raise() -> None:
    engines = ml.launch(1, backend="threads")
    engines.close()
    engines.close()
    with pytest.raises(EngineError, match=r"the engines are closed; call launch\(\) to start new ones"):
        engines.run(lambda comm: 1)
    with pytest.raises(EngineError, match="closed"):
        engines.restart()


@pytest.mark.parametrize("n", [0, -1, 2.5, True, "4"])
def test_the_number_of_ranks_must_be_a_positive_integer(n: Any) -> None:
    with pytest.raises(EngineError, match="n must be a positive integer, not "):
        ml.launch(n)


def test_more_ranks_than_fit_into_memory_are_rejected_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHLAB_MPIEXEC", "false")  # so that nothing starts even if the check is lost
    with pytest.raises(
        EngineError,
        match=r"16,777,216 ranks need about .* of memory \(.* per process\), but .*; start at most [\d,]+, or use",
    ):
        ml.launch(1 << 24, backend="mpi")


@pytest.mark.skipif(find_spec("nccl") is not None, reason="the packages for GPUs are installed")
def test_missing_packages_for_gpus_are_reported_before_the_start() -> None:
    with pytest.raises(
        EngineError,
        match=r"^backend 'nccl' needs (CuPy and )?nccl4py, which .* not installed; .* or use backend='mpi'$",
    ):
        ml.launch(1, backend="nccl")


def test_one_rank_is_singular() -> None:
    with ml.launch(1, backend="threads") as engines:
        assert engines.where == "1 rank · threads in this process"


def test_unknown_arguments_of_launch_are_rejected() -> None:
    with pytest.raises(EngineError, match="unknown backend 'smoke'; choose one of auto, nccl, mpi, gloo, threads"):
        ml.launch(1, backend="smoke")
    with pytest.raises(
        EngineError,
        match=r"env is not supported by threads, which share the environment of this process; set os\.environ, or",
    ):
        ml.launch(1, backend="threads", env={"A": "1"})


def test_the_client_is_a_plain_ipyparallel_client(mpi_engines: ml.Engines) -> None:
    client = mpi_engines.client
    assert len(client.ids) == 4
    assert client[:].apply_sync(lambda: 1 + 1) == [2, 2, 2, 2]


def test_attached_engines_work_and_keep_running(mpi_engines: ml.Engines) -> None:
    with ml.attach(mpi_engines.client) as attached:
        assert attached.verify(MESH)["is_right"].all()
        assert attached.run(lambda comm: comm.ranks, MESH, axis="dp")["value"].tolist() == [(0, 2), (1, 3)] * 2
        with pytest.raises(
            EngineError,
            match=r"cannot restart engines that another process started; restart them there, and call attach\(\) again",
        ):
            attached.restart()
    assert mpi_engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


@pytest.mark.full
def test_a_stopped_engine_is_named_and_attached_engines_that_are_only_late_are_used_again() -> None:
    def late(comm: Any) -> None:
        if comm.rank == 1:
            time.sleep(3.0)
        comm.barrier()

    with ml.launch(3, backend="mpi") as engines:
        attached = ml.attach(engines.client, deadline_s=1.0)
        with pytest.raises(EngineError) as caught:
            attached.run(late)
        assert "rank 1 entered 0 of its group's 1 collective call within 1.0" in str(caught.value)
        assert "ranks 0, 2 wait in barrier" in str(caught.value)
        assert str(caught.value).endswith(
            "call attach() again, which waits for the same processes; if that fails, restart the engines where they "
            "were started"
        )
        attached = ml.attach(engines.client, deadline_s=1.0)
        assert attached.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())["value"].tolist() == [3.0] * 3
        os.kill(engines.ranks[1].pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"^rank 1 \(process \d+ on .*\) (did not respond within|disconnected)"):
            attached.run(lambda comm: comm.barrier())


@pytest.mark.long  # the comparison of environments tests it too
def test_the_environment_reaches_the_engines(tmp_path: Any) -> None:
    def read(comm: Any) -> Any:
        import os

        return os.environ.get("NCCL_ALGO"), os.environ.get("MESHLAB_RUN") is not None

    with ml.launch(1, env={"NCCL_ALGO": "Ring"}) as engines:
        assert engines.run(read)["value"].tolist() == [("Ring", True)]


def test_the_client_does_not_keep_the_ids_of_messages(mpi_engines: ml.Engines) -> None:
    client = mpi_engines.client
    result = client[:].apply_async(int, 1)  # a call by the user stays in the history
    result.get(60)
    before = list(client.history)
    assert set(result.msg_ids) <= set(before)
    for _ in range(3):
        mpi_engines.run(lambda comm: comm.rank)
    assert client.history == before


@pytest.mark.parametrize(
    ("gpus", "label"),
    [([0, 1, 2, 3], "4 × H200 · NCCL 2.32.3"), ([0, 0, 1, 1], "4 ranks on 2 × H200 · NCCL 2.32.3")],
)
def test_the_label_of_the_system_counts_ranks_and_gpus(gpus: list[int], label: str) -> None:
    def rank_on(gpu: int, rank: int) -> RankInfo:
        facts = {"device number": str(gpu)}
        can = ml.comm.Capabilities("nccl", "NCCL 2.32.3", "", "H200 · NCCL 2.32.3", (), (), (), (), True, facts)
        return RankInfo(rank, 4, "node1", 1000 + rank, 1, "3.12", "0.1", can)

    assert ranks_label([rank_on(gpu, rank) for rank, gpu in enumerate(gpus)]) == label


def test_ranks_of_a_host_share_its_memory_but_not_that_of_their_gpus() -> None:
    assert usable_bytes([(True, 1000), (True, 1000), (True, 1000)], ["a", "a", "b"]).tolist() == [400, 400, 800]
    assert usable_bytes([(False, 1000), (False, 500)], ["a", "a"]).tolist() == [800, 400]
