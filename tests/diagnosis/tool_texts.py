"""Output of tools that people run next to NCCL, for tests of their readers and for the fuzzer."""

from __future__ import annotations

import json

NVBANDWIDTH = """\
nvbandwidth Version: v0.6
Built from Git version: v0.6

Driver Version: 535.161.08

Device 0: NVIDIA L40S (00000000:05:00)
Device 1: NVIDIA L40S (00000000:06:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     25.51     24.98

SUM host_to_device_memcpy_ce 50.49

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     19.25
 1     21.50       N/A

Running device_to_device_latency_sm.
Device to Device Latency SM GPU(row) <-> GPU(column) (ns)
           0         1
 0       N/A   1250.00
 1   1300.00       N/A
"""

P2P_TEST = """\
[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA RTX A4000, pciBusID: 21, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA RTX A4000, pciBusID: 22, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=1 CAN Access Peer Device=0

P2P Connectivity Matrix
     D\\D     0     1
     0	     1     1
     1	     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 370.11  11.04
     1  11.12 371.56
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 370.93  {on:5.2f}
     1  {on:5.2f} 372.01
Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)
   D\\D     0      1
     0 370.93  12.01
     1  12.02 372.01
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   1.61   1.24
     1   1.30   1.58

   CPU     0      1
     0   2.41   1.85
     1   1.87   2.44
"""

SLOW_P2P = """\
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 370.11  11.04
     1  11.12 371.56
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 370.93   2.51
     1   2.50 372.01
"""

PASSED = """\
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
+-----  Integration  -------+------------------------------------------------+
| PCIe                      | Pass - All                                     |
"""

STOPPED = """\
 Completion with error at client
 Failed status 10: wr_id 0 syndrom 0x88
scnt=128, ccnt=0
"""

DOWN = """\
GPUs:
    gpuId 0:
        U U U U
    gpuId 1:
        U U U D
"""

DIAGNOSTIC = """\
Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.1.8                                          |
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
| Persistence Mode          | Fail                                           |
| Warning                   | Persistence mode for GPU 2 is currently disab  |
|                           | led.                                           |
+-----  Hardware  ----------+------------------------------------------------+
| GPU Memory                | Pass - GPUs: 0, 1, 3                           |
|                           | Fail - GPU: 2                                  |
| Warning                   | GPU 2 A memory mismatch was found at address   |
|                           | 0x7f00.                                        |
+-----  Stress  ------------+------------------------------------------------+
| Targeted Power            | Skip - All                                     |
+---------------------------+------------------------------------------------+
"""

DIAGNOSTIC_4 = """\
|-----  Deployment  --------+------------------------------------------------|
| software                  | Pass                                           |
|                           | GPU0: Pass                                     |
|                           | GPU1: Pass                                     |
+-----  Hardware  ----------+------------------------------------------------+
| memory                    | Fail                                           |
|                           | GPU0: Pass                                     |
|                           | GPU1: Fail                                     |
| Warning: GPU1             | Error writing to the memory of the GPU.        |
+---------------------------+------------------------------------------------+
"""

LINKS = """\
+----------------------+
|  NvLink Link Status  |
+----------------------+
GPUs:
    gpuId 0:
        U U U U
    gpuId 1:
        {}
NvSwitches:
    physicalId 8:
        U U D X

Key: Up=U, Down=D, Disabled=X, Not Supported=_
"""

TABLE = """\
Mon Mar  3 08:11:09 2025
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 525.85.12    Driver Version: 525.85.12    CUDA Version: 12.0     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
|   0  NVIDIA A30          On   | 00000000:17:00.0 Off |                    0 |
| N/A   31C    P0    28W / 165W |    522MiB / 24576MiB |      3%      Default |
|                               |                      |             Disabled |
+-------------------------------+----------------------+----------------------+
|   1  NVIDIA A30          On   | 00000000:65:00.0 Off |                   On |
| N/A   30C    P0    26W / 165W |                  N/A |     N/A      Default |
|                               |                      |              Enabled |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|        ID   ID                                                   Usage      |
|=============================================================================|
|    0   N/A  N/A      4242      C   python3                           519MiB |
|    1    5    0       4243      C   /usr/bin/python3.10              9876MiB |
+-----------------------------------------------------------------------------+
"""

PERFTEST = """\
 WARNING: BW peak won't be measured in this run.
initializing CUDA
[pid = 77, dev = 1] device name = [NVIDIA H20]
---------------------------------------------------------------------------------------
                    Send BW Test
 Dual-port       : OFF          Device         : mlx5_4
 Number of qps   : 2            Transport type : IB
 Link type       : Ethernet
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      10000            0.00               184.00               0.350952
 1048576    10000            197.10             196.00               0.023365
---------------------------------------------------------------------------------------
"""

INSPECTED = "\n".join(
    json.dumps(
        {
            "header": {"id": "0x1", "rank": rank, "n_ranks": 4, "nnodes": 1},
            "metadata": {"inspector_output_format_version": "v4.0", "hostname": "n1", "pid": 7},
            "coll_perf": {
                "coll": "ReduceScatter",
                "coll_sn": 3,
                "coll_msg_size_bytes": 4096,
                "coll_exec_time_us": 25.5,
                "coll_algobw_gbs": 0.64,
                "coll_busbw_gbs": 0.48,
            },
        }
    )
    for rank in (0, 1)
)

XML = """\
<gpu id="00000000:3B:00.0">
    <product_name>NVIDIA H200</product_name>
    <fabric><state>Completed</state><status>Success</status><cliqueId>0</cliqueId>
        <health><summary>Unhealthy</summary><bandwidth>Full</bandwidth></health></fabric>
    <gpu_recovery_action>Drain and Reset</gpu_recovery_action>
</gpu>
"""

QUERY = """\
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Link Info
        Link Width
            Max                           : 16x
            Current                       : 8x
    Clocks Event Reasons
        HW Slowdown                       : Active
            HW Power Brake Slowdown       : Active
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Threshold Exceeded       : Yes
    Retired Pages
        Double Bit ECC                    : 3
        Pending Page Blacklist            : Yes
    Fabric
        State                             : Completed
        Status                            : Success
        Health
            Summary                       : Unhealthy
    GPU Recovery Action                   : Reset
"""

NETDEVS = """\
mlx5_0 port 1 ==> ib0 (Down)
0000:41:00.0 mlx5_1 (MT4129 - MCX75310AAS) fw 28.39.1002 port 1 (ACTIVE) ==> eth1 (Up)
"""

DRIVER = """\
[    7.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025
[   12.4] NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)
[   12.4] NVRM: nvAssertFailedNoLog: Assertion failed: status == NV_OK @ osinit.c:2350
"""

TOOL_TEXTS = (
    NVBANDWIDTH,
    P2P_TEST,
    SLOW_P2P,
    PASSED,
    STOPPED,
    DOWN,
    DIAGNOSTIC,
    DIAGNOSTIC_4,
    LINKS,
    TABLE,
    PERFTEST,
    INSPECTED,
    XML,
    QUERY,
    NETDEVS,
    DRIVER,
)
