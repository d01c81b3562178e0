from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._frameworks import FRAMEWORKS
from meshlab.mesh.interop._parsing import find_call, read_flags
from meshlab.mesh.interop._recipe import Recipe, code

MESH = DeviceMesh("pp=2, dp=4, tp=8")
EXPERTS = MESH.view("pp=2, edp=2, ep=16, etp=1")

TEXTS = {
    "torch": 'init_device_mesh("cuda", (2, 4, 8), mesh_dim_names=("pp", "dp", "tp"))',
    "jax": 'Mesh(np.array(jax.devices()).reshape(2, 4, 8), ("pp", "dp", "tp"))',
    "megatron": 'RankGenerator(tp=8, ep=1, dp=4, pp=2, cp=1, order="tp-dp-pp")',
    "megatron-flags": "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2",
    "hypercomm": 'HyperCommGrid([8, 4, 2], ["tp", "dp", "pp"])',
    "deepspeed": "PipeModelDataParallelTopology(num_pp=2, num_mp=8, num_dp=4)",
}


@pytest.mark.parametrize(("framework", "text"), TEXTS.items())
def test_a_mesh_survives_a_round_trip(framework: str, text: str) -> None:
    recipe = MESH.to(framework)
    assert str(recipe) == text
    assert DeviceMesh.read(text, world_size=64) == MESH
    assert DeviceMesh.read(text, framework=framework, world_size=64) == MESH
    assert DeviceMesh.read(recipe, world_size=64) == MESH
    assert DeviceMesh.read(recipe.arguments, framework=framework, world_size=64) == MESH


def test_every_framework_survives_a_round_trip() -> None:
    slow_data = DeviceMesh("dp=4, pp=2, tp=8")
    own_order = {"vllm": slow_data, "sglang": slow_data, "torchtitan": DeviceMesh("pp=2, dp_shard=4, tp=8")}
    for framework in FRAMEWORKS:
        mesh = own_order.get(framework, MESH)
        assert DeviceMesh.read(str(mesh.to(framework)), world_size=64) == mesh


def test_calls_are_found_inside_a_script() -> None:
    script = """
import torch
mesh = torch.distributed.init_device_mesh(
    device, mesh_shape=(2, 4), mesh_dim_names=['dp', 'tp'])
"""
    assert DeviceMesh.read(script) == DeviceMesh("dp=2, tp=4")
    assert DeviceMesh.read(script.replace("device,", "'cuda',")) == DeviceMesh("dp=2, tp=4")
    with pytest.raises(ParseError, match="sizes is not a literal; replace it with the number or list itself"):
        DeviceMesh.read(script.replace("(2, 4)", "sizes"))


def test_indented_code_is_read() -> None:
    script = """
        pattern = "\\d"
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    """
    assert DeviceMesh.read(script) == DeviceMesh("dp=2, tp=4")


def test_meshlabs_text_and_a_mesh_are_accepted() -> None:
    assert DeviceMesh.read("dp=-1, tp=4", world_size=8) == DeviceMesh("dp=2, tp=4")
    assert DeviceMesh.read(MESH) is MESH


def test_unknown_formats_are_rejected_with_a_list() -> None:
    with pytest.raises(
        ParseError,
        match=r"unknown format 'alpa.DeviceMesher.*; use one of accelerate, automodel, deepspeed, deepspeed-config",
    ):
        DeviceMesh.read("alpa.DeviceMesher((2, 4))")
    with pytest.raises(ParseError, match="unknown format '--num-layers 8'"):
        DeviceMesh.read("--num-layers 8")
    with pytest.raises(MeshError, match="unknown framework 'alpa'; choose one of deepspeed"):
        MESH.to("alpa")
    with pytest.raises(MeshError, match="unknown framework None"):
        MESH.to(None)  # type: ignore[arg-type]
    with pytest.raises(MeshError, match="a mapping does not identify its framework; pass framework= one of accelerate"):
        DeviceMesh.read({"tp": 2})
    with pytest.raises(MeshError, match="cannot read a mesh from a dict_keys; pass text or an object of deepspeed"):
        DeviceMesh.read({}.keys())
    with pytest.raises(MeshError, match="cannot read a mesh from a SimpleNamespace"):
        DeviceMesh.read(SimpleNamespace(axis_names=("tp",), axis_sizes=(2,)), framework="torch")


def test_properties_that_a_framework_cannot_express_are_noted() -> None:
    mesh = DeviceMesh("dp=2, tp=2", backends={"dp": "gloo"}).with_group("pair", [0, 3])
    assert repr(mesh.to("jax")).splitlines()[1:] == [
        "# jax has no custom groups, so these are lost: pair",
        "# jax has no backend per axis here, so these are lost: dp on gloo",
    ]
    assert mesh.to("torch").notes == ("torch has no custom groups, so these are lost: pair",)
    assert repr(MESH.to("torch")) == TEXTS["torch"]


@pytest.mark.parametrize("framework", ["megatron", "megatron-flags", "hypercomm", "deepspeed", "vllm", "torchtitan"])
def test_frameworks_with_consecutive_ranks_reject_other_orders(framework: str) -> None:
    with pytest.raises(MeshError, match="the ranks of this mesh are in a different order; write it for torch or jax"):
        DeviceMesh("tp=4", ranks=[0, 2, 1, 3]).to(framework)


@pytest.mark.parametrize("framework", ["megatron-flags", "deepspeed", "vllm", "torchtitan"])
def test_frameworks_that_use_every_rank_reject_idle_ranks(framework: str) -> None:
    with pytest.raises(
        MeshError, match="uses every rank, but ranks 4 and 5 of 6 are idle in this mesh; write it for torch"
    ):
        DeviceMesh("tp=4", ranks=range(4), world_size=6).to(framework)


@pytest.mark.parametrize("framework", ["torch", "jax", "megatron", "deepspeed"])
def test_frameworks_with_a_single_layout_reject_experts(framework: str) -> None:
    with pytest.raises(
        MeshError, match="which has one layout per mesh; read or write the mesh of the experts separately"
    ):
        MESH.to(framework, experts=EXPERTS)
    with pytest.raises(
        MeshError, match="which has one layout per mesh; read or write the mesh of the experts separately"
    ):
        DeviceMesh.read(TEXTS[framework], experts=True)


# -- torch -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "DeviceMesh((dp=2, tp=4), 'cuda', stride=(4, 1))",
        "DeviceMesh((dp=2, tp=4), device: 'cuda', stride: (4, 1))",
        "DeviceMesh('cuda', [[0, 1, 2, 3], [4, 5, 6, 7]], mesh_dim_names=('dp', 'tp'))",
        'DeviceMesh("cuda", torch.arange(8).reshape(2, 4), mesh_dim_names=("dp", "tp"))',
        'DeviceMesh("cuda", torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]), mesh_dim_names=("dp", "tp"))',
        'init_device_mesh("cpu", mesh_shape=(2, 4), mesh_dim_names=("dp", "tp"), backend_override=None)',
    ],
)
def test_torch_code_and_reprs_are_read(text: str) -> None:
    assert DeviceMesh.read(text) == DeviceMesh("dp=2, tp=4")


def test_torch_strides_determine_the_ranks() -> None:
    assert DeviceMesh.read("DeviceMesh((dp=2, tp=4), 'cuda', stride=(1, 2))") == DeviceMesh("tp=4, dp=2").transpose(
        "dp", "tp"
    )
    with pytest.raises(MeshError, match=r"strides \(1,\) do not match the axes dp=2, tp=4; pass one stride per axis"):
        DeviceMesh.read("DeviceMesh((dp=2, tp=4), 'cuda', stride=(1,))")


def test_torch_backends_survive_a_round_trip() -> None:
    mesh = DeviceMesh("pp=2, tp=4", backends={"pp": "gloo"})
    assert mesh.to("torch").text.endswith('mesh_dim_names=("pp", "tp"), backend_override={"pp": "gloo"})')
    assert DeviceMesh.read(mesh.to("torch").text) == mesh
    assert DeviceMesh.read(mesh.to("torch").text.replace('{"pp": "gloo"}', "{0: ('gloo', None)}")) == mesh


def test_torch_objects_are_read() -> None:
    live = SimpleNamespace(mesh=np.array([[0, 2], [1, 3]]), mesh_dim_names=("dp", "tp"), device_type="cuda")
    assert DeviceMesh.read(live) == DeviceMesh("tp=2, dp=2").transpose("dp", "tp")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "init_device_mesh('cuda', (2, 4))",
            "torch needs mesh_dim_names, but only device_type, mesh_shape was given; add mesh_dim_names",
        ),
        (
            "init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp',))",
            r"sizes \(2, 4\) and names \('dp',\) have different lengths",
        ),
        ("init_device_mesh('cuda', (2, n), mesh_dim_names=('dp', 'tp'))", "n is not a literal"),
        ("DeviceMesh('dp=2, tp=4')", "this text is meshlab's own DeviceMesh; run it instead of reading it"),
        ("init_device_mesh('cuda', (2, 4", "not Python code"),
        ("init_device_mesh('cuda', (2, 4)), x = 3", "not Python code"),
        (
            "init_device_mesh('cuda', (2, 0), mesh_dim_names=('dp', 'tp'))",
            "size of axis 'tp' must be at least 1, not 0",
        ),
        ("init_device_mesh('cuda', 3.5, mesh_dim_names=('dp', 'tp'))", "axes must be one size per name"),
        ("DeviceMesh('cuda', torch.arange(10**9), mesh_dim_names=('tp',))", "not a literal"),
        (
            "DeviceMesh('cuda', torch.arange(1000000000), mesh_dim_names=('tp',))",
            "1000000000 is not a valid number of ranks; use an integer up to 16,777,216",
        ),
        (
            "DeviceMesh('cuda', torch.arange(8).reshape(3, 3), mesh_dim_names=('a', 'b'))",
            r"cannot reshape \[.* to \(3, 3\)",
        ),
    ],
)
def test_invalid_torch_code_is_a_clear_error(text: str, why: str) -> None:
    with pytest.raises((ParseError, MeshError), match=why):
        DeviceMesh.read(text)


def test_code_is_never_executed(tmp_path: Path) -> None:
    marker = str(tmp_path / "made")
    for argument in (f"open({marker!r}, 'w')", f"__import__('os').system('touch {marker}')"):
        with pytest.raises(ParseError, match="not a literal"):
            DeviceMesh.read(f"init_device_mesh('cuda', {argument}, mesh_dim_names=('tp',))")
    assert not Path(marker).exists()


@pytest.mark.parametrize("text", ["f(" + "(" * 5000, "f(" + "-" * 100_000 + "1)", "f(\0)", "x" * 5_000_000])
def test_hostile_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError):
        find_call(text, {"f": ["a"]})


# -- jax ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "jax.make_mesh((2, 4), ('dp', 'tp'))",
        "Mesh(np.array(jax.devices()).reshape(2, 4), ('dp', 'tp'))",
        "jax.sharding.Mesh(np.asarray(jax.devices()).reshape((2, 4)), axis_names=('dp', 'tp'))",
        "AbstractMesh((2, 4), ('dp', 'tp'))",
        "Mesh('dp': 2, 'tp': 4)",
        "Mesh('dp': 2, 'tp': 4, axis_types=(Auto, Auto))",
        "Mesh(device_ids=array([[0, 1, 2, 3], [4, 5, 6, 7]]), axis_names=('dp', 'tp'))",
    ],
)
def test_jax_code_and_reprs_are_read(text: str) -> None:
    assert DeviceMesh.read(text) == DeviceMesh("dp=2, tp=4")


def test_jax_rank_orders_survive_a_round_trip() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[0, 1, 3, 2])
    assert mesh.to("jax").text == 'Mesh(np.array(jax.devices())[[0, 1, 3, 2]].reshape(2, 2), ("dp", "tp"))'
    assert DeviceMesh.read(mesh.to("jax").text) == mesh


def test_jax_objects_are_read() -> None:
    devices = np.empty((2, 2), dtype=object)
    for index, number in enumerate([0, 1, 3, 2]):
        devices.flat[index] = SimpleNamespace(id=number)
    live = SimpleNamespace(devices=devices, axis_names=("dp", "tp"))
    assert DeviceMesh.read(live) == DeviceMesh("dp=2, tp=2", ranks=[0, 1, 3, 2])
    assert DeviceMesh.read(SimpleNamespace(axis_sizes=(2, 4), axis_names=("dp", "tp"))) == DeviceMesh("dp=2, tp=4")


def test_jax_shapes_contain_every_size() -> None:
    with pytest.raises(ParseError, match=r"shape \(2, -1\) does not determine the number of devices; write every size"):
        DeviceMesh.read("Mesh(np.array(jax.devices()).reshape(2, -1), ('dp', 'tp'))")


# -- Megatron ----------------------------------------------------------------------------------------------------------


def test_megatron_flags_are_found_inside_a_script() -> None:
    script = """
    torchrun --nproc-per-node 8 pretrain_gpt.py \\
      --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 \\
      --context-parallel-size 2 --num-layers 8 --bf16
    """
    assert DeviceMesh.read(script, world_size=64) == DeviceMesh("pp=4, dp=2, cp=2, tp=4")
    assert DeviceMesh.read(script + " --use-tp-pp-dp-mapping", world_size=64) == DeviceMesh("dp=2, pp=4, cp=2, tp=4")
    assert (
        DeviceMesh.read(script.replace("-model-parallel-size", "_model_parallel_size"), world_size=64).size("tp") == 4
    )


def test_megatron_and_vllm_arguments_may_have_underscores() -> None:
    arguments = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "num_layers": 8}
    assert DeviceMesh.read(arguments, framework="megatron-flags", world_size=16) == DeviceMesh("pp=2, dp=2, tp=4")
    arguments = {"tensor_parallel_size": 4, "enable_expert_parallel": True}
    assert DeviceMesh.read(arguments, framework="vllm", experts=True) == DeviceMesh("ep=4")
    with pytest.warns(UserWarning, match="vllm also places experts on these ranks"):
        DeviceMesh.read(arguments, framework="vllm")


def test_ranks_in_ragged_lists_are_rejected() -> None:
    for text in ("DeviceMesh('cuda', [[0, 1], [2]], mesh_dim_names=('a', 'b'))", "Mesh([[0, 1], [2]], ('a', 'b'))"):
        with pytest.raises(MeshError, match=r"needs nested lists of equal lengths, not \[\[0, 1\], \[2\]\]"):
            DeviceMesh.read(text)


def test_megatron_flags_need_the_number_of_ranks() -> None:
    with pytest.raises(MeshError, match="Megatron's flags do not contain the number of ranks; pass world_size="):
        DeviceMesh.read("--tensor-model-parallel-size 8")
    with pytest.raises(MeshError, match=r"12 ranks cannot be divided by .*tp=8"):
        DeviceMesh.read("--tensor-model-parallel-size 8", world_size=12)
    with pytest.raises(ParseError, match=r"--tensor-model-parallel-size has the value '\$TP'; write a number"):
        DeviceMesh.read("--tensor-model-parallel-size $TP", world_size=8)


def test_megatron_experts_default_to_the_tensor_parallelism_of_the_dense_layers() -> None:
    flags = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --expert-model-parallel-size 4"
    assert DeviceMesh.read(flags, world_size=32, experts=False) == DeviceMesh("pp=2, dp=8, tp=2")
    assert DeviceMesh.read(flags, world_size=32, experts=True) == DeviceMesh("pp=2, edp=2, ep=4, etp=2")
    flags += " --expert-tensor-parallel-size 1"
    assert DeviceMesh.read(flags, world_size=32, experts=True) == DeviceMesh("pp=2, edp=4, ep=4, etp=1")


def test_megatron_experts_survive_a_round_trip() -> None:
    recipe = MESH.to("megatron-flags", experts=EXPERTS)
    assert recipe.text == (
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 "
        "--expert-model-parallel-size 16 --expert-tensor-parallel-size 1"
    )
    assert DeviceMesh.read(recipe, world_size=64, experts=False) == MESH
    assert DeviceMesh.read(recipe, world_size=64, experts=True) == EXPERTS
    assert DeviceMesh.read(recipe.text, world_size=64, experts=True) == EXPERTS
    assert "Megatron computes dp=4 from the number of processes" in recipe.notes[0]


def test_megatron_flags_support_two_orders() -> None:
    other = DeviceMesh("dp=4, pp=2, tp=8")
    assert other.to("megatron-flags").text.endswith("--use-tp-pp-dp-mapping")
    assert DeviceMesh.read(other.to("megatron-flags").text, world_size=64) == other
    with pytest.raises(
        MeshError, match=r"has the fixed order dp, pp, tp .* but this mesh has tp, pp, dp; call reorder\(\)"
    ):
        DeviceMesh("tp=8, pp=2, dp=4").to("megatron-flags")
    with pytest.raises(MeshError, match="has no axis sp"):
        DeviceMesh("sp=2, tp=4").to("megatron-flags")


def test_megatron_orders_support_five_axes() -> None:
    with pytest.raises(
        MeshError, match=r"has no axis sp; it has tp, gtp_remat, cp, ep, dp, pp.*hypercomm, which accepts any name"
    ):
        DeviceMesh("sp=2, tp=4").to("megatron")
    assert DeviceMesh("sp=2, tp=4").to("hypercomm").text == 'HyperCommGrid([4, 2], ["tp", "sp"])'


def test_megatron_objects_are_read() -> None:
    live = SimpleNamespace(tp=2, ep=1, dp=2, pp=2, cp=1, order="tp-cp-ep-dp-pp", rank_offset=0)
    assert DeviceMesh.read(live) == DeviceMesh("pp=2, dp=2, ep=1, cp=1, tp=2")
    live = SimpleNamespace(shape=[2, 4], dim_names=["tp", "dp"], rank_offset=8)
    assert DeviceMesh.read(live) == DeviceMesh("dp=4, tp=2", ranks=range(8, 16), world_size=16)


def test_hypercomm_views_survive_a_round_trip() -> None:
    recipe = MESH.to("hypercomm", experts=EXPERTS)
    assert recipe.text.splitlines() == [
        'grid = HyperCommGrid([8, 4, 2], ["tp", "dp", "pp"])',
        'grid.register_view("experts", [1, 16, 2, 2], ["etp", "ep", "edp", "pp"], shared_dims=["pp"])',
    ]
    assert DeviceMesh.read(recipe.text, experts=False) == MESH
    assert DeviceMesh.read(recipe.text, experts=True) == EXPERTS
    assert DeviceMesh.read(recipe, experts=True) == EXPERTS
    with pytest.raises(
        MeshError, match="no expert layout: this HyperCommGrid has no registered view; read it without experts="
    ):
        DeviceMesh.read(TEXTS["hypercomm"], experts=True)


def test_experts_that_are_not_a_view_of_the_mesh_are_rejected() -> None:
    for framework in ("hypercomm", "megatron-flags"):
        with pytest.raises(MeshError, match="axis 'pp' is in both meshes, but pp_0 is"):
            MESH.to(framework, experts=DeviceMesh("pp=4, edp=1, ep=16"))
        with pytest.raises(MeshError, match=r"its ranks differ; create it with mesh.view"):
            MESH.to(framework, experts=DeviceMesh("edp=4, ep=16", ranks=[1, 0, *range(2, 64)]))


# -- DeepSpeed ---------------------------------------------------------------------------------------------------------


def test_deepspeed_forms_are_read_and_written() -> None:
    assert DeviceMesh.read("PipeDataParallelTopology(2, 4)") == DeviceMesh("pp=2, dp=4")
    assert DeviceMesh("pp=2, dp=4").to("deepspeed").text == "PipeDataParallelTopology(num_pp=2, num_dp=4)"
    assert DeviceMesh.read("PipeModelDataParallelTopology(2, 8, 4)") == MESH
    assert DeviceMesh("dp=4, cp=2").to("deepspeed").text == 'ProcessTopology(axes=["data", "cp"], dims=[4, 2])'
    assert DeviceMesh.read(SimpleNamespace(axes=["pipe", "x"], dims=[2, 3])) == DeviceMesh("pp=2, x=3")
    with pytest.raises(MeshError, match="PipeDataParallelTopology needs num_dp, but only num_pp was given; add num_dp"):
        DeviceMesh.read("PipeDataParallelTopology(num_pp=2)")


# -- vLLM --------------------------------------------------------------------------------------------------------------


def test_vllm_flags_have_a_fixed_order() -> None:
    assert DeviceMesh.read("vllm serve m -tp 8 -pp=2 --data-parallel-size 4") == DeviceMesh("dp=4, pp=2, tp=8")
    assert DeviceMesh.read("vllm serve m --tensor_parallel_size 2 -pcp 2") == DeviceMesh("pcp=2, tp=2")
    assert DeviceMesh.read("vllm serve m -tp 4", world_size=8) == DeviceMesh("dp_outside=2, tp=4")
    with pytest.raises(MeshError, match=r"has the fixed order dp, pp, tp .* but this mesh has pp, dp, tp"):
        MESH.to("vllm")
    mesh = DeviceMesh("dp_outside=2, dp=2, tp=4")
    assert "start 2 copies of the server for dp_outside" in mesh.to("vllm").notes[0]
    assert DeviceMesh.read(mesh.to("vllm").text, world_size=16) == mesh


def test_vllm_distributes_experts_over_data_and_tensor_ranks() -> None:
    flags = "--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel"
    mesh, experts = DeviceMesh.read(flags, experts=False), DeviceMesh.read(flags, experts=True)
    assert experts["ep"].array.tolist() == mesh["dp", "tp"].array.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    recipe = mesh.to("vllm", experts=experts)
    assert DeviceMesh.read(recipe.text, experts=True) == DeviceMesh.read(recipe, experts=True) == experts
    with pytest.raises(
        MeshError, match="no expert axis: without --enable-expert-parallel, vLLM shards every expert over tp"
    ):
        DeviceMesh.read("-tp 8", experts=True)
    with pytest.raises(MeshError, match=r"vLLM distributes experts over dp, pcp and tp together, .*, not "):
        mesh.to("vllm", experts=DeviceMesh("edp=2, ep=4"))
    with pytest.raises(MeshError, match="but pp=8 has none of these axes"):
        DeviceMesh.read("-pp 8 --enable-expert-parallel", experts=True)


# -- torchtitan --------------------------------------------------------------------------------------------------------


def test_torchtitan_flags_survive_a_round_trip() -> None:
    mesh = DeviceMesh("pp=2, dp_replicate=2, dp_shard=2, cp=1, tp=4")
    recipe = mesh.to("torchtitan")
    assert recipe.text == (
        "--parallelism.pipeline_parallel_degree 2 --parallelism.data_parallel_replicate_degree 2 "
        "--parallelism.data_parallel_shard_degree 2 --parallelism.context_parallel_degree 1 "
        "--parallelism.tensor_parallel_degree 4"
    )
    assert DeviceMesh.read(recipe.text) == DeviceMesh.read(recipe) == mesh
    listed = '["--parallelism.tensor_parallel_degree 2", "--parallelism.data_parallel_shard_degree=-1",]'
    assert DeviceMesh.read(listed, world_size=8) == DeviceMesh("dp_shard=4, tp=2")
    with pytest.raises(MeshError, match="torchtitan has no axis dp; it has pp, dp_replicate, dp_shard, cp, tp"):
        MESH.to("torchtitan")


def test_torchtitan_experts_survive_a_round_trip() -> None:
    mesh = DeviceMesh("pp=2, dp_shard=4, tp=2")
    experts = mesh.view("pp=2, efsdp=2, ep=4")
    recipe = mesh.to("torchtitan", experts=experts)
    assert DeviceMesh.read(recipe.text, experts=True) == experts
    assert DeviceMesh.read(recipe.text, experts=False) == mesh
    with pytest.raises(MeshError, match="ep=3 does not divide 16"):
        DeviceMesh.read(recipe.text.replace("expert_parallel_degree 4", "expert_parallel_degree 3"), experts=True)


# -- parsing ---------------------------------------------------------------------------------------------------------


def test_flags_are_split_as_in_a_shell() -> None:
    assert read_flags("run --a 1 --b=2 --c --d -1 -e x --a 3 \\\n --f 'y'") == {
        "a": "3",
        "b": "2",
        "c": "",
        "d": "-1",
        "e": "x",
        "f": "y",
    }


@pytest.mark.parametrize("framework", ["megatron-flags", "vllm", "torchtitan"])
def test_text_without_a_known_flag_is_rejected_with_a_list(framework: str) -> None:
    with pytest.raises(ParseError, match=r"no (Megatron|vLLM|torchtitan) flag found; use one of --"):
        DeviceMesh.read("--num-layers 8", framework=framework)


def test_a_missing_call_is_named() -> None:
    with pytest.raises(ParseError, match="no call of RankGenerator found"):
        DeviceMesh.read("x = 3", framework="megatron")


def test_code_of_a_value_evaluates_to_the_value() -> None:
    for value in [(), (1,), ("a", [2, {"b": (3, 4)}]), "quote\"'", {"x": "y"}, [1.5, True, None]]:
        assert eval(code(value)) == value


def test_a_recipe_is_a_value() -> None:
    recipe = Recipe("torch", "text", {}, ("note",))
    assert (str(recipe), repr(recipe)) == ("text", "text\n# note")
    with pytest.raises(AttributeError):
        recipe.text = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("flags", "framework", "dense"),
    [
        ("--tensor-model-parallel-size 4 --expert-model-parallel-size 4", "megatron-flags", "dp=4, tp=4"),
        ("--tensor-parallel-size 16 --enable-expert-parallel", "vllm", "tp=16"),
        (
            "--parallelism.tensor_parallel_degree 4 --parallelism.expert_parallel_degree 4",
            "torchtitan",
            "dp_shard=4, tp=4",
        ),
    ],
)
def test_experts_are_never_dropped_without_a_warning(flags: str, framework: str, dense: str) -> None:
    message = f"{framework} also places experts on these ranks, which {dense} does not show; pass experts=True"
    with pytest.warns(UserWarning, match=message) as caught:
        mesh = DeviceMesh.read(flags, world_size=16)
    assert caught[0].filename == __file__  # the warning points at the caller
    assert mesh == DeviceMesh.read(flags, world_size=16, experts=False) == DeviceMesh(dense)
    assert "ep" in DeviceMesh.read(flags, world_size=16, experts=True).axis_names


def test_expert_groups_of_one_rank_cause_no_warning() -> None:
    flags = "--tensor-model-parallel-size 4 --expert-model-parallel-size 1"
    assert DeviceMesh.read(flags, world_size=16) == DeviceMesh("dp=4, tp=4")


def test_an_axis_with_a_synonym_is_rejected_with_the_renaming_that_works() -> None:
    mesh = DeviceMesh("dp=2, tp=2")
    with pytest.raises(MeshError, match=r'call rename\(dp="dp_shard"\) first'):
        mesh.to("torchtitan")
    assert mesh.rename(dp="dp_shard").to("torchtitan").arguments["data_parallel_shard_degree"] == 2
    with pytest.raises(MeshError, match=r'call rename\(dp_shard="dp"\) first'):
        DeviceMesh("dp_shard=2, tp=2").to("vllm")


@pytest.mark.parametrize(
    ("shape", "framework"),
    [("dp_replicate=2, dp_shard=2", "vllm"), ("dp=2, dp_shard=2", "torchtitan"), ("x=2, tp=2", "torchtitan")],
)
def test_no_renaming_is_suggested_if_names_alone_are_not_enough(shape: str, framework: str) -> None:
    with pytest.raises(MeshError, match=r"call rename\(\), flatten\(\) or split_axis\(\) first"):
        DeviceMesh(shape).to(framework)
