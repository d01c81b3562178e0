"""The verdict of a report: what was measured, whether it is right and fast enough, what is unusual and what changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from meshlab.analysis._comparison import Comparison
from meshlab.analysis._concurrency import contention_rows, interference_rows
from meshlab.analysis._expectations import (
    SLOW_WORDS,
    describe_expectation,
    is_within_tolerance,
    lowest_expected_gbs,
    predicted_range,
)
from meshlab.analysis._pairs import pair_table
from meshlab.analysis._thresholds import ThresholdCheck
from meshlab.analysis._verdicts import one_placement, verdict_of
from meshlab.base._backends import BACKENDS
from meshlab.base._outcome import Outcome
from meshlab.base._units import SEPARATOR, THIN, format_bandwidth, format_range, format_size, format_time_us
from meshlab.frames._labels import CPU_SOURCES, LABELLED, axis_label, describe_groups, where_text
from meshlab.frames._schema import empty_samples, is_pair, is_plain
from meshlab.plots._lines import Line, lines_of
from meshlab.prediction._bounds import bound_lines, bound_note, share_of_bound
from meshlab.report._correct import judge_results
from meshlab.report._words import (
    MOST_NAMED,
    UNFINISHED,
    count,
    is_missing,
    listed,
    named_results,
    pair_label_of,
    results_have,
    size_text,
)
from meshlab.runs._store import Frames

if TYPE_CHECKING:
    import pandas as pd

State = Literal["good", "bad", "note", "plain", "skipped"]

# The states of answers with an outcome, and of stages.
STATES: dict[Outcome | Literal["skipped"], State] = {
    "passed": "good",
    "failed": "bad",
    "not decided": "note",
    "skipped": "skipped",
}

# The signs of the states of an answer.
SIGNS: dict[State, str] = {"good": "✓", "bad": "✕", "note": "!", "plain": "", "skipped": "–"}
UNCERTAIN = "certain"
"""The question of the answer about runs of which most intervals are wide."""
LOGGED = "nccl-tests"
"""The source of results of a log."""
NO_MESH = "the machine is known, but not the mesh of the results"
"""The reason for the lack of bounds if only the machine was passed."""

_LARGE_TREND = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question about a measurement."""

    question: str  # in a word or two
    state: State  # note: worth a look; skipped: only stages of an acceptance
    sentences: tuple[str, ...]
    outcome: Outcome | None = None  # None if the answer decides nothing

    @property
    def sign(self) -> str:
        """A sign for the state, so that colour is not its only carrier."""
        return SIGNS[self.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEvidence:
    """Everything from which the answers follow."""

    results: pd.DataFrame  # with bounds, if the cluster is known
    samples: pd.DataFrame | None = None  # those with blocks, for contention and interference
    progress: str = ""  # a sentence about a run that has not ended
    state: str = ""
    expected: pd.DataFrame | None = None  # from `expectations`
    check: ThresholdCheck | None = None
    comparison: Comparison | None = None  # with the baseline
    stragglers: pd.DataFrame | None = None  # from `find_stragglers`
    devices: pd.DataFrame | None = None  # before and after the run
    tuned: tuple[str, ...] = field(default=())  # the verdicts of a tuning
    no_bounds: str = ""  # why the cluster gives no bounds
    uncertainty: str = ""  # of most times, see `Certainty`


def answers(evidence: ReportEvidence) -> tuple[Answer, ...]:
    """Answer the questions about a measurement."""
    results = evidence.results
    state: State = "bad" if evidence.state in UNFINISHED else "note" if evidence.progress else "plain"
    is_open = bool(evidence.progress) or not len(results)
    outcome: Outcome | None = "failed" if state == "bad" else "not decided" if is_open else None
    replies = [Answer("measured", state, tuple(_measured(evidence)), outcome), _correct(results)]
    if not len(results):
        return tuple(replies)
    if evidence.uncertainty:
        replies.append(Answer(UNCERTAIN, "note", (evidence.uncertainty,)))
    replies += _speed(evidence)
    if evidence.check is not None:
        sentences = [evidence.check.verdict, evidence.check.note]
        replies.append(_decided("thresholds", evidence.check.outcome, filter(None, sentences)))
    replies.append(_unusual(evidence))
    if evidence.comparison is not None:
        replies.append(_changed(evidence.comparison))
    if evidence.tuned:
        replies.append(Answer("tuning", "plain", evidence.tuned))
    return tuple(replies)


def without_repeated(replies: Sequence[Answer], earlier: Iterable[Answer]) -> tuple[Answer, ...]:
    """Omit the sentences that other answers contain, and the answers of which nothing is left."""
    repeated = {sentence for answer in earlier for sentence in answer.sentences}
    rest = (
        replace(answer, sentences=tuple(text for text in answer.sentences if text not in repeated))
        for answer in replies
    )
    return tuple(answer for answer in rest if answer.sentences)


def headline(replies: Sequence[Answer]) -> Answer:
    """Return the most important answer, as one sentence: what is bad, or else how fast it is, if that is certain."""
    by_question = {answer.question: answer for answer in replies}
    measured, correct = by_question["measured"], by_question["correct"]
    if measured.state != "plain":  # the run has not finished
        return Answer("", measured.state, (f"{measured.sentences[0]} {correct.sentences[0]}",))
    if correct.state == "bad" or not {UNCERTAIN, "fast enough"} & by_question.keys():
        return Answer("", correct.state, (correct.sentences[0],))
    for question, state, text in (
        ("thresholds", "bad", "not all thresholds are met"),
        ("fast enough", "bad", "slower than expected"),
        ("changed", "bad", "slower than the baseline"),
        ("thresholds", "note", "not all thresholds were measured"),
    ):
        answer = by_question.get(question)
        if answer is not None and answer.state == state:
            start = "Correct, but" if correct.state == "good" else "Not all checked, and"
            return Answer("", answer.state, (f"{start} {text}. {answer.sentences[0]}",))
    if UNCERTAIN in by_question:  # before any speed, which another run would not confirm
        return Answer("", "note", (f"{by_question[UNCERTAIN].sentences[0]} {correct.sentences[0]}",))
    fast = by_question["fast enough"]
    if fast.state == "good":
        start = "Correct, and" if correct.state == "good" else "Not all checked, but"
        return Answer("", correct.state, (f"{start} as fast as expected. {fast.sentences[0]}",))
    return Answer("", correct.state, (" ".join([correct.sentences[0], *fast.sentences[:1]]),))


# -- measured and correct ----------------------------------------------------------------------------------------------


def _measured(evidence: ReportEvidence) -> Iterator[str]:
    """Describe what was measured, where, and how."""
    results = evidence.results
    if evidence.progress:
        yield evidence.progress
    if evidence.state in UNFINISHED:
        yield f"The run {UNFINISHED[evidence.state]}, so results are missing."
    if not len(results):
        yield "Nothing was measured, so this report is empty."
        return
    names = listed(results["collective"].dropna().unique().tolist())
    rows = results[~is_pair(results)]
    along = [text for _, part in rows.groupby("axis", sort=False) if (text := describe_groups(part[is_plain(part)]))]
    where = f" along {listed(along)}" if along else ""
    pairs = [axis_label(str(axis), "pairs") for axis in results.loc[is_pair(results), "axis"].dropna().unique()]
    where += f"{' and' * bool(along)} between {listed(pairs)}" if pairs else ""
    sizes = results["size_bytes"].dropna()
    span = "" if sizes.empty else f", {format_size(int(sizes.min()))}"
    if len(sizes) and sizes.min() < sizes.max():
        span += f" to {format_size(int(sizes.max()))}"
    kinds = [listed(results[name].dropna().unique().tolist()) for name in ("dtype", "mode")]
    launches = results[["run_id", "launch"]].drop_duplicates()
    times = f", {len(launches)} launches" if len(launches) > 1 else ""
    dtypes, modes = kinds
    how = f" of {dtypes}" if dtypes and span else f", {dtypes}" if dtypes else ""
    in_place = set(results["in_place"].dropna())
    places = [words for value, words in ((True, "in place"), (False, "out of place")) if value in in_place]
    how += f", {' and '.join(places)}" if places else ""
    how += f", {'in the modes ' if ' ' in modes else ''}{modes}" if modes else ""
    ranks, _, system = where_text(results).partition(SEPARATOR)
    on = f", on {ranks}{f' ({system})' if system else ''}" if ranks else ""
    yield f"{names}{where}{span}{how}{times}{on}."


def _decided(question: str, outcome: Outcome, sentences: Iterable[str]) -> Answer:
    return Answer(question, STATES[outcome], tuple(sentences), outcome)


def _correct(results: pd.DataFrame) -> Answer:
    """Judge the results: wrong elements, times that cannot be, measurements that did not finish or were not checked."""
    outcome, sentence = judge_results(results)
    return _decided("correct", outcome, [sentence])


# -- fast enough -------------------------------------------------------------------------------------------------------


def _speed(evidence: ReportEvidence) -> list[Answer]:
    """Judge whether the results are as fast as they should be, and how the axes differ."""
    rows = evidence.results[~is_pair(evidence.results)]
    # An axis is compared with other axes under the same load, and by `load_findings` with itself under different ones.
    line_rows = rows[is_plain(rows)]
    lines = [line for line in lines_of(line_rows, "busbw_gbs") if len(line)]
    differences = _difference(lines, is_one_launch=len(rows[["run_id", "launch"]].drop_duplicates()) < 2)
    if differences and (shared := evidence.results.attrs.get("oversubscribed")):
        differences = [f"The axes are not compared, because {shared}."]  # which they did not do in turns
    if not lines:
        line_rows = rows
        lines = [line for line in lines_of(rows, "busbw_gbs") if len(line)]
    expected = evidence.expected
    if expected is not None and expected["verdict"].ne("unknown").any():
        outcome, sentences = _judged(expected)
        bounds = bound_note(line_rows)
        if len(bound_lines(line_rows)) == 1:
            bounds = bounds[1:]  # the sentences name the only bound already
        return [_decided("fast enough", outcome, (*sentences, *bounds, *differences))]
    peaks = [_no_expectation(evidence, bool(lines)), *_peaks(lines, line_rows), *bound_note(line_rows), *differences]
    remarks = tuple(filter(None, peaks))
    if remarks and expected is not None and len(expected) and set(rows["source"].dropna()) == {LOGGED}:
        return [_decided("fast enough", "not decided", remarks)]  # a log is passed in for its verdict
    return [Answer("fast enough", "plain", remarks)] if remarks else []  # pairs are judged by each other


def _judged(expected: pd.DataFrame) -> tuple[Outcome, list[str]]:
    """Summarise the rows with an expectation: the slow ones, or else the one with the smallest share of its bound."""
    rows = expected[expected["verdict"] != "unknown"]
    slow, has_modes = rows[rows["verdict"].isin(SLOW_WORDS)], rows["mode"].nunique() > 1
    is_compared = rows["published"].map(lambda published: published.word is not None)
    if is_compared.any() and (len(slow) == 0 or is_compared[slow.index].any()):
        chosen = one_placement(slow if len(slow) else rows[is_compared])
        sentences = _first([verdict_of(row).sentence for _, row in chosen.iterrows()])
        if len(slow):
            return "failed", sentences
        return "passed", [*sentences, *(_judged(rows[~is_compared])[1] if not is_compared.all() else [])]
    if len(slow):
        named = [describe_expectation(row, with_mode=has_modes) for _, row in slow.head(MOST_NAMED).iterrows()]
        more = [f"and {len(slow) - len(named)} more"] if len(slow) > len(named) else []
        subject = "The only measurement is" if len(rows) == 1 else f"{len(slow)} of {len(rows)} measurements are"
        subject = f"1 of {len(rows)} measurements is" if len(slow) == 1 < len(rows) else subject
        subject = f"All {len(rows)} measurements are" if len(slow) == len(rows) > 1 else subject
        return "failed", [f"{subject} SLOW at the largest size: {'; '.join([*named, *more])}."]
    share = rows["of_bound"].fillna(rows["of_published"])
    ordered = rows.iloc[share.to_numpy(dtype=float).argsort(kind="stable")]
    best, worst = (describe_expectation(ordered.iloc[number], with_mode=has_modes) for number in (-1, 0))
    if len(ordered) == 1:
        return "passed", [f"{best}{_beside_prediction(ordered.iloc[0])}."]
    of = "bandwidth that the hardware allows" if rows["of_bound"].notna().all() else "expected bandwidth"
    low, high = (f"{100 * limit:.0f}{THIN}%" for limit in (share.min(), share.max()))
    return "passed", [
        f"At the largest size, the collectives reach {format_range(low, high)} of the {of}.",
        f"Lowest: {worst}{_beside_prediction(ordered.iloc[0])}.",
        f"Highest: {best}.",
    ]


def _first(sentences: Sequence[str]) -> list[str]:
    """Return the first sentences, and the number of the others."""
    more = len(sentences) - MOST_NAMED
    return [*sentences[:MOST_NAMED], *([f"{more} more verdicts are in the table."] if more > 0 else [])]


def _beside_prediction(row: pd.Series) -> str:
    """Return the predicted range of a row, and how far below it the row may be."""
    if not (band := predicted_range(row)):
        return ""
    if not is_within_tolerance(row):
        return f", with {band} predicted"
    return f", a little below the predicted {band} (slow below {format_bandwidth(lowest_expected_gbs(row))})"


def _no_expectation(evidence: ReportEvidence, has_lines: bool) -> str:
    """Return the reason why it is unknown how fast the results should be."""
    results = evidence.results
    unknown, sources = "The expected speed is unknown", set(results["source"].dropna())
    expected = evidence.expected
    if expected is not None and len(expected) and sources == {LOGGED}:
        return verdict_of(expected.iloc[0]).sentence
    if not has_lines:
        return (
            ""
            if results["size_bytes"].notna().any()
            else "Functions have no bandwidth, so there is nothing to compare."
        )
    if sources and sources <= set(CPU_SOURCES):
        names = listed([BACKENDS[source].elsewhere for source in sorted(sources)])
        return f"{unknown}, because there is no prediction for {names}."
    if evidence.no_bounds:
        return f"{unknown}, because {evidence.no_bounds}."
    if "of_bound" not in results:
        return f"{unknown}, because this report has no machine and mesh to compare with."
    return f"{unknown}, because there is no prediction for these sizes and collectives."


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
        peak = f"{line.keys['collective']} at {size_text(line.size[index])} reaches "
        peak += f"{format_bandwidth(line.value[index])} busbw"
        share = share_of_bound(rows.iloc[line.rows], line.size[index], line.value[index])
        peak += f", {share} of the bound" if share else ""
        peaks[_axis(line)] = max(peaks.get(_axis(line), (0.0, "")), (float(line.value[index]), peak))
    for axis, (_, peak) in peaks.items():
        yield f"On {axis}, {peak}."


def _difference(lines: Sequence[Line], *, is_one_launch: bool) -> list[str]:
    """Compare the axes at the largest size that they share, with the same collective and otherwise equal keys."""
    # The intervals of one launch do not contain the variation between launches, so they do not predict the next one.
    verb, where = ("was", " in this launch") if is_one_launch else ("is", "")
    comparable: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        key = tuple(str(value) for name, value in line.keys.items() if name not in (*LABELLED, "n_ranks"))
        comparable.setdefault(key, []).append(line)
    differences: list[tuple[float, float, str]] = []
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
        call = f"{fast_line.keys['collective']} at {size_text(size)}"
        rates = f"{format_bandwidth(fast)} and {format_bandwidth(slow)} busbw"
        # The axes differ clearly if the lower bound of the faster one is above the upper bound of the slower one.
        low, high = fast_line.low[fast_line.size == size][0], slow_line.high[slow_line.size == size][0]
        if low > high:
            ratio = fast / slow
            text = f"{call} {verb} {ratio:.2f}× as fast on {fast_axis} as on {slow_axis}{where}: {rates}."
            differences.append((size, ratio, text))
        elif low <= high:  # neither, if an interval is missing
            differences.append(
                (size, 0.0, f"{call} does not clearly differ between {fast_axis} and {slow_axis}: {rates}.")
            )
    # The largest size, where bandwidth matters most. There, a clear difference comes first: its ratio is above 0.
    return [max(differences)[2]] if differences else []


# -- unusual -----------------------------------------------------------------------------------------------------------


def _unusual(evidence: ReportEvidence) -> Answer:
    """Describe everything unusual: slow pairs, contention, late ranks, throttled GPUs, levels and trends of times."""
    remarks: list[str] = []
    denials: list[str] = []
    frames = Frames(evidence.results, empty_samples() if evidence.samples is None else evidence.samples, "")
    for is_odd, sentence in load_findings(frames):
        (remarks if is_odd else denials).append(sentence)
    remarks += _late(evidence.stragglers)
    remarks += _devices(evidence.devices)
    remarks += _shapes(evidence.results[evidence.results["status"].eq("ok").fillna(value=False)])
    if remarks:
        return Answer("unusual", "note", (*remarks, *denials))
    return Answer("unusual", "good", tuple(denials) or ("Nothing unusual was found.",))


def _late(stragglers: pd.DataFrame | None) -> Iterator[str]:
    if stragglers is None or not len(stragglers):
        return
    late = stragglers[stragglers["is_straggler"].fillna(value=False).astype(bool)]
    for rank, rows in late.groupby("rank", sort=False):
        most = rows.iloc[int(rows["late_us"].to_numpy().argmax())]
        yield (
            f"Rank {rank} is a STRAGGLER: it enters up to {format_time_us(float(most['late_us']))} late "
            f"({count(len(rows), 'step')}, on {most['group']})."
        )


def _devices(devices: pd.DataFrame | None) -> Iterator[str]:
    """Yield sentences about GPUs with reduced clocks, and about errors that increased during the run."""
    if devices is None or not len(devices):
        return
    for (host, device), rows in devices.groupby(["host", "device"], sort=False, dropna=False):
        name = f"GPU {device}" + (f" of {host}" if devices["host"].nunique() > 1 else "")
        last = rows.iloc[-1]
        if not is_missing(last["throttle"]) and last["throttle"]:
            yield f"{name} was THROTTLED {last['when']} the run: {last['throttle']}."
        for column, noun in (("ecc_uncorrected", "uncorrected memory error"), ("nvlink_errors", "NVLink error")):
            values = rows[column].dropna()
            more = int(values.iloc[-1] - values.iloc[0]) if len(values) > 1 else 0
            if more > 0:
                yield f"{name} had {count(more, noun)} during the run."


def load_findings(frames: Frames) -> Iterator[tuple[bool, str]]:
    """Yield whether an axis is unusual, and a sentence, for each one with pairs, contention or interference."""
    shared = str(frames.results.attrs.get("oversubscribed", ""))
    for rows in pair_parts(frames.results):
        yield _pairs_sentence(rows, shared)
    for axis, rows in contention_parts(frames):
        claim = f"groups of {axis} slow each other down"
        denial = f"The groups of {axis} do not clearly slow each other down"
        yield _answer(rows, "one group at a time", f"The {claim}", f"the {claim}", denial, shared)
    for axis, load, rows in interference_parts(frames):
        claim = f"{load} slows {axis} down"
        yield _answer(rows, "in isolation", claim, claim, f"{load} does not clearly slow {axis} down", shared)


def _answer(rows: pd.DataFrame, baseline: str, claim: str, question: str, denial: str, shared: str) -> tuple[bool, str]:
    """Return a claim about the ratios of an axis, its denial, or that the question is open, with the evidence."""
    worst, may_be_chance = _worst(rows, baseline)
    if worst:
        unclear = f"It is unclear whether {question}"
        # Both took turns, so the ratio counts, but ranks that wait for a core slow each other down without any link.
        cause = f" {shared}, which may be the reason." if shared else ""
        return not may_be_chance, f"{unclear if may_be_chance else claim}: {worst}.{cause}"
    if rows["note"].notna().all():  # no row has an interval
        return False, f"It is unknown whether {question}: {rows['note'].iloc[0]}."
    return False, f"{denial}."


def pair_parts(results: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the pairs of each collective, axis, mode and dtype."""
    if not is_pair(results).any():  # most results, for which the table would take long
        return
    for _, rows in pair_table(results).groupby(["collective", "axis", "mode", "dtype"], sort=False, dropna=False):
        yield rows


def contention_parts(frames: Frames) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each axis whose groups were measured together and alone, and their rows."""
    if not frames.results["grouping"].eq("alone").any():
        return
    for axis, rows in contention_rows(frames).groupby("axis", sort=False):
        yield str(axis), rows


def interference_parts(frames: Frames) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield each axis with the load on the concurrent axis, and their rows."""
    if frames.results["concurrent_axis"].isna().all():
        return
    keys = ["axis", "concurrent_axis", "concurrent_collective"]
    for (axis, other, collective), rows in interference_rows(frames).groupby(keys, sort=False, dropna=False):
        yield str(axis), str(other) if is_missing(collective) else f"{collective} on {other}", rows


def _pairs_sentence(rows: pd.DataFrame, shared: str) -> tuple[bool, str]:
    size = rows["size_bytes"].max()
    largest = rows[rows["size_bytes"] == size]
    low, high = largest["busbw_gbs"].min(), largest["busbw_gbs"].max()
    first = largest.iloc[0]
    text = f"{first['collective']} at {format_size(size)}, {axis_label(first['axis'], 'pairs')}: "
    text += f"{format_range(format_bandwidth(low), format_bandwidth(high))} busbw"
    slow = largest[largest["is_slow"].fillna(value=False)]
    if shared:
        return False, f"{text}. No pair is judged, because {shared}."
    if len(largest) == 1:
        return False, f"{text}. There is no other pair to compare it with."
    if not len(slow):
        return False, f"{text}. No pair is clearly slow."
    named = [f"{pair_label_of(row)} {format_bandwidth(row.busbw_gbs)}" for row in slow.head(MOST_NAMED).itertuples()]
    more = f" and {len(slow) - len(named)} more" if len(slow) > len(named) else ""
    return True, f"{text}. SLOW: {', '.join(named)}{more}."


def _worst(rows: pd.DataFrame, baseline: str) -> tuple[str, bool]:
    """Describe the largest clear slowdown, and return whether so few slowdowns may be chance. Empty without any."""
    slower = rows[rows["is_clear"] & (rows["ratio"] > 1)]
    if slower.empty:
        return "", False
    row = slower.iloc[int(slower["ratio"].to_numpy().argmax())]
    size = "" if is_missing(row["size_bytes"]) else f" at {format_size(row['size_bytes'])}"
    call = f"{row['collective']}{size} on {row['group']}"
    ratio = f"{row['ratio']:.2f}× ({row['ratio_lo']:.2f} to {row['ratio_hi']:.2f})"
    verb = "is" if len(slower) == 1 else "are"
    counts = f"{len(slower):,} of {count(len(rows), 'result')} {verb} clearly slower than {baseline}"
    may_be_chance = len(slower) <= _by_chance(int(rows["ratio_lo"].notna().sum()))
    reason = ", which may be chance" if may_be_chance else ""
    return f"{counts}{reason}. The largest slowdown is {ratio}: {call}", may_be_chance


def _by_chance(n: int) -> int:
    """Return the number of clear slowdowns among `n` results that chance alone exceeds in less than 1 % of runs."""
    # Eight blocks agree by chance in one direction with a probability of 1 / 2^8, so this is a binomial distribution.
    chance = 1 / 256
    count, below = 0, (1 - chance) ** n
    while below < 0.99:
        count += 1
        below += math.comb(n, count) * chance**count * (1 - chance) ** (n - count)
    return count


def _shapes(measured: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence about the results with two levels of time, and about those with a trend."""
    two = measured[measured["n_modes"].ge(2).fillna(value=False)]
    if len(two):
        yield (
            f"{results_have(len(two))} two distinct levels of time, so the median may jump from one to the other: "
            f"{named_results(two)}."
        )
    changed = measured[measured["trend"].abs() >= _LARGE_TREND]
    for is_slower, rows in ((True, changed[changed["trend"] > 0]), (False, changed[changed["trend"] < 0])):
        if len(rows):
            rows = rows.sort_values("trend", ascending=not is_slower, kind="stable")
            most = float(rows["trend"].iloc[0])
            change = f"{100 * abs(most):.0f}{THIN}%" if most < 1 else f"a factor of {1 + most:.1f}"
            cause = " Possible causes are heating, throttling and other programs." if is_slower else ""
            yield (
                f"{count(len(rows), 'result')} became {'slower' if is_slower else 'faster'} during the measurement, "
                f"by {'up to ' if len(rows) > 1 else ''}{change}: {named_results(rows)}.{cause}"
            )


# -- changed -----------------------------------------------------------------------------------------------------------


def _changed(comparison: Comparison) -> Answer:
    """Describe what changed since the baseline. A difference that makes times incomparable is a warning."""
    outcome = comparison.outcome
    blocking = [
        f"Not the same as the baseline: {difference}." for difference in comparison.differences if difference.blocks
    ]
    state: State = STATES[outcome] if outcome != "not decided" else "note" if blocking else "plain"
    others = [str(difference) for difference in comparison.differences if not difference.blocks]
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    also = [f"Also different: {'; '.join(others[:MOST_NAMED])}{more}."] if others else []
    sentences = comparison.headline, *blocking, *also, *(f"{note[0].upper()}{note[1:]}." for note in comparison.notes)
    # A row without a verdict hides neither a wrong result nor one that is clearly slower.
    return Answer("changed", state, sentences, outcome if outcome == "failed" else None)
