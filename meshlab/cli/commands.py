"""The commands that start ranks and measure: demo and bench."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.cli.words import GOOD, INTERRUPTED, WRONG, lay, say
from meshlab.engines.mpi_world import launched_as
from meshlab.errors import BenchError, MeshlabError

if TYPE_CHECKING:
    from meshlab.frames.plan import Plan
    from meshlab.benchmark.run import Run
    from meshlab.mesh.mesh import DeviceMesh

__all__ = ["bench", "demo"]

_PATIENCE_S = 10.0  # how long an interrupted run may take to end


def demo(options: argparse.Namespace) -> int:
    """Go the whole way once, from a mesh to a report."""
    from meshlab.frames.plan import Plan, Sampling
    from meshlab.mesh.text import mesh_text

    place = launched_as()
    if place is not None:
        raise BenchError(
            f"a launcher started {place[1]} processes, but demo starts its own ranks; run it without the launcher, or "
            f"measure on these: mpiexec -n {place[1]} meshlab bench --mesh dp={place[1]}"
        )
    mesh = lay(options.mesh, options.ranks)
    plan = Plan(
        ["all_reduce", "all_gather", "reduce_scatter", "broadcast"],
        mesh.axis_names,
        sizes=options.sizes,
        sampling=Sampling(max_s=0.05),
    )
    say(f"{mesh_text(mesh)}\n")
    return _measure(mesh, mesh.world_size, plan, options.backend, Path(options.out), force=options.force)


def bench(options: argparse.Namespace) -> int:
    """Measure collectives along the axes of a mesh."""
    from meshlab.benchmark.run import Run

    place = launched_as()
    earlier = Run.load(options.resume) if options.resume else None
    if earlier is not None:
        mesh, plan = earlier.mesh, earlier.plan
    elif options.mesh is not None:
        n_known = place[1] if place is not None else options.ranks
        mesh = lay(options.mesh, n_known if "-1" in options.mesh else None)
        plan = _plan(options, mesh)
    else:
        raise BenchError("say on which mesh, such as --mesh 'dp=2, tp=2', or --resume a run")
    n = mesh.world_size if options.ranks is None else options.ranks
    out = Path(options.out) if options.out else None
    is_here = options.here or place is not None
    told = {"resume": earlier, "redact": options.redact, "force": options.force}
    return _measure(mesh, n, plan, options.backend, out, is_here=is_here, **told)


def _plan(options: argparse.Namespace, mesh: DeviceMesh) -> Plan:
    from meshlab.frames.plan import Plan, Sampling

    if options.seconds <= 0:
        raise BenchError(f"--seconds {options.seconds:g} must be above zero; it is the longest a step may take")
    beside = {}
    for text in options.beside:
        axis, equals, collective = (part.strip() for part in text.partition("="))
        if not equals:
            raise BenchError(f"{text!r} does not say what an axis does; write AXIS=COLLECTIVE: dp=reduce_scatter")
        beside[axis] = collective
    return Plan(
        _several(options.collectives),
        _several(options.axis or mesh.axis_names),
        sizes=options.sizes,
        dtype=options.dtype,
        op=options.op,
        mode=options.mode,
        in_place=options.in_place,
        groups=options.groups,
        beside=beside,
        launches=options.launches,
        shuffle=options.shuffle,
        seed=options.seed,
        sampling=Sampling(max_s=options.seconds),
    )


def _several(words: Sequence[str]) -> list[str]:
    """Values that stand one by one, or with commas between."""
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _measure(
    mesh: DeviceMesh,
    n: int,
    plan: Plan,
    backend: str,
    out: Path | None,
    *,
    is_here: bool = False,
    resume: Run | None = None,
    redact: bool = False,
    force: bool = False,
) -> int:
    """Start ranks, or be one; prove the mesh, measure, print, and write what there is."""
    from contextlib import ExitStack

    from meshlab.benchmark.api import bench
    from meshlab.frames.store import FILES, check_free
    from meshlab.frames.table import results_text
    from meshlab.engines.mpi_world import join
    from meshlab.engines.launcher import launch
    from meshlab.engines.engines import check_mesh_size
    from meshlab.files import staged_folder
    from meshlab.units import format_seconds

    check_mesh_size(mesh, n)
    plan.steps(mesh)
    if out is not None and not force:
        check_free(out, resume.run_id if resume is not None else None, "give --force")
    began = time.monotonic()
    joined = join(backend=backend) if is_here else None
    if is_here and joined is None:
        return GOOD  # this rank has served
    with ExitStack() as stack:
        if joined is not None:  # the others wait for it, so it is closed whatever happens
            stack.enter_context(joined)
        stage = stack.enter_context(staged_folder(out, replaces=FILES)) if out is not None else None
        engines = joined or stack.enter_context(launch(n, backend=backend))
        library = engines.facts[0].capabilities.library
        say(f"{engines.where}, {library}: ready in {format_seconds(time.monotonic() - began)}")
        proof = engines.verify(mesh)
        say(f"{len(proof)} group{'s' * (len(proof) != 1)} verified: each contains exactly the ranks it should")
        run = bench(engines, mesh, plan, resume=resume)
        say(run.estimate)
        code = _wait(run)
        say(f"\n{results_text(run.results)}\n")
        if run.alert:
            print(f"meshlab: {run.alert}", file=sys.stderr)
        if stage is not None:
            _write(run.redacted() if redact else run, stage)
    if out is not None:
        say(f"report: {out / 'report.html'}")
    return code


def _wait(run: Run) -> int:
    """Wait for a run; an interrupt or a fault keeps the rows."""
    try:
        results = run.wait()
    except KeyboardInterrupt:
        print("meshlab: interrupted; the rows measured so far are kept", file=sys.stderr)
        _stop(run)
        return INTERRUPTED
    except MeshlabError as error:
        print(f"meshlab: {error}", file=sys.stderr)
        return WRONG
    return GOOD if results["status"].isin(["ok", "skipped"]).all() else WRONG


def _stop(run: Run) -> None:
    """Press Cancel until the run has ended, whatever else happens: its rows are still to be written."""
    for presses in (2, 1):  # interrupt the ranks; then end them
        for _ in range(presses):
            run.cancel()
        with contextlib.suppress(MeshlabError, KeyboardInterrupt):
            run.wait(_PATIENCE_S)


def _write(run: Run, folder: Path) -> None:
    from meshlab.frames.store import save_run
    from meshlab.report.report import Report

    save_run(run, folder)
    report = Report(run)
    report.save(folder / "report.html")
    report.save(folder / "report.md", pictures=True)
