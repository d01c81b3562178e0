"""torch's process groups on the ranks: own code for FSDP, DTensor and pipelines, its faults, and its profile."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshError
from meshlab.comm.backends import _torch_world as torch_world
from meshlab.comm.backends._gloo_world import Torch
from meshlab.engines._torch import check_members

cloudpickle.register_pickle_by_value(sys.modules[__name__])

needs_sympy = pytest.mark.skipif(importlib.util.find_spec("sympy") is None, reason="FSDP and DTensor need sympy")
MESH = ml.DeviceMesh("dp=2, tp=2")


# -- without torch -----------------------------------------------------------------------------------------------------


def test_a_missing_torch_is_named_with_its_extra(mpi_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find_spec(name))
    with pytest.raises(EngineError, match=r"^engines.torch needs torch, .* installed; run pip install '\.\[gloo\]' in"):
        mpi_engines.torch(MESH)
    with pytest.raises(EngineError, match="needs torch"):
        mpi_engines.profile(lambda comm: None, MESH)
    assert mpi_engines.state == "ready"


def test_threads_cannot_open_torch(thread_engines: ml.Engines) -> None:
    with pytest.raises(EngineError, match="torch needs a process per rank, but these ranks are threads of one process"):
        thread_engines.torch(MESH)
    with pytest.raises(EngineError, match=r"torch has no mesh in this task; call engines\.torch"):
        thread_engines.run(lambda comm: comm.torch_mesh)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (ml.DeviceMesh("tp=8"), "tp=8 has 8 ranks, but there are 4 engines"),
        (MESH.with_group("control", [0, 3]), "axes only, but .* the custom group 'control'; pass mesh.without_group"),
        (
            ml.DeviceMesh("dp=2, tp=2", ranks=[0, 1, 3, 2]),
            r"sorts the ranks .* order of axis 'tp', whose group tp_1 is \[3, 2\]",
        ),
    ],
)
def test_a_mesh_that_torch_cannot_express_is_rejected(
    mpi_engines: ml.Engines, mesh: ml.DeviceMesh, message: str
) -> None:
    with pytest.raises(MeshError, match=message):
        mpi_engines.torch(mesh)


def test_steps_of_a_profile_are_checked(thread_engines: ml.Engines) -> None:
    for steps in (0, -1, 1.5, True):
        with pytest.raises(BenchError, match=f"^steps must be a positive integer, not {steps}$"):
            thread_engines.profile(lambda comm: None, MESH, steps=steps)  # type: ignore[arg-type]


class OldTorch:
    __version__ = "2.4.1+cpu"


def test_an_old_torch_is_named_with_the_version_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_world, "check_installed", lambda: None)
    monkeypatch.setattr(torch_world, "_RECORDED", {})
    monkeypatch.setattr(torch_world, "load_torch", lambda: Torch(OldTorch, None, None))
    with pytest.raises(CommunicatorError, match=r"torch 2\.4\.1\+cpu is too old .* needs 2\.6; run pip install --upg"):
        torch_world.load(on_gpu=False)


def test_a_group_with_other_ranks_is_named_with_its_axis_and_rank() -> None:
    members = [{name: MESH[name].of(rank).ranks for name in MESH.axis_names} for rank in range(4)]
    check_members(MESH, members)
    members[2] = {**members[2], "tp": (2, 1)}
    with pytest.raises(
        CommunicatorError, match=r"axis 'tp': on rank 2, torch's group is \[2, 1\], but meshlab's is \[2, 3\]"
    ):
        check_members(MESH, members)


# -- groups ------------------------------------------------------------------------------------------------------------


def random_mesh(generator: np.random.Generator, n: int) -> ml.DeviceMesh:
    """A mesh whose groups ascend, as torch requires: a transposed one, and sometimes with idle ranks."""
    shape: list[int] = []
    left = n
    while left > 1:
        divisors = [size for size in range(2, left + 1) if left % size == 0]
        shape.append(int(generator.choice(divisors)))
        left //= shape[-1]
    shape.insert(int(generator.integers(len(shape) + 1)), 1) if not shape or generator.random() < 0.2 else None
    order = generator.permutation(len(shape))
    ranks = np.arange(n).reshape(shape).transpose(order)
    names = [f"axis_{number}" for number in range(len(shape))]
    return ml.DeviceMesh(ranks.shape, names, ranks=ranks)


FAKE_WORLDS = """
import sys
import numpy as np
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from meshlab.comm.backends._torch_world import device_mesh, members_of
from tests.engines.test_torch import random_mesh

n_meshes = 0
for seed in range(200):
    generator = np.random.default_rng(seed)
    n = int(generator.integers(2, 129))
    mesh = random_mesh(generator, n)
    for rank in {int(number) for number in generator.integers(n, size=2)}:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=n)
        expected = {axis: mesh[axis].of(rank).ranks for axis in mesh.axis_names}
        assert members_of(device_mesh(mesh, "cpu"), mesh.axis_names) == expected, (mesh, rank)
        dist.destroy_process_group()
    n_meshes += 1
print(n_meshes)
"""


@pytest.mark.full
def test_groups_of_200_random_meshes_are_those_of_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run([sys.executable, "-c", FAKE_WORLDS], capture_output=True, text=True)
    assert done.stdout.split() == ["200"], done.stderr


@pytest.fixture
def engines(gloo_engines: ml.Engines) -> ml.Engines:
    gloo_engines.torch(MESH)
    return gloo_engines


def sums(comm: Any) -> dict[str, float]:
    import torch
    from torch import distributed

    totals = {}
    for axis in comm.torch_mesh.mesh_dim_names:
        data = torch.tensor([float(comm.world_rank + 1)])
        distributed.all_reduce(data, group=comm.torch_mesh.get_group(axis))
        totals[axis] = data.item()
    return totals


def test_groups_of_random_meshes_exchange_data(engines: ml.Engines) -> None:
    for seed in range(12):  # more than stay open
        mesh = random_mesh(np.random.default_rng(seed), 4)
        assert engines.torch(mesh).mesh == mesh
        values = engines.run(sums, mesh)["value"]
        for rank, totals in enumerate(values):
            expected = {axis: sum(other + 1 for other in mesh[axis].of(rank)) for axis in mesh.axis_names}
            assert totals == expected, (mesh, rank)
    assert [value["tp"] for value in engines.run(sums, engines.torch(MESH).mesh)["value"]] == [3, 3, 7, 7]
    with pytest.raises(EngineError, match=r"torch has no mesh in this task; call engines\.torch"):
        engines.run(sums, "dp=4, tp=1")


def test_ranks_that_are_idle_in_the_mesh_have_no_group(engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("tp=2", ranks=[1, 2], world_size=4)
    engines.torch(mesh)
    coordinates = engines.run(lambda comm: comm.torch_mesh.get_coordinate(), mesh)["value"].tolist()
    assert [None if value is None else list(value) for value in coordinates] == [None, [0], [1], None]


def test_nothing_listens_for_other_hosts(engines: ml.Engines) -> None:
    engines.run(sums, MESH)
    for info in engines.ranks:
        listening = [line.laddr.ip for line in psutil.Process(info.pid).net_connections() if line.status == "LISTEN"]
        assert listening
        assert all(address.startswith("127.") for address in listening)


def opened_group(comm: Any) -> int:
    import os

    from torch import distributed

    group = distributed.new_group([0, 3])
    assert os.environ["WORLD_SIZE"] == "4"
    assert os.environ["RANK"] == str(comm.world_rank) == str(distributed.get_rank())
    return int(distributed.get_process_group_ranks(group)[-1]) if comm.world_rank in (0, 3) else -1


def test_functions_open_groups_as_under_torchrun(engines: ml.Engines) -> None:
    assert engines.run(opened_group, MESH)["value"].tolist() == [3, -1, -1, 3]
    test_nothing_listens_for_other_hosts(engines)


def test_cells_have_the_mesh_as_a_variable(engines: ml.Engines) -> None:
    cells = engines.client[:]
    cells.execute("import torch.distributed; found = torch_mesh.mesh_dim_names", block=True)
    assert cells["found"] == [("dp", "tp")] * 4


@pytest.mark.full
def test_torch_works_next_to_mpi(mpi_engines: ml.Engines) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    mpi_engines.torch(MESH)

    def both(comm: Any) -> tuple[float, float]:
        return sums(comm)["tp"], float(comm.all_reduce(np.ones(1))[0])

    assert mpi_engines.run(both, MESH, axis="dp")["value"].tolist() == [(3.0, 2.0)] * 2 + [(7.0, 2.0)] * 2


# -- own code ----------------------------------------------------------------------------------------------------------


def sharded(comm: Any) -> Any:
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    for layer in (*model, model):
        fully_shard(layer, mesh=comm.torch_mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(4, 32)

    def step() -> float:
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def parallel(comm: Any) -> Any:
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    batch = torch.ones(4, 32)
    expected = model(batch).detach()
    parallelize_module(model, comm.torch_mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def step() -> bool:
        output = model(batch)
        output.sum().backward()
        return bool(torch.allclose(output, expected, atol=1e-5))

    return step


def pipelined(comm: Any) -> Any:
    import torch
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(2)]
    batch = torch.ones(8, 16)
    expected = torch.nn.functional.mse_loss(layers[1](layers[0](batch)), batch).item()
    stage = comm.torch_mesh["pp"].get_local_rank()
    part = PipelineStage(layers[stage], stage, 2, torch.device("cpu"), group=comm.torch_mesh.get_group("pp"))
    schedule = ScheduleGPipe(part, 2, loss_fn=torch.nn.functional.mse_loss)

    def step() -> bool:
        losses: list[Any] = []
        if stage == 0:
            schedule.step(batch)
            return True
        schedule.step(target=batch, losses=losses)
        return bool(abs(sum(float(loss) for loss in losses) / len(losses) - expected) < 1e-5)

    return step


@needs_sympy
@pytest.mark.full
def test_fsdp_tensor_parallelism_and_a_pipeline_run_and_are_profiled(engines: ml.Engines) -> None:
    engines.deadline_s = 120  # to import them takes seconds
    losses = engines.run(lambda comm: [step() for step in [sharded(comm)] * 3], MESH)["value"].tolist()
    assert losses == [losses[0]] * 4
    assert losses[0][0] > losses[0][2]
    assert engines.run(lambda comm: parallel(comm)(), MESH)["value"].all()
    pipeline = ml.DeviceMesh("pp=2, dp=2")
    engines.torch(pipeline)
    assert engines.run(lambda comm: pipelined(comm)(), pipeline)["value"].all()
    for function, mesh, axis in ((sharded, MESH, "dp"), (parallel, MESH, "tp"), (pipelined, pipeline, "pp")):
        trace = engines.profile(function, mesh, steps=2)
        assert trace.ranks == (0, 1, 2, 3)
        assert trace.by_axis(mesh, steps=False)["axis"].tolist() == [axis]


def alternating(comm: Any) -> Any:
    import torch
    from torch import distributed

    tensors = {axis: torch.ones(n) for axis, n in (("dp", 1024), ("tp", 4096))}

    def step() -> None:
        for axis in ("tp", "dp", "tp"):
            distributed.all_reduce(tensors[axis], group=comm.torch_mesh.get_group(axis))

    return step


def test_a_profile_has_the_calls_of_each_axis(engines: ml.Engines, tmp_path: Path) -> None:
    trace = engines.profile(alternating, MESH, steps=3, folder=tmp_path / "traces")
    frame = trace.by_axis(MESH)
    assert frame.groupby("axis")["step"].nunique().to_dict() == {"dp": 3, "tp": 3}
    assert frame.groupby("axis")["calls"].sum().to_dict() == {"dp": 3, "tp": 6}
    calls = trace.frame(MESH).groupby("axis")[["collective", "size_bytes"]].first()
    assert calls.loc["tp"].tolist() == ["all_reduce", 4 * 4096]
    names = [f"rank{rank}.json.gz" for rank in range(4)]
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == names
    assert ml.Trace.read(tmp_path / "traces").by_axis(MESH).equals(frame)
    with pytest.raises(BenchError, match=r"has a trace already, rank0\.json\.gz; pass another folder"):
        engines.profile(alternating, MESH, folder=tmp_path / "traces")


def test_a_function_without_a_prepared_step_is_the_step(engines: ml.Engines) -> None:
    trace = engines.profile(sums, MESH, steps=2)
    assert trace.by_axis(MESH)["calls"].tolist() == [1] * 4


def test_a_step_of_torch_is_timed_like_a_collective(engines: ml.Engines) -> None:
    results = ml.bench(engines, MESH, alternating, axis="world").wait()
    assert results["collective"].tolist() == ["alternating"]
    assert results["status"].tolist() == ["ok"]
    assert (results["time_us"] > 10).all()


# -- faults ------------------------------------------------------------------------------------------------------------


def sleeps_on(comm: Any, rank: int) -> None:
    sums(comm)
    if comm.world_rank == rank:
        time.sleep(60)
    sums(comm)


def mistyped(comm: Any) -> None:
    raise NameError("a typo")


def pending(comm: Any) -> None:
    import torch
    from torch import distributed

    if comm.world_rank == 0:
        distributed.all_reduce(torch.ones(1), group=comm.torch_mesh.get_group("tp"), async_op=True)
    raise ValueError("no batch")


def test_a_typo_keeps_what_is_on_the_ranks_and_an_open_call_does_not(engines: ml.Engines) -> None:
    cells = engines.client[:]
    for function, is_same in ((mistyped, True), (pending, False), (mistyped, True)):
        cells.execute("before = torch_mesh", block=True)
        with pytest.raises(EngineError, match="rank 0 failed while running"):
            engines.run(function, MESH)
        cells.execute("is_same = before is torch_mesh", block=True)
        assert cells["is_same"] == [is_same] * 4
        assert [value["dp"] for value in engines.run(sums, MESH)["value"]] == [4, 6, 4, 6]


def test_a_script_that_destroys_the_group_can_run_again(engines: ml.Engines) -> None:
    def script(comm: Any) -> float:
        from torch import distributed

        total = sums(comm)["tp"]
        distributed.destroy_process_group()
        return total

    for _ in range(3):
        assert engines.run(script, MESH)["value"].tolist() == [3, 3, 7, 7]
    assert engines.run(lambda comm: sums(comm)["tp"], MESH)["value"].tolist() == [3, 3, 7, 7]


@pytest.mark.slow
@pytest.mark.long
def test_a_rank_that_does_not_come_is_named_and_a_restart_opens_torch_again(engines: ml.Engines) -> None:
    with pytest.raises(EngineError, match="no progress within 3") as late:
        engines.run(sleeps_on, MESH, arguments=(3,), deadline_s=3)
    assert late.value.rank == 3
    assert "rank 2 waits in all_reduce (call 2) of torch's tp_1" in str(late.value) or "torch's dp_" in str(late.value)
    assert "rank 3 is not in a call" in str(late.value)
    pids = [info.pid for info in engines.ranks]
    engines.restart()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert [value["tp"] for value in engines.run(sums, MESH)["value"]] == [3, 3, 7, 7]


@pytest.mark.slow
@pytest.mark.full
def test_a_rank_that_is_killed_in_a_call_of_torch_is_named(engines: ml.Engines) -> None:
    def dies(comm: Any) -> None:
        import os
        import signal

        if comm.world_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sums(comm)

    with pytest.raises(EngineError, match=r"rank 1 \(process \d+ on .*\) was killed by signal 9 while running dies"):
        engines.run(dies, MESH)
