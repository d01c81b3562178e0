from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError, MeshError, ParseError
from meshlab.engines._reaper import marked_processes
from meshlab.frames._schema import RESULTS, SAMPLES
from meshlab.frames._statistics import bandwidth
from meshlab.plans._sampling import Sampling
from tests.conftest import FULL_ON_MPI

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.02, min_batches=6)


def test_a_run_has_complete_frames(engines: ml.Engines) -> None:
    run = ml.bench(
        engines, MESH, ["all_reduce", "broadcast"], sizes="1K, 64K", mode="isolated, pipelined", sampling=QUICK
    )
    results, samples = run.wait(60), run.samples
    assert run.state == "done"
    assert list(results.columns) == [column.name for column in RESULTS]
    assert list(samples.columns) == [column.name for column in SAMPLES]
    assert {name: str(dtype) for name, dtype in results.dtypes.items()} == {c.name: c.dtype for c in RESULTS}
    assert {name: str(dtype) for name, dtype in samples.dtypes.items()} == {c.name: c.dtype for c in SAMPLES}
    assert len(results) == 2 * 2 * 2 * 2 * 2  # collectives, modes, axes, sizes, groups
    assert (results["status"] == "ok").all()
    assert (results["n_wrong"] == 0).all()
    assert (results["source"] == engines.backend).all()
    assert (results["mesh_fingerprint"] == MESH.fingerprint).all()
    assert results["run_id"].unique().tolist() == [run.run_id]
    assert set(results["group"]) == {"dp_0", "dp_1", "tp_0", "tp_1"}
    assert results.attrs["where"] == engines.where
    isolated = results["mode"] == "isolated"
    assert results.loc[isolated, "alignment_us"].notna().all()
    assert results.loc[~isolated, "alignment_us"].isna().all()
    assert (results.loc[isolated, "calls"] == 1).all()


def test_results_follow_from_samples(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, "all_gather", axis="tp", sizes="4K", mode="isolated", sampling=QUICK)
    result = run.wait(120).set_index("group").loc["tp_1"]
    samples = run.samples.query("group == 'tp_1' and not is_warmup")
    assert sorted(samples["rank"].unique()) == [2, 3]
    times = samples.pivot(index="batch", columns="rank", values="time_us")
    slowest = times.max(axis=1)
    assert result["n_samples"] == len(slowest)
    assert result["time_us"] == pytest.approx(slowest.median())
    assert (result["min_us"], result["max_us"]) == (slowest.min(), slowest.max())
    assert result["skew_us"] == pytest.approx((slowest - times.min(axis=1)).median())
    algbw, busbw = bandwidth(["all_gather"], [4096], [2], [result["time_us"]])
    assert (result["algbw_gbs"], result["busbw_gbs"]) == (algbw[0], busbw[0])
    offsets = samples.pivot(index="batch", columns="rank", values="start_offset_us")
    assert (offsets.min(axis=1) == 0).all()
    assert result["alignment_us"] == pytest.approx(offsets.max(axis=1).median())


@pytest.mark.parametrize("engines", FULL_ON_MPI, indirect=True)
def test_a_barrier_has_a_time_but_no_size_and_no_bandwidth(engines: ml.Engines, tmp_path: Path) -> None:
    plan = ml.Plan(
        "barrier, all_reduce", "tp", sizes="1K", mode="isolated, pipelined", grouping="together, alone", sampling=QUICK
    )
    run = ml.bench(engines, MESH, plan)
    results = run.wait(120)
    rows = results[results["collective"] == "barrier"]
    assert len(rows) == 2 * 2 * 2  # modes, groupings, groups
    assert (rows["time_us"] > 0).all()
    assert set(rows["status"]) == {"ok"}
    for column in ("size_bytes", "count", "dtype", "op", "in_place", "algbw_gbs", "busbw_gbs", "n_wrong"):
        assert rows[column].isna().all(), column
    assert len(run.contention().query("collective == 'barrier'")) == 2 * 2
    assert "barrier" in str(run.table())
    run.save(tmp_path / "run")
    saved = ml.Run.load(tmp_path / "run")
    assert saved.results.equals(run.results)
    assert ml.compare(saved, run).frame().query("collective == 'barrier'")["ratio"].eq(1).all()
    ml.Report(saved).save(tmp_path / "report.html")
    assert "barrier" in (tmp_path / "report.html").read_text()
    assert "# error: barrier is omitted" in ml.nccl_tests.write(saved)
    known = ml.Plan("barrier", "tp", mode="isolated", sampling=QUICK)
    assert known.estimate(MESH, results=results).seconds > 0


def test_all_axes_are_the_default(thread_engines: ml.Engines) -> None:
    assert set(ml.bench(thread_engines, MESH, sizes="1K", sampling=QUICK).wait(120)["axis"]) == {"dp", "tp"}


def test_combined_axes_world_and_custom_groups(thread_engines: ml.Engines) -> None:
    mesh = MESH.with_group("odd", [3, 1])
    results = ml.bench(thread_engines, mesh, axis=["dp-tp", "world", "odd"], sizes="1K", sampling=QUICK).wait(120)
    assert results[["axis", "group", "n_ranks"]].to_numpy().tolist() == [
        ["dp-tp", "dp-tp_0", 4],
        ["world", "world", 4],
        ["odd", "odd", 2],
    ]
    assert (results["n_wrong"] == 0).all()


def test_a_run_starts_in_the_background_and_the_engines_are_busy(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs()
    run = ml.bench(thread_engines, MESH, sizes="1K:1M", sampling=Sampling(max_s=0.1, precision=1e-9))
    assert run.state == "running"
    while not run.progress.step:  # until then it estimates its duration
        time.sleep(0.005)
    with pytest.raises(EngineError, match=r"busy with step 1 of 22: all_reduce .* along dp"):
        ml.bench(thread_engines, MESH)
    run.cancel()
    may_go.set()
    run.wait(120)
    assert thread_engines.state == "ready"


def test_cancel_stops_after_the_step_and_keeps_the_rows(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs(after=3)
    run = ml.bench(thread_engines, MESH, sizes="1K:16M", sampling=Sampling(max_s=0.05, precision=1e-9))
    while run.progress.done < 3:
        time.sleep(0.005)
    run.cancel()
    may_go.set()
    results = run.wait(120)
    assert run.state == "cancelled"
    assert run.progress.done == 4
    assert len(results) == 2 * run.progress.done
    assert (results["status"] == "ok").all()
    assert any("cancelled after" in line for line in run.log)


ENDLESS = Sampling(max_s=1e6, max_batches=10**6, precision=1e-9)


def test_cancelling_now_does_not_wait_for_the_step(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, sizes="1K", sampling=ENDLESS, deadline_s=120)
    while not run.progress.step:
        time.sleep(0.005)
    for _ in range(5):  # however often it is called, it only stops after the step
        run.cancel()
    with pytest.raises(BenchError, match="still running"):
        run.wait(0.5)
    run.cancel(now=True)
    results = run.wait(120)
    assert run.state == "cancelled"
    assert set(results["status"]) == {"cancelled"}
    assert [line[9:] for line in run.log if "cancel: " in line] == [
        "cancel: stopping after this step",
        "cancel: killing the ranks",
    ]
    with pytest.raises(EngineError, match=r"the engines are broken: they were killed; call engines.restart\(\)"):
        thread_engines.verify(MESH)
    thread_engines.restart()
    assert thread_engines.verify(MESH)["is_right"].all()


@pytest.mark.full
def test_cancelling_now_releases_a_run_on_ranks_of_another_process(mpi_engines: ml.Engines) -> None:
    with ml.attach(mpi_engines.client) as attached:
        run = ml.bench(attached, MESH, lambda comm: lambda: time.sleep(0.01), axis="tp", sampling=ENDLESS)
        while not run.progress.step:
            time.sleep(0.005)
        run.cancel(now=True)
        assert run.wait(120)["status"].tolist() == ["cancelled"] * 2
        assert attached.state == "broken"
    mpi_engines.restart()  # the test left its function on the ranks
    assert mpi_engines.verify(MESH)["is_right"].all()


def test_engines_with_a_run_under_way_are_closed_only_on_request() -> None:
    engines = ml.launch(4, backend="threads")
    # Long enough that the run cannot end before it is closed.
    short = Sampling(max_s=0.05)
    run = ml.bench(engines, MESH, ["broadcast", "all_reduce"], sizes="1K:64K", sampling=short, launches=50)
    while run.progress.done < 2:
        time.sleep(0.005)
    with pytest.raises(
        EngineError,
        match=r"^cannot close the engines, which are busy with (step \d+ of 1400: |launch \d+ of 50).*; "
        r"call run.wait\(\) or run.cancel\(\) first, or call engines.close\(cancel=True\)$",
    ):
        engines.close()
    assert (engines.state, run.state) == ("busy", "running")
    engines.close(cancel=True)
    assert (engines.state, run.state) == ("closed", "cancelled")
    assert (run.wait(0)["status"] == "ok").sum() >= 4


@pytest.mark.parametrize("backend", ["threads", pytest.param("mpi", marks=pytest.mark.full)])
def test_the_end_of_a_with_block_cancels_a_run_and_keeps_the_rows(backend: str) -> None:
    with ml.launch(2, backend=backend) as engines:
        # The first step cannot end before the block does.
        run = ml.bench(engines, sizes="1K, 2K", sampling=Sampling(max_s=60, precision=1e-9, max_batches=1_000_000))
        while not run.progress.step:
            time.sleep(0.005)
    assert (engines.state, run.state) == ("closed", "cancelled")
    assert run.wait(0)["status"].tolist() == ["cancelled"]


def test_a_listener_may_close_the_engines(
    monkeypatch: pytest.MonkeyPatch, hold_runs: Callable[..., threading.Event]
) -> None:
    # The run cannot end before its listener returns, so a listener that waited for the end would wait for so long.
    monkeypatch.setattr("meshlab.engines._engines._END_S", 600.0)
    may_go = hold_runs()
    with ml.launch(2, backend="threads") as engines:
        run = ml.bench(engines, sizes="1K:64K", sampling=Sampling(max_s=0.05, precision=1e-9))
        run.subscribe(lambda run: engines.close(cancel=True))
        may_go.set()
        run.wait(120)
    assert run.state == "cancelled"


@pytest.mark.parametrize("backend", ["threads", pytest.param("mpi", marks=pytest.mark.long)])
def test_the_exit_of_the_interpreter_cancels_a_run_and_keeps_the_rows(backend: str) -> None:
    code = f"""
import atexit, time, pandas, meshlab as ml
atexit.register(lambda: print(run.state, (run.results["status"] == "ok").sum() > 0))
engines = ml.launch(2, backend={backend!r})
run = ml.bench(engines, sizes="1K:64M", sampling=ml.Sampling(max_s=0.2, precision=1e-9))
while run.progress.done < 2:
    time.sleep(0.01)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cancelled True\n", "")


@pytest.mark.usefixtures("patient_rounds")
def test_a_step_whose_ranks_all_raise_is_a_failed_row(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.benchmark.on_ranks import _step_calls as step_calls

    honest = step_calls.allocate

    def no_memory(parts: Any) -> Any:
        if any(step.size_bytes == 4096 for _, step in parts):
            raise MemoryError("too large")
        return honest(parts)

    monkeypatch.setattr(step_calls, "allocate", no_memory)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 4K, 16K", sampling=QUICK)
    results = run.wait(120)
    assert run.state == "done"
    assert results["status"].tolist() == ["ok", "ok", "failed", "failed", "ok", "ok"]
    assert results["stop_reason"].iloc[2] == "rank 0: MemoryError: too large"
    assert results["busbw_gbs"].isna().tolist() == [False, False, True, True, False, False]


@pytest.mark.usefixtures("patient_rounds")
def test_a_run_without_any_times_fails(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, lambda comm: 1 / 0, axis="tp", sampling=QUICK)
    with pytest.raises(BenchError, match="nothing could be measured: rank 0: ZeroDivisionError: division by zero"):
        run.wait(120)
    assert run.state == "failed"
    assert run.results["status"].tolist() == ["failed"] * 2
    assert thread_engines.state == "ready"


def test_a_run_whose_last_step_is_interrupted_is_cancelled(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=Sampling(max_s=30, precision=1e-9))
    while not run.progress.step:
        time.sleep(0.002)
    run.cancel(now=True)
    assert run.wait(120)["status"].tolist() == ["cancelled"] * 2
    assert run.state == "cancelled"


def test_engines_are_free_when_listeners_are_notified_of_the_end(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs()
    heard: list[Any] = []

    def listen(run: ml.Run) -> None:
        if run.state != "running":
            heard.append(thread_engines.run(lambda comm: comm.size)["value"].tolist())

    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    run.subscribe(listen)
    may_go.set()
    run.wait(120)
    assert heard == [[4] * 4]
    assert not any("listener failed" in line for line in run.log)


def test_wrong_results_are_marked(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark.on_ranks import _step_calls as step_calls

    monkeypatch.setattr(step_calls, "count_wrong_elements", lambda comm, *rest: 3 if comm.world_rank == 2 else 0)
    results = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK).wait(120)
    assert results["n_wrong"].tolist() == [0, 3]
    assert results["status"].tolist() == ["ok", "wrong"]


def test_unchecked_is_missing_and_not_zero(thread_engines: ml.Engines) -> None:
    results = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK, check=False).wait(120)
    assert results["n_wrong"].isna().all()
    assert (results["status"] == "ok").all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mesh": ml.DeviceMesh("tp=8")}, MeshError, "tp=8 has 8 ranks, but there are 4 engines"),
        ({"mode": "graph"}, BenchError, "threads does not support mode 'graph'; choose one of isolated, pipelined"),
        ({"axis": "ep"}, MeshError, "unknown axis or group 'ep'"),
        ({"sizes": "12Q"}, ParseError, "'12Q' is not a size"),
    ],
)
def test_invalid_arguments_are_rejected_before_anything_starts(
    thread_engines: ml.Engines, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"mesh": MESH, "collective": "all_reduce", **arguments}
    with pytest.raises(error, match=message):
        ml.bench(thread_engines, **given)
    assert thread_engines.state == "ready"


def test_a_mesh_that_is_passed_first_is_named() -> None:
    with pytest.raises(BenchError, match=r"^engines must be Engines, not DeviceMesh; start some with ml\.launch"):
        ml.bench(MESH)  # type: ignore[arg-type]


def test_listeners_are_called_after_every_step_and_may_fail(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    heard: list[int] = []
    may_go = hold_runs()
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    run.subscribe(lambda run: heard.append(run.progress.done))
    run.subscribe(lambda run: 1 / 0)
    may_go.set()
    run.wait(120)
    assert heard[-1] == 3
    assert set(heard) >= {1, 2, 3}
    assert any("a listener failed: ZeroDivisionError" in line for line in run.log)


def test_results_can_be_read_while_it_runs(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, sizes="1K:256K", sampling=QUICK)
    seen = 0
    while run.state == "running":
        n = len(run.results)
        assert n >= seen
        seen = n
        run._repr_html_()
    assert len(run.wait(120)) >= seen


def test_a_timeout_of_wait_raises_and_keeps_the_rows(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs()
    run = ml.bench(thread_engines, MESH, sizes="1K:1M", sampling=Sampling(max_s=0.1, precision=1e-9))
    with pytest.raises(BenchError, match=r"did not finish within 0\.01 s and is still running; call wait\(\) again"):
        run.wait(0.01)
    run.cancel()
    may_go.set()
    run.wait(120)


def test_changes_of_a_returned_frame_do_not_affect_the_run(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    frame = run.wait(120)
    frame["time_us"] = 0.0
    assert (run.results["time_us"] > 0).all()


def test_a_saved_run_loads_completely(thread_engines: ml.Engines, tmp_path: Path) -> None:
    mesh = ml.DeviceMesh("dp=2, tp=2", ranks=[0, 3, 2, 1], backends={"dp": "threads"}).with_group("odd", [3, 1])
    run = ml.bench(thread_engines, mesh, ["all_reduce", "broadcast"], axis=["tp", "odd"], sizes="1K:4K", sampling=QUICK)
    run.wait(120)
    again = ml.Run.load(run.save(tmp_path / "run"))
    pd.testing.assert_frame_equal(again.results, run.results)
    pd.testing.assert_frame_equal(again.samples, run.samples)
    assert again.results.attrs == run.results.attrs
    assert (again.plan, again.mesh, again.run_id, again.state) == (run.plan, run.mesh, run.run_id, run.state)
    assert (again.environment, again.log, again.started_at) == (run.environment, run.log, run.started_at)
    assert again.progress == run.progress
    assert repr(again) == repr(run).replace("<Run ", "<RunData ")
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "results.parquet",
        "results.csv",
        "samples.parquet",
        "samples.csv",
        "run.json",
    }
    assert not isinstance(again, ml.Run)  # without engines: it can neither be waited for nor cancelled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "holds no run"),
        ("{", "not valid JSON"),
        ('{"schema": 99}', "the run has schema 99, but this version of meshlab reads 2 to 7"),
        ('{"schema": 2}', "incomplete: run_id is missing"),
    ],
)
def test_a_folder_without_a_run_is_rejected(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(ParseError, match=message):
        ml.Run.load(tmp_path)


@pytest.fixture
def saved(thread_engines: ml.Engines, tmp_path: Path) -> Path:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 4K", sampling=QUICK)
    run.wait(120)
    return run.save(tmp_path / "saved")


def test_a_different_run_in_the_folder_is_overwritten_only_on_request(thread_engines: ml.Engines, saved: Path) -> None:
    first = ml.Run.load(saved)
    ml.Report(first).save(saved / "report.md", pictures=True)
    (saved / "mine.txt").write_text("mine")
    run = ml.bench(thread_engines, MESH, axis="dp", sizes="1K", sampling=QUICK)
    run.wait(120)
    with pytest.raises(
        BenchError, match=f"holds a different run, {first.run_id}; choose another folder, or pass overwrite"
    ):
        run.save(saved)
    assert ml.Run.load(saved).run_id == first.run_id
    run.save(saved, overwrite=True)
    assert ml.Run.load(saved).run_id == run.run_id
    assert {file.name for file in saved.iterdir()} == {
        "mine.txt", "run.json", "results.csv", "results.parquet", "samples.csv", "samples.parquet",
    }  # fmt: skip


def test_the_same_run_may_be_saved_again_and_keeps_its_report(saved: Path) -> None:
    run = ml.Run.load(saved)
    ml.Report(run).save(saved / "report.html")
    run.save(saved)
    assert (saved / "report.html").exists()


def test_a_corrupt_run_is_not_overwritten_either(saved: Path) -> None:
    run = ml.Run.load(saved)
    (saved / "run.json").write_text("{")
    with pytest.raises(BenchError, match="holds a different run; choose another folder"):
        run.save(saved)
    (saved / "run.json").unlink()
    with pytest.raises(BenchError, match="holds a different run; choose another folder"):
        run.save(saved)


@pytest.mark.parametrize("name", ["results", "samples"])
@pytest.mark.parametrize("n_bytes", [0, 10, 2000])
def test_a_corrupt_parquet_file_is_replaced_by_csv_with_a_warning(saved: Path, name: str, n_bytes: int) -> None:
    before = ml.Run.load(saved)
    path = saved / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:n_bytes])
    with pytest.warns(UserWarning, match=f"{name}.parquet is corrupt; its rows were read from {name}.csv"):
        after = ml.Run.load(saved)
    for frame in ("results", "samples"):
        pd.testing.assert_frame_equal(getattr(after, frame), getattr(before, frame))
        assert getattr(after, frame).attrs == getattr(before, frame).attrs
    assert f"its rows were read from {name}.csv" in after.log[-1]


def test_csv_is_read_without_a_warning_if_parquet_is_missing(saved: Path) -> None:
    before = ml.Run.load(saved)
    for path in saved.glob("*.parquet"):
        path.unlink()
    pd.testing.assert_frame_equal(ml.Run.load(saved).results, before.results)


def cut(path: Path, n_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-n_bytes])


@pytest.mark.parametrize("how", ["middle of a row", "end of a row", "gone"])
def test_a_corrupt_csv_file_raises_with_a_fix(saved: Path, how: str) -> None:
    cut(saved / "samples.parquet", 100)
    csv = saved / "samples.csv"
    if how == "gone":
        csv.unlink()
    else:
        cut(csv, 20 if how == "middle of a row" else len(csv.read_bytes().splitlines(keepends=True)[-1]))
    with pytest.raises(
        ParseError, match=r"is corrupt, and samples.csv next to it is not complete either; copy"
    ) as caught:
        ml.Run.load(saved)
    assert "Error" not in str(caught.value)


def test_a_corrupt_frame_raises_a_readable_error(saved: Path) -> None:
    for name in ("results.parquet", "results.csv"):
        cut(saved / name, 30)
        with pytest.raises(ParseError, match=r"not a complete (Parquet|CSV) file; copy it again"):
            ml.compare(saved / name, saved / name)


def test_the_environment_is_recorded_without_secrets(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("MY_TOKEN", "secret-value")
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    run.wait(120)
    assert run.environment["Settings"]["NCCL_ALGO"] == "Ring"
    assert "secret-value" not in str(run.environment)
    assert run.environment["Library"]["backend"] == "threads"
    assert {"Run", "Host", "Library", "Software", "Settings"} == set(run.environment)


def test_progress_estimates_the_time_left(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:64K", sampling=QUICK)
    run.wait(120)
    now = run.progress
    assert (now.done, now.total, now.step, now.left_s) == (7, 7, "", 0.0)
    assert now.elapsed_s > 0
    assert not np.isnan(now.elapsed_s)


def test_an_unfinished_run_gives_no_answers(thread_engines: ml.Engines) -> None:
    gate = threading.Event()

    def hold(comm: Any) -> Any:
        gate.wait(60)
        return comm.barrier

    run = ml.bench(thread_engines, MESH, ["all_reduce", hold, "broadcast"], axis="tp", sizes="1K", sampling=QUICK)
    while run.progress.done < 1:
        time.sleep(0.005)
    for ask in (run.contention, run.interference, run.stragglers, run.spikes, run.pairs, run.matrix, run.to_nccl_tests):
        with pytest.raises(BenchError, match=r"^still running \(1 of 3 steps\); call \.wait\(\)$"):
            ask()
    for analyse in (ml.analysis.contention, ml.analysis.find_spikes, lambda run: ml.compare([run], run)):
        with pytest.raises(BenchError, match=r"^still running \(1 of 3 steps\); call \.wait\(\)$"):
            analyse(run)
    assert len(run.results) == 2
    assert len(run.samples) > 0
    assert str(run.table()).startswith("running: 1 of 3 steps\n\ntp · 2 groups of 2")
    assert run.table()._repr_html_().startswith("<div><b>running: 1 of 3 steps</b></div>")
    assert run.plot(ax=Figure().subplots()).get_title(loc="left").startswith("running: 1 of 3 steps · ")
    early = ml.Report(run)
    run.cancel()
    gate.set()
    run.wait(120)
    assert run.state == "cancelled"
    assert (run.running_note, run.table().note) == ("", "")
    assert "progress" not in run.results.attrs
    run.stragglers()  # a cancelled run answers
    assert "This run is still running: 1 of 3 steps. All 2 results are correct." in early.markdown().split("\n\n")[2]
    assert "This run is still running: 1 of 3 steps. All 2 results are correct." in early.html()
    assert "still running: 1 of 3 steps" in early._repr_html_()
    assert "still running" not in ml.Report(run).html()


def test_pairs_that_are_not_all_measured_have_no_matrix(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs(after=1)
    run = ml.bench_pairs(thread_engines, sizes="1K, 1M", sampling=Sampling(max_s=0.02, min_batches=6))
    with pytest.raises(BenchError, match=r"^still running \(\d+ of \d+ steps\); call \.wait\(\)$"):
        run.matrix()
    may_go.set()
    run.wait(60)
    assert run.matrix().shape == (4, 4)


def test_an_interrupted_wait_in_a_notebook_is_one_sentence_and_the_run_continues() -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    errors: list[dict[str, Any]] = []
    printed: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stderr":
            printed.append(content["text"])
        elif message["msg_type"] == "error":
            errors.append(content)

    def execute(code: str) -> dict[str, Any]:
        return client.execute_interactive(code, timeout=120, output_hook=hear)["content"]

    try:
        start = """
import meshlab as ml
engines = ml.launch(2, backend="threads")
run = ml.bench(engines, sizes="1K", sampling=ml.Sampling(max_s=1e6, max_batches=10**6, precision=1e-9))
"""
        interrupt = """
import os, signal, sys, threading, time

def waits(frame):
    return frame is not None and (frame.f_code.co_qualname == "Run.wait" or waits(frame.f_back))

def interrupt(main=threading.main_thread().ident):
    is_waiting = False
    while not is_waiting:
        time.sleep(0.01)
        frame = sys._current_frames()[main]
        is_waiting = frame.f_code.co_filename == threading.__file__ and waits(frame)
    os.kill(os.getpid(), signal.SIGINT)
"""
        assert execute(start + interrupt)["status"] == "ok"
        assert execute("threading.Thread(target=interrupt).start(); run.wait()")["status"] == "error"
        sentence = "The run continues in the background; call run.cancel() to stop it."
        assert [error["traceback"] for error in errors] == [[sentence]]
        assert (errors[0]["evalue"], printed) == (sentence, [])
        assert execute("assert run.state == 'running'; run.cancel(now=True); run.wait(120)")["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_ranks_that_sample_longer_than_the_deadline_are_not_stuck() -> None:
    sampling = Sampling(max_s=0.6, max_batches=10**6, precision=1e-9)
    with ml.launch(2, backend="threads", deadline_s=0.3) as engines:
        results = ml.bench(engines, sizes="1K", sampling=sampling).wait(60)
    assert results["stop_reason"].tolist() == ["time"]


def test_an_interrupted_wait_in_a_script_is_a_plain_interrupt() -> None:
    # Importing pandas while the interpreter exits would change its exit code: exec() resets a flag of CPython.
    code = """
import os, signal, threading, pandas, meshlab as ml
engines = ml.launch(2, backend="threads")
run = ml.bench(engines, sizes="1K", sampling=ml.Sampling(max_s=1e6, max_batches=10**6, precision=1e-9))
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
run.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


@pytest.mark.long
def test_engines_that_are_closed_while_a_run_replaces_its_ranks_leave_nothing_behind() -> None:
    with ml.launch(2, backend="mpi") as engines:
        name = engines._rank_set._id  # type: ignore[attr-defined]
        run = ml.bench(engines, sizes="1K", launches=3, sampling=QUICK)
        while engines.state != "broken":
            time.sleep(0.001)
        with pytest.raises(EngineError, match=r"busy with launch 2 of 3: starting new ranks; call run.wait\(\) or"):
            engines.close()
        assert run.state == "running"
    assert (run.state, engines.state) == ("cancelled", "closed")
    assert (run.wait(0)["status"] == "ok").any()
    assert not marked_processes("MESHLAB_RUN", name)


def test_launches_on_attached_engines_warn_that_the_processes_are_the_same(mpi_engines: ml.Engines) -> None:
    attached = ml.attach(mpi_engines.client)
    with pytest.warns(UserWarning, match="the 2 launches are new communicators on the same processes, which meshlab"):
        run = ml.bench(attached, MESH, axis="tp", sizes="1K", launches=2, sampling=QUICK)
    results = run.wait(60)
    assert set(results["launch"]) == {0, 1}
    assert len(set(results["process_set"])) == 1


def test_a_run_pauses_between_steps_and_continues(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs()
    began = time.monotonic()
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:64K", sampling=Sampling(max_s=0.05, precision=1e-9))
    states: list[str] = []
    paused = threading.Event()

    def listen(run: ml.Run) -> None:
        states.append(run.state)
        if run.state == "paused":
            paused.set()

    run.subscribe(listen)
    run.pause()
    assert run.is_pausing
    may_go.set()
    assert paused.wait(60)
    at_pause = run.progress
    assert (run.state, run.has_ended, run.is_pausing, thread_engines.state) == ("paused", False, False, "busy")
    assert run.running_note == f"paused: {at_pause.done} of 7 steps"
    with pytest.raises(EngineError, match=rf"busy with a paused run \({at_pause.done} of 7 steps\)"):
        thread_engines.run(lambda comm: comm.rank)
    with pytest.raises(BenchError, match=r"still paused \(\d of 7 steps\); call \.resume\(\) and \.wait\(\)$"):
        run.spikes()
    with pytest.raises(BenchError, match=r"is still paused; call resume\(\), or cancel\(\)$"):
        run.wait(0.01)
    time.sleep(0.3)  # the time of a pause, during which nothing may be measured
    assert run.progress == at_pause
    run.resume()
    results = run.wait(120)
    assert (run.state, len(results)) == ("done", 7 * 2)
    assert states.count("paused") == 1
    assert at_pause.elapsed_s < run.elapsed_s < time.monotonic() - began - 0.3
    assert [line.split(" ", 1)[1] for line in run.log if "pause" in line] == [
        f"paused after {at_pause.done} of 7 steps",
        next(line.split(" ", 1)[1] for line in run.log if "continued after a pause of" in line),
    ]


@pytest.mark.parametrize("how", ["cancel", "now", "close"])
def test_a_paused_run_can_be_cancelled(
    thread_engines: ml.Engines, how: str, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs()
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:64K", sampling=QUICK)
    run.pause()
    may_go.set()
    while run.state == "running":
        time.sleep(0.001)
    assert run.state == "paused"
    if how == "close":
        thread_engines.close(cancel=True)
    else:
        run.cancel(now=how == "now")
    run.wait(60)
    assert run.state == "cancelled"
    run.pause()
    run.resume()
    assert (run.state, run.is_pausing) == ("cancelled", False)


def test_a_pause_that_is_taken_back_has_no_effect(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs()
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    while not run.progress.step:
        time.sleep(0.001)
    run.pause()
    assert run.is_pausing
    run.resume()
    may_go.set()
    run.wait(60)
    assert run.state == "done"
    assert not any("paused" in line for line in run.log)


@pytest.mark.parametrize("engines", FULL_ON_MPI, indirect=True)
def test_options_are_columns_and_survive_saving_and_resuming(engines: ml.Engines, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "axis": "tp",
        "sizes": "1K, 4K",
        "n_aggregated": 3,
        "alignment_bytes": 8,
        "grouping": "together, alone",
        "sampling": Sampling(max_s=0.02, min_batches=6),
    }
    run = ml.bench(engines, "dp=2, tp=2", ["all_reduce", "send_recv"], **arguments)
    results = run.wait(60)
    assert results["n_wrong"].eq(0).all()
    options = ["buffers", "alignment_bytes", "n_aggregated"]
    assert results[options].drop_duplicates().values.tolist() == [["plain", 8, 3]]
    assert (results["calls"] % 3 == 0).all()
    slowest = run.samples.query("not is_warmup").groupby(["step", "group", "batch"])["time_us"].max()
    assert np.isclose(slowest.groupby(["step", "group"]).median().sort_values(), results["time_us"].sort_values()).all()
    again = ml.Run.load(run.save(tmp_path / "run"))
    assert again.plan == run.plan
    pd.testing.assert_frame_equal(again.results, results)
    resumed = ml.bench(engines, resume=again)
    pd.testing.assert_frame_equal(resumed.wait(60), results)
    assert "8 B off alignment" in str(run.table())
    assert len(run.contention()) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"buffers": "plain, symmetric"},
            "has only plain buffers, not symmetric: only NCCL has them, on GPUs; omit buf",
        ),
        ({"buffers": "registered"}, "has only plain buffers, not registered"),
        (
            {"algorithm": "ring", "max_ctas": 4},
            "cannot choose algorithm and max_ctas per call: only NCCL has it, on GPU",
        ),
        ({"cta_policy": "zero"}, "cannot choose cta_policy per call"),
    ],
)
def test_options_that_the_backend_lacks_are_refused(engines: ml.Engines, options: Any, message: str) -> None:
    with pytest.raises(BenchError, match=f"{engines.backend} {message}"):
        ml.bench(engines, sizes="1K", **options)
    assert engines.state == "ready"
