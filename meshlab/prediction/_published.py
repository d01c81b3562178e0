"""Published curves: times of collectives that others have measured on their machines, each with its source.

The file ``published_curves.csv.gz`` next to this module has a row per curve and size: numbers and a citation. A curve
is a table of one run of one collective. Curves of a site are in a Parquet file of the same columns (`site_library`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import ParseError
from meshlab.frames._statistics import bandwidth
from meshlab.topology.model._products import gpu_model

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

_LIBRARY = "published_curves.csv.gz"  # no Parquet, which needs pyarrow, and Python in a browser has none

CURVE_COLUMNS = (
    "curve",
    "system",
    "gpu",
    "gpus_per_node",
    "nodes",
    "n_ranks",
    "nic",
    "nic_gbps_per_node",
    "nccl_version",
    "collective",
    "op",
    "dtype",
    "in_place",
    "size_bytes",
    "time_us",
    "source",
    "date",
    "verdict",
    "remark",
)
"""The columns of a library of curves. ``nic_gbps_per_node`` is missing on one node, or if the source does not state it.

``verdict`` is the word of the source, normal or slow. Most sources have none.
"""

_NUMBERS = {
    **dict.fromkeys(("gpus_per_node", "nodes", "n_ranks"), "Int32"),
    "size_bytes": "Int64",
    **dict.fromkeys(("nic_gbps_per_node", "time_us"), "Float64"),
    "in_place": "boolean",
}
"""The types of the columns that are not texts."""


@dataclass(frozen=True, eq=False)
class PublishedCurve:
    """Times of one collective by size, in or out of place, from one published run."""

    curve: str  # identifier, which the in-place and the out-of-place times of a run have in common
    system: str  # name of the machine
    gpu: str  # name of the GPU, such as ``"A100 40GB"``
    gpus_per_node: int  # GPUs per host that took part
    nodes: int  # number of hosts
    n_ranks: int  # number of GPUs
    nic: str | None  # the NICs of a host in words
    nic_gbps_per_node: float  # sum of the line rates of the NICs of a host in Gb/s, NaN if not stated
    nccl_version: str | None
    collective: str
    op: str | None
    dtype: str
    in_place: bool
    source: str  # address of the repository or the thread, or its title. The same text is the same source
    date: str | None  # year, month or day of the publication
    verdict: str | None  # word of the source: normal or slow
    remark: str | None  # settings that matter
    size_bytes: npt.NDArray[np.int64]  # ascending
    time_us: Floats
    is_of_site: bool = False  # added on this machine, not published

    @cached_property
    def gpu_model(self) -> str:
        """Model of the GPU without its memory, such as ``"A100"`` or ``"H100 PCIe"``."""
        return gpu_model(self.gpu)

    @cached_property
    def busbw_gbs(self) -> Floats:
        """Bus bandwidths in GB/s."""
        n = len(self.time_us)
        return bandwidth([self.collective] * n, self.size_bytes, np.full(n, self.n_ranks), self.time_us)[1]


def site_library() -> Path:
    """Return the file with the curves of this site: ``$MESHLAB_CURVES``, or ``meshlab/curves.parquet`` of the user."""
    if path := os.environ.get("MESHLAB_CURVES"):
        return Path(path).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "meshlab" / "curves.parquet"


def published_curves() -> tuple[PublishedCurve, ...]:
    """Return all curves of the library and of the site."""
    site = site_library()
    modified = site.stat().st_mtime_ns if site.is_file() else None
    return (*_packaged_curves(), *(_curves_of(str(site), modified) if modified is not None else ()))


def published_rows() -> pd.DataFrame:
    """Return the rows of the library and of the site."""
    import pandas as pd

    site = site_library()
    parts = [_packaged_rows(), *([read_library(site)] if site.is_file() else [])]
    return pd.concat(parts, ignore_index=True)


def read_library(path: Path) -> pd.DataFrame:
    """Read a file of curves, or raise a `ParseError` if it has other columns."""
    import pandas as pd

    try:
        frame = pd.read_parquet(path, dtype_backend="numpy_nullable")
    except (OSError, ValueError, ImportError) as error:
        raise ParseError(f"cannot read the curves in {path}: {error}") from error
    if missing := set(CURVE_COLUMNS) - set(frame.columns):
        raise ParseError(f"{path} is not a library of curves: it lacks the column {', '.join(sorted(missing))}")
    return frame[list(CURVE_COLUMNS)]


@lru_cache(maxsize=1)
def _packaged_rows() -> pd.DataFrame:
    import pandas as pd

    dtypes = {name: _NUMBERS.get(name, "string") for name in CURVE_COLUMNS}
    with as_file(files("meshlab.prediction").joinpath(_LIBRARY)) as path:
        return pd.read_csv(path, dtype=dtypes, keep_default_na=False, na_values=[""])


@lru_cache(maxsize=1)
def _packaged_curves() -> tuple[PublishedCurve, ...]:
    return _as_curves(_packaged_rows(), is_of_site=False)


@lru_cache(maxsize=2)
def _curves_of(path: str, modified: int) -> tuple[PublishedCurve, ...]:
    """Read the curves of a site. `modified` is a part of the key only."""
    return _as_curves(read_library(Path(path)), is_of_site=True)


def _as_curves(rows: pd.DataFrame, *, is_of_site: bool) -> tuple[PublishedCurve, ...]:
    names = [name for name in CURVE_COLUMNS if name not in ("size_bytes", "time_us")]
    facts: dict[tuple[Any, ...], dict[str, Any]] = {}
    times: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for row in rows.astype(object).where(rows.notna(), None).to_dict("records"):
        key = (row["curve"], row["collective"], row["in_place"])
        facts.setdefault(key, {name: row[name] for name in names})
        times.setdefault(key, {}).setdefault(row["size_bytes"], []).append(row["time_us"])
    curves = []
    for key, values in facts.items():
        sizes = sorted(times[key])
        rate = values.pop("nic_gbps_per_node")
        curves.append(
            PublishedCurve(
                **values,
                nic_gbps_per_node=float("nan") if rate is None else float(rate),
                size_bytes=np.array(sizes, dtype=np.int64),
                time_us=np.array([median(times[key][size]) for size in sizes]),
                is_of_site=is_of_site,
            )
        )
    return tuple(curves)
