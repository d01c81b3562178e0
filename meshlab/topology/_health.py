"""Rules that detect faults and misconfiguration of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from meshlab.base import _markup as markup
from meshlab.base._numerals import whole
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Node, parse_cpus
from meshlab.topology.model._links import (
    HIDES_NVLINK,
    NEAR,
    UNKNOWN,
    XGMI,
    Distance,
    is_gpu_link,
    with_link_count,
)
from meshlab.topology.model._presets import ClusterLike, as_cluster
from meshlab.topology.model._products import find_product, is_bridged

if TYPE_CHECKING:
    import pandas as pd


SEVERITIES = ("error", "warning", "note")
"""The severities, most severe first."""

_PAIRS_PER_LOST_PAIR = 4  # up to one pair in four without NVLink is a fault; more are missing by design
_HIDDEN_PCIE_GBS = 1.0  # a slower PCIe link to the CPU is not real: even one lane of generation 4 has 1.5 GB/s
_UNNAMED = Device(id=0).name
_MOST_BRIDGED = 12  # links of three bridges between two cards
_BUSY_PERCENT = 20.0  # a GPU with this utilisation should run its PCIe link at full speed


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem on one or more hosts.

    Parameters
    ----------
    severity : {"error", "warning", "note"}
        ``error``: jobs will fail or be slow. ``warning``: probably unintended. ``note``: for information.
    code : str
        Short identifier, stable across versions.
    message : str
        The observation.
    fix : str
        The suggested fix.
    nodes : tuple of str
        Names of the affected hosts.
    """

    severity: str
    code: str
    message: str
    fix: str
    nodes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Names of the affected hosts, abbreviated if there are more than two.

        Examples
        --------
        >>> Finding("note", "mig", "", "", nodes=("a", "b", "c", "d")).where
        'a, b and 2 more'
        """
        names = ", ".join(self.nodes[:2])
        return names if len(self.nodes) <= 2 else f"{names} and {len(self.nodes) - 2:,} more"

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message}; {self.fix}"


@dataclass(frozen=True, repr=False)
class Findings(Sequence[Finding]):
    """All findings of a cluster, most severe first.

    Parameters
    ----------
    items : tuple of Finding
        The findings.
    nodes : int
        Number of hosts that were checked.
    devices : int
        Number of devices that were checked.
    """

    items: tuple[Finding, ...]
    nodes: int
    devices: int

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Finding:  # type: ignore[override]
        return self.items[index]

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings, most severe first."""
        return tuple(item.code for item in self.items)

    @property
    def summary(self) -> str:
        """Number of findings per severity, in one line."""
        checked = f"{self.devices:,} device{'s' * (self.devices != 1)} of {self.nodes:,} node{'s' * (self.nodes != 1)}"
        if not self.items:
            return f"no problems found in {checked}"
        counts = [(name, sum(item.severity == name for item in self.items)) for name in SEVERITIES]
        parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts if count]
        return f"{', '.join(parts)} in {checked}"

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per finding.

        Returns
        -------
        pandas.DataFrame
            ``severity``, ``code``, ``n_nodes`` (number of affected hosts), ``where`` (their names), ``message`` and
            ``fix``.
        """
        import pandas as pd

        rows = [(f.severity, f.code, len(f.nodes), f.where, f.message, f.fix) for f in self.items]
        return pd.DataFrame(rows, columns=["severity", "code", "n_nodes", "where", "message", "fix"])

    def __str__(self) -> str:
        return "\n".join([self.summary, *map(str, self.items)])

    def __repr__(self) -> str:
        return f"<Findings: {self.summary}; next: .frame()>"

    def _repr_html_(self) -> str:
        rows = [[item.severity, item.where, item.message, item.fix] for item in self.items]
        table = markup.table(["severity", "hosts", "finding", "suggested fix"], rows) if rows else ""
        return markup.card("Health", self.summary, table)


def health(cluster: ClusterLike) -> Findings:
    """Look for faults and misconfiguration, see `Cluster.health`. Identical hosts share a finding."""
    cluster = as_cluster(cluster)
    # Findings without hosts, mapped to their hosts: identical templates and templates with the same fault are joined.
    hosts_of: dict[Finding, list[str]] = {}
    hosts: list[list[str]] = [[] for _ in cluster.templates]
    for kind, name in zip(cluster.kinds.tolist(), cluster.names, strict=True):
        hosts[kind].append(name)
    kinds = zip(cluster.templates, hosts, strict=True)
    of_kinds = ((finding, names) for node, names in kinds for rule in _NODE_RULES for finding in rule(node))
    for finding, names in (*of_kinds, *_between_hosts(cluster, hosts)):
        hosts_of.setdefault(finding, []).extend(names)
    items = [replace(finding, nodes=tuple(names)) for finding, names in hosts_of.items()]
    items.sort(key=lambda item: SEVERITIES.index(item.severity))
    return Findings(tuple(items), cluster.n_nodes, cluster.n_devices)


# -- rules of one host -------------------------------------------------------------------------------------------------


def _incomplete(node: Node) -> Iterator[Finding]:
    """Report descriptions that are truncated or list no GPU."""
    if not node.complete:
        yield Finding(
            "note",
            "incomplete",
            "the description is truncated, so there may be more problems",
            "paste the complete output",
        )
    if not node.devices:
        start = "no GPU found"
        reason = next((note.removeprefix(f"{start}: ") for note in node.notes), "")
        yield Finding("note", "no-gpu", f"{start}: {reason}" if reason else start, "run nvidia-smi on that host")


def _asymmetric(node: Node) -> Iterator[Finding]:
    """Find links that differ between their two directions."""
    if tuple(zip(*node.words, strict=True)) == node.words:  # a tenth of the time of the loop below
        return
    pairs = [
        (node.ends[i], node.ends[j], node.words[i][j], node.words[j][i])
        for i in range(len(node.words))
        for j in range(i)
        if node.words[i][j] != node.words[j][i] and UNKNOWN not in (node.words[i][j], node.words[j][i])
    ]
    if pairs:
        first, second, there, back = pairs[0]
        yield Finding(
            "error",
            "asymmetric",
            f"the link matrix is not symmetric: {first} to {second} is {there}, {second} to {first} is {back}"
            + _and_more(len(pairs), "pair"),
            "read it again; if it persists, a link is failing or the paste mixes two machines",
        )


def _lost_nvlinks(node: Node) -> Iterator[Finding]:
    """Find GPUs or pairs without NVLink, or with fewer NVLinks than the others."""
    count = len(node.devices)
    links = node.nvlinks[:count, :count]
    is_known = node.distance[:count, :count] != Distance.UNKNOWN
    if count < 3 or not links.any():
        return
    usual = int(np.bincount(links[links > 0]).argmax())
    name, is_amd = node.gpu_link_name, node.gpu_link_name == XGMI
    sample = next(word for row in node.words for word in row if is_gpu_link(word))
    usual_word = XGMI if XGMI in set().union(*node.words) else with_link_count(sample, usual)
    per_gpu = (links > 0).sum(axis=1)
    # A truncated paste has rows that are partly unknown. They are not evidence of a lost GPU.
    lonely = [i for i in range(count) if per_gpu[i] == 0 and is_known[i].all()]
    if lonely and len(lonely) < count / 2 and np.median(per_gpu) >= 1:
        products = {device.name for device in node.devices} - {_UNNAMED}
        # Bridges connect only pairs, with at most 12 links.
        if all(map(is_bridged, products)) if products else per_gpu.max() == 1 and usual <= _MOST_BRIDGED:
            yield Finding(
                "note",
                "off-fabric",
                f"{_have(node, lonely)} no {name} bridge, but the other cards have {usual_word}",
                "if the card has a bridge, check that it is seated; otherwise nothing is wrong",
            )
        else:
            yield Finding(
                "error",
                "off-fabric",
                f"{_have(node, lonely)} no {name}, but the other GPUs have {usual_word}",
                (
                    "run amd-smi xgmi and dmesg"
                    if is_amd
                    else "run nvidia-smi nvlink -s and read the log of the fabric manager"
                )
                + " on that host, then reset or reseat the GPU; until then place no ranks on it",
            )
    full = [i for i in range(count) if i not in lonely and (per_gpu[i] or is_known[i].all())]
    inner = links[np.ix_(full, full)]
    off_diagonal = inner[~np.eye(len(full), dtype=bool)]
    # With NVSwitch every pair has the same number, so a GPU with fewer has lost links. Without NVSwitch the numbers
    # differ by design, as in a hybrid cube mesh.
    fewer = [full[i] for i in range(len(full)) if 0 < inner[i].max() < usual]
    if len(full) > 2 and (off_diagonal > 0).all() and fewer and len(fewer) < len(full) / 2:
        yield Finding(
            "error",
            "fewer-nvlinks",
            f"{_have(node, fewer)} {with_link_count(sample, int(inner[full.index(fewer[0])].max()))}, "
            f"but the other GPUs have {usual_word}",
            f"run {'amd-smi xgmi' if is_amd else 'nvidia-smi nvlink -e'} and look for errors; "
            "a GPU reset may restore failed links",
        )
    # NVLink bridges and hybrid cube meshes connect only some pairs, so many missing pairs are normal. A machine that
    # lacks only a few pairs has lost them.
    described = np.triu(is_known[np.ix_(full, full)], 1)
    apart = node.distance[np.ix_(full, full)] != Distance.NVLINK  # XGMI through other GPUs has no links of its own
    missing = np.argwhere(described & apart & apart.T)
    uniform = bool((off_diagonal[off_diagonal > 0] == usual).all())
    if len(missing) and uniform and len(missing) * _PAIRS_PER_LOST_PAIR <= described.sum():
        first, second = (full[index] for index in missing[0])
        yield Finding(
            "error",
            "pair-off-nvlink",
            f"{node.ends[first]} and {node.ends[second]} have no {name} between them"
            f"{_and_more(len(missing), 'pair')}, but the other pairs have {usual_word}",
            f"run {'amd-smi xgmi' if is_amd else 'nvidia-smi nvlink -s'} on that host and reset both GPUs; "
            "until then keep the two in different groups",
        )


def _unknown_nvlinks(node: Node) -> Iterator[Finding]:
    """Report sources that omit NVLink, so that the absence of findings is not mistaken for good health."""
    if len(node.devices) < 2 or any(device.backend != "cuda" for device in node.devices):
        return
    if not node.nvlink_known and HIDES_NVLINK not in node.notes:
        yield Finding(
            "note",
            "nvlink-unknown",
            "the source does not list NVLink, so its state is unknown",
            "query the driver with nvidia-smi topo -m on that host, or with ml.probe()",
        )
    elif any(bus == device.bus_id for device in node.devices for _, bus, _ in device.nvlink_remotes):
        yield Finding(
            "note",
            "nvlink-hidden",
            "NVLinks connect a GPU to itself, because the virtual machine hides their remote endpoints",
            "query the driver with nvidia-smi topo -m on that host, or with ml.probe()",
        )


def _absent_nvlinks(node: Node) -> Iterator[Finding]:
    """Find GPUs that have NVLink in a matrix without it: from a different command, or because the fabric is down."""
    count = len(node.devices)
    links = node.nvlinks[:count, :count]
    if HIDES_NVLINK in node.notes:
        yield Finding(
            "note", "mp", "nvidia-smi topo -mp omits NVLink, so its state is unknown", "run nvidia-smi topo -m"
        )
    if count < 2 or not node.nvlink_known or links.any() or not node.complete:
        return
    if (node.distance[:count, :count] == Distance.UNKNOWN).any():
        return
    expected = [_nvlinks_expected(device) for device in node.devices]
    words = " and ".join(sorted({node.words[i][j] for i in range(count) for j in range(i)}))
    if all(any(kind == "switch" for kind, _, _ in device.nvlink_remotes) for device in node.devices):
        yield Finding(
            "error",
            "nvlink-unused",
            f"every GPU has active NVLinks, but all pairs are {words}",
            "start the fabric manager, which is probably not running: systemctl status nvidia-fabricmanager",
        )
    elif all(expected):
        yield Finding(
            "error",
            "all-pcie",
            f"these GPUs have NVLink, but all pairs are {words}",
            "if this is the output of nvidia-smi topo -mp, which hides NVLink, run nvidia-smi topo -m; "
            "otherwise start the fabric manager: systemctl status nvidia-fabricmanager",
        )
    elif count in (4, 8) and None in expected and _each_has_a_near_nic(node):
        # The product is unknown. One NIC per GPU is typical of SXM servers, which have NVLink.
        yield Finding(
            "warning",
            "maybe-mp",
            f"{count} GPUs with one nearby NIC each, but without NVLink: all pairs are {words}",
            "if the GPUs are SXM modules, either this is the output of nvidia-smi topo -mp, which hides NVLink "
            "(run nvidia-smi topo -m), or the fabric is down",
        )


def _nvlinks_expected(device: Device) -> int | None:
    """Return the number of NVLinks of a product, or None if the product is unknown."""
    name = device.name.upper().replace("NVIDIA", "").strip()
    if name == _UNNAMED or is_bridged(name):  # a card without a bridge has no NVLink
        return None if name == _UNNAMED else 0
    # Longer names first: GB200 contains B200, and GH200 contains H200.
    for word in ("GB200", "B200", "GH200", "H200", "H100", "A100"):
        if word in name:
            return find_product(word).nvlinks
    return 0


def _each_has_a_near_nic(node: Node) -> bool:
    near = node.near_nics
    if not near.size:
        return False
    away = node.distance[: len(node.devices), len(node.devices) :]
    return bool((away.min(axis=1) <= NEAR).all()) and len(np.unique(near, axis=0)) == len(node.devices)


def _nics(node: Node) -> Iterator[Finding]:
    """Find GPUs without a near NIC, NICs that GPUs share although others are free, and inactive NICs."""
    count = len(node.devices)
    away = node.distance[:count, count:]
    if not away.size or (away == Distance.UNKNOWN).all(axis=1).any() or count < 2:
        return
    closest = away.min(axis=1)
    is_whole = (away != Distance.UNKNOWN).all(axis=1)
    if (closest <= NEAR).any():
        # Where a link is unknown, as in a row that was cut, a near NIC may be among the unknown ones.
        for distance in np.unique(closest[is_whole & (closest > NEAR)]):
            far = np.flatnonzero(is_whole & (closest == distance)).tolist()
            yield Finding(
                "warning",
                "no-near-nic",
                f"{_have(node, far)} no NIC closer than {Distance(int(distance)).name}, "
                "but other GPUs share a PCIe switch with one",
                "check for a missing or inactive NIC with ibstat and lspci",
            )
    near = node.near_nics
    nics_of_gpu = [set(np.flatnonzero(row).tolist()) for row in near]
    nearest = set().union(*nics_of_gpu)
    for nic in range(near.shape[1]):
        crowd = [i for i in range(count) if nics_of_gpu[i] == {nic} and closest[i] <= NEAR and is_whole[i]]
        free = [k for k in range(near.shape[1]) if k not in nearest and node.nics[k].gbits == node.nics[nic].gbits]
        if not is_whole.all():  # a NIC may be the nearest one of a GPU whose row was cut
            free = [k for k in free if (away[:, k] != Distance.UNKNOWN).all()]
        reach = [k for k in free if (away[crowd, k] <= Distance.NODE).any()] if crowd else []
        if len(crowd) > 1 and reach:
            yield Finding(
                "warning",
                "nic-crowded",
                f"{', '.join(node.ends[i] for i in crowd)} share their only nearest NIC {node.nics[nic].name}, "
                f"but {node.nics[reach[0]].name} in the same NUMA node is not the nearest NIC of any GPU",
                "unless that NIC is for storage, distribute the GPUs over the NICs with NCCL_IB_HCA or a topology file",
            )
    cut = [nic.name for nic in node.nics if not nic.is_connected]
    if cut:
        yield Finding(
            "error",
            "nic-cut",
            f"{', '.join(cut[:6])}{' and more' * (len(cut) > 6)} {'is' if len(cut) == 1 else 'are'} not connected",
            "replace the cable, or restore the switch at the other end",
        )
    down = [nic.name for nic in node.nics if nic.state and nic.state.upper() in ("DOWN", "INIT", "DISABLED", "POLLING")]
    if down:
        yield Finding(
            "warning",
            "nic-down",
            f"{', '.join(down[:6])}{' and more' * (len(down) > 6)} {'is' if len(down) == 1 else 'are'} not active",
            f"check the cable and the subnet manager with ibstat, or exclude the NIC with NCCL_IB_HCA=^{down[0]}",
        )


def _has_memory_nodes(numa: str) -> bool:
    """Whether an affinity such as ``0,2-17`` is a socket and NUMA nodes without CPUs: with Grace, the GPU's memory."""
    numbers = parse_cpus(numa)
    return len(numbers) > 1 and numbers[1] > numbers[0] + 1


def _affinity(node: Node) -> Iterator[Finding]:
    """Find GPUs whose NUMA node is hidden, or has no CPUs."""
    numas = {device.numa for device in node.devices if device.numa}
    spanning = [d for d in node.devices if d.numa and len(parse_cpus(d.numa)) > 1 and not _has_memory_nodes(d.numa)]
    by_cpus = {numa.id: set(parse_cpus(numa.cpus)) for numa in node.numa}
    if spanning:
        yield Finding(
            "warning",
            "affinity-spans",
            f"the affinity of {len(spanning)} GPUs spans NUMA nodes {spanning[0].numa}",
            "the virtual machine hides their location; pin each rank to one NUMA node and compare the times",
        )
    elif len(numas) == 1 and len(node.devices) >= 8 and len({d.cpus for d in node.devices}) == 1 and len(by_cpus) > 1:
        yield Finding(
            "note",
            "one-affinity",
            f"all {len(node.devices)} GPUs have the affinity of NUMA node {numas.pop()}, "
            f"but the host has {len(by_cpus)} NUMA nodes",
            "the virtual machine may hide their location; compare with the topology file of the cloud provider",
        )
    empty = [d for d in node.devices if d.numa and d.numa.isdecimal() and by_cpus.get(whole(d.numa)) == set()]
    if empty:
        yield Finding(
            "note",
            "numa-without-cpus",
            f"NUMA node {empty[0].numa} of {node.ends[node.devices.index(empty[0])]} has no CPUs, "
            "because it is GPU memory",
            "pin to the NUMA node of the CPU instead",
        )


def _pcie(node: Node) -> Iterator[Finding]:
    """Find PCIe links with a hidden speed, with fewer lanes than possible, or of an older generation under load."""
    paths = [(node.ends[i], device.pcie_path_gbs) for i, device in enumerate(node.devices)]
    hidden = [(end, gbs) for end, gbs in paths if gbs is not None and gbs < _HIDDEN_PCIE_GBS]
    if hidden:
        yield Finding(
            "warning",
            "pcie-speed-hidden",
            f"NCCL assumes {hidden[0][1]:g} GB/s for the PCIe path from {', '.join(end for end, _ in hidden)} "
            "to the CPU, because the bridges of a virtual machine do not report the real speed",
            "set NCCL_TOPO_FILE to the topology file of the cloud provider, "
            "because NCCL avoids links that it assumes to be slow",
        )
    for i, device in enumerate(node.devices):
        width, most = device.pcie_width, device.pcie_width_max
        if width and most and width < most:
            yield Finding(
                "error",
                "pcie-width",
                f"{node.ends[i]} uses {width} of {most} PCIe lanes",
                "reseat the card or the riser; in a virtual machine the number may be wrong",
            )
        generation, newest = device.pcie_generation, device.pcie_generation_max
        # Idle GPUs lower the generation to save power. Only a busy GPU with a slow link has a problem.
        is_busy = (device.utilisation_percent or 0) >= _BUSY_PERCENT
        if is_busy and generation and newest and generation < newest:
            yield Finding(
                "warning",
                "pcie-generation",
                f"{node.ends[i]} is busy, but its PCIe link runs at generation {generation} of {newest}",
                "check the BIOS settings and lspci -vv; only idle GPUs should lower the generation",
            )


def _devices(node: Node) -> Iterator[Finding]:
    """Find partitioned, mixed, faulty and unreachable GPUs."""
    parted = [node.ends[i] for i, device in enumerate(node.devices) if device.mig]
    if parted:
        yield Finding(
            "warning" if len(parted) < len(node.devices) else "note",
            "mig",
            f"MIG mode is on for {', '.join(parted[:4])}{' and more' * (len(parted) > 4)}",
            "MIG partitions have no peer access and no NVLink; disable MIG with nvidia-smi -mig 0",
        )
    names = sorted({device.name for device in node.devices if device.name != _UNNAMED})
    if len(names) > 1:
        yield Finding(
            "warning",
            "mixed-gpus",
            f"the host has {' and '.join(names)}",
            "use a separate mesh for each product; mixed groups run at the speed of the slower one",
        )
    faulty = [i for i, device in enumerate(node.devices) if device.ecc_uncorrected]
    if faulty:
        yield Finding(
            "error",
            "ecc",
            f"{_have(node, faulty)} memory errors that ECC could not correct",
            "take the GPU out of service, run nvidia-smi -q -d ECC, then reset the GPU",
        )
    lost = [node.ends[i] for i, device in enumerate(node.devices) if "name" in device.unknown]
    if lost:
        yield Finding(
            "error",
            "lost",
            f"{', '.join(lost)} did not respond: {node.devices[node.ends.index(lost[0])].unknown['name']}",
            "look for Xid errors in dmesg, then restart the host",
        )
    waiting = [(node.ends[i], d.unknown["fabric"]) for i, d in enumerate(node.devices) if _has_no_fabric(d)]
    if waiting:
        yield Finding(
            "error",
            "fabric-not-ready",
            f"{waiting[0][0]}: {waiting[0][1]}{_and_more(len(waiting), 'GPU')}",
            "start the fabric manager, or IMEX in racks: systemctl status nvidia-fabricmanager nvidia-imex",
        )
    blocked = [
        (node.ends[i], node.ends[j])
        for i, row in enumerate(node.p2p)
        for j, word in enumerate(row)
        if j < i and word in ("NS", "CNS", "GNS", "TNS", "DR")
    ]
    if blocked:
        yield Finding(
            "warning",
            "no-peer-access",
            f"{blocked[0][1]} and {blocked[0][0]} cannot access each other's memory{_and_more(len(blocked), 'pair')}",
            "check ACS, the IOMMU and the driver settings, because copies go through the host; "
            "consumer GPUs do not support peer access",
        )


def _has_no_fabric(device: Device) -> bool:
    return any(state in device.unknown.get("fabric", "") for state in ("not started", "in progress"))


def _have(node: Node, devices: Sequence[int]) -> str:
    """Return the beginning of a sentence about what devices have."""
    return f"{', '.join(node.ends[i] for i in devices)} {'has' if len(devices) == 1 else 'have'}"


def _and_more(count: int, noun: str) -> str:
    """Return the suffix that counts the findings after the first one."""
    return f" (and {count - 1} more {noun}{'s' * (count > 2)})" if count > 1 else ""


_NODE_RULES: tuple[Callable[[Node], Iterator[Finding]], ...] = (
    *(_incomplete, _asymmetric, _lost_nvlinks, _unknown_nvlinks, _absent_nvlinks),
    *(_nics, _affinity, _pcie, _devices),
)


# -- rules between hosts -----------------------------------------------------------------------------------------------


def _between_hosts(cluster: Cluster, hosts: Sequence[Sequence[str]]) -> Iterator[tuple[Finding, list[str]]]:
    """Find hosts that differ from the majority, and return them with their finding."""
    for code, noun, facts, fix in (
        (
            "mixed-hosts",
            "GPU product",
            [", ".join(sorted({d.name for d in t.devices})) for t in cluster.templates],
            "place groups on identical hosts; mixed groups run at the speed of the slower product",
        ),
        (
            "uneven-hosts",
            "number of GPUs",
            [str(len(t.devices)) for t in cluster.templates],
            "exclude GPUs of the other hosts with devices=, so that ranks and hosts align",
        ),
        (
            "mixed-drivers",
            "driver version",
            [", ".join(sorted({d.driver_version for d in t.devices if d.driver_version})) for t in cluster.templates],
            "install the same driver on all hosts; versions differ in NVLink and GPUDirect behaviour",
        ),
        (
            "mixed-nics",
            "NICs",
            [_nic_rates(t) for t in cluster.templates],
            "compare ibstat or ethtool on both; groups that include these hosts run at the speed of their NICs",
        ),
    ):
        values: dict[str, list[str]] = {}
        for value, names in zip(facts, hosts, strict=True):
            if value:
                values.setdefault(value, []).extend(names)
        usual = max(values, key=lambda value: len(values[value]), default="")
        for value, names in values.items():
            if value != usual:
                verb = "are" if noun == "NICs" else "is"
                yield Finding("warning", code, f"the {noun} {verb} {value}, but on most hosts {usual}", fix), names


def _nic_rates(node: Node) -> str:
    """Return the rates of the NICs of a host, such as "8 × 400 Gb/s", without those that are far slower."""
    rates = [nic.gbits for nic in node.nics if nic.gbits is not None]
    # A NIC for management may have no link on some hosts, which is no reason to worry. A NIC for data that has lost its
    # rate is missing here too.
    counts = {rate: rates.count(rate) for rate in sorted(set(rates), reverse=True) if rate * 8 > max(rates)}
    return ", ".join(f"{count} × {rate:g} Gb/s" for rate, count in counts.items())
