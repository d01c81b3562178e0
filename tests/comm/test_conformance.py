"""One suite for every backend: each collective, dtype, operation and size, against numpy.

The loops run inside one call on the ranks, so that a whole world is checked in one go.
"""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml

cloudpickle.register_pickle_by_value(sys.modules[__name__])

OPS = {"sum": np.sum, "min": np.min, "max": np.max}
DTYPES = ["float32", "float64", "int32", "int64"]
SIZES = [0, 1, 7, 4096]


def inputs_of(ranks: tuple[int, ...], size: int, dtype: str) -> list[np.ndarray]:
    """What each rank puts in, known to all: small whole numbers, so that sums are exact."""
    return [np.random.default_rng([rank, size]).integers(-50, 50, size).astype(dtype) for rank in ranks]


def check_all(comm: Any) -> list[str]:
    """Runs on every rank; gives the calls whose result was wrong."""
    wrong = []
    n, me = comm.size, comm.rank

    def expect(what: str, got: np.ndarray, right: np.ndarray) -> None:
        if got.dtype != right.dtype or got.shape != right.shape or not np.array_equal(got, right):
            wrong.append(f"{what} on {comm.name}: {got[:8]} is not {right[:8]}")

    for dtype in DTYPES:
        for size in SIZES:
            data = inputs_of(comm.ranks, size, dtype)
            wide = inputs_of(comm.ranks, size * n, dtype)
            for op, reduce in OPS.items():
                total, wide_total = reduce(data, axis=0).astype(dtype), reduce(wide, axis=0).astype(dtype)
                mine = wide_total[me * size : (me + 1) * size]
                expect(f"all_reduce {op} {dtype} {size}", comm.all_reduce(data[me], op=op), total)
                buffer = data[me].copy()
                expect(f"all_reduce in place {op} {dtype} {size}", comm.all_reduce(buffer, buffer, op=op), total)
                expect(f"reduce_scatter {op} {dtype} {size}", comm.reduce_scatter(wide[me], op=op), mine)
                buffer = wide[me].copy()
                part = buffer[me * size : (me + 1) * size]
                expect(f"reduce_scatter in place {op} {dtype} {size}", comm.reduce_scatter(buffer, part, op=op), mine)
            gathered = np.concatenate(data)
            expect(f"all_gather {dtype} {size}", comm.all_gather(data[me]), gathered)
            buffer = np.zeros(size * n, dtype)
            part = buffer[me * size : (me + 1) * size]
            part[:] = data[me]
            expect(f"all_gather in place {dtype} {size}", comm.all_gather(part, buffer), gathered)
            for root in range(n):
                sent = data[me].copy()
                expect(f"broadcast {root} {dtype} {size}", comm.broadcast(sent, root=root), data[root])
                expect(f"broadcast left its input alone {root} {dtype} {size}", sent, data[me])
                expect(f"broadcast in place {root} {dtype} {size}", comm.broadcast(sent, sent, root=root), data[root])
            comm.barrier()
    return wrong


@pytest.mark.parametrize("axis", ["world", "dp", "tp", "one", "three"])
def test_every_collective_gives_what_numpy_gives(engines: ml.Engines, axis: str) -> None:
    mesh = ml.DeviceMesh("dp=2, tp=2, one=1").with_group("three", [3, 0, 1])
    frame = engines.run(check_all, mesh, axis=axis)
    assert frame["error"].isna().all(), frame["error"].dropna().tolist()
    assert [wrong for value in frame["value"] for wrong in value] == []
    assert len(frame) == (3 if axis == "three" else 4)


def split_by_parity(comm: Any) -> tuple[Any, ...]:
    child = comm.split(comm.rank % 2 if comm.rank != 3 else None, key=-comm.rank)
    if child is None:
        return ("outside",)
    with child:
        return child.rank, child.ranks, child.all_gather(np.array([comm.rank])).tolist()


def test_split_orders_by_key_and_leaves_out_ranks_without_a_color(engines: ml.Engines) -> None:
    frame = engines.run(split_by_parity)
    assert frame["value"].tolist() == [(1, (2, 0), [2, 0]), (0, (1,), [1]), (0, (2, 0), [2, 0]), ("outside",)]


def shapes(comm: Any) -> dict[str, Any]:
    x = np.ones((4, 3))
    return {
        "all_reduce": comm.all_reduce(x).shape,
        "all_gather": comm.all_gather(x).shape,
        "reduce_scatter": comm.reduce_scatter(x).shape,
        "scalar": comm.all_gather(np.ones(())).shape,
        "into": comm.all_gather(np.ones(3), np.empty((4, 3))).shape,
    }


def test_shapes_of_new_outputs(engines: ml.Engines) -> None:
    for value in engines.run(shapes)["value"]:
        assert value == {
            "all_reduce": (4, 3),
            "all_gather": (16, 3),
            "reduce_scatter": (1, 3),
            "scalar": (4,),
            "into": (4, 3),
        }


def measure(comm: Any) -> list[Any]:
    x = np.zeros(1024)
    call = comm.prepare("all_reduce", x, x)
    isolated, pipelined = call.measure("isolated", 1, 5), call.measure("pipelined", 10, 3)
    return [isolated.time_us.shape, isolated.start_us is not None, pipelined.time_us.shape, pipelined.start_us is None]


def test_measuring_gives_one_time_per_batch(engines: ml.Engines) -> None:
    assert engines.run(measure)["value"].tolist() == [[(5,), True, (3,), True]] * 4
