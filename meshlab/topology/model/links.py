"""Link words as nvidia-smi writes them, how far apart they put two ends, and what they carry.

NCCL names paths a little differently: it has no NODE (nvidia-smi's NODE shows as PHB there), and its PXN, NVB, C2C and
P2C have no word in nvidia-smi.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

__all__ = [
    "HIDES_NVLINK",
    "LINK_MEANINGS",
    "NEAR",
    "NVLINK_GBS",
    "UNKNOWN",
    "Distance",
    "clique_numbers",
    "distances",
    "is_link_word",
    "nic_gbs",
    "nvlink_counts",
    "nvlink_gbs",
    "pcie_gbs",
    "socket_gbs",
]


HIDES_NVLINK = "this is nvidia-smi topo -mp, which leaves NVLink out; topo -m has it"
"""The note of a node that was read from ``topo -mp``."""

UNKNOWN = "?"
"""The word for a pair of which nothing was read."""

_WORD = re.compile(r"X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC")


class Distance(IntEnum):
    """How far apart two ends of one host are; a larger number is farther."""

    SELF = 0
    NVLINK = 1
    PIX = 2
    PXB = 3
    PHB = 4
    NODE = 5
    SYS = 6
    UNKNOWN = 7


NEAR = Distance.PXB
"""A NIC up to here shares a switch with the GPU."""

_DISTANCE = {"X": Distance.SELF, "SOC": Distance.SYS, UNKNOWN: Distance.UNKNOWN} | {
    distance.name: distance for distance in Distance if Distance.PIX <= distance <= Distance.SYS
}

LINK_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "NV#": "# NVLinks",
        "PIX": "one PCIe switch",
        "PXB": "several PCIe switches",
        "PHB": "the CPU's PCIe root",
        "NODE": "two PCIe roots of one NUMA node",
        "SYS": "the link between CPU sockets",
        UNKNOWN: "not known",
    }
)
"""What each word crosses, in a few words."""

NVLINK_GBS: Mapping[int, float] = MappingProxyType({60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1})
"""GB/s that one NVLink carries one way in practice, by compute capability times ten (NVIDIA/nccl src/graph/topo.h)."""

_PCIE3_X16_GBS = 12.0

_SOCKET_GBS = (
    # What crosses from one CPU socket to another, by CPU (NVIDIA/nccl src/graph/topo.h); the first match counts.
    (r"Xeon.*Platinum 85|Emerald", 40.0),
    (r"Xeon.*Platinum 84|Sapphire", 22.0),
    (r"Intel", 10.0),
    (r"AMD", 16.0),
    (r"POWER9", 32.0),
    (r"Grace|ARM|Neoverse", 6.0),
)


def is_link_word(text: str) -> bool:
    """Whether `text` is a word of ``nvidia-smi topo -m``.

    Examples
    --------
    >>> is_link_word("NV18"), is_link_word("GPU0")
    (True, False)
    """
    return _WORD.fullmatch(text) is not None


def distances(words: Sequence[Sequence[str]]) -> npt.NDArray[np.int8]:
    """The `Distance` of every word; int8 of the same shape.

    Examples
    --------
    >>> distances([["X", "NV18"], ["SYS", "X"]]).tolist()
    [[0, 1], [6, 0]]
    """
    known: dict[str, int] = {
        word: Distance.NVLINK if word.startswith("NV") else _DISTANCE.get(word, Distance.UNKNOWN)
        for row in words
        for word in set(row)
    }
    return np.array([[known[word] for word in row] for row in words], dtype=np.int8).reshape(
        len(words), len(words[0]) if words else 0
    )


def nvlink_counts(words: Sequence[Sequence[str]]) -> npt.NDArray[np.int16]:
    """How many NVLinks every word stands for, 0 for the others; int16 of the same shape."""
    known = {word: int(word[2:]) if word.startswith("NV") else 0 for row in words for word in set(row)}
    return np.array([[known[word] for word in row] for row in words], dtype=np.int16).reshape(
        len(words), len(words[0]) if words else 0
    )


def nvlink_gbs(compute_capability: tuple[int, int] | None) -> float:
    """GB/s of one NVLink one way; NaN where the GPU is not known.

    Examples
    --------
    >>> round(18 * nvlink_gbs((9, 0)), 1), nvlink_gbs(None)
    (370.8, nan)
    """
    if compute_capability is None:
        return float("nan")
    number = compute_capability[0] * 10 + compute_capability[1]
    known = [sm for sm in NVLINK_GBS if sm <= number and sm // 10 == number // 10]
    return NVLINK_GBS[max(known)] if known else float("nan")


def pcie_gbs(generation: int | None, width: int | None = 16) -> float:
    """GB/s of a PCIe link one way in practice: 12 for generation 3 x16, twice that per generation (NCCL's figures).

    Examples
    --------
    >>> pcie_gbs(5), pcie_gbs(4, 8)
    (48.0, 12.0)
    """
    if not generation:
        return float("nan")
    return float(_PCIE3_X16_GBS * 2.0 ** (generation - 3) * (width or 16) / 16)


def nic_gbs(gbits: float | None) -> float:
    """GB/s that a NIC carries one way in practice: 12 per 100 Gb/s (NCCL's figure).

    Examples
    --------
    >>> nic_gbs(400)
    48.0
    """
    return float("nan") if not gbits else 0.12 * gbits


def socket_gbs(cpu_model: str | None) -> float:
    """GB/s between two CPU sockets in practice; NaN where the CPU is not known."""
    for pattern, gbs in _SOCKET_GBS:
        if cpu_model and re.search(pattern, cpu_model, re.IGNORECASE):
            return gbs
    return float("nan")


def clique_numbers(linked: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Cut a symmetric relation into sets in which every pair is related, greedily from the first member on.

    Parameters
    ----------
    linked : numpy.ndarray
        bool of shape (n, n).

    Returns
    -------
    numpy.ndarray
        int32 of shape (n,): the number of each member's set, in order of their first members.

    Examples
    --------
    >>> clique_numbers(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)).tolist()
    [0, 0, 1]
    """
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
