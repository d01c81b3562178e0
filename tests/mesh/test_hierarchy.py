from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.errors import MeshError
from meshlab.mesh.groups import Groups, cut_groups
from meshlab.mesh.mesh import DeviceMesh


def test_an_axis_is_cut_by_ranks_per_node() -> None:
    inner, outer = DeviceMesh("dp=8, tp=2").hierarchy("dp", nodes=8)
    assert inner.array.tolist() == [[0, 2, 4, 6], [8, 10, 12, 14], [1, 3, 5, 7], [9, 11, 13, 15]]
    assert outer.array.tolist() == [[0, 8], [2, 10], [4, 12], [6, 14], [1, 9], [3, 11], [5, 13], [7, 15]]
    assert inner.names[0] == "dp_inner_0"
    assert outer.color.tolist()[:4] == [0, 4, 1, 5]
    assert outer.key.tolist() == [0] * 8 + [1] * 8


def test_the_order_of_a_ring_is_kept_on_both_levels() -> None:
    mesh = DeviceMesh("dp=8", ranks=[6, 7, 5, 4, 0, 1, 3, 2])
    inner, outer = mesh.hierarchy("dp", nodes=4)
    assert inner.array.tolist() == [[6, 7, 5, 4], [0, 1, 3, 2]]
    assert outer.array.tolist() == [[6, 0], [7, 1], [5, 3], [4, 2]]


def test_nodes_may_be_any_numbers_and_interleave() -> None:
    inner, outer = DeviceMesh("dp=6").hierarchy("dp", nodes=[9, 2, 9, 2, 5, 5])
    assert inner.array.tolist() == [[0, 2], [1, 3], [4, 5]]
    assert outer.array.tolist() == [[0, 1, 4], [2, 3, 5]]


def test_a_group_inside_one_node_or_alone_on_every_node_has_a_trivial_level() -> None:
    inner, outer = DeviceMesh("dp=2, tp=4").hierarchy("tp", nodes=4)
    assert (inner.size, outer.size) == (4, 1)
    inner, outer = DeviceMesh("dp=2, tp=4").hierarchy("dp", nodes=4)
    assert (inner.size, outer.size) == (1, 2)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (
            3,
            r"'dp_0' \(ranks 0 to 7\) cannot be cut in two levels: it has 3 on node 0, 3 on node 1, 2 on node 2",
        ),
        ([0, 0, 0, 0, 0, 1, 1, 1], "5 on node 0, 3 on node 1"),
        (0, "a node has at least one rank"),
        ([0, 1], r"nodes has shape \(2,\), but there are 8 ranks"),
        (2.5, "number of ranks on a node"),
        (["a"] * 8, "number of ranks on a node"),
    ],
)
def test_groups_that_do_not_cut_evenly_are_named(nodes: object, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("dp=8").hierarchy("dp", nodes)  # type: ignore[arg-type]


def test_a_later_group_that_is_uneven_is_named() -> None:
    groups = Groups("dp", [[0, 1, 2, 3], [4, 5, 6, 7]], world_size=8)
    with pytest.raises(MeshError, match=r"'dp_1' .* has 1 on node 2, 3 on node 3"):
        cut_groups(groups, [0, 0, 1, 1, 2, 3, 3, 3])


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_two_levels_reach_exactly_the_ranks_of_the_group(
    groups: int, nodes: int, per_node: int, random: object
) -> None:
    size = nodes * per_node
    rows, node_of = [], np.empty(groups * size, dtype=int)
    for group in range(groups):
        members = list(range(group * size, (group + 1) * size))
        places = [node for node in range(nodes) for _ in range(per_node)]
        random.shuffle(places)  # type: ignore[attr-defined]
        rows.append(members)
        node_of[members] = places
    inner, outer = cut_groups(Groups("g", rows, world_size=groups * size), node_of)
    for row in rows:
        for rank in row:
            here = inner.of(rank).ranks
            assert set(here) == {other for other in row if node_of[other] == node_of[rank]}
            assert list(here) == sorted(here, key=row.index)
            reached = {peer for member in here for peer in outer.of(member).ranks}
            assert reached == set(row)
            assert len({node_of[peer] for peer in outer.of(rank).ranks}) == nodes
