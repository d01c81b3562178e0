"""A run as a folder: frames as Parquet (and CSV, for other tools), everything else as JSON."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.errors import BenchError, ParseError
from meshlab.frames.plan import Plan, Sampling
from meshlab.frames.schema import RESULTS, SAMPLES, Column, conform
from meshlab.mesh.mesh import DeviceMesh

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.run import Run

__all__ = [
    "FILES",
    "SCHEMA",
    "check_free",
    "document_of",
    "frame_from_csv",
    "frame_from_json",
    "frame_from_parquet",
    "frame_to_csv",
    "frame_to_json",
    "frame_to_parquet",
    "load_run",
    "run_id_in",
    "save_run",
]


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


def _unique(frame: pd.DataFrame, index: int) -> pd.Series[str]:
    return f"{index}:" + frame["run_id"].astype("string").fillna("")


def _common_attrs(attrs: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    return {name: value for name, value in attrs[0].items() if all(other.get(name) == value for other in attrs)}


def frame_to_parquet(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame to Parquet; dtypes and `attrs` are kept."""
    frame.to_parquet(path, index=False)


def frame_from_parquet(path: str | Path, columns: Sequence[Column]) -> pd.DataFrame:
    """Read a frame that `frame_to_parquet` wrote.

    Raises
    ------
    ParseError
        If the file is not whole, or no such frame.
    OSError
        If there is no such file, or it may not be read.
    """
    import pandas as pd

    # Opened here, because pyarrow's own errors about a broken file are OSErrors too.
    with Path(path).open("rb") as file, _whole(path, "Parquet"):
        return conform(pd.read_parquet(file), columns)


@contextmanager
def _whole(path: str | Path, kind: str) -> Iterator[None]:
    """Turn what pandas and its readers say about a broken file into a sentence."""
    try:
        yield
    except BenchError as error:
        raise ParseError(f"this is no frame of meshlab: {error}", file=str(path)) from error
    except (ValueError, KeyError, TypeError, NotImplementedError, OSError) as error:
        raise ParseError(
            f"this is not a whole {kind} file; copy it again from where it was made, or measure again", file=str(path)
        ) from error


def frame_to_csv(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a frame to CSV: one header row, floats in full, missing values empty.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    import pandas as pd

    safe = frame.copy()
    for name in safe.columns:
        if isinstance(safe[name].dtype, pd.StringDtype) or safe[name].dtype == object:
            safe[name] = safe[name].map(_guard_formula, na_action="ignore")
    safe.to_csv(path, index=False, float_format="%.17g", lineterminator="\n")


def _guard_formula(text: object) -> object:
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@", "'") else text


def frame_from_csv(path: str | Path, columns: Sequence[Column]) -> pd.DataFrame:
    """Read a frame that `frame_to_csv` wrote; the dtypes come from the definition.

    Raises
    ------
    ParseError
        If the file is not whole, or no such frame.
    OSError
        If there is no such file, or it may not be read.
    """
    import pandas as pd

    data = Path(path).read_bytes()
    with _whole(path, "CSV"):
        if not data.endswith(b"\n"):  # pandas would take the end of the last row for missing values
            raise ValueError
        frame = pd.read_csv(io.BytesIO(data), dtype="string", keep_default_na=False, na_values=[""])
        for name in frame.columns:
            frame[name] = frame[name].map(lambda text: text[1:] if text.startswith("'") else text, na_action="ignore")
        return conform(frame, columns)


def frame_to_json(frame: pd.DataFrame) -> str:
    """Write a frame as JSON text: its columns, its `attrs`, and one list per row; missing values are null."""
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    return json.dumps(
        {"columns": [str(name) for name in frame.columns], "attrs": frame.attrs, "rows": rows}, allow_nan=False
    )


def frame_from_json(text: str, columns: Sequence[Column]) -> pd.DataFrame:
    """Read a frame that `frame_to_json` wrote; the dtypes come from the definition."""
    import pandas as pd

    document: Mapping[str, Any] = json.loads(text)
    frame = conform(pd.DataFrame(document["rows"], columns=document["columns"], dtype=object), columns)
    frame.attrs = dict(document["attrs"])
    return frame
