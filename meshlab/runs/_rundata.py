"""RunData: all data of a benchmark run, as a plain value. It grows while the run measures."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshlab.base._errors import BenchError, MeshlabError
from meshlab.base._forwarding import implementation
from meshlab.base._units import format_seconds_range, format_size
from meshlab.frames._rows import Columns, Row
from meshlab.frames._schema import (
    RESULTS,
    SAMPLES,
    conditions_frame,
    conform,
    devices_frame,
    empty_results,
    empty_samples,
    loads_frame,
    rank_bytes_frame,
    ranks_frame,
)
from meshlab.frames._statistics import bandwidth
from meshlab.frames._table import ResultsTable, results_table, run_html
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.plans._steps import Step
from meshlab.runs._certainty import Certainty
from meshlab.runs._host_loads import loads_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.prediction._calibration import Calibration
    from meshlab.topology.model._presets import ClusterLike

State = Literal["running", "paused", "done", "cancelled", "failed", "interrupted"]

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run.

    Parameters
    ----------
    done, total : int
        Number of steps, over all launches.
    step : str
        The step that is being measured. Empty if there is none.
    elapsed_s, left_s : float
        Time so far, and the estimated time left, in seconds.
    left_range_s : tuple of float, default (0, 0)
        The range in which the time left probably is, from the pace of the steps so far, in seconds.
    """

    done: int
    total: int
    step: str
    elapsed_s: float
    left_s: float
    left_range_s: tuple[float, float] = (0.0, 0.0)

    @property
    def left_text(self) -> str:
        """The time left, such as "about 10 to 25 s left"."""
        return f"about {format_seconds_range(*self.left_range_s)} left"


HOST_SECTION = "Host "
"""Start of the names of the sections of the environment that describe the hosts of a run on several of them."""


class RunData:
    """A benchmark run as data: its rows and samples, the measured system, and the final state of the run.

    `Run.load` and `RunData.load` read one from a folder. A live `Run` is a RunData that still grows. All functions that
    accept a run accept a RunData: plots, reports, comparisons and analyses.

    Parameters
    ----------
    plan : Plan
        The measured plan.
    mesh : DeviceMesh
        The mesh that it was measured on.
    run_id : str
        A unique name.
    source : str
        The backend of the engines: nccl, mpi, gloo or threads. Axes of the mesh may have another one.
    where : str
        Label of the measured system, for example "4 ranks · MPI on this CPU".
    name : str, default ""
        A name for people, such as "before the update".
    notes : str, default ""
        What is worth knowing about the run.
    state : {"running", "paused", "done", "cancelled", "failed", "interrupted"}, default "running"
        The state of the run. It is interrupted if its process ended before the run did.
    error : MeshlabError, optional
        The reason why the run failed.
    started_at : str, optional
        Start time in UTC, in ISO format. By default the current time.
    elapsed_s : float, default 0
        Duration of the run so far, in seconds.
    n_done : int, default 0
        Number of finished steps, over all launches.
    hosts : sequence of str, default ()
        The hosts of the ranks, and of the client.
    ranks : sequence of mapping, default ()
        The host of each rank, as rows of `RunData.ranks`.
    user : str, default ""
        The name of the user who measured. It is recorded so that other users can redact it, and is not shown.
    devices : sequence of mapping, default ()
        Readings of the GPUs before and after the run, as rows of `RunData.devices`.
    conditions : sequence of mapping, default ()
        The conditions of the hosts during the run, as rows of `RunData.conditions`.
    environment : mapping of str to mapping, optional
        Sections of names and values that describe the system.
    log : sequence of str, default ()
        Events of the run, with their times.
    results, samples : pandas.DataFrame, optional
        The frames of a finished run.
    calibration : mapping, optional
        The calibration of a saved run, as plain data.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     results = (run := ml.bench(engines, sizes="1K, 4K")).wait()
    >>> run.state, run.progress.done, run.results["size_bytes"].tolist()
    ('done', 2, [1024, 4096])
    """

    def __init__(
        self,
        plan: Plan,
        mesh: DeviceMesh,
        *,
        run_id: str,
        source: str,
        where: str,
        name: str = "",
        notes: str = "",
        state: State = "running",
        error: MeshlabError | None = None,
        started_at: str | None = None,
        elapsed_s: float = 0.0,
        n_done: int = 0,
        hosts: Iterable[str] = (),
        ranks: Iterable[Mapping[str, Any]] = (),
        user: str = "",
        devices: Iterable[Mapping[str, Any]] = (),
        conditions: Iterable[Mapping[str, Any]] = (),
        environment: Mapping[str, Mapping[str, str]] | None = None,
        log: Iterable[str] = (),
        results: pd.DataFrame | None = None,
        samples: pd.DataFrame | None = None,
        calibration: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.mesh = mesh
        self.run_id = run_id
        self.source = source
        self.where = where
        self._name, self._notes = _label(name, "name"), _label(notes, "notes")
        self.state: State = state
        self.error = error
        self.started_at = started_at or datetime.now(UTC).isoformat(timespec="seconds")
        self.elapsed_s = elapsed_s
        self.n_done = n_done
        self.hosts = tuple(hosts)
        self.user = user
        self.rank_rows = [dict(row) for row in ranks]
        self.device_rows = [dict(row) for row in devices]
        self.condition_rows = [dict(row) for row in conditions]
        self.environment = {name: dict(values) for name, values in (environment or {}).items()}
        self.log = list(log)
        self.steps: tuple[Step, ...] = plan.steps(mesh)
        """The steps of the plan on the mesh."""
        self._calibration: Any = calibration
        self._lock = threading.RLock()
        self._rows: list[Row] = [] if results is None else rows_of_results(results)
        self._samples: list[Columns] = [] if samples is None or samples.empty else [columns_of_samples(samples)]
        self._wrong = [row for row in self._rows if row["status"] == "wrong"]
        self._certainty = Certainty().with_rows(self._rows)
        self._frames: dict[str, tuple[int, pd.DataFrame]] = {}
        # Keep a frame that was read from disk, because its attrs may contain more than this class can restore.
        for name, frame in (("results", results), ("samples", samples)):
            if frame is not None:
                copy = frame.copy()
                copy.attrs = dict(frame.attrs) or self.attrs
                self._frames[name] = (len(self._rows), copy)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    @property
    def name(self) -> str:
        """The name of the run for people, in lists, comparisons and the title of its report. Settable.

        It is saved with the run. A run that `bench` has written to a folder is renamed in the folder too.

        Examples
        --------
        >>> import tempfile, meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     results = (run := ml.bench(engines, sizes="1K")).wait()
        >>> run.name, run.notes = "before the update", "node3 excluded"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ml.Run.load(run.save(folder)).name
        'before the update'
        """
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = _label(name, "name")
        self._relabelled()

    @property
    def notes(self) -> str:
        """What is worth knowing about the run, in its own lines. Settable, and saved with the run."""
        return self._notes

    @notes.setter
    def notes(self, notes: str) -> None:
        self._notes = _label(notes, "notes")
        self._relabelled()

    def _relabelled(self) -> None:
        """Write the new name or notes to the folder that the run is recorded in. This one has none."""

    # -- growing -------------------------------------------------------------------------------------------------------

    def note(self, message: str) -> None:
        """Append a message to the log, with the time."""
        self.log.append(f"{datetime.now(UTC):%H:%M:%S} {message}")

    def add(
        self,
        rows: Sequence[Row],
        samples: Sequence[Columns],
        *,
        launch: int | None = None,
        process_set: str | None = None,
    ) -> None:
        """Append rows and samples. `launch` and `process_set` are theirs, if they do not have these columns yet."""
        if launch is not None:
            rows = [{**row, "launch": launch, "process_set": process_set} for row in rows]
            samples = [{**part, "launch": np.full(len(part["batch"]), launch)} for part in samples]
        # The worker thread appends while other threads build frames from the same lists.
        with self._lock:
            self._rows += rows
            self._wrong += [row for row in rows if row["status"] == "wrong"]
            self._certainty = self._certainty.with_rows(rows)
            self._samples += samples

    def add_conditions(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows of the conditions frame."""
        with self._lock:
            self.condition_rows += [dict(row) for row in rows]

    def rows(self, start: int = 0) -> list[Row]:
        """Return the rows measured so far, from a position on. This is cheap, for views that follow a run.

        They are dicts without the columns that all rows share, and without bandwidth.
        """
        with self._lock:
            return self._rows[start:]

    def sample_parts(self, start: int = 0) -> list[Columns]:
        """Return the samples measured so far, as columns per step and rank, from a position on. This is cheap."""
        with self._lock:
            return self._samples[start:]

    def since(self, n_rows: int, n_parts: int) -> tuple[list[Row], list[Columns]]:
        """Return the rows and samples after these numbers of them. They belong together, also while the run grows."""
        with self._lock:
            return self._rows[n_rows:], self._samples[n_parts:]

    # -- frames --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[pd.DataFrame, pd.DataFrame, tuple[int, int]]:
        """Return results and samples that belong together, also while the run grows, and the arguments of `since`."""
        with self._lock:
            return self.results, self.samples, (len(self._rows), len(self._samples))

    @property
    def results(self) -> pd.DataFrame:
        """One row per launch, step and group, as far as measured; `meshlab.describe` explains the columns.

        While the run is running, ``attrs["progress"]`` is its progress, which is part of the titles of figures.
        """
        fixed = {"run_id": self.run_id, "source": self.source, "mesh_fingerprint": self.mesh.fingerprint}
        # A frame is built only if there are new rows, because a live view requests it several times per step. The
        # caller gets a copy, so that changes to it do not affect the run.
        with self._lock:
            cached = self._frames.get("results")
            if cached is None or cached[0] != len(self._rows):
                frame = results_frame(self._rows, fixed=fixed, attrs=self.attrs)
                for axis in frame["axis"].dropna().unique() if self.mesh.backends else ():
                    frame.loc[frame["axis"] == axis, "source"] = self.mesh.backend_of(axis) or self.source
                cached = self._frames["results"] = len(self._rows), frame
            return self._copied(cached[1])

    @property
    def samples(self) -> pd.DataFrame:
        """One row per launch, step, rank and batch, as far as measured."""
        with self._lock:
            cached = self._frames.get("samples")
            if cached is None or cached[0] != len(self._rows):
                frame = samples_frame(self._samples, fixed={"run_id": self.run_id}, attrs=self.attrs)
                cached = self._frames["samples"] = len(self._rows), frame
            return self._copied(cached[1])

    def _copied(self, cached: pd.DataFrame) -> pd.DataFrame:
        """Return a copy of a frame, whose `attrs` may be older than the description of the system."""
        frame = cached.copy()
        frame.attrs = {**frame.attrs, **self.attrs, "progress": self.running_note}
        if not frame.attrs["progress"]:
            del frame.attrs["progress"]
        return frame

    @property
    def ranks(self) -> pd.DataFrame:
        """One row per rank: its host, its index on the host and its GPU. Empty for runs of earlier versions.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     results = (run := ml.bench(engines, sizes="1K")).wait()
        >>> run.ranks["local_rank"].tolist(), run.ranks["host"].nunique()
        ([0, 1], 1)
        """
        return ranks_frame(self.run_id, self.rank_rows)

    @property
    def devices(self) -> pd.DataFrame:
        """One row per GPU, before and after the run: clocks, temperature, power, throttling and errors."""
        return devices_frame(self.device_rows)

    @property
    def conditions(self) -> pd.DataFrame:
        """One row per host and reading, about twice per second between steps: other load, clocks and throttling."""
        with self._lock:
            rows = list(self.condition_rows)
        return conditions_frame(rows)

    @property
    def loads(self) -> pd.DataFrame:
        """One row per core, GPU and network card at each reading of `conditions`: load, traffic, clock and throttling.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     results = (run := ml.bench(engines, sizes="1K, 4K")).wait()
        >>> "core 0" in set(run.loads["device"])
        True
        """
        with self._lock:
            rows = list(self.condition_rows)
        return loads_frame([load for row in rows for load in loads_of(row)])

    @property
    def attrs(self) -> dict[Any, Any]:
        """The `attrs` of the frames: the system, the library and the settings."""
        library = self.environment.get("Library", {})
        values = {
            "where": self.where,
            "library": library.get("library", ""),
            "gpu": library.get("device", ""),
            "note": self.environment.get("Run", {}).get("note", ""),
            "n_hosts": n_hosts if (n_hosts := len({row.get("host") for row in self.rank_rows})) > 1 else 0,
            "oversubscribed": self.environment.get("Run", {}).get("oversubscribed", ""),
            "environment": self.environment.get("Settings", {}),
        }
        return {name: value for name, value in values.items() if value}

    @property
    def calibration(self) -> Calibration | None:
        """The calibration that `meshlab.calibrate` made from this run, or None. It is saved with the run."""
        if isinstance(self._calibration, Mapping):  # as it was saved: most readers of a run do not need it
            self._calibration = self._calibration_from(self._calibration)
        calibration: Calibration | None = self._calibration
        return calibration

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        self._calibration = calibration

    @staticmethod
    def _calibration_from(document: Mapping[str, Any]) -> Calibration:
        return implementation(RunData._calibration_from)(document)

    @property
    def progress(self) -> Progress:
        """The progress when the run stopped."""
        return Progress(self.n_done, self.plan.launches * len(self.steps), "", self.elapsed_s, 0.0)

    @property
    def has_ended(self) -> bool:
        """True if the run is neither running nor paused."""
        return self.state not in ("running", "paused")

    @property
    def running_note(self) -> str:
        """The progress of a run that has not ended, such as "running: 3 of 12 steps". Empty if it has."""
        progress = self.progress
        return "" if self.has_ended else f"{self.state}: {progress.done} of {progress.total} steps"

    @property
    def alert(self) -> str:
        """A message about wrong results. Empty if there are none."""
        with self._lock:
            wrong, total = list(self._wrong), len(self._rows)
        if not wrong:
            return ""
        named = [
            f"{row['collective']} on {row['group']} at {format_size(row['size_bytes'])} ({row['n_wrong']:,} elements)"
            for row in wrong[:_MOST_NAMED]
        ]
        more = f" and {len(wrong) - _MOST_NAMED:,} more" if len(wrong) > _MOST_NAMED else ""
        verb = "is" if len(wrong) == 1 else "are"
        return f"{len(wrong):,} of {total:,} results {verb} WRONG: {', '.join(named)}{more}"

    @property
    def uncertainty(self) -> str:
        """A message if most intervals are wider than 10 % of their times, with what else ran. Empty if not."""
        with self._lock:
            certainty, rows = self._certainty, list(self.condition_rows)
        if not certainty.is_low:
            return ""
        return certainty.sentence(rows, self.environment.get("Run", {}).get("oversubscribed", ""))

    def table(self, cluster: ClusterLike | None = None) -> ResultsTable:
        """Return the results as one table per axis: sizes down, and time and bus bandwidth of each collective across.

        Each cell is the slowest group of the axis. `results` has all columns and rows. If the run has not ended, the
        first line is its progress.

        Parameters
        ----------
        cluster : Cluster or str, optional
            The measured cluster. With it, the tables of GPUs also show the share of the bandwidth that the hardware
            allows, for sizes of 16 MiB and more.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     results = (run := ml.bench(engines, sizes="1K, 4K")).wait()
        >>> print(str(run.table()).splitlines()[1].strip())
        all_reduce
        """
        table = results_table(self.results) if cluster is None else self._bounded_table(cluster)
        return replace(table, note=self.running_note)

    def _bounded_table(self, cluster: ClusterLike) -> ResultsTable:
        return implementation(RunData._bounded_table)(self, cluster)

    def wait(self, timeout_s: float | None = None, *, progress: bool | None = None) -> pd.DataFrame:
        """Return the results, or raise the error of the run. A saved run does not wait; see `Run.wait`."""
        if self.error is not None:
            raise self.error
        return self.results

    # -- analyses ------------------------------------------------------------------------------------------------------

    def check_ended(self) -> None:
        """Raise a `BenchError` if the run is still running, because its results are not final.

        A run that was loaded from a folder no longer changes, so it never raises.
        """

    def spikes(self) -> pd.DataFrame:
        """Return the batches that took far longer than the others. See `meshlab.analysis.find_spikes`."""
        return implementation(RunData.spikes)(self)

    def stragglers(self) -> pd.DataFrame:
        """Return the lateness of each rank in the collectives. See `meshlab.analysis.find_stragglers`."""
        return implementation(RunData.stragglers)(self)

    @property
    def rank_bytes(self) -> pd.DataFrame:
        """The bytes that each rank of a group sends and receives in the ``all_to_all_v`` calls of the plan.

        One row per step and rank of a group, with the columns `meshlab.frames.RANK_BYTES`.
        """
        rows = []
        for step in self.steps:
            if step.traffic is None or (counts := step.all_chunk_counts) is None:
                continue
            itemsize = (step.size_bytes or 0) // max(int(counts.sum(axis=0).max()), int(counts.sum(axis=1).max()))
            fixed = {"run_id": self.run_id, "step": step.index, "axis": step.axis, "traffic": step.traffic}
            fixed |= {"size_bytes": step.size_bytes, "imbalance": step.imbalance}
            columns = (counts.sum(axis=1), counts.sum(axis=0), counts.diagonal())
            for rank, values in enumerate((np.stack(columns, axis=1) * itemsize).tolist()):
                names = ("sent_bytes", "received_bytes", "self_bytes")
                rows.append({**fixed, "rank": rank, **dict(zip(names, values, strict=True))})
        return rank_bytes_frame(rows)

    def traffics(self) -> pd.DataFrame:
        """Compare uneven traffics with the first one of the run. See `meshlab.analysis.traffics`."""
        return implementation(RunData.traffics)(self)

    def contention(self) -> pd.DataFrame:
        """Compare groups that run together with one group at a time. See `meshlab.analysis.contention`."""
        return implementation(RunData.contention)(self)

    def interference(self) -> pd.DataFrame:
        """Compare an axis with and without concurrent traffic on another. See `meshlab.analysis.interference`."""
        return implementation(RunData.interference)(self)

    def pairs(self) -> pd.DataFrame:
        """Return every measured pair of ranks, the slowest first. See `meshlab.analysis.pair_table`."""
        return implementation(RunData.pairs)(self)

    def matrix(self, collective: str = "send_recv", **choice: Any) -> pd.DataFrame:
        """Return the measured pairs as a matrix. See `meshlab.analysis.pair_matrix`.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(3, backend="threads") as engines:
        ...     results = (run := ml.bench_pairs(engines, sizes="1K")).wait()
        >>> run.matrix("send").notna()
        to        0      1      2
        from
        0     False   True   True
        1      True  False   True
        2      True   True  False
        """
        return implementation(RunData.matrix)(self, collective, **choice)

    def to_nccl_tests(self) -> str:
        """Return the results as text in the layout of nccl-tests. See `meshlab.nccl_tests.write`."""
        self.check_ended()
        return implementation(RunData.to_nccl_tests)(self)

    def plot(self, **options: Any) -> Axes:
        """Draw bandwidth against message size. See `meshlab.plots.bandwidth`, which documents the options."""
        return implementation(RunData.plot)(self, **options)

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, overwrite: bool = False, redact: bool = False, csv: bool = False) -> Path:
        """Write the run to a folder, with the frames as Parquet and CSV and everything else as JSON.

        From 50,000 samples on, ``samples.csv`` is only written if `csv` is True. All functions read the Parquet file.

        The folder holds either the earlier run or this one at every moment, also if the process is killed. `load`
        checks the files against the digests in ``run.json``.

        Parameters
        ----------
        folder : path
            The folder. A run that was resumed may be written to its own folder again.
        overwrite : bool, default False
            If True, replace a different run in the folder, with its report and figures. Other files stay.
        redact : bool, default False
            If True, write hashes instead of names, addresses and secrets, see `redacted`.
        csv : bool, default False
            If True, write the samples as CSV too, regardless of their number. A million of them take 100 MiB and 10 s.

        Returns
        -------
        pathlib.Path
            The folder.

        Raises
        ------
        BenchError
            If the folder holds a different run, or one that is being measured.
            If the folder cannot be written. Its earlier content is unchanged.

        Examples
        --------
        >>> import tempfile, meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines:
        ...     results = (run := ml.bench(engines, sizes="1K")).wait()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run.save(folder).is_dir(), ml.Run.load(folder).run_id == run.run_id
        (True, True)
        """
        from meshlab.runs._store import save

        return save(self.redacted() if redact else self, folder, overwrite=overwrite, csv=csv)

    @staticmethod
    def load(folder: str | Path) -> RunData:
        """Read a run that `save` wrote, or that `bench` writes to its folder `out` while it measures.

        Parameters
        ----------
        folder : path
            The folder.

        Returns
        -------
        RunData
            The run without engines. If its process was killed, the state is ``interrupted``, and the run has all steps
            that were measured completely. If it is still being measured, the state is ``running`` or ``paused``, and
            the run no longer grows. If a Parquet file is corrupt or missing, the CSV file next to it is read,
            if there is one, with a warning and a note in the log.

        Raises
        ------
        ParseError
            If the folder does not hold a complete run.

        Examples
        --------
        >>> import tempfile, meshlab as ml
        >>> with ml.launch(2, backend="threads") as engines, tempfile.TemporaryDirectory() as folder:
        ...     run = ml.bench(engines, sizes="1K, 4K", out=f"{folder}/run1")
        ...     results = run.wait()
        ...     saved = ml.Run.load(f"{folder}/run1")
        >>> saved.state, saved.results.equals(results)
        ('done', True)
        """
        from meshlab.runs._store import load

        return load(folder)

    def redacted(self) -> RunData:
        """Return a copy with hashes instead of what identifies hosts, users and hardware, and without secrets.

        Names of hosts and users are those that the run lists, and those that its log, errors, settings and paths show.
        They are replaced everywhere, also with other capitals, domains and suffixes such as ``-ib0``. So are addresses
        (IPv4, IPv6, MAC, e-mail), UUIDs, GUIDs, serial numbers, home folders, tokens and passwords. Ranks, models,
        versions and numbers are kept. A name has the same hash everywhere in the copy, and a different hash in every
        other copy. A name that nothing in the run identifies as one, such as that of a project, is kept.
        """
        from meshlab.runs._redact import redact

        return redact(self)

    # -- display -------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        progress = f"{self.progress.done} of {self.progress.total} steps"
        wrong = ", with WRONG results" if self.alert else ""
        name = f" {self.name!r}" if self.name else ""
        title = f"<{type(self).__name__} {self.run_id}{name}: {self.state}, {progress}, {self.where}{wrong}"
        return f"{title}; next: {self._next_steps()}>"

    def _next_steps(self) -> str:
        return ".table(), .plot(), .save(folder)"

    def _repr_png_(self) -> bytes | None:
        return implementation(RunData._repr_png_)(self)

    def _repr_html_(self) -> str:
        return run_html(self, self._figure_html())

    def _figure_html(self) -> str:
        return implementation(RunData._figure_html)(self)


def _label(text: str, what: str) -> str:
    """Return a name in one line, or notes without trailing spaces."""
    if not isinstance(text, str):
        raise BenchError(f"{what} must be a text, not {type(text).__name__}")
    return " ".join(text.split()) if what == "name" else "\n".join(line.rstrip() for line in text.strip().splitlines())


def results_frame(rows: Sequence[Row], *, fixed: Mapping[str, Any], attrs: Mapping[str, Any]) -> pd.DataFrame:
    """Build the results frame of a run: its rows, the columns that all of them share, and bandwidth."""
    import pandas as pd

    frame = pd.DataFrame([{**fixed, **row} for row in rows]) if rows else empty_results()
    frame = conform(frame, RESULTS)
    algbw, busbw = bandwidth(frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"])
    frame["algbw_gbs"], frame["busbw_gbs"] = algbw, busbw
    frame.attrs.update(attrs)
    return frame


def samples_frame(parts: Sequence[Columns], *, fixed: Mapping[str, Any], attrs: Mapping[str, Any]) -> pd.DataFrame:
    """Build the samples frame of a run."""
    import pandas as pd

    if not parts:
        frame = empty_samples()
    else:
        data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        frame = conform(pd.DataFrame(data).assign(**fixed), SAMPLES)
    frame.attrs.update(attrs)
    return frame


def has_measurements(data: RunData) -> bool:
    """Return whether any step was measured, rather than skipped or cancelled."""
    return any(row["status"] in ("ok", "wrong") for row in data.rows())


def rows_of_results(results: pd.DataFrame) -> list[Row]:
    """Convert a results frame back to rows."""
    plain = results.astype(object).where(results.notna(), None)
    return [dict(zip(plain.columns, values, strict=True)) for values in plain.itertuples(index=False)]


def columns_of_samples(samples: pd.DataFrame) -> Columns:
    """Convert a samples frame back to columns, with ``launch``."""
    kinds = {"Int64": np.int64, "float64": np.float64, "boolean": np.bool_, "string": object}
    columns: Columns = {}
    for column in SAMPLES:
        if column.name == "run_id":
            continue
        values = samples[column.name]
        kind: Any = object if values.isna().any() and column.dtype != "float64" else kinds[column.dtype]
        columns[column.name] = values.to_numpy(dtype=kind)
    return columns
