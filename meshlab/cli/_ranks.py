"""The ranks of a command: their number and mesh, their start, and their label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._errors import BenchError
from meshlab.cli._output import plain_warnings, print_error

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines

_FEWEST_RANKS, _MOST_RANKS = 2, 8  # without a mesh and without GPUs


def default_ranks(backend: str, fewest: int = _FEWEST_RANKS) -> int:
    """Return the number of ranks of a benchmark without a mesh: all GPUs, or else one per core within limits."""
    from meshlab.benchmark.on_ranks._environment import usable_cores
    from meshlab.engines._launch import count_gpus

    n_gpus = count_gpus() if backend in ("auto", *GPU_BACKENDS) else 0
    return n_gpus or min(max(usable_cores(), fewest), _MOST_RANKS)


def check_choice(n_started: int, ranks: int | None, gpus: str | None = None) -> None:
    """Raise if options choose other ranks than the processes that a launcher has started."""
    if ranks not in (None, n_started):
        raise BenchError(
            f"--ranks {ranks} differs from the {n_started} processes that a launcher started",
            hint="omit --ranks, or start as many processes",
        )
    if gpus is not None:
        raise BenchError(
            f"--gpus {gpus} has no effect on the processes that a launcher started",
            hint="omit it; options of the launcher, such as --gpus-per-task, or CUDA_VISIBLE_DEVICES choose their GPUs",
        )


def memory_of_new_ranks(n: int, backend: str) -> list[tuple[bool, int]] | None:
    """Return results of `free_bytes` for `n` ranks that would start here, or None if a GPU's memory is unknown."""
    from meshlab.engines._launch import count_gpus
    from meshlab.engines._memory import host_free_bytes
    from meshlab.topology.readers._hosts import probe

    if backend not in GPU_BACKENDS and (backend != "auto" or count_gpus() < n):
        return n * [(True, host_free_bytes())]
    sizes = [device.memory_bytes for device in list(probe().devices)[:n]]
    free = [(False, size) for size in sizes if size is not None]
    return free if len(free) == n else None


@contextmanager
def opened_engines(
    n: int, backend: str, *, joins: bool, timeout_s: float, devices: Sequence[int] | None = None
) -> Iterator[Engines | None]:
    """Start ranks, or join those of a launcher: then None in each process that was a rank until the engines closed."""
    from meshlab.benchmark._progress import progress_lines
    from meshlab.engines._launch import launch
    from meshlab.engines._launchers import launch_of
    from meshlab.engines._mpi_world import join
    from meshlab.engines._start_watch import watch_start

    if joins and (started := launch_of()) is not None:
        watch_start(started, timeout_s)
    with plain_warnings():
        engines = (
            join(backend=backend, timeout_s=timeout_s)
            if joins
            else launch(n, backend=backend, devices=devices, timeout_s=timeout_s)
        )
    if engines is None:
        yield None
        return
    with engines, progress_lines(print_error):
        yield engines


def size_fix(size: int, *, is_started: bool) -> str:
    """Return the fix for a mesh of `size` ranks whose number is a different one, which a launcher started or not."""
    return f"start {size} processes" if is_started else f"pass --ranks {size}, or omit --ranks"


def system_label(engines: Engines) -> str:
    """Return the label of the measured system, with the library unless the label already has it."""
    library = engines.ranks[0].capabilities.library
    return engines.where if library in engines.where else f"{engines.where}, {library}"
