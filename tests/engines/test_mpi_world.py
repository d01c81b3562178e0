"""Engines without a controller, started by the real mpiexec."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.cli._main import main
from meshlab.engines._launchers import launch_of, launched_as
from meshlab.engines._local import find_mpiexec
from meshlab.engines._reaper import segments
from meshlab.frames._schema import RESULTS, SAMPLES

ROOT = Path(__file__).parents[2]


def mpiexec(n: int, *command: str, limit_s: float = 180) -> subprocess.CompletedProcess[str]:
    # As for a user, the output is buffered: nothing that was printed may be lost.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [find_mpiexec(), "-n", str(n), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        cwd=ROOT,
        env=environment,
    )


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_NTASKS": "16"}, (5, 16)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, None),  # a batch script that is not run by srun
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"PMI_RANK": "x", "PMI_SIZE": "4"}, None),
        # One process of mpiexec, inside a step of srun.
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, None),
        ({"RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}, (2, 4)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, None),
    ],
)
def test_launchers_are_recognised_by_their_variables(environ: dict[str, str], place: tuple[int, int] | None) -> None:
    assert launched_as(environ) == place


SRUN = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
MPIEXEC = {"PMI_RANK": "0", "PMI_SIZE": "4"}


@pytest.mark.parametrize(
    ("environ", "library", "fault", "cure"),
    [
        (SRUN, "MPICH 5.0", "srun started 4", "start them with srun --mpi=pmi2"),
        (SRUN, "Open MPI 5.0", "srun started 4", "start them with srun --mpi=pmix"),
        (SRUN | {"SLURM_MPI_TYPE": "pmix_v4"}, "MPICH 5.0", "srun --mpi=pmix_v4 started 4", "srun --mpi=pmi2"),
        (SRUN | MPIEXEC | {"SLURM_MPI_TYPE": "pmi2"}, "Open MPI 5.0", "srun --mpi=pmi2 started 4", "srun --mpi=pmix"),
        (SRUN | MPIEXEC | {"SLURM_MPI_TYPE": "pmi2"}, "MPICH 5.0", "srun --mpi=pmi2 started 4", "srun --mpi=list"),
        (MPIEXEC, "Open MPI 5.0", "mpiexec started 4", "the mpiexec of Open MPI 5.0, which mpi4py loads"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            "MPICH 5.0",
            "Open MPI's mpiexec started 4",
            "the mpiexec of MPICH 5.0, which mpi4py loads",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"},
            "MPICH 5.0",
            "torchrun started 4",
            "the mpiexec of MPICH 5.0, which mpi4py loads",
        ),
    ],
)
def test_processes_that_mpi_does_not_connect_have_a_cure_for_their_launcher_and_library(
    environ: dict[str, str], library: str, fault: str, cure: str
) -> None:
    launch = launch_of(environ)
    assert launch is not None
    assert fault in launch.fault(library)
    assert cure in launch.cure(library)


def test_of_processes_that_mpi_does_not_connect_only_the_first_reports_it() -> None:
    command = [sys.executable, "-m", "meshlab", "bench", "--mesh", "tp=2"]
    environ = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_MPI_TYPE": ""}
    done = [
        subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=os.environ | environ | {"SLURM_PROCID": rank},
        )
        for rank in "01"
    ]
    assert [process.returncode for process in done] == [2, 0]
    assert done[0].stderr.startswith("meshlab: srun started 2 processes, but MPICH")
    assert done[0].stderr.endswith(
        "finds only one of them; start them with srun --mpi=pmi2\nmore: meshlab docs hangs\n"
    )
    assert not any(process.stdout for process in done)
    assert not done[1].stderr


def test_a_benchmark_under_mpiexec_gives_the_same_frames(tmp_path: Path) -> None:
    command = ["bench", "all_reduce", "broadcast", "--mesh", "dp=-1, tp=2", "--axis", "tp", "--sizes", "1K, 4K"]
    options = ["--mode", "isolated", "--groups", "together, alone", "--seconds", "0.02", "--out", str(tmp_path / "run")]
    done = mpiexec(4, "-m", "meshlab", *command, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ready in") == 1  # only one rank prints
    assert "4 groups verified" in done.stdout or "5 groups verified" in done.stdout
    assert "8 steps, about" in done.stdout
    run = ml.Run.load(tmp_path / "run")
    results, samples = run.results, run.samples
    assert list(results.columns) == [column.name for column in RESULTS]
    assert list(samples.columns) == [column.name for column in SAMPLES]
    assert len(results) == 2 * 2 * 2 * 2
    assert (results["status"] == "ok").all()
    assert (results["n_wrong"] == 0).all()
    assert results["alignment_us"].notna().all()
    assert set(samples["rank"]) == {0, 1, 2, 3}
    assert (run.where, run.state) == ("4 ranks · MPI on this CPU", "done")
    assert (tmp_path / "run" / "report.html").exists()


def test_a_mesh_of_a_different_size_is_reported_once_and_no_rank_hangs() -> None:
    done = mpiexec(2, "-m", "meshlab", "bench", "--mesh", "tp=4", "--sizes", "1K")
    assert done.returncode != 0
    assert done.stderr.count("tp=4 has 4 ranks, but there are 2 engines") == 1


def test_the_start_of_a_command_ends_after_its_timeout() -> None:
    command = ["-m", "meshlab", "bench", "--mesh", "tp=2", "--sizes", "1K", "--timeout", "1"]
    absent = [":", "-n", "1", sys.executable, "-c", "import time; time.sleep(60)"]  # a process that never comes
    done = mpiexec(1, *command, *absent, limit_s=40)
    assert done.returncode != 0
    text = "has waited 1 s for all 2 processes that mpiexec started; pass a larger --timeout if they only start slowly"
    assert done.stderr.count(text) == 1, done.stderr


def test_no_shared_memory_is_left_if_another_rank_than_the_first_has_created_it() -> None:
    before = set(segments())
    command = [sys.executable, "-m", "meshlab", "bench", "--mesh", "tp=2", "--sizes", "1K", "--seconds", "60"]
    wait = 'n=$(ls /dev/shm | wc -l); while [ $(ls /dev/shm | wc -l) -le $n ]; do sleep 0.1; done; exec "$@"'
    late = ["/bin/sh", "-c", wait, "sh", *command]
    start = [find_mpiexec(), "-n", "1", *late, ":", "-n", "1", *command]
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        assert set(segments()) > before
        process.kill()
    deadline = time.monotonic() + 30
    while (left := set(segments()) - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_timeout_is_a_positive_number(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--mesh", "tp=2", f"--timeout={text}"])
    assert f"'{text}' is not a positive number of seconds" in capsys.readouterr().err


def test_an_error_of_the_client_releases_the_other_ranks() -> None:
    code = """
import meshlab as ml
engines = ml.engines.join(backend="mpi")
if engines is not None:
    with engines:
        print("values", engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())["value"].tolist())
        raise SystemExit(3)
"""
    done = mpiexec(3, "-c", code)
    assert "values [3.0, 3.0, 3.0]" in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("engines.run(stuck)", "meshlab.errors.EngineError: rank 1 did not respond within 1.0\N{THIN SPACE}s"),
        (
            "try:\n            engines.run(stuck)\n        except Exception:\n            sys.exit('no ranks')",
            "no ranks",
        ),
    ],
)
@pytest.mark.full
def test_the_reason_is_printed_before_mpi_ends_all_processes(statement: str, reason: str) -> None:
    code = f"""
import sys
import time
import meshlab as ml
def stuck(comm):
    if comm.rank == 1:
        time.sleep(600)
engines = ml.engines.join(backend="mpi", deadline_s=1.0)
if engines is not None:
    with engines:
        {statement}
"""
    done = mpiexec(2, "-c", code)
    assert done.returncode != 0
    assert done.stderr.count(reason) == 1, done.stderr
    assert done.stderr.index(reason) < done.stderr.index("MPI_Abort")


def test_a_stopped_rank_is_named_alone() -> None:
    code = """
import os, signal
import meshlab as ml
def stop(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.barrier()
engines = ml.engines.join(backend="mpi", deadline_s=2.0)
if engines is not None:
    with engines:
        engines.run(lambda comm: comm.barrier())
        print("calls", engines.calls())
        engines.run(stop)
"""
    done = mpiexec(3, "-c", code)
    assert "calls [2, 2, 2]" in done.stdout
    error = done.stderr.partition("EngineError: ")[2].splitlines()[0]
    assert re.fullmatch(
        r"rank 1 \(process \d+ on .*\) was stopped by a signal while running stop; start .* again", error
    )


def assert_no_segment_is_left(printed: str) -> None:
    (line,) = [line for line in printed.splitlines() if line.startswith("segments ")]
    segments = line.split()[1:]
    assert segments, "the ranks share no memory, so the test would not test anything"
    assert [path for path in segments if Path(path).exists()] == []


@pytest.mark.full
def test_stuck_ranks_are_aborted_and_the_rows_are_kept(tmp_path: Path) -> None:
    code = f"""
import time
import meshlab as ml
def stuck(comm):
    if comm.rank == 1:
        time.sleep(600)
    comm.barrier()
engines = ml.engines.join(backend="mpi", deadline_s=6.0)
if engines is not None:
    with engines:
        print("segments", *engines.ranks[0].segments)
        run = ml.bench(engines, ml.DeviceMesh("tp=2"), ["all_reduce", stuck], sizes="1K")
        try:
            run.wait(120)
        except ml.errors.EngineError as error:
            print("error", error)
        run.save({str(tmp_path / "run")!r})
"""
    done = mpiexec(2, "-c", code)
    assert "rank 1 entered 0 of its group's 1 collective call within 6.5" in done.stdout
    assert done.returncode != 0
    assert ml.Run.load(tmp_path / "run").results["status"].tolist() == ["ok", "failed"]
    assert_no_segment_is_left(done.stdout)


def test_close_aborts_stuck_ranks(tmp_path: Path) -> None:
    code = f"""
import pathlib, threading, time
import meshlab as ml
mark = pathlib.Path({str(tmp_path / "stuck")!r})
def stuck(comm):
    if comm.rank == 1:
        mark.touch()
        time.sleep(600)
engines = ml.engines.join(backend="mpi")
if engines is not None:
    print("segments", *engines.ranks[0].segments, flush=True)
    threading.Thread(target=engines.run, args=(stuck,), daemon=True).start()
    while not mark.exists():
        time.sleep(0.01)
    engines.close(cancel=True)
"""
    done = mpiexec(2, "-c", code)
    assert done.returncode != 0
    assert "the engines were closed while ranks were still busy; aborting all processes" in done.stderr
    assert_no_segment_is_left(done.stdout)


def test_a_value_that_cannot_be_pickled_is_an_error_of_its_rank() -> None:
    code = """
import sys
import meshlab as ml
def local(comm):
    return (lambda: 1) if comm.rank == 1 else comm.rank
engines = ml.engines.join(backend="mpi", deadline_s=60)
if engines is not None:
    with engines:
        print("errors", engines.run(local, check=False)["error"].tolist())
        print("exits", engines.run(lambda comm: sys.exit(comm.rank + 3), check=False)["error"].tolist())
        print("values", engines.run(lambda comm: comm.rank)["value"].tolist())
"""
    done = mpiexec(2, "-c", code)
    assert done.returncode == 0, done.stderr
    assert "errors [<NA>, " in done.stdout
    assert "pickle" in done.stdout
    assert "exits ['SystemExit: 3', 'SystemExit: 4']" in done.stdout
    assert "values [0, 1]" in done.stdout
