from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.interop.frameworks import FRAMEWORKS, read_mesh
from meshlab.mesh.interop.parsing import find_call, read_flags
from meshlab.mesh.interop.recipe import Recipe, code
from meshlab.mesh.mesh import DeviceMesh

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
def test_a_mesh_is_written_and_read_back(framework: str, text: str) -> None:
    recipe = MESH.to(framework)
    assert str(recipe) == text
    assert read_mesh(text, world_size=64) == MESH
    assert read_mesh(text, framework=framework, world_size=64) == MESH
    assert read_mesh(recipe, world_size=64) == MESH
    assert read_mesh(recipe.arguments, framework=framework, world_size=64) == MESH


def test_every_framework_is_written_and_read_back() -> None:
    own_order = {"vllm": DeviceMesh("dp=4, pp=2, tp=8"), "torchtitan": DeviceMesh("pp=2, dp_shard=4, tp=8")}
    for framework in FRAMEWORKS:
        mesh = own_order.get(framework, MESH)
        assert read_mesh(str(mesh.to(framework)), world_size=64) == mesh


def test_what_is_read_is_found_inside_a_script() -> None:
    script = """
import torch
mesh = torch.distributed.init_device_mesh(
    device, mesh_shape=(2, 4), mesh_dim_names=['dp', 'tp'])
"""
    with pytest.raises(ParseError, match="device is not a plain value"):
        read_mesh(script)
    assert read_mesh(script.replace("device,", "'cuda',")) == DeviceMesh("dp=2, tp=4")


def test_indented_lines_of_a_script_are_read() -> None:
    script = """
        pattern = "\\d"
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    """
    assert read_mesh(script) == DeviceMesh("dp=2, tp=4")


def test_a_plain_text_and_a_mesh_are_read_too() -> None:
    assert read_mesh("dp=-1, tp=4", world_size=8) == DeviceMesh("dp=2, tp=4")
    assert read_mesh(MESH) is MESH


def test_unknown_words_are_refused_with_a_list() -> None:
    with pytest.raises(ParseError, match="in no words that meshlab knows; it reads those of deepspeed, hypercomm, jax"):
        read_mesh("alpa.DeviceMesher((2, 4))")
    with pytest.raises(ParseError, match="in no words"):
        read_mesh("--num-layers 8")
    with pytest.raises(MeshError, match="there is no framework 'alpa'"):
        MESH.to("alpa")
    with pytest.raises(MeshError, match="no framework"):
        MESH.to(None)  # type: ignore[arg-type]
    with pytest.raises(MeshError, match="say whose arguments"):
        read_mesh({"tp": 2})
    with pytest.raises(MeshError, match="a dict_keys is not a mesh"):
        read_mesh({}.keys())
    with pytest.raises(MeshError, match="a SimpleNamespace is not a mesh"):
        read_mesh(SimpleNamespace(axis_names=("tp",), axis_sizes=(2,)), framework="torch")


def test_what_does_not_carry_over_is_noted() -> None:
    mesh = DeviceMesh("dp=2, tp=2", backends={"dp": "gloo"}).with_group("pair", [0, 3])
    assert repr(mesh.to("jax")).splitlines()[1:] == [
        "# jax does not know the groups added by hand: pair",
        "# jax does not take a backend per axis here: dp on gloo",
    ]
    assert mesh.to("torch").notes == ("torch does not know the groups added by hand: pair",)
    assert repr(MESH.to("torch")) == TEXTS["torch"]


@pytest.mark.parametrize("framework", ["megatron", "megatron-flags", "hypercomm", "deepspeed", "vllm", "torchtitan"])
def test_frameworks_that_count_ranks_refuse_placed_ones(framework: str) -> None:
    with pytest.raises(MeshError, match="places them by hand; torch and jax take such a mesh"):
        DeviceMesh("tp=4", ranks=[0, 2, 1, 3]).to(framework)


@pytest.mark.parametrize("framework", ["megatron-flags", "deepspeed", "vllm", "torchtitan"])
def test_frameworks_that_use_every_rank_refuse_idle_ones(framework: str) -> None:
    with pytest.raises(MeshError, match="uses every rank, but ranks 4 and 5 of 6 are idle here"):
        DeviceMesh("tp=4", ranks=range(4), world_size=6).to(framework)


@pytest.mark.parametrize("framework", ["torch", "jax", "megatron", "deepspeed"])
def test_frameworks_without_words_for_experts_say_so(framework: str) -> None:
    with pytest.raises(MeshError, match="takes one mesh at a time"):
        MESH.to(framework, experts=EXPERTS)
    with pytest.raises(MeshError, match="takes one mesh at a time"):
        read_mesh(TEXTS[framework], experts=True)


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
    assert read_mesh(text) == DeviceMesh("dp=2, tp=4")


def test_torch_strides_place_the_ranks() -> None:
    assert read_mesh("DeviceMesh((dp=2, tp=4), 'cuda', stride=(1, 2))") == DeviceMesh("tp=4, dp=2").transpose(
        "dp", "tp"
    )
    with pytest.raises(MeshError, match="one stride per axis"):
        read_mesh("DeviceMesh((dp=2, tp=4), 'cuda', stride=(1,))")


def test_torch_backends_go_both_ways() -> None:
    mesh = DeviceMesh("pp=2, tp=4", backends={"pp": "gloo"})
    assert mesh.to("torch").text.endswith('mesh_dim_names=("pp", "tp"), backend_override={"pp": "gloo"})')
    assert read_mesh(mesh.to("torch").text) == mesh
    assert read_mesh(mesh.to("torch").text.replace('{"pp": "gloo"}', "{0: ('gloo', None)}")) == mesh


def test_torch_objects_are_read() -> None:
    live = SimpleNamespace(mesh=np.array([[0, 2], [1, 3]]), mesh_dim_names=("dp", "tp"), device_type="cuda")
    assert read_mesh(live) == DeviceMesh("tp=2, dp=2").transpose("dp", "tp")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("init_device_mesh('cuda', (2, 4))", "torch needs mesh_dim_names"),
        ("init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp',))", "1 axis names .* do not fit 2 sizes"),
        ("init_device_mesh('cuda', (2, n), mesh_dim_names=('dp', 'tp'))", r"\(2, n\) is not a plain value"),
        ("DeviceMesh('dp=2, tp=4')", "run it instead of reading it"),
        ("init_device_mesh('cuda', (2, 4", "this is not Python code"),
        ("init_device_mesh('cuda', (2, 4)), x = 3", "this is not Python code"),
        ("init_device_mesh('cuda', (2, 0), mesh_dim_names=('dp', 'tp'))", "tp=0 is not possible"),
        ("init_device_mesh('cuda', 3.5, mesh_dim_names=('dp', 'tp'))", "not the names and the sizes"),
        ("DeviceMesh('cuda', torch.arange(10**9), mesh_dim_names=('tp',))", "not a plain value"),
        ("DeviceMesh('cuda', torch.arange(1000000000), mesh_dim_names=('tp',))", "not a number of ranks"),
        ("DeviceMesh('cuda', torch.arange(8).reshape(3, 3), mesh_dim_names=('a', 'b'))", "does not fit the shape"),
    ],
)
def test_torch_texts_that_cannot_be_read_say_why(text: str, why: str) -> None:
    with pytest.raises((ParseError, MeshError), match=why):
        read_mesh(text)


def test_nothing_in_a_text_is_run(tmp_path: Path) -> None:
    marker = str(tmp_path / "made")
    for argument in (f"open({marker!r}, 'w')", f"__import__('os').system('touch {marker}')"):
        with pytest.raises(ParseError, match="not a plain value"):
            read_mesh(f"init_device_mesh('cuda', {argument}, mesh_dim_names=('tp',))")
    assert not Path(marker).exists()


@pytest.mark.parametrize("text", ["f(" + "(" * 5000, "f(" + "-" * 100_000 + "1)", "f(\0)", "x" * 5_000_000])
def test_hostile_texts_are_refused_quietly(text: str) -> None:
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
    assert read_mesh(text) == DeviceMesh("dp=2, tp=4")


def test_jax_placements_go_both_ways() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[0, 1, 3, 2])
    assert mesh.to("jax").text == 'Mesh(np.array(jax.devices())[[0, 1, 3, 2]].reshape(2, 2), ("dp", "tp"))'
    assert read_mesh(mesh.to("jax").text) == mesh


def test_jax_objects_are_read() -> None:
    devices = np.empty((2, 2), dtype=object)
    for index, number in enumerate([0, 1, 3, 2]):
        devices.flat[index] = SimpleNamespace(id=number)
    live = SimpleNamespace(devices=devices, axis_names=("dp", "tp"))
    assert read_mesh(live) == DeviceMesh("dp=2, tp=2", ranks=[0, 1, 3, 2])
    assert read_mesh(SimpleNamespace(axis_sizes=(2, 4), axis_names=("dp", "tp"))) == DeviceMesh("dp=2, tp=4")


def test_jax_shapes_must_say_every_size() -> None:
    with pytest.raises(ParseError, match="write every size"):
        read_mesh("Mesh(np.array(jax.devices()).reshape(2, -1), ('dp', 'tp'))")


# -- Megatron ----------------------------------------------------------------------------------------------------------


def test_megatron_flags_are_read_out_of_a_script() -> None:
    script = """
    torchrun --nproc-per-node 8 pretrain_gpt.py \\
      --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 \\
      --context-parallel-size 2 --num-layers 8 --bf16
    """
    assert read_mesh(script, world_size=64) == DeviceMesh("pp=4, dp=2, cp=2, tp=4")
    assert read_mesh(script + " --use-tp-pp-dp-mapping", world_size=64) == DeviceMesh("dp=2, pp=4, cp=2, tp=4")
    assert read_mesh(script.replace("-model-parallel-size", "_model_parallel_size"), world_size=64).size("tp") == 4


def test_megatron_flags_need_the_number_of_ranks() -> None:
    with pytest.raises(MeshError, match="does not say how many ranks there are; give world_size="):
        read_mesh("--tensor-model-parallel-size 8")
    with pytest.raises(MeshError, match=r"12 ranks cannot be divided by .*tp=8"):
        read_mesh("--tensor-model-parallel-size 8", world_size=12)
    with pytest.raises(ParseError, match=r"has the value '\$TP'; write the number itself"):
        read_mesh("--tensor-model-parallel-size $TP", world_size=8)


def test_megatron_experts_default_to_the_tensor_parallelism_of_the_dense_layers() -> None:
    flags = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --expert-model-parallel-size 4"
    assert read_mesh(flags, world_size=32, experts=False) == DeviceMesh("pp=2, dp=8, tp=2")
    assert read_mesh(flags, world_size=32, experts=True) == DeviceMesh("pp=2, edp=2, ep=4, etp=2")
    flags += " --expert-tensor-parallel-size 1"
    assert read_mesh(flags, world_size=32, experts=True) == DeviceMesh("pp=2, edp=4, ep=4, etp=1")


def test_megatron_experts_go_both_ways() -> None:
    recipe = MESH.to("megatron-flags", experts=EXPERTS)
    assert recipe.text == (
        "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 "
        "--expert-model-parallel-size 16 --expert-tensor-parallel-size 1"
    )
    assert read_mesh(recipe, world_size=64, experts=False) == MESH
    assert read_mesh(recipe, world_size=64, experts=True) == EXPERTS
    assert read_mesh(recipe.text, world_size=64, experts=True) == EXPERTS
    assert "dp=4 from the number of ranks" in recipe.notes[0]


def test_megatron_flags_know_two_orders() -> None:
    other = DeviceMesh("dp=4, pp=2, tp=8")
    assert other.to("megatron-flags").text.endswith("--use-tp-pp-dp-mapping")
    assert read_mesh(other.to("megatron-flags").text, world_size=64) == other
    with pytest.raises(MeshError, match=r"always lays out dp, pp, tp .* but this mesh has tp, pp, dp; reorder\(\)"):
        DeviceMesh("tp=8, pp=2, dp=4").to("megatron-flags")
    with pytest.raises(MeshError, match="has no axis sp"):
        DeviceMesh("sp=2, tp=4").to("megatron-flags")


def test_megatron_orders_know_five_tokens() -> None:
    with pytest.raises(MeshError, match=r"has no axis sp; it has tp, cp, ep, dp, pp.*hypercomm, which takes any name"):
        DeviceMesh("sp=2, tp=4").to("megatron")
    assert DeviceMesh("sp=2, tp=4").to("hypercomm").text == 'HyperCommGrid([4, 2], ["tp", "sp"])'


def test_megatron_objects_are_read() -> None:
    live = SimpleNamespace(tp=2, ep=1, dp=2, pp=2, cp=1, order="tp-cp-ep-dp-pp", rank_offset=0)
    assert read_mesh(live) == DeviceMesh("pp=2, dp=2, ep=1, cp=1, tp=2")
    live = SimpleNamespace(shape=[2, 4], dim_names=["tp", "dp"], rank_offset=8)
    assert read_mesh(live) == DeviceMesh("dp=4, tp=2", ranks=range(8, 16), world_size=16)


def test_hypercomm_views_go_both_ways() -> None:
    recipe = MESH.to("hypercomm", experts=EXPERTS)
    assert recipe.text.splitlines() == [
        'grid = HyperCommGrid([8, 4, 2], ["tp", "dp", "pp"])',
        'grid.register_view("experts", [1, 16, 2, 2], ["etp", "ep", "edp", "pp"], shared_dims=["pp"])',
    ]
    assert read_mesh(recipe.text, experts=False) == MESH
    assert read_mesh(recipe.text, experts=True) == EXPERTS
    assert read_mesh(recipe, experts=True) == EXPERTS
    with pytest.raises(MeshError, match="no registered view"):
        read_mesh(TEXTS["hypercomm"], experts=True)


def test_experts_must_be_a_view_of_the_mesh() -> None:
    for framework in ("hypercomm", "megatron-flags"):
        with pytest.raises(MeshError, match="means other groups"):
            MESH.to(framework, experts=DeviceMesh("pp=4, edp=1, ep=16"))
        with pytest.raises(MeshError, match="is no view of"):
            MESH.to(framework, experts=DeviceMesh("edp=4, ep=16", ranks=[1, 0, *range(2, 64)]))


# -- DeepSpeed ---------------------------------------------------------------------------------------------------------


def test_deepspeed_forms_are_read_and_written() -> None:
    assert read_mesh("PipeDataParallelTopology(2, 4)") == DeviceMesh("pp=2, dp=4")
    assert DeviceMesh("pp=2, dp=4").to("deepspeed").text == "PipeDataParallelTopology(num_pp=2, num_dp=4)"
    assert read_mesh("PipeModelDataParallelTopology(2, 8, 4)") == MESH
    assert DeviceMesh("dp=4, cp=2").to("deepspeed").text == 'ProcessTopology(axes=["data", "cp"], dims=[4, 2])'
    assert read_mesh(SimpleNamespace(axes=["pipe", "x"], dims=[2, 3])) == DeviceMesh("pp=2, x=3")
    with pytest.raises(MeshError, match="PipeDataParallelTopology needs num_dp, which is missing"):
        read_mesh("PipeDataParallelTopology(num_pp=2)")


# -- vLLM --------------------------------------------------------------------------------------------------------------


def test_vllm_flags_have_one_order() -> None:
    assert read_mesh("vllm serve m -tp 8 -pp=2 --data-parallel-size 4") == DeviceMesh("dp=4, pp=2, tp=8")
    assert read_mesh("vllm serve m --tensor_parallel_size 2 -pcp 2") == DeviceMesh("pcp=2, tp=2")
    assert read_mesh("vllm serve m -tp 4", world_size=8) == DeviceMesh("dp_outside=2, tp=4")
    with pytest.raises(MeshError, match=r"always lays out dp, pp, tp .* but this mesh has pp, dp, tp"):
        MESH.to("vllm")
    mesh = DeviceMesh("dp_outside=2, dp=2, tp=4")
    assert "2 copies (dp_outside) are started from outside" in mesh.to("vllm").notes[0]
    assert read_mesh(mesh.to("vllm").text, world_size=16) == mesh


def test_vllm_spreads_experts_over_data_and_tensor_ranks() -> None:
    flags = "--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel"
    mesh, experts = read_mesh(flags, experts=False), read_mesh(flags, experts=True)
    assert experts.groups("ep").array.tolist() == mesh.groups("dp", "tp").array.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    recipe = mesh.to("vllm", experts=experts)
    assert read_mesh(recipe.text, experts=True) == read_mesh(recipe, experts=True) == experts
    with pytest.raises(MeshError, match="without --enable-expert-parallel"):
        read_mesh("-tp 8", experts=True)
    with pytest.raises(MeshError, match="it cannot do"):
        mesh.to("vllm", experts=DeviceMesh("edp=2, ep=4"))
    with pytest.raises(MeshError, match="has none of them"):
        read_mesh("-pp 8 --enable-expert-parallel", experts=True)


# -- torchtitan --------------------------------------------------------------------------------------------------------


def test_torchtitan_flags_go_both_ways() -> None:
    mesh = DeviceMesh("pp=2, dp_replicate=2, dp_shard=2, cp=1, tp=4")
    recipe = mesh.to("torchtitan")
    assert recipe.text == (
        "--parallelism.pipeline_parallel_degree 2 --parallelism.data_parallel_replicate_degree 2 "
        "--parallelism.data_parallel_shard_degree 2 --parallelism.context_parallel_degree 1 "
        "--parallelism.tensor_parallel_degree 4"
    )
    assert read_mesh(recipe.text) == read_mesh(recipe) == mesh
    listed = '["--parallelism.tensor_parallel_degree 2", "--parallelism.data_parallel_shard_degree=-1",]'
    assert read_mesh(listed, world_size=8) == DeviceMesh("dp_shard=4, tp=2")
    with pytest.raises(MeshError, match="torchtitan has no axis dp; it has pp, dp_replicate, dp_shard, cp, tp"):
        MESH.to("torchtitan")


def test_torchtitan_experts_go_both_ways() -> None:
    mesh = DeviceMesh("pp=2, dp_shard=4, tp=2")
    experts = mesh.view("pp=2, efsdp=2, ep=4")
    recipe = mesh.to("torchtitan", experts=experts)
    assert read_mesh(recipe.text, experts=True) == experts
    assert read_mesh(recipe.text, experts=False) == mesh
    with pytest.raises(MeshError, match="ep=3 does not divide 16"):
        read_mesh(recipe.text.replace("expert_parallel_degree 4", "expert_parallel_degree 3"), experts=True)


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_flags_are_split_as_a_shell_would() -> None:
    assert read_flags("run --a 1 --b=2 --c --d -1 -e x --a 3 \\\n --f 'y'") == {
        "a": "3",
        "b": "2",
        "c": "",
        "d": "-1",
        "e": "x",
        "f": "y",
    }


@pytest.mark.parametrize("framework", ["megatron-flags", "vllm", "torchtitan"])
def test_a_text_without_any_known_flag_says_which_there_are(framework: str) -> None:
    with pytest.raises(ParseError, match=r"no flag of .* was found; there are --"):
        read_mesh("--num-layers 8", framework=framework)


def test_a_call_that_is_not_there_is_missed_by_name() -> None:
    with pytest.raises(ParseError, match="no call of RankGenerator was found"):
        read_mesh("x = 3", framework="megatron")


def test_values_are_written_as_source() -> None:
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
def test_experts_that_a_mesh_does_not_show_are_not_dropped_in_silence(flags: str, framework: str, dense: str) -> None:
    with pytest.warns(UserWarning, match=f"{framework} lays experts out .* {dense} does not show them; experts=True"):
        mesh = read_mesh(flags, world_size=16)
    assert mesh == read_mesh(flags, world_size=16, experts=False) == DeviceMesh(dense)
    assert "ep" in read_mesh(flags, world_size=16, experts=True).axis_names


def test_one_rank_per_expert_group_is_nothing_to_warn_of() -> None:
    flags = "--tensor-model-parallel-size 4 --expert-model-parallel-size 1"
    assert read_mesh(flags, world_size=16) == DeviceMesh("dp=4, tp=4")


def test_an_axis_of_another_name_is_refused_with_the_renaming_that_works() -> None:
    mesh = DeviceMesh("dp=2, tp=2")
    with pytest.raises(MeshError, match=r'rename\(dp="dp_shard"\) brings the mesh there'):
        mesh.to("torchtitan")
    assert mesh.rename(dp="dp_shard").to("torchtitan").arguments["data_parallel_shard_degree"] == 2
    with pytest.raises(MeshError, match=r'rename\(dp_shard="dp"\) brings the mesh there'):
        DeviceMesh("dp_shard=2, tp=2").to("vllm")


@pytest.mark.parametrize(
    ("shape", "framework"),
    [("dp_replicate=2, dp_shard=2", "vllm"), ("dp=2, dp_shard=2", "torchtitan"), ("x=2, tp=2", "torchtitan")],
)
def test_no_renaming_is_named_where_names_alone_do_not_do_it(shape: str, framework: str) -> None:
    with pytest.raises(MeshError, match=r"rename\(\), flatten\(\) or split_axis\(\) can bring the mesh there"):
        DeviceMesh(shape).to(framework)
