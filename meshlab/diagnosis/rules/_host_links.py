"""Rules for the links inside a host, and for settings of the host that limit them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Level, TextFinding, line_numbers, rule
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._gpu_tools import matrix_numbers, read_nvlinks
from meshlab.diagnosis.formats._host_settings import read_access_control, read_limits, read_pcie_links
from meshlab.diagnosis.formats._machine_text import health_of, machine_of, matrix_of, tree_of
from meshlab.diagnosis.rules._line_rules import LineRule, matching, rules_of
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._links import NEAR, UNKNOWN, Distance

_HEALTH = "ml.Cluster.health"
_SMI = "nvidia-smi topo -h"
_ACS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"

# Codes of `meshlab.topology._health` that other rules of this package find in the same text with its lines, or that do
# not follow from a pasted text.
_REPORTED_ELSEWHERE = frozenset(
    (
        "incomplete",
        "no-gpu",
        "nic-down",
        "lost",
        "ecc",
        "fabric-not-ready",
        "no-peer-access",
        "nvlink-unknown",
        "all-pcie",
    )
)
_CODES = {
    "off-fabric": "gpu-without-nvlink",
    "no-near-nic": "nic-far-from-gpu",
    "nvlink-unused": "no-nvlink",
    "maybe-mp": "no-nvlink",
}
# Virtual machines of cloud providers, which a user cannot mend, and GPUs that somebody partitioned.
_BY_DESIGN = frozenset(("affinity-spans", "mig"))
_LEVELS: dict[str, Level] = {"error": "error", "warning": "warning", "note": "info"}
# NCCL prints only the GPUs of a communicator, so that hosts may differ without a reason to worry.
_OF_WHOLE_HOSTS = frozenset(("uneven-hosts", "mixed-hosts", "mixed-drivers", "mixed-nics"))
_GPU = re.compile(r"\b(?:GPU|NIC)\d+\b")
_ONE_GPU = re.compile(r"_perf\b.*(?<!\S)-g 1\b|\bCUDA_VISIBLE_DEVICES=\d+(?![\d,])")
_P2P_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : \d+\[([0-9a-fA-F]+)\] -> \d+\[([0-9a-fA-F]+)\] .*via P2P")
_IOMMU_FAULT = re.compile(
    r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): AMD-Vi: Event logged \[IO_PAGE_FAULT"
    r"|DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[([0-9a-f:.]+)\]|AMD-Vi: Event logged \[IO_PAGE_FAULT"
)
_MEMLOCK = 64 << 20
_FILES = 4096
_SHM = 1 << 30


@rule("host-health", "A fault or misconfiguration of the links inside a host", source=_HEALTH)
def host_health(paste: Paste) -> Iterator[TextFinding]:
    """Applies the rules of `meshlab.topology._health` to the matrices and trees in the text."""
    is_tree = paste.once(matrix_of) is None
    for item in paste.once(health_of) or ():
        if item.code in _REPORTED_ELSEWHERE or (is_tree and item.code in _OF_WHOLE_HOSTS):
            continue
        code = _CODES.get(item.code, item.code)
        if code == "nic-far-from-gpu":
            continue  # another rule reports it with the nearest NIC
        names = _GPU.findall(item.message.partition(" but ")[0])
        subject = ", ".join(dict.fromkeys(names)) or "all GPUs"
        subject += f" of {item.where}" if item.nodes and item.nodes != ("node0",) else ""
        do = f"{item.fix[0].upper()}{item.fix[1:]}."
        why = f"{item.message[0].upper()}{item.message[1:]}."
        level = "info" if item.code in _BY_DESIGN else _LEVELS[item.severity]
        yield TextFinding(code, subject, level, why, do, line_numbers(_matrix_rows(paste, names)))


@rule("nic-far-from-gpu", "No NIC is near a GPU", source=(_SMI, _HEALTH))
def nic_far_from_gpu(paste: Paste) -> Iterator[TextFinding]:
    """Looks in the link matrix for GPUs without a NIC behind their PCIe switch, if other GPUs have one."""
    far_hosts = {name for item in paste.once(health_of) or () if item.code == "no-near-nic" for name in item.nodes}
    for node, names in _kinds(paste):
        if names[0] not in far_hosts:
            continue
        count = len(node.devices)
        away = node.distance[:count, count:]
        # The rows of the NICs alone do not show which of their columns are GPUs.
        is_known = [UNKNOWN not in node.words[i][count:] for i in range(count)]
        if not (far := [i for i in range(count) if away[i].min() > NEAR and is_known[i]]):
            continue
        described = [
            f"{node.ends[i]} (nearest NIC {node.nics[int(away[i].argmin())].name} at "
            f"{Distance(int(away[i].min())).name})"
            for i in far
        ]
        near = [
            f"{node.ends[i]} with {node.nics[int(away[i].argmin())].name}"
            for i in range(count)
            if away[i].min() <= NEAR
        ]
        why = f"{', '.join(described[:8])} reach{'es' if len(far) == 1 else ''} every NIC only through the CPU. "
        why += f"Behind one PCIe switch are {', '.join(near[:8])}."
        do = "Check for a missing or inactive NIC with ibstat and lspci. "
        if any(_ONE_GPU.search(line.text) for line in paste.find("-g 1", "CUDA_VISIBLE_DEVICES=")):
            best = next(i for i in range(count) if away[i].min() <= NEAR)
            do += "The command in the text uses one GPU per process, which is GPU0 if every process is alone on its "
            do += f"host. In that case, set CUDA_VISIBLE_DEVICES={node.devices[best].id}. "
        do += "Compare times on the near and the far GPUs before blaming the network."
        yield nic_far_from_gpu.finding(
            "warning",
            f"{', '.join(described[:8])}{_of(names)}",
            why,
            do,
            _matrix_rows(paste, [node.ends[i] for i in far]),
        )


@rule("no-nvlink", "There is no NVLink between the GPUs", source=_SMI)
def no_nvlink(paste: Paste) -> Iterator[TextFinding]:
    """Looks for complete link matrices of several GPUs without NVLink. It is a fault only if the product has NVLink."""
    findings = paste.once(health_of) or ()
    faults = {name: item for item in findings if item.code == "all-pcie" for name in item.nodes}
    reported = {name for item in findings if item.code in ("maybe-mp", "nvlink-unused", "mp") for name in item.nodes}
    for node, names in _kinds(paste):
        count = len(node.devices)
        inner = node.distance[:count, :count]
        is_complete = node.nvlink_known and node.complete and not (inner == Distance.UNKNOWN).any()
        if count < 2 or not is_complete or (inner == Distance.NVLINK).any() or names[0] in reported:
            continue
        where = f"{node.ends[0]}-{node.ends[count - 1]}" + _of(names)
        lines = _matrix_rows(paste, [])
        if names[0] in faults:
            item = faults[names[0]]
            why, do = f"{item.message[0].upper()}{item.message[1:]}.", f"{item.fix[0].upper()}{item.fix[1:]}."
            yield no_nvlink.finding("error", where, why, do, lines)
            continue
        near = [
            f"{node.ends[i]}-{node.ends[j]}" for i in range(count) for j in range(i + 1, count) if inner[i, j] <= NEAR
        ]
        why = f"No pair of GPUs has {node.gpu_link_name}, so they communicate over PCIe."
        why += f" {', '.join(near[:6])}{' and more' * (len(near) > 6)} share a PCIe switch." if near else ""
        do = "Put ranks that exchange most on such a pair." if near and len(near) < count * (count - 1) // 2 else ""
        yield no_nvlink.finding("info", where, why, do, lines)


@rule("nvlink-p2p-broken", "GPUs have NVLink but no peer access", source=_SMI)
def nvlink_p2p_broken(paste: Paste) -> Iterator[TextFinding]:
    """Compares nvidia-smi topo -p2p with the NVLinks in topo -m or nvlink -s."""
    active = {(link.host, link.gpu) for link in paste.once(read_nvlinks) if link.gbs is not None}
    for node, names in _kinds(paste):
        pairs = [
            (i, j)
            for i, j in _blocked(node)
            if node.nvlinks[i, j] > 0
            or (not node.nvlink_known and {(None, node.devices[i].id), (None, node.devices[j].id)} <= active)
        ]
        if pairs:
            i, j = pairs[0]
            more = f" and {len(pairs) - 1} more pair{'s' * (len(pairs) > 2)}" if len(pairs) > 1 else ""
            yield nvlink_p2p_broken.finding(
                "error",
                f"{node.ends[i]} and {node.ends[j]}{more}" + _of(names),
                f"The GPUs have NVLink between them, but the driver reports {node.p2p[i][j]} for peer access.",
                "Check the fabric manager and dmesg for NVLink errors, and that no MIG mode, virtual machine or "
                "registry key of the driver disables peer access. Then reset both GPUs.",
                [paste.line(number) for number in matrix_numbers(paste)],
            )


@rule("p2p-not-supported", "The driver offers no peer access between GPUs", source=_SMI)
def p2p_matrix(paste: Paste) -> Iterator[TextFinding]:
    """Looks for pairs in nvidia-smi topo -p2p that are not OK, without NVLink between them."""
    active = {(link.host, link.gpu) for link in paste.once(read_nvlinks) if link.gbs is not None}
    for node, names in _kinds(paste):
        pairs = [(i, j) for i, j in _blocked(node) if node.nvlinks[i, j] == 0]
        if not pairs or active:
            continue
        words = sorted({node.p2p[i][j] for i, j in pairs})
        meanings = ", ".join(f"{word} ({_P2P_WORDS[word]})" for word in words)
        ends = sorted({k for pair in pairs for k in pair})
        where = ", ".join(node.ends[k] for k in ends[:8]) + _of(names)
        yield p2p_matrix.finding(
            "warning" if {"CNS", "TNS", "DR"} & set(words) else "info",
            where,
            f"The driver reports {meanings} for {len(pairs)} pair{'s' * (len(pairs) > 1)}, so data goes through the "
            "memory of the host. For consumer GPUs this is by design. If the matrix is that of topo -p2p n, it only "
            "means that there is no NVLink.",
            ""
            if words == ["GNS"]
            else "Check the settings of the driver, MIG and the IOMMU if peer access is expected.",
            [paste.line(number) for number in matrix_numbers(paste)],
        )


_P2P_WORDS = {
    "NS": "not supported",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "disabled by a registry key",
}


@rule("healthy-matrix", "The links inside the host are as they should be", source=(_SMI, _HEALTH))
def healthy_matrix(paste: Paste) -> Iterator[TextFinding]:
    """Looks for matrices and trees in which no rule finds a fault, and says what they show."""
    if paste.once(matrix_of) is None and paste.once(tree_of) is None:
        return
    faults = (item for item in paste.once(health_of) or () if item.severity != "note" and item.code not in _BY_DESIGN)
    faulty = {name for item in faults for name in item.nodes}
    for node, names in _kinds(paste):
        count = len(node.devices)
        if count < 2 or names[0] in faulty or _blocked(node):
            continue
        sentences = []
        described: set[int] = set()  # GPUs of the sentences, because the subject must not name the others
        if node.p2p and all(word == "OK" for i, row in enumerate(node.p2p) for j, word in enumerate(row) if i != j):
            sentences.append(f"The driver allows peer access between {'both' if count == 2 else f'all {count}'} GPUs.")
            described.update(range(count))
        inner = node.distance[:count, :count]
        off = ~np.eye(count, dtype=bool)
        if rows := [i for i in range(count) if (inner[i][off[i]] == Distance.NVLINK).all()]:
            links = sorted({int(node.nvlinks[i, j]) for i in rows for j in range(count) if i != j})
            those = "All GPUs reach" if len(rows) == count else f"{', '.join(_end(node, i) for i in rows)} reach"
            those = those.replace("reach", "reaches") if len(rows) == 1 else those
            sentences.append(f"{those} all others over NVLink (NV{', NV'.join(map(str, links))}).")
            described.update(rows)
        away = node.distance[:count, count:]
        near = [i for i in sorted(described) if away.shape[1] and away[i].min() <= NEAR]
        if near and len(near) < count:
            nics = [", ".join(node.nics[k].name for k in np.flatnonzero(away[i] == away[i].min())) for i in near]
            words = [Distance(int(away[i].min())).name for i in near]
            parts = [f"{node.ends[i]} {nic} ({word})" for i, nic, word in zip(near, nics, words, strict=True)]
            sentences.append(f"Nearest NICs: {'; '.join(parts[:8])}.")
        if near and len(near) == count:
            sentences.append("Every GPU has a NIC behind its PCIe switch.")
        if not sentences:
            continue
        if not node.complete:
            sentences.append("What the text does not show is unknown.")
        do = ""
        if node.p2p and not (inner == Distance.NVLINK).any():
            do = (
                "If peer-to-peer transfers are slow or hang anyway, look at ACS (sudo lspci -vvv | grep ACSCtl): OK "
                "does not rule it out."
            )
        ends = sorted(described)
        where = (
            f"{node.ends[0]}-{node.ends[count - 1]}" if len(ends) == count else ", ".join(_end(node, i) for i in ends)
        )
        where += _of(names)
        yield TextFinding(
            "nothing-wrong", where, "info", " ".join(sentences), do, line_numbers(_matrix_rows(paste, []))
        )


@rule("acs-iommu-p2p", "ACS redirects PCIe peer-to-peer transfers", source=_ACS, causes=("nccl-timeout",))
def acs_iommu_p2p(paste: Paste) -> Iterator[TextFinding]:
    """Looks for bridges with ACS switches that are on, and for channels of NCCL that use P2P without NVLink."""
    controls = paste.once(read_access_control)
    yield from _iommu(paste)
    on = [item for item in controls if {"SrcValid", "ReqRedir", "CmpltRedir"} & set(item.on)]
    if not controls:
        return
    if not on:
        yield TextFinding(
            "nothing-wrong",
            f"ACS of {len(controls)} bridges",
            "info",
            "ACS is off on all bridges that the text shows, so it does not redirect peer-to-peer transfers.",
            "",
            line_numbers(item.line for item in controls),
        )
        return
    channels = paste.matches(_P2P_CHANNEL, "via P2P")
    gpus = list(dict.fromkeys(bus for _, match in channels for bus in (match[1], match[2])))
    host = next((re.split(r":\d+:", line.text)[0] for line, _ in channels), "")
    named = f"GPUs {' and '.join(_short(bus) for bus in gpus[:4])}{' of ' + host if host else ''}" if gpus else ""
    bridges = [item.device for item in on if item.device is not None]
    subject = named or (f"bridges {', '.join(bridges[:6])}" if bridges else f"{len(on)} PCIe bridges")
    hangs = bool(paste.find("hang", "Hang", "stuck"))
    switches = ", ".join(f"{name}+" for name in on[0].on)
    why = f"ACS is on for {len(on)} of {len(controls)} bridges ({switches}). It sends peer-to-peer transfers to the "
    why += "root complex and the IOMMU, which makes them slow or wrong, or lets them hang."
    if gpus:
        why += " NCCL uses P2P between these GPUs" + (", and the text reports a hang." if hangs else ".")
    yield acs_iommu_p2p.finding(
        "error" if gpus else "warning",
        subject,
        why,
        "Turn off ACS and the IOMMU (VT-d, AMD-Vi) in the BIOS, or ACS with setpci on these bridges. A run that works "
        "with NCCL_P2P_DISABLE=1 confirms the cause; it needs enough /dev/shm. In a virtual machine, ACS must stay "
        "on: use ATS instead.",
        [*(item.line for item in on), *(line for line, _ in channels[:2])],
    )


def _iommu(paste: Paste) -> Iterator[TextFinding]:
    """Find faults of the IOMMU in the kernel log that name a GPU or a NIC, and an IOMMU that translates."""
    if faults := paste.matches(_IOMMU_FAULT, "IO_PAGE_FAULT", "DMAR:"):
        devices = list(dict.fromkeys(device for _, match in faults if (device := match[1] or match[2])))
        is_known = any(word in line.raw for line, _ in faults for word in ("nvidia", "mlx5", "bnxt"))
        yield acs_iommu_p2p.finding(
            "error" if is_known else "warning",
            f"device{'s' * (len(devices) > 1)} {', '.join(devices[:6])}" if devices else "the IOMMU of this host",
            "The IOMMU rejected transfers of these devices. With peer-to-peer transfers over PCIe, this means that it "
            "has no mapping for the memory of the peer: data is lost, and the job hangs or fails.",
            "Turn off the IOMMU (VT-d, AMD-Vi) and ACS in the BIOS, or boot with iommu=pt. A run that works with "
            "NCCL_P2P_DISABLE=1 confirms the cause.",
            [line for line, _ in faults],
        )
        return
    if translated := paste.find("Default domain type: Translated"):
        yield acs_iommu_p2p.finding(
            "info",
            "the IOMMU of this host",
            "The IOMMU translates the addresses of devices. Peer-to-peer transfers over PCIe may be slow or hang.",
            "Boot with iommu=pt if P2P or GPU Direct RDMA is slow or hangs.",
            translated,
        )


@rule("pcie-width", "A PCIe device uses fewer lanes or a lower speed than it could", source="lspci(8)")
def pcie_width(paste: Paste) -> Iterator[TextFinding]:
    """Looks in lspci -vv for GPUs and NICs with fewer lanes than possible. GPUs lower the speed when they are idle."""
    for link in paste.once(read_pcie_links):
        is_gpu = "NVIDIA" in link.description and "bridge" not in link.description.lower()
        is_nic = any(word in link.description for word in ("Mellanox", "Ethernet", "Infiniband"))
        slow = is_nic and link.speed < link.most_speed
        if not (is_gpu or is_nic) or not (link.width < link.most_width or slow):
            continue
        yield pcie_width.finding(
            "warning",
            f"{'GPU' if is_gpu else 'NIC'} {link.device}",
            f"The PCIe link has {link.width} of {link.most_width} lanes at {link.speed:g} of {link.most_speed:g} GT/s.",
            "Reseat the card or the riser, and check the slot and the BIOS. Virtual machines may report wrong values.",
            link.lines,
        )


@rule("small-limits", "Limits of the host are low for NCCL", source=_ACS)
def small_limits(paste: Paste) -> Iterator[TextFinding]:
    """Looks at ulimit -l and -n, and at the size of /dev/shm."""
    for item in paste.once(read_limits):
        where = f" of {item.host}" if item.host else ""
        if item.name == "memlock" and item.value is not None and item.value < _MEMLOCK:
            yield small_limits.finding(
                "warning",
                f"locked memory{where}",
                f"Processes may lock only {item.value >> 10:,} KiB. RDMA needs more; without InfiniBand or RoCE it "
                "does not matter.",
                "Set memlock to unlimited in /etc/security/limits.conf, in the unit of the launcher "
                "(LimitMEMLOCK=infinity) or with docker run --ulimit memlock=-1.",
                [item.line],
            )
        elif item.name == "files" and item.value is not None and item.value < _FILES:
            yield small_limits.finding(
                "info",
                f"open files{where}",
                f"A process may open {item.value:,} files. Jobs with many ranks per host, or of many hosts, need more.",
                "Raise it: ulimit -n 65536, or nofile in /etc/security/limits.conf.",
                [item.line],
            )
        elif item.name == "shm" and item.value is not None and item.value < _SHM:
            yield small_limits.finding(
                "warning",
                f"/dev/shm{where}",
                f"/dev/shm has {item.value >> 20:,} MiB. NCCL needs up to 9 MiB per pair of ranks and channel of a "
                "host that it connects through shared memory, and data loaders need it too.",
                "Start the container with --shm-size=8g or --ipc=host; in Kubernetes mount an emptyDir with medium: "
                "Memory on /dev/shm.",
                [item.line],
            )


def _kinds(paste: Paste) -> Iterator[tuple[Node, list[str]]]:
    """Iterate over hosts that differ, each with the names of all hosts that equal it."""
    if (machine := paste.once(machine_of)) is None:
        return
    for kind, node in enumerate(machine.templates):
        names = [name for name, number in zip(machine.names, machine.kinds.tolist(), strict=True) if number == kind]
        if names:
            yield node, names


def _of(names: list[str]) -> str:
    """Return the end of a subject that names hosts. A matrix without the name of its host needs none."""
    if names == ["node0"]:
        return ""
    first = ", ".join(names[:4])
    return f" of {first}" if len(names) <= 4 else f" of {first} and {len(names) - 4} more"


def _blocked(node: Node) -> list[tuple[int, int]]:
    """Return the pairs of GPUs for which the driver reports that peer access is not possible."""
    return [(i, j) for i, row in enumerate(node.p2p) for j, word in enumerate(row) if i < j and word in _P2P_WORDS]


def _end(node: Node, device: int) -> str:
    """Return the name of a GPU with its bus ID in NCCL's notation: ``GPU5 (8F000)`` for 0000:8f:00.0."""
    if (bus_id := node.devices[device].bus_id) is None:
        return node.ends[device]
    domain, bus, rest = bus_id.split(":")
    number = whole(domain, 16) << 20 | whole(bus, 16) << 12 | whole(rest[:2], 16) << 4 | whole(rest[3:] or "0", 16)
    return f"{node.ends[device]} ({number:X})"


def _short(bus: str) -> str:
    """Return the number that NCCL prints for a GPU as a PCI bus ID: ``c1000`` is c1:00.0."""
    number = whole(bus, 16)
    if len(bus) < 3:  # since 2.18 the number of the GPU
        return bus
    return f"{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def _matrix_rows(paste: Paste, names: list[str]) -> list[PasteLine]:
    """Return the rows of the matrix, or the heads of the trees, that show a finding about some GPUs."""
    rows = [paste.line(number) for number in matrix_numbers(paste)]
    chosen = [line for line in rows if any(re.match(rf"[\s|]*{name}\b", line.text) for name in names)]
    return chosen or rows or paste.find("=== System : max", "INFO GPU/")[:8]


_UNUSED_MODULE = re.compile(r"^\s*(?:nvidia_peermem|nv_peer_mem)\s+\d+\s+0\b")

LINK_RULES = rules_of(
    __name__,
    host_health,
    nic_far_from_gpu,
    no_nvlink,
    nvlink_p2p_broken,
    p2p_matrix,
    acs_iommu_p2p,
    pcie_width,
    small_limits,
    healthy_matrix,
    LineRule(
        code="peermem-unused",
        title="The module nvidia_peermem has no users",
        looks_for="Looks for nvidia_peermem in the output of lsmod. Its use count does not show whether GPU Direct "
        "RDMA works.",
        find=matching(_UNUSED_MODULE, "nvidia_peermem", "nv_peer_mem"),
        level="normal",
        subject="nvidia_peermem",
        why="The module is loaded. A use count of 0 is normal, because other modules call it without holding it.",
        source="lsmod(8)",
    ),
)
