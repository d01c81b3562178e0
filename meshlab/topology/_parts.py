"""Parts: hosts, devices, NICs, links and switches of a cluster by name, and the cluster in which one of them fails."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from meshlab.base._errors import TopologyError, did_you_mean
from meshlab.topology.model._cluster import Cluster

KINDS_WITH_RATE = ("nic", "link", "uplink")
_NVLINK = re.compile(r"(\w+\d+)(?:-(\w+\d+)|/NVLink)", re.ASCII)
_COUNT = re.compile(r"\*(\d{1,6})$", re.ASCII)
_RATE = re.compile(r"=(\d{1,3}(?:\.\d{1,6})?)\s*%$", re.ASCII)


class Part(NamedTuple):
    """A part of a cluster that can fail, and what is left of it."""

    name: str  # such as "node1", "node1/GPU3", "node1/NIC3/cable", "node1/GPU3-GPU5" or "leaf:5/uplink*2"
    kind: str  # node, device, nic, cable, link, switch or uplink
    host: str = ""
    node: int = -1  # index of the host, -1 for parts of the network
    number: int = -1  # of the device in the cluster, of the NIC in the host, or of the switch at its level
    other: int | None = None  # the device at the other end of a link
    word: str = ""  # name of the part in its host, or of the level
    amount: int = 1  # of uplinks
    share: float = 0.0  # of the rate that is left, 0 for a failure

    @property
    def bare(self) -> str:
        """The name without the rate and the number of uplinks."""
        return self.name.partition("=")[0].partition("*")[0]

    @property
    def text(self) -> str:
        """The part in words, such as ``"NIC3 of node1"``."""
        return self._words + (f" at {format_share(self.share)}" if self.share else "")

    @property
    def _words(self) -> str:
        if self.kind == "node":
            return self.host
        if self.kind == "switch":
            return f"{self.word} switch {self.number}"
        if self.kind == "uplink":
            count = "uplinks" if self.share else "an uplink" if self.amount == 1 else f"{self.amount:,} uplinks"
            return f"{count} of {self.word} switch {self.number}"
        if self.kind == "cable":
            return f"cable of {self.word} of {self.host}"
        if self.kind != "link":
            return f"{self.word} of {self.host}"
        between = self.word.replace("-", " and ")
        return (
            f"NVLink {'between' if self.other is not None else 'of'} {between.removesuffix('/NVLink')} of {self.host}"
        )

    def removed_from(self, cluster: Cluster) -> Cluster:
        """Return the cluster without the part."""
        return cluster.without_node(self.node) if self.kind == "node" else cluster.with_failed(self.name)

    def code(self, *, is_failure: bool) -> str:
        """Return the edit of a cluster in which the part has failed, or was removed, as code."""
        match "" if self.share else self.kind:
            case "node":
                return f'.without_node("{self.host}"{", keep_place=True" * is_failure})'
            case "nic":
                return f'.without_nic("{self.host}", "{self.word}")'
            case "device":
                return f".without_device({self.number})"
            case "link":
                return f".without_link({self.number}{'' if self.other is None else f', {self.other}'})"
            case _:
                return f'.with_failed("{self.name}")'


def format_share(share: float) -> str:
    """Return a share as text, such as "50 %"."""
    return f"{100 * share:.3g} %"


def rate_name(bare: str, share: float) -> str:
    """Return the name of a part with a lower rate, such as "node1/NIC3=50%"."""
    return f"{bare}={100 * share:.6g}%"


def find_part(cluster: Cluster, name: str) -> Part:
    """Return the part of a cluster with a name, see `Part`, or raise if the cluster does not have it."""
    if not isinstance(name, str):
        raise TopologyError(f"a part must be a name such as 'node1/NIC3', not {name!r}")
    rate = _RATE.search(name)
    bare = name[: rate.start()].strip() if rate is not None else name
    part = _network_part(cluster, bare) or _host_part(cluster, bare)
    if rate is None:
        return part
    share = float(rate[1]) / 100
    if part.kind not in KINDS_WITH_RATE:
        raise TopologyError(f"{part.text} has no rate", hint="choose a NIC, NVLink, or the uplinks of a switch")
    if not 0 < share < 1:
        raise TopologyError(f"the rate must be more than 0 % and less than 100 %, not {rate[1]} %")
    return part._replace(name=rate_name(part.bare, share), share=share, amount=1)


def _network_part(cluster: Cluster, name: str) -> Part | None:
    word, _, rest = name.partition(":")
    level = next((level for level in cluster.levels if level.name == word), None)
    if level is None or not rest or name in cluster.names:
        return None
    number, slash, below = rest.partition("/")
    count = _COUNT.search(below)
    below = below[: count.start()] if count is not None else below
    if not number.isdecimal() or (slash and below != "uplink"):
        raise TopologyError(f"unknown part {name!r}", hint=f"write a switch such as '{word}:0', or '{word}:0/uplink'")
    if int(number) >= level.n_switches:
        raise TopologyError(
            f"{word} has no switch {number}", hint=f"choose a number from 0 to {level.n_switches - 1:,}"
        )
    if not slash:
        return Part(name, "switch", number=int(number), word=word)
    lost = int(count[1]) if count is not None else 1
    return Part(name, "uplink", number=int(number), word=word, amount=max(lost, 1))


def _host_part(cluster: Cluster, name: str) -> Part:
    host, _, rest = name.partition("/")
    if host not in cluster.names:
        # A host name may contain a slash.
        host = next((full for full in cluster.names if f"{name}/".startswith(f"{full}/")), host)
        rest = name[len(host) + 1 :]
    if host not in cluster.names:
        hint = f"write a host, or a part of it such as '{cluster.names[0]}/NIC0'"
        raise TopologyError(f"unknown part {name!r}{did_you_mean(host, cluster.names[:1000])}", hint=hint)
    index = cluster.names.index(host)
    node = cluster.templates[cluster.kinds[index]]
    if not rest:
        if not node.ends:
            raise TopologyError(f"{host} has already failed")
        return Part(name, "node", host, index, word=host)
    ends, devices, first = node.ends, len(node.devices), int(cluster.first_device[index])
    if rest in ends:
        at = ends.index(rest)
        kind, number = ("device", first + at) if at < devices else ("nic", at - devices)
        return Part(name, kind, host, index, number, word=rest)
    nic = rest.removesuffix("/cable")
    if nic != rest and nic in ends[devices:]:
        number = ends.index(nic) - devices
        if not node.nics[number].is_connected:
            raise TopologyError(f"{nic} of {host} has no connection already")
        return Part(name, "cable", host, index, number, word=nic)
    link = _NVLINK.fullmatch(rest)
    if link is None or any(device is not None and device not in ends[:devices] for device in link.groups()):
        raise TopologyError(
            f"{host} has no part {rest!r}", hint=f"choose one of {', '.join(ends) or 'another host, this one is empty'}"
        )
    device, other = (None if end is None else first + ends.index(end) for end in link.groups())
    assert device is not None
    part = Part(name, "link", host, index, device, other, rest)
    cluster.without_link(device, other)  # raises without NVLink
    return part


def with_parts(cluster: Cluster, names: Iterable[str]) -> Cluster:
    """Return the cluster in which those of the parts have failed that it has."""
    for name in names:
        try:
            cluster = cluster.with_failed(name)
        except TopologyError:
            continue
    return cluster
