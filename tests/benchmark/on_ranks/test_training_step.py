"""The operations of a training step: what overlaps with what, and which micro-batch issues which call."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.benchmark.on_ranks._training_step import (
    CallThread,
    Operation,
    Overlap,
    RepeatedCalls,
    Schedule,
    StepOptions,
    TimedCall,
    Variant,
    _pause,
    _StreamLanes,
    expand,
)
from meshlab.plans._steps import Step
from tests.benchmark.on_ranks.virtual_gpu import Enqueued, Gpu, Stream

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

    worker = CallThread()
    worker.start()
    call: Any = fail
    flight = worker.submit(call)
    with pytest.raises(ValueError, match="a bad cable"):
        flight.wait()
    worker.tasks.put(None)
    worker.join(60)
    assert not worker.is_alive()


def test_a_pause_is_never_too_short() -> None:
    for seconds in (0.0, 1e-5, 1e-3):
        until = time.perf_counter() + seconds
        _pause(until)
        assert time.perf_counter() >= until


# -- streams, with a clock that does what a GPU does -------------------------------------------------------------------


def lanes_of(blocks: tuple[RepeatedCalls, ...], durations: dict[int, float], compute: str = "wait") -> Any:
    gpu = Gpu()
    streams = [Stream(gpu) for _ in AXES]

    def comm(stream: Stream) -> Any:
        backend = SimpleNamespace(stream=stream, wait_idle=lambda: None, wait=lambda event: None)

        def barrier() -> None:
            gpu.n_barriers += 1
            lanes._compute.at = 1000.0 * gpu.n_barriers  # later than everything before it

        return SimpleNamespace(xp=gpu, backend=backend, barrier=barrier)

    calls = {
        (one.axis, one.step): Enqueued(streams[one.axis], durations[one.axis])
        for block in blocks
        for one in block.calls
    }
    flops = [one.flops for block in blocks for one in block.calls]
    options = StepOptions(compute, 1.0, True)  # type: ignore[arg-type]
    lanes = _StreamLanes(comm(Stream(gpu)), [comm(stream) for stream in streams], calls, options, flops)  # type: ignore[arg-type]
    return lanes


def run_on_streams(
    blocks: tuple[RepeatedCalls, ...], durations: dict[int, float], variant: Variant = EVERY, compute: str = "wait"
) -> list[float]:
    lanes = lanes_of(blocks, durations, compute)
    operations = expand(Schedule(blocks, 1), variant)
    first, second = lanes.run(operations), lanes.run(operations)
    assert first[2:].tolist() == pytest.approx(second[2:].tolist())  # events are used again
    return [float(first[0]), *map(float, first[2:])]


def test_streams_overlap_and_time_what_is_exposed() -> None:
    # 10 µs of computation before each call; tp takes 4, and gradients along dp take 15.
    layer = RepeatedCalls("backward", (timed(0, flops=10.0), timed(1, "pass", flops=10.0)), 2)
    total, *waits_and_busy = run_on_streams((layer,), {0: 4.0, 1: 15.0, 2: 0.0})
    # Computation 10, tp 4, computation 10: gradients from 24 to 39. Computation to 34, tp to 38, computation to 48:
    # gradients from 48 to 63.
    assert total == 63
    assert waits_and_busy == [8, 15, 0, 8, 30, 0]


def test_a_call_on_its_stream_waits_for_the_one_before_it() -> None:
    block = RepeatedCalls("backward", (timed(0, "pass", flops=1.0), timed(0, "pass", flops=1.0)), 1)
    assert run_on_streams((block,), {0: 10.0, 1: 0.0, 2: 0.0}) == [21, 19, 0, 0, 20, 0, 0]


def test_without_computation_the_calls_of_a_stream_follow_one_another() -> None:
    block = RepeatedCalls("forward", (timed(0, "compute"), timed(1)), 3)
    assert run_on_streams((block,), {0: 4.0, 1: 6.0, 2: 0.0}, Variant(False, (0, 1)))[0] == 18
    assert run_on_streams((block,), {0: 4.0, 1: 6.0, 2: 0.0}, Variant(True, ())) == [6, 0, 0, 0, 0, 0, 0]


def test_products_have_the_operations_of_the_job() -> None:
    flops = [3e9, 4.1e10, 1e12]
    calls = tuple(timed(0, flops=value) for value in flops)
    total, *_ = run_on_streams((RepeatedCalls("forward", calls, 1),), {0: 0.0}, Variant(True, ()), compute="products")
    assert total == pytest.approx(sum(flops) / 1e6, rel=0.01)


def test_the_spans_of_recorded_calls_follow_one_another_or_overlap_as_in_the_program() -> None:
    lanes = lanes_of((RepeatedCalls("forward", (timed(0), timed(1)), 1),), {0: 4.0, 1: 15.0})
    (first, second) = (key for key in lanes.calls)
    operations = [
        Operation("compute"),
        Operation("run", 0, first[0], first[1]),
        Operation("start", 1, second[0], second[1]),
        Operation("run", 2, first[0], first[1]),
        Operation("wait", 1, second[0]),
        Operation("run", 3, first[0], first[1]),
    ]
    spans = np.full((4, 2), np.nan)
    total = lanes.run(operations, spans)[0]
    # The call of the other axis begins after the first one, and the last call after both.
    assert spans.tolist() == [[0, 4], [4, 19], [4, 8], [19, 23]]
    # The time by which the host is ahead of the GPU is not part of the step.
    assert total == 23
    alone = np.full((2, 2), np.nan)
    lanes.run([Operation("run", 1, second[0], second[1])], alone)
    assert alone[1].tolist() == [0, 15]
    assert np.isnan(alone[0]).all()
