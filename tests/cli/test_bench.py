"""The command ``meshlab bench``, called in this process."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import EngineError
from meshlab.base._hints import NEW_RANKS, Hint
from meshlab.benchmark import _executor as executor
from meshlab.cli import _measuring as measuring
from meshlab.cli._main import main
from meshlab.cli._ranks import default_ranks, system_label

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("where", "library", "label"),
    [
        ("2 × H200 · NCCL 2.28.9", "NCCL 2.28.9", "2 × H200 · NCCL 2.28.9"),
        ("2 ranks · MPI on this CPU", "MPICH 5.0.2", "2 ranks · MPI on this CPU, MPICH 5.0.2"),
    ],
)
def test_the_library_is_named_once(where: str, library: str, label: str) -> None:
    ranks = (SimpleNamespace(capabilities=SimpleNamespace(library=library)),)
    assert system_label(SimpleNamespace(where=where, ranks=ranks)) == label


@pytest.mark.parametrize(("n_gpus", "n_cores", "n"), [(4, 64, 4), (0, 1, 2), (0, 6, 6), (0, 64, 8)])
def test_a_benchmark_without_a_mesh_takes_all_gpus_or_some_cores(
    monkeypatch: pytest.MonkeyPatch, n_gpus: int, n_cores: int, n: int
) -> None:
    monkeypatch.setattr("meshlab.engines._launch.count_gpus", lambda: n_gpus)  # what the machine has
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(n_cores))
    assert default_ranks("auto") == default_ranks("nccl") == n
    assert default_ranks("mpi") == default_ranks("threads") == min(max(n_cores, 2), 8)


def test_a_benchmark_needs_no_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("bench all_reduce --sizes 1K --seconds 0.02 --backend threads --ranks 3")) == 0
    assert "1 group of 3 · 3 ranks · threads in this process" in capsys.readouterr().out
    assert main(shlex.split("bench all_reduce --sizes 1K --seconds 0.02 --backend threads")) == 0
    assert re.search(r"1 group of (\d) · \1 ranks · threads in this process", capsys.readouterr().out)


FILES = {"report.html", "report.md", "results.parquet", "results.csv", "samples.parquet", "samples.csv", "run.json"}


def test_bench_prints_and_writes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = "bench all_reduce broadcast --mesh dp=2,tp=2 --axis tp --sizes 1K:4K --backend threads --seconds 0.02"
    assert main([*shlex.split(command), "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "6 groups verified" not in out
    assert "5 groups verified: each contains exactly the expected ranks" in out
    assert "tp · 2 groups of 2, the slowest shown" in out
    assert f"report: {tmp_path / 'run' / 'report.html'}" in out
    written = {file.name for file in (tmp_path / "run").iterdir()}
    assert written >= FILES
    pictures = {f"report-{name}-tp.png" for name in ("membership", "bandwidth", "latency")}
    assert pictures <= written
    markdown = (tmp_path / "run" / "report.md").read_text()
    assert set(re.findall(r"\(<(.*?)>\)", markdown)) == {name for name in written if name.endswith(".png")}
    assert len(ml.Run.load(tmp_path / "run").results) == 2 * 3 * 2

    (tmp_path / "run" / "report.html").unlink()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "short.md")]) == 0
    assert (tmp_path / "short.md").read_text().startswith("# ")
    assert not list(tmp_path.glob("*.png"))
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "long.md"), "--pictures"]) == 0
    assert len(list(tmp_path.glob("long-*.png"))) == len(pictures) + 1  # the groups of dp are shown too


@pytest.mark.full
def test_bench_replaces_a_different_run_only_with_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = f"bench --mesh dp=2,tp=2 --sizes 1K --seconds 0.02 --backend threads --out {folder}"
    assert main(shlex.split(f"{command} --axis tp --axis dp")) == 0
    first = ml.Run.load(folder).run_id
    capsys.readouterr()
    assert main(shlex.split(f"{command} --axis tp")) == 2
    out, err = capsys.readouterr()
    assert "ready in" not in out
    assert (
        f"holds a different run, {first}; choose another folder, or pass --force to replace that run and its report"
        in err
    )
    assert main(shlex.split(f"{command} --axis tp --force")) == 0
    assert ml.Run.load(folder).run_id != first
    assert not list(folder.glob("report-bandwidth-dp.png"))
    assert main(shlex.split(f"bench --resume {folder} --backend threads --out {folder}")) == 0


def test_bench_prints_an_estimate_and_resumes_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = (
        f"bench all_reduce --mesh dp=2,tp=2 --axis tp --sizes 1K,4K --seconds 0.02 --backend threads --out {folder}"
    )
    assert main(shlex.split(f"{command} --grouping together,alone --launches 2 --shuffle --redact")) == 0
    out = capsys.readouterr().out
    assert "8 steps, about" in out
    assert "tp, one group at a time · 2 groups of 2" in out
    assert len(ml.Run.load(folder).results) == 2 * 2 * 2 * 2
    import platform

    assert platform.node() not in (folder / "run.json").read_text()
    before = ml.Run.load(folder)
    assert main(shlex.split(f"bench --resume {folder} --backend threads --out {tmp_path / 'again'}")) == 0
    again = ml.Run.load(tmp_path / "again")
    assert again.run_id == before.run_id
    assert again.results["time_us"].tolist() == before.results["time_us"].tolist()  # nothing was left to measure
    assert main(shlex.split(f"report {folder} --redact --out {tmp_path / 'report.md'}")) == 0


# So that it is killed while it measures, however late that is.
STOPS_IN_ITS_FOURTH_STEP = """
import itertools, sys, time
from meshlab.benchmark._executor import Executor
from meshlab.cli._main import main

numbers, measure = itertools.count(), Executor._rounds
Executor._rounds = lambda *arguments: time.sleep(600) if next(numbers) == 3 else measure(*arguments)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
def test_bench_that_is_killed_continues_in_its_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = f"--mesh dp=2,tp=2 --sizes 1K:64K --seconds 0.05 --backend threads --out {folder}"
    command = [sys.executable, "-c", STOPS_IN_ITS_FOURTH_STEP, "bench", *shlex.split(options)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        n_done, deadline = 0, time.monotonic() + 120
        while n_done < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            if (folder / "run.json").exists():
                n_done = ml.Run.load(folder).progress.done
        process.kill()
    before = ml.Run.load(folder)
    assert (before.state, before.progress.done >= 2) == ("interrupted", True)
    assert main(shlex.split(f"report {folder}")) == 1
    assert "The run was interrupted" in (folder / "report.html").read_text()
    assert "The run was interrupted, so results are missing." in capsys.readouterr().out
    assert main(shlex.split(f"bench --resume {folder} --backend threads")) == 0
    assert f"report: {folder / 'report.html'}" in capsys.readouterr().out
    after = ml.Run.load(folder)
    assert (after.state, after.run_id) == ("done", before.run_id)
    assert after.results["time_us"].head(len(before.results)).tolist() == before.results["time_us"].tolist()
    assert "The run was interrupted" not in (folder / "report.html").read_text()


def test_bench_measures_pairs_and_concurrent_axes(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--mesh dp=2,tp=2 --sizes 1K --seconds 0.02 --backend threads"
    for option in ("--grouping", "--groups"):
        assert main(shlex.split(f"bench send send_recv --axis world {option} pairs {options}")) == 0
        assert "pairs of all ranks · 18 pairs and directions" in capsys.readouterr().out
    for option in ("--concurrent", "--beside"):
        assert main(shlex.split(f"bench all_reduce --axis tp {option} dp=reduce_scatter {options}")) == 0
        assert "tp, while dp runs reduce_scatter · 2 groups of 2" in capsys.readouterr().out


def test_a_run_that_loses_a_rank_keeps_its_rows_and_can_be_resumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ml.Run.wait

    def wait(run: ml.Run, *arguments: Any) -> Any:
        original(run, *arguments)
        raise EngineError("rank 1 was killed by signal 9", hint=Hint("{}", NEW_RANKS), log="the log")

    monkeypatch.setattr(ml.Run, "wait", wait)
    command = "bench --mesh tp=2 --sizes 1K --seconds 0.02 --backend threads"
    assert main(shlex.split(command)) == 1
    assert (
        capsys.readouterr().err
        == "meshlab: rank 1 was killed by signal 9; run the command again\nthe log\nmore: meshlab docs hangs\n"
    )
    assert main([*shlex.split(command), "--out", str(tmp_path / "run")]) == 1
    assert f"continue with meshlab bench --resume {tmp_path / 'run'}\n" in capsys.readouterr().err
    assert len(ml.Run.load(tmp_path / "run").results) == 1


@pytest.mark.parametrize("error", [AttributeError("no such method"), KeyboardInterrupt()])
def test_a_report_that_cannot_be_drawn_does_not_lose_the_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(ml.Report, "save", fail)
    folder = tmp_path / "run"
    assert main(shlex.split(f"bench --mesh tp=2 --sizes 1K --seconds 0.02 --backend threads --out {folder}")) == 1
    out, err = capsys.readouterr()
    assert f"the run is saved, but its report could not be drawn: {type(error).__name__}" in err
    assert out.endswith(f"run: {folder}\n")
    assert len(ml.Run.load(folder).results) == 1


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows_and_writes_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "meshlab", "bench", "--mesh", "tp=2", "--sizes", "1K:64M", "--seconds", "0.3"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MESHLAB_PROGRESS": "0"},
    )
    with process:
        assert process.stdout is not None
        while "steps, about" not in process.stdout.readline():  # the run has started
            assert process.poll() is None
        # Without a row, nothing is kept. A record may also contain notes only.
        while not any('"rows":[{' in path.read_text() for path in (tmp_path / "run").glob("steps-*")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 130, err
    assert err.startswith("meshlab: interrupted; stopping after this step, keeping the rows; press Ctrl-C again")
    run = ml.Run.load(tmp_path / "run")
    assert run.state == "cancelled"
    assert (run.results["status"] == "ok").all()
    assert (tmp_path / "run" / "report.html").exists()


def test_ctrl_c_before_the_first_row_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(run: ml.Run) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(executor, "measure_together", lambda *_: time.sleep(30))
    monkeypatch.setattr(ml.Run, "estimate", property(interrupted))
    monkeypatch.setattr(measuring, "_FIRST_STEP_S", 0.1)
    out = tmp_path / "run"
    began = time.monotonic()
    assert main(["bench", "--mesh", "tp=2", "--sizes", "1K:2K", "--backend", "threads", "--out", str(out)]) == 130
    assert time.monotonic() - began < 15  # not the 30 s of the step
    printed, err = capsys.readouterr()
    assert err.splitlines()[1:] == ["meshlab: nothing was measured yet, so nothing is kept"]
    assert "report" not in printed
    assert not out.exists()


def test_the_second_ctrl_c_ends_the_ranks_and_keeps_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = executor.measure_together

    is_in_second_step = threading.Event()

    def slow(comm: Any, everyone: Any, step: Any, *rest: Any) -> Any:
        if step.index:
            is_in_second_step.set()
            time.sleep(30)  # one long sleep, which cannot be interrupted
        return original(comm, everyone, step, *rest)

    def waits(frame: Any) -> bool:
        return frame is not None and (frame.f_code.co_qualname == "Run.wait" or waits(frame.f_back))

    monkeypatch.setattr(executor, "measure_together", slow)
    monkeypatch.setattr(measuring, "_PATIENCE_S", 20.0)
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    is_over = threading.Event()

    def press() -> None:
        client = threading.main_thread().ident
        while not (is_in_second_step.is_set() and waits(sys._current_frames()[client])) and not is_over.wait(0.01):
            pass
        for text in ("stopping after this step", "killing the ranks"):
            if not is_over.is_set():
                os.kill(os.getpid(), signal.SIGINT)
            while text not in err.getvalue() and not is_over.wait(0.01):
                pass

    presses = threading.Thread(target=press)
    presses.start()
    out = tmp_path / "run"
    try:
        code = main(["bench", "--mesh", "tp=2", "--sizes", "1K:2K", "--backend", "threads", "--out", str(out)])
    finally:
        is_over.set()  # if the run ends early, the signal must not hit the tests
        presses.join()
    assert code == 130
    assert err.getvalue().splitlines() == [
        "meshlab: interrupted; stopping after this step, keeping the rows; press Ctrl-C again to kill the ranks now",
        "meshlab: killing the ranks; the rows measured so far are kept",
    ]
    run = ml.Run.load(out)
    assert run.state == "cancelled"
    assert run.results["status"].tolist() == ["ok", "cancelled"]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    "after_s",
    [
        0.3,  # while the controller starts
        pytest.param(0.7, marks=pytest.mark.long),
        1.6,  # while the engines start
        pytest.param(2.5, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_while_engines_start_prints_one_line_and_cleans_up(tmp_path: Path, after_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "meshlab", "bench", "--mesh", "tp=2", "--sizes", "1K:64M", "--out", "run"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MESHLAB_PROGRESS": "0", "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    with process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("meshlab-*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 130, err
    assert err == "meshlab: interrupted\n"
    assert not list(tmp_path.glob("meshlab-*"))
