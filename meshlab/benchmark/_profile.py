"""Profiles of functions on the ranks, as traces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import BenchError
from meshlab.base._files import write_file
from meshlab.comm.backends._torch_profile import record_steps
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.engines._rounds import Reply
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.plans._functions import name_of
from meshlab.traces._reading import trace_files
from meshlab.traces._trace import Trace

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines


def profile_function(
    engines: Engines,
    function: Callable[..., Any],
    mesh: MeshLike,
    *,
    steps: int = 3,
    arguments: tuple[Any, ...] = (),
    folder: str | Path | None = None,
    deadline_s: float | None = None,
) -> Trace:
    """Profile a function on all ranks. See `Engines.profile`."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise BenchError(f"steps must be a positive integer, not {steps!r}")
    mesh = as_mesh(mesh, fill=engines.world_size)
    if folder is not None:
        _check_free(Path(folder))
    engines.torch(mesh)
    task = f"profiling {name_of(function)}"
    with Lease(engines, task) as lease:
        work = lease.round(record_steps, mesh, arguments=(function, steps, arguments), deadline_s=deadline_s)
        replies = work.run()
    raise_first_error(replies, task, engines.ranks)
    with ExitStack() as stack:
        target = Path(stack.enter_context(tempfile.TemporaryDirectory()) if folder is None else folder)
        target.mkdir(parents=True, exist_ok=True)
        return Trace.read(_write(target, replies))


def _check_free(folder: Path) -> None:
    """Raise if a folder has traces, which a reader of the folder would take for those of further ranks."""
    if folder.is_dir() and (files := trace_files(folder)):
        raise BenchError(f"the folder {folder} has a trace already, {files[0].name}", hint="pass another folder")


def _write(folder: Path, replies: Sequence[Reply]) -> list[Path]:
    return [write_file(folder / f"rank{reply.rank}.json.gz", reply.value) for reply in replies]
