"""Crossings of regular placements, compared bit for bit with those of all groups."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology.model._presets import preset
from meshlab.topology.placement._crossings import Crossings, cross
from meshlab.topology.placement._placement import place
from meshlab.topology.placement._regular import cross_regular

MACHINES = ["dgx-h100", "tapered-h100", "dgx-a100", "aws-p4d", "pcie-l40s", "gb200-nvl72"]


@given(
    st.sampled_from(MACHINES),
    st.lists(st.sampled_from([1, 2, 2, 3, 4, 8]), min_size=1, max_size=5).filter(lambda sizes: np.prod(sizes) <= 1024),
    st.integers(0, 40),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 3),
)
def test_regular_groups_have_the_crossings_of_all(
    name: str, sizes: list[int], spare: int, leaf: int, leaves: int, lost: int
) -> None:
    mesh = DeviceMesh([(f"a{i}", size) for i, size in enumerate(sizes)])
    cluster = preset(name, nodes=mesh.world_size // 4 + 1 + spare, nodes_per_leaf=leaf, nodes_per_pod=leaf * leaves)
    if lost == 0:
        cluster = cluster.without_nic(0, 0)
    placement = place(mesh, cluster)
    for axis in mesh.axis_names:
        groups = mesh[axis]
        answer = cross_regular(placement.rank_map, mesh, groups, placement.devices)
        general = cross(placement.rank_map, groups.array)
        for field in fields(Crossings):
            expected = getattr(general, field.name)
            np.testing.assert_array_equal(getattr(answer or general, field.name), expected, err_msg=field.name)
            assert np.asarray(getattr(placement.of(axis), field.name)).dtype == np.asarray(expected).dtype


def test_a_mesh_on_a_preset_is_regular() -> None:
    placement = place("pp=4, dp=8, tp=8", preset("tapered-h100", nodes=32))
    for axis in placement.mesh.axis_names:
        assert cross_regular(placement.rank_map, placement.mesh, placement.mesh[axis], placement.devices) is not None
