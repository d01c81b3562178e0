"""Replays: exactly the calls of a trace in their order, their comparison with the trace, options, and bad input."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError, MeshError
from meshlab.benchmark.on_ranks import _training_step as training_step
from meshlab.benchmark.rehearsal import _replay as replaying
from meshlab.benchmark.rehearsal._recorded_program import RecordedOrder
from meshlab.benchmark.rehearsal._replayed import Replay, ReplaySide
from meshlab.benchmark.rehearsal._session import step_of
from meshlab.traces._call_list import list_calls
from tests.analysis.trial_maker import WINDOW, a_tuning, both
from tests.examples import examples
from tests.traces.job_maker import JobCall, job_trace

Calls = dict[tuple[int, str], list[tuple[str, int, str]]]
"""The collectives, sizes and types of each rank and axis, in their order."""

STEP = (
    JobCall("tp", size_bytes=8192.0),
    JobCall("tp", "all_gather", 4096.0, "bfloat16"),
    JobCall("dp", size_bytes=65536.0, is_async=True),
    JobCall("tp", "reduce_scatter", 4096.0),
    JobCall("dp", "all_to_all", 2048.0, "int32"),
)


def replay(engines: ml.Engines, trace: ml.Trace, mesh: Any = None, **options: Any) -> Replay:
    return ml.benchmark.replay(engines, trace, mesh, **({"budget_s": 1e-3, "progress": False} | options))


class Recorder:
    """Prepared calls that record every time they run, on ranks that are threads of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, str, tuple[str, int, str]]] = []
        original, lock = training_step.prepare_step, threading.Lock()

        def prepare(comm: Any, step: Any, buffers: Any) -> Callable[[], None]:
            prepared = original(comm, step, buffers)
            rank = comm.ranks[comm.rank]

            def run() -> None:
                with lock:
                    self.calls.append((rank, step.axis, (step.collective, step.size_bytes, step.dtype)))
                prepared()

            return run

        monkeypatch.setattr(training_step, "prepare_step", prepare)

    def by_rank(self, n_different: Mapping[tuple[int, str], int]) -> Calls:
        """The calls of one repetition. The first ones of a rank and an axis prepare each different call."""
        calls: Calls = defaultdict(list)
        for rank, axis, call in self.calls:
            calls[rank, axis].append(call)
        for key, n in n_different.items():
            made = calls[key][n:]
            assert made[: len(made) // 2] == made[len(made) // 2 :]  # the warm-up and one repetition
            calls[key] = made[len(made) // 2 :]
        return dict(calls)


def calls_of(trace: ml.Trace) -> Calls:
    """The calls that the frame of a trace contains."""
    calls: Calls = defaultdict(list)
    frame = trace.frame().sort_values(["start_us", "call"])
    columns = ["rank", "axis", "collective", "size_bytes", "dtype"]
    for rank, axis, collective, size, dtype in frame[columns].itertuples(index=False):
        calls[int(rank), str(axis)].append((str(collective), int(size), str(dtype)))
    return dict(calls)


def different(calls: Calls) -> dict[tuple[int, str], int]:
    return {key: len(set(values)) for key, values in calls.items()}


# -- exactly the calls -------------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> ml.Trace:
    mesh = ml.DeviceMesh(draw(st.sampled_from(["dp=2, tp=2", "tp=4", "pp=2, tp=2", "dp=4"])))
    axes = [*mesh.axis_names, *(["-".join(mesh.axis_names)] if len(mesh.axis_names) > 1 else [])]
    computation = st.floats(0, 300).map(lambda value: round(value, 1))
    calls = []
    for step in range(draw(st.integers(1, 2))):
        for _ in range(draw(st.integers(1, 8))):
            axis = draw(st.sampled_from(axes))
            count = draw(st.integers(1, 64)) * mesh.world_size
            groups = st.lists(st.integers(0, len(mesh[axis]) - 1), min_size=1, unique=True).map(tuple)
            calls.append(
                JobCall(
                    axis,
                    draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])),
                    count * 4.0,
                    draw(st.sampled_from(["float32", "int32"])),
                    draw(computation | st.lists(computation, min_size=mesh.world_size, max_size=mesh.world_size)),
                    draw(st.floats(1, 200)),
                    draw(st.booleans()),
                    draw(st.none() | groups),
                    step,
                )
            )
    return job_trace(mesh, calls)


def test_a_replay_makes_exactly_the_calls_of_the_trace_in_their_order(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    recorder = Recorder(monkeypatch)

    @settings(max_examples=examples(40))
    @given(trace=jobs(), gaps=st.booleans())
    def check(trace: ml.Trace, gaps: bool) -> None:
        recorder.calls.clear()
        replayed = replay(thread_engines, trace)
        expected = calls_of(trace)
        assert recorder.by_rank(different(expected)) == expected
        assert replayed.frame()["n_wrong"].sum() == 0
        assert (replayed.frame()["replayed_bytes"] == replayed.frame()["size_bytes"]).all()
        if gaps:
            assert replay(thread_engines, trace, gaps=True).options()["step_us"].notna().all()

    check()


@settings(max_examples=examples(100))
@given(trace=jobs())
def test_calls_of_different_axes_are_ordered_and_overlap_as_in_the_trace(trace: ml.Trace) -> None:
    calls = list_calls(trace)
    axes = list(dict.fromkeys(kind.axis for kind in calls.kinds))
    order = RecordedOrder.of(calls, axes, overlaps=True)
    steps: Any = [call.number for call in calls.calls]
    program = order.program(steps, "recorded")
    for rank, rank_calls in enumerate(order.ranks):
        spans = {call.index: (call.start, call.end) for call in rank_calls}
        begun: list[int] = []
        under_way: set[int] = set()
        for operation in program.operations(rank, True):
            if operation.kind in ("run", "start"):
                # What is under way now had not ended in the trace when this call began.
                assert all(spans[index][1] > spans[operation.call][0] for index in under_way)
                begun.append(operation.call)
            if operation.kind == "start":
                under_way.add(operation.call)
            elif operation.kind == "wait":
                under_way.remove(operation.call)
            elif operation.kind == "run":
                # Nothing that begins later overlaps with it.
                later = [index for index in spans if spans[index][0] >= spans[operation.call][0]]
                after = [index for index in later if index not in begun]
                assert all(spans[index][0] >= spans[operation.call][1] for index in after)
        assert not under_way
        assert sorted(begun) == sorted(spans)


def test_an_mpi_library_makes_exactly_the_calls_of_the_trace(mpi_engines: ml.Engines) -> None:
    trace = job_trace("dp=2, tp=2", STEP)
    mpi_engines.run(record_calls, check=True)
    try:
        replayed = replay(mpi_engines, trace)
        rows = mpi_engines.run(recorded_calls, check=True)
    finally:
        mpi_engines.run(stop_recording, check=True)
    expected = calls_of(trace)
    calls: Calls = defaultdict(list)
    for rank, values in zip(rows["rank"], rows["value"], strict=True):
        for axis, call in values:
            calls[int(rank), axis].append(call)
    for key, values in expected.items():
        assert calls[key] == [*dict.fromkeys(values), *values, *values]  # prepared, warm-up and repetition
    assert sorted(calls) == sorted(expected)
    assert replayed.backend == "mpi"
    assert replayed.frame()["n_wrong"].sum() == 0
    assert "No verdict on times" in replayed.headline


def record_calls(comm: Any) -> None:
    """Record the calls of this process, which is a rank of MPI."""
    from meshlab.benchmark.on_ranks import _training_step as module

    calls: list[tuple[str, tuple[str, int, str]]] = []
    original: Any = module.prepare_step

    def prepare(comm: Any, step: Any, buffers: Any) -> Any:
        prepared = original(comm, step, buffers)

        def run() -> None:
            calls.append((step.axis, (step.collective, step.size_bytes, step.dtype)))
            prepared()

        return run

    module.prepare_step = prepare
    module.recording = (original, calls)  # type: ignore[attr-defined]


def recorded_calls(comm: Any) -> Any:
    from meshlab.benchmark.on_ranks import _training_step as module

    return module.recording[1]  # type: ignore[attr-defined]


def stop_recording(comm: Any) -> None:
    from meshlab.benchmark.on_ranks import _training_step as module

    module.prepare_step = module.recording[0]  # type: ignore[attr-defined]


def test_barriers_and_types_that_the_backend_lacks_are_replayed_in_words(thread_engines: ml.Engines) -> None:
    calls = (
        JobCall("tp", "barrier", float("nan"), None),
        JobCall("tp", dtype="float8_e4m3fn"),
        JobCall("tp", dtype=None),
    )
    replayed = replay(thread_engines, job_trace("tp=4", calls))
    assert replayed.frame()["collective"].tolist() == ["barrier", "all_reduce", "all_reduce"]
    assert "float8_e4m3fn is replayed as int8, which has the same size" in replayed.notes
    assert "the trace contains no element type of 1 call" in replayed.notes


def test_ranks_without_a_file_make_the_calls_of_the_others(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    trace = job_trace("dp=2, tp=2", STEP, files=[0])
    recorder = Recorder(monkeypatch)
    replayed = replay(thread_engines, trace, "dp=2, tp=2")
    expected = calls_of(job_trace("dp=2, tp=2", STEP))
    assert recorder.by_rank(different(expected)) == expected
    assert "ranks 1 to 3 without a file make the calls of the other ranks" in replayed.notes
    assert replayed.frame()["then_us"].isna().all()
    # The durations of one rank contain its waits.
    assert "No verdict on times" in replayed.headline


# -- times -------------------------------------------------------------------------------------------------------------


class Slow:
    """Prepared calls of one size that take longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int, seconds: float) -> None:
        original = training_step.prepare_step

        def prepare(comm: Any, step: Any, buffers: Any) -> Any:
            prepared = original(comm, step, buffers)

            def slow() -> None:
                time.sleep(seconds if step.size_bytes == size else 0)
                prepared()

            return slow

        monkeypatch.setattr(training_step, "prepare_step", prepare)


def test_the_transfer_is_that_of_the_last_rank(monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines) -> None:
    Slow(monkeypatch, 65536, 0.05)
    frame = replay(thread_engines, job_trace("dp=2, tp=2", STEP)).frame().set_index("size_bytes")
    assert frame.loc[65536, "now_us"] > 50_000
    assert frame.loc[8192, "now_us"] < 50_000


def test_late_ranks_cost_what_the_gaps_differ(thread_engines: ml.Engines) -> None:
    # One rank computes for 120 ms longer, and another one before the next call. The first call of a trace is at the
    # same time on all ranks, because the recording may have begun later on one of them.
    calls = [
        JobCall("tp", compute_us=(1000, 1e6, 1000, 1000)),
        JobCall("tp", compute_us=(1000, 120_000, 1000, 1000)),
        JobCall("tp", compute_us=(1000, 1000, 120_000, 1000), step=1),
    ]
    trace = job_trace("tp=4", calls)
    replayed = replay(thread_engines, trace, gaps=True, budget_s=3)
    assert 240_000 < replayed.options()["step_us"].iloc[0] < 900_000
    # With equal gaps, each call comes after the mean: 31 ms.
    assert replayed.late_us > 100_000
    assert "late ranks cost" in replayed.explain()
    # The first call of another step is as late as in the trace.
    assert replay(thread_engines, trace, gaps=True, step=1).options()["step_us"].iloc[0] > 110_000


def replayed_of(trace: ml.Trace, *factors: float, where: str = "2 × H200 · NCCL", **changes: Any) -> Replay:
    """A replay with six rounds whose transfers are those of the trace, times a factor for each side."""
    calls = list_calls(trace)
    then = np.array([call.transfer_us for call in calls.calls])
    names = ("default", "symmetric buffers", "tuned")
    sides = tuple(
        ReplaySide(name, where, np.tile(then * factor, (6, 2, 1)), np.full((1, 6, 2), then.sum() * factor))
        for name, factor in zip(names, factors, strict=False)
    )
    values: dict[str, Any] = {
        "call_list": calls, "sides": sides, "sizes": {kind: kind.size_bytes for kind in calls.kinds}, "n_wrong": {},
        "where": where, "backend": "nccl", "sharing": "", "size_scale": 1.0, "like": {}, "error_us": trace.error_us,
        "places": ("GPUs", "GPUs"), "overlaps": True,
    }  # fmt: skip
    return Replay(**(values | changes))


def test_a_call_that_was_slow_in_the_trace_is_named() -> None:
    calls = [JobCall("tp", size_bytes=4096.0), JobCall("tp", size_bytes=8192.0, transfer_us=200.0)] * 3
    trace = job_trace("tp=2", calls)
    replayed = replayed_of(trace, 1.0)
    now = np.where(replayed._then > 100, 80.0, replayed._then)
    side = replace(replayed.sides[0], transfers=np.tile(now, (6, 2, 1)))
    replayed = replace(replayed, sides=(side,))
    frame = replayed.frame()
    assert frame["is_slow"].tolist() == [False, True]
    assert replayed.headline.replace("\u2009", " ") == (
        "all_reduce 8 KiB along tp took 2.5 times as long in the trace: 200 µs instead of 80.0 µs "
        "(3 calls, 360 µs in all)"
    )
    assert replayed.calls()["is_slow"].tolist() == [False, True] * 3


def test_a_single_slow_call_is_named() -> None:
    calls = [JobCall("tp", transfer_us=400.0 if number == 3 else 50.0, step=number // 2) for number in range(6)]
    trace = job_trace("tp=2", calls)
    replayed = replayed_of(trace, 1.0)
    side = replace(replayed.sides[0], transfers=np.full((6, 2, 6), 50.0))
    text = replace(replayed, sides=(side,)).explain().replace("\u2009", " ")
    assert "1 single call was slow in the trace" in text
    assert "Call 3 of step 1, all_reduce 4 KiB along tp, took 400 µs in the trace and 50.0 µs in the replay." in text


def test_transfers_that_agree_are_reported() -> None:
    replayed = replayed_of(job_trace("tp=2", [JobCall("tp")] * 4), 0.98)
    assert replayed.headline.replace("\u2009", " ") == (
        "The transfers agree within 5 %: 200 µs in the trace, 196 µs in the replay"
    )


def test_an_option_shows_what_the_step_would_gain() -> None:
    trace = job_trace("tp=2", [JobCall("tp", transfer_us=100.0)] * 10)
    replayed = replayed_of(trace, 1.0, 0.8, 1.01)
    options = replayed.options()
    assert options["verdict"].tolist() == ["", "faster", "same"]
    assert options["gain_us"].tolist() == pytest.approx([0, 200, -10])
    text = replayed.explain().replace("\u2009", " ")
    assert "With symmetric buffers, the calls take 800 µs instead of 1.00 ms (20 % less), of which 200 µs" in text
    assert replayed_of(trace, 1.0, 0.8, sharing="2 ranks share 1 core").options()["verdict"].tolist() == ["", ""]
    assert "exposed in the trace" not in replayed_of(trace, 1.0, 0.8, size_scale=1 / 1024).explain()
    # The calls of two axes ran at the same time: their transfers are twice as long as what the step takes.
    sides = [replace(side, durations=side.durations / 2) for side in replayed_of(trace, 1.0, 0.8).sides]
    parallel = replace(replayed_of(trace, 1.0, 0.8), sides=tuple(sides)).explain().replace("\u2009", " ")
    assert "the calls take 400 µs instead of 500 µs (20 % less), of which 100 µs" in parallel


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.99, 1.01, 0.97, 1.03, 1.0, 1.02), "same"),  # all within 5 %
        ((1.02, 1.03, 1.02, 1.09, 1.03, 1.02), "same"),  # slower in every round, but by less than 5 % in the median
        ((1.03, 1.08, 1.09, 1.07, 1.06, 1.08), "slower"),
        ((0.97, 0.92, 0.91, 0.93, 0.94, 0.92), "faster"),
        ((0.7, 1.01, 1.0, 0.99, 1.4, 1.0), "unclear"),  # the median is close, the rounds differ
        ((0.8, 0.8, 0.8, 0.8, 0.8, 1.01), "unclear"),
        ((0.8,) * 5, "unclear"),  # fewer rounds than an interval needs
    ],
)
def test_the_verdict_on_an_option_needs_rounds_that_agree(ratios: Sequence[float], verdict: str) -> None:
    replayed = replayed_of(job_trace("tp=2", [JobCall("tp")] * 4), 1.0, 1.0)
    sides = [
        replace(side, durations=100.0 * np.array(factors)[None, :, None])
        for side, factors in zip(replayed.sides, ([1.0] * len(ratios), ratios), strict=True)
    ]
    assert replace(replayed, sides=tuple(sides))._verdict(sides[1], 0) == verdict


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sharing": "4 ranks share 2 cores"}, "4 ranks share 2 cores"),
        ({"places": ("gloo on CPUs", "mpi on CPUs")}, "the trace is of gloo on CPUs, and the replay of mpi on CPUs"),
        ({"size_scale": 0.25}, "the messages of the replay are 1/4 of those of the trace"),
    ],
)
def test_times_that_cannot_be_compared_have_no_verdict(changes: dict[str, Any], text: str) -> None:
    replayed = replayed_of(job_trace("tp=2", [JobCall("tp")] * 4), 0.1, **changes)
    assert replayed.headline.endswith(f"in their order. No verdict on times: {text}")
    assert replayed.frame()["is_slow"].isna().all()


def test_wrong_results_are_reported_first() -> None:
    trace = job_trace("tp=2", [JobCall("tp")] * 4)
    replayed = replayed_of(trace, 1.0, n_wrong={list_calls(trace).kinds[0]: 3})
    assert replayed.headline.startswith("WRONG: 3 elements")


# -- scale and sides ---------------------------------------------------------------------------------------------------


class Probe(NamedTuple):
    free: int


def test_messages_that_exceed_the_memory_are_scaled_down_in_words(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    monkeypatch.setattr(replaying, "usable_bytes", lambda free, hosts: np.full(len(hosts), 24 << 20))
    trace = job_trace("tp=4", [JobCall("tp", size_bytes=float(64 << 20))])
    replayed = replay(thread_engines, trace)
    assert replayed.size_scale == 1 / 4
    assert replayed.frame()["replayed_bytes"].tolist() == [16 << 20]
    assert "Messages are 1/4 of the job's." in replayed.explain()
    with pytest.raises(BenchError, match=r"take .* per rank, but 24.MiB may be used; pass size_scale='auto'"):
        replay(thread_engines, trace, size_scale=1.0)


def test_other_engines_make_the_same_calls_in_turns(thread_engines: ml.Engines) -> None:
    trace = job_trace("tp=4", [JobCall("tp")] * 3)
    with ml.launch(4, backend="threads") as others:
        replayed = replay(thread_engines, trace, against={"other ranks": others}, budget_s=0.5)
        assert others.state == "ready"
    assert replayed.options()["side"].tolist() == ["default", "other ranks"]
    assert replayed.sides[0].transfers.shape == replayed.sides[1].transfers.shape
    assert set(replayed.by_axis()["side"]) == {"trace", "default", "other ranks"}


def test_a_tuning_gives_each_call_the_options_of_its_size(thread_engines: ml.Engines) -> None:
    tuning = a_tuning([*both(WINDOW, 4096, 3.0, 3.0), *both({}, 4096, 6.0, 6.0), *both({}, 1 << 20, 60.0, 60.0)])
    side = replaying._Side("tuned", thread_engines, tuning=tuning)
    sizes = {size: side.option_of(step_of("all_reduce", "float32", "tp", 2, size)).buffers for size in (4096, 1 << 20)}
    assert sizes == {4096: "symmetric", 1 << 20: "plain"}
    # Groups of another size keep the default.
    assert side.option_of(step_of("all_reduce", "float32", "dp", 4, 4096)).buffers == "plain"
    assert side.option_of(step_of("barrier", "float32", "tp", 2, 0)).count is None


def test_one_step_of_the_trace_is_replayed(thread_engines: ml.Engines) -> None:
    trace = job_trace("tp=4", [JobCall("tp", step=step) for step in (0, 0, 0, 1)])
    assert replay(thread_engines, trace, step=1).calls()["step"].tolist() == [1]
    with pytest.raises(BenchError, match="the trace has no step 7; choose one of 0, 1"):
        replay(thread_engines, trace, step=7)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_calls_that_cannot_be_replayed_are_named(thread_engines: ml.Engines) -> None:
    calls = [JobCall("tp"), JobCall("tp", "all_gather", float("nan")), JobCall("tp", "all_gather", float("nan"))]
    replayed = replay(thread_engines, job_trace("tp=4", calls))
    assert replayed.frame()["calls"].tolist() == [1]
    assert "Left out: 2 of all_gather along tp without a size." in replayed.explain()
    with pytest.raises(
        BenchError, match="no call of the trace can be made again: 2 of all_gather along tp without a size"
    ):
        replay(thread_engines, job_trace("tp=4", calls[1:]))


def test_another_number_of_ranks_is_refused(thread_engines: ml.Engines) -> None:
    with pytest.raises(BenchError, match="the trace is of 2 ranks, but there are 4 engines; start 2 engines"):
        replay(thread_engines, job_trace("tp=2", [JobCall("tp")]))


def test_a_mesh_that_the_trace_contradicts_is_refused(thread_engines: ml.Engines) -> None:
    trace = job_trace("dp=2, tp=2", STEP)
    with pytest.raises(MeshError, match=r"the trace contradicts the mesh dp=1, tp=4: process group '\d' .*"):
        replay(thread_engines, trace, "dp=1, tp=4")
    with pytest.raises(MeshError, match=r"has 8 ranks, but the job of the trace has 4"):
        replay(thread_engines, trace, "dp=2, tp=4")


def test_a_collective_that_the_backend_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    can = thread_engines.capabilities()
    fewer = replace(can, collectives=tuple(name for name in can.collectives if name != "all_to_all"))
    monkeypatch.setattr(type(thread_engines), "capabilities", lambda self, backend=None: fewer)
    with pytest.raises(BenchError, match="threads does not support all_to_all, which the trace uses along dp"):
        replay(thread_engines, job_trace("dp=2, tp=2", STEP))


def test_an_option_that_the_backend_lacks_is_refused(thread_engines: ml.Engines) -> None:
    trace = job_trace("tp=4", [JobCall("tp")])
    with pytest.raises(BenchError, match="threads has only plain buffers, not symmetric"):
        replay(thread_engines, trace, buffers="symmetric")
    with pytest.raises(BenchError, match="must be options, a Tuning or Engines, not int"):
        replay(thread_engines, trace, against={"x": 3})
    with pytest.raises(BenchError, match="the same engines"):
        replay(thread_engines, trace, against={"x": thread_engines})
    with pytest.raises(BenchError, match="is for groups of 2 ranks, but those of the trace have 4"):
        replay(thread_engines, trace, against={"tuned": ml.example("tuning")})


def test_gaps_need_the_starts_of_calls(thread_engines: ml.Engines) -> None:
    trace = job_trace("tp=4", [JobCall("tp")])
    for column in ("start_us", "launch_us"):
        trace.job.columns[column][:] = np.nan
    with pytest.raises(BenchError, match="the gaps between the calls are unknown"):
        replay(thread_engines, trace, gaps=True)
    assert replay(thread_engines, trace).frame()["calls"].tolist() == [1]


def test_calls_of_ranks_without_a_file_that_cannot_be_inferred_are_refused() -> None:
    calls = [JobCall("tp", groups=(0,)), JobCall("tp", size_bytes=8192.0, groups=(1,))]
    trace = job_trace("dp=3, tp=2", calls, files=range(4))
    with pytest.raises(
        BenchError, match="ranks 4 and 5 of 6 have no file, and the calls of the other groups of tp differ"
    ):
        list_calls(trace, "dp=3, tp=2")


def test_a_failed_round_keeps_the_complete_ones(monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines) -> None:
    original, counts = replaying.measure_steps, [0] * 4

    def fail(everyone: Any, *arguments: Any) -> Any:
        counts[everyone.rank] += 1
        if counts[everyone.rank] == 3:
            raise ValueError("a bad cable")
        return original(everyone, *arguments)

    monkeypatch.setattr(replaying, "measure_steps", fail)
    with pytest.raises(EngineError, match=r"failed while replaying .*a bad cable") as caught:
        replay(thread_engines, job_trace("tp=4", [JobCall("tp")]), budget_s=5)
    assert isinstance(caught.value.measured, Replay)
    assert caught.value.measured.sides[0].transfers.shape[0] == 1
