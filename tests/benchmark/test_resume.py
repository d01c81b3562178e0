"""Resuming a run: no step is measured twice, and different conditions are rejected."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.02, min_batches=6)


def cancelled(engines: ml.Engines, hold_runs: Callable[..., threading.Event], **arguments: Any) -> ml.Run:
    """Return a run that was cancelled halfway."""
    may_go = hold_runs(after=3)
    run = ml.bench(engines, MESH, sampling=Sampling(max_s=0.05, precision=1e-9), sizes="1K:64K", **arguments)
    while run.progress.done < 3:
        time.sleep(0.002)
    run.cancel()
    may_go.set()
    run.wait(120)
    assert run.state == "cancelled"
    return run


@pytest.mark.parametrize("from_disk", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_cancelled_run_resumes_and_keeps_its_rows(
    thread_engines: ml.Engines, tmp_path: Path, from_disk: bool, hold_runs: Callable[..., threading.Event]
) -> None:
    first = cancelled(thread_engines, hold_runs, launches=2, shuffle=True)
    n_done = first.progress.done
    old = ml.Run.load(first.save(tmp_path / "run")) if from_disk else first
    run = ml.bench(thread_engines, resume=old)
    assert run.run_id == first.run_id
    results = run.wait(60)
    assert run.state == "done"
    assert (run.progress.done, run.progress.total) == (28, 28)
    assert not results.duplicated(["launch", "step", "group"]).any()
    assert len(results) == 28 * 2
    kept = results.head(len(first.results))
    pd.testing.assert_frame_equal(kept, first.results, check_like=True)
    samples = run.samples
    pd.testing.assert_frame_equal(samples.head(len(first.samples)), first.samples)
    assert set(samples.groupby(["launch", "step"]).groups) == {
        (launch, step) for launch in (0, 1) for step in range(14)
    }
    assert any(f"resumed with {n_done} of 28 steps" in line for line in run.log)
    assert run.started_at == first.started_at


def test_failed_steps_are_repeated_after_a_restart(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark.on_ranks import _step_calls as step_calls

    honest = step_calls.allocate

    def stuck(parts: Any) -> Any:
        if any(step.size_bytes == 4096 and comm.world_rank == 1 for comm, step in parts):
            raise ValueError("a bad cable")
        return honest(parts)

    with monkeypatch.context() as patch:
        patch.setattr(step_calls, "allocate", stuck)
        first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 4K, 16K", sampling=QUICK)
        with pytest.raises(EngineError, match="rank 1 raised ValueError: a bad cable"):
            first.wait(120)
    assert first.results["status"].tolist() == ["ok", "ok", "failed", "failed"]
    thread_engines.restart()
    run = ml.bench(thread_engines, resume=first)
    results = run.wait(120)
    assert results["status"].tolist() == ["ok"] * 6
    assert results["size_bytes"].tolist() == [1024, 1024, 4096, 4096, 16384, 16384]
    assert results["time_us"].iloc[0] == first.results["time_us"].iloc[0]


def test_a_run_without_rows_or_samples_starts_from_the_beginning(thread_engines: ml.Engines, tmp_path: Path) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 4K", sampling=QUICK)
    first.wait(120)
    failed = first.results.assign(status="failed", time_us=None)
    for results in (failed, failed.head(0)):
        parts: dict[str, Any] = {"run_id": first.run_id, "source": first.source, "where": first.where}
        frames = {"results": results, "samples": first.samples.head(0)}
        old = ml.frames.RunData(first.plan, first.mesh, state="failed", **parts, **frames)
        for source in (old, old.save(tmp_path / "run", overwrite=True)):
            run = ml.bench(thread_engines, resume=source)
            assert run.wait(120)["status"].tolist() == ["ok"] * 4
            assert len(run.samples)


@pytest.mark.full
def test_a_run_whose_rank_died_in_the_first_step_resumes(mpi_engines: ml.Engines, tmp_path: Path) -> None:
    folder, flag = tmp_path / "run", str(tmp_path / "dead")

    def dies_once(comm: Any) -> Any:
        if comm.world_rank == 1 and not os.path.exists(flag):  # noqa: PTH110
            os.mkdir(flag)  # noqa: PTH102
            os.kill(os.getpid(), signal.SIGKILL)
        return comm.barrier

    first = ml.bench(mpi_engines, MESH, [dies_once, "all_reduce"], axis="tp", sizes="1K", sampling=QUICK, out=folder)
    with pytest.raises(EngineError, match="rank 1"):
        first.wait(60)
    mpi_engines.restart()
    saved = ml.Run.load(folder)
    assert (saved.state, saved.samples.empty, set(saved.results["status"])) == ("failed", True, {"failed"})
    run = ml.bench(mpi_engines, None, [dies_once], resume=folder, out=folder)
    assert run.wait(60)["status"].tolist() == ["ok"] * 4
    assert ml.Run.load(folder).state == "done"


def test_a_folder_that_was_saved_while_the_run_was_measuring_can_be_resumed(
    thread_engines: ml.Engines, tmp_path: Path, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs(after=3)
    run = ml.bench(thread_engines, MESH, sizes="1K:64K", sampling=Sampling(max_s=0.05, precision=1e-9))
    while run.progress.done < 3:
        time.sleep(0.002)
    folder = run.save(tmp_path / "run")
    run.cancel()
    may_go.set()
    run.wait(120)
    saved = ml.Run.load(folder)
    assert saved.state == "running"
    assert ml.bench(thread_engines, resume=folder).wait(60)["status"].eq("ok").all()


def test_frames_that_were_read_early_have_the_description_of_the_system_later(thread_engines: ml.Engines) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    first.wait(120)
    run = ml.bench(thread_engines, resume=first)  # nothing is left to measure, so no row is added
    early = run.results
    assert len(early) == 2
    assert run.wait(120).attrs["library"].startswith("numpy")
    assert run.samples.attrs["library"].startswith("numpy")


def test_what_is_not_a_run_cannot_be_resumed(thread_engines: ml.Engines) -> None:
    with pytest.raises(BenchError, match="resume must be a run or the folder of a saved run, not DataFrame"):
        ml.bench(thread_engines, resume=ml.example())  # type: ignore[arg-type]


def test_a_larger_plan_takes_over_common_steps(thread_engines: ml.Engines) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 4K", sampling=QUICK)
    first.wait(120)
    plan = Plan(["broadcast", "all_reduce"], ["dp", "tp"], sizes="1K, 4K, 8K", sampling=QUICK)
    run = ml.bench(thread_engines, MESH, plan, resume=first)
    results = run.wait(120)
    assert run.progress.total == 12
    assert len(results) == 24
    where = {"collective": "all_reduce", "axis": "tp", "group": "tp_1", "size_bytes": 4096}
    same = [
        frame.loc[(frame[list(where)] == pd.Series(where)).all(axis=1)].iloc[0] for frame in (first.results, results)
    ]
    assert same[0]["time_us"] == same[1]["time_us"]
    assert same[1]["step"] == plan.steps(MESH).index(
        next(s for s in run.steps if (s.collective, s.axis, s.size_bytes) == ("all_reduce", "tp", 4096))
    )
    taken = run.samples[run.samples["step"] == same[1]["step"]]
    assert sorted(taken["time_us"]) == sorted(first.samples.loc[first.samples["step"] == same[0]["step"], "time_us"])


def own_step(comm: Any) -> None:
    comm.barrier()


def test_functions_must_be_passed_again_for_a_run_from_disk(thread_engines: ml.Engines, tmp_path: Path) -> None:
    first = ml.bench(thread_engines, MESH, [own_step, "all_reduce"], axis="tp", sizes="1K", sampling=QUICK)
    first.wait(120)
    old = ml.Run.load(first.save(tmp_path / "run"))
    assert old.plan == first.plan
    pd.testing.assert_frame_equal(old.results, first.results)
    pd.testing.assert_frame_equal(old.samples, first.samples)
    with pytest.raises(BenchError, match="function 'own_step' is not saved with its run; pass it again as collective"):
        ml.bench(thread_engines, resume=old)
    run = ml.bench(thread_engines, MESH, own_step, resume=old)
    assert len(run.wait(120)) == 4
    with pytest.raises(
        BenchError,
        match=r"collective must be omitted to resume a run, or be a Plan or the functions of the run \(own_step\)",
    ):
        ml.bench(thread_engines, MESH, "all_reduce", resume=old)


def test_a_run_does_not_resume_with_different_conditions(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    first.wait(120)
    with pytest.raises(BenchError, match="cannot resume with a different mesh: the saved run has"):
        ml.bench(thread_engines, ml.DeviceMesh("tp=2, dp=2"), resume=first)
    with pytest.raises(BenchError, match="cannot resume with a different sampling: the saved run has"):
        ml.bench(thread_engines, MESH, Plan("all_reduce", "tp"), resume=first)
    may_go = hold_runs()
    going = ml.bench(thread_engines, MESH, sizes="1K:64K", sampling=Sampling(max_s=0.1, precision=1e-9))
    with pytest.raises(BenchError, match="the run to resume is still running"):
        ml.bench(thread_engines, resume=going)
    going.cancel()
    may_go.set()
    going.wait(120)
    with ml.launch(2, backend="threads") as fewer, pytest.raises(ml.errors.MeshError, match="4 ranks, but there are 2"):
        ml.bench(fewer, resume=first)


def test_alternatives_are_taken_over_only_if_all_of_them_were_measured(thread_engines: ml.Engines) -> None:
    """Blocks of different days must not be compared."""
    plan = Plan("all_reduce", "tp", "1K", sampling=QUICK)
    together = ml.bench(thread_engines, MESH, plan)
    together.wait(120)
    both = Plan("all_reduce", "tp", "1K, 2K", sampling=QUICK, grouping="together, alone")
    run = ml.bench(thread_engines, MESH, both, resume=together)
    run.wait(120)
    assert any("resumed with 0 of 4 steps" in line for line in run.log)
    assert len(run.results) == 8
    assert run.contention()["n_blocks"].tolist() == 4 * [8]
    larger = Plan("all_reduce", "tp", "1K, 2K, 4K", sampling=QUICK, grouping="together, alone")
    again = ml.bench(thread_engines, MESH, larger, resume=run)
    again.wait(120)
    assert any("resumed with 4 of 6 steps" in line for line in again.log)
    assert again.contention()["n_blocks"].tolist() == 6 * [8]


def test_alternatives_that_were_cancelled_keep_their_blocks(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    seen = []
    may_go = hold_runs()

    def own(comm: Any) -> Any:
        seen.append(comm.world_rank)
        if len(seen) >= 10:  # during the second round
            run.cancel()
        return comm.prepare("barrier")

    run = ml.bench(thread_engines, MESH, own, axis="tp", grouping="together, alone", sampling=QUICK)
    may_go.set()
    run.wait(120)
    assert run.state == "cancelled" or len(seen) < 64
    assert (run.results["status"] == "ok").all()
    found = run.contention()
    assert found["n_blocks"].between(1, 5).all()
    assert not found["is_clear"].any()
    assert found["note"].str.fullmatch(r"only (1 block was|[2-5] blocks were) measured, but an interval needs 6").all()
