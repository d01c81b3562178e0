"""Sorts the lines of an nccl-tests log into runs.

Lines are told apart by cheap tests, in the order of how often they come: NCCL's own messages, rows, the rest. A prefix
that a launcher puts before each line (mpirun, srun, kubectl, a time stamp) needs no grammar: rows are found by their
element type, everything else by its words.
"""

from __future__ import annotations

import codecs
import gc
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from meshlab.errors import ParseError
from meshlab.nccl_tests.infer import find_program, make_section
from meshlab.nccl_tests.info import NO_FACTS, FactCollector, merge_facts, version_from_code
from meshlab.nccl_tests.json_reader import MOST_JSON, looks_like_json, read_json_sections
from meshlab.nccl_tests.log import DEVICE_LINE, DTYPE_OF_TYPE, OPS, DeviceLines, Footer, Log, Note, Preamble, Section
from meshlab.nccl_tests.rows import RowBuffer, read_header

__all__ = ["LogReader", "OpenSection", "Stage", "read"]


class Stage(IntEnum):
    """How far a run has come."""

    NAMED = 0
    SET = 1
    LISTED = 2
    TABLE = 3
    CLOSED = 4


class OpenSection:
    """One run while it is being read."""

    def __init__(self, line: int, command: str | None, stage: int) -> None:
        self.line = line
        self.command = command
        self.stage = stage
        self.settings: dict[str, Any] = {}
        self.devices: dict[int, str] = {}
        self.groups: Counter[str | None] = Counter()
        self.device_lost = False
        self.rows = RowBuffer()
        self.has_header = False
        self.began_table = False
        self.fragment: tuple[int, tuple[str, ...]] | None = None
        self.broken: list[int] = []
        self.bounds: tuple[int | None, bool | None] = (None, None)
        self.average: tuple[float | None, bool | None] = (None, None)
        self.failures: list[Note] = []
        self.failure_lines = 0
        self.notes: list[Note] = []
        self.facts = FactCollector()

    def give_up_fragment(self) -> None:
        """What was begun and not completed is a broken row."""
        if self.fragment is not None:
            self.broken.append(self.fragment[0])
            self.fragment = None

    def _listed_ranks(self) -> int | None:
        """How many ranks the device list has; None when it was cut, as far as that can be seen."""
        # A list with nothing behind it may go on.
        ends_text = self.stage == Stage.LISTED and not self.failure_lines
        if not self.devices or self.device_lost or ends_text:
            return None
        if len(self.groups) > 1:
            return next(iter(self.groups.values()))
        n_ranks = max(self.devices) + 1
        per_process = self.settings.get("threads", 1) * self.settings.get("gpus", 1)
        return n_ranks if per_process and n_ranks % per_process == 0 else None

    def section(self, number: int, prelude: FactCollector | None) -> Section:
        """What was read so far, settled."""
        self.give_up_fragment()
        table, cut = self.rows.table()
        facts = self.facts.facts()
        if prelude is not None:
            facts = merge_facts([facts, prelude.facts()])
        return make_section(
            number=number,
            line=self.line,
            preamble=Preamble(**self.settings),
            command=self.command,
            devices=DeviceLines(list(self.devices.values())),
            listed_ranks=self._listed_ranks(),
            began_table=self.began_table,
            table=table,
            broken=sorted(self.broken + cut),
            footer=Footer(*self.bounds, *self.average),
            failures=self.failures,
            failure_lines=self.failure_lines,
            notes=self.notes,
            nccl=facts,
        )


_MOST_FAILURES = 1000

_HASH = ["#"]

_TYPES = frozenset(DTYPE_OF_TYPE)

_CELL = rf"{'|'.join(OPS)}|N/A|-?\d+(?:\.\d+)?(?:e[-+]\d+)?"

_TYPE = "|".join(sorted(DTYPE_OF_TYPE, key=len, reverse=True))

_ROW_START = re.compile(rf"(?<![\w.,/-])\d+\s+\d+\s+(?:{_TYPE})(?:\s+(?:{_CELL}))*")

_SIZE_AT_END = re.compile(r"(?<=[:>\])|])\d+$")

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?|N/A")

_SETTING = re.compile(
    r"(nThread|nGpus(?:\(perProc\))?|minBytes|maxBytes|step|warmup iters|agg iters|iters|validation|graph|unalign):? +"
    r"(-?\d+)(?:\((\w+)\))?"
)

_FIELDS = {
    "nThread": "threads",
    "nGpus": "gpus",
    "nGpus(perProc)": "gpus",
    "minBytes": "min_bytes",
    "maxBytes": "max_bytes",
    "step": "step",
    "warmup iters": "warmup_iters",
    "iters": "iters",
    "agg iters": "agg_iters",
    "validation": "validation",
    "graph": "graph",
    "unalign": "unalign",
}

_LAST_FIELDS = frozenset(("validation", "graph", "unalign"))

_FOOTER = re.compile(r"(Out of bounds values|Avg bus bandwidth) *: *(\S*)(?: +(OK|FAILED))?")

_TESTS_VERSION = re.compile(r"nccl-tests version +(\S+)")

_CODES = re.compile(r"nccl-headers=(\d+) nccl-library=(\d+)")

_PROGRAM = re.compile(r"Collective test (starting|concluded): *(?:\S*/)?(\w+?)_perf(?:_\w+)?\s*$")

_EXPORT = re.compile(r"\+ (?:export )?'?(NCCL_[A-Z0-9_]+)='?([^']*)'?\s*$")


class LogReader:
    """Takes lines one by one."""

    def __init__(self) -> None:
        self.line = 0
        self.prelude = FactCollector()
        self._facts = self.prelude
        self._done: list[Section] = []
        self._run: OpenSection | None = None
        self._commands: set[str] = set()
        self._in_place_only = False

    def finish(self) -> tuple[Section, ...]:
        """The sections read."""
        self._close()
        return tuple(self._done)

    def take(self, lines: list[str]) -> None:
        """Take the next lines."""
        for raw in lines:
            self.line += 1
            if ("NCCL" in raw and self._take_nccl(raw)) or (" device " in raw and self._take_device(raw)):
                continue
            if raw[:1] == "[" and raw.count(tag := raw[: raw.find("]") + 1]) > 1:
                # Some launchers put the rank before every write, not only before every line.
                raw = raw.replace(f"{tag} ", "").replace(tag, "")
            tokens = raw.split()
            if len(tokens) > 2:
                if tokens[2] in _TYPES and tokens[0].isdigit() and tokens[1].isdigit():
                    self._take_row(tokens, raw.strip())
                elif _TYPES.isdisjoint(tokens[2:9]) or not self._take_prefixed_row(tokens, raw):
                    self._take_words(raw, tokens)
            elif tokens and tokens != _HASH:
                self._take_words(raw, tokens)

    # NCCL's own messages

    def _take_nccl(self, raw: str) -> bool:
        """Take a line that has NCCL in it; False when it is for others."""
        at = raw.find("NCCL INFO ")
        if at >= 0:
            self._facts.take_info(raw[at + 10 :])
        elif (at := raw.find("NCCL WARN ")) >= 0:
            self._facts.take_problem(raw[at + 10 :])
        elif "Test NCCL failure" in raw:
            self._take_failure(raw)
            return True
        elif "NCCL version" in raw:
            self._facts.take_version(raw)
            return True
        else:
            match = _EXPORT.search(raw)
            if match is not None:
                self._facts.take_variable(match[1], match[2])
            return False
        # A row has wide gaps, what NCCL puts before its messages has none.
        if raw.find("  ", 0, at) >= 0 and self._run is not None and self._run.stage == Stage.TABLE:
            self._take_interrupted_row(self._run, raw)
        return True

    # Rows

    def _take_prefixed_row(self, tokens: list[str], raw: str) -> bool:
        """Take a row behind a prefix; False when there is none."""
        for index in range(min(len(tokens) - 2, 7)):
            if tokens[index + 2] in _TYPES and tokens[index + 1].isdigit():
                size = tokens[index]
                if not size.isdigit():
                    glued = _SIZE_AT_END.search(size)
                    if glued is None:
                        return False
                    size = glued[0]
                rest = raw.split(None, index)[-1].rstrip()
                self._take_row([size, *tokens[index + 1 :]], rest[len(tokens[index]) - len(size) :])
                return True
        return False

    def _take_row(self, tokens: list[str], text: str) -> None:
        run = self._run
        if run is None or run.stage != Stage.TABLE:
            run = self._at(Stage.TABLE, run is None or run.stage == Stage.CLOSED)
            run.began_table = True
        if run.fragment is not None:
            run.give_up_fragment()
        if not run.rows.add(tokens, text, self.line):
            self._take_interrupted_row(run, text)

    def _take_interrupted_row(self, run: OpenSection, text: str) -> None:
        """Take what there is of a row before other output breaks into its line."""
        match = _ROW_START.search(text)
        if match is None:
            if run.fragment is not None and _NUMBER.match(text.lstrip()):
                # The middle of a row, interrupted again.
                run.give_up_fragment()
            return
        run.give_up_fragment()
        whole = match[0]
        if not run.rows.add(whole.split(), whole, self.line, strict=True, halves=False):
            # The last cell may belong to what follows without a space, as in "sumhost:1:2 [0] NCCL INFO".
            run.fragment = (self.line, (whole, whole[: whole.rindex(whole.split()[-1])]))

    def _take_part_of_row(self, run: OpenSection, raw: str, tokens: list[str]) -> None:
        """Take what may be the rest of a row, or the beginning of one."""
        if not _NUMBER.fullmatch(tokens[0]) and tokens[0] not in OPS:
            if tokens[0][-1] not in ":>|]" or len(tokens) == 1:
                return
            raw = raw[raw.index(tokens[0]) + len(tokens[0]) :]
            tokens = tokens[1:]
        if all(_NUMBER.fullmatch(token) or token in OPS for token in tokens):
            if run.fragment is not None:
                line, texts = run.fragment
                for text in texts:
                    for rest in (raw, raw[1:]):
                        whole = (text + rest).rstrip()
                        if run.rows.add(whole.split(), whole, line, strict=True):
                            run.notes.append(Note(line, f"the row goes on in line {self.line}"))
                            run.fragment = None
                            return
            if len(tokens) >= 4 and sum("." in token for token in tokens) >= 2:
                run.broken.append(self.line)
                return
        elif run.fragment is not None and _NUMBER.match(tokens[0]):
            run.give_up_fragment()
        is_start = all(token.isdigit() for token in tokens[:2]) and len(tokens) <= 3
        if is_start and (len(tokens) < 3 or any(name.startswith(tokens[2]) for name in _TYPES)):
            run.give_up_fragment()
            run.fragment = (self.line, (raw.lstrip(),))

    # Everything else

    def _take_words(self, raw: str, tokens: list[str]) -> None:
        if "algbw" in raw and "busbw" in raw:
            self._take_header(tokens)
        elif "minBytes" in raw:
            self._take_settings(raw)
        elif "Using devices" in raw:
            self._at(Stage.LISTED, self._run is None or self._run.stage >= Stage.LISTED)
        elif "bus bandwidth" in raw or "Out of bounds" in raw:
            self._take_footer(raw)
        elif "nccl-tests version" in raw or "Collective test" in raw or "rccl-tests: Version" in raw:
            self._take_name(raw)
        elif "Test CUDA failure" in raw or "Test timeout" in raw or "Test HIP failure" in raw:
            self._take_failure(raw)
        elif "in-place" in raw:
            self._in_place_only = "out-of-place" not in raw
        elif "RCCL version" in raw:
            self._facts.take_version(raw)
        elif "_perf" in raw or "test" in raw:
            program = find_program(raw)
            if program is not None:
                self._commands.add(program)
        elif self._run is not None:
            self._take_inside(self._run, raw, tokens)

    def _take_inside(self, run: OpenSection, raw: str, tokens: list[str]) -> None:
        """Take a line that has a meaning only inside a run."""
        if "Reducing maxBytes" in raw:
            run.notes.append(Note(self.line, raw.strip(" #\t")))
        elif "Blocking Enabled" in raw:
            run.settings["blocking"] = raw.partition("Blocking Enabled: ")[2].strip()
        elif "summary skips first" in raw:
            skipped = re.search(r"skips first (\d+) iter", raw)
            run.settings["skipped_iters"] = int(skipped[1]) if skipped is not None else None
        elif run.stage == Stage.LISTED and ("Rank " in raw or " device " in raw):
            run.device_lost = True
        elif tokens[-1] == "..." and len(tokens) <= 2:
            run.notes.append(Note(self.line, "lines were cut out here"))
        elif run.stage == Stage.TABLE:
            self._take_part_of_row(run, raw, tokens)

    def _at(self, stage: int, new: bool) -> OpenSection:
        """The run that a line of this stage belongs to."""
        if self._run is None or new:
            self._close()
            command = next(iter(self._commands)) if len(self._commands) == 1 else None
            self._commands.clear()
            self._run = OpenSection(self.line, command, stage)
            self._facts = self._run.facts
        self._run.stage = max(self._run.stage, stage)
        return self._run

    def _close(self) -> None:
        run = self._run
        if run is not None:
            number = len(self._done) + 1
            self._done.append(run.section(number, self.prelude if number == 1 else None))
            self._run = None

    def _take_name(self, raw: str) -> None:
        run = self._run
        if "nccl-tests version" in raw:
            version, codes = _TESTS_VERSION.search(raw), _CODES.search(raw)
            run = self._at(Stage.NAMED, run is None or run.stage > Stage.NAMED or "tool" in run.settings)
            # A code with fewer digits than the header's was cut.
            library = int(codes[2]) if codes is not None and len(codes[2]) == len(codes[1]) else 0
            run.settings["tool"] = "nccl-tests"
            run.settings["tool_version"] = version[1] if version is not None else None
            run.settings["library_version"] = version_from_code(library)
        elif "rccl-tests: Version" in raw:
            if run is not None:
                run.settings["tool"] = "rccl-tests"
                run.settings["tool_version"] = raw.partition("rccl-tests: Version")[2].strip() or None
        else:
            match = _PROGRAM.search(raw)
            name = match[2] if match is not None else None
            if "concluded" in raw:
                if run is not None and run.stage >= Stage.TABLE:
                    run.stage = Stage.CLOSED
                    run.settings.setdefault("program", name)
                return
            run = self._at(Stage.NAMED, run is None or run.stage > Stage.NAMED or "program" in run.settings)
            run.settings["program"] = name

    def _take_settings(self, raw: str) -> None:
        found = _SETTING.findall(raw)
        # A line that does not end with one of these was cut, perhaps inside its last number.
        if found and found[-1][0] not in _LAST_FIELDS:
            found.pop()
        run = self._at(Stage.SET, self._run is None or self._run.stage >= Stage.SET)
        for name, value, kind in found:
            run.settings[_FIELDS[name]] = int(value)
            if name == "step" and kind:
                run.settings["step_kind"] = kind

    def _take_device(self, raw: str) -> bool:
        """Take a line of the device list; False when it is none, or a part of one."""
        match = DEVICE_LINE.search(raw)
        run = self._run
        if match is None:
            return False
        if run is None or run.stage != Stage.LISTED:
            run = self._at(Stage.LISTED, run is None or run.stage > Stage.LISTED)
        rank, group = match.group(1, 2)
        run.devices.setdefault(int(rank), match[0])
        run.groups[group] += 1
        return True

    def _take_header(self, tokens: list[str]) -> None:
        run = self._run
        run = self._at(Stage.TABLE, run is None or run.stage == Stage.CLOSED or run.has_header or len(run.rows) > 0)
        run.has_header = run.began_table = True
        start = next((index for index, token in enumerate(tokens) if token == "size"), 0)
        shape = read_header(tuple(tokens[start:]), self._in_place_only)
        if shape is not None:
            run.rows = RowBuffer(shape)

    def _take_footer(self, raw: str) -> None:
        match = _FOOTER.search(raw)
        if match is None:
            return
        what, value, verdict = match.groups()
        run = self._at(Stage.TABLE, self._run is None or self._run.stage == Stage.CLOSED)
        run.give_up_fragment()
        ok = None if verdict is None else verdict == "OK"
        if what == "Out of bounds values":
            run.bounds = (int(value) if value.isdigit() else None, ok)
            return
        try:
            average: float | None = float(value)
        except ValueError:
            average = None
        if average is None or average != average:
            run.notes.append(Note(self.line, f"the printed average is {value!r}, not a number"))
            average = None
        run.average = (average, ok)
        run.stage = Stage.CLOSED

    def _take_failure(self, raw: str) -> None:
        run = self._at(Stage.NAMED, new=False)
        run.failure_lines += 1
        if len(run.failures) < _MOST_FAILURES:
            run.failures.append(Note(self.line, raw.strip()[:500]))


_BLOCK = 1 << 20

_LONGEST_LINE = 1 << 16

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_OVERWRITTEN = re.compile(r"(?m)^[^\n]*\r")


def read(source: str | os.PathLike[str]) -> Log:
    """Read a log of nccl-tests or rccl-tests: text of every layout since 2.0, or JSON.

    Rows that were cut or mixed with other output are left out and counted; what the text does not say is None or
    missing, never guessed. A check that was off leaves ``n_wrong`` missing, not 0.

    Parameters
    ----------
    source : str or path
        A file, or the text itself (a str with a line break in it).

    Returns
    -------
    Log
        Its `sections` hold the runs in the file's order, its `results` all rows in the schema of results.

    Raises
    ------
    ParseError
        If there is neither a run nor a message of NCCL in it; the error says what was seen.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> log = read('''
    ...   size         count      type   redop    root     time   algbw   busbw #wrong
    ...  1073741824     268435456     float     sum      -1   4253.0  252.47  441.81      0
    ... # Out of bounds values : 0 OK
    ... # Avg bus bandwidth    : 441.81
    ... ''')
    >>> log.status, log.sections[0].collective, log.sections[0].n_ranks
    ('complete', 'all_reduce', 8)
    >>> log.results[["collective", "in_place", "time_us", "busbw_gbs"]].round(1)
       collective  in_place  time_us  busbw_gbs
    0  all_reduce     False   4253.0      441.8
    """
    if isinstance(source, str) and ("\n" in source or looks_like_json(source[:_LONGEST_LINE])):
        name = f"text-{hashlib.sha256(source[:_BLOCK].encode(errors='replace')).hexdigest()[:8]}"
        if looks_like_json(source[:_LONGEST_LINE]):
            return Log(name, tuple(read_json_sections(source)))
        blocks = (source[start : start + _BLOCK] for start in range(0, len(source), _BLOCK))
        return _read_text(name, blocks)
    path = Path(source) if len(str(source)) < 4096 else None
    if path is None or (isinstance(source, str) and not path.is_file()):
        shown = str(source)[:80]
        raise ParseError(
            f"no nccl-tests output found: {shown!r} is neither a file nor text with a line break in it", text=shown
        )
    with path.open("rb") as file:
        start = file.read(_LONGEST_LINE)
        encoding = _encoding(start)
        file.seek(0)
        if looks_like_json(start.decode(encoding, errors="replace")) and path.stat().st_size <= MOST_JSON:
            text = file.read().decode(encoding, errors="replace")
            return Log(path.name, tuple(read_json_sections(text, file=path.name)))
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        return _read_text(path.name, (decoder.decode(block) for block in iter(lambda: file.read(_BLOCK), b"")))


def _encoding(start: bytes) -> str:
    """Windows shells write UTF-16 with a byte order mark."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def _read_text(name: str, blocks: Iterator[str]) -> Log:
    reader = LogReader()
    start = ""
    with _collector_paused():
        for lines in _lines(blocks):
            start = start or next((line.strip()[:200] for line in lines if line.strip()), "")
            reader.take(lines)
        sections = reader.finish()
    prelude = reader.prelude.facts()
    if not sections and prelude == NO_FACTS:
        raise ParseError(
            f"no nccl-tests output found: {_what_it_is(start, reader.line)}; a log has lines such as "
            "'# nThread 1 nGpus 8 minBytes …' and a table of size, count, type, time, algbw and busbw",
            text=start,
            file=name,
        )
    return Log(name, sections, prelude)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A long log makes many values and no cycles; the collector would walk them over and over, a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _what_it_is(start: str, lines: int) -> str:
    """What a text looks like, for someone who gave the wrong file."""
    if not start:
        return "the text is empty"
    if "\0" in start or "\N{REPLACEMENT CHARACTER}" in start:
        return "it holds binary data"
    if start.lower().startswith(("<!doctype html", "<html")):
        return "it looks like HTML"
    return f"{lines:,} {'line' if lines == 1 else 'lines'}, the first is {start[:80]!r}"


def _lines(blocks: Iterator[str]) -> Iterator[list[str]]:
    """Lines of bounded length, by blocks: of a longer one only the start is kept, so that memory stays bounded too."""
    tail, skipping = "", False
    for block in blocks:
        if skipping:
            _, found, block = block.partition("\n")
            if not found:
                continue
            yield [_clean(tail)]
            tail, skipping = "", False
        text = tail + block
        end = text.rfind("\n") + 1
        if end:
            yield _clean(text[: end - 1]).split("\n")
        tail = text[end:]
        if len(tail) > _LONGEST_LINE:
            tail, skipping = tail[:_LONGEST_LINE], True
    if tail:
        yield [_clean(tail)]


def _clean(text: str) -> str:
    """What a terminal shows: no control sequences, and of each line what follows its last carriage return."""
    if "\x1b" in text:
        text = _CONTROL.sub("", text)
    if "\r" in text:
        text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n").rstrip("\r"))
    return text
