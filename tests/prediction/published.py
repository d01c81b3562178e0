"""The errors of the formula on published curves: python -m tests.prediction.published writes them into the package.

The curves are those of the library, and with MESHLAB_CASES those of further public logs. Without it, the rows of these
logs stay as they are in the file.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.prediction._costs import cost
from meshlab.prediction._group_links import FABRIC_KINDS, GroupLinks
from meshlab.prediction._published import PublishedCurve, published_curves
from meshlab.prediction._published_errors import COLUMNS, OCTAVES, no_errors, published_errors, size_class
from meshlab.prediction._tuner import NcclSettings
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._links import FABRICS
from tests.prediction.systems import ROOT, SYSTEMS, _logs, _two_h200

CLASSES = ("below 1 MiB", "1 to 128 MiB", "from 128 MiB on")

FILE = ROOT / "meshlab" / "prediction" / "published_errors.csv"

# Curves that do not show what their hardware does (TCP instead of RDMA, no GPUDirect, a virtual NIC), those of texts
# whose machine cannot be checked, and those of the logs that are read as a whole.
_LEFT_OUT = "|".join(
    (
        *("^gke-h200-1gpu", "^nccl2441", "^gke-a4-dranet", "^log-"),
        *(r"^oci-bm\.gpu4", "^oci-h200", "^azure-h200", "^hpc-a100x4", "^do-h100", "^alpha-h100"),
    )
)

_PRESETS = (
    # GPU, GPUs per host that took part (0 for any), kind of network, preset
    ("A100", 4, "Slingshot", "polaris"),
    ("A100", 0, "EFA", "aws-p4d"),
    ("A100", 0, "", "dgx-a100"),
    ("H100", 0, "EFA", "aws-p5"),
    ("H100", 0, "TCPXO", "gcp-a3-mega"),
    ("H100", 0, "", "dgx-h100"),
    ("H200", 0, "", "dgx-h200"),
    ("B200", 0, "", "dgx-b200"),
    ("B300", 0, "", "dgx-b300"),
    ("GB10", 0, "", "dgx-spark"),
    ("GB200", 0, "", "gb200-nvl72"),
    ("GB300", 0, "", "gb300-nvl72"),
    ("GH200", 0, "", "alps-gh200"),
)
_KIND_WORDS = (("EFA", "EFA"), ("Slingshot", "Slingshot"), ("TCPXO", "TCPXO"), ("RoCE", "Ethernet"))
_SOURCES_OF_LOGS = {
    "05": "https://github.com/argonne-lcf/alcf-nccl-tests",
    "13": "https://github.com/xxrjun/nccl-tests-cluster",
    "14": "https://github.com/xxrjun/nccl-tests-cluster",
    "18": "https://github.com/aws-samples/awsome-distributed-training",
    "22": "https://github.com/eth-cscs/cscs-docs",
    "25": "https://github.com/oracle-quickstart/oci-hpc",
}


@dataclass(frozen=True)
class Measured:
    """Times of one curve on the links of its group."""

    curve: str
    source: str
    collective: str
    links: GroupLinks
    settings: NcclSettings
    size_bytes: npt.NDArray[np.int64]
    time_us: npt.NDArray[np.float64]
    verdict: str = ""


def with_network(cluster: Cluster, kind: str) -> Cluster:
    """Return a cluster with another kind of network."""
    if cluster.n_nodes == 1 or kind == cluster.templates[0].nics[0].fabric:
        return cluster
    hosts = (
        replace(node, nics=tuple(replace(nic, link_layer=kind) for nic in node.nics)) for node in cluster.templates
    )
    levels = (replace(level, latency_us=FABRICS[kind].hop_us) for level in cluster.levels)
    return replace(cluster, templates=tuple(hosts), levels=tuple(levels))


@lru_cache(maxsize=256)
def links_of(machine: str, kind: str, nodes: int, n_ranks: int, per_rack: int = 0) -> GroupLinks:
    """Return the links of one group of the first ranks of each host."""
    cluster = ml.preset(machine, nodes=nodes, **({"nodes_per_rack": per_rack} if per_rack else {}))
    cluster = with_network(cluster, kind) if kind else cluster
    of_host = np.arange(n_ranks // nodes)
    first = np.arange(nodes)[:, None] * len(cluster.templates[0].devices)
    devices = (first + of_host).ravel().astype(np.int32)
    return GroupLinks.of(ml.place(ml.DeviceMesh(dp=n_ranks), cluster, devices=devices), "dp")[0]


def machine_of(curve: PublishedCurve) -> tuple[str, str] | None:
    """Return the preset of a curve and the kind of its network, or None if no preset is like it."""
    kind = next((kind for word, kind in _KIND_WORDS if word in (curve.nic or "")), "")
    for gpu, per_node, network, preset in _PRESETS:
        if curve.gpu_model == gpu and per_node in (0, curve.gpus_per_node) and network in (kind, ""):
            return preset, kind
    return None


def curves() -> Iterator[Measured]:
    """Yield the curves of the library that have a preset, both placements of a run together."""
    both: dict[tuple[str, str], list[PublishedCurve]] = {}
    for curve in published_curves():
        if not curve.is_of_site and curve.verdict != "slow" and not re.search(_LEFT_OUT, curve.curve):
            both.setdefault((curve.curve, curve.collective), []).append(curve)
    for (name, collective), parts in both.items():
        first = parts[0]
        machine = machine_of(first)
        if machine is None or first.n_ranks < 2 or first.remark == "SHARP":
            continue
        rack = 16 if first.remark == "two racks" else 0
        links = links_of(*machine, first.nodes, first.n_ranks, rack)
        times = pd.Series(
            np.concatenate([part.time_us for part in parts]), np.concatenate([part.size_bytes for part in parts])
        )
        times = times.groupby(level=0).median()
        yield Measured(
            name, first.source, collective, links, NcclSettings(), times.index.to_numpy(), times.to_numpy(float)
        )


def logs(cases: Path) -> Iterator[Measured]:
    """Yield further public logs."""
    rows = _logs(cases)
    for (log, collective, n), part in rows.groupby(["run", "collective", "n_ranks"]):
        if log in _SOURCES_OF_LOGS:
            system = SYSTEMS[part["system"].iloc[0]]
            times = part.groupby("size_bytes")["time_us"].median()
            yield Measured(
                f"log {log}", _SOURCES_OF_LOGS[log], str(collective), system.links(int(n)), system.settings,
                times.index.to_numpy().astype(np.int64), times.to_numpy(float),
            )  # fmt: skip


def own_runs() -> Iterator[Measured]:
    """Yield the runs of nccl-tests on two H200 that this repository has."""
    rows = _two_h200()
    for collective, part in rows[rows["run"] == "nccl-tests"].groupby("collective"):
        system = SYSTEMS["H200x2"]
        part = part.sort_values("size_bytes")
        yield Measured(
            "2 × H200", "meshlab, tests/gpu/side_by_side_2xH200.csv", str(collective), system.links(2), system.settings,
            part["size_bytes"].to_numpy(), part["time_us"].to_numpy(float),
        )  # fmt: skip
    for collective, part in ml.example().query("mode == 'graph'").groupby("collective"):
        times = part.groupby("size_bytes")["time_us"].median()
        yield Measured(
            "2 × H200, example", "meshlab, ml.example()", str(collective), system.links(2), system.settings,
            times.index.to_numpy().astype(np.int64), times.to_numpy(float),
        )  # fmt: skip


def error_by_octave(measured: Measured, *, spread: int = 2) -> npt.NDArray[np.float64]:
    """Return log(measured / formula) by octave, as at the nearest size up to `spread` octaves beyond the ends."""
    answer = cost(
        measured.links, measured.collective, measured.size_bytes, settings=measured.settings, evidence=no_errors()
    )
    error, x = np.log(measured.time_us / answer.time_us[0]), np.log2(measured.size_bytes)
    values = np.full(OCTAVES.size, np.nan)
    for number, octave in enumerate(OCTAVES.tolist()):
        near = np.abs(x - octave) <= 0.75
        values[number] = np.median(error[near]) if near.any() else np.nan
    has = np.flatnonzero(np.isfinite(values))
    inside = np.arange(OCTAVES.size)
    filled = np.interp(inside, has, values[has])
    filled[(inside < has[0] - spread) | (inside > has[-1] + spread)] = np.nan
    return filled


def line_of(measured: Measured) -> list[str]:
    """Return the row of a curve."""
    links = measured.links
    fabric = int(links.fabric[0])
    nic = links.nics[0] * links.nic_gbs[0] / links.ranks_per_domain[0]
    facts = [
        int(links.compute_capability[0]),
        int(links.inner_is_nvlink[0]) + int(links.is_switched[0]),
        int(links.n_ranks[0]),
        int(links.domains[0]),
        int(links.ranks_per_domain[0]),
        "" if fabric < 0 else FABRIC_KINDS[fabric],
        "" if fabric < 0 else f"{np.log2(nic):.3f}",
    ]
    errors = ["" if np.isnan(value) else f"{value:.3f}" for value in error_by_octave(measured)]
    return [measured.curve, measured.source, measured.collective, *map(str, facts), *errors]


def all_measured() -> list[Measured]:
    """Return all curves that can be had."""
    cases = os.environ.get("MESHLAB_CASES")
    return [*curves(), *own_runs(), *(logs(Path(cases)) if cases else [])]


def text() -> str:
    """Return the file."""
    lines = [line_of(measured) for measured in all_measured()]
    if not os.environ.get("MESHLAB_CASES"):
        with FILE.open(encoding="utf-8") as file:
            lines += [line for line in csv.reader(file) if line[0].startswith("log ")]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *map(str, OCTAVES.tolist())])
    writer.writerows(lines)
    return out.getvalue()


def left_out() -> pd.DataFrame:
    """Return all published times, each predicted without the curves of its source, and by the formula alone."""
    parts, others = [], {}
    for measured in all_measured():
        sizes, links, source = measured.size_bytes, measured.links, measured.source
        evidence = others.setdefault(source, published_errors().without([source]))
        answer, alone = (
            cost(links, measured.collective, sizes, settings=measured.settings, evidence=known)
            for known in (evidence, no_errors())
        )
        low, high = answer.errors.band(0, sizes)
        error = np.log(measured.time_us / answer.time_us[0])
        busbw = sizes / measured.time_us / 1e3 * answer.bus_factor[0]
        facts = {
            "curve": measured.curve, "source": source, "network": network_of(links), "size": sizes,
            "time_us": measured.time_us, "predicted_us": answer.time_us[0], "formula_us": alone.time_us[0],
            "error": np.expm1(np.abs(error)),
            "formula": np.expm1(np.abs(np.log(measured.time_us / alone.time_us[0]))),
            "is_inside": (low <= error) & (error <= high),
            "of_bound": np.where(sizes >= 1 << 24, busbw / answer.bound_gbs[0], np.nan),
            "size_class": np.array(CLASSES)[size_class(sizes)],
        }  # fmt: skip
        parts.append(pd.DataFrame(facts))
    return pd.concat(parts, ignore_index=True)


def network_of(links: GroupLinks) -> str:
    """Return the slowest links of a group in words."""
    if links.fabric[0] >= 0:
        return FABRIC_KINDS[links.fabric[0]].replace("Ethernet", "RoCE")
    return "NVSwitch" if links.is_switched[0] else "NVLink"


def draw(rows: pd.DataFrame) -> Figure:
    """Draw predicted against measured times by network, without published runs and with those of other sources."""
    figure = Figure((11, 5.6), layout="constrained")
    names = ["NVSwitch", "NVLink", "InfiniBand", "RoCE", "EFA", "TCPXO", "Slingshot"]
    panels = figure.subplots(2, 4, sharex=True, sharey=True).ravel()
    ends = np.array([3, 2e6])
    for ax, name in zip(panels, names, strict=False):
        part = rows[rows["network"] == name]
        style = {"markersize": 3, "alpha": 0.5, "markeredgewidth": 0}
        ax.loglog(part["time_us"], part["formula_us"], "s", color="0.6", label="formula alone", **style)
        ax.loglog(
            part["time_us"], part["predicted_us"], "o", color="#0072b2", label="with runs of other sources", **style
        )
        ax.plot(ends, ends, color="black", linewidth=0.8)
        for factor in (0.5, 2):
            ax.plot(ends, factor * ends, color="black", linewidth=0.6, linestyle=":")
        ax.set_title(f"{name}: {part['curve'].nunique()} curves", loc="left", fontsize=10)
    panels[-1].axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center left", markerscale=2, frameon=False)
    panels[-1].text(0, 0.3, "dotted: a factor of two", transform=panels[-1].transAxes)
    figure.supxlabel("measured time, µs")
    figure.supylabel("predicted time, µs")
    return figure


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    published_errors.cache_clear()
    frame = left_out()
    draw(frame).savefig(ROOT / "notebooks" / "images" / "published_collectives.png", dpi=110)
    parts = frame.groupby(["network", "size_class"], sort=False)
    table = parts.agg(
        rows=("error", "size"), formula=("formula", "median"), error=("error", "median"), inside=("is_inside", "mean")
    )
    sys.stdout.write(f"{(table * [1, 100, 100, 100]).round(1).to_string()}\nwrote {FILE}\n")
