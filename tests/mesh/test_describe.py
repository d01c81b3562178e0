from __future__ import annotations

import numpy as np
import pytest

from meshlab.errors import MeshError
from meshlab.mesh.describe import check_groups
from meshlab.mesh.mesh import DeviceMesh

FINDINGS = ["disjoint", "covers", "equal_size", "same_order"]


def test_membership_has_one_row_per_rank() -> None:
    mesh = DeviceMesh("pp=2, tp=2").with_group("pair", [3, 0])
    frame = mesh.membership()
    assert list(frame.columns) == ["rank", "pp", "tp", "pp_group", "tp_group", "pair"]
    for row in frame.to_dict("records"):
        assert mesh.coordinates(row["rank"]) == {"pp": row["pp"], "tp": row["tp"]}
        assert row["tp_group"] == mesh.group_of(row["rank"], "tp").name
        assert row["pair"] == (row["rank"] in mesh.group("pair"))
    assert frame["tp_group"].dtype == "category"
    assert list(frame["tp_group"].cat.categories) == ["tp_0", "tp_1"]


def test_stats_have_one_row_per_axis_and_group_by_hand() -> None:
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
def test_every_mesh_passes_its_own_proof(mesh: DeviceMesh) -> None:
    frame = mesh.proof()
    assert len(frame) == 2 ** len(mesh.axes) - 1
    assert frame[FINDINGS].all().all()
    assert (frame["groups"] * frame["size"] == mesh.size()).all()


def test_the_proof_of_chosen_sets_keeps_their_order() -> None:
    assert DeviceMesh("pp=2, dp=2, tp=2").proof("tp", ("tp", "pp"))["axes"].tolist() == ["tp", "tp-pp"]
    with pytest.raises(MeshError, match="no axis 'ep'"):
        DeviceMesh("pp=2").proof("ep")


def test_too_many_sets_must_be_chosen() -> None:
    mesh = DeviceMesh([(f"a{index}x", 2) for index in range(11)])
    with pytest.raises(MeshError, match="2,047 sets of axes; name those to prove"):
        mesh.proof()
    assert mesh.proof("a3x")[FINDINGS].all().all()


def findings(array: list[list[int]]) -> dict[str, bool]:
    return check_groups(np.array(array, dtype=np.int32), DeviceMesh("dp=2, tp=2"), (1,))


def test_the_proof_finds_every_kind_of_fault() -> None:
    sound = dict.fromkeys(FINDINGS, True)
    assert findings([[0, 1], [2, 3]]) == sound
    # Groups in another order: what happens when every rank makes its own group first.
    assert findings([[2, 3], [0, 1]]) == sound | {"same_order": False}
    assert findings([[1, 0], [2, 3]]) == sound | {"same_order": False}
    # Sound groups, but of the other axis.
    assert findings([[0, 2], [1, 3]]) == sound | {"same_order": False}
    assert findings([[0, 1], [2, 2]]) == {"disjoint": False, "covers": False, "equal_size": True, "same_order": False}
    assert findings([[0, 1]]) == sound | {"covers": False, "same_order": False}
    assert findings([[0, 1, 2, 3]]) == sound | {"equal_size": False, "same_order": False}
