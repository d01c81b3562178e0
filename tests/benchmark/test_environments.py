"""Comparison of environment settings, on new processes for each run."""

from __future__ import annotations

import os

import pytest

import meshlab as ml
from meshlab.analysis._turns import TurnComparison
from meshlab.base._errors import BenchError, EngineError
from meshlab.plans._sampling import Sampling

MESH = ml.DeviceMesh("tp=2")


def environment_matters(comm: object) -> None:
    """Take longer if NCCL_ALGO is Tree."""
    import time

    time.sleep(0.002 if os.environ.get("NCCL_ALGO") == "Tree" else 0.0005)


@pytest.mark.full
@pytest.mark.slow
def test_settings_are_measured_on_new_engines_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark import _environments as environments

    started = []
    original = environments.launch

    def record(n: int, **arguments: object) -> object:
        started.append(arguments["env"])
        return original(n, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(environments, "launch", record)
    ring, tree = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}
    found = ml.compare_env(
        MESH, {"ring": ring, "tree": tree}, environment_matters, rounds=1, backend="mpi", sampling=Sampling(max_s=0.1)
    )
    assert started == [ring, tree]
    assert {name: len(runs) for name, runs in found.runs.items()} == {"ring": 1, "tree": 1}
    results = found.results
    assert results.groupby("setting")["time_us"].median().loc["tree"] > 1800
    assert results[["setting", "launch"]].to_numpy().tolist() == [["ring", 0], ["tree", 0]]
    assert results["process_set"].nunique() == 2
    assert all(run.environment["Settings"]["NCCL_ALGO"] == "Tree" for run in found.runs["tree"])


@pytest.mark.long
@pytest.mark.slow
def test_engines_of_all_settings_take_turns_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark import _environments as environments

    alive: list[ml.Engines] = []
    states = []
    original = environments.launch

    def record(n: int, **arguments: object) -> ml.Engines:
        states.append([engines.state for engines in alive])
        alive.append(original(n, **arguments))  # type: ignore[arg-type]
        return alive[-1]

    monkeypatch.setattr(environments, "launch", record)
    settings = {"ring": {"NCCL_ALGO": "Ring"}, "tree": {"NCCL_ALGO": "Tree"}}
    comparison = ml.compare_env(
        MESH, settings, environment_matters, rounds=2, backend="mpi", sampling=Sampling(max_s=0.1)
    )
    # In the second round, the engines of the first one are closed, and those of the other setting wait for their turn.
    assert states == [[], ["busy"], ["closed"] * 2, ["closed"] * 2 + ["busy"]]
    assert all(run.samples["block"].nunique() == 8 for runs in comparison.runs.values() for run in runs)
    turns = comparison.comparisons["tree"]
    assert isinstance(turns, TurnComparison)
    assert (turns.before, turns.after) == ("ring", "tree")
    row = turns.rows.iloc[0]
    assert row[["n_rounds", "n_pairs", "launches_before", "launches_after"]].tolist() == [2, 16, 2, 2]
    assert row["ratio"] > 1.5
    assert comparison.headlines["tree"].startswith("tree against ring: ")
    assert "tree takes" in str(comparison)


class Threads:
    """Starts threads instead of processes, and counts the turns of the settings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken_turns: set[int]) -> None:
        from meshlab.benchmark import _environments as environments

        self.turn, self.broken_turns = -1, broken_turns
        self.settings: list[object] = []
        self.original = environments.launch
        monkeypatch.setattr(environments, "launch", self.launch)

    def launch(self, n: int, **arguments: object) -> ml.Engines:
        self.turn += 1
        self.settings.append(arguments["env"])
        return self.original(n, backend="threads")

    def function(self, comm: ml.Communicator) -> None:
        if self.turn in self.broken_turns and comm.rank == 1:
            raise ValueError("a bad cable")


def test_a_failed_setting_is_named_and_the_finished_rounds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch, broken_turns={2})
    quick = Sampling(max_s=0.02, min_batches=6)
    settings = {"ring": {"NCCL_ALGO": "Ring"}, "tree": {"NCCL_ALGO": "Tree"}}
    with pytest.raises(EngineError, match=r"setting 'tree' failed in round 2 of 3: .*bad cable") as caught:
        ml.compare_env(MESH, settings, threads.function, rounds=3, sampling=quick)
    assert "the results of 2 runs are in the attribute .measured of this error" in str(caught.value)
    assert caught.value.rank == 1
    found = caught.value.measured
    assert {name: len(runs) for name, runs in found.runs.items()} == {"ring": 1, "tree": 1}
    assert found.results["setting"].tolist() == ["ring", "tree"]
    assert found.headlines["tree"].startswith("tree against ring: 1 row compared")


def test_an_immediate_failure_of_the_first_setting_leaves_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch, broken_turns={0})
    with pytest.raises(EngineError, match="setting 'a' failed in round 1 of 3: ") as caught:
        ml.compare_env(MESH, {"a": {}, "b": {}}, threads.function)
    assert caught.value.measured is None
    assert ".measured" not in str(caught.value)


def test_variables_that_the_backend_does_not_read_are_rejected() -> None:
    settings = {"ring": {"NCCL_ALGO": "Ring"}, "tree": {"NCCL_ALGO": "Tree"}}
    with pytest.raises(BenchError, match=r"mpi does not read NCCL_ALGO, so the settings would not differ") as caught:
        ml.compare_env(MESH, settings, backend="mpi")
    assert "pass backend='nccl', or remove it; mpi reads variables that start with MPIR_" in str(caught.value)
    with pytest.raises(BenchError, match=r"mpi does not read FOO, BAR, so"):
        ml.compare_env(MESH, {"a": {"FOO": "1"}, "b": {"BAR": "1", "MPIR_CVAR_X": "1"}}, backend="mpi")
    for collective in ("all_reduce", ["all_reduce", "broadcast"], ml.Plan("all_reduce", "tp")):
        with pytest.raises(BenchError, match="nccl does not read MPICH_X"):
            ml.compare_env(MESH, {"a": {}, "b": {"MPICH_X": "1"}}, collective, backend="nccl")


def test_settings_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch, broken_turns=set())
    quick = Sampling(max_s=0.02, min_batches=6)
    settings = {name: {"NAME": name} for name in "ab"}
    found = ml.compare_env(MESH, settings, threads.function, rounds=3, sampling=quick)
    assert threads.settings == [settings[name] for name in "abbaab"]
    assert found.results[["setting", "launch"]].to_numpy().tolist() == [[name, k] for name in "ab" for k in range(3)]
    assert found.comparisons["b"].frame()[["launches_before", "launches_after"]].to_numpy().tolist() == [[3, 3]]


def test_progress_counts_the_steps_of_all_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = Threads(monkeypatch, broken_turns=set())
    quick = Sampling(max_s=0.02, min_batches=6)
    ml.compare_env(MESH, {"a": {}, "b": {}}, threads.function, rounds=2, sampling=quick, progress=True)
    shown = capsys.readouterr().err
    assert "b, round 2 of 2" in shown
    assert "4/4" in shown
    ml.compare_env(MESH, {"a": {}, "b": {}}, threads.function, rounds=2, sampling=quick)
    assert capsys.readouterr().err == ""


def test_fewer_than_two_settings_are_rejected() -> None:
    with pytest.raises(BenchError, match="needs at least two settings, not 0"):
        ml.compare_env(MESH, {})
    with pytest.raises(BenchError, match="rounds must be at least 1, not 0"):
        ml.compare_env(MESH, {"a": {}, "b": {}}, rounds=0)
