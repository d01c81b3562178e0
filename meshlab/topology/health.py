"""The rules that find what looks wrong with a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meshlab.topology.model.cluster import Cluster
from meshlab.topology.cpus import parse_cpus
from meshlab.topology.findings import SEVERITIES, Finding, Findings, Report
from meshlab.topology.given import ClusterLike, as_cluster
from meshlab.topology.model.hardware import Device, Node
from meshlab.topology.model.links import NEAR, UNKNOWN, Distance
from meshlab.topology.nvlink_rules import absent_nvlinks, lost_nvlinks, unknown_nvlinks

__all__ = ["health"]

_BUSY = 20.0  # percent of utilisation from which a PCIe link should run at full speed


def health(cluster: ClusterLike) -> Findings:
    """Look for what seems wrong with the hosts of a cluster.

    Parameters
    ----------
    cluster : Cluster or str
        A cluster, or the name of a preset.

    Returns
    -------
    Findings
        A sequence of `Finding`, the worst first. Like hosts are looked at once.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> from meshlab.topology.readers.nvidia_smi import read_nvidia_smi
    >>> health(preset("dgx-h100", nodes=4)).summary
    'nothing looks wrong with 32 devices in 4 nodes'
    >>> print(health(read_nvidia_smi('''
    ...       GPU0  GPU1  GPU2
    ... GPU0   X    NV18  NODE
    ... GPU1  NV18   X    NODE
    ... GPU2  NODE  NODE   X
    ... ''')))
    1 error for 3 devices in 1 node
    error: node0: GPU2 has no NVLink while the others have NV18; check nvidia-smi nvlink -s and the fabric manager's
    log on that host, reset the GPU or reseat it, and keep ranks off it until then
    """
    cluster = as_cluster(cluster)
    found: dict[tuple[str, str, str, str], list[str]] = {}
    hosts: list[list[str]] = [[] for _ in cluster.templates]
    for kind, name in zip(cluster.kinds.tolist(), cluster.names, strict=True):
        hosts[kind].append(name)
    for template, names in zip(cluster.templates, hosts, strict=True):
        for rule in _NODE_RULES:
            for finding in rule(template):
                found.setdefault(finding, []).extend(names)
    for severity, code, message, cure, names in _between_hosts(cluster, hosts):
        found.setdefault((severity, code, message, cure), []).extend(names)
    items = [
        Finding(severity, code, tuple(names), message, cure) for (severity, code, message, cure), names in found.items()
    ]
    items.sort(key=lambda item: SEVERITIES.index(item.severity))
    return Findings(tuple(items), cluster.n_nodes, cluster.n_devices)


# -- one host ----------------------------------------------------------------------------------------------------------


def _incomplete(node: Node) -> Report:
    if not node.complete:
        yield (
            "note",
            "incomplete",
            "the description was cut, so other findings may be missing",
            "paste the whole output",
        )
    if not node.devices:
        seen = "no GPU was seen"
        why = next((note.removeprefix(f"{seen}: ") for note in node.notes), "")
        yield "note", "no-gpu", f"{seen}: {why}" if why else seen, "see what nvidia-smi says on that host"


def _asymmetric(node: Node) -> Report:
    pairs = [
        (node.ends[i], node.ends[j], node.words[i][j], node.words[j][i])
        for i in range(len(node.words))
        for j in range(i)
        if node.words[i][j] != node.words[j][i] and UNKNOWN not in (node.words[i][j], node.words[j][i])
    ]
    if pairs:
        one, other, there, back = pairs[0]
        more = f", and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
        yield (
            "error",
            "asymmetric",
            f"the matrix is not symmetric: {one} to {other} is {there}, back it is {back}{more}",
            "read it again; if it stays, a link is going down or the paste mixes two machines",
        )


def _nics(node: Node) -> Report:
    count = len(node.devices)
    away = node.distance[:count, count:]
    if not away.size or (away == Distance.UNKNOWN).all(axis=1).any() or count < 2:
        return
    closest = away.min(axis=1)
    if (closest <= NEAR).any():
        far = [i for i in range(count) if closest[i] > NEAR]
        if far:
            names = ", ".join(node.ends[i] for i in far)
            word = Distance(int(closest[far].max())).name
            yield (
                "warning",
                "no-near-nic",
                f"{names} {'has' if len(far) == 1 else 'have'} no NIC nearer than {word}, others have one by a switch",
                "check whether a NIC is missing or down: ibstat, lspci",
            )
    near = node.near_nics
    used = np.flatnonzero(near.any(axis=0)).tolist()
    own = [set(np.flatnonzero(row).tolist()) for row in near]
    for nic in range(near.shape[1]):
        crowd = [i for i in range(count) if own[i] == {nic} and closest[i] <= NEAR]
        free = [k for k in range(near.shape[1]) if k not in used and node.nics[k].gbits == node.nics[nic].gbits]
        reach = [k for k in free if (away[crowd, k] <= Distance.NODE).any()] if crowd else []
        if len(crowd) > 1 and reach:
            yield (
                "warning",
                "nic-crowded",
                f"{', '.join(node.ends[i] for i in crowd)} are nearest to {node.nics[nic].name} alone, while "
                f"{node.nics[reach[0]].name} in the same NUMA node is nearest to none",
                "spread them with NCCL_IB_HCA or a topology file, if the free NIC is not for storage",
            )
    down = [nic.name for nic in node.nics if nic.state and nic.state.upper() in ("DOWN", "INIT", "DISABLED", "POLLING")]
    if down:
        yield (
            "warning",
            "nic-down",
            f"{', '.join(down[:6])}{' and more' * (len(down) > 6)} {'is' if len(down) == 1 else 'are'} not active",
            "check the cable and the subnet manager (ibstat), or leave it out with NCCL_IB_HCA=^" + down[0],
        )


def _affinity(node: Node) -> Report:
    numas = {device.numa for device in node.devices if device.numa}
    spanning = [d for d in node.devices if d.numa and len(parse_cpus(d.numa)) > 1]
    by_cpus = {numa.id: set(parse_cpus(numa.cpus)) for numa in node.numa}
    if spanning:
        yield (
            "warning",
            "affinity-spans",
            f"the affinity of {len(spanning)} GPUs spans NUMA nodes {spanning[0].numa}",
            "the virtual machine hides where they are: pin each rank to the cores of one node and measure both",
        )
    elif len(numas) == 1 and len(node.devices) >= 8 and len({d.cpus for d in node.devices}) == 1 and len(by_cpus) > 1:
        yield (
            "note",
            "one-affinity",
            f"all {len(node.devices)} GPUs have the affinity of NUMA node {numas.pop()}, of {len(by_cpus)} in the host",
            "the virtual machine may hide where they are; compare with the cloud's topology file",
        )
    empty = [d for d in node.devices if d.numa and d.numa.isdecimal() and by_cpus.get(int(d.numa)) == set()]
    if empty:
        yield (
            "note",
            "numa-without-cpus",
            f"NUMA node {empty[0].numa} of {node.ends[node.devices.index(empty[0])]} has no CPUs: it is GPU memory",
            "do not pin to it; take the CPU's own NUMA node",
        )


def _pcie(node: Node) -> Report:
    for i, device in enumerate(node.devices):
        now, most = device.pcie_width, device.pcie_width_max
        if now and most and now < most:
            yield (
                "error",
                "pcie-width",
                f"{node.ends[i]} runs on {now} of {most} PCIe lanes",
                "reseat the card or the riser; a VM may report a wrong number",
            )
        slow = (
            device.pcie_generation
            and device.pcie_generation_max
            and device.pcie_generation < device.pcie_generation_max
        )
        if slow and (device.utilisation_percent or 0) >= _BUSY:
            yield (
                "warning",
                "pcie-generation",
                f"{node.ends[i]} is busy, but its PCIe link runs at generation {device.pcie_generation} of "
                f"{device.pcie_generation_max}",
                "idle GPUs lower it, busy ones should not: check the BIOS and lspci -vv",
            )


def _devices(node: Node) -> Report:
    parted = [node.ends[i] for i, device in enumerate(node.devices) if device.mig]
    if parted:
        yield (
            "warning" if len(parted) < len(node.devices) else "note",
            "mig",
            f"MIG cuts {', '.join(parted[:4])}{' and more' * (len(parted) > 4)}",
            "slices have no peer access and no NVLink between them; nvidia-smi -mig 0 joins them again",
        )
    names = sorted({device.name for device in node.devices})
    if len(names) > 1:
        yield (
            "warning",
            "mixed-gpus",
            f"one host has {' and '.join(names)}",
            "groups over both run at the pace of the slower one; give each kind its own mesh",
        )
    worn = [node.ends[i] for i, device in enumerate(node.devices) if device.ecc_uncorrected]
    if worn:
        yield (
            "error",
            "ecc",
            f"{', '.join(worn)} {'has' if len(worn) == 1 else 'have'} memory errors that ECC could not correct",
            "take the GPU out of service: nvidia-smi -q -d ECC, then reset it",
        )
    lost = [node.ends[i] for i, device in enumerate(node.devices) if "name" in device.unknown]
    if lost:
        yield (
            "error",
            "lost",
            f"{', '.join(lost)} did not answer: {node.devices[node.ends.index(lost[0])].unknown['name']}",
            "look for Xid errors in dmesg, and restart the host",
        )
    waiting = [(node.ends[i], d.unknown["fabric"]) for i, d in enumerate(node.devices) if _fabric_trouble(d)]
    if waiting:
        yield (
            "error",
            "fabric-not-ready",
            f"{waiting[0][0]}: {waiting[0][1]}" + (f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""),
            "start the fabric manager, or IMEX on racks: systemctl status nvidia-fabricmanager nvidia-imex",
        )
    blocked = [
        (node.ends[i], node.ends[j])
        for i, row in enumerate(node.p2p)
        for j, word in enumerate(row)
        if j < i and word in ("NS", "CNS", "GNS", "TNS", "DR")
    ]
    if blocked:
        yield (
            "warning",
            "no-peer-access",
            f"{blocked[0][1]} and {blocked[0][0]} cannot reach each other's memory"
            + (f", nor can {len(blocked) - 1} more pairs" if len(blocked) > 1 else ""),
            "copies go through the host: consumer GPUs never can; else check ACS, IOMMU and the driver's settings",
        )


def _fabric_trouble(device: Device) -> bool:
    return any(word in device.unknown.get("fabric", "") for word in ("not started", "in progress"))


_NODE_RULES: tuple[Callable[[Node], Report], ...] = (
    _incomplete,
    _asymmetric,
    lost_nvlinks,
    unknown_nvlinks,
    absent_nvlinks,
    _nics,
    _affinity,
    _pcie,
    _devices,
)


# -- between hosts -----------------------------------------------------------------------------------------------------


def _between_hosts(cluster: Cluster, hosts: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, str, str, list[str]]]:
    for code, what, severity, facts, cure in (
        (
            "mixed-hosts",
            "GPUs",
            "warning",
            [", ".join(sorted({d.name for d in t.devices})) for t in cluster.templates],
            "groups over both run at the pace of the slower one; place them on like hosts",
        ),
        (
            "uneven-hosts",
            "number of GPUs",
            "warning",
            [str(len(t.devices)) for t in cluster.templates],
            "ranks do not line up with hosts; say with devices= which GPUs to leave out",
        ),
        (
            "mixed-drivers",
            "driver",
            "warning",
            [", ".join(sorted({d.driver_version for d in t.devices if d.driver_version})) for t in cluster.templates],
            "bring all hosts to one driver: versions differ in NVLink and GPUDirect behaviour",
        ),
    ):
        values: dict[str, list[str]] = {}
        for value, names in zip(facts, hosts, strict=True):
            if value:
                values.setdefault(value, []).extend(names)
        if len(values) > 1:
            usual = max(values, key=lambda value: len(values[value]))
            for value, names in values.items():
                if value != usual:
                    yield severity, code, f"the {what} here is {value}, on most hosts it is {usual}", cure, names
