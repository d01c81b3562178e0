"""The rules about NVLink: what is lost, what is not known, and what is missing on a machine that should have it."""

from __future__ import annotations

import numpy as np

from meshlab.topology.findings import Report
from meshlab.topology.model.hardware import Device, Node
from meshlab.topology.model.links import NEAR, Distance
from meshlab.topology.readers.nvidia_smi import HIDES_NVLINK
from meshlab.topology.model.products import find_product

__all__ = ["absent_nvlinks", "lost_nvlinks", "unknown_nvlinks"]

_PAIRS_PER_LOST_PAIR = 4  # up to one pair in four without NVLink is a fault; more are left out on purpose


def lost_nvlinks(node: Node) -> Report:
    """GPUs or pairs without NVLink, or with fewer NVLinks, among others that have it."""
    count = len(node.devices)
    links = node.nvlinks[:count, :count]
    known = node.distance[:count, :count] != Distance.UNKNOWN
    if count < 3 or not links.any():
        return
    usual = int(np.bincount(links[links > 0]).argmax())
    per_gpu = (links > 0).sum(axis=1)
    most = int(np.median(per_gpu))
    lonely = [i for i in range(count) if per_gpu[i] == 0 and (known[i].sum() > 1)]
    if lonely and len(lonely) < count / 2 and most >= 1:
        names = ", ".join(node.ends[i] for i in lonely)
        yield (
            "error",
            "off-fabric",
            f"{names} {'has' if len(lonely) == 1 else 'have'} no NVLink while the others have NV{usual}",
            "check nvidia-smi nvlink -s and the fabric manager's log on that host, reset the GPU or reseat it, "
            "and keep ranks off it until then",
        )
    # Where every pair should have the same number (NVSwitch), one with fewer has lost links.
    full = [i for i in range(count) if i not in lonely]
    inner = links[np.ix_(full, full)]
    off_diagonal = inner[~np.eye(len(full), dtype=bool)]
    fewer = [full[i] for i in range(len(full)) if 0 < inner[i].max() < usual]
    if len(full) > 2 and (off_diagonal > 0).all() and fewer and len(fewer) < len(full) / 2:
        yield (
            "error",
            "fewer-nvlinks",
            f"{', '.join(node.ends[i] for i in fewer)} has NV{int(inner[full.index(fewer[0])].max())}, "
            f"the others have NV{usual}",
            "check nvidia-smi nvlink -e for errors; links that went down come back with a GPU reset or not at all",
        )
    # Bridges and hybrid cube meshes leave out many pairs; a machine that leaves out a few has lost them.
    pairs = [(full[i], full[j]) for i in range(len(full)) for j in range(i + 1, len(full))]
    missing = [(i, j) for i, j in pairs if links[i, j] == links[j, i] == 0 and known[i, j]]
    uniform = bool((off_diagonal[off_diagonal > 0] == usual).all())
    if missing and uniform and len(missing) * _PAIRS_PER_LOST_PAIR <= len(pairs):
        one, other = missing[0]
        more = f", nor have {len(missing) - 1} more pairs" if len(missing) > 1 else ""
        yield (
            "error",
            "pair-off-nvlink",
            f"{node.ends[one]} and {node.ends[other]} have no NVLink between them{more}, while the other pairs have "
            f"NV{usual}",
            "check nvidia-smi nvlink -s on that host and reset both GPUs; until then keep the two out of one group",
        )


def unknown_nvlinks(node: Node) -> Report:
    """What the source does not say, so that silence is no praise."""
    if len(node.devices) < 2 or any(device.backend != "cuda" for device in node.devices):
        return
    if not node.nvlink_known and HIDES_NVLINK not in node.notes:
        yield (
            "note",
            "nvlink-unknown",
            "the source does not list NVLink, so nothing is known of it",
            "ask the driver: nvidia-smi topo -m on that host, or probe()",
        )
    elif any(bus == device.bus_id for device in node.devices for _, bus, _ in device.nvlink_remotes):
        yield (
            "note",
            "nvlink-hidden",
            "NVLinks lead from a GPU to itself: the virtual machine hides which GPUs they join",
            "ask the driver: nvidia-smi topo -m on that host, or probe()",
        )


def absent_nvlinks(node: Node) -> Report:
    """A machine whose GPUs have NVLink, and a matrix without: another command, or a fabric that is down."""
    count = len(node.devices)
    links = node.nvlinks[:count, :count]
    if HIDES_NVLINK in node.notes:
        yield "note", "mp", "nvidia-smi topo -mp leaves NVLink out, so the matrix says nothing of it", "take topo -m"
    if count < 2 or not node.nvlink_known or links.any() or not node.complete:
        return
    if (node.distance[:count, :count] == Distance.UNKNOWN).any():
        return
    expected = [_nvlinks_expected(device) for device in node.devices]
    pcie = sorted({node.words[i][j] for i in range(count) for j in range(i)})
    words = " and ".join(pcie)
    if all(any(kind == "switch" for kind, _, _ in device.nvlink_remotes) for device in node.devices):
        yield (
            "error",
            "nvlink-unused",
            f"every GPU has NVLinks that are up, but all pairs are {words}",
            "the fabric manager is probably not running: systemctl status nvidia-fabricmanager",
        )
    elif all(expected):
        yield (
            "error",
            "all-pcie",
            f"these GPUs have NVLink, but all pairs are {words}",
            "if this is from nvidia-smi topo -mp, which hides NVLink, take topo -m; else start the fabric manager: "
            "systemctl status nvidia-fabricmanager",
        )
    elif count in (4, 8) and None in expected and _each_has_a_near_nic(node):
        yield (
            "warning",
            "maybe-mp",
            f"{count} GPUs, each beside a NIC of its own, and no NVLink: all pairs are {words}",
            "if the GPUs are SXM modules, this is nvidia-smi topo -mp, which hides NVLink (take topo -m), or a fabric "
            "that is down",
        )


def _nvlinks_expected(device: Device) -> int | None:
    """NVLinks of the product; None when the product is not known."""
    name = device.name.upper().replace("NVIDIA", "").strip()
    if "PCIE" in name or name == "GPU":
        return None if name == "GPU" else 0
    for word in ("GB200", "B200", "H200", "GH200", "H100", "A100"):
        if word in name:
            return find_product(word).nvlinks
    return 0


def _each_has_a_near_nic(node: Node) -> bool:
    near = node.near_nics
    if not near.size:
        return False
    away = node.distance[: len(node.devices), len(node.devices) :]
    return bool((away.min(axis=1) <= NEAR).all()) and len(np.unique(near, axis=0)) == len(node.devices)
