"""Rehearsed training steps: their parts, their scale, bad input, interrupts and failures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError, MeshError
from meshlab.benchmark.on_ranks import _step_calls as step_calls
from meshlab.benchmark.on_ranks import _training_step as training_step
from meshlab.benchmark.on_ranks._training_step import Variant
from meshlab.benchmark.rehearsal import _rehearse as rehearsing
from meshlab.benchmark.rehearsal._rehearsal import Rehearsal, RehearsedCall, RehearsedLayout
from meshlab.benchmark.rehearsal._session import step_of, tuned_step
from meshlab.prediction._step_calls import StepCall
from tests.analysis.trial_maker import WINDOW, a_tuning, both

MESH = "dp=2, tp=2"


def call(axis: str, collective: str = "all_reduce", size: int = 4096, **changes: Any) -> StepCall:
    """A call of two layers and two micro-batches, after 0.1 ms of computation at the default rate."""
    one = StepCall(
        axis=tuple(axis.split("-")), collective=collective, size_bytes=size, dtype="float32", what="activations",
        phase="forward", block=0, repeats=2, micro_batches=2, gap_flops=4e10, overlaps="nothing", overlap_flops=0.0,
    )  # fmt: skip
    return replace(one, **changes)


GRADIENTS = call("dp", phase="backward", block=1, micro_batches=1, overlaps="pass", what="gradients")
STEP = (call("tp"), call("tp", "all_gather", phase="backward", block=1, overlaps="compute"), GRADIENTS)


def rehearse(engines: ml.Engines, mesh: Any = MESH, job: Any = STEP, **options: Any) -> Rehearsal:
    return ml.rehearse(engines, mesh, job, **({"rounds": 1, "steps": 2, "scale": 1.0, "size_scale": 1.0} | options))


def part(found: Rehearsal, name: str, column: str = "exposed_us") -> float:
    """A value of a part or an axis of the first layout."""
    frame = found.frame()
    return float(frame.loc[(frame["axis"].fillna(frame["part"]) == name), column].iloc[0])


# -- parts -------------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_step_add_up(engines: ml.Engines) -> None:
    found = rehearse(engines, [MESH, "tp=2, dp=2"])
    frame = found.frame()
    sums = frame.groupby("layout", sort=False)["exposed_us"].sum()
    assert sums.to_numpy() == pytest.approx(frame.groupby("layout", sort=False)["step_us"].first().to_numpy())
    assert frame["part"].tolist() == ["compute", "slowdown", "communication", "communication"] * 2
    axes = frame[frame["part"] == "communication"]
    assert axes["n_wrong"].tolist() == [0] * 4
    assert (axes[["hidden_us", "exposed_us"]] >= 0).all().all()
    assert axes["calls"].tolist() == axes["rehearsed_calls"].tolist() == [8, 2] * 2
    assert axes["total_bytes"].tolist() == axes["rehearsed_bytes"].tolist() == [8 * 4096, 2 * 4096] * 2
    # Waits of 0.1 ms before three calls of two layers, in two micro-batches. They are never too short.
    assert part(found, "compute") >= 1200
    assert engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


class Slow:
    """A prepared call that takes longer on one axis."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, axis: str, seconds: float) -> None:
        original = step_calls.prepare_step

        def prepare(comm: Any, step: Any, buffers: Any) -> Any:
            prepared = original(comm, step, buffers)

            def slow() -> None:
                time.sleep(seconds)
                prepared()

            return slow if step.axis == axis else prepared

        monkeypatch.setattr(training_step, "prepare_step", prepare)


def test_a_slow_axis_is_exposed_on_that_axis(monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines) -> None:
    Slow(monkeypatch, "tp", 0.03)
    found = rehearse(thread_engines, steps=3)
    # Half of the 8 calls overlap with computation of 0.1 ms, which hides little of them. On a busy machine, computation
    # and the calls of the other axis take some milliseconds longer, and one of the three steps may be interrupted.
    assert part(found, "tp") > 8 * 20_000
    assert part(found, "dp") < part(found, "tp")
    assert part(found, "tp", "alone_us") > 8 * 30_000


def test_a_slow_axis_is_hidden_if_the_computation_is_longer(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    Slow(monkeypatch, "dp", 0.03)
    later = call("tp", phase="backward", block=2, gap_flops=6e13, repeats=1)  # 150 ms
    found = rehearse(thread_engines, job=(*STEP, later), steps=3)
    assert part(found, "dp", "hidden_us") > 30_000 > part(found, "dp")
    # Without the computation, nothing hides it.
    assert part(rehearse(thread_engines, job=STEP, steps=3), "dp") > 30_000


def test_a_union_of_axes_is_one_group(thread_engines: ml.Engines) -> None:
    found = rehearse(thread_engines, "dp=2, cp=2", [call("dp-cp"), call("cp", "all_to_all")])
    axes = found.frame().dropna(subset="axis")
    assert axes[["axis", "n_ranks", "n_wrong"]].to_numpy().tolist() == [["dp-cp", 4, 0], ["cp", 2, 0]]


def test_without_threads_in_mpi_nothing_overlaps(monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines) -> None:
    monkeypatch.setattr(rehearsing, "can_overlap", lambda engines: False)
    found = rehearse(thread_engines)
    assert part(found, "dp", "hidden_us") == 0
    assert "nothing overlaps" in found.explain()


def test_wrong_results_are_counted(monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines) -> None:
    monkeypatch.setattr(step_calls, "count_wrong_elements", lambda comm, step, call, buffers: 3 * (step.axis == "dp"))
    found = rehearse(thread_engines)
    assert found.frame().dropna(subset="axis")["n_wrong"].tolist() == [0, 12]
    assert "WRONG: 12 elements of the results are wrong" in found.explain()
    assert rehearse(thread_engines, check=False).frame()["n_wrong"].isna().all()


# -- scale -------------------------------------------------------------------------------------------------------------


def test_a_part_of_the_step_is_rehearsed_and_said(thread_engines: ml.Engines) -> None:
    step = tuple(replace(one, repeats=4, micro_batches=4 * one.micro_batches // 2 or 1) for one in STEP)
    gradients = replace(step[2], micro_batches=1)
    embedding = replace(gradients, repeats=1, block=2, axis=("dp", "tp"), size_bytes=1 << 20)
    found = rehearse(thread_engines, job=(*step[:2], gradients, embedding), scale=0.125)
    axes = found.frame().dropna(subset="axis").set_index("axis")
    assert axes["scale"].tolist() == [0.125] * 3
    assert axes["rehearsed_calls"].tolist() == [2 * 2, 2, 1]
    # What does not repeat is smaller instead.
    assert axes.loc["dp-tp", ["rehearsed_bytes", "total_bytes"]].tolist() == [1 << 19, 1 << 20]
    assert "Only 1 of 4 micro-batches and 2 of 4 layers were rehearsed" in found.explain()
    # Waits of 0.1 ms before three calls of 4 layers and one of the embedding, in 4 micro-batches.
    assert part(found, "compute") >= 4 * (4 * 3 + 1) * 100


def test_messages_are_smaller_without_gpus_and_said(thread_engines: ml.Engines) -> None:
    job = [replace(one, size_bytes=16 << 20) for one in STEP]
    found = ml.rehearse(thread_engines, MESH, job, rounds=1, steps=1)
    assert found.size_scale == 1 / 16
    assert found.calls()["rehearsed_size_bytes"].tolist() == [1 << 20] * 3
    assert found.frame()["size_scale"].tolist() == [1 / 16] * 4
    assert "Messages and computation per call are 1/16 of the job's" in found.explain()


def test_a_long_step_is_cut(thread_engines: ml.Engines) -> None:
    job = [replace(one, repeats=1000, gap_flops=4e11) for one in STEP]  # 6 s of computation
    began = time.monotonic()
    found = ml.rehearse(thread_engines, MESH, job, rounds=1, steps=1)
    assert time.monotonic() - began < 60  # the whole step is repeated for several parts and takes 6 s each time
    layout = found.layouts[0]
    assert layout.micro_batches == (1, 2)
    assert layout.scale < 0.1
    assert part(found, "compute") >= 6e6


def test_messages_that_exceed_the_memory_name_a_scale_that_works(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    monkeypatch.setattr(rehearsing, "usable_bytes", lambda free, hosts: np.full(len(hosts), 64 << 20))
    job = [call("tp", size=256 << 20)]
    with pytest.raises(BenchError, match=r"but 64.MiB may be used; pass size_scale=0\.125") as caught:
        rehearse(thread_engines, job=job)
    assert "per rank" in str(caught.value)
    found = rehearse(thread_engines, job=job, size_scale=0.125, check=False, steps=1)
    assert found.calls()["rehearsed_size_bytes"].tolist() == [32 << 20]


def layout_of(name: str, durations: Sequence[float], *, bubble: float = 0.0) -> RehearsedLayout:
    """A layout whose step takes these times in µs in its rounds, of which 100 µs are computation."""
    variants = (Variant(True, (0,)), Variant(True, ()), Variant(False, (0,)))
    times = np.full((len(durations), 3, 1, 1, 4), 100.0)
    times[:, 0, 0, 0] = [[value, np.nan, value - 100, value - 100] for value in durations]
    rehearsed = RehearsedCall(call("tp"), 0, 4096, 8, 1.0, 0, (1.0, 0.5, 2.0))
    return RehearsedLayout(
        name, ml.DeviceMesh(tp=2), ("tp",), (2,), (rehearsed,), (2, 2), (2, 2), bubble, variants, times
    )


def rehearsal_of(*layouts: RehearsedLayout, sharing: str = "") -> Rehearsal:
    return Rehearsal(layouts, "2 × H100 · NCCL", "nccl", sharing, 1.0, "products", 6e8, "", True, "", 0.05)


def test_more_micro_batches_are_extrapolated_from_steady_ones() -> None:
    single = replace(call("tp"), micro_batches=1)
    calls = (
        RehearsedCall(call("tp", micro_batches=10), 0, 4096, 2, 1.0, 0, (1.0, 0.5, 2.0)),
        RehearsedCall(single, 1, 4096, 2, 1.0, 0, (1.0, 0.5, 2.0)),
    )
    parts = (Variant(True, (0, 1)), Variant(True, ()), Variant(False, (0,)), Variant(False, (1,)))
    steady = Variant(True, (0, 1), is_steady=True)
    # Duration, host, waits for both axes, busy axes: 100 of computation, 10 for tp, and once 40 for gradients.
    times = np.array(
        [
            [150, 5, 10, 40, 10, 60],
            [100, 5, 0, 0, 0, 0],
            [10, 1, 0, 0, 0, 0],
            [40, 1, 0, 0, 0, 0],
            [110, 5, 10, 0, 10, 0],
        ],
        dtype=float,
    )[None, :, None, None]
    layout = RehearsedLayout(
        "x", ml.DeviceMesh("tp=2, dp=2"), ("tp", "dp"), (2, 2), calls, (1, 10), (1, 2), 0.0, (*parts, steady), times
    )
    found = layout.parts
    assert found["step"] == (150 + 9 * 110) / 0.5
    assert found["compute"] == 10 * 100 / 0.5
    assert found["exposed"].tolist() == [10 * 10 / 0.5, 40 / 0.5]
    assert found["hidden"].tolist() == [0, 20 / 0.5]
    assert found["alone"].tolist() == [10 * 10 / 0.5, 40 / 0.5]
    assert found["slowdown"] == 0
    assert layout.predicted(0).tolist() == [20, 10, 40]


def test_each_call_is_predicted_at_its_rehearsed_size(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    monkeypatch.setattr(rehearsing, "cluster_from_hosts", lambda hosts: ml.preset("dgx-h100").with_nodes(1))
    initialise = rehearsing._Session.__init__

    def pretend(self: Any, *arguments: Any, **options: Any) -> None:
        initialise(self, *arguments, **options)
        self._why_unpredicted = ""

    monkeypatch.setattr(rehearsing._Session, "__init__", pretend)
    mesh = "dp=2, tp=2"
    job = [call("tp", "all_gather", 1 << 30, repeats=1), call("dp", size=8 << 20, repeats=1)]
    found = rehearse(thread_engines, mesh, job, size_scale=2**-10, check=False)
    frame = found.calls()
    expected = rehearsing.price(
        [replace(job[0], size_bytes=1 << 20), replace(job[1], size_bytes=8 << 10)], mesh, ml.preset("dgx-h100")
    )
    assert frame["predicted_us"].tolist() == pytest.approx(expected["time_us"].tolist())
    assert frame["predicted_us_hi"].tolist() == pytest.approx(expected["time_us_hi"].tolist())
    assert part(found, "tp", "predicted_us") == pytest.approx(2 * expected["time_us"][0])
    assert "Predictions from NCCL's formulas" in found.explain()
    # What cannot be predicted is said, and rehearsed anyway.
    odd = rehearse(thread_engines, mesh, [call("tp", "all_to_all_v")])
    assert "No prediction: " in odd.explain()
    assert odd.frame()["predicted_us"].isna().all()


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_layout_is_the_fastest_only_if_it_wins_every_round() -> None:
    slow = layout_of("slow", [220, 210, 230, 220, 225, 215])
    fast = layout_of("fast", [150, 151, 149, 152, 150, 150])
    found = rehearsal_of(slow, fast)
    assert found.steps()[["layout", "verdict"]].to_numpy().tolist() == [["fast", "fastest"], ["slow", "slower"]]
    assert found.headline.startswith("fast is the fastest: 150")
    assert "slow, the next one, takes 47 % longer" in found.headline
    mixed = layout_of("mixed", [150, 151, 140, 152, 150, 170])
    unclear = rehearsal_of(mixed, fast)
    assert set(unclear.steps()["verdict"]) == {"among the fastest", "unclear"}
    assert "cannot be distinguished in 6 rounds" in unclear.headline
    near = layout_of("near", [153, 154, 152, 155, 153, 153])
    assert rehearsal_of(near, fast).steps()["verdict"].tolist() == ["among the fastest", "same"]
    few = rehearsal_of(layout_of("slow", [220, 220]), layout_of("fast", [150, 150]))
    assert few.steps()["verdict"].tolist() == ["among the fastest", "unclear"]


def test_the_bubble_counts() -> None:
    pipeline = layout_of("pipeline", [150] * 6, bubble=0.5)
    found = rehearsal_of(pipeline, layout_of("flat", [200] * 6))
    assert found.steps()["layout"].tolist() == ["flat", "pipeline"]
    assert found.steps()["total_us"].tolist() == [200, 225]
    assert "The bubble of the pipeline adds 50 %" in found.explain()


def test_ranks_that_share_cores_get_no_verdict() -> None:
    slow, fast = layout_of("slow", [220] * 6), layout_of("fast", [150] * 6)
    found = rehearsal_of(slow, fast, sharing="4 ranks share 2 cores")
    assert found.steps()["verdict"].tolist() == ["", ""]
    assert found.headline == "No verdict on times: 4 ranks share 2 cores"


def test_a_rehearsal_is_shown_as_text_and_html() -> None:
    found = rehearsal_of(layout_of("dp=2, tp=2", [150] * 6))
    assert repr(found) == (
        "<Rehearsal on 2 × H100 · NCCL: dp=2, tp=2: a step takes 150\N{THIN SPACE}µs, of which communication adds "
        "50.0\N{THIN SPACE}µs (33 %); next: .explain(), .plot()>"
    )
    html = found._repr_html_()
    assert "matrix products in float16 at 600 TFLOP/s" in html
    assert "2.00\N{THIN SPACE}µs – 8.00\N{THIN SPACE}µs" in html  # 4 calls of 0.5 to 2 µs
    assert found.plot(ax=_axes()).get_title(loc="left").startswith("dp=2, tp=2: a step takes 150")


def _axes() -> Any:
    from matplotlib.figure import Figure

    return Figure((7, 3)).add_subplot()


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "job", "options", "error", "message"),
    [
        ("dp=2, tp=4", STEP, {}, MeshError, r"has 8 ranks, but there are 4 engines; start 8"),
        ("ddp=2, tp=2", STEP, {}, MeshError, r"no axis 'dp' \(did you mean 'ddp'\?\); add dp=1 to the mesh"),
        (MESH, [], {}, BenchError, "does not communicate on .*: no calls; choose a mesh"),
        ("dp=4, tp=1", STEP[:1], {}, BenchError, "all of its axes have one rank"),
        (MESH, ["tp"], {}, MeshError, "a step must be a sequence of StepCall, but contains 'tp'"),
        (MESH, None, {}, BenchError, "job must be a Job, .*not NoneType"),
        (MESH, [STEP[0], replace(STEP[1], block=0)], {}, MeshError, "the calls of block 0 differ in repeats or phase"),
        (
            MESH,
            [call("tp", micro_batches=m, block=m) for m in (2, 3)],
            {},
            MeshError,
            "neither 1 nor the 3 of the step",
        ),
        (None, STEP, {}, MeshError, "mesh must be a DeviceMesh or text"),
        (MESH, STEP, {"experts": 3}, MeshError, "mesh must be a DeviceMesh or text"),
        (MESH, STEP, {"experts": [None] * 2}, BenchError, "expected one layout of the experts per mesh, not 2 for 1"),
        (MESH, [call("tp", "gather")], {}, BenchError, r"gather cannot be rehearsed, because not all ranks"),
        (MESH, [call("tp", "barrier")], {}, BenchError, "barrier cannot be rehearsed"),
        (MESH, STEP, {"scale": 0}, BenchError, "scale must be 'auto' or a number above 0 and up to 1, not 0"),
        (MESH, STEP, {"size_scale": 2}, BenchError, "size_scale must be 'auto' or a number above 0"),
        (MESH, STEP, {"rounds": 0}, BenchError, "rounds must be an integer of at least 1, not 0"),
        (MESH, STEP, {"steps": 1.5}, BenchError, "steps must be an integer of at least 1, not 1.5"),
        (MESH, STEP, {"scale": "all"}, BenchError, "scale must be 'auto' or a number above 0 and up to 1, not 'all'"),
        (MESH, STEP, {"tflops": 0}, BenchError, "tflops must be a positive number, not 0"),
        (MESH, STEP, {"effect": -1}, BenchError, "effect must be a positive number, not -1"),
        (MESH, STEP, {"deadline_s": 0}, BenchError, "deadline_s must be a positive number, not 0"),
        (MESH, STEP, {"compute": "gpu"}, BenchError, "unknown compute 'gpu'; choose one of auto, products, wait"),
        (MESH, STEP, {"compute": "products"}, BenchError, "needs GPUs, but these engines run threads; pass compute="),
        (
            MESH,
            STEP,
            {"cluster": "dgx-h100"},
            BenchError,
            "predictions are made for NCCL, but .* threads; omit cluster=",
        ),
        ([], STEP, {}, BenchError, "mesh is an empty list"),
    ],
)
def test_bad_input(
    thread_engines: ml.Engines, mesh: Any, job: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rehearse(thread_engines, mesh, job, **options)
    assert thread_engines.state == "ready"


def test_a_rehearsal_needs_engines() -> None:
    with pytest.raises(BenchError, match=r"engines must be Engines, not NoneType; start some with ml\.launch"):
        ml.rehearse(None, MESH, STEP)  # type: ignore[arg-type]


def test_unsupported_calls_name_the_nearest_ones(monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines) -> None:
    can = thread_engines.ranks[0].capabilities
    poor = replace(can, collectives=("all_reduce",), dtypes=("float32", "int8", "uint8"))
    thread_engines.ranks = tuple(replace(info, capabilities=poor) for info in thread_engines.ranks)
    with pytest.raises(BenchError, match=r"does not support all_gather, .*along tp; replace it with one of all_reduce"):
        rehearse(thread_engines)
    with pytest.raises(BenchError, match=r"cannot reduce float8_e5m2, .*; types of the same size.*: int8, uint8"):
        rehearse(thread_engines, job=[call("tp", dtype="float8_e5m2")])


# -- interrupts and failures -------------------------------------------------------------------------------------------


def test_an_interrupt_ends_the_rehearsal_after_the_round(monkeypatch: pytest.MonkeyPatch, engines: ml.Engines) -> None:
    shown: list[str] = []
    original = rehearsing._Session._show

    def interrupt(self: Any, bar: Any) -> None:
        original(self, bar)
        shown.append(self._task)
        if "round 2" in self._task:
            raise KeyboardInterrupt

    monkeypatch.setattr(rehearsing._Session, "_show", interrupt)
    slow = [replace(one, gap_flops=4e12) for one in STEP]
    with pytest.raises(KeyboardInterrupt):
        rehearse(engines, job=slow, rounds=100, steps=1)
    assert shown[-1] == "interrupted, completing this round"
    assert engines.state == "ready"
    assert engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


def test_a_failed_round_keeps_the_complete_ones(monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines) -> None:
    original, counts = rehearsing.measure_steps, [0] * 4

    def fail(everyone: Any, *arguments: Any) -> Any:
        counts[everyone.rank] += 1
        if counts[everyone.rank] == 3:
            raise ValueError("a bad cable")
        return original(everyone, *arguments)

    monkeypatch.setattr(rehearsing, "measure_steps", fail)
    with pytest.raises(EngineError, match=r"failed while rehearsing .*a bad cable") as caught:
        rehearse(thread_engines, rounds=5)
    measured = caught.value.measured
    assert isinstance(measured, Rehearsal)
    assert measured.layouts[0].times.shape[0] == 2
    assert part(measured, "compute") > 0


def test_engines_that_are_closed_end_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    with ml.launch(4, backend="threads") as engines:
        original = rehearsing._Session._show

        def close(self: Any, bar: Any) -> None:
            original(self, bar)
            if "round" in self._task:
                engines.close(cancel=True)

        monkeypatch.setattr(rehearsing._Session, "_show", close)
        with pytest.raises(EngineError, match="closed"):
            rehearse(engines, job=[replace(one, gap_flops=4e12) for one in STEP], rounds=100)


def test_progress_counts_rounds(thread_engines: ml.Engines, capsys: pytest.CaptureFixture[str]) -> None:
    rehearse(thread_engines, job=[replace(one, gap_flops=1e12) for one in STEP], rounds=3, progress=True)
    assert "round 3 of 3" in capsys.readouterr().err


def test_frames_have_stable_columns(thread_engines: ml.Engines) -> None:
    found = rehearse(thread_engines)
    frame = found.frame()
    assert frame.dtypes["n_wrong"] == "Int64"
    assert frame.attrs["where"] == thread_engines.where
    assert isinstance(frame, pd.DataFrame)
    assert found.calls().columns.tolist()[:4] == ["layout", "axis", "collective", "what"]
    assert found.steps()["bubble"].isna().all()


# -- tunings -----------------------------------------------------------------------------------------------------------


def test_calls_use_the_options_that_a_tuning_chose_for_their_size() -> None:
    tuning = a_tuning([*both(WINDOW, 4096, 3.0, 3.0), *both({}, 4096, 6.0, 6.0), *both({}, 1 << 20, 60.0, 60.0)])
    small = step_of("all_reduce", "float32", "tp", 2, 4096)
    assert tuned_step(small, tuning.choices()).buffers == "symmetric"
    large = step_of("all_reduce", "float32", "tp", 2, 1 << 20)
    assert tuned_step(large, tuning.choices()) == large
    other = step_of("all_gather", "float32", "tp", 2, 4096)
    assert tuned_step(other, tuning.choices()) == other


def test_a_tuning_of_another_backend_is_rejected(thread_engines: ml.Engines) -> None:
    tuning = a_tuning([*both({}, 4096, 6.0, 6.0)])
    with pytest.raises(BenchError, match="the tuning was made on nccl, but these engines run threads"):
        rehearse(thread_engines, tuning=tuning)
    here = a_tuning([*both({}, 4096, 6.0, 6.0)], system={"backend": "threads"})
    assert part(rehearse(thread_engines, tuning=[here]), "tp", "alone_us") > 0
