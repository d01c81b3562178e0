"""Machine: the machine of a workbench, as a preset or a cluster with changed numbers and failed parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from meshlab.base._errors import TopologyError
from meshlab.topology._parts import find_part, with_parts
from meshlab.topology._whatif import CUSTOM
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._levels import rails_for
from meshlab.topology.model._presets import PRESETS, Preset, as_cluster, preset
from meshlab.topology.placement._marks import Mark, failed_marks
from meshlab.topology.placement._scene import Scene, scene_of
from meshlab.widgets._source import cluster_code, python

Number = int | float

# Limit for the devices of a machine that is edited interactively, so that a typing error cannot block the notebook.
MOST_DEVICES = 1 << 17


class Dial(NamedTuple):
    """A number of the machine that can be changed: its label, and its least value."""

    label: str
    least: Number


# The numbers of a machine, by the name of the argument that sets them.
DIALS: Mapping[str, Dial] = MappingProxyType(
    {
        "nodes": Dial("Hosts", 1),
        "devices": Dial("GPUs per host", 1),
        "nics": Dial("NICs per host", 1),
        "nodes_per_leaf": Dial("Hosts per leaf", 1),
        "rails": Dial("Rails", 1),
        "nodes_per_pod": Dial("Hosts per pod", 0),
        "taper": Dial("Oversubscription", 1),
        "nvlink_domain": Dial("NVLink domain", 1),
    }
)

ONLY_FAIL = ("cable", "switch", "uplink")  # kinds of parts that cannot be removed
_OF_WHOLE = ("_complete", "scene", "values")  # cached values of a machine that do not depend on the failed parts
_NETWORK = ("nodes_per_leaf", "rails", "nodes_per_pod", "taper")
_PRESET = ("nodes", *_NETWORK)
_OF_HOSTS = ("devices", "nics")


@dataclass(frozen=True, eq=False)
class Machine:
    """A preset or a cluster, its changed numbers, and the parts that are missing, such as ``"node1/NIC3"``."""

    base: str | Cluster
    source: str = ""  # Python expression of a `base` that is a cluster. By default the cluster is written out.
    # The changed numbers, see `DIALS`.
    dials: Mapping[str, Number] = field(default_factory=lambda: MappingProxyType({}))
    # Other numbers of some hosts, by their names.
    hosts: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    removed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # the missing parts that are listed and can be restored

    @classmethod
    def of(cls, cluster: Cluster | str) -> Machine:
        """Return the machine of a cluster: a preset with changed numbers if it is one."""
        if isinstance(cluster, str):
            machine = cls(cluster)
            machine.whole  # noqa: B018 - raises if the preset is unknown
            return machine
        cluster = as_cluster(cluster)  # raises if it is not a cluster
        if cluster.intact is not None:
            machine = cls.of(cluster.intact).with_failed(cluster.failed)
            return machine if machine.cluster == cluster else cls(cluster)
        for name, candidate in PRESETS.items():
            if candidate.title == cluster.title.removeprefix(CUSTOM):
                defaults = _preset_values(candidate)
                usual, hosts = _unlike_hosts(cluster, defaults)
                values = {**_values(cluster, defaults), **usual}
                dials = {k: v for k, v in values.items() if v is not None and v != defaults[k]}
                machine = cls(name, dials=MappingProxyType(dials), hosts=hosts)
                try:
                    if machine.whole == cluster:
                        return machine
                except TopologyError:
                    continue
        return cls(cluster)

    @property
    def name(self) -> str:
        """The name of the preset, empty if it is another cluster."""
        return self.base if isinstance(self.base, str) else ""

    # -- the cluster ---------------------------------------------------------------------------------------------------

    @cached_property
    def _complete(self) -> Cluster:
        """The cluster with its numbers, before parts are removed."""
        dials = dict(self.dials)
        if isinstance(self.base, str):
            cluster = preset(self.base, **{name: dials[name] for name in _PRESET if name in dials})  # type: ignore[arg-type]
        else:
            cluster = self.base
            nodes = int(dials.get("nodes", cluster.n_nodes))
            if nodes > cluster.n_nodes:
                cluster = cluster.with_nodes(nodes - cluster.n_nodes)
            elif nodes < cluster.n_nodes:
                cluster = cluster.without_node(*range(nodes, cluster.n_nodes))
        if "devices" in dials or "nics" in dials:
            cluster = cluster.with_devices(_int(dials, "devices"), _int(dials, "nics"))
        for numbers, names in self.unlike:
            cluster = cluster.with_devices(numbers.get("devices"), numbers.get("nics"), names)
        if not isinstance(self.base, str) and any(name in dials for name in _NETWORK):
            cluster = cluster.with_network(**self._network)
        if "nvlink_domain" in dials:
            cluster = cluster.with_nvlink_domain(int(dials["nvlink_domain"]))
        return cluster

    @property
    def unlike(self) -> list[tuple[dict[str, int], list[str]]]:
        """The hosts with other numbers of devices and NICs, by these numbers."""
        groups: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for name, numbers in self.hosts.items():
            groups.setdefault(tuple(sorted(numbers.items())), []).append(name)
        return [(dict(numbers), names) for numbers, names in groups.items()]

    def with_hosts(self, names: Iterable[str], dial: str, value: int) -> Machine:
        """Return the machine in which some hosts have another number of devices or NICs."""
        if dial not in _OF_HOSTS:
            raise TopologyError(f"unknown number {dial!r} of a host", hint=f"choose one of {', '.join(_OF_HOSTS)}")
        usual = replace(self, hosts=MappingProxyType({})).values[dial]
        hosts = {name: dict(numbers) for name, numbers in self.hosts.items()}
        for name in names:
            self.whole.node_index(name)  # raises if there is no such host
            numbers = hosts.setdefault(name, {})
            numbers[dial] = value
            if value == usual:
                del numbers[dial]
        return self._with_unlike(hosts)

    def with_copies(self, like: str, count: int) -> Machine:
        """Return the machine with more hosts, which are like one of its hosts."""
        nodes, host = self.whole.n_nodes, self.whole.node(like)
        machine = self.turned("nodes", nodes + count)
        for dial, number in (("devices", len(host.devices)), ("nics", len(host.nics))):
            machine = machine.with_hosts(machine.whole.names[nodes:], dial, number)
        return machine

    def _with_unlike(self, hosts: Mapping[str, Mapping[str, int]]) -> Machine:
        dials = {name: value for name, value in self.dials.items() if name != "nvlink_domain"}
        machine = replace(
            self,
            hosts=MappingProxyType(
                {name: MappingProxyType(dict(numbers)) for name, numbers in hosts.items() if numbers}
            ),
            dials=MappingProxyType(dials),
            removed=(),
            failed=(),
        )
        total = machine._complete.n_devices  # raises if a number is out of range
        if total > MOST_DEVICES:
            raise TopologyError(f"{total:,} GPUs exceed the limit of {MOST_DEVICES:,}")
        is_same = _rails(machine.whole) == _rails(self.whole)
        failed = [name for name in self.failed if is_same or find_part(self.whole, name).node >= 0]
        return machine._with_parts(self.removed, failed)

    @property
    def _network(self) -> dict[str, Any]:
        """The arguments of `Cluster.with_network` for a base that is not a preset."""
        values = self.values
        leaf = values["nodes_per_leaf"] or values["nodes"] or 1
        others = {name: values[name] for name in _NETWORK[1:]}
        return {"nodes_per_leaf": int(leaf)} | {
            name: value for name, value in others.items() if value is not None and value != DIALS[name].least
        }

    @cached_property
    def whole(self) -> Cluster:
        """The cluster without the removed parts, but with the failed ones."""
        cluster = self._complete
        for name in self.removed:
            cluster = find_part(cluster, name).removed_from(cluster)
        return cluster.as_intact()

    @cached_property
    def cluster(self) -> Cluster:
        """The cluster without the failed parts."""
        return self.whole.with_failed(*self.failed)

    @cached_property
    def scene(self) -> Scene:
        """The picture of the cluster with the failed parts."""
        return scene_of(self.whole)

    @cached_property
    def marks(self) -> list[Mark]:
        """The marks of the failed parts in the picture."""
        return failed_marks(self.cluster, self.scene) if self.failed else []

    # -- numbers -------------------------------------------------------------------------------------------------------

    @cached_property
    def values(self) -> Mapping[str, Number | None]:
        """The number of every dial. None if it is not known, or if it differs between the hosts."""
        if isinstance(self.base, str):
            values = _preset_values(PRESETS[self.base])
        else:
            values = _values(self.base)
        devices, racks = values["devices"], 1.0
        if devices and values["nvlink_domain"]:
            racks = values["nvlink_domain"] / devices
        nics = values["nics"]
        values |= self.dials
        if "nics" in self.dials and nics and values["rails"]:
            values["rails"] = rails_for(
                int(values["rails"]), int(nics), int(self.dials["nics"]), int(values["devices"] or 1)
            )
        if "nvlink_domain" not in self.dials and "devices" in self.dials and values["nvlink_domain"] is not None:
            values["nvlink_domain"] = max(int(racks * self.dials["devices"]), 1)
        for numbers in self.hosts.values():
            values |= dict.fromkeys(numbers)
            values["nvlink_domain"] = None
        return MappingProxyType(values)

    def reason_off(self, dial: str) -> str:
        """Return why a dial cannot be turned now, empty if it can."""
        value, values = self.values[dial], self.values
        if self.whole.n_nodes < 2 and dial in _NETWORK:
            return "a single host has no network"
        if dial in ("devices", "nics", "nvlink_domain") and value is None:
            return "no NVLink" if dial == "nvlink_domain" and values["devices"] else "the hosts differ"
        if dial == "nics" and not value:
            return "the host has no NICs"
        if dial in ("rails", "nodes_per_pod") and not values["nodes_per_leaf"]:
            return "the network is not described"
        if dial == "taper" and values["nodes_per_pod"] and (values["nodes"] or 0) <= (values["nodes_per_pod"] or 0):
            return "there is a single pod"
        return ""

    def turned(self, dial: str, value: Number) -> Machine:
        """Return the machine with a different number, without parts that no longer exist. Pods keep whole leaves."""
        if dial not in DIALS:
            raise TopologyError(f"unknown dial {dial!r}", hint=f"choose one of {', '.join(DIALS)}")
        dials = {**self.dials, dial: value}
        leaf, pod = self.values["nodes_per_leaf"], self.values["nodes_per_pod"]
        if dial == "nodes_per_leaf" and pod and value >= 1:
            dials["nodes_per_pod"] = -(-int(pod) // int(value)) * int(value)
        if dial == "nodes_per_pod" and leaf and 1 <= value < leaf:
            dials["nodes_per_leaf"] = value
        elif dial == "nodes_per_pod" and leaf and value >= 1 and value % leaf:
            raise TopologyError(f"a pod of {value:,} hosts is not a multiple of the {leaf:,} hosts per leaf")
        if dial == "devices":
            dials.pop("nvlink_domain", None)
        nics = self.values["nics"]
        if dial == "rails" and nics and value > max(nics, 1):
            raise TopologyError(f"{value:,} rails need as many NICs per host, but a host has {nics:,}")
        defaults = replace(self, dials=MappingProxyType({})).values
        changed = {
            name: number for name, number in dials.items() if number != defaults[name] or name == "nvlink_domain"
        }
        if "devices" not in changed and changed.get("nvlink_domain") == defaults["nvlink_domain"]:
            changed.pop("nvlink_domain", None)
        self._check_size({**self.values, **dials})
        hosts: Mapping[str, Mapping[str, int]] = self.hosts
        if dial == "nodes" and hosts:
            names = replace(self, dials=MappingProxyType(changed), hosts=MappingProxyType({}))._complete.names
            hosts = {name: numbers for name, numbers in hosts.items() if name in set(names)}
        machine = replace(
            self, dials=MappingProxyType(changed), hosts=MappingProxyType(dict(hosts)), removed=(), failed=()
        )
        machine.whole  # noqa: B018 - raises if a number is out of range
        # A number of a switch means another one in another network.
        is_same = dial not in _NETWORK[:3] and _rails(machine.whole) == _rails(self.whole)
        failed = [name for name in self.failed if is_same or find_part(self.whole, name).node >= 0]
        return machine._with_parts(self.removed, failed)

    def _check_size(self, values: Mapping[str, Number | None]) -> None:
        total = int(values["nodes"] or 1) * int(values["devices"] or 1)
        if total > MOST_DEVICES:
            raise TopologyError(f"{total:,} GPUs exceed the limit of {MOST_DEVICES:,}")

    def steps(self, dial: str) -> tuple[Number | None, Number | None]:
        """Return the values that the − and + of a dial lead to, None at an end."""
        value = self.values[dial]
        if self.reason_off(dial):
            return None, None
        if value is None:  # of the hosts per leaf, if the network is not described
            return None, min(32, self.whole.n_nodes)
        if dial == "nvlink_domain":
            return self._domain_steps(int(value))
        if dial == "nodes_per_pod":
            leaf, nodes = int(self.values["nodes_per_leaf"] or 1), int(self.values["nodes"] or 1)
            half = int(value) // 2 // leaf * leaf if value >= 2 * leaf else int(value) // 2 if value > 1 else 0
            return (half if value else None), (int(value) * 2 if value else leaf) if value < nodes else None
        half_value: Number = value // 2 if isinstance(value, int) else max(value / 2, 1.0)
        less = None if half_value < DIALS[dial].least or (dial == "taper" and value <= 1) else half_value
        more = value * 2
        other = {"nodes": "devices", "devices": "nodes"}.get(dial)
        exceeds = other is not None and more * (self.values[other] or 1) > MOST_DEVICES
        exceeds |= dial == "rails" and more > (self.values["nics"] or more)
        return less, None if exceeds or (dial in ("devices", "nics") and more > 64) else more

    def _domain_steps(self, value: int) -> tuple[int | None, int | None]:
        width, devices = int(self.values["devices"] or 1), self.whole.n_devices
        half = next((n for n in range(value // 2, 0, -1) if width % n == 0 or n % width == 0), None)
        double = value * 2 if value >= width or width % (value * 2) == 0 else width
        return half, double if value < devices else None

    def nearest(self, dial: str, value: Number) -> list[Number]:
        """Return up to three valid values near an invalid number, the nearest first."""
        least = DIALS[dial].least
        around: Iterable[Number]
        if dial == "nodes_per_pod":
            leaf = int(self.values["nodes_per_leaf"] or 1)
            k = max(round(value / leaf), 1)
            around = [k * leaf, (k + 1) * leaf, max(k - 1, 0) * leaf]
        elif dial == "nvlink_domain":
            width = int(self.values["devices"] or 1)
            multiple = max(round(value / width), 1) * width
            around = [multiple, multiple + width, *(size for size in range(width, 0, -1) if width % size == 0)]
        else:
            other = {"nodes": "devices", "devices": "nodes"}.get(dial)
            most = MOST_DEVICES // int(self.values[other] or 1) if other else 1024
            most = min(most, 64) if dial in ("devices", "nics") else most
            rounded = int(min(max(value, least), most))
            around = [rounded, self.values[dial] or least, max(rounded // 2, least), min(rounded * 2, most)]
        if dial == "nodes":
            return sorted(dict.fromkeys(around), key=lambda number: abs(number - value))[:3]
        options: list[Number] = []
        for number in sorted(dict.fromkeys(around), key=lambda number: abs(number - value)):
            try:
                self.turned(dial, number)
            except TopologyError:
                continue
            options.append(number)
        return options[:3]

    # -- parts ---------------------------------------------------------------------------------------------------------

    def without(self, *names: str, is_removed: bool = False) -> Machine:
        """Return the machine with failed or, with `is_removed`, removed parts."""
        if not is_removed:
            return self._failing(self.cluster.with_failed(*names))  # raises if one does not exist, or has failed
        machine = self
        for name in names:
            part = find_part(machine.cluster, name)
            if part.kind in ONLY_FAIL or part.share:
                raise TopologyError(f"{part.text} can fail, but cannot be removed")
            others = tuple(
                name for name in machine.failed if name != part.name and not name.startswith(f"{part.name}/")
            )
            machine = replace(machine, removed=(*machine.removed, part.name), failed=others)
        machine.cluster  # noqa: B018 - raises if nothing is left
        return machine

    def with_rate(self, *names: str, rate: str | float) -> Machine:
        """Return the machine with a lower rate of some parts, or with their full rate."""
        cluster = self.cluster
        for name in names:
            cluster = cluster.with_rate(name, rate)
        return self._failing(cluster)

    def _failing(self, cluster: Cluster) -> Machine:
        """Return the machine whose cluster with the failed parts is known."""
        machine = replace(self, failed=cluster.failed)
        values = {"whole": self.whole, "cluster": cluster}
        machine.__dict__.update(values | {name: self.__dict__[name] for name in _OF_WHOLE if name in self.__dict__})
        return machine

    def restored(self, *names: str) -> Machine:
        """Return the machine with failed parts restored, by default all of them."""
        gone = set()
        for name in names:
            matches = [part for part in self.failed if name in (part, part.partition("=")[0].partition("*")[0])]
            if not matches:
                hint = f"choose one of {', '.join(self.failed)}" if self.failed else "no part has failed"
                raise TopologyError(f"{name!r} has not failed", hint=hint)
            gone.update(matches)
        rest = tuple(part for part in self.failed if part not in gone) if names else ()
        return self._failing(self.whole.with_failed(*rest))

    def with_failed(self, names: Iterable[str]) -> Machine:
        """Return the machine with these parts failed, and no other."""
        return self._failing(self.whole.with_failed(*names))

    def _with_parts(self, removed: Iterable[str], failed: Iterable[str]) -> Machine:
        """Return the machine without those of the parts that it has."""
        machine = self
        for name in removed:
            try:
                machine = machine.without(name, is_removed=True)
            except TopologyError:
                continue
        return machine._failing(with_parts(machine.whole, failed))

    # -- code ----------------------------------------------------------------------------------------------------------

    @property
    def code(self) -> str:
        """The cluster as a Python expression, without the removed parts, but with the failed ones."""
        return self._code(())

    @property
    def code_without_failed(self) -> str:
        """The cluster as a Python expression, without the removed and the failed parts."""
        return self._code(self.failed)

    def _code(self, failed: Iterable[str]) -> str:
        dials = self.dials
        if isinstance(self.base, str):
            numbers = "".join(f", {name}={python(dials[name])}" for name in _PRESET if name in dials)
            code = f"ml.preset({python(self.base)}{numbers})"
        else:
            code = self.source or cluster_code(self.base)
            more = int(dials.get("nodes", self.base.n_nodes)) - self.base.n_nodes
            if more > 0:
                code += f".with_nodes({more})"
            elif more < 0:
                code += f".without_node(*range({self.base.n_nodes + more}, {self.base.n_nodes}))"
        if "devices" in dials or "nics" in dials:
            code += f".with_devices({', '.join(f'{k}={dials[k]}' for k in _OF_HOSTS if k in dials)})"
        for numbers_of, names in self.unlike:
            changes = ", ".join(f"{key}={value}" for key, value in numbers_of.items())
            code += f".with_devices({changes}, nodes={python(names)})"
        if not isinstance(self.base, str) and any(name in dials for name in _NETWORK):
            leaf, *others = self._network.items()
            code += f".with_network({leaf[1]}{''.join(f', {k}={python(v)}' for k, v in others)})"
        if "nvlink_domain" in dials:
            code += f".with_nvlink_domain({dials['nvlink_domain']})"
        cluster = self._complete
        for parts, is_failure in ((self.removed, False), (failed, True)):
            for name in parts:
                part = find_part(cluster, name)
                code += part.code(is_failure=is_failure)
                cluster = cluster.with_failed(name) if is_failure else part.removed_from(cluster)
            if not is_failure and cluster.failed:
                code += ".as_intact()"
                cluster = cluster.as_intact()
        return code


def _unlike_hosts(
    cluster: Cluster, defaults: Mapping[str, Number | None]
) -> tuple[dict[str, int], Mapping[str, Mapping[str, int]]]:
    """Return the usual numbers of a host, and those of the others by name. Both are empty if all hosts are alike."""
    numbers = [{"devices": len(node.devices), "nics": len(node.nics)} for node in cluster.templates]
    most = numbers[int(np.bincount(cluster.kinds).argmax())]
    usual = next((of_kind for of_kind in numbers if all(defaults[k] == v for k, v in of_kind.items())), most)
    if all(of_kind == usual for of_kind in numbers):
        return {}, MappingProxyType({})
    unlike = np.flatnonzero([of_kind != usual for of_kind in numbers])
    hosts = {
        cluster.names[index]: MappingProxyType(
            {key: value for key, value in numbers[cluster.kinds[index]].items() if value != usual[key]}
        )
        for index in np.flatnonzero(np.isin(cluster.kinds, unlike)).tolist()
    }
    return usual, MappingProxyType(hosts)


# -- numbers of a cluster ----------------------------------------------------------------------------------------------


def _rails(cluster: Cluster) -> list[int]:
    return [level.rails for level in cluster.levels]


def _int(values: Mapping[str, Number], name: str) -> int | None:
    return int(values[name]) if name in values else None


def _preset_values(machine: Preset) -> dict[str, Number | None]:
    fabric, devices = machine.fabric, sum(gpus for _, gpus, _ in machine.switches)
    return {
        "nodes": machine.nodes,
        "devices": devices,
        "nics": sum(nics for _, _, nics in machine.switches),
        "nodes_per_leaf": fabric.leaf or None,
        "rails": fabric.rails,
        "nodes_per_pod": fabric.pod,
        "taper": fabric.taper,
        "nvlink_domain": devices * fabric.rack if machine.nvlinks != 0 else None,
    }


def _values(cluster: Cluster, usual: Mapping[str, Number | None] | None = None) -> dict[str, Number | None]:
    """Return the numbers of a cluster. `usual` are used if they lead to the same cluster."""
    usual = usual or {}
    nodes = cluster.n_nodes
    number = np.arange(nodes)

    def same(counts: set[int]) -> int | None:
        return next(iter(counts)) if len(counts) == 1 else None

    def size(of_node: Any, name: str) -> int | None:
        expected = usual.get(name)
        if expected and np.array_equal(number // int(expected), of_node):
            return int(expected)
        largest = int(np.bincount(of_node).max())
        return largest if np.array_equal(number // largest, of_node) else None

    levels = [level for level in cluster.levels if level.name != "cluster"] if nodes > 1 else []
    leaf = size(levels[0].of_node, "nodes_per_leaf") if levels else usual.get("nodes_per_leaf")
    inner = [level for level in levels[1:] if int(level.of_node.max()) > 0]
    pod: Number | None = usual.get("nodes_per_pod", 0)
    if inner:
        pod = size(inner[0].of_node, "nodes_per_pod")
    elif len(levels) == 1:
        pod = 0
    values: dict[str, Number | None] = {
        "nodes": nodes,
        "devices": same({len(template.devices) for template in cluster.templates}),
        "nics": same({len(template.nics) for template in cluster.templates}),
        "nodes_per_leaf": leaf,
        "rails": levels[0].rails if levels else usual.get("rails", 1),
        "nodes_per_pod": pod,
        "taper": cluster.levels[-1].taper if cluster.levels else usual.get("taper", 1.0),
        "nvlink_domain": None,
    }
    if cluster.n_devices and values["devices"] and any(host.nvlinks.any() for host in cluster.templates):
        domain, expected = int(np.bincount(cluster.domain("nvlink")).max()), usual.get("nvlink_domain")
        is_rest = domain == values["devices"] * nodes and expected is not None and expected > domain
        values["nvlink_domain"] = expected if is_rest else domain
    if cluster.levels and cluster.levels[-1].name != "cluster" and usual:  # one pod: the oversubscription has no effect
        values["taper"] = usual["taper"]
    return values
