"""Trials made by hand: the options of each size with their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from meshlab.analysis.tuning._tuning import Tuning
from meshlab.comm._catalog import CATALOG

DEFAULT: dict[str, Any] = {}
WINDOW = {"buffers": "symmetric"}
CAPPED = {"buffers": "symmetric", "max_ctas": 4}
TREE = {"algorithm": "tree", "protocol": "ll128"}
RING = {"algorithm": "ring", "protocol": "simple"}

SYSTEM = {
    "where": "2 × H200 · NCCL 2.32.3",
    "backend": "nccl",
    "library": "NCCL 2.32.3",
    "device": "NVIDIA H200",
    "hosts": "gpu-7",
}


def trial(option: Mapping[str, Any], size: int, time_us: float, *, spread: float = 0.01, **more: Any) -> dict[str, Any]:
    """One row: an option at a size, with an interval of ± `spread`."""
    collective = more.get("collective", "all_reduce")
    return {
        "collective": collective,
        "op": "sum" if CATALOG[collective].reduces else None,
        "dtype": "float32",
        "in_place": True,
        "mode": "graph",
        "axis": "tp",
        "n_ranks": 2,
        "count": size // 4,
        "size_bytes": size,
        "buffers": "plain",
        "launch": "search",
        "n_rounds": 8,
        "time_us": time_us,
        "time_us_lo": time_us * (1 - spread),
        "time_us_hi": time_us * (1 + spread),
        "n_wrong": 0,
        "status": "ok",
        **option,
        **more,
    }


def both(option: Mapping[str, Any], size: int, time_us: float, again_us: float, **more: Any) -> list[dict[str, Any]]:
    """An option in the search and in the confirmation."""
    return [trial(option, size, time_us, **more), trial(option, size, again_us, launch="confirmation", **more)]


def a_tuning(rows: Sequence[Mapping[str, Any]], **parts: Any) -> Tuning:
    return Tuning(**{"trials": pd.DataFrame(rows), "mesh": "tp=2", "axis": "tp", "system": SYSTEM, **parts})


def usual_rows(collective: str = "all_reduce") -> list[dict[str, Any]]:
    """Windows with few CTAs win at 1 and 2 KiB, the default at 4 KiB, and a tree at 8 KiB."""
    rows = []
    for size, default, window, capped, tree in (
        (1024, 6.0, 4.5, 4.0, 7.0),
        (2048, 6.4, 4.8, 4.2, 7.1),
        (4096, 7.0, 9.0, 9.5, 7.2),
        (8192, 9.0, 9.5, 9.9, 7.5),
    ):
        best = min((window, WINDOW), (capped, CAPPED), (tree, TREE), key=lambda pair: pair[0])
        rows += both(DEFAULT, size, default, default, collective=collective)
        for time_us, option in ((window, WINDOW), (capped, CAPPED), (tree, TREE)):
            rows.append(trial(option, size, time_us, collective=collective))
        rows.append(trial(RING, size, default * 1.001, collective=collective))
        if best[0] < default:
            rows.append(trial(best[1], size, best[0], launch="confirmation", collective=collective))
    return rows
