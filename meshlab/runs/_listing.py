"""The runs in a folder, for a list to choose from. Reads far less than loading each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._documents import read_own_json
from meshlab.base._errors import ParseError
from meshlab.base._files import is_folder, read_file
from meshlab.frames._files import check_parquet_size
from meshlab.frames._labels import is_wrong
from meshlab.runs._store import load

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.runs._rundata import RunData

_MOST_RUNS = 500


def list_runs(folder: str | Path) -> pd.DataFrame:
    """List the runs that were saved in a folder or in its subfolders, one level down.

    Parameters
    ----------
    folder : path
        The folder of a run, or a folder with folders of runs.

    Returns
    -------
    pandas.DataFrame
        One row per run, the latest first: ``folder``, ``run_id``, ``state``, ``started_at`` (UTC), ``where``, ``mesh``,
        ``collectives``, ``n_done`` (finished steps, over all launches), ``best_gbs``, the largest bus bandwidth in
        GB/s of results that are not wrong, NaN without one, and the ``name`` and ``notes`` of the run. At most 500
        runs. Other folders are ignored.

    Raises
    ------
    ParseError
        If the folder does not exist.

    Examples
    --------
    >>> import tempfile, meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     results = (run := ml.bench(engines, sizes="1K")).wait()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = run.save(f"{folder}/first")
    ...     runs = ml.frames.list_runs(folder)
    >>> runs[["state", "mesh", "collectives", "n_done"]].values.tolist()
    [['done', 'all_ranks=2', 'all_reduce', 1]]
    """
    import pandas as pd

    root = Path(folder)
    if not is_folder(root):
        raise ParseError(f"{folder} is not a folder", file=str(folder))
    documents = sorted(_documents(root), key=lambda pair: str(pair[1].get("started_at")), reverse=True)[:_MOST_RUNS]
    rows = []
    for path, document in documents:
        with suppress(KeyError, TypeError, ValueError, AttributeError, ParseError):  # not a run, or a broken one
            is_complete = document.get("journal") is None  # otherwise it is being measured, or was interrupted
            rows.append(_row(path, document) if is_complete else summarise_run(load(path)) | {"folder": str(path)})
    return pd.DataFrame(rows, columns=[*_COLUMNS])


_COLUMNS = (
    "folder",
    "run_id",
    "state",
    "started_at",
    "where",
    "mesh",
    "collectives",
    "n_done",
    "best_gbs",
    "name",
    "notes",
)


def summarise_run(run: RunData) -> dict[str, Any]:
    """Return the row of `list_runs` for a run in memory, without a folder."""
    return {
        "folder": "",
        "run_id": run.run_id,
        "state": run.state,
        "started_at": run.started_at,
        "where": run.where,
        "mesh": str(run.mesh),
        "collectives": ", ".join(run.plan.collective),
        "n_done": run.progress.done,
        "best_gbs": _largest(run.results),
        "name": run.name,
        "notes": run.notes,
    }


def _documents(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in (root / "run.json", *root.glob("*/run.json")):
        with suppress(OSError, ValueError):
            document = read_own_json(path)
            if isinstance(document, dict) and "run_id" in document:
                yield path.parent, document


def _row(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    plan = document["plan"]
    return {
        "folder": str(path),
        **{name: document[name] for name in ("run_id", "state", "started_at", "where", "n_done")},
        "mesh": ", ".join(f"{name}={size}" for name, size in document["mesh"]["axes"]),
        "collectives": ", ".join(plan["collective"]),
        "best_gbs": _best_gbs(path),
        **{name: str(document.get(name, "")) for name in ("name", "notes")},
    }


def _largest(results: pd.DataFrame) -> float:
    """Return the largest bus bandwidth of results that are not wrong, NaN without one."""
    best = results.loc[~is_wrong(results), "busbw_gbs"].to_numpy(dtype=np.float64, na_value=np.nan)
    return float(np.nanmax(best)) if np.isfinite(best).any() else float("nan")


def _best_gbs(path: Path) -> float:
    """Return the largest bus bandwidth from the columns that determine it."""
    import pandas as pd

    for name, read in (("results.parquet", pd.read_parquet), ("results.csv", pd.read_csv)):
        with suppress(OSError, ValueError, KeyError):
            data = read_file(path / name)
            is_parquet = name.endswith("parquet")
            if is_parquet:
                check_parquet_size(data, path / name)
            options: dict[str, Any] = {"columns" if is_parquet else "usecols": ["busbw_gbs", "n_wrong", "status"]}
            return _largest(read(BytesIO(data), **options))
    return float("nan")
