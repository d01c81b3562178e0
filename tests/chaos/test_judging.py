"""The judgements of the chaos test: each thing that can go wrong is counted, and what is right is not."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import meshlab as ml
from tests.chaos.client import REPORTS
from tests.chaos.faults import KINDS, MOMENTS, Fault, draw, draw_all
from tests.chaos.judging import HANG_S, NOTICE_S, Observation, Phase, Victim, judge, named_part, summarise, to_frame
from tests.chaos.processes import MARK, abandoned_segments, end_all, find_parts, is_left, segments
from tests.chaos.reports import broken_reports

KILL = Fault(0, "kill", "rank", 2, "step", 0.5)
ROWS = [[0, step, group, 10.0 * step] for step in range(3) for group in ("tp_0", "tp_1")]


def error(text: str, rank: int | None = None, **others: Any) -> dict[str, Any]:
    return {"type": "EngineError", "text": text, "rank": rank, "is_meshlab": True, "is_interrupt": False} | others


NAMED = error("rank 2 (process 7 on host) was killed by signal 9 while step 2 of 3", 2)


def seen(fault: Fault = KILL, blamed: dict[str, Any] | None = NAMED, **others: Any) -> Observation:
    """An observation in which everything went well, except for what is passed."""
    usual: dict[str, Any] = {
        "phases": [Phase("sweep", 0.4, blamed)],
        "recovery": [Phase("restart", 2.0), Phase("verify", 0.1)],
        "works": True,
        "n_expected": 6,
        "measured": 4,
        "before": ROWS[:4],
        "after": ROWS,
    }
    return Observation(fault, **(usual | others))


def verdict(*arguments: Any, **others: Any) -> dict[str, Any]:
    return judge(seen(*arguments, **others), seed=1)


def test_a_fault_that_was_named_and_mended_is_good() -> None:
    row = verdict()
    assert row["is_good"]
    assert (row["named"], row["lost_rows"], row["recovered"]) == ("rank 2", 0, True)


@pytest.mark.parametrize(
    "blamed",
    [
        error("rank 1 (process 6 on host) was killed by signal 9", 1),
        error("rank 2 was killed", 1),
        error("ranks 0, 1, 3 did not respond within 4.0 s"),
        error("the controller of the engines was killed by signal 9"),
        error("RuntimeError: rank 2 was killed", 2, is_meshlab=False),
        None,
    ],
)
def test_a_wrong_name_is_counted_as_wrong(blamed: dict[str, Any] | None) -> None:
    row = verdict(blamed=blamed)
    assert not row["named_right"]
    assert not row["is_good"]


@pytest.mark.parametrize(
    ("target", "blamed", "is_right"),
    [
        ("hub", error("the controller of the engines was killed by signal 9 while running f"), True),
        ("hub", error("rank 0 (process 5) disconnected; the controller may be gone", 0), False),
        ("launcher", error("the MPI launcher (process 4) was killed by signal 9"), True),
        ("launcher", error("rank 0 was gone", 0), False),
        ("proxy", error("the MPI launcher (process 4) exited with code 9"), True),
        ("nanny", NAMED, True),
        ("nanny", None, True),
        ("reaper", None, True),
        ("reaper", NAMED, False),
        ("shell", None, False),
    ],
)
def test_every_part_has_its_name(target: str, blamed: dict[str, Any] | None, is_right: bool) -> None:
    assert verdict(replace(KILL, target=target), blamed)["named_right"] == is_right


MPI_RANK = Victim(7, 2, is_numbered=True)


@pytest.mark.parametrize(
    ("text", "victim", "is_right"),
    [
        ("rank 2 (process 7) was killed by signal 9 during start-up", MPI_RANK, True),
        (
            "setting 'a' failed in round 1 of 1: rank 2 (process 7) was killed by signal 9 during start-up",
            MPI_RANK,
            True,
        ),
        ("tuning failed at starting: rank 2 (process 7) was killed by signal 9 during start-up", MPI_RANK, True),
        ("rank 1 (process 7) was killed by signal 9 during start-up", MPI_RANK, False),
        ("rank 2 (process 8) was killed by signal 9 during start-up", MPI_RANK, False),
        ("rank 2 (process 7) ended during start-up", MPI_RANK, False),
        ("an engine (process 7) was killed by signal 9 during start-up", MPI_RANK, False),
        ("only 3 of 4 engines started in time", MPI_RANK, False),
        ("an engine (process 7) was killed by signal 9 during start-up", Victim(7, None, is_numbered=False), True),
        ("an engine (process 8) was killed by signal 9 during start-up", Victim(7, None, is_numbered=False), False),
    ],
)
def test_a_rank_that_is_lost_in_a_start_is_named_with_its_process(text: str, victim: Victim, is_right: bool) -> None:
    for moment in ("start", "restart", "compare_env"):
        fault = replace(KILL, moment=moment)
        assert verdict(fault, error(text), victims=[victim])["named_right"] == is_right
    assert not verdict(replace(KILL, moment="start"), error(text))["named_right"]  # nothing was hit


def test_a_rank_that_is_lost_in_a_start_is_named_in_time() -> None:
    text = "rank 2 (process 7) was killed by signal 9 during start-up"
    for kind, what, limit_s in (("kill", "killed by signal 9", NOTICE_S), ("stop", "stopped by a signal", 10.0)):
        fault = replace(KILL, kind=kind, moment="start")
        for seconds, is_good in ((limit_s - 0.5, True), (limit_s + 0.5, False)):
            text = f"rank 2 (process 7) was {what} during start-up"
            row = verdict(fault, error(text), victims=[MPI_RANK], noticed_s=seconds)
            assert (row["late"] == "", row["is_good"]) == (is_good, is_good)


def test_a_launcher_that_ignores_a_signal_may_be_silent() -> None:
    fault = replace(KILL, kind="terminate", target="launcher", moment="start")
    assert verdict(fault, None, victims=[replace(MPI_RANK, has_survived=True)])["named_right"]
    assert not verdict(fault, None, victims=[MPI_RANK])["named_right"]


def test_a_disagreement_names_the_rank_among_those_that_disagree() -> None:
    fault = replace(KILL, kind="other_call", moment="call")
    for text, is_right in (("ranks 0, 2 called broadcast", True), ("rank 12 calls broadcast, rank 0 another", False)):
        assert verdict(fault, error(text, 0))["named_right"] == is_right


def test_an_interrupt_is_right_if_it_raises_or_comes_too_late() -> None:
    fault = replace(KILL, kind="interrupt", target="client")
    interrupted = error("KeyboardInterrupt: ", is_meshlab=False, is_interrupt=True)
    assert verdict(fault, interrupted)["is_good"]
    assert verdict(fault, None)["is_good"]
    assert not verdict(fault, NAMED)["named_right"]


def test_a_client_that_ends_without_a_reason_is_wrong() -> None:
    assert not verdict(client_ended=True)["named_right"]
    assert verdict(replace(KILL, target="client"), None, client_ended=True)["is_good"]
    assert not verdict(replace(KILL, target="client"), None)["named_right"]


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (ROWS[:4], ROWS, 0),
        (ROWS[:2], ROWS, 2),  # two rows were measured, but are not in what was resumed
        (ROWS[:4], ROWS[:5], 1),
        (ROWS[:4], [*ROWS, ROWS[0]], 1),  # doubled
        (ROWS[:4], [*ROWS[:3], [0, 1, "tp_1", 99.0], *ROWS[4:]], 1),  # measured again, although it was there
        ([], [], 4 + 6),
    ],
)
def test_rows_that_are_lost_doubled_or_changed_are_counted(before: list[Any], after: list[Any], lost: int) -> None:
    row = verdict(before=before, after=after)
    assert row["lost_rows"] == lost
    assert row["is_good"] == (lost == 0)


def test_a_saved_run_that_is_neither_version_is_lost() -> None:
    row = verdict(replace(KILL, moment="save"), file_error="14 of 84 rows", n_expected=0, measured=0)
    assert row["lost_rows"] == 1
    assert row["recovery_error"] == "14 of 84 rows"


def test_what_takes_too_long_is_a_hang() -> None:
    row = verdict(phases=[Phase("close", HANG_S + 3, NAMED)])
    assert row["hang"] == "close took 18 s"
    assert not row["is_good"]
    assert not verdict(phases=[Phase("close", HANG_S - 3, NAMED)])["hang"]


def test_a_failed_recovery_is_counted_except_for_one_slow_start() -> None:
    slow = Phase("restart", 14.0, error("only 3 of 4 engines started in time"))
    assert not verdict(recovery=[Phase("restart", 2.0, NAMED), Phase("restart", 2.0)])["recovered"]
    assert verdict(recovery=[slow, Phase("restart", 2.0)])["recovered"]
    assert not verdict(recovery=[slow, slow, Phase("restart", 2.0)])["recovered"]
    assert not verdict(works=False)["recovered"]


def test_orphans_and_files_are_bad() -> None:
    assert not verdict(processes=["rank 77"])["is_good"]
    assert not verdict(files=["/dev/shm/mpich_shm_1"])["is_good"]


def test_the_summary_counts_all_faults(tmp_path: Path) -> None:
    frame = to_frame([verdict(), verdict(blamed=None), verdict(replace(KILL, kind="stop"))])
    frame.to_parquet(tmp_path / "rows.parquet")
    assert pd.read_parquet(tmp_path / "rows.parquet").equals(frame)
    last = summarise(frame).splitlines()[-1].split()
    assert last[:4] == ["all", "3", "2", "2"]


def test_a_fault_depends_only_on_its_seed_and_number() -> None:
    faults = draw_all(5, 150, backend="mpi", ranks=4)
    assert draw(5, 149, backend="mpi", ranks=4) == faults[149]
    assert faults[:20] != draw_all(6, 20, backend="mpi", ranks=4)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.moment for fault in faults} == set(MOMENTS) - {"graph"}
    assert {fault.rank for fault in faults} == {0, 1, 2, 3}


def test_the_client_of_a_fault_depends_only_on_its_seed_and_number() -> None:
    faults = draw_all(5, 150, backend="mpi", ranks=4, client="mixed")
    assert [replace(fault, client="program") for fault in faults] == draw_all(5, 150, backend="mpi", ranks=4)
    assert {fault.client for fault in faults} == {"program", "kernel"}
    assert len({fault.client for fault in faults[8:16]}) == 1


def test_a_backend_is_not_attacked_where_it_has_nothing() -> None:
    moments = {
        backend: {fault.moment for fault in draw_all(1, 200, backend=backend, ranks=2)}
        for backend in ("mpi", "gloo", "threads")
    }
    assert {"tune", "compare_env"} <= moments["mpi"]
    assert not {"tune", "compare_env"} & (moments["gloo"] | moments["threads"])
    assert {"rehearse", "report"} <= moments["gloo"] & moments["threads"]


def test_a_segment_is_abandoned_if_no_process_has_it_mapped() -> None:
    existing = segments()
    path = Path(f"/dev/shm/mpich_shm_{os.getpid()}")
    path.write_bytes(bytes(mmap.PAGESIZE))
    try:
        assert str(path) in abandoned_segments(existing)
        assert str(path) not in abandoned_segments(segments())
        with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
            assert str(path) not in abandoned_segments(existing)
        assert str(path) in abandoned_segments(existing)
    finally:
        path.unlink()


@pytest.mark.full
def test_a_report_that_is_cut_off_is_found(tmp_path: Path) -> None:
    results = ml.example("h200x2")
    report = ml.Report(results[(results["collective"] == "all_reduce") & (results["mode"] == "graph")])
    n = len(report.results)
    for name in REPORTS:
        report.save(tmp_path / name, pictures=name.endswith(".md"))
    assert broken_reports(tmp_path, [n], is_complete=True) == []
    assert len(broken_reports(tmp_path, [n + 1])) == 2
    for path in [path for path in tmp_path.iterdir() if path.suffix not in (".csv", ".md")]:
        path.write_bytes(path.read_bytes()[:-200])
    assert len(broken_reports(tmp_path, [n])) == 5
    (tmp_path / REPORTS[0]).unlink()
    assert f"{REPORTS[0]} does not exist" in broken_reports(tmp_path, [n], is_complete=True)


def test_nccl_is_attacked_in_graphs_too() -> None:
    kinds = ("kill", "stop", "raise", "stay_away")
    faults = draw_all(1, 60, backend="nccl", ranks=2, kinds=kinds, moments=("step", "between", "graph"))
    assert {(fault.kind, fault.moment) for fault in faults} >= {(kind, "graph") for kind in kinds}
    with pytest.raises(
        ValueError, match=r"threads has no fault of these kinds, targets and moments: \(\), \('hub',\), "
    ):
        draw(1, 0, backend="threads", ranks=2, targets=("hub",))


def test_named_part_reads_the_first_sentence() -> None:
    assert named_part(error("4 engines exited during start-up")) == "start"
    assert named_part(error("cannot read the file; the controller is fine")) == "other"


@pytest.fixture
def left_process() -> Iterator[subprocess.Popen[bytes]]:
    code = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | {MARK: "of this test"}) as process:
        yield process
        end_all("of this test")


def test_a_process_that_is_left_is_found_and_ended(left_process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    while not (parts := find_parts("of this test")):  # until it has executed Python
        time.sleep(0.01)
    (tmp_path / "meshlab-left").mkdir()
    kept = tmp_path / "segment"
    kept.touch()
    processes, files = is_left(parts, [str(kept), "/gone"], tmp_path, pids=(), client=None)
    assert processes == [f"{psutil.Process(left_process.pid).name()} {left_process.pid}"]
    assert files == [str(kept), str(tmp_path / "meshlab-left"), str(kept)]
    assert is_left(parts, [], tmp_path / "none", pids=(), client=left_process.pid) == ([], [])
    end_all("of this test")
    assert find_parts("of this test") == []
