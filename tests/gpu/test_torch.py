"""torch's NCCL on the ranks of meshlab's: device meshes, a step of FSDP, its profile, and its time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import cloudpickle
import pytest

import meshlab as ml
from meshlab.base._errors import EngineError
from tests.gpu.launching import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.usefixtures("whole_gpus")  # torch has an NCCL of its own

MESH = ml.DeviceMesh("dp=2, tp=1")


@pytest.fixture(scope="module")
def two_gpus(whole_gpus: None) -> Iterator[ml.Engines]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with launch(2, timeout_s=180, deadline_s=90) as engines:
        yield engines


@pytest.fixture
def engines(two_gpus: ml.Engines) -> ml.Engines:
    if two_gpus.state != "ready":
        two_gpus.restart()
    two_gpus.torch(MESH)
    return two_gpus


def described(comm: Any) -> tuple[str, int, float]:
    import torch
    from torch import distributed

    data = torch.full((1000,), 1.0 + comm.world_rank, device="cuda")
    distributed.all_reduce(data, group=comm.torch_mesh.get_group("dp"))
    own = comm.all_reduce(comm.xp.full(1000, 1.0 + comm.world_rank, "float32"))
    assert float(comm.to_host(own)[-1]) == data[-1].item()
    return distributed.get_backend(), torch.cuda.current_device(), data[-1].item()


def test_groups_use_nccl_on_the_gpu_of_the_rank(engines: ml.Engines) -> None:
    opened = engines.torch(MESH)
    print(opened)
    assert opened.device == "cuda"
    assert engines.run(described, MESH)["value"].tolist() == [("nccl", 0, 3.0), ("nccl", 1, 3.0)]
    engines.torch("dp=1, tp=2")
    assert engines.run(described, MESH)["value"].tolist() == [("nccl", 0, 3.0), ("nccl", 1, 3.0)]


def sharded(comm: Any) -> Any:
    import torch
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    layers = [torch.nn.Linear(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    for layer in (*layers, model):
        fully_shard(layer, mesh=comm.torch_mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        model(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_step_of_fsdp_is_profiled_by_axis(engines: ml.Engines) -> None:
    trace = engines.profile(sharded, MESH, steps=3)
    print(trace)
    table = trace.by_axis(MESH)
    print(table.to_string())
    assert trace.ranks == (0, 1)
    assert table["axis"].eq("dp").all()
    assert table["step"].nunique() == 3
    assert (table["exposed_us"] + table["hidden_us"]).gt(0).all()
    calls = trace.frame(MESH)
    assert set(calls["collective"]) >= {"all_gather", "reduce_scatter"}
    assert calls["kernel"].str.contains("nccl").all()
    sizes = calls.loc[calls["collective"] == "all_gather", "size_bytes"]
    assert sizes.max() >= 4096 * 4096 * 2


def test_a_step_is_timed_in_the_stream_of_the_measurement(engines: ml.Engines) -> None:
    def by_clock(comm: Any) -> float:
        import torch

        step = sharded(comm)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e5

    expected = engines.run(by_clock, MESH)["value"].max()
    results = ml.bench(engines, MESH, sharded, axis="world", mode="pipelined").wait()
    measured = results["time_us"].max()
    print(f"step: {measured:.0f} us, by the clock {expected:.0f} us")
    assert results["status"].tolist() == ["ok"]
    assert 0.6 * expected < measured < 1.5 * expected


def sleeps_on_rank_1(comm: Any) -> None:
    import torch
    from torch import distributed

    data = torch.ones(1000, device="cuda")
    for number in range(3):
        if number == 2 and comm.world_rank == 1:
            time.sleep(120)
        distributed.all_reduce(data, group=comm.torch_mesh.get_group("dp"))
        torch.cuda.synchronize()


def test_a_rank_that_stays_away_from_nccl_of_torch_is_named(engines: ml.Engines) -> None:
    with pytest.raises(EngineError, match="while running sleeps_on_rank_1") as late:
        engines.run(sleeps_on_rank_1, MESH, deadline_s=4)
    print(late.value.summary)
    assert late.value.rank == 1
    engines.restart()
    assert engines.run(described, MESH)["value"].tolist() == [("nccl", 0, 3.0), ("nccl", 1, 3.0)]
