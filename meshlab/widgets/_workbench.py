"""Workbench: design a machine and a mesh interactively, see where its groups run, measure, compare and export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

import traitlets

from meshlab.base._arguments import Arguments
from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._collectives import usual_collective
from meshlab.base._errors import BenchError, MeshError, MeshlabError, TopologyError
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.prediction._job import Job
from meshlab.topology.model._presets import ClusterLike
from meshlab.traces._live import LiveTrace
from meshlab.traces._reading import Paths
from meshlab.traces._trace import Trace
from meshlab.widgets import _actions as actions
from meshlab.widgets import _edits as edits
from meshlab.widgets import _exports as exports
from meshlab.widgets import _panels as panels
from meshlab.widgets._assets import script, style
from meshlab.widgets._comparisons import CandidateComparison
from meshlab.widgets._decisions import Decision, pack_decision
from meshlab.widgets._drawings import Drawing
from meshlab.widgets._edits import Design, History
from meshlab.widgets._following import run_traits
from meshlab.widgets._job_tab import JobTab
from meshlab.widgets._jobs import as_job
from meshlab.widgets._machines import Machine
from meshlab.widgets._measuring import Measuring, panel_traits
from meshlab.widgets._outcomes import Outcomes
from meshlab.widgets._panels import AxisRow
from meshlab.widgets._picture import ARGUMENTS, Checked, Picture, PictureArguments, Text, reject_mesh
from meshlab.widgets._prices import predicted_lines

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark._run import Run
    from meshlab.engines._engines import Engines
    from meshlab.plans._plan import Plan
    from meshlab.plots._lines import Line
    from meshlab.prediction._search import Layouts
    from meshlab.prediction._step_time import StepTime
    from meshlab.runs._rundata import RunData

PANELS = ("machine", "mesh", "job", "table", "export", "measure", "runs", "trace")  # the panels around the picture
_NO_CALLS: Mapping[str, Any] = MappingProxyType({})


class WorkbenchArguments(PictureArguments, total=False):
    """The arguments of a workbench after the machine and the mesh. `Workbench` documents them."""

    engines: Engines | None
    run: RunData | None
    failed: Iterable[str]
    rest: str
    per_axis: Mapping[str, Any]
    pinned: tuple[Any, ...] | None
    job: Job | str | None
    experts: str
    panels: Iterable[str] | None
    selected: Iterable[int]
    tab: str


_OWN = {"engines": None, "run": None, "failed": (), "rest": "", "per_axis": _NO_CALLS, "pinned": None, "panels": None}
_OWN |= {"job": None, "experts": ""}
_OWN |= {"selected": (), "tab": "design"}
_ARGUMENTS = Arguments(WorkbenchArguments, {**ARGUMENTS.defaults, **_OWN})


class Workbench(Picture):
    """Design a machine and a mesh interactively, see where its groups run, and compare two candidates.

    The picture has a panel for the machine, one for the mesh, and a table of the axes. All attributes can be set from
    any thread, and follow the user's actions. Each change of the machine, the mesh, or the assumed messages can be
    undone.

    An invalid edit keeps the last valid state. The field is marked, and valid values near it are offered.

    Parameters
    ----------
    cluster : Cluster or str, optional
        The machine, or the name of a preset. By default this machine if it has GPUs, else four DGX H100.
    mesh : DeviceMesh or str, optional
        The mesh. By default data parallel across NVLink domains, and tensor parallel inside.
    engines : Engines, optional
        The engines that measure.
    run : Run, optional
        A run to show.
    axis, pick, color, focus, size, collective, values, height
        As for `Picture`.
    failed : iterable of str, default ()
        Parts that do not work: ``"node1"``, ``"node1/GPU3"``, ``"node1/NIC3"``, ``"node1/NIC3/cable"``,
        ``"node1/GPU3/NVLink"``, ``"node1/GPU3-GPU5"`` for the NVLink between two GPUs, ``"leaf:5"`` for a switch, or
        ``"leaf:5/uplink*4"`` for four uplinks. ``"node1/NIC3=50%"`` is slower. See `Cluster.with_failed`.
    rest : str, default ""
        The axis that is adjusted when the size of another axis changes. By default dp, or the largest axis.
    per_axis : mapping of str to (str, int or str), default {}
        Collective and message size of some axes, such as ``{"dp": ("all_gather", "1G")}``.
    pinned : tuple of (Cluster, DeviceMesh), optional
        The candidate A that the design is compared with, also with a third part, its job, and a fourth, its expert
        layout. Without a job, the job of the design runs on both.
    job : Job or str, optional
        The training job, or the name of a model, see `Job.preset`. Its step is predicted on the mesh.
    experts : str, default ""
        The expert layout of the job, such as ``"edp=2, ep=16"``, see `Job.step`.
    panels : sequence of str, optional
        The panels to show, of ``machine``, ``mesh``, ``job``, ``table``, ``export``, ``measure``, ``runs`` and
        ``trace``. By default all.
    selected : iterable of int, default ()
        The selected ranks.
    tab : str, default "design"
        The tab that is shown: ``"design"``, ``"measure"``, ``"runs"`` or ``"trace"``.

    Raises
    ------
    MeshError
        If the mesh has more ranks than the machine has devices.
    TopologyError
        If the preset is unknown, or a failed part does not exist.

    Examples
    --------
    >>> import meshlab as ml
    >>> wb = ml.Workbench("dgx-h100", "dp=2, tp=4", axis="tp")
    >>> wb.cluster = ml.preset("dgx-h100", nodes=4)
    >>> wb.failed = ["node1/NIC3"]
    >>> wb.mesh
    DeviceMesh('dp=8, tp=4')
    >>> print(wb.code)
    import meshlab as ml
    <BLANKLINE>
    cluster = ml.preset("dgx-h100", nodes=4)
    mesh = ml.DeviceMesh("dp=8, tp=4")
    wb = ml.Workbench(cluster, mesh, axis="tp", failed=("node1/NIC3",))
    wb
    >>> wb.undo()
    >>> wb.failed
    ()
    >>> wb.job = "llama3-8b"
    >>> print(wb.step_time.verdict)  # doctest: +ELLIPSIS
    12.1 to 19.7...s per step, 27...GiB of 72...GiB per GPU
    """

    _bundle = "workbench"
    _esm = script(_bundle)
    _css = style(_bundle)
    _run, _curve, _late, _details, _load = run_traits()
    _engines, _bench, _runs, _monitor = panel_traits()

    rest = Text("")
    """The axis that is adjusted when the size of another axis changes. Empty for the usual one."""

    failed = Checked((), Iterable, "a list of parts")
    """The parts of the machine that do not work, such as ``("node1/NIC3",)``. Settable."""

    per_axis = Checked(_NO_CALLS, Mapping, "calls by axis")
    """Collective and message size of the axes that do not have the usual ones."""

    pinned = traitlets.Any(None, allow_none=True)
    """The candidate A as (cluster, mesh), (cluster, mesh, job) or (cluster, mesh, job, experts), or None. Settable."""

    job = traitlets.Any(None, allow_none=True)
    """The training job, or None. Settable, also to the name of a model."""

    experts = Text("")
    """The expert layout of the job. Empty for one on which tp shards each expert."""

    tab = traitlets.Enum(("design", "measure", "runs", "trace"), "design").tag(sync=True)
    """The tab that is shown: ``"design"``, ``"measure"``, ``"runs"`` or ``"trace"``."""

    panels = Checked(PANELS, Iterable, "a sequence of names").tag(sync=True, to_json=lambda names, _: list(names))
    """The panels that are shown."""

    # None without a panel for runs, and if the constructor raises, because ipywidgets then calls `close`.
    _measuring: Measuring | None = None
    _panel = traitlets.Dict().tag(sync=True)  # the content of the panels, without the table
    _table = traitlets.Dict().tag(sync=True)  # the table of the axes
    _job = traitlets.Dict().tag(sync=True)  # the fields of the job, its step, and the layouts of a search
    _decision = traitlets.Dict().tag(sync=True)  # the comparison with candidate A, empty without one
    _trace = traitlets.Dict().tag(sync=True)  # the trace of a job, see `JobTab.content`
    # The picture of candidate A, as `_scene`, `_view` and `_loads`.
    _pinned_scene = traitlets.Dict().tag(sync=True)
    _pinned_view = traitlets.Dict().tag(sync=True)
    _pinned_loads = traitlets.Dict().tag(sync=True)
    _code = traitlets.Unicode("").tag(sync=True)  # the value of `code`

    @_ARGUMENTS.shown
    def __init__(
        self,
        cluster: ClusterLike | None = None,
        mesh: MeshLike | None = None,
        **arguments: Unpack[WorkbenchArguments],
    ) -> None:
        choice = _ARGUMENTS.complete(type(self).__name__, arguments)
        self._note = ""
        machine, shape = self._first(cluster, mesh)
        if machine is not None:
            machine = machine.without(*(name for name in choice["failed"] if name not in machine.failed))
        edits.check_fit(shape, machine)
        rest, calls = edits.check_rest(choice["rest"], shape), edits.check_calls(choice["per_axis"], shape)
        pinned, job = edits.as_candidate(choice["pinned"]), as_job(choice["job"])
        experts = edits.check_experts(choice["experts"], shape)
        self._design = Design(machine, shape, rest, choice["size"], calls, pinned, job, experts)
        self._history = History()
        self._problems: list[dict[str, Any]] = []  # the invalid edits, one a field
        self._outcomes = Outcomes()
        self._rows: list[AxisRow] = []
        self._is_flicked = False
        of_picture: PictureArguments = {name: choice[name] for name in ARGUMENTS.defaults}  # type: ignore[assignment]
        super().__init__(shape, None if machine is None else machine.cluster, **of_picture)
        with self._lock, self.hold_sync(), self._writing():
            self._mirror()
            if choice["panels"] is not None:
                self.panels = choice["panels"]
            self.selected, self.tab = tuple(choice["selected"]), choice["tab"]
        if {"measure", "runs"} & set(self.panels):
            self._measuring = Measuring(self, self._lock)
            self._measuring.opened, self._measuring.predict = self._show_mesh_of, self._predict
        self._job_tab = JobTab(self._lock, self._show_trace, lambda: self._design.mesh)
        self._trace = self._job_tab.content()
        if choice["engines"] is not None:
            self.engines = choice["engines"]
        if choice["run"] is not None:
            self.run = choice["run"]
        self.on_msg(self._receive)

    def _first(self, cluster: ClusterLike | None, mesh: MeshLike | None) -> tuple[Machine | None, DeviceMesh]:
        """Return the machine and the mesh of the first display."""
        reject_mesh(cluster)
        if cluster is None:
            machine, self._note = edits.first_machine(mesh)
        else:
            machine = Machine.of(cluster)
        if mesh is None:
            return machine, edits.usual_mesh(machine)
        return machine, as_mesh(mesh, fill=machine.cluster.n_devices or None)

    # -- values --------------------------------------------------------------------------------------------------------

    @property
    def code(self) -> str:
        """The code that recreates this workbench, and assigns it to ``wb``."""
        with self._lock:
            return self._make_code()

    @property
    def machine(self) -> str:
        """The machine without its failed parts, as Python code."""
        machine = self._design.machine
        return "" if machine is None else machine.code

    @property
    def summary(self) -> str:
        """The machine and the mesh in one line."""
        return panels.candidate_text(self._design.machine, self._design.mesh)

    def table(self) -> pd.DataFrame:
        """Return the table of the axes.

        Returns
        -------
        pandas.DataFrame
            One row per axis: ``axis``, ``size``, ``collective``, ``size_bytes``, ``placement`` (of its groups),
            ``gbs`` (bus bandwidth), ``time_us`` with the interval ``time_us_lo`` and ``time_us_hi``,
            ``basis`` (of the time), and ``pinned_time_us`` (of candidate A). Unknown values are missing.
        """
        with self._lock:
            return panels.table_frame(self._rows)

    def describe(self) -> str:
        """Return the workbench as text: machine, mesh, axes, findings, busiest links, and the difference to A."""
        with self._lock:
            lines = [super().describe()]
            if self._design.machine is not None and self.failed:
                lines.append(f"failed: {', '.join(self.failed)}")
            if self._design.pinned is not None:
                lines += ["compared with A:", *panels.difference_lines(self._design)]
            lines += self._outcomes.lines(self._design, self._drawn)
            if self._comparison is not None:
                lines += self._comparison.decision.lines()
            return "\n".join(lines)

    @property
    def step_time(self) -> StepTime | None:
        """The expected step of the job on the mesh. None without a job, or if it cannot run."""
        with self._lock:
            return self._outcomes.step(self._design, self._drawn).time

    @property
    def decision(self) -> str:
        """The sentence that decides between candidate A and the present design, B. Empty without A."""
        with self._lock:
            return "" if self._comparison is None else self._comparison.decision.sentence

    @property
    def comparison(self) -> Decision | None:
        """The decision with its table, None without candidate A."""
        with self._lock:
            return None if self._comparison is None else self._comparison.decision

    @property
    def differences(self) -> list[str]:
        """The differences between candidate A and the present design, as sentences. Empty without A."""
        with self._lock:
            return [] if self._design.pinned is None else panels.difference_lines(self._design)

    @property
    def pinned_summary(self) -> str:
        """The machine and the mesh of candidate A in one line. Empty without A."""
        pinned = self._design.pinned
        return "" if pinned is None else panels.candidate_text(pinned.machine, pinned.mesh)

    @property
    def step_problem(self) -> str:
        """Why the job has no step on the mesh, and the fix. Empty if it has one."""
        with self._lock:
            _, problem, fix = self._outcomes.step(self._design, self._drawn)
            return f"{problem}; {fix}" if fix else problem

    @property
    def layouts(self) -> Layouts | None:
        """The layouts that the last search found for this job on this machine, or None."""
        with self._lock:
            listing = self._outcomes.listing(self._design)
            return None if listing is None else listing.layouts

    def search(self) -> Layouts | None:
        """Search the layouts of the machine on which the job can run, and list the best ones. See `meshlab.search`.

        Returns
        -------
        Layouts or None
            The layouts, best first. None if there are none: the panel shows why.

        Raises
        ------
        MeshError
            If there is no job.
        TopologyError
            If there is no machine.

        Examples
        --------
        >>> import meshlab as ml
        >>> wb = ml.Workbench("dgx-h100", "dp=2, tp=4", job="llama3-8b")
        >>> layouts = wb.search()
        >>> wb.show(layouts.mesh(0))
        >>> wb.mesh
        DeviceMesh('dp=4, tp=2')
        """
        with self._lock:
            layouts = self._outcomes.search(self._design)
            self._send_job()
            return layouts

    def undo(self) -> None:
        """Discard an invalid edit, or undo the last change."""
        with self._lock:
            if self._problems or not self._history.past:
                self._problems = []
                self._send_panels()
                return
            design, self._history = self._history.undone(self._design)
            self._show_design(design)

    def redo(self) -> None:
        """Redo the change that was undone last."""
        with self._lock:
            if self._history.future:
                design, self._history = self._history.redone(self._design)
                self._show_design(design)

    def show(self, mesh: MeshLike | None = None, cluster: ClusterLike | None = None, axis: str | None = None) -> None:
        """Change the mesh, the machine and the axis together, as one step that can be undone.

        Parameters
        ----------
        mesh, cluster, axis
            As in `Picture.show`. A mesh that is kept follows the size of the machine.

        Raises
        ------
        MeshError
            If the mesh has more ranks than the machine has devices.

        Examples
        --------
        >>> import meshlab as ml
        >>> wb = ml.Workbench("dgx-h100", "dp=1, tp=8")
        >>> wb.show("pp=2, dp=1, tp=8", ml.preset("dgx-h100", nodes=2), axis="pp")
        >>> wb.undo()
        >>> wb.mesh
        DeviceMesh('dp=1, tp=8')
        """

        def changed(design: Design) -> Design:
            if cluster is not None:
                design = design.with_machine(Machine.of(cluster))
            if mesh is not None:
                shape = as_mesh(mesh, fill=design.devices or None)
                design = design.with_mesh(edits.check_fit(shape, design.machine))
            return design

        with self._lock, self.hold_sync():
            self._commit(changed)
            if axis is not None:
                self.axis = axis

    def fail(self, *parts: str) -> None:
        """Mark parts of the machine as failed, such as ``"node1/NIC3"``. `failed` lists them."""
        self._commit(lambda design: design.with_machine(design.present_machine.without(*parts)))

    def set_rate(self, *parts: str, rate: float | str) -> None:
        """Give NICs, NVLink or uplinks a lower rate, such as ``"50%"`` or ``"200 Gb/s"``. 1 restores the full rate."""
        self._commit(lambda design: design.with_machine(design.present_machine.with_rate(*parts, rate=rate)))

    def restore(self, *parts: str | None) -> None:
        """Restore failed parts, by default all."""
        names = [part for part in parts if part is not None]
        self._commit(lambda design: design.with_machine(design.present_machine.restored(*names)))

    def remove(self, *parts: str) -> None:
        """Remove parts of the machine."""
        self._commit(lambda design: design.with_machine(design.present_machine.without(*parts, is_removed=True)))

    def pin(self) -> None:
        """Keep the present machine and mesh as candidate A."""
        self._commit(Design.with_pin)

    def unpin(self) -> None:
        """Remove candidate A."""
        self._commit(lambda design: replace(design, pinned=None))

    def swap(self) -> None:
        """Exchange candidate A and the present machine and mesh."""
        self._commit(Design.swapped)

    # -- validation ----------------------------------------------------------------------------------------------------

    @traitlets.validate("mesh")
    def _check_mesh(self, proposal: Any) -> DeviceMesh | None:
        if self._is_writing:
            return proposal["value"]  # type: ignore[no-any-return]
        return edits.check_fit(as_mesh(proposal["value"], fill=self._total), self._design.machine)

    @property
    def _total(self) -> int | None:
        """The number of ranks that an edited mesh must have, None for any."""
        return self._design.devices or None

    @traitlets.validate("failed")
    def _check_failed(self, proposal: Any) -> tuple[str, ...]:
        names = proposal["value"]
        if isinstance(names, str):
            raise TopologyError(f"failed must be a list of parts, not {names!r}", hint=f"pass [{names!r}]")
        if self._is_writing:
            return tuple(names)
        return self._design.present_machine.with_failed(names).failed

    @traitlets.validate("rest", "per_axis", "experts")
    def _check_axes(self, proposal: Any) -> Any:
        return edits.CHECKS[proposal["trait"].name](proposal["value"], self._design.mesh)

    @traitlets.validate("pinned")
    def _check_pinned(self, proposal: Any) -> tuple[Any, ...] | None:
        if self._is_writing:
            return proposal["value"]  # type: ignore[no-any-return]
        candidate = edits.as_candidate(proposal["value"])
        return None if candidate is None else candidate.value

    @traitlets.validate("job")
    def _check_job(self, proposal: Any) -> Job | None:
        return as_job(proposal["value"])

    @traitlets.validate("panels")
    def _check_panels(self, proposal: Any) -> tuple[str, ...]:
        names = tuple(proposal["value"])
        unknown = [name for name in names if name not in (*PANELS, "picture")]
        if unknown:
            raise MeshError(f"unknown panel {unknown[0]!r}; choose one of {', '.join(PANELS)}")
        return names

    # -- changes -------------------------------------------------------------------------------------------------------

    @traitlets.observe("rest", "failed", "per_axis", "pinned", "job", "experts")
    def _design_changed(self, change: Any) -> None:
        with self._lock:
            if not self._is_writing:
                self._take(change["name"])

    def _take(self, name: str) -> None:
        """Update the workbench after a change of one attribute in code."""
        if name in edits.ATTRIBUTES:
            self._commit(lambda design: edits.with_attribute(design, name, getattr(self, name)))
        else:
            super()._take(name)

    def _commit(self, change: Callable[[Design], Design], problems: Iterable[dict[str, Any]] = ()) -> None:
        """Change the design as one step that can be undone. Of the invalid edits, `problems` stay on the page."""
        with self._lock:
            design = change(self._design)
            self._problems = list(problems)
            if design.equals(self._design):
                self._send_panels()
                return
            self._history = self._history.after(self._design)
            self._show_design(design)

    def _show_design(self, design: Design) -> None:
        with self._lock, self.hold_sync():
            self._design = design
            with self._writing():
                self._mirror()
            self._update(keep_axis=False)
            self._send_picture()

    def _mirror(self) -> None:
        """Set the attributes from the design."""
        design, machine = self._design, self._design.machine
        # Observers of one attribute may read the others, so those without a picture come first.
        self.failed = () if machine is None else machine.failed
        self.rest, self.per_axis, self.size = design.rest, design.per_axis, design.size
        self.pinned = None if design.pinned is None else design.pinned.value
        self.job, self.experts = design.job, design.experts
        self.cluster = None if machine is None else machine.cluster
        self.mesh = design.mesh

    def _flick(self, is_on: bool) -> None:
        """Show candidate A in the picture, or the present one again."""
        with self._lock:
            if self._is_flicked != is_on and (not is_on or self._design.pinned is not None):
                self._is_flicked = is_on
                super()._send_picture()

    def _call_of(self, axis: str) -> tuple[str, int | str]:
        usual = (self.collective or usual_collective(axis), self._design.size)
        return self._design.per_axis.get(axis, usual)

    # -- runs ----------------------------------------------------------------------------------------------------------

    @property
    def engines(self) -> Engines | None:
        """The engines that measure, or None. Settable."""
        return self._measures.engines

    @engines.setter
    def engines(self, engines: Engines | None) -> None:
        self._measures.engines = engines

    @property
    def run(self) -> RunData | None:
        """The run that is shown, or None. Settable, also to a saved run."""
        return self._measures.run

    @run.setter
    def run(self, run: RunData | None) -> None:
        self._measures.run = run

    @property
    def runs(self) -> tuple[RunData, ...]:
        """The runs of this workbench, the latest last."""
        return tuple(self._measures.runs)

    @property
    def trace(self) -> Trace | LiveTrace | None:
        """The trace of a job that the tab Job shows, or None. Settable, also to files, a folder, or `Trace.follow`."""
        return self._job_tab.trace

    @trace.setter
    def trace(self, trace: Trace | LiveTrace | Paths | None) -> None:
        with self._lock:
            machine = self.run if self._measuring is not None else None
            if not (trace is None or isinstance(trace, (Trace, LiveTrace))):
                trace = Trace.read(trace)
            self._job_tab.open(trace, machine)

    def _show_trace(self, content: dict[str, Any]) -> None:
        self._trace = content

    def start(self, **choice: Any) -> Run:
        """Start a run on the engines, and show it.

        Parameters
        ----------
        **choice
            Arguments of `meshlab.bench`. By default those of the form in the tab Measure.

        Returns
        -------
        Run
            The run.

        Raises
        ------
        EngineError
            If there are no engines, or they are busy.
        MeshError
            If the mesh does not have one rank per engine.

        Examples
        --------
        >>> import meshlab as ml
        >>> with ml.launch(4, backend="threads") as engines:
        ...     wb = ml.widgets.Workbench("dgx-h100", "dp=2, tp=2", engines=engines)
        ...     results = wb.start(axis="tp", sizes="1K, 4K").wait()
        >>> wb.run.state, len(wb.runs)
        ('done', 1)
        """
        return self._measures.start(**choice)

    def pause(self) -> None:
        """Pause the run after the current step."""
        self._measures.control("run.pause")

    def resume(self) -> None:
        """Continue a paused run."""
        self._measures.control("run.resume")

    def cancel(self, *, now: bool = False) -> None:
        """Stop the run after the current step or, with `now`, kill its ranks. The rows are kept."""
        self._measures.control("run.end" if now else "run.stop")

    @property
    def _measures(self) -> Measuring:
        if self._measuring is None:
            raise BenchError("this workbench has no panel for runs", hint="create it without panels=")
        return self._measuring

    def _show_mesh_of(self, run: RunData) -> None:
        """Take over the mesh of a run that the user opens, if the machine has enough devices."""
        with suppress(MeshlabError):
            self.show(run.mesh)

    def close(self) -> None:
        """Remove the workbench from the page, and stop the engines that it started."""
        if self._measuring is not None:
            self._measuring.close()
        super().close()

    # -- messages to the front end -------------------------------------------------------------------------------------

    def _send_picture(self) -> None:
        with self.hold_sync():
            super()._send_picture()
            self._send_panels()
            self._send_form()

    @traitlets.observe("tab")
    def _tab_changed(self, _: Any) -> None:
        with self._lock:
            self._send_form()

    def _send_form(self) -> None:
        """Send the form of the next run, which depends on the mesh, if it is shown."""
        if self._measuring is not None and self.tab == "measure":
            self._measuring.show_all()

    @property
    def _displayed(self) -> Drawing:
        return (self._drawing_of_a if self._is_flicked else None) or self._drawn

    def _pack(self, drawing: Drawing) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        design, is_of_a = self._design, drawing is not self._drawn
        machine = design.pinned.machine if is_of_a and design.pinned is not None else design.machine
        marks = [] if machine is None else [mark.to_dict() for mark in machine.marks]
        scene, view, loads = super()._pack(drawing)
        return scene, {**view, "failed": marks, "is_flicked": is_of_a}, loads

    def pictures(self, axis: str = "") -> dict[str, str]:
        """Return the pictures of an axis as SVG by candidate: ``"B"`` is the present design, ``"A"`` if it is pinned.

        Parameters
        ----------
        axis : str, optional
            The axis. By default the one that is shown. A mesh without it is shown with its fastest axis.
        """
        with self._lock:
            drawings, svg = {"A": self._drawing_of_a, "B": self._drawn}, {}
            for name, drawing in drawings.items():
                if drawing is not None and drawing.mesh is not None:
                    word = axis if axis in drawing.mesh.creation_order else drawing.view.word
                    svg[name] = drawing.svg(word, None, (self.collective, self.size))
            return svg

    def _send_panels(self) -> None:
        design = self._design
        self._rows = panels.axis_rows(self._drawn, _NO_CALLS if self._comparison is None else self._comparison.times)
        with self.hold_sync():
            self._panel = {
                **panels.design_panel(design, self._drawn),
                "edit": self._edit,
                "title": type(self).__name__,
                "undo": bool(self._history.past) or bool(self._problems),
                "redo": bool(self._history.future),
                "problems": self._problems,
                "note": self._note,
            }
            self._table = panels.pack_rows(self._rows, design.per_axis)
            self._code = self._make_code()
            self._send_job()
            self._send_pinned()

    def _send_job(self) -> None:
        self._job = {"edit": self._edit, **self._outcomes.panel(self._design, self._drawn)}

    def _show_routing(self, is_shown: bool) -> None:
        with self._lock:
            self._outcomes.shows_routing = is_shown
            self._send_job()

    @property
    def _comparison(self) -> CandidateComparison | None:
        """The comparison with candidate A, None without one."""
        return self._outcomes.comparison(self._design, self._drawn, self.axis)

    @property
    def _drawing_of_a(self) -> Drawing | None:
        return self._outcomes.drawing_of_a(self._design, self._drawn, self.axis)

    def _send_pinned(self) -> None:
        """Send the comparison with candidate A, and its picture."""
        comparison, drawing = self._comparison, self._drawing_of_a
        if comparison is None or drawing is None:
            self._decision = self._pinned_scene = self._pinned_view = self._pinned_loads = {}
            return
        self._decision = {"edit": self._edit, **pack_decision(comparison.decision)}
        self._pinned_scene, self._pinned_view, self._pinned_loads = self._pack(drawing)

    def _predict(self, mesh: DeviceMesh, plan: Plan) -> Mapping[str, Line]:
        """Return the predicted lines of a run on the machine. A run on CPUs is not on this machine."""
        cluster, run = self.cluster, self.run
        if cluster is None or run is None or run.source not in GPU_BACKENDS or cluster.n_devices < mesh.world_size:
            return {}
        return predicted_lines(mesh, cluster, plan)

    def _make_code(self) -> str:
        return exports.program(self, self._design)

    # -- messages of the front end -------------------------------------------------------------------------------------

    @traitlets.observe("pick", "color", "focus", "selected", "tab", "panels", "height")
    def _view_changed(self, _: Any) -> None:
        with self._lock:
            if not self._is_writing:
                self._code = self._make_code()

    def _receive(self, _: Any, content: Any, buffers: Any) -> None:
        """Handle a message of the front end, whose ``type`` selects the action."""
        kind = content.get("type", "") if isinstance(content, dict) else ""
        if kind == "edit":
            self._edited(content)
        elif kind == "export":
            self.send({"type": "export", **exports.export(self, str(content.get("what", "")))})
        elif kind == "flick":
            self._flick(bool(content.get("on")))
        elif kind == "search":
            with suppress(MeshlabError):  # the job was removed in the meantime
                self.search()
            self.send({"type": "searched"})  # the same layouts as before change no trait
        elif kind == "routing":
            self._show_routing(bool(content.get("open")))
        elif kind == "trace":
            self._job_tab.receive(content)
        elif self._measuring is not None and kind.partition(".")[0] in ("measure", "run", "monitor"):
            self._measuring.receive(content, buffers)

    def _edited(self, content: dict[str, Any]) -> None:
        """Apply an edit of the front end, or explain why it is not possible."""
        with self._lock, self.hold_sync():
            self._edit = max(self._edit, int(content.get("edit", 0)))
            action = str(content.get("action", ""))
            if action in ("undo", "redo"):
                self.undo() if action == "undo" else self.redo()
                self._send_picture()
                return
            self._note = ""
            # The user has not seen yet that these edits are invalid, so an edit of another field leaves them.
            seen, where = int(content.get("seen", self._edit)), actions.field_of(content)
            unseen = [fault for fault in self._problems if fault["edit"] > seen and fault["where"] != where]
            try:
                design, self._note = actions.act(self._design, action, content, self._total)
            except MeshlabError as error:
                self._problems = [*unseen, actions.problem_of(self._design, error, content)]
                self._send_picture()  # the front end may show the outcome that it expected
            else:
                before = self._design
                self._commit(lambda _: design, unseen)
                if before is self._design:
                    self._send_picture()
