"""The conditions of the hosts while a run measures: counters, rows, files, and the headline that follows from them."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import psutil
import pytest

import meshlab as ml
from meshlab.benchmark import _host_record as host_record
from meshlab.benchmark._host_record import HostRecord, conditions_between
from meshlab.benchmark.on_ranks._host_counters import HostCounters, read_counters
from meshlab.cli._main import main
from meshlab.commissioning._outcome import joined_run
from meshlab.frames._schema import CONDITIONS, conditions_frame
from meshlab.plans._sampling import Sampling
from meshlab.runs._rundata import RunData
from meshlab.topology.readers import _nvml as nvml
from meshlab.widgets._following import run_state

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.02, min_batches=6)
FIRST = HostCounters(10.0, 50.0, 1.0, 100.0, 5.0, 3.0, 4, 2000.0, {7: 20.0, 8: 1.0})
BUSY = {"host": "node1", "seconds": 1.0, "cores": 2, "other_cores": 1.4, "load": 9.0}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading after every step."""
    for name in ("_PERIOD_S", "_LEAST_S"):
        monkeypatch.setattr(host_record, name, 0.0)
    monkeypatch.setattr(host_record, "_SHARE", 1e9)
    monkeypatch.setattr(host_record, "_READINGS", 1e9)


def test_the_time_of_the_ranks_does_not_count_as_that_of_others() -> None:
    second = replace(
        FIRST, at_s=12.0, busy_s=56.0, steal_s=1.4, total_s=108.0, waiting_s=6.0, own_s={7: 23.0, 8: 1.5, 9: 40.0}
    )
    row = conditions_between(FIRST, second)
    # Process 9 is new, so that its time before is unknown. All times are those of two seconds on four cores.
    assert row == pytest.approx(
        {
            "seconds": 2.0,
            "cores": 4,
            "load": 3.0,
            "cpu_mhz": 2000.0,
            "own_cores": 3.5 / 2,
            "other_cores": (6 - 3.5) / 2,
            "waiting_percent": 50.0,
            "steal_percent": 5.0,
        }
    )
    # Ticks of 10 ms may give the ranks more time than all processes had.
    assert conditions_between(FIRST, replace(FIRST, at_s=10.01, own_s={7: 20.01, 8: 1.0}))["other_cores"] == 0.0
    unknown = HostCounters(10.0, 50.0, 0.0, 100.0)
    assert conditions_between(unknown, unknown) == {"seconds": 0.0, "cores": 1}


def test_processes_of_others_on_the_gpus_are_counted() -> None:
    gpus = [
        {"id": 0, "clock_sm_mhz": 1980.0, "throttle": "", "pids": (7, 99)},
        {"id": 1, "clock_sm_mhz": 1200.0, "throttle": "power cap, hardware slowdown", "pids": (8, 99, 98)},
        {"id": 2, "throttle": "power cap"},
    ]
    row = conditions_between(FIRST, replace(FIRST, gpus=gpus))
    assert row["gpu_clock_mhz"] == 1200.0
    assert row["gpu_throttle"] == "power cap, hardware slowdown"
    assert row["gpu_other_processes"] == 2
    # The driver lists the processes of a container by other numbers, or not at all.
    for pids in ((), (4711,)):
        assert "gpu_other_processes" not in conditions_between(FIRST, replace(FIRST, gpus=[{"id": 0, "pids": pids}]))


def test_clocks_are_read_as_far_as_the_driver_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        NVMLError = type("NVMLError", (Exception,), {})
        NVML_CLOCK_SM = 1

        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            return 2

        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
            return index

        def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
            if handle:
                raise self.NVMLError("not supported")
            return 1980

        def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
            return [SimpleNamespace(pid=42)]

    monkeypatch.setattr(nvml, "_start", lambda: (Driver(), ""))
    assert nvml.ClockReader().read() == [{"id": 0, "clock_sm_mhz": 1980.0, "pids": (42,)}, {"id": 1, "pids": (42,)}]
    monkeypatch.setattr(nvml, "_start", lambda: (None, "no driver"))
    assert nvml.ClockReader().read() == []


def test_counters_of_this_host_grow() -> None:
    pid = os.getpid()
    first = read_counters([pid, 2**22 + 1], with_gpus=False)
    assert list(first.own_s) == [pid]  # the other process does not exist
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    second = read_counters([pid], with_gpus=False)
    assert second.own_s[pid] >= first.own_s[pid] + 0.03
    assert second.total_s > first.total_s
    assert second.busy_s >= first.busy_s
    assert second.cores == psutil.cpu_count()


@pytest.mark.usefixtures("often")
def test_a_run_records_saves_and_resumes_its_conditions(thread_engines: ml.Engines, tmp_path: Path) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 2K", sampling=QUICK, out=tmp_path / "run")
    run.wait(120)
    conditions = run.conditions
    assert {name: str(dtype) for name, dtype in conditions.dtypes.items()} == {c.name: c.dtype for c in CONDITIONS}
    assert set(conditions["host"]) == {socket.gethostname()}
    steps = conditions["step"].dropna().unique().tolist()
    assert steps == [0, 1]
    assert conditions["n_steps"].sum() == 2
    assert conditions["own_cores"].max() <= psutil.cpu_count()
    assert ml.Run.load(tmp_path / "run").conditions.equals(conditions)

    larger = ml.Plan("all_reduce", "tp", sizes="512, 1K, 2K", sampling=QUICK)
    resumed = ml.bench(thread_engines, MESH, larger, resume=ml.Run.load(tmp_path / "run"))
    resumed.wait(120)
    again = resumed.conditions["step"].dropna().unique().tolist()
    assert again == [1, 2, 0]  # the steps have other numbers in the larger plan


def test_ranks_in_processes_count_as_the_run(mpi_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_record, "_SHARE", 1e9)
    spun: list[HostRecord] = []
    begin = HostRecord.begin

    def recorded_begin(record: HostRecord, *arguments: Any) -> None:
        begin(record, *arguments)
        spun.append(record)

    monkeypatch.setattr(HostRecord, "begin", recorded_begin)
    run = ml.bench(mpi_engines, sizes="1K", sampling=QUICK)
    run.wait(120)
    pids = spun[0]._pids[socket.gethostname()]
    assert set(pids) == {os.getpid(), *(info.pid for info in mpi_engines.ranks)}


@pytest.mark.usefixtures("often")
def test_the_other_side_of_turns_is_no_other_program(
    thread_engines: ml.Engines, mpi_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_engines, "takes_turns_with", [mpi_engines])
    pids: list[set[int]] = []
    read = host_record.read_counters

    def recorded_read(of_run: set[int], *, with_gpus: bool) -> HostCounters:
        pids.append(of_run)
        return read(of_run, with_gpus=with_gpus)

    monkeypatch.setattr(host_record, "read_counters", recorded_read)
    ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK).wait(120)
    assert pids[-1] == {os.getpid(), *(info.pid for info in mpi_engines.ranks)}


def test_other_hosts_are_read_on_their_first_rank(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines are those of this host, but the client seems to be on another one."""
    monkeypatch.setattr(host_record.socket, "gethostname", lambda: "client")
    for name in ("_PERIOD_S", "_LEAST_S", "_REMOTE_PERIOD_S"):
        monkeypatch.setattr(host_record, name, 0.0)
    monkeypatch.setattr(host_record, "_SHARE", 1e9)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    run.wait(120)
    assert set(run.conditions["host"]) == {"client", thread_engines.ranks[0].host}


def test_short_steps_share_a_reading_and_readings_become_rarer(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_record, "_PERIOD_S", 1e6)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 2K, 4K", sampling=QUICK)
    run.wait(120)
    rows = run.conditions
    assert len(rows) <= 2  # before the first step, and at the end
    assert rows["n_steps"].sum() == 3


def test_runs_of_an_acceptance_join_their_conditions(thread_engines: ml.Engines) -> None:
    runs = {}
    for name in ("first", "second"):
        runs[name] = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 2K", sampling=QUICK)
        runs[name].wait(120)
        runs[name].condition_rows = [{"host": "node1", "seconds": 1.0, "step": 1}, {"host": "node1", "seconds": 1.0}]
    plan = runs["first"].plan
    joined = joined_run(runs, plan, MESH, run_id="joined", source="threads", where="here")
    assert joined.conditions["step"].tolist() == [1, pd.NA, 3, pd.NA]


def test_hosts_are_redacted(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    run.wait(120)
    run.condition_rows = [{**BUSY, "host": "node17.cluster.example"}]
    (host,) = run.redacted().conditions["host"]
    assert host.startswith("host-")
    assert run.redacted().conditions["other_cores"].tolist() == [1.4]


def test_without_rows_the_frame_has_all_columns() -> None:
    assert list(conditions_frame([])) == [column.name for column in CONDITIONS]
    assert ml.describe(ml.frames.CONDITIONS).loc["load", "dtype"] == "float64"


def _uncertain_run(run: ml.Run) -> RunData:
    """Return a copy whose times are uncertain, on a busy host."""
    results = run.results
    wide = results.assign(time_us_lo=results["time_us"] / 2, time_us_hi=results["time_us"] * 2)
    return RunData(
        run.plan,
        run.mesh,
        run_id=run.run_id,
        source=run.source,
        where=run.where,
        state="done",
        n_done=run.n_done,
        conditions=[BUSY],
        results=wide,
    )


def test_the_headline_of_an_uncertain_run_is_that_it_is_uncertain(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 2K", sampling=QUICK)
    run.wait(120)
    noisy = _uncertain_run(run)
    sentence = "All 4 intervals are wider than 10\u2009%: other programs use 1.4 of 2 cores, load 9.0."
    assert noisy.uncertainty == sentence
    report = ml.Report(noisy)
    assert report.verdict == f"{sentence} All 4 results are correct."
    assert report.markdown().count(sentence) >= 2  # the headline and the answer
    assert "Measure again while the hosts are idle" in report.next_step
    assert report.is_passed  # nothing is wrong or slow
    state = run_state(noisy)
    assert state["verdict"] == sentence.rstrip(".")
    assert sentence in noisy._repr_html_()
    wrong = noisy.results.assign(status="wrong", n_wrong=3)
    assert "WRONG" in ml.Report(wrong).verdict  # which is worse


def test_a_certain_run_keeps_its_headline(make_results: Any) -> None:
    results = make_results(collectives=["all_reduce"], axes=["tp"])
    assert "uncertain" not in ml.Report(results).markdown()


@pytest.mark.usefixtures("often")
def test_a_run_that_is_killed_keeps_its_conditions(thread_engines: ml.Engines, tmp_path: Path) -> None:
    """They are in the journal, of which each record only has the new rows."""
    folder = tmp_path / "run"
    seen: list[pd.DataFrame] = []
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 2K, 4K, 8K", sampling=QUICK, out=folder)
    run.subscribe(lambda run: seen.append(ml.Run.load(folder).conditions) if not run.has_ended else None)
    run.wait(120)
    whole = run.conditions
    assert max(map(len, seen)) >= 3
    for part in seen:
        assert part.equals(whole[: len(part)])


def test_the_command_line_begins_with_the_uncertainty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("meshlab.runs._certainty._WIDE", -1.0)  # all intervals are
    arguments = ["bench", "--mesh", "tp=2", "--sizes", "1K, 2K", "--backend", "threads", "--seconds", "0.02"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert out.index("! All 2 intervals are wider") < out.index("1\u2009KiB")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.md")]) == 0
    assert "All 2 intervals are wider" in (tmp_path / "report.md").read_text()
