"""Settings of the environment against each other, on fresh processes each time."""

from __future__ import annotations

import os

import pytest

import meshlab as ml
from meshlab.benchmark import Sampling
from meshlab.errors import BenchError

MESH = ml.DeviceMesh("tp=2")


def environment_matters(comm: object) -> None:
    """Takes longer where a variable says so."""
    import time

    time.sleep(0.002 if os.environ.get("NCCL_ALGO") == "Tree" else 0.0005)


@pytest.mark.slow
def test_settings_take_turns_on_fresh_engines_and_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark import alternate

    started = []
    honest = alternate.launch

    def note(n: int, **arguments: object) -> object:
        started.append(arguments["env"])
        return honest(n, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(alternate, "launch", note)
    ring, tree = {"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"}
    found = ml.compare_env(
        MESH, {"ring": ring, "tree": tree}, environment_matters, rounds=2, backend="mpi", sampling=Sampling(max_s=0.1)
    )
    assert started == [ring, tree, tree, ring]
    assert {name: len(runs) for name, runs in found.runs.items()} == {"ring": 2, "tree": 2}
    results = found.results
    assert results.groupby("setting")["time_us"].median().loc["tree"] > 1800
    assert results[["setting", "launch"]].to_numpy().tolist() == [["ring", 0], ["ring", 1], ["tree", 0], ["tree", 1]]
    assert results.groupby("setting")["run_id"].nunique().tolist() == [2, 2]
    assert all(run.environment["Settings"]["NCCL_ALGO"] == "Tree" for run in found.runs["tree"])


def test_two_settings_at_least() -> None:
    with pytest.raises(BenchError, match="needs at least two settings, not none"):
        ml.compare_env(MESH, {})
    with pytest.raises(BenchError, match="rounds=0 must be at least 1"):
        ml.compare_env(MESH, {"a": {}, "b": {}}, rounds=0)
