"""Texts for the page of rules whose tests make their texts from parts."""

from __future__ import annotations

__all__ = ["TEXTS"]

TEXTS = {
    "wrong-interface-virtual": """\
gpu-a:310:310 [0] NCCL INFO Bootstrap: Using docker0:172.17.0.1<0>
gpu-a:310:340 [0] NCCL INFO comm 0x55d0 rank 0 nranks 16 cudaDev 0 busId 1b000 commId 0x9f2c - Init START
gpu-b:271:290 [0] NCCL INFO comm 0x5617 rank 8 nranks 16 cudaDev 0 busId 1b000 commId 0x9f2c - Init START
""",
    "ib-disable-without-effect": """\
gpu-a:310:310 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
gpu-a:310:310 [0] NCCL INFO Using network IBext_v8
""",
    "ib-receiver-not-ready": (
        "gpu-a:310:340 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.20.0.8<48216> with "
        "status=13 opcode=0 len=0 vendor err 135 (Send) hca mlx5_0"
    ),
    "cumem-host-no-p2p": (
        "gpu-a:310:340 [0] transport/shm.cc:590 NCCL WARN Cuda failure 217 'peer access is not supported between these "
        "two devices'"
    ),
    "unsupported-arch": "gpu-a:310:340 [0] enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'",
    "vgpu-unsupported": "gpu-a:310:340 [0] init.cc:416 NCCL WARN Cuda failure 'operation not supported'",
    "p2p-failed": "gpu-a:310:340 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 400 'invalid resource handle'",
    "peermem-unused": """\
$ lsmod | grep nvidia
nvidia_peermem         16384  0
nvidia_uvm           4857856  4
""",
    "ras-output-unreliable": """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING      OK
    1         4         0         0         0         0    NOCOMM  INCOMPLETE

Errors
======

#1-0 (ab) INCOMPLETE
  Missing communicator data from 255 ranks

Warnings
========
""",
}
