"""Reader for the system tree that NCCL prints with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=GRAPH``.

Every rank prints the tree of its host, then a line with the path from each GPU and NIC to all others. The lines of
several ranks and hosts are usually mixed, and a paste may begin and end anywhere. The format is that of
``ncclTopoPrintRec`` and ``printNodePaths`` in NVIDIA/nccl src/graph/topo.cc and paths.cc, versions 2.5 to 2.30.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshlab.base._errors import ParseError, TopologyError
from meshlab.base._files import TextSource, text_of
from meshlab.base._numerals import whole
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Nic, Node
from meshlab.topology.model._links import UNKNOWN
from meshlab.topology.model._products import capability_of

_ID = r"(?:([0-9a-fA-F]+)-)?([0-9a-fA-F]+)"  # up to 2.20 without the number of the system
# The first characters of a message that belongs to a tree or to the paths. The pattern begins with a constant, which
# makes a search in a log of many megabytes fast.
_MESSAGE = re.compile(
    r"NCCL INFO ((?: *\+ [A-Z0-9]{3}\[|CPU/|=== System|={20}|(?:GPU|NET)/[0-9a-fA-F]+(?:-[0-9a-fA-F]+)? ?:).*)"
)
_BARE = re.compile(
    r"(?m)^(?:[ \t]*+(?=[^ \t+])|(?:[ \t]*\t)?)"
    r"((?: *+\+ [A-Z0-9]{3}\[|CPU/|=== System|={20}|(?:GPU|NET)/[0-9a-fA-F-]+ ?:).*)"
)
_FRAME = re.compile(r"(?<![\w.-])([\w.-]+):(\d+):(\d+) (?:\[-?\d+\] )?$")
_HOST = re.compile(r"(?<![\w.-])([\w.-]++):\d++:\d++ ")
_ROOT = re.compile(rf"CPU/{_ID}(?: \((-?\d+)/(-?\d+)/(-?\d+)\))?")
_BRANCH = re.compile(rf"( *)\+ ([A-Z0-9]{{3}})\[ ?(\d+(?:\.\d+)?)\] - ([A-Z]{{3}})/{_ID}(?: \(([^()]*)\))?")
_PATHS = re.compile(rf"(GPU|NET)/{_ID} ?:")
_STEP = re.compile(rf"([A-Z]{{3}})/{_ID} \(\d+/(\d+(?:\.\d+)?)/([A-Z0-9]{{3}})\)")
_NUMBERS = re.compile(r"nvmlDev (\d+) busId (?:0x)?([0-9a-fA-F]+)")
_NETWORK = re.compile(r"NCCL INFO (?:Using network (\S+)|NET/(IB|Socket) : Using (\[0\].*))")
_PORT = re.compile(r"\[(\d+)\]([\w.-]+):([^\s\]<]+)")
_NAMED = re.compile(r"#\s+Rank\s+\d+ .*? device\s+\d+ \[(?:0x)?([0-9a-fA-F:.]+)\] (\S[^\n]*)")

_WORDS = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "P2C": "PHB", "SYS": "SYS", "LOC": "X"}

# GB/s of one NVLink as NCCL assumes it, by version: the rate, and the most links that a GPU with this rate has
# (NVIDIA/nccl src/graph/topo.h). A total is divided by the first rate that fits.
_NVLINK_RATES = ((20.6, 18), (40.1, 18), (20.0, 18), (22.0, 12), (21.0, 12), (18.0, 4), (12.0, 4))
_CAPABILITIES = {20.6: (9, 0), 40.1: (10, 0), 12.0: (8, 6), 18.0: (6, 0)}
_PCIE_X16 = {12.0: 3, 24.0: 4, 48.0: 5, 96.0: 6}  # GB/s of 16 lanes to the PCIe generation
_INTEL = {1: "Broadwell", 2: "Skylake", 3: "Sapphire Rapids", 4: "Emerald Rapids"}
_VENDORS = {1: "Intel", 2: "AMD", 3: "Zhaoxin"}
_MOST_ENDS = 1024


@dataclass(slots=True)
class _End:
    """A GPU or a network device of a tree or of a line of paths."""

    kind: str  # GPU or NET
    system: int
    id: int  # PCI bus ID of a GPU, number of a network device
    bus: int | None = None
    cpu: int | None = None
    bridges: tuple[int, ...] | None = None  # None if the tree does not show the bridges above it
    link_gbs: float | None = None  # of its own PCIe link
    path_gbs: float | None = None  # of the slowest PCIe link between it and the CPU
    net_gbs: float | None = None
    nvlinks: list[tuple[str, int, int, float]] = field(default_factory=list)  # kind, system and ID of the peer, GB/s
    nvlinks_known: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        return self.kind, self.system, self.id


@dataclass(slots=True)
class _Dump:
    """One tree, as one rank printed it."""

    ends: dict[tuple[str, int, int], _End] = field(default_factory=dict)
    cpus: dict[tuple[int, int], tuple[int, int, int] | None] = field(default_factory=dict)
    stack: list[tuple[int, str, int]] = field(default_factory=list)  # column of the node, its kind and ID
    rates: list[float] = field(default_factory=list)  # of the PCIe links from the CPU to the end of the stack
    cpu: tuple[int, int] | None = None
    last: _End | None = None  # the GPU whose links may follow
    last_column: int = 0
    begun: bool = False
    closed: bool = False
    flat: bool = False  # the indentation was lost

    @property
    def whole(self) -> bool:
        return self.begun and self.closed

    def worth(self) -> tuple[bool, bool, int]:
        return self.whole, not self.flat, len(self.ends)


@dataclass(slots=True)
class _Host:
    name: str
    dumps: list[_Dump] = field(default_factory=list)
    paths: dict[tuple[tuple[str, int, int], tuple[str, int, int]], tuple[str, float]] = field(default_factory=dict)
    near: dict[tuple[str, int, int], int] = field(default_factory=dict)  # the CPU of an end, from its paths
    numbers: dict[int, int] = field(default_factory=dict)  # PCI bus ID to the driver's number of the GPU
    ports: dict[int, tuple[str, str | None]] = field(default_factory=dict)  # network device to name and link layer
    network: str | None = None


def looks_like_nccl_info(text: str) -> bool:
    """Return whether a text has the system tree of NCCL, or a line of paths."""
    if "=== System : max" in text:
        return True
    return any(_PATHS.match(match[1]) for match in _MESSAGE.finditer(text)) if "NCCL INFO" in text else False


def read_nccl_info(text: TextSource, *, machine: int | None = None) -> Cluster:
    """Read the system trees in a log of NCCL.

    Parameters
    ----------
    text : str, bytes or path
        The log, possibly of several ranks and hosts, with any prefixes.
    machine : int, optional
        Index of the host, counted from 0 in the order of the log. By default all hosts.

    Returns
    -------
    Cluster
        One node per host, however many of its ranks printed the tree. NCCL prints only the GPUs and NICs that the
        communicator uses. Links are NCCL's path types, see `read_nccl_topology`. What a truncated log does not show
        remains unknown: `Node.complete` is False, and missing link words are ``?``.

    Raises
    ------
    ParseError
        If the text has no tree and no paths, or the tree is cut before the first GPU.
    TopologyError
        If `machine` is out of range.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> cluster = ml.topology.read_nccl_info('''
    ... a:7:8 [0] NCCL INFO === System : maxBw 370.8 totalBw 370.8 ===
    ... a:7:8 [0] NCCL INFO CPU/0-0 (1/2/-1)
    ... a:7:8 [0] NCCL INFO + PCI[48.0] - GPU/0-1b000 (0)
    ... a:7:8 [0] NCCL INFO               + NVL[370.8] - NVS/0-0
    ... a:7:8 [0] NCCL INFO + PCI[48.0] - GPU/0-3c000 (1)
    ... a:7:8 [0] NCCL INFO               + NVL[370.8] - NVS/0-0
    ... a:7:8 [0] NCCL INFO ==========================================
    ... ''')
    >>> cluster.link_words().tolist(), cluster.device(1).bus_id, cluster.names
    ([['X', 'NV18'], ['NV18', 'X']], '0000:3c:00.0', ('a',))
    """
    text, _ = text_of(text, hint="pass the part with the system tree")
    hosts = _hosts(text)
    products = _products(text)
    nodes = [node for host in hosts for node in _nodes(host, products)]
    if not nodes:
        raise ParseError(
            "the text contains no system tree of NCCL with a GPU",
            hint="run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,GRAPH, and paste the lines from '=== System' on",
        )
    if machine is not None:
        if not 0 <= machine < len(nodes):
            raise TopologyError(f"unknown machine {machine}", hint=f"choose a number from 0 to {len(nodes) - 1}")
        nodes = nodes[machine : machine + 1]
    notes = tuple(f"{node.name}: {note}" for node in nodes for note in node.notes)
    cluster = Cluster.from_nodes(nodes, source="the system tree in a log of NCCL", notes=notes)
    # NCCL joins several hosts into one tree only if they share an NVLink domain.
    joined = len(nodes) > 1 and len(hosts) == 1
    return replace(cluster, nvlink_of_node=np.zeros(len(nodes), dtype=np.int32)) if joined else cluster


# -- lines -------------------------------------------------------------------------------------------------------------


def _hosts(text: str) -> list[_Host]:
    """Return the trees and paths of all hosts. The lines of threads are mixed, so each thread has a tree."""
    hosts: dict[str, _Host] = {}
    writing: dict[tuple[str, str, str], _Dump] = {}  # the tree that a thread is writing
    for head, message in _messages(text):
        frame = _FRAME.search(head)
        name, thread = (frame[1], (frame[1], frame[2], frame[3])) if frame else ("node0", ("", "", ""))
        host = hosts.setdefault(name, _Host(name))
        paths = _PATHS.match(message)
        if paths is not None:
            _add_paths(host, paths, message)
        elif message.startswith("=== System"):
            writing[thread] = _Dump(begun=True)
            host.dumps.append(writing[thread])
        elif message.startswith("===="):
            if thread in writing:
                _close(writing.pop(thread))
        else:
            if thread not in writing:  # the paste begins inside a tree
                writing[thread] = _Dump()
                host.dumps.append(writing[thread])
            _add_line(writing[thread], message)
    _add_names(hosts, text)
    return list(hosts.values())


def _messages(text: str) -> Iterator[tuple[str, str]]:
    """Iterate over the lines of trees and paths: the text before the message, and the message."""
    has_prefix = False
    for match in _MESSAGE.finditer(text):
        has_prefix = True
        yield text[text.rfind("\n", 0, match.start()) + 1 : match.start()], match[1].rstrip("\r")
    if not has_prefix and "=== System" in text:
        for match in _BARE.finditer(text, text.index("=== System")):
            yield "", match[1].rstrip("\r")


def _close(dump: _Dump) -> None:
    dump.closed = True
    if dump.last is not None:
        dump.last.nvlinks_known = True


def _add_line(dump: _Dump, message: str) -> None:
    """Add a line of a tree: a CPU, or a branch below it."""
    root = _ROOT.match(message)
    branch = _BRANCH.match(message) if root is None else None
    if dump.last is not None and (root is not None or (branch is not None and len(branch[1]) < dump.last_column)):
        dump.last.nvlinks_known = True  # no more links of this GPU follow
    if root is not None:
        cpu = (whole(root[1] or "0", 16), _signed(root[2]))
        dump.cpu, dump.stack, dump.rates = cpu, [(0, "CPU", cpu[1])], []
        facts = (whole(root[3]), whole(root[4]), whole(root[5])) if root[3] else None
        dump.cpus[cpu] = facts or dump.cpus.get(cpu)
    elif branch is not None:
        _add_branch(dump, branch)


def _add_branch(dump: _Dump, branch: re.Match[str]) -> None:
    """Add a link, and the node at its end."""
    column, link, gbs = len(branch[1]), branch[2], _gbs(branch[3])
    kind, system, number, facts = branch[4], whole(branch[5] or "0", 16), whole(branch[6], 16), branch[7]
    if column == 0 and kind in ("NET", "NVS"):  # a CPU has neither, so the white space was lost
        dump.flat = True
    parent = _parent(dump, column)
    if link == "PCI":
        dump.rates = [*dump.rates[: max(len(dump.stack) - 1, 0)], gbs]
        dump.stack.append((branch.start(4), kind, number))
    if kind == "GPU" and link == "PCI":
        if facts is not None:  # otherwise the line may have been cut inside the number
            dump.last = dump.ends.setdefault(("GPU", system, number), _End("GPU", system, number, bus=number))
            dump.last_column = branch.start(4)
            _place(dump, dump.last, gbs)
    elif kind == "NET" and facts is not None:
        end = dump.ends.setdefault(("NET", system, number), _End("NET", system, number))
        end.bus = parent[2] if parent is not None and parent[1] == "NIC" else None
        end.net_gbs = _last_number(facts) or gbs
        _place(dump, end, gbs)
    elif link == "NVL" and dump.last is not None and (dump.flat or (parent is not None and parent[1] == "GPU")):
        dump.last.nvlinks.append((kind, system, number, gbs))


def _parent(dump: _Dump, column: int) -> tuple[int, str, int] | None:
    """Return the node that a branch belongs to: its plus sign is below the first letter of the node."""
    if dump.flat:
        return next((entry for entry in reversed(dump.stack) if entry[1] == "NIC"), None)
    while dump.stack and dump.stack[-1][0] > column:
        dump.stack.pop()
    return dump.stack[-1] if dump.stack else None


def _place(dump: _Dump, end: _End, gbs: float) -> None:
    """Set what the position in the tree shows about an end."""
    end.cpu = dump.cpu[1] if dump.cpu is not None else None
    end.link_gbs = dump.rates[-1] if dump.rates and end.kind == "NET" else gbs
    whole = dump.cpu is not None and not dump.flat
    end.bridges = tuple(number for _, kind, number in dump.stack if kind == "PCI") if whole else None
    end.path_gbs = min(dump.rates, default=None) if whole else None


def _add_paths(host: _Host, start: re.Match[str], message: str) -> None:
    """Add the paths from one end to all others."""
    source = (start[1], whole(start[2] or "0", 16), whole(start[3], 16))
    for step in _STEP.finditer(message, start.end()):
        kind, system, number = step[1], whole(step[2] or "0", 16), _signed(step[3])
        if kind in ("GPU", "NET"):
            host.paths[source, (kind, system, number)] = step[5], _gbs(step[4])
        elif kind == "CPU" and step[5] != "SYS":
            host.near.setdefault(source, number)


def _add_names(hosts: dict[str, _Host], text: str) -> None:
    """Add the driver's numbers of GPUs and the names of network devices."""
    for pattern in (_NUMBERS, _NETWORK):
        for match in pattern.finditer(text):
            head = text[text.rfind("\n", 0, match.start()) + 1 : match.end()]
            frame = _HOST.search(head)
            host = hosts.get(frame[1]) if frame else None
            if host is None:
                continue
            if pattern is _NUMBERS:
                host.numbers[whole(match[2], 16)] = whole(match[1])
            elif match[1] is not None:
                host.network = host.network or match[1]
            elif match[2] == "IB" or not host.ports:
                ports = {whole(p[1]): (p[2], _layer(p[3])) for p in _PORT.finditer(match[3].partition("; OOB")[0])}
                host.ports = ports or host.ports


def _layer(text: str) -> str | None:
    return "InfiniBand" if "/IB" in text else "Ethernet" if "/RoCE" in text else None


def _products(text: str) -> dict[str, str]:
    """Return the names of GPUs by bus number, from the preamble of nccl-tests."""
    if "# " not in text or " device " not in text:
        return {}
    return {match[1].lower(): match[2].strip() for match in _NAMED.finditer(text)}


def _signed(text: str) -> int:
    """Return a number of a CPU. NCCL prints -1 as 56 or 64 set bits."""
    number = whole(text, 16)
    return -1 if number >= 0xFFFFFFFFFFFFFF else number


def _gbs(text: str) -> float:
    """Return a bandwidth in GB/s that NCCL prints. More than 1 PB/s is damaged, and would become infinite."""
    gbs = float(text)
    return gbs if gbs < 1e6 else 1e6


def _last_number(text: str) -> float | None:
    try:
        return _gbs(text.rpartition("/")[2])
    except ValueError:
        return None


# -- hosts -------------------------------------------------------------------------------------------------------------


def _nodes(host: _Host, products: dict[str, str]) -> Iterator[Node]:
    """Iterate over the hosts in the trees of a host: several if NVLink joins them, so that NCCL prints all."""
    ends = _ends(host)
    systems = sorted({end.system for end in ends})
    if len(ends) > _MOST_ENDS * max(len(systems), 1):
        raise ParseError(
            f"the trees of {host.name} have {len(ends):,} GPUs and NICs, but a host can have at most {_MOST_ENDS:,}",
            hint="paste the log of one job",
        )
    for number, system in enumerate(systems):
        of_system = [end for end in ends if end.system == system]
        if any(end.kind == "GPU" for end in of_system):
            name = host.name if len(systems) == 1 else f"node{number}"
            yield _node(name, host, of_system, products)


def _ends(host: _Host) -> list[_End]:
    """Return the GPUs and network devices of all trees and paths of a host, each once."""
    ends: dict[tuple[str, int, int], _End] = {}
    # The most complete tree comes first. What it lacks is taken from the others.
    for dump in sorted(host.dumps, key=_Dump.worth, reverse=True):
        for key, end in dump.ends.items():
            if dump.flat:
                end.bridges, end.path_gbs = None, None
            best = ends.setdefault(key, end)
            if end.nvlinks_known and not best.nvlinks_known:
                best.nvlinks, best.nvlinks_known = end.nvlinks, True
    for key in dict.fromkeys(key for pair in host.paths for key in pair):
        kind, system, number = key
        ends.setdefault(key, _End(kind, system, number, bus=number if kind == "GPU" else None))
    return sorted(ends.values(), key=lambda end: (end.kind == "NET", end.system, end.id))


def _node(name: str, host: _Host, ends: Sequence[_End], products: dict[str, str]) -> Node:
    """Return a host from its ends. A truncated tree leaves links unknown."""
    gpus = [end for end in ends if end.kind == "GPU"]
    numbers = [host.numbers.get(end.id, -1) for end in gpus]
    if -1 in numbers or len(set(numbers)) < len(numbers):
        numbers = list(range(len(gpus)))
    else:  # in the order of the driver
        order = sorted(range(len(gpus)), key=numbers.__getitem__)
        gpus, numbers = [gpus[i] for i in order], [numbers[i] for i in order]
    ports = [end for end in ends if end.kind == "NET"]
    ordered = [*gpus, *ports]
    words = [[_word(host, source, target) for target in ordered] for source in ordered]
    whole = any(dump.whole for dump in host.dumps)
    notes = []
    if host.dumps and not whole:
        notes.append("the tree is truncated, so GPUs, NICs and links may be missing")
    elif not host.dumps:
        notes.append("the text has the paths from some GPUs and NICs, but not the tree")
    if host.dumps and all(dump.flat for dump in host.dumps):
        notes.append("the tree lost its indentation, so the PCIe links inside a NUMA node are unknown")
    has_all_paths = all((end.key, end.key) in host.paths for end in gpus)
    cpus = [facts for dump in host.dumps for facts in dump.cpus.values() if facts is not None]
    return Node(
        name,
        tuple(_device(number, end, host, products) for number, end in zip(numbers, gpus, strict=True)),
        tuple(_nic(end, host) for end in ports),
        words=tuple(map(tuple, words)),
        cpu_model=_cpu_model(*cpus[0]) if cpus else None,
        complete=whole or (not host.dumps and has_all_paths),
        notes=tuple(notes),
    )


def _word(host: _Host, source: _End, target: _End) -> str:
    """Return the link word of two ends: NVLink first, then the PCIe path in the tree, then NCCL's own path."""
    if source is target:
        return "X"
    kind, gbs = host.paths.get((source.key, target.key), (None, 0.0))
    if kind is None and source.kind == target.kind == "GPU":  # only some GPUs have a line of paths
        kind, gbs = host.paths.get((target.key, source.key), (None, 0.0))
    gbs = _nvlink_gbs(source, target) or (gbs if kind == "NVL" else 0.0)
    if gbs:
        return f"NV{_nvlink_count(gbs)[0]}"
    # A tree that was cut after a GPU may lack its NVLinks. So may a path over the NVLinks of another GPU (NVB).
    is_pair = source.kind == target.kind == "GPU"
    if is_pair and kind is None and not (source.nvlinks_known and target.nvlinks_known):
        return UNKNOWN
    if source.cpu is not None and target.cpu is not None and source.cpu != target.cpu:
        return "SYS"
    if source.bridges is not None and target.bridges is not None and source.cpu is not None:
        return _pcie_word(source, target)
    back = host.paths.get((target.key, source.key), (None, 0.0))[0]
    return next((_WORDS[word] for word in (kind, back) if word in _WORDS), UNKNOWN)


def _pcie_word(source: _End, target: _End) -> str:
    """Return the link word of two ends below one CPU, as NCCL computes its path types."""
    if source.kind == target.kind and source.bus is not None and source.bus == target.bus:
        return "PIX"
    if source.bridges and target.bridges and source.bridges[0] == target.bridges[0]:
        return "PIX" if source.bridges == target.bridges else "PXB"
    return "PHB"


def _nvlink_gbs(source: _End, target: _End) -> float:
    """Return the GB/s of the NVLinks between two GPUs in the tree, through switches or direct; 0 without any."""
    direct = sum(
        gbs for kind, system, bus, gbs in source.nvlinks if (kind, system, bus) == ("GPU", target.system, target.id)
    )
    through = [sum(gbs for kind, _, _, gbs in end.nvlinks if kind == "NVS") for end in (source, target)]
    return direct or min(through)


def _nvlink_count(gbs: float) -> tuple[int, float]:
    """Return the number of NVLinks with a total bandwidth, and the rate of one of them.

    Examples
    --------
    >>> _nvlink_count(370.8), _nvlink_count(264.0), _nvlink_count(721.8)
    ((18, 20.6), (12, 22.0), (18, 40.1))
    """
    for rate, most in _NVLINK_RATES:
        count = round(gbs / rate)
        if 1 <= count <= most and abs(count * rate - gbs) < 0.06:  # NCCL prints one decimal
            return count, rate
    return max(1, min(999, round(gbs / 20))), 0.0


def _device(number: int, end: _End, host: _Host, products: dict[str, str]) -> Device:
    """Return a GPU. Its generation follows from the rate of its NVLinks, because NCCL does not print the product."""
    bus_id = _bus_id(end.id)
    name = products.get(bus_id[:10]) or products.get(bus_id[5:7]) or "GPU"
    total = sum(gbs for kind, _, _, gbs in end.nvlinks)
    paths = [gbs for (source, _), (kind, gbs) in host.paths.items() if source == end.key and kind == "NVL"]
    count, rate = _nvlink_count(total or max(paths)) if total or paths else (0, 0.0)
    capability = _CAPABILITIES.get(rate) or capability_of(name)
    if capability is None and rate == 20.0 and count > 12:
        capability = (9, 0)
    elif capability is None and rate in (20.0, 21.0, 22.0) and count > 6:
        capability = (8, 0)
    cpu = end.cpu if end.cpu is not None else host.near.get(end.key)
    generation = _PCIE_X16.get(end.link_gbs or 0.0)
    return Device(
        id=number,
        name=name,
        bus_id=bus_id,
        compute_capability=capability,
        nvlink_count=count if count or end.nvlinks_known else None,
        nvlink_remotes=_remotes(end),
        numa=None if cpu is None or cpu < 0 else str(cpu),
        pcie_generation=generation,
        pcie_width=16 if generation else None,
        pcie_path_gbs=end.path_gbs,
    )


def _remotes(end: _End) -> tuple[tuple[str, str, int], ...]:
    kinds = {"GPU": "gpu", "NVS": "switch", "CPU": "cpu"}
    return tuple(
        (kinds[kind], _bus_id(bus) if kind == "GPU" else f"{kind}/{bus}", _nvlink_count(gbs)[0])
        for kind, _, bus, gbs in end.nvlinks
        if kind in kinds
    )


def _nic(end: _End, host: _Host) -> Nic:
    is_listed = host.network is None or host.network.startswith("IB") or host.network == "Socket"
    name, layer = host.ports.get(end.id, (f"NIC{end.id}", None)) if is_listed else (f"NIC{end.id}", None)
    cpu = end.cpu if end.cpu is not None else host.near.get(end.key)
    return Nic(
        name=name,
        bus_id=None if not end.bus else _bus_id(end.bus),
        gbits=None if end.net_gbs is None else end.net_gbs * 8,
        numa=None if cpu is None or cpu < 0 else str(cpu),
        link_layer=layer,
    )


def _bus_id(number: int) -> str:
    """Return a PCI bus ID from NCCL's number: 20 bits for bus, device and function, and the domain above them.

    Examples
    --------
    >>> _bus_id(0x8F000), _bus_id(0x60)
    ('0000:8f:00.0', '0000:00:06.0')
    """
    return f"{number >> 20 & 0xFFFF:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def _cpu_model(arch: int, vendor: int, model: int) -> str | None:
    if arch == 2:
        return "POWER9"
    if arch == 3:
        return "ARM"
    name = _VENDORS.get(vendor)
    return None if name is None else f"{name} {_INTEL.get(model, '') if vendor == 1 else ''}".strip()
