"""Functions of the user with an expected result: they are checked, and without one they do not pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError

SAMPLING = ml.Sampling(max_s=0.02)


def total(comm: Any) -> Any:
    x = comm.xp.full(8, 1.0 + comm.rank)
    return lambda: comm.all_reduce(x)


def spoiled(comm: Any) -> Any:
    work = total(comm)

    def call() -> Any:
        array = work()
        array[3] += 1
        return array

    return call


def sums(comm: Any) -> Any:
    return np.full(8, sum(range(1, comm.size + 1)), float)


@pytest.mark.parametrize(
    ("function", "expected", "n_wrong", "outcome"),
    [(total, sums, 0, "passed"), (spoiled, sums, 2, "failed"), (spoiled, None, None, "not decided")],
)
def test_a_function_passes_if_its_result_is_expected(
    thread_engines: ml.Engines, function: Any, expected: Any, n_wrong: int | None, outcome: str
) -> None:
    run = ml.bench(thread_engines, "dp=2, tp=2", function, axis="tp", expected=expected, sampling=SAMPLING)
    row = run.wait().iloc[0]
    assert (None if n_wrong is None else int(row["n_wrong"])) == n_wrong
    report = ml.Report(run)
    assert (report.outcome, report.is_passed) == (outcome, outcome == "passed")


def test_functions_are_checked_by_name(thread_engines: ml.Engines) -> None:
    run = ml.bench(
        thread_engines,
        "dp=2, tp=2",
        [total, spoiled, "barrier"],
        axis="tp",
        expected={"total": sums},
        sampling=SAMPLING,
    )
    results = run.wait()
    assert results[results["collective"] == "total"]["n_wrong"].tolist() == [0] * 2
    assert results[results["collective"] == "spoiled"]["n_wrong"].isna().all()
    assert ml.Report(run).outcome == "not decided"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"collective": [total, spoiled], "expected": sums}, "expected is one function, but there are 2"),
        ({"collective": "all_reduce", "expected": sums}, "there are 0 functions"),
        ({"collective": total, "expected": {"other": sums}}, "'other', which is no function"),
        ({"collective": ml.Plan("all_reduce", "tp"), "expected": sums}, "not to a Plan"),
    ],
)
def test_an_expectation_without_its_function_is_an_error(
    thread_engines: ml.Engines, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        ml.bench(thread_engines, "dp=2, tp=2", **arguments)


def test_a_result_of_another_shape_or_none_fails_with_the_reason(thread_engines: ml.Engines) -> None:
    def silent(comm: Any) -> Any:
        comm.barrier()

    def short(comm: Any) -> Any:
        return comm.xp.ones(3)

    for function, reason in ((silent, "silent returns nothing"), (short, r"shape \(8,\)|\(8,\) is expected")):
        with pytest.raises(BenchError, match=reason):
            ml.bench(thread_engines, "dp=2, tp=2", function, axis="tp", expected=sums, sampling=SAMPLING).wait()
