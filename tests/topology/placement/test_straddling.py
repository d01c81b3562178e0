"""Axes that span more hosts than necessary are found, and the proposed orders are better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshlab as ml
from meshlab.topology.placement._straddling import find_straddle


@pytest.mark.parametrize(
    ("mesh", "hosts", "axis", "better"),
    [
        ("node=2, local=2", "abab", "local", "local=2, node=2"),
        ("local=2, node=2", "aabb", "local", "node=2, local=2"),
        ("tp=2, dp=2", "aabb", "tp", "dp=2, tp=2"),
        ("pp=2, dp=2, tp=2", "abababab", "tp", "dp=2, tp=2, pp=2"),
        ("dp=4, tp=2", "abcdabcd", "tp", "tp=2, dp=4"),
    ],
)
def test_an_axis_that_straddles_without_need_is_named_with_a_better_mesh(
    mesh: str, hosts: str, axis: str, better: str
) -> None:
    straddle = find_straddle(ml.DeviceMesh(mesh), list(hosts))
    assert straddle is not None
    assert (straddle.axis, straddle.mesh) == (axis, better)
    assert f'use the mesh "{better}"' in str(straddle)
    assert find_straddle(ml.DeviceMesh(better), list(hosts)) is None


@pytest.mark.parametrize(
    ("mesh", "hosts"),
    [
        ("node=2, local=2", "aabb"),
        ("local=2, node=2", "abab"),
        ("dp=2, tp=4", "aabbccdd"),  # no order keeps tp on a host
        ("all_ranks=4", "abab"),
        ("x=4, y=2", "aaaabbbb"),
        ("y=2, x=4", "aabbccdd"),
        ("dp=2, tp=2", "aaaa"),
    ],
)
def test_an_axis_that_has_to_straddle_is_not_named(mesh: str, hosts: str) -> None:
    assert find_straddle(ml.DeviceMesh(mesh), list(hosts)) is None


def test_an_order_of_axes_with_unknown_names_is_never_proposed() -> None:
    straddle = find_straddle(ml.DeviceMesh("x=4, y=2"), list("abababab"))
    assert straddle is not None
    assert (straddle.axis, straddle.mesh, straddle.ranks_per_host) == ("y", "", 4)


def test_the_launcher_is_named_only_if_the_ranks_of_a_host_are_apart() -> None:
    apart = find_straddle(ml.DeviceMesh("node=2, local=2"), ["a", "b", "a", "b"])
    assert "start the ranks host by host (srun -m block, mpiexec -ppn 2)" in str(apart)
    assert "srun" not in str(find_straddle(ml.DeviceMesh("tp=2, dp=2"), ["a", "a", "b", "b"]))


@given(st.lists(st.sampled_from(["pp=2", "dp=3", "tp=2"]), min_size=1, max_size=3, unique=True), st.data())
def test_the_proposed_orders_span_as_few_hosts_as_named(axes: list[str], data: st.DataObject) -> None:
    mesh = ml.DeviceMesh(", ".join(axes))
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=mesh.world_size, max_size=mesh.world_size))
    straddle = find_straddle(mesh, hosts)
    if straddle is None:
        return
    assert straddle.fewest < straddle.n_hosts
    in_blocks = sorted(hosts, key=hosts.index)
    proposals = [(hosts, straddle.mesh)] * bool(straddle.mesh) + [(in_blocks, ", ".join(axes))] * bool(
        straddle.ranks_per_host
    )
    assert proposals
    for order, text in proposals:
        groups = ml.DeviceMesh(text)[straddle.axis]
        assert max(len({order[rank] for rank in group}) for group in groups) == straddle.fewest
