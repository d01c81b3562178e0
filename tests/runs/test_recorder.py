"""Runs that are written to a folder while they are measured: nothing is lost, and nothing else is replaced."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, ParseError
from meshlab.runs._store import is_being_measured

ROOT = Path(__file__).parents[2]
QUICK = ml.Sampling(max_s=0.02, min_batches=6)
FILES = {"run.json", "results.parquet", "results.csv", "samples.parquet", "samples.csv"}


class Gate:
    """A function to measure that waits until it is opened, so that a run stays at its step."""

    def __init__(self) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()

    def __call__(self, comm: Any) -> Any:
        self.is_reached.set()
        self.is_open.wait(60)
        return comm.barrier


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.is_open.set()


def start(engines: ml.Engines, gate: Gate, folder: Path, **options: Any) -> ml.Run:
    """Start a run in a folder, which waits in its third step."""
    plan = ml.Plan(["all_reduce", gate, "broadcast"], "tp", sizes="1K, 4K", sampling=QUICK)
    run = ml.bench(engines, "dp=2, tp=2", plan, out=folder, **options)
    assert gate.is_reached.wait(120)
    return run


def test_the_folder_of_a_running_run_has_all_rows_and_at_the_end_it_is_that_of_a_saved_run(
    thread_engines: ml.Engines, gate: Gate, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "run"
    run = start(thread_engines, gate, folder)
    middle = ml.Run.load(folder)
    assert (middle.state, middle.run_id, middle.progress.done) == ("running", run.run_id, 2)
    assert middle.running_note == "running: 2 of 5 steps"
    pd.testing.assert_frame_equal(middle.results, run.results, check_exact=True)
    pd.testing.assert_frame_equal(middle.samples, run.samples, check_exact=True)
    assert (middle.environment, middle.hosts, middle.started_at) == (run.environment, run.hosts, run.started_at)
    assert middle.log == run.log
    assert ml.frames.list_runs(tmp_path / "deep")[["state", "n_done"]].values.tolist() == [["running", 2]]
    gate.is_open.set()
    results = run.wait(60)
    end = ml.Run.load(folder)
    pd.testing.assert_frame_equal(end.results, results, check_exact=True)
    pd.testing.assert_frame_equal(end.samples, run.samples, check_exact=True)
    assert (end.state, end.progress, end.log) == ("done", run.progress, run.log)
    assert {path.name for path in folder.iterdir()} == FILES
    assert (run.out, run.out_problem) == (folder, "")
    assert run.save(folder) == folder


def test_a_folder_that_is_being_measured_is_neither_resumed_nor_replaced(
    thread_engines: ml.Engines, gate: Gate, tmp_path: Path
) -> None:
    run = start(thread_engines, gate, tmp_path / "run")
    with ml.launch(4, backend="threads") as others:
        for options in ({"resume": tmp_path / "run"}, {"out": tmp_path / "run", "overwrite": True}):
            with pytest.raises(BenchError, match=r"the run in the folder .* is still being measured; "):
                ml.bench(others, "dp=2, tp=2", **options)
        other = ml.bench(others, sizes="1K", sampling=QUICK)
        other.wait(120)
        with pytest.raises(BenchError, match="is still being measured; wait until it ends, or choose"):
            other.save(tmp_path / "run", overwrite=True)
    with pytest.raises(BenchError, match=r"with all names; call wait\(\) first"):
        run.save(tmp_path / "run", redact=True)
    assert run.save(tmp_path / "run") == tmp_path / "run"
    assert ml.Run.load(run.save(tmp_path / "copy")).progress.done == 2
    gate.is_open.set()
    run.wait(60)
    assert ml.Run.load(tmp_path / "run").state == "done"


def test_a_different_run_is_replaced_only_on_request_and_not_before_a_step_is_measured(
    thread_engines: ml.Engines, gate: Gate, tmp_path: Path
) -> None:
    first = ml.bench(thread_engines, "dp=2, tp=2", axis="tp", sizes="1K", sampling=QUICK, out=tmp_path)
    first.wait(120)
    (tmp_path / "report.html").write_text("of the first run")
    with pytest.raises(BenchError, match=f"holds a different run, {first.run_id}; choose another folder, or pass over"):
        ml.bench(thread_engines, sizes="1K", out=tmp_path)
    assert thread_engines.state == "ready"
    run = ml.bench(thread_engines, "dp=2, tp=2", [gate, "all_reduce"], axis="tp", sizes="1K", sampling=QUICK,
                   out=tmp_path, overwrite=True)  # fmt: skip
    assert gate.is_reached.wait(120)
    assert ml.Run.load(tmp_path).run_id == first.run_id
    run.cancel()
    gate.is_open.set()
    run.wait(120)
    assert ml.Run.load(tmp_path).run_id == run.run_id
    assert {path.name for path in tmp_path.iterdir()} == FILES


@pytest.mark.usefixtures("patient_rounds")
def test_a_run_that_measured_nothing_replaces_no_other_run(thread_engines: ml.Engines, tmp_path: Path) -> None:
    def fails(comm: Any) -> None:
        raise ValueError("no")

    first = ml.bench(thread_engines, sizes="1K", sampling=QUICK, out=tmp_path)
    first.wait(120)

    def measure() -> ml.Run:
        run = ml.bench(thread_engines, None, fails, out=tmp_path, overwrite=True)
        _wait_for_the_end(run)
        return run

    # The thread of the run warns, which may be before this one continues.
    with pytest.warns(UserWarning, match="the run is not saved completely: .* holds a different run, which is kept"):
        run = measure()
    assert ml.Run.load(tmp_path).run_id == first.run_id
    assert "which is kept" in run.out_problem


def _wait_for_the_end(run: ml.Run) -> None:
    with pytest.raises(BenchError, match="nothing could be measured"):
        run.wait(120)


@pytest.mark.parametrize("when", ["before the first step", "in the first step"])
def test_a_run_that_was_stopped_at_its_start_can_be_resumed(
    thread_engines: ml.Engines, gate: Gate, tmp_path: Path, when: str
) -> None:
    plan = ml.Plan([gate, "all_reduce"], "tp", sizes="1K", sampling=QUICK)
    run = ml.bench(thread_engines, "dp=2, tp=2", plan, out=tmp_path)
    if when == "in the first step":
        assert gate.is_reached.wait(120)
    run.cancel(now=when == "in the first step")
    gate.is_open.set()
    run.wait(120)
    if thread_engines.state != "ready":
        thread_engines.restart()
    for source in (tmp_path, ml.Run.load(tmp_path), run):
        again = ml.bench(thread_engines, None, [gate] if source is not run else None, resume=source)
        assert again.wait(120)["status"].tolist() == ["ok"] * 4
        assert len(again.samples)


def test_runs_that_are_killed_lose_at_most_the_current_step() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.runs.killed_runs", "--kills", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "'interrupted': " in done.stdout


@pytest.mark.full
def test_saves_that_are_killed_leave_the_old_run_or_the_new_one() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.runs.killed_saves", "--kills", "20", "--stride", "6"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "'old': " in done.stdout
    assert "'new': " in done.stdout


def test_a_run_goes_on_in_memory_if_the_disk_is_full(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UserWarning: cannot write the rows to") == 1
    assert "File too large; the run continues in memory" in done.stderr
    assert ml.Run.load(tmp_path / "run").state == "done"


FULL_DISK = """
import resource, signal, sys, threading
import meshlab as ml
from meshlab.base._errors import BenchError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = sys.argv[1]
is_reached, is_open = threading.Event(), threading.Event()

def gate(comm):
    is_reached.set()
    is_open.wait(60)
    return comm.barrier

with ml.launch(2, backend="threads") as engines:
    sampling = ml.Sampling(max_s=0.02, min_batches=6)
    run = ml.bench(engines, None, ["all_reduce", gate, "broadcast"], sizes="1K, 4K", sampling=sampling, out=folder)
    assert is_reached.wait(60)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))  # the kernel refuses to make any file longer than this
    is_open.set()
    results = run.wait(60)
    assert run.state == "done" and len(results) == 5, run
    assert "the run is not saved completely: cannot write the folder" in run.out_problem, run.out_problem
    kept = ml.Run.load(folder)
    assert kept.state == "interrupted" and len(kept.results) == 2, kept
    try:
        run.save(folder)
    except BenchError as error:
        assert "File too large" in str(error)
    else:
        raise SystemExit("the limit has no effect")
    assert len(ml.Run.load(folder).results) == 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    run.save(folder)
    assert ml.Run.load(folder).results.equals(results)
"""


def test_a_folder_that_vanishes_does_not_stop_the_run(thread_engines: ml.Engines, gate: Gate, tmp_path: Path) -> None:
    run = start(thread_engines, gate, tmp_path / "run")
    shutil.rmtree(tmp_path / "run")

    def finish() -> None:
        gate.is_open.set()
        run.wait(60)

    with pytest.warns(UserWarning, match=f"no longer holds the run {run.run_id}"):
        finish()
    assert run.results["status"].eq("ok").all()
    assert not (tmp_path / "run").exists()
    assert len(ml.Run.load(run.save(tmp_path / "run")).results) == 10


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_is_measured(
    thread_engines: ml.Engines, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(BenchError, match=r"cannot write the folder '.*run'"):
        ml.bench(thread_engines, sizes="1K", out=tmp_path / "file" / "run")
    (tmp_path / "run" / "run.json").mkdir(parents=True)
    with pytest.raises(BenchError, match="holds a different run"):
        ml.bench(thread_engines, sizes="1K", out=tmp_path / "run")
    assert thread_engines.state == "ready"


@pytest.fixture
def interrupted(thread_engines: ml.Engines, gate: Gate, tmp_path: Path) -> Path:
    """The folder of a run whose process seems to be gone: a copy, whose journal nobody writes."""
    run = start(thread_engines, gate, tmp_path / "run")
    folder = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    gate.is_open.set()
    run.wait(60)
    return folder


def test_an_interrupted_run_says_so_everywhere(interrupted: Path) -> None:
    run = ml.Run.load(interrupted)
    assert (run.state, run.has_ended, run.progress.done) == ("interrupted", True, 2)
    assert "interrupted, 2 of 5 steps" in repr(run)
    assert "The run was interrupted, so results are missing." in ml.Report(run).markdown()
    assert ml.frames.list_runs(interrupted)["state"].tolist() == ["interrupted"]
    assert len(ml.read(interrupted).value.results) == 4
    assert not is_being_measured(interrupted)
    saved = ml.Run.load(run.save(interrupted))  # saving completes the folder, without measuring
    assert (saved.state, len(saved.results)) == ("interrupted", 4)
    assert {path.name for path in interrupted.iterdir()} == FILES


def test_a_resumed_run_goes_on_in_the_same_folder(thread_engines: ml.Engines, gate: Gate, interrupted: Path) -> None:
    before = ml.Run.load(interrupted)
    run = ml.bench(thread_engines, None, [gate], resume=interrupted, out=interrupted)
    results = run.wait(60)
    assert run.run_id == before.run_id
    pd.testing.assert_frame_equal(results.head(4), before.results, check_like=True)
    pd.testing.assert_frame_equal(ml.Run.load(interrupted).results, results)
    assert {path.name for path in interrupted.iterdir()} == FILES


def test_a_damaged_journal_is_reported_and_its_steps_are_measured_again(
    thread_engines: ml.Engines, gate: Gate, interrupted: Path
) -> None:
    (path,) = interrupted.glob("steps-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(index for index, line in enumerate(lines) if b'"rows":[{' in line)
    lines[first] = lines[first].replace(b"tp_0", b"tp_1", 1)
    path.write_bytes(b"".join(lines) + b"0123")
    with pytest.warns(UserWarning, match=r"1 record of steps-\w+\.jsonl is damaged; the steps can be measured again"):
        run = ml.Run.load(interrupted)
    assert run.results["step"].tolist() == [1, 1]
    assert "ends with an incomplete record, which is dropped" in "\n".join(run.log)
    assert ml.bench(thread_engines, None, [gate], resume=run).wait(60)["status"].tolist() == ["ok"] * 10
    path.unlink()
    with pytest.raises(ParseError, match="the rows of the run cannot be read: No such file or directory; copy the"):
        ml.Run.load(interrupted)


def test_a_paused_run_is_paused_in_its_folder_too(thread_engines: ml.Engines, gate: Gate, tmp_path: Path) -> None:
    run = start(thread_engines, gate, tmp_path)
    run.pause()
    gate.is_open.set()
    deadline = time.monotonic() + 60
    while run.state != "paused" and time.monotonic() < deadline:
        time.sleep(0.005)
    paused = ml.Run.load(tmp_path)
    assert (paused.state, paused.progress.done) == ("paused", 3)
    run.resume()
    run.wait(60)
    assert ml.Run.load(tmp_path).state == "done"


def test_a_fork_does_not_keep_an_interrupted_run_running(tmp_path: Path) -> None:
    """A child process inherits the lock of the journal. Closing the journal ends it there too."""
    from meshlab.runs._journal import Journal, is_journal_open

    journal = Journal(tmp_path / "steps-0.jsonl")
    ours, theirs = os.pipe()
    process = os.fork()
    if not process:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        assert is_journal_open(tmp_path / "steps-0.jsonl")
        journal.close()
        assert not is_journal_open(tmp_path / "steps-0.jsonl")
    finally:
        os.close(theirs)
        os.close(ours)
        os.waitpid(process, 0)
