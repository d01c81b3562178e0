"""Faults from public bug reports about meshes, each in the name of the project that had it."""

from __future__ import annotations

import pytest

from meshlab.base._errors import MeshError, MeshlabError
from meshlab.mesh._mesh import DeviceMesh


def test_torchtitan_the_order_of_axes_is_explained() -> None:
    assert (
        "tp (tensor parallel): the fastest axis; the first group is ranks 0 to 7"
        in DeviceMesh("pp=2, dp=2, tp=8").explain()
    )
    assert "dp (data parallel): the fastest axis" in DeviceMesh("pp=2, tp=8, dp=2").explain()


def test_megatron_bridge_every_rank_creates_its_groups_in_the_same_order() -> None:
    mesh = DeviceMesh("pp=2, dp=2")
    # If every rank creates its own group first, [0, 2] and [1, 3] get the same number. Here the mesh defines it.
    numbers = {rank: [mesh[axis].of(rank).name for axis in mesh.creation_order] for rank in range(4)}
    assert numbers == {0: ["pp_0", "dp_0"], 1: ["pp_1", "dp_0"], 2: ["pp_0", "dp_1"], 3: ["pp_1", "dp_1"]}
    assert mesh["pp"].color.tolist() == [0, 1, 0, 1]
    assert mesh.check_groups()["same_order"].all()


def test_megatron_the_order_of_groups_is_part_of_the_value() -> None:
    mesh = DeviceMesh("dp=2, tp=2").with_group("b", [0, 1]).with_group("a", [2, 3])
    assert mesh.creation_order == ("dp", "tp", "b", "a")
    other = DeviceMesh("dp=2, tp=2").with_group("a", [2, 3]).with_group("b", [0, 1])
    assert mesh != other
    assert mesh.fingerprint != other.fingerprint


def test_megatron_groups_survive_a_round_trip_with_any_order_and_offset() -> None:
    mesh = DeviceMesh.read('RankGenerator(tp=2, ep=1, dp=2, pp=2, cp=1, order="tp-pp-dp", rank_offset=8)')
    again = DeviceMesh.read(str(mesh.to("megatron")))
    assert again == mesh
    assert again["dp"].array.tolist() == [[8, 12], [9, 13], [10, 14], [11, 15]]


@pytest.mark.parametrize("offset", [".5", "'8'", "True"])
def test_an_offset_that_is_no_integer_is_named(offset: str) -> None:
    with pytest.raises(MeshError, match=r"rank_offset=.* must be an integer"):
        DeviceMesh.read(f'RankGenerator(tp=2, ep=1, dp=2, pp=2, cp=1, order="tp-pp-dp", rank_offset={offset})')


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_indented_lines_after_parallelism_take_no_time(end: str) -> None:
    """With an ambiguous pattern, the time doubled with every line."""
    text = f"parallelism:{end}" + f"    <channel>{end}" * 2000
    with pytest.raises(MeshlabError):
        DeviceMesh.read(text)


def test_pytorch_a_ring_of_all_ranks_keeps_its_order() -> None:
    mesh = DeviceMesh("dp=4", ranks=[3, 1, 0, 2])
    assert mesh.group("dp_0").ranks == (3, 1, 0, 2)
    assert mesh["dp"].key.tolist() == [2, 1, 3, 0]
    assert mesh.group("world").ranks == (0, 1, 2, 3)
    assert "the rank order along dp is lost" in mesh.to("torch").notes[0]


def test_pytorch_a_rank_outside_the_mesh_is_a_clear_error() -> None:
    mesh = DeviceMesh("tp=2", ranks=[0, 1], world_size=4)
    with pytest.raises(MeshError, match="rank 2 is not in any group of 'tp'"):
        mesh["tp"].of(2)


def test_pytorch_a_transposed_mesh_is_valid() -> None:
    mesh = DeviceMesh("dp=2, tp=4").transpose("tp", "dp")
    assert mesh.ranks.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.check_groups().drop(columns=["axes", "groups", "size"]).all().all()


def test_pytorch_overlapping_layouts_are_rejected_and_interleaved_ones_are_exact() -> None:
    with pytest.raises(MeshError, match="rank 2 appears 2 times"):
        DeviceMesh.read("DeviceMesh((dp=2, tp=3), 'cuda', stride=(2, 2))", world_size=8)
    with pytest.raises(MeshError, match="rank 1 appears 2 times"):
        DeviceMesh("dp=2, tp=2", ranks=[[0, 1], [1, 2]], world_size=3)
    with pytest.warns(UserWarning, match="the strides skip ranks, so this is the slice of one rank"):
        mesh = DeviceMesh.read("DeviceMesh((dp=2, tp=3), 'cuda', stride=(3, 2))", world_size=8)
    assert mesh.ranks.tolist() == [[0, 2, 4], [3, 5, 7]]
    assert mesh["dp"].array.tolist() == [[0, 3], [2, 5], [4, 7]]
    assert mesh.idle_ranks.tolist() == [1, 6]


def test_tensorrt_an_unknown_group_never_falls_back_to_the_world() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[1, 0, 3, 2])
    with pytest.raises(MeshError, match="unknown axis or group 'cp'"):
        mesh["cp"]
    assert mesh.group("tp_0").ranks == (1, 0)


def test_megatron_two_meshes_share_no_state() -> None:
    training, inference = DeviceMesh("dp=2, tp=4"), DeviceMesh("dp=4, tp=2")
    assert training.group("tp_1").ranks == (4, 5, 6, 7)
    assert inference.group("tp_1").ranks == (2, 3)
    assert training.group("tp_1").ranks == (4, 5, 6, 7)


def test_ms_swift_and_vlmevalkit_the_missing_factor_is_suggested() -> None:
    with pytest.raises(MeshError, match=r"pp=1 × tp=4 is 4 ranks, but 8 were given; .*or an additional axis dp=2"):
        DeviceMesh("pp=1, tp=4", world_size=8)
    with pytest.raises(MeshError, match="or an additional axis dp=8"):
        DeviceMesh("pp=1, tp=1", world_size=8)


def test_nemo_and_finetrainers_the_factor_to_change_is_named_with_numbers() -> None:
    with pytest.raises(
        MeshError, match=r"is 8 ranks, but 4 were given; ep=8 does not divide 4; nearest: etp=1, ep=4, pp=1"
    ):
        DeviceMesh("etp=1, ep=8, pp=1", world_size=4)
    with pytest.raises(MeshError, match="2 ranks, but 1 was given"):
        DeviceMesh("tp=2", world_size=1)


def test_gitm_runtime_idle_ranks_are_an_error_or_are_listed() -> None:
    with pytest.raises(MeshError, match="ranks 8 to 11 idle"):
        DeviceMesh("pp=2, dp=2, tp=2", world_size=12)
    mesh = DeviceMesh("pp=2, dp=2, tp=2", ranks=range(8), world_size=12)
    assert mesh.idle_ranks.tolist() == [8, 9, 10, 11]
    assert "Idle: ranks 8 to 11 of 12." in mesh.explain()


def test_a_degree_that_does_not_divide_the_world_size_is_rejected() -> None:
    with pytest.raises(MeshError, match=r"10 ranks cannot be divided by tp=4.*ranks 8 and 9 idle"):
        DeviceMesh.tensor_parallel(4, world_size=10)
    with pytest.raises(MeshError, match="8 ranks cannot be divided by pp=3"):
        DeviceMesh.pipeline_parallel(3, world_size=8)
    mesh = DeviceMesh.pipeline_parallel(2, world_size=8)
    assert sorted(mesh["pp"].array.reshape(-1)) == sorted(mesh.stages().array.reshape(-1)) == list(range(8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeviceMesh.tensor_parallel(0, world_size=8),
        lambda: DeviceMesh.pipeline_parallel(0),
        lambda: DeviceMesh.mixed(tp=2, pp=0, dp=2),
        lambda: DeviceMesh.mixed(tp=-1, pp=-1, dp=2, world_size=8),
        lambda: DeviceMesh.data_parallel(0),
        lambda: DeviceMesh.data_parallel(-1),
        lambda: DeviceMesh("tp=2", world_size=0),
        lambda: DeviceMesh.mixed(tp=2**16, pp=2**16, dp=2**16),
    ],
)
def test_zero_negative_and_overflowing_degrees_are_rejected(make: object) -> None:
    with pytest.raises(MeshError):
        make()  # type: ignore[operator]


def test_every_axis_and_every_set_of_axes_has_groups() -> None:
    mesh = DeviceMesh.mixed(tp=2, pp=2, dp=3)
    for axes in (("tp",), ("pp",), ("dp",), ("pp", "tp"), ("dp", "tp"), ("pp", "dp", "tp")):
        assert sorted(mesh[axes].array.reshape(-1)) == list(range(12))


def test_reshape_does_not_reuse_cached_groups() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    assert mesh["tp"].size == 4
    assert mesh.reshape("dp=4, tp=2")["tp"].array.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_deepspeed_a_group_size_is_never_clamped() -> None:
    with pytest.raises(MeshError, match="edp=1 × ep=64 is 64 ranks, but 8 were given; ep=64 does not divide 8"):
        DeviceMesh("dp=8").view("edp=1, ep=64")


def test_megatron_and_torchtitan_experts_and_context_can_be_combined() -> None:
    mesh = DeviceMesh("pp=2, dp=2, cp=2, tp=2")
    experts = mesh.view("pp=2, ep=4, etp=2")
    assert experts["pp"] == mesh["pp"]
    assert (mesh.size("cp"), experts.size("ep")) == (2, 4)


@pytest.mark.parametrize(("degree", "efsdp"), [(4, 2), (8, 1)])
def test_torchtitan_experts_reuse_the_ranks_of_dp_cp_and_tp(degree: int, efsdp: int) -> None:
    flags = (
        "--parallelism.tensor_parallel_degree 2 --parallelism.context_parallel_degree 2 "
        f"--parallelism.data_parallel_shard_degree 2 --parallelism.expert_parallel_degree {degree}"
    )
    assert DeviceMesh.read(flags, world_size=8, experts=False) == DeviceMesh("dp_shard=2, cp=2, tp=2")
    assert DeviceMesh.read(flags, world_size=8, experts=True) == DeviceMesh(f"efsdp={efsdp}, ep={degree}")


def test_pith_train_folding_keeps_the_size_of_every_axis() -> None:
    mesh = DeviceMesh("dp=8, cp=4")
    experts = mesh.view("edp=4, ep=8")
    assert (mesh.size("dp"), experts.size("edp"), mesh.world_size) == (8, 4, 32)


def test_megatron_fl_the_size_of_an_axis_is_one_call() -> None:
    assert DeviceMesh("dp=8").view("edp=2, ep=4").size("edp") == 2


def test_vllm_a_rank_order_by_host_is_recorded_and_compared() -> None:
    expected = DeviceMesh("pp=2, tp=4")
    actual = DeviceMesh("pp=2, tp=4", ranks=[0, 1, 2, 4, 3, 5, 6, 7])
    assert actual.group("tp_0").ranks == (0, 1, 2, 4)
    frame = expected.diff(actual).frame()
    moved = frame[(frame["axis"] == "tp") & (frame["before"] != frame["after"])]
    assert moved["rank"].tolist() == [3, 4]


def test_grok_one_device_is_not_eight() -> None:
    with pytest.raises(MeshError, match=r"dp=1 × tp=8 is 8 ranks, but 1 was given; .*nearest: dp=1, tp=1$"):
        DeviceMesh("dp=1, tp=8", world_size=1)


def test_jax_the_order_of_ranks_is_part_of_the_value() -> None:
    ordered, other = DeviceMesh("dp=4"), DeviceMesh("dp=4", ranks=[0, 1, 3, 2])
    assert ordered != other
    assert ordered.fingerprint != other.fingerprint


def test_megatron_order_tokens_are_compared_as_a_whole() -> None:
    with pytest.raises(MeshError, match="order 'gtp-dp' does not contain tp=2; add it, fastest axis first"):
        DeviceMesh.read({"tp": 2, "gtp": 2, "dp": 2, "order": "gtp-dp"}, framework="megatron")
    with pytest.raises(MeshError, match="order 'tp-dp-dp' contains dp 2 times; list it once"):
        DeviceMesh.read({"tp": 2, "dp": 2, "order": "tp-dp-dp"}, framework="megatron")
    with pytest.raises(MeshError, match="order 'tp-xp' contains 'xp', which has no size"):
        DeviceMesh.read({"tp": 2, "order": "tp-xp"}, framework="megatron")


def test_a_shape_of_jax_that_is_no_sequence_is_named() -> None:
    with pytest.raises(MeshError, match=r"axes must be .* not \[5\], 4"):
        DeviceMesh.read("jax.make_mesh(5, 4)")


def test_more_devices_than_a_mesh_can_have_are_refused() -> None:
    with pytest.raises(MeshlabError, match="more than 16,777,216 devices"):
        DeviceMesh.read('Mesh(np.array(jax.devices()).reshape(2, -1), ("data", "model"))', world_size=2**70)
