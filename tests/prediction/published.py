"""Public measurements with their machines: the files in the folder MESHLAB_CASES, and our own GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.prediction.tuner import NcclSettings
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.model.presets import PRESETS
from meshlab.topology.placement.placement import Placement, place

ROOT = Path(__file__).parents[2]
CASES = Path(os.environ.get("MESHLAB_CASES", "/nonexistent"))
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="MESHLAB_CASES names the folder of public measurements")

_P4D = PRESETS["aws-p4d"]
MACHINES = {
    **PRESETS,
    "alps": PRESETS["alps-gh200"],
    "p4de": replace(_P4D, title="AWS p4de.24xlarge", gpu="A100 80GB"),
    "a3-mega": PRESETS["gcp-a3-mega"],
    "polaris": replace(
        _P4D,
        title="Polaris",
        gpu="A100 40GB",
        nvlinks=4,
        switches=((0, 2, 1), (1, 2, 1)),
        gbits=200,
        cpu_model="AMD EPYC 7543P",
    ),
    "a100-pcie": replace(
        PRESETS["pcie-l40s"], title="2 × A100 PCIe", gpu="A100 PCIe 80GB", switches=((0, 1, 0), (0, 1, 0))
    ),
}


def machine(name: str, nodes: int) -> Cluster:
    """A cluster of a preset, or of a machine that only the tests know."""
    one = MACHINES[name]
    return Cluster(
        (one.node(),),
        np.zeros(nodes, dtype=np.int32),
        tuple(f"node{number}" for number in range(nodes)),
        levels=one.fabric.levels(nodes),
        nvlink_of_node=np.arange(nodes, dtype=np.int32) // one.fabric.rack if one.fabric.rack > 1 else None,
        title=one.title,
        source=one.source,
    )


@dataclass(frozen=True, eq=False)
class PublishedRun:
    """Rows of one system, with one number of ranks, in one timing mode."""

    system: str
    placement: Placement
    settings: NcclSettings
    rows: pd.DataFrame
    """A results frame, without wrong results."""

    is_known: bool = True
    """False if the NICs of the machine are not published, or were not used."""

    agrees: np.ndarray | bool = True
    """For each row, whether a second public run of the same system is within 15 %. Only Alps was measured twice."""

    @property
    def n_ranks(self) -> int:
        return self.placement.mesh.world_size


def placed(name: str, n: int, nodes: int, per_domain: int | None = None) -> Placement:
    """All ranks on one axis of a machine, by default on its first devices, or a number of them per domain."""
    cluster = machine(name, nodes)
    devices = None
    if per_domain is not None:
        size = cluster.n_devices // (n // per_domain)
        devices = (np.arange(n) // per_domain * size + np.arange(n) % per_domain).tolist()
    return place(f"x={n}", cluster, devices)


def results(frame: pd.DataFrame) -> pd.DataFrame:
    """A results frame of rows with only a few columns."""
    from meshlab.frames.store import as_results

    return as_results(frame.assign(axis="x", group="x_0", grouping="together", status="ok").reset_index(drop=True))


_SYSTEMS = {
    "H100 IB SHARP": ("dgx-h100", 12, None, NcclSettings(sharp=True)),
    "GB200 NVL72": ("gb200-nvl72", 18, None, NcclSettings()),
    "GB200 NVL72x2": ("gb200-nvl72", 36, 64, NcclSettings()),
    "GB200 NVL72x20": ("gb200-nvl72", 360, None, NcclSettings()),
    "H100x8 A3 Mega TCPXO": ("a3-mega", 2, None, NcclSettings(sharp=False)),
    "p4de A100x8 EFA": ("p4de", 2, None, NcclSettings()),
    "p5 H100x8 EFA": ("aws-p5", 2, None, NcclSettings()),
}


def _csv_runs() -> Iterator[PublishedRun]:
    table = pd.read_csv(CASES / "published_collectives.csv")
    table = table[(table["oop_wrong"] == 0) | table["oop_wrong"].isna()]
    table = table[~(table["ip_wrong"] > 0) & (table["bytes"] > 0)]
    for (source, system, nodes, n), rows in table.groupby(["source", "system", "nodes", "ranks_by_factor"], sort=False):
        name, n_nodes, per_domain, settings = _SYSTEMS.get(system, ("alps", nodes, None, NcclSettings()))
        frame = results(
            pd.DataFrame(
                {
                    "run_id": f"{source} {n}",
                    "source": "nccl-tests",
                    "collective": "all_reduce",
                    "op": "sum",
                    "dtype": "float32",
                    "in_place": False,
                    "mode": "pipelined",
                    "n_ranks": n,
                    "size_bytes": rows["bytes"],
                    "time_us": rows["oop_us"],
                    "n_wrong": 0,
                }
            )
        )
        yield PublishedRun(
            source if name == "alps" else system, placed(name, int(n), int(n_nodes), per_domain), settings, frame
        )


_LOGS = {
    "01": ("8xA100, one process", "aws-p4d", 1, None),
    "02": ("8xA100, one process", "aws-p4d", 1, None),
    "03": ("8xA100, one process", "aws-p4d", 1, None),
    "04": ("Polaris", "polaris", 8, None),
    "08": ("Polaris", "polaris", 128, None),
    "13": ("8xH100", "dgx-h100", 1, None),
    "14": ("H100, 10 nodes", "dgx-h100", 10, None),
    "15": ("H100, one per node", "dgx-h100", 2, 1),
    "18": ("8xH100 p5", "aws-p5", 1, None),
    "22": ("GH200 CSCS", "alps", 2, None),
    "25": ("H100 OCI", "dgx-h100", 2, None),
    "31": ("H200x16", "dgx-h200", 2, None),
    "32": ("2xA100 PCIe", "a100-pcie", 1, None),
    "33": ("2xA100 PCIe", "a100-pcie", 1, None),
}
_UNKNOWN = ("Polaris", "H200x16")


def _log_runs() -> Iterator[PublishedRun]:
    for number, (system, name, nodes, per_domain) in _LOGS.items():
        path = next((CASES / "nccl_logs").glob(f"{number}_*"))
        frame = ml.nccl_tests.read(path).results
        frame = frame[~frame["in_place"] & (frame["size_bytes"] > 0) & ~frame["n_wrong"].gt(0).fillna(False)]
        frame = frame.assign(mode=frame["mode"].fillna("pipelined"))
        n = int(frame["n_ranks"].iloc[0])
        yield PublishedRun(
            system, placed(name, n, nodes, per_domain), NcclSettings(), results(frame), is_known=system not in _UNKNOWN
        )


@cache
def h200_runs() -> tuple[PublishedRun, ...]:
    """Our two H200 without NVLS: launches of nccl-tests and of meshlab, in two modes, each launch a run."""
    table = pd.read_csv(ROOT / "tests/gpu/side_by_side_2xH200.csv")
    launches = [name for name in table if name.startswith("launch_")]
    long = table.melt(["mode", "collective", "size_bytes", "who"], launches, "launch", "time_us").dropna()
    runs = []
    for (who, mode, launch), rows in long.groupby(["who", "mode", "launch"], sort=False):
        frame = results(
            rows[["mode", "collective", "size_bytes", "time_us"]].assign(
                run_id=f"{who} {launch}", source="nccl", dtype="float32", in_place=False, n_ranks=2, n_wrong=0
            )
        )
        settings = NcclSettings(nvls=False, mode=mode)
        runs.append(PublishedRun(f"2xH200 {who}", placed("dgx-h200", 2, 1), settings, frame))
    return tuple(runs)


@cache
def public_runs() -> tuple[PublishedRun, ...]:
    """All rows of the folder, without wrong results. Alps was measured in two configurations."""
    runs = [*_csv_runs(), *_log_runs()]
    by_size = {(run.system, run.n_ranks): run.rows.set_index("size_bytes")["time_us"] for run in runs}
    other = {"alps-fi_cxi_tuned": "alps-default", "alps-default": "alps-fi_cxi_tuned"}
    found = []
    for run in runs:
        if run.system in other:
            time = by_size[run.system, run.n_ranks]
            again = by_size[other[run.system], run.n_ranks].reindex(time.index)
            run = replace(run, agrees=(np.abs(np.log(time / again)) < np.log(1.15)).to_numpy())
        found.append(run)
    return tuple(found)
