"""The bytes that a rank sends or receives in each algorithm of NCCL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType


def _both_ways(n: int) -> float:
    return 2 * (n - 1) / n


def _others(n: int) -> float:
    return (n - 1) / n


def _once(n: int) -> float:
    return 1.0


def _with_its_part(n: int) -> float:
    return 1 + 1 / n


RANK_BYTES: Mapping[str, Mapping[str, Callable[[int], float]]] = MappingProxyType(
    {
        "ring": {
            "all_reduce": _both_ways,
            "all_gather": _others,
            "reduce_scatter": _others,
            "broadcast": _once,
            "reduce": _once,
        },
        # Up and down a chain of n ranks, over all orders of the chain.
        "tree": {"all_reduce": _both_ways},
        # A rank pulls its part of the sum through the switch, to which all ranks send theirs, and multicasts it.
        "nvls": {"all_reduce": _with_its_part, "all_gather": _once, "reduce_scatter": _once},
        "nvls_tree": {"all_reduce": _with_its_part},
        "pat": {"all_gather": _others, "reduce_scatter": _others},
        "p2p": {"all_to_all": _others, "send_recv": _once},
    }
)
"""Bytes that a rank sends or receives, whichever is more, in units of the size (as in nccl-tests), by algorithm and
collective. The argument is the number of ranks: of the group, or of one NVLink domain for ``nvls`` and ``nvls_tree``.
"""

ALGORITHM_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "ring": "ring",
        "tree": "tree",
        "nvls": "NVLS: NVSwitch reduces",
        "nvls_tree": "NVLSTree: NVSwitch reduces, with a tree between the domains",
        "pat": "PAT",
        "p2p": "messages",
    }
)
"""Each algorithm in words."""


def rank_bytes(algorithm: str, collective: str, n: int) -> float:
    """Return the bytes that a rank sends or receives, whichever is more, in units of the size, see `RANK_BYTES`.

    Examples
    --------
    >>> rank_bytes("ring", "all_reduce", 8), rank_bytes("nvls", "all_reduce", 8)
    (1.75, 1.125)
    """
    return RANK_BYTES[algorithm][collective](n)
