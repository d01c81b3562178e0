"""Adds curves of a site to its library, with which later measurements are compared beside published ones."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.analysis._judge import parts_of
from meshlab.analysis._measured_machine import MeasuredMachine, with_statements
from meshlab.base._errors import BenchError
from meshlab.base._files import write_file
from meshlab.frames._labels import is_wrong
from meshlab.prediction._published import CURVE_COLUMNS, read_library, site_library

if TYPE_CHECKING:
    import pandas as pd


def add_curves(source: Any, *, system: str, mesh: Any = None, **facts: Any) -> tuple[Path, list[str]]:
    """Add the curves of a log, a run or a frame to the library of this site. Return its file, and their identifiers.

    `system` is the name of the machine, and `facts` are those of `judge`: gpu, nodes, nics and cluster. The same curve
    replaces the earlier one.
    """
    import pandas as pd

    frames = []
    for part in parts_of(source):
        if part.reason:
            continue
        machine = with_statements(part.machine, part.n_ranks, **facts)
        frames.append(_rows(part.results, machine, system))
    if not frames or not sum(map(len, frames)):
        raise BenchError("nothing to add: the source has no correct time of a collective", hint="pass a complete log")
    library = site_library()
    added = pd.concat(frames, ignore_index=True)
    names = added["curve"].drop_duplicates().tolist()
    if library.is_file():
        before = read_library(library)
        added = pd.concat([before[~before["curve"].isin(names)], added], ignore_index=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    write_file(library, added[list(CURVE_COLUMNS)].to_parquet(index=False))
    return library, names


def _rows(results: pd.DataFrame, machine: MeasuredMachine, system: str) -> pd.DataFrame:
    """Return the rows of a library for results of one machine."""
    rows = results[results["time_us"].gt(0) & results["size_bytes"].gt(0) & results["collective"].notna()]
    if is_wrong(rows).any():
        raise BenchError("some results are wrong, so their times mean nothing", hint="add a run without wrong results")
    if not len(rows):
        return rows.reindex(columns=list(CURVE_COLUMNS))
    n_ranks = rows["n_ranks"].max()
    if n_ranks != n_ranks or machine.missing(int(n_ranks)) or machine.excluded or machine.gpu is None:
        reason = machine.excluded or machine.missing(None if n_ranks != n_ranks else int(n_ranks))
        raise BenchError(f"a curve needs its machine, but {reason}")
    nodes = machine.nodes or 1
    content = rows[["collective", "size_bytes", "time_us"]].to_csv(index=False)
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9]+", "-", system.lower()).strip("-")
    library = str(results.attrs.get("library") or "")
    return rows.assign(
        curve=f"{name}-{int(n_ranks)}-{digest}",
        system=system,
        gpu=machine.gpu,
        gpus_per_node=int(n_ranks) // nodes,
        nodes=nodes,
        n_ranks=rows["n_ranks"].astype("int64"),
        nic=machine.nics or None,
        nic_gbps_per_node=machine.nic_gbps if math.isfinite(machine.nic_gbps) and nodes > 1 else None,
        nccl_version=library.rpartition(" ")[2] or None,
        in_place=rows["in_place"].fillna(value=False).astype(bool),
        source=f"this site: {system}",
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        verdict=None,
        remark=None,
    )[list(CURVE_COLUMNS)].astype({"verdict": "string", "remark": "string", "nic": "string", "nccl_version": "string"})
