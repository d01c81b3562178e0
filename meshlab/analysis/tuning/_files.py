"""Tunings as JSON: one file, with the trials by column, the settings, the mesh and the system."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._documents import read_own_json
from meshlab.base._errors import MeshlabError, ParseError
from meshlab.base._files import write_file
from meshlab.base._typed_values import typed_fields
from meshlab.frames._schema import conform
from meshlab.frames._trials import TRIALS
from meshlab.mesh._document import mesh_from_document, mesh_to_document

if TYPE_CHECKING:
    import pandas as pd

TUNING_SCHEMA = 1
"""Version of the layout of the file. It increases if older readers cannot read it."""

_KIND = "meshlab tuning"
_DIGITS = 5
_MOST_TRIALS = 1_000_000
_DOCUMENT = {
    "system": dict[str, str],
    "mesh": dict[str, Any],
    "axis": str,
    "settings": dict[str, dict[str, str]],
    "n_trials": int,
    "trials": dict[str, dict[str, Any] | list[Any]],
}
_NEEDED = ("collective", "axis", "n_ranks", "size_bytes", "buffers", "launch", "time_us", "status")


def write_tuning(path: str | Path, values: Mapping[str, Any]) -> Path:
    """Write the parts of a tuning, named as in `Tuning`, to one file."""
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
    """Read the parts of a tuning from a file. Raises a `ParseError` if it contains none."""
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
    read = typed_fields(document, _DOCUMENT, "", file=str(path))
    if not 0 <= read["n_trials"] <= _MOST_TRIALS:  # a column with one level takes no space in the file
        raise ParseError(
            f"the tuning has {read['n_trials']} trials, but at most {_MOST_TRIALS:,} are read", file=str(path)
        )
    columns: dict[str, Any] = read["trials"]
    missing = [name for name in _NEEDED if name not in columns]
    if missing:  # a later version may add columns, but these are the measurements
        raise ParseError(
            f"the tuning is incomplete: trials.{missing[0]} is missing", hint="copy the file again", file=str(path)
        )
    try:
        values = {name: _unpack(name, part, read["n_trials"]) for name, part in columns.items()}
        trials = conform(pd.DataFrame(values, index=range(read["n_trials"]), dtype=object), TRIALS)
        mesh = mesh_from_document(read["mesh"])
    except MeshlabError as error:
        raise ParseError(
            f"the tuning is damaged: {error.message}", hint="copy the file again", file=str(path)
        ) from error
    return {"trials": trials, "mesh": mesh, **{name: read[name] for name in ("settings", "axis", "system")}}


def _unpack(name: str, part: Any, n: int) -> list[Any]:
    if isinstance(part, dict):
        kinds = {"levels": list[str | float | bool | None], "codes": list[int]}
        packed = typed_fields(part, kinds, f"trials.{name}")
        levels, codes = packed["levels"], packed["codes"]
        if not all(0 <= code < len(levels) for code in codes):
            raise ParseError(f"trials.{name}.codes has an index outside its {len(levels)} levels")
        values = [levels[code] for code in codes] if len(levels) != 1 else levels * n
    else:
        values = part
    if len(values) != n:
        raise ParseError(f"trials.{name} has {len(values)} of {n} values")
    return values
