"""How much of a collective hides behind computation: both alone, then both at once, on two streams of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.engines.engines import Engines
from meshlab.errors import BenchError, EngineError
from meshlab.mesh.given import MeshLike
from meshlab.units import parse_sizes

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.comm.communicator import Communicator

__all__ = ["measure_overlap"]

_REPEATS = 12


def measure_overlap(
    engines: Engines,
    mesh: MeshLike,
    *,
    axis: str | Sequence[str],
    sizes: str | int | Sequence[int | str] = "1M:256M*4",
    matrix: int = 8192,
    dtype: str = "float16",
) -> pd.DataFrame:
    """Measure an all_reduce, a matrix product, and both at once.

    Parameters
    ----------
    engines : Engines
        Ranks with GPUs.
    mesh : DeviceMesh or str
        What the groups are.
    axis : str or sequence of str
        Where to reduce; all groups at once.
    sizes : str, int or sequence
        Sizes of the all_reduce, in float32.
    matrix : int, default 8192
        The product is of two square matrices of this size.
    dtype : str, default "float16"
        The element type of the matrices.

    Returns
    -------
    pandas.DataFrame
        One row per size: ``axis``, ``size_bytes``, ``compute_us``, ``communication_us``, ``both_us`` (medians of the
        slowest rank, in µs), ``overlap`` (what was saved, as a share of the shorter of the two: 1 is all of it), and
        ``compute_slowdown`` (how much longer the product took while the collective ran beside it).

    Raises
    ------
    BenchError
        If the ranks have no GPUs.
    EngineError
        If a rank failed.

    Examples
    --------
    On GPUs it gives a frame; elsewhere it says what it needs:

    >>> from meshlab.engines.launcher import launch
    >>> from meshlab.mesh.mesh import DeviceMesh
    >>> with launch(2, backend="threads") as engines:
    ...     measure_overlap(engines, DeviceMesh("tp=2"), axis="tp")
    Traceback (most recent call last):
    meshlab.errors.BenchError: overlap needs streams of a GPU; these engines run threads
    """
    import pandas as pd

    if engines.backend != "nccl":
        raise BenchError(f"overlap needs streams of a GPU; these engines run {engines.backend}")
    rows = []
    for size in parse_sizes(sizes if isinstance(sizes, (str, int)) else list(sizes)):
        frame = engines.run(_measure, mesh, axis=axis, arguments=(size, matrix, dtype))
        failed = frame["error"].dropna()
        if len(failed):
            raise EngineError(f"rank {frame['rank'][failed.index[0]]} failed: {failed.iloc[0]}")
        compute, communication, both, beside = np.max(np.stack(frame["value"].to_list()), axis=0)
        rows.append(
            {
                "axis": axis if isinstance(axis, str) else "-".join(axis),
                "size_bytes": size,
                "compute_us": compute,
                "communication_us": communication,
                "both_us": both,
                "overlap": (compute + communication - both) / min(compute, communication),
                "compute_slowdown": beside / compute,
            }
        )
    return pd.DataFrame(rows)


def _measure(comm: Communicator, size: int, matrix: int, dtype: str) -> tuple[float, float, float, float]:
    """Runs on every rank: the times of the product, the collective, both, and the product within both, in µs."""
    cupy: Any = comm.xp
    backend: Any = comm.backend
    communication, compute = backend.stream, cupy.cuda.Stream(non_blocking=True)
    a, b, product = (cupy.zeros((matrix, matrix), dtype) for _ in range(3))
    buffer = cupy.zeros(max(size // 4, 1), cupy.float32)
    call = comm.prepare("all_reduce", buffer, buffer)
    start, computed, done = (cupy.cuda.Event() for _ in range(3))
    reduced = cupy.cuda.Event(disable_timing=True)

    def once(computes: bool, communicates: bool) -> tuple[float, float]:
        comm.barrier()
        start.record(compute)
        communication.wait_event(start)
        if communicates:
            call.enqueue()
        if computes:
            with compute:
                cupy.matmul(a, b, out=product)
        computed.record(compute)
        reduced.record(communication)
        compute.wait_event(reduced)
        done.record(compute)
        backend.wait(done)
        return cupy.cuda.get_elapsed_time(start, done) * 1e3, cupy.cuda.get_elapsed_time(start, computed) * 1e3

    times = {}
    for name, choice in (("compute", (True, False)), ("communication", (False, True)), ("both", (True, True))):
        once(*choice)  # connects, and lets the library choose its kernels
        times[name] = np.median([once(*choice) for _ in range(_REPEATS)], axis=0)
    return (
        float(times["compute"][0]),
        float(times["communication"][0]),
        float(times["both"][0]),
        float(times["both"][1]),
    )
