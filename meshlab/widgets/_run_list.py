"""The tab Runs: the runs of a session and of a folder, their names, their removal, and their comparison."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from meshlab.analysis._comparison import ONE_LAUNCH, Comparison, change_text, compare, rows_by_interest
from meshlab.base._errors import BenchError, MeshlabError
from meshlab.base._units import format_bandwidth
from meshlab.plots._lines import Line, lines_of
from meshlab.plots._ratios import comparison as plot_comparison
from meshlab.plots._style import figure_svg
from meshlab.runs._listing import list_runs, summarise_run
from meshlab.runs._rundata import RunData
from meshlab.runs._store import load, relabel, remove
from meshlab.widgets._background import in_background
from meshlab.widgets._following import curve_state

_MOST_ROWS = 2000  # of a comparison, which has one row per group and size
_LAUNCHES = 3  # of a run that is measured again for a verdict
_MOST_CURVES = 12
_FOREST_HEAD, _TALLEST_FOREST = 120, 1600  # in points


class RunList:
    """The runs of the session of a view, and those of a folder. All methods can be called on any thread."""

    def __init__(self, view: Any, lock: threading.RLock) -> None:
        self._view = view
        self._lock = lock
        self.session: list[RunData] = []
        """The runs of this session, the latest last."""
        self.folder = ""
        self.shown = ""
        """The id of the run that is shown."""
        self.repeat: Callable[[Sequence[RunData], int], None] = lambda runs, launches: None
        """Measures the plans of runs again, with a number of launches."""
        self.overlaid: list[str] = []
        """The keys of the runs that are drawn next to the one that is shown."""
        self._saved: list[dict[str, Any]] = []
        self._loaded: dict[str, RunData] = {}
        self._compared: dict[str, Any] = {}
        self._deleted: list[str] = []  # keys of rows that are hidden, but still there
        self._edit = 0

    def show(self) -> None:
        """Send the list to the front end."""
        with self._lock:
            rows = self._rows()
            self._view._runs = {
                "edit": self._edit,
                "folder": self.folder,
                "rows": [row for row in rows if row["key"] not in self._deleted],
                "deleted": [row["name"] for row in rows if row["key"] in self._deleted],
                "on_disk": sum(1 for row in self._saved if row["key"] in self._deleted),
                "shown": self.shown,
                "overlaid": self.overlaid,
                **self._compared,
            }

    def _rows(self) -> list[dict[str, Any]]:
        here = [{**_run_row(summarise_run(run)), "key": run.run_id, "is_here": True} for run in reversed(self.session)]
        keys = {row["key"] for row in here}
        return [*here, *(row for row in self._saved if row["run_id"] not in keys)]

    def run_of(self, key: str) -> RunData:
        """Return the run of a row."""
        for run in self.session:
            if run.run_id == key:
                return run
        if key not in self._loaded or not self._loaded[key].has_ended:  # another process may be measuring it
            self._loaded[key] = load(key)
        return self._loaded[key]

    def receive(self, kind: str, message: Mapping[str, Any]) -> bool:
        """Act on a message of the front end. Return False if it is about something else."""
        keys = [str(key) for key in message.get("keys", ())]
        if kind == "run.folder":
            self.list_folder(str(message.get("folder", "")))
        elif kind == "run.compare":
            self.compare(keys, anyway=bool(message.get("anyway")))
        elif kind == "run.uncompare":
            self._reply({})
        elif kind == "run.label":
            self._label(str(message["key"]), message)
        elif kind in ("run.delete", "run.undelete"):
            with self._lock:
                self._deleted = [*dict.fromkeys([*self._deleted, *keys])] if kind == "run.delete" else []
                self.show()
        elif kind == "run.remove":
            self._in_background("removal", self._remove)
        elif kind == "run.repeat":
            self._in_background("repetition", lambda: self.repeat([self.run_of(key) for key in keys], _LAUNCHES))
        elif kind == "run.report":
            self._in_background("report", lambda: self._report(keys))
        else:
            return False
        return True

    def _reply(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self._compared = answer
            self.show()

    def fail(self, error: Exception) -> None:
        """Show why an action is not possible, next to the present comparison."""
        self._reply({**self._compared, "problem": str(error).splitlines()[0]})

    def _in_background(self, what: str, act: Callable[[], None]) -> None:
        def work() -> None:
            try:
                act()
            except MeshlabError as error:
                self.fail(error)

        in_background(work, what)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def list_folder(self, folder: str) -> None:
        """List the runs of a folder, on a thread."""
        self.folder, self._saved, self._deleted = folder, [], []
        self._reply({})
        if not folder.strip():
            return

        def work() -> None:
            records: Any = []
            try:
                records = list_runs(Path(folder).expanduser()).astype(object).to_dict("records")
                problem = "" if records else "there are no runs in this folder"
            except MeshlabError as error:
                problem = str(error)
            rows = [{**_run_row(row), "key": row["folder"], "is_here": False} for row in records]
            with self._lock:
                self._saved = rows
                self._reply({"problem": problem} if problem else {})

        in_background(work, "runs")

    def _label(self, key: str, message: Mapping[str, Any]) -> None:
        """Change the name or the notes of a run, also in its folder."""
        with self._lock:
            self._edit = max(self._edit, int(message.get("edit", 0)))
            try:
                run = self.run_of(key)
                for what in ("name", "notes"):
                    if what in message:
                        setattr(run, what, str(message[what]))
                for row in self._saved:
                    if row["run_id"] == run.run_id:
                        relabel(Path(row["key"]), run.run_id, name=run.name, notes=run.notes)
                        row |= _labels(run.name, run.notes, row["key"], run.run_id)
            except MeshlabError as error:
                self.fail(error)
            else:
                self.show()

    def _remove(self) -> None:
        """Remove the deleted runs for good: those of a folder from the disk, and those of the session from memory."""
        with self._lock:
            deleted, self._deleted = self._deleted, []
            measuring = [run for run in self.session if run.run_id in deleted and not run.has_ended]
            if measuring:
                raise BenchError(f"{measuring[0].run_id} is still being measured", hint="stop it first")
            self.session = [run for run in self.session if run.run_id not in deleted]
            folders = {row["key"]: row["run_id"] for row in self._saved if row["key"] in deleted}
            self._saved = [row for row in self._saved if row["key"] not in deleted]
            self._reply({})
        for folder, run_id in folders.items():
            self._loaded.pop(folder, None)
            remove(Path(folder), run_id)

    def _report(self, keys: Sequence[str]) -> None:
        """Send the report of a run to the front end. With two, the earlier one is the baseline."""
        from meshlab.report._report import Report

        *baseline, run = sorted((self.run_of(key) for key in keys), key=lambda run: run.started_at)
        report = Report(run, baseline=baseline[0] if baseline else None)
        name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in run.name or run.run_id)
        file = {"name": f"report-{name}.html", "kind": "text/html", "text": report.html()}
        self._view.send({"type": "export", "what": "run", **file})

    # -- comparisons ---------------------------------------------------------------------------------------------------

    def compare(self, keys: Sequence[str], *, anyway: bool = False) -> None:
        """Compare the earliest of some runs with each of the others, on a thread."""

        def work() -> None:
            try:
                runs = sorted((self.run_of(key) for key in keys), key=lambda run: run.started_at)
                first, *others = [_compared(runs[0], other, anyway=anyway) for other in runs[1:]]
                curve = curve_state("", overlaid_lines(runs))
                answer = {**first, "others": others, "curve": curve}
            except MeshlabError as error:
                answer = {"problem": str(error), "can_force": False, "others": []}
            self._reply({"compared": {**answer, "keys": list(keys)}})

        in_background(work, "comparison")


def overlaid_lines(runs: Iterable[RunData]) -> dict[str, Line]:
    """Return the lines of several runs in one chart, each with the name of its run."""
    lines: dict[str, Line] = {}
    for run in runs:
        label = label_of(run)
        for line in lines_of(run.results, "busbw_gbs"):
            name = " · ".join(filter(None, [label, line.name]))
            name = f"{name} ({run.run_id[:6]})" if name in lines else name
            if len(line) and len(lines) < _MOST_CURVES:
                lines[name] = line.without_groups()
    return lines


def label_of(run: RunData) -> str:
    """Return the name of a run, or else its id."""
    return run.name or run.run_id


def _compared(before: RunData, after: RunData, *, anyway: bool) -> dict[str, Any]:
    """Return the comparison of two runs as plain data, in the words of the page."""
    try:
        comparison = compare(before, after, anyway=anyway)
    except MeshlabError as error:
        return {"problem": str(error).partition("; pass ")[0], "can_force": not anyway, "of": label_of(after)}
    header, rows = comparison.table()
    ratios = rows_by_interest(comparison.rows)["ratio"].tolist()
    cells = [
        [*map(str, row[:5]), change_text(ratio), *map(str, row[6:])] for row, ratio in zip(rows, ratios, strict=True)
    ]
    needed = [run for run in (before, after) if run.plan.launches == 1] if comparison.needs_launches else []
    return {
        "of": label_of(after),
        "text": _headline(comparison, label_of(after), label_of(before)),
        "from": f"before: {_short(before)}",
        "to": f"after: {_short(after)}",
        "notes": [*map(str, comparison.differences), *(note for note in comparison.notes if note != ONE_LAUNCH)],
        "repeat": [run.run_id for run in needed],
        "launches": _LAUNCHES,
        "figure": _forest(comparison),
        "columns": ["", *header[1:5], "after is", *header[6:]],
        "rows": cells[:_MOST_ROWS],
        "more": f"and {len(cells) - _MOST_ROWS:,} more in the report" if len(cells) > _MOST_ROWS else "",
        "left": 3,
    }


def _headline(comparison: Comparison, after: str, before: str) -> str:
    """Return the answer in one sentence, without advice about code."""
    if not comparison.needs_launches:
        return comparison.headline
    n, typical = len(comparison.rows), change_text(float(comparison.rows["ratio"].median()))
    return (
        f"{n} row{'s' * (n != 1)} compared, one launch each: too few for a verdict. Typically, {after} is {typical}"
        + (f" as {before}." if typical == "as fast" else f" than {before}.")
    )


def _forest(comparison: Comparison) -> str:
    """Return the ratios with their intervals as an ``<svg>`` element, empty if there are none."""
    from matplotlib.figure import Figure

    rows = comparison.rows
    panels = rows.groupby(["collective", "axis"], dropna=False)
    n_sizes, n_members = rows["size_bytes"].nunique(), int(panels["size_bytes"].value_counts().max())
    height = _FOREST_HEAD + -(-panels.ngroups // 2) * (50 + max(15, 4 + 7 * n_members) * (n_sizes + 1))
    figure = Figure((8, min(height, _TALLEST_FOREST) / 72))  # not of pyplot, which a notebook would show too
    with suppress(BenchError):  # no row has a ratio
        plot_comparison(comparison, ax=figure.add_subplot())
        return figure_svg(figure, label=comparison.headline)
    return ""


def _run_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the list of runs as text."""
    best = row["best_gbs"]
    return {
        **_labels(row["name"], row["notes"], row["folder"], row["run_id"]),
        "run_id": row["run_id"],
        "state": row["state"],
        "date": str(row["started_at"])[:16].replace("T", " "),
        "where": row["where"],
        "mesh": row["mesh"],
        "collectives": row["collectives"],
        "best": format_bandwidth(best) if best == best else "–",
    }


def _labels(name: str, notes: str, folder: str, run_id: str) -> dict[str, str]:
    """Return the labels of a row. A run without a name has that of its folder, or its id."""
    unnamed = Path(folder).name if folder else run_id
    return {"name": name or unnamed, "label": name, "unnamed": unnamed, "notes": notes}


def _short(run: RunData) -> str:
    return f"{label_of(run)} · {str(run.started_at)[:16].replace('T', ' ')} · {run.where}"
