"""Goes through the steps of a plan: what happens in a run's own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark import environment
from meshlab.benchmark.on_ranks import environment as machine
from meshlab.frames.rundata import rows_of_step, rows_without_times, samples_of_step
from meshlab.benchmark.functions import measure_function
from meshlab.benchmark.joint import measure_joint
from meshlab.benchmark.memory import USABLE
from meshlab.frames.plan import Plan
from meshlab.benchmark.record import Record, State
from meshlab.benchmark.steps import Step
from meshlab.benchmark.on_ranks.timing import Measured, measure_pair, measure_step, measure_together
from meshlab.engines.lease import Lease
from meshlab.engines.rankset import Reply
from meshlab.errors import BenchError, EngineError, MeshlabError
from meshlab.mesh.axes import WORLD
from meshlab.mesh.mesh import DeviceMesh
from meshlab.units import format_seconds, format_size

__all__ = ["Conductor"]

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
            return call(measure_joint, arguments=arguments, also=(step.beside.along,))
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
        replies = self._ask(lease, machine.describe_rank)
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
        differing = machine.differing_settings(settings)
        about |= {f"{name} differs": text for name, text in differing.items()}
        record.environment = {
            "Run": about,
            "Host": environment.describe_host() | {"machine": machine.machine_text(one["host"] for one in firsts)},
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
            replies = self._ask(lease, machine.sample_rank)
            found: dict[str, Any] = {}
            for reply in replies:
                if reply.value:
                    found.setdefault(self._hosts[reply.rank], reply.value)
            self._note_devices("after", found)

    def _note_devices(self, when: str, readings: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        rows = [row for host, devices in readings.items() for row in machine.device_rows(when, host, devices)]
        if rows:
            record = self._record
            record.devices = [row for row in record.devices if row["when"] != when] + rows
            lines = machine.device_lines(rows, with_host=len(readings) > 1)
            record.environment = {**record.environment, f"GPUs {when}": lines}
