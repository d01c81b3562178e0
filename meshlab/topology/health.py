"""The rules that find what looks wrong with a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshlab import markup
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.model.hardware import Device, Node, parse_cpus
from meshlab.topology.model.links import HIDES_NVLINK, NEAR, UNKNOWN, Distance
from meshlab.topology.model.presets import ClusterLike, as_cluster
from meshlab.topology.model.products import find_product

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SEVERITIES", "Finding", "Findings", "Report", "absent_nvlinks", "health", "lost_nvlinks", "unknown_nvlinks"]


SEVERITIES = ("error", "warning", "note")
"""From the worst to the mildest."""

Report = Iterator[tuple[str, str, str, str]]
"""What a rule yields: severity, code, message and cure."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that looks wrong.

    Parameters
    ----------
    severity : {"error", "warning", "note"}
        error: jobs will be slow or fail; warning: probably not meant; note: good to know.
    code : str
        A short name that stays the same between versions.
    nodes : tuple of str
        The hosts it is true for.
    message : str
        What was seen.
    cure : str
        What to do.
    """

    severity: str
    code: str
    nodes: tuple[str, ...]
    message: str
    cure: str

    @property
    def where(self) -> str:
        """The hosts, in short.

        Examples
        --------
        >>> Finding("note", "mig", ("a", "b", "c", "d"), "", "").where
        'a, b and 2 more'
        """
        shown = ", ".join(self.nodes[:2])
        return shown if len(self.nodes) <= 2 else f"{shown} and {len(self.nodes) - 2:,} more"

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.message}; {self.cure}"


@dataclass(frozen=True, repr=False)
class Findings(Sequence[Finding]):
    """All findings of a cluster, the worst first."""

    items: tuple[Finding, ...]
    nodes: int
    devices: int

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Finding:  # type: ignore[override]
        return self.items[index]

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes, worst first."""
        return tuple(item.code for item in self.items)

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        seen = f"{self.devices:,} device{'s' * (self.devices != 1)} in {self.nodes:,} node{'s' * (self.nodes != 1)}"
        if not self.items:
            return f"nothing looks wrong with {seen}"
        counts = [(name, sum(item.severity == name for item in self.items)) for name in SEVERITIES]
        parts = [f"{count} {name}{'s' * (count > 1)}" for name, count in counts if count]
        return f"{', '.join(parts)} for {seen}"

    def frame(self) -> pd.DataFrame:
        """One row per finding."""
        import pandas as pd

        rows = [(f.severity, f.code, len(f.nodes), f.where, f.message, f.cure) for f in self.items]
        return pd.DataFrame(rows, columns=["severity", "code", "n_nodes", "where", "message", "cure"])

    def __str__(self) -> str:
        return "\n".join([self.summary, *map(str, self.items)])

    def __repr__(self) -> str:
        return f"<Findings: {self.summary}>"

    def _repr_html_(self) -> str:
        rows = [[item.severity, item.where, item.message, item.cure] for item in self.items]
        table = markup.table(["severity", "where", "what", "what to do"], rows) if rows else ""
        return markup.card("Health", self.summary, table)


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
