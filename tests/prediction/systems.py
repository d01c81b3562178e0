"""Public measurements and the clusters they were made on: shared by the tests of predictions and calibrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

import meshlab as ml
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._tuner import NcclSettings
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._presets import PRESETS, Preset
from meshlab.topology.model._products import find_product
from meshlab.topology.placement._placement import Placement

ROOT = Path(__file__).parent.parent.parent


def build(machine: Preset, nodes: int) -> Cluster:
    """Build a cluster of a machine that is no preset."""
    return Cluster(
        (machine.node(),),
        np.zeros(nodes, dtype=np.int32),
        tuple(f"node{number}" for number in range(nodes)),
        levels=machine.fabric.levels(nodes),
    )


def two_a100_on_pcie() -> Cluster:
    gpu = find_product("A100 PCIe 80GB")
    node = Node("node0", (gpu.device(0), gpu.device(1)), words=(("X", "PHB"), ("PHB", "X")), cpu_model="AMD EPYC")
    return Cluster.from_nodes([node])


POLARIS = replace(
    PRESETS["alps-gh200"],
    title="Polaris",
    gpu="A100 40GB",
    nvlinks=4,
    switches=((0, 2, 1), (0, 2, 1)),
    near="PHB",
    cpus=PRESETS["pcie-l40s"].cpus,
    sockets=1,
    cpu_model="AMD EPYC 7543P",
)


@dataclass(frozen=True)
class System:
    """A machine on which somebody measured.

    `known` is False if the published description leaves out what the prediction needs, or if the run shows that it did
    not use the hardware described. With `one_rank_per_node` every host has a single rank.
    """

    cluster: Callable[[int], Cluster]
    ranks_per_node: int
    known: bool = True
    settings: NcclSettings = field(default_factory=NcclSettings)
    one_rank_per_node: bool = False

    def placement(self, n_ranks: int) -> Placement:
        """Return one group of all ranks, the axis dp, on the machine."""
        if self.one_rank_per_node:
            cluster = self.cluster(n_ranks)
            devices = np.arange(n_ranks, dtype=np.int32) * self.ranks_per_node
        else:
            cluster = self.cluster(max(1, -(-n_ranks // self.ranks_per_node)))
            devices = np.arange(n_ranks, dtype=np.int32)
        return ml.place(ml.DeviceMesh(dp=n_ranks), cluster, devices=devices)

    def links(self, n_ranks: int) -> GroupLinks:
        """Return the links of one group of all ranks."""
        return GroupLinks.of(self.placement(n_ranks), "dp")[0]


def preset(name: str, **options: int) -> Callable[[int], Cluster]:
    return lambda nodes: ml.preset(name, nodes=nodes, **options)


SYSTEMS = {
    "Alps GH200": System(preset("alps-gh200"), 4),
    "H100 SHARP": System(preset("dgx-h100"), 8, settings=NcclSettings(sharp=True)),
    "GB200 NVL72": System(preset("gb200-nvl72"), 4),
    "GB200 NVL72 x2": System(preset("gb200-nvl72", nodes_per_rack=16), 4),
    "GB200 NVL72 x20": System(preset("gb200-nvl72"), 4),
    "A3 Mega": System(preset("gcp-a3-mega"), 8),
    "p4de": System(preset("aws-p4d"), 8),
    "p5": System(preset("aws-p5"), 8),
    "A100x8": System(preset("dgx-a100"), 8),
    "Polaris": System(lambda nodes: build(POLARIS, nodes), 4, known=False),  # reaches a fifth of its two NICs
    "H100x8": System(preset("dgx-h100"), 8),
    "H100, 10 nodes": System(preset("dgx-h100"), 8),
    "H100, one rank per node": System(preset("dgx-h100"), 8, one_rank_per_node=True),
    "OCI H100": System(preset("dgx-h100"), 8),
    "H200x16": System(preset("dgx-h200"), 8, known=False),  # the NICs are not published
    "A100 PCIe x2": System(lambda nodes: two_a100_on_pcie(), 2),
    "H200x2": System(preset("dgx-h200"), 8, settings=NcclSettings(nvls=False, mode="graph", version="2.28.9")),
}

_PUBLISHED = {
    "GH200x4/node Slingshot": "Alps GH200",
    "H100 IB SHARP": "H100 SHARP",
    "GB200 NVL72": "GB200 NVL72",
    "GB200 NVL72x2": "GB200 NVL72 x2",
    "GB200 NVL72x20": "GB200 NVL72 x20",
    "H100x8 A3 Mega TCPXO": "A3 Mega",
    "p4de A100x8 EFA": "p4de",
    "p5 H100x8 EFA": "p5",
}

_LOGS = {
    "01": "A100x8",
    "02": "A100x8",
    "03": "A100x8",
    "04": "Polaris",
    "08": "Polaris",
    "13": "H100x8",
    "14": "H100, 10 nodes",
    "15": "H100, one rank per node",
    "18": "H100x8",
    "22": "Alps GH200",
    "25": "OCI H100",
    "31": "H200x16",
    "32": "A100 PCIe x2",
    "33": "A100 PCIe x2",
}

SIZE_CLASSES = ("< 1 MiB", "1-128 MiB", "256-512 MiB", ">= 1 GiB")


def measured(cases: Path) -> pd.DataFrame:
    """Return the out-of-place rows with right results of all public runs.

    The columns are ``system``, ``run``, ``collective``, ``dtype``, ``n_ranks``, ``size_bytes``, ``time_us``, ``agrees``
    (False if a repetition of the run differs by more than 15 %), ``known`` and ``size_class``.
    """
    parts = [_published(cases), _logs(cases), _two_h200()]
    rows = pd.concat(parts, ignore_index=True)
    rows["known"] = rows["system"].map(lambda name: SYSTEMS[name].known)
    edges = [0, 1 << 20, 256 << 20, 1 << 30, np.inf]
    rows["size_class"] = pd.cut(rows["size_bytes"], edges, right=False, labels=SIZE_CLASSES)
    return rows


def _published(cases: Path) -> pd.DataFrame:
    rows = pd.read_csv(cases / "published_collectives.csv")
    rows = rows[(rows["oop_wrong"].fillna(0) == 0) & rows["oop_us"].notna()]
    rows = pd.DataFrame(
        {
            "system": rows["system"].map(_PUBLISHED),
            "run": rows["source"],
            "collective": rows["collective"],
            "dtype": "float32",
            "n_ranks": rows["ranks_by_factor"],
            "size_bytes": rows["bytes"],
            "time_us": rows["oop_us"],
        }
    )
    repeats = rows.groupby(["system", "n_ranks", "size_bytes"])["time_us"]
    rows["agrees"] = repeats.transform("max") <= 1.15 * repeats.transform("min")
    return rows


def _logs(cases: Path) -> pd.DataFrame:
    parts = []
    for number, system in _LOGS.items():
        (path,) = (cases / "nccl_logs").glob(f"{number}_*")
        rows = ml.nccl_tests.read(path).results
        rows = rows[~rows["in_place"].astype(bool) & (rows["size_bytes"] > 0) & (rows["n_wrong"].fillna(0) == 0)]
        rows = rows[rows["time_us"].notna()]
        columns = ["collective", "dtype", "n_ranks", "size_bytes", "time_us"]
        parts.append(rows[columns].assign(system=system, run=number, agrees=True))
    return pd.concat(parts)


def _two_h200() -> pd.DataFrame:
    rows = pd.read_csv(ROOT / "tests" / "gpu" / "side_by_side_2xH200.csv")
    rows = rows[rows["mode"] == "graph"]
    launches = rows.filter(like="launch_")
    return pd.DataFrame(
        {
            "system": "H200x2",
            "run": rows["who"],
            "collective": rows["collective"],
            "dtype": "float32",
            "n_ranks": 2,
            "size_bytes": rows["size_bytes"],
            "time_us": launches.median(axis=1),
            "agrees": launches.max(axis=1) <= 1.15 * launches.min(axis=1),
        }
    )
