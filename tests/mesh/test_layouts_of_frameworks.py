"""Groups of frameworks whose rule is a few lines: each test restates the rule, with the file that it is from."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._frameworks import mesh_text_kind
from meshlab.mesh.interop._variables import axis_of, is_setting

Groups = dict[str, list[list[int]]]


def grid_groups(order: Sequence[str], sizes: Mapping[str, int]) -> Groups:
    """Return the groups of ranks that are reshaped to the axes in an order, slowest first, as torch's mesh has them."""
    shape = [sizes.get(axis, 1) for axis in order]
    ranks = np.arange(np.prod(shape)).reshape(shape)
    return {
        axis: np.moveaxis(ranks, index, -1).reshape(-1, shape[index]).tolist()
        for index, axis in enumerate(order)
        if axis in sizes
    }


def quiet_read(text: str, **options: Any) -> DeviceMesh:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other tests check them
        return DeviceMesh.read(text, **options)


def same_groups(mesh: DeviceMesh, groups: Groups) -> bool:
    return all(mesh[axis].array.tolist() == rows for axis, rows in groups.items())


def all_sizes(*axes: str) -> list[dict[str, int]]:
    """Return all sizes of 1 to 3 of some axes, with up to 36 ranks."""
    grids = itertools.product((1, 2, 3), repeat=len(axes))
    return [dict(zip(axes, sizes, strict=True)) for sizes in grids if np.prod(sizes) <= 36]


# -- Accelerate and axolotl: accelerate/parallelism_config.py, _get_mesh -----------------------------------------------


def test_accelerate_has_the_order_of_its_mesh() -> None:
    for sizes in all_sizes("dp_replicate", "dp_shard", "cp", "sp", "tp"):
        expected = grid_groups(("dp_replicate", "dp_shard", "cp", "sp", "tp"), sizes)
        shuffled = sorted(sizes.items(), reverse=True)
        yaml = "distributed_type: FSDP\nparallelism_config:\n"
        yaml += "".join(f"  parallelism_config_{axis}_size: {size}\n" for axis, size in shuffled)
        flags = " ".join(f"--parallelism_config_{axis}_size {size}" for axis, size in shuffled)
        call = f"pc = ParallelismConfig({', '.join(f'{axis}_size={size}' for axis, size in shuffled)})"
        for text in (yaml, f"accelerate launch {flags} train.py", call):
            assert same_groups(DeviceMesh.read(text), expected)


def test_accelerate_counts_its_processes() -> None:
    yaml = "num_processes: 16\nparallelism_config:\n  parallelism_config_dp_shard_size: 4\n"
    with pytest.raises(MeshError, match="dp_shard=4 × tp=2 is 8 ranks, but 16 were given"):
        DeviceMesh.read(yaml + "  parallelism_config_tp_size: 2\n")
    script = "accelerate launch --num-processes 4 nd_parallel.py --dp-shard-size 2 --tp-size 2"
    assert DeviceMesh.read(script) == DeviceMesh("dp_shard=2, tp=2")
    megatron = "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
    megatron += "  megatron_lm_pp_degree: 2\nnum_processes: 8\n"
    assert DeviceMesh.read(megatron) == DeviceMesh("pp=2, dp=2, tp=2")
    ulysses = "p = ParallelismConfig(sp_backend='deepspeed', sp_size=4)"
    assert DeviceMesh.read(ulysses, world_size=8) == DeviceMesh("dp_replicate=2, sp=4")


def test_a_parallelism_config_of_another_program_is_refused() -> None:
    with pytest.raises(MeshError, match="pp_size is not a setting of Accelerate"):
        DeviceMesh.read("ParallelismConfig(dp_size=4, tp_size=4, pp_size=2)")


def test_axolotl_fills_data_parallelism_and_puts_experts_in_front() -> None:
    # axolotl/utils/distributed.py, _get_parallel_config_kwargs, and monkeypatch/accelerate/parallelism_config.py
    yaml = "base_model: m\nfsdp_version: 2\ntensor_parallel_size: 2\ncontext_parallel_size: 2\n"
    assert DeviceMesh.read(yaml, world_size=16) == DeviceMesh("dp_shard=4, cp=2, tp=2")
    assert DeviceMesh.read(yaml + "dp_shard_size: 2\n", world_size=16) == DeviceMesh(
        "dp_replicate=2, dp_shard=2, cp=2, tp=2"
    )
    one = "base_model: m\ndp_shard_size: 2\ndp_replicate_size: 1\n"
    assert DeviceMesh.read(one, world_size=8) == DeviceMesh("dp_replicate=4, dp_shard=2")
    assert DeviceMesh.read(yaml + "dp_shard_size: 2\n") == DeviceMesh("dp_shard=2, cp=2, tp=2")
    assert DeviceMesh.read(yaml + "dp_replicate_size: 2\n", world_size=16).axis_names[:2] == (
        "dp_replicate",
        "dp_shard",
    )
    experts = "base_model: m\nexpert_parallel_size: 2\ndp_shard_size: 4\nsequence_parallel_degree: 2\n"
    assert DeviceMesh.read(experts) == DeviceMesh("ep=2, dp_shard=4, cp=2")
    with pytest.raises(MeshError, match="dp_shard=-1 is filled from the number of ranks, which is unknown"):
        DeviceMesh.read(yaml)


# -- NeMo AutoModel: nemo_automodel/components/distributed/mesh_utils.py -----------------------------------------------


def test_automodel_has_the_order_of_its_meshes() -> None:
    for sizes in all_sizes("pp", "dp_replicate", "dp_shard", "cp", "tp"):
        expected = grid_groups(("pp", "dp_replicate", "dp_shard", "cp", "tp"), sizes)
        world = int(np.prod(list(sizes.values())))
        given = {"tp": sizes["tp"], "cp": sizes["cp"], "pp": sizes["pp"], "dp_replicate": sizes["dp_replicate"]}
        yaml = "recipe: x\ndistributed:\n  strategy: fsdp2\n  dp_size: none\n"
        yaml += "".join(f"  {axis}_size: {size}\n" for axis, size in given.items())
        call = f"create_device_mesh(cfg, {', '.join(f'{axis}_size={size}' for axis, size in given.items())}"
        assert same_groups(DeviceMesh.read(yaml, world_size=world), expected)
        assert same_groups(DeviceMesh.read(f"{call}, world_size={world})"), expected)


def test_automodel_experts_span_the_ranks_of_a_stage() -> None:
    yaml = "distributed:\n  strategy: fsdp2\n  pp_size: 2\n  tp_size: 2\n  ep_size: 4\n"
    with pytest.warns(UserWarning, match="automodel also places experts"):
        assert DeviceMesh.read(yaml, world_size=16) == DeviceMesh("pp=2, dp_shard=4, tp=2")
    stages = np.arange(16).reshape(2, 2, 4)  # pp, ep_shard, ep
    experts = DeviceMesh.read(yaml, world_size=16, experts=True)
    assert experts["ep"].array.tolist() == stages.reshape(-1, 4).tolist()
    assert experts["ep_shard"].array.tolist() == np.moveaxis(stages, 1, -1).reshape(-1, 2).tolist()
    sizes = "create_device_mesh(FSDP2Config(), ParallelismSizes(tp_size=2, pp_size=2), world_size=8)"
    assert DeviceMesh.read(sizes) == DeviceMesh("pp=2, dp_shard=2, tp=2")
    code = "m = create_device_mesh(MegatronFSDPConfig(), tp_size=2, cp_size=2, dp_size=2, world_size=world_size)"
    assert DeviceMesh.read(code) == DeviceMesh("dp=2, cp=2, tp=2")
    with pytest.raises(MeshError, match="NeMo AutoModel's flags do not contain the number of ranks"):
        DeviceMesh.read("distributed:\n  strategy: fsdp2\n  tp_size: 2\n")


# -- picotron: picotron/process_group_manager.py -----------------------------------------------------------------------


def test_picotron_has_the_order_of_its_grid() -> None:
    for sizes in all_sizes("dp", "pp", "cp", "tp"):
        expected = grid_groups(("dp", "pp", "cp", "tp"), sizes)
        section = ", ".join(f'"{axis}_size": {size}' for axis, size in sizes.items())
        assert same_groups(DeviceMesh.read(f'{{"distributed": {{{section}, "use_cpu": false}}}}'), expected)
        flags = " ".join(f"--{axis} {size}" for axis, size in sizes.items())
        assert same_groups(DeviceMesh.read(f"python create_config.py --out_dir tmp {flags}"), expected)


def test_a_section_of_two_frameworks_is_refused_with_both_orders() -> None:
    text = '{"distributed": {"tp_size": 2, "pp_size": 2, "dp_size": 2}}'
    with pytest.raises(ParseError, match=r"picotron, whose order is dp, pp, cp, tp, or of NeMo AutoModel"):
        DeviceMesh.read(text)
    assert DeviceMesh.read(text, framework="picotron") == DeviceMesh("dp=2, pp=2, tp=2")
    assert DeviceMesh.read(text, framework="automodel") == DeviceMesh("pp=2, dp_shard=2, tp=2")


# -- TensorRT-LLM: tensorrt_llm/mapping.py -----------------------------------------------------------------------------


def tensorrt_groups(pp: int, cp: int, tp: int, moe_tp: int, moe_ep: int) -> Groups:
    """Return the groups that the loops of Mapping create."""
    world, stage = pp * cp * tp, cp * tp
    return {
        "pp": [list(range(i, world, stage)) for i in range(stage)],
        "cp": [list(range(i * stage + j, (i + 1) * stage + j, tp))[:cp] for i in range(pp) for j in range(tp)],
        "tp": [list(range(i * stage + j * tp, i * stage + (j + 1) * tp)) for i in range(pp) for j in range(cp)],
        "etp": [list(range(i * tp + j, (i + 1) * tp, moe_ep)) for i in range(pp) for j in range(moe_ep)],
        "ep": [list(range(i * tp + j * moe_ep, i * tp + (j + 1) * moe_ep)) for i in range(pp) for j in range(moe_tp)],
    }


def test_tensorrt_llm_has_the_groups_of_its_mapping() -> None:
    for pp, cp, tp in itertools.product((1, 2, 3), (1, 2), (1, 2, 4)):
        groups = tensorrt_groups(pp, cp, tp, tp, 1)
        text = f"Mapping(world_size={pp * cp * tp}, tp_size={tp}, pp_size={pp}, cp_size={cp})"
        assert same_groups(quiet_read(text), {axis: groups[axis] for axis in ("pp", "cp", "tp")})
    for pp, moe_tp, moe_ep in itertools.product((1, 2), (1, 2, 3), (1, 2, 4)):
        tp = moe_tp * moe_ep
        groups = tensorrt_groups(pp, 1, tp, moe_tp, moe_ep)
        texts = (
            f"tensor_parallel_size: {tp}\npipeline_parallel_size: {pp}\nmoe_expert_parallel_size: {moe_ep}\n",
            f"LLM(model, tensor_parallel_size={tp}, pipeline_parallel_size={pp}, moe_expert_parallel_size={moe_ep})",
            f"trtllm-serve m --tp_size {tp} --pp_size {pp} --ep_size {moe_ep} --host 0.0.0.0",
            f"trtllm-bench --model m throughput --tp {tp} --ep {moe_ep} --pp {pp}",
        )
        for text in texts:
            assert same_groups(DeviceMesh.read(text, experts=True), {axis: groups[axis] for axis in ("etp", "ep")})
            assert same_groups(DeviceMesh.read(text, experts=False), {axis: groups[axis] for axis in ("pp", "tp")})


def test_tensorrt_llm_says_what_depends_on_its_version_and_what_cannot_be() -> None:
    with pytest.warns(UserWarning, match="recent versions have them the other way round"):
        assert DeviceMesh.read("trtllm-serve m --tp_size 2 --cp_size 2") == DeviceMesh("cp=2, tp=2")
    with pytest.warns(UserWarning, match=r"mesh\['attn_dp'\] has groups of 4 ranks"):
        mesh = DeviceMesh.read("tensor_parallel_size: 4\nenable_attention_dp: true\n")
    assert mesh["attn_dp"].array.tolist() == [[0, 1, 2, 3]]
    wrong = "tensor_parallel_size: 8\nmoe_expert_parallel_size: 4\nmoe_tensor_parallel_size: 4\n"
    with pytest.raises(MeshError, match=r"moe_tensor_parallel_size 4 × moe_expert_parallel_size 4 must be .* 8"):
        DeviceMesh.read(wrong, experts=True)
    two = "context_servers:\n  tensor_parallel_size: 4\n  enable_attention_dp: false\n"
    with pytest.raises(ParseError, match=r"4 in context_servers\.\w+ and 8 in generation_servers"):
        DeviceMesh.read(two + "generation_servers:\n  tensor_parallel_size: 8\n")


# -- MaxText, Levanter and EasyLM: create_hybrid_device_mesh of JAX, and np.reshape ------------------------------------


def test_maxtext_merges_its_two_levels_as_jax_does() -> None:
    order = ("data", "fsdp", "tensor")  # of mesh_axes in configs/base.yml
    for inner, outer in itertools.product(itertools.product((1, 2, 4), repeat=3), itertools.product((1, 2), repeat=3)):
        devices = np.arange(np.prod(inner) * np.prod(outer)).reshape(*outer, *inner)
        merged = devices.transpose(0, 3, 1, 4, 2, 5).reshape([a * b for a, b in zip(outer, inner, strict=True)])
        words = [f"ici_{axis}_parallelism={size}" for axis, size in zip(order, inner, strict=True)]
        words += [f"dcn_{axis}_parallelism={size}" for axis, size in zip(order, outer, strict=True)]
        mesh = DeviceMesh.read(f"python3 -m maxtext.train base.yml run_name=x {' '.join(reversed(words))} steps=5")
        for index, axis in enumerate(order):
            if axis in mesh.axis_names:
                rows = np.moveaxis(merged, index, -1).reshape(-1, merged.shape[index])
                assert mesh[axis].array.tolist() == rows.tolist()


def test_maxtext_flags_are_read() -> None:
    flags = "python3 shardings.py --dcn_data_parallelism 2 --ici_fsdp_parallelism 4 --batch_size 131072"
    assert DeviceMesh.read(flags) == DeviceMesh.read(flags.replace("m 2", "m=2")) == DeviceMesh("data=2, fsdp=4")


def test_maxtext_fills_its_defaults_and_says_so() -> None:
    complete = "train.py ici_fsdp_parallelism=4 ici_tensor_parallelism=2"
    with pytest.warns(UserWarning, match="a single slice was assumed unless world_size= is larger"):
        assert DeviceMesh.read(complete) == DeviceMesh("fsdp=4, tensor=2")
    assert quiet_read(complete, world_size=16) == DeviceMesh("data=2, fsdp=4, tensor=2")
    assert quiet_read(f"{complete} dcn_fsdp_parallelism=2", world_size=32).axis_names == ("data", "fsdp", "tensor")
    with pytest.warns(UserWarning, match="the number of slices or hosts; a single slice was assumed$"):
        mesh = DeviceMesh.read("ici_tensor_parallelism: 2\nici_fsdp_parallelism: -1\n", world_size=16)
    assert mesh == DeviceMesh("fsdp=8, tensor=2")
    command = "MaxText/train.py c.yml dcn_data_parallelism=$NODES ici_tensor_parallelism=4"
    assert DeviceMesh.read(f"NODES=2\npython3 {command}", world_size=16) == DeviceMesh("data=2, fsdp=2, tensor=4")
    assert DeviceMesh.read("num_slices=2\ntrain.py ici_tensor_parallelism=4", world_size=16) == DeviceMesh(
        "data=2, fsdp=2, tensor=4"
    )
    slices = "dcn_data_parallelism=-1 ici_fsdp_parallelism=8"
    assert DeviceMesh.read(f"train.py {slices}", world_size=32) == DeviceMesh("data=4, fsdp=8")
    with pytest.raises(MeshError, match="MaxText's flags do not contain the number of ranks"):
        quiet_read("train.py dcn_data_parallelism=2 ici_tensor_parallelism=4")
    with pytest.raises(ParseError, match="ici_fsdp_parallelism has the values 4 and 8"):
        DeviceMesh.read("train.py ici_fsdp_parallelism=4\ntrain.py ici_fsdp_parallelism=8", world_size=8)
    with pytest.raises(MeshError, match="MaxText has no axis colour"):
        DeviceMesh.read("train.py ici_colour_parallelism=4 dcn_data_parallelism=1", world_size=8)


def test_levanter_has_slices_outside_and_its_own_axes_inside() -> None:
    # levanter/utils/mesh.py: axes.update() keeps the order data, replica, model, and others follow
    yaml = "trainer:\n  mesh:\n    axes:\n      context: 2\n      model: 2\n    dcn_axes:\n      replica_dcn: 2\n"
    mesh = DeviceMesh.read(yaml, world_size=16)
    assert mesh == DeviceMesh("replica_dcn=2, data=2, model=2, context=2")
    one_slice = "trainer:\n  mesh:\n    axes: {replica: -1, model: 4}\n"
    with pytest.warns(UserWarning, match="Levanter: a single slice was assumed"):
        assert DeviceMesh.read(one_slice, world_size=8) == DeviceMesh("replica=2, model=4")
    older = "trainer:\n  model_axis_size: 2\n  replica_ici_axis_size: 2\n  replica_dcn_axis_size: 2\n"
    ranks = np.arange(16).reshape(2, 2, 2, 2).reshape(4, 2, 2)  # slices, replica, data, model
    assert DeviceMesh.read(older, world_size=16).ranks.tolist() == ranks.tolist()


def test_easylm_has_the_order_of_its_flag() -> None:
    command = "python -m EasyLM.models.llama.llama_train --mesh_dim='{}' --dtype='fp32'"
    assert DeviceMesh.read(command.format("1,-1,4"), world_size=32) == DeviceMesh("dp=1, fsdp=8, mp=4")
    assert DeviceMesh.read(command.format("!2,4,1")) == DeviceMesh("dp=2, fsdp=4, mp=1")
    assert DeviceMesh.read(command.format("fsdp:2,dp:4,mp:1")) == DeviceMesh("fsdp=2, dp=4, mp=1")
    lwm = "python3 -u -m lwm.train --modality='text' --mesh_dim='!1,-1,4,1'"
    assert DeviceMesh.read(lwm, world_size=8) == DeviceMesh("dp=1, fsdp=2, tp=4, sp=1")
    with pytest.raises(ParseError, match="has 4 sizes without names, whose meaning depends on the program"):
        DeviceMesh.read("python train.py --mesh_dim='1,1,4,1'")


# -- OpenRLHF and slime ------------------------------------------------------------------------------------------------


def test_openrlhf_has_the_order_of_its_mesh() -> None:
    # openrlhf/utils/deepspeed/deepspeed.py: init_device_mesh((dp, ring, tp), ("dp", "sp", "tp"))
    for sizes in all_sizes("dp", "sp", "tp"):
        world = int(np.prod(list(sizes.values())))
        flags = f"--ds.ring_attn_size {sizes['sp']} --ds.tensor_parallel_size {sizes['tp']}"
        text = f"torchrun --nproc_per_node={world} -m openrlhf.cli.train_sft {flags}"
        assert same_groups(DeviceMesh.read(text), grid_groups(("dp", "sp", "tp"), sizes))


def test_the_ranks_of_an_actor_are_counted_from_its_nodes() -> None:
    ray = "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 2 --actor_num_gpus_per_node 4"
    with pytest.warns(UserWarning, match="--vllm_tensor_parallel_size 2 gives generation engines of their own"):
        assert DeviceMesh.read(f"{ray} --ring_attn_size 2 --vllm_tensor_parallel_size 2") == DeviceMesh("dp=4, sp=2")
    with pytest.warns(UserWarning, match="generation engines"):
        assert DeviceMesh.read(f"{ray} --vllm_tensor_parallel_size 2") == DeviceMesh("dp=8")
    slime = (
        "ARGS=(\n  --tensor-model-parallel-size 4\n  --pipeline-model-parallel-size 2\n)\nray job submit -- python3 "
    )
    slime += "train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --rollout-num-gpus-per-engine 4 ${ARGS[@]}"
    with pytest.warns(UserWarning, match="--rollout-num-gpus-per-engine 4 gives generation engines of their own"):
        assert DeviceMesh.read(slime) == DeviceMesh("pp=2, dp=2, tp=4")
    bridge = "torchrun --nproc_per_node=8 pretrain.py model.tensor_model_parallel_size=2 model.context_parallel_size=2"
    assert DeviceMesh.read(bridge) == DeviceMesh("dp=2, cp=2, tp=2")
    swift = "NNODES=2 NPROC_PER_NODE=8 megatron sft --tensor_model_parallel_size 4 --pipeline_model_parallel_size 2"
    assert DeviceMesh.read(swift) == DeviceMesh("pp=2, dp=2, tp=4")
    torchrun = "torchrun --nproc-per-node 8 pretrain.py --tensor-model-parallel-size 4"
    assert DeviceMesh.read(torchrun) == DeviceMesh("dp=2, tp=4")  # one node is the default of torchrun
    with pytest.raises(MeshError, match="do not contain the number of ranks"):
        DeviceMesh.read(torchrun.replace("8", "8 --nnodes $N"))


# -- Megatron in Python and in LLaMA-Factory ---------------------------------------------------------------------------


def test_megatron_recipes_in_python_are_read() -> None:
    recipe = '''
def pretrain_config() -> ConfigContainer:
    """A recipe with tensor_model_parallel_size=64."""
    cfg = base_config()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.context_parallel_size = 2  # not 4
    cfg.model.expert_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.sequence_parallel = True
    return cfg
'''
    with (
        pytest.warns(UserWarning, match=r"pipeline-model-parallel-size was read as 1, but base_config\(\) may set it"),
        pytest.warns(UserWarning, match="so it is 2 as in Megatron-LM; recent versions of Megatron-Bridge set it to 1"),
    ):
        mesh = DeviceMesh.read(recipe, world_size=16, experts=False)
    assert mesh == DeviceMesh("dp=4, cp=2, tp=2")
    rest = "cfg.model.pipeline_model_parallel_size = 1\n    cfg.model.expert_tensor_parallel_size = 1\n"
    whole = recipe.replace("    return", f"    {rest}    return")
    assert DeviceMesh.read(whole, world_size=16, experts=True).axis_names == ("pp", "edp", "ep", "etp")
    nemo = """
def trainer(tensor: int = 4, pipeline: int = 2, num_nodes: int = 2):
    strategy = nl.MegatronStrategy(tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline)
    return nl.Trainer(devices=8, num_nodes=num_nodes, strategy=strategy)
"""
    assert DeviceMesh.read(nemo) == DeviceMesh("pp=2, dp=2, tp=4")
    with pytest.raises(ParseError, match=r"is 2 in cfg\.model\.tensor_model_parallel_size and 8 in line_\d+\.cfg"):
        DeviceMesh.read(whole + whole.replace("tensor_model_parallel_size = 2", "tensor_model_parallel_size = 8"))
    with pytest.raises(ParseError, match=r"tensor-model-parallel-size has the value 'args\.tp'; write a number"):
        DeviceMesh.read("s = MegatronStrategy(tensor_model_parallel_size=args.tp)", world_size=8)


def test_a_config_in_a_dict_of_python_is_read() -> None:
    code = "config = {\n    'parallelism': {'dp': 4, 'pp': 2, 'tp': 2, 'tp_mode': 'ALL_REDUCE'},\n    'n': n,\n}"
    assert DeviceMesh.read(code) == DeviceMesh("pp=2, dp=4, tp=2")
    partial = "def recipe():\n    cfg = base()\n    cfg.model.context_parallel_size = 2\n    return cfg\n"
    with pytest.warns(UserWarning, match=r"-parallel-size were read as 1, but base\(\) may set it"):
        assert DeviceMesh.read(partial, world_size=8) == DeviceMesh("dp=4, cp=2")


def test_llama_factory_with_megatron_has_its_order() -> None:
    yaml = "model_name_or_path: m\nstage: sft\nfinetuning_type: full\ntemplate: qwen3\n"
    yaml += "tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\nuse_distributed_optimizer: true\n"
    assert DeviceMesh.read(yaml, world_size=8) == DeviceMesh("pp=2, dp=2, tp=2")


# -- variables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("TENSOR_MODEL_PARALLEL", "tp"),
        ("tensor_model_parallel_size", "tp"),
        ("TP_SIZE", "tp"),
        ("tp_degree", "tp"),
        ("TP", "tp"),
        ("tp", "tp"),
        ("tensor-parallel-size", "tp"),
        ("PIPELINE_PARALLELISM", "pp"),
        ("PP", "pp"),
        ("DATA_PARALLEL_SIZE", "dp"),
        ("dp_shard_size", "dp_shard"),
        ("data_parallel_replicate_degree", "dp_replicate"),
        ("CONTEXT_PARALLEL", "cp"),
        ("ulysses_sequence_parallel_size", "sp"),
        ("sequence_parallel", None),
        ("EXPERT_MODEL_PARALLEL_SIZE", "ep"),
        ("moe_tensor_parallel_size", "etp"),
        ("tensor", None),
        ("pipeline", None),
        ("tensor_size", None),
        ("pipeline_size", None),
        ("mp_size", "tp"),
        ("fsdp_size", "dp_shard"),
        ("pipe-parallel-size", "pp"),
        ("batch_size", None),
        ("parallel", None),
        ("", None),
    ],
)
def test_every_spelling_has_one_axis(name: str, axis: str | None) -> None:
    assert axis_of(name) == axis
    assert is_setting(name) == (axis is not None and name != "tp")


def test_variables_have_the_order_of_their_framework() -> None:
    exported = "export TENSOR_MODEL_PARALLEL=2\nexport PIPELINE_MODEL_PARALLEL=4  # stages\nexport MINIBS=8\n"
    exported += "export DGXNNODES=2\nexport DGXNGPU=8\nexport NCCL_DEBUG=WARN\n"
    assert DeviceMesh.read(exported) == DeviceMesh("pp=4, dp=2, tp=2")
    assert mesh_text_kind(exported) == "variables"
    computed = (
        'export SEGMENT=$(( (TENSOR_MODEL_PARALLEL * DGXNGPU) / 2 ))\nexport NAME=$(basename $(pwd) | sed "s/a b//")\n'
    )
    assert DeviceMesh.read(
        computed + exported + 'ROOT="$(cd "$(dirname "$0")/.." && pwd)"\necho "started"\n'
    ) == DeviceMesh("pp=4, dp=2, tp=2")
    experts = exported + "source $(dirname ${BASH_SOURCE[0]})/common.sh\nexport EXPERT_MODEL_PARALLEL=2\n"
    with pytest.warns(UserWarning, match="variables also places experts"):
        assert DeviceMesh.read(experts) == DeviceMesh("pp=4, dp=2, tp=2")
    assert DeviceMesh.read(experts, experts=True) == DeviceMesh("pp=4, edp=1, ep=2, etp=2")
    line = "TENSOR_MODEL_PARALLEL=2 PIPELINE_MODEL_PARALLEL=8 WORLD_SIZE=32; export CONTEXT_PARALLEL=1"
    assert DeviceMesh.read(line) == DeviceMesh("pp=8, dp=2, cp=1, tp=2")
    defaults = ': "${TENSOR_MODEL_PARALLEL:=4}"\n: ${DGXNNODES:=2}\n: "${DGXNGPU:=8}"\n'
    assert DeviceMesh.read(defaults) == DeviceMesh("dp=4, tp=4")


def test_an_order_that_was_assumed_is_named() -> None:
    for text in ("TP=2 PP=4 DP=2", "TP_SIZE=2\nPP_SIZE=4\nWORLD_SIZE=16\n", "tp_degree=2, pp_degree=4, dp_degree=2"):
        with pytest.warns(UserWarning, match="the order of Megatron was assumed: pp, dp, tp, slowest first"):
            assert DeviceMesh.read(text) == DeviceMesh("pp=4, dp=2, tp=2")
    with pytest.warns(UserWarning, match="the order of Megatron was assumed"):
        assert DeviceMesh.read('{"parallel": {"tp_size": 2, "cp_size": 2, "dp_size": 2}}') == DeviceMesh(
            "dp=2, cp=2, tp=2"
        )
    neox = '{"pipe-parallel-size": 2, "model-parallel-size": 4, "zero_optimization": {"stage": 1}}'
    with pytest.warns(UserWarning, match="the order of Megatron was assumed"):
        assert DeviceMesh.read(neox, world_size=16) == DeviceMesh("pp=2, dp=2, tp=4")
    with pytest.warns(UserWarning, match="may be about parallelism"), pytest.warns(UserWarning, match="assumed"):
        DeviceMesh.read("TP=2\nRING_PARALLEL=4\nWORLD_SIZE=8\n")
    with (
        pytest.warns(UserWarning, match="so dp is 1; pass world_size= for more"),
        pytest.warns(UserWarning, match="assumed"),
    ):
        assert DeviceMesh.read("tp_size=2 pp_size=4") == DeviceMesh("pp=4, tp=2")
    with pytest.raises(ParseError, match=r"TP_SIZE is '2' in TP_SIZE and '4' in again\.TP_SIZE"):
        quiet_read("TP_SIZE=2\nTP_SIZE=4\n", world_size=8)
    with pytest.raises(ParseError, match="tp has the sizes 2 and 4"):
        quiet_read("TP_SIZE=2\nTENSOR_PARALLEL_SIZE=4\n", world_size=8)


def test_axes_that_stand_for_themselves_keep_their_order() -> None:
    assert DeviceMesh.read("tp=2 pp=4").axis_names == ("tp", "pp")
    assert DeviceMesh.read("fsdp=4, tp=2") == DeviceMesh("fsdp=4, tp=2")
    assert DeviceMesh.read("rows=2, mp=4").axis_names == ("rows", "mp")
    with pytest.raises(ParseError, match="'tp_size' is a setting of a framework, whose axes have an order"):
        DeviceMesh("tp_size=2, pp_size=4")


def test_flags_of_another_program_are_not_taken_for_those_of_a_server_silently() -> None:
    with pytest.warns(UserWarning, match="read as those of SGLang, whose order is dp, pp, tp; pass framework='sglang'"):
        assert DeviceMesh.read("python train.py --tp 2 --pp 2 --dp 2") == DeviceMesh("dp=2, pp=2, tp=2")
    assert DeviceMesh.read("--tp 2 --dp 2") == DeviceMesh("dp=2, tp=2")
    flags = "python setup_experiment.py -tp 4 -pp 2"
    with pytest.warns(UserWarning, match="read as those of vLLM, whose order is dp, pp, tp; pass framework='vllm'"):
        DeviceMesh.read(flags)
    assert DeviceMesh.read(flags, framework="vllm") == DeviceMesh("pp=2, tp=4")
    sizes = "train:\n  tensor_parallel_size: 2\n  pipeline_parallel_size: 2\n  data_parallel_size: 2\n"
    with pytest.warns(UserWarning, match="read as those of vLLM, whose order is dp, pp, tp"):
        DeviceMesh.read(sizes)
    assert DeviceMesh.read(sizes + "vllm:\n  max_model_len: 4096\n") == DeviceMesh("dp=2, pp=2, tp=2")


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5\n",
        "PATH=/usr/bin EPOCHS=10",
        "export MODEL=llama\nexport SEQUENCE_PARALLEL=True\n",
        "sp: 3\nep: 10\ntraining:\n  lr: 0.1\n",
        "epochs: 3\nbatch_size: 8\ntrain: true\n",
        "x = f(tp_rank=3)\n",
        "def main():\n    distributed = True\n",
    ],
)
def test_other_variables_and_code_are_no_mesh(text: str) -> None:
    assert mesh_text_kind(text) in (None, "meshlab")
    with pytest.raises((ParseError, MeshError)):
        DeviceMesh.read(text)
