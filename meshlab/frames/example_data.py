"""Results of real runs that come with meshlab, to try plots, reports and widgets without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshlab.errors import BenchError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EXAMPLES", "example"]

EXAMPLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "h200x2": {
            "where": "2 × H200 · NCCL 2.28.9",
            "library": "NCCL 2.28.9",
            "gpu": "NVIDIA H200",
            "about": "four collectives on two GPUs joined by NVLink, 8 B to 512 MiB, in all three modes",
        }
    }
)
"""What there is, with what its frame says about itself."""


def example(name: str = "h200x2") -> pd.DataFrame:
    """Results that were measured on GPUs with this very package.

    Parameters
    ----------
    name : {"h200x2"}
        ``"h200x2"``: all_reduce, all_gather, reduce_scatter and broadcast on two H200 joined by NVLink, isolated,
        pipelined and graph, 8 B to 512 MiB, every fourth power of two.

    Returns
    -------
    pandas.DataFrame
        A results frame, see `meshlab.describe`.

    Raises
    ------
    BenchError
        If there is no example of that name.

    Examples
    --------
    >>> results = example("h200x2")
    >>> fast = results[(results["mode"] == "graph") & (results["collective"] == "all_reduce")]
    >>> f"{fast['busbw_gbs'].max():.0f} GB/s", results.attrs["where"]
    ('315 GB/s', '2 × H200 · NCCL 2.28.9')
    """
    from meshlab.frames.schema import RESULTS, bandwidth
    from meshlab.frames.store import frame_from_csv

    if name not in EXAMPLES:
        raise BenchError(f"there is no example {name!r}; there are {', '.join(EXAMPLES)}")
    results = frame_from_csv(Path(__file__).parent / "examples" / f"{name}.csv", RESULTS)
    results["algbw_gbs"], results["busbw_gbs"] = bandwidth(
        results["collective"].tolist(), results["size_bytes"], results["n_ranks"], results["time_us"]
    )
    results.attrs = {key: text for key, text in EXAMPLES[name].items() if key != "about"}
    return results
