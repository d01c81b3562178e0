"""Runs on disk, and the conversion of all supported sources into frames.

A run is a folder: its frames as Parquet (and as CSV for other tools, unless there are many samples), everything else as
JSON. ``run.json`` has the digests of the other files, and replacing it replaces the run (see `meshlab.base._folders`).
While a run is measured, it also has a journal with the rows since ``run.json`` was written.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from meshlab.base._documents import parse_own_json, read_own_json
from meshlab.base._errors import BenchError, MeshlabError, ParseError, explained_text
from meshlab.base._files import LARGEST_TEXT, is_folder, open_file, read_file, text_of, write_file
from meshlab.base._folders import digest_of, locate, read_recorded, staged_folder
from meshlab.base._hints import Argument, Hint
from meshlab.base._typed_values import typed_fields
from meshlab.frames._files import (
    frame_from_csv,
    frame_from_json,
    frame_from_parquet,
    frame_to_csv,
    frame_to_parquet,
    upgrade,
)
from meshlab.frames._schema import (
    RESULTS,
    SAMPLES,
    Column,
    conform,
    empty_results,
    empty_samples,
    require_columns,
)
from meshlab.frames._statistics import bandwidth
from meshlab.mesh._document import mesh_from_document, mesh_to_document
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh._traffic import traffic_from_document, traffic_to_document
from meshlab.plans._plan import Plan
from meshlab.runs._journal import GROWING, Journal, is_journal_open, read_journal
from meshlab.runs._rundata import RunData, State

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 7
"""Version of the layout of a folder. It increases if older readers cannot read it, for example for a new column."""

_READABLE = (2, 3, 4, 5, 6, SCHEMA)

_POINTER = "run.json"
_KINDS = ("results", "samples")
_FRAMES = tuple(f"{name}.{suffix}" for name in _KINDS for suffix in ("parquet", "csv"))
_JOURNALS = "steps-*.jsonl"
_MOST_READS = 100  # of a run that is replaced while it is read
_MANY_SAMPLES = 50_000  # as CSV they take ten times as long and five times as much space as Parquet
_FIGURES = ("membership", "topology", "bandwidth", "latency", "matrix")
_REPORTS = ("report.html", "report.md", "report-nodes.png", *(f"report-{kind}-*.png" for kind in _FIGURES))

_RUN = {
    "run_id": str,
    "name": str,
    "notes": str,
    "state": State,
    "error": str | None,
    "started_at": str,
    "elapsed_s": float,
    "n_done": int,
    "source": str,
    "where": str,
    "hosts": list[str],
    "ranks": list[dict[str, Any]],
    "devices": list[dict[str, Any]],
    "conditions": list[dict[str, Any]],
    "plan": dict[str, Any],
    "mesh": dict[str, Any],
    "environment": dict[str, dict[str, str]],
    "log": list[str],
    "calibration": dict[str, Any] | None,
    "n_rows": dict[str, int],
    "files": dict[str, str],
    "journal": str | None,
}
"""The fields of run.json, with their types."""

_OPTIONAL = ("name", "notes", "ranks", "calibration", "conditions", "n_rows", "files", "journal")


class Frames(NamedTuple):
    """The frames of a source: results, samples (possibly empty), and a name."""

    results: pd.DataFrame
    samples: pd.DataFrame
    name: str


def as_results(source: Any, *, needs_end: bool = False) -> pd.DataFrame:
    """Return the results of a source, with the columns `RESULTS`. With `needs_end`, a run that is running raises."""
    return as_frames(source, needs_end=needs_end).results


def as_frames(
    source: Any, results: Any = None, *, read_other: Callable[[Path], Any] | None = None, needs_end: bool = False
) -> Frames:
    """Return the frames of a run, folder, frame, file or list of these, or the frame `source` of `results`."""
    import pandas as pd

    if results is not None:
        require_columns(source, ["rank", "batch"], "samples")
        source = (results, source)
    parts = list(frames_of(source, read_other, needs_end=needs_end))
    if len(parts) == 1:
        return parts[0]
    joined = []
    for kind in ("results", "samples"):
        frames: list[pd.DataFrame] = []
        for index, part in enumerate(parts):
            frame: pd.DataFrame = getattr(part, kind)
            frames.append(frame.assign(run_id=f"{index}:" + frame["run_id"].astype("string").fillna("")))
        attrs = [dict(frame.attrs) for frame in frames]
        for frame in frames:
            frame.attrs = {}  # pandas compares them when it concatenates, which fails for some values
        joined.append(pd.concat(frames, ignore_index=True))
        joined[-1].attrs = {
            name: value for name, value in attrs[0].items() if all(other.get(name) == value for other in attrs)
        }
        if shared := {str(other["oversubscribed"]): None for other in attrs if other.get("oversubscribed")}:
            joined[-1].attrs["oversubscribed"] = " and ".join(shared)  # a problem of one run is one of all
    return Frames(joined[0], joined[1], f"{len(parts)} runs")


def frames_of(
    source: Any, read_other: Callable[[Path], Any] | None = None, *, needs_end: bool = False
) -> Iterator[Frames]:
    """Yield the frames of each run in `source`. `read_other` reads files in other formats."""
    import pandas as pd

    path: Path | None = None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        source = _read(path, read_other)
    if isinstance(source, list):
        if not source:
            raise BenchError("an empty list has no results; pass at least one run")
        for item in source:
            yield from frames_of(item, read_other, needs_end=needs_end)
        return
    if needs_end and isinstance(source, RunData):
        source.check_ended()
    results: Any = source
    samples: Any = None
    if isinstance(source, tuple) and len(source) == 2:
        results, samples = source
    elif hasattr(source, "results"):
        results, samples = source.results, getattr(source, "samples", None)
    if not isinstance(results, pd.DataFrame):
        raise BenchError(
            f"{type(source).__name__} has no results; pass a run or its folder, a results frame or its file, a pair "
            "(results, samples), or an object with .results"
        )
    if "batch" in results:
        raise BenchError(
            "this is a samples frame, but results are needed; pass run, run.results, or (results, samples)"
        )
    name = str(getattr(source, "name", "") or results.attrs.get("file", ""))
    if path is not None:
        name = path.name or path.resolve().name
    require_columns(results, ["collective", "size_bytes", "time_us"])
    yield Frames(_known_columns(results, RESULTS), _known_columns(samples, SAMPLES), name)


def _known_columns(frame: pd.DataFrame | None, columns: Sequence[Column]) -> pd.DataFrame:
    """Return a frame with exactly the columns of its schema."""
    if frame is None:
        return empty_samples()
    # Frames from other code may have additional columns, which are dropped, or lack some, which are filled with NA.
    frame = upgrade(frame)
    conformed = conform(frame[[column.name for column in columns if column.name in frame]], columns)
    if columns is RESULTS and "busbw_gbs" not in frame:
        conformed["algbw_gbs"], conformed["busbw_gbs"] = bandwidth(
            conformed["collective"].tolist(), conformed["size_bytes"], conformed["n_ranks"], conformed["time_us"]
        )
    return conformed


def _read(path: Path, read_other: Callable[[Path], Any] | None) -> Any:
    """Read the folder of a run, or a frame by its suffix."""
    try:
        if is_folder(path):
            return load(path)
        if path.suffix == ".parquet":
            return frame_from_parquet(path, RESULTS)
        if path.suffix == ".csv":
            return frame_from_csv(path, RESULTS)
        if path.suffix == ".json" and '"columns"' in (text := text_of(path, hint="pass a smaller file")[0])[:100]:
            return frame_from_json(text, RESULTS, file=str(path))
        if read_other is not None:
            return read_other(path)
        open_file(path).close()
    except OSError as error:
        raise BenchError(
            f"cannot read {path}: {error.strerror or error}; pass the folder of a run, results as Parquet, CSV or "
            "JSON, or a log of nccl-tests"
        ) from error
    raise BenchError(
        f"{path} is neither the folder of a run nor results as Parquet, CSV or JSON; read a log of nccl-tests with "
        "ml.nccl_tests.read(path) first"
    )


def run_id_in(folder: str | Path) -> str | None:
    """Return the id of the run in a folder, None if there is none, or an empty string if it cannot be read."""
    folder = Path(folder)
    try:
        document = read_own_json(folder / _POINTER)
        return str(document["run_id"])
    except FileNotFoundError:
        return "" if any((folder / name).exists() for name in ("results.parquet", "results.csv")) else None
    except (OSError, ValueError, KeyError, TypeError):
        return "" if is_folder(folder) else None


def check_free(folder: str | Path, run_id: str | None, *, overwrite: bool = False) -> None:
    """Raise if a folder holds another run than `run_id` (None for a new one), or a run that is being measured."""
    other = run_id_in(folder)
    if other is not None and other != run_id and not overwrite:
        raise BenchError(
            f"the folder {folder} holds a different run{other and f', {other}'}",
            hint=Hint(
                "choose another folder, or pass {} to replace that run and its report", Argument("overwrite", True)
            ),
        )
    check_ended(folder)


def check_ended(folder: str | Path) -> None:
    """Raise a `BenchError` if a process, this one or another, is measuring the run in a folder."""
    if is_being_measured(folder):
        raise BenchError(
            f"the run in the folder {folder} is still being measured",
            hint="wait until it ends, or choose another folder",
        )


def is_being_measured(folder: str | Path) -> bool:
    """Return whether a process, this one or another, is measuring the run in a folder."""
    try:
        name = read_own_json(Path(folder) / _POINTER).get("journal")
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(name, str) and is_journal_open(locate(Path(folder), Path(name).name))


def save(run: RunData, folder: str | Path, *, overwrite: bool = False, csv: bool = False) -> Path:
    """Write a run to a folder. See `RunData.save`."""
    check_free(folder, run.run_id, overwrite=overwrite)
    with _staged_run(run, Path(folder), run.snapshot(), csv=csv):
        pass
    return Path(folder)


def open_run(run: RunData, folder: Path, *, overwrite: bool = False) -> tuple[Journal, tuple[int, int]]:
    """Write a run to a folder before it is measured. Returns its journal, and the arguments of `RunData.since`."""
    check_free(folder, run.run_id, overwrite=overwrite)
    snapshot = run.snapshot()
    name = _JOURNALS.replace("*", secrets.token_hex(6))
    with ExitStack() as stack:
        with _staged_run(run, folder, snapshot, journal=name) as stage:
            journal = Journal(stage / name)
            stack.callback(journal.close)
        stack.pop_all()
    return journal, snapshot[2]


def save_ended(run: RunData, folder: Path) -> None:
    """Write a run that has ended to its folder, without the journal that it has had since `open_run`."""
    if run_id_in(folder) != run.run_id:
        raise BenchError(
            f"the folder {folder} no longer holds the run {run.run_id}", hint="call save() with another folder"
        )
    with _staged_run(run, folder, run.snapshot()):
        pass


def relabel(folder: Path, run_id: str, *, name: str, notes: str) -> None:
    """Write the name and the notes of a run that has ended to its folder."""
    check_ended(folder)
    path = folder / _POINTER
    document = parse_own_json(read_file(path, largest=LARGEST_TEXT).decode(), file=str(path))
    if not isinstance(document, dict) or document.get("run_id") != run_id:
        raise BenchError(f"the folder {folder} no longer holds the run {run_id}", hint="list the folder again")
    text = json.dumps({**document, "name": name, "notes": notes}, indent=1, ensure_ascii=False)
    write_file(path, text + "\n")


def remove(folder: Path, run_id: str) -> None:
    """Remove a run that has ended from the disk, with its report. Other files in its folder stay."""
    check_ended(folder)
    if run_id_in(folder) != run_id:
        raise BenchError(f"the folder {folder} no longer holds the run {run_id}", hint="list the folder again")
    (folder / _POINTER).unlink()  # first, because a folder without it holds no run
    for pattern in (*_FRAMES, _JOURNALS, *_REPORTS):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # there are other files
        folder.rmdir()


@contextmanager
def _staged_run(
    run: RunData,
    folder: Path,
    snapshot: tuple[pd.DataFrame, pd.DataFrame, Any],
    *,
    journal: str | None = None,
    csv: bool = False,
) -> Iterator[Path]:
    """Replace the run in a folder after the block, which may write a journal to the hidden subfolder that it gets."""
    # The report of a different run is removed with that run.
    replaces = () if run_id_in(folder) == run.run_id else _REPORTS
    frames = dict(zip(_KINDS, snapshot, strict=False))
    with staged_folder(folder, pointer=_POINTER, recorded=(*_FRAMES, _JOURNALS), replaces=replaces) as stage:
        # A run that is going to be measured often has no rows yet.
        for name, frame in frames.items() if journal is None or len(frames["results"]) else ():
            frame_to_parquet(frame, stage / f"{name}.parquet")
            if csv or name == "results" or len(frame) < _MANY_SAMPLES:
                frame_to_csv(frame, stage / f"{name}.csv")
        document = to_document(run) | {
            "n_rows": {name: len(frame) for name, frame in frames.items()},
            "files": {path.name: digest_of(path.read_bytes()) for path in sorted(stage.iterdir())},
            "journal": journal,
        }
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (stage / _POINTER).write_text(text + "\n", encoding="utf-8")
        yield stage


def to_document(run: RunData) -> dict[str, Any]:
    """Return everything about a run except its frames, as plain data."""
    progress = run.progress
    return {
        "schema": SCHEMA,
        "run_id": run.run_id,
        "name": run.name,
        "notes": run.notes,
        "state": run.state,
        "error": None if run.error is None else explained_text(run.error),
        "started_at": run.started_at,
        "elapsed_s": progress.elapsed_s,
        "n_done": progress.done,
        "source": run.source,
        "where": run.where,
        "hosts": list(run.hosts),
        "ranks": run.rank_rows,
        "user": run.user,
        "devices": run.device_rows,
        "conditions": list(run.condition_rows),
        "plan": _plan_to_json(run.plan),
        "mesh": mesh_to_document(run.mesh),
        "environment": run.environment,
        "log": run.log,
        "calibration": None if run.calibration is None else run.calibration.to_document(),
    }


def load(folder: str | Path) -> RunData:
    """Read a run from its folder. See `RunData.load`."""
    folder = Path(folder)
    path = folder / _POINTER
    for _ in range(_MOST_READS):
        try:
            text = read_file(path, largest=LARGEST_TEXT)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG or not folder.exists():
                raise ParseError(f"no folder {str(folder)!r} exists", hint="pass the folder of a saved run") from error
            raise ParseError(f"{folder} holds no run: {error.strerror or error}", file=str(path)) from error
        caught: ParseError | None = None
        notes: list[str] = []
        try:
            run = _read_run(folder, path, text, notes)
        except ParseError as error:
            caught = error
        try:
            is_current = read_file(path, largest=LARGEST_TEXT) == text
        except (OSError, ParseError):
            is_current = True
        if not is_current:  # another process has replaced the run in the meantime
            continue
        if caught is not None:
            raise caught
        for note in notes:
            run.note(note)
        return run
    raise ParseError(f"another process keeps writing to {folder}", hint="try again", file=str(path))


def _read_run(folder: Path, path: Path, text: bytes, notes: list[str]) -> RunData:
    """Read the run that the content of run.json describes."""
    try:
        document: dict[str, Any] = parse_own_json(text.decode(), file=str(path))
    except UnicodeDecodeError as error:
        raise ParseError("the file is not text in UTF-8", hint="copy the file again", file=str(path)) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in _READABLE:
        raise ParseError(
            f"the run has schema {schema}, but this version of meshlab reads {_READABLE[0]} to {SCHEMA}; read it with "
            "the version that wrote it",
            file=str(path),
        )
    document = typed_fields(document, _RUN, "", optional=_OPTIONAL, file=str(path))
    mesh = mesh_from_document(document["mesh"], file=str(path))
    plan = _plan_from_json(document["plan"], file=str(path))
    n_rows, digests = document.get("n_rows", {}), document.get("files")
    results, samples = (
        _read_frame(folder, name, columns, n_rows.get(name), digests, notes)
        for name, columns in zip(_KINDS, (RESULTS, SAMPLES), strict=True)
    )
    results, samples = (_with_pair_groups(frame, mesh) for frame in (results, samples))
    if document.get("journal") is None:
        return from_document(document, plan, mesh, results, samples)
    return _with_journal(folder, document, plan, mesh, results, samples, notes)


def _with_journal(
    folder: Path,
    document: dict[str, Any],
    plan: Plan,
    mesh: DeviceMesh,
    results: pd.DataFrame,
    samples: pd.DataFrame,
    notes: list[str],
) -> RunData:
    """Build a run that has not been saved since it ended: its frames, and what its journal has."""
    path = locate(folder, Path(document["journal"]).name)
    # First, because the run may end in the meantime: then run.json has changed, and is read again.
    is_open = is_journal_open(path)
    try:
        journal = read_journal(path)
    except OSError as error:
        raise ParseError(
            f"the rows of the run cannot be read: {error.strerror or error}; copy the folder again", file=str(path)
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ParseError("not a journal of meshlab; copy the folder again", file=str(path)) from error
    if journal.n_cut_off and not is_open:
        notes.append(f"{path.name} ends with an incomplete record, which is dropped")
    if journal.n_damaged:
        records = f"{journal.n_damaged} record{'s' * (journal.n_damaged > 1)} of {path.name}"
        notes.append(f"{records} {'are' if journal.n_damaged > 1 else 'is'} damaged; the steps can be measured again")
        warnings.warn(f"{folder}: {notes[-1]}", stacklevel=4)
    facts = {**document, **journal.facts}
    facts |= {name: [*document.get(name, []), *journal.facts.get(name, [])] for name in GROWING}
    facts = typed_fields(facts, _RUN, "", optional=_OPTIONAL, file=str(path))
    if facts["state"] in ("running", "paused") and not is_open:
        facts["state"] = "interrupted"
    run = from_document(facts, plan, mesh, results, samples)
    try:
        run.add(journal.rows, journal.samples)
        run.snapshot()  # frames cannot be built from rows of other types, which must not be found out later
    except MeshlabError:
        raise
    except Exception as error:
        raise ParseError("the journal has other values than rows and samples", file=str(path)) from error
    return run


def from_document(
    document: Mapping[str, Any], plan: Plan, mesh: DeviceMesh, results: pd.DataFrame, samples: pd.DataFrame
) -> RunData:
    """Build a run from its document (see `to_document`) and its frames."""
    names = ("run_id", "source", "state", "started_at", "elapsed_s", "n_done", "hosts", "devices", "environment", "log")
    return RunData(
        plan,
        mesh,
        error=None if document["error"] is None else BenchError(document["error"]),
        where=results.attrs.get("where", document["where"]),
        results=results,
        samples=samples,
        calibration=document.get("calibration"),
        user=str(document.get("user", "")),
        name=document.get("name", ""),  # which runs of earlier versions do not have
        notes=document.get("notes", ""),
        ranks=document.get("ranks", ()),
        conditions=document.get("conditions", ()),
        **{name: document[name] for name in names},
    )


def _read_frame(
    folder: Path,
    name: str,
    columns: Sequence[Column],
    n_rows: int | None,
    digests: Mapping[str, str] | None,
    notes: list[str],
) -> pd.DataFrame:
    """Read a frame from Parquet, or else from the CSV file next to it. Older runs have no digests of the files."""
    parquet, csv = f"{name}.parquet", f"{name}.csv"
    if digests is not None and n_rows == 0 and parquet not in digests and csv not in digests:
        return conform(empty_results() if columns is RESULTS else empty_samples(), columns)
    cause: Exception
    try:
        return _read_file(folder, parquet, columns, n_rows, digests, frame_from_parquet)
    except FileNotFoundError as error:
        trouble, cause = "is missing", error
    except OSError as error:
        trouble, cause = f"cannot be read ({error.strerror or error})", error
    except ParseError as error:
        trouble, cause = "is corrupt", error
    except BenchError as error:
        trouble, cause = "cannot be read without pyarrow", error
    try:
        frame = _read_file(folder, csv, columns, n_rows, digests, frame_from_csv)
    except (OSError, ParseError):
        was_written = digests is None or csv in digests
        other = f"{csv} next to it is not complete either" if was_written else f"the run was saved without {csv}"
        raise ParseError(
            f"the file {trouble}, and {other}; copy the folder again, or measure again", file=str(folder / parquet)
        ) from cause
    note = f"{parquet} {trouble}; its rows were read from {csv}"
    notes.append(note)
    if not isinstance(cause, FileNotFoundError):  # a missing file was probably removed on purpose, to keep only CSV
        warnings.warn(f"{folder}: {note}", stacklevel=5)
    return frame


def _read_file(
    folder: Path,
    name: str,
    columns: Sequence[Column],
    n_rows: int | None,
    digests: Mapping[str, str] | None,
    read: Callable[..., pd.DataFrame],
) -> pd.DataFrame:
    """Read the file of a frame, and check that it is the one that was saved with run.json."""
    if digests is not None and name not in digests:
        raise FileNotFoundError(f"run.json does not list {name}")
    content = None if digests is None else read_recorded(folder, name, digests[name])
    frame = read(folder / name, columns, content)
    if n_rows not in (None, len(frame)):
        raise ParseError(f"the file has {len(frame)} rows, but run.json lists {n_rows}", file=str(folder / name))
    return frame


def _plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data, with only the names of the user's functions."""
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    values["calls"] = [asdict(call) for call in plan.calls]
    if not plan.calls:  # as in files of earlier versions, which can then be read with these
        del values["calls"]
    traffic = [None if traffic is None else traffic_to_document(traffic) for traffic in plan.traffic]
    return values | {
        "sampling": asdict(plan.sampling),
        "functions": dict.fromkeys(plan.functions),
        "traffic": traffic,
    }


def _plan_from_json(values: dict[str, Any], file: str | None = None) -> Plan:
    renamed = {"groups": "grouping", "beside": "concurrent"}  # names of schema 2
    values = {renamed.get(name, name): value for name, value in values.items()}
    kinds = get_type_hints(Plan) | {"functions": dict[str, None], "traffic": list[Any]}
    unknown = [name for name in values if name not in kinds]
    if unknown:
        raise ParseError(f"unknown choices of the plan: {', '.join(unknown)}"[:200], file=file)
    # Plans of earlier versions have fewer choices.
    choices = typed_fields(values, kinds, "plan", optional=kinds.keys() - {"collective", "axis"}, file=file)
    choices["traffic"] = [
        None if document is None else traffic_from_document(document, file=file)
        for document in choices.get("traffic", [None])
    ]
    return Plan(**choices)


def _with_pair_groups(frame: pd.DataFrame, mesh: DeviceMesh) -> pd.DataFrame:
    """Fill in the groups of pairs, which `_split_axes` cannot determine without the mesh."""
    unknown = (frame["group"].isna() & frame["src_rank"].notna()).to_numpy(bool)
    if unknown.any():
        pairs = zip(frame["axis"][unknown], frame["src_rank"][unknown], strict=True)
        groups = frame["group"].astype(object).to_numpy(copy=True)
        groups[unknown] = [mesh[str(axis)].of(int(rank)).name for axis, rank in pairs]
        attrs, frame = frame.attrs, frame.assign(group=groups).astype({"group": "string"})
        frame.attrs = attrs
    return frame
