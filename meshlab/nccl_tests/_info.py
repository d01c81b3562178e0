"""Facts from NCCL's own messages (``NCCL_DEBUG=INFO``): version, ranks, channels, rings, trees, transports."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from meshlab.base._numerals import whole

_T = TypeVar("_T")
_MOST_PROBLEMS = 20
_NOTHING: Mapping[Any, Any] = MappingProxyType({})

# A launcher mixes the output of the ranks, so any message may be truncated or continue with a different one. Each
# pattern accepts only complete values, and a value that does not match is omitted.
RING_ORDER = re.compile(r"Channel (\d+)/(\d+) : +(\d+(?: +\d+)*) *$")
_VIA = re.compile(r"(?:P2P|SHM|NET|CollNet|COLLNET|NVLS)(?:/[\w .+-]+)*")
_PROXY = re.compile(r"\((?:\d+|PCI)\)")  # the rank whose NIC is used, and how GPU Direct RDMA gets there
_LAST_VIA = frozenset(
    ("CUMEM", "IPC", "MNNVL", "FABRIC", "read", "direct pointer", "direct", "CE", "GDRDMA", "PCI", "Shared", "Flush")
)
TREE_LINKS = re.compile(r"\[(\d+)\] -?\d+/-?\d+/-?\d+->(\d+)->(-?\d+)(?![\d/])")
_RANKS = re.compile(r"\bn[rR]anks (\d+)(?: nNodes (\d+) localRanks (\d+))?\b")
CHANNEL_COUNTS = re.compile(r"(?<!\d)(\d+) (coll|collnet|nvls|p2p) channels(?! per)")
VARIABLE = re.compile(r"(NCCL_[A-Z0-9_]+) set (?:by environment )?to (.*)")
LIBRARY_VERSION = re.compile(r"[NR]CCL version *:? *(\d+\.\d+\.\d+\S*)")


@dataclass(frozen=True, slots=True)
class NcclFacts:
    """Facts that the library printed about itself. A fact is None or empty if no message contains it.

    Parameters
    ----------
    version : str or None
        For example ``"2.20.3+cuda12.2"``.
    n_ranks, n_nodes, ranks_per_node : int or None
        Size of the communicator. Also None if the log has communicators of several sizes.
    channels, transports : mapping
        Number of channels by kind (coll, collnet, nvls, p2p), and of connections by kind, such as ``"NET/IB/GDRDMA"``.
    rings, trees : mapping
        Order of the ranks on the ring of each channel. By channel and rank, the parent of the rank, -1 for the root.
    network, nvls : str or None, bool or None
        The network in use, and whether NVLink multicast is available.
    environment : mapping
        NCCL's variables. If ranks differ, this is the first value, and `problems` has a message.
    operations, problems : frozenset of str, tuple of str
        Calls that were logged with ``NCCL_DEBUG_SUBSYS=COLL``, and up to 20 warnings of the library without duplicates.
    """

    version: str | None = None
    n_ranks: int | None = None
    n_nodes: int | None = None
    ranks_per_node: int | None = None
    channels: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    rings: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: _NOTHING)
    trees: Mapping[int, Mapping[int, int]] = field(default_factory=lambda: _NOTHING)
    transports: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    network: str | None = None
    nvls: bool | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    operations: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()


NO_FACTS = NcclFacts()
"""No facts."""


def version_from_code(code: int) -> str | None:
    """Return the version for NCCL's version number (NCCL_VERSION in nccl.h), or None for 0."""
    if code <= 0:
        return None
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def variable_value(text: str) -> str:
    """Return the value of a variable without the full stop that NCCL prints after a number."""
    text = text.strip()
    return text[:-1] if text.endswith(".") and text[:-1].lstrip("-").isdecimal() else text


class FactCollector:
    """Collects messages one by one. `facts` returns the result."""

    def __init__(self) -> None:
        self.version: str | None = None
        self._empty = True
        self._sizes: set[tuple[int, int | None, int | None]] = set()
        self._channels: dict[str, int] = {}
        self._rings: dict[int, tuple[int, ...]] = {}
        self._ring_names: set[str] = set()  # channels of these rings, as printed
        self._trees: dict[int, dict[int, int]] = {}
        self._vias: Counter[str] = Counter()
        self._network: str | None = None
        self._nvls: bool | None = None
        self._environment: dict[str, str] = {}
        self._operations: set[str] = set()
        self._problems: dict[str, None] = {}

    def add_version(self, line: str) -> None:
        """Add a line that contains ``NCCL version`` or ``RCCL version``."""
        self._empty = False
        match = LIBRARY_VERSION.search(line)
        if match is not None and self.version is None:
            self.version = match[1]

    def add_variable(self, name: str, value: str) -> None:
        """Add an environment variable."""
        self._empty = False
        value = variable_value(value)
        if self._environment.setdefault(name, value) != value:
            self.add_problem(f"{name} is {self._environment[name]!r} and {value!r}")

    def add_problem(self, text: str) -> None:
        """Add a warning of the library."""
        self._empty = False
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.setdefault(text.strip())

    def add_info(self, message: str) -> None:
        """Add the text after ``NCCL INFO``."""
        self._empty = False
        # Almost every line of a debug log is passed here. Comparing the first letter skips most of the tests below.
        first = message[:1]
        if first == "C":
            if message.startswith("Channel "):
                self._add_channel(message)
        elif first == "T":
            if message.startswith("Trees "):
                for channel, rank, parent in TREE_LINKS.findall(message):
                    self._trees.setdefault(whole(channel), {})[whole(rank)] = whole(parent)
        elif first == "N":
            if message.startswith("NCCL_"):
                if (match := VARIABLE.match(message)) is not None:
                    self.add_variable(match[1], match[2])
            elif message.startswith("NVLS multicast support is "):
                self._nvls = " not available" not in message
            elif message.startswith("NCCL version"):
                self.add_version(message)
        elif message.startswith("Using network "):
            self._network = self._network or message[14:].strip()
        elif "opCount" in message:
            name, colon, _ = message.partition(":")
            if colon and name.isalpha():
                self._operations.add(name)
        elif "anks " in message:
            if (match := _RANKS.search(message)) is not None:
                nodes, local = match[2], match[3]
                self._sizes.add((whole(match[1]), whole(nodes) if nodes else None, whole(local) if local else None))
        elif " coll channels" in message:
            for count, kind in CHANNEL_COUNTS.findall(message):
                self._channels.setdefault(kind, whole(count))

    def _add_channel(self, message: str) -> None:
        head, via, how = message.partition(" via ")
        if via:
            if kind := transport_kind(how.rstrip()):
                self._vias[kind] += 1
            return
        # Each process prints the rings of its communicators, and the first one counts.
        name = head[8 : head.find("/")]
        if name in self._ring_names:
            return
        if (match := RING_ORDER.match(head)) is not None:
            self._ring_names.add(name)
            self._rings.setdefault(whole(match[1]), tuple(map(whole, match[3].split())))

    def facts(self) -> NcclFacts:
        """Return the facts. A ring that does not contain every rank once was truncated, and is omitted."""
        if self._empty:
            return NO_FACTS
        n_ranks = _only({n for n, _, _ in self._sizes})
        rings = {
            channel: ring
            for channel, ring in sorted(self._rings.items())
            if len(ring) == (n_ranks or len(ring)) and sorted(ring) == list(range(len(ring)))
        }
        return NcclFacts(
            self.version,
            n_ranks,
            _only({nodes for _, nodes, _ in self._sizes if nodes is not None}),
            _only({local for _, _, local in self._sizes if local is not None}),
            MappingProxyType(self._channels),
            MappingProxyType(rings),
            MappingProxyType({channel: MappingProxyType(tree) for channel, tree in sorted(self._trees.items())}),
            MappingProxyType(dict(self._vias.most_common())),
            self._network,
            self._nvls,
            MappingProxyType(self._environment),
            frozenset(self._operations),
            tuple(self._problems),
        )


@functools.lru_cache(1024)
def transport_kind(how: str) -> str:
    """Return the kind of a connection without device numbers, or "" if the text is truncated or mixed with another."""
    how = _PROXY.sub("", how)
    if _VIA.fullmatch(how) is None:
        return ""
    parts = [part for part in how.split("/") if not part.isdecimal()]
    if parts[0] == "NET":
        return "/".join(parts) if all(part in _LAST_VIA for part in parts[2:]) else ""
    return "/".join(parts) if all(part in _LAST_VIA for part in parts[1:]) else ""


def _only(values: set[_T]) -> _T | None:
    return next(iter(values)) if len(values) == 1 else None


def merge_facts(facts: Sequence[NcclFacts]) -> NcclFacts:
    """Merge facts: the first known value is kept, transports are added up, and sizes must agree."""

    def values(name: str) -> list[Any]:
        return [value for fact in facts if (value := getattr(fact, name)) is not None]

    fields: dict[str, Any] = {name: next(iter(values(name)), None) for name in ("version", "network", "nvls")}
    fields |= {name: _only(set(values(name))) for name in ("n_ranks", "n_nodes", "ranks_per_node")}
    fields |= {
        name: MappingProxyType({key: value for part in reversed(values(name)) for key, value in part.items()})
        for name in ("channels", "rings", "trees", "environment")
    }
    vias: Counter[str] = Counter()
    for fact in facts:
        vias.update(fact.transports)
    return NcclFacts(
        **fields,
        transports=MappingProxyType(dict(vias.most_common())),
        operations=frozenset().union(*values("operations")),
        problems=tuple(dict.fromkeys(problem for fact in facts for problem in fact.problems)),
    )
