"""A job that still runs: the logs of NCCL Inspector, followed while they grow."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base import _markup as markup
from meshlab.base._errors import BenchError, MeshError, MeshlabError, ParseError
from meshlab.base._files import open_file
from meshlab.base._units import format_seconds, format_time_us
from meshlab.mesh._axes import format_ranks
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.traces._axes import describe_group, infer_mesh, place_groups
from meshlab.traces._joining import join_ranks, missing_ranks
from meshlab.traces._live_calls import Comm, LiveCalls, Member, Process, group_of, late_members, silent_processes
from meshlab.traces._sentences import axis_rows, axis_text, records
from meshlab.traces._tables import MOSTLY, totals_frame
from meshlab.traces._tails import Tails
from meshlab.traces._trace import Trace

if TYPE_CHECKING:
    import pandas as pd

INTERVAL_S = 1.0
ERROR_US = 10.0
"""The error of a wait on two H200: the ends of an all_reduce of 32 MiB differ by this much."""

_SHORTEST_S = 0.05
_START = 1 << 16  # bytes in which a log shows its format
_MARKS = (b'"coll_perf"', b'"p2p_perf"')
_HINT = "pass the folder in NCCL_INSPECTOR_DUMP_DIR"
_MOST_GROUPS = 4
_URGENT = re.compile(r" (?:is|are) lost: | is late now, |^No rank has finished ")
_STOPPED = 5.0  # intervals without any line


def follow(folder: str | os.PathLike[str], mesh: MeshLike | None = None, **options: float) -> LiveTrace:
    """Follow the logs of a folder, see `Trace.follow`."""
    return LiveTrace(folder, mesh, **options)


class LiveTrace:
    """The collectives of a job that still runs, read by a thread while they are written. `Trace.follow` returns one.

    It is a context manager, and `close` ends the thread. What was read stays available.

    Parameters
    ----------
    folder : str or path
        The folder in which NCCL Inspector writes its logs.
    mesh : DeviceMesh or str, optional
        The mesh of the job. By default the one that explains its communicators.
    interval_s : float, default 1.0
        Time between two looks at the files in seconds, at least 0.05.
    error_us : float, default 10.0
        Error of a wait in µs, such as `meshlab.benchmark.late_rank` measures it. A rank that comes last by less is not
        late.

    Raises
    ------
    ParseError
        If the folder does not exist, or has files but no log of NCCL Inspector.
    BenchError
        If the interval or the error is invalid.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        mesh: MeshLike | None = None,
        *,
        interval_s: float = INTERVAL_S,
        error_us: float = ERROR_US,
    ) -> None:
        if not _SHORTEST_S <= interval_s < float("inf"):
            raise BenchError(f"interval_s must be at least {_SHORTEST_S} s, not {interval_s!r}")
        if not 0 <= error_us < float("inf"):
            raise BenchError(f"error_us must be a time in µs, not {error_us!r}")
        self.folder = Path(folder).expanduser()
        _check_folder(self.folder)
        self.interval_s = interval_s
        self.error: MeshlabError | None = None
        self._job_mesh = None if mesh is None else as_mesh(mesh)
        self._calls = LiveCalls(error_us)
        self._tails = Tails(self.folder)
        self._lock = threading.RLock()
        self._late: list[tuple[str | None, int, float]] = []  # axis, rank, and median lateness in µs
        self._silent: list[Process] = []
        self._watchers: list[Callable[[LiveTrace], None]] = []
        self._layout: tuple[object, DeviceMesh | None, dict[str, str | None]] = (None, None, {})
        self._end = threading.Event()
        self._began_s = time.monotonic()
        self._ended_s: float | None = None
        self._poll()
        if self.error is not None:
            raise self.error
        self._thread = threading.Thread(
            target=_work, args=(weakref.ref(self), self._end, interval_s), name="meshlab follow", daemon=True
        )
        self._thread.start()

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True while the files are followed: until `close`, or until `error` is set."""
        return self._thread.is_alive() and not self._end.is_set()

    def close(self) -> None:
        """Read what was written until now, and end the thread."""
        if self._end.is_set():
            return
        self._end.set()
        self._ended_s = time.monotonic()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        if self.error is None:
            self._poll()

    def stop(self) -> None:
        """End the thread without waiting for it."""
        self._ended_s = time.monotonic()
        self._end.set()

    def __enter__(self) -> LiveTrace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        end = getattr(self, "_end", None)
        if end is not None:
            end.set()

    def _poll(self) -> None:
        """Read the new lines, and find late and lost ranks. An error ends the thread."""
        try:
            with self._lock:
                for batch in self._tails.new_lines():
                    self._calls.add(batch.lines, batch.name, time.monotonic(), is_copy=batch.is_copy)
                self._judge()
        except OSError:
            self.error = ParseError("this folder is gone", hint=_HINT, file=str(self.folder))
        except MeshlabError as error:
            self.error = error
        for watcher in list(self._watchers):
            watcher(self)

    def _judge(self) -> None:
        job, comms = self._job()
        world = max((process.world_size for process in job), default=0)
        if self._job_mesh is not None and world > self._job_mesh.world_size:
            raise MeshError(
                f"the mesh {self._job_mesh} has {self._job_mesh.world_size:,} ranks, but the job in {self.folder} has "
                f"{world:,}",
                hint="pass the mesh of the job, or none, to infer it",
            )
        axes = self._axes(comms)
        self._late = [
            (axes[comm.name], rank, float(np.median(member.recent)))
            for comm, position, member in late_members(comms)
            if (rank := member.process.rank(position)) is not None
        ]
        self._silent = silent_processes(job, comms, self.interval_s)
        self._calls.end_interval()

    def watch(self, watcher: Callable[[LiveTrace], None]) -> None:
        """Call a function after each interval, on the thread that reads.

        Parameters
        ----------
        watcher : callable
            Receives the live trace.
        """
        self._watchers.append(watcher)

    # -- the job -------------------------------------------------------------------------------------------------------

    def _job(self) -> tuple[list[Process], list[Comm]]:
        """Return the processes and the communicators of the job that wrote last."""
        job = self._calls.job()
        names = dict.fromkeys(chain.from_iterable(process.comms for process in job))
        return job, [self._calls.comms[name] for name in names]

    def _axes(self, comms: Sequence[Comm]) -> dict[str, str | None]:
        """Return the axis of each communicator."""
        # Inferred again for another job, when ranks join, or when the job has made twice as many calls.
        key = tuple((comm.name, len(comm.members)) for comm in comms), self._calls.n_lines.bit_length()
        if self._layout[0] != key:
            mesh = self._mesh_of(comms)
            groups = [group_of(comm) for comm in comms]
            places = [place.axis for place in place_groups(groups, mesh)] if mesh is not None else [None] * len(groups)
            self._layout = key, mesh, {group.name: axis for group, axis in zip(groups, places, strict=True)}
        return self._layout[2]

    def _mesh_of(self, comms: Sequence[Comm]) -> DeviceMesh | None:
        if self._job_mesh is not None:
            return self._job_mesh
        members = [member for comm in comms for member in comm.members.values()]
        n_calls = [sum(member.n_calls for member in comm.members.values()) for comm in comms]
        world = max((member.process.world_size for member in members), default=None)
        try:
            return infer_mesh([group_of(comm) for comm in comms], n_calls, world)[0]
        except MeshError:
            return None

    def prefer(self, mesh: DeviceMesh) -> None:
        """Use a mesh from now on if it explains all communicators that are complete."""
        with self._lock:
            job, comms = self._job()
            groups = [group for comm in comms if len((group := group_of(comm)).ranks) > 1]
            fits = bool(groups) and all(process.world_size == mesh.world_size for process in job)
            if fits and all(place.axis is not None for place in place_groups(groups, mesh)) and mesh != self._job_mesh:
                self._job_mesh, self._layout = mesh, (None, None, {})

    def mesh(self) -> DeviceMesh | None:
        """Return the mesh of the job, or None while its communicators are not known."""
        with self._lock:
            self._axes(self._job()[1])
            return self._layout[1]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have written a call."""
        with self._lock:
            return tuple(sorted({rank for process in self._job()[0] for rank in process.ranks}))

    @property
    def n_calls(self) -> int:
        """Number of lines so far: one per call and rank."""
        return self._calls.n_lines

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks whose logs have stopped growing, while others of their groups go on."""
        with self._lock:
            return tuple(sorted({rank for process in self._silent for rank in process.ranks}))

    @property
    def late(self) -> tuple[int, ...]:
        """The ranks that came last in more than half of the calls of a group in the last interval."""
        with self._lock:
            return tuple(sorted({rank for _, rank, _ in self._late}))

    # -- tables and words ----------------------------------------------------------------------------------------------

    def by_axis(self) -> pd.DataFrame:
        """Return the time of all calls so far by axis, for an average rank.

        Returns
        -------
        pandas.DataFrame
            The columns of `Trace.by_axis` without ``step``. The logs contain no computation, so ``exposed_us`` and
            ``hidden_us`` are missing.

        Raises
        ------
        MeshlabError
            The `error` that ended the thread.
        """
        if self.error is not None:
            raise self.error
        with self._lock:
            comms = self._job()[1]
            axes = self._axes(comms)
            parts: dict[str | None, list[Comm]] = {}
            for comm in comms:
                parts.setdefault(axes[comm.name], []).append(comm)
            return totals_frame([{"axis": axis} | _totals(part) for axis, part in parts.items()], ["axis"])

    def sentences(self) -> tuple[str, ...]:
        """Return what is happening: lost ranks, ranks that are late now, and the time by axis."""
        if self.error is not None:
            return (f"{self.error}.",)
        with self._lock:
            return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        job, comms = self._job()
        time_s = time.monotonic() if self._ended_s is None else self._ended_s
        if not job:
            waited = format_seconds(time_s - self._began_s)
            yield f"No rank has written a call for {waited}. The plugin writes only with a dump interval."
            return
        latest = max(process.last_s for process in job)
        for process in self._silent:
            ranks = f"R{format_ranks(process.ranks)[1:]} {'is' if len(process.ranks) == 1 else 'are'}"
            since = format_seconds(max(time_s - process.last_s, 0.0))
            yield f"{ranks} lost: {process.file} has not grown for {since}, while others of its groups went on."
        if time_s - latest > _STOPPED * self.interval_s:
            yield f"No rank has finished a call for {format_seconds(time_s - latest)}.{_behind(comms)}"
        for axis, rank, lateness_us in self._late:
            text = f"rank {rank} is late now, by {format_time_us(lateness_us)} in the median."
            yield f"{axis}: {text}" if axis else f"R{text[1:]}"
        for row in records(self.by_axis()):
            yield axis_text(row)
        world = max(process.world_size for process in job)
        if missing := missing_ranks(self.ranks, world):
            yield f"Only {format_ranks(self.ranks)} of {world:,} have written ({missing} missing)."
        if self._job_mesh is not None:
            if world < self._job_mesh.world_size:
                yield f"The mesh has {self._job_mesh.world_size:,} ranks, but the largest communicator has {world:,}."
            axes = self._axes(comms)
            groups = [group for comm in comms if axes[comm.name] is None and (group := group_of(comm)).ranks]
            for group in [group for group in groups if len(group.ranks) > 1][:_MOST_GROUPS]:
                yield f"{describe_group(group)} is not along axes of the mesh.".replace("process", "Process", 1)

    def trace(self) -> Trace:
        """Return the latest calls as a trace, for its tables and figures. Of long jobs, 64 MiB of lines are kept.

        Raises
        ------
        ParseError
            If no call was written yet, or if the logs do not show the ranks.
        """
        with self._lock:
            ranks = self._calls.snapshot()
        if not ranks:
            raise ParseError("no rank has written a call yet", hint="wait for the job", file=str(self.folder))
        return Trace(join_ranks(ranks))

    @property
    def title(self) -> str:
        """The ranks and the number of calls in words."""
        ranks = self.ranks
        state = "following" if self.is_running else "ended"
        return (
            f"{state} {self.folder.name} · {format_ranks(ranks) if ranks else 'no rank yet'} · {self.n_calls:,} lines"
        )

    def __repr__(self) -> str:
        return f"<LiveTrace: {self.title}>"

    def __str__(self) -> str:
        with self._lock:  # the table and the sentences are of one moment
            lines = [self.title, ""]
            if self.error is None and self.n_calls:
                header, *rows = axis_rows(self.by_axis())
                lines += [markup.text_table([header, *rows], right=range(1, len(header))), ""]
            return "\n".join([*lines, *self.sentences()])

    def html(self) -> str:
        """Return the sentences and the table as markup. Sentences about ranks that are lost or late are bold."""
        with self._lock:
            sentences = map(markup.escape, self.sentences())
            text = "".join(f"<p><strong>{s}</strong></p>" if _URGENT.search(s) else f"<p>{s}</p>" for s in sentences)
            if self.error is not None or not self.n_calls:
                return text
            header, *rows = axis_rows(self.by_axis())
            return text + markup.table(header, rows, right=range(1, len(header)))

    def _repr_html_(self) -> str:
        return markup.card("Live trace", self.title, self.html())


def _work(reference: weakref.ref[LiveTrace], end: threading.Event, interval_s: float) -> None:
    """Look at the files after each interval, until the live trace is closed or collected."""
    while not end.wait(interval_s):
        live = reference()
        if live is None or live.error is not None:
            return
        live._poll()
        del live


def _check_folder(folder: Path) -> None:
    """Raise if a folder does not exist, or has only files of other kinds. It may be empty until the job starts."""
    if not folder.is_dir():
        raise ParseError("this folder does not exist", hint=_HINT, file=str(folder))
    sizes = [path for path in folder.iterdir() if path.is_file() and path.stat().st_size]
    if sizes and not any(_is_log(path) for path in sizes):
        raise ParseError("no file of this folder is a log of NCCL Inspector", hint=_HINT, file=str(folder))


def _is_log(path: Path) -> bool:
    try:
        with open_file(path) as file:
            start = file.read(_START)
    except OSError:
        return False
    # A compressed file shows its content when it is read, and a line may still be incomplete.
    return (
        start[:2] == b"\x1f\x8b" or any(mark in start for mark in _MARKS) or start[:10] == b'{"header":'[: len(start)]
    )


def _behind(comms: Sequence[Comm]) -> str:
    """Return a sentence about ranks that have finished fewer calls than others of their communicator."""
    for comm in comms:
        numbers = {place: sum(member.sequence.values()) for place, member in comm.members.items()}
        behind = [place for place, number in numbers.items() if number < max(numbers.values())]
        ranks = [rank for place in behind if (rank := comm.members[place].process.rank(place)) is not None]
        if ranks:
            return f" R{format_ranks(sorted(ranks))[1:]} finished fewer calls than the others."
    return ""


def _totals(comms: Sequence[Comm]) -> dict[str, Any]:
    """Return the sums over the communicators of an axis, for an average rank. Transfers are those of the last ranks."""
    members = [(member.process.rank(place), member) for comm in comms for place, member in comm.members.items()]
    by_rank: dict[tuple[int, int | None], list[Member]] = {}
    for rank, member in members:
        by_rank.setdefault((id(member.process), rank), []).append(member)
    n_files, n_groups = len(by_rank), max(1, sum(comm.n_matched > 0 for comm in comms))
    is_split = any(comm.n_matched for comm in comms)
    n_late = {key: sum(member.n_late for member in part) for key, part in by_rank.items()}
    late = max(n_late, key=lambda key: n_late[key])
    counted = sum(member.n_matched for member in by_rank[late])
    is_named = late[1] is not None and n_late[late] > MOSTLY * counted
    latenesses = [value for member in by_rank[late] for value in member.lateness_us]
    return {
        "n_ranks": max(comm.n_ranks for comm in comms),
        "calls": max(sum(member.n_calls for member in part) for part in by_rank.values()),
        "size_bytes": _mean([member.size_bytes for _, member in members if member.n_sized], n_files),
        "duration_us": _mean([member.duration_us for _, member in members if member.n_timed], n_files),
        "transfer_us": sum(comm.transfer_us for comm in comms) / n_groups if is_split else np.nan,
        "wait_us": sum(member.wait_us for _, member in members) / n_files if is_split else np.nan,
        "exposed_us": np.nan,
        "hidden_us": np.nan,
        "late_rank": late[1] if is_named else None,
        "late_calls": n_late[late] if is_named else None,
        "counted_calls": counted if is_named else None,
        "late_us": float(np.median(latenesses)) if is_named else np.nan,
    }


def _mean(values: Sequence[float], n: int) -> float:
    return sum(values) / n if values else np.nan
