"""The ten questions that are asked most often, each with a text that people paste. docs/questions.md shows them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["QUESTIONS", "Question"]


class Question(NamedTuple):
    """A question and its text.

    Parameters
    ----------
    question : str
        The question, as people ask it.
    text : str
        What they paste.
    code : str
        Code of the finding that answers it.
    """

    question: str
    text: str
    code: str


QUESTIONS = (
    Question(
        "My training stopped with a watchdog timeout. Which rank is to blame?",
        """\
[rank2]:[E1103 09:14:31.204518301 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=8112, OpType=ALLREDUCE, NumelIn=26214400, NumelOut=26214400, Timeout(ms)=600000) ran for 600022 \
milliseconds before timing out.
[rank2]:[E1103 09:14:31.205001127 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 2] Exception (either \
an error or timeout) detected by watchdog at work: 8112, last enqueued NCCL work: 8113, last completed NCCL work: 8111.
""",
        "nccl-timeout",
    ),
    Question(
        "I have the lines of all ranks. Which one is missing?",
        """\
[rank0]:[E1103 09:14:31.204518301 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=8112, OpType=ALLREDUCE, NumelIn=26214400, NumelOut=26214400, Timeout(ms)=600000) ran for 600022 \
milliseconds before timing out.
[rank0]:[E1103 09:14:31.301944820 ProcessGroupNCCL.cpp:632] \
\t - [2] Timeout at collective: ALLREDUCE, #8112
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [3] finished collective #8111, but didn't join collective #8112 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #8112 started ranks:
\t     [0, 1, 2] started ALLREDUCE
\t   #8111 finished ranks:
\t     [3] finished ALLREDUCE
""",
        "rank-missing",
    ),
    Question(
        "Two hosts hang while NCCL starts. What is wrong?",
        """\
gpu-a:3120:3120 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>
gpu-a:3120:3120 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
gpu-a:3120:3140 [0] NCCL INFO comm 0x55d0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9f2c - Init START
gpu-b:2871:2871 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>
gpu-b:2871:2871 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>
gpu-b:2871:2890 [0] NCCL INFO comm 0x5617 rank 8 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x9f2c - Init START
""",
        "wrong-interface-loopback",
    ),
    Question(
        "It works with one GPU, and fails in a container with several. Why?",
        """\
trainer-0:412:780 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Q7dXb2 to 33030532 bytes, \
error: No space left on device (28)
trainer-0:412:780 [1] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Q7dXb2 \
(size 33030528), error: No space left on device (28)
trainer-0:412:780 [1] NCCL INFO proxy.cc:1458 -> 2
RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.27.5
""",
        "shm-too-small",
    ),
    Question(
        "What does “Got completion … with error 12” mean?",
        """\
gpu-07:9001:9122 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.20.0.8<48216> with error \
12, opcode 32601, len 0, vendor err 129 (Send) localGid fe80::a288:c2ff:fe31:1 remoteGids fe80::a288:c2ff:fe44:2
gpu-07:9001:9122 [3] NCCL INFO transport/net.cc:1298 -> 6
""",
        "ib-retry-exceeded",
    ),
    Question(
        "Two hosts with InfiniBand reach only 1 GB/s. Does NCCL use it?",
        """\
gpu-a:510:510 [0] NCCL INFO NET/IB : No device found.
gpu-a:510:510 [0] NCCL INFO NET/Socket : Using [0]eth0:10.20.0.7<0>
gpu-a:510:510 [0] NCCL INFO Using network Socket
gpu-a:510:531 [0] NCCL INFO comm 0x5581 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x7d1e - Init START
gpu-a:510:531 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0
""",
        "socket-fallback",
    ),
    Question(
        "A collective over PCIe hangs or gives wrong results. What should I look at?",
        """\
ws-1:777:799 [0] NCCL INFO Channel 00 : 0[21000] -> 1[4b000] via P2P/IPC
ws-1:777:799 [0] NCCL INFO Connected all rings
$ sudo lspci -vvv | grep -E 'PCI bridge|ACSCtl'
20:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
""",
        "acs-iommu-p2p",
    ),
    Question(
        "mpirun prints the header of nccl-tests many times. Is the bandwidth right?",
        """\
$ mpirun -np 4 ./build/all_reduce_perf -b 8 -e 1G -f 2 -g 1
# Using devices
#  Rank  0 Group  0 Pid   5101 on      gpu-a device  0 [0x1b] NVIDIA H100 80GB HBM3
# Using devices
#  Rank  0 Group  0 Pid   5102 on      gpu-a device  0 [0x1b] NVIDIA H100 80GB HBM3
# Using devices
#  Rank  0 Group  0 Pid   5103 on      gpu-a device  0 [0x1b] NVIDIA H100 80GB HBM3
# Using devices
#  Rank  0 Group  0 Pid   5104 on      gpu-a device  0 [0x1b] NVIDIA H100 80GB HBM3
""",
        "two-copies-no-mpi",
    ),
    Question(
        "“Duplicate GPU detected”: how many GPUs does my job use?",
        """\
gpu-a:2201:2260 [0] init.cc:941 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000
gpu-a:2200:2259 [0] init.cc:941 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000
gpu-a:2201:2260 [0] NCCL INFO init.cc:1650 -> 5
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, invalid usage, NCCL version 2.27.5
""",
        "duplicate-gpu",
    ),
    Question(
        "A job that ran for days stopped. Is it the GPU?",
        """\
[Mon Nov  3 09:03:12 2025] NVRM: GPU at PCI:0000:5d:00: GPU-2f1c6c1a-9a1e-4a53-8a1d-6e2d0c9d7a11
[Mon Nov  3 09:03:12 2025] NVRM: Xid (PCI:0000:5d:00): 79, pid=41822, name=python3, GPU has fallen off the bus.
[Mon Nov  3 09:03:12 2025] NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.
[rank6]:[E1103 09:13:12.204518301 ProcessGroupNCCL.cpp:616] [Rank 6] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=8112, OpType=ALLREDUCE, NumelIn=26214400, NumelOut=26214400, Timeout(ms)=600000) ran for 600022 \
milliseconds before timing out.
""",
        "gpu-off-bus",
    ),
)
