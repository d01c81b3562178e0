"""The ranks of a command: their number, their label, and the check of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab.base._errors import MeshError

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines
    from meshlab.mesh._mesh import DeviceMesh

_FEWEST_RANKS, _MOST_RANKS = 2, 8  # without a mesh and without GPUs


def default_ranks(backend: str, fewest: int = _FEWEST_RANKS) -> int:
    """Return the number of ranks of a benchmark without a mesh: all GPUs, or else one per core within limits."""
    from meshlab.benchmark.on_ranks._environment import usable_cores
    from meshlab.engines._launch import count_gpus

    n_gpus = count_gpus() if backend in ("auto", "nccl") else 0
    return n_gpus or min(max(usable_cores(), fewest), _MOST_RANKS)


def check_size(mesh: DeviceMesh, n: int, *, is_started: bool) -> None:
    """Raise if a mesh does not have `n` ranks, with the fix for ranks that a launcher has started or not."""
    from meshlab.engines._engines import check_mesh_size

    try:
        check_mesh_size(mesh, n)
    except MeshError as error:
        size = mesh.world_size
        fix = f"start {size} processes" if is_started else f"pass --ranks {size}, or omit --ranks"
        raise error.with_hint(fix) from None


def system_label(engines: Engines) -> str:
    """Return the label of the measured system, with the library unless the label already has it."""
    library = engines.ranks[0].capabilities.library
    return engines.where if library in engines.where else f"{engines.where}, {library}"
