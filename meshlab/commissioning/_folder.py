"""The folder of an acceptance: its scope, and a folder with the run of each stage."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshlab.analysis._thresholds import Threshold, Thresholds
from meshlab.base._documents import read_own_json
from meshlab.base._errors import BenchError, ParseError
from meshlab.base._files import write_file
from meshlab.base._folders import check_writable
from meshlab.base._hints import Argument, Hint
from meshlab.base._typed_values import typed_fields
from meshlab.benchmark._run import Run
from meshlab.mesh._document import mesh_from_document, mesh_to_document
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.runs._rundata import RunData
from meshlab.runs._store import check_ended, check_free, run_id_in

_POINTER = "acceptance.json"
_SCHEMA = 1
CONFIRMATION = "pairs-again"  # the second measurement of pairs, which has to confirm that some of them are slow
FABRIC_CONFIRMATIONS = ("fabric-again", "fabric-again-2", "fabric-again-3")  # the same of the paths between hosts
_FOLDERS = ("pairs", CONFIRMATION, "fabric", *FABRIC_CONFIRMATIONS, "sweep", "contention")
_FIELDS: Mapping[str, Any] = {
    "schema": int,
    "acceptance_id": str,
    "mesh": Any,
    "quick": bool,
    "limits": tuple[Threshold, ...] | None,
    "title": str,
    "gpu": str,
}


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of an acceptance."""

    mesh: DeviceMesh
    quick: bool  # whether it measures fewer sizes, and less precisely
    thresholds: Thresholds | None
    acceptance_id: str

    @classmethod
    def new(cls, mesh: DeviceMesh, quick: bool, thresholds: Thresholds | None) -> Scope:
        """Return the scope of a new acceptance."""
        return cls(mesh, quick, thresholds, secrets.token_hex(6))


def check_new(folder: str | Path, *, overwrite: bool = False) -> None:
    """Raise unless a new acceptance can be written to a folder."""
    folder = Path(folder)
    if (folder / _POINTER).exists() and not overwrite:
        raise BenchError(
            f"the folder {folder} holds another acceptance",
            hint=Hint(
                "continue it with {}, choose another folder, or pass {} to replace it",
                Argument("resume"),
                Argument("overwrite", True),
            ),
        )
    check_free(folder, None)
    for name in _FOLDERS:
        check_free(folder / name, None, overwrite=overwrite)
    check_writable(folder)


def begin(folder: str | Path, scope: Scope) -> None:
    """Record the scope of a new acceptance in its folder, and remove the runs of an earlier one."""
    folder = Path(folder)
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FOLDERS:
        if run_id_in(folder / name) is not None:
            shutil.rmtree(folder / name)
    limits = scope.thresholds
    document = {
        "schema": _SCHEMA,
        "acceptance_id": scope.acceptance_id,
        "mesh": mesh_to_document(scope.mesh),
        "quick": scope.quick,
        "limits": None if limits is None else [asdict(limit) for limit in limits.limits],
        "title": "" if limits is None else limits.title,
        "gpu": "" if limits is None else limits.gpu,
    }
    write_file(folder / _POINTER, json.dumps(document, indent=1) + "\n")


def read_scope(folder: str | Path) -> Scope:
    """Return the scope of the acceptance in a folder."""
    path = Path(folder) / _POINTER
    try:
        values = typed_fields(read_own_json(path), _FIELDS, "", file=str(path))
    except OSError as error:
        raise ParseError(
            f"{folder} holds no acceptance: {error.strerror or error}",
            hint="pass a folder that meshlab acceptance wrote",
            file=str(path),
        ) from error
    if values["schema"] != _SCHEMA:
        raise ParseError(
            f"the acceptance has schema {values['schema']}, but this version of meshlab reads {_SCHEMA}",
            hint="continue it with the version that wrote it",
            file=str(path),
        )
    limits = values["limits"]
    thresholds = None if limits is None else Thresholds(limits, values["title"], values["gpu"])
    mesh = mesh_from_document(values["mesh"], file=str(path))
    return Scope(mesh, values["quick"], thresholds, values["acceptance_id"])


def earlier_runs(folder: str | Path, plans: Mapping[str, Plan | None], mesh: DeviceMesh) -> dict[str, RunData]:
    """Return the runs in the folder of an acceptance that is continued."""
    runs = {}
    for name, plan in plans.items():
        path = Path(folder) / name
        if plan is None or run_id_in(path) is None:
            continue
        check_ended(path)
        run = Run.load(path)
        if run.mesh != mesh or run.plan != plan:
            difference = "mesh" if run.mesh != mesh else "plan"
            raise BenchError(
                f"the run in {path} belongs to another acceptance: it has a different {difference}",
                hint="remove that folder, or start a new acceptance in another one",
            )
        runs[name] = run
    return runs
