"""The commands of the command line. Each of them takes the parsed options and returns an exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._errors import BenchError, EngineError, MeshError, MeshlabError, explained_text, printable
from meshlab.diagnosis._quoting import visible
from meshlab.engines._launchers import launched_as

if TYPE_CHECKING:
    from meshlab.benchmark._run import Run
    from meshlab.engines._engines import Engines
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._plan import Plan
    from meshlab.prediction._predictions import Prediction
    from meshlab.runs._rundata import RunData
    from meshlab.topology.model._cluster import Cluster


OK, FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_FEWEST_RANKS, _MOST_RANKS = 2, 8  # without a mesh and without GPUs
_PATIENCE_S = 10.0  # maximum time for an interrupted run to stop
REDACT_HELP = "write hashes instead of the names of hosts and users, addresses, serial numbers and secrets"

_FIRST_NOTEBOOK = "01_first_mesh.ipynb"

# Hints of errors name arguments of Python functions, which a shell does not have. An argument within a call, as in
# DeviceMesh("tp=-1", world_size=8), stays Python.
_OPTIONS = {
    "anyway": "--anyway",
    "backend": "--backend",
    "concurrent": "--concurrent",
    "grouping": "--grouping",
    "in_place": "--in-place",
    "memory_gib": "--memory",
    "mesh": "--mesh",
    "mode": "--mode",
    "overwrite": "--force",
    "redact": "--redact",
    "resume": "--resume",
    "world_size": "--ranks",
}
_RESTART = re.compile(r"call engines\.restart\(\)(?: to start new ranks)?")
_ARGUMENT = re.compile(rf"(?<!\()(?<!, )\b({'|'.join(_OPTIONS)})=('?)(\w*)\2")


# -- output ------------------------------------------------------------------------------------------------------------


def print_text(text: object) -> None:
    """Print immediately, because some lines are minutes apart. Text that was read cannot control the terminal."""
    print(visible(printable(str(text))), flush=True)


def print_error(text: object, file: TextIO | None = None) -> None:
    """Print a message, by default to standard error."""
    print(visible(printable(f"meshlab: {text}")), file=file or sys.stderr)


def error_text(error: MeshlabError, again: str = "run the command again") -> str:
    """Return the text of an error, with options instead of Python's arguments in its hint.

    Parameters
    ----------
    error : MeshlabError
        The error.
    again : str, optional
        The advice that replaces the one to restart the engines, which end with the command.

    Examples
    --------
    >>> error_text(BenchError("the folder 'out' holds a different run", hint="pass overwrite=True to replace it"))
    "the folder 'out' holds a different run; pass --force to replace it"
    >>> error_text(BenchError("dp=-1 needs the number of ranks", hint="pass world_size="))
    'dp=-1 needs the number of ranks; pass --ranks N'
    >>> error_text(BenchError("send is one side of a message", hint="measure it with grouping='pairs'"))
    'send is one side of a message; measure it with --grouping pairs'
    >>> error_text(EngineError("rank 1 was killed by signal 9", hint="call engines.restart() to start new ranks"))
    'rank 1 was killed by signal 9; run the command again'
    """

    def option(found: re.Match[str]) -> str:
        name, _, value = found.groups()
        if value == "True":
            return _OPTIONS[name]
        return (
            f"{_OPTIONS[name]} {value}" if value else f"{_OPTIONS[name]} N" if name == "world_size" else _OPTIONS[name]
        )

    text = explained_text(error.with_hint(_ARGUMENT.sub(option, error.hint)) if error.hint else error)
    return _RESTART.sub(again, text)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings as single lines, without the position in the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print_error(message)
        yield


# -- commands that start nothing ---------------------------------------------------------------------------------------


def doctor(options: argparse.Namespace) -> int:
    """Print the state of the installation. Return 1 if a required part is broken."""
    from meshlab.commissioning._doctor import checks_text, run_checks

    checks = run_checks()
    print_text(checks_text(checks))
    return FAILED if any(check.verdict == "broken" for check in checks) else OK


def show(options: argparse.Namespace) -> int:
    """Print the groups of a mesh."""
    from meshlab.mesh._describe import mesh_text, wrapped
    from meshlab.mesh._mesh import DeviceMesh

    if options.axis and "," in options.axis:
        names = [name.strip() for name in options.axis.split(",")]
        raise BenchError(
            f"--axis {options.axis} names {len(names)} axes, but the grid shows one set of groups",
            hint=f"for the groups that span these axes, pass --axis {'-'.join(names)}",
        )
    mesh = DeviceMesh(options.mesh, world_size=options.ranks)
    width = shutil.get_terminal_size().columns
    print_text(f"{mesh_text(mesh, options.axis, width)}\n\n{wrapped(mesh.explain(), width)}")
    return OK


def predict(options: argparse.Namespace) -> int:
    """Predict the time of collectives along the axes of a mesh."""
    from meshlab.mesh._describe import wrapped
    from meshlab.prediction._calibration import as_calibration
    from meshlab.prediction._predictions import predict

    if options.out and Path(options.out).suffix not in _PREDICTION_FILES:
        raise BenchError(f"--out {options.out} must end in one of {', '.join(_PREDICTION_FILES)}")
    cluster = cluster_of(options.cluster)
    measured = Path(options.calibration) if options.calibration else None
    prediction = predict(
        options.mesh,
        cluster,
        _split_commas(options.collectives) or None,
        options.sizes,
        axis=_split_commas(options.axis) if options.axis else None,
        dtype=options.dtype,
        calibration=None if measured is None else as_calibration(measured, cluster, options.mode),
    )
    width = shutil.get_terminal_size().columns
    print_text(f"{prediction.summary()}\n\n{wrapped(prediction.explain(), width)}")
    if options.out:
        _write_prediction(prediction, Path(options.out))
    return OK


_PREDICTION_FILES = (".csv", ".png", ".svg")


def explain(options: argparse.Namespace) -> int:
    """Explain a pasted text. Return 1 if it shows an error."""
    from meshlab.base._files import write_file
    from meshlab.diagnosis._explain import explain
    from meshlab.diagnosis._html import as_page
    from meshlab.diagnosis._text import as_text

    form = options.format or _EXPLANATION_FORMATS.get(Path(options.out or "").suffix, "text")
    if "-" in options.files and sys.stdin.isatty():
        print_error("paste the text, and end it with Ctrl-D on a line of its own")
    sources = [sys.stdin.buffer.read() if name == "-" else Path(name) for name in options.files]
    explanation = explain(sources[0] if len(sources) == 1 else sources)
    explanation = explanation.redacted() if options.redact else explanation
    if form == "html":
        text = as_page(explanation)
    elif form == "markdown":
        text = explanation.to_markdown()
    elif form == "json":
        text = f"{explanation.to_json()}\n"
    else:
        text = f"{as_text(explanation, shutil.get_terminal_size((100, 24)).columns)}\n"
    if options.out:
        print_text(explanation.verdict)
        print_text(write_file(options.out, text))
    else:
        print_text(text.removesuffix("\n"))
    return FAILED if any(item.severity == "error" for item in explanation.findings) else OK


_EXPLANATION_FORMATS = {".md": "markdown", ".html": "html", ".json": "json"}


def cluster_of(name: str | None) -> Cluster | str | None:
    """Return a cluster from the path of a file. The name of a preset is returned unchanged."""
    from meshlab.base._files import is_file
    from meshlab.topology.model._presets import as_cluster
    from meshlab.topology.readers._detect import read

    return as_cluster(read(Path(name))) if name is not None and is_file(name) else name


def _write_prediction(prediction: Prediction, path: Path) -> None:
    from meshlab.base._files import write_file
    from meshlab.frames._files import without_formulas
    from meshlab.plots._prediction import figure_of
    from meshlab.plots._style import figure_png, figure_svg

    if path.suffix == ".csv":
        data = without_formulas(prediction.frame()).to_csv(index=False).encode()
    elif path.suffix == ".png":
        data = figure_png(figure_of(prediction))
    else:
        data = figure_svg(figure_of(prediction)).encode()
    write_file(path, data)
    print_text(f"\n{path}")


def app(options: argparse.Namespace) -> int:
    """Serve the workbench as a page of its own."""
    from importlib.util import find_spec

    if find_spec("voila") is None:
        print_error("Voilà is not installed; run pip install '.[app]' in the folder of meshlab")
        return BAD_INPUT
    code = _app_code(options.cluster, options.mesh)
    with tempfile.TemporaryDirectory(prefix="meshlab-app-") as folder:
        notebook = Path(folder) / "workbench.ipynb"
        notebook.write_text(json.dumps(_notebook_of(code)), encoding="utf-8")
        command = [
            *(sys.executable, "-m", "voila", str(notebook), f"--Voila.port={options.port}"),
            # Everybody on this host can reach the port, and a workbench starts processes.
            "--Voila.auto_token=True",
            f"--Voila.open_browser={not options.no_browser}",
            # Without a visitor, the ranks that a workbench started would run until the server stops.
            *("--MappingKernelManager.cull_idle_timeout=120", "--MappingKernelManager.cull_interval=30"),
            *options.arguments,
        ]
        with subprocess.Popen(command) as server, _interrupted_by(signal.SIGTERM):
            while True:
                try:
                    return server.wait()
                except KeyboardInterrupt:
                    # Ctrl-C also reaches Voilà, which ends its kernels. A signal to this process alone does not.
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return server.wait(2.0)
                    server.send_signal(signal.SIGINT)


@contextmanager
def _interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt at a signal within a ``with`` block."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _app_code(cluster: str | None, mesh: str | None) -> str:
    """Return the program of the page.

    Raises
    ------
    MeshlabError
        If the machine or the mesh is invalid, which is better reported here than in the browser.
    """
    from meshlab.base._files import is_file
    from meshlab.topology.readers._detect import read
    from meshlab.widgets._workbench import Workbench

    lines, arguments = ["import os", "from pathlib import Path", "", "import meshlab as ml", ""], []
    lines.append(f"os.chdir({str(Path.cwd())!r})")  # the kernel starts in the folder of the notebook
    machine: Any = cluster
    if cluster is not None:
        if is_file(cluster):
            machine = read(Path(cluster))
            arguments.append(f"ml.topology.read(Path({str(Path(cluster).resolve())!r}))")
        else:
            arguments.append(repr(cluster))
    if mesh is not None:
        arguments.append(f"mesh={mesh!r}")
    Workbench(machine, mesh)
    return "\n".join([*lines, f"ml.Workbench({', '.join(arguments)})"])


def _notebook_of(code: str) -> dict[str, Any]:
    """Return a notebook with one cell, in the format of its file."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "app",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": code,
    }
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": kernel, "cells": [cell]}


def lab(options: argparse.Namespace) -> int:
    """Copy the notebooks into a folder, and open the first one in JupyterLab."""
    from importlib.util import find_spec

    from meshlab.base._files import write_file

    if find_spec("jupyterlab") is None:
        print_error("JupyterLab is not installed; run pip install '.[lab]' in the folder of meshlab")
        return BAD_INPUT
    package = Path(__file__).parents[1]
    # A wheel contains the notebooks. In a checkout they are next to the package.
    source = next(folder for folder in (package / "notebooks", package.parent / "notebooks") if folder.is_dir())
    for notebook in sorted(source.glob("*.ipynb")):
        copy = Path(options.folder) / notebook.name
        if not copy.exists():
            write_file(copy, notebook.read_bytes())
    first = Path(options.folder) / _FIRST_NOTEBOOK
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(first), *options.arguments])


# -- commands that measure ---------------------------------------------------------------------------------------------


def demo(options: argparse.Namespace) -> int:
    """Run all steps once, from a mesh to a report."""
    from meshlab.mesh._describe import mesh_text
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._plan import Plan
    from meshlab.plans._sampling import Sampling

    process = launched_as()
    if process is not None:
        n = process[1]
        raise BenchError(
            f"demo starts its own ranks, but a launcher started {n} processes",
            hint=f"run it without the launcher, or measure on these ranks: mpiexec -n {n} meshlab bench --mesh dp={n}",
        )
    mesh = DeviceMesh(options.mesh, world_size=options.ranks)
    plan = Plan(
        ["all_reduce", "all_gather", "reduce_scatter", "broadcast"],
        mesh.axis_names,
        sizes=options.sizes,
        sampling=Sampling(max_s=0.05),
    )
    print_text(f"{mesh_text(mesh)}\n")
    out, redact = Path(options.out), options.redact
    return _measure(mesh, mesh.world_size, plan, options.backend, out, redact=redact, force=options.force)


def bench(options: argparse.Namespace) -> int:
    """Measure collectives along the axes of a mesh."""
    from meshlab.benchmark._run import Run
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.runs._store import check_ended

    process = launched_as()
    if options.resume:
        check_ended(options.resume)
    earlier = Run.load(options.resume) if options.resume else None
    if earlier is not None:
        mesh, plan = earlier.mesh, earlier.plan
    elif options.mesh is not None:
        n_known = options.ranks if process is None else process[1]
        mesh = DeviceMesh(options.mesh, world_size=n_known if "-1" in options.mesh else None)
        plan = _plan(options, mesh)
    elif options.here and process is None:
        raise BenchError(
            "--here needs a mesh, because the launcher is unknown and with it the number of ranks",
            hint="pass --mesh 'dp=2, tp=2'",
        )
    else:
        n_known = options.ranks if process is None else process[1]
        mesh = DeviceMesh(all_ranks=default_ranks(options.backend) if n_known is None else n_known)
        plan = _plan(options, mesh)
    n = process[1] if process is not None else options.ranks
    return _measure(
        mesh,
        mesh.world_size if n is None else n,
        plan,
        options.backend,
        Path(options.out or options.resume) if options.out or options.resume else None,
        joins=options.here or process is not None,
        resume=earlier,
        redact=options.redact,
        force=options.force,
    )


def rehearse(options: argparse.Namespace) -> int:
    """Rehearse the communication of a training step on one or several layouts."""
    from meshlab.benchmark.rehearsal._rehearse import rehearse
    from meshlab.cli._search import job_fields, job_hints
    from meshlab.engines._engines import check_mesh_size
    from meshlab.engines._launch import launch
    from meshlab.engines._mpi_world import join
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.prediction._job import Job

    if options.out and Path(options.out).suffix != ".csv":
        raise BenchError(f"--out {options.out} must end in .csv")
    if options.out and not Path(options.out).parent.is_dir():
        raise BenchError(f"--out {options.out} is in a folder that does not exist", hint="create it first")
    process = launched_as()
    n = options.ranks if process is None else process[1]
    meshes = [DeviceMesh(text, world_size=n if "-1" in text else None) for text in options.mesh]
    if n is None:
        n = meshes[0].world_size
        if any(mesh.world_size != n for mesh in meshes):
            texts = [f"{mesh} has {mesh.world_size}" for mesh in meshes]
            raise MeshError(f"the layouts need the same number of ranks: {', '.join(texts)}", hint="change a mesh")
    for mesh in meshes:
        check_mesh_size(mesh, n)
    changes = job_fields(options.set)
    with job_hints():
        job = Job.preset(options.job, **changes)
        for mesh in meshes:  # before any process starts
            job.step(mesh, options.experts)
    joined = None if process is None else join(backend=options.backend)
    if process is not None and joined is None:
        return OK  # this process was a rank
    with joined or launch(n, backend=options.backend) as engines:
        print_text(f"{system_label(engines)}: {job.title}")
        try:
            found = rehearse(
                engines,
                meshes,
                job,
                experts=options.experts,
                scale=options.scale,
                size_scale=options.size_scale,
                compute=options.compute,
                tflops=options.tflops,
                rounds=options.rounds,
                steps=options.steps,
            )
        except EngineError as error:
            print_error(explained_text(error))
            if error.measured is not None:
                print_text(error.measured)
            return FAILED
    print_text(found)
    if options.out:
        from meshlab.base._files import write_file
        from meshlab.frames._files import without_formulas

        write_file(Path(options.out), without_formulas(found.frame()).to_csv(index=False).encode())
        print_text(f"frame: {options.out}")
    return FAILED if (found.frame()["n_wrong"].fillna(0) > 0).any() else OK


def default_ranks(backend: str, fewest: int = _FEWEST_RANKS) -> int:
    """Return the number of ranks of a benchmark without a mesh: all GPUs, or else one per core within limits."""
    from meshlab.benchmark.on_ranks._environment import usable_cores
    from meshlab.engines._launch import count_gpus

    n_gpus = count_gpus() if backend in ("auto", *GPU_BACKENDS) else 0
    return n_gpus or min(max(usable_cores(), fewest), _MOST_RANKS)


def _plan(options: argparse.Namespace, mesh: DeviceMesh) -> Plan:
    from meshlab.plans._plan import Plan
    from meshlab.plans._sampling import Sampling

    if options.seconds is not None and options.seconds <= 0:
        raise BenchError(
            f"--seconds {options.seconds:g} must be positive", hint="pass the maximum time of a step in seconds"
        )
    sampling = Sampling.named(options.sampling)
    if options.seconds is not None:
        sampling = replace(sampling, max_s=options.seconds)
    concurrent = {}
    for text in options.concurrent:
        axis, equals, collective = (part.strip() for part in text.partition("="))
        if not equals:
            raise BenchError(f"--concurrent {text} has no collective", hint=f"write --concurrent {text}=reduce_scatter")
        concurrent[axis] = collective
    return Plan(
        _split_commas(options.collectives),
        _split_commas(options.axis or mesh.axis_names),
        sizes=options.sizes,
        dtype=options.dtype,
        op=options.op,
        mode=options.mode,
        in_place=options.in_place,
        grouping=options.grouping,
        concurrent=concurrent,
        launches=options.launches,
        shuffle=options.shuffle,
        seed=options.seed,
        sampling=sampling,
    )


def _split_commas(words: Sequence[str]) -> list[str]:
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _measure(
    mesh: DeviceMesh,
    n: int,
    plan: Plan,
    backend: str,
    out: Path | None,
    *,
    joins: bool = False,
    resume: RunData | None = None,
    redact: bool = False,
    force: bool = False,
) -> int:
    """Start ranks or become one, verify the mesh, measure, print the results, and write them to a folder."""
    from meshlab.base._folders import check_writable
    from meshlab.base._units import format_seconds
    from meshlab.benchmark._bench import bench
    from meshlab.engines._engines import check_mesh_size
    from meshlab.engines._launch import launch
    from meshlab.engines._mpi_world import join
    from meshlab.runs._store import check_free

    # Check all input before any process starts.
    try:
        check_mesh_size(mesh, n)
    except MeshError as error:
        size = mesh.world_size
        raise error.with_hint(f"start {size} processes" if joins else f"pass --ranks {size}, or omit --ranks") from None
    plan.steps(mesh)
    if out is not None:
        check_free(out, None if resume is None else resume.run_id, overwrite=force)
        check_writable(out)
    began = time.monotonic()
    joined = join(backend=backend) if joins else None
    if joins and joined is None:
        return OK  # this process was a rank, and rank 0 has closed the engines
    with ExitStack() as stack:
        if joined is not None:  # entered first, because the other processes wait until it is closed
            stack.enter_context(joined)
        is_written = True
        engines = joined or stack.enter_context(launch(n, backend=backend))
        print_text(f"{system_label(engines)}: ready in {format_seconds(time.monotonic() - began)}")
        groups = engines.verify(mesh)
        print_text(f"{len(groups)} group{'s' * (len(groups) != 1)} verified: each contains exactly the expected ranks")
        machine = _machine_of(engines) if out is not None else None
        # The rows of a redacted run are written at the end, because the names in them are known only then.
        run = bench(engines, mesh, plan, resume=resume, out=None if redact else out, overwrite=force)
        code = _wait(run, out)
        written = run.redacted() if redact else run
        if out is not None:
            if redact:
                written.save(out, overwrite=force)
            elif run.out_problem:
                print_error(run.out_problem)
            is_written = _write_report(written, out, machine, redact=redact) and not run.out_problem
    # After the files are in place: a reader such as `head` may close the pipe, which ends the command here.
    print_text(f"\n{written.table()}\n")
    if written.alert:
        print_error(written.alert)
    if out is not None:
        print_text(f"report: {out / 'report.html'}" if is_written else f"run: {out}")
    return code if is_written else code or FAILED


def system_label(engines: Engines) -> str:
    """Return the label of the measured system, with the library unless the label already has it."""
    library = engines.ranks[0].capabilities.library
    return engines.where if library in engines.where else f"{engines.where}, {library}"


def _wait(run: Run, out: Path | None) -> int:
    """Print the estimate of a run, wait for it, and return the exit code.

    The rows of a run that was interrupted or failed are kept.
    """
    try:
        print_text(run.estimate)
        results = run.wait()
    except KeyboardInterrupt:
        _stop(run)
        return INTERRUPTED
    except EngineError as error:
        again = "run the command again" if out is None else f"continue with meshlab bench --resume {out}"
        print_error(error_text(error if _RESTART.search(error.hint) else error.with_hint(again), again))
        return FAILED
    except MeshlabError as error:
        print_error(error_text(error))
        return FAILED
    return OK if results["status"].isin(["ok", "skipped"]).all() else FAILED


def _stop(run: Run) -> None:
    """Stop a run after its step, or at the next interrupt immediately. The rows measured so far are kept.

    A third interrupt is ignored, because the rows still have to be written.
    """
    try:
        print_error(
            "interrupted; stopping after this step, and keeping the rows; press Ctrl-C again to end the ranks now"
        )
        run.cancel()
        with contextlib.suppress(MeshlabError):
            run.wait()
    except KeyboardInterrupt:
        print_error("ending the ranks; the rows measured so far are kept")
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


def export(options: argparse.Namespace) -> int:
    """Write a notebook as HTML in which widgets are figures."""
    from importlib.util import find_spec

    from meshlab.base._files import write_file

    if find_spec("nbconvert") is None:
        print_error("nbconvert is not installed; run pip install nbconvert")
        return BAD_INPUT
    import nbconvert
    import nbformat

    html: Any = nbconvert.HTMLExporter
    executor: Any = nbconvert.preprocessors.ExecutePreprocessor
    reads: Any = nbformat.reads
    path = Path(options.notebook)
    try:
        notebook = reads(path.read_text(encoding="utf-8"), as_version=4)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise BenchError(f"{path} is not a notebook: {error}") from error
    resources = {"metadata": {"path": str(path.parent)}}
    if options.execute:
        executor(timeout=None, store_widget_state=False).preprocess(notebook, resources)
    # nbconvert prefers a widget to the HTML next to it, and the state of a widget to both.
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data.pop(_WIDGET_VIEW, None)
    page, _ = html(embed_images=True).from_notebook_node(notebook, resources)
    print_text(write_file(options.out or path.with_suffix(".html"), page))
    return OK


_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


# -- commands that read runs -------------------------------------------------------------------------------------------


def compare(options: argparse.Namespace) -> int:
    """Compare two runs or logs. Return 1 if a row clearly became slower, or if its results are wrong."""
    several = [options.before, options.after]
    sides = several if all(several) and not options.sides else options.sides
    if len(sides) != 2 or (options.sides and any(several)):
        print_error("compare needs two sides: meshlab compare BEFORE AFTER, or --before FILE… --after FILE…")
        return BAD_INPUT
    with plain_warnings():
        return print_comparison(*sides, threshold=options.threshold, anyway=options.anyway, redact=options.redact)


def print_comparison(
    before: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    after: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    threshold: float = 0.05,
    anyway: bool = False,
    redact: bool = False,
    file: TextIO | None = None,
) -> int:
    """Compare two files or two lists of files, and print the comparison.

    Parameters
    ----------
    before, after : path or list of paths
        Folders of runs, frames that meshlab wrote (Parquet, CSV, JSON), or logs of nccl-tests (text or JSON).
    threshold : float, default 0.05
        Smallest relative slowdown that counts as a regression.
    anyway : bool, default False
        If True, compare across different GPUs, numbers of ranks, dtypes, modes and other differences.
    redact : bool, default False
        If True, print hashes instead of names, addresses and secrets.
    file : text file, optional
        The file for the output. By default the comparison goes to standard output, and errors to standard error.

    Returns
    -------
    int
        An exit code: 0 without regressions, 1 with rows that are slower or wrong, 2 if nothing can be compared. Slower
        rows do not count if ranks shared cores.
    """
    from meshlab.analysis._comparison import compare

    try:
        if not threshold > 0:
            raise BenchError(
                f"threshold must be positive, not {threshold:g}", hint="0.05, or 5%, reports rows that are 5 % slower"
            )
        sides = [paths if isinstance(paths, (str, os.PathLike)) else list(paths) for paths in (before, after)]
        comparison = compare(*sides, effect=min(threshold, 0.05), anyway=anyway, redact=redact)
    except MeshlabError as error:
        print_error(error_text(error), file)
        return BAD_INPUT
    except OSError as error:
        print_error(error, file)
        return BAD_INPUT
    print(visible(str(comparison)), file=file)
    regressions = comparison.regressions(threshold)
    n_wrong = int((regressions["verdict"] == "WRONG").sum())
    n_slower = len(regressions) - n_wrong
    if n_wrong:
        print(f"{n_wrong} {'row is' if n_wrong == 1 else 'rows are'} wrong after", file=file)
    if n_slower:
        but = f", not counted because {comparison.oversubscribed}" if comparison.oversubscribed else ""
        word = "regression" if n_slower == 1 else "regressions"
        print(f"{n_slower} {word} beyond {100 * threshold:g}%{but}", file=file)
    return FAILED if n_wrong or (n_slower and not comparison.oversubscribed) else OK
