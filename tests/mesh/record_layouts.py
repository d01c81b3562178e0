"""Record the groups that frameworks create for random layouts, for `test_recorded_layouts.py`.

The frameworks' own code runs here, without GPUs: torch's fake process groups need no other processes. Packages that the
code only imports are replaced by empty modules. Run it in an environment with torch and jax, and pass the folder with
the source of the framework:

    python tests/mesh/record_layouts.py megatron FOLDER "NVIDIA/Megatron-LM d98e8a64"
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import logging
import math
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNT = 220

Layout = dict[str, Any]


def digest(groups: list[list[int]]) -> str:
    """Return a hash of groups: their order does not matter, and the order of the ranks in a group does."""
    return hashlib.sha256(json.dumps(sorted(map(list, groups))).encode()).hexdigest()[:12]


def digests(groups: dict[str, list[list[int]]]) -> dict[str, str]:
    return {name: digest(rows) for name, rows in groups.items()}


class Empty(types.ModuleType):
    """A module in which every name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def replace(*names: str, **contents: Any) -> None:
    for name in names:
        module = Empty(name)
        module.__path__ = []
        module.__dict__.update(contents)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)


def load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def pick(*numbers: int) -> int:
    return random.choice(numbers)


def start(rank: int, world: int) -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)


def megatron(folder: Path) -> Iterator[Layout]:
    """``initialize_model_parallel``, which lists all groups on every rank."""
    package = types.ModuleType("megatron.core")
    package.__path__ = [str(folder / "megatron/core")]
    sys.modules["megatron.core"] = package
    sys.modules["megatron"] = types.ModuleType("megatron")
    state = importlib.import_module("megatron.core.parallel_state")
    names = {
        "TENSOR_MODEL_PARALLEL_GROUP": "tp",
        "CONTEXT_PARALLEL_GROUP": "cp",
        "DATA_PARALLEL_GROUP": "dp",
        "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
        "DATA_PARALLEL_GROUP_WITH_CP": "dp-cp",
        "GTP_WEIGHT_REMAT_GROUP": "gtp_remat",
        "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "cp-tp",
    }
    expert_names = {
        "EXPERT_MODEL_PARALLEL_GROUP": "ep",
        "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
        "EXPERT_DATA_PARALLEL_GROUP": "edp",
        "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
        "EXPERT_GTP_WEIGHT_REMAT_GROUP": "egtp_remat",
    }
    fresh = {name: value for name, value in vars(state).items() if name.startswith("_") and name.isupper()}
    while True:
        tp, cp, pp, etp = pick(1, 2, 4), pick(1, 1, 2, 3), pick(1, 2, 3), pick(1, 2, 4)
        remat, expert_remat, ep = pick(1, 1, 2), pick(1, 1, 2), pick(1, 2, 4)
        world, data_first = tp * cp * pp * remat * pick(1, 2, 3, 4, 6, 8), pick(0, 0, 1)
        groups: dict[str, list[list[int]]] = {}

        def create(ranks: list[int], *_: Any, group_desc: str = "", **__: Any) -> Any:
            groups.setdefault(group_desc, []).append(list(ranks))  # noqa: B023
            return object()

        vars(state).update({**fresh, "create_group": create, "_GLOBAL_PROCESS_GROUP_LIST": None})
        start(0, world)
        try:
            state.initialize_model_parallel(
                tp,
                pp,
                context_parallel_size=cp,
                expert_model_parallel_size=ep,
                expert_tensor_parallel_size=etp,
                gtp_remat_size=remat,
                expert_gtp_remat_size=expert_remat,
                order="tp-cp-ep-pp-dp" if data_first else "tp-cp-ep-dp-pp",
                create_gloo_process_groups=False,
            )
        except (RuntimeError, AssertionError):
            continue
        text = (
            f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --context-parallel-size {cp} "
            f"--expert-model-parallel-size {ep} --expert-tensor-parallel-size {etp}"
        )
        text += f" --tensor-parallel-num-weight-shards {tp * remat}" if remat > 1 else ""
        text += f" --expert-tensor-parallel-num-weight-shards {etp * expert_remat}" if expert_remat > 1 else ""
        text += " --use-tp-pp-dp-mapping" if data_first else ""
        for experts, of_layout in ((False, names), (True, expert_names)):
            rows_of = {short: groups[name] for name, short in of_layout.items() if name in groups}
            rows_of = {short: rows for short, rows in rows_of.items() if "remat" not in short or len(rows[0]) > 1}
            yield {"text": text, "world_size": world, "experts": experts, "groups": digests(rows_of)}


def hypercomm(folder: Path) -> Iterator[Layout]:
    """``HyperCommGrid`` with an offset and a view."""
    module = load("hyper_comm_grid", folder / "megatron/core/hyper_comm_grid.py")
    while True:
        names = ["tp", "cp", "dp", "pp", "x"]
        random.shuffle(names)
        names = names[: pick(1, 2, 3, 4, 5)]
        shape = [pick(1, 2, 3, 4) for _ in names]
        size, offset = math.prod(shape), pick(0, 0, 3, 8)
        os.environ["WORLD_SIZE"] = str(world := offset + size + pick(0, 0, 5))
        grid = module.HyperCommGrid(shape, names, rank_offset=offset)
        text = f"grid = HyperCommGrid({shape}, {names}, rank_offset={offset})"
        ordered = list(reversed(names))
        pairs = ["-".join(pair) for pair in itertools.combinations(ordered, 2)]
        groups = {key: grid.get_rank_enum(key.split("-")) for key in (*names, *pairs)}
        yield {"text": text, "world_size": world, "experts": False, "groups": digests(groups)}
        divisor = random.choice([number for number in range(1, size + 1) if size % number == 0])
        view = [divisor, size // divisor]
        grid.register_view("experts", view, ["ep", "expt_dp"])
        text += f"\ngrid.register_view('experts', {view}, ['ep', 'expt_dp'])"
        groups = {key: grid.get_rank_enum(key, view="experts") for key in ("ep", "expt_dp")}
        yield {"text": text, "world_size": world, "experts": True, "groups": digests(groups)}


def torchtitan(folder: Path, version: str) -> Iterator[Layout]:
    """``ParallelDims``; each rank has its own meshes, so all ranks are started one after the other."""
    replace("spmd_types", "torchtitan", "torchtitan.tools", "torchtitan.config", "torchtitan.config.configs")
    replace("torchtitan.distributed")
    replace("torchtitan.tools.logging", logger=logging.getLogger("torchtitan"))
    replace("torchtitan.tools.utils", device_type="cpu")
    module = load("torchtitan.distributed.parallel_dims", folder / "torchtitan/distributed/parallel_dims.py")
    old = "etp" in module.ParallelDims.__dataclass_fields__
    while True:
        sizes = {"dp_replicate": pick(1, 2), "dp_shard": pick(1, 2, 3, 4), "cp": pick(1, 2), "tp": pick(1, 2, 4)}
        sizes |= {"pp": pick(1, 2), "ep": pick(1, 2, 4, 8)}
        world = sizes["dp_replicate"] * sizes["dp_shard"] * sizes["cp"] * sizes["tp"] * sizes["pp"]
        if old:
            sizes["etp"] = random.choice([1, sizes["tp"]])
        if not 2 <= world <= 48:
            continue
        ranks_of: dict[str, set[tuple[int, ...]]] = {}
        try:
            for rank in range(world):
                start(rank, world)
                dims = module.ParallelDims(**sizes, world_size=world)
                dims.build_mesh()
                meshes = getattr(dims, "_single_axis_meshes", None) or dims._meshes
                for name, mesh in meshes.items():
                    ranks_of.setdefault(name, set()).add(tuple(mesh.mesh.tolist()))
        except (ValueError, AssertionError):
            continue
        flags = {
            "dp_replicate": "data_parallel_replicate",
            "dp_shard": "data_parallel_shard",
            "cp": "context_parallel",
            "tp": "tensor_parallel",
            "pp": "pipeline_parallel",
            "ep": "expert_parallel",
            "etp": "expert_tensor_parallel",
        }
        if random.random() < 0.5:
            lines = (f"{flags[axis]}_degree = {size}" for axis, size in sizes.items())
            text = "\n".join(["[model]", 'name = "llama3"', "[parallelism]", *lines])
        else:
            text = " ".join(f"--parallelism.{flags[axis]}_degree {size}" for axis, size in sizes.items())
        rows = {name: sorted(map(list, groups)) for name, groups in ranks_of.items()}
        dense = {"pp": "pp", "dp_replicate": "dp_replicate", "cp": "cp", "tp": "tp", "batch": "dp_replicate-dp_shard"}
        dense |= {"fsdp": "dp_shard-cp", "loss": "dp_replicate-dp_shard-cp"}
        dense_groups = {ours: rows[theirs] for theirs, ours in dense.items() if theirs in rows}
        yield {"text": text, "world_size": world, "experts": False, "groups": digests(dense_groups)}
        sparse = {name: rows[name] for name in ("pp", "dp_replicate", "efsdp", "ep", "etp") if name in rows}
        yield {"text": text, "world_size": world, "experts": True, "groups": digests(sparse)}


def deepspeed(folder: Path) -> Iterator[Layout]:
    """``ProcessTopology`` and the tables of expert parallelism."""
    replace("deepspeed", "deepspeed.comm", "deepspeed.utils", "deepspeed.accelerator")
    replace("deepspeed.utils.bwc", "deepspeed.utils.exceptions", "deepspeed.utils.torch", "deepspeed.utils.logging")
    sys.modules["deepspeed.utils"].log_dist = lambda *_: None  # type: ignore[attr-defined]
    topology = load("topology", folder / "deepspeed/runtime/pipe/topology.py")
    groups_of = load("groups", folder / "deepspeed/utils/groups.py")
    folding = load("folding", folder / "deepspeed/module_inject/auto_ep_folding.py")
    while True:
        names = ["pipe", "data", "model", "seq"]
        random.shuffle(names)
        names = names[: pick(1, 2, 3, 4)]
        dims = [pick(2, 3, 4) for _ in names]
        ours = {"pipe": "pp", "data": "dp", "model": "tp", "seq": "seq"}
        built = topology.ProcessTopology(names, dims)
        groups = {ours[name]: built.get_axis_comm_lists(name) for name in names}
        text = f"ProcessTopology(axes={names}, dims={dims})"
        yield {"text": text, "world_size": built.world_size(), "experts": False, "groups": digests(groups)}
        pp, mp, dp = pick(2, 3), pick(2, 3, 4), pick(2, 3, 4)
        built = topology.PipeModelDataParallelTopology(num_pp=pp, num_mp=mp, num_dp=dp)
        groups = {ours[name]: built.get_axis_comm_lists(name) for name in ("pipe", "data", "model")}
        text = f"PipeModelDataParallelTopology(num_pp={pp}, num_mp={mp}, num_dp={dp})"
        yield {"text": text, "world_size": built.world_size(), "experts": False, "groups": digests(groups)}
        tp, ep = pick(1, 2, 4), pick(2, 4, 8)
        world = tp * ep * pick(1, 2, 3)
        spec = folding.build_folding_spec(world_size=world, pp_size=1, tp_size=tp, ep_size=ep)
        tables = folding.expected_folding_group_tables(spec)
        config: dict[str, Any] = {"train_batch_size": 64, "zero_optimization": {"stage": 1}}
        config["expert_parallel"] = {"enabled": True, "autoep_size": ep, "preset_model": "mixtral"}
        config["tensor_parallel"] = {"autotp_size": tp}
        groups = {"dp": tables.dense_dp_groups} | ({"tp": tables.tp_groups} if tp > 1 else {})
        text = json.dumps(config)
        yield {"text": text, "world_size": world, "experts": False, "groups": digests(groups)}
        groups = {"ep": tables.ep_groups, "edp": tables.edp_groups}
        yield {"text": text, "world_size": world, "experts": True, "groups": digests(groups)}
        config["use_data_before_expert_parallelism"] = True
        config["tensor_parallel"] = {"autotp_size": 1}
        lists = groups_of._get_expert_parallel_ranks(world, 1, ep, 1, use_data_before_expert_parallel_=True)
        groups = dict(zip(("ep", "edp"), lists, strict=True))
        yield {"text": json.dumps(config), "world_size": world, "experts": True, "groups": digests(groups)}


def torch(folder: Path) -> Iterator[Layout]:
    """``init_device_mesh``, slices, ``_flatten``, and reprs: all ranks are started one after the other."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    while True:
        names = tuple(random.sample(["pp", "dp", "cp", "tp", "ep"], pick(1, 2, 3, 4)))
        shape = tuple(pick(1, 2, 3, 4) for _ in names)
        world = math.prod(shape)
        if not 2 <= world <= 48:
            continue
        dims = tuple(name for name in names if random.random() < 0.6) or names
        ranks_of: dict[str, set[tuple[int, ...]]] = {}
        text_of_mesh = ""
        for rank in range(world):
            start(rank, world)
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            for name in names:
                ranks_of.setdefault(name, set()).add(tuple(mesh[name].mesh.tolist()))
            if len(dims) > 1:
                ranks_of.setdefault("flat", set()).add(tuple(mesh[dims]._flatten("flat").mesh.tolist()))
            text_of_mesh = repr(mesh)
        text = f'init_device_mesh("cuda", {shape}, mesh_dim_names={names})'
        groups = {name: sorted(map(list, rows)) for name, rows in ranks_of.items()}
        yield {
            "text": f'{text}[{", ".join(map(repr, dims))}]._flatten("flat")' if len(dims) > 1 else text,
            "world_size": world,
            "experts": False,
            "groups": digests(groups),
        }
        groups.pop("flat", None)
        yield {"text": text_of_mesh, "world_size": world, "experts": False, "groups": digests(groups)}
        # A slice or a flattened axis, as rank 0 shows it
        start(0, world)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        part = mesh[dims]._flatten("flat") if len(dims) > 1 else mesh[dims]
        name = part.mesh_dim_names[0]
        if part.size() > 1 and sum(size > 1 for size in shape) < 4:
            groups = {name: [part.mesh.tolist()]}
            yield {"text": repr(part), "world_size": world, "experts": False, "groups": digests(groups)}
        ranks = random.sample(range(world), world)
        rows = [ranks[: world // 2], ranks[world // 2 : world // 2 * 2]]
        if world > 3:
            mesh = DeviceMesh("cpu", rows, mesh_dim_names=("a", "b"), _init_backend=False)
            text = f'DeviceMesh("cuda", {rows}, mesh_dim_names=("a", "b"))'
            groups = {"b": rows, "a": [list(pair) for pair in zip(*rows, strict=True)]}
            assert mesh.mesh.tolist() == rows
            yield {"text": text, "world_size": world, "experts": False, "groups": digests(groups)}


def jax(folder: Path) -> Iterator[Layout]:
    """``Mesh`` and both functions that create arrays of devices, on devices of the CPU and on stand-ins for GPUs."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=48"
    import jax
    import numpy as np
    from jax.experimental import mesh_utils
    from jax.sharding import Mesh

    class Gpu:
        platform = device_kind = "gpu"

        def __init__(self, number: int, process: int) -> None:
            self.id, self.process_index = number, process

        def __lt__(self, other: Gpu) -> bool:
            return self.id < other.id

    def lines(array: Any, names: list[str]) -> dict[str, str]:
        ids = np.vectorize(lambda device: device.id)(array)
        return digests(
            {name: np.moveaxis(ids, axis, -1).reshape(-1, ids.shape[axis]).tolist() for axis, name in enumerate(names)}
        )

    while True:
        count = pick(1, 2, 3)
        names = random.sample(["data", "fsdp", "model", "x"], count)
        inner, outer = [pick(1, 2, 3, 4) for _ in names], [pick(1, 2, 3) for _ in names]
        per, granules = int(np.prod(inner)), int(np.prod(outer))
        gpus: Any = [Gpu(number, number // per) for number in range(per * granules)]
        array = mesh_utils.create_hybrid_device_mesh(inner, outer, gpus, process_is_granule=True)
        text = f"mesh_utils.create_hybrid_device_mesh({inner}, dcn_mesh_shape={tuple(outer)}, process_is_granule=True)"
        world = per * granules
        axes = [f"axis{number}" for number in range(count)]
        yield {"text": text, "world_size": world, "experts": False, "groups": lines(array, axes)}
        text = f"devices = {text}\nmesh = Mesh(devices, axis_names={names})"
        yield {"text": text, "world_size": world, "experts": False, "groups": lines(array, names)}
        array = mesh_utils.create_device_mesh(inner, gpus[:per])
        text = f"Mesh(mesh_utils.create_device_mesh({tuple(inner)}), {names})"
        yield {"text": text, "world_size": per, "experts": False, "groups": lines(array, names)}
        mesh = Mesh(np.array(jax.devices()[:per]).reshape(inner), names)
        for text in (repr(mesh), str(mesh), repr(mesh.abstract_mesh)):
            yield {"text": text, "world_size": per, "experts": False, "groups": lines(mesh.devices, names)}


def nanotron(folder: Path) -> Iterator[Layout]:
    """``ParallelContext``."""
    replace("nanotron", "nanotron.distributed")
    module = load("context", folder / "src/nanotron/parallel/context.py")
    context = object.__new__(module.ParallelContext)
    module.dist.barrier = lambda: None
    module.dist.get_rank = lambda group=None: 0
    os.environ.update(LOCAL_RANK="0", RANK="0")
    while True:
        sizes = {"dp": pick(1, 2, 3, 4, 6), "pp": pick(1, 2, 3), "tp": pick(1, 2, 4, 8)}
        sizes |= {"expert_parallel_size": pick(1, 1, 2), "context_parallel_size": pick(1, 2)}
        world = math.prod(sizes.values())
        calls: list[list[list[int]]] = []

        def record(groups: Any) -> None:
            calls.append([[int(rank) for rank in group] for group in groups])  # noqa: B023

        context.__dict__.update(
            world_size=world,
            local_world_size=world,
            create_new_group=record,
            tensor_parallel_size=sizes["tp"],
            pipeline_parallel_size=sizes["pp"],
            data_parallel_size=sizes["dp"],
            context_parallel_size=sizes["context_parallel_size"],
            expert_parallel_size=sizes["expert_parallel_size"],
        )
        context._init_parallel_groups()
        names = ("local", "tp", "cp", "dp", "pp", "ep")
        groups = {name: rows for name, rows in zip(names, calls, strict=False) if name != "local"}
        lines = (f"  {name}: {size}" for name, size in sizes.items())
        text = "\n".join(["general:", "  project: debug", "parallelism:", *lines, "  pp_engine: 1f1b"])
        yield {"text": text, "world_size": world, "experts": False, "groups": digests(groups)}


def main() -> None:
    name, folder, source = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    random.seed(20)
    recorder = {
        "megatron": megatron,
        "hypercomm": hypercomm,
        "deepspeed": deepspeed,
        "torch": torch,
        "jax": jax,
        "nanotron": nanotron,
    }.get(name)
    layouts = recorder(folder) if recorder is not None else torchtitan(folder, name)
    recorded: dict[str, Layout] = {}
    for layout in itertools.islice(layouts, 20_000):
        recorded[json.dumps([layout["text"], layout["experts"]])] = layout
        if len(recorded) == COUNT:
            break
    path = Path(__file__).parent / "recorded_layouts" / f"{name}.json"
    rows = ",\n".join(json.dumps(layout) for layout in recorded.values())
    path.write_text(f'{{"source": {json.dumps(source)}, "layouts": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
