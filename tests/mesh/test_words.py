from __future__ import annotations

import pytest

from meshlab.errors import MeshError
from meshlab.mesh.mesh import DeviceMesh


def test_the_explanation_says_which_axis_is_the_fastest_and_what_leaves_a_node() -> None:
    assert DeviceMesh("pp=2, dp=4, cp=1, tp=8").explain().splitlines() == [
        "pp=2, dp=4, cp=1, tp=8: 64 ranks; the last axis is the fastest.",
        "tp, tensor parallel: the fastest; its first group is ranks 0 to 7, next to each other.",
        "cp, context parallel: one rank in every group, so no traffic.",
        "dp, data parallel: its first group is ranks 0, 8, 16, 24, 8 apart.",
        "pp, pipeline parallel: its first group is ranks 0 and 32, 32 apart.",
        "On nodes of 8 ranks, tp stays inside a node; pp and dp leave it.",
        "torch and JAX write the axes in this order: (pp, dp, cp, tp). Megatron writes the fastest first: tp-cp-dp-pp.",
    ]


def test_the_node_size_decides_what_stays_inside() -> None:
    mesh = DeviceMesh("pp=2, dp=2, tp=4")
    assert "On nodes of 8 ranks, dp and tp stay inside a node; pp leaves it." in mesh.explain()
    assert "On nodes of 4 ranks, tp stays inside a node; pp and dp leave it." in mesh.explain(4)
    assert "On nodes of 1 rank, pp, dp and tp leave it." in mesh.explain(1)
    assert "All of it fits on one node of 16 ranks." in mesh.explain(16)
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(MeshError, match="at least 1"):
            mesh.explain(wrong)  # type: ignore[arg-type]


def test_placed_and_idle_ranks_are_mentioned() -> None:
    text = DeviceMesh("shelf=2, tp=3", ranks=[0, 4, 1, 9, 2, 7], world_size=10).explain()
    assert "The ranks do not lie in the order of their numbers." in text
    assert "Idle: ranks 3, 5, 6, 8 of 10." in text
    assert "tp, tensor parallel: the fastest; its first group is ranks 0, 4, 1, at unlike distances." in text
    assert "shelf: its first group is ranks 0 and 9, at unlike distances." in text


def test_ranks_that_count_down_are_next_to_each_other_too() -> None:
    assert "ranks 3, 2, 1, 0, next to each other" in DeviceMesh("tp=4", ranks=[3, 2, 1, 0]).explain()
