"""A run as a folder: frames as Parquet (and CSV, for other tools), everything else as JSON."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.frames.schema import RESULTS, SAMPLES, Column, frame_from_csv, frame_from_parquet, frame_to_csv, frame_to_parquet
from meshlab.frames.plan import Plan, Sampling
from meshlab.errors import BenchError, ParseError
from meshlab.mesh.mesh import DeviceMesh

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.run import Run

__all__ = ["FILES", "SCHEMA", "check_free", "document_of", "load_run", "run_id_in", "save_run"]

SCHEMA = 2
"""The version of the folder's layout; it rises when an older reader could not read it any more."""


_FRAMES = tuple(f"{name}.{suffix}" for name in ("results", "samples") for suffix in ("parquet", "csv"))
_PICTURES = ("membership", "topology", "bandwidth", "latency", "matrix")
FILES = ("run.json", *_FRAMES, "report.html", "report.md", *(f"report-{kind}-*.png" for kind in _PICTURES))
"""Patterns of what meshlab writes into the folder of a run."""


def run_id_in(folder: str | Path) -> str | None:
    """Which run a folder holds; None for none, and an empty text for one that cannot be read."""
    folder = Path(folder)
    try:
        document = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return str(document["run_id"])
    except FileNotFoundError:
        return "" if any((folder / name).exists() for name in ("results.parquet", "results.csv")) else None
    except (OSError, ValueError, KeyError, TypeError):
        return "" if folder.is_dir() else None


def check_free(folder: str | Path, run_id: str | None, insist: str = "pass overwrite=True") -> None:
    """Refuse a folder that holds another run than this one.

    Parameters
    ----------
    folder : path
    run_id : str or None
        The run that is to be written; None for a new one.
    insist : str
        How whoever asks would insist.

    Raises
    ------
    BenchError
        If another run is inside.
    """
    other = run_id_in(folder)
    if other is not None and other != run_id:
        raise BenchError(
            f"the folder {folder} holds another run{other and f', {other}'}; choose another folder, or {insist} to "
            "replace that run and its report"
        )


def save_run(run: Run, folder: Path) -> None:
    """Write a run's files into a folder that is there."""
    for name, frame in (("results", run.results), ("samples", run.samples)):
        frame_to_parquet(frame, folder / f"{name}.parquet")
        frame_to_csv(frame, folder / f"{name}.csv")
    text = json.dumps(document_of(run), indent=1, ensure_ascii=False)
    (folder / "run.json").write_text(text + "\n", encoding="utf-8")


def document_of(run: Run) -> dict[str, Any]:
    """Everything about a run but its frames, as plain data."""
    return {
        "schema": SCHEMA,
        "n_rows": {"results": len(run.results), "samples": len(run.samples)},
        "run_id": run.run_id,
        "state": run.state,
        "error": str(run.error) if run.error is not None else None,
        "started_at": run.started_at,
        "elapsed_s": run.progress.elapsed_s,
        "n_done": run.progress.done,
        "source": run._record.source,
        "where": run.where,
        "hosts": list(run._record.hosts),
        "devices": run._record.devices,
        "plan": _plan_to_json(run.plan),
        "mesh": _mesh_to_json(run.mesh),
        "environment": run.environment,
        "log": run.log,
    }


def load_run(cls: type[Run], folder: str | Path) -> Run:
    """Read a run that `save_run` wrote."""
    folder = Path(folder)
    path = folder / "run.json"
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParseError(f"{folder} holds no run: {error.strerror or error}", file=str(path)) from error
    except json.JSONDecodeError as error:
        raise ParseError(f"this is not JSON: {error.msg}", file=str(path), line=error.lineno) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ParseError(
            f"the run has schema {schema}, this meshlab reads {SCHEMA}; use the version that wrote it",
            file=str(path),
        )
    try:
        mesh = _mesh_from_json(document["mesh"])
        plan = _plan_from_json(document["plan"])
        notes: list[str] = []
        n_rows = document.get("n_rows", {})
        results, samples = (
            _read_frame(folder, name, columns, n_rows.get(name), notes)
            for name, columns in (("results", RESULTS), ("samples", SAMPLES))
        )
        run = cls._from_record(mesh, plan, document, results, samples)
    except KeyError as error:
        raise ParseError(f"the run is not whole: it does not say its {error}", file=str(path)) from error
    except (TypeError, AttributeError) as error:
        raise ParseError(f"the run is not whole: {error}", file=str(path)) from error
    for note in notes:
        run._record.note(note)
    return run


def _read_frame(
    folder: Path, name: str, columns: Sequence[Column], n_rows: int | None, notes: list[str]
) -> pd.DataFrame:
    """Read a frame from Parquet, or else from the CSV beside it."""
    cause: Exception
    parquet, csv = folder / f"{name}.parquet", folder / f"{name}.csv"
    try:
        return frame_from_parquet(parquet, columns)
    except FileNotFoundError as error:
        trouble, cause = "is missing", error
    except OSError as error:
        trouble, cause = f"cannot be read ({error.strerror or error})", error
    except ParseError as error:
        trouble, cause = "is broken", error
    frame: pd.DataFrame | None
    try:
        frame = frame_from_csv(csv, columns)
    except (OSError, ParseError):
        frame = None
    if frame is None or n_rows not in (None, len(frame)):
        raise ParseError(
            f"the file {trouble}, and {csv.name} beside it is not whole either; copy the folder again from where it "
            "was made, or measure again",
            file=str(parquet),
        ) from cause
    note = f"{parquet.name} {trouble}; its rows were read from {csv.name}"
    notes.append(note)
    if not isinstance(cause, FileNotFoundError):  # who left only the CSV there knows
        warnings.warn(f"{folder}: {note}", stacklevel=4)
    return frame


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain data; of functions of the user's own only the names."""
    told = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return told | {"sampling": asdict(plan.sampling), "functions": dict.fromkeys(plan.functions)}


def _plan_from_json(told: dict[str, Any]) -> Plan:
    return Plan(**{**told, "sampling": Sampling(**told["sampling"])})


def _mesh_to_json(mesh: DeviceMesh) -> dict[str, Any]:
    return {
        "axes": [[axis.name, axis.size] for axis in mesh.axes],
        "world_size": mesh.world_size,
        "ranks": None if mesh.in_order else mesh.ranks.ravel().tolist(),
        "backends": dict(mesh.backends),
        "groups": [[group.name, list(group.ranks)] for group in mesh.custom_groups],
    }


def _mesh_from_json(told: dict[str, Any]) -> DeviceMesh:
    mesh = DeviceMesh(
        [(name, size) for name, size in told["axes"]],
        world_size=told["world_size"],
        ranks=told["ranks"],
        backends=told["backends"],
    )
    for name, ranks in told["groups"]:
        mesh = mesh.with_group(name, ranks)
    return mesh
