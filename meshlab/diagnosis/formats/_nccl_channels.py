"""Rings, trees and channels in the lines that NCCL prints, as tables, and the patterns that its search found."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import frame_of
from meshlab.diagnosis.formats._nccl_lines import NcclMessage, message_of, messages, rank_of, read_communicators
from meshlab.nccl_tests._info import RING_ORDER, TREE_LINKS, transport_kind

if TYPE_CHECKING:
    import pandas as pd


# "Channel 03/0 : 1[c5000] -> 0[29000] [receive] via NET/IB/2/GDRDMA"; the word was "Ring" up to 2.7.
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d+)(?:/(?P<connection>\d+))? : (?P<src>\d+)(?:\[\w+\])? -> "
    r"(?P<dst>\d+)(?:\[\w+\])? (?:\[(?P<direction>send|receive)\] )?via (?P<how>.*\S)"
)
_RING = re.compile(r"Ring (\d+) : (\d+) -> (\d+) -> (\d+)$")
_TREE = re.compile(r"Tree (\d+) : (-?\d+) -> (\d+) -> -?\d+/-?\d+/-?\d+$")
_DEVICE = re.compile(r"NET/[^/]+/(\d+)")


class _Owners:
    """Finds the communicator of a line: the one that its thread, or else its process, created last before it."""

    def __init__(self, paste: Paste) -> None:
        self._starts: dict[tuple[str | None, int | None, int | None], list[int]] = {}
        self._comms: dict[tuple[str | None, int | None, int | None], list[str | None]] = {}
        for comm in sorted(paste.once(read_communicators), key=lambda item: item.line):
            for thread in (comm.thread, None):
                key = (comm.host, comm.pid, thread)
                self._starts.setdefault(key, []).append(comm.line)
                self._comms.setdefault(key, []).append(comm.comm)

    def __call__(self, item: NcclMessage) -> str | None:
        key = (item.host, item.pid, item.thread)
        if key not in self._starts:
            key = (item.host, item.pid, None)
        starts = self._starts.get(key)
        # Before 2.18 a communicator is first named when it is complete, so a line before the first one belongs to it.
        return self._comms[key][max(bisect_right(starts, item.line) - 1, 0)] if starts else None


def _communicators(paste: Paste) -> pd.DataFrame:
    """Return one row per rank of each communicator."""
    names = ["comm", "rank", "n_ranks", "host", "pid", "device", "nvml_device", "bus_id", "n_nodes", "local_rank"]
    frame = frame_of(paste.once(read_communicators), *names, "state", "function", "line")
    integers = ["rank", "n_ranks", "pid", "device", "nvml_device", "n_nodes", "local_rank", "line"]
    return frame.astype(dict.fromkeys(integers, "Int64"))


def _channels(paste: Paste) -> pd.DataFrame:
    """Return one row per connection: `via` is a kind such as ``"NET/IB/GDRDMA"``, `net_device` a NIC."""
    rows = []
    owner = paste.once(_Owners)
    for item in messages(paste, " via "):
        match = _CHANNEL.search(item.text)
        if match is None or not (via := transport_kind(match["how"])):
            continue
        src, dst, direction = whole(match["src"]), whole(match["dst"]), match["direction"] or "send"
        rank, peer = (src, dst) if direction == "send" else (dst, src)
        device = _DEVICE.match(match["how"])
        rows.append(
            (
                owner(item),
                whole(match["channel"]),
                whole(match["connection"] or "0"),
                rank,
                peer,
                direction,
                via,
                whole(device[1]) if device else None,
                item.host,
            )
        )
    return _frame(rows, "comm channel connection rank peer direction via net_device host")


def _rings(paste: Paste) -> pd.DataFrame:
    """Return one row per channel and rank of each ring, from the order that rank 0 prints if it is there."""
    owner = paste.once(_Owners)
    links: dict[tuple[str | None, int, int], int] = {}
    for item in messages(paste, "Channel ", "Ring "):
        if " -> " not in item.text:
            if (order := RING_ORDER.search(item.text)) is not None:
                ranks = [whole(rank) for rank in order[3].split()]
                if len(set(ranks)) == len(ranks):
                    for rank, after in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
                        links[owner(item), whole(order[1]), rank] = after
        elif ring := _RING.search(item.text.rstrip()):
            links.setdefault((owner(item), whole(ring[1]), whole(ring[3])), whole(ring[4]))
    return _frame([(*key, after) for key, after in links.items()], "comm channel rank next")


def _trees(paste: Paste) -> pd.DataFrame:
    """Return one row per channel and rank of each tree. The root has no parent."""
    owner = paste.once(_Owners)
    links: dict[tuple[str | None, int, int], int | None] = {}
    for item in messages(paste, "Trees [", "Tree "):
        for channel, rank, parent in TREE_LINKS.findall(item.text):
            links[owner(item), whole(channel), whole(rank)] = whole(parent) if whole(parent) >= 0 else None
        if tree := _TREE.search(item.text.rstrip()):
            parent_or_none = whole(tree[2]) if whole(tree[2]) >= 0 else None
            links.setdefault((owner(item), whole(tree[1]), whole(tree[3])), parent_or_none)
    return _frame([(*key, parent) for key, parent in links.items()], "comm channel rank parent")


def _frame(rows: list[tuple[Any, ...]], names: str) -> pd.DataFrame:
    import pandas as pd

    columns = names.split()
    frame = pd.DataFrame(rows, columns=columns, dtype=object)  # floats could not hold the largest integers
    texts = ("comm", "direction", "via", "host")
    return frame.astype({name: "object" if name in texts else "Int64" for name in columns})


_FRAMES: dict[str, tuple[Callable[[Paste], pd.DataFrame], re.Pattern[str], tuple[str, ...]]] = {
    "communicators": (_communicators, re.compile(r"\bcomm 0x[0-9a-f]+ rank "), (" nranks ", " nRanks ")),
    "channels": (_channels, _CHANNEL, (" via ",)),
    "rings": (_rings, re.compile(rf"{RING_ORDER.pattern}|{_RING.pattern}"), ("Channel ", "Ring ")),
    "trees": (_trees, re.compile(rf"{TREE_LINKS.pattern}|{_TREE.pattern}"), ("Trees [", "Tree ")),
}
_MOST_TRIED = 5_000


def tables_of(paste: Paste) -> dict[str, Callable[[], pd.DataFrame]]:
    """Return the tables that the text has, by name. Each is built when it is called."""
    tables: dict[str, Callable[[], pd.DataFrame]] = {}
    for name, (build, pattern, literals) in _FRAMES.items():
        tried = paste.numbers(*literals)[:_MOST_TRIED]
        if any(pattern.search(paste.line(number).text) for number in tried):
            tables[name] = functools.partial(build, paste)
    return tables


class NetworkUse(NamedTuple):
    """How one rank or host uses one NIC: the number of the NIC, and whether GPU Direct RDMA is used."""

    network: str
    device: int
    gpu_direct: bool
    host: str | None
    rank: int | None
    line: int


_NET = re.compile(r"NET/(?P<network>[^/]+)/(?P<device>\d+)(?P<rest>[^ ]*)")


def network_devices(paste: Paste) -> tuple[NetworkUse, ...]:
    """Return each combination of host, rank, NIC and GPU Direct RDMA once, with the first line that shows it."""
    uses: dict[tuple[str, int, bool, str | None, int | None], NetworkUse] = {}
    seen: set[tuple[str, str]] = set()
    for number in paste.numbers("via NET/", "-> NET/"):
        raw = paste.raw(number)
        parts = (raw.partition(" NCCL ")[0], raw.rpartition("NET/")[2])
        if parts in seen:  # hundreds of channels of a rank use the same NIC
            continue
        seen.add(parts)
        item = message_of(paste.line(number))
        if (match := _NET.search(item.text)) is not None:
            gpu_direct = "GDRDMA" in match["rest"]
            rank = rank_of(paste, item)
            key = (match["network"], whole(match["device"]), gpu_direct, item.host, rank)
            if key not in uses:
                uses[key] = NetworkUse(*key, item.line)
    return tuple(uses.values())


class GraphPattern(NamedTuple):
    """What NCCL's search found for one pattern: 1, 2 and 3 are trees, 4 is a ring, 5 is NVLS, 6 is CollNet."""

    pattern: int
    n_channels: int
    bw_intra_gbs: float
    bw_inter_gbs: float
    type_intra: str
    type_inter: str
    host: str | None
    line: int


_PATTERN = re.compile(
    r"Pattern (\d+), crossNic \d+, nChannels (\d+), (?:speed|bw) (\d+(?:\.\d+)?)/(\d+(?:\.\d+)?), "
    r"(?:nvlink \d, )?type (\w+)/(\w+)"
)


def read_patterns(paste: Paste) -> tuple[GraphPattern, ...]:
    """Return the patterns of the text."""
    patterns = []
    for item in messages(paste, "NCCL INFO Pattern "):
        if (match := _PATTERN.match(item.text)) is not None:
            pattern, n_channels, intra, inter, type_intra, type_inter = match.groups()
            speeds = float(intra), float(inter)
            where = item.host, item.line
            patterns.append(GraphPattern(whole(pattern), whole(n_channels), *speeds, type_intra, type_inter, *where))
    return tuple(patterns)
