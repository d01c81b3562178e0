"""The operations of a training step: what overlaps with what, and which micro-batch issues which call."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.benchmark.on_ranks.training_step import (
    Operation,
    Overlap,
    RepeatedCalls,
    Schedule,
    TimedCall,
    Variant,
    _pause,
    _Worker,
    expand,
)
from meshlab.frames.plan import Step

AXES = ("tp", "dp", "pp")


def timed(axis: int, overlap: Overlap = "nothing", *, flops: float = 1.0, is_single: bool = False) -> TimedCall:
    step = Step(0, "all_reduce", "sum", "float32", None, True, "pipelined", AXES[axis], 2, 1, 4)
    return TimedCall(axis, step, flops, overlap, is_single)


def words(operations: list[Operation]) -> str:
    """The operations as text: C computes, R0 runs call 0, S0 starts it, and W0 waits for it."""
    return " ".join("C" if one.kind == "compute" else f"{one.kind[0].upper()}{one.call}" for one in operations)


EVERY = Variant(True, (0, 1, 2))


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("nothing", "C R0 C R1 C R2 C R3"),
        ("compute", "C S0 C W0 R1 C S2 C W2 R3"),
        ("layer", "C S0 C R1 C W0 S2 C R3 C W2 R4"),
        ("pass", "C S0 C R1 C S2 C R3 C R4 W0 W2"),
    ],
)
def test_a_call_overlaps_with_what_the_job_allows(overlap: Overlap, expected: str) -> None:
    layer = RepeatedCalls("forward", (timed(0, overlap), timed(1)), 2)
    head = RepeatedCalls("forward", (timed(2),), 1)
    blocks = (layer, head) if overlap in ("layer", "pass") else (layer,)
    assert words(expand(Schedule(blocks, 1), EVERY)) == expected


def test_a_pass_ends_before_the_next_one_begins() -> None:
    forward = RepeatedCalls("forward", (timed(0, "pass"),), 1)
    backward = RepeatedCalls("backward", (timed(1, "pass"),), 2)
    assert words(expand(Schedule((forward, backward), 2), EVERY)) == ("C S0 W0 C S1 C S2 W1 W2 C S3 W3 C S4 C S5 W4 W5")


def test_single_calls_are_in_the_first_forward_and_in_the_last_backward_pass() -> None:
    forward = RepeatedCalls("forward", (timed(0, is_single=True), timed(1)), 1)
    backward = RepeatedCalls("backward", (timed(1), timed(2, is_single=True)), 1)
    schedule = Schedule((forward, backward), 3)
    every = [(one.kind, one.axis) for one in expand(schedule, EVERY) if one.kind != "compute"]
    assert [axis for _, axis in every] == [0, 1, 1, 1, 1, 1, 1, 2]
    steady = expand(schedule, Variant(True, (0, 1, 2), is_steady=True))
    assert [one.axis for one in steady if one.kind != "compute"] == [1] * 6
    # All micro-batches compute, also before calls that they do not issue.
    assert sum(one.kind == "compute" for one in steady) == 12


def test_a_call_that_is_waited_for_follows_earlier_calls_of_its_axis() -> None:
    block = RepeatedCalls("forward", (timed(0, "pass"), timed(0), timed(1)), 1)
    assert words(expand(Schedule((block,), 1), EVERY)) == "C S0 C S1 W1 C R2 W0"


def test_calls_along_an_axis_of_one_rank_only_compute() -> None:
    block = RepeatedCalls("forward", (TimedCall(-1, None, 2.0, "nothing", False), timed(0)), 2)
    assert words(expand(Schedule((block,), 1), EVERY)) == "C C R0 C C R1"


def test_variants_leave_out_computation_or_axes() -> None:
    schedule = Schedule((RepeatedCalls("forward", (timed(0, "compute"), timed(1, "pass")), 1),), 1)
    assert words(expand(schedule, Variant(True, ()))) == "C C"
    assert words(expand(schedule, Variant(False, (1,)))) == "R0"
    assert words(expand(schedule, EVERY, overlaps=False)) == "C R0 C R1"


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    calls = st.builds(
        timed,
        st.integers(0, 2),
        st.sampled_from(["nothing", "compute", "layer", "pass"]),
        flops=st.sampled_from([0.0, 1.0]),
        is_single=st.booleans(),
    )
    blocks = st.builds(
        RepeatedCalls,
        st.sampled_from(["forward", "backward"]),
        st.lists(calls, max_size=4).map(tuple),
        st.integers(1, 3),
    )
    return Schedule(tuple(draw(st.lists(blocks, max_size=4))), draw(st.integers(1, 3)))


@given(schedules(), st.booleans(), st.booleans())
def test_every_call_is_started_and_waited_for_once(schedule: Schedule, overlaps: bool, steady: bool) -> None:
    operations = expand(schedule, Variant(True, (0, 1, 2), steady), overlaps=overlaps)
    under_way: dict[int, int] = {}
    seen = []
    for one in operations:
        if one.kind == "start":
            under_way[one.call] = one.axis
            seen.append(one.call)
        elif one.kind == "run":
            assert one.axis not in under_way.values()
            seen.append(one.call)
        elif one.kind == "wait":
            assert under_way.pop(one.call) == one.axis
    assert not under_way
    assert seen == list(range(len(seen)))
    n_computed = sum(one.kind == "compute" for one in operations)
    expected = sum(block.repeats * sum(call.flops > 0 for call in block.calls) for block in schedule.blocks)
    assert n_computed == expected * schedule.micro_batches


def test_a_worker_reports_the_error_of_its_call() -> None:
    def fail() -> None:
        raise ValueError("a bad cable")

    worker = _Worker()
    worker.start()
    call: Any = fail
    flight = worker.submit(call)
    with pytest.raises(ValueError, match="a bad cable"):
        flight.wait()
    worker.tasks.put(None)
    worker.join(10)
    assert not worker.is_alive()


def test_a_pause_is_never_too_short() -> None:
    for seconds in (0.0, 1e-5, 1e-3):
        until = time.perf_counter() + seconds
        _pause(until)
        assert time.perf_counter() >= until
