"""The command line: `meshlab demo | doctor | show | bench | compare | report | lab`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.engines.here import launched_as
from meshlab.errors import BenchError, MeshError, MeshlabError
from meshlab.version import __version__

if TYPE_CHECKING:
    from meshlab.benchmark import Plan, Run
    from meshlab.mesh import DeviceMesh

__all__ = ["main"]

_GOOD, _WRONG, _BAD_INPUT, _INTERRUPTED = 0, 1, 2, 130

_PATIENCE_S = 10.0  # how long an interrupted run may take to end

_NOTEBOOK = "01_first_mesh.ipynb"

_DESCRIPTION = """\
Explore collectives on the ranks of a device mesh: lay a mesh over ranks, prove its groups, measure collectives along
its axes, and write a report. Works on GPUs, and without any on real MPI processes.
"""

_EXAMPLES = """\
examples:
  meshlab demo --out first-report             four ranks, from a mesh to a report, in half a minute
  meshlab show "pp=2, dp=2, tp=4" --axis dp   who is in which group; starts nothing
  meshlab bench all_reduce --mesh "dp=2, tp=2" --axis tp --sizes 1K:16M --out run1
  mpiexec -n 4 meshlab bench --mesh tp=4      on ranks that a launcher started; srun works too
  meshlab report run1 --out run1.md           the report of a run that was saved
  meshlab compare run1 run2                   what became slower; also takes logs of nccl-tests
  meshlab doctor                              what is installed, and what to do about what is missing

exit codes: 0 good · 1 a benchmark failed, is wrong, or became slower · 2 bad arguments or files · 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``meshlab``; those of the process by default.

    Returns
    -------
    int
        The exit code: 0 good, 1 a benchmark failed or was wrong, 2 bad arguments, 130 interrupted.
    """
    options = _parser().parse_args(_join_axes(sys.argv[1:] if arguments is None else arguments))
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except MeshlabError as error:
        place = launched_as()
        if place is None or place[0] == 0:  # of several processes, one speaks
            print(f"meshlab: {error}", file=sys.stderr)
        return _BAD_INPUT
    except KeyboardInterrupt:
        # Where a start was under way, tasks of ipyparallel are left over, and asyncio would print them at the end.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        print("meshlab: interrupted", file=sys.stderr)
        return _INTERRUPTED


_AXIS = re.compile(r"(?:--mesh=)?[A-Za-z_]\w*=-?\d+,?")


def _join_axes(words: Sequence[str]) -> list[str]:
    """Make one word of a mesh that was not quoted.

    Examples
    --------
    >>> _join_axes(["bench", "broadcast", "--mesh", "dp=2", "tp=4", "--ranks", "8"])
    ['bench', 'broadcast', '--mesh', 'dp=2 tp=4', '--ranks', '8']
    """
    joined: list[str] = []
    was_axis = False
    for word in words:
        is_axis = _AXIS.fullmatch(word) is not None
        if is_axis and was_axis:
            joined[-1] += f" {word}"
        else:
            joined.append(word)
        was_axis = is_axis
    return joined


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("meshlab", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=form)
    parser.add_argument("--version", action="version", version=f"meshlab {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str, more: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=f"{text[:1].upper()}{text[1:]}.\n\n{more}", formatter_class=form
        )
        command.set_defaults(command=function)
        return command

    demo = add(
        "demo",
        _demo,
        "go the whole way once, from a mesh to a report",
        "Starts ranks as processes, lays a mesh over them, proves its groups, measures four collectives along every\n"
        "axis over real MPI, prints a table, and writes a report with its pictures and frames.",
    )
    demo.add_argument("--out", default="meshlab-demo", metavar="DIR", help="where to write (default: %(default)s)")
    demo.add_argument("--mesh", default="dp=2, tp=2", help='the mesh (default: "%(default)s")')
    demo.add_argument("--ranks", type=int, metavar="N", help="how many ranks, where a size of the mesh is -1")
    demo.add_argument("--sizes", default="1K:16M", help="the sizes (default: %(default)s)")
    _add_force(demo)
    _add_backend(demo)

    add(
        "doctor",
        _doctor,
        "say what is installed, and what to do about what is missing",
        "Looks at Python, the packages, the MPI library and its mpiexec, shared memory, and the parts for GPUs.\n"
        "Exits with 1 when something that the core needs is broken.",
    )

    show = add(
        "show",
        _show,
        "print a mesh: its axes, its groups, and who is in which",
        "The last axis is the fastest: ranks that differ only there are neighbours. Starts nothing.",
    )
    show.add_argument("mesh", help='such as "dp=2, tp=4"; one size may be -1 if --ranks says how many there are')
    show.add_argument("--axis", help='whose groups to show in the grid: an axis, or several such as "dp-cp"')
    show.add_argument("--ranks", type=int, metavar="N", help="how many ranks there are")

    bench = add(
        "bench",
        _bench,
        "measure collectives along axes of a mesh",
        "All groups of an axis run at once. Prints a table; with --out, writes the run's frames (Parquet and CSV),\n"
        "its report and its pictures. Rows that were measured are written even when the run fails or is interrupted.\n"
        "Started by mpiexec or srun as several processes, it starts no ranks: the processes are the ranks.",
    )
    bench.add_argument(
        "collectives", nargs="*", default=["all_reduce"], metavar="COLLECTIVE", help="default: all_reduce"
    )
    bench.add_argument("--mesh", help='such as "dp=2, tp=2"; the last axis is the fastest')
    bench.add_argument("--ranks", type=int, metavar="N", help="how many ranks to start (default: as the mesh has)")
    bench.add_argument(
        "--axis",
        action="append",
        metavar="AXIS",
        help="along which axis; several with commas between; dp-tp is the groups that two span together (default: all)",
    )
    bench.add_argument("--sizes", default="1K:16M", help='such as 1K:16M, 8:1G*4 or "1K, 1M" (default: %(default)s)')
    bench.add_argument("--dtype", default="float32", help="element types, with commas between (default: %(default)s)")
    bench.add_argument("--op", default="sum", help="reduce operations, with commas between (default: %(default)s)")
    bench.add_argument(
        "--mode", default="pipelined", help="isolated, pipelined, graph, with commas between (default: %(default)s)"
    )
    bench.add_argument(
        "--groups",
        default="together",
        help="together, alone (one group at a time), pairs (of ranks, with send and send_recv); with commas between",
    )
    bench.add_argument(
        "--beside", action="append", default=[], metavar="AXIS=COLLECTIVE", help="what another axis does meanwhile"
    )
    bench.add_argument("--launches", type=int, default=1, metavar="N", help="repeat so often, with fresh communicators")
    bench.add_argument("--shuffle", action="store_true", help="take the steps in random order")
    bench.add_argument("--seed", type=int, default=0, help="of that order (default: %(default)s)")
    bench.add_argument("--resume", metavar="DIR", help="go on with a run that stopped; its plan and mesh count")
    bench.add_argument("--redact", action="store_true", help="write hashes for the names of hosts and users")
    bench.add_argument("--here", action="store_true", help="this process is a rank, though no launcher is recognised")
    bench.add_argument("--in-place", action="store_true", help="let input and output share memory")
    bench.add_argument("--seconds", type=float, default=0.5, help="at most so long per step (default: %(default)s)")
    bench.add_argument("--out", metavar="DIR", help="where to write the run and its report")
    _add_force(bench)
    _add_backend(bench)

    report = add(
        "report",
        _report,
        "write the report of a run that was saved",
        "Reads a folder that bench, demo or Run.save wrote.",
    )
    report.add_argument("folder", help="the run's folder")
    report.add_argument("--out", metavar="FILE", help="the report, .html or .md (default: report.html in the folder)")
    report.add_argument("--pictures", action="store_true", help="beside a .md, write its pictures as PNG files")
    report.add_argument("--redact", action="store_true", help="write hashes for the names of hosts and users")

    compare = add(
        "compare",
        _compare,
        "compare two runs row by row",
        "Takes folders of runs, results as Parquet, CSV or JSON, and logs of nccl-tests. Says first what differs\n"
        "between the two, and refuses what cannot be compared. Exits with 1 when a row became slower than the\n"
        "threshold or its results are wrong after, and with 2 when nothing could be compared.",
    )
    compare.add_argument("before", help="the run, frame or log to compare with")
    compare.add_argument("after", help="the run, frame or log to judge")
    compare.add_argument(
        "--threshold", type=_share, default=0.05, help="how much slower counts: 0.05 or 5%% (default: %(default)s)"
    )
    compare.add_argument("--anyway", action="store_true", help="compare although the machines or settings differ")

    lab = add(
        "lab",
        _lab,
        "open JupyterLab on the first notebook",
        "Copies the notebook into the folder, unless it is there already, and opens it.\n"
        "What stands behind -- goes to JupyterLab: meshlab lab -- --no-browser --port=8889",
    )
    lab.add_argument("folder", nargs="?", default=".", help="where to work (default: this folder)")
    lab.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    return parser


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace another run in the folder, and its report")


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=["auto", "nccl", "mpi", "threads"],
        default="auto",
        help="nccl: a GPU per rank; mpi: processes; threads: in this process, to try things out (default: %(default)s)",
    )


# -- commands ----------------------------------------------------------------------------------------------------------


def _say(text: object) -> None:
    """Print at once, also into a pipe: some lines are minutes apart."""
    print(text, flush=True)


def _demo(options: argparse.Namespace) -> int:
    from meshlab.benchmark import Plan, Sampling
    from meshlab.mesh.text import mesh_text

    place = launched_as()
    if place is not None:
        raise BenchError(
            f"a launcher started {place[1]} processes, but demo starts its own ranks; run it without the launcher, or "
            f"measure on these: mpiexec -n {place[1]} meshlab bench --mesh dp={place[1]}"
        )
    mesh = _lay(options.mesh, options.ranks)
    plan = Plan(
        ["all_reduce", "all_gather", "reduce_scatter", "broadcast"],
        mesh.axis_names,
        sizes=options.sizes,
        sampling=Sampling(max_s=0.05),
    )
    _say(f"{mesh_text(mesh)}\n")
    return _measure(mesh, mesh.world_size, plan, options.backend, Path(options.out), force=options.force)


def _bench(options: argparse.Namespace) -> int:
    from meshlab.benchmark import Run

    place = launched_as()
    earlier = Run.load(options.resume) if options.resume else None
    if earlier is not None:
        mesh, plan = earlier.mesh, earlier.plan
    elif options.mesh is not None:
        n_known = place[1] if place is not None else options.ranks
        mesh = _lay(options.mesh, n_known if "-1" in options.mesh else None)
        plan = _plan(options, mesh)
    else:
        raise BenchError("say on which mesh, such as --mesh 'dp=2, tp=2', or --resume a run")
    n = mesh.world_size if options.ranks is None else options.ranks
    out = Path(options.out) if options.out else None
    is_here = options.here or place is not None
    told = {"resume": earlier, "redact": options.redact, "force": options.force}
    return _measure(mesh, n, plan, options.backend, out, is_here=is_here, **told)


def _lay(text: str, n: int | None) -> DeviceMesh:
    """Read a mesh; what is wrong is told in the words of the command line."""
    from meshlab.mesh import DeviceMesh

    try:
        return DeviceMesh(text, world_size=n)
    except MeshError as error:
        raise MeshError(re.sub(r"world_size=(\d*)", lambda found: f"--ranks {found[1] or 'N'}", str(error))) from None


def _plan(options: argparse.Namespace, mesh: DeviceMesh) -> Plan:
    from meshlab.benchmark import Plan, Sampling

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

    from meshlab.benchmark import bench
    from meshlab.benchmark.store import FILES, check_free
    from meshlab.benchmark.text import results_text
    from meshlab.engines import join, launch
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
        return _GOOD  # this rank has served
    with ExitStack() as stack:
        if joined is not None:  # the others wait for it, so it is closed whatever happens
            stack.enter_context(joined)
        stage = stack.enter_context(staged_folder(out, replaces=FILES)) if out is not None else None
        engines = joined or stack.enter_context(launch(n, backend=backend))
        library = engines.facts[0].capabilities.library
        _say(f"{engines.where}, {library}: ready in {format_seconds(time.monotonic() - began)}")
        proof = engines.verify(mesh)
        _say(f"{len(proof)} group{'s' * (len(proof) != 1)} verified: each contains exactly the ranks it should")
        run = bench(engines, mesh, plan, resume=resume)
        _say(run.estimate)
        code = _wait(run)
        _say(f"\n{results_text(run.results)}\n")
        if run.alert:
            print(f"meshlab: {run.alert}", file=sys.stderr)
        if stage is not None:
            _write(run.redacted() if redact else run, stage)
    if out is not None:
        _say(f"report: {out / 'report.html'}")
    return code


def _wait(run: Run) -> int:
    """Wait for a run; an interrupt or a fault keeps the rows."""
    try:
        results = run.wait()
    except KeyboardInterrupt:
        print("meshlab: interrupted; the rows measured so far are kept", file=sys.stderr)
        _stop(run)
        return _INTERRUPTED
    except MeshlabError as error:
        print(f"meshlab: {error}", file=sys.stderr)
        return _WRONG
    return _GOOD if results["status"].isin(["ok", "skipped"]).all() else _WRONG


def _stop(run: Run) -> None:
    """Press Cancel until the run has ended, whatever else happens: its rows are still to be written."""
    for presses in (2, 1):  # interrupt the ranks; then end them
        for _ in range(presses):
            run.cancel()
        with contextlib.suppress(MeshlabError, KeyboardInterrupt):
            run.wait(_PATIENCE_S)


def _write(run: Run, folder: Path) -> None:
    from meshlab.benchmark.store import save_run
    from meshlab.report import Report

    save_run(run, folder)
    report = Report(run)
    report.save(folder / "report.html")
    report.save(folder / "report.md", pictures=True)


def _report(options: argparse.Namespace) -> int:
    from meshlab.benchmark import Run
    from meshlab.report import Report

    path = Path(options.out) if options.out else Path(options.folder) / "report.html"
    with _warnings_as_sentences():
        run = Run.load(options.folder)
    Report(run.redacted() if options.redact else run).save(path, pictures=options.pictures)
    _say(path)
    return _GOOD


def _share(text: str) -> float:
    """Read a share: 0.05, or 5%."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = float("nan")
    if rest or not 0 < share < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share above 0; write 0.05 or 5% for 5 % slower")
    return share


def _compare(options: argparse.Namespace) -> int:
    from meshlab.benchmark.comparing import print_comparison

    with _warnings_as_sentences():
        return print_comparison(options.before, options.after, threshold=options.threshold, anyway=options.anyway)


@contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    """Print warnings as all else that is said on standard error, without a place in the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"meshlab: {message}", file=sys.stderr)
        yield


def _show(options: argparse.Namespace) -> int:
    from meshlab.mesh.text import mesh_text, wrapped

    if options.axis and "," in options.axis:
        parts = [part.strip() for part in options.axis.split(",")]
        raise BenchError(
            f"--axis {options.axis} names {len(parts)} axes, and the grid shows the groups of one; for the groups "
            f"that they span together, write {'-'.join(parts)}"
        )
    mesh = _lay(options.mesh, options.ranks)
    width = shutil.get_terminal_size().columns
    _say(f"{mesh_text(mesh, options.axis, width)}\n\n{wrapped(mesh.explain(), width)}")
    return _GOOD


def _doctor(options: argparse.Namespace) -> int:
    from meshlab.doctor import examine, findings_text

    findings = examine()
    _say(findings_text(findings))
    return _WRONG if any(finding.verdict == "broken" for finding in findings) else _GOOD


def _lab(options: argparse.Namespace) -> int:
    from importlib.util import find_spec

    from meshlab.files import write_file

    if find_spec("jupyterlab") is None:
        print("meshlab: JupyterLab is not installed; pip install '.[lab]' in meshlab's folder", file=sys.stderr)
        return _BAD_INPUT
    notebook = Path(options.folder) / _NOTEBOOK
    if not notebook.exists():
        package = Path(__file__).parent
        shipped = [folder / "notebooks" / _NOTEBOOK for folder in (package, package.parent)]
        write_file(notebook, next(path for path in shipped if path.exists()).read_bytes())
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(notebook), *options.arguments])


if __name__ == "__main__":
    sys.exit(main())
