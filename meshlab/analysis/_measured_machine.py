"""The machine of measured results, as far as their text or their frame names it, and what is missing."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import BenchError, MeshlabError
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_range
from meshlab.nccl_tests._log import UNKNOWN, DeviceLine, Section
from meshlab.prediction._published import published_curves
from meshlab.runs._rundata import RunData
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import PRESETS, ClusterLike, Preset, as_cluster, find_preset, preset
from meshlab.topology.model._products import find_product, gpu_model
from meshlab.topology.readers._nccl_info import read_nccl_info

if TYPE_CHECKING:
    import pandas as pd

RACK_GPUS = ("GB200", "GB300")
"""Models of GPUs that NVLink joins across hosts."""

_RACK = 72  # GPUs of such a rack
_MIG = re.compile(r"\bMIG\b|\d+g\.\d+gb", re.IGNORECASE)
_VIRTUAL = re.compile(r"\bVF\b|\bGRID\b|\bvGPU\b|virtuali[sz]ed|-\d+[CQAB]\b")
_ON_ONE_HOST = re.compile(r"\d+ × (?!.*\bhosts?\b)")  # how meshlab titles ranks on the GPUs of one host
_RATE = re.compile(r"(?:(\d+) *[x×*] *)?(\d+(?:\.\d+)?) *(?:Gb(?:it)?(?:/s|ps)?)?", re.IGNORECASE)
_RATES = (800, 400, 200, 100, 50, 40, 25, 10)

# Words that a machine or its software prints, with the presets that they stand for. The preset must have the GPUs.
_WORDS = (
    (r"p5en[.-]48xl", ("aws-p5en",)),
    (r"\bp5[.-]48xl", ("aws-p5",)),
    (r"\bp4de?[.-]24xl", ("aws-p4d",)),
    (r"p6-b200[.-]48xl", ("aws-p6-b200",)),
    (r"p6-b300[.-]48xl", ("aws-p6-b300",)),
    (r"FasTrak|TCPXO|a3-?megagpu|A3 Mega", ("gcp-a3-mega",)),
    (r"TCPX\b|a3-?highgpu|A3 High", ("gcp-a3-high",)),
    (r"a3-?ultragpu|A3 Ultra", ("gcp-a3-ultra",)),
    (r"a4x-?max|A4X Max", ("gcp-a4x-max",)),
    (r"a4x-?highgpu|\bA4X\b", ("gcp-a4x",)),
    (r"a4-?highgpu|\bA4\b", ("gcp-a4",)),
    (r"\bgIB\b", ("gcp-a3-ultra", "gcp-a4")),
    (r"ndv4-topo|ND(?:96)?\w*A100_?v4|ND A100 v4", ("azure-nd-a100-v4",)),
    (r"ndv5-topo|ND(?:96)?\w*_?H[12]00_?v5|ND H[12]00 v5", ("azure-ndv5", "azure-nd-h200-v5")),
    (
        r"BM\.GPU\.[HBM]\d+X?\.8",
        ("oci-h100", "oci-h200", "oci-b200", "oci-b300", "oci-mi300x", "oci-b4"),
    ),
    (r"DGX[ -]?Spark", ("dgx-spark",)),
    (r"\bPolaris\b", ("polaris",)),
    (r"\bAlps\b|provider is cxi|\bcxi\b", ("alps-gh200", "polaris")),
    (
        r"AWS Libfabric|aws-ofi-nccl|\befa\b",
        ("aws-p5", "aws-p5en", "aws-p4d", "aws-p6-b200", "aws-p6-b300"),
    ),
    (r"NVL72", ("gb200-nvl72", "gb300-nvl72")),
)


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """The hosts of a measurement. A fact is None or NaN if the source does not contain it."""

    gpu: str | None = None  # name of the GPU as printed
    nodes: int | None = None  # number of hosts
    gpus_per_node: int | None = None  # GPUs per host that took part
    nic_gbps: float = math.nan  # sum of the line rates of the NICs of a host in Gb/s
    nics: str = ""  # the NICs in words, empty if unknown
    n_nics: int | None = None  # their number, if only that is known
    n_ranks: int | None = None
    cluster: Cluster | None = None
    excluded: str = ""  # why its speed is not judged, as the end of a sentence
    unlike: str = ""  # why it is not compared with published runs

    @property
    def model(self) -> str | None:
        """Model of the GPU without its memory."""
        return None if self.gpu is None else gpu_model(self.gpu)

    @property
    def title(self) -> str:
        """The hosts, their GPUs and NICs, such as ``2 × 8 H100 with 8 × 400 Gb/s``."""
        model = self.model or "unknown GPUs"
        if self.gpus_per_node is None or self.nodes is None:
            return model
        if self.nodes == 1:
            return f"{self.gpus_per_node} × {model}"
        return f"{self.nodes} × {self.gpus_per_node} {model}{f' with {self.nics}' if self.nics else ''}"

    @property
    def has_network(self) -> bool:
        """Whether the measurement needed the network between hosts."""
        return (self.nodes or 1) > 1 and not self.is_rack

    @property
    def is_rack_gpu(self) -> bool:
        """Whether NVLink joins its hosts to racks."""
        return self.model in RACK_GPUS

    @property
    def is_rack(self) -> bool:
        """Whether NVLink joins all hosts."""
        return self.is_rack_gpu and (self.nodes or 1) * (self.gpus_per_node or 1) <= _RACK

    def missing(self, n_ranks: int | None) -> str:
        """Return the first fact that is needed and missing, with the way to state it, or an empty text."""
        if n_ranks is None:
            return "the number of ranks is missing: neither a list of devices nor the rates show it"
        if self.gpu is None:
            return "the GPU is missing: the text has no list of devices (state it with gpu=, --gpu)"
        if self.nodes is None:
            return f"the number of hosts of the {n_ranks} ranks is missing (state it with nodes=, --nodes)"
        if self.has_network and not math.isfinite(self.nic_gbps):
            part = "NICs are" if self.n_nics is None else f"rate of the {self.n_nics} NICs is"
            ways = f'nics="8 x 400" or cluster="{self._example}", --nics, --cluster'
            return f"the {part} missing (state {'it' if self.n_nics else 'them'} with {ways})"
        return ""

    def lacks_network_only(self, n_ranks: int | None) -> bool:
        """Return whether the NICs are the only missing fact."""
        return n_ranks is not None and not replace(self, nic_gbps=1.0).missing(n_ranks)

    @property
    def _example(self) -> str:
        fitting = (name for name, machine in PRESETS.items() if gpu_model(machine.gpu) == self.model)
        return next(fitting, "dgx-h100")

    def of_results(self, results: pd.DataFrame) -> MeasuredMachine:
        """Return this machine with the GPU that results name, if it is unknown."""
        return self if self.gpu is not None else replace(self, gpu=machine_of_frame(results).gpu)

    def known_networks(self) -> tuple[MeasuredMachine, ...]:
        """Return this machine with every network that presets and published runs have for these hosts."""
        rates: dict[float, str] = {}
        for name, machine in PRESETS.items():
            if gpu_model(find_product(machine.gpu).name) == self.model and _devices(machine) == self.gpus_per_node:
                rates.setdefault(
                    _total(name), f"{sum(switch[2] for switch in machine.switches)} × {machine.gbits:g} Gb/s"
                )
        for curve in published_curves():
            rate = curve.nic_gbps_per_node
            if (curve.gpu_model, curve.gpus_per_node) == (self.model, self.gpus_per_node) and math.isfinite(rate):
                rates.setdefault(rate, common_nics(rate, curve.gpus_per_node))
        return tuple(replace(self, nic_gbps=rate, nics=rates[rate]) for rate in sorted(rates))

    def with_cluster(self) -> MeasuredMachine:
        """Add the preset with these GPUs and NICs, if there is one."""
        if self.cluster is not None or self.nodes is None or self.gpus_per_node is None or self.model is None:
            return self
        name = next((name for name, machine in PRESETS.items() if self._is(machine)), None)
        if name is None:
            return self
        cluster = preset(name, nodes=max(self.nodes, 1))
        return replace(self, cluster=cluster, nics=nics_of(cluster)[1] if self.has_network else self.nics)

    def _is(self, machine: Preset) -> bool:
        """Return whether a preset has these GPUs, all of them in several hosts, and these NICs."""
        devices = _devices(machine)
        if gpu_model(find_product(machine.gpu).name) != self.model:
            return False
        if self.nodes == 1:
            return devices >= (self.gpus_per_node or 0)
        return devices == self.gpus_per_node and (
            self.is_rack or sum(switch[2] for switch in machine.switches) * machine.gbits == self.nic_gbps
        )


def nics_of(cluster: Cluster) -> tuple[float, str]:
    """Return the sum of the line rates of the NICs of a host in Gb/s, and the NICs in words."""
    rates = [nic.gbits for nic in cluster.templates[0].nics if nic.is_connected]
    if not rates or any(rate is None for rate in rates):
        return math.nan, ""
    counts = Counter(float(rate) for rate in rates if rate is not None)
    return sum(rate * count for rate, count in counts.items()), " and ".join(
        f"{count} × {rate:g} Gb/s" for rate, count in counts.items()
    )


def parse_nics(text: str | float) -> tuple[float, str]:
    """Parse the NICs of a host: ``8 x 400``, or the sum of their rates in Gb/s."""
    match = _RATE.fullmatch(str(text).strip())
    if match is None or not float(match[2]):
        raise BenchError(
            f"nics must be a number of NICs and their rate, not {text!r}",
            hint=Hint("write {}, in Gb/s", Argument("nics", "8 x 400")),
        )
    count, rate = int(match[1] or 1), float(match[2])
    return count * rate, f"{count} × {rate:g} Gb/s" if match[1] else f"{rate:,g} Gb/s"


def common_nics(rate: float, gpus: int) -> str:
    """Return NICs with a total rate in words: as many as GPUs if such NICs exist, otherwise the sum."""
    for count in (gpus, 2 * gpus, 4 * gpus, gpus // 2, 1):
        if count and rate / count in _RATES:
            return f"{count} × {rate / count:g} Gb/s"
    return f"{rate:,g} Gb/s"


def machine_of_section(section: Section, text: str = "") -> MeasuredMachine:
    """Return the machine of a section of a log: its list of devices, its hosts, and the lines of NCCL and launchers."""
    names = [line.name for line in section.devices if line.name not in ("", UNKNOWN)]
    models = sorted({gpu_model(name) for name in names})
    machine = MeasuredMachine(gpu=section.gpu, n_ranks=section.n_ranks)
    if len(models) > 1:
        return replace(machine, excluded=f"the ranks have different GPUs ({format_range(models[0], models[-1])})")
    machine = replace(machine, excluded=_exclusion(" ".join(dict.fromkeys(names))))
    nodes, per_node = _hosts(section)
    machine = replace(machine, nodes=nodes, gpus_per_node=per_node)
    return _with_network(machine, text, section)


def _exclusion(names: str) -> str:
    if _MIG.search(names):
        return "MIG splits its GPUs, and published runs used complete ones"
    if _VIRTUAL.search(names):
        return "its GPUs are virtual functions, and published runs used complete ones"
    return ""


def _hosts(section: Section) -> tuple[int | None, int | None]:
    """Return the number of hosts, and the ranks of each of them."""
    n_ranks = section.n_ranks
    if n_ranks is None:
        return None, None
    nodes = section.nccl.n_nodes
    devices = [line for line in section.devices if line.host != UNKNOWN]
    if nodes is None and len(devices) == n_ranks:
        nodes = _count_hosts(devices)
    if nodes is None and (per_node := section.ranks_per_node):
        nodes = -(-n_ranks // per_node)
    preamble = section.preamble
    if nodes is None and (preamble.threads or 0) * (preamble.gpus or 0) == n_ranks:
        nodes = 1  # one process has all ranks
    if nodes is None and devices:
        most = 1 + max(line.device for line in devices)
        # The last lines of a list that was cut show the devices of the last host.
        is_last = devices[-1].rank == n_ranks - 1 and n_ranks % most == 0
        nodes = n_ranks // most if is_last and all(line.rank % most == line.device for line in devices) else None
    if nodes is None or n_ranks % nodes:
        return nodes, None
    return nodes, n_ranks // nodes


def _count_hosts(devices: Sequence[DeviceLine]) -> int:
    """Return the number of hosts. If their names were replaced by one word, a device that repeats is on another."""
    hosts = {line.host for line in devices}
    repeated = Counter((line.host, line.device, line.bus_id) for line in devices)
    return max(len(hosts), max(repeated.values(), default=1))


def _with_network(machine: MeasuredMachine, text: str, section: Section | None = None) -> MeasuredMachine:
    """Add the network: NCCL's system tree, or words of the text that stand for a preset."""
    if not machine.has_network or machine.gpus_per_node is None:
        return machine
    facts = "" if section is None else " ".join([section.nccl.network or "", *section.nccl.environment.values()])
    words = f"{text} {facts}"
    try:
        tree = read_nccl_info(text) if "=== System" in text or "NET/" in text else None
    except MeshlabError:
        tree = None
    if tree is not None and math.isfinite((nics := nics_of(tree))[0]):
        return replace(machine, nic_gbps=nics[0], nics=nics[1])
    for pattern, names in _WORDS:
        if re.search(pattern, words):
            for name in names:
                if replace(machine, nic_gbps=_total(name))._is(PRESETS[name]):
                    cluster = preset(name, nodes=machine.nodes)
                    rate, nics_text = nics_of(cluster)
                    return replace(machine, nic_gbps=rate, nics=nics_text, cluster=cluster)
    ports = re.search(r"NET/IB : Using ((?:\[\d+\]\S+ *)+)", text)
    return machine if ports is None else replace(machine, n_nics=ports[1].count("["))


def _devices(machine: Preset) -> int:
    return sum(switch[1] for switch in machine.switches)


def _total(name: str) -> float:
    machine = PRESETS[name]
    return float(sum(switch[2] for switch in machine.switches) * machine.gbits)


def machine_of_run(run: RunData) -> MeasuredMachine:
    """Return the machine of a run: its GPU and the number of its hosts."""
    machine = machine_of_frame(run.results)
    return replace(machine, nodes=len(set(run.hosts))) if run.hosts else machine


def machine_of_frame(results: pd.DataFrame) -> MeasuredMachine:
    """Return the machine that the columns or the ``attrs`` of a frame name."""

    def fact(*names: str) -> Any:
        for name in names:
            if name in results and results[name].nunique() == 1:
                return results[name].dropna().iloc[0]
        return None

    gpu = fact("gpu") or results.attrs.get("gpu") or None
    nodes, per_node, rate = fact("nodes", "n_nodes"), fact("gpus_per_node"), fact("nic_gbps_per_node")
    ranks = fact("n_ranks")
    nodes = None if nodes is None else int(nodes)
    if nodes is None and _ON_ONE_HOST.match(str(results.attrs.get("where", ""))):
        nodes = 1
    if nodes and ranks is not None and per_node is None:
        per_node = int(ranks) // nodes
    machine = MeasuredMachine(
        gpu=None if gpu is None else str(gpu),
        nodes=nodes,
        gpus_per_node=None if per_node is None else int(per_node),
        excluded=_exclusion(" ".join(str(word) for word in (gpu, fact("machine", "system"), fact("remark")) if word)),
    )
    if rate and nodes and nodes > 1:
        machine = replace(machine, nic_gbps=float(rate), nics=common_nics(float(rate), machine.gpus_per_node or 1))
    return machine


def with_statements(
    machine: MeasuredMachine,
    n_ranks: int | None,
    *,
    gpu: str | None = None,
    nodes: int | None = None,
    nics: str | float | None = None,
    cluster: ClusterLike | None = None,
) -> MeasuredMachine:
    """Replace what the source says about its machine by what the caller states."""
    if gpu is not None:
        machine = replace(machine, gpu=gpu, excluded=_exclusion(gpu))
    if nodes is not None:
        machine = replace(machine, nodes=nodes)
    if machine.nodes and n_ranks:
        machine = replace(machine, gpus_per_node=-(-n_ranks // machine.nodes))
    if nics is not None:
        rate, text = parse_nics(nics)
        machine = replace(machine, nic_gbps=rate, nics=text, cluster=None)
    if cluster is not None:
        machine = _on_cluster(machine, n_ranks, cluster)
    return machine.with_cluster()


def sized_cluster(cluster: ClusterLike, machine: MeasuredMachine | None) -> Cluster:
    """Return a cluster. A preset gets the hosts of the measurement, or as many as its ranks need."""
    if not isinstance(cluster, str) or machine is None:
        return as_cluster(cluster)
    kind = find_preset(cluster)
    needed = None if machine.n_ranks is None else -(-machine.n_ranks // _devices(kind))
    return preset(cluster, nodes=machine.nodes or needed)


def _on_cluster(machine: MeasuredMachine, n_ranks: int | None, cluster: ClusterLike) -> MeasuredMachine:
    """Add a cluster. A preset gets the hosts of the measurement, or as many as its ranks need."""
    cluster = sized_cluster(cluster, replace(machine, n_ranks=n_ranks))
    rate, nics = nics_of(cluster)
    per_node = cluster.n_devices // max(cluster.n_nodes, 1)
    nodes = machine.nodes or (None if n_ranks is None else -(-n_ranks // max(per_node, 1)))
    gpus = None if nodes is None or n_ranks is None else -(-n_ranks // nodes)
    name = cluster.templates[0].devices[0].name if cluster.n_devices else None
    return replace(
        machine,
        gpu=machine.gpu or name,
        nodes=nodes,
        gpus_per_node=gpus,
        nic_gbps=rate if gpus == per_node else machine.nic_gbps,
        nics=nics if gpus == per_node else machine.nics,
        cluster=cluster,
    )
