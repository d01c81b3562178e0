"""The command ``meshlab acceptance``: the unattended check of a machine."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError, MeshlabError
from meshlab.cli._arguments import (
    Command,
    add_force,
    add_gpus,
    add_nodes,
    add_ranks,
    add_redact,
    add_start,
    gpus_of,
    read_thresholds,
    sized_cluster_of,
)
from meshlab.cli._fitting import fitted
from meshlab.cli._output import FAILED, INTERRUPTED, OK, error_text, is_vacant, plain_warnings, print_error, print_text
from meshlab.cli._per_node import accept_per_node
from meshlab.cli._ranks import check_choice, default_ranks, opened_engines, size_fix, system_label
from meshlab.engines._launchers import launch_of

if TYPE_CHECKING:
    from meshlab.analysis._nodes import NodeComparison
    from meshlab.commissioning._outcome import Acceptance
    from meshlab.report._stages import StageResult

_FEWEST_RANKS = 4  # fewer ranks have too few pairs to identify a slow one, and no axis with several groups
_MOST_HOSTS = 16  # that are listed although they did not fail
_REPORTS = ("report.html", "report.md", "junit.xml")


def _run(options: argparse.Namespace) -> int:
    """Check a machine, or each node by itself."""
    launch = launch_of()
    if options.per_node:
        return accept_per_node(options, lambda of_node: _accept(of_node, None))
    if options.ranks is not None and launch is not None and launch.launcher == "srun" and not launch.interface:
        launch = None  # srun without MPI: this task starts its ranks
    if launch is not None:
        check_choice(launch.size, options.ranks, options.gpus)
        from meshlab.engines._mpi_world import load_mpi
        from meshlab.engines._start_watch import watch_start

        watch_start(launch, options.timeout_s)

        # MPICH sends a part of its memory beyond its addresses over PMI2. After the imports of this command, that is
        # other data instead of zeros, and Slurm rejects the message on three hosts and more.
        with plain_warnings():
            load_mpi()
    return _accept(options, None if launch is None else launch.size)[0]


def _accept(options: argparse.Namespace, n_started: int | None) -> tuple[int, Acceptance | None]:
    """Check a machine, print its stages and the verdict, and write the reports. Return the exit code and the outcome.

    `n_started` is the number of ranks that a launcher has started, one of which this process becomes.
    """
    from meshlab.commissioning._acceptance import acceptance
    from meshlab.commissioning._folder import check_new, read_scope
    from meshlab.engines._checks import check_mesh_size
    from meshlab.mesh._mesh import as_mesh
    from meshlab.runs._rundata import has_measurements

    # Check all input before any process starts.
    _check_files(options)
    scope = read_scope(options.resume) if options.resume else None
    thresholds = read_thresholds(options.thresholds)
    n = options.ranks if n_started is None else n_started
    mesh = None
    if options.mesh is not None:
        fills_axis = "-1" in options.mesh and n is None
        mesh = as_mesh(options.mesh, fill=default_ranks(options.backend, _FEWEST_RANKS) if fills_axis else n)
    if options.out and options.out != options.resume:
        check_new(options.out, overwrite=options.force)
    layout = scope.mesh if scope is not None and mesh is None else mesh
    if n is None:
        n = layout.world_size if layout is not None else default_ranks(options.backend, _FEWEST_RANKS)
    if n < 1:
        raise BenchError(f"--ranks {n} must be positive", hint="pass the number of ranks to start")
    if layout is not None:
        check_mesh_size(layout, n, fix=size_fix(layout.world_size, is_started=n_started is not None))
    out = options.out or options.resume
    was_vacant = bool(options.out) and is_vacant(Path(options.out))
    devices = gpus_of(options.gpus)
    with opened_engines(
        n, options.backend, joins=n_started is not None, timeout_s=options.timeout_s, devices=devices
    ) as engines:
        if engines is None:
            return OK, None
        print_text(fitted(f"{system_label(engines)}: ready"))
        started_by = "a launcher has started the ranks; run meshlab doctor on this host"
        interrupted = False
        try:
            result = acceptance(
                engines,
                mesh,
                thresholds=thresholds,
                cluster=sized_cluster_of(options.cluster, options.nodes),
                quick=options.quick,
                # The rows of redacted runs are written at the end, because the names in them are known only then.
                out=None if options.redact else options.out,
                resume=options.resume,
                overwrite=options.force,
                installation=started_by if n_started is not None else None,
                on_stage=_print_stage,
            )
        except KeyboardInterrupt as error:
            measured: Acceptance | None = getattr(error, "measured", None)
            if measured is None or not any(map(has_measurements, measured.runs.values())):
                if was_vacant:
                    shutil.rmtree(options.out, ignore_errors=True)
                raise
            result, interrupted = measured, True
    if result.stages.nodes is not None:
        print_text(f"\n{_node_lines(result.stages.nodes)}")
    decided = "" if result.outcome != "not decided" or "not decided" in result.verdict.lower() else "not decided: "
    print_text(fitted(f"\n{decided}{result.verdict}"))
    is_written = _write(result, None if out is None else Path(out), options)
    if interrupted:
        return INTERRUPTED, result
    code = OK if result.is_passed else FAILED
    return code if is_written else code or FAILED, result


def _check_files(options: argparse.Namespace) -> None:
    """Raise if the choices contradict each other, or a report cannot be written."""
    from meshlab.report._report import Report

    if options.redact and options.resume:
        raise BenchError(
            "--redact cannot continue an acceptance, because its folder contains names",
            hint="continue it, and write a report with --redact from a new acceptance",
        )
    for name in options.files:
        Report.check_suffix(name)
        if not Path(name).parent.is_dir():
            raise BenchError(f"-o {name} is in a folder that does not exist", hint="create it first")


def _node_lines(comparison: NodeComparison) -> str:
    """Return the verdicts on the hosts as a table, those that failed first. Accepted ones are counted if many."""
    from meshlab.report._hosts import node_table

    table = node_table(comparison)
    is_bad = [any(cell.is_bad for cell in row) for row in table.rows]
    rows = [[cell.text for cell in row] for row, bad in zip(table.rows, is_bad, strict=True) if bad]
    others = [[cell.text for cell in row] for row, bad in zip(table.rows, is_bad, strict=True) if not bad]
    omitted = len(others) - _MOST_HOSTS + table.more
    rows = [list(table.header), *rows, *others[:_MOST_HOSTS]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header) - 1)]
    lines = [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, *[f"… and {omitted:,} more hosts that did not fail"] * (omitted > 0)])


def _print_stage(stage: StageResult) -> None:
    """Print a stage when it has ended: stages are minutes apart."""
    skipped = "skipped: " if stage.outcome == "skipped" else ""
    print_text(fitted(f"{stage.answer.sign} {stage.name:<13}  {skipped}{' '.join(stage.sentences)}"))


def _write(result: Acceptance, folder: Path | None, options: argparse.Namespace) -> bool:
    """Write the runs that are not written yet, and the reports. Return whether all of them could be written."""
    paths = [Path(name) for name in options.files]
    try:
        if folder is not None and options.redact:
            from meshlab.commissioning._folder import Scope, begin

            begin(folder, Scope.new(result.mesh, options.quick, result.thresholds))
            for name, run in result.runs.items():
                run.save(folder / name, redact=True)
        if folder is not None:
            paths += [folder / name for name in _REPORTS]
        report = result.report(redact=options.redact) if paths else None
        for path in paths:
            assert report is not None
            report.save(path)
            print_text(path)
    except MeshlabError as error:
        print_error(error_text(error))
        return False
    return True


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--mesh",
        help='for example "node=2, local=8" (default: the nodes, or the sockets of one node, and the ranks in each of '
        "them; or else all ranks on one axis)",
    )
    add_ranks(parser, "number of ranks (default: all GPUs; without GPUs one per core, 4 to 8)")
    add_gpus(parser)
    add(
        "--thresholds",
        metavar="FILE|NAME",
        help="the limits, as TOML, or the name of a preset such as dgx-h100 (default: those for this kind of machine, "
        "if any)",
    )
    add("--cluster", metavar="NAME|FILE", help="a preset, or a description of the machine (default: it is probed)")
    add_nodes(parser)
    add(
        "--per-node",
        action="store_true",
        help="check each node by itself, with ranks that start on it, in one task of srun per node, without MPI; --out "
        "gets a folder per node, and the last task prints all verdicts",
    )
    add("--quick", action="store_true", help="measure fewer sizes, and less precisely")
    add("--out", metavar="DIR", help="output folder for the runs of the stages, report.html, report.md and junit.xml")
    add("--resume", metavar="DIR", help="continue the acceptance in a folder, with its mesh, thresholds and extent")
    add(
        "-o",
        dest="files",
        action="append",
        default=[],
        metavar="FILE",
        help="write a report: .html, .md, .pdf, .xml (JUnit), or the results as .csv, .json or .parquet; repeat it for "
        "several",
    )
    add_redact(parser, "; the runs are then written only at the end")
    add_force(parser)
    add_start(parser)


ACCEPTANCE = Command(
    "acceptance",
    "check a machine unattended, from its installation to its bandwidth",
    "Suitable for a new node. Checks the installation, the health of the hardware and the groups of a mesh. Measures "
    "every pair of ranks, collectives along every axis, and contention. Compares them with the prediction and "
    "published values for this kind of machine, and with thresholds. Prints a line per stage and the verdict. A "
    "stage that cannot run is skipped with its reason, and never counted as passed. Exits with 0 if the machine "
    "passed, and with 1 if a stage failed or too little was judged for a decision. Under mpiexec or srun the "
    "processes are the ranks.",
    _run,
    _add_options,
)
