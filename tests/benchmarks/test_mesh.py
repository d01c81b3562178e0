"""Time to compute the groups of a mesh of 131,072 ranks, compared with the algorithms of Megatron and DeepSpeed.

Both algorithms are reimplemented here without process groups. Megatron decomposes the number of every group, and of
every position in it, into coordinates with Python integers. DeepSpeed keeps a dict of named tuples and filters all of
them for every group.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd  # before the clock starts: frames are timed without the import of pandas
import pytest

from meshlab.mesh._mesh import DeviceMesh

AXES = "pp=16, dp=32, cp=4, ep=8, tp=8"
OTHER = "tp=8, pp=16, dp=32, cp=4, ep=8"
RANKS = 131_072


def megatron_groups(sizes: Sequence[int], masked: Sequence[bool]) -> list[list[int]]:
    """Return the ranks of every group along the masked axes; the first axis is the fastest."""

    def prefix(numbers: Sequence[int]) -> list[int]:
        return [1, *itertools.accumulate(numbers, lambda a, b: a * b)]

    def decompose(index: int, shape: Sequence[int]) -> list[int]:
        return [index // step % size for size, step in zip(shape, prefix(shape)[:-1], strict=True)]

    def inner(a: Sequence[int], b: Sequence[int]) -> int:
        return sum(x * y for x, y in zip(a, b, strict=True))

    strides = prefix(sizes)[:-1]
    inside = [size for size, chosen in zip(sizes, masked, strict=True) if chosen]
    outside = [size for size, chosen in zip(sizes, masked, strict=True) if not chosen]
    inside_strides = [stride for stride, chosen in zip(strides, masked, strict=True) if chosen]
    outside_strides = [stride for stride, chosen in zip(strides, masked, strict=True) if not chosen]
    group_size = math.prod(inside)
    return [
        [
            inner(decompose(position, inside), inside_strides) + inner(decompose(group, outside), outside_strides)
            for position in range(group_size)
        ]
        for group in range(math.prod(sizes) // group_size)
    ]


def deepspeed_groups(names: Sequence[str], sizes: Sequence[int], axis: str) -> list[list[int]]:
    """Return the ranks of every group along one axis; the last axis is the fastest."""
    place = namedtuple("place", names)  # type: ignore[misc]
    mapping = {place(*at): rank for rank, at in enumerate(itertools.product(*map(range, sizes)))}
    others = [name for name in names if name != axis]
    lists = []
    for at in itertools.product(*(range(size) for name, size in zip(names, sizes, strict=True) if name != axis)):
        wanted = dict(zip(others, at, strict=True))
        lists.append([mapping[c] for c in mapping if all(getattr(c, name) == v for name, v in wanted.items())])
    return lists


def all_groups(axes: str) -> list[np.ndarray[Any, Any]]:
    mesh = DeviceMesh(axes)
    return [mesh[name].array for name in mesh.axis_names]


def best_of(function: Any, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def test_all_groups_of_five_axes(benchmark: Any) -> None:
    arrays = benchmark.pedantic(all_groups, args=(AXES,), rounds=30, warmup_rounds=3)
    assert [array.shape for array in arrays] == [(8192, 16), (4096, 32), (32768, 4), (16384, 8), (16384, 8)]
    assert all(array.dtype == np.int32 and array.flags.c_contiguous for array in arrays)


@pytest.mark.benchmark(group="groups of one axis of 131,072 ranks")
def test_groups_of_one_axis(benchmark: Any) -> None:
    groups = benchmark.pedantic(lambda: DeviceMesh(AXES)["dp"], rounds=30, warmup_rounds=3)
    assert groups.array.shape == (4096, 32)


@pytest.mark.benchmark(group="groups of one axis of 131,072 ranks")
def test_megatrons_algorithm_returns_the_same_groups_and_is_timed(benchmark: Any) -> None:
    mesh = DeviceMesh(AXES)
    names = list(reversed(mesh.axis_names))
    sizes = [mesh.size(name) for name in names]
    start = time.perf_counter()
    lists = benchmark.pedantic(megatron_groups, args=(sizes, [name == "dp" for name in names]), rounds=1)
    slow = time.perf_counter() - start
    assert np.array_equal(mesh["dp"].array, lists)
    fast = best_of(lambda: DeviceMesh(AXES)["dp"], 10)
    benchmark.extra_info["times slower"] = round(slow / fast)
    print(f"\n    groups of one axis: {1e3 * slow:.0f} ms by Megatron's algorithm, {1e3 * fast:.2f} ms here")


@pytest.mark.benchmark(group="groups of one axis of 1,024 ranks")
def test_deepspeeds_algorithm_returns_the_same_groups(benchmark: Any) -> None:
    mesh = DeviceMesh("pp=4, dp=32, tp=8")
    lists = benchmark.pedantic(deepspeed_groups, args=(mesh.axis_names, mesh.shape, "dp"), rounds=1)
    assert mesh["dp"].array.tolist() == lists


@pytest.mark.benchmark(group="groups of one axis of 1,024 ranks")
def test_groups_of_one_axis_of_1024_ranks(benchmark: Any) -> None:
    groups = benchmark(lambda: DeviceMesh("pp=4, dp=32, tp=8")["dp"])
    assert len(groups) == 32


def test_coordinates_of_all_ranks(benchmark: Any) -> None:
    coordinates = benchmark(lambda: DeviceMesh(AXES).coordinate_array)
    assert coordinates.shape == (RANKS, 5)


def test_membership_of_all_ranks(benchmark: Any) -> None:
    frame = benchmark.pedantic(lambda: DeviceMesh(AXES).membership(), rounds=5, warmup_rounds=1)
    assert isinstance(frame, pd.DataFrame)
    assert frame.shape == (RANKS, 11)


def test_the_names_of_all_groups(benchmark: Any) -> None:
    names = benchmark.pedantic(lambda: DeviceMesh(AXES).group_names(), rounds=10, warmup_rounds=1)
    assert len(names) == 8192 + 4096 + 32768 + 16384 + 16384


def test_the_group_of_one_rank(benchmark: Any) -> None:
    mesh = DeviceMesh(AXES)
    group = benchmark(lambda: mesh["dp"].of(77_777))
    assert 77_777 in group


def test_the_difference_of_two_meshes(benchmark: Any) -> None:
    change = benchmark.pedantic(lambda: DeviceMesh(AXES).diff(DeviceMesh(OTHER)), rounds=5, warmup_rounds=1)
    assert len(change.changed_ranks) == RANKS


def test_the_difference_of_two_meshes_as_a_frame(benchmark: Any) -> None:
    frame = benchmark.pedantic(lambda: DeviceMesh(AXES).diff(DeviceMesh(OTHER)).frame(), rounds=3, warmup_rounds=1)
    assert frame.shape == (5 * RANKS, 7)


def test_the_check_of_all_31_sets_of_axes(benchmark: Any) -> None:
    frame = benchmark.pedantic(lambda: DeviceMesh(AXES).check_groups(), rounds=2)
    assert len(frame) == 31
