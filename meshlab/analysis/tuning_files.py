"""Tunings as JSON: one file, with the trials by column, the settings, the mesh and the system."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.documents import read_own_json
from meshlab.errors import BenchError, ParseError
from meshlab.files import write_file
from meshlab.frames.schema import conform
from meshlab.frames.store import mesh_from_document, mesh_to_document
from meshlab.frames.trials import TRIALS
from meshlab.mesh.mesh import DeviceMesh

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TUNING_SCHEMA", "read_tuning", "write_tuning"]

TUNING_SCHEMA = 1
"""Version of the layout of the file. It increases if older readers cannot read it."""

_KIND = "meshlab tuning"
_DIGITS = 5
_NEEDED = ("collective", "axis", "n_ranks", "size_bytes", "buffers", "launch", "time_us", "status")


def write_tuning(path: str | Path, values: Mapping[str, Any]) -> Path:
    """Write the parts of a tuning to one file.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.
    values : mapping
        ``trials``, ``settings``, ``mesh``, ``axis`` and ``system``, as in `Tuning`.
    """
    document = {
        "kind": _KIND,
        "schema": TUNING_SCHEMA,
        "system": dict(values["system"]),
        "mesh": mesh_to_document(values["mesh"]),
        "axis": values["axis"],
        "settings": {name: dict(variables) for name, variables in values["settings"].items()},
        "n_trials": len(values["trials"]),
        "trials": {name: _pack(column) for name, column in values["trials"].items()},
    }
    lines = [f" {json.dumps(name)}: {json.dumps(part, ensure_ascii=False)}" for name, part in document.items()]
    trials = document["trials"]
    assert isinstance(trials, dict)
    columns = [f"  {json.dumps(name)}: {json.dumps(part, separators=(',', ':'))}" for name, part in trials.items()]
    lines[-1] = ' "trials": {\n' + ",\n".join(columns) + "\n }"
    return write_file(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _pack(column: pd.Series[Any]) -> Any:
    """Return a column as its levels with the index of each row's level, or as its values if most of them differ."""
    values = [_plain(value) for value in column.astype(object).where(column.notna(), None).tolist()]
    levels = list(dict.fromkeys(values))
    if len(levels) > max(1, len(values) // 3):
        return values
    codes = {value: number for number, value in enumerate(levels)}
    return {"levels": levels, "codes": [codes[value] for value in values] if len(levels) > 1 else []}


def _plain(value: Any) -> Any:
    """Return a number of JSON. Times keep five digits, which is more than a clock resolves."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{_DIGITS}g}")
    return value


def read_tuning(path: str | Path) -> dict[str, Any]:
    """Read the parts of a tuning from a file.

    Returns
    -------
    dict
        ``trials``, ``settings``, ``mesh``, ``axis`` and ``system``.

    Raises
    ------
    ParseError
        If the file cannot be read, or contains no tuning.
    """
    import pandas as pd

    path = Path(path)
    try:
        document = read_own_json(path)
    except OSError as error:
        raise ParseError(
            f"cannot read the tuning: {error.strerror or error}; pass a file that Tuning.save wrote", file=str(path)
        ) from error
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise ParseError("the file contains no tuning; pass a file that Tuning.save wrote", file=str(path))
    if document.get("schema") != TUNING_SCHEMA:
        raise ParseError(
            f"the tuning has schema {document.get('schema')}, but this version of meshlab reads {TUNING_SCHEMA}; tune "
            "again, or read it with the version that wrote it",
            file=str(path),
        )
    try:
        n = int(document["n_trials"])
        for name in _NEEDED:  # a later version may add columns, but these are the measurements
            document["trials"][name]
        trials = pd.DataFrame(
            {name: _unpack(part, n) for name, part in document["trials"].items()}, index=range(n), dtype=object
        )
        mesh: DeviceMesh = mesh_from_document(document["mesh"])
        settings = {str(name): dict(values) for name, values in document["settings"].items()}
        return {
            "trials": conform(trials, TRIALS),
            "settings": settings,
            "mesh": mesh,
            "axis": str(document["axis"]),
            "system": {str(name): str(text) for name, text in document["system"].items()},
        }
    except KeyError as error:
        raise ParseError(
            f"the tuning is incomplete: {error} is missing; copy the file again", file=str(path)
        ) from error
    except (TypeError, ValueError, IndexError, AttributeError, BenchError) as error:
        raise ParseError(f"the tuning is damaged: {error}; copy the file again", file=str(path)) from error


def _unpack(part: Any, n: int) -> list[Any]:
    if isinstance(part, dict):
        levels, codes = part["levels"], part["codes"]
        values = [levels[code] for code in codes] if len(levels) != 1 else [levels[0]] * n
    else:
        values = list(part)
    if len(values) != n:
        raise ValueError(f"a column has {len(values)} of {n} values")
    return values
