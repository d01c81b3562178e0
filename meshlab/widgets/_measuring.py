"""Measuring: the engines, the runs and the monitor of a workbench, and the plan that its form describes."""

from __future__ import annotations

import functools
import math
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import traitlets

from meshlab.base._backends import BACKENDS, GPU_BACKENDS, automatic_backend
from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshError, MeshlabError
from meshlab.benchmark._bench import bench, check_fit
from meshlab.benchmark._run import Run
from meshlab.comm._catalog import CATALOG
from meshlab.engines._engines import Engines
from meshlab.engines._launch import count_gpus, launch
from meshlab.engines._monitor import LoadMonitor
from meshlab.mesh._axes import WORLD, nearest_axes
from meshlab.mesh._mesh import DeviceMesh, as_mesh
from meshlab.plans._plan import Plan
from meshlab.plans._steps import PAIRED
from meshlab.plots._lines import Line, lines_of
from meshlab.runs._rundata import RunData
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.placement._placement import place
from meshlab.widgets._details import details_of
from meshlab.widgets._following import RunFollower, RunView, curve_state, run_state
from meshlab.widgets._live import control_run
from meshlab.widgets._readings import load_rows, load_state, ranks_by_device
from meshlab.widgets._run_list import RunList, label_of, overlaid_lines

_TICK_S = 1.0
_HISTORY = 120  # readings of the monitor that a front end draws
_UNSEEN_S = 60.0  # the monitor stops if no front end has asked for it for so long
_MOST_CHIPS = 256
_MOST_RANKS = 8  # that are offered for a mesh
_MOST_CHOSEN = 64
_FORM: Mapping[str, Any] = MappingProxyType(
    {
        "mesh": "",
        "collectives": ["all_reduce"],
        "axis": "",
        "sizes": "1K:16M",
        "mode": "pipelined",
        "grouping": "together",
        "launches": 1,
        "sampling": "default",
    }
)
_GROUPINGS = ("together", "together, alone", "pairs")
_SAMPLINGS = ("quick", "default", "thorough")


class MeasuringView(RunView, Protocol):
    """A widget with the traits of `run_traits` and `panel_traits`, which may be set on any thread."""

    _engines: dict[str, Any]  # the engines, the state of their ranks, and the engines that can be started
    _bench: dict[str, Any]  # the form of the next run, its choices, its problems, and the estimate
    _runs: dict[str, Any]  # the runs of this session and of a folder, and the comparison of two of them
    _monitor: dict[str, Any]  # The latest readings of every host and GPU. Empty while the monitor is closed.

    @property
    def mesh(self) -> DeviceMesh | None: ...

    @property
    def cluster(self) -> Cluster | None: ...


def panel_traits() -> tuple[Any, Any, Any, Any]:
    """Return new synced traits for `_engines`, `_bench`, `_runs` and `_monitor` of a widget class."""
    engines, bench, runs, monitor = (traitlets.Dict().tag(sync=True) for _ in range(4))
    return engines, bench, runs, monitor


class Measuring:
    """Starts engines and runs for a view, and keeps its traits up to date. All methods can be called on any thread."""

    # Methods return soon: engines start, and runs are read, on separate threads.

    def __init__(self, view: MeasuringView, lock: threading.RLock | None = None) -> None:
        self._view = view
        # The lock of the view, because with two locks its thread and those of the runs could wait for each other.
        self._lock = lock or threading.RLock()
        self._engines: Engines | None = None
        self._is_started_here = False
        self._doing = ""
        self._problem = ""
        self._run: RunData | None = None
        self._follower: RunFollower | None = None
        self.list = RunList(view, self._lock)
        """The runs of this session and of a folder."""
        self.list.repeat = self._repeat
        self._due: list[tuple[RunData, int]] = []  # runs to measure again, and their numbers of launches
        self._repeated: list[str] = []
        self._overlaid: Mapping[str, Line] = {}
        self._is_overlay_chosen = False
        self.predict: Callable[[DeviceMesh, Plan], Mapping[str, Line]] = lambda mesh, plan: {}
        """Returns the predicted lines of a plan, by the names of their measured lines."""
        self.opened: Callable[[RunData], None] = lambda run: None
        """Called with a run that the user opens from the list."""
        self._form: dict[str, Any] = dict(_FORM)
        self._edit = 0
        self._monitor: LoadMonitor | None = None
        self._seen_at = 0.0
        self._history: dict[str, deque[float]] = {}
        self._ticker: threading.Thread | None = None
        self._is_closed = False
        self.show_all()

    # -- engines -------------------------------------------------------------------------------------------------------

    @property
    def engines(self) -> Engines | None:
        """The engines that measure, or None."""
        return self._engines

    @engines.setter
    def engines(self, engines: Engines | None) -> None:
        if engines is not None and not isinstance(engines, Engines):
            raise EngineError(f"engines must be Engines or None, not {type(engines).__name__}", hint="call launch()")
        with self._lock:
            self._engines, self._is_started_here, self._problem = engines, False, ""
            if self._monitor is not None:
                self._reopen_monitor()
            self.show_all()
            self._tick_on()

    def start_engines(self, n: int, backend: str) -> None:
        """Start engines on this host, in the background."""

        def start() -> None:
            engines = launch(n, backend=backend)
            if self._is_closed:
                engines.close()
                return
            self.engines, self._is_started_here = engines, True

        self._in_background(f"starting {n} rank{'s' * (n != 1)}", start)

    def restart_engines(self) -> None:
        """Start new ranks in place of the dead ones, in the background."""
        engines = self._engines

        def restart() -> None:
            if engines is not None:
                engines.restart()
            if self._follower is not None and isinstance(self._run, Run):
                self._follower.show(self._run)

        if engines is not None:
            self._in_background("starting new ranks", restart)

    def close_engines(self) -> None:
        """Stop the engines, if they were started here."""
        engines = self._engines
        if engines is None or not self._is_started_here:
            return

        def close() -> None:
            engines.close(cancel=True)
            self.engines = None

        self._in_background("stopping the ranks", close)

    def _in_background(self, doing: str, act: Callable[[], None]) -> None:
        """Run a function on a thread, and show its error in the line of the engines."""
        with self._lock:
            if self._doing:
                return
            self._doing, self._problem = doing, ""
            self._show_engines()

        def work() -> None:
            problem = ""
            try:
                act()
            except MeshlabError as error:
                problem = str(error).splitlines()[0]
            except Exception as error:  # the panel must not stay busy forever
                problem = f"{type(error).__name__}: {error}"
            with self._lock:
                self._doing, self._problem = "", problem
                self.show_all()

        threading.Thread(target=work, name="meshlab workbench engines", daemon=True).start()

    # -- runs ----------------------------------------------------------------------------------------------------------

    @property
    def runs(self) -> list[RunData]:
        """The runs of this session, the latest last."""
        return self.list.session

    @property
    def run(self) -> RunData | None:
        """The run that is shown. Set it to a live or a saved run."""
        return self._run

    @run.setter
    def run(self, run: RunData | None) -> None:
        if run is not None and not isinstance(run, RunData):
            raise BenchError(
                f"run must be a run or None, not {type(run).__name__}", hint="pass bench(…) or Run.load(…)"
            )
        with self._lock:
            if self._follower is not None:
                self._follower.leave()
                self._follower = None
            self._run = run
            self.list.shown = "" if run is None else run.run_id
            if run is None:
                with self._view.hold_sync():
                    self._view._run, self._view._curve, self._view._late, self._view._details = {}, {}, {}, []
                    self._view._load = {}
                return
            if run.run_id not in {other.run_id for other in self.runs}:
                self.runs.append(run)
            if isinstance(run, Run):
                self._follow(run)
            else:
                self._show_saved(run)
            self.list.show()

    def start(self, **choice: Any) -> Run:
        """Start a run with arguments of `meshlab.bench`, by default those of the form."""
        with self._lock:
            engines = self._engines
            if engines is None:
                raise EngineError("no engines are running", hint="set engines, or start them in the panel Measure")
            mesh, previous = choice.pop("mesh", None), self._run
            if choice or mesh is not None:
                run = bench(engines, self._measured_mesh(is_exact=True) if mesh is None else mesh, **choice)
            else:
                run = bench(engines, *self._plan())
            self._overlay_previous(run, previous)
            self.run = run
            self._tick_on()
            self.show_all()
            return run

    def _overlay_previous(self, run: Run, previous: RunData | None) -> None:
        """Draw the run before next to a new run on the same ranks, unless the user has chosen other runs."""
        if self._is_overlay_chosen:
            return
        is_same = previous is not None and (previous.where, previous.mesh) == (run.where, run.mesh)
        self._overlaid, self.list.overlaid = {}, []
        if previous is not None and is_same and previous.plan.collective == run.plan.collective:
            self._overlaid, self.list.overlaid = overlaid_lines([previous]), [previous.run_id]

    def control(self, action: str) -> None:
        """Pause, resume, stop or end the run, see `control_run`. A saved run stays as it is."""
        if isinstance(self._run, Run):
            control_run(self._run, action)

    def _follow(self, run: Run) -> None:
        predicted, references = {}, {}
        with suppress(MeshlabError):  # a run is shown without its prediction rather than not at all
            lines = self.predict(run.mesh, run.plan)
            predicted = {name or run.plan.collective[0]: line for name, line in lines.items()}  # as its measured line
            references = self._references(run)
        follower = RunFollower(run, self._view, predicted=predicted, references=references, overlaid=self._overlaid)
        self._follower = follower
        follower.when_over(self._run_ended)

    def _references(self, run: RunData) -> dict[str, float]:
        """Return the rate of the slowest link of each measured axis, if the run is on the machine of the view."""
        cluster = self._view.cluster
        if run.source not in GPU_BACKENDS or cluster is None or cluster.n_devices < run.mesh.world_size:
            return {}
        placement, levels = place(run.mesh, cluster), {}
        for axis in run.plan.axis:
            rates = placement.of(axis).ring_gbs
            if np.isfinite(rates).any():
                levels[f"{axis}: slowest link"] = float(np.nanmin(rates))
        return levels

    def _run_ended(self) -> None:
        with self._lock:
            self.show_all()
        if self._repeated and isinstance(self._run, Run):
            if self._run.state != "done":
                self._due, self._repeated = [], []
                return
            self._in_background("measuring again", self._repeat_next)

    def _show_saved(self, run: RunData) -> None:
        lines = {line.name or run.plan.collective[0]: line for line in lines_of(run.results, "busbw_gbs") if len(line)}
        with self._view.hold_sync():
            self._view._run, self._view._late = run_state(run), {}
            self._view._curve = curve_state(run.where, lines, overlaid=self._overlaid)
            self._view._details, self._view._load = details_of(run), load_state(run)

    # -- the form ------------------------------------------------------------------------------------------------------

    def _measured_mesh(self, *, is_exact: bool = False) -> DeviceMesh:
        """Return the mesh of the form, or else that of the view, or unless `is_exact` one near it for these ranks."""
        n = None if self._engines is None else self._engines.world_size
        text = self._form["mesh"].strip()
        mesh = as_mesh(text, fill=n) if text else self._view.mesh
        if mesh is not None and not text and not is_exact and n not in (None, mesh.world_size):
            # The ranks that run are not those of the design. Of the meshes near it, one with most of its axes.
            mesh = as_mesh(max(self._fitting_meshes(), key=lambda option: option.count("=")))
        if mesh is None:
            raise MeshError("there is no mesh to measure", hint="write one, such as tp=4")
        if n is not None and mesh.world_size != n:
            ranks = f"{n:,} rank{'s' * (n != 1)} {'is' if n == 1 else 'are'} running"
            raise MeshError(f"{mesh} has {mesh.world_size:,} ranks, but {ranks}")
        return mesh

    def _plan(self) -> tuple[DeviceMesh, Plan]:
        form, mesh = self._form, self._measured_mesh()
        is_pairs = form["grouping"] == "pairs"
        axis = form["axis"] or (WORLD if is_pairs else mesh.axis_names)
        plan = Plan(
            list(PAIRED if is_pairs else form["collectives"]),
            axis,
            sizes=form["sizes"],
            mode=form["mode"],
            grouping=form["grouping"],
            launches=form["launches"],
            sampling=form["sampling"],
        )
        plan.steps(mesh)  # raises if they do not match
        return mesh, plan

    def _show_bench(self) -> None:
        engines, form, problems = self._engines, self._form, dict[str, str]()
        estimate, options = "", list[str]()
        try:
            mesh: DeviceMesh | None = self._measured_mesh()
        except MeshlabError as error:
            mesh, problems["mesh"] = None, str(error)
        options = [text for text in self._fitting_meshes() if text != str(mesh)]
        if mesh is not None:
            try:
                _, plan = self._plan()
                if engines is not None:
                    check_fit(engines, mesh, plan)
                backend = automatic_backend(has_gpus=False) if engines is None else engines.backend
                estimate = str(plan.estimate(mesh, backend=backend))
            except MeshlabError as error:
                problems[_field_of(str(error))] = str(error)
        can = None if engines is None else engines.ranks[0].capabilities
        chosen = mesh or self._view.mesh
        axes = [] if chosen is None else list(chosen.creation_order)
        state = "none" if engines is None else engines.state
        why = {
            "none": "No engines are running.",
            "busy": "The engines are busy.",
            "broken": "The ranks have stopped.",
            "closing": "The engines are closing.",
            "closed": "The engines are closed.",
        }.get(state, "")
        self._view._bench = {
            "edit": self._edit,
            "form": {**form, "collectives": list(form["collectives"])},
            "mesh": "" if chosen is None else str(chosen),
            "collectives": [name for name in (CATALOG if can is None else can.collectives) if name not in _SPECIAL],
            "axes": axes,
            "modes": ["isolated", "pipelined", "graph"] if can is None else list(can.modes),
            "groupings": list(_GROUPINGS),
            "samplings": list(_SAMPLINGS),
            "problems": problems,
            "meshes": options,
            "estimate": estimate,
            "can_start": not problems and not why and not self._doing,
            "why": why,
            "groups": {} if mesh is None or engines is None else _groups_of(mesh),
        }

    def _fitting_meshes(self) -> list[str]:
        """Return meshes near to that of the view that have one rank per engine."""
        mesh, engines = self._view.mesh, self._engines
        if engines is None:
            return []
        n = engines.world_size
        names, sizes = (("tp",), (n,)) if mesh is None else (mesh.axis_names, mesh.shape)
        options = nearest_axes(names, sizes, n, most=3)
        return [", ".join(f"{name}={size}" for name, size in axes if size > 1) or f"{names[-1]}=1" for axes in options]

    # -- display -------------------------------------------------------------------------------------------------------

    def show_all(self) -> None:
        """Send everything to the front end. Call it after a change of the mesh or the machine of the view."""
        with self._lock, self._view.hold_sync():
            self._show_engines()
            self._show_bench()
            self.list.show()

    def _show_engines(self) -> None:
        engines = self._engines
        if engines is None:
            nothing = {"state": "none", "text": "No engines", "doing": self._doing, "problem": self._problem}
            choices = _choices(self._view.mesh)
            self._view._engines = {**nothing, "ranks": [], "more": 0, "choices": choices, "is_own": False}
            return
        state = engines.state
        dead = _dead_ranks(engines) if state == "ready" else set()
        calls = engines.calls() if state == "busy" else []
        word = {"ready": "idle", "broken": "stopped"}.get(state, state)
        error = None if self._run is None else self._run.error
        culprit = error.rank if state == "broken" and isinstance(error, EngineError | CommunicatorError) else None
        ranks = [
            [
                info.rank,
                "dead" if info.rank in dead or info.rank == culprit else word,
                f"rank {info.rank} · {info.host} · process {info.pid}"
                + (f" · {calls[info.rank]:,} calls" if calls and calls[info.rank] >= 0 else ""),
            ]
            for info in engines.ranks[:_MOST_CHIPS]
        ]
        problem = self._problem
        if dead and not problem:
            problem = f"rank {min(dead)} has died"
        elif state == "broken" and not problem and not self._view._run.get("can_restart"):
            problem = f"the ranks have stopped: {engines.problem}"  # otherwise the run shows it
        self._view._engines = {
            "state": "broken" if dead else state,
            "text": engines.where,
            "doing": self._doing or engines.task,
            "problem": problem,
            "ranks": ranks,
            "more": max(0, len(engines.ranks) - _MOST_CHIPS),
            "choices": _choices(self._view.mesh),
            "is_own": self._is_started_here,
            "hosts": [info.host for info in engines.ranks[:_MOST_CHIPS]],
        }

    # -- the list of runs ----------------------------------------------------------------------------------------------

    def _open(self, key: str) -> None:
        try:
            run = self.list.run_of(key)
        except MeshlabError as error:
            self.list.fail(error)
            return
        self.run = run
        self.opened(run)

    def _repeat(self, runs: Sequence[RunData], launches: int) -> None:
        """Measure the plans of runs again, one after the other, then compare the new runs."""
        with self._lock:
            if self._engines is None or self._engines.state != "ready":
                raise EngineError("there are no idle ranks to measure on", hint="start them in the tab Measure")
            self._due = [(run, launches) for run in runs]
            self._repeated = []
        self._repeat_next()

    def _repeat_next(self) -> None:
        with self._lock:
            if not self._due:
                repeated, self._repeated = self._repeated, []
                if len(repeated) > 1:
                    self.list.compare(repeated)
                return
            (old, launches), *self._due = self._due
            run = self.start(mesh=old.mesh, collective=replace(old.plan, launches=launches))
            run.name = f"{label_of(old)}, {launches} launches"
            self._repeated.append(run.run_id)
            self.list.show()

    def _overlay(self, keys: Sequence[str]) -> None:
        """Draw the lines of other runs next to those of the run that is shown."""
        try:
            runs = [self.list.run_of(key) for key in keys]
        except MeshlabError as error:
            self.list.fail(error)
            return
        with self._lock:
            self.list.overlaid, self._is_overlay_chosen = list(keys), True
            self._overlaid = overlaid_lines(runs)
            if self._follower is not None:
                self._follower.overlay(self._overlaid)
            elif self._run is not None:
                self._show_saved(self._run)
            self.list.show()

    # -- the monitor ---------------------------------------------------------------------------------------------------

    def open_monitor(self) -> None:
        """Start to read the load of the hosts and their GPUs."""
        with self._lock:
            self._seen_at = time.monotonic()
            if self._monitor is None:
                self._reopen_monitor()
                self._tick_on()

    def close_monitor(self) -> None:
        """Stop the readings."""
        with self._lock:
            monitor, self._monitor = self._monitor, None
            self._history.clear()
            self._view._monitor = {}
        if monitor is not None:
            monitor.close()

    def _reopen_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        engines = self._engines
        self._monitor = LoadMonitor(engines if engines is not None and engines.state != "closed" else None)
        self._view._monitor = {"rows": [], "at": 0}

    def _show_monitor(self) -> None:
        monitor = self._monitor
        if monitor is None:
            return
        run = self._run
        if isinstance(run, Run) and not run.has_ended:
            # The run records its hosts itself, between its steps. A second reader would only disturb it.
            monitor.pause()
            self._view._monitor = {"rows": [], "at": 0, "is_paused": True}
            return
        readings = monitor.read()
        ranks = ranks_by_device(self._engines)
        rows = [row for reading in readings for row in load_rows(reading, ranks, len(readings) > 1)]
        for row in rows:
            history = self._history.setdefault(row["key"], deque(maxlen=_HISTORY))
            history.append(row["share"])
            row["history"] = list(history)
        if rows and self._monitor is monitor:
            self._view._monitor = {"rows": rows, "at": max(reading["at"] for reading in readings)}

    # -- messages and time ---------------------------------------------------------------------------------------------

    def receive(self, message: Mapping[str, Any], buffers: Any = None) -> None:
        """Act on a message of the front end."""
        kind = str(message.get("type"))
        if kind.startswith("run."):
            self._receive_run(kind, message)
        elif kind == "measure.start":
            try:
                self.start()
            except MeshlabError as error:
                with self._lock:
                    self._problem = str(error).splitlines()[0]
                    self.show_all()
        elif kind == "measure.form":
            with self._lock:
                self._edit = max(self._edit, int(message.get("edit", 0)))
                self._form = _clean_form({**self._form, **dict(message.get("form", {}))})
                self._show_bench()
        elif kind == "measure.engines":
            action = message.get("action")
            if action == "start":
                self.start_engines(max(1, int(message["n"])), str(message["backend"]))
            elif action == "restart":
                self.restart_engines()
            elif action == "close":
                self.close_engines()
        elif kind in ("monitor.open", "monitor.alive"):
            self.open_monitor()
        elif kind == "monitor.close":
            self.close_monitor()

    def _receive_run(self, kind: str, message: Mapping[str, Any]) -> None:
        if self.list.receive(kind, message):
            return
        if kind == "run.overlay":
            self._overlay([str(key) for key in message.get("keys", ())])
        elif kind == "run.open":
            self._open(str(message["key"]))
        elif kind == "run.restart":
            self.restart_engines()
        else:
            self.control(kind)

    def _tick_on(self) -> None:
        """Start the thread that looks at the engines and the monitor, unless it is running."""
        if self._ticker is not None and self._ticker.is_alive():
            return
        # The thread holds no reference while it waits, so that an unused workbench can be collected.
        reference = weakref.ref(self)

        def work() -> None:
            while True:
                time.sleep(_TICK_S)
                measuring = reference()
                if measuring is None or not measuring._tick():
                    return
                del measuring

        self._ticker = threading.Thread(target=work, name="meshlab workbench", daemon=True)
        self._ticker.start()

    def _tick(self) -> bool:
        """Look at the engines and the monitor. Return False if both are closed."""
        if self._is_closed:
            return False
        with self._lock:
            if self._monitor is not None and time.monotonic() - self._seen_at > _UNSEEN_S:
                self.close_monitor()
            before = (self._view._engines.get("state"), self._view._engines.get("doing") == "")
            with self._view.hold_sync():
                self._show_engines()
                if before != (self._view._engines["state"], self._view._engines["doing"] == ""):
                    self._show_bench()
        self._show_monitor()
        with self._lock:
            is_needed = self._monitor is not None or (self._engines is not None and self._engines.state != "closed")
            if not is_needed:
                self._ticker = None
            return is_needed

    def close(self) -> None:
        """Stop the monitor, and the engines that were started here."""
        with self._lock:
            self._is_closed = True
            if self._follower is not None:
                self._follower.leave()
        self.close_monitor()
        if self._is_started_here and self._engines is not None:
            with suppress(EngineError):
                self._engines.close(cancel=True)


def _groups_of(mesh: DeviceMesh) -> dict[str, list[int]]:
    """Return the number of the group of each rank, by axis, for the picture of the ranks."""
    n = min(mesh.world_size, _MOST_CHIPS)
    return {axis: mesh[axis].color[:n].tolist() for axis in mesh.axis_names}


# Collectives that the form does not offer: they need further arguments, or have no size.
_SPECIAL = frozenset(name for name, row in CATALOG.items() if row.counted or not row.is_measurable)


def _clean_form(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields with the types that a plan expects."""
    launches = form["launches"]
    is_number = isinstance(launches, (int, float)) and math.isfinite(launches)
    return {
        **{name: str(form[name]) for name in ("mesh", "axis", "sizes", "mode")},
        "collectives": [str(name) for name in form["collectives"]] or list(_FORM["collectives"]),
        "grouping": form["grouping"] if form["grouping"] in _GROUPINGS else "together",
        "sampling": form["sampling"] if form["sampling"] in _SAMPLINGS else "default",
        "launches": min(max(int(launches), 1), 99) if is_number else 1,
    }


def _field_of(message: str) -> str:
    """Return the field of the form that an error of a plan is about."""
    words = {"size": "sizes", "axis": "axis", "mode": "mode", "launch": "launches", "collective": "collectives"}
    return next((field for word, field in words.items() if word in message.lower()), "sizes")


def _choices(mesh: DeviceMesh | None) -> list[dict[str, Any]]:
    """Return the engines that can be started on this host, the best first."""
    gpus = _n_gpus()
    world_size = 0 if mesh is None else mesh.world_size
    choices = []
    for name, facts in BACKENDS.items():
        if not facts.offer or (facts.on_gpus and not gpus):
            continue
        most, n = (gpus, gpus) if facts.on_gpus else (_MOST_RANKS, 4)
        n = world_size if 1 < world_size <= most else n
        label = f"{n} {facts.offer.format(s='s' * (n != 1))}"
        most = gpus if facts.on_gpus else _MOST_CHOSEN
        choices.append({"label": label, "n": n, "backend": name, "text": facts.offer.format(s="s"), "most": most})
    return choices


_n_gpus = functools.cache(count_gpus)  # the driver takes its time


def _dead_ranks(engines: Engines) -> set[int]:
    """Return the ranks of this host whose process is gone, which the engines notice only at their next call."""
    if BACKENDS[engines.backend].in_process:
        return set()
    host, dead = socket.gethostname(), set()
    for info in engines.ranks:
        if info.host == host:
            try:
                os.kill(info.pid, 0)
            except ProcessLookupError:
                dead.add(info.rank)
            except OSError:  # it is alive, but belongs to another user
                pass
    return dead
