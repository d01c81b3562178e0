"""A trace of a job: what its collectives cost, by the axes of its mesh."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base import _markup as markup
from meshlab.base._errors import MeshError
from meshlab.base._forwarding import implementation
from meshlab.mesh._axes import format_ranks
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.traces._axes import Place, check_mesh, infer_mesh, place_groups
from meshlab.traces._curves import compare_with_curve
from meshlab.traces._joining import JoinedRanks, join_ranks
from meshlab.traces._matching import Matched, match_calls
from meshlab.traces._reading import Paths, read_ranks
from meshlab.traces._sentences import axis_rows, sentences
from meshlab.traces._tables import axis_frame, call_frame, delay_frame, with_places

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.traces._live import LiveTrace


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The collectives of a job, recorded on one or several of its ranks. `Trace.read` and `meshlab.read` return one.

    Calls of different ranks are matched, and the clocks of the ranks are aligned by the ends of their calls. A
    collective cannot begin before its last rank, so the time before that is the *wait* of the others, and the rest is
    the *transfer*. This needs all ranks of a group. The ends of a call differ between ranks, and this difference is the
    error of a wait, `error_us`. The rule, and what follows from other formats, is in docs/traces.md.

    Parameters
    ----------
    job : JoinedRanks
        The joined files.

    Examples
    --------
    >>> import meshlab as ml
    >>> trace = ml.traces.Trace.example()
    >>> trace
    <Trace: 4 of 4 ranks, 24 calls, profiler trace; next: .explain(), .by_axis(), .plot()>
    >>> trace.mesh()
    DeviceMesh('dp=2, tp=2')
    """

    job: JoinedRanks

    @classmethod
    def read(cls, paths: Paths) -> Trace:
        """Read the files of one or several ranks of a job.

        Parameters
        ----------
        paths : str, path, or iterable of these
            Files or folders: traces of PyTorch's profiler, logs of NCCL Inspector, or dumps of PyTorch's flight
            recorder as JSON, optionally compressed with gzip. Of a folder, all files with calls are read.

        Raises
        ------
        ParseError
            If a file is damaged or of another kind, if the files are of different jobs, or if they have no collective.
        OSError
            If a file cannot be read.
        """
        return cls(join_ranks(read_ranks(paths)))

    @classmethod
    def example(cls) -> Trace:
        """Return a small trace of four ranks on a mesh of dp=2, tp=2, in which rank 3 is late."""
        from meshlab.traces._example import example_ranks

        return cls(join_ranks(example_ranks()))

    @classmethod
    def follow(
        cls,
        folder: str | os.PathLike[str],
        mesh: MeshLike | None = None,
        *,
        interval_s: float = 1.0,
        error_us: float = 10.0,
    ) -> LiveTrace:
        """Follow the logs of a job that still runs, while NCCL Inspector writes them.

        A thread reads what is new after each interval. A rank is lost if its log stops growing while others of its
        groups go on, and late if it comes last in more than half of the calls of the last interval. docs/traces.md
        shows how to switch the plugin on.

        Parameters
        ----------
        folder : str or path
            The folder in which NCCL Inspector writes its logs, ``NCCL_INSPECTOR_DUMP_DIR``. It may still be empty.
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default the one that explains its communicators.
        interval_s : float, default 1.0
            Time between two looks at the files in seconds, at least 0.05.
        error_us : float, default 10.0
            Error of a wait in µs, such as `meshlab.benchmark.late_rank` measures it. A rank that comes last by less is
            not late.

        Returns
        -------
        LiveTrace
            A context manager with ``by_axis()``, ``sentences()``, ``lost``, ``late`` and ``trace()``.

        Raises
        ------
        ParseError
            If the folder does not exist, or has files but no log of NCCL Inspector.
        MeshError
            If the mesh has fewer ranks than the job.
        BenchError
            If the interval or the error is invalid.
        """
        return implementation(Trace.follow)(folder, mesh, interval_s=interval_s, error_us=error_us)

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The format of the files, such as ``profiler trace``."""
        return self.job.ranks[0].kind

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a file. Empty if the file does not contain its rank."""
        return tuple(trace.rank for trace in self.job.ranks if trace.rank is not None)

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, None if the files do not contain it."""
        return self.job.world_size

    @property
    def gpu(self) -> str | None:
        """Name of the GPUs, such as ``NVIDIA H200``, None if the files do not contain it."""
        return next((trace.gpu for trace in self.job.ranks if trace.gpu), None)

    @property
    def n_calls(self) -> int:
        """Number of calls. A call of several ranks counts once."""
        return int(self._matched.call.max(initial=-1)) + 1

    @property
    def error_us(self) -> float:
        """Error of a wait in µs: the median distance between the first and the last end of a call. NaN without any."""
        return self._matched.end_spread_us

    @cached_property
    def _matched(self) -> Matched:
        return match_calls(self.job)

    @cached_property
    def _rows(self) -> pd.DataFrame:
        return call_frame(self.job, self._matched)

    @cached_property
    def _inferred(self) -> tuple[DeviceMesh, tuple[int, ...]] | MeshError:
        group = self.job.columns["group"]
        n_calls = np.bincount(group[group >= 0], minlength=len(self.job.groups)).tolist()
        try:
            return infer_mesh(self.job.groups, n_calls, self.world_size)
        except MeshError as error:
            return error

    # -- the mesh ------------------------------------------------------------------------------------------------------

    def mesh(self) -> DeviceMesh:
        """Return the mesh whose axes explain the process groups of the job.

        The names of its axes are from the descriptions of the groups. Axes without one are ``axis0``, ``axis1``, …, and
        a single axis without one is ``ranks``. `unexplained` lists the groups that are not along its axes.

        Raises
        ------
        MeshError
            If the files do not contain the ranks of any group.
        """
        if isinstance(self._inferred, MeshError):
            raise self._inferred
        return self._inferred[0]

    def unexplained(self, mesh: MeshLike | None = None) -> pd.DataFrame:
        """Return the groups of the job that are not along the axes of a mesh.

        Parameters
        ----------
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of `mesh`.

        Returns
        -------
        pandas.DataFrame
            The rows of `groups` without an axis.
        """
        groups = self.groups(mesh)
        return groups[groups["axis"].isna() & groups["n_ranks"].ne(1)].reset_index(drop=True)

    def groups(self, mesh: MeshLike | None = None) -> pd.DataFrame:
        """Return the process groups of the job.

        Parameters
        ----------
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of `mesh`.

        Returns
        -------
        pandas.DataFrame
            A row per group: ``process_group`` (its name in the program), ``description``, ``ranks`` (missing if
            unknown), ``n_ranks``, ``calls`` (in all files), ``axis`` and ``group`` (names in the mesh).
        """
        import pandas as pd

        places = self._places(mesh)
        column = self.job.columns["group"]
        calls = np.bincount(column[column >= 0], minlength=len(self.job.groups))
        rows = [
            (group.name, group.description or None, group.ranks or None, group.n_ranks, int(n), place.axis, place.group)
            for group, n, place in zip(self.job.groups, calls, places, strict=True)
        ]
        names = ["process_group", "description", "ranks", "n_ranks", "calls", "axis", "group"]
        return pd.DataFrame(rows, columns=names).astype({"n_ranks": "Int64", "axis": object, "group": object})

    def _places(self, mesh: MeshLike | None) -> list[Place]:
        if mesh is not None:
            return place_groups(self.job.groups, check_mesh(as_mesh(mesh, self.world_size), self.world_size))
        if isinstance(self._inferred, MeshError):
            return [Place(None, None)] * len(self.job.groups)
        return place_groups(self.job.groups, self._inferred[0])

    # -- tables --------------------------------------------------------------------------------------------------------

    def frame(self, mesh: MeshLike | None = None) -> pd.DataFrame:
        """Return a table with a row per call and rank.

        Parameters
        ----------
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of `mesh`.

        Returns
        -------
        pandas.DataFrame
            ``call`` (number of the call, shared by its ranks), ``rank``, ``axis`` and ``group`` (in the mesh),
            ``process_group``, ``description`` and ``group_ranks`` (in the program), ``n_ranks`` (of the group),
            ``n_files`` (ranks of the call with a file), ``collective``, ``size_bytes`` (as nccl-tests counts it),
            ``dtype``, ``sequence``, ``step`` (of the profiler), and times in µs: ``start_us`` since the first event,
            ``duration_us``, ``transfer_us``, ``wait_us``, ``exposed_us`` and ``hidden_us`` (of the transfer: without
            and with a kernel of the same rank that computes; of the duration if the wait is unknown), ``lateness_us``
            (start minus the median start of the other ranks), ``is_last``, ``busbw_gbs`` (of the transfer), and
            ``kernel``. Values that the files do not determine are missing.

        Raises
        ------
        MeshError
            If the mesh has another number of ranks than the job.
        """
        return with_places(self._rows, self._places(mesh))

    def by_axis(self, mesh: MeshLike | None = None, *, steps: bool = True) -> pd.DataFrame:
        """Return the time of the job's collectives by axis and step, for an average rank.

        Parameters
        ----------
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of `mesh`.
        steps : bool, default True
            If False, a row is the sum over all steps.

        Returns
        -------
        pandas.DataFrame
            A row per axis and step: ``n_ranks`` (of the largest group), ``calls`` and ``size_bytes`` per rank,
            ``duration_us``, ``transfer_us`` (of the rank that came last, which does not wait), ``wait_us`` (mean over
            the ranks), ``exposed_us`` and ``hidden_us`` (of the transfer; of the duration if no call has all ranks of
            its group), and ``late_rank`` (the rank that is last in most of its calls, by more than `error_us`; missing
            if there is none), ``late_calls`` of ``counted_calls``, and ``late_us`` (its median lateness in them).

        Raises
        ------
        MeshError
            If the mesh has another number of ranks than the job.
        """
        return axis_frame(self.frame(mesh), np.nan_to_num(self.error_us), steps=steps)

    def delays(self) -> pd.DataFrame:
        """Return the calls for which a rank was unusually late because its host was idle before it.

        Idle means that the host runs no operation and is in no call. The longest gap before a call is unusual if it is
        longer than twice the upper quartile of these gaps of the rank, and twice the median gap of the other ranks
        before the call. The rank was the last, and late by a quarter to twice the gap, so that the gap explains it.

        Returns
        -------
        pandas.DataFrame
            A row per call, longest gap first: ``call``, ``rank``, ``process_group``, ``collective``, ``step``,
            ``start_us``, ``lateness_us`` and ``idle_us``. The delay itself is the gap of the host, ``idle_us``, and its
            effect is ``lateness_us``, which is smaller if the others were late as well.
        """
        return delay_frame(self.job, self._matched)

    def against(self, machine: Any, mesh: MeshLike | None = None) -> pd.DataFrame:
        """Compare each call with the curve of its collective, on groups of the same size.

        Parameters
        ----------
        machine : RunData, path, Calibration, Prediction, or DataFrame
            Times by size: a run or its folder, a calibration, a prediction, published curves (`published`), or a table
            with the columns ``collective``, ``n_ranks``, ``size_bytes`` and ``time_us``. Rows with an ``axis`` belong
            to that axis, if the trace has it.
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of `mesh`.

        Returns
        -------
        pandas.DataFrame
            A row per call with a size and a known transfer: ``call``, ``axis``, ``group``, ``collective``,
            ``n_ranks``, ``size_bytes``, ``step``, ``transfer_us`` (of the rank that came last), ``busbw_gbs``,
            ``expected_us`` and ``expected_gbs`` (of the curve, interpolated between its sizes), ``share`` (of the
            expected bandwidth), ``is_slow`` (below 80 % of it, by more than `error_us`), and ``source`` (whose curve it
            is, missing for those of the machine). Calls beyond the sizes of the curve, or without a curve, have no
            expectation.

        Raises
        ------
        BenchError
            If the machine has no times, or none of any collective and group size of the trace.
        """
        return compare_with_curve(self.frame(mesh), machine, np.nan_to_num(self.error_us))

    def published(self, gpu: str | None = None) -> pd.DataFrame:
        """Return the curves that others published for the collectives and group sizes of the job, for `against`.

        They are from the same GPUs, or GPUs with the same NVLink, and from runs on the fewest hosts. Where several runs
        differ by more than 40 %, `against` has no expectation.

        Parameters
        ----------
        gpu : str, optional
            Name of a GPU, such as ``"H100"``. By default the one in the files.

        Returns
        -------
        pandas.DataFrame
            Rows of `meshlab.analysis.published`.

        Raises
        ------
        BenchError
            If the files do not contain the name of the GPU, or if no published run has such groups.
        """
        return implementation(Trace.published)(self, gpu)

    # -- words and pictures --------------------------------------------------------------------------------------------

    def explain(self, mesh: MeshLike | None = None, machine: Any = None) -> str:
        """Describe the time by axis, late ranks, unusual delays, and what the files do not show.

        Parameters
        ----------
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of `mesh`.
        machine : RunData, path, Calibration, Prediction, or DataFrame, optional
            Times of the machine, see `against`.

        Returns
        -------
        str
            One sentence per line.
        """
        return "\n".join(self.sentences(mesh, machine))

    def sentences(self, mesh: MeshLike | None = None, machine: Any = None) -> Sequence[str]:
        """Return the lines of `explain`."""
        return tuple(sentences(self, mesh, machine))

    def plot(self, kind: str = "axes", *, mesh: MeshLike | None = None, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw the trace.

        Parameters
        ----------
        kind : str, default "axes"
            ``"axes"``: exposed, hidden and waiting time by axis. ``"timeline"``: the calls of a step by rank and axis
            (``step=``, ``window=``). ``"curve"``: each call on the curve of the machine (``machine=``). ``"lateness"``:
            the lateness of each rank.
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of `mesh`.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        **options
            Arguments of the function of this kind in `meshlab.plot`.
        """
        return implementation(Trace.plot)(self, kind, mesh=mesh, ax=ax, **options)

    @property
    def title(self) -> str:
        """The ranks, the number of calls and the format, in words."""
        ranks = self.ranks
        world = self.world_size
        named = format_ranks(ranks) if ranks else "an unknown rank"
        of = f" of {world:,}" if world is not None and world != len(ranks) else ""
        return f"{named}{of} · {self.n_calls:,} call{'s' * (self.n_calls != 1)} · {self.kind}"

    def __repr__(self) -> str:
        of = f" of {self.world_size:,}" if self.world_size is not None else ""
        count = f"{len(self.job.ranks):,}{of} rank{'s' * (self.world_size != 1)}"
        return f"<Trace: {count}, {self.n_calls:,} calls, {self.kind}; next: .explain(), .by_axis(), .plot()>"

    def __str__(self) -> str:
        header, *rows = axis_rows(self.by_axis(steps=False))
        table = markup.text_table([header, *rows], right=range(1, len(header)))
        return f"{self.title}\n\n{table}\n\n{self.explain()}"

    def _figure_html(self) -> str:
        return implementation(Trace._figure_html)(self)

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{markup.escape(line)}</div>" for line in self.sentences())
        header, *rows = axis_rows(self.by_axis(steps=False))
        table = markup.table(header, rows, right=range(1, len(header)))
        return markup.card("Trace", self.title, lines, self._figure_html(), table)
