"""The command that writes the report of saved runs."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import BenchError
from meshlab.cli._arguments import Command, add_nodes, add_out, add_redact, cluster_of, read_thresholds
from meshlab.cli._fitting import fitted
from meshlab.cli._output import FAILED, OK, plain_warnings, print_text

if TYPE_CHECKING:
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.runs._rundata import RunData
    from meshlab.topology.model._cluster import Cluster


def _run(options: argparse.Namespace) -> int:
    """Write the report of saved runs. Return 1 if a result is wrong, slow or below a threshold, or was not checked."""
    from meshlab.base._files import is_file
    from meshlab.mesh._describe import wrapped
    from meshlab.report._report import Report
    from meshlab.runs._rundata import RunData
    from meshlab.traces._trace import Trace

    first = options.runs[0]
    if not options.out and not (len(options.runs) == 1 and not is_file(first)):
        raise BenchError("report needs a file to write", hint="pass --out report.html")
    files = [Path(name) for name in options.out or [Path(first) / "report.html"]]
    for file in files:
        Report.check_suffix(file)
    with plain_warnings():
        runs = [_source(name) for name in options.runs]
        baseline = [_source(name) for name in options.baseline or []]
        loaded = [run for run in runs if isinstance(run, RunData)]
        report = Report(
            runs[0] if len(runs) == 1 else runs,
            mesh=options.mesh or _common_mesh(loaded),
            cluster=cluster_of(options.cluster) if options.cluster else this_host(loaded if loaded == runs else []),
            nodes=options.nodes,
            baseline=baseline[0] if len(baseline) == 1 else baseline or None,
            thresholds=read_thresholds(options.thresholds),
            trace=Trace.read([Path(name) for name in options.trace]) if options.trace else None,
            title=options.title,
            redact=options.redact,
        )
    for file in files:
        report.save(file, pictures=options.pictures and file.suffix == ".md")
    print_text(wrapped(str(report), shutil.get_terminal_size().columns))
    print_text("\n" + "\n".join(map(str, files)))
    if report.outcome == "not decided":
        print_text(fitted(f"not decided: {report.verdict}"))
    return OK if report.is_passed else FAILED


def _source(name: str) -> Any:
    """Return the run in a folder. Other files are read by the report."""
    from meshlab.base._files import is_file
    from meshlab.benchmark._run import Run

    return Path(name) if is_file(name) else Run.load(name)


def _common_mesh(runs: Sequence[RunData]) -> DeviceMesh | None:
    """Return the mesh of all runs, or None if they have different ones."""
    meshes = {run.mesh.fingerprint: run.mesh for run in runs}
    return next(iter(meshes.values())) if len(meshes) == 1 else None


def this_host(runs: Sequence[RunData]) -> Cluster | None:
    """Return the hardware of this host if all runs were measured on its GPUs alone."""
    import platform

    from meshlab.frames._labels import CPU_SOURCES
    from meshlab.topology.readers._hosts import probe

    if not runs or any(set(run.hosts) != {platform.node()} or run.source in CPU_SOURCES for run in runs):
        return None
    host = probe()
    # Virtual machines often have the same name as others.
    machines = {run.environment.get("Host", {}).get("machine", host.summary) for run in runs}
    return host if host.n_devices and machines == {host.summary} else None


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="folder of a run, results (Parquet, CSV, JSON), or a log of nccl-tests; several are launches",
    )
    add_out(
        parser,
        "FILE",
        "the report: .html, .md, .pdf (needs Chromium, Chrome or Edge), .xml (JUnit), or the results as .csv, "
        ".parquet or .json; may be repeated (default: report.html in the folder of the run)",
        action="append",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        metavar="RUN",
        help="an earlier run, which is compared row by row; may be repeated for several launches",
    )
    parser.add_argument(
        "--thresholds",
        metavar="FILE|NAME",
        help="a TOML file with limits that the results must meet, or dgx-a100, dgx-h100 or dgx-h200",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME|FILE",
        help="the measured machine: a preset, or a file that describes hardware (default: this host, if the run was "
        "measured on it)",
    )
    add_nodes(parser)
    parser.add_argument("--mesh", help="the measured mesh, if the runs do not contain it")
    parser.add_argument(
        "--trace",
        nargs="+",
        metavar="FILE",
        help="traces of a job on the same machine, or a folder with them: its time by axis, and its calls on curves",
    )
    parser.add_argument("--title", help="the headline")
    parser.add_argument("--pictures", action="store_true", help="write the figures of a .md report as PNG files")
    add_redact(parser)


REPORT = Command(
    "report",
    "write the report of saved runs, and check them",
    "Shows whether the results are correct, as fast as expected, above the limits of --thresholds, and not "
    "slower than those of --baseline. Exits with 1 if not, if the run did not finish, or if a result or a threshold "
    "was not checked.",
    _run,
    _add_options,
)
