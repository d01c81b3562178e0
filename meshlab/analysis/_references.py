"""Published bus bandwidths, with source and date, for comparison with measurements.

They are single measurements by others on their systems, at the largest message size: plausible values, not limits. The
table is in the file ``references.csv`` next to this module.
"""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.runs._store import as_results

if TYPE_CHECKING:
    import pandas as pd


def published_references() -> pd.DataFrame:
    """Return the complete table of published bandwidths.

    Returns
    -------
    pandas.DataFrame
        One row per published value: ``system``, ``gpu`` (a part of the device's name), ``nodes``, ``n_ranks``,
        ``collective``, ``dtype``, ``size_bytes``, ``busbw_gbs`` in GB/s, ``source``, ``date`` of publication, and
        ``note``.

    Examples
    --------
    >>> import meshlab as ml
    >>> table = ml.analysis.published_references()
    >>> table.loc[table["system"] == "H200 SXM", ["n_ranks", "busbw_gbs", "date"]].to_dict("records")
    [{'n_ranks': 8, 'busbw_gbs': 475.0, 'date': '2024-11-27'}]
    """
    import pandas as pd

    text = files("meshlab.analysis").joinpath("references.csv").read_text(encoding="utf-8")
    frame = pd.DataFrame(list(csv.DictReader(text.splitlines()))).astype("string")
    return frame.astype({"nodes": "int64", "n_ranks": "int64", "size_bytes": "int64", "busbw_gbs": "float64"})


def matching_references(run: Any, *, system: str | None = None) -> pd.DataFrame:
    """Return the rows of `published_references` of the same collectives, numbers of ranks, and system or GPU."""
    results = as_results(run)
    table = published_references()
    if system is not None:
        table = table[table["system"].str.casefold() == system.casefold()]
    else:  # a single node, because the name of a GPU does not determine the network between nodes
        name = str(results.attrs.get("gpu") or "")
        same = np.array([re.search(rf"\b{re.escape(gpu)}\b", name) is not None for gpu in table["gpu"]])
        table = table[(table["nodes"] == 1) & same]
    measured = set(zip(results["collective"], results["n_ranks"], strict=True))
    keys = zip(table["collective"], table["n_ranks"], strict=True)
    return table[[key in measured for key in keys]].reset_index(drop=True)


def reference_lines(run: Any, *, system: str | None = None) -> dict[str, float]:
    """Return the matching published bandwidths as reference lines for `meshlab.plots.bandwidth`.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        Results. ``results.attrs["gpu"]`` is the name of the device.
    system : str, optional
        A system of the table, such as ``"GH200 Alps"``. By default all systems with a single node and the same GPU.

    Returns
    -------
    dict of str to float
        Bus bandwidths in GB/s, by the label of the line.

    Raises
    ------
    BenchError
        If `run` has no results.

    Examples
    --------
    >>> import meshlab as ml
    >>> results = ml.example().assign(n_ranks=8)
    >>> ml.analysis.reference_lines(results)
    {'8 × H200 SXM all_reduce, 2024-11': 475.0}
    """
    rows = matching_references(run, system=system).to_dict("records")
    return {
        f"{row['n_ranks']} × {row['system']} {row['collective']}, {row['date'][:7]}": float(row["busbw_gbs"])
        for row in rows
    }
