"""Random meshes against an oracle in plain Python: a tuple of coordinates per rank, counted by nested loops."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh
from tests.examples import examples

NAMES = ("pp", "dp", "cp", "tp", "ep", "rail")
QUICK = settings(deadline=None, max_examples=examples(40))


class Case(NamedTuple):
    sizes: dict[str, int]
    ranks: list[int] | None
    world_size: int
    mesh: DeviceMesh

    def coordinates(self) -> dict[int, dict[str, int]]:
        places = itertools.product(*(range(size) for size in self.sizes.values()))
        ranks = itertools.count() if self.ranks is None else iter(self.ranks)
        return {next(ranks): dict(zip(self.sizes, place, strict=True)) for place in places}

    def groups(self, axes: tuple[str, ...]) -> list[list[int]]:
        """Return the ranks that differ only along `axes`, in the order of their coordinates there."""
        members_by_place: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for rank, place in self.coordinates().items():
            outside = tuple(value for axis, value in place.items() if axis not in axes)
            members_by_place.setdefault(outside, []).append((tuple(place[axis] for axis in axes), rank))
        return [[rank for _, rank in sorted(members)] for _, members in sorted(members_by_place.items())]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    sizes = {name: draw(st.integers(1, 4)) for name in names}
    count = math.prod(sizes.values())
    world_size = count + draw(st.sampled_from([0, 0, 3]))
    ranks = None
    if world_size > count or draw(st.booleans()):
        ranks = draw(st.permutations(range(world_size)))[:count]
    return Case(sizes, ranks, world_size, DeviceMesh(sizes, ranks=ranks, world_size=world_size))


def chosen_axes(data: st.DataObject, case: Case) -> tuple[str, ...]:
    count = data.draw(st.integers(1, len(case.sizes)))
    return tuple(data.draw(st.permutations(list(case.sizes)))[:count])


@given(cases())
@QUICK
def test_coordinates_agree_with_the_oracle(case: Case) -> None:
    places = case.coordinates()
    for rank, place in places.items():
        assert case.mesh.coordinates(rank) == place
        assert case.mesh.rank_at(**place) == rank
        assert case.mesh.coordinate_array[rank].tolist() == list(place.values())
    assert case.mesh.idle_ranks.tolist() == sorted(set(range(case.world_size)) - set(places))


@given(cases(), st.data())
@QUICK
def test_groups_agree_with_the_oracle(case: Case, data: st.DataObject) -> None:
    axes = chosen_axes(data, case)
    groups = case.mesh[axes]
    expected = case.groups(axes)
    assert groups.array.tolist() == expected
    for number, members in enumerate(expected):
        for place, rank in enumerate(members):
            assert (groups.color[rank], groups.key[rank]) == (number, place)
            assert case.mesh[axes].of(rank).name == f"{'-'.join(axes)}_{number}"
    assert all(groups.color[rank] == -1 for rank in case.mesh.idle_ranks)


@given(cases(), st.data())
@QUICK
def test_all_spellings_of_groups_agree(case: Case, data: st.DataObject) -> None:
    axes = chosen_axes(data, case)
    groups = case.mesh[axes]
    assert groups == case.mesh[list(axes)] == case.mesh["-".join(axes)]
    if len(axes) == 1:
        assert groups == case.mesh[axes[0]]
    assert groups.array.tolist() == case.mesh.flatten(*axes, name="all")["all"].array.tolist()
    for number, group in enumerate(groups):
        assert group.index == number
        assert case.mesh.group(group.name) == case.mesh[group.name][0] == group
    for rank in case.coordinates():
        assert rank in groups.of(rank)
        assert rank in case.mesh["world"].of(rank)
        submesh = case.mesh.submesh(*axes, rank=rank)
        assert submesh.ranks.reshape(-1).tolist() == list(groups.of(rank))


@given(cases())
@QUICK
def test_all_spellings_of_a_mesh_agree(case: Case) -> None:
    names, sizes = tuple(case.sizes), tuple(case.sizes.values())
    text = ", ".join(f"{name}={size}" for name, size in case.sizes.items())
    more = {"ranks": case.ranks, "world_size": case.world_size}
    spellings = [
        DeviceMesh(text, **more),
        DeviceMesh(**case.sizes, **more),
        DeviceMesh(list(case.sizes.items()), **more),
        DeviceMesh(sizes, names, **more),
        DeviceMesh.read(text, world_size=case.world_size) if case.mesh.in_order else case.mesh,
    ]
    assert all(mesh == case.mesh and mesh.fingerprint == case.mesh.fingerprint for mesh in spellings)


@given(cases())
@QUICK
def test_every_rank_is_in_exactly_one_group_of_every_axis_set(case: Case) -> None:
    frame = case.mesh.check_groups()
    assert len(frame) == 2 ** len(case.sizes) - 1
    assert frame[["disjoint", "covers", "equal_size", "same_order"]].all().all()


@given(cases(), st.data())
@QUICK
def test_transforms_agree_with_the_oracle(case: Case, data: st.DataObject) -> None:
    mesh = case.mesh
    order = data.draw(st.permutations(list(case.sizes)))
    moved = mesh.transpose(*order)
    assert all(moved.coordinates(rank) == place for rank, place in case.coordinates().items())
    flat = mesh.ranks.reshape(-1).tolist()
    assert mesh.reorder(*order).ranks.reshape(-1).tolist() == flat
    axes = chosen_axes(data, case)
    assert mesh.flatten(*axes, name="all")["all"].array.tolist() == case.groups(axes)
    assert mesh.reshape({"all": len(flat)}).group("all_0").ranks == tuple(flat)
    axis = axes[0]
    place = data.draw(st.integers(0, case.sizes[axis] - 1))
    if len(case.sizes) > 1:
        here = {rank for rank, coordinates in case.coordinates().items() if coordinates[axis] == place}
        assert set(mesh.select(**{axis: place}).ranks.reshape(-1).tolist()) == here


@given(cases(), st.data())
@QUICK
def test_pipeline_neighbours_agree_with_the_oracle(case: Case, data: st.DataObject) -> None:
    axis = chosen_axes(data, case)[0]
    expected = [[a, b] for row in case.groups((axis,)) for a, b in itertools.pairwise(row)]
    assert case.mesh.neighbours(axis).tolist() == expected
    stages = [{rank for rank, place in case.coordinates().items() if place[axis] == i} for i in range(case.sizes[axis])]
    assert [set(stage) for stage in case.mesh.stages(axis)] == stages


@given(cases())
@QUICK
def test_the_repr_of_a_small_mesh_creates_an_equal_mesh(case: Case) -> None:
    if case.mesh.size() <= 64:
        assert eval(repr(case.mesh), {"DeviceMesh": DeviceMesh}) == case.mesh


@given(cases(), st.sampled_from(["torch", "jax"]))
@QUICK
def test_torch_and_jax_support_any_order_of_ranks(case: Case, framework: str) -> None:
    recipe = case.mesh.to(framework)
    assert DeviceMesh.read(recipe.text, world_size=case.world_size) == case.mesh
    assert DeviceMesh.read(recipe, world_size=case.world_size) == case.mesh
    assert DeviceMesh.read(recipe.arguments, framework=framework, world_size=case.world_size) == case.mesh


@given(cases(), st.integers(0, 5))
@QUICK
def test_megatron_and_deepspeed_support_any_order_of_axes(case: Case, offset: int) -> None:
    count = math.prod(case.sizes.values())
    mesh = DeviceMesh(case.sizes)
    shifted = DeviceMesh(case.sizes, ranks=range(offset, offset + count), world_size=offset + count)
    assert DeviceMesh.read(mesh.to("deepspeed").text) == mesh
    assert DeviceMesh.read(shifted.to("hypercomm").text) == shifted
    if "rail" in case.sizes:
        return
    if min(case.sizes.get("ep", 1), case.sizes.get("cp", 1)) > 1:
        with pytest.raises(MeshError, match="either ep or cp"):
            shifted.to("megatron")
    else:
        recipe = shifted.to("megatron")
        assert DeviceMesh.read(recipe.text) == DeviceMesh.read(recipe) == shifted


@given(st.lists(st.integers(1, 4), min_size=4, max_size=4), st.booleans(), st.data())
@QUICK
def test_flags_support_their_fixed_orders(sizes: list[int], stages_first: bool, data: st.DataObject) -> None:
    count = math.prod(sizes)
    pp, dp, cp, tp = sizes
    order = ["dp", "pp", "cp", "tp"] if stages_first else ["pp", "dp", "cp", "tp"]
    mesh = DeviceMesh([(name, dict(zip(("pp", "dp", "cp", "tp"), sizes, strict=True))[name]) for name in order])
    back = DeviceMesh.read(mesh.to("megatron-flags").text, world_size=count)
    # With one rank along pp or dp, both orders are the same layout, and the flags select the default one.
    assert back == mesh or (1 in (pp, dp) and back["tp"] == mesh["tp"] and back["cp"] == mesh["cp"])
    vllm = DeviceMesh(f"dp={dp}, pp={pp}, pcp={cp}, tp={tp}")
    assert DeviceMesh.read(vllm.to("vllm").text) == vllm
    titan = DeviceMesh(f"pp={pp}, dp_replicate={dp}, dp_shard={cp}, tp={tp}")
    assert DeviceMesh.read(titan.to("torchtitan").text, world_size=count) == titan
    ep = data.draw(st.sampled_from([d for d in range(1, cp * tp + 1) if cp * tp % d == 0]))
    experts = titan.view(f"pp={pp}, dp_replicate={dp}, efsdp=-1, ep={ep}")
    assert DeviceMesh.read(titan.to("torchtitan", experts=experts).text, experts=True) == experts
