"""From what the ranks measured in one step to rows of `samples` and `results`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshlab.errors import BenchError, MeshlabError
from meshlab.frames.schema import RESULTS, SAMPLES, bandwidth, conform, empty_results, empty_samples
from meshlab.units import format_size

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.executor import Clock
    from meshlab.frames.plan import Step

__all__ = [
    "Columns",
    "Record",
    "Row",
    "State",
    "columns_of_samples",
    "results_frame",
    "rows_of_results",
    "samples_frame",
]


Row = dict[str, Any]

Columns = dict[str, Any]


def results_frame(rows: Sequence[Row], *, fixed: Mapping[str, Any], attrs: Mapping[str, Any]) -> pd.DataFrame:
    """The results frame of a run: its rows, the columns that are the same in all of them, and bandwidth."""
    import pandas as pd

    frame = pd.DataFrame([{**fixed, **row} for row in rows]) if rows else empty_results()
    frame = conform(frame, RESULTS)
    algbw, busbw = bandwidth(frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"])
    frame["algbw_gbs"], frame["busbw_gbs"] = algbw, busbw
    frame.attrs.update(attrs)
    return frame


def samples_frame(parts: Sequence[Columns], *, fixed: Mapping[str, Any], attrs: Mapping[str, Any]) -> pd.DataFrame:
    """The samples frame of a run."""
    import pandas as pd

    if not parts:
        frame = empty_samples()
    else:
        frame = conform(
            pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}).assign(**fixed),
            SAMPLES,
        )
    frame.attrs.update(attrs)
    return frame


def rows_of_results(results: pd.DataFrame) -> list[Row]:
    """The rows of a results frame as `rows_of_step` gives them: the way back from a run that was read from disk."""
    known = results.astype(object).where(results.notna(), None)
    return [dict(zip(known.columns, values, strict=True)) for values in known.itertuples(index=False)]


def columns_of_samples(samples: pd.DataFrame) -> Columns:
    """The columns of a samples frame as `samples_of_step` gives them, with ``launch``."""
    kinds = {"Int64": np.int64, "float64": np.float64, "boolean": np.bool_, "string": object}
    return {
        column.name: samples[column.name].to_numpy(dtype=kinds[column.dtype])
        for column in SAMPLES
        if column.name != "run_id"
    }


State = Literal["running", "done", "cancelled", "failed"]

_TOLD = 3


class Record:
    """The memory of a run.

    Parameters
    ----------
    run_id : str
        The run's name.
    clock : Clock
        Counts its steps.
    fixed : dict
        The columns that are the same in all rows of the results.
    where : str
        What the numbers are numbers of.
    """

    def __init__(self, run_id: str, clock: Clock, fixed: dict[str, Any], where: str) -> None:
        self.run_id = run_id
        self.clock = clock
        self.where = where
        self.state: State = "running"
        self.error: MeshlabError | None = None
        self.environment: dict[str, dict[str, str]] = {}
        self.devices: list[dict[str, Any]] = []
        self.hosts: tuple[str, ...] = ()
        self.log: list[str] = []
        self.current: Step | None = None
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.on_change: Callable[[], None] = _nothing
        self._fixed = fixed
        self._lock = threading.RLock()
        self._rows: list[Row] = []
        self._samples: list[Columns] = []
        self._wrong: list[Row] = []
        self._frames: dict[str, tuple[int, pd.DataFrame]] = {}

    def note(self, sentence: str) -> None:
        """Write a line into the log."""
        self.log.append(f"{datetime.now(UTC):%H:%M:%S} {sentence}")

    def add(self, launch: int, rows: Sequence[Row], samples: Sequence[Columns]) -> None:
        """Take what a step gave."""
        numbered = [{**row, "launch": launch} for row in rows]
        with self._lock:
            self._rows += numbered
            self._wrong += [row for row in numbered if row["status"] == "wrong"]
            self._samples += [{**part, "launch": np.full(len(part["batch"]), launch)} for part in samples]

    def keep(self, rows: Sequence[Row], samples: Sequence[Columns]) -> None:
        """Take rows and samples of an earlier part of the run, which have their launch already."""
        with self._lock:
            self._rows += rows
            self._wrong += [row for row in rows if row["status"] == "wrong"]
            self._samples += samples

    def rows(self, start: int = 0) -> list[Row]:
        """The rows from the given one on."""
        with self._lock:
            return self._rows[start:]

    @property
    def alert(self) -> str:
        """What is wrong, in a sentence; empty while nothing is."""
        with self._lock:
            wrong, total = list(self._wrong), len(self._rows)
        if not wrong:
            return ""
        named = [
            f"{row['collective']} on {row['group']} at {format_size(row['size_bytes'])} ({row['n_wrong']:,} elements)"
            for row in wrong[:_TOLD]
        ]
        more = f" and {len(wrong) - _TOLD:,} more" if len(wrong) > _TOLD else ""
        verb = "is" if len(wrong) == 1 else "are"
        return f"{len(wrong):,} of {total:,} rows {verb} WRONG: {', '.join(named)}{more}"

    def finish(self, state: State, error: MeshlabError | None = None) -> None:
        """Set the end."""
        with self._lock:
            self.current = None
            self.clock.stop()
            self.error = error
            self.state = state

    def restore(self, document: dict[str, Any], results: pd.DataFrame, samples: pd.DataFrame) -> None:
        """Be what was read from disk."""
        self.keep(rows_of_results(results), [])
        self._frames = {"results": (len(results), results), "samples": (len(results), samples)}
        self.run_id = document["run_id"]
        self.error = None if document["error"] is None else BenchError(document["error"])
        self.state, self.log, self.environment = document["state"], document["log"], document["environment"]
        self.devices, self.hosts = document["devices"], tuple(document["hosts"])
        self.started_at = document["started_at"]
        self.clock.restore(document["n_done"], document["elapsed_s"])

    @property
    def source(self) -> str:
        """What measured: the backend's name."""
        return str(self._fixed["source"])

    # -- frames --------------------------------------------------------------------------------------------------------

    @property
    def results(self) -> pd.DataFrame:
        """One row per launch, step and group."""
        return self._frame("results", lambda: results_frame(self._rows, fixed=self._fixed, attrs=self.attrs))

    @property
    def samples(self) -> pd.DataFrame:
        """One row per launch, step, rank and batch."""
        fixed = {"run_id": self.run_id}
        return self._frame("samples", lambda: samples_frame(self._samples, fixed=fixed, attrs=self.attrs))

    @property
    def attrs(self) -> dict[str, Any]:
        """What the frames say about themselves."""
        library = self.environment.get("Library", {})
        told = {
            "where": self.where,
            "library": library.get("library", ""),
            "gpu": library.get("device", ""),
            "note": self.environment.get("Run", {}).get("note", ""),
            "environment": self.environment.get("Settings", {}),
        }
        return {name: value for name, value in told.items() if value}

    def _frame(self, name: str, build: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        with self._lock:
            known = self._frames.get(name)
            if known is None or known[0] != len(self._rows):
                known = (len(self._rows), build())
                self._frames[name] = known
        return known[1].copy()


def _nothing() -> None:
    return None
