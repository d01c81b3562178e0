"""A matrix product beside a call: on streams with a virtual clock, and on ranks that are threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark.on_ranks import _overlap as overlapping
from meshlab.benchmark.on_ranks._overlap import HEAD_US, MatrixProduct, PairedCall, _StreamLanes, fill_randomly
from tests.benchmark.on_ranks.virtual_gpu import Enqueued, Gpu, Stream


def stream_lanes(product_us: float, call_us: float, first: Any = "call") -> Any:
    gpu = Gpu()
    stream = Stream(gpu)
    backend = SimpleNamespace(stream=stream, wait_idle=lambda: None, wait=lambda event: None)
    barrier = Enqueued(stream, 3.0)
    comm = SimpleNamespace(xp=gpu, backend=backend, prepare=lambda name: barrier)

    def multiply() -> None:
        gpu.stack[-1].at += product_us

    return _StreamLanes(comm, Enqueued(stream, call_us), SimpleNamespace(multiply=multiply), first)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", ["call", "product"])
@pytest.mark.parametrize(("product_us", "call_us"), [(100.0, 40.0), (40.0, 100.0)])
def test_a_pair_takes_as_long_as_the_longer_one(product_us: float, call_us: float, first: str) -> None:
    with stream_lanes(product_us, call_us, first).ready("pipelined") as lanes:
        both = lanes.run(True, True, 4)
        product, call = lanes.run(True, False, 4), lanes.run(False, True, 4)
    product_us += HEAD_US * (first == "call")
    assert both == pytest.approx(np.tile([max(product_us, call_us), product_us, call_us], (4, 1)))
    assert product[:, 0] == pytest.approx([product_us] * 4)
    assert call[:, 0] == pytest.approx([call_us] * 4)


def test_a_paired_call_is_timed_like_a_prepared_call_and_knows_both_parts_alone() -> None:
    lanes = stream_lanes(100.0, 40.0)
    call = PairedCall.__new__(PairedCall)
    call.lanes, call._alone = lanes, []
    assert call.measure("pipelined", 2, 3).time_us == pytest.approx([100.0 + HEAD_US] * 3)
    assert call.alone_us == pytest.approx((100.0 + HEAD_US, 40.0))


def test_matrices_are_random_and_shared_by_all_options_of_a_rank(thread_engines: ml.Engines) -> None:
    def matrices(comm: Any) -> tuple[bool, bool]:
        product = MatrixProduct(64, 32, 16, "float32")
        first, second = overlapping._matrices(comm, product), overlapping._matrices(comm, product)
        expected = first._first @ first._second
        return first is second, bool(np.allclose(first._out, expected)) and float(np.ptp(first._first)) > 1.9

    assert thread_engines.run(matrices)["value"].tolist() == [(True, True)] * 4
    assert not overlapping._kept


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "uint8"])
def test_random_elements_differ(dtype: str) -> None:
    array: Any = np.zeros((300, 300), dtype)
    fill_randomly(np, array)
    assert len(np.unique(array)) >= 100
    assert not np.array_equal(array[0], array[1])
