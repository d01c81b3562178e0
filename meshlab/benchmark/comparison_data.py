"""The two sides of a comparison: what they are made of, how they differ, and which rows answer each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.frames.schema import RESULTS, STEP, conform, empty_samples, frame_from_csv, frame_from_json, frame_from_parquet
from meshlab.benchmark.nccl_tests.read import read_nccl_tests
from meshlab.errors import BenchError, ParseError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KEYS", "Difference", "Side", "differences", "load_side", "matching_keys"]

KEYS = (
    "collective",
    "op",
    "dtype",
    "root",
    "in_place",
    "mode",
    "axis",
    "group",
    "n_ranks",
    "size_bytes",
)
"""Two rows answer each other when these agree."""

_WORDS = {"n_ranks": "ranks", "in_place": "in place", "size_bytes": "sizes"}
_KINDS = {"nccl": "a GPU", "nccl-tests": "a GPU"}
_FEWEST_BATCHES = 6

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same on both sides.

    Parameters
    ----------
    what : str
        Such as GPU, library, mode, or the name of a variable.
    before, after : str
        What the sides say; ``"unknown"`` when a side does not.
    blocks : bool
        True when times must not be compared across it unless someone insists.
    """

    what: str
    before: str
    after: str
    blocks: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.before} before, {self.after} after"


@dataclass(frozen=True)
class Side:
    """One side: its results, and the batches behind them where there are any."""

    results: pd.DataFrame
    batches: dict[tuple[Any, ...], Floats]
    label: str

    @cached_property
    def time_us(self) -> Floats:
        """Times that may be compared; NaN where there is none, and where the run failed or the result was wrong."""
        usable = ~self.results["status"].isin(["failed"]) & (self.results["time_us"] > 0) & ~self.is_wrong
        return self.results["time_us"].where(usable).to_numpy(dtype=np.float64)

    @cached_property
    def intervals_us(self) -> Floats:
        """Shape (rows, 2): both ends of the interval, NaN where there is none."""
        return self.results[["time_us_lo", "time_us_hi"]].to_numpy(dtype=np.float64)

    @cached_property
    def is_wrong(self) -> npt.NDArray[np.bool_]:
        """Whether the result of a row was wrong."""
        wrong = (self.results["status"] == "wrong").fillna(value=False) | self.results["n_wrong"].gt(0).fillna(False)
        return wrong.to_numpy(dtype=bool)

    @cached_property
    def steps(self) -> list[tuple[Any, ...]]:
        """For each row, run, launch, step, axis and group."""
        return _tuples(self.results, STEP)

    def groups(self, keys: Sequence[str]) -> dict[tuple[Any, ...], list[int]]:
        """The rows that share a key."""
        rows: dict[tuple[Any, ...], list[int]] = {}
        for index, key in enumerate(_tuples(self.results, keys)):
            rows.setdefault(key, []).append(index)
        return rows

    def launches(self, rows: Sequence[int]) -> list[Floats]:
        """The times of the batches behind these rows, in order, the slowest rank of each: one series per launch."""
        found: dict[tuple[Any, ...], list[Floats]] = {}
        for row in rows:
            series = self.batches.get(self.steps[row])
            if series is not None and series.size >= _FEWEST_BATCHES and self.time_us[row] > 0:
                found.setdefault(self.steps[row][:2], []).append(series)
        return [np.concatenate(parts) for parts in found.values()]


def plain(value: Any) -> Any:
    """None for anything missing."""
    import pandas as pd

    return None if value is pd.NA or value is None or value != value else value


def _tuples(frame: pd.DataFrame, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows as tuples of these columns, None for anything missing."""
    return list(zip(*([plain(value) for value in frame[name].tolist()] for name in names), strict=True))


def load_side(source: Any, label: str) -> Side:
    """Take a frame, a pair of results and samples, a file, anything with ``.results``, or a list of these."""
    import pandas as pd

    parts = list(_parts(source))
    if len(parts) == 1:
        results, samples, name = parts[0]
    else:
        results = pd.concat([part[0].assign(run_id=_unique(part[0], index)) for index, part in enumerate(parts)])
        results.attrs = _common_attrs([dict(part[0].attrs) for part in parts])
        samples = pd.concat([part[1].assign(run_id=_unique(part[1], index)) for index, part in enumerate(parts)])
        name = f"{len(parts)} runs"
    if not len(results):
        raise BenchError(f"{name or label} has no results to compare")
    return Side(results.reset_index(drop=True), _batches(samples), name or label)


def _parts(source: Any) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, str]]:
    import pandas as pd

    path: Path | None = None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        source = _read(path)
    if isinstance(source, list):
        for item in source:
            yield from _parts(item)
        return
    results: Any = source
    samples: Any = None
    if isinstance(source, tuple) and len(source) == 2:
        results, samples = source
    elif hasattr(source, "results"):
        results, samples = source.results, getattr(source, "samples", None)
    if not isinstance(results, pd.DataFrame) or "time_us" not in results or "batch" in results:
        raise BenchError(
            f"a {type(source).__name__} cannot be compared; give a frame of results, a pair (results, samples), "
            "a file, or anything with .results"
        )
    results = conform(results, RESULTS)
    name = str(getattr(source, "name", "") or results.attrs.get("file", ""))
    if path is not None:
        name = path.name or path.resolve().name
    yield results, empty_samples() if samples is None else samples, name


def _read(path: Path) -> Any:
    """The folder of a run, a frame that meshlab wrote, by its suffix, or else a log of nccl-tests."""
    try:
        return _read_there(path)
    except OSError as error:
        raise BenchError(
            f"{path} cannot be read: {error.strerror or error}; give the folder of a run, results as Parquet, CSV or "
            "JSON, or a log of nccl-tests"
        ) from error


def _read_there(path: Path) -> Any:
    if path.is_dir():
        from meshlab.benchmark.run import Run

        return Run.load(path)
    if path.suffix == ".parquet":
        return frame_from_parquet(path, RESULTS)
    if path.suffix == ".csv":
        return frame_from_csv(path, RESULTS)
    if path.suffix == ".json" and '"columns"' in path.read_text(encoding="utf-8", errors="replace")[:100]:
        try:
            return frame_from_json(path.read_text(encoding="utf-8"), RESULTS)
        except (ValueError, KeyError, TypeError) as error:
            raise ParseError("this is not a whole frame of meshlab; copy it again", file=str(path)) from error
    return read_nccl_tests(path)


def _unique(frame: pd.DataFrame, index: int) -> pd.Series[str]:
    return f"{index}:" + frame["run_id"].astype("string").fillna("")


def _common_attrs(attrs: Sequence[Mapping[Any, Any]]) -> dict[Any, Any]:
    return {name: value for name, value in attrs[0].items() if all(other.get(name) == value for other in attrs)}


def _batches(samples: pd.DataFrame) -> dict[tuple[Any, ...], Floats]:
    """For each step and group, the time of every batch that counts: the slowest rank."""
    if not len(samples):
        return {}
    good = ~samples["is_warmup"].fillna(value=False).astype(bool) & (samples["status"].fillna("ok") == "ok")
    slowest = (
        samples[good & samples["time_us"].notna()]
        .groupby([*STEP, "batch"], dropna=False, sort=True)["time_us"]
        .max()
        .reset_index()
    )
    number = slowest.groupby(list(STEP), dropna=False, sort=False).ngroup().to_numpy()
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    series = np.split(slowest["time_us"].to_numpy(dtype=np.float64), starts[1:])
    return dict(zip(_tuples(slowest.iloc[starts], STEP), series, strict=True))


def differences(before: Side, after: Side) -> tuple[Difference, ...]:
    """How two sides differ, what blocks a comparison first."""
    found = [
        difference
        for what, name in (("GPU", "gpu"), ("library", "library"))
        if (difference := _attr_difference(what, *(side.results.attrs.get(name) for side in (before, after))))
    ]
    found += _source_difference(before, after)
    found += [difference for name in KEYS if (difference := _column_difference(name, before, after))]
    old, new = (side.results.attrs.get("environment") or {} for side in (before, after))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            found.append(Difference(name, str(old.get(name, "not seen")), str(new.get(name, "not seen")), blocks=False))
    return tuple(sorted(found, key=lambda difference: not difference.blocks))


def _attr_difference(what: str, old: Any, new: Any) -> Difference | None:
    if not (old or new) or old == new:
        return None
    return Difference(what, str(old or "unknown"), str(new or "unknown"), what == "GPU" and bool(old and new))


def _source_difference(before: Side, after: Side) -> list[Difference]:
    old, new = ({str(value) for value in side.results["source"].dropna()} for side in (before, after))
    if old == new or not old or not new:
        return []
    blocks = {_KINDS.get(name, name) for name in old} != {_KINDS.get(name, name) for name in new}
    return [Difference("source", ", ".join(sorted(old)), ", ".join(sorted(new)), blocks)]


def _column_difference(name: str, before: Side, after: Side) -> Difference | None:
    old, new = (set(side.results[name].dropna().unique().tolist()) for side in (before, after))
    if old == new or (name == "size_bytes" and old & new):
        return None
    unknown = name != "collective" and not (old and new)
    if unknown and name not in ("mode", "n_ranks", "dtype"):
        return None
    before_text, after_text = (", ".join(map(str, sorted(values))) or "unknown" for values in (old, new))
    return Difference(_WORDS.get(name, name), before_text, after_text, blocks=not old & new and not unknown)


def matching_keys(before: Side, after: Side, *, anyway: bool) -> list[str]:
    """The columns by which rows are matched: those that both sides know, and that have a value in common.

    With `anyway`, columns without a common value are left out, except the collective and the size.
    """
    keys = []
    for name in KEYS:
        old, new = (set(side.results[name].dropna().unique().tolist()) for side in (before, after))
        known = bool(old) and bool(new)
        if name in ("collective", "size_bytes") or (known and (old & new or not anyway)):
            keys.append(name)
    return keys
