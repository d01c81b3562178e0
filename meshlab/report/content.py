"""What a report says, as plain values: the verdict, warnings, tables and the method."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshlab.analysis.concurrency import contention, interference
from meshlab.analysis.pairs import pair_table
from meshlab.comm.catalog import CATALOG
from meshlab.frames.labels import CPU_SOURCES, axis_words, describe_groups, is_plain, is_wrong, say
from meshlab.plots.lines import Line, lines_of
from meshlab.units import SEPARATOR, THIN, format_bandwidth, format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.topology.model.cluster import Cluster

__all__ = [
    "MOST_ROWS",
    "MOST_TABLES",
    "Cell",
    "ReportTable",
    "answer_tables",
    "answers",
    "correctness",
    "has_failed",
    "method",
    "tables",
    "verdict",
    "warnings_of",
]


MOST_ROWS, MOST_TABLES = 200, 60

_MOST_NAMED = 3

_FEW_SAMPLES = 30

_WIDE_INTERVAL = 0.10


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: its text, and whether it tells of something wrong."""

    text: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A titled table; `more` rows were left out of it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0


def correctness(results: pd.DataFrame) -> str:
    """Whether the results are right, in a sentence or two with numbers."""
    total = len(results)
    if not total:
        return "Nothing was measured."
    wrong = results[is_wrong(results)]
    failed = int(results["status"].isin(["failed", "cancelled"]).sum())
    checked = int(results["n_wrong"].notna().sum())
    skipped = int(results["status"].eq("skipped").sum())
    left_out = failed + skipped
    if len(wrong):
        named = [
            f"{row.collective} on {row.group} at {_size(row.size_bytes)}"
            + ("" if _missing(row.n_wrong) else f" ({row.n_wrong:,} elements)")
            for row in wrong.head(_MOST_NAMED).itertuples()
        ]
        more = len(wrong) - len(named)
        text = f"{len(wrong):,} of {_rows(total)} {_are(len(wrong))} WRONG: {', '.join(named)}"
        text += f" and {more:,} more." if more else "."
    elif not checked:
        text = f"No answer was checked in {_rows(total)}."
    elif checked < total - left_out:
        text = f"All {checked:,} checked rows are right; {total - left_out - checked:,} were not checked."
    else:
        text = f"All {checked:,} rows are right." if checked > 1 else "The one row is right."
    text += f" {_rows(failed)} did not finish." if failed else ""
    return text + (f" {_rows(skipped)} did not fit into memory." if skipped else "")


def has_failed(results: pd.DataFrame) -> bool:
    """Whether a row is wrong or did not finish."""
    return bool(is_wrong(results).any() or results["status"].isin(["failed", "cancelled"]).any())


def verdict(results: pd.DataFrame) -> list[str]:
    """What the results say, in sentences with numbers: are they right, how fast are the axes, how do they differ."""
    lines = [line for line in lines_of(_without_pairs(results), "busbw_gbs") if line.size.size]
    # An axis is compared with other axes, not with itself under another load: the answers do that.
    lines = [line for line in lines if _missing(line.keys["axis"]) or is_plain(str(line.keys["axis"]))] or lines
    return [correctness(results), *_peaks(lines), *_difference(lines)]


def _without_pairs(results: pd.DataFrame) -> pd.DataFrame:
    """All rows but those of pairs, which are shown as a matrix."""
    is_pair = results["axis"].str.endswith(" pairs").fillna(value=False).to_numpy(bool)
    return results[~is_pair] if is_pair.any() else results


def _axis(line: Line) -> str:
    axis = line.keys["axis"]
    return f"{line.keys['n_ranks']} ranks" if _missing(axis) else str(axis)


def _peaks(lines: Sequence[Line]) -> Iterable[str]:
    peaks: dict[str, tuple[float, str]] = {}
    for line in lines:
        index = int(line.value.argmax())
        what = f"{line.keys['collective']} at {_size(line.size[index])}"
        peaks[_axis(line)] = max(peaks.get(_axis(line), (0.0, "")), (float(line.value[index]), what))
    for axis, (peak, what) in peaks.items():
        yield f"On {axis}, {what} reaches {format_bandwidth(peak)} busbw."


def _difference(lines: Sequence[Line]) -> Iterable[str]:
    """Compare the axes at the largest size they share, where the collective and all else are the same."""
    alike: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        kept = tuple(str(value) for key, value in line.keys.items() if key not in ("axis", "n_ranks"))
        alike.setdefault(kept, []).append(line)
    found: list[tuple[float, float, str]] = []
    for same in alike.values():
        shared = set.intersection(*(set(line.size.tolist()) for line in same))
        if len({_axis(line) for line in same}) < 2 or not shared or not all(is_plain(_axis(line)) for line in same):
            continue
        size = max(shared)
        at = sorted(
            ((float(line.value[line.size == size][0]), _axis(line), line) for line in same), key=lambda it: it[0]
        )
        (slow, slow_axis, slow_line), (fast, fast_axis, fast_line) = at[0], at[-1]
        if slow_axis == fast_axis:
            continue
        what = f"{fast_line.keys['collective']} at {_size(size)}"
        both = f"{format_bandwidth(fast)} against {format_bandwidth(slow)} busbw"
        low, high = fast_line.low[fast_line.size == size][0], slow_line.high[slow_line.size == size][0]
        if low > high:
            ratio = fast / slow
            found.append((size, ratio, f"{what} is {ratio:.2f} × as fast on {fast_axis} as on {slow_axis}: {both}."))
        elif low <= high:
            alike_text = f"{what} does not differ between {fast_axis} and {slow_axis} beyond the intervals: {both}."
            found.append((size, 0.0, alike_text))
    if found:
        yield max(found)[2]


def warnings_of(results: pd.DataFrame, *, state: str, fingerprint: str, cluster: Cluster | None = None) -> list[str]:
    """What the reader should know before trusting the numbers."""
    warnings = _another_machine(results, cluster) if cluster is not None else []
    sources = set(results["source"].dropna())
    if "mpi" in sources:
        warnings.append("MPI on a CPU gave these numbers. They say nothing about GPUs or their links.")
    if "threads" in sources:
        warnings.append("Threads in one process gave these numbers. They are no machine's numbers.")
    if results.attrs.get("note"):
        warnings.append(str(results.attrs["note"]))
    if state in ("cancelled", "failed"):
        warnings.append(f"The run {'was cancelled' if state == 'cancelled' else 'failed'}; rows are missing.")
    stopped = results[results["status"].isin(["failed", "cancelled"])]
    if len(stopped):
        reasons = [str(reason) for reason in stopped["stop_reason"].dropna().unique()[:_MOST_NAMED]]
        warnings.append(f"{_rows(len(stopped))} did not finish{': ' + '; '.join(reasons) if reasons else ''}.")
    measured = results[results["status"].eq("ok").fillna(False)]
    is_settled = measured["stop_reason"].eq("precise").fillna(False)  # few batches were enough
    few = int((measured["n_samples"].lt(_FEW_SAMPLES).fillna(False) & ~is_settled).sum())
    if few:
        warnings.append(f"{_rows_have(few)} fewer than {_FEW_SAMPLES} batches; the median is unsure.")
    without = int(measured["time_us_lo"].isna().sum())
    if without:
        warnings.append(f"{_rows_have(without)} no interval.")
    width = (measured["time_us_hi"] - measured["time_us_lo"]) / measured["time_us"]
    wide = int((width > _WIDE_INTERVAL).sum())
    if wide:
        warnings.append(f"{_rows_have(wide)} an interval wider than {100 * _WIDE_INTERVAL:g} % of the median.")
    others = set(results["mesh_fingerprint"].dropna()) - {fingerprint}
    if fingerprint and others:
        warnings.append("Some rows were measured on another mesh than the one shown here.")
    return warnings


_MODEL = re.compile(r"\b(?!HBM|SXM)(?:[A-Z]{1,3}\d{1,4}[A-Z]*|\d{4})\b")
"""What tells one GPU from another in a product's name: the H100 of "NVIDIA H100 80GB HBM3"."""


def _another_machine(results: pd.DataFrame, cluster: Cluster) -> list[str]:
    """Whether the machine that the report shows cannot have given the numbers."""
    sources = set(results["source"].dropna())
    gpus = {one.name for host in cluster.templates for one in host.devices if one.backend != "cpu"}
    gpu = str(results.attrs.get("gpu") or "")
    if sources and sources <= set(CPU_SOURCES):
        who = "a CPU" if gpus else ""
    elif gpu:
        models = set(_MODEL.findall(gpu))
        shown = {model for name in gpus for model in _MODEL.findall(name)}
        # Where a name tells no model, nobody can say.
        is_other = not gpus or bool(models and shown and not models & shown)
        who = gpu if is_other else ""
    else:
        who = ""
    return [f"The machine shown here did not give these numbers, {who} did: {cluster.summary}."] if who else []


def tables(results: pd.DataFrame) -> tuple[list[ReportTable], int]:
    """One table per line of the plots, by axis, and how many more there would be."""
    lines = lines_of(_without_pairs(results), "busbw_gbs")
    axes = list(dict.fromkeys(_axis(line) for line in lines))
    lines.sort(key=lambda line: axes.index(_axis(line)))
    return [_table(line) for line in lines[:MOST_TABLES]], max(0, len(lines) - MOST_TABLES)


def _table(line: Line) -> ReportTable:
    keys = line.keys
    told = [say(key, keys[key]) for key in ("dtype", "op", "root", "in_place", "mode") if not _missing(keys[key])]
    title = SEPARATOR.join(part for part in (str(keys["collective"]), describe_groups(line.rows), *told) if part)
    rows = line.rows.sort_values(["size_bytes", "launch", "group"])
    varying = [name for name in ("launch", "group") if rows[name].nunique() > 1]
    header = ("size", *varying, "n", "median", "95 % interval", "p99", "algbw", "busbw", "wrong")
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
        ]
        cells.append((*(Cell(text) for text in texts), _wrong_cell(row)))
    return ReportTable(title, header, tuple(cells), max(0, len(rows) - MOST_ROWS))


def _interval(low: float, high: float) -> str:
    if _missing(low) or _missing(high):
        return "–"
    first, last = format_time_us(low), format_time_us(high)
    number, _, unit = first.rpartition(THIN)
    return f"{number if last.endswith(unit) else first} – {last}"


def _wrong_cell(row: Any) -> Cell:
    status = "" if _missing(row.status) else str(row.status)
    if status in ("failed", "cancelled"):
        return Cell(f"✕ {status}", is_bad=True)
    if status == "skipped":
        return Cell("skipped")
    if _missing(row.n_wrong):
        return Cell("✕ wrong", is_bad=True) if status == "wrong" else Cell("unchecked")
    if row.n_wrong > 0 or status == "wrong":
        return Cell(f"✕ {row.n_wrong:,}", is_bad=True)
    return Cell("0")


_MODES = {
    "isolated": "isolated: one call at a time, from an aligned start until it is complete",
    "pipelined": "pipelined: calls back to back, as nccl-tests does by default; for a small message that is the cost "
    "of one call among many, not its latency alone",
    "graph": "graph: calls captured once in a CUDA graph and replayed, as nccl-tests -G does",
}

_WAYS = {
    " alone": "one group at a time: the rest idle; else all groups of an axis at once",
    " pairs": "pairs: every two ranks of a group, in rounds of pairs that share no rank",
    "+": "tp, while dp …: along tp, while every rank also works along dp, in a thread of its own",
}


def method(results: pd.DataFrame) -> list[tuple[str, str]]:
    """How the numbers were made and what they mean: terms with their text."""
    modes = [_MODES.get(str(mode), str(mode)) for mode in results["mode"].dropna().unique()]
    sources = set(results["source"].dropna())
    told = [("Mode", "; ".join(modes))] if modes else []
    axes = " ".join(str(axis) for axis in results["axis"].dropna().unique())
    ways = [text for mark, text in _WAYS.items() if mark in axes]
    if ways:
        told.append(("Axes", "; ".join(ways)))
    if sources - {"nccl-tests"}:
        told.append(
            (
                "Time",
                "The time of a call is that of its slowest rank. A row gives the median over batches of calls, with a "
                "nonparametric 95 % interval (order statistics; none below 6 batches). Warm-up is not counted; "
                "outliers are.",
            )
        )
    if "nccl-tests" in sources:
        told.append(
            ("Time from nccl-tests", "A mean over all iterations, by default averaged over ranks; it has no interval.")
        )
    batches = _span(results["n_samples"])
    if batches:
        calls = _span(results["calls"])
        told.append(("Batches", f"{batches} a row" + (f", of {calls} calls each" if calls else "")))
    told += [
        (
            "Curves",
            "A line stands at the slowest group's median; the band reaches from the lowest to the highest end of the "
            "groups' intervals.",
        ),
        (
            "algbw",
            "size S / time t, in GB/s (10⁹ bytes per second). S is the buffer of one rank, or the total over ranks for "
            "all_gather, reduce_scatter and all_to_all, as in nccl-tests. Sizes are binary: 1 KiB is 1,024 bytes.",
        ),
        ("busbw", f"algbw × a factor that makes it comparable with a link's rate whatever n is: {_factors(results)}."),
        (
            "Wrong",
            "Elements that differ from the right answer, summed over ranks; checked outside the timed part.",
        ),
    ]
    reasons = results["stop_reason"].dropna().value_counts()
    if len(reasons):
        told.append(("Stopped by", ", ".join(f"{reason} ({count:,})" for reason, count in reasons.head(8).items())))
    return told


def _factors(results: pd.DataFrame) -> str:
    pairs = results[["collective", "n_ranks"]].dropna().drop_duplicates().itertuples(index=False)
    told = [
        f"{name} {CATALOG[name].bus_factor(int(n)):.4g} for {int(n)} ranks"
        for name, n in pairs
        if name in CATALOG and n > 1
    ]
    return ", ".join(told) if told else "see PERFORMANCE.md of nccl-tests"


def _missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))


def _plain(value: Any) -> str:
    return "–" if _missing(value) else (f"{value:,}" if isinstance(value, int) else str(value))


def _size(size: Any) -> str:
    return "–" if _missing(size) else format_size(size)


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"


def _rows_have(count: int) -> str:
    return f"{_rows(count)} {'has' if count == 1 else 'have'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _span(values: pd.Series[Any]) -> str:
    known = values.dropna()
    if known.empty:
        return ""
    low, high = int(known.min()), int(known.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


_VARYING = ("launch", "op", "dtype", "root", "in_place", "mode", "group")


def answers(results: pd.DataFrame) -> list[str]:
    """One sentence with numbers for each question and axis."""
    return [
        *(_of_pairs(rows) for rows in _pairs(results)),
        *(_of_groups(axis, rows) for axis, rows in contention(results).groupby("axis", sort=False)),
        *(
            _of_axes(axis, beside, rows)
            for (axis, beside), rows in interference(results).groupby(["axis", "beside"], sort=False)
        ),
    ]


def answer_tables(results: pd.DataFrame) -> list[ReportTable]:
    """One table for each question and axis."""
    return [
        *(_pair_table(rows) for rows in _pairs(results)),
        *(
            _ratio_table(f"{axis}{SEPARATOR}all groups at once against one at a time", rows, "alone", "together")
            for axis, rows in contention(results).groupby("axis", sort=False)
        ),
        *(
            _ratio_table(f"{axis}{SEPARATOR}while {beside} runs, against alone", rows, "alone", "beside")
            for (axis, beside), rows in interference(results).groupby(["axis", "beside"], sort=False)
        ),
    ]


def _pairs(results: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The pairs of each collective, axis, mode and element type."""
    for _, rows in pair_table(results).groupby(["collective", "axis", "mode", "dtype"], sort=False):
        yield rows


def _of_pairs(rows: pd.DataFrame) -> str:
    size = rows["size_bytes"].max()
    largest = rows[rows["size_bytes"] == size]
    low, high = largest["busbw_gbs"].min(), largest["busbw_gbs"].max()
    first = largest.iloc[0]
    words = axis_words(f"{first['axis']} pairs")
    text = f"{first['collective']} at {format_size(size)}, {words}: {format_bandwidth(low)} to "
    text += f"{format_bandwidth(high)} busbw; "
    slow = largest[largest["is_slow"].fillna(value=False)]
    if not len(slow):
        return f"{text}no pair is slow."
    named = [f"{_ends(row)} {format_bandwidth(row.busbw_gbs)}" for row in slow.head(_MOST_NAMED).itertuples()]
    more = f" and {len(slow) - len(named)} more" if len(slow) > len(named) else ""
    return f"{text}SLOW: {', '.join(named)}{more}."


def _ends(row: Any) -> str:
    return f"{row.from_rank}{'→' if row.collective == 'send' else '↔'}{row.to_rank}"


def _pair_table(rows: pd.DataFrame) -> ReportTable:
    first = rows.iloc[0]
    parts = [first["collective"], axis_words(f"{first['axis']} pairs"), first["dtype"], first["mode"]]
    parts.append("the slowest first")
    varying = [name for name in ("launch",) if rows[name].nunique() > 1]
    cells = []
    row: Any
    for row in rows.head(MOST_ROWS).itertuples():
        texts = [
            _ends(row),
            format_size(row.size_bytes),
            *(str(getattr(row, name)) for name in varying),
            format_time_us(row.time_us),
            format_bandwidth(row.busbw_gbs),
        ]
        share = Cell(f"{'✕ ' if row.is_slow else ''}{row.share:.0%}", is_bad=bool(row.is_slow))
        cells.append((*(Cell(text) for text in texts), share))
    header = ("pair", "size", *varying, "median", "busbw", "of the median pair")
    return ReportTable(SEPARATOR.join(map(str, parts)), header, tuple(cells), max(0, len(rows) - MOST_ROWS))


def _worst(rows: pd.DataFrame) -> str:
    """What became slower the most, and how many rows surely did; empty where none did."""
    slower = rows[rows["is_clear"] & (rows["ratio"] > 1)]
    if slower.empty:
        return ""
    row = slower.iloc[int(slower["ratio"].to_numpy().argmax())]
    what = f"{row['collective']} at {format_size(row['size_bytes'])} on {row['group']}"
    ratio = f"{row['ratio']:.2f} × as long ({row['ratio_lo']:.2f} to {row['ratio_hi']:.2f})"
    return f"{len(slower):,} of {len(rows):,} rows are clearly slower than alone, at most {what}, {ratio}"


def _of_groups(axis: Any, rows: pd.DataFrame) -> str:
    worst = _worst(rows)
    if not worst:
        return f"The groups of {axis} do not slow each other down beyond the intervals."
    return f"The groups of {axis} slow each other down: {worst}."


def _of_axes(axis: Any, beside: Any, rows: pd.DataFrame) -> str:
    worst = _worst(rows)
    if not worst:
        return f"{beside} does not slow {axis} down beyond the intervals."
    return f"{beside} slows {axis} down: {worst}."


def _ratio_table(title: str, rows: pd.DataFrame, before: str, after: str) -> ReportTable:
    names = {"alone": "alone", "together": "all at once", "beside": "both at once"}
    per_collective = rows.groupby("collective")
    # What follows from the collective, such as that all_gather has no op, needs no column.
    varying = [name for name in _VARYING if per_collective[name].nunique(dropna=False).max() > 1]
    varying = ["collective", *varying] if len(per_collective) > 1 else varying
    constant = [name for name in ("collective", "dtype", "mode") if name not in varying]
    told = [say(name, rows[name].iloc[0]) for name in constant]
    ordered = rows.sort_values(["size_bytes", *varying], kind="stable")
    cells = []
    for _, row in ordered.head(MOST_ROWS).iterrows():
        interval = "–" if row["ratio_lo"] != row["ratio_lo"] else f"{row['ratio_lo']:.2f} – {row['ratio_hi']:.2f}"
        texts = [
            format_size(row["size_bytes"]),
            *(say(name, row[name]) for name in varying),
            format_time_us(row[f"{before}_us"]),
            format_time_us(row[f"{after}_us"]),
            f"{row['ratio']:.2f} ×",
            interval,
        ]
        cells.append(tuple(Cell(text) for text in texts))
    header = ("size", *varying, names[before], names[after], "ratio", "95 % interval")
    return ReportTable(SEPARATOR.join([title, *told]), header, tuple(cells), max(0, len(rows) - MOST_ROWS))
