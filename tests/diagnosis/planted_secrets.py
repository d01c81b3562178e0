"""Texts of every format that is read, with secrets planted in them: names of each kind, and what must not remain."""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """A text with a secret."""

    kind: str  # what the secret is: "host", "user", "serial", ...
    form: str  # the format of the text
    text: str
    secret: str


_UUID = "0a1b2c3d-1111-2222-3333-44445555cafe"
_SMI_XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
    <driver_version>570.86.10</driver_version>
    <gpu id="00000000:18:00.0">
        <product_name>NVIDIA H100 80GB HBM3</product_name>
        <serial>1650577003444</serial>
        <uuid>GPU-0a1b2c3d-1111-2222-3333-44445555cafe</uuid>
        <processes><process_info><pid>7</pid><process_name>/home/janeway/venv/bin/python</process_name></process_info></processes>
    </gpu>
</nvidia_smi_log>"""
_SMI_TEXT = """==============NVSMI LOG==============
Driver Version                            : 570.86.10
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Serial Number                         : 1650577003555
    GPU UUID                              : GPU-0a1b2c3d-1111-2222-3333-44445555beef
    Process ID                            : 7
        Name                              : /scratch/tuvok/venv/bin/python"""
_SMI_CSV = """index, name, serial, uuid
0, NVIDIA H100 80GB HBM3, 1650577003666, GPU-0a1b2c3d-1111-2222-3333-44445555d00d
1, NVIDIA H100 80GB HBM3, 1650577003777, GPU-0a1b2c3d-1111-2222-3333-44445555feed"""
_RAS = """NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          1            1          2        2

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4711 on node enterprise managing GPU 0"""
_RAS_JSON = """{"nccl_version": "2.28.9", "communicators": [{"hash": "0x1234", "ranks": [
  {"rank": 0, "host": "excelsior", "pid": 7, "cuda_dev": 0, "status": {"init_state": 0}}]}]}"""
_FLIGHT = """{"version": "2.5", "hostname": "defiant", "entries": [{"record_id": 1, "pg_id": 0, "process_group":
 ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "scheduled",
 "input_sizes": [[4]], "output_sizes": [[4]], "frames": [{"name": "train",
 "filename": "/gpfs/u/kira/train.py", "line": 7}]}]}"""
_YAML = """compute_environment: LOCAL_MACHINE
main_process_ip: 10.77.3.40
hosts:
  - prometheus
  - reliant
master_addr: grissom
num_machines: 2
tensor_parallel_size: 8
db_password: correct horse battery staple
wandb_api_key: 77aa45c01234567890abcdef77aa45c012345678"""
_K8S = """NAME                              READY   STATUS    RESTARTS   AGE   IP            NODE
trainer-neelix-worker-0           1/1     Running   0          5m    10.77.3.41    stargazer
[pod/trainer-neelix-worker-0/pytorch] NCCL version 2.28.9+cuda13.0
Error from server: pod/launcher-seska-7d9f8c6b5d-xkz2p not found"""
_NCCL_TESTS = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid 6001 on pegasus device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 6002 on odyssey device  0 [0000:18:00] NVIDIA H100 80GB HBM3"""
_SQUEUE = """JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)
   12      main train chakotay R 1:00 2 valiant,intrepid"""
_TORCHRUN = """============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : equinox
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 4711)
============================================================"""

PLANTED = (
    # hosts
    Planted("host with digits", "NCCL log", "okapi12:99:120 [3] NCCL WARN Call to connect failed", "okapi12"),
    Planted(
        "host",
        "NCCL log",
        "kirk:99:120 [3] NCCL WARN Call to connect to spock<41301> failed : Connection refused",
        "kirk",
    ),
    Planted(
        "host",
        "NCCL log",
        "node1:99:120 [3] NCCL WARN Call to connect to spock<41301> failed : Connection refused",
        "spock",
    ),
    Planted("host like a device", "NCCL log", "gpu0187:99:120 [3] NCCL INFO NCCL version 2.28.9+cuda13.0", "gpu0187"),
    Planted("FQDN", "NCCL log", "ncc1701.fleet.lab-x.de:9:12 [3] NCCL INFO NCCL version 2.28.9+cuda13.0", "fleet"),
    Planted("host", "variables", "SLURM_NODELIST=kirk,spock", "kirk"),
    Planted("host", "variables", "SLURM_NODELIST=kirk,spock", "spock"),
    Planted("node list", "variables", "SLURM_JOB_NODELIST=quagga[012-015,020], and quagga013 died", "quagga"),
    Planted("node list", "variables", "SLURM_STEP_NODELIST=deep-[1-4],bones,scotty", "bones"),
    Planted("host", "variables", "HOSTNAME=uhura", "uhura"),
    Planted("host", "variables", "export MASTER_ADDR=sulu MASTER_PORT=29500", "sulu"),
    Planted("host", "scontrol", "JobId=12 NodeList=chekov,sarek BatchHost=chekov NumNodes=2", "sarek"),
    Planted("host", "squeue", _SQUEUE, "valiant"),
    Planted("host", "squeue", _SQUEUE, "intrepid"),
    Planted("host", "config", "host: voyager", "voyager"),
    Planted("host", "config", 'config {"host": "voyager", "port": 29500}', "voyager"),
    Planted("host", "YAML", _YAML, "prometheus"),
    Planted("host", "YAML", _YAML, "reliant"),
    Planted("host", "YAML", _YAML, "grissom"),
    Planted("host", "JSON", 'config {"nodes": ["bozeman", "saratoga"]}', "saratoga"),
    Planted(
        "host",
        "mpirun",
        "mpirun noticed that process rank 1 with PID 4711 on node warbird exited on signal 9 (Killed).",
        "warbird",
    ),
    Planted("host", "mpirun", "mpirun -H defiant,hood:8 python train.py", "defiant"),
    Planted("host", "mpirun", "tholian slots=8\n", "tholian"),
    Planted("host", "mpirun", "  Local host:   lexington\n  Local PID:    41\n", "lexington"),
    Planted("host", "mpiexec", "=   PID 4711 RUNNING AT constellation\n=   EXIT CODE: 9", "constellation"),
    Planted("host", "ssh", "ssh: connect to host starbase port 22: Connection refused", "starbase"),
    Planted("host", "ssh", "ssh: Could not resolve hostname deltavega: Name or service not known", "deltavega"),
    Planted("host", "ssh", "ferengi: Permission denied (publickey).", "ferengi"),
    Planted("host", "srun", "srun: error: romulan: tasks 0-3: Exited with exit code 1", "romulan"),
    Planted(
        "host",
        "srun",
        "slurmstepd: error: *** STEP 9.0 ON vulcan CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
        "vulcan",
    ),
    Planted("host", "srun", "start failed on andoria: CXI alloc failed on cxi0: request exceeds ACs limits", "andoria"),
    Planted("host", "nccl-tests", _NCCL_TESTS, "pegasus"),
    Planted("host", "nccl-tests", _NCCL_TESTS, "odyssey"),
    Planted("host", "torchrun", _TORCHRUN, "equinox"),
    Planted(
        "host", "torchrun", "The IPv6 network addresses of (borg, 29500) cannot be retrieved (gai error: -2)", "borg"
    ),
    Planted(
        "host",
        "torchrun",
        "[W1] The client socket has failed to connect to [cardassia]:29500 (errno: 110 - Connection timed out).",
        "cardassia",
    ),
    Planted("host", "torchrun", "torchrun --rdzv-endpoint=bajor:29500 --nproc-per-node 8 train.py", "bajor"),
    Planted("host", "torchrun", "torchrun --master_addr klingon --nproc-per-node 8 train.py", "klingon"),
    Planted("host", "DeepSpeed", "[INFO] World Info Dict: {'trill': [0, 1], 'betazed': [0, 1]}", "betazed"),
    Planted("host", "RAS text", _RAS, "enterprise"),
    Planted("host", "RAS JSON", _RAS_JSON, "excelsior"),
    Planted("host", "flight recorder", _FLIGHT, "defiant"),
    Planted(
        "host",
        "dmesg",
        "Nov 29 01:02:03 nautilus kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.",
        "nautilus",
    ),
    Planted(
        "host", "topo -m", "        GPU0 GPU1 NIC0\nGPU0 X NV18 PIX\nGPU1 NV18 X SYS\nhost: discovery\n", "discovery"
    ),
    Planted("host", "ray", "ray start --address=risa:6379 --num-gpus 8", "risa"),
    Planted("host", "kubernetes", _K8S, "stargazer"),
    Planted("pod", "kubernetes", _K8S, "neelix"),
    Planted("pod", "kubernetes", _K8S, "seska"),
    Planted("pod", "kubernetes", 'Pod "trainer-quark-0" is terminating', "quark"),
    Planted("pod", "ray", "(RayWorkerWrapper pid=41, ip=10.77.3.42) on pod raycluster-odo-worker-gpu-x2f7k", "odo"),
    # users and paths
    Planted("home", "nvidia-smi XML", _SMI_XML, "janeway"),
    Planted("home", "trace", 'File "/home/crusher/train.py", line 7, in main', "crusher"),
    Planted("home", "trace", 'File "/global/homes/t/troi/train.py", line 7, in main', "troi"),
    Planted("scratch", "trace", 'File "/scratch/riker/train.py", line 7, in main', "riker"),
    Planted("scratch", "trace", 'File "/pscratch/sd/w/worf/train.py", line 7, in main', "worf"),
    Planted("scratch", "nvidia-smi text", _SMI_TEXT, "tuvok"),
    Planted("scratch", "trace", "saved /lustre/astro/picard, and picard left", "picard"),
    Planted("GPFS", "trace", 'File "/gpfs/u/laforge/train.py", line 7, in main', "laforge"),
    Planted("GPFS", "flight recorder", _FLIGHT, "kira"),
    Planted("user", "squeue", _SQUEUE, "chakotay"),
    Planted("user", "ssh", "ssh mallory@buffalo.intern.lab-x.de failed", "mallory"),
    Planted("user", "variables", "USER=trudy LOGNAME=trudy", "trudy"),
    # hardware
    Planted("serial", "nvidia-smi text", _SMI_TEXT, "1650577003555"),
    Planted("serial", "nvidia-smi XML", _SMI_XML, "1650577003444"),
    Planted("serial", "nvidia-smi CSV", _SMI_CSV, "1650577003666"),
    Planted("serial", "nvidia-smi CSV", _SMI_CSV, "1650577003777"),
    Planted("UUID", "nvidia-smi text", _SMI_TEXT, "44445555beef"),
    Planted("MAC", "ip link", "link/ether 00:1b:44:77:3a:b7 brd ff:ff:ff:ff:ff:ff", "00:1b:44:77:3a:b7"),
    Planted("GUID", "ibstat", "Node GUID: 0x0002c97700123456", "c97700"),
    Planted("IPv4", "NCCL log", "a1:9:12 [3] NCCL INFO NET/Socket : Using [0]eth0:10.77.3.9<0>", "10.77.3.9"),
    Planted("IPv4", "ray", "(RayWorkerWrapper pid=41, ip=10.77.3.42) NCCL version 2.28.9+cuda13.0", "10.77.3.42"),
    Planted(
        "IPv6",
        "NCCL log",
        "a1:9:12 [3] NCCL INFO NET/Socket : Using [0]ib0:fe80::77e:48ff:fe00:1122%ib0<0>",
        "fe80::77e",
    ),
    # secrets
    Planted("password", "command", "mysql -u bob -pHunter2x db", "hunter2x"),
    Planted("password", "command", "mysql -pswordfish db", "swordfish"),
    Planted("password", "command", "docker login -u bob -p letmein registry.lab-x.de", "letmein"),
    Planted("password", "command", "sshpass -p opensesame ssh node1 hostname", "opensesame"),
    Planted("password", "variables", 'PASSWORD="correct horsebattery"', "horsebattery"),
    Planted("password", "config", "password: correct horse battery staple", "staple"),
    Planted("password", "YAML", _YAML, "battery"),
    Planted("password", "URL", "git clone https://victor:hunter2@git.lab-x.de/x.git", "hunter2"),
    Planted("token", "URL", "curl 'https://lab-x.de/x?private_token=abcdeftok'", "abcdeftok"),
    Planted("token", "variables", "export HF_TOKEN=hf_QWERTYuiopASDFghjklZXCV", "hf_qwerty"),
    Planted("token", "YAML", _YAML, "77aa45c0"),
    Planted("token", "variables", "MY_PRIVATE_PAT=plainword", "plainword"),
)
