"""Reads the JSON of nccl-tests (``-J``), versions 1 to 3, even if it is truncated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import compress
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from meshlab.base._collectives import COLLECTIVES, NCCL_TESTS
from meshlab.base._documents import LimitError, NestingError, decode_json, mapping_or_empty, parse_json
from meshlab.base._errors import ParseError
from meshlab.base._numerals import whole_or_none
from meshlab.nccl_tests._command_line import CommandOptions, read_options
from meshlab.nccl_tests._infer import MOST_SECTIONS, SectionParts, make_section, too_many_sections
from meshlab.nccl_tests._info import FactCollector, version_from_code
from meshlab.nccl_tests._log import ITEMSIZE, OPS, DeviceLine, Footer, IterationTimes, LogTable, Note, Preamble, Section
from meshlab.nccl_tests._rows import consistent_rows

MOST_JSON = 1 << 29
"""The largest JSON file that is read, in bytes."""

_KEYS = ('"version"', '"nccl_version"', '"args"', '"start_time"', '"results"')
_LINE_KEYS = ('"inPlace"', '"busBw"', '"gpus"')  # of rccl-tests, which writes one object per row
_LINE_COLUMNS = {"time": "time", "alg_bw": "algBw", "bus_bw": "busBw", "nwrong": "#wrong"}
_ENTRY = re.compile(r'\{\s*"size"\s*:')
_PROGRAM = re.compile(r"(\w+?)_perf(?:_\w+)?")
_RESULTS = re.compile(r'"results"\s*:\s*\[')
_NOT_BLANK = re.compile(r"\S")
_NEXT = re.compile(r"[^\s,]")
_PLACEMENTS = ("out_of_place", "in_place")
_ITERATION = ("min_us", "max_us", "p99_us", "cv_pct")
_NAN = float("nan")
_MOST_RESULTS, _RESULT = 10_000, 150  # results in a text, and one more for each of so many characters


def looks_like_json(start: str) -> bool:
    """Return True if a text starts like JSON of nccl-tests."""
    is_object = start.lstrip("\ufeff \t\r\n").startswith("{")
    if is_object and (any(key in start for key in _KEYS) or all(key in start for key in _LINE_KEYS)):
        return True
    return '"out_of_place"' in start and _ENTRY.search(start) is not None  # the beginning of the file is missing


def read_json_sections(text: str, *, file: str | None = None) -> Iterator[Section]:
    """Read one or more concatenated documents. Raise a `ParseError` if the text is not JSON of nccl-tests."""
    at, number = 0, 0
    text = text.lstrip("\ufeff")
    if all(key in text for key in _LINE_KEYS):
        yield from _read_lines(text, file)
        return
    if not text.lstrip().startswith("{") or _ENTRY.match(text.lstrip()):
        yield _section({"results": _entries(text, 0)}, 1, 1, is_complete=False)
        return
    line, counted, n_results = 1, 0, 0
    while match := _NOT_BLANK.search(text, at):
        at = match.start()
        line, counted = line + text.count("\n", counted, at), at
        try:
            document, at = decode_json(text, at)
            is_complete = True
        except (LimitError, NestingError):
            raise
        except ParseError as error:
            document, is_complete = _complete_part(text[at:], file), False
            if document is None and (entries := _entries(text, at)):
                document = {"results": entries}  # something before the results is broken
            at = len(text)
            if document is None:
                raise ParseError(
                    f"no nccl-tests output found: the JSON is broken at character {error.column or 0:,} "
                    f"({error.message}), before the first result",
                    hint="copy the file again",
                    file=file,
                ) from None
        if not isinstance(document, dict) or not ({"results", "config", "args"} & document.keys()):
            raise ParseError(
                "no nccl-tests output found: the JSON has neither args nor config nor results",
                hint="pass a file that nccl-tests wrote with -J",
                file=file,
            )
        number += 1
        if number > MOST_SECTIONS:
            raise too_many_sections(file)
        n_results += len(_list(document.get("results")))
        _check_results(n_results, text, file)
        yield _section(document, number, line, is_complete)


def _check_results(n: int, text: str, file: str | None) -> None:
    """Raise if a text has more results than nccl-tests writes into so many characters."""
    most = _MOST_RESULTS + len(text) // _RESULT
    if n > most:
        raise LimitError(
            f"the JSON has {len(text):,} characters, and more than {most:,} results",
            hint="pass a file that nccl-tests wrote with -J",
            file=file,
        )


def _complete_part(text: str, file: str | None) -> dict[str, Any] | None:
    """Return the part of a truncated document before the results, with each complete result."""
    if (match := _RESULTS.search(text)) is None:
        return None
    try:
        document: dict[str, Any] = parse_json(text[: match.end()] + "]}")
    except ParseError:
        return None
    at = match.end()
    while start := _NEXT.search(text, at):
        try:
            result, at = decode_json(text, start.start())
        except ParseError:
            break
        document["results"].append(result)
        _check_results(len(document["results"]), text, file)
    return document


def _entries(text: str, at: int) -> list[dict[str, Any]]:
    """Return all complete results from a position on."""
    results = []
    while match := _ENTRY.search(text, at):
        at = match.end()
        try:
            result, at = decode_json(text, match.start())
        except ParseError:
            continue
        results.append(result)
        _check_results(len(results), text, None)
    return results


def _read_lines(text: str, file: str | None) -> Iterator[Section]:
    """Read the rows that rccl-tests writes with ``-x FILE -Z json``: one object per row and placement."""
    rows: list[dict[str, Any]] = []
    n_broken = 0
    for line in text.splitlines():
        try:
            row = parse_json(line) if line.strip() else None
        except ParseError:
            n_broken += 1
            continue
        if row is not None:
            rows.append(dict(mapping_or_empty(row)))
    if not any("busBw" in row for row in rows):
        raise ParseError(
            "no nccl-tests output found: no line is a complete result", hint="copy the file again", file=file
        )
    start = number = 0
    for end in range(1, len(rows) + 1):
        # A file that is appended to has several runs. The sizes of one run grow.
        if end < len(rows) and _run_of(rows[end]) == _run_of(rows[start]) and not _is_smaller(rows[end], rows[end - 1]):
            continue
        number += 1
        if number > MOST_SECTIONS:
            raise too_many_sections(file)
        yield _lines_section(rows[start:end], number, start + 1, n_broken if end == len(rows) else 0)
        start = end


def _run_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row.get("name"), row.get("gpus"), row.get("ranks"), row.get("nodes")


def _is_smaller(row: dict[str, Any], before: dict[str, Any]) -> bool:
    same = all(row.get(name) == before.get(name) for name in ("type", "redop"))
    return same and (whole_or_none(row.get("size")) or 0) < (whole_or_none(before.get("size")) or 0)


def _lines_section(rows: list[dict[str, Any]], number: int, line: int, n_broken: int) -> Section:
    """Return the section of consecutive lines of one run."""
    name = _program(str(rows[0].get("name", "")))
    n_ranks = whole_or_none(rows[0].get("ranks")) or whole_or_none(rows[0].get("gpus"))
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        size, type_ = whole_or_none(row.get("size")), str(row.get("type", ""))
        place = "in_place" if whole_or_none(row.get("inPlace")) else "out_of_place"
        key = size, type_, str(row.get("redop"))
        per_rank = n_ranks if name in _SIZE_PER_RANK and n_ranks else 1
        count = (size or 0) // (ITEMSIZE.get(type_, 1) * per_rank)
        entry = merged.setdefault(key, {"size": size, "count": count, "type": type_, "redop": row.get("redop")})
        entry[place] = {name: row.get(column) for name, column in _LINE_COLUMNS.items()}
    # Times and bandwidths are averages over the ranks, so one does not follow exactly from the other.
    table, dropped = _table(list(merged.values()), is_exact=False)
    n_broken += dropped
    return make_section(
        SectionParts(
            number=number,
            line=line,
            preamble=Preamble(program=name or None, tool="rccl-tests"),
            table=table,
            broken=[0] * n_broken,
            listed_ranks=n_ranks,
            ends_with_average=False,
        )
    )


_SIZE_PER_RANK = frozenset(test.program for name, test in NCCL_TESTS.items() if COLLECTIVES[name].has_total_size)
_PROGRAM_OF_LETTERS = {
    text.replace("_", ""): test.program for name, test in NCCL_TESTS.items() for text in (name, test.program)
}


def _program(name: str) -> str:
    """Return the name of a test program for the name of its collective, such as AllReduce."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return _PROGRAM_OF_LETTERS.get(snake.replace("_", ""), snake)


def _section(document: dict[str, Any], number: int, line: int, is_complete: bool) -> Section:
    config = mapping_or_empty(document.get("config"))
    results = [result for result in _list(document.get("results")) if isinstance(result, dict)]
    facts = FactCollector()
    for pair in _list(document.get("env")):
        name, _, value = str(pair).partition("=")
        # The tool dumps its complete environment, which may contain secrets. Keep only NCCL's own variables.
        if name.startswith("NCCL_"):
            facts.add_variable(name, value)
    table, dropped = _table(results)
    args = _list(document.get("args"))
    program = _PROGRAM.fullmatch(PurePosixPath(str(args[0])).name) if args else None
    options = read_options([str(argument) for argument in args[1:]]) if args else CommandOptions()
    preamble = Preamble(
        program=program[1] if program is not None else None,
        tool="nccl-tests",
        library_version=version_from_code(whole_or_none(document.get("nccl_version")) or 0),
        threads=whole_or_none(config.get("nthreads")),
        gpus=whole_or_none(config.get("ngpus")),
        min_bytes=whole_or_none(config.get("minimum_bytes")),
        max_bytes=whole_or_none(config.get("maximum_bytes")),
        step=whole_or_none(config.get("step_factor")) or whole_or_none(config.get("step_bytes")),
        step_kind="factor" if "step_factor" in config else "bytes" if "step_bytes" in config else None,
        warmup_iters=whole_or_none(config.get("warmup_iters")),
        iters=whole_or_none(config.get("iterations")),
        agg_iters=_first(whole_or_none(config.get("aggregated_iterations")), options.agg_iters),
        validation=whole_or_none(config.get("validation")),
        graph=whole_or_none(config.get("graph")),
        blocking="blocking" if config.get("blocking_collectives") == "true" else None,
        skipped_iters=whole_or_none(config.get("per_iter_skip")),
        unalign=_first(whole_or_none(config.get("unalign")), options.unalign),
        local_register=_first(whole_or_none(config.get("local_register")), options.local_register),
        cta_policy=_first(whole_or_none(config.get("cta_policy")), options.cta_policy),
    )
    devices = tuple(_device(device) for device in _list(config.get("devices")) if isinstance(device, dict))
    average = _average(document)
    bounds = mapping_or_empty(document.get("out_of_bounds"))
    errors = [Note(None, str(error)) for error in _list(document.get("errors")) if error]
    notes = [] if is_complete else [Note(None, "the JSON is truncated")]
    # The device list has one entry per process, not one per GPU as in the text.
    first_group = devices[0].group if devices else None
    processes = sum(device.group == first_group for device in devices)
    per_process = (preamble.threads or 0) * (preamble.gpus or 0)
    return make_section(
        SectionParts(
            number=number,
            line=line,
            preamble=preamble,
            devices=devices,
            began_table="results" in document,
            table=table,
            broken=[0] * dropped,
            footer=Footer(
                whole_or_none(bounds.get("count")),
                _bool(bounds.get("okay")),
                average,
                _bool(mapping_or_empty(_average_part(document)).get("okay")),
            ),
            failures=errors,
            failure_lines=len(errors) if average is None else 0,
            notes=notes + (errors if average is not None else []),
            nccl=facts.facts(),
            listed_ranks=processes * per_process or None,
            iterations=tuple(_iterations(results)),
            has_environment="env" in document,
        )
    )


def _table(results: list[dict[str, Any]], *, is_exact: bool = True) -> tuple[LogTable, int]:
    """Return the results as columns, and the number of inconsistent ones, which are also removed from the list."""
    n_read = len(results)
    timings = {key: [_timing(result.get(key)) for result in results] for key in _PLACEMENTS}
    good = [
        whole_or_none(result.get("size")) is not None and (out_of_place, in_place) != (None, None)
        for result, out_of_place, in_place in zip(results, *timings.values(), strict=True)
    ]
    results[:] = [result for result, is_good in zip(results, good, strict=True) if is_good]
    n = len(results)
    values = np.full((n, 2, 4), _NAN)
    iteration = np.full((n, 2, 4), _NAN)
    present = np.zeros((n, 2), dtype=bool)
    has_iterations = cpu_time = False
    for placement, key in enumerate(_PLACEMENTS):
        column = list(compress(timings[key], good))
        if not (rows := [index for index, timing in enumerate(column) if timing is not None]):
            continue
        present[rows, placement] = True
        values[rows, placement] = [column[index] for index in rows]
        cpu_time = cpu_time or any("cpu_time" in results[index][key] for index in rows)
        per_iter = f"{key}_per_iter"
        for index in rows:
            summary = results[index].get(per_iter)
            if isinstance(summary, dict):
                has_iterations = True
                iteration[index, placement] = [_float(summary.get(name)) for name in _ITERATION]
    root_of = cache(lambda text: whole_or_none(text.strip()))
    roots = [root_of(str(result.get("root", "-1"))) for result in results]
    table = LogTable(
        np.zeros(n, dtype=np.int64),
        np.array([whole_or_none(result["size"]) for result in results], dtype=np.int64),
        np.array([whole_or_none(result.get("count")) or 0 for result in results], dtype=np.int64),
        np.array([-1 if root is None else root for root in roots], dtype=np.int64),
        [str(result.get("type", "")) for result in results],
        [OPS.get(op := str(result.get("redop") or "").strip(), op) for result in results],
        (),
        values,
        iteration if has_iterations else None,
        present,
        cpu_time=cpu_time,
    )
    keep = np.flatnonzero(consistent_rows(table, None if is_exact else [1] * n))
    results[:] = [results[index] for index in keep]
    return table.take(keep), n_read - len(keep)


def _iterations(results: list[dict[str, Any]]) -> Iterator[IterationTimes]:
    for index, result in enumerate(results):
        for in_place, key in enumerate(("out_of_place_per_iter", "in_place_per_iter")):
            summary = result.get(key)
            if not isinstance(summary, dict) or "times_us" not in summary:
                continue
            times = np.array([_float(value) for value in _list(summary.get("times_us"))], dtype=np.float64)
            if not times.size:
                continue
            rows = _list(summary.get("per_process_max_times_us"))
            processes = None
            if rows and all(isinstance(row, list) and len(row) == times.size for row in rows):
                processes = np.array([[_float(value) for value in row] for row in rows], dtype=np.float64)
            yield IterationTimes(
                index, bool(in_place), whole_or_none(summary.get("skipped_iterations")) or 0, times, processes
            )


def _timing(part: Any) -> list[float] | None:
    if not isinstance(part, dict):
        return None
    wrong = part.get("nwrong")
    try:  # the usual case, because a file may have 100,000 results
        rates = float(part["alg_bw"]), float(part["bus_bw"])
        numbers = [float(part["time"]), *rates, _NAN if wrong is None else float(wrong)]
    except (KeyError, TypeError, ValueError, OverflowError):
        time = _float(part.get("time", part.get("cpu_time")))
        numbers = [time, _float(part.get("alg_bw")), _float(part.get("bus_bw")), _float(wrong)]
    return numbers if numbers[0] == numbers[0] else None


def _average_part(document: dict[str, Any]) -> Any:
    # Version 1 has a spelling mistake, until 2.17.9.
    return document.get("average_bus_bandwidth", document.get("average_bus_bandwidith"))


def _average(document: dict[str, Any]) -> float | None:
    part = mapping_or_empty(_average_part(document))
    value = _float(part.get("bandwidth", part.get("bandwidith")))
    return value if value == value else None


def _device(device: dict[str, Any]) -> DeviceLine:
    return DeviceLine(
        whole_or_none(device.get("rank")) or 0,
        whole_or_none(device.get("group")),
        whole_or_none(device.get("pid")) or 0,
        str(device.get("hostname", "")),
        whole_or_none(device.get("device")) or 0,
        str(device.get("device_hex", "")),
        str(device.get("device_info", "")).strip(),
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _float(value: Any) -> float:
    """Return a number, or NaN for null and the strings that the tool writes instead of NaN."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return _NAN


def _first(*values: int | None) -> int | None:
    """Return the first value that is known."""
    return next((value for value in values if value is not None), None)


def _bool(value: Any) -> bool | None:
    return (
        {"true": True, "false": False, True: True, False: False}.get(value) if isinstance(value, (str, bool)) else None
    )
