"""Goes through the steps of a plan: what happens in a run's own thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks import environment
from meshlab.benchmark.on_ranks.environment import describe_rank, sample_rank
from meshlab.benchmark.on_ranks.timing import (
    Measured,
    measure_concurrent,
    measure_function,
    measure_pair,
    measure_step,
    measure_together,
)
from meshlab.engines.engines import Lease
from meshlab.engines.memory import USABLE
from meshlab.engines.rounds import Reply
from meshlab.errors import BenchError, EngineError, MeshlabError
from meshlab.frames.plan import Plan, Step
from meshlab.frames.rundata import Columns, Record, Row, State
from meshlab.frames.schema import DEVICES
from meshlab.frames.statistics import summarise
from meshlab.mesh.axes import WORLD
from meshlab.mesh.mesh import DeviceMesh
from meshlab.topology.readers.hosts import cluster_from_hosts
from meshlab.units import format_seconds, format_size

if TYPE_CHECKING:
    from meshlab.frames.plan import Party

__all__ = [
    "Clock",
    "Conductor",
    "Progress",
    "device_lines",
    "device_rows",
    "differing_settings",
    "machine_text",
    "rows_of_step",
    "rows_without_times",
    "samples_of_step",
]


_UNITS = (
    ("clock_sm_mhz", "{:.0f} MHz"),
    ("temperature_c", "{:.0f} °C"),
    ("power_w", "{:.0f} W"),
    ("throttle", "held down by {}"),
    ("ecc_corrected", "{} ECC errors corrected"),
    ("ecc_uncorrected", "{} not"),
    ("nvlink_errors", "{} NVLink errors"),
)

_MEASURED = ("ok", "wrong")


class Conductor:
    """Measures what a plan says, step by step, and writes it into a record.

    Parameters
    ----------
    record : Record
        Where everything goes.
    mesh : DeviceMesh
        Where it is measured.
    plan : Plan
        What is measured.
    steps : sequence of Step
        The plan's steps on that mesh.
    known : set of (int, int)
        Launches and steps that need no measuring, because their rows are there.
    deadline_s : float, optional
        How long a step may take before its ranks count as stuck.
    presses : callable
        Asked between steps how often the user has pressed Cancel.
    """

    def __init__(
        self,
        record: Record,
        mesh: DeviceMesh,
        plan: Plan,
        steps: Sequence[Step],
        known: set[tuple[int, int]],
        deadline_s: float | None,
        presses: Callable[[], int],
    ) -> None:
        self._record = record
        self._mesh = mesh
        self._plan = plan
        self._steps = steps
        self._known = known
        self._deadline_s = deadline_s
        self._presses = presses
        self._state: State = "failed"
        self._error: MeshlabError | None = None
        self._hosts: list[str] = []
        self._limits: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def conduct(self, lease: Lease) -> None:
        """Go through all steps. How it ended is written by `finish`, when the ranks are free again."""
        try:
            self._describe(lease)
            is_whole = self._go_through(lease)
            self._look_again(lease)
            self._state = "done" if is_whole else "cancelled"
            if is_whole and not any(row["status"] in _MEASURED for row in self._record.rows()):
                self._error = self._nothing_measured()
        except EngineError as error:
            self._error = error
        except Exception as error:  # a defect of ours must not look like a run that never ends
            self._error = BenchError(f"the run stopped on an internal error: {type(error).__name__}: {error}")

    def _nothing_measured(self) -> BenchError | None:
        """Why there is not a single time; None when steps were only left out, because there was no memory for them."""
        failed = [row for row in self._record.rows() if row["status"] == "failed"]
        if not failed:
            return None
        return BenchError(f"nothing could be measured: {failed[0]['stop_reason']}")

    def _go_through(self, lease: Lease) -> bool:
        """Measure; say whether nobody stopped it."""
        for launch in range(self._plan.launches):
            order = [self._steps[index] for index in self._plan.order(len(self._steps), launch)]
            if launch and any((launch, step.index) not in self._known for step in order):
                lease.renew()
            for step in order:
                if (launch, step.index) in self._known:
                    continue
                if self._presses():
                    return False
                self._take(lease, launch, step)
        return True

    def finish(self) -> None:
        """Write how it ended, whatever has happened."""
        record, error, state = self._record, self._error, self._state
        if error is not None:
            record.note(str(error).splitlines()[0])
            state = "failed"
            if self._presses():
                error, state = None, "cancelled"
        record.finish(state, error)
        now = record.clock.read("")
        record.note(f"{state} after {now.done} of {now.total} steps, {format_seconds(now.elapsed_s)}")
        record.on_change()

    # -- one step ------------------------------------------------------------------------------------------------------

    def _take(self, lease: Lease, launch: int, step: Step) -> None:
        record = self._record
        too_large = self._too_large(step)
        if too_large:
            record.note(f"skipped {step}: {too_large}")
            self._add_without_times(launch, step, "skipped", too_large)
            return
        record.current = step
        record.clock.start_step()
        lease.doing = f"step {record.clock.done + 1} of {record.clock.total}: {step}"
        record.on_change()
        try:
            replies = self._measure(lease, step)
        except EngineError as error:
            self._add_without_times(launch, step, "cancelled" if self._presses() else "failed", error.summary)
            raise
        failed = [reply for reply in replies if reply.error is not None]
        if failed:
            reason = f"rank {failed[0].rank}: {failed[0].error}"
            record.note(f"step {step.index + 1}, {step}: {reason}")
            self._add_without_times(launch, step, "cancelled" if failed[0].is_interrupt else "failed", reason)
        else:
            self._add(launch, step, {reply.rank: reply.value for reply in replies})

    def _measure(self, lease: Lease, step: Step) -> list[Reply]:
        plan = self._plan
        call = partial(lease.call, mesh=self._mesh, axis=step.along, deadline_s=self._deadline_s)
        arguments: tuple[Any, ...] = (step, plan.sampling, plan.check)
        if step.beside is not None:
            return call(measure_concurrent, arguments=arguments, also=(step.beside.along,))
        if step.grouping == "pairs":
            return call(measure_pair, arguments=arguments)
        groups = self._mesh.group_set(step.along)
        if step.grouping == "alone":
            return [reply for group in groups for reply in call(measure_step, arguments=arguments, ranks=group.ranks)]
        # A set of several groups has all ranks of the mesh; one group has no other to wait for.
        everyone, array = (WORLD, groups.array) if len(groups) > 1 else (step.along, np.arange(groups.size)[None])
        own = plan.functions.get(step.collective)
        if own is None:
            return call(measure_together, arguments=(*arguments, array), also=(everyone,))
        measure = partial(measure_function, function=own)
        return call(measure, arguments=(step, plan.sampling, array), also=(everyone,))

    def _add(self, launch: int, step: Step, values: Mapping[int, Any]) -> None:
        rows, samples = [], []
        for number, part in enumerate(step.parts):
            measured: dict[int, Measured] = (
                {rank: value[number] for rank, value in values.items()} if step.beside is not None else dict(values)
            )
            parties = part.parties(self._mesh.group_set(part.along))
            rows += rows_of_step(part, parties, measured, self._hosts)
            samples += samples_of_step(part, parties, measured, self._hosts)
        self._record.add(launch, rows, samples)
        self._record.clock.count(step.index)
        self._record.on_change()

    def _add_without_times(self, launch: int, step: Step, status: str, reason: str) -> None:
        rows = []
        for part in step.parts:
            rows += rows_without_times(part, part.parties(self._mesh.group_set(part.along)), status, reason)
        self._record.add(launch, rows, [])
        self._record.clock.skip(step.index)
        self._record.on_change()

    def _too_large(self, step: Step) -> str:
        """Why a step does not fit into memory; empty when it does."""
        groups = self._mesh.group_set(step.along)
        limits = self._limits[groups.array.ravel()]
        rank = int(groups.array.ravel()[limits.argmin()])
        least = int(limits.min())
        if step.buffer_bytes <= least:
            return ""
        return (
            f"its buffers take {format_size(step.buffer_bytes)} per rank, but rank {rank} may use "
            f"{format_size(least)} of its memory"
        )

    # -- around the steps ----------------------------------------------------------------------------------------------

    def _describe(self, lease: Lease) -> None:
        """Note what the machine is, and how much memory every rank may use."""
        record, engines = self._record, lease.engines
        facts = engines.facts
        capabilities = facts[0].capabilities
        self._hosts = [fact.host for fact in facts]
        record.hosts = tuple(dict.fromkeys([*record.hosts, *self._hosts, environment.describe_host()["name"]]))
        replies = self._ask(lease, describe_rank)
        for reply in replies:
            if reply.error is not None:
                record.note(f"rank {reply.rank} could not say where it is: {reply.error}")
        told = [reply.value or {} for reply in replies]
        settings = [one.get("settings", {}) for one in told]
        self._limits = self._shares([one.get("free", (False, np.iinfo(np.int64).max)) for one in told])
        firsts = [one for one in told if "host" in one]
        self._note_devices("before", {one["host"]["name"]: one["devices"] for one in firsts})
        about = {"run": record.run_id, "started": record.started_at, "ranks": record.where, "mesh": str(self._mesh)}
        cores, n = environment.usable_cores(), engines.world_size
        if capabilities.backend == "mpi" and len(set(self._hosts)) == 1 and n > cores:
            about["note"] = f"{n} ranks share {cores} cores, so times include waiting for a core."
        gpus = [(fact.host, fact.capabilities.facts.get("device number")) for fact in facts]
        if capabilities.backend == "nccl" and len(set(gpus)) < n:
            about["note"] = f"{n} ranks share {len(set(gpus))} GPUs, so times say nothing about a GPU for each."
        if len(set(self._hosts)) > 1:
            about["hosts"] = ", ".join(dict.fromkeys(self._hosts))
        differing = differing_settings(settings)
        about |= {f"{name} differs": text for name, text in differing.items()}
        record.environment = {
            "Run": about,
            "Host": environment.describe_host() | {"machine": machine_text(one["host"] for one in firsts)},
            "Library": {
                "backend": capabilities.backend,
                "library": capabilities.library,
                "loaded from": capabilities.path,
                **capabilities.facts,
            },
            "Software": environment.software_versions(),
            "Settings": settings[0],
            **{name: lines for name, lines in record.environment.items() if name.startswith("GPUs")},
        }

    def _ask(self, lease: Lease, function: Callable[..., Any]) -> list[Reply]:
        firsts = sorted({host: rank for rank, host in reversed(list(enumerate(self._hosts)))}.values())
        return lease.call(function, self._mesh, WORLD, (firsts,))

    def _shares(self, free: Sequence[tuple[bool, int]]) -> npt.NDArray[np.int64]:
        """What buffers of each rank may take: ranks of one host share its memory, a GPU belongs to its rank."""
        return np.array(
            [
                int(USABLE * n_bytes / (self._hosts.count(host) if is_shared else 1))
                for (is_shared, n_bytes), host in zip(free, self._hosts, strict=True)
            ],
            dtype=np.int64,
        )

    def _look_again(self, lease: Lease) -> None:
        """Note how the GPUs are after the run, if there were any before."""
        if any(row["when"] == "before" for row in self._record.devices):
            replies = self._ask(lease, sample_rank)
            found: dict[str, Any] = {}
            for reply in replies:
                if reply.value:
                    found.setdefault(self._hosts[reply.rank], reply.value)
            self._note_devices("after", found)

    def _note_devices(self, when: str, readings: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        rows = [row for host, devices in readings.items() for row in device_rows(when, host, devices)]
        if rows:
            record = self._record
            record.devices = [row for row in record.devices if row["when"] != when] + rows
            lines = device_lines(rows, with_host=len(readings) > 1)
            record.environment = {**record.environment, f"GPUs {when}": lines}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Parameters
    ----------
    done, total : int
        Steps, over all launches.
    step : str
        What is being measured now; empty when nothing is.
    elapsed_s, left_s : float
        Time so far, and the estimate of what is left, in seconds.
    """

    done: int
    total: int
    step: str
    elapsed_s: float
    left_s: float


class Clock:
    """Counts steps and time. The estimate of what is left begins with the plan's own and learns from every step.

    Parameters
    ----------
    seconds : numpy.ndarray
        How long each step of the plan should take.
    launches : int
        How often the plan is measured.
    elapsed_s : float, default 0
        What it has taken before.
    """

    def __init__(self, seconds: npt.NDArray[np.float64], launches: int, elapsed_s: float = 0.0) -> None:
        self._seconds = seconds
        self._began = time.monotonic() - elapsed_s
        self._ended: float | None = None
        self._left_s = launches * float(seconds.sum())
        self._measured_s = 0.0
        self._spent_s = 0.0
        self._since = time.monotonic()
        self.done = 0
        self.total = launches * len(seconds)

    def skip(self, index: int) -> None:
        """A step needs no measuring."""
        self.done += 1
        self._left_s -= float(self._seconds[index])
        self._since = time.monotonic()

    def count(self, index: int) -> None:
        """A step was measured."""
        now = time.monotonic()
        self._spent_s += now - self._since
        self._measured_s += float(self._seconds[index])
        self.skip(index)

    def start_step(self) -> None:
        """A step begins."""
        self._since = time.monotonic()

    def stop(self) -> None:
        """Nothing more comes."""
        self._ended = time.monotonic()

    def restore(self, done: int, elapsed_s: float) -> None:
        """Be where a run that was read from disk had come to."""
        self.done, self._began, self._ended = done, 0.0, elapsed_s

    def read(self, step: str) -> Progress:
        """How far it is."""
        elapsed = (time.monotonic() if self._ended is None else self._ended) - self._began
        pace = self._spent_s / self._measured_s if self._measured_s else 1.0
        left = 0.0 if self._ended is not None else max(self._left_s, 0.0) * pace
        return Progress(self.done, self.total, step, elapsed, left)


def machine_text(hosts: Iterable[Mapping[str, Any]]) -> str:
    """What the machine is, in a sentence, from answers of `meshlab.topology.readers.nvml.read_host`."""
    return cluster_from_hosts(list(hosts)).summary


def differing_settings(settings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The settings that are not the same on all ranks, with what they are where.

    Examples
    --------
    >>> differing_settings([{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Ring"}, {}])
    {'NCCL_ALGO': 'Ring on ranks 0, 1; not set on rank 2'}
    """
    found = {}
    for name in sorted({name for one in settings for name in one}):
        ranks: dict[str, list[str]] = {}
        for rank, one in enumerate(settings):
            ranks.setdefault(one.get(name, "not set"), []).append(str(rank))
        if len(ranks) > 1:
            told = [f"{value} on rank{'s' * (len(who) > 1)} {', '.join(who)}" for value, who in ranks.items()]
            found[name] = "; ".join(told)
    return found


def device_rows(when: str, host: str, readings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the frame of devices, from what `meshlab.topology.readers.nvml.sample` says of one host."""
    names = {column.name for column in DEVICES}
    return [
        {"when": when, "host": host, "device": reading["id"]}
        | {name: value for name, value in reading.items() if name in names}
        for reading in readings
    ]


def device_lines(rows: Iterable[Mapping[str, Any]], *, with_host: bool) -> dict[str, str]:
    """The same in words, one line per GPU; what is zero or not known is left out.

    Examples
    --------
    >>> device_lines([{"host": "n", "device": 0, "clock_sm_mhz": 1980, "throttle": ""}], with_host=False)
    {'GPU 0': '1980 MHz'}
    """
    lines = {}
    for row in rows:
        told = [form.format(row[name]) for name, form in _UNITS if row.get(name)]
        lines[f"{row['host']}, GPU {row['device']}" if with_host else f"GPU {row['device']}"] = " · ".join(told)
    return lines


def rows_of_step(
    step: Step, parties: Sequence[Party], measured: Mapping[int, Measured], hosts: Sequence[str]
) -> list[Row]:
    """One results row per group or pair.

    Parameters
    ----------
    step : Step
        What was measured.
    parties : sequence of Party
        Who it was measured on.
    measured : mapping of int to Measured
        By global rank.
    hosts : sequence of str
        The host of every rank: only the clocks of one host can be compared.

    Returns
    -------
    list of dict
        Columns of the results that this step knows.
    """
    rows = []
    for name, ranks in parties:
        parts = [measured[rank] for rank in ranks]
        batches = [part.batches for part in parts]
        used = ~batches[0].is_warmup
        times = np.stack([one.time_us for one in batches])[:, used]
        summary = summarise(times.max(axis=0))
        wrong = [part.n_wrong for part in parts]
        n_wrong = None if None in wrong else sum(count or 0 for count in wrong)
        starts = _on_one_clock([one.start_us for one in batches], ranks, hosts)
        rows.append(
            _fixed_columns(step, name)
            | {
                "n_samples": summary.n,
                "calls": int(batches[0].calls[-1]),
                "time_us": summary.median,
                "time_us_lo": summary.lo,
                "time_us_hi": summary.hi,
                "p95_us": summary.p95,
                "p99_us": summary.p99,
                "min_us": summary.least,
                "max_us": summary.most,
                "skew_us": float(np.median(np.ptp(times, axis=0))),
                "alignment_us": math.nan if starts is None else float(np.median(np.ptp(starts[:, used], axis=0))),
                "n_wrong": n_wrong,
                "status": "wrong" if n_wrong else "ok",
                "stop_reason": batches[0].stop_reason,
            }
        )
    return rows


def rows_without_times(step: Step, parties: Sequence[Party], status: str, reason: str) -> list[Row]:
    """One results row per group or pair of a step that gave no times: failed, cancelled or skipped."""
    return [_fixed_columns(step, name) | {"status": status, "stop_reason": reason} for name, _ in parties]


def _fixed_columns(step: Step, group: str) -> Row:
    return {
        "step": step.index,
        "collective": step.collective,
        "op": step.op,
        "dtype": step.dtype,
        "root": step.root,
        "in_place": step.in_place,
        "mode": step.mode,
        "axis": step.axis,
        "group": group,
        "n_ranks": step.n_ranks,
        "count": step.count,
        "size_bytes": step.size_bytes,
    }


def _on_one_clock(starts: Sequence[Any], ranks: Sequence[int], hosts: Sequence[str]) -> Any:
    """Starts of several ranks as one array, if they can be compared."""
    if any(start is None for start in starts) or len({hosts[rank] for rank in ranks}) > 1:
        return None
    return np.stack(starts)


def samples_of_step(
    step: Step, parties: Sequence[Party], measured: Mapping[int, Measured], hosts: Sequence[str]
) -> list[Columns]:
    """The samples of one step, as columns per rank.

    Parameters
    ----------
    step, parties, measured, hosts
        As in `rows_of_step`.
    """
    columns = []
    for name, ranks in parties:
        parts = [measured[rank] for rank in ranks]
        came = [part.batches.start_us if part.arrive_us is None else part.arrive_us for part in parts]
        starts = _on_one_clock(came, ranks, hosts)
        offsets = np.full((len(ranks), len(parts[0].batches.time_us)), np.nan) if starts is None else starts
        for rank, part, offset in zip(ranks, parts, offsets - offsets.min(axis=0), strict=True):
            batches = part.batches
            n = len(batches.time_us)
            columns.append(
                {
                    "step": np.full(n, step.index),
                    "axis": np.full(n, step.axis, dtype=object),
                    "group": np.full(n, name, dtype=object),
                    "rank": np.full(n, rank),
                    "batch": np.arange(n),
                    "calls": batches.calls,
                    "time_us": batches.time_us,
                    "host_us": batches.host_us,
                    "start_offset_us": offset,
                    "is_warmup": batches.is_warmup,
                    "status": np.full(n, "wrong" if part.n_wrong else "ok", dtype=object),
                }
            )
    return columns
