from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshError
from meshlab.mesh._describe import check_array, mesh_text, wrapped
from meshlab.mesh._mesh import DeviceMesh
from tests.examples import examples

RESULTS = ["disjoint", "covers", "equal_size", "same_order"]


def test_membership_has_one_row_per_rank() -> None:
    mesh = DeviceMesh("pp=2, tp=2").with_group("pair", [3, 0])
    frame = mesh.membership()
    assert list(frame.columns) == ["rank", "pp", "tp", "pp_group", "tp_group", "pair"]
    for row in frame.to_dict("records"):
        assert mesh.coordinates(row["rank"]) == {"pp": row["pp"], "tp": row["tp"]}
        assert row["tp_group"] == mesh["tp"].of(row["rank"]).name
        assert row["pair"] == (row["rank"] in mesh.group("pair"))
    assert frame["tp_group"].dtype == "category"
    assert list(frame["tp_group"].cat.categories) == ["tp_0", "tp_1"]


def test_stats_have_one_row_per_axis_and_custom_group() -> None:
    mesh = DeviceMesh("pp=2, tp=2", ranks=[0, 1, 3, 2], backends={"pp": "gloo"}).with_group("pair", [3, 0])
    frame = mesh.stats().set_index("axis")
    assert frame.index.tolist() == list(mesh.creation_order)
    assert frame["size"].tolist() == [2, 2, 2]
    assert frame["groups"].tolist() == [2, 2, 1]
    assert frame["stride"].isna().tolist() == [True, True, False]
    assert frame.loc["pair", "stride"] == -3
    assert frame.loc["pp", "backend"] == "gloo"
    assert frame.loc["tp", "first_group"] == "[0, 1]"
    assert frame["is_custom"].tolist() == [False, False, True]
    assert DeviceMesh("pp=2, dp=3, tp=4").stats()["stride"].tolist() == [12, 4, 1]


@pytest.mark.parametrize(
    "mesh",
    [
        DeviceMesh("pp=2, dp=3, cp=1, tp=4"),
        DeviceMesh("dp=3, tp=2", ranks=[5, 0, 3, 1, 4, 2]),
        DeviceMesh("dp=2, tp=2", ranks=[9, 2, 5, 3], world_size=11),
        DeviceMesh("pp=2, dp=3, tp=4").transpose("tp", "pp", "dp"),
    ],
    ids=str,
)
def test_the_groups_of_every_mesh_pass_the_check(mesh: DeviceMesh) -> None:
    frame = mesh.check_groups()
    assert len(frame) == 2 ** len(mesh.axes) - 1
    assert frame[RESULTS].all().all()
    assert (frame["groups"] * frame["size"] == mesh.size()).all()


def test_chosen_sets_of_axes_are_checked_in_their_order() -> None:
    assert DeviceMesh("pp=2, dp=2, tp=2").check_groups("tp", ("tp", "pp"))["axes"].tolist() == ["tp", "tp-pp"]
    with pytest.raises(MeshError, match="unknown axis 'ep'; choose one of pp"):
        DeviceMesh("pp=2").check_groups("ep")


def test_a_mesh_with_many_axes_needs_chosen_sets() -> None:
    mesh = DeviceMesh([(f"a{index}x", 2) for index in range(11)])
    with pytest.raises(MeshError, match="11 axes have 2,047 sets of axes; pass the sets to check"):
        mesh.check_groups()
    assert mesh.check_groups("a3x")[RESULTS].all().all()


def results(array: list[list[int]]) -> dict[str, bool]:
    return check_array(np.array(array, dtype=np.int32), DeviceMesh("dp=2, tp=2"), (1,))


def test_the_check_finds_every_kind_of_fault() -> None:
    valid = dict.fromkeys(RESULTS, True)
    assert results([[0, 1], [2, 3]]) == valid
    # Groups in a different order, as if every rank created its own group first.
    assert results([[2, 3], [0, 1]]) == valid | {"same_order": False}
    assert results([[1, 0], [2, 3]]) == valid | {"same_order": False}
    # Valid groups, but of the other axis.
    assert results([[0, 2], [1, 3]]) == valid | {"same_order": False}
    assert results([[0, 1], [2, 2]]) == {"disjoint": False, "covers": False, "equal_size": True, "same_order": False}
    assert results([[0, 1]]) == valid | {"covers": False, "same_order": False}
    assert results([[0, 1, 2, 3]]) == valid | {"equal_size": False, "same_order": False}


# -- explain -----------------------------------------------------------------------------------------------------------


def test_an_axis_of_one_rank_is_not_the_fastest() -> None:
    mesh = DeviceMesh("dp=2, tp=4, ep=1")
    assert "8 ranks · tp is the fastest axis" in mesh_text(mesh)
    assert mesh_text(mesh).splitlines()[-3:] == [
        "rank:group of tp",
        "  dp=0   0:0  1:0  2:0  3:0",
        "  dp=1   4:1  5:1  6:1  7:1",
    ]
    assert "tp is the fastest axis" in mesh._repr_html_()
    assert "tp (tensor parallel): the fastest axis; the first group is ranks 0 to 3" in mesh.explain()


def test_the_explanation_names_the_fastest_axis_and_the_axes_that_cross_nodes() -> None:
    assert DeviceMesh("pp=2, dp=4, cp=1, tp=8").explain().splitlines() == [
        "pp=2, dp=4, cp=1, tp=8: 64 ranks; the last axis is the fastest.",
        "tp (tensor parallel): the fastest axis; the first group is ranks 0 to 7 (adjacent).",
        "cp (context parallel): one rank per group, so no traffic.",
        "dp (data parallel): the first group is ranks 0, 8, 16, 24 (stride 8).",
        "pp (pipeline parallel): the first group is ranks 0 and 32 (stride 32).",
        "With 8 ranks per node, tp stays inside a node, and pp and dp cross nodes.",
        "Axis order in torch and JAX: (pp, dp, cp, tp). In Megatron, which lists the fastest axis first: tp-cp-dp-pp.",
    ]


def test_the_node_size_decides_which_axes_stay_inside() -> None:
    mesh = DeviceMesh("pp=2, dp=2, tp=4")
    assert "With 8 ranks per node, dp and tp stay inside a node, and pp crosses nodes." in mesh.explain()
    assert "With 4 ranks per node, tp stays inside a node, and pp and dp cross nodes." in mesh.explain(4)
    assert "With 1 rank per node, pp, dp and tp cross nodes." in mesh.explain(1)
    assert "With 16 ranks per node, all groups stay inside one node." in mesh.explain(16)
    assert mesh.explain(np.int64(4)) == mesh.explain(4)  # type: ignore[arg-type]
    for wrong in (0, -1, 2.5, True, "8"):
        with pytest.raises(MeshError, match=f"ranks_per_node must be a positive integer, not {wrong!r}"):
            mesh.explain(wrong)  # type: ignore[arg-type]


def test_reordered_and_idle_ranks_are_mentioned() -> None:
    text = DeviceMesh("shelf=2, tp=3", ranks=[0, 4, 1, 9, 2, 7], world_size=10).explain()
    assert "the last axis is the fastest. The ranks are not in ascending order." in text
    assert "Idle: ranks 3, 5, 6, 8 of 10." in text
    assert "tp (tensor parallel): the fastest axis; the first group is ranks 0, 4, 1 (varying stride)." in text
    assert "shelf: the first group is ranks 0 and 9 (varying stride)." in text


def test_descending_ranks_are_adjacent_too() -> None:
    assert "ranks 3, 2, 1, 0 (adjacent)" in DeviceMesh("tp=4", ranks=[3, 2, 1, 0]).explain()


# -- plain text --------------------------------------------------------------------------------------------------------


def test_the_text_of_a_custom_group_marks_the_other_ranks() -> None:
    text = mesh_text(DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]), "pair")
    assert "  pair  1 group of 2    pair [3, 0]" in text.splitlines()
    assert text.splitlines()[-3:] == ["rank:group of pair", "  dp=0   0:0  1:–", "  dp=1   2:–  3:0"]


def test_large_meshes_are_abbreviated_and_lines_are_wrapped() -> None:
    lines = mesh_text(DeviceMesh("pp=4, dp=16, tp=32"), width=60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert any("tp_0 [0, 1, 2, …, 31]" in line for line in lines)
    assert any("and 56 more" in line for line in lines)
    assert not any(line.startswith("rank:group") for line in lines)


@given(st.text(alphabet="ab ,\n", max_size=80), st.integers(20, 40))
@settings(deadline=None, max_examples=examples(50))
def test_wrapping_keeps_every_word(text: str, width: int) -> None:
    assert wrapped(text, width).split() == text.split()
