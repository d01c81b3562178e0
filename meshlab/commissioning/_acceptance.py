"""The unattended acceptance of a machine, stage by stage."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from meshlab.analysis._nodes import (
    CPU_LIMITS,
    GPU_LIMITS,
    Limits,
    NodeComparison,
    Paths,
    SlowPart,
    compare_nodes,
    describe_slowness,
    may_be_chance,
    node_verdicts,
    paths_between,
    slow_alone,
    slow_parts,
    times_alone,
    without_waits,
)
from meshlab.analysis._pairs import SLOW, pair_table
from meshlab.analysis._thresholds import Thresholds
from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshlabError, TopologyError
from meshlab.base._files import TextSource
from meshlab.base._outcome import Outcome, overall
from meshlab.base._units import format_bandwidth
from meshlab.benchmark._bench import bench
from meshlab.benchmark._run import Run
from meshlab.commissioning._doctor import Check, run_checks
from meshlab.commissioning._folder import (
    CONFIRMATION,
    FABRIC_CONFIRMATIONS,
    Scope,
    begin,
    check_new,
    earlier_runs,
    read_scope,
)
from meshlab.commissioning._outcome import Acceptance, joined_run
from meshlab.commissioning._plans import Planned, confirming, machine_mesh, matching_preset, mesh_reason, plans
from meshlab.engines._engines import Engines
from meshlab.frames._labels import CPU_SOURCES
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plans._plan import Plan
from meshlab.report._answers import Answer, load_findings
from meshlab.report._correct import judge_results
from meshlab.report._repeating import with_settings
from meshlab.report._stages import StageOutcome, StageResult, Stages
from meshlab.report._words import count, pair_label_of
from meshlab.runs._rundata import RunData, has_measurements
from meshlab.runs._store import Frames
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import ClusterLike, as_cluster
from meshlab.topology.readers._hosts import probe

if TYPE_CHECKING:
    import pandas as pd

ESSENTIAL = "sweep"  # the stage without which nothing was accepted
JUDGING = ("reference", "thresholds")  # The stages that judge the speed. On a CPU there is no reference.
# Share of the median bandwidth below which a pair fails an acceptance on a CPU, where cores and caches differ.
SLOW_ON_CPU = 0.5
_MEASUREMENTS = ("two", "three", "four")  # of the paths between hosts, after each repetition
_PATIENCE_S = 10.0  # maximum time for an interrupted run to stop
_MOST_NAMED = 3

_Finding = tuple[StageOutcome, list[str]]
_Judgement = tuple[Outcome, list[str]]  # of a run that was measured


def acceptance(
    engines: Engines,
    mesh: MeshLike | None = None,
    *,
    thresholds: Thresholds | TextSource | None = None,
    cluster: ClusterLike | None = None,
    quick: bool = False,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    installation: Sequence[Check] | str | None = None,
    on_stage: Callable[[StageResult], object] | None = None,
) -> Acceptance:
    """Check a machine, such as a new node, unattended, from its installation to its bandwidth.

    The stages are ``installation`` (as ``meshlab doctor``), ``health`` (faults of the hardware), ``groups`` (as
    `Engines.verify`), ``pairs`` (messages between every two ranks of an axis), ``sweep`` (collectives along every
    axis), ``contention`` (the groups of an axis together and alone), ``reference`` (the sweep, compared with the
    prediction and published values) and ``thresholds``. A stage that cannot run, or that has nothing to compare with,
    is skipped and never counted as passed.

    Parameters
    ----------
    engines : Engines
        The ranks.
    mesh : DeviceMesh or str, optional
        The mesh, with one rank per engine. By default one axis for the nodes and one for the ranks of each node, or for
        the sockets of one node and the GPUs of each socket. If there is neither, all ranks are on one axis.
    thresholds : Thresholds, path or str, optional
        The limits: a file, or the name of one of `Thresholds.presets`. By default those for such a machine, if meshlab
        has some. The collectives, sizes, element types, operations and modes that they name are measured too.
    cluster : Cluster or str, optional
        The machine, or the name of a preset. By default it is probed.
    quick : bool, default False
        Whether to measure fewer sizes, and less precisely.
    out : path, optional
        A folder for the runs of the stages, so that the acceptance can be continued. By default that of `resume`, or
        else nothing is written.
    resume : path, optional
        The folder of an acceptance that was interrupted. It is continued with its mesh, thresholds and extent. Stages
        that measure continue where they stopped. The others run again, because the ranks are new.
    overwrite : bool, default False
        Whether `out` may hold another acceptance, which is then removed.
    installation : sequence of Check, or str, optional
        The checks of the installation, or the reason to skip them. By default they run here.
    on_stage : callable, optional
        A function that is called with each stage after it has ended.

    Returns
    -------
    Acceptance
        The stages, the verdict and the report.

    Raises
    ------
    BenchError
        If `out` holds another acceptance, or `resume` one of another mesh, thresholds, extent or machine.
    ParseError
        If the thresholds are invalid, or `resume` holds no acceptance.
    MeshError
        If the mesh does not have one rank per engine.
    EngineError
        If the engines are busy, broken or closed.
    KeyboardInterrupt
        If the acceptance is interrupted. Its attribute ``measured`` is the `Acceptance` so far.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     acceptance = ml.acceptance(engines, quick=True, installation="not needed for this example")
    >>> acceptance.outcome, [stage.name for stage in acceptance.stages.items if stage.outcome == "passed"]
    ('not decided', ['groups', 'pairs', 'sweep'])
    """
    machine, why_no_machine = _machine(engines, cluster)
    limits = thresholds if thresholds is None or isinstance(thresholds, Thresholds) else Thresholds.read(thresholds)
    layout = None if mesh is None else as_mesh(mesh, fill=engines.world_size)
    if resume is None:
        scope = _new_scope(engines, machine, layout, limits, quick)
    else:
        scope = read_scope(resume)
        _check_same(scope, resume, layout, limits, quick)
    engines.check_mesh(scope.mesh)
    planned = plans(scope.mesh, engines, scope.thresholds, quick=scope.quick)
    earlier: dict[str, RunData] = {}
    if resume is not None:
        stage_plans = {name: stage.plan for name, stage in planned.items()}
        fabric = stage_plans.get("fabric")
        stage_plans |= {
            CONFIRMATION: stage_plans.get("pairs"),
            **dict.fromkeys(FABRIC_CONFIRMATIONS, None if fabric is None else confirming(fabric)),
        }
        earlier = earlier_runs(resume, stage_plans, scope.mesh)
        _check_same_machine(earlier, engines, scope.mesh)
    out = resume if out is None else out
    if out is not None and (resume is None or Path(out).resolve() != Path(resume).resolve()):
        check_new(out, overwrite=overwrite)
        begin(out, scope)
    return _Acceptor(engines, scope, machine, planned, earlier, out, on_stage).run(installation, why_no_machine)


def _machine(engines: Engines, cluster: ClusterLike | None) -> tuple[Cluster | None, str]:
    """Return the machine if it has a device for each rank, and otherwise the reason why it is not known."""
    if cluster is not None:
        return as_cluster(cluster), ""
    if engines.backend in CPU_SOURCES:
        return None, "the ranks run on CPUs, and only GPUs and their links have rules"
    try:
        machine = probe(engines)
    except (TopologyError, EngineError) as error:
        return None, f"the hardware could not be read: {error.message}"
    if machine.n_devices < engines.world_size:
        notes = f": {'; '.join(machine.notes)}" if machine.notes else ""
        return None, f"the driver reports {count(machine.n_devices, 'GPU')} for {engines.world_size} ranks{notes}"
    return machine, ""


def _new_scope(
    engines: Engines, machine: Cluster | None, mesh: DeviceMesh | None, limits: Thresholds | None, quick: bool
) -> Scope:
    """Return the scope of a new acceptance, with the mesh and the thresholds of the machine by default."""
    if mesh is None:
        mesh = machine_mesh([info.host for info in engines.ranks], machine)
    if limits is None and (preset := matching_preset(machine, engines.world_size)) is not None:
        limits = Thresholds.read(preset)
    return Scope.new(mesh, quick, limits)


def _check_same(
    scope: Scope, folder: str | Path, mesh: DeviceMesh | None, thresholds: Thresholds | None, quick: bool
) -> None:
    """Raise if an acceptance would be continued with other choices than it has begun with."""
    different = [
        (mesh is not None and mesh != scope.mesh, f"the mesh {scope.mesh}, not {mesh}"),
        (thresholds is not None and thresholds != scope.thresholds, "other thresholds"),
        (quick and not scope.quick, "more sizes than a quick one"),
    ]
    for is_different, choice in different:
        if is_different:
            raise BenchError(
                f"the folder {folder} holds an acceptance with {choice}",
                hint="continue it without these choices, or start a new one in another folder",
            )


def _check_same_machine(earlier: Mapping[str, RunData], engines: Engines, mesh: DeviceMesh) -> None:
    for run in earlier.values():
        where = engines.where_of(mesh, run.plan.axis)
        if run.where != where:
            raise BenchError(
                f"the acceptance began on {run.where}, but these ranks are {where}",
                hint="continue it with ranks of the same backend and number, or start a new one in another folder",
            )


class _Acceptor:
    """Runs the stages in order, and collects what they found."""

    def __init__(
        self,
        engines: Engines,
        scope: Scope,
        machine: Cluster | None,
        planned: Mapping[str, Planned],
        earlier: Mapping[str, RunData],
        out: str | Path | None,
        on_stage: Callable[[StageResult], object] | None,
    ) -> None:
        self._engines, self._scope, self._machine, self._planned = engines, scope, machine, planned
        self._earlier, self._out = earlier, None if out is None else Path(out)
        self._on_stage = on_stage
        self._stages: list[StageResult] = []
        self._runs: dict[str, RunData] = {}
        self._interrupt: KeyboardInterrupt | None = None
        self._interruption = ""
        hosts = self._hosts
        self._local_ranks = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        self._limits = CPU_LIMITS if engines.backend in CPU_SOURCES else GPU_LIMITS
        self._paths: list[Paths] = []
        self._slow: dict[SlowPart, list[tuple[Paths, float]]] = {}
        self._nodes: NodeComparison | None = None

    def run(self, installation: Sequence[Check] | str | None, why_no_machine: str) -> Acceptance:
        """Run all stages, and raise at the end if they were interrupted."""
        backends = {self._engines.backend, *self._scope.mesh.backends.values()}
        self._stage("installation", lambda: _installation(installation, backends))
        self._stage("health", lambda: _health(self._machine, why_no_machine))
        self._stage("groups", self._groups)
        self._stage("pairs", lambda: self._measured("pairs", self._judge_pairs))
        if "fabric" in self._planned:
            self._stage("fabric", lambda: self._measured("fabric", self._judge_fabric))
        self._stage("sweep", lambda: self._measured("sweep", lambda _: ("passed", [])))
        self._stage("contention", lambda: self._measured("contention", _judge_contention))
        if "fabric" in self._planned:
            self._stage("nodes", self._judge_nodes)
        draft = self._acceptance()
        by_question = {answer.question: answer for answer in draft.report().answers}
        self._stage("reference", lambda: _reference(by_question.get("fast enough")))
        self._stage("thresholds", lambda: _thresholds(by_question.get("thresholds"), self._scope.thresholds))
        if self._interrupt is None:
            return self._acceptance()
        self._interrupt.measured = self._acceptance()  # type: ignore[attr-defined]
        raise self._interrupt

    def _stage(self, name: str, work: Callable[[], _Finding]) -> None:
        began = time.monotonic()
        if self._interruption:
            outcome, sentences = _skipped(f"{self._interruption}.")
        else:
            try:
                outcome, sentences = work()
            except KeyboardInterrupt as interrupt:
                self._interrupt, self._interruption = interrupt, f"interrupted in the stage {name}"
                outcome, sentences = _skipped(f"{self._interruption}.")
        stage = StageResult(name, outcome, tuple(sentences), time.monotonic() - began)
        self._stages.append(stage)
        if self._on_stage is not None:
            self._on_stage(stage)

    def _acceptance(self) -> Acceptance:
        scope = self._scope
        stages = Stages(tuple(self._stages), ESSENTIAL, JUDGING, self._interruption, self._repeat(), self._nodes)
        plan = self._planned["sweep"].plan or Plan("all_reduce", WORLD, sizes="1K")
        run = joined_run(
            self._runs,
            plan,
            scope.mesh,
            run_id=scope.acceptance_id,
            source=self._engines.backend,
            where=self._engines.where_of(scope.mesh, plan.axis),
        )
        return Acceptance(stages, scope.mesh, dict(self._runs), run, self._machine, scope.thresholds)

    def _repeat(self) -> str:
        mesh = ", ".join(f"{axis.name}={axis.size}" for axis in self._scope.mesh.axes)
        words = f'meshlab acceptance --mesh "{mesh}" --backend {self._engines.backend}'
        words += " --quick" if self._scope.quick else ""
        words += " --thresholds FILE" if self._scope.thresholds is not None else ""
        run = next(iter(self._runs.values()), None)
        return words if run is None else with_settings(run, words)

    @property
    def _hosts(self) -> list[str]:
        return [info.host for info in self._engines.ranks]

    # -- stages that need the ranks ------------------------------------------------------------------------------------

    def _groups(self) -> _Finding:
        if self._engines.world_size < 2:
            return _skipped("there is only one rank, which has no groups.")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about the order of the ranks, which the finding contains
                groups = self._engines.verify(self._scope.mesh)
        except CommunicatorError as error:
            return "failed", [f"The groups are WRONG: {error.message}."]
        except EngineError as error:
            return "failed", [f"{error.message}."]
        named = count(len(groups), "group")
        sentences = [f"{named} verified, with that of all ranks: each contains exactly the expected ranks."]
        if (straddle := self._engines.straddle_of(self._scope.mesh)) is not None:
            sentences.append(f"{str(straddle)[:1].upper()}{str(straddle)[1:]}.")
        elif self._scope.mesh == machine_mesh(self._hosts, self._machine):
            sentences.append(f"The mesh is {self._scope.mesh}, because {mesh_reason(self._scope.mesh, self._hosts)}.")
        return "passed", sentences

    def _measured(self, name: str, judge: Callable[[RunData], _Judgement]) -> _Finding:
        """Measure the plan of a stage, or what is left of it, and judge the run."""
        plan, reason = self._planned[name].plan, self._planned[name].reason
        if plan is None:
            return _skipped(f"{reason}.")
        state = self._engines.state
        if state != "ready":
            return _skipped(f"the ranks are {state} since an earlier stage.")
        try:
            run = self._bench(name, plan)
        except MeshlabError as error:
            return _skipped(f"{error.message}.")
        self._runs[name] = run
        try:
            _wait(run)
        except MeshlabError as error:
            return "failed", [f"{error.message}."]
        if run.out_problem:
            return "failed", [f"The run could not be written: {run.out_problem}."]
        correctness, text = judge_results(run.results)
        if correctness == "failed":
            return "failed", [text]
        if run.results["status"].eq("skipped").all():
            return _skipped(text)
        speed, sentences = judge(run)
        return overall([correctness, speed]), [*sentences, text] if speed == "failed" else [text, *sentences]

    def _bench(self, name: str, plan: Plan) -> Run:
        folder = None if self._out is None else self._out / name
        return bench(self._engines, self._scope.mesh, plan, resume=self._earlier.get(name), out=folder)

    def _judge_fabric(self, run: RunData) -> _Judgement:
        """Fail if a host, a rail or a path between two hosts is slower than the others, in all measurements."""
        suspected = slow_parts(self._paths_in(run, self._limits.of_first))
        self._paths = paths = self._paths_in(run, self._limits)
        if not paths:
            return "passed", ["No two ranks with the same index on their hosts were measured."]
        n_hosts = len(set(self._hosts))
        summary = f"All pairs of {n_hosts} hosts exchanged messages{' on each rail' * (max(self._local_ranks) > 0)}."
        only = "Two hosts have only one path, which cannot be compared with others." if n_hosts == 2 else ""
        sentences = [summary, *[only] * bool(only)]
        if not suspected:
            return "passed", sentences
        for index, name in enumerate(FABRIC_CONFIRMATIONS):
            try:
                repetition = self._bench(name, confirming(run.plan))
                _wait(repetition)
            except MeshlabError as error:
                names = ", ".join(map(str, list(self._slow or suspected)[:_MOST_NAMED]))
                before = f"measurement{'s' * (index > 0)} before"
                return "failed", [f"{error.message}.", f"In the {before}, the slow parts were {names}."]
            self._add_fabric(repetition)
            if not any(map(may_be_chance, self._slow.values())):
                break
        if not self._slow:
            return "passed", [
                *sentences,
                "The suspected parts were as fast as the others when they were measured again.",
            ]
        named = list(self._slow.items())[:_MOST_NAMED]
        more = f" and {len(self._slow) - len(named)} more" if len(self._slow) > len(named) else ""
        verb = "is" if len(self._slow) == 1 else "are"
        names = f"{', '.join(str(part) for part, _ in named)}{more}"
        texts = [f"{part}: {describe_slowness(part, times)}." for part, times in named]
        return "failed", [
            f"{names[:1].upper()}{names[1:]} {verb} SLOW in {_MEASUREMENTS[index]} measurements.",
            *texts,
        ]

    def _add_fabric(self, repetition: RunData) -> None:
        """Judge the paths by the fastest times of all measurements."""
        again = {of_size.size_bytes: of_size for of_size in self._paths_in(repetition, self._limits)}
        self._paths = [
            of_size.fastest(again[of_size.size_bytes]) if of_size.size_bytes in again else of_size
            for of_size in self._paths
        ]
        self._slow = slow_parts(self._paths)

    def _paths_in(self, run: RunData, limits: Limits) -> list[Paths]:
        results = run.results
        if limits.column == "min_us":
            results = without_waits(results, run.samples)
        return paths_between(results, self._hosts, self._local_ranks, limits)

    def _judge_nodes(self) -> _Finding:
        """Return a verdict on each host, from its own ranks, its paths to the others, and its hardware."""
        alone, slow = self._slow_alone()
        findings: dict[str, list[str]] = {}
        for part, times in self._slow.items():
            if len(part.hosts) == 1:
                rail = "" if part.rail is None else f"rail {part.rail}: "
                findings.setdefault(part.hosts[0], []).append(rail + describe_slowness(part, times))
        for host, ratio in slow.items():
            text = f"its own ranks take {ratio:.3g} times as long as those of the other hosts"
            findings.setdefault(host, []).append(text)
        for finding in () if self._machine is None else self._machine.health():
            for host in finding.nodes if finding.severity == "error" else ():
                findings.setdefault(host, []).append(finding.message)
        verdicts = node_verdicts(self._hosts, self._paths, alone, findings)
        self._nodes = compare_nodes(verdicts, self._paths, self._slow)
        failed = [verdict for verdict in verdicts if verdict.outcome == "failed"]
        if failed:
            names = ", ".join(verdict.host for verdict in failed[:_MOST_NAMED])
            more = f" and {len(failed) - _MOST_NAMED} more" if len(failed) > _MOST_NAMED else ""
            texts = [f"{verdict.host}: {'; '.join(verdict.findings)}." for verdict in failed[:_MOST_NAMED]]
            return "failed", [f"{count(len(failed), 'host')} failed: {names}{more}.", *texts]
        if not all(verdict.outcome == "passed" for verdict in verdicts):
            return _skipped("no host could be compared with the others.")
        compared = [*["among its own ranks"] * bool(alone), *["on its paths to the others"] * bool(self._paths)]
        return "passed", [f"None of {len(verdicts)} hosts differs from the others {' or '.join(compared)}."]

    def _slow_alone(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the time of each host alone, and the ratios of those that were slow in all stages."""
        stages = [self._runs[name] for name in ("contention", "sweep") if name in self._runs]
        times = [times_alone(run.results, self._scope.mesh, self._hosts, self._limits) for run in stages]
        times = [of_stage for of_stage in times if of_stage]
        slow = [slow_alone(of_stage, self._limits) for of_stage in times]
        hosts = set.intersection(*map(set, slow)) if slow else set()
        return times[0] if times else {}, {host: slow[0][host] for host in slow[0] if host in hosts} if slow else {}

    def _judge_pairs(self, run: RunData) -> _Judgement:
        """Fail if a pair is clearly slower than the others of its kind, twice, unless the ranks share cores or GPUs."""
        sentences = [sentence for _, sentence in load_findings(Frames(run.results, run.samples, ""))]
        if run.results.attrs.get("oversubscribed"):  # then no pair is judged, as the sentences say
            return "passed", sentences
        slow = self._slow_pairs(run)
        if not len(slow):
            if not pair_table(run)["is_slow"].any():
                return "passed", sentences
            limit = "Only pairs below half the median count on a CPU, and there are none."
            others = "No pair is slower than the other ones on one host, or between hosts."
            return "passed", [*sentences, limit if run.source in CPU_SOURCES else others]
        try:
            repetition = self._bench(CONFIRMATION, run.plan)
            _wait(repetition)
        except MeshlabError as error:
            return "failed", [f"{error.message}."]
        # One slow measurement is weak evidence, so a second one has to agree.
        keys = ["collective", "axis", "src_rank", "dst_rank"]
        confirmed = self._slow_pairs(repetition)
        twice = confirmed.merge(slow[keys].drop_duplicates(), on=keys)
        if not len(twice):
            return "passed", [*sentences, "The slow pairs were as fast as the others when they were measured again."]
        named = [_pair(row) for _, row in twice.head(_MOST_NAMED).iterrows()]
        more = f" and {len(twice) - len(named)} more" if len(twice) > len(named) else ""
        verb = "is" if len(twice) == 1 else "are"
        return "failed", [f"{count(len(twice), 'pair')} {verb} SLOW in two measurements: {', '.join(named)}{more}."]

    def _slow_pairs(self, run: RunData) -> pd.DataFrame:
        return _slow_pairs(run.results, self._hosts, least=SLOW_ON_CPU if run.source in CPU_SOURCES else SLOW)


# -- judgements --------------------------------------------------------------------------------------------------------


def _skipped(reason: str) -> _Finding:
    return "skipped", [reason]


def _installation(installation: Sequence[Check] | str | None, backends: Collection[str]) -> _Finding:
    """Judge the parts that the backends of the engines need. Other parts that are broken are notes."""
    if isinstance(installation, str):
        return _skipped(f"{installation}.")
    checks = run_checks() if installation is None else installation
    unneeded = [check for check in checks if check.backend and check.backend not in backends]
    broken = [check for check in checks if check.verdict == "broken" and check not in unneeded]
    if broken:
        return "failed", [f"{check.name} is broken: {check.text}; {check.fix}." for check in broken]
    doubtful = [f"{check.name}: {check.text}; {check.fix}." for check in checks if check.verdict == "warning"]
    users = f"{' and '.join(sorted(backends))} {'does' if len(backends) == 1 else 'do'}"
    doubtful += [
        f"{check.name} is broken, but {users} not need it: {check.text}; {check.fix}."
        for check in unneeded
        if check.verdict == "broken"
    ]
    return "passed", [f"{count(len(checks), 'part')} checked, and all required ones work.", *doubtful]


def _health(machine: Cluster | None, why_none: str) -> _Finding:
    if machine is None:
        return _skipped(f"{why_none}.")
    findings = machine.health()
    texts = [f"{finding.severity}: {finding.where}: {finding.message}; {finding.fix}." for finding in findings]
    summary = f"{findings.summary[:1].upper()}{findings.summary[1:]}."
    has_error = any(finding.severity == "error" for finding in findings)
    return "failed" if has_error else "passed", [summary, *texts]


def _wait(run: Run) -> None:
    """Wait for a run. At an interrupt, stop it after its step, or immediately at the next one or before a step ends."""
    try:
        run.wait()
    except KeyboardInterrupt:
        try:
            run.cancel(now=not has_measurements(run))
            with suppress(MeshlabError):
                run.wait(progress=False)
        except KeyboardInterrupt:
            with suppress(MeshlabError, KeyboardInterrupt):
                run.cancel(now=True)
                run.wait(_PATIENCE_S, progress=False)
        raise


def _slow_pairs(results: pd.DataFrame, hosts: Sequence[str], *, least: float) -> pd.DataFrame:
    """Return the slow pairs, the slowest first. Pairs on one host are not compared with pairs between hosts."""
    import pandas as pd

    pairs = results[results["src_rank"].notna()]
    places = np.array(hosts)
    local = places[pairs["src_rank"].to_numpy(int)] == places[pairs["dst_rank"].to_numpy(int)]
    tables = [pair_table(part) for part in (pairs[local], pairs[~local]) if len(part)]
    slow = [table[table["is_slow"].fillna(value=False) & (table["share"] < least)] for table in tables]
    slow = [table for table in slow if len(table)]
    return pd.concat(slow).sort_values("share", kind="stable") if slow else pairs[:0]


def _pair(row: pd.Series) -> str:
    rate = f"{format_bandwidth(row['busbw_gbs'])}, {100 * row['share']:.0f} % of the median"
    return f"{row['collective']} {pair_label_of(row)} ({rate})"


def _judge_contention(run: RunData) -> _Judgement:
    sentences = [sentence for _, sentence in load_findings(Frames(run.results, run.samples, ""))]
    return "passed", [*sentences, "Only wrong results count here, because there is no reference for contention."]


def _reference(answer: Answer | None) -> _Finding:
    """Judge the sweep by what is expected of such a machine."""
    if answer is None:
        return _skipped("nothing was measured.")
    if answer.outcome is None:
        reason = answer.sentences[0]  # why nothing is expected
        return _skipped(f"{reason[:1].lower()}{reason[1:]}")
    return answer.outcome, list(answer.sentences)


def _thresholds(answer: Answer | None, limits: Thresholds | None) -> _Finding:
    if limits is None:
        presets = ", ".join(Thresholds.presets())
        return _skipped(f"there are none for this machine. Pass a file of thresholds, or a preset: {presets}.")
    if answer is None or answer.outcome is None:
        return _skipped("nothing was measured.")
    return answer.outcome, list(answer.sentences)
