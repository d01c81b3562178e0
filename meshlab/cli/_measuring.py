"""The measurement of a plan on new or joined ranks, from the check of its mesh to its report."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._errors import EngineError, MeshlabError
from meshlab.base._hints import NEW_RANKS, Hint
from meshlab.cli._fitting import fitted, terminal_width
from meshlab.cli._output import (
    FAILED,
    INTERRUPTED,
    OK,
    error_text,
    is_vacant,
    plain_warnings,
    print_error,
    print_text,
    report_error,
)
from meshlab.cli._ranks import memory_of_new_ranks, opened_engines, size_fix, system_label

if TYPE_CHECKING:
    from meshlab.benchmark._run import Run
    from meshlab.engines._engines import Engines
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._plan import Plan
    from meshlab.runs._rundata import RunData
    from meshlab.topology.model._cluster import Cluster

_FIRST_STEP_S = 1.0  # time that the first step of an interrupted run gets to end
_PATIENCE_S = 10.0  # maximum time for an interrupted run to stop


def measure(
    mesh: DeviceMesh,
    n: int,
    plan: Plan,
    backend: str,
    out: Path | None,
    *,
    joins: bool = False,
    timeout_s: float,
    resume: RunData | None = None,
    redact: bool = False,
    force: bool = False,
) -> int:
    """Start ranks or become one, verify the mesh, measure, print the results, and write them to a folder."""
    from meshlab.base._folders import check_writable
    from meshlab.base._units import format_seconds
    from meshlab.benchmark._bench import bench
    from meshlab.benchmark._preparation import check_matrices, has_matrix
    from meshlab.engines._checks import check_mesh_size
    from meshlab.runs._rundata import has_measurements
    from meshlab.runs._store import check_free

    # Check all input before any process starts.
    check_mesh_size(mesh, n, fix=size_fix(mesh.world_size, is_started=joins))
    plan.steps(mesh)
    if not joins and has_matrix(plan) and (memory := memory_of_new_ranks(n, backend)) is not None:
        check_matrices(plan, mesh, memory, n * [socket.gethostname()])
    if out is not None:
        check_free(out, None if resume is None else resume.run_id, overwrite=force)
        check_writable(out)
    began = time.monotonic()
    was_vacant = out is not None and is_vacant(out)
    with opened_engines(n, backend, joins=joins, timeout_s=timeout_s) as engines:
        if engines is None:
            return OK
        is_written = True
        print_text(fitted(f"{system_label(engines)}: ready in {format_seconds(time.monotonic() - began)}"))
        with plain_warnings():
            groups = engines.verify(mesh)
        word = f"group{'s' * (len(groups) != 1)}"
        print_text(fitted(f"{len(groups)} {word} verified: each contains exactly the expected ranks"))
        machine = _machine_of(engines) if out is not None else None
        # The rows of a redacted run are written at the end, because the names in them are known only then.
        run = bench(engines, mesh, plan, resume=resume, out=None if redact else out, overwrite=force)
        code = _wait(run, out)
        if code == INTERRUPTED and not has_measurements(run):
            if run.out is not None and was_vacant:
                shutil.rmtree(run.out, ignore_errors=True)
            return code
        written = run.redacted() if redact else run
        if out is not None:
            if redact:
                written.save(out, overwrite=force)
            elif run.out_problem:
                print_error(run.out_problem)
            is_written = _write_report(written, out, machine, redact=redact) and not run.out_problem
    # After the files are in place: a reader such as `head` may close the pipe, which ends the command here.
    if uncertainty := written.uncertainty:
        print_text(fitted(f"\n! {uncertainty}"))
    print_text(fitted(f"\n{written.table().text(terminal_width())}\n"))
    if written.alert:
        print_error(written.alert)
    if out is not None:
        print_text(f"report: {out / 'report.html'}" if is_written else f"run: {out}")
    return code if is_written else code or FAILED


def _wait(run: Run, out: Path | None) -> int:
    """Print the estimate of a run, wait for it, and return the exit code. Rows of a run that ended early are kept."""
    from meshlab.report._correct import judge_results

    try:
        print_text(fitted(run.estimate))
        results = run.wait()
    except KeyboardInterrupt:
        _stop(run)
        return INTERRUPTED
    except EngineError as error:
        again = "run the command again" if out is None else f"continue with meshlab bench --resume {out}"
        needs_ranks = isinstance(error.hint, Hint) and NEW_RANKS in error.hint.parts
        report_error(error if needs_ranks else error.with_hint(again), again)
        return FAILED
    except MeshlabError as error:
        report_error(error)
        return FAILED
    if not results["status"].isin(["ok", "skipped"]).all():
        return FAILED
    outcome, sentence = judge_results(results)
    if outcome == "not decided":
        print_text(fitted(f"not decided: {sentence}"))
    return OK if outcome == "passed" else FAILED


def _stop(run: Run) -> None:
    """Stop a run after its step, or at the next interrupt immediately. The rows measured so far are kept."""
    from meshlab.runs._rundata import has_measurements

    # A third interrupt is ignored, because the rows still have to be written.
    try:
        print_error("interrupted; stopping after this step, keeping the rows; press Ctrl-C again to kill the ranks now")
        run.cancel()
        with contextlib.suppress(MeshlabError):
            if has_measurements(run):
                run.wait()
            else:
                run.wait(_FIRST_STEP_S, progress=False)
        if not has_measurements(run):
            print_error("nothing was measured yet, so nothing is kept")
            _kill(run)
    except KeyboardInterrupt:
        print_error("killing the ranks; the rows measured so far are kept")
        _kill(run)


def _kill(run: Run) -> None:
    with contextlib.suppress(MeshlabError, KeyboardInterrupt):
        run.cancel(now=True)
        run.wait(_PATIENCE_S)


def _machine_of(engines: Engines) -> Cluster | None:
    """Return the GPUs of the ranks and their links, or None if there are none or they cannot be read."""
    from meshlab.frames._labels import CPU_SOURCES
    from meshlab.topology.readers._hosts import probe

    if engines.backend in CPU_SOURCES:
        return None
    try:
        return probe(engines)
    except MeshlabError as error:
        print_error(f"the report does not show the machine: {error_text(error)}")
        return None


def _write_report(run: RunData, folder: Path, machine: Cluster | None, *, redact: bool) -> bool:
    """Write the report of a saved run, and return whether it could be drawn. The run is kept in any case."""
    from meshlab.report._report import Report

    try:
        report = Report(run, cluster=machine, redact=redact)
        report.save(folder / "report.html")
        report.save(folder / "report.md", pictures=True)
    except (Exception, KeyboardInterrupt) as error:
        print_error(f"the run is saved, but its report could not be drawn: {type(error).__name__}: {error}")
        return False
    return True
