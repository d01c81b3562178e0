"""Two sides that take turns on the same ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError
from meshlab.benchmark import compare_now


def sleeping(seconds: float) -> Callable[[ml.Communicator], Any]:
    def work(comm: ml.Communicator) -> Callable[[], None]:
        call = comm.prepare("all_reduce", comm.xp.zeros(4), comm.xp.zeros(4))

        def slow_call() -> None:
            time.sleep(seconds)
            call()

        return slow_call

    return work


def test_a_function_that_takes_longer_is_slower(thread_engines: ml.Engines) -> None:
    sides = {"short": sleeping(0.002), "long": sleeping(0.008)}
    comparison = compare_now(thread_engines, "dp=2, tp=2", sides, axis="tp", budget_s=2)
    rows = comparison.rows
    assert rows["group"].tolist() == ["tp_0", "tp_1"]
    assert rows["verdict"].tolist() == ["SLOWER", "SLOWER"]
    assert rows["ratio"].between(1.5, 5).all()
    assert (rows["n_rounds"] >= 7).all()
    assert (comparison.before, comparison.after) == ("short", "long")
    assert "long takes" in str(comparison)
    assert thread_engines.state == "ready"


def test_the_options_of_a_side_are_a_difference_and_not_a_column(thread_engines: ml.Engines) -> None:
    sides = {"out": {"in_place": False}, "in": {"in_place": True, "dtype": "float64"}}
    comparison = compare_now(thread_engines, "tp=4", sides, sizes="1K, 4K", budget_s=0.5)
    assert [str(difference) for difference in comparison.differences] == [
        "dtype: float32 before, float64 after",
        "in place: False before, True after",
    ]
    assert comparison.rows["size_bytes"].tolist() == [1024, 4096]
    assert {"in_place", "dtype"}.isdisjoint(comparison.rows)
    assert (comparison.rows["n_rounds"] >= 7).all()
    assert set(comparison.rows["verdict"]) <= {"SLOWER", "FASTER", "SAME", "UNCLEAR"}


def test_different_collectives_and_aggregated_calls_take_turns(thread_engines: ml.Engines) -> None:
    sides = {"one": "all_reduce", "two": {"collective": "all_gather", "n_aggregated": 2}}
    comparison = compare_now(thread_engines, None, sides, sizes="4K", budget_s=0.2)
    assert comparison.rows["collective"].tolist() == ["call"]
    assert "collective: all_reduce before, all_gather after" in map(str, comparison.differences)


def test_every_round_has_new_communicators(thread_engines: ml.Engines) -> None:
    opened = []

    def record(comm: ml.Communicator) -> Callable[[], object]:
        opened.append(comm)
        return comm.prepare("barrier")

    comparison = compare_now(thread_engines, "tp=4", {"a": record, "b": record}, budget_s=0.1)
    n_rounds = comparison.rows["n_rounds"][0]
    assert n_rounds >= 7
    assert len({id(comm) for comm in opened}) == n_rounds * 4
    assert len(opened) == n_rounds * 4 * 2  # both sides use the same ones


def test_a_failing_side_raises_with_the_rounds_before_it(thread_engines: ml.Engines) -> None:
    calls: list[int] = []

    def fails_later(comm: ml.Communicator) -> Callable[[], object]:
        calls.append(comm.rank)
        if len(calls) > 12:
            raise ValueError("a bad cable")
        return comm.prepare("barrier")

    with pytest.raises(EngineError, match=r"the turns of a and b failed at round 4 of 40: .*a bad cable") as caught:
        compare_now(
            thread_engines,
            "tp=4",
            {"a": lambda comm: comm.prepare("barrier"), "b": fails_later},
            budget_s=0.1,
        )
    assert caught.value.measured.rows["n_rounds"].tolist() == [3]
    assert thread_engines.state == "ready"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sides": {"a": {}}}, r"compare_now\(\) needs two sides, not 1 \(a\)"),
        ({"sides": ["a", "b"]}, "needs two sides, not \\['a', 'b'\\]"),
        (
            {"sides": {"a": {}, "b": {"inplace": True}}},
            r"option 'inplace' of side 'b' is unknown \(did you mean 'in_place'\?\)",
        ),
        ({"sides": {"a": {}, "b": {"sizes": "1K"}}}, "option 'sizes' of side 'b' is the same for both sides"),
        ({"sides": {"a": {}, "b": {"dtype": "float32, float64"}}}, "the sides need the same number of calls"),
        ({"launches": 3}, "launches cannot be chosen for sides that take turns"),
        ({"sides": {"a": {}, "b": {"launches": 3}}}, "option 'launches' of side 'b' is the same for both sides"),
        ({"budget_s": -1}, "budget_s must be a positive number"),
        ({"effect": 1.5}, "effect must be a positive number below 1"),
        ({"sides": {"a": {}, "b": {"algorithm": "ring"}}}, "threads cannot choose algorithm per call"),
        ({"sizes": "512T"}, "nothing fits into the memory of the ranks: its buffers take"),
    ],
)
def test_comparisons_without_two_measurable_sides_are_rejected(
    thread_engines: ml.Engines, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BenchError, match=message):
        compare_now(thread_engines, "tp=4", **{"sides": {"a": {}, "b": {}}, "sizes": "1K", **arguments})
    assert thread_engines.state == "ready"


def test_a_row_that_exceeds_the_memory_is_unclear(thread_engines: ml.Engines) -> None:
    comparison = compare_now(thread_engines, "tp=4", {"a": {}, "b": {}}, sizes="1K, 512T", budget_s=0.1)
    assert comparison.rows["verdict"].tolist()[1] == "UNCLEAR"
    assert comparison.rows["note"].tolist()[1].startswith("its buffers take 1024\u2009TiB per rank")


@pytest.mark.slow
def test_ranks_of_mpi_take_turns_beside_other_programs(mpi_engines: ml.Engines) -> None:
    def repeated(n: int) -> Callable[[ml.Communicator], Any]:
        def work(comm: ml.Communicator) -> Callable[[], None]:
            call = comm.prepare("all_reduce", comm.xp.zeros(256), comm.xp.zeros(256))
            return lambda: [call() for _ in range(n)]  # type: ignore[return-value]

        return work

    sides = {"few": repeated(5), "many": repeated(40)}
    comparison = compare_now(mpi_engines, "dp=2, tp=2", sides, axis="tp", budget_s=4)
    assert set(comparison.rows["verdict"]) <= {"SLOWER", "UNCLEAR"}
    assert (comparison.rows["n_rounds"] >= 7).all()
    assert mpi_engines.state == "ready"
