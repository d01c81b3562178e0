"""How long it takes until one can work: the import, the engines, one round through all ranks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cloudpickle
import numpy as np

import meshlab as ml
from meshlab.engines._lease import Lease

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MESH = ml.DeviceMesh("dp=2, tp=2")


def test_import_meshlab(benchmark: Any) -> None:
    bare = [sys.executable, "-c", "import numpy"]
    benchmark.extra_info["beside"] = "python -c 'import numpy', timed in the same process"
    code = "import time; t = time.perf_counter(); import meshlab; print(time.perf_counter() - t)"
    seconds = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    benchmark.extra_info["import alone, best of 5, s"] = min(seconds)
    print(f"\n    import meshlab: {1e3 * min(seconds):.0f} ms, the interpreter's start not counted")
    benchmark.pedantic(lambda: subprocess.run(bare, check=True), rounds=3)


def test_four_mpi_ranks_ready(benchmark: Any) -> None:
    started: list[ml.Engines] = []

    def close() -> None:
        while started:
            started.pop().close()

    benchmark.pedantic(lambda: started.append(ml.launch(4)), setup=close, rounds=3)
    close()


def test_restart_four_mpi_ranks(benchmark: Any, mpi_engines: ml.Engines) -> None:
    benchmark.pedantic(mpi_engines.restart, rounds=3)


def test_a_round_through_four_mpi_ranks(benchmark: Any, mpi_engines: ml.Engines) -> None:
    mpi_engines.run(lambda comm: None)
    with Lease(mpi_engines, "a benchmark") as lease:
        benchmark(lambda: lease.round(_nothing).run())


def test_another_mesh_on_the_same_ranks(benchmark: Any, mpi_engines: ml.Engines) -> None:
    numbers = iter(range(10**6))

    def use_a_new_group() -> None:
        name = f"g{next(numbers)}"
        mpi_engines.run(_nothing, MESH.with_group(name, [0, 1, 2, 3]), axis=name)

    benchmark.pedantic(use_a_new_group, rounds=5)


def test_a_public_all_reduce_beside_bare_mpi4py(benchmark: Any, mpi_engines: ml.Engines) -> None:
    """On COMM_SELF, so that nothing is timed but the calls themselves."""
    times = mpi_engines.run(_overhead)["value"].iloc[0]
    print("\n    " + ", ".join(f"{name} {1e6 * value:.2f} µs" for name, value in times.items()))
    benchmark.extra_info.update(times)
    benchmark(lambda: None)


def _nothing(comm: Any) -> None:
    return None


def _overhead(comm: Any) -> dict[str, float]:
    import time

    from mpi4py import MPI

    from meshlab.comm._communicator import Communicator
    from meshlab.comm.backends._mpi import MpiBackend

    alone = MPI.COMM_SELF.Dup()
    own = Communicator(MpiBackend(alone))
    x, y = np.zeros(2, "float32"), np.zeros(2, "float32")
    prepared = own.prepare("all_reduce", x, y)

    def best(call: Any, n: int = 20_000) -> float:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(n):
                call()
            times.append((time.perf_counter() - begin) / n)
        return min(times)

    return {
        "mpi4py": best(lambda: alone.Allreduce([x, MPI.FLOAT], [y, MPI.FLOAT], MPI.SUM)),
        "prepared": best(prepared),
        "all_reduce(x, y)": best(lambda: own.all_reduce(x, y)),
    }
