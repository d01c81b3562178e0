"""What a collective and a matrix product cost each other: arguments, rows, gains and sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.benchmark._overlap import PairRecord, as_product, overlap_frame
from meshlab.benchmark.on_ranks._overlap import MatrixProduct, PairTrial
from meshlab.benchmark.tuning._options import TuningOption

MESH = ml.DeviceMesh("dp=2, tp=2")
SMALL: dict[str, Any] = {"axis": "tp", "sizes": "4K", "matrix": 32, "dtype": "float32", "rounds": 6}
STEP = ml.Plan("all_reduce", "tp", sizes="16M", mode="graph").steps("tp=2")[0]
PRODUCT = MatrixProduct(8192, 8192, 8192, "float16")


def record(parts: tuple[float, float, float], option: TuningOption | None = None, n_launches: int = 1) -> PairRecord:
    """Ten rounds on two ranks, of which the second one is slower."""
    compute, communication, both = parts
    columns = np.array([compute, communication, both, 1.1 * compute, 2 * communication])
    noise = 1 + 0.001 * np.random.default_rng(0).uniform(-1, 1, (n_launches, 10, 1))
    record = PairRecord(STEP, PRODUCT, option or TuningOption())
    for launch in range(n_launches):
        times = columns * noise[launch]
        record.trials.append([PairTrial("ok", "", 0, times * factor) for factor in (0.9, 1.0)])
    return record


def test_a_row_per_collective_size_product_and_option(thread_engines: ml.Engines) -> None:
    frame = ml.benchmark.overlap(
        thread_engines,
        MESH,
        axis="tp",
        collectives="all_reduce, all_gather",
        sizes="4K, 8K",
        matrix=[(32, 16, 64), 24],
        dtype=["float32", "float64"],
        rounds=6,
    )
    assert len(frame) == 16
    assert frame["status"].eq("ok").all()
    assert frame["n_wrong"].eq(0).all()
    assert frame["n_rounds"].eq(6).all()
    assert set(zip(frame["m"], frame["n"], frame["k"], strict=True)) == {(32, 16, 64), (24, 24, 24)}
    for name in ("compute_us", "communication_us", "both_us", "exposed_us", "compute_slowdown"):
        assert (frame[f"{name}_lo"] <= frame[name]).all()
        assert (frame[name] <= frame[f"{name}_hi"]).all()
    assert len(frame.attrs["verdicts"]) == 16
    assert frame.attrs["where"] == thread_engines.where
    assert thread_engines.state == "ready"


def test_an_option_that_a_backend_lacks_is_a_row_with_the_reason(thread_engines: ml.Engines) -> None:
    frame = ml.benchmark.overlap(thread_engines, MESH, options=[{"algorithm": "ring"}], **SMALL)
    assert frame["status"].tolist() == ["ok", "unsupported"]
    assert frame["option"].tolist() == ["default", "ring"]
    assert frame["message"].notna().tolist() == [False, True]
    assert frame.loc[1, ["both_us", "gain"]].isna().all()


def test_several_launches_are_several_sets_of_ranks(thread_engines: ml.Engines) -> None:
    frame = ml.benchmark.overlap(thread_engines, MESH, launches=2, **SMALL)
    assert frame["n_rounds"].tolist() == [12]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"matrix": [(1, 2)]}, r"a matrix product is a number or \(m, n, k\), not \(1, 2\)"),
        ({"matrix": 0}, "a matrix product is a number or"),
        ({"matrix": "8192"}, r"a matrix product is a number or \(m, n, k\), not '8192'"),
        ({"matrix": []}, r"overlap\(\) needs a matrix and an element type; name one of each, or omit the argument"),
        ({"dtype": []}, r"overlap\(\) needs a matrix and an element type"),
        ({"rounds": 0}, "rounds must be an integer of at least 1, not 0"),
        ({"first": "both"}, "first must be 'call' or 'product', not 'both'"),
        ({"launchs": 2}, "overlap\\(\\) has no argument 'launchs' .did you mean 'launches'"),
        ({"options": [{"alg": "ring"}]}, "unknown option 'alg'"),
        ({"options": ["buffers", {"max_ctas": 4}]}, "options are either names or mappings, not both"),
        ({"options": [{"setting": "ring"}]}, "unknown setting 'ring'"),
        ({"options": [{"min_ctas": 8, "max_ctas": 4}]}, "min_ctas=8 is larger than every max_ctas"),
        ({"matrix": 1 << 20}, "takes .* per rank, but .* may be used"),
    ],
)
def test_bad_arguments_are_rejected(thread_engines: ml.Engines, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        ml.benchmark.overlap(thread_engines, MESH, **(SMALL | arguments))
    assert thread_engines.state == "ready"


def test_a_product_is_a_number_or_three() -> None:
    assert as_product(64, "half") == MatrixProduct(64, 64, 64, "float16")
    assert str(as_product((1, 2, 3), "float32")) == "1 × 2 × 3 float32"
    assert MatrixProduct(2, 3, 4, "float16").n_bytes == 2 * (2 * 4 + 4 * 3 + 2 * 3)


def test_the_gain_is_that_of_the_pair_with_its_interval() -> None:
    window = TuningOption(buffers="symmetric")
    zero = TuningOption(buffers="symmetric", cta_policy="zero")
    frame = overlap_frame([record((1500, 60, 1690)), record((1500, 50, 1550), window), record((1500, 45, 1700), zero)])
    assert frame["exposed_us"].tolist() == pytest.approx([190, 50, 200], rel=0.01)
    assert frame["exposed_share"].tolist() == pytest.approx([190 / 60, 1.0, 200 / 45], rel=0.01)
    assert frame["overlap"].tolist() == pytest.approx([-130 / 60, 0.0, -155 / 45], abs=0.05)
    assert frame["compute_slowdown"].tolist() == pytest.approx([1.1] * 3)
    assert frame["communication_slowdown"].tolist() == pytest.approx([2.0] * 3)
    assert frame["gain"].tolist() == pytest.approx([0.0, 1 - 1550 / 1690, 1 - 1700 / 1690], abs=0.001)
    assert (frame["gain_lo"] <= frame["gain"]).all()
    assert frame.loc[1, "gain_lo"] > 0.08
    (sentence,) = frame.attrs["verdicts"]
    assert "by default the call exposes 190\u2009µs (alone it takes 60.0\u2009µs)" in sentence
    assert "the product takes 1.10 times as long (1.10 to 1.10) until it ends" in sentence
    assert "symmetric window exposes 50.0\u2009µs, so that both take 8.3\u2009% less time" in sentence
    assert sentence.endswith("symmetric window, CTA policy zero is the fastest alone, and exposes 200\u2009µs")
    assert frame.attrs["verdict"].startswith("another option than the default makes the pair faster in 1 of 1 cases")


def test_a_gain_that_the_noise_explains_is_none() -> None:
    frame = overlap_frame([record((1500, 60, 1600)), record((1500, 60, 1600), TuningOption(max_ctas=8))])
    assert frame.attrs["verdicts"][0].endswith("no option is clearly faster")


def test_launches_are_the_unit_of_the_interval() -> None:
    option = TuningOption(max_ctas=8)
    frame = overlap_frame([record((1500, 60, 1600), n_launches=3), record((1500, 60, 1500), option, n_launches=3)])
    assert frame["n_rounds"].tolist() == [30, 30]
    assert 0.05 < frame.loc[1, "gain_lo"] < frame.loc[1, "gain"] < frame.loc[1, "gain_hi"] < 0.07


def test_the_best_option_is_a_clear_one() -> None:
    noisy, clear = (
        record((1500, 60, 1540), TuningOption(max_ctas=8)),
        record((1500, 60, 1550), TuningOption(max_ctas=4)),
    )
    noisy.trials[0][1].times_us[::3, 2] *= 1.2
    frame = overlap_frame([record((1500, 60, 1600)), noisy, clear])
    assert frame["both_us"].idxmin() == 1
    assert "≤ 4 CTAs exposes" in frame.attrs["verdicts"][0]
    assert frame.attrs["verdict"].startswith("another option than the default makes the pair faster in 1 of 1 cases")


def test_the_verdict_names_wrong_results_first() -> None:
    wrong = PairRecord(STEP, PRODUCT, TuningOption(), [[PairTrial("wrong", "its result is wrong", 3)]])
    frame = overlap_frame([wrong, record((1500, 60, 1600), TuningOption(max_ctas=8))])
    assert frame.attrs["verdict"].startswith("WRONG results of all_reduce with default; beside a collective")
    assert "faster" not in frame.attrs["verdict"]  # without the default there is nothing to compare with
    assert overlap_frame([wrong]).attrs["verdict"].endswith("nothing could be measured: its result is wrong")


def test_the_verdict_names_ranks_that_share_cores(thread_engines: ml.Engines) -> None:
    frame = ml.benchmark.overlap(thread_engines, MESH, **SMALL)
    reason = "4 ranks are threads of one process, so the times do not characterise the machine"
    assert frame.attrs["verdict"].endswith(reason)
