"""The right answers of the catalog, against answers worked out the plain way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.comm.catalog import CATALOG, OPS, encode, find_collective, find_dtype
from meshlab.errors import CommunicatorError


@given(st.integers(1, 5), st.integers(1, 9), st.sampled_from(sorted(OPS)), st.data())
def test_answers(n: int, count: int, op: str, data: st.DataObject) -> None:
    combine = OPS[op].combine
    reduce = {"sum": np.sum, "min": np.min, "max": np.max}[op]
    root = data.draw(st.integers(0, n - 1))
    member = data.draw(st.integers(0, n - 1))
    dtype = np.dtype("int64")

    def value(rank: int, index: np.ndarray) -> np.ndarray:
        return encode(rank, index, dtype)

    short = [value(rank, np.arange(count)) for rank in range(n)]
    long = [value(rank, np.arange(count * n)) for rank in range(n)]
    right = {
        "all_reduce": reduce(short, axis=0),
        "all_gather": np.concatenate(short),
        "reduce_scatter": reduce(long, axis=0)[member * count : (member + 1) * count],
        "broadcast": short[root],
    }
    for name, whole in right.items():
        answer = CATALOG[name].answer
        assert answer is not None
        first = data.draw(st.integers(0, len(whole) - 1))
        index = np.arange(first, len(whole))
        assert answer(value, n, member, count, index, combine, root).tolist() == whole[first:].tolist(), name


@given(st.integers(1, 10**7), st.sampled_from([4, 8]), st.integers(1, 16))
def test_a_count_gives_at_most_the_wanted_size(size: int, itemsize: int, n: int) -> None:
    for row in CATALOG.values():
        if row.sends == "nothing":
            continue
        count = row.count_for(size, itemsize, n)
        got = row.size_bytes(count, itemsize, n)
        assert got <= size or count == 1
        assert size - got < itemsize * n


def test_bus_bandwidth_factors_are_those_of_nccl_tests() -> None:
    factors = {name: row.bus_factor(8) for name, row in CATALOG.items() if name != "barrier"}
    assert factors == {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "broadcast": 1.0}


def test_rank_coded_data_tells_ranks_and_places_apart() -> None:
    index = np.arange(4096)
    coded = {rank: encode(rank, index, np.dtype("int32")) for rank in range(8)}
    for rank in range(1, 8):
        assert (coded[rank] != coded[0]).all()
    for shift in (2**power for power in range(12)):
        assert (coded[0][shift:] != coded[0][:-shift]).all()


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(CommunicatorError, match="no collective 'sum'; there are all_reduce, all_gather"):
        find_collective("sum")
    with pytest.raises(CommunicatorError, match="no dtype 'float33'; there are float32"):
        find_dtype("float33")
