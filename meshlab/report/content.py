"""The content of a report as plain values: verdict, caveats, tables and method."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshlab.analysis.concurrency import contention_rows, interference_rows
from meshlab.analysis.pairs import pair_table
from meshlab.comm.catalog import CATALOG
from meshlab.frames.labels import (
    CPU_SOURCES,
    LABELLED,
    axis_label,
    axis_labels,
    describe_groups,
    is_wrong,
    option_texts,
    pair_label,
    value_label,
)
from meshlab.frames.schema import OPTIONS, empty_samples, is_pair, is_plain
from meshlab.frames.store import Frames
from meshlab.plots.lines import Line, lines_of
from meshlab.prediction.bounds import bound_note, share_of_bound
from meshlab.topology.model.products import models_in
from meshlab.units import SEPARATOR, THIN, format_bandwidth, format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.topology.model.cluster import Cluster

__all__ = ["MOST_ROWS", "MOST_TABLES", "Cell", "ReportTable", "caveats", "has_failed", "method", "tables", "verdict"]


MOST_ROWS, MOST_TABLES = 200, 60

_MOST_NAMED = 3

_FEW_SAMPLES = 30

_WIDE_INTERVAL = 0.10

_LARGE_TREND = 0.05

_UNFINISHED = {"failed": "failed", "cancelled": "was cancelled", "interrupted": "was interrupted"}


# -- verdict -----------------------------------------------------------------------------------------------------------


def verdict(results: pd.DataFrame, samples: pd.DataFrame | None = None) -> list[str]:
    """Summarise results in sentences with numbers.

    They state whether the results are correct, how fast each axis is, how the axes differ, and the findings of runs
    that measured pairs, contention or concurrent axes. The latter need `samples`, which have the blocks that are
    compared. Results with bounds (see `meshlab.prediction.with_bounds`) also have their share of the bound.
    """
    rows = results[~is_pair(results)]
    # An axis is compared with other axes under the same load. `_findings` compares it with itself under different ones.
    shown = rows[is_plain(rows)]
    lines = [line for line in lines_of(shown, "busbw_gbs") if len(line)]
    differences = _difference(lines, is_one_launch=len(rows[["run_id", "launch"]].drop_duplicates()) < 2)
    if not lines:
        shown = rows
        lines = [line for line in lines_of(rows, "busbw_gbs") if len(line)]
    return [
        _correctness(results),
        *_peaks(lines, shown),
        *bound_note(shown),
        *differences,
        *_findings(_frames(results, samples)),
    ]


def has_failed(results: pd.DataFrame) -> bool:
    """Return whether a result is wrong, or a measurement did not finish."""
    return bool(is_wrong(results).any() or results["status"].isin(_UNFINISHED).any())


def _correctness(results: pd.DataFrame) -> str:
    total = len(results)
    if not total:
        return "Nothing was measured."
    wrong = results[is_wrong(results)]
    failed = int(results["status"].isin(_UNFINISHED).sum())
    checked = int(results["n_wrong"].notna().sum())
    skipped = int(results["status"].eq("skipped").sum())
    unchecked = total - checked - failed - skipped
    if len(wrong):
        named = [
            f"{row.collective} on {row.group} at {_size(row.size_bytes)}"
            + ("" if _missing(row.n_wrong) else f" ({row.n_wrong:,} elements)")
            for row in wrong.head(_MOST_NAMED).itertuples()
        ]
        more = len(wrong) - len(named)
        verb = "is" if len(wrong) == 1 else "are"
        text = f"{len(wrong):,} of {_count(total, 'result')} {verb} WRONG: {', '.join(named)}"
        text += f" and {more:,} more." if more else "."
    elif not checked:
        text = f"None of the {total:,} results were checked." if total > 1 else "The result was not checked."
    elif unchecked > 0:
        text = f"All {checked:,} checked results are correct" if checked > 1 else "The only checked result is correct"
        text += f"; {unchecked:,} {'was' if unchecked == 1 else 'were'} not checked."
    else:
        text = f"All {checked:,} results are correct." if checked > 1 else "The result is correct."
    text += f" {_count(failed, 'measurement')} did not finish." if failed else ""
    exceed = f"because {'its' if skipped == 1 else 'their'} buffers exceed the memory"
    return text + (f" {_count(skipped, 'measurement')} {_was(skipped)} skipped {exceed}." if skipped else "")


def _axis(line: Line) -> str:
    """Return the axis label of a line, or its number of ranks if the axis is unknown."""
    if line.keys["axis"] is None:
        return f"{line.keys['n_ranks']} ranks"
    return axis_label(*(line.keys[name] for name in LABELLED))


def _peaks(lines: Sequence[Line], rows: pd.DataFrame) -> Iterator[str]:
    """Yield the highest bandwidth of each axis, with its share of the bound. `rows` are those of the lines."""
    peaks: dict[str, tuple[float, str]] = {}
    for line in lines:
        index = int(line.value.argmax())
        what = f"{line.keys['collective']} at {_size(line.size[index])} reaches "
        what += f"{format_bandwidth(line.value[index])} busbw"
        share = share_of_bound(rows.iloc[line.rows], line.size[index], line.value[index])
        what += f", {share} of the bound" if share else ""
        peaks[_axis(line)] = max(peaks.get(_axis(line), (0.0, "")), (float(line.value[index]), what))
    for axis, (_, what) in peaks.items():
        yield f"On {axis}, {what}."


def _difference(lines: Sequence[Line], *, is_one_launch: bool) -> list[str]:
    """Compare the axes at the largest size that they share, with the same collective and otherwise equal keys."""
    # The intervals of one launch do not contain the variation between launches, so they say nothing about the next one.
    verb, where = ("was", " in this launch") if is_one_launch else ("is", "")
    comparable: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        key = tuple(str(value) for name, value in line.keys.items() if name not in (*LABELLED, "n_ranks"))
        comparable.setdefault(key, []).append(line)
    found: list[tuple[float, float, str]] = []
    for same in comparable.values():
        shared = set.intersection(*(set(line.size.tolist()) for line in same))
        if len({_axis(line) for line in same}) < 2 or not shared:
            continue
        size = max(shared)
        at = sorted(((float(line.value[line.size == size][0]), line) for line in same), key=lambda pair: pair[0])
        (slow, slow_line), (fast, fast_line) = at[0], at[-1]
        slow_axis, fast_axis = _axis(slow_line), _axis(fast_line)
        if slow_axis == fast_axis:
            continue
        what = f"{fast_line.keys['collective']} at {_size(size)}"
        rates = f"{format_bandwidth(fast)} and {format_bandwidth(slow)} busbw"
        # The axes differ clearly if the lower bound of the faster one is above the upper bound of the slower one.
        low, high = fast_line.low[fast_line.size == size][0], slow_line.high[slow_line.size == size][0]
        if low > high:
            ratio = fast / slow
            text = f"{what} {verb} {ratio:.2f} × as fast on {fast_axis} as on {slow_axis}{where}: {rates}."
            found.append((size, ratio, text))
        elif low <= high:  # neither, if an interval is missing
            found.append((size, 0.0, f"{what} does not clearly differ between {fast_axis} and {slow_axis}: {rates}."))
    # The largest size, where bandwidth matters most. There, a clear difference comes first: its ratio is above 0.
    return [max(found)[2]] if found else []


def _frames(results: pd.DataFrame, samples: pd.DataFrame | None) -> Frames:
    return Frames(results, empty_samples() if samples is None else samples, "")


def _findings(frames: Frames) -> Iterator[str]:
    """Yield a sentence about each axis whose pairs, contention or interference were measured."""
    for rows in _pairs(frames.results):
        yield _pairs_sentence(rows)
    for axis, rows in contention_rows(frames).groupby("axis", sort=False):
        claim = f"groups of {axis} slow each other down"
        denial = f"The groups of {axis} do not clearly slow each other down"
        yield _answer(rows, "one group at a time", f"The {claim}", f"the {claim}", denial)
    for axis, load, rows in _interference(frames):
        claim = f"{load} slows {axis} down"
        yield _answer(rows, "in isolation", claim, claim, f"{load} does not clearly slow {axis} down")


def _answer(rows: pd.DataFrame, baseline: str, claim: str, question: str, denial: str) -> str:
    """Return a claim about the ratios of an axis, its denial, or that the question is open, with the evidence."""
    worst, may_be_chance = _worst(rows, baseline)
    unknown = _unknown(rows)
    if worst:
        return f"It is unclear whether {question}: {worst}." if may_be_chance else f"{claim}: {worst}."
    return f"It is unknown whether {question}: {unknown}." if unknown else f"{denial}."


def _unknown(rows: pd.DataFrame) -> str:
    """Return the reason why no row has an interval, or an empty string if some have."""
    return str(rows["note"].iloc[0]) if rows["note"].notna().all() else ""


def _pairs(results: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the pairs of each collective, axis, mode and dtype."""
    for _, rows in pair_table(results).groupby(["collective", "axis", "mode", "dtype"], sort=False, dropna=False):
        yield rows


def _interference(frames: Frames) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield each axis with the load on the concurrent axis, and their rows."""
    keys = ["axis", "concurrent_axis", "concurrent_collective"]
    for (axis, other, collective), rows in interference_rows(frames).groupby(keys, sort=False, dropna=False):
        yield str(axis), str(other) if _missing(collective) else f"{collective} on {other}", rows


def _pairs_sentence(rows: pd.DataFrame) -> str:
    size = rows["size_bytes"].max()
    largest = rows[rows["size_bytes"] == size]
    low, high = largest["busbw_gbs"].min(), largest["busbw_gbs"].max()
    first = largest.iloc[0]
    text = f"{first['collective']} at {format_size(size)}, {axis_label(first['axis'], 'pairs')}: "
    text += f"{format_bandwidth(low)} to {format_bandwidth(high)} busbw"
    slow = largest[largest["is_slow"].fillna(value=False)]
    if not len(slow):
        return f"{text}. No pair is slow."
    named = [f"{_pair(row)} {format_bandwidth(row.busbw_gbs)}" for row in slow.head(_MOST_NAMED).itertuples()]
    more = f" and {len(slow) - len(named)} more" if len(slow) > len(named) else ""
    return f"{text}. SLOW: {', '.join(named)}{more}."


def _pair(row: Any) -> str:
    return pair_label(row.collective, row.src_rank, row.dst_rank)


def _worst(rows: pd.DataFrame, baseline: str) -> tuple[str, bool]:
    """Describe the largest clear slowdown, and return whether so few slowdowns may be chance. Empty without any."""
    slower = rows[rows["is_clear"] & (rows["ratio"] > 1)]
    if slower.empty:
        return "", False
    row = slower.iloc[int(slower["ratio"].to_numpy().argmax())]
    size = "" if _missing(row["size_bytes"]) else f" at {format_size(row['size_bytes'])}"
    what = f"{row['collective']}{size} on {row['group']}"
    ratio = f"{row['ratio']:.2f} × ({row['ratio_lo']:.2f} to {row['ratio_hi']:.2f})"
    verb = "is" if len(slower) == 1 else "are"
    counts = f"{len(slower):,} of {_count(len(rows), 'result')} {verb} clearly slower than {baseline}"
    may_be_chance = len(slower) <= _by_chance(int(rows["ratio_lo"].notna().sum()))
    reason = ", which may be chance" if may_be_chance else ""
    return f"{counts}{reason}. The largest slowdown is {ratio}: {what}", may_be_chance


def _by_chance(n: int) -> int:
    """Return the number of clear slowdowns among `n` results that chance alone exceeds in less than 1 % of runs."""
    # Eight blocks agree by chance in one direction with a probability of 1 / 2^8, so this is a binomial distribution.
    chance = 1 / 256
    count, below = 0, (1 - chance) ** n
    while below < 0.99:
        count += 1
        below += math.comb(n, count) * chance**count * (1 - chance) ** (n - count)
    return count


# -- caveats -----------------------------------------------------------------------------------------------------------


def caveats(results: pd.DataFrame, *, state: str, fingerprint: str, cluster: Cluster | None = None) -> list[str]:
    """Return the reasons to distrust the numbers.

    Parameters
    ----------
    results : pandas.DataFrame
        A results frame.
    state : str
        The state of the run. Empty if it is unknown.
    fingerprint : str
        The fingerprint of the mesh in the report. Empty without a mesh.
    cluster : Cluster, optional
        The cluster in the report.
    """
    found = _different_machine(results, cluster) if cluster is not None else []
    sources = set(results["source"].dropna())
    if "mpi" in sources:
        found.append("These numbers were measured with MPI on a CPU. They do not apply to GPUs or their links.")
    if "threads" in sources:
        found.append("These numbers were measured with threads in one process. They do not apply to any machine.")
    if results.attrs.get("note"):
        found.append(str(results.attrs["note"]))
    if state in _UNFINISHED:
        found.append(f"The run {_UNFINISHED[state]}, so results are missing.")
    stopped = results[results["status"].isin(_UNFINISHED)]
    if len(stopped):
        reasons = [str(reason) for reason in stopped["stop_reason"].dropna().unique()[:_MOST_NAMED]]
        found.append(f"{_count(len(stopped), 'measurement')} did not finish{': ' * bool(reasons)}{'; '.join(reasons)}.")
    measured = results[results["status"].eq("ok").fillna(value=False)]
    is_settled = measured["stop_reason"].eq("precise").fillna(value=False)  # few batches were enough
    few = int((measured["n_samples"].lt(_FEW_SAMPLES).fillna(value=False) & ~is_settled).sum())
    if few:
        found.append(f"{_results_have(few)} fewer than {_FEW_SAMPLES} batches, so the median is uncertain.")
    without = int(measured["time_us_lo"].isna().sum())
    if without:
        found.append(f"{_results_have(without)} no interval.")
    width = (measured["time_us_hi"] - measured["time_us_lo"]) / measured["time_us"]
    wide = int((width > _WIDE_INTERVAL).sum())
    if wide:
        found.append(f"{_results_have(wide)} an interval wider than {100 * _WIDE_INTERVAL:g} % of the median.")
    found += _shapes(measured)
    others = set(results["mesh_fingerprint"].dropna()) - {fingerprint}
    if fingerprint and others:
        found.append("Some results were measured on a different mesh than the one in this report.")
    return found


def _shapes(measured: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence about the results with two levels of time, and about those with a trend."""
    two = measured[measured["n_modes"].ge(2).fillna(value=False)]
    if len(two):
        yield (
            f"{_results_have(len(two))} two distinct levels of time, so the median may jump from one to the other: "
            f"{_named(two)}."
        )
    changed = measured[measured["trend"].abs() >= _LARGE_TREND]
    for is_slower, rows in ((True, changed[changed["trend"] > 0]), (False, changed[changed["trend"] < 0])):
        if len(rows):
            rows = rows.sort_values("trend", ascending=not is_slower, kind="stable")
            most = float(rows["trend"].iloc[0])
            change = f"{100 * abs(most):.0f} %" if most < 1 else f"a factor of {1 + most:.1f}"
            cause = " Possible causes are heating, throttling and other programs." if is_slower else ""
            yield (
                f"{_count(len(rows), 'result')} became {'slower' if is_slower else 'faster'} during the measurement, "
                f"by up to {change}: {_named(rows)}.{cause}"
            )


def _named(rows: pd.DataFrame) -> str:
    """Name the first of some results."""
    some = rows.head(_MOST_NAMED)
    named = [
        f"{collective} on {group}" + ("" if _missing(size) else f" at {format_size(size)}")
        for collective, group, size in zip(some["collective"], some["group"], some["size_bytes"], strict=True)
    ]
    more = len(rows) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")


def _different_machine(results: pd.DataFrame, cluster: Cluster) -> list[str]:
    """Return a caveat if the results cannot have been measured on the cluster of the report."""
    sources = set(results["source"].dropna())
    gpus = {one.name for host in cluster.templates for one in host.devices if one.backend != "cpu"}
    gpu = str(results.attrs.get("gpu") or "")
    if sources and sources <= set(CPU_SOURCES):
        measured = "a CPU" if gpus else ""
    elif gpu:
        models = models_in(gpu)
        shown = {model for name in gpus for model in models_in(name)}
        # Names without a model, such as "some GPU", cannot be compared, so they produce no caveat.
        is_different = not gpus or bool(models and shown and not models & shown)
        measured = gpu if is_different else ""
    else:
        measured = ""
    if not measured:
        return []
    return [f"These numbers were measured on {measured}, but this report shows a different machine: {cluster.summary}."]


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, and whether it is marked as bad."""

    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table with a title. `more` is the number of rows that were omitted."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0


def tables(results: pd.DataFrame, samples: pd.DataFrame | None = None) -> tuple[list[ReportTable], int]:
    """Return the tables of a report, and the number of tables that were omitted.

    First come tables of pairs, contention and interference, then one table per line of the plots, ordered by axis.
    """
    found = [_pair_table(rows) for rows in _pairs(results)]
    frames = _frames(results, samples)
    for axis, rows in contention_rows(frames).groupby("axis", sort=False):
        title = f"{axis}{SEPARATOR}all groups together or one at a time"
        found.append(_ratio_table(title, rows, ("alone_us", "one at a time"), ("together_us", "together")))
    for axis, load, rows in _interference(frames):
        title = f"{axis}{SEPARATOR}with and without {load}"
        found.append(_ratio_table(title, rows, ("alone_us", "without"), ("concurrent_us", "with")))
    rows = results[~is_pair(results)]
    lines = lines_of(rows, "busbw_gbs")
    axes = list(dict.fromkeys(_axis(line) for line in lines))
    lines.sort(key=lambda line: axes.index(_axis(line)))  # stable: the lines of an axis keep their order
    found += [_line_table(line, rows.iloc[line.rows]) for line in lines[:MOST_TABLES]]
    return found, max(0, len(lines) - MOST_TABLES)


def _line_table(line: Line, rows: pd.DataFrame) -> ReportTable:
    keys = line.keys
    words = [
        value_label(name, keys[name]) for name in ("dtype", "op", "root", "in_place", "mode") if keys[name] is not None
    ]
    words += option_texts(keys)
    title = SEPARATOR.join(part for part in (str(keys["collective"]), describe_groups(rows), *words) if part)
    rows = rows.sort_values(["size_bytes", "launch", "group"])
    varying = [name for name in ("launch", "group") if rows[name].nunique() > 1]
    has_bounds = "of_bound" in rows and bool(rows["of_bound"].notna().any())
    header = ("size", *varying, "n", "median", "95 % interval", "p99", "algbw", "busbw")
    header += (*["of bound"] * has_bounds, "wrong")
    cells = []
    row: Any
    for row in rows.head(MOST_ROWS).itertuples():
        bandwidths = [format_bandwidth(value) for value in (row.algbw_gbs, row.busbw_gbs)]
        texts = [
            _size(row.size_bytes),
            *(_plain(getattr(row, name)) for name in varying),
            _plain(row.n_samples),
            format_time_us(row.time_us),
            _interval(row.time_us_lo, row.time_us_hi),
            format_time_us(row.p99_us),
            *bandwidths,
            *[_percent(row.of_bound) for _ in range(has_bounds)],
        ]
        cells.append((*(Cell(text) for text in texts), _wrong_cell(row)))
    return ReportTable(title, header, tuple(cells), max(0, len(rows) - MOST_ROWS))


def _percent(share: float) -> str:
    return "" if _missing(share) else f"{100 * share:.0f} %"


def _interval(low: float, high: float) -> str:
    if _missing(low) or _missing(high):
        return "–"
    first, last = format_time_us(low), format_time_us(high)
    number, _, unit = first.rpartition(THIN)  # the bounds may have different units, such as µs and ms
    return f"{number if last.endswith(unit) else first} – {last}"


def _wrong_cell(row: Any) -> Cell:
    status = "" if _missing(row.status) else str(row.status)
    if status in _UNFINISHED:
        return Cell(f"✕ {status}", is_bad=True)
    if status == "skipped":
        return Cell("skipped")
    if _missing(row.n_wrong):
        return Cell("✕ wrong", is_bad=True) if status == "wrong" else Cell("unchecked")
    if row.n_wrong > 0 or status == "wrong":
        return Cell(f"✕ {row.n_wrong:,}", is_bad=True)
    return Cell("0")


def _pair_table(rows: pd.DataFrame) -> ReportTable:
    first = rows.iloc[0]
    parts = [first["collective"], axis_label(first["axis"], "pairs"), first["dtype"], first["mode"], "slowest first"]
    varying = [name for name in ("launch",) if rows[name].nunique() > 1]
    cells = []
    row: Any
    for row in rows.head(MOST_ROWS).itertuples():
        texts = [
            _pair(row),
            format_size(row.size_bytes),
            *(str(getattr(row, name)) for name in varying),
            format_time_us(row.time_us),
            format_bandwidth(row.busbw_gbs),
        ]
        share = Cell(f"{'✕ ' if row.is_slow else ''}{row.share:.0%}", is_bad=bool(row.is_slow))
        cells.append((*(Cell(text) for text in texts), share))
    header = ("pair", "size", *varying, "median", "busbw", "of the median pair")
    return ReportTable(SEPARATOR.join(map(str, parts)), header, tuple(cells), max(0, len(rows) - MOST_ROWS))


_VARYING = ("launch", "op", "dtype", "root", "in_place", "mode", "group")


def _ratio_table(title: str, rows: pd.DataFrame, before: tuple[str, str], after: tuple[str, str]) -> ReportTable:
    """Return a table of two times, each given as its column and its heading, and their ratio."""
    per_collective = rows.groupby("collective")
    # Columns that depend on the collective alone, such as the op that all_gather does not have, are not shown.
    options = [name for name in OPTIONS if name in rows]
    varying = [name for name in (*_VARYING, *options) if per_collective[name].nunique(dropna=False).max() > 1]
    varying = ["collective", *varying] if len(per_collective) > 1 else varying
    constant = [
        value_label(name, rows[name].iloc[0]) for name in ("collective", "dtype", "mode") if name not in varying
    ]
    constant += option_texts({name: rows[name].iloc[0] for name in options if name not in varying})
    cells = []
    for _, row in rows.sort_values(["size_bytes", *varying], kind="stable").head(MOST_ROWS).iterrows():
        interval = "–" if _missing(row["ratio_lo"]) else f"{row['ratio_lo']:.2f} – {row['ratio_hi']:.2f}"
        texts = [
            "–" if _missing(row["size_bytes"]) else format_size(row["size_bytes"]),
            *(value_label(name, row[name]) for name in varying),
            format_time_us(row[before[0]]),
            format_time_us(row[after[0]]),
            f"{row['ratio']:.2f} ×",
            interval,
        ]
        cells.append(tuple(Cell(text) for text in texts))
    header = ("size", *varying, before[1], after[1], "ratio", "95 % interval")
    return ReportTable(SEPARATOR.join([title, *constant]), header, tuple(cells), max(0, len(rows) - MOST_ROWS))


# -- method ------------------------------------------------------------------------------------------------------------


_MODES = {
    "isolated": "isolated: one call at a time, from an aligned start until it is complete",
    "pipelined": "pipelined: calls back to back, as nccl-tests does by default; for small messages this is the cost of "
    "one call among many, not the latency of a single call",
    "graph": "graph: calls captured once in a CUDA graph and replayed, as with nccl-tests -G",
}


def method(results: pd.DataFrame) -> list[tuple[str, str]]:
    """Explain how the numbers were measured and what they mean, as pairs of term and text."""
    modes = [_MODES.get(str(mode), str(mode)) for mode in results["mode"].dropna().unique()]
    sources = set(results["source"].dropna())
    found = [("Mode", "; ".join(modes))] if modes else []
    loads = _loads(results)
    if loads:
        found.append(("Axes", " ".join(loads)))
    if sources - {"nccl-tests"}:
        found.append(
            (
                "Time",
                "The time of a call is that of its slowest rank. Each result is the median over batches of calls, with "
                "a nonparametric 95 % interval (order statistics; missing below 6 batches). Warm-up batches are "
                "excluded. Outliers are included.",
            )
        )
    if "nccl-tests" in sources:
        found.append(
            (
                "Time from nccl-tests",
                "The mean over all iterations, by default averaged over ranks, without an interval.",
            )
        )
    batches = _span(results["n_samples"])
    if batches:
        calls = _span(results["calls"])
        each = f", with {calls} call{'s' * (calls != '1')} each" if calls else ""
        found.append(("Batches", f"{batches} per result{each}"))
    found += [
        (
            "Curves",
            "The thick line is at the median of the slowest group at each size, and the band is the interval of this "
            "group. With several launches, it ranges from the lowest to the highest bound of their intervals. Thin "
            "lines show every group.",
        ),
        (
            "algbw",
            "size S / time t, in GB/s (10⁹ bytes per second). S is the buffer size of one rank, or the total over "
            "ranks for all_gather, reduce_scatter and all_to_all, as in nccl-tests. Sizes are binary: 1 KiB is 1,024 "
            "bytes.",
        ),
        (
            "busbw",
            "algbw × a factor that makes it comparable with the rate of a link for any number of ranks: "
            f"{_factors(results)}.",
        ),
        (
            "Wrong",
            "Number of elements that differ from the expected value, over all ranks. Checked outside the timed part.",
        ),
    ]
    reasons = results["stop_reason"].dropna().value_counts()
    if len(reasons):
        found.append(("Stopped by", ", ".join(f"{reason} ({count:,})" for reason, count in reasons.head(8).items())))
    return found


def _loads(results: pd.DataFrame) -> list[str]:
    """Explain the axis labels of rows that are not plain."""
    groupings, concurrent = set(results["grouping"].dropna()), results[results["concurrent_axis"].notna()]
    found = []
    if "alone" in groupings:
        found.append(
            "One group at a time: the other groups are idle. Otherwise all groups of an axis run together. A ratio of "
            "the two is the median over blocks of batches in which they took turns, with a nonparametric 95 % interval."
        )
    if "pairs" in groupings:
        found.append("Pairs: every two ranks of a group, in rounds of pairs that share no rank.")
    if len(concurrent):
        first = concurrent.iloc[:1]
        label, axis, other = axis_labels(first).iloc[0], first["axis"].iloc[0], first["concurrent_axis"].iloc[0]
        found.append(f"“{label}”: measured along {axis}, while a second thread of every rank runs along {other}.")
    return found


def _factors(results: pd.DataFrame) -> str:
    pairs = results[["collective", "n_ranks"]].dropna().drop_duplicates().itertuples(index=False)
    factors = [
        f"{name} {CATALOG[name].bus_factor(int(n)):.4g} for {int(n)} ranks"
        for name, n in pairs
        if name in CATALOG and n > 1
    ]
    return ", ".join(factors) if factors else "see PERFORMANCE.md of nccl-tests"


# -- words -------------------------------------------------------------------------------------------------------------


def _missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))


def _plain(value: Any) -> str:
    return "–" if _missing(value) else (f"{value:,}" if isinstance(value, int) else str(value))


def _size(size: Any) -> str:
    return "–" if _missing(size) else format_size(size)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _results_have(number: int) -> str:
    return f"{_count(number, 'result')} {'has' if number == 1 else 'have'}"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _span(values: pd.Series[Any]) -> str:
    known = values.dropna()
    if known.empty:
        return ""
    low, high = int(known.min()), int(known.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
