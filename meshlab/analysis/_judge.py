"""The answer to "is my number normal?" for a log, a run or a frame."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.analysis._expectations import expectations
from meshlab.analysis._measured_machine import (
    MeasuredMachine,
    machine_of_frame,
    machine_of_run,
    machine_of_section,
    with_statements,
)
from meshlab.analysis._verdicts import Verdict, most_serious, one_placement, references_frame, unmeasured, verdict_of
from meshlab.base._collectives import NCCL_TESTS
from meshlab.base._errors import BenchError, ParseError
from meshlab.base._files import describe_text, is_folder, is_like_name, path_of, text_of
from meshlab.base._forwarding import implementation
from meshlab.base._markup import card, escape, table
from meshlab.base._outcome import Outcome, overall
from meshlab.base._units import format_bandwidth, format_size
from meshlab.frames._labels import CPU_SOURCES, SOURCES
from meshlab.mesh._mesh import MeshLike
from meshlab.nccl_tests._log import Log, Section
from meshlab.nccl_tests._reader import read as read_log
from meshlab.runs._rundata import RunData
from meshlab.runs._store import as_frames, load
from meshlab.topology.model._presets import ClusterLike

if TYPE_CHECKING:
    import pandas as pd

_FRAMES = (".parquet", ".csv", ".json")


@dataclass(frozen=True)
class Judgement:
    """Verdicts on the speed of measurements, with the published runs that they are based on.

    Parameters
    ----------
    verdicts : tuple of Verdict
        One per collective, element type and run of a test.
    text : str
        The text of the log, from which the next step follows. Empty for runs and frames.

    Examples
    --------
    >>> import meshlab as ml
    >>> results = ml.example().query("collective == 'all_reduce'")
    >>> judgement = ml.judge(results, cluster="dgx-h200")
    >>> judgement.outcome
    'passed'
    """

    verdicts: tuple[Verdict, ...]
    text: str = field(default="", repr=False)

    @property
    def verdict(self) -> Verdict:
        """The most serious verdict."""
        return most_serious(self.verdicts)

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if something is slow, ``"not decided"`` if a verdict is not known, otherwise ``"passed"``."""
        return overall(verdict.outcome for verdict in self.verdicts)

    @cached_property
    def next_step(self) -> str:
        """What to do next: supply a missing fact, or find out what is slow, with what the text itself shows."""
        return self._next_step()

    def _next_step(self) -> str:
        return implementation(Judgement._next_step)(self)

    @property
    def references(self) -> pd.DataFrame:
        """The published rows that the verdicts name: curve, source, machine, size and bus bandwidth in GB/s."""
        return references_frame(self.verdicts)

    def frame(self) -> pd.DataFrame:
        """Return a row per verdict.

        Returns
        -------
        pandas.DataFrame
            ``collective``, ``machine``, ``size_bytes``, ``busbw_gbs`` in GB/s, ``published_low_gbs`` and
            ``published_high_gbs`` in GB/s, ``n_published``, ``basis`` (machine, hosts or network), ``bound_gbs``,
            ``verdict``, ``outcome``, ``reason`` and ``sentence``.
        """
        import pandas as pd

        rows = [
            {
                "collective": verdict.collective,
                "machine": verdict.machine,
                "size_bytes": verdict.size_bytes,
                "busbw_gbs": verdict.busbw_gbs,
                "published_low_gbs": verdict.comparison.low if verdict.comparison.runs else float("nan"),
                "published_high_gbs": verdict.comparison.high,
                "n_published": len(verdict.comparison.runs),
                "basis": verdict.comparison.basis,
                "bound_gbs": verdict.bound_gbs,
                "verdict": verdict.word,
                "outcome": verdict.outcome,
                "reason": verdict.reason,
                "sentence": verdict.sentence,
            }
            for verdict in self.verdicts
        ]
        return pd.DataFrame(rows)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the verdicts, each once: several groups or tests may have the same."""
        return tuple(dict.fromkeys(verdict.sentence for verdict in self.verdicts))

    def __repr__(self) -> str:
        return f"<Judgement: {self.outcome}; next: .frame(), .references>\n{self}"

    def __str__(self) -> str:
        return "\n".join([*self.sentences, self.next_step])

    def _repr_html_(self) -> str:
        rows = [
            (
                verdict.collective or "–",
                verdict.machine or "–",
                format_size(verdict.size_bytes) if verdict.size_bytes else "–",
                format_bandwidth(verdict.busbw_gbs),
                verdict.word,
            )
            for verdict in self.verdicts
        ]
        sentences = "".join(f"<div>{escape(sentence)}</div>" for sentence in self.sentences[:5])
        head = ["collective", "machine", "size", "busbw", "verdict"]
        references = self.references
        columns_of_runs = references[["source", "date", "system", "size_bytes", "busbw_gbs"]].astype(object)
        rows_of_runs = [
            (source, "–" if date is None or date != date else date, system, format_size(size), format_bandwidth(busbw))
            for source, date, system, size, busbw in columns_of_runs.itertuples(index=False)
        ]
        runs = (
            table(["published", "date", "machine", "size", "busbw"], rows_of_runs, most=20) if len(references) else ""
        )
        return card(self.verdict.word, self.next_step, sentences, table(head, rows) if len(rows) > 1 else "", runs)


def judge(
    source: Any,
    *,
    gpu: str | None = None,
    nodes: int | None = None,
    nics: str | float | None = None,
    cluster: ClusterLike | None = None,
    mesh: MeshLike | None = None,
    leave_out: Collection[str] = (),
) -> Judgement:
    """Judge whether measured bandwidths are normal, compared with published runs of the same kind of machine.

    The machine is recognised from the source: the list of devices of nccl-tests, hosts, lines of NCCL and launchers, or
    the columns of a frame. If a fact is missing, the verdict names it, and you can pass it. Only sizes at which
    published runs agree are compared. Published runs with the same times as the measurement are left out.

    Parameters
    ----------
    source : str, path, Log, Section, RunData, DataFrame, or object with ``.results``
        The text or the file of a log of nccl-tests or rccl-tests, a run or its folder, or results.
    gpu : str, optional
        Name of the GPU, such as ``"H100"``.
    nodes : int, optional
        Number of hosts.
    nics : str or float, optional
        The NICs of a host: ``"8 x 400"``, or the sum of their line rates in Gb/s.
    cluster : Cluster or str, optional
        The machine, or the name of a preset, which gets as many hosts as the measurement.
    mesh : DeviceMesh or str, optional
        The mesh of results that have an axis. By default that of the run.
    leave_out : collection of str, default ()
        Sources of published runs to ignore, as in the column ``source`` of `published`.

    Returns
    -------
    Judgement
        The verdicts, each in one sentence and with the rows that it is based on, and the next step.

    Raises
    ------
    ParseError
        If the text is neither a log of nccl-tests nor results.
    BenchError
        If the source has no results, or the NICs cannot be parsed.
    TopologyError
        If the preset is unknown.

    Examples
    --------
    >>> import meshlab as ml
    >>> rows = ml.analysis.published("H100", nodes=2).query("system == 'AWS p5.48xlarge' and ~in_place")
    >>> print(ml.judge(rows.assign(time_us=5 * rows["time_us"])).verdict.word)
    slow
    """
    verdicts: list[Verdict] = []
    text, parts = _parts(source)
    for part in parts:
        machine = with_statements(part.machine, part.n_ranks, gpu=gpu, nodes=nodes, nics=nics, cluster=cluster)
        left_out = {*leave_out, *part.citations}
        if part.reason:
            verdicts.append(unmeasured(part.reason, collective=part.collective, machine=machine.title))
            continue
        layout = part.mesh if mesh is None else mesh
        expected = expectations(
            part.results,
            machine.cluster,
            mesh=layout,
            calibration=part.calibration,
            machine=machine,
            leave_out=left_out,
        )
        rows = one_placement(expected)
        if not len(rows):
            names = part.results["collective"].dropna().unique().tolist()
            title = "CPUs" if _is_of_cpus(part.results) else machine.title
            verdicts.append(unmeasured(_why_no_row(part.results), collective=", ".join(names) or None, machine=title))
        verdicts += [verdict_of(row) for _, row in rows.iterrows()]
    return Judgement(tuple(verdicts), text)


def parts_of(source: Any) -> list[_Part]:
    """Return the results of a source by machine."""
    return _parts(source)[1]


def with_machine(source: Any) -> tuple[Any, MeasuredMachine | None]:
    """Return a source, a log if it is the path of one, and its machine. None if its tests ran on different machines."""
    if isinstance(source, RunData):
        return source, machine_of_run(source)
    path = path_of(source) if isinstance(source, (str, os.PathLike)) and not is_folder(source) else None
    text = ""
    if path is not None and path.suffix not in _FRAMES:
        source, text = read_log(path), text_of(path, hint="pass a log of nccl-tests")[0]
    if not isinstance(source, (Log, Section)):
        return source, None
    sections = (source,) if isinstance(source, Section) else source.sections
    machines = [machine_of_section(section, text) for section in sections if len(section.table)]
    is_one = len({replace(machine, cluster=None) for machine in machines}) == 1
    return source, machines[0].with_cluster() if is_one else None


@dataclass(frozen=True, slots=True)
class _Part:
    """Results of one machine: a section of a log, a run or a frame. `reason` is why they cannot be judged."""

    results: Any
    machine: MeasuredMachine
    n_ranks: int | None = None
    collective: str | None = None
    mesh: MeshLike | None = None
    calibration: Any = None
    citations: frozenset[str] = frozenset()
    reason: str = ""


def _parts(source: Any) -> tuple[str, list[_Part]]:
    """Return the text of a source, and its parts."""
    if isinstance(source, Section):
        return "", [_of_section(source, "")]
    if isinstance(source, Log):
        return "", _of_log(source, "")
    if isinstance(source, (str, os.PathLike)) and is_folder(source):
        source = load(Path(source))
    path = path_of(source) if isinstance(source, (str, bytes, os.PathLike)) else None
    if (isinstance(source, (str, bytes)) and path is None) or (path is not None and path.suffix not in _FRAMES):
        text, _ = text_of(source, hint="pass a log of nccl-tests, a run or results")
        if isinstance(source, str) and path is None and is_like_name(source):
            problem = describe_text(source, may_be_name=True)
            raise ParseError(problem, hint="check the path, or pass the text of the log")
        return text, _of_log(read_log(f"{text}\n"), text)
    if path is not None and path.suffix == ".json":
        text, _ = text_of(path, hint="pass a log of nccl-tests, a run or results")
        if '"columns"' not in text[:100]:
            return text, _of_log(read_log(f"{text}\n"), text)
    if isinstance(source, (list, tuple)):
        texts, parts = zip(*(_parts(item) for item in source), strict=True) if source else ((), ())
        if not parts:
            raise BenchError("an empty list has no results; pass at least one run")
        return "\n".join(texts), [part for group in parts for part in group]
    return "", list(_of_results(source if path is None else path))


def _of_log(log: Log, text: str) -> list[_Part]:
    if not log.sections:
        raise ParseError(
            "this text has no test of nccl-tests", hint="pass the output of all_reduce_perf or another test"
        )
    return [_of_section(section, text) for section in log.sections]


def _of_section(section: Section, text: str) -> _Part:
    machine = machine_of_section(section, text)
    reason = ""
    if not len(section.table):
        reason = "its rows are missing: the test ended before its table"
    elif section.copies > 1:
        reason = f"{section.copies} copies of the test ran beside each other"
    elif section.n_ranks == 1:
        reason = "one rank has no traffic to judge"
    return _Part(section.results, machine, section.n_ranks, section.collective, reason=reason)


def _of_results(source: Any) -> Iterator[_Part]:
    """Yield the parts of a run or a frame: one per curve of a library, otherwise one."""
    import pandas as pd

    frame = source if isinstance(source, pd.DataFrame) else None
    if isinstance(source, RunData):
        yield _Part(source.results, machine_of_run(source), mesh=source.mesh, calibration=source.calibration)
        return
    if frame is None or "gpu" not in frame:
        results = as_frames(source).results
        yield _Part(results, machine_of_frame(results))
        return
    names = next((name for name in ("curve", "curve_id") if name in frame), None)
    for _, rows in [("", frame)] if names is None else frame.groupby(names, sort=False):
        backends = rows["source"].isin(list(SOURCES)) if "source" in rows else None
        citations = frozenset() if backends is None else frozenset(rows.loc[~backends, "source"].dropna())
        machine = machine_of_frame(rows)
        results = as_frames(_as_measured(rows)).results
        yield _Part(results, machine, citations=citations)


def _as_measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a library of curves as rows of a log."""
    names = {test.program: name for name, test in NCCL_TESTS.items()}
    keep = ("collective", "op", "dtype", "in_place", "size_bytes", "time_us", "n_ranks")
    measured = rows[[name for name in keep if name in rows]].copy()
    measured["collective"] = measured["collective"].replace(names)
    if "in_place" in measured:
        measured["in_place"] = measured["in_place"].astype(bool)
    backends = rows["source"].where(rows["source"].isin(list(SOURCES))) if "source" in rows else None
    measured["source"] = "nccl-tests" if backends is None else backends.fillna("nccl-tests")
    return measured.assign(status="ok")


def _is_of_cpus(results: pd.DataFrame) -> bool:
    """Return True if all results were measured on CPUs."""
    sources = set(results["source"].dropna())
    return bool(sources) and sources <= set(CPU_SOURCES)


def _why_no_row(results: pd.DataFrame) -> str:
    """Return the reason why no row of some results is compared."""
    if _is_of_cpus(results):
        return "it was measured on CPUs, and published runs are of GPUs"
    if results["size_bytes"].max() < 16 << 20:
        return "no size is 16 MiB or more, and latencies of published runs differ too much"
    return "no row has a time of a plain collective"
