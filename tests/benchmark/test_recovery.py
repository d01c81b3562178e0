"""What the failure of a rank costs: a killed and a stuck rank on real processes, and the checks of the arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError
from meshlab.benchmark._recovery import _row, _sentence


def n_open(comm: Any) -> int:
    from meshlab.benchmark.on_ranks import _faults

    return len(_faults._open)


def are_closed_before_others_open(comm: Any) -> bool:
    from meshlab.benchmark.on_ranks import _faults

    _faults.open_communicators(comm, [np.zeros(comm.size, dtype=np.int32)])
    (group,) = _faults._open
    _faults.open_communicators(comm, [])
    return bool(group._is_closed)


@pytest.mark.full
def test_a_killed_and_a_stuck_rank_cost_seconds_until_all_ranks_reduce_again() -> None:
    with ml.launch(2, backend="mpi") as engines:
        frame = ml.benchmark.recovery(engines, "dp=1, tp=2", communicators=3, repeats=1, deadline_s=1.0)
        assert engines.state == "ready"
        assert engines.run(n_open)["value"].tolist() == [0, 0]
        assert engines.run(are_closed_before_others_open)["value"].all()
        with pytest.raises(EngineError, match="the ranks of mpi do not survive the fault of another one"):
            engines.shrink()
        assert engines.state == "ready"
        with pytest.raises(BenchError, match="the ranks of mpi do not survive"):
            ml.benchmark.recovery(engines, ways="shrink")
    assert frame[["fault", "way", "n_communicators", "n_ranks", "n_ranks_after"]].to_numpy().tolist() == [
        ["killed", "restart", 3, 2, 2],
        ["stuck", "restart", 3, 2, 2],
    ]
    assert frame["n_right"].tolist() == [1, 1]
    assert (frame["total_s"] == frame[["detected_s", "restarted_s", "opened_s"]].sum(axis=1)).all()
    assert frame.loc[1, "detected_s"] >= 1.0
    assert frame["total_s_lo"].isna().all()
    assert "a rank that is killed costs" in frame.attrs["verdict"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "threads cannot be killed"),
        ({"faults": "late"}, "unknown fault 'late'; choose from killed, stuck"),
        ({"ways": "retry"}, "unknown way 'retry'; choose from restart, shrink"),
        ({"repeats": 0}, "repeats must be an integer of at least 1"),
        ({"communicators": []}, "repeats must be an integer of at least 1, and communicators of at least 0"),
    ],
)
def test_bad_arguments_are_rejected(thread_engines: ml.Engines, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        ml.benchmark.recovery(thread_engines, **arguments)


def test_a_row_has_intervals_and_says_what_is_wrong() -> None:
    parts = [(1.0 + 0.01 * number, 4.0, 0.5, number > 0, 3) for number in range(6)]
    row = _row(parts, fault="killed", way="shrink", n_communicators=1, n_ranks=4)
    assert row["n_right"] == 5
    assert row["total_s_lo"] == pytest.approx(5.5)
    assert row["total_s_hi"] == pytest.approx(5.55)
    assert _sentence(row) == (
        "a rank that is killed costs 5.5\u2009s (5.5\u2009s to 5.5\u2009s) until the first right all_reduce of the "
        "3 ranks that are left, right in only 5 of 6: 1.0\u2009s to detect it, 4.0\u2009s to shrink, 0.5\u2009s to "
        "open 1 communicator and reduce"
    )
