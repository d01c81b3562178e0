"""The commands that start ranks and measure: demo and bench."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from meshlab.analysis.comparison import _compare
from meshlab.engines.mpi_world import launched_as
from meshlab.errors import BenchError, MeshError, MeshlabError

if TYPE_CHECKING:
    from meshlab.benchmark.run import Run
    from meshlab.frames.plan import Plan
    from meshlab.mesh.mesh import DeviceMesh

__all__ = [
    "BAD_INPUT",
    "GOOD",
    "INTERRUPTED",
    "WRONG",
    "bench",
    "compare",
    "demo",
    "doctor",
    "lab",
    "lay",
    "print_comparison",
    "report",
    "say",
    "show",
    "warnings_as_sentences",
]


GOOD, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def say(text: object) -> None:
    """Print at once, also into a pipe: some lines are minutes apart."""
    print(text, flush=True)


def lay(text: str, n: int | None) -> DeviceMesh:
    """Read a mesh; what is wrong is told in the words of the command line."""
    from meshlab.mesh.mesh import DeviceMesh

    try:
        return DeviceMesh(text, world_size=n)
    except MeshError as error:
        raise MeshError(re.sub(r"world_size=(\d*)", lambda found: f"--ranks {found[1] or 'N'}", str(error))) from None


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print warnings as all else that is said on standard error, without a place in the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"meshlab: {message}", file=sys.stderr)
        yield


_PATIENCE_S = 10.0  # how long an interrupted run may take to end


def demo(options: argparse.Namespace) -> int:
    """Go the whole way once, from a mesh to a report."""
    from meshlab.frames.plan import Plan, Sampling
    from meshlab.mesh.describe import mesh_text

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
    from meshlab.engines.engines import check_mesh_size
    from meshlab.engines.launcher import launch
    from meshlab.engines.mpi_world import join
    from meshlab.files import staged_folder
    from meshlab.frames.store import FILES, check_free
    from meshlab.frames.table import results_text
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


_FIRST_NOTEBOOK = "01_first_mesh.ipynb"


def report(options: argparse.Namespace) -> int:
    """Write the report of a run that was saved."""
    from meshlab.benchmark.run import Run
    from meshlab.report.report import Report

    path = Path(options.out) if options.out else Path(options.folder) / "report.html"
    with warnings_as_sentences():
        run = Run.load(options.folder)
    Report(run.redacted() if options.redact else run).save(path, pictures=options.pictures)
    say(path)
    return GOOD


def compare(options: argparse.Namespace) -> int:
    """Compare two runs or logs; 1 when something became slower or wrong."""
    with warnings_as_sentences():
        return print_comparison(options.before, options.after, threshold=options.threshold, anyway=options.anyway)


def show(options: argparse.Namespace) -> int:
    """Print who is in which group."""
    from meshlab.mesh.describe import mesh_text, wrapped

    if options.axis and "," in options.axis:
        parts = [part.strip() for part in options.axis.split(",")]
        raise BenchError(
            f"--axis {options.axis} names {len(parts)} axes, and the grid shows the groups of one; for the groups "
            f"that they span together, write {'-'.join(parts)}"
        )
    mesh = lay(options.mesh, options.ranks)
    width = shutil.get_terminal_size().columns
    say(f"{mesh_text(mesh, options.axis, width)}\n\n{wrapped(mesh.explain(), width)}")
    return GOOD


def doctor(options: argparse.Namespace) -> int:
    """Print what is installed; 1 when something that is needed is broken."""
    from meshlab.cli.doctor import examine, findings_text

    findings = examine()
    say(findings_text(findings))
    return WRONG if any(finding.verdict == "broken" for finding in findings) else GOOD


def lab(options: argparse.Namespace) -> int:
    """Open JupyterLab on the first notebook, with the others beside it."""
    from importlib.util import find_spec

    from meshlab.files import write_file

    if find_spec("jupyterlab") is None:
        print("meshlab: JupyterLab is not installed; pip install '.[lab]' in meshlab's folder", file=sys.stderr)
        return BAD_INPUT
    package = Path(__file__).parents[1]
    shipped = next(folder for folder in (package / "notebooks", package.parent / "notebooks") if folder.is_dir())
    for notebook in sorted(shipped.glob("*.ipynb")):
        copy = Path(options.folder) / notebook.name
        if not copy.exists():
            write_file(copy, notebook.read_bytes())
    first = Path(options.folder) / _FIRST_NOTEBOOK
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(first), *options.arguments])


def print_comparison(
    before: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    after: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    threshold: float = 0.05,
    anyway: bool = False,
    file: TextIO | None = None,
) -> int:
    """Compare two files (or two lists of files) and print what was found; for the command line.

    Parameters
    ----------
    before, after : path or list of paths
        Folders of runs, frames that meshlab wrote (Parquet, CSV, JSON), or logs of nccl-tests (text or JSON).
    threshold : float, default 0.05
        From which slowdown on a row is a regression.
    anyway : bool, default False
        As in `compare`.
    file : text file, optional
        Where to print; by default to standard output, and what is refused to standard error.

    Returns
    -------
    int
        An exit code: 0 without regressions, 1 with rows that are slower or wrong, 2 when nothing could be compared.
    """
    refusals = file or sys.stderr
    try:
        if not threshold > 0:
            raise BenchError(f"the threshold {threshold:g} must be above 0: 0.05, or 5%, means 5 % slower")
        sides = [paths if isinstance(paths, (str, os.PathLike)) else list(paths) for paths in (before, after)]
        comparison = _compare(*sides, effect=min(threshold, 0.05), anyway=anyway, seed=0, insist="give --anyway")
    except (MeshlabError, OSError) as error:
        print(f"meshlab: {error}", file=refusals)
        return 2
    print(comparison, file=file)
    regressions = comparison.regressions(threshold)
    n_wrong = int((regressions["verdict"] == "WRONG").sum())
    n_slower = len(regressions) - n_wrong
    if n_wrong:
        print(f"{n_wrong} {'row is' if n_wrong == 1 else 'rows are'} wrong after", file=file)
    if n_slower:
        print(f"{n_slower} {'regression' if n_slower == 1 else 'regressions'} beyond {100 * threshold:g}%", file=file)
    return 1 if len(regressions) else 0
