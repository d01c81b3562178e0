"""GrowingLines: the lines of a run that measures, updated from its new rows without a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from meshlab.frames._schema import bandwidth
from meshlab.plots._lines import KEYS, MEMBER, Key, Line, line_from_columns, line_key
from meshlab.runs._rundata import Row

_NUMBERS = ("size_bytes", "launch", "time_us", "time_us_lo", "time_us_hi")
_NO_RUN = dict.fromkeys(("source", "run_id"))
"""The columns of `KEYS` that a step of a plan lacks, as missing values."""


class GrowingLines:
    """The lines of a run against message size, as `lines_of` draws them, for a view that follows the run.

    A frame of the results costs several milliseconds, of which the ranks on the same host would be robbed at every
    update. Only the lines with new rows are computed again.
    """

    def __init__(self, names: Mapping[Key, str]) -> None:
        self._names = names
        self._columns: dict[Key, dict[str, list[Any]]] = {}
        self._members: dict[tuple[Any, ...], int] = {}
        self._n_rows = 0

    def add(self, rows: Iterable[Row]) -> dict[Key, Line]:
        """Add the next rows of the run, and return the lines that have changed."""
        new: dict[Key, list[Row]] = {}
        for row in rows:
            new.setdefault(line_key({**row, **_NO_RUN}), []).append({**row, "position": self._n_rows})
            self._n_rows += 1
        return {key: self._line(key, additions) for key, additions in new.items()}

    def _line(self, key: Key, rows: list[Row]) -> Line:
        series = self._columns.setdefault(key, {})
        sizes, ranks, times = (
            [np.nan if row.get(name) is None else row[name] for row in rows]
            for name in ("size_bytes", "n_ranks", "time_us")
        )
        series.setdefault("busbw_gbs", []).extend(
            bandwidth([row["collective"] for row in rows], sizes, ranks, times)[1].tolist()
        )
        for name in (*_NUMBERS, "position"):
            values = series.setdefault(name, [])
            values.extend(np.nan if row.get(name) is None else row[name] for row in rows)
        members = (tuple(row.get(name) for name in MEMBER) for row in rows)
        series.setdefault("member", []).extend(
            self._members.setdefault(member, len(self._members)) for member in members
        )
        series.setdefault("ok", []).extend(row["status"] == "ok" for row in rows)
        series.setdefault("wrong", []).extend(row["status"] == "wrong" for row in rows)
        columns = {name: np.array(values, dtype=np.float64) for name, values in series.items()}
        ok, wrong, position = columns.pop("ok") > 0, columns.pop("wrong") > 0, columns.pop("position").astype(np.intp)
        name = self._names.get(key) or str(key[KEYS.index("collective")])
        return line_from_columns(name, key, position, columns, "busbw_gbs", ok, wrong)
