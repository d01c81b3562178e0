"""The library of published curves as a frame, and its largest bandwidths as reference lines of plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis._published_comparison import is_kin
from meshlab.base._errors import BenchError
from meshlab.frames._statistics import bandwidth
from meshlab.prediction._published import published_rows
from meshlab.runs._store import as_results
from meshlab.topology.model._products import gpu_model

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.traces._trace import Trace


def published(gpu: str | None = None, *, nodes: int | None = None, collective: str | None = None) -> pd.DataFrame:
    """Return published times of collectives: runs of nccl-tests and rccl-tests by others, each with its source.

    Other people measured them on their systems, so they are plausible values, not limits. Curves that were added with
    ``meshlab judge --add`` are included.

    Parameters
    ----------
    gpu : str, optional
        Name of a GPU, such as ``"H100"`` or ``"NVIDIA H100 80GB HBM3"``. Its memory does not matter, but a PCIe card
        is a different GPU from an SXM module.
    nodes : int, optional
        Number of hosts.
    collective : str, optional
        Name of a collective, such as ``"all_reduce"``.

    Returns
    -------
    pandas.DataFrame
        One row per curve and size: ``curve`` (identifier of the run), ``system``, ``gpu``, ``gpus_per_node``,
        ``nodes``, ``n_ranks``, ``nic``, ``nic_gbps_per_node`` (missing if not stated), ``nccl_version``,
        ``collective``, ``op``, ``dtype``, ``in_place``, ``size_bytes``, ``time_us``, ``algbw_gbs`` and ``busbw_gbs`` in
        GB/s, ``source``, ``date`` of publication, ``verdict`` (of the source itself: normal or slow), and ``remark``.

    Examples
    --------
    >>> import meshlab as ml
    >>> table = ml.analysis.published(gpu="GB200", nodes=18)
    >>> table.loc[table["size_bytes"].idxmax(), ["n_ranks", "source"]].to_dict()
    {'n_ranks': 72, 'source': 'https://github.com/coreweave/nccl-tests'}
    """
    rows = published_rows()
    keep = np.full(len(rows), True)
    if gpu is not None:
        model = gpu_model(gpu)
        same = {name for name in rows["gpu"].unique() if gpu_model(name) == model}
        keep &= rows["gpu"].isin(same).to_numpy(dtype=bool)
    if nodes is not None:
        keep &= (rows["nodes"] == nodes).to_numpy(dtype=bool)
    if collective is not None:
        keep &= (rows["collective"] == collective).to_numpy(dtype=bool)
    rows = rows[keep].reset_index(drop=True)
    algbw, busbw = bandwidth(
        rows["collective"].tolist(), rows["size_bytes"], rows["n_ranks"].to_numpy(dtype=np.int64), rows["time_us"]
    )
    after = rows.columns.tolist().index("time_us") + 1
    rows.insert(after, "algbw_gbs", algbw)
    rows.insert(after + 1, "busbw_gbs", busbw)
    return rows


def published_for(trace: Trace, gpu: str | None = None) -> pd.DataFrame:
    """Return the published curves for the calls of a trace, see `Trace.published`."""
    name = gpu or trace.gpu
    if name is None:
        raise BenchError("the trace does not contain the name of its GPUs", hint="pass the name, such as 'H100'")
    table = published()
    same = [other for other in table["gpu"].unique() if is_kin(gpu_model(other), gpu_model(name))]
    calls = trace.frame()[["collective", "n_ranks"]].dropna().drop_duplicates()
    keys = dict.fromkeys(calls.itertuples(index=False, name=None))
    has_calls = [key in keys for key in zip(table["collective"], table["n_ranks"], strict=True)]
    table = table[table["gpu"].isin(same) & np.array(has_calls, dtype=bool)].reset_index(drop=True)
    if table.empty:
        texts = [f"{collective} of {n} ranks" for collective, n in list(keys)[:3]] or ["the calls of the trace"]
        raise BenchError(
            f"no published run has {' or '.join(texts)} on {gpu_model(name)}",
            hint="pass a run of the machine itself, or a prediction",
        )
    return table


def matching_references(run: Any, *, system: str | None = None) -> pd.DataFrame:
    """Return the largest size of published runs of the same collectives, numbers of ranks, and system or GPU."""
    results = as_results(run)
    if system is not None:
        table = published()
        table = table[table["system"].str.casefold() == system.casefold()]
    else:  # a single node, because the name of a GPU does not determine the network between nodes
        table = published(str(results.attrs.get("gpu") or "unknown"), nodes=1)
    measured = set(zip(results["collective"], results["n_ranks"], strict=True))
    keys = zip(table["collective"], table["n_ranks"], strict=True)
    table = table[np.array([key in measured for key in keys], dtype=bool)]
    table = table[table["verdict"].ne("slow").fillna(True)]
    table = table.sort_values(["size_bytes", "busbw_gbs"], ascending=False, kind="stable")
    return table.drop_duplicates(["system", "n_ranks", "collective"]).reset_index(drop=True)


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
    {'8 × Azure ND H200 v5 all_reduce': 478.1, '8 × H200 SXM all_reduce, 2024-11': 475.0}
    """
    rows = matching_references(run, system=system).to_dict("records")
    return {_label(row): round(float(row["busbw_gbs"]), 1) for row in rows}


def _label(row: dict[Any, Any]) -> str:
    date = "" if row["date"] is None or row["date"] != row["date"] else f", {row['date'][:7]}"
    return f"{row['n_ranks']} × {row['system']} {row['collective']}{date}"
