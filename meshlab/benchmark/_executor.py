"""Executor: measures the steps of a plan on the engines, in the thread of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._visibility import FEWEST_BLOCKS, MOST_BLOCKS, log_pair
from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._errors import BenchError, EngineError, MeshlabError
from meshlab.base._units import format_seconds, format_size
from meshlab.benchmark._estimate import RATES, MeasuredAxis, Pace, RepeatedBlocks, steps_to_probe
from meshlab.benchmark._host_record import HostRecord
from meshlab.benchmark._preparation import plan_registered, voting_ranks
from meshlab.benchmark._time_left import Work, time_left
from meshlab.benchmark.on_ranks import _environment as environment
from meshlab.benchmark.on_ranks._buffers import release_buffers
from meshlab.benchmark.on_ranks._environment import describe_rank, sample_rank
from meshlab.benchmark.on_ranks._probing import probe_steps
from meshlab.benchmark.on_ranks._sampling import measure_pair, measure_step, measure_together
from meshlab.benchmark.on_ranks._timing import (
    EarlyReturnError,
    measure_concurrent,
    measure_function,
    measure_function_alone,
)
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease
from meshlab.engines._memory import usable_bytes
from meshlab.engines._rank_hosts import number_of_gpus, rank_rows
from meshlab.engines._rounds import RankInfo, Reply, Round
from meshlab.frames._rows import (
    RankSamples,
    join_blocks,
    rows_of_step,
    rows_without_times,
    samples_of_step,
    slowest_times,
)
from meshlab.frames._schema import DEVICES
from meshlab.mesh._axes import WORLD, format_ranks
from meshlab.plans._functions import CheckedFunction
from meshlab.plans._sampling import n_blocks
from meshlab.plans._steps import Step, turns
from meshlab.runs._rundata import HOST_SECTION, Progress, RunData, State
from meshlab.topology.readers._hosts import cluster_from_hosts

_UNITS = (
    ("clock_sm_mhz", "{:.0f} MHz"),
    ("temperature_c", "{:.0f} °C"),
    ("power_w", "{:.0f} W"),
    ("throttle", "throttled by {}"),
    ("ecc_corrected", "{} ECC errors corrected"),
    ("ecc_uncorrected", "{} not"),
    ("nvlink_errors", "{:,} NVLink errors since the driver was loaded"),
)

_MEASURED = ("ok", "wrong")

_PROBED_S = 1.0
"""Estimated duration from which a run is probed first."""
_REPEATED_S = 1.2
"""Time for the blocks of a step that are repeated before a run, if that suffices for the fewest."""


@dataclass(eq=False)
class Executor:
    """Measure the steps of a plan in sequence, and append the results to a run."""

    # It measures the duration of the run, but does not depend on its thread and its listeners.

    data: RunData
    axes: Mapping[str, MeasuredAxis]
    seconds: npt.NDArray[np.float64]
    taken_over: Collection[tuple[int, int]]
    deadline_s: float | None
    n_cancels: Callable[[], int]
    may_go: threading.Event
    on_change: Callable[[], None]
    on_paces: Callable[[Mapping[str, Pace], RepeatedBlocks | None], npt.NDArray[np.float64]]

    def __post_init__(self) -> None:
        self._state: State = "failed"
        self._error: MeshlabError | None = None
        self._hosts: list[str] = []
        self._limits: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._current: Step | None = None
        self._process_set = ""
        backends = {axis.backend for axis in self.axes.values()}
        self._record = HostRecord(self.data, with_gpus=not backends.isdisjoint(GPU_BACKENDS))
        data = self.data
        self._total = data.plan.launches * len(data.steps)
        self._left_s = data.plan.launches * self.seconds.sum(axis=0)
        self._work: list[Work] = []  # of the steps so far
        self._starts_left = data.plan.launches - 1
        self._start_s = RATES[data.source].start_s
        self._began = time.monotonic() - data.elapsed_s  # moved by pauses
        self._paused_at: float | None = None
        self._turns = {step.index: group for group in turns(data.steps) for step in group}
        self._measured: set[tuple[int, int]] = set()
        for _, index in self.taken_over:
            self._count(index)

    @property
    def progress(self) -> Progress:
        """The progress of the run. The time left follows from the estimate and from the pace of the steps so far."""
        data = self.data
        if data.has_ended:
            return Progress(data.n_done, self._total, "", data.elapsed_s, 0.0)
        low_s, left_s, high_s = time_left(np.maximum(self._left_s, 0.0).tolist(), list(self._work))
        starts_s = self._starts_left * self._start_s
        step = self._current  # read once, because the worker thread sets it to None after the step
        return Progress(
            data.n_done,
            self._total,
            "" if step is None else str(step),
            (self._paused_at or time.monotonic()) - self._began,
            left_s + starts_s,
            (low_s + starts_s, high_s + starts_s),
        )

    def run(self, lease: Lease) -> None:
        """Measure all steps. Call `finish` after the ranks are released, to record the outcome."""
        data = self.data
        try:
            self._describe(lease)
            self._record.begin(lease)
            self._plan_buffers(lease)
            self._probe(lease)
            self._record.update(lease)
            is_complete = self._run_steps(lease)
            # A user who interrupts the last step has cancelled the run too.
            is_complete &= not any(row["status"] == "cancelled" for row in data.rows())
            self._record.update(lease)
            self._describe_after(lease)
            self._state = "done" if is_complete else "cancelled"
            if is_complete and not any(row["status"] in _MEASURED for row in data.rows()):
                self._error = self._nothing_measured()
        except EngineError as error:
            self._error = error
        except Exception as error:  # an error of meshlab itself must not look like a run that never ends
            self._error = BenchError(f"the run stopped on an internal error: {type(error).__name__}: {error}")

    def _nothing_measured(self) -> BenchError | None:
        """Return the reason why no step was measured, or None if steps were only skipped for lack of memory."""
        failed = [row for row in self.data.rows() if row["status"] == "failed"]
        if not failed:
            return None
        return BenchError(f"nothing could be measured: {failed[0]['stop_reason']}")

    def _run_steps(self, lease: Lease) -> bool:
        """Measure the steps of all launches. Return False if the user cancelled."""
        plan, steps = self.data.plan, self.data.steps
        for launch in range(plan.launches):
            order = [steps[index] for index in plan.order(len(steps), launch)]
            # A launch has new processes: what differs between launches is mostly where they and their memory are
            # placed. The first one uses those that are there, and a resumed launch may have nothing left to measure.
            if launch and any((launch, step.index) not in self.taken_over for step in order):
                if self.n_cancels():
                    return False
                began_s = time.monotonic()
                self._relaunch(lease, launch)
                self._start_s = time.monotonic() - began_s
                self._record.begin(lease)
                self._plan_buffers(lease)
            self._starts_left = plan.launches - 1 - launch
            self._process_set = lease.engines.process_set
            for step in order:
                if (launch, step.index) in self.taken_over:
                    continue
                self._pause(lease)
                if self.n_cancels():
                    return False
                began_s, left_s = time.monotonic(), float(self._left_s[1])
                self._run_step(lease, launch, step)
                self._work.append(Work(time.monotonic() - began_s, left_s - float(self._left_s[1])))
                self._record.count_step(lease, launch, step.index)
        return True

    def _pause(self, lease: Lease) -> None:
        """Wait while the run is to pause. Only between steps: alternatives that take turns are measured together."""
        if self.may_go.is_set():
            return
        data = self.data
        self._paused_at = time.monotonic()
        data.state = "paused"
        data.note(f"paused after {data.n_done} of {self._total} steps")
        lease.task = f"a paused run ({data.n_done} of {self._total} steps)"
        self.on_change()
        self.may_go.wait()
        # The pause does not count as time of the run.
        paused_s, self._paused_at = time.monotonic() - self._paused_at, None
        self._began += paused_s
        data.state = "running"
        data.note(f"continued after a pause of {format_seconds(paused_s)}")
        self.on_change()

    def _relaunch(self, lease: Lease, launch: int) -> None:
        """Start new processes, or at least open new communicators."""
        lease.task = f"launch {launch + 1} of {self.data.plan.launches}: starting new ranks"
        self.on_change()
        if not lease.relaunch():
            self.data.note(
                f"launch {launch + 1} has new communicators on the same processes, because they were started elsewhere"
            )

    def finish(self) -> None:
        """Record the outcome of the run."""
        data, error, state = self.data, self._error, self._state
        if error is not None:
            data.note(str(error).splitlines()[0])
            state = "failed"
            if self.n_cancels():
                error, state = None, "cancelled"
        # Set the state last: a thread that sees it change may read everything else immediately.
        data.elapsed_s, data.error = time.monotonic() - self._began, error
        data.note(f"{state} after {data.n_done} of {self._total} steps, {format_seconds(data.elapsed_s)}")
        data.state = state
        self.on_change()

    # -- one step ------------------------------------------------------------------------------------------------------

    def _run_step(self, lease: Lease, launch: int, step: Step) -> None:
        """Measure a step, and its alternatives in turns with it, unless it was measured with one of them before."""
        if (launch, step.index) in self._measured:
            return
        # A run that is resumed has measured either all alternatives or none, see `Run`.
        steps = self._turns[step.index]
        self._measured |= {(launch, alternative.index) for alternative in steps}
        runnable: list[Step] = []
        for alternative in steps:
            too_large = self._too_large(alternative)
            if too_large:
                self.data.note(f"skipped {alternative}: {too_large}")
                self._add_without_times(launch, alternative, "skipped", too_large)
            else:
                runnable.append(alternative)
        if runnable:
            in_blocks = len(runnable) > 1 or bool(lease.engines.takes_turns_with)
            self._run_turns(lease, launch, runnable, n_blocks(self.data.plan.sampling) if in_blocks else 1)

    def _run_turns(self, lease: Lease, launch: int, steps: Sequence[Step], n: int) -> None:
        """Measure steps in `n` blocks each. The steps take turns, so that a drift affects all of them equally."""
        blocks: dict[Step, list[Mapping[int, Any]]] = {step: [] for step in steps}
        spent_s = dict.fromkeys(steps, 0.0)
        is_interrupted = False
        for block in range(n):
            # In reverse order in every second round: a drift within a round then favours each step equally often.
            for step in list(blocks)[:: -1 if block % 2 else 1]:
                if is_interrupted or (block and self.n_cancels()):
                    break
                began = time.monotonic()
                self._current = step
                lease.task = f"step {self.data.n_done + 1} of {self._total}: {step}"
                self.on_change()
                # An EngineError is about the engines, for example a dead rank, and ends the run. Errors that ranks
                # raised are in their replies, and only fail the step: the next one may be smaller, or a different
                # function.
                try:
                    replies = [reply for current in self._rounds(lease, step, block, n) for reply in current.run()]
                except EngineError as error:
                    self._add_without_times(launch, step, "cancelled" if self.n_cancels() else "failed", error.summary)
                    del blocks[step]
                    self._add_blocks(launch, blocks, spent_s, is_in_blocks=n > 1)
                    raise
                spent_s[step] += time.monotonic() - began
                failed = [reply for reply in replies if reply.error is not None]
                if failed:
                    # The other ranks only detect that a rank called something else.
                    early = [reply.exception for reply in failed if isinstance(reply.exception, EarlyReturnError)]
                    reason = str(early[0]) if early else f"rank {failed[0].rank}: {failed[0].error}"
                    self.data.note(f"step {step.index + 1}, {step}: {reason}")
                    is_interrupted = failed[0].is_interrupt
                    self._add_without_times(launch, step, "cancelled" if is_interrupted else "failed", reason)
                    del blocks[step]
                else:
                    blocks[step].append({reply.rank: reply.value for reply in replies})
        self._add_blocks(launch, blocks, spent_s, is_in_blocks=n > 1)

    def _add_blocks(
        self,
        launch: int,
        blocks: Mapping[Step, Sequence[Mapping[int, Any]]],
        spent_s: Mapping[Step, float],
        *,
        is_in_blocks: bool,
    ) -> None:
        """Add the steps that have blocks. A cancelled run has fewer of them."""
        for step, values in blocks.items():
            if values:
                self._add(launch, step, values, spent_s[step], is_in_blocks=is_in_blocks)

    def _rounds(self, lease: Lease, step: Step, block: int, n: int) -> Iterator[Round]:
        """Yield the rounds that measure one of `n` blocks of a step, each when the one before it has run."""
        data, plan = self.data, self.data.plan
        # Ranks that sample for as long as the plan says are not stuck.
        stuck_s = lease.engines.deadline_s if self.deadline_s is None else self.deadline_s
        deadline_s = stuck_s + plan.sampling.max_s
        new_round = partial(lease.round, mesh=data.mesh, axis=step.axis, deadline_s=deadline_s)
        arguments: tuple[Any, ...] = (step, plan.sampling, plan.check and not block)
        groups = data.mesh[step.axis]
        function = plan.functions.get(step.collective)
        if isinstance(function, CheckedFunction) and (block or not plan.check):
            function = function.function
        if step.grouping == "pairs":
            yield new_round(measure_pair, arguments=arguments)
        elif step.concurrent is not None:
            everyone, arrays = voting_ranks(groups, data.mesh[step.concurrent.axis])
            concurrent = ((data.mesh, step.concurrent.axis),)
            arguments += (n, arrays)
            yield new_round(measure_concurrent, arguments=arguments, also=(everyone,), concurrent=concurrent)
        elif step.grouping == "alone":
            one_group: Callable[..., RankSamples] = measure_step
            arguments += (n,)
            if function is not None:
                one_group, arguments = partial(measure_function_alone, function=function), (step, plan.sampling, n)
            for group in groups:
                yield new_round(one_group, arguments=arguments, ranks=group.ranks)
        else:
            everyone, (array,) = voting_ranks(groups)
            together: Callable[..., RankSamples] = measure_together
            arguments += (n, array)
            if function is not None:
                together, arguments = partial(measure_function, function=function), (step, plan.sampling, n, array)
            yield new_round(together, arguments=arguments, also=(everyone,))

    def _add(
        self, launch: int, step: Step, blocks: Sequence[Mapping[int, Any]], spent_s: float, *, is_in_blocks: bool
    ) -> None:
        """Add the rows and samples of a step, from what each rank returned for each block."""
        rows, samples = [], []
        for number, part in enumerate(step.parts):
            of_rank: dict[int, RankSamples] = {}
            for rank in blocks[0]:
                values = [block[rank] if step.concurrent is None else block[rank][number] for block in blocks]
                of_rank[rank] = join_blocks(values) if is_in_blocks else values[0]
            groups = part.measured_groups(self.data.mesh[part.axis])
            rows += rows_of_step(part, groups, of_rank, self._hosts)
            samples += samples_of_step(part, groups, of_rank, self._hosts)
            # The ranks have agreed on it. In a round of pairs, a rank without a partner has no batches.
            covered = next(batches for batches in of_rank.values() if batches is not None).is_covered
            if not covered.all():
                self.data.note(
                    f"step {step.index + 1}, {part}: {np.sum(~covered)} of {len(covered)} batches are excluded, "
                    f"because {part.concurrent_axis} finished before they did"
                )
        self.data.add(rows, samples, launch=launch, process_set=self._process_set)
        self._count(step.index)
        self.on_change()

    def _add_without_times(self, launch: int, step: Step, status: str, reason: str) -> None:
        rows = []
        for part in step.parts:
            rows += rows_without_times(part, part.measured_groups(self.data.mesh[part.axis]), status, reason)
        self.data.add(rows, [], launch=launch, process_set=self._process_set)
        self._count(step.index)
        self.on_change()

    def _count(self, index: int) -> None:
        """Count a step as finished."""
        self.data.n_done += 1
        self._left_s = self._left_s - self.seconds[index]
        self._current = None

    def _too_large(self, step: Step) -> str:
        """Return the reason why a step exceeds the memory, or an empty string."""
        ranks = self.data.mesh[step.axis].array.ravel()
        limits = self._limits[ranks]
        rank, least = int(ranks[limits.argmin()]), int(limits.min())
        if step.buffer_bytes <= least:
            return ""
        return (
            f"its buffers take {format_size(step.buffer_bytes)} per rank, but rank {rank} may use "
            f"{format_size(least)} of its memory"
        )

    # -- around the steps ----------------------------------------------------------------------------------------------

    def _describe(self, lease: Lease) -> None:
        """Record the system, and the memory that each rank may use."""
        data, engines = self.data, lease.engines
        facts = engines.ranks
        capabilities = facts[0].capabilities
        self._hosts = [fact.host for fact in facts]
        earlier, data.rank_rows = data.rank_rows, rank_rows(facts)
        if earlier and [row["host"] for row in earlier] != self._hosts:
            data.note("the ranks are on other hosts than before: " + ", ".join(dict.fromkeys(self._hosts)))
        data.hosts = tuple(dict.fromkeys([*data.hosts, *self._hosts, environment.describe_host()["name"]]))
        replies = self._query(lease, describe_rank)
        for reply in replies:
            if reply.error is not None:
                data.note(f"rank {reply.rank} could not describe its host: {reply.error}")
        answers = [reply.value or {} for reply in replies]
        settings = [answer.get("settings", {}) for answer in answers]
        # A rank that could not describe itself has no limit. If a step is too large, it fails with the library's error.
        free = [answer.get("free", (False, np.iinfo(np.int64).max)) for answer in answers]
        self._limits = usable_bytes(free, self._hosts)
        firsts = [answer for answer in answers if "host" in answer]
        self._note_devices("before", {answer["host"]["name"]: answer["devices"] for answer in firsts})
        about = {"run": data.run_id, "started": data.started_at, "ranks": data.where, "mesh": str(data.mesh)}
        notes = []
        shared = describe_sharing(facts)
        if shared:
            unit = "GPU" if capabilities.backend in GPU_BACKENDS else "core"
            about["oversubscribed"] = shared
            notes.append(f"{shared}, so times include waiting for a {unit}.")
        if len(set(self._hosts)) > 1:
            about["hosts"] = ", ".join(dict.fromkeys(self._hosts))
        if (straddle := engines.straddle_of(data.mesh)) is not None:
            notes.append(f"{str(straddle)[:1].upper()}{str(straddle)[1:]}.")
            data.note(str(straddle))
        if notes:
            about["note"] = " ".join(notes)
        differing = differing_settings(settings)
        about |= {f"{name} differs": text for name, text in differing.items()}
        data.environment = {
            "Run": about,
            "Host": environment.describe_host() | {"machine": machine_text(answer["host"] for answer in firsts)},
            **_host_sections([(fact.host, answer) for fact, answer in zip(facts, answers, strict=True)]),
            "Library": {
                "backend": capabilities.backend,
                "library": capabilities.library,
                "loaded from": capabilities.path,
                **capabilities.facts,
                **{
                    f"library of {name}": engines.capabilities(self.axes[name].backend).library
                    for name in data.plan.axis
                    if self.axes[name].backend != engines.backend
                },
            },
            "Software": environment.software_versions(),
            "Settings": settings[0],
            **{name: lines for name, lines in data.environment.items() if name.startswith("GPUs")},
        }

    def _plan_buffers(self, lease: Lease) -> None:
        """Send the ranks the sizes of their registered buffers, if the plan has any."""
        sets = ([part] for step in self.data.steps if not self._too_large(step) for part in step.parts)
        plan_registered(lease, sets, int(self._limits.min()))

    def _probe(self, lease: Lease) -> None:
        """Estimate the duration of the run, and what it can show. If it is long, measure a few steps briefly first."""
        is_long = self._left_s[1] >= _PROBED_S and not self.n_cancels()
        paces = self._paces(lease) if is_long else {}
        blocks = self._repeated_blocks(lease, paces)
        if blocks is not None:
            plan = self.data.plan
            paces = {axis: blocks.added_to(pace, plan, RATES[self.axes[axis].backend]) for axis, pace in paces.items()}
        seconds = self.on_paces(paces, blocks)
        for _, index in self.taken_over:
            self._left_s = self._left_s + self.seconds[index] - seconds[index]
        self._left_s = self._left_s + self.data.plan.launches * (seconds.sum(axis=0) - self.seconds.sum(axis=0))
        self.seconds = seconds
        self.on_change()

    def _repeated_blocks(self, lease: Lease, paces: Mapping[str, Pace]) -> RepeatedBlocks | None:
        """Measure a block of a probed step several times, as for alternatives in turns. None without such a step."""
        small = next((pace.small_steps() for pace in paces.values() if pace.probed), ())
        if not small:
            return None
        step = small[len(small) // 2]
        lease.task = "estimating what can be seen"
        walls: list[float] = []
        times: list[float] = []
        pairs: list[float] = []
        began_s = time.monotonic()
        while len(walls) < MOST_BLOCKS and not self.n_cancels():
            spent_s = time.monotonic() - began_s
            # A host that is too slow for the fewest blocks in several times this duration shows little anyway.
            if spent_s > (_REPEATED_S if len(walls) >= FEWEST_BLOCKS else 4 * _REPEATED_S):
                break
            start_s = time.monotonic()
            rounds = self._rounds(lease, step, 1, n_blocks(self.data.plan.sampling))
            replies = [reply for current in rounds for reply in current.run()]
            walls.append(time.monotonic() - start_s)
            if any(reply.error is not None for reply in replies):
                return None  # the step fails again when it is measured, and has a row then
            of_rank = {reply.rank: reply.value for reply in replies}
            groups = step.measured_groups(self.data.mesh[step.axis])
            slowest = max((slowest_times(of_rank, group.ranks) for group in groups), key=np.median)
            times.append(float(np.median(slowest)))
            pairs.append(log_pair(slowest))
        return RepeatedBlocks(step, walls, times, pairs) if walls else None

    def _paces(self, lease: Lease) -> dict[str, Pace]:
        """Return the durations of a few steps of each axis."""
        data, plan = self.data, self.data.plan
        lease.task = "estimating the duration"
        began = time.monotonic()
        lease.round(release_buffers).run()
        round_s = time.monotonic() - began
        self._plan_buffers(lease)  # which the release has forgotten
        paces = {}
        for axis, candidates in steps_to_probe(data.steps, self.axes, self.seconds[:, 1]).items():
            steps = [step for step in candidates if not self._too_large(step)]
            everyone, (array,) = voting_ranks(data.mesh[axis])
            arguments = (steps, plan.sampling, plan.check, array)
            replies = lease.round(
                probe_steps, data.mesh, axis, arguments, also=(everyone,), deadline_s=self.deadline_s
            ).run()
            # A step that fails here fails again when it is measured, and has a row then.
            if steps and all(reply.error is None for reply in replies):
                paces[axis] = Pace(round_s, list(zip(steps, replies[0].value, strict=True)))
        return paces

    def _query(self, lease: Lease, function: Callable[..., Any]) -> list[Reply]:
        """Call a function on all ranks, with the first rank of each host as its argument."""
        # In reverse order, so that the first rank of a host is the one that remains in the dict.
        firsts = sorted({host: rank for rank, host in reversed(list(enumerate(self._hosts)))}.values())
        return lease.round(function, self.data.mesh, WORLD, (firsts,)).run()

    def _describe_after(self, lease: Lease) -> None:
        """Free the buffers, and record the readings of the GPUs after the run, if there were any before."""
        lease.round(release_buffers).run()
        if any(row["when"] == "before" for row in self.data.device_rows):
            replies = self._query(lease, sample_rank)
            readings: dict[str, Any] = {}
            for reply in replies:
                if reply.value:
                    readings.setdefault(self._hosts[reply.rank], reply.value)
            self._note_devices("after", readings)

    def _note_devices(self, when: str, readings: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        rows = [row for host, devices in readings.items() for row in device_rows(when, host, devices)]
        if rows:
            data = self.data
            data.device_rows = [row for row in data.device_rows if row["when"] != when] + rows
            lines = device_lines(rows, with_host=len(readings) > 1)
            data.environment = {**data.environment, f"GPUs {when}": lines}


def _host_sections(ranks: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, str]]:
    """Return a section of the environment per host, if there are several, from host and answer of every rank."""
    of_host: dict[str, list[int]] = {}
    for rank, (host, _) in enumerate(ranks):
        of_host.setdefault(host, []).append(rank)
    answers = {host: answer for host, answer in ranks if "host" in answer}
    if len(of_host) < 2:
        return {}
    versions = [answer["software"] for answer in answers.values()]
    different = {
        name for installed in versions for name in installed if len({other.get(name) for other in versions}) > 1
    }
    sections = {}
    for host, answer in answers.items():
        about = {name: text for name, text in answer["about"].items() if name != "name"}
        drivers = {device["driver_version"] for device in answer["host"]["devices"] if device.get("driver_version")}
        about["GPUs"] = machine_text([answer["host"]]).removeprefix("1 node, ")
        about |= {"driver": ", ".join(sorted(drivers))} if drivers else {}
        about |= {"NICs": nics} if (nics := _nics_text(answer["host"]["nics"])) else {}
        # Versions that all hosts share are those of the section Software.
        about |= {name: text for name, text in answer["software"].items() if name in different}
        ranks_of = format_ranks(of_host[host]).removeprefix("rank").lstrip("s ")
        sections[f"{HOST_SECTION}{host}"] = {"ranks": ranks_of, **about}
    return sections


def _nics_text(nics: Iterable[Mapping[str, Any]]) -> str:
    """Describe the NICs of a host, such as "8 × 400 Gb/s InfiniBand" or "eth0"."""
    names: dict[str, list[str]] = {}
    for nic in nics:
        rate = f"{nic['gbits']:g} Gb/s {nic['link_layer'] or ''}".rstrip() if nic.get("gbits") else ""
        names.setdefault(rate, []).append(str(nic["name"]))
    return ", ".join(f"{len(of_rate)} × {rate}" if rate else ", ".join(of_rate) for rate, of_rate in names.items())


def describe_sharing(ranks: Sequence[RankInfo]) -> str:
    """Return a note if ranks share cores or GPUs, such as "4 ranks share 2 cores", or else an empty string."""
    facts, n = BACKENDS[ranks[0].capabilities.backend], len(ranks)
    cores = environment.usable_cores()
    if not facts.on_gpus and not facts.in_process and len({info.host for info in ranks}) == 1 and n > cores:
        return f"{n} ranks share {cores} core{'s' * (cores != 1)}"
    gpus = number_of_gpus(ranks) if facts.on_gpus else n
    return f"{n} ranks share {gpus} GPU{'s' * (gpus != 1)}" if gpus < n else ""


def sharing_of(engines: Engines) -> str:
    """Return a note if the times of the ranks do not characterise the machine, or else an empty string."""
    if BACKENDS[engines.backend].in_process:
        return f"{engines.world_size} ranks are threads of one process"
    return describe_sharing(engines.ranks)


def machine_text(hosts: Iterable[Mapping[str, Any]]) -> str:
    """Summarise the machine from the results of `meshlab.topology.read_host`."""
    return cluster_from_hosts(list(hosts)).summary


def differing_settings(settings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the settings that differ between ranks, with text such as "Ring on ranks 0, 1; not set on rank 2"."""
    differing = {}
    for name in sorted({name for of_rank in settings for name in of_rank}):
        ranks: dict[str, list[str]] = {}
        for rank, of_rank in enumerate(settings):
            ranks.setdefault(of_rank.get(name, "not set"), []).append(str(rank))
        if len(ranks) > 1:
            texts = [f"{value} on rank{'s' * (len(names) > 1)} {', '.join(names)}" for value, names in ranks.items()]
            differing[name] = "; ".join(texts)
    return differing


def device_rows(when: str, host: str, readings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the devices frame, from `meshlab.topology.readers._nvml.sample` on one host."""
    names = {column.name for column in DEVICES}
    return [
        {"when": when, "host": host, "device": reading["id"]}
        | {name: value for name, value in reading.items() if name in names}
        for reading in readings
    ]


def device_lines(rows: Iterable[Mapping[str, Any]], *, with_host: bool) -> dict[str, str]:
    """Describe the readings in one line per GPU. Zero and unknown values are omitted."""
    lines = {}
    for row in rows:
        readings = [form.format(row[name]) for name, form in _UNITS if row.get(name)]
        lines[f"{row['host']}, GPU {row['device']}" if with_host else f"GPU {row['device']}"] = " · ".join(readings)
    return lines
