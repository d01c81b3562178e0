"""Link words (nvidia-smi's abbreviations for links), the distances they stand for, and their bandwidths.

The words are those of ``nvidia-smi topo -m``: ``NV18``, ``PIX``, ``PXB``, ``PHB``, ``NODE`` and ``SYS``. NCCL's path
types differ a little: NCCL has no NODE (it reports nvidia-smi's NODE as PHB), and its PXN, NVB, C2C and P2C have no
equivalent in nvidia-smi. Between GPUs of AMD the word is ``XGMI``, with the number of links if it is known: ``XGMI4``.
As in RCCL, XGMI is in the place of NVLink.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LINK_PATTERN = r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC"
"""A regular expression for the link words of nvidia-smi. Drivers before 390 print SOC for SYS."""

UNKNOWN = "?"
"""The link word of a pair that the source does not describe."""

XGMI = "XGMI"
"""The link word of a pair of AMD's GPUs with XGMI links (Infinity Fabric) of unknown number; a number may follow."""

XGMI_VIA = "XGMI0"
"""The link word of a pair of AMD's GPUs without a link of its own, which other GPUs join over XGMI."""

HIDES_NVLINK = "this is the output of nvidia-smi topo -mp, which omits NVLink; nvidia-smi topo -m includes it"
"""The note of a node that was read from ``nvidia-smi topo -mp``. `health` tests for it."""


class Distance(IntEnum):
    """Distance between two endpoints of one host. Larger numbers are farther apart."""

    SELF = 0
    NVLINK = 1
    PIX = 2
    PXB = 3
    PHB = 4
    NODE = 5
    SYS = 6
    UNKNOWN = 7


NEAR = Distance.PXB
"""The largest distance at which a NIC and a GPU share a PCIe switch."""

LINK_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "NV#": "# NVLinks",
        "XGMI#": "# XGMI links",
        XGMI: "XGMI links, number unknown",
        XGMI_VIA: "XGMI through other GPUs",
        "PIX": "one PCIe switch",
        "PXB": "several PCIe switches",
        "PHB": "the CPU's PCIe root",
        "NODE": "two PCIe roots of one NUMA node",
        "SYS": "the link between CPU sockets",
        UNKNOWN: "unknown",
    }
)
"""Meaning of each link word: the hardware that the link passes through."""

NVLINK_GBS: Mapping[int, float] = MappingProxyType({60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1})
"""Measured GB/s of one NVLink in one direction, by ten times the compute capability (NVIDIA/nccl src/graph/topo.h)."""


class FabricKind(NamedTuple):
    """The latencies of a kind of network between hosts, in µs, with the measurements that they are from."""

    hop_us: float  # of one hop of a ring with small messages; the first is NCCL's own figure
    peer_us: float  # of an all_to_all for every rank in another host
    source: str


FABRICS: Mapping[str, FabricKind] = MappingProxyType(
    {
        # An all_to_all of 80 H100 in 10 hosts takes 240 µs more at 32 MiB than its bytes, and one of 8 or 32 A100 of
        # Polaris takes 36 and 131 µs: 3.3 to 4 µs per rank in another host, in which the proxy posts two messages.
        "InfiniBand": FabricKind(
            2.7, 4.0, "NCCL's tuner (src/graph/tuning.cc); xxrjun/nccl-tests-cluster, 10 × 8 H100"
        ),
        # On two hosts a small all_reduce takes 44 instead of 25 µs, one on 1 GPU each 39 instead of 17, and an
        # all_gather 55 instead of 23: 9, 11 and 32 µs per hop, of which this is the median beyond InfiniBand.
        "Ethernet": FabricKind(13.7, 4.0, "16 × H200 with BlueField-3; Google A3 Ultra with 16 × and 2 × H200"),
        # The geometric mean of p5 (25) and p4de (72), for machines without their own figure.
        "EFA": FabricKind(42.0, 8.0, "aws-samples/awsome-distributed-training, p4de and p5"),
        # No more than NCCL's own for messages of the first bytes. A far rank costs 4 to 23 µs in runs of 8 to 2,160.
        "Slingshot": FabricKind(2.7, 9.0, "boeschf/nccl-benchmark-on-alps-2025; argonne-lcf/alcf-nccl-tests, Polaris"),
        "TCPXO": FabricKind(52.0, 8.0, "two runs of A3 Mega, 16 × H100: 123 µs for 8 bytes"),
        "TCPX": FabricKind(52.0, 8.0, "not published; that of TCPXO, its successor"),
    }
)
"""The kinds of networks between hosts, by the words of `Nic.fabric`."""

_FABRIC_OF_NAME = ((r"^rdmap|^efa", "EFA"), (r"^cxi|^hsn", "Slingshot"), (r"TCPXO|FasTrak", "TCPXO"), (r"TCPX", "TCPX"))

_DISTANCE = {"X": Distance.SELF, "SOC": Distance.SYS, UNKNOWN: Distance.UNKNOWN} | {
    distance.name: distance for distance in Distance if Distance.PIX <= distance <= Distance.SYS
}

_PCIE3_X16_GBS = 12.0
_SOCKET_GBS = (
    # GB/s between two CPU sockets, by CPU model (NVIDIA/nccl src/graph/topo.h). The first match is used, so the newer
    # Xeons are listed before the catch-all Intel.
    (r"Xeon.*Platinum 85|Emerald", 40.0),
    (r"Xeon.*Platinum 84|Sapphire", 22.0),
    (r"Intel", 10.0),
    (r"AMD", 16.0),
    (r"POWER9", 32.0),
    (r"Grace|ARM|Neoverse", 6.0),
)

_WORD = re.compile(r"\b(?:NV\d+|XGMI\d*|PIX|PXB|PHB|NODE|SYS)\b")
_GPU_LINKS = re.compile(r"(NV|XGMI)(\d+)")


def is_gpu_link(word: str) -> bool:
    """Return whether a link word stands for links between GPUs, NVLink or XGMI, rather than for PCIe."""
    return word.startswith(("NV", XGMI))


def with_link_count(word: str, count: int) -> str:
    """Return the word of another number of the same links: NV9 for NV18 and 9."""
    return f"{XGMI if word.startswith(XGMI) else 'NV'}{count}"


def meaning_of(word: str) -> str:
    """Return the hardware that a link passes through, such as ``18 NVLinks``."""
    if word in LINK_MEANINGS or (match := _GPU_LINKS.fullmatch(word)) is None:
        return LINK_MEANINGS[word]
    return f"{match[2]} {'NVLink' if match[1] == 'NV' else 'XGMI link'}{'s' * (match[2] != '1')}"


def explain_words(text: str) -> list[str]:
    """Explain the link words in a text, in one sentence each."""
    return [f"{word} stands for {meaning_of(word)}" for word in dict.fromkeys(_WORD.findall(text))]


def distances(words: Sequence[Sequence[str]]) -> npt.NDArray[np.int8]:
    """Return the `Distance` of every link word, as int8 of the same shape."""
    different = set().union(*words)
    numbers: dict[str, int] = {
        word: Distance.NVLINK if is_gpu_link(word) else _DISTANCE.get(word, Distance.UNKNOWN) for word in different
    }
    shape = len(words), len(words[0]) if words else 0
    return np.frombuffer(b"".join(bytes(map(numbers.__getitem__, row)) for row in words), dtype=np.int8).reshape(shape)


def nvlink_counts(words: Sequence[Sequence[str]]) -> npt.NDArray[np.int16]:
    """Return the number of NVLinks or XGMI links of every link word, 0 for others, as int16 of the same shape.

    It is 1 for XGMI without a number.
    """
    matches = {word: _GPU_LINKS.fullmatch(word) for word in set().union(*words)}
    counts = {word: int(word == XGMI) if match is None else int(match[2]) for word, match in matches.items()}
    shape = len(words), len(words[0]) if words else 0
    return np.array([array("h", map(counts.__getitem__, row)) for row in words], dtype=np.int16).reshape(shape)


def nvlink_gbs(compute_capability: tuple[int, int] | None) -> float:
    """Return the GB/s of one NVLink in one direction, or NaN if the GPU is unknown."""
    if compute_capability is None:
        return float("nan")
    number = compute_capability[0] * 10 + compute_capability[1]
    # An unlisted minor version uses the value of the previous one of its generation, as in NCCL.
    listed = [sm for sm in NVLINK_GBS if sm <= number and sm // 10 == number // 10]
    return NVLINK_GBS[max(listed)] if listed else float("nan")


def pcie_gbs(generation: int | None, width: int | None = 16) -> float:
    """Return the GB/s of a PCIe link in one direction: 12 for generation 3 x16, doubled with each generation (NCCL)."""
    if not generation:
        return float("nan")
    return float(_PCIE3_X16_GBS * 2.0 ** (generation - 3) * (width or 16) / 16)


def nic_gbs(gbits: float | None) -> float:
    """Return the GB/s of a NIC in one direction: 12 per 100 Gb/s of line rate, as NCCL assumes."""
    return float("nan") if not gbits else 0.12 * gbits


def fabric_of(name: str, link_layer: str | None) -> str:
    """Return the kind of network of a NIC, a key of `FABRICS`: InfiniBand if nothing shows another one."""
    by_name = next((kind for words, kind in _FABRIC_OF_NAME if re.search(words, name, re.IGNORECASE)), None)
    if by_name is None and link_layer is not None and link_layer in FABRICS:
        return link_layer
    return by_name or "InfiniBand"


def socket_gbs(cpu_model: str | None) -> float:
    """Return the GB/s between two CPU sockets, or NaN if the CPU is unknown."""
    for pattern, gbs in _SOCKET_GBS:
        if cpu_model and re.search(pattern, cpu_model, re.IGNORECASE):
            return gbs
    return float("nan")


def clique_numbers(linked: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Number the members of a symmetric relation, bool of shape (n, n), by clique, greedily; int32 of shape (n,)."""
    # Cliques, not connected components: every pair in a domain must be linked, so in a hybrid cube mesh or after
    # one failed link a GPU that reaches only some members must start its own domain. Finding the fewest cliques is
    # NP-hard. The greedy choice is deterministic, and exact where links are transitive (NVSwitch, bridges).
    numbers = np.full(len(linked), -1, dtype=np.int32)
    sets = 0
    for first in range(len(linked)):
        if numbers[first] >= 0:
            continue
        numbers[first] = sets
        candidates = linked[first] & (numbers < 0)
        while candidates.any():
            member = int(candidates.argmax())
            numbers[member] = sets
            candidates &= linked[member]
            candidates[member] = False
        sets += 1
    return numbers
