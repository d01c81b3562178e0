"""Configs and commands as people have them: TOML, YAML, JSON, overrides of Hydra, and flags of servers."""

from __future__ import annotations

import json
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from meshlab.base._documents import LimitError
from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import CallWith, Followed
from meshlab.mesh.interop._config_text import flat_config, last_part, parse_config, product_of
from meshlab.mesh.interop._frameworks import FRAMEWORKS, READERS, mesh_text_kind
from meshlab.mesh.interop._parsing import all_flags, find_call
from meshlab.mesh.interop._settings import dashed, is_off, is_on


def lists(mesh: DeviceMesh, axes: str) -> list[list[int]]:
    return mesh[axes].array.tolist()


# -- groups that are parts of an axis ----------------------------------------------------------------------------------


def test_groups_of_one_size_can_be_added_and_returned_together() -> None:
    mesh = DeviceMesh("tp=4").with_groups("dcp", [[0, 1], [2, 3]])
    assert [group.name for group in mesh["dcp"]] == ["dcp_0", "dcp_1"]
    assert repr(mesh) == "DeviceMesh('tp=4').with_groups('dcp', [[0, 1], [2, 3]])"
    assert eval(repr(mesh)) == mesh
    assert mesh.group("dcp_1").ranks == (2, 3)
    assert repr(mesh.with_group("pair", [0, 3])).endswith(".with_group('pair', [0, 3])")
    with pytest.raises(MeshError, match="group name 'tp' is taken"):
        mesh.with_groups("tp", [[0], [1]])
    with pytest.raises(MeshError, match="groups 'x' must be rows of equal lengths"):
        mesh.with_groups("x", [[0, 1], [2]])
    for wrong in ([[0, 0], [1, 2]], [[0, 1], [2, 4]], [[0, -1]], [[0.0, 1.0]], [[]]):
        with pytest.raises(MeshError, match=r"group 'x_|rank -?[0-9]+ (does not exist|must)"):
            mesh.with_groups("x", wrong)
    with pytest.raises(MeshError, match="'x_1' is taken"):
        mesh.with_group("x_1", [0]).with_groups("x", [[0, 1], [2, 3]])
    assert mesh.with_groups("x", np.empty((0, 2), int)) == mesh
    together, one_by_one = mesh.with_groups("x", [[0, 1], [3, 2]], backend="gloo"), mesh
    for index, row in enumerate([[0, 1], [3, 2]]):
        one_by_one = one_by_one.with_group(f"x_{index}", row, backend="gloo")
    assert together == one_by_one
    assert together.backends == one_by_one.backends
    with pytest.raises(MeshError, match="unknown axis or group 'cp'"):
        mesh["cp"]


# -- torchtitan --------------------------------------------------------------------------------------------------------


def test_torchtitan_toml_is_read_with_old_and_new_sections() -> None:
    new = """
[job]
dump_folder = "./outputs"  # any comment

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
enable_async_tensor_parallel = false
"""
    assert DeviceMesh.read(new, world_size=64) == DeviceMesh("pp=2, dp_shard=4, tp=8")
    old = "[training]\ndata_parallel_degree = -1\ntensor_parallel_degree = 2\n"
    old += "[experimental]\npipeline_parallel_degree = 2"
    assert DeviceMesh.read(old, world_size=16) == DeviceMesh("pp=2, dp_shard=4, tp=2")
    fragment = "data_parallel_replicate_degree = 2\ntensor_parallel_degree = 4\n"
    assert DeviceMesh.read(fragment, world_size=16) == DeviceMesh("dp_replicate=2, dp_shard=2, tp=4")


def test_torchtitan_python_configs_are_read() -> None:
    code = "parallelism = ParallelismConfig(data_parallel_shard_degree=4, tensor_parallel_degree=2, fsdp_x=f())"
    assert DeviceMesh.read(code) == DeviceMesh("dp_shard=4, tp=2")
    code = "ParallelDims(dp_replicate=1, dp_shard=2, cp=2, tp=2, pp=1, ep=1, world_size=8)"
    assert DeviceMesh.read(code) == DeviceMesh("pp=1, dp_replicate=1, dp_shard=2, cp=2, tp=2")


def test_torchtitan_expert_tensor_parallelism_survives_a_round_trip() -> None:
    flags = (
        "--parallelism.tensor_parallel_degree 2 --parallelism.expert_parallel_degree 4 "
        "--parallelism.expert_tensor_parallel_degree 2"
    )
    experts = DeviceMesh.read(flags, world_size=16, experts=True)
    assert experts == DeviceMesh("efsdp=2, ep=4, etp=2")
    assert lists(experts, "ep")[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    recipe = DeviceMesh("dp_shard=8, tp=2").to("torchtitan", experts=experts)
    assert DeviceMesh.read(recipe, experts=True) == experts
    assert recipe.notes == ("only versions 0.2.0 to 0.2.2 have expert_tensor_parallel_degree",)
    with pytest.raises(MeshError, match=r"accepts an expert_tensor_parallel_degree of 1 or of .* which is 4, not 2"):
        DeviceMesh.read(
            flags.replace("tensor_parallel_degree 2 ", "tensor_parallel_degree 4 ", 1), world_size=16, experts=True
        )


# -- Megatron ----------------------------------------------------------------------------------------------------------

MEGATRON = """
model_parallel:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  context_parallel_size: 2
  sequence_parallel: true
"""


def test_megatron_and_nemo_yaml_is_read() -> None:
    assert DeviceMesh.read(MEGATRON, world_size=64) == DeviceMesh("pp=2, dp=4, cp=2, tp=4")
    nemo = "trainer:\n  num_nodes: 4\n  devices: 8\nmodel:\n  tensor_model_parallel_size: 8\n  micro_batch_size: 1\n"
    assert DeviceMesh.read(nemo) == DeviceMesh("dp=4, tp=8")
    assert DeviceMesh.read(nemo, world_size=64) == DeviceMesh("dp=8, tp=8")
    flags = "MODEL_ARGS:\n  --num-layers: 24\n  --tensor-model-parallel-size: 2\n  --pipeline-model-parallel-size: 4\n"
    assert DeviceMesh.read(flags, world_size=16) == DeviceMesh("pp=4, dp=2, tp=2")
    hydra = "python train.py model.tensor_model_parallel_size=4 ++trainer.num_nodes=2 trainer.devices=8"
    assert DeviceMesh.read(hydra) == DeviceMesh("dp=4, tp=4")


def test_two_models_in_one_config_are_an_error_that_names_both() -> None:
    text = "a:\n  tensor_model_parallel_size: 4\nb:\n  tensor_model_parallel_size: 8\n"
    with pytest.raises(ParseError, match=r"is 4 in a\.tensor_model_parallel_size and 8 in b\.tensor_model"):
        DeviceMesh.read(text, world_size=64)


def test_megatron_weight_shards_take_ranks_from_data_parallelism() -> None:
    flags = "--tensor-model-parallel-size 2 --tensor-parallel-num-weight-shards 8"
    mesh = DeviceMesh.read(flags, world_size=32)
    assert mesh == DeviceMesh("dp=4, gtp_remat=4, tp=2")
    assert mesh.to("megatron-flags").text == flags
    flags += " --expert-model-parallel-size 4 --expert-tensor-parallel-num-weight-shards 4"
    experts = DeviceMesh.read(flags, world_size=32, experts=True)
    assert experts == DeviceMesh("edp=2, egtp_remat=2, ep=4, etp=2")
    assert DeviceMesh.read(mesh.to("megatron-flags", experts=experts), world_size=32, experts=True) == experts
    with pytest.raises(MeshError, match=r"num-weight-shards 3 must be a multiple of .* 2; set it to 2 or 4"):
        DeviceMesh.read("--tensor-model-parallel-size 2 --tensor-parallel-num-weight-shards 3", world_size=8)


def test_megatron_is_never_given_what_it_rejects() -> None:
    with pytest.raises(MeshError, match="either ep or cp, not ep=4 and cp=2; write the mesh without ep"):
        DeviceMesh("dp=2, ep=4, cp=2").to("megatron")
    with pytest.raises(MeshError, match="uses every rank, but ranks 4 and 5 of 6 are idle"):
        DeviceMesh("tp=4", ranks=range(4), world_size=6).to("megatron")
    later = DeviceMesh("tp=4", ranks=range(4, 8), world_size=8).to("megatron")
    assert later.notes == ("pass local_world_size=4 to initialize_model_parallel, because other ranks are idle",)
    flags = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-tp-pp-dp-mapping"
    flags += " --expert-model-parallel-size 4"
    with pytest.raises(MeshError):
        DeviceMesh.read(flags, world_size=16, experts=True)


def test_a_rank_generator_with_weight_shards_survives_a_round_trip() -> None:
    live = SimpleNamespace(tp=2, ep=1, dp=2, pp=2, cp=1, gtp_remat=1, order="tp-gtp_remat-cp-ep-dp-pp", rank_offset=0)
    mesh = DeviceMesh.read(live)
    assert DeviceMesh.read(mesh.to("megatron").text) == DeviceMesh.read(mesh.to("megatron")) == mesh
    live.gtp_remat = 2
    assert DeviceMesh.read(live) == DeviceMesh("pp=2, dp=2, ep=1, cp=1, gtp_remat=2, tp=2")


# -- every flag is an axis, harmless, or named -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--tensor-model-parallel-size 2 --ring-parallel-size 4", "setting --ring-parallel-size 4 is unknown"),
        ("--tensor-model-parallel-size 2 --ulysses-degree 2", "--ulysses-degree 2 is unknown to meshlab"),
        ("--tensor-model-parallel-size 2 --num-distributed-optimizer-instances 2", "splits the groups of dp and cp"),
        ("--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 2", "splits the groups of cp into levels"),
        ("vllm serve m -tp 8 --attention-parallel-size 4", "vLLM: the parallelism setting --attention-parallel-size 4"),
        ("sglang serve --tp-size 8 --dwdp-size 8", "SGLang: --dwdp-size 8 adds groups"),
        ("--parallelism.tensor_parallel_degree 2 --parallelism.x_parallel_degree 2", "--parallelism.x_parallel_degree"),
    ],
)
def test_a_setting_that_a_mesh_does_not_show_is_named(flags: str, named: str) -> None:
    with pytest.warns(UserWarning, match=named) as caught:
        DeviceMesh.read(flags, world_size=16)
    assert caught[0].filename == __file__


def test_unknown_settings_in_mappings_and_configs_are_named_too() -> None:
    with pytest.warns(UserWarning, match="--ring-parallel-size 2 is unknown"):
        DeviceMesh.read(
            {"tensor_model_parallel_size": 2, "ring_parallel_size": 2}, framework="megatron-flags", world_size=8
        )
    with pytest.warns(UserWarning, match="nanotron: the parallelism setting seq_parallel_size 2 is unknown"):
        DeviceMesh.read("parallelism:\n  dp: 2\n  tp: 2\n  seq_parallel_size: 2\n")


@pytest.mark.parametrize(
    "flags",
    [
        "--tensor-model-parallel-size 2 --sequence-parallel --num-layers-per-virtual-pipeline-stage 2",
        "--tensor-model-parallel-size 2 --use-megatron-fsdp --data-parallel-sharding-strategy optim --tp-comm-overlap",
        "--tensor-model-parallel-size 2 --ckpt-fully-parallel-save --distribute-saved-activations",
        "--tensor-model-parallel-size 2 --ring-parallel-size 1 --cp-comm-type a2a --overlap-p2p-communication",
        "vllm serve m -tp 8 --data-parallel-size-local 1 --data-parallel-address 10.0.0.1",
        "vllm serve m -tp 8 --max-parallel-loading-workers 2 --distributed-executor-backend mp",
        "sglang serve --tp-size 8 --moe-dense-tp-size 1 --load-balance-method auto",
        "--parallelism.tensor_parallel_degree 8 --parallelism.enable_async_tensor_parallel",
    ],
)
def test_a_setting_that_changes_no_groups_causes_no_warning(flags: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DeviceMesh.read(flags, world_size=8).world_size == 8


def test_flags_that_exclude_a_single_mesh_are_rejected() -> None:
    with pytest.raises(MeshError, match="--encoder-pipeline-model-parallel-size places an encoder on ranks of its own"):
        DeviceMesh.read("--tensor-model-parallel-size 2 --encoder-pipeline-model-parallel-size 1", world_size=8)
    with pytest.raises(MeshError, match="--model-parallel-size is no longer accepted by Megatron"):
        DeviceMesh.read("--context-parallel-size 2 --model-parallel-size 2", world_size=8)


# -- shell scripts -----------------------------------------------------------------------------------------------------


def test_variables_and_comments_of_a_script_are_understood() -> None:
    script = """
#!/bin/bash
TP=8
export PP="2"
CP=${CP:-2}
NNODES=8; GPUS_PER_NODE=8
# --tensor-model-parallel-size 4 was too slow
ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size ${PP}
    --context-parallel-size "$CP"
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes ${NNODES} pretrain_gpt.py ${ARGS[@]} \\
    --bf16
"""
    assert DeviceMesh.read(script) == DeviceMesh("pp=2, dp=2, cp=2, tp=8")
    branches = "if x; then\n TP=2\nelse\n TP=4\nfi\ntorchrun train.py --tensor-model-parallel-size $TP"
    with pytest.raises(ParseError, match=r"has the value '\$TP'; write a number"):
        DeviceMesh.read(branches, world_size=8)


def test_two_commands_with_different_sizes_are_rejected() -> None:
    with pytest.raises(ParseError, match="--tensor-parallel-size has the values 8 and 4; paste one command"):
        DeviceMesh.read("vllm serve a -tp 8 & vllm serve b --tensor-parallel-size 8 & vllm serve c -tp 4")
    assert all_flags("a -tp 8 -tp 8") == {"tp": ["8", "8"]}
    assert DeviceMesh.read("vllm serve a -tp 8 & vllm serve b -tp 8") == DeviceMesh("tp=8")


# -- vLLM and SGLang ---------------------------------------------------------------------------------------------------


def test_vllm_decode_context_groups_are_parts_of_the_tensor_groups() -> None:
    mesh = DeviceMesh.read("vllm serve m --tensor-parallel-size 8 --decode-context-parallel-size 4 -dp 2")
    assert lists(mesh, "dcp") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert mesh["tp"] == DeviceMesh("dp=2, tp=8")["tp"]
    recipe = mesh.to("vllm")
    assert recipe.text.endswith("--tensor-parallel-size 8 --decode-context-parallel-size 4")
    assert (DeviceMesh.read(recipe.text), recipe.notes) == (mesh, ())
    with pytest.raises(MeshError, match="not of 3 ranks; set --decode-context-parallel-size to 1 or 2 or 4 or 8"):
        DeviceMesh.read("-tp 8 -dcp 3")
    whole = DeviceMesh.read("-tp 2 -pcp 2 -dcp 4")
    assert lists(whole, "dcp") == [[0, 2, 1, 3]]  # the ranks of pcp are neighbours
    assert lists(DeviceMesh.read("-tp 2 -pcp 2 -dcp 2"), "dcp") == [[0, 2], [1, 3]]


def test_vllm_python_and_yaml_are_read() -> None:
    code = 'llm = LLM(model="m", tensor_parallel_size=4, pipeline_parallel_size=2, max_model_len=limit)'
    assert DeviceMesh.read(code) == DeviceMesh("pp=2, tp=4")
    assert DeviceMesh.read("model: m\ntensor-parallel-size: 4\ndata-parallel-size: 2\n") == DeviceMesh("dp=2, tp=4")
    compose = 'services:\n  vllm:\n    command: ["--model", "m", "--tensor-parallel-size", "4"]\n'
    assert DeviceMesh.read(compose) == DeviceMesh("tp=4")


def test_sglang_copies_are_slow_and_attention_splits_the_tensor_groups() -> None:
    launch = "python -m sglang.launch_server --model-path m"
    assert DeviceMesh.read(f"{launch} --tp 4 --dp 2") == DeviceMesh("dp=2, tp=4")
    assert DeviceMesh.read(f"{launch} --tensor-parallel-size 4 --pp-size 2") == DeviceMesh("pp=2, tp=4")
    flags = "--tp-size 8 --dp-size 2 --enable-dp-attention --attn-cp-size 2 --moe-dp-size 2"
    with pytest.warns(UserWarning, match=r"inside the 8 ranks of tp: mesh\['attn_dp'\] has groups of 2 ranks"):
        mesh = DeviceMesh.read(f"{launch} {flags}")
    assert lists(mesh, "tp") == [list(range(8))]
    assert lists(mesh, "attn_tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert lists(mesh, "attn_cp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert lists(mesh, "attn_dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    with pytest.raises(MeshError, match="dp-size 3 × attn-cp-size 1 does not divide 8"):
        DeviceMesh.read(f"{launch} --tp 8 --dp 3 --enable-dp-attention")


def test_sglang_docstring_of_eight_ranks() -> None:
    flags = "--tp-size 8 --attn-cp-size 2 --moe-dp-size 2 --ep-size 4"
    mesh = DeviceMesh.read(flags, experts=False)
    assert lists(mesh, "attn_cp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert lists(mesh, "attn_tp") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    experts = DeviceMesh.read(flags, experts=True)
    assert lists(experts, "ep") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert lists(experts, "edp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_sglang_all_to_all_backends_use_every_rank_for_experts() -> None:
    flags = "sglang serve m --tp 8 --dp 8 --enable-dp-attention --moe-a2a-backend deepep"
    assert DeviceMesh.read(flags, experts=True) == DeviceMesh("ep=8, etp=1")
    with pytest.warns(UserWarning, match="sglang also places"), pytest.warns(UserWarning, match="data parallel inside"):
        DeviceMesh.read(flags)
    config = "model-path: m\ntp-size: 8\ndp-size: 2\nenable-dp-attention: true\nmem-fraction-static: 0.8\n"
    with pytest.warns(UserWarning, match="attention is data parallel"):
        mesh = DeviceMesh.read(config)
    assert lists(mesh, "attn_tp") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    experts = DeviceMesh("pp=2, edp=1, ep=4, etp=2")
    recipe = DeviceMesh("pp=2, tp=8").to("sglang", experts=experts)
    assert recipe.text == "--pp-size 2 --tp-size 8 --ep-size 4"
    assert DeviceMesh.read(recipe.text, experts=True) == DeviceMesh("pp=2, ep=4, etp=2")


# -- nanotron, DeepSpeed and verl --------------------------------------------------------------------------------------


def test_nanotron_yaml_survives_a_round_trip() -> None:
    text = (
        "general:\n  seed: 42\nparallelism:\n  dp: 4\n  expert_parallel_size: 1\n  pp: 2\n  pp_engine: 1f1b\n  tp: 2\n"
    )
    mesh = DeviceMesh.read(text)
    assert mesh == DeviceMesh("ep=1, pp=2, dp=4, tp=2")
    assert DeviceMesh.read(mesh.to("nanotron").text) == mesh


def test_deepspeed_json_is_read() -> None:
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "tensor_parallel": {"autotp_size": 4}}
    assert DeviceMesh.read(json.dumps(config), world_size=16) == DeviceMesh("dp=4, tp=4")
    config = {"train_batch_size": 8, "sequence_parallel_size": 4, "data_parallel_size": 2}
    assert DeviceMesh.read(json.dumps(config | {"zero_optimization": {"stage": 1}})) == DeviceMesh("dp=2, sp=4")
    config = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}
    mesh = DeviceMesh.read(json.dumps(config), world_size=8)
    assert (lists(mesh, "dp"), lists(mesh, "hpz")) == ([list(range(8))], [[0, 1, 2, 3], [4, 5, 6, 7]])
    mics = '{\n  // comment\n  "zero_optimization": {"stage": 3, "mics_shard_size": 4,},\n}'
    assert DeviceMesh.read(mics, world_size=8) == DeviceMesh("dp_replicate=2, dp_shard=4")
    with pytest.raises(
        ParseError, match="config of DeepSpeed has no sizes of parallelism; meshlab looked for tensor_parallel"
    ):
        DeviceMesh.read('{"zero_optimization": {"stage": 2}}', world_size=8)
    with pytest.raises(MeshError, match="DeepSpeed's flags do not contain the number of ranks"):
        DeviceMesh.read('{"tensor_parallel": {"autotp_size": 4}}')


VERL = (
    "python3 -m verl.trainer.main_ppo trainer.nnodes=2 trainer.n_gpus_per_node=8 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=4 "
)


def test_verl_overrides_have_one_layout_per_role() -> None:
    megatron = VERL + (
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 "
        "+actor_rollout_ref.actor.megatron.context_parallel_size=2"
    )
    with pytest.warns(UserWarning, match=r"layout of actor_rollout_ref\.actor; .*framework='verl-rollout'"):
        assert DeviceMesh.read(megatron) == DeviceMesh("dp=4, cp=2, tp=2")
    with pytest.warns(UserWarning, match=r"layout of actor_rollout_ref\.rollout; .*framework='verl'"):
        assert DeviceMesh.read(megatron, framework="verl-rollout") == DeviceMesh("replica=4, tp=4")
    fsdp = VERL + "sp_size=2; actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp_size} "
    fsdp = "sp_size=2\n" + fsdp.replace("sp_size=2; ", "") + "actor_rollout_ref.actor.fsdp_config.fsdp_size=4"
    with pytest.warns(UserWarning, match="for the others"):
        mesh = DeviceMesh.read(fsdp)
    assert (mesh.shape, lists(mesh, "sp")[:2]) == ((4, 4), [[0, 1], [2, 3]])
    with pytest.warns(UserWarning, match="for the others"):
        assert DeviceMesh.read(VERL) == DeviceMesh("dp_shard=16")  # sharded over all ranks unless a size is set
    with pytest.raises(ParseError, match=r"no setting of verl starts with 'critic\.'"):
        DeviceMesh.read(VERL, framework="verl-critic")


# -- torch -------------------------------------------------------------------------------------------------------------


def test_torch_reprs_with_nested_and_empty_strides_are_exact() -> None:
    with pytest.warns(UserWarning, match="the strides skip ranks"):
        mesh = DeviceMesh.read("DeviceMesh((pp=1, tp=2), 'cuda', stride=((), 4))")
    assert (lists(mesh, "tp"), mesh.world_size) == ([[0, 4]], 5)
    assert DeviceMesh.read("DeviceMesh((dp_tp=8), 'cuda', stride=((4, 1),))", world_size=8) == DeviceMesh("dp_tp=8")
    mesh = DeviceMesh.read("DeviceMesh((a=4, b=2), 'cuda', stride=((4, 1), 2))", world_size=8)
    assert mesh.ranks.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    with pytest.raises(MeshError, match="do not contain the sizes inside a flattened axis, and 2 layouts match"):
        DeviceMesh.read("DeviceMesh((dp_tp=8), 'cuda', stride=((8, 1),))")
    with pytest.raises(MeshError, match="and no layouts match"):
        DeviceMesh.read("DeviceMesh((tp=2), 'cuda', stride=((),))")
    with pytest.raises(ParseError, match="this torch mesh has no axes"):
        DeviceMesh.read("DeviceMesh((), 'cuda', stride=())")
    with pytest.raises(ParseError, match="this repr of a torch mesh has no axis names"):
        DeviceMesh.read("DeviceMesh((2, 4), 'cuda', stride=(4, 1))")
    detail = "DeviceMesh((dp=2, tp=2), 'cuda', stride=(2, 1), Mesh: [[3, 2], [1, 0]])"
    assert DeviceMesh.read(detail).ranks.tolist() == [[3, 2], [1, 0]]


def test_torch_flattened_axes_are_added_under_their_name() -> None:
    created = 'init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))'
    expected = [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert lists(DeviceMesh.read(f'{created}["dp", "cp"]._flatten("dp_cp")'), "dp_cp") == expected
    script = f"""
mesh = {created}
part = mesh["dp", "cp"]
part._flatten(mesh_dim_name="dp_cp")
mesh["dp_cp", "tp"]._flatten("all")
tp_group = mesh["tp"].get_group()
"""
    mesh = DeviceMesh.read(script)
    assert lists(mesh, "dp_cp") == expected
    assert lists(mesh, "all") == [list(range(8))]
    assert lists(DeviceMesh.read(f'{created}["dp", "tp"]._flatten()'), "dp_tp") == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_torch_slices_and_further_meshes_are_named() -> None:
    created = 'init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))'
    with pytest.warns(UserWarning, match=r'the slice \["tp"\] differs from rank to rank.*submesh\("tp", rank=…\)'):
        assert DeviceMesh.read(f'tp = {created}["tp"]') == DeviceMesh("dp=2, tp=2")
    with pytest.warns(UserWarning, match="the text creates 2 meshes, and the first one was read"):
        DeviceMesh.read(f"a = {created}\nb = {created.replace('(2, 2)', '(1, 4)')}")
    with pytest.warns(UserWarning, match="_unflatten of the text was not read"):
        DeviceMesh.read(f'm = {created}\nn = m._unflatten(0, sizes, ("a", "b"))')


def test_torch_meshes_that_are_split_are_read() -> None:
    world = 'world = init_device_mesh(device_type, (16,), mesh_dim_names=("world",))\n'
    dense = 'dense = world._unflatten(0, (2, 2, 2, 2), ("pp", "dp", "cp", "tp"))\n'
    assert DeviceMesh.read(world + dense) == DeviceMesh("pp=2, dp=2, cp=2, tp=2")
    loss = 'dense["dp", "cp"]._flatten("loss")\n'
    assert lists(DeviceMesh.read(world + dense + loss), "loss")[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    experts = 'sparse = world._unflatten(0, (2, 2, 4), ("pp", "efsdp", "ep"))\n'
    with pytest.warns(UserWarning, match="torch also places experts"):
        assert DeviceMesh.read(world + experts + dense) == DeviceMesh("pp=2, dp=2, cp=2, tp=2")
    assert DeviceMesh.read(world + experts + dense, experts=True) == DeviceMesh("pp=2, efsdp=2, ep=4")
    with pytest.warns(UserWarning, match="splits the mesh in several ways, and the first one was read"):
        DeviceMesh.read(world + dense + dense.replace("dense", "loss").replace("(2, 2, 2, 2)", "(1, 4, 2, 2)"))
    with pytest.raises(ParseError, match="degrees is not a literal"):
        DeviceMesh.read(world + 'dense = world._unflatten(0, degrees, ("pp", "dp", "tp"))\n')
    part = 'm = init_device_mesh("cuda", (8, 2), mesh_dim_names=("dp", "tp"))\n'
    part += 'hsdp = m["dp"]._unflatten(0, (2, 4), ("dp_replicate", "dp_shard"))'
    assert DeviceMesh.read(part) == DeviceMesh("dp_replicate=2, dp_shard=4, tp=2")
    merged = 'm = init_device_mesh("cuda", (2, 2, 2, 2), mesh_dim_names=("pp", "dp", "cp", "tp"))\n'
    merged += 'moe = m["dp", "cp", "tp"]._flatten("rest")._unflatten(0, (2, 4), ("ep_shard", "ep"))'
    with pytest.warns(UserWarning, match="torch also places experts"):
        assert DeviceMesh.read(merged)["rest"].array.tolist() == [list(range(8)), list(range(8, 16))]
    assert DeviceMesh.read(merged, experts=True) == DeviceMesh("pp=2, ep_shard=2, ep=4")


def test_torch_meshes_inside_functions_are_read() -> None:
    code = """
def create(device: torch.device, dp: int = 2, *, tp: int = 4):
    world_size = dist.get_world_size()
    assert world_size % tp == 0
    self.sizes = (world_size // (dp * tp), dp)
    return init_device_mesh(device.type, self.sizes + (tp,), mesh_dim_names=("pp", "dp", "tp"))
"""
    assert DeviceMesh.read(code, world_size=16) == DeviceMesh("pp=2, dp=2, tp=4")
    with pytest.raises(MeshError, match="pp=-1 is filled from the number of ranks, which is unknown; pass world_size="):
        DeviceMesh.read(code)
    assert DeviceMesh.read(code + "create(device, tp=2)\n", world_size=16) == DeviceMesh("pp=4, dp=2, tp=2")
    with pytest.raises(ParseError, match="tp is not a literal"):
        DeviceMesh.read(code + "create(device, tp=2)\ncreate(device, tp=8)\n", world_size=16)
    with pytest.raises(ParseError, match="tp is not a literal"):
        DeviceMesh.read("tp = 2\ndef create(tp):\n    return init_device_mesh('cuda', (tp,), mesh_dim_names=('tp',))")
    ranks = 'DeviceMesh("cuda", torch.arange(8).view(2, -1), mesh_dim_names=("dp", "tp"))'
    assert DeviceMesh.read(ranks) == DeviceMesh("dp=2, tp=4")
    counted = 'DeviceMesh("cuda", torch.arange(dist.get_world_size()).view(-1, 2**2), mesh_dim_names=("dp", "tp"))'
    assert DeviceMesh.read(counted, world_size=8) == DeviceMesh("dp=2, tp=4")
    for moved in (".view(4, 2).T", ".view(4, 2).t()", ".view(4, 2).transpose(0, 1)", ".view(4, 2).permute(1, 0)"):
        transposed = DeviceMesh.read(ranks.replace(".view(2, -1)", moved))
        assert transposed.ranks.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    sizes = 'sizes = {"dp": 2, "tp": max(1, 8 // 2)}\n'
    sizes += "m = init_device_mesh('cuda', tuple(sizes.values()), mesh_dim_names=tuple(sizes.keys()))"
    assert DeviceMesh.read(sizes) == DeviceMesh("dp=2, tp=4")
    with pytest.raises(ParseError, match=r"torch\.cuda\.device_count\(\) is not a literal"):
        DeviceMesh.read("init_device_mesh('cuda', (2, torch.cuda.device_count()), mesh_dim_names=('a', 'b'))")
    half = "init_device_mesh('cuda', (int(os.environ['WORLD_SIZE']) // 2, 2), mesh_dim_names=('dp', 'tp'))"
    assert DeviceMesh.read(half, world_size=8) == DeviceMesh("dp=4, tp=2")
    with pytest.raises(ParseError, match="world_size is not a literal"):
        DeviceMesh.read("RankGenerator(tp=2, ep=1, dp=world_size // 2, pp=1, cp=1, order='tp-dp')")
    environ = "init_device_mesh('cuda', (int(os.environ['WORLD_SIZE']),), mesh_dim_names=('dp',))"
    assert DeviceMesh.read(environ, world_size=8) == DeviceMesh("dp=8")
    with pytest.raises(ParseError, match=r"os\.environ is not a literal"):
        DeviceMesh.read(environ.replace("WORLD", "LOCAL_WORLD"), world_size=8)


def test_torch_code_between_other_text_is_read() -> None:
    call = 'init_device_mesh(\n    device, (2, 4),\n    mesh_dim_names=("dp", "tp"),\n)'
    expected = DeviceMesh("dp=2, tp=4")
    assert DeviceMesh.read(f"We create the mesh so:\n\n```python\ntp = 4\nm = {call}\n```\nand it hangs.") == expected
    assert DeviceMesh.read(f"It hangs (on 8 GPUs) in {call} - why?") == expected
    assert (
        DeviceMesh.read(">>> dp = 2\n>>> m = init_device_mesh('cuda', (dp, 4), mesh_dim_names=('dp', 'tp'))")
        == expected
    )
    with pytest.warns(UserWarning, match="the text creates 2 meshes, and the first one was read"):
        assert (
            DeviceMesh.read(f"a = init_device_mesh(device, (n, 2), mesh_dim_names=('x', 'y'))\nb = {call}") == expected
        )


def test_names_in_code_stand_for_what_is_assigned_to_them() -> None:
    code = (
        "dp, tp = 2, 4\nn = 2\nshape = (n, n * 4 // 2)\nm = init_device_mesh('cuda', shape, mesh_dim_names=('a', 'b'))"
    )
    assert DeviceMesh.read(code) == DeviceMesh("a=2, b=4")
    with pytest.raises(ParseError, match="n is not a literal"):
        DeviceMesh.read("n = 2\nn = 3\nm = init_device_mesh('cuda', (n, 2), mesh_dim_names=('a', 'b'))")
    with pytest.raises(ParseError, match="a is not a literal"):
        find_call("a = b\nb = a\nf(a)", {"f": ["x"]})


# -- JAX ---------------------------------------------------------------------------------------------------------------


def test_jax_arrays_of_devices_are_read() -> None:
    assert DeviceMesh.read("mesh_utils.create_device_mesh((2, 4))") == DeviceMesh("axis0=2, axis1=4")
    code = "devices = mesh_utils.create_device_mesh((2, 4))\nmesh = Mesh(devices, axis_names=('data', 'model'))"
    assert DeviceMesh.read(code) == DeviceMesh("data=2, model=4")
    mesh = DeviceMesh.read("mesh_utils.create_hybrid_device_mesh((2, 2), (2, 1), devices=jax.devices())")
    assert mesh.ranks.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(ParseError, match="have different lengths; write one size per axis in both"):
        DeviceMesh.read("create_hybrid_device_mesh((2, 2), (2,))")
    assert DeviceMesh.read("Mesh(jax.devices(), ('x',))", world_size=4) == DeviceMesh("x=4")
    assert DeviceMesh.read("Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ('x', 'y'))") == DeviceMesh("x=2, y=3")
    code = "devices = create_device_mesh((jax.device_count(),))\nmesh = Mesh(devices, ('data',))"
    assert DeviceMesh.read(code, world_size=8) == DeviceMesh("data=8")
    assert DeviceMesh.read("jax.make_mesh((len(jax.devices()),), ('data',))", world_size=8) == DeviceMesh("data=8")
    with pytest.raises(ParseError, match=r"jax.device_count\(\) // 2 is not a literal"):
        DeviceMesh.read("jax.make_mesh((jax.device_count() // 2, 2), ('x', 'y'))", world_size=8)
    expected = DeviceMesh("x=4, y=2")
    assert DeviceMesh.read("Mesh(np.reshape(jax.devices(), (-1, 2)), ('x', 'y'))", world_size=8) == expected


def test_jax_reprs_of_today_and_live_abstract_meshes_are_read() -> None:
    expected = DeviceMesh("dp=2, tp=4")
    for text in (
        "Mesh(axis_sizes=(2, 4), axis_names=('dp', 'tp'), axis_types=(Auto, Auto))",
        "AbstractMesh('dp': 2, 'tp': 4, axis_types=(Explicit, Auto), device_kind=cpu, num_cores=None, platform=cpu)",
        "NamedSharding(mesh=Mesh('dp': 2, 'tp': 4, axis_types=(Auto, Auto)), spec=P('dp',), memory_kind=device)",
    ):
        assert DeviceMesh.read(text) == expected

    class Abstract:
        axis_names = ("dp", "tp")
        axis_sizes = (2, 4)

        @property
        def devices(self) -> object:
            raise ValueError("AbstractMesh does not implement devices")

    assert DeviceMesh.read(Abstract()) == expected
    with pytest.raises(MeshError, match="this JAX mesh is empty"):
        DeviceMesh.read("Mesh(axis_sizes=(), axis_names=())")


# -- HyperCommGrid -----------------------------------------------------------------------------------------------------


def test_hypercomm_grids_with_views_are_read_from_objects_and_text() -> None:
    view = SimpleNamespace(shape=[2, 2, 2], dim_names=["ep", "expt_dp", "pp"])
    base = SimpleNamespace(shape=[2, 2, 2], dim_names=["tp", "dp", "pp"])
    live = SimpleNamespace(**vars(base), rank_offset=0, _views={"base": base, "moe": view})
    assert DeviceMesh.read(live, experts=True) == DeviceMesh("pp=2, expt_dp=2, ep=2")
    with pytest.warns(UserWarning, match="hypercomm also places experts"):
        assert DeviceMesh.read(live) == DeviceMesh("pp=2, dp=2, tp=2")
    live._views["other"] = SimpleNamespace(shape=[8], dim_names=["x"])
    assert DeviceMesh.read(live, experts=True) == DeviceMesh("pp=2, expt_dp=2, ep=2")
    text = 'g = HyperCommGrid([8], ["tp"])\ng.register_view("a", [2, 4], ["x", "y"])\n'
    text += 'g.register_view("b", [4, 2], ["x", "y"])'
    with pytest.raises(MeshError, match="no expert layout: this HyperCommGrid has the views a, b"):
        DeviceMesh.read(text, experts=True)
    part = DeviceMesh.read('HyperCommGrid([2, 2], ["tp", "dp"], rank_offset=2)', world_size=8)
    assert (part.ranks.tolist(), part.idle_ranks.tolist()) == ([[2, 3], [4, 5]], [0, 1, 6, 7])


# -- recognising texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("dp=2, tp=4", "meshlab"),
        ("dp=-1 tp=4", "meshlab"),
        ("torchrun x.py --tensor-model-parallel-size 8", "megatron-flags"),
        (MEGATRON, "megatron-flags"),
        ("vllm serve m -tp 8 -dcp 4", "vllm"),
        ("python -m sglang.launch_server --tp 8", "sglang"),
        ("[parallelism]\ntensor_parallel_degree = 2", "torchtitan"),
        ("parallelism:\n  dp: 1\n  pp: 1\n  tp: 2\n", "nanotron"),
        ('{"tensor_parallel": {"autotp_size": 2}}', "deepspeed-config"),
        (VERL, "verl"),
        ("jax.make_mesh((2,), ('x',))", "jax"),
        ("init_device_mesh('cuda', (2,), mesh_dim_names=('x',))", "torch"),
        ('RankGenerator(tp=2, ep=1, dp=1, pp=1, cp=1, order="tp")', "megatron"),
        ("HyperCommGrid([2], ['tp'])", "hypercomm"),
        ("ProcessTopology(['pipe'], [2])", "deepspeed"),
        ("", None),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor)\n#  Rank  0 Pid 1 on h device  0", None),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-47\nGPU1\tNV18\t X \t0-47\n", None),
        ("host:1:1 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0=1", None),
        ("[training]\nsteps = 10\n", None),
        ("SwitchName=s0 Nodes=n[0-3]\n", None),
    ],
)
def test_the_kind_of_a_mesh_text_is_known_without_reading_it(text: str, kind: str | None) -> None:
    assert mesh_text_kind(text) == kind


def test_readers_and_writers_are_listed() -> None:
    assert set(FRAMEWORKS) < set(READERS)
    with pytest.raises(MeshError, match="meshlab reads verl but does not write it; choose one of deepspeed"):
        DeviceMesh("tp=2").to("verl")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm serve m --context-parallel-size 2", "no vLLM flag found; use one of --data-parallel-size"),
        ("lmdeploy serve api_server m --tp 8 --dp 2", "this looks like LMDeploy, which meshlab does not read"),
        ("policy:\n  dtensor_cfg:\n    tensor_parallel_size: 2\n", "is one of NeMo RL, which meshlab does not read"),
        ("distributed_type: FSDP\nnum_processes: 8\n", "this config of Accelerate has no sizes of parallelism"),
        ("finetuning_type: full\ndo_train: true\n", "this config of LLaMA-Factory has no sizes of parallelism"),
        ("[model]\nname = 'x'\n[training]\nsteps = 3\n", "this config has no sizes of parallelism; meshlab looked"),
        ("model:\n  hidden_size: 1\ntraining:\n  lr: 0.1\n", "torchtitan: parallelism.tensor_parallel_degree"),
        ("[parallelism]\ntensor_parallel_degree = \n", "line 2: not TOML: Invalid value"),
        ("model:\n  tensor_model_parallel_size: [2\nother: 1\n", "not YAML: "),
        ("model:\n  tensor_model_parallel_size: two\n", "parallel-size has the value 'two'; write a number"),
    ],
)
def test_other_texts_are_errors_that_say_what_was_found(text: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        DeviceMesh.read(text, world_size=8)


def test_a_text_of_another_framework_is_named() -> None:
    with pytest.raises(ParseError, match="no Megatron flag found; the text looks like vllm; omit framework="):
        DeviceMesh.read("vllm serve m -tp 8", framework="megatron-flags", world_size=8)


def test_configs_never_execute_code_and_never_expand_endlessly() -> None:
    unsafe = "training: !!python/object/apply:os.system ['true']\nmodel:\n  tensor_model_parallel_size: 2\n"
    with pytest.raises(ParseError, match="not YAML: could not determine a constructor"):
        DeviceMesh.read(unsafe, world_size=8)
    rows = ["a0: &a0 [1, 2]"] + [f"a{i}: &a{i} [[*a{i - 1}, *a{i - 1}], [*a{i - 1}, *a{i - 1}]]" for i in range(1, 40)]
    with pytest.raises(ParseError, match="the config has more than 100,000 keys"):
        parse_config("\n".join(rows))


def test_groups_of_read_meshes_contain_every_rank_once() -> None:
    flags = "--tp-size 16 --dp-size 4 --enable-dp-attention --attn-cp-size 2 --moe-dp-size 2 --dcp-size 2"
    with pytest.warns(UserWarning, match="attention is data parallel"):
        mesh = DeviceMesh.read(flags)
    for name in ("attn_dp", "attn_cp", "attn_tp", "dcp"):
        assert np.array_equal(np.sort(mesh[name].array.reshape(-1)), np.arange(16))


def test_clues_are_searched_in_their_order_and_reach() -> None:
    clue = Followed(re.compile("vllm serve"), re.compile("--[a-z-]{0,40}parallel-size"))
    assert clue.search("vllm serve model --tensr-parallel-size 8")
    assert not clue.search("vllm serve model")
    call = CallWith(re.compile(r"LLM\("), re.compile(r"tensor_parallel_size\s*="))
    assert call.search('LLM("model", tensor_parallel_size=8)')
    assert not call.search('LLM("model")')


def test_keys_and_values_of_configs_are_flat_and_plain() -> None:
    assert flat_config({"model": {"tp": 2, "layers": [1, 2]}}) == {"model.tp": 2, "model.layers": [1, 2]}
    keys = ("MODEL_ARGS.--tensor-model-parallel-size", "model.tp")
    assert [last_part(key) for key in keys] == ["tensor-model-parallel-size", "tp"]
    config = {"trainer.num_nodes": 4, "trainer.devices": "8"}
    assert product_of(config, ("num_nodes", "nnodes"), ("devices",)) == 32
    assert {dashed(name) for name in ("tensor_parallel_size", "--tensor-parallel-size")} == {"tensor-parallel-size"}
    assert [is_off(value) for value in (1, "False", None, 2)] == [True, True, True, False]
    assert [is_on(value) for value in ("", "true", True, "False", None)] == [True, True, True, False, False]


def test_a_config_of_endless_dotted_keys_is_refused_with_its_size() -> None:
    keys = "\n".join(f"k{number}.{'.'.join('abcdefghijklmnopqrst')} = 1" for number in range(6_000))
    with pytest.raises(LimitError, match=r"126,00[0-9] parts of keys"):
        DeviceMesh.read(f"[parallelism]\ntensor_parallel_degree = 8\n[p]\n{keys}\n")
