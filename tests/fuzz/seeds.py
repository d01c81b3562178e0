"""Good inputs, from which the fuzzer makes bad ones: texts of every format, and files that meshlab writes."""

from __future__ import annotations

import functools
import gzip
import json
import os
from pathlib import Path

import meshlab as ml
from meshlab.frames._files import frame_to_json
from meshlab.runs._journal import Journal
from tests.diagnosis.questions import QUESTIONS
from tests.diagnosis.rule_texts import TEXTS
from tests.diagnosis.tool_texts import TOOL_TEXTS

__all__ = [
    "CONFIGS",
    "HARDWARE",
    "JSONS",
    "LOGS",
    "MESHES",
    "SLURM",
    "case_files",
    "own_files",
    "records",
    "saved_run",
    "tests_log",
    "texts",
]

LARGEST = 200_000
"""Larger files of MESHLAB_CASES are left out: their mutations take long, and find what smaller ones find too."""

MESHES = (
    "dp=2, tp=4",
    "pp=2 dp=-1 tp=8",
    "DeviceMesh('pp=2, tp=4')",
    "DeviceMesh({'dp': 2, 'tp': 4}, world_size=8)",
    "vllm serve model --tensor-parallel-size 4 --pipeline-parallel-size 2 --enable-expert-parallel -dcp 2",
    "python -m sglang.launch_server --tp 8 --dp 2 --ep-size 4",
    "torchrun --nnodes 2 --nproc-per-node 8 train.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2",
    "TP=8; PP=${PP:-2}\ntorchrun pretrain.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP",
    'init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))',
    'mesh_3d = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))\nmesh_3d["dp", "tp"]._flatten()',
    'DeviceMesh("cuda", torch.arange(8).reshape(2, 4), mesh_dim_names=("dp", "tp"))',
    'Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))',
    'jax.make_mesh((2, 4), ("data", "model"))',
    'create_hybrid_device_mesh((1, 4), (2, 1), jax.devices())\nMesh(devices, ("data", "model"))',
    "RankGenerator(tp=2, ep=1, dp=4, pp=2, cp=1, order='tp-cp-ep-dp-pp', rank_offset=0)",
    "PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)",
    "ProcessTopology(axes=['pipe', 'data'], dims=[2, 4])",
)

CONFIGS = (
    "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\npipeline_parallel_degree = 2\n",
    "[parallelism]\ntensor_parallel_degree = 2 # degree\nexpert_parallel_degree = 4\nenable = true\nat = 1979-05-27\n",
    "parallelism:\n  dp: 2\n  tp: 4\n  pp: 1\n  expert_parallel_size: 2\n",
    "model:\n  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: 2\ntrainer:\n  num_nodes: 2\n",
    "MODEL_ARGS:\n  --tensor-model-parallel-size: 2\n  --pipeline-model-parallel-size: &p 2\nother: *p\n",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.nnodes=1 trainer.n_gpus_per_node=8",
    json.dumps({"train_batch_size": 32, "zero_optimization": {"stage": 3}, "tensor_parallel": {"autotp_size": 4}}),
    json.dumps({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}),
    json.dumps({"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "distributed": {"tp_size": 8, "dp_size": 2}}),
)

HARDWARE = (
    "GPU0  X  NV18\nGPU1  NV18  X",
    "        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
    "GPU0     X      NV18    PIX     0-55,112-167    0               N/A\n"
    "GPU1    NV18     X      SYS     56-111  1               N/A\nNIC0    PIX     SYS      X \n\n"
    "Legend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\n"
    "NIC Legend:\n\n  NIC0: mlx5_0\n",
    '<system version="1">\n  <cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="GenuineIntel" familyid="6" '
    'modelid="143">\n    <pci busid="0000:18:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">\n'
    '      <pci busid="0000:1b:00.0" class="0x030200" vendor="0x10de" device="0x2330" link_speed="32.0 GT/s PCIe" '
    'link_width="16">\n        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:2a:00.0" count="18" '
    'tclass="0x068000"/></gpu>\n      </pci>\n      <nic><net name="mlx5_0" dev="0" speed="400000" port="1" '
    'guid="0x4c2d" maxconn="131072" gdr="1"/></nic>\n    </pci>\n  </cpu>\n</system>',
    '<graphs version="1">\n  <graph id="0" pattern="4" speedintra="24" speedinter="48" typeintra="NVL" typeinter="PXB" '
    'crossnic="0" nchannels="1">\n    <channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/><net dev="0"/></channel>\n'
    "  </graph>\n</graphs>",
    "n1:7:9 [0] NCCL INFO === System : maxBw 48.0 totalBw 360.0 ===\nn1:7:9 [0] NCCL INFO CPU/0-0 (1/1/2)\n"
    "n1:7:9 [0] NCCL INFO + PCI[24.0] - PCI/0-18000 (1000c0301000100e)\nn1:7:9 [0] NCCL INFO               + PCI[24.0] "
    "- GPU/0-1b000 (0)\nn1:7:9 [0] NCCL INFO                             + NVL[360.0] - NVS/0\n"
    "n1:7:9 [0] NCCL INFO ==========================================",
    "GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n",
)

SLURM = (
    "SwitchName=s1 Nodes=n[1-4]\nSwitchName=s2 Nodes=n[5-8] LinkSpeed=100\nSwitchName=top Switches=s[1-2]\n",
    "BlockName=b1 Nodes=n[001-018]\nBlockName=b2 Nodes=n[019-036]\nBlockSizes=18,36\n",
    "- topology: main\n  cluster_default: true\n  tree:\n    switches:\n      - switch: top\n        children: s[1-2]\n"
    "      - switch: s1\n        nodes: n[1-2]\n      - switch: s2\n        nodes: n[3-4]\n",
    "- topology: racks\n  block:\n    block_sizes: [4, 8]\n    blocks:\n      - block: b1\n        nodes: n[1-4]\n",
)

JSONS = (
    # nccl-tests -J
    json.dumps(
        {
            "version": 1,
            "nccl_version": 22809,
            "args": "all_reduce_perf -b 8 -e 16 -g 2 -J out.json",
            "config": {"n_threads": 1, "n_gpus": 2, "minimum_bytes": 8, "maximum_bytes": 16, "step_type": "factor"},
            "devices": [{"group": 0, "rank": 0, "pid": 7, "hostname": "n1", "device": 0, "device_info": "NVIDIA H200"}],
            "results": [
                {
                    "size": 8,
                    "count": 2,
                    "type": "float",
                    "redop": "sum",
                    "root": "-1",
                    "out_of_place": {"time": 9.5, "alg_bw": 0.0, "bus_bw": 0.0, "nwrong": "0"},
                    "in_place": {"time": 9.25, "alg_bw": 0.0, "bus_bw": 0.0, "nwrong": 0},
                    "in_place_per_iter": {"times_us": [9.0, 9.5], "min_us": 9.0, "max_us": 9.5, "p99_us": 9.5},
                }
            ],
            "out_of_bounds": {"count": 0, "okay": True},
            "average_bus_bandwidth": {"bandwidth": 0.0, "okay": True},
            "errors": [],
        },
        indent=1,
    ),
    # the flight recorder of PyTorch
    json.dumps(
        {
            "version": "2.10",
            "rank": 1,
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
            "pg_status": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}},
            "entries": [
                {
                    "record_id": 2,
                    "pg_id": 0,
                    "process_group": ["0", "default_pg"],
                    "collective_seq_id": 3,
                    "p2p_seq_id": 0,
                    "profiling_name": "nccl:send 0->1",
                    "input_sizes": [[4, 2]],
                    "output_sizes": [[4, 2]],
                    "input_dtypes": ["Float"],
                    "state": "started",
                    "is_p2p": False,
                    "retired": False,
                    "frames": [{"name": "step", "filename": "train.py", "line": 9}],
                }
            ],
        }
    ),
    # the RAS subsystem of NCCL
    json.dumps(
        {
            "nccl_version": "2.28.9",
            "cuda_runtime_version": 13000,
            "cuda_driver_version": 13000,
            "communicators_count": 1,
            "ras": {"collection_time_sec": 0.1, "timeouts_count": 0},
            "communicators": [
                {
                    "hash": "0xab",
                    "size": 2,
                    "missing_ranks_count": 1,
                    "ranks": [
                        {
                            "rank": 0,
                            "host": "n1",
                            "pid": 7,
                            "cuda_dev": 0,
                            "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                            "collective_counts": {"AllReduce": 3},
                        }
                    ],
                    "missing_ranks": [{"rank": 1, "host": "n1", "pid": 8, "status": {"considered_dead": True}}],
                }
            ],
        },
        indent=1,
    ),
)


@functools.cache
def tests_log() -> str:
    """A log of nccl-tests, as the writer of meshlab prints it."""
    results = ml.example()
    return ml.nccl_tests.write(results[results["collective"].eq("all_reduce") & results["mode"].eq("graph")])


LOGS = (
    *(question.text for question in QUESTIONS),
    *TEXTS.values(),
    *TOOL_TEXTS,
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error",
    "[ 12.3] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "srun: error: node7: task 3: Killed\nslurmstepd: error: Detected 1 oom_kill event in StepId=12.0",
    "0: nranks 8\n[1,3]<stdout>:nodeA:12:34 [0] NCCL INFO Connected all rings",
    "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n\t\tBase lid: 7\n",
)


@functools.cache
def case_files() -> tuple[bytes, ...]:
    """Return the files of MESHLAB_CASES, decompressed. Empty without it."""
    folder = os.environ.get("MESHLAB_CASES", "")
    found = []
    for path in sorted(Path(folder).rglob("*")) if folder else ():
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            if len(data) <= LARGEST:
                found.append(data)
    return tuple(found)


@functools.cache
def texts() -> tuple[bytes, ...]:
    """Return every text of every format."""
    own = (tests_log(), *MESHES, *CONFIGS, *HARDWARE, *SLURM, *JSONS, *LOGS)
    return (*(text.encode() for text in own), *case_files())


@functools.cache
def saved_run(folder: Path) -> Path:
    """Save a run, a tuning, a calibration and a report once, into one folder."""
    with ml.launch(2, backend="threads") as engines:
        run = ml.bench(engines, "tp=2", ["all_reduce", "broadcast"], sizes="1K, 4K", sampling="quick")
        run.wait()
    run.calibration = ml.calibrate(ml.example(), mode="graph")
    path = run.save(folder / "run")
    journal = Journal(folder / "steps")
    rows, parts = run.since(0, 0)
    for number, row in enumerate(rows):
        facts = {"state": "running", "error": None, "n_done": number, "elapsed_s": 0.5 * number, "log": ["a line"]}
        journal.append([row], parts[number : number + 1], facts)
    journal.close()
    ml.Report(run).save(folder / "report.html")
    ml.example("tuning").save(folder / "tuning.json")
    (folder / "frame.json").write_text(frame_to_json(run.results))
    return path


@functools.cache
def records(folder: Path) -> tuple[str, ...]:
    """Return the records of a journal with the rows of the saved run, without their checksums."""
    saved_run(folder)
    return tuple(line.partition(" ")[2] for line in (folder / "steps").read_text().splitlines())


def own_files(folder: Path) -> tuple[bytes, ...]:
    """Return the files that meshlab itself writes."""
    run = saved_run(folder)
    return tuple(path.read_bytes() for path in (*run.iterdir(), *folder.glob("*.*")) if path.is_file())
