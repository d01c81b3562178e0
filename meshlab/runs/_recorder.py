"""Recorder: writes a run to a folder while it is measured."""

from __future__ import annotations

import contextlib
import threading
import warnings
from pathlib import Path
from typing import Any

from meshlab.base._errors import BenchError, explained_text
from meshlab.base._folders import check_writable
from meshlab.runs._journal import Journal
from meshlab.runs._rundata import RunData, has_measurements
from meshlab.runs._store import check_free, open_run, relabel, run_id_in, save, save_ended


class Recorder:
    """Writes a run to a folder: its rows after every step, and the complete run when it ends."""

    def __init__(self, data: RunData, folder: Path, *, overwrite: bool = False) -> None:
        check_free(folder, data.run_id, overwrite=overwrite)
        check_writable(folder)
        self.folder = folder
        self.problem = ""
        """The reason why the folder lacks rows of the run. Empty if it has all of them."""
        self._data = data
        self._overwrite = overwrite
        self._lock = threading.Lock()  # other threads cancel and pause the run, which is recorded too
        self._journal: Journal | None = None
        self._written = 0, 0
        self._n_log = self._n_conditions = 0
        self._described: tuple[Any, ...] = ()
        self._has_finished = False

    @property
    def is_open(self) -> bool:
        """True while the folder holds the run and grows with it."""
        return self._journal is not None and not self._has_finished

    def start(self) -> None:
        """Write the run without the rows that will be measured, unless that would replace a different run."""
        # A different run is replaced only by measurements, and not by a run that fails before its first step.
        with self._lock:
            if not self._would_replace():
                self._open()

    def update(self) -> None:
        """Write everything that is new since the last call."""
        with self._lock:
            if self._has_finished:
                return
            try:
                if self._journal is not None:
                    self._append(self._journal)
                elif has_measurements(self._data):
                    self._open()
                else:
                    return
            except Exception as error:
                # A problem such as a full disk must not stop the run. Its rows stay in memory for the next attempt.
                reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
                self._report(f"cannot write the rows to {self.folder}: {reason}; the run continues in memory")
            else:
                self.problem = ""

    def finish(self) -> None:
        """Write the run, which has ended."""
        with self._lock:
            self._has_finished = True
            try:
                if self._journal is not None:
                    save_ended(self._data, self.folder)
                elif self._would_replace() and not has_measurements(self._data):
                    raise BenchError(f"the folder {self.folder} holds a different run, which is kept")
                else:
                    save(self._data, self.folder, overwrite=self._overwrite)
            except Exception as error:
                self._report(f"the run is not saved completely: {error}")
            else:
                self.problem = ""
            if self._journal is not None:
                self._journal.close()

    def relabel(self) -> None:
        """Write the name and the notes, which may change after the end of the run."""
        with self._lock:
            if not self._has_finished:
                return  # the next update writes them
            try:
                relabel(self.folder, self._data.run_id, name=self._data.name, notes=self._data.notes)
            except Exception as error:
                self._report(f"the name of the run is not saved: {error}")

    def _would_replace(self) -> bool:
        return run_id_in(self.folder) not in (None, self._data.run_id)

    def _open(self) -> None:
        data = self._data
        self._n_log, self._n_conditions = len(data.log), len(data.condition_rows)
        self._described = _description(data)
        self._journal, self._written = open_run(data, self.folder, overwrite=self._overwrite)

    def _append(self, journal: Journal) -> None:
        data = self._data
        rows, samples = data.since(*self._written)
        n_log, n_conditions, described = len(data.log), len(data.condition_rows), _description(data)
        # Listeners are called before every step too, when nothing has changed.
        is_described = all(new is old for new, old in zip(described, self._described, strict=True))
        is_known = is_described and (n_log, n_conditions) == (self._n_log, self._n_conditions)
        if not rows and not samples and is_known:
            return
        progress = data.progress
        facts: dict[str, Any] = {
            "state": data.state,
            "error": None if data.error is None else explained_text(data.error),
            "n_done": progress.done,
            "elapsed_s": progress.elapsed_s,
            "log": data.log[self._n_log : n_log],
        }
        if n_conditions > self._n_conditions:
            facts["conditions"] = data.condition_rows[self._n_conditions : n_conditions]
        if not is_described:
            facts |= {"hosts": list(data.hosts), "ranks": data.rank_rows}
            facts |= {"devices": data.device_rows, "environment": data.environment}
            facts |= {"name": data.name, "notes": data.notes}
        journal.append(rows, samples, facts)
        self._written = self._written[0] + len(rows), self._written[1] + len(samples)
        self._n_log, self._n_conditions, self._described = n_log, n_conditions, described

    def _report(self, problem: str) -> None:
        """Warn about a problem once, until it is solved."""
        if not self.problem:
            self._data.note(problem)
            with contextlib.suppress(UserWarning):  # as an error, it would end the thread that measures
                warnings.warn(problem, stacklevel=2)
        self.problem = problem


def _description(data: RunData) -> tuple[Any, ...]:
    """Return the parts of a run that its executor replaces as a whole when they change."""
    return data.hosts, data.rank_rows, data.device_rows, data.environment, data.state, data.name, data.notes
