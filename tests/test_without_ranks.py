"""What needs no ranks needs neither processes nor threads nor native libraries: a browser's Python can import it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

BLOCKED = ("ipyparallel", "mpi4py", "psutil", "pynvml", "zmq", "pyarrow", "fcntl")
"""Modules that Python in a browser does not have. It also starts no threads."""


def refuse_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def block() -> None:
    """Make this process one that can run no ranks."""
    sys.modules.update(dict.fromkeys(BLOCKED))  # None: they are not installed
    threading.Thread.start = refuse_thread  # type: ignore[method-assign]


def mesh() -> None:
    import meshlab as ml

    mesh = ml.DeviceMesh("pp=2, dp=2, tp=2")
    assert len(mesh.membership()) == 8
    assert mesh.to("megatron").text.startswith("RankGenerator(")
    flags = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    assert ml.DeviceMesh.read(flags, world_size=8).diff(mesh).frame() is not None
    assert mesh._repr_html_()


def place() -> None:
    import meshlab as ml

    cluster = ml.preset("dgx-h100", nodes=4)
    placement = ml.place("dp=4, tp=8", cluster)
    assert "NVLink" in placement.explain()
    assert placement.loads("dp").algorithm_words
    assert len(cluster.with_failed("node3/NIC5").health()) >= 0
    assert cluster._repr_html_()


def predict() -> None:
    import meshlab as ml

    assert len(ml.predict("dp=4, tp=8", "dgx-h100").frame()) > 10
    measured = ml.example().query("mode == 'graph' and collective == 'all_reduce'")
    calibration = ml.calibrate(measured, "dgx-h200")
    assert "calibrated" in set(ml.predict("tp=2", "dgx-h200", calibration=calibration).frame()["basis"])


def search() -> None:
    import meshlab as ml

    layouts = ml.search(ml.preset("dgx-h100", nodes=4), ml.Job.preset("llama3-8b"))
    assert "place" in layouts.summary(2)
    assert layouts.explain()


def explain() -> None:
    import meshlab as ml

    explanation = ml.explain("host1:12:34 [0] NCCL WARN Error while creating shared memory segment: No space left")
    assert explanation.findings
    assert explanation._repr_html_()


def nccl_tests_log() -> str:
    from tests.nccl_tests.log_maker import LogMaker

    return LogMaker().text()


def read_and_judge(folder: Path) -> None:
    import meshlab as ml

    path = folder / "log.txt"
    path.write_text(nccl_tests_log())
    (section,) = ml.nccl_tests.read(path).sections
    assert len(section.results) > 5
    reading = ml.read(path)
    assert reading
    assert ml.judge(path)._repr_html_()
    assert ml.judge(ml.example()).verdict


def plots(folder: Path) -> None:
    import meshlab as ml

    results = ml.example()
    axes = [
        ml.plot.bandwidth(results),
        ml.plot.latency(results),
        ml.plot.topology("dp=4, tp=8", ml.preset("dgx-h100", nodes=4), axis="dp", group=0),
        ml.plot.prediction(ml.predict("dp=4, tp=8", "dgx-h100")),
        ml.plot.membership("dp=4, tp=8", "tp"),
        ml.example("tuning").plot(),
    ]
    for number, ax in enumerate(axes):
        ax.figure.savefig(folder / f"{number}.svg")
    assert b"<svg" in ml.plot.figure_svg(axes[0].figure).encode()


def trace() -> None:
    import meshlab as ml

    trace = ml.Trace.example()
    assert len(trace.by_axis())
    assert trace.explain()
    assert trace.plot().figure


def trace_file(folder: Path) -> None:
    import meshlab as ml
    from tests.traces.trace_maker import document, kernel_event, write

    files = write(folder, document([kernel_event(100.0, 50.0)], 0), document([kernel_event(90.0, 60.0)], 1))
    assert len(ml.Trace.read(files).frame()) == 2


def report(folder: Path) -> None:
    import meshlab as ml

    results = ml.example()
    report = ml.Report(results, cluster=ml.preset("dgx-h200"), trace=ml.Trace.example())
    for name in ("report.html", "report.md", "report.xml", "report.pdf"):
        assert report.save(folder / name).stat().st_size > 500
    assert len(ml.Report.read(folder / "report.html").results) == len(results)


def run_on_disk(folder: Path) -> None:
    """Its frames are read from CSV. To write one, pyarrow is needed, which the error names."""
    import meshlab as ml

    saved = ROOT / "tests" / "runs" / "data" / "schema_2"
    run = ml.runs.RunData.load(saved)
    assert len(run.results)
    assert ml.Report(run).save(folder / "report.html").stat().st_size > 1000
    with pytest.raises(ml.MeshlabError, match="pyarrow, which is not installed; run pip install pyarrow"):
        run.save(folder / "copy")


def workbench(folder: Path) -> None:
    import meshlab as ml

    wb = ml.Workbench("dgx-h100", "dp=1, tp=8", job="llama3-8b")
    wb.show("dp=2, tp=8", ml.preset("dgx-h100", nodes=2))
    wb.pin()
    wb.mesh = "dp=4, tp=4"
    wb.failed = ["node1/NIC5"]
    assert wb.decision
    assert wb.step_time is not None
    wb.undo()
    assert wb.code
    assert wb.search() is not None
    wb.trace = ml.Trace.example()
    wb._receive(None, {"type": "trace", "path": str(folder / "missing")}, None)
    assert "No such file" in wb._trace["note"]  # immediately, because there is no thread that could read it later
    wb.axis = "dp"
    assert wb.pictures()
    wb.save(folder / "page.html")
    assert (folder / "page.html").stat().st_size > 100_000


def widgets() -> None:
    import meshlab as ml

    shown = [
        ml.widgets.Designer(mesh="dp=2, tp=4"),
        ml.widgets.Picture("dp=2, tp=4", "dgx-h100"),
        ml.widgets.Curve(title="a curve"),
        ml.widgets.PasteBox(),
    ]
    for widget in shown:
        data = widget._repr_mimebundle_()
        assert "text/html" in data[0]


def command_line(folder: Path) -> None:
    from meshlab.cli._main import main

    log = folder / "log.txt"
    log.write_text(nccl_tests_log())
    for line in (["show", "dp=2, tp=4"], ["predict", "tp=8", "--cluster", "dgx-h100"], ["judge", str(log)]):
        assert main(line) in (0, 1), line  # 1: a verdict


def nothing_is_loaded() -> None:
    assert [name for name, module in sys.modules.items() if module and name.split(".")[0] in BLOCKED] == []


def engines_are_refused() -> None:
    """What does need them names the missing part, and what to do."""
    import meshlab as ml

    with pytest.raises(ml.MeshlabError, match=r"need psutil and ipyparallel, .* run pip install psutil ipyparallel"):
        ml.launch(2, backend="mpi")
    names = ("psutil", "ipyparallel")
    for name in names:
        sys.modules.pop(name)
    try:
        with pytest.raises(ml.MeshlabError, match=r"locks of files, .*fcntl.* use Python on Linux"):
            ml.launch(2, backend="mpi")
        with pytest.raises(ml.MeshlabError, match=r"cannot start a thread per rank"):
            ml.launch(2, backend="threads")
    finally:
        sys.modules.update(dict.fromkeys(BLOCKED))


PARTS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(mesh, place, predict, search, explain, read_and_judge, plots, trace, trace_file, report, run_on_disk),
        *(workbench, widgets, command_line, nothing_is_loaded, engines_are_refused),
    )
}


def execute(folder: Path) -> dict[str, str]:
    """Run all parts in a process in which they are blocked; return the traceback of each, empty if it works."""
    block()
    outcomes = {}
    for name, part in PARTS.items():
        inner = folder / name
        inner.mkdir()
        outcomes[name] = ""
        try:
            part(*[inner][: part.__code__.co_argcount])
        except (Exception, SystemExit):
            outcomes[name] = traceback.format_exc()
    return outcomes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("without-ranks")
    command = [sys.executable, "-m", "tests.test_without_ranks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


@pytest.mark.parametrize("part", PARTS)
def test_a_part_works_without_processes_and_threads(outcomes: dict[str, str], part: str) -> None:
    assert not outcomes[part], outcomes[part]


if __name__ == "__main__":
    print(json.dumps(execute(Path(sys.argv[1]))))
