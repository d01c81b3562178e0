"""Two sets of engines that no MPI launcher has started, one GPU each, become the ranks of one NCCL world.

`python tests/gpu/two_engine_sets.py` needs two GPUs, and `--backend gloo` needs none. It attaches to engines that see
all GPUs and to engines that see one each, verifies, measures and attaches again, names a rank that is late, and shows
that two engines with the same GPU are refused. The exit code is 1 if anything is not as expected.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import ipyparallel

import meshlab as ml

failures: list[str] = []


def expect(condition: bool, text: str) -> None:
    print(f"{'ok    ' if condition else 'FAILED'} {text}", flush=True)
    if not condition:
        failures.append(text)


@contextlib.contextmanager
def engine_sets(*environments: Mapping[str, str]) -> Iterator[Any]:
    """Start one engine with each environment, and yield a client of all of them."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = ipyparallel.Cluster(
            ipython_dir=folder, delay=0, controller_args=["--IPController.enable_curve=True"], log_level=40
        )
        try:
            cluster.start_controller_sync()
            for environment in environments:
                cluster.start_engines_sync(1, environment=dict(environment))
            client = cluster.connect_client_sync()
            client.wait_for_engines(len(environments), timeout=60, interactive=False)
            yield client
        finally:
            cluster.stop_cluster_sync()


def late(comm: Any) -> None:
    import time

    if comm.rank == 1:
        time.sleep(12)
    comm.all_reduce(comm.xp.ones(1))
    if comm.device is not None:
        comm.xp.cuda.Device().synchronize()


def use(client: Any, backend: str, devices: list[str | None]) -> None:
    """Attach, and do what a notebook would do."""
    with ml.attach(client, backend=backend) as engines:
        print(f"       {engines}")
        expect(engines.backend == backend and engines.world_size == 2, f"the backend is {backend}")
        facts = [info.capabilities.facts.get("device number") for info in engines.ranks]
        expect(facts == devices, f"the device indices are {devices}: {facts}")
        if backend == "nccl":
            label = engines.where_of(ml.DeviceMesh(dp=2), ["dp"])
            expect(label.startswith("2 × "), f"the label counts two GPUs: {label}")
        expect(bool(engines.verify("dp=2")["is_right"].all()), "the groups are verified")
        run = ml.bench(engines, "dp=2", sizes="1K:16M", sampling=ml.Sampling(max_s=0.2))
        results = run.wait(progress=False)
        expect(results["status"].eq("ok").all() and results["n_wrong"].eq(0).all(), "all results are right")
        print(results[["size_bytes", "time_us", "busbw_gbs"]].to_string(index=False))


def main() -> int:
    """Run all parts, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    backend = parser.parse_args().backend
    is_nccl = backend == "nccl"

    print("two engines that see all GPUs")
    with engine_sets({}, {}) as client:
        use(client, backend, ["0", "1"] if is_nccl else [None, None])
        with ml.attach(client, deadline_s=4) as engines:
            expect(engines.backend == backend, f"backend='auto' selects {backend}")
            try:
                engines.run(late)
                expect(False, "a late rank is named")
            except ml.errors.EngineError as error:
                print(f"       {error}")
                expect(str(error).startswith("rank 1 entered 0 of its group's 1 collective"), "a late rank is named")
        use(client, backend, ["0", "1"] if is_nccl else [None, None])

    if is_nccl:
        print("two engines that see one GPU each")
        with engine_sets({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}) as client:
            use(client, backend, ["0", "0"])
        print("two engines that see the same GPU")
        with engine_sets({"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}) as client:
            try:
                ml.attach(client, backend="nccl")
                expect(False, "they are refused")
            except ml.errors.EngineError as error:
                print(f"       {error}")
                expect("shows 1 GPU to 2 engines" in str(error), "they are refused")
    print(f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
