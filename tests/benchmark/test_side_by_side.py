"""Comparison with nccl-tests on two H200 GPUs, computed from a saved frame of measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.gpu import side_by_side
from tests.gpu.side_by_side import PROGRAMS, geometric_means, judge

MEASURED = Path(__file__).parents[1] / "gpu" / "side_by_side_2xH200.csv"


@pytest.fixture(scope="module")
def judged() -> pd.DataFrame:
    return judge(pd.read_csv(MEASURED))


def test_a_captured_call_takes_the_same_time_as_in_nccl_tests(judged: pd.DataFrame) -> None:
    means = geometric_means(judged[judged["mode"] == "graph"])["graph"]
    assert set(means.index) == set(PROGRAMS)
    assert (means <= 1.01).sum() >= 6
    assert means["send_recv"] == means.max() == pytest.approx(1.012, abs=0.001)


def test_most_sizes_are_within_five_percent(judged: pd.DataFrame) -> None:
    graph = judged[judged["mode"] == "graph"]
    beyond = graph[graph["ratio_hi"] > np.maximum(1.05, graph["itself_hi"])]
    assert len(graph) > 175
    assert len(beyond) / len(graph) < 0.07
    assert beyond["ratio_hi"].max() < 1.06


def test_large_pipelined_calls_take_the_same_time_as_in_nccl_tests(judged: pd.DataFrame) -> None:
    large = judged[(judged["mode"] == "pipelined") & (judged["size_bytes"] >= 1 << 20)]
    assert len(large) == 4 * 11
    assert (geometric_means(large)["pipelined"] <= 1.03).all()


def test_one_launch_has_ratios_without_intervals() -> None:
    launch = judge(pd.read_csv(MEASURED).drop(columns=[f"launch_{number}" for number in range(1, 5)]))
    assert len(launch) > 175
    assert launch[["ratio_hi", "itself_hi"]].isna().all(axis=None)
    assert geometric_means(launch)["graph"].between(0.95, 1.05).all()


@pytest.mark.parametrize("columns", [["launch_0"], ["launch_0", "launch_1"], []])
def test_the_comparison_ends_without_error(
    columns: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(MEASURED)
    index = [name for name in frame if not name.startswith("launch_")]
    frame = frame[[*index, *columns]] if columns else frame[[*index, "launch_0"]].head(0)
    monkeypatch.setattr(side_by_side, "measure", lambda *arguments: frame)
    monkeypatch.setattr("sys.argv", ["side_by_side.py", "--build", "build", "--out", str(tmp_path / "table.csv")])
    assert side_by_side.main() == (0 if columns else 1)
    n_judged = len(frame) // 2 if len(columns) > 1 else 0
    summary = f"of {n_judged} sizes beyond" if columns else "no size was measured by both"
    assert summary in capsys.readouterr().out


def test_no_common_size_has_no_mean() -> None:
    table = judge(pd.read_csv(MEASURED).head(0))
    assert table.empty
    assert geometric_means(table).empty
