"""The figures of NCCL's tuner and graph search, per NCCL version, with their source files.

All latencies are in µs, all bandwidths in GB/s. Arrays of protocols are in the order of `PROTOCOLS`, and arrays of
generations in the order Volta, Ampere, Hopper, Blackwell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshlabError, did_you_mean
from meshlab.topology.model._levels import Floats, Ints

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat", "p2p")
"""NCCL's algorithms in its own order, and ``p2p`` for point-to-point messages, for which NCCL has no model."""

PROTOCOLS = ("ll", "ll128", "simple")
"""NCCL's protocols in its own order."""

CPUS = ("other", "intel", "amd")
"""The CPU vendors that NCCL's tuner distinguishes."""


@dataclass(frozen=True, eq=False)
class TunerConstants:
    """The figures of one version of NCCL (src/graph/tuning.cc, src/graph/search.cc)."""

    version: str
    base: Floats  # (algorithms, protocols): latency of a call
    hop: Floats  # (3, algorithms, protocols): latency of a hop over NVLink, PCIe and the network
    # The columns of (4, 3) are one, two, and more nodes, and the rows are the GPU's generation. The limit of LL between
    # nodes depends on the CPU instead: row 1 for AMD, 0 for all others.
    ll_most: Floats  # (4, 3): limit of the LL protocol
    ring_ll128_most: Floats  # (4, 3): limits per channel
    tree_ll128_most: Floats
    tree_most: Floats
    nvls_tree_most: Floats
    nvls_efficiency: Floats  # (4,): share of NVLink's bandwidth that NVLS reaches
    tree_factor: Floats  # (protocols, 24): of the tree's bandwidth by floor(log2(bytes / 64)); last, NVLSTree's
    nvls_tree_factor: bool  # whether Blackwell on x86 applies it to NVLSTree
    plateau: tuple[float, float]  # latency factor of the Simple ring between nodes, before Ampere and since
    # The bandwidths of one channel that the graph search tries, fastest first, by generation.
    speeds_inside: Mapping[int, tuple[float, ...]]
    speeds_between: Mapping[int, tuple[float, ...]]  # the same between nodes


def generation(compute_capability: Ints) -> npt.NDArray[np.intp]:
    """Return the row of the tables for ten times the compute capability: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell."""
    return np.searchsorted(np.array([80, 90, 100]), compute_capability, side="right")


def constants_of(version: str) -> TunerConstants:
    """Return the constants of a version, or raise a `MeshlabError` if it is unknown."""
    if version not in VERSIONS:
        raise MeshlabError(
            f"unknown NCCL version {version!r} of the constants{did_you_mean(str(version), VERSIONS)}",
            hint=f"choose one of {', '.join(VERSIONS)}",
        )
    return VERSIONS[version]


# Latencies in µs of LL, LL128 and Simple: of a call, and of a hop over NVLink, PCIe and the network. NCCL has none for
# point-to-point messages. They behave like one hop of a ring.
_LATENCIES = """
tree            6.8 14 8.4   0.6 1.25 4     1 1.9 4     5   8.5 14
ring            6.6 14 8.4   0.6 1.9  3.4   1 2.5 5.7   2.7 4   14
collnet_direct  0   0  0     0   0    3.7   0 0   3.7   0   0   31
collnet_chain   0   0  0     0   0    2.8   0 0   2.8   0   0   30
nvls            0   0  0     0   0    25    0 0   0     0   0   18
nvls_tree       0   0  0     0   0    25    0 0   0     0   0   20.9
pat             8   8  8     0   0    4     0 0   4     0   0   14
p2p             6.6 14 8.4   0.6 1.9  3.4   1 2.5 5.7   2.7 4   14
"""
_FIGURES = np.array([row.split()[1:] for row in _LATENCIES.strip().split("\n")], dtype=np.float64)
_BASE, *_HOPS = np.split(_FIGURES, 4, axis=1)
_TREE_FACTOR = (
    "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
    "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
    ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
)

_OLD_INSIDE = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_OLD_BETWEEN = (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12)
_HOPPER_INSIDE = (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0)
_HOPPER_BETWEEN = (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)
_BLACKWELL_INSIDE = (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0)
_BLACKWELL_BETWEEN = (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12)

_2_30_7 = TunerConstants(
    version="2.30.7",
    base=_BASE,
    hop=np.array(_HOPS),
    ll_most=np.array([(39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0)]),
    ring_ll128_most=np.array([(20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3]),
    tree_ll128_most=np.array([(20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0)]),
    tree_most=np.array([(26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0)]),
    nvls_tree_most=np.array([(26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0)]),
    nvls_efficiency=np.array([0.0, 0.0, 0.85, 0.74]),
    tree_factor=np.array([[float(word) for word in row.split()] for row in _TREE_FACTOR]),
    nvls_tree_factor=True,
    plateau=(1.9, 1.4),
    speeds_inside=MappingProxyType({0: _OLD_INSIDE, 1: _OLD_INSIDE, 2: _HOPPER_INSIDE, 3: _BLACKWELL_INSIDE}),
    speeds_between=MappingProxyType({0: _OLD_BETWEEN, 1: _OLD_BETWEEN, 2: _HOPPER_BETWEEN, 3: _BLACKWELL_BETWEEN}),
)

_2_28_9 = replace(
    _2_30_7,
    version="2.28.9",
    ring_ll128_most=np.array([(20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (73.4, 34.6, 73.4)]),
    nvls_tree_most=np.array([(26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 43.8)]),
    nvls_tree_factor=False,
    speeds_inside=MappingProxyType(
        {**_2_30_7.speeds_inside, 3: tuple(speed for speed in _BLACKWELL_INSIDE if speed != 45)}
    ),
    speeds_between=MappingProxyType(
        {**_2_30_7.speeds_between, 3: tuple(speed for speed in _BLACKWELL_BETWEEN if speed not in (86, 80))}
    ),
)

VERSIONS: Mapping[str, TunerConstants] = MappingProxyType({table.version: table for table in (_2_30_7, _2_28_9)})
"""The tuner's constants by NCCL version, newest first. They differ only for Blackwell."""
