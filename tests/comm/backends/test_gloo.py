"""What is special about Gloo: it needs torch, its groups are independent, and its waits can be interrupted."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, CommunicatorError, EngineError
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends import _gloo as gloo

cloudpickle.register_pickle_by_value(sys.modules[__name__])


# -- without torch -----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find_spec(name))


@pytest.mark.usefixtures("no_torch")
def test_a_missing_torch_is_named_before_any_process_starts() -> None:
    with pytest.raises(
        EngineError, match=r"^backend 'gloo' needs torch, which is not installed; run pip install '\.\["
    ):
        ml.launch(2, backend="gloo")
    mesh = ml.DeviceMesh("tp=2", backends={"tp": "gloo"})
    with ml.launch(2, backend="threads") as engines, pytest.raises(EngineError, match="needs torch, which is not"):
        engines.run(lambda comm: 1, mesh, axis="tp")


def test_the_capabilities_are_known_without_torch() -> None:
    code = (
        "import sys; from meshlab.comm.backends._gloo import capabilities; "
        "print(capabilities().where, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "Gloo on this CPU False"


@pytest.mark.usefixtures("patient_rounds")
def test_operations_that_gloo_lacks_are_rejected_by_name(gloo_engines: ml.Engines) -> None:
    errors = gloo_engines.run(lambda comm: comm.all_reduce(np.ones(4, "uint32")), check=False)["error"]
    assert errors.str.contains("gloo does not support reductions of uint32; choose one of bfloat16, float16").all()
    with pytest.raises(BenchError, match="gloo does not support mode 'graph'; choose one of isolated, pipelined"):
        ml.bench(gloo_engines, "tp=4", "all_reduce", axis="tp", sizes="1K", mode="graph")
    with pytest.raises(BenchError, match="Gloo chooses its algorithms without settings"):
        ml.tune(gloo_engines, "tp=4", "all_reduce", axis="tp")


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient_rounds")
@pytest.mark.parametrize("compares_itself", [False, True], ids=["engines compare", "gloo compares"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda c: c.all_reduce(np.ones(4 + 3 * (c.rank % 2))), "rank 1 calls all_reduce count=7"),
        (lambda c: c.barrier() if c.rank else c.all_reduce(np.ones(2)), "calls all_reduce .* but rank 1 calls barrier"),
        (lambda c: c.split(0) if c.rank else c.all_reduce(np.ones(2)), "calls all_reduce .* rank 1 calls split"),
        (
            lambda c: c.all_to_all_v(
                np.ones(4), np.ones(4), send_counts=[1] * 4, recv_counts=[1] * 4 if c.rank != 2 else [2, 0, 1, 1]
            ),
            "rank 0 of the group sends 1 elements to rank 2, which expects 2",
        ),
    ],
)
def test_mismatched_calls_raise_on_every_rank(
    gloo_engines: ml.Engines, function: Any, message: str, compares_itself: bool
) -> None:
    def run(comm: Any) -> None:  # on several hosts, the ranks share no memory, and Gloo compares the calls
        function(Communicator(comm.split(0).backend) if compares_itself else comm)

    errors = gloo_engines.run(run, check=False)["error"]
    assert errors.str.contains("ranks disagree: rank 0 of the group").all(), errors.tolist()
    assert errors.str.contains(message).all(), errors.tolist()


def several_groups(comm: Any) -> list[float]:
    halves, pairs, all_ranks = comm.split(comm.rank // 2), comm.split(comm.rank % 2), comm.split(0, key=-comm.rank)
    found = [
        float(one.all_reduce(np.full(3, 1.0 + comm.rank))[0]) for one in (pairs, all_ranks, halves, all_ranks, pairs)
    ]
    for one in (all_ranks, halves, pairs):
        one.close()
    return found


def test_several_groups_are_open_at_the_same_time(gloo_engines: ml.Engines) -> None:
    low, high = [3.0, 7.0]
    for rank, found in enumerate(gloo_engines.run(several_groups)["value"]):
        pair = [4.0, 6.0][rank % 2]
        assert found == [pair, 10.0, [low, high][rank // 2], 10.0, pair]


def read_only(comm: Any) -> list[float]:
    data = np.arange(3.0) + comm.rank
    data.flags.writeable = False
    return comm.all_gather(data).tolist()


def test_the_input_may_be_read_only(gloo_engines: ml.Engines) -> None:
    assert gloo_engines.run(read_only)["value"][3] == [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5]


def timed_messages(comm: Any) -> list[float]:
    x, out = np.full(1000, 1.0 + comm.rank), np.zeros(1000)
    call = comm.prepare("send_recv", x, out, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    call()
    call.measure("pipelined", 5, 3)
    x += 10
    call()
    return [float(out[0]), float(out[-1])]


def test_calls_and_timed_calls_do_not_take_the_messages_of_each_other(gloo_engines: ml.Engines) -> None:
    assert gloo_engines.run(timed_messages)["value"].tolist() == [[14.0] * 2, [11.0] * 2, [12.0] * 2, [13.0] * 2]


# -- beside another backend --------------------------------------------------------------------------------------------

MIXED = ml.DeviceMesh("pp=2, tp=2", backends={"pp": "gloo"}).with_group("pair", [3, 0], backend="gloo")


def described(comm: Any) -> tuple[str, tuple[int, ...], float]:
    return comm.capabilities().backend, comm.ranks, float(comm.all_reduce(np.full(2, 1.0 + comm.rank))[0])


@pytest.fixture
def torch() -> None:
    try:
        gloo.check_installed()
    except CommunicatorError as error:
        pytest.skip(error.message)


@pytest.fixture(params=[pytest.param("threads", marks=pytest.mark.long), "mpi"])
def mixed_engines(request: pytest.FixtureRequest, torch: None) -> ml.Engines:
    return request.getfixturevalue({"threads": "thread_engines", "mpi": "mpi_engines"}[request.param])


def test_each_axis_uses_its_backend(mixed_engines: ml.Engines) -> None:
    own = mixed_engines.backend
    for axis, expected in {
        "pp": [("gloo", (rank % 2, rank % 2 + 2), 3.0) for rank in range(4)],
        "tp": [(own, (rank // 2 * 2, rank // 2 * 2 + 1), 3.0) for rank in range(4)],
        "pair": [("gloo", (3, 0), 3.0)] * 2,
        "pp-tp": [(own, (0, 1, 2, 3), 10.0)] * 4,
        "world": [(own, (0, 1, 2, 3), 10.0)] * 4,
    }.items():
        assert mixed_engines.run(described, MIXED, axis=axis)["value"].tolist() == expected, axis
    assert mixed_engines.verify(MIXED)["is_right"].all()

    run = ml.bench(mixed_engines, MIXED, "all_reduce, send_recv", axis="pp, tp, pair", sizes="1K", sampling="quick")
    results = run.wait()
    assert results["status"].eq("ok").all()
    assert results["n_wrong"].eq(0).all()
    sources = results.groupby("axis")["source"].unique().str.join(" ").to_dict()
    assert sources == {"pp": "gloo", "pair": "gloo", "tp": own}
    assert f"{run.where}".endswith(" (pp, pair: Gloo on this CPU)")
    text = ml.Report(run).markdown()
    assert "pp: Gloo on this CPU" in text
    assert "The numbers along pp, pair were measured with Gloo on a CPU" in text

    # The same checks as on the backend of the engines.
    errors = mixed_engines.run(lambda c: c.all_reduce(np.ones(1 + c.rank)), MIXED, axis="pp", check=False)["error"]
    assert errors.str.contains("rank [23] calls all_reduce count=2", regex=True).all(), errors.tolist()
    assert mixed_engines.verify(MIXED)["is_right"].all()


@pytest.mark.usefixtures("torch")
def test_two_axes_on_different_backends_run_at_the_same_time(thread_engines: ml.Engines) -> None:
    results = ml.bench(
        thread_engines, MIXED, "all_reduce", axis="tp", concurrent={"pp": "all_gather"}, sizes="1K"
    ).wait()
    assert results["status"].eq("ok").all()
    assert dict(zip(results["axis"], results["source"], strict=True)) == {"tp": "threads", "pp": "gloo"}


@pytest.mark.usefixtures("patient_rounds")
@pytest.mark.usefixtures("torch")
def test_a_wait_for_a_collective_is_interrupted(thread_engines: ml.Engines) -> None:
    entered = threading.Event()

    def wait_for_nobody(comm: Any) -> None:
        comm.barrier()
        if comm.rank == 0:
            entered.set()
            comm.all_reduce(np.ones(2))
        while True:
            time.sleep(0.01)

    def interrupt() -> None:
        entered.wait(120)
        time.sleep(0.2)
        thread_engines.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    errors = thread_engines.run(wait_for_nobody, MIXED, axis="pp", check=False)["error"]
    thread.join()
    assert errors.eq("interrupted").all(), errors.tolist()
    assert thread_engines.verify(MIXED)["is_right"].all()


@pytest.mark.long
@pytest.mark.usefixtures("torch")
def test_a_rank_that_skips_a_call_of_gloo_is_named_at_the_deadline(mpi_engines: ml.Engines) -> None:
    def skip(comm: Any) -> None:
        comm.barrier()
        if comm.world_rank != 3:
            comm.all_reduce(np.ones(2))
        else:
            time.sleep(30)

    mpi_engines.verify(MIXED)
    with pytest.raises(EngineError, match=r"rank 3 entered 1 of its group's 2 collective calls within 2 s") as caught:
        mpi_engines.run(skip, MIXED, axis="pp", deadline_s=2)
    assert "rank 1 waits in all_reduce (call 2) of pp_1" in str(caught.value)
    mpi_engines.restart()
    assert mpi_engines.verify(MIXED)["is_right"].all()
