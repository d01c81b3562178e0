"""Example data: results of real runs that are included in the package, to try plots and reports without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, overload

from meshlab.base._errors import BenchError

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.analysis.tuning._tuning import Tuning

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
"""The available results, with the `attrs` of their frames and a description (``about``)."""

# Preliminary: the file was built from a search of three rounds on eleven sizes, with assumed intervals and without a
# confirmation, as its note states. Replace it with `ml.tune(…).without_dropped().save(…, redact=True)` on two GPUs.
_TUNING = "tuning"


@overload
def example(name: Literal["h200x2"] = "h200x2") -> pd.DataFrame: ...


@overload
def example(name: Literal["tuning"]) -> Tuning: ...


@overload
def example(name: str) -> pd.DataFrame | Tuning: ...


def example(name: str = "h200x2") -> pd.DataFrame | Tuning:
    """Return results or a tuning that were measured on GPUs with meshlab.

    Parameters
    ----------
    name : {"h200x2", "tuning"}, default "h200x2"
        ``"h200x2"``: all_reduce, all_gather, reduce_scatter and broadcast on two H200 GPUs connected by NVLink, in the
        modes isolated, pipelined and graph, from 8 B to 512 MiB at every fourth power of two.
        ``"tuning"``: the fastest options of all_reduce, all_gather and reduce_scatter on two such GPUs.

    Returns
    -------
    pandas.DataFrame or Tuning
        One row per collective, mode and size, with the columns that `meshlab.describe` lists: ``time_us`` in µs,
        ``busbw_gbs`` in GB/s and so on. For ``"tuning"``, a `meshlab.analysis.Tuning`.

    Raises
    ------
    BenchError
        If the name is unknown.

    Examples
    --------
    >>> import meshlab as ml
    >>> results = ml.example("h200x2")
    >>> fast = results[(results["mode"] == "graph") & (results["collective"] == "all_reduce")]
    >>> f"{fast['busbw_gbs'].max():.0f} GB/s", results.attrs["where"]
    ('315 GB/s', '2 × H200 · NCCL 2.28.9')
    """
    from meshlab.analysis.tuning._tuning import Tuning
    from meshlab.frames._files import frame_from_csv
    from meshlab.frames._schema import RESULTS
    from meshlab.frames._statistics import bandwidth

    folder = Path(__file__).parent / "examples"
    if name == _TUNING:
        return Tuning.load(folder / "tuning.json")
    if name not in EXAMPLES:
        raise BenchError(f"unknown example {name!r}; choose one of {', '.join([*EXAMPLES, _TUNING])}")
    results = frame_from_csv(folder / f"{name}.csv", RESULTS)
    # The file has times only, so that a change of the definition of bandwidth applies to the examples as well.
    results["algbw_gbs"], results["busbw_gbs"] = bandwidth(
        results["collective"].tolist(), results["size_bytes"], results["n_ranks"], results["time_us"]
    )
    results.attrs = {key: text for key, text in EXAMPLES[name].items() if key != "about"}
    return results
