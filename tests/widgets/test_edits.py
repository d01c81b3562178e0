"""Edits of a mesh and of a machine as pure functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import MeshError, TopologyError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.widgets import _edits as edits
from meshlab.widgets._edits import MisfitError, Pairs
from meshlab.widgets._machines import DIALS, Machine, find_part
from meshlab.widgets._source import cluster_code, python
from tests.examples import examples

NAMES = ("pp", "dp", "cp", "ep", "tp", "rows")
MACHINES = {name: Machine.of(ml.preset(name, nodes=36)) for name in ml.topology.PRESETS}

axes = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.tuples(*(st.tuples(st.just(name), st.sampled_from([1, 2, 3, 4, 6, 8, 12, 64])) for name in names))
)


def product(pairs: Pairs) -> int:
    return math.prod(size for _, size in pairs)


def names_of(pairs: Pairs) -> list[str]:
    return [name for name, _ in pairs]


@given(axes, st.data())
def test_a_step_moves_a_prime_factor_and_keeps_the_product(pairs: Pairs, data) -> None:
    axis, by = data.draw(st.sampled_from(names_of(pairs))), data.draw(st.sampled_from([-1, 1]))
    rest = data.draw(st.sampled_from(["", *NAMES]))
    stepped = edits.step_axis(pairs, axis, by, rest)
    if stepped is None:
        others = [size for name, size in pairs if name != axis]
        assert not others or (dict(pairs)[axis] == 1 if by < 0 else set(others) == {1})
        return
    assert product(stepped) == product(pairs)
    assert names_of(stepped) == names_of(pairs)
    before, after = dict(pairs)[axis], dict(stepped)[axis]
    assert (after > before) == (by > 0)
    changed = [name for name, size in stepped if size != dict(pairs)[name]]
    assert len(changed) == 2
    if len(pairs) == 2:  # the step back goes to the same axis
        assert product(edits.step_axis(stepped, axis, -by, rest) or ()) in (product(pairs), 1)


@given(axes, st.integers(-2, 80), st.data())
def test_a_typed_size_keeps_the_product_or_offers_valid_sizes(pairs: Pairs, size: int, data) -> None:
    axis, total = data.draw(st.sampled_from(names_of(pairs))), product(pairs)
    typed, options = pairs, None
    try:
        typed = edits.type_size(pairs, axis, size, total)
    except MisfitError as error:
        options = error.options
    if options is not None:
        assert len(set(options)) == len(options) <= 3
        for option in options:
            assert product(option) == total
            assert names_of(option) == names_of(pairs)
            assert option != pairs
        if size > 0 and total % size == 0 and len(pairs) > 1 and size != dict(pairs)[axis]:
            assert dict(options[0])[axis] == size  # the typed size is kept if it can be
        return
    assert product(typed) == total
    assert size in (-1, dict(typed)[axis])


@given(axes, st.integers(-3, 9), st.data())
def test_moved_added_renamed_and_removed_axes(pairs: Pairs, to: int, data) -> None:
    axis = data.draw(st.sampled_from(names_of(pairs)))
    moved = edits.move_axis(pairs, axis, to)
    assert sorted(moved) == sorted(pairs)
    assert names_of(moved).index(axis) == min(max(to, 0), len(pairs) - 1)
    new = edits.free_names(pairs)[0]
    added = edits.add_axis(pairs, new)
    assert edits.remove_axis(added, new) == pairs
    assert new == "tp" or added[-1][0] != new or "tp" not in names_of(pairs)  # tp stays the fastest axis
    if len(pairs) > 1:
        removed = edits.remove_axis(pairs, axis)
        assert (product(removed), len(removed)) == (product(pairs), len(pairs) - 1)
    else:
        with pytest.raises(MeshError, match="a mesh has at least one axis"):
            edits.remove_axis(pairs, axis)
    assert edits.rename_axis(edits.rename_axis(pairs, axis, "x"), "x", axis) == pairs


@given(axes, st.integers(1, 600))
def test_a_mesh_always_fits_the_machine_after_a_change(pairs: Pairs, devices: int) -> None:
    mesh = DeviceMesh(pairs)
    fitted = edits.fit_mesh(mesh, mesh.world_size, devices)
    assert fitted.world_size <= devices
    assert fitted.axis_names == mesh.axis_names
    assert edits.fit_mesh(mesh, None, mesh.world_size + devices) == mesh
    if devices % mesh.world_size == 0:
        assert fitted.world_size == devices


@given(st.integers(1, 5000), st.sampled_from([1, 2, 4, 8, 36, 72]))
def test_layouts_have_one_rank_per_device(devices: int, domain: int) -> None:
    found = edits.templates(devices, domain)
    assert found
    for template in found:
        assert product(template.pairs) == devices
        assert DeviceMesh(template.pairs).world_size == devices


def test_a_rebuilt_mesh_keeps_groups_backends_and_the_order_of_ranks() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[3, 1, 2, 0], backends={"dp": "gloo"}).with_group("pair", [0, 3])
    new = edits.rebuilt(mesh, (("dp", 4), ("tp", 1)))
    assert new.ranks.reshape(-1).tolist() == [3, 1, 2, 0]
    assert (dict(new.backends), new.group("pair").ranks) == ({"dp": "gloo"}, (0, 3))
    smaller = edits.rebuilt(mesh, (("dp", 2), ("tp", 1)))
    assert (smaller.in_order, smaller.custom_groups) == (True, ())
    renamed = edits.rebuilt(mesh, (("rows", 2), ("tp", 2)), {"dp": "rows"})
    assert dict(renamed.backends) == {"rows": "gloo"}


# -- machines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ml.topology.PRESETS)
@pytest.mark.parametrize("nodes", [1, 5, 36, 400])
def test_presets_are_recognised_and_every_cluster_can_be_written_as_code(name: str, nodes: int) -> None:
    cluster = ml.preset(name, nodes=nodes)
    machine = Machine.of(cluster)
    assert (machine.name, machine.whole) == (name, cluster)
    assert eval(machine.code, {"ml": ml}) == cluster
    assert eval(cluster_code(cluster), {"ml": ml, "np": np}) == cluster


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(sorted(MACHINES)), st.booleans(), st.data())
def test_turned_dials_lead_to_their_value_and_to_code(name: str, is_other: bool, data) -> None:
    machine = MACHINES[name]
    if is_other:  # the same machine, but not as a preset
        machine = Machine(machine.whole)
    for _ in range(3):
        dial = data.draw(st.sampled_from(sorted(DIALS)))
        if machine.reason_off(dial):
            assert machine.steps(dial) == (None, None)
            continue
        value = data.draw(st.sampled_from([1, 2, 3, 4, 8, 12, 32, *(v for v in machine.steps(dial) if v is not None)]))
        try:
            turned = machine.turned(dial, value)
        except TopologyError:
            near = machine.nearest(dial, value)
            assert 1 <= len(near) <= 3
            turned = machine.turned(dial, near[0])
        else:
            assert turned.values[dial] == value
        machine = turned
        for step in machine.steps(dial):
            assert step is None or machine.turned(dial, step).values[dial] == step
    values = machine.values
    assert machine.whole.n_nodes == values["nodes"]
    if values["devices"]:
        assert machine.whole.n_devices == values["nodes"] * values["devices"]
    if values["nvlink_domain"] and machine.whole.n_devices >= values["nvlink_domain"]:
        assert np.bincount(machine.whole.domain("nvlink")).max() == values["nvlink_domain"]
    assert eval(machine.code, {"ml": ml, "np": np}) == machine.whole


@pytest.mark.parametrize("part", ["node1", "node1/GPU3", "node1/NIC3", "node1/GPU3/NVLink", "node1/GPU3-GPU5"])
def test_parts_fail_and_are_removed(part: str) -> None:
    machine = Machine.of(ml.preset("dgx-h100", nodes=4))
    failed, removed = machine.without(part), machine.without(part, is_removed=True)
    assert (failed.failed, removed.removed) == ((part,), (part,))
    assert failed.whole == machine.whole
    assert failed.cluster != machine.whole
    assert failed.cluster.n_nodes == 4
    assert failed.restored(part).cluster == machine.cluster
    for code in (failed.code_without_failed, removed.code):
        assert code.count("without_") == 1
    assert eval(failed.code_without_failed, {"ml": ml}) == failed.cluster
    assert eval(removed.code, {"ml": ml}) == removed.cluster
    with pytest.raises(TopologyError):
        failed.without(part)  # it has failed already
    assert failed.without("node1").failed == ("node1",) if part != "node1" else True


def test_unknown_parts_are_explained() -> None:
    machine = Machine.of(ml.preset("dgx-h100", nodes=2))
    for part, message in (
        ("node7", "unknown part 'node7'"),
        ("node1/GPU8", "node1 has no part 'GPU8'; choose one of GPU0"),
        ("node1/GPU1-NIC1", "node1 has no part 'GPU1-NIC1'"),
        (7, "a part must be a name such as 'node1/NIC3', not 7"),
    ):
        with pytest.raises(TopologyError, match=message):
            find_part(machine.cluster, part)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="'node1' has not failed; no part has failed"):
        machine.restored("node1")
    with pytest.raises(TopologyError, match="has no NVLink"):
        Machine.of(ml.preset("pcie-l40s")).without("node0/GPU1/NVLink")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one) | st.tuples(one)))
def test_values_are_written_as_python(value) -> None:
    assert eval(python(value)) == value


def test_edits_of_a_small_mesh() -> None:
    pairs: Pairs = (("dp", 4), ("tp", 8))
    assert edits.rest_axis((("pp", 2), ("dp", 4), ("tp", 8)), "tp") == "dp"
    assert edits.rest_axis((("pp", 2), ("tp", 8)), "tp") == "pp"
    assert edits.step_axis(pairs, "tp", -1) == (("dp", 8), ("tp", 4))
    assert edits.type_size(pairs, "tp", 4, 32) == (("dp", 8), ("tp", 4))
    assert edits.move_axis(pairs, "tp", 0) == (("tp", 8), ("dp", 4))
    assert edits.add_axis(pairs, "pp") == (("pp", 1), ("dp", 4), ("tp", 8))
    assert edits.add_axis(pairs, "rows") == (("dp", 4), ("rows", 1), ("tp", 8))
    assert edits.remove_axis((("pp", 2), ("dp", 4), ("tp", 8)), "pp") == (("dp", 8), ("tp", 8))


@pytest.mark.parametrize(("mesh", "before", "after", "fitted"), [(4, 32, 64, 8), (4, 32, 31, 3), (3, 31, 32, 4)])
def test_the_axis_of_the_rest_fills_the_machine(mesh: int, before: int, after: int, fitted: int) -> None:
    assert edits.fit_mesh(DeviceMesh(dp=mesh, tp=8), before, after) == DeviceMesh(dp=fitted, tp=8)


def test_templates_of_128_hosts() -> None:
    assert [(name, edits.pairs_text(pairs)) for name, pairs in edits.templates(1024, 8)] == [
        ("dp, tp inside NVLink", "dp=128, tp=8"),
        ("pp, dp, tp", "pp=8, dp=16, tp=8"),
        ("FSDP", "dp_shard=1024"),
        ("HSDP", "dp_replicate=128, dp_shard=8"),
        ("MoE: dp, ep", "dp=128, ep=8"),
        ("long context: dp, cp, tp", "dp=32, cp=4, tp=8"),
        ("data parallel", "dp=1024"),
    ]
