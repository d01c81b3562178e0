"""A run as a folder: frames as Parquet (and CSV, for other tools), everything else as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.benchmark.frame import RESULTS, SAMPLES, frame_from_parquet, frame_to_csv, frame_to_parquet
from meshlab.benchmark.plan import Plan, Sampling
from meshlab.errors import ParseError
from meshlab.mesh import DeviceMesh

if TYPE_CHECKING:
    from meshlab.benchmark.run import Run

__all__ = ["SCHEMA", "document_of", "load_run", "save_run"]

SCHEMA = 2
"""The version of the folder's layout; it rises when an older reader could not read it any more."""


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
    if document.get("schema") != SCHEMA:
        raise ParseError(
            f"the run has schema {document.get('schema')}, this meshlab reads {SCHEMA}; use the version that wrote it",
            file=str(path),
        )
    try:
        mesh = _mesh_from_json(document["mesh"])
        plan = _plan_from_json(document["plan"])
        results = frame_from_parquet(folder / "results.parquet", RESULTS)
        samples = frame_from_parquet(folder / "samples.parquet", SAMPLES)
        return cls._from_record(mesh, plan, document, results, samples)
    except (KeyError, TypeError, OSError) as error:
        raise ParseError(f"the run is not whole: {type(error).__name__}: {error}", file=str(path)) from error


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
