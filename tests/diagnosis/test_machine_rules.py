"""Rules for GPUs, ports and links: a text that each rule is for, and a similar one that it must leave alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError

FOLDER = Path(os.environ.get("MESHLAB_CASES", "")) / "explain"

NVRM = "[ 100.5] NVRM: Xid (PCI:0000:1b:00): "
V100 = "GPU {}: Tesla V100-SXM2-32GB (UUID: GPU-0)\n"
H100 = "GPU {}: NVIDIA H100 NVL (UUID: GPU-0)\n"
ON, OFF = "\t Link {}: 25.781 GB/s\n", "\t Link {}: <inactive>\n"
BRIDGE = "\t\tACSCtl:\tSrcValid{0} TransBlk- ReqRedir{0} CmpltRedir{0} UpstreamFwd- EgressCtrl- DirectTrans-\n"
FABRIC = "GPU 00000000:1B:00.0\n    Fabric\n        State : {}\n        Status : {}\n        CliqueId : 0\n"
PORT = "CA '{}'\n\tPort 1:\n\t\tState: {}\n\t\tPhysical state: {}\n\t\tRate: 200\n\t\tBase lid: {}\n\t\tSM lid: 1\n"
LINK = "link {}/1 subnet_prefix fe80:0000:0000:0000 lid {} sm_lid 1 lmc 0 state {} physical_state {}\n"


def links(head: str, gpu: int, *states: str) -> str:
    return head.format(gpu) + "".join(state.format(k) for k, state in enumerate(states))


def matrix(rows: list[str], nics: int = 0) -> str:
    """Return a matrix of nvidia-smi from rows of words, GPUs before NICs."""
    names = [f"GPU{k}" for k in range(len(rows) - nics)] + [f"NIC{k}" for k in range(nics)]
    return "\n".join(
        ["\t" + "\t".join(names), *(f"{n}\t" + "\t".join(r.split()) for n, r in zip(names, rows, strict=True)), ""]
    )


def severities(text: str) -> dict[str, str]:
    """Return the severity of every code."""
    try:
        return {item.code: item.severity for item in ml.explain(text).all_findings}
    except ParseError:
        return {}


def subject(text: str, code: str) -> str:
    return next(item.subject for item in ml.explain(text).all_findings if item.code == code)


FULL = matrix(["X NV18 NV18 NV18", "NV18 X NV18 NV18", "NV18 NV18 X NV18", "NV18 NV18 NV18 X"])
LONELY = matrix(["X NV18 NODE NV18", "NV18 X NODE NV18", "NODE NODE X NODE", "NV18 NV18 NODE X"])
PCIE = matrix(["X PIX NODE NODE", "PIX X NODE NODE", "NODE NODE X NODE", "NODE NODE NODE X"])
FAR = matrix(["X PIX SYS PIX", "PIX X SYS PIX", "SYS SYS X SYS", "PIX PIX SYS X"], nics=1)
NEAR_ALL = matrix(["X PIX PIX", "PIX X PIX", "PIX PIX X"], nics=1)

HEALTH = """\
GPU 00000000:1B:00.0
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 2
        ClusterUUID                       : 9c6f5af3-53bf-49b5-a436-b66766c413c3
        Health
            Summary                       : {}
            Bandwidth                     : {}
            Route Unhealthy               : {}
"""
LOST_ROW = """\
|   4  ERR!                On   | 00000000:83:00.0 Off |                 ERR! |
|ERR!  ERR! ERR!    ERR! / ERR! |      0MiB / 46068MiB |    ERR!      Default |
"""
# One card of three, with the links of the pair.
NVL_PAIR = matrix(["X NV12 SYS", "NV12 X SYS", "SYS SYS X"]) + "\n" + links(H100, 0, ON, OFF)

FOUND = [
    ("gpu-off-bus", "error", NVRM + "79, pid=12, GPU has fallen off the bus.\n"),
    ("nvlink-error", "error", NVRM + "74, pid='<unknown>', NVLink: fatal error detected on link 3(0x10000, 0x0)\n"),
    ("nvlink-error", "error", NVRM + "149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x0)\n"),
    (
        "nvlink-error",
        "error",
        NVRM + "145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x0)\n" + NVRM + "137, link 11: PRIV Error\n",
    ),
    ("nvlink-error", "error", NVRM + "45, pid=1, name=python, Ch 1 caused by previous Xid 145\n"),
    ("nvlink-error", "error", "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"),
    ("nvlink-warning", "warning", NVRM + "144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)\n"),
    (
        "nvlink-warning",
        "warning",
        NVRM + "149, NETIR Fatal Link 1 (0x0)\n" + NVRM.replace("1b", "2c") + "144, X Nonfatal\n",
    ),
    ("nvlink-warning", "warning", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC\n"),
    ("ecc-uncorrectable", "error", NVRM + "48, pid=7, DBE (double bit error) ECC Error\n"),
    ("ecc-uncorrectable", "error", NVRM + "95, pid=7, Uncontained: LTC TAG (0x2,0x0)\n"),
    ("ecc-uncorrectable", "error", "    ECC Errors\n        Volatile\n            DRAM Uncorrectable : 2\n"),
    ("ecc-uncorrectable", "error", "|   0  NVIDIA A100  On  | 00000000:29:00.0 Off |         3 |\n"),
    (
        "ecc-contained",
        "error",
        NVRM + "48, DBE\n" + NVRM + "63, Row Remapper\n" + NVRM + "94, pid=7, name=python3, Contained: SM\n",
    ),
    (
        "row-remapping",
        "warning",
        NVRM + "63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.\n",
    ),
    ("row-remapping", "error", NVRM + "64, Row Remapper: Error recording row remapping\n"),
    ("application-fault", "error", NVRM + "31, pid=7, name=python3, Ch 1, MMU Fault: FAULT_PDE\n"),
    ("xid-consequence", "normal", NVRM + "43, pid=7, name=python3, Ch 1\n"),
    ("gsp-timeout", "error", NVRM + "119, pid=7, name=python, Timeout waiting for RPC from GSP!\n"),
    ("other-xid", "warning", NVRM + "62, pid=7, Internal micro-controller halt\n"),
    ("fabric-unhealthy", "error", FABRIC.format("In Progress", "N/A")),
    ("fabric-unhealthy", "error", FABRIC.format("Completed", "Insufficient Resources")),
    (
        "fabric-unhealthy",
        "error",
        "Nov 15 14:15:47 gpu7 systemd[1]: nvidia-fabricmanager.service: Main process exited, code=exited, "
        "status=1/FAILURE\n",
    ),
    (
        "fabric-unhealthy",
        "info",
        "Nov 15 14:15:47 gpu7 nv-fabricmanager[4177]: request failed with error:WARNING Nothing to do "
        "[NV_WARN_NOTHING_TO_DO]\nNov 15 14:15:47 gpu7 systemd[1]: nvidia-fabricmanager.service: Control process "
        "exited, code=exited, status=1/FAILURE\n",
    ),
    ("fabric-unhealthy", "error", "● nvidia-fabricmanager.service - NVIDIA\n     Active: failed (Result: exit-code)\n"),
    (
        "fabric-unhealthy",
        "warning",
        "    Product Name : NVIDIA GB200\n    Fabric\n        Status : Success\n        ClusterUUID : 00-00\n",
    ),
    ("fabric-unhealthy", "error", HEALTH.format("Unhealthy", "Full", "False")),
    ("fabric-unhealthy", "error", HEALTH.format("Healthy", "Degraded", "False")),
    ("fabric-unhealthy", "error", HEALTH.format("Limited Capacity", "Full", "False")),
    ("fabric-unhealthy", "warning", HEALTH.format("Recovering", "Full", "False")),  # unknown values are not healthy
    ("fabric-unhealthy", "warning", HEALTH.format("Healthy", "Full", "Perhaps")),
    ("fabric-unhealthy", "warning", FABRIC.format("Completed", "Unknown Error")),
    ("fabric-unhealthy", "error", '<gpu id="0001:01:00.0">\n<fabric>\n<state>Not Started</state>\n</fabric>\n</gpu>\n'),
    ("nothing-wrong", "info", FABRIC.format("Completed", "Success")),
    ("nothing-wrong", "info", HEALTH.format("Healthy", "Full", "False")),
    ("nothing-wrong", "info", HEALTH.format("N/A", "N/A", "N/A")),
    ("gpu-slowed-down", "warning", "    Clocks Event Reasons\n        HW Power Brake Slowdown : Active\n"),
    ("gpu-slowed-down", "warning", "    Clocks Throttle Reasons\n        SW Thermal Slowdown : Active\n"),
    ("gpu-needs-recovery", "error", "NVRM: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62) returned"),
    ("nic-fault", "error", "[8.1] mlx5_core 0000:17:00.0 ens1f0np0: TX timeout on queue: 12, SQ: 0x4f1c, CQ: 0xa31"),
    ("nic-fault", "error", "[8.1] mlx5_core 0000:17:00.0: device's health compromised - reached miss count"),
    (
        "nic-fault",
        "warning",
        "[8.1] mlx5_core 0000:81:00.0: mlx5_cmd_check:794:(pid 0): CREATE_MKEY(0x200) op_mod(0x0) failed, status "
        "limits "
        "exceeded(0x8), syndrome (0x5)",
    ),
    (
        "nic-fault",
        "normal",
        "[8.1] mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 7): ACCESS_REG(0x805) op_mod(0x1) failed, status bad "
        "operation(0x2), err(-22)",
    ),
    ("pcie-errors", "info", "[8.1] pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0"),
    ("pcie-errors", "warning", "[8.1] pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0\n" * 10),
    ("pcie-errors", "error", "[8.1] pcieport 0000:40:01.1: AER: Uncorrected (Fatal) error received: 0000:41:00.0"),
    ("gpu-needs-recovery", "error", "GPU 00000000:1B:00.0\n    GPU Recovery Action               : Reset\n"),
    ("gpu-needs-recovery", "error", "    GPU Reset Status\n        Reset Required : Yes\n"),
    ("gpu-not-readable", "error", LOST_ROW),
    (
        "gpu-not-readable",
        "warning",
        "|   0  Quadro P1000        Off  | 00000000:65:00.0  On |                  N/A |\n"
        "| 41%   53C    P0   ERR! /  N/A |    620MiB /  4035MiB |      0%      Default |\n",
    ),
    ("ecc-uncorrectable", "error", "    ECC Errors\n        Aggregate\n            SRAM Threshold Exceeded : Yes\n"),
    ("ecc-uncorrectable", "warning", "    ECC Errors\n        Channel Repair Pending : Yes\n"),
    ("ecc-uncorrectable", "info", "    ECC Errors\n        Aggregate\n            DRAM Uncorrectable : 4\n"),
    (
        "ecc-uncorrectable",
        "error",
        "    ECC Errors\n        Volatile\n            Double Bit\n                Device Memory : 3\n",
    ),
    ("row-remapping", "warning", "    Retired Pages\n        Pending Page Blacklist : Yes\n"),
    ("row-remapping", "error", "    Remapped Rows\n        Remapping Failure Occurred : Yes\n"),
    (
        "row-remapping",
        "error",
        "    Remapped Rows\n        Bank Remap Availability Histogram\n            None : 2 bank(s)\n",
    ),
    ("row-remapping", "error", "<remapped_rows>\n<remapped_row_failure>Yes</remapped_row_failure>\n</remapped_rows>\n"),
    (
        "pcie-width",
        "warning",
        "    GPU Link Info\n        Link Width\n            Max : 16x\n            Current : 4x\n",
    ),
    ("gpu-init-failed", "error", "NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)\n"),
    ("gpu-init-failed", "error", "[3.1] nvidia: probe of 0000:65:00.0 failed with error -1\n"),
    ("gpu-init-failed", "error", "[3.1] nvidia 0000:65:00.0: probe with driver nvidia failed with error -1\n"),
    ("driver-not-loaded", "error", "NVRM: API mismatch: the client has the version 580.1, but\n"),
    ("driver-message", "info", "[7.1] NVRM: nvAssertFailed: Assertion failed: status == NV_OK @ gpu.c:5\n"),
    (
        "gpu-without-nvlink",
        "info",
        "".join(links(H100, k, ON, OFF) for k in (0, 1)) + links(H100, 2, OFF, OFF),
    ),  # no bridge
    ("ib-port-down", "error", PORT.format("mlx5_0", "Training", "LinkUp", 5)),  # a state that meshlab does not know
    ("ib-port-down", "warning", PORT.format("mlx5_0", "Active", "LinkErrorRecovery", 5)),
    ("nvlinks-inactive", "warning", links(V100, 3, ON, ON, "\t Link {}: Sleep\n", ON)),
    ("ib-port-down", "info", "mlx5_0 port 1 ==> ibp26s0 (Down)\nmlx5_1 port 1 ==> ibp27s0 (Down)\n"),
    ("ib-port-down", "info", "mlx5_0 port 1 ==> eth2 (Down)\nmlx5_1 port 1 ==> eth3 (Up)\n"),
    ("ib-port-down", "warning", "mlx5_0 port 1 ==> eth2 (Down)\n"),
    ("ib-port-down", "error", "0000:18:00.0 mlx5_0 (MT4129 - X) fw 28.39 port 1 (DOWN  ) ==> ibp24s0 (Down)\n"),
    ("driver-not-loaded", "error", "Failed to initialize NVML: Driver/library version mismatch\n"),
    ("gpu-without-nvlink", "error", links(H100, 0, ON, ON) + links(H100, 1, OFF, OFF)),
    ("gpu-without-nvlink", "error", LONELY),
    ("nvlinks-inactive", "warning", links(V100, 3, ON, ON, OFF, ON)),
    ("nvlinks-inactive", "warning", links(H100, 0, ON, ON) + links(H100, 1, ON, OFF)),
    (
        "nvlink-error-counters",
        "warning",
        "GPU 0: NVIDIA GB300\n\t Link 0: Replay Errors: 0\n\t Link 1: CRC Errors: 31\n",
    ),
    (
        "ib-port-flap",
        "error",
        LINK.format("mlx5_7", 34, "DOWN", "POLLING") + LINK.format("mlx5_7", 34, "ACTIVE", "LINK_UP"),
    ),
    ("ib-port-flap", "error", "mlx5_core 0000:5e:00.0 eth2: Link down\nmlx5_core 0000:5e:00.0 eth2: Link up\n" * 2),
    ("ib-port-down", "error", PORT.format("mlx5_7", "Down", "LinkUp", 65535)),
    (
        "ib-port-down",
        "warning",
        LINK.format("mlx5_0", 3, "ACTIVE", "LINK_UP") + LINK.format("mlx5_1", 4, "DOWN", "POLLING"),
    ),
    (
        "ib-port-down",
        "info",
        LINK.format("mlx5_0", 3, "ACTIVE", "LINK_UP") + LINK.format("mlx5_1", 65535, "DOWN", "DISABLED"),
    ),
    ("ib-port-down", "error", PORT.format("mlx5_0", "Initializing", "LinkUp", 0)),
    ("ib-port-down", "error", "\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\n"),
    ("nic-far-from-gpu", "warning", FAR),
    ("no-nvlink", "info", PCIE),
    (
        "no-nvlink",
        "error",
        PCIE + "".join(f"|   {k}  NVIDIA H200  On  | 00000000:2{k}:00.0 Off |  0 |\n" for k in range(4)),
    ),
    ("nvlink-p2p-broken", "error", matrix(["X NV4", "NV4 X"]) + "\n" + matrix(["X NS", "NS X"])),
    ("p2p-not-supported", "info", matrix(["X GNS", "GNS X"])),
    ("p2p-not-supported", "warning", matrix(["X CNS", "CNS X"])),
    ("acs-iommu-p2p", "warning", BRIDGE.format("+") + BRIDGE.format("-")),
    (
        "acs-iommu-p2p",
        "error",
        BRIDGE.format("+") + "a:1:2 [0] NCCL INFO Channel 00 : 0[c1000] -> 1[c2000] via P2P/direct pointer\n",
    ),
    (
        "pcie-width",
        "warning",
        "41:00.0 3D controller: NVIDIA\n\tLnkCap: Speed 32GT/s, Width x16\n\tLnkSta: Speed 32GT/s, Width x8\n",
    ),
    ("small-limits", "warning", "max locked memory       (kbytes, -l) 64\n"),
    ("small-limits", "warning", "shm              64M     0   64M   0% /dev/shm\n"),
    ("acs-iommu-p2p", "error", "nvidia 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x22 address=0x3]\n"),
    ("acs-iommu-p2p", "warning", "DMAR: [DMA Write NO_PASID] Request device [65:00.0] fault addr 0x38fff\n"),
    ("acs-iommu-p2p", "info", "[0.8] iommu: Default domain type: Translated (set via kernel command line)\n"),
    ("small-limits", "info", "$ ulimit -n\n1024\n"),
    ("peermem-unused", "normal", "nvidia_peermem         16384  0\n"),
    ("nothing-wrong", "info", FULL),
    ("nothing-wrong", "info", matrix(["X OK OK", "OK X OK", "OK OK X"])),
    ("nothing-wrong", "info", links(H100, 0, ON, ON) + links(H100, 1, ON, ON)),
    ("nothing-wrong", "info", PORT.format("mlx5_0", "Active", "LinkUp", 12)),
    ("nothing-wrong", "info", BRIDGE.format("-")),
    ("ports-active", "normal", PORT.format("mlx5_0", "Active", "LinkUp", 0) + "\t\tLink layer: Ethernet\n"),
]

NOT_FOUND = [
    ("nothing-wrong", HEALTH.format("Unhealthy", "Full", "False")),
    ("nothing-wrong", HEALTH.format("Recovering", "Full", "False")),
    ("fabric-unhealthy", HEALTH.format("N/A", "N/A", "N/A")),
    ("gpu-slowed-down", "    Clocks Event Reasons\n        Idle : Active\n        HW Slowdown : Not Active\n"),
    ("gpu-slowed-down", "    Clocks Event Reasons\n        SW Power Cap : Active\n        HW Slowdown : N/A\n"),
    ("nic-fault", "[8.1] mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE\n"),
    ("pcie-errors", "[8.1] pcieport 0000:00:03.0: AER: enabled with IRQ 27\n"),
    ("gpu-needs-recovery", "    GPU Recovery Action               : None\n"),
    ("gpu-needs-recovery", "    GPU Recovery Action               : N/A\n"),
    (
        "gpu-not-readable",
        "|   0  NVIDIA A100  On  | 00000000:29:00.0 Off |  0 |\n| N/A 34C P0 61W / 400W | 0MiB / 81920MiB | 0% X |\n",
    ),
    ("row-remapping", "    Remapped Rows\n        Pending : No\n        Remapping Failure Occurred : No\n"),
    ("row-remapping", "    Retired Pages\n        Double Bit ECC : N/A\n        Pending Page Blacklist : N/A\n"),
    ("pcie-width", "    GPU Link Info\n        Link Width\n            Max : 16x\n            Current : 16x\n"),
    ("gpu-init-failed", "[1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\n"),
    ("driver-message", "[1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\n"),
    ("nvlinks-inactive", links(H100, 0, ON, OFF)),
    ("host-health", NVL_PAIR),
    ("mixed-gpus", NVL_PAIR),
    # The state of a port counts more than that of its interface.
    ("ib-port-down", "mlx5_0 port 1 ==> ib0 (Down)\n" + PORT.format("mlx5_0", "Active", "LinkUp", 5)),
    ("gpu-off-bus", "We fear that a card has fallen off the bus\n" + PORT.format("mlx5_0", "Active", "LinkUp", 1)),
    ("nvlink-error", NVRM + "145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x0409a0c2)\n"),
    ("nvlink-error", NVRM + "45, pid=1, name=python, Ch 1\n"),
    ("nvlink-warning", NVRM + "145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x0)\n" + NVRM + "137, link 11: PRIV Error\n"),
    ("ecc-uncorrectable", NVRM + "48, DBE\n" + NVRM + "94, pid=7, name=python3, Contained: SM\n"),
    ("ecc-uncorrectable", NVRM + "94, pid=1234, name=python3, Contained ECC error\n"),
    (
        "ecc-uncorrectable",
        "    ECC Errors\n        Volatile\n            DRAM Uncorrectable : 0\n            DRAM Correctable : 9\n",
    ),
    ("row-remapping", NVRM + "63, Row Remapper\n" + NVRM + "94, Contained\n"),
    ("application-fault", NVRM + "79, GPU has fallen off the bus.\n" + NVRM + "31, pid=7, MMU Fault\n"),
    ("fabric-unhealthy", FABRIC.format("Completed", "Success")),
    ("fabric-unhealthy", FABRIC.format("N/A", "N/A")),
    ("fabric-unhealthy", "Nov 15 14:15:47 gpu7 systemd[1]: nvidia-fabricmanager.service: Deactivated successfully.\n"),
    ("fabric-unhealthy", "Nov 15 14:15:47 gpu7 systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric.\n"),
    ("fabric-unhealthy", "● nvidia-fabricmanager.service - NVIDIA\n     Active: active (running)\n"),
    ("gpu-without-nvlink", links(H100, 0, OFF, OFF)),
    ("gpu-without-nvlink", FULL),
    ("nvlinks-inactive", links(H100, 0, ON, OFF) + links(H100, 1, ON, OFF)),  # 12 of 18 is all that an H100 NVL has
    ("nvlink-error-counters", "GPU 0: NVIDIA GB300\n\t Link 0: Replay Errors: 0\n"),
    # Two lists without the name of a host may come from two hosts.
    (
        "ib-port-flap",
        "".join(
            LINK.format(f"mlx5_{k}", n, state, "POLLING" if state == "DOWN" else "LINK_UP")
            for k, n, state in ((0, 3, "ACTIVE"), (1, 4, "ACTIVE"), (0, 8, "DOWN"), (1, 9, "ACTIVE"))
        ),
    ),
    ("ib-port-flap", "mlx5_core 0000:5e:00.0 eth2: Link up\n"),
    ("ib-port-down", PORT.format("mlx5_7", "Active", "LinkUp", 3)),
    ("acs-iommu-p2p", "[1.0] DMAR: IOMMU enabled\n[1.0] iommu: Default domain type: Passthrough\nulimit -n\n1024\n"),
    ("nic-far-from-gpu", NEAR_ALL),
    ("nic-far-from-gpu", matrix(["X PIX SYS PIX", "PIX X SYS PIX", "SYS SYS X ?", "PIX PIX ? X"], nics=1)),
    ("no-nvlink", matrix(["X PIX NODE"]).rstrip() + "\n"),
    ("nvlink-p2p-broken", matrix(["X NV4", "NV4 X"]) + "\n" + matrix(["X OK", "OK X"])),
    ("nvlink-p2p-broken", matrix(["X PHB", "PHB X"]) + "\n" + matrix(["X GNS", "GNS X"])),
    ("acs-iommu-p2p", BRIDGE.format("-")),
    (
        "pcie-width",
        "41:00.0 3D controller: NVIDIA\n\tLnkCap: Speed 32GT/s, Width x16\n\tLnkSta: Speed 2.5GT/s, Width x16\n",
    ),
    ("small-limits", "max locked memory       (kbytes, -l) unlimited\nopen files (-n) 1048576\n"),
    ("nothing-wrong", LONELY),
    ("nothing-wrong", PORT.format("mlx5_0", "Down", "Polling", 0)),
]


# As people paste them, one for each rule whose texts above are put together.
PASTED = [
    (
        "gsp-timeout",
        """\
[ 812.311] NVRM: Xid (PCI:0000:1b:00): 119, pid=47, name=python3, Timeout after 6s of waiting for RPC of GSP!
""",
    ),
    (
        "row-remapping",
        """\
[ 400.118] NVRM: Xid (PCI:0000:10:1c): 63, Row Remapper: New row marked for remapping, reset gpu to activate.
""",
    ),
    (
        "other-xid",
        """\
[ 90.551] NVRM: Xid (PCI:0000:1b:00): 62, pid=4711, name=python3, 0000(0000) 00000000 00000000
""",
    ),
    (
        "gpu-without-nvlink",
        """\
GPU 0: NVIDIA H100 80GB HBM3
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
GPU 1: NVIDIA H100 80GB HBM3
NVML: Unable to retrieve NVLink information as all links are inActive
""",
    ),
    (
        "nvlinks-inactive",
        """\
GPU 3: Tesla V100-SXM2-32GB
\t Link 0: 25.781 GB/s
\t Link 1: 25.781 GB/s
\t Link 2: <inactive>
""",
    ),
    (
        "ib-port-flap",
        """\
$ rdma link show mlx5_3/1
link mlx5_3/1 subnet_prefix fe80:0000:0000:0000 lid 77 sm_lid 1 lmc 0 state DOWN physical_state POLLING
$ rdma link show mlx5_3/1
link mlx5_3/1 subnet_prefix fe80:0000:0000:0000 lid 77 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP
""",
    ),
    (
        "nic-far-from-gpu",
        """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      SYS     SYS     0-31            0
GPU1    SYS      X      PIX     32-63           1
NIC0    SYS     PIX      X
""",
    ),
    (
        "no-nvlink",
        """\
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      PHB     0-63            0
GPU1    PHB      X      0-63            0
""",
    ),
    (
        "nvlink-p2p-broken",
        """\
        GPU0    GPU1    CPU Affinity    NUMA Affinity
GPU0     X      NV4     0-31            0
GPU1    NV4      X      0-31            0
$ nvidia-smi topo -p2p r
        GPU0    GPU1
 GPU0   X       NS
 GPU1   NS      X
""",
    ),
    (
        "p2p-not-supported",
        """\
$ nvidia-smi topo -p2p r
        GPU0    GPU1
 GPU0   X       GNS
 GPU1   GNS     X
""",
    ),
    (
        "pcie-speed-hidden",
        """\
gpu7:421:433 [0] NCCL INFO === System : maxBw 48.0 totalBw 48.0 ===
gpu7:421:433 [0] NCCL INFO CPU/0-0 (1/2/-1)
gpu7:421:433 [0] NCCL INFO + PCI[0.2] - PCI/0-15000 (104c823200000000)
gpu7:421:433 [0] NCCL INFO              + PCI[48.0] - GPU/0-16000 (0)
gpu7:421:433 [0] NCCL INFO ==========================================
""",
    ),
]


@pytest.mark.parametrize(("code", "text"), PASTED)
def test_a_pasted_text_is_recognised(code: str, text: str) -> None:
    assert code in severities(text)


@pytest.mark.parametrize(("code", "severity", "text"), FOUND)
def test_a_rule_finds_what_it_is_for(code: str, severity: str, text: str) -> None:
    assert severities(text).get(code) == severity


@pytest.mark.parametrize(("code", "text"), NOT_FOUND)
def test_a_rule_leaves_similar_texts_alone(code: str, text: str) -> None:
    assert code not in severities(text)


def test_findings_name_gpus_links_hosts_and_lines() -> None:
    text = (
        "Nov 28 10:00:00 node7 kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 1 caused by "
        "previous Xid 149\n"
        "Nov 28 10:00:01 node7 kernel: NVRM: Xid (PCI:0000:ed:00): 45, pid=2, name=python3, Ch 2 caused by "
        "previous Xid 145\n"
    )
    findings = {item.code: item for item in ml.explain(text).all_findings}
    assert findings["nvlink-error"].subject.startswith(
        "GPU 0000:dc:00 of node7 (Xid 149), noticed by 0000:ed:00 of node7"
    )
    assert findings["nvlink-error"].lines == (1, 2)
    assert findings["xid-consequence"].severity == "normal"
    assert "link 11" in subject(NVRM + "149, NETIR Fatal XC0 i0 Link 11 (0x0)\n", "nvlink-error")


@pytest.mark.parametrize(
    ("line", "why", "do"),
    [
        ("GPU Recovery Action : Reset", "only a reset", "nvidia-smi -r"),
        ("GPU Recovery Action : Reboot", "operating system", "Reboot the host"),
        ("GPU Recovery Action : Drain P2P", "peer-to-peer", "End the jobs that use the GPU together"),
        ("GPU Recovery Action : Drain and Reset", "reduced capacity", "Place no new jobs"),
        ("GPU Recovery Action : Bus Rebuild", "does not know this action", "manual"),
        ("GPU Reset Status\n        Drain and Reset Recommended : Yes", "reduced capacity", "Place no new jobs"),
        ("GPU Reset Status\n        Reset Required : Perhaps", "does not know this action", "manual"),
        (NVRM + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "system", "Reboot"),
    ],
)
def test_each_action_of_recovery_has_its_meaning_and_its_own_advice(line: str, why: str, do: str) -> None:
    (finding,) = ml.explain(f"    {line}\n" if "NVRM" not in line else f"{line}\n").findings
    assert why in finding.why
    assert do in finding.do


def test_a_far_nic_is_named_with_its_distance_and_a_better_gpu() -> None:
    (finding,) = [
        item for item in ml.explain(f"./all_reduce_perf -b 1G -g 1\n{FAR}").findings if item.code == "nic-far-from-gpu"
    ]
    assert finding.subject == "GPU2 (nearest NIC NIC0 at SYS)"
    assert "CUDA_VISIBLE_DEVICES=0" in finding.do
    assert finding.lines == (5,)


def test_every_rule_has_a_source_a_docstring_and_a_text_in_this_file() -> None:
    from meshlab.diagnosis.rules._gpu_faults import GPU_RULES
    from meshlab.diagnosis.rules._host_links import LINK_RULES
    from meshlab.diagnosis.rules._port_faults import PORT_RULES

    rules = [*GPU_RULES, *PORT_RULES, *LINK_RULES]
    assert len({rule.check.__name__ for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.source
        assert (rule.check.__doc__ or "").startswith(("Looks", "Applies", "Compares"))
        if rule.code not in ("host-health", "healthy-matrix", "nvlinks-active"):  # found under the codes of others
            assert rule.code in {code for code, _, _ in FOUND}


# -- real texts --------------------------------------------------------------------------------------------------------

SUBJECTS = {
    "18_a6000_hang_acs.txt": {"acs-iommu-p2p": ["c1:00.0", "c2:00.0", "nodeA"]},
    "34_nccl_paths_from_gpu_8f000.txt": {"nothing-wrong": ["8F000", "8A000", "worker-0"]},
    "79_rdma_link_flapping_state.txt": {"ib-port-flap": ["mlx5_7 port 1"]},
    "80_topo_rank_far_from_nic.txt": {"nic-far-from-gpu": ["GPU0", "mlx5_0 at NODE"], "no-nvlink": ["GPU0-GPU5"]},
    "82_topo_p2p_ok_matrix.txt": {"nothing-wrong": ["GPU0-GPU7"]},
    "83_ibstat_linkup_state_down.txt": {"ib-port-down": ["mlx5_7 port 1"]},
    "85_dmesg_fallen_off_bus.txt": {"gpu-off-bus": ["0000:b3:00.0", "10de:26b5", "0000:44:00.0"]},
    "86_dmesg_xid45_caused_by_145_149.txt": {"nvlink-error": ["0000:dc:00 (Xid 149)", "ed:00", "ba:00", "97:00"]},
    "88_dmesg_145_137_b200.txt": {"nvlink-error": ["1b:00", "link 11"]},
}


@pytest.mark.skipif(not FOLDER.is_dir(), reason="MESHLAB_CASES names no folder with explained texts")
@pytest.mark.parametrize("name", SUBJECTS)
def test_subjects_of_real_texts_name_the_hardware(name: str) -> None:
    findings = ml.explain(FOLDER / name).all_findings
    for code, words in SUBJECTS[name].items():
        named = " | ".join(item.subject for item in findings if item.code == code)
        assert [word for word in words if word not in named] == []


@pytest.mark.skipif(not FOLDER.is_dir(), reason="MESHLAB_CASES names no folder with explained texts")
@pytest.mark.parametrize("folder", ["own_gpu", "topo/smi"])
def test_healthy_machines_have_no_error(folder: str) -> None:
    wrong = {"partial_vllm-16336_b200_gpu2_without_nvlink.txt": ["gpu-without-nvlink"]}
    machine = {code for code, _, _ in FOUND}
    for path in sorted((FOLDER.parent / folder).glob("*.txt")):
        try:
            findings = ml.explain(path).findings
        except ParseError:
            continue
        codes = [item.code for item in findings if item.severity in ("error", "warning") and item.code in machine]
        assert codes == wrong.get(path.name, []), path.name


@pytest.mark.skipif(not FOLDER.is_dir(), reason="MESHLAB_CASES names no folder with explained texts")
def test_the_expected_file_has_the_cases_of_this_file() -> None:
    assert set(SUBJECTS) <= set(json.loads((FOLDER / "expected.json").read_text())["cases"])


def test_equal_hosts_share_a_finding() -> None:
    tree = [
        "=== System : maxBw 240.0 totalBw 240.0 ===",
        "CPU/0-0 (1/2/-1)",
        *(
            line
            for bus in ("16000", "29000")
            for line in (f"+ PCI[24.0] - GPU/0-{bus} (0)", " " * 14 + "+ NVL[240.0] - NVS/0-0")
        ),
        "==========================================",
    ]
    text = "\n".join(f"node{host}:7:8 [0] NCCL INFO {line}" for host in range(50) for line in tree)
    healthy = [item for item in ml.explain(text).findings if item.code == "nothing-wrong" and "NVLink" in item.why]
    assert [item.subject for item in healthy] == ["GPU0-GPU1 of node0, node1, node2, node3 and 46 more"]
