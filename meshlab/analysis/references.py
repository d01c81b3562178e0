"""Bus bandwidths that others have published, with source and date, to stand beside one's own.

They are single measurements of others' machines at their largest size: something to expect, not a limit. The table is
``references.csv`` beside this module.
"""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from meshlab.frames.schema import require_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["matching_references", "published_references", "reference_lines"]


def published_references() -> pd.DataFrame:
    """The whole table.

    Returns
    -------
    pandas.DataFrame
        system, gpu (what a device's name contains), nodes, n_ranks, collective, dtype, size_bytes, busbw_gbs, source,
        date (of publication) and note.

    Examples
    --------
    >>> table = published_references()
    >>> table.loc[table["system"] == "H200 SXM", ["n_ranks", "busbw_gbs", "date"]].to_dict("records")
    [{'n_ranks': 8, 'busbw_gbs': 475.0, 'date': '2024-11-27'}]
    """
    import pandas as pd

    text = files("meshlab.analysis").joinpath("references.csv").read_text(encoding="utf-8")
    frame = pd.DataFrame(list(csv.DictReader(text.splitlines()))).astype("string")
    return frame.astype({"nodes": "int64", "n_ranks": "int64", "size_bytes": "int64", "busbw_gbs": "float64"})


def matching_references(results: pd.DataFrame, *, system: str | None = None) -> pd.DataFrame:
    """The published figures for the same collectives on as many ranks of the same system.

    Parameters
    ----------
    results : pandas.DataFrame
        In the schema of results; ``attrs["gpu"]`` names the device.
    system : str, optional
        A system of the table, such as ``"GH200 Alps"``. Without it only figures of a single node with the same GPU
        match: what several nodes reach depends on their network, which a GPU's name does not tell.

    Examples
    --------
    >>> import pandas as pd
    >>> results = pd.DataFrame({"collective": ["all_reduce"], "n_ranks": [8]})
    >>> results.attrs["gpu"] = "NVIDIA H200"
    >>> matching_references(results)["busbw_gbs"].tolist()
    [475.0]
    """
    require_columns(results, ["collective", "n_ranks"])
    table = published_references()
    if system is not None:
        table = table[table["system"].str.casefold() == system.casefold()]
    else:
        name = str(results.attrs.get("gpu") or "")
        same = np.array([re.search(rf"\b{re.escape(gpu)}\b", name) is not None for gpu in table["gpu"]])
        table = table[(table["nodes"] == 1) & same]
    measured = set(zip(results["collective"], results["n_ranks"], strict=True))
    keys = zip(table["collective"], table["n_ranks"], strict=True)
    return table[[key in measured for key in keys]].reset_index(drop=True)


def reference_lines(results: pd.DataFrame, *, system: str | None = None) -> dict[str, float]:
    """The matching figures as names and GB/s, as `plot_bandwidth` takes them.

    Examples
    --------
    >>> import pandas as pd
    >>> results = pd.DataFrame({"collective": ["all_reduce"], "n_ranks": [8]})
    >>> results.attrs["gpu"] = "NVIDIA H200"
    >>> reference_lines(results)
    {'8 × H200 SXM all_reduce, 2024-11': 475.0}
    """
    rows = matching_references(results, system=system).to_dict("records")
    return {
        f"{row['n_ranks']} × {row['system']} {row['collective']}, {row['date'][:7]}": float(row["busbw_gbs"])
        for row in rows
    }
