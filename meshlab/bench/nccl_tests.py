"""Reads the output of nccl-tests and rccl-tests, whole or broken, as text or JSON.

Lines are told apart by cheap tests, in the order of how often they come: NCCL's own messages, rows, the rest. A prefix
that a launcher puts before each line (mpirun, srun, kubectl, a time stamp) needs no grammar: rows are found by their
element type, everything else by its words.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshlab.bench.nccl_devices import DEVICE_LINE, DeviceLines
from meshlab.bench.nccl_infer import find_program
from meshlab.bench.nccl_info import NO_FACTS, FactCollector, merge_facts, version_from_code
from meshlab.bench.nccl_json import MOST_JSON, looks_like_json, read_json_sections
from meshlab.bench.nccl_log import Footer, NcclTestsLog, Note, Preamble, Section
from meshlab.bench.nccl_rows import DTYPE_OF_TYPE, OPS, RowBuffer, read_header
from meshlab.bench.nccl_section import make_section
from meshlab.errors import ParseError

__all__ = ["read_nccl_tests"]

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 16
_MOST_FAILURES = 1000

# How far a run has come.
_NAMED, _SET, _LISTED, _TABLE, _CLOSED = range(5)

_TYPES = frozenset(DTYPE_OF_TYPE)
_TYPE_NAMES = "|".join(DTYPE_OF_TYPE)
_ROW_START = re.compile(rf"(?<![\w.,/-])\d+\s+\d+\s+(?:{_TYPE_NAMES})\b")
_SIZE_AT_END = re.compile(r"(?<=[:>\])|])\d+$")
_GLUED_HOST = re.compile(r"(\S+?):\d+:\d+ \[\d+\]$")
_GLUED = re.compile(rf"(?:{'|'.join(sorted(OPS))}|N/A|-?\d+(?:\.\d+)?(?:e[-+]\d+)?)?")
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
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_nccl_tests(source: str | os.PathLike[str]) -> NcclTestsLog:
    """Read a log of nccl-tests or rccl-tests: text of every layout since 2.0, or JSON.

    Rows that were cut or mixed with other output are left out and counted; what the text does not say is None or
    missing, never guessed. A check that was off leaves ``n_wrong`` missing, not 0.

    Parameters
    ----------
    source : str or path
        A file, or the text itself (a str with a line break in it).

    Returns
    -------
    NcclTestsLog
        Its `sections` hold the runs in the file's order, its `results` all rows in the schema of results.

    Raises
    ------
    ParseError
        If there is neither a run nor a message of NCCL in it; the error says what was seen.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> log = read_nccl_tests('''
    ... #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    ... 1073741824     268435456     float     sum      -1   4253.0  252.47  441.81      0   4255.4  252.33  441.57      0
    ... # Out of bounds values : 0 OK
    ... # Avg bus bandwidth    : 441.69
    ... ''')
    >>> log.status, log.sections[0].collective, log.sections[0].n_ranks
    ('complete', 'all_reduce', 8)
    >>> log.results[["collective", "in_place", "time_us", "busbw_gbs"]].round(1)
       collective  in_place  time_us  busbw_gbs
    0  all_reduce     False   4253.0      441.8
    1  all_reduce      True   4255.4      441.6
    """
    if isinstance(source, str) and ("\n" in source or looks_like_json(source[:_LONGEST_LINE])):
        name = f"text-{hashlib.sha256(source[:_BLOCK].encode(errors='replace')).hexdigest()[:8]}"
        if looks_like_json(source[:_LONGEST_LINE]):
            return NcclTestsLog(name, tuple(read_json_sections(source)))
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
            return NcclTestsLog(path.name, tuple(read_json_sections(text, file=path.name)))
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        return _read_text(path.name, (decoder.decode(block) for block in iter(lambda: file.read(_BLOCK), b"")))


def _encoding(start: bytes) -> str:
    """Windows shells write UTF-16 with a byte order mark."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def _read_text(name: str, blocks: Iterator[str]) -> NcclTestsLog:
    reader = _Reader()
    for line in _lines(blocks):
        reader.take(line)
    sections = reader.finish()
    prelude = reader.prelude.facts()
    if not sections and prelude == NO_FACTS:
        raise ParseError(
            f"no nccl-tests output found: {reader.seen()}; a log has lines such as '# nThread 1 nGpus 8 minBytes …' "
            "and a table of size, count, type, time, algbw and busbw",
            text=reader.first_line,
            file=name,
        )
    return NcclTestsLog(name, sections, prelude)


def _lines(blocks: Iterator[str]) -> Iterator[str]:
    """Lines of bounded length: of a longer one only the start is kept, so that memory stays bounded too."""
    tail, skipping = "", False
    for block in blocks:
        if skipping:
            skipped, found, block = block.partition("\n")
            if not found:
                continue
            yield tail
            tail, skipping = "", False
        pieces = (tail + block).split("\n")
        tail = pieces.pop()
        yield from pieces
        if len(tail) > _LONGEST_LINE:
            tail, skipping = tail[:_LONGEST_LINE], True
    if tail:
        yield tail


class _Run:
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
        ends_text = self.stage == _LISTED and not self.failure_lines
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


class _Reader:
    """Takes lines one by one."""

    def __init__(self) -> None:
        self.line = 0
        self.first_line = ""
        self.has_nul = False
        self.prelude = FactCollector()
        self._facts = self.prelude
        self._done: list[Section] = []
        self._run: _Run | None = None
        self._commands: set[str] = set()
        self._in_place_only = False

    def seen(self) -> str:
        """What the text looks like, for someone who gave the wrong file."""
        start = self.first_line.lower()
        if self.has_nul:
            return "it holds binary data"
        if start.startswith(("<!doctype html", "<html")):
            return "it looks like HTML"
        if not start:
            return "the text is empty"
        lines = "1 line" if self.line == 1 else f"{self.line:,} lines"
        return f"{lines}, the first is {self.first_line[:80]!r}"

    def finish(self) -> tuple[Section, ...]:
        """The sections read."""
        self._close()
        return tuple(self._done)

    def take(self, raw: str) -> None:
        """Take one line."""
        self.line += 1
        if "\r" in raw:
            # A terminal shows what follows the last carriage return.
            raw = raw.rstrip("\r").rpartition("\r")[2]
        if "\x1b" in raw:
            raw = _ANSI.sub("", raw)
        if "NCCL" in raw and self._take_nccl(raw):
            return
        tokens = raw.split()
        if not tokens:
            return
        if not self.first_line:
            self.first_line = raw.strip()[:200]
        if not self.has_nul and "\0" in raw:
            self.has_nul = True
        if len(tokens) > 2:
            if tokens[2] in _TYPES and tokens[0].isdigit() and tokens[1].isdigit():
                self._take_row(tokens, raw.strip())
                return
            if not _TYPES.isdisjoint(tokens[2:9]) and self._take_prefixed_row(tokens, raw):
                return
        elif tokens == ["#"]:
            return
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
        elif "NCCL version" in raw or "RCCL version" in raw:
            self._facts.take_version(raw)
            return True
        else:
            match = _EXPORT.search(raw)
            if match is not None:
                self._facts.take_variable(match[1], match[2])
            return False
        run = self._run
        if run is not None and run.stage == _TABLE:
            self._take_interrupted_row(run, raw[: at - 1])
        return True

    def _take_interrupted_row(self, run: _Run, head: str) -> None:
        """Take the part of a row that stands before a message on the same line."""
        host = _GLUED_HOST.search(head)
        start = _ROW_START.search(head)
        if host is None or start is None:
            return
        run.give_up_fragment()
        before = head[start.start() : host.start()]
        glued = _GLUED.match(host[1])
        whole = before + (glued[0] if glued is not None else "")
        if not run.rows.add(whole.split(), whole.rstrip(), self.line, strict=True):
            run.fragment = (self.line, (whole, before))

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
        if run is None or run.stage != _TABLE:
            run = self._at(_TABLE, run is None or run.stage == _CLOSED)
            run.began_table = True
        if run.fragment is not None:
            run.give_up_fragment()
        if not run.rows.add(tokens, text, self.line):
            run.fragment = (self.line, (text,))

    def _take_part_of_row(self, run: _Run, raw: str, tokens: list[str]) -> None:
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
        is_start = all(token.isdigit() for token in tokens[:2]) and len(tokens) <= 3
        if is_start and (len(tokens) < 3 or any(name.startswith(tokens[2]) for name in _TYPES)):
            run.give_up_fragment()
            run.fragment = (self.line, (raw.lstrip(),))

    # Everything else

    def _take_words(self, raw: str, tokens: list[str]) -> None:
        if "Rank " in raw or " device " in raw:
            self._take_device(raw)
        elif "algbw" in raw and "busbw" in raw:
            self._take_header(tokens)
        elif "minBytes" in raw:
            self._take_settings(raw)
        elif "Using devices" in raw:
            self._at(_LISTED, self._run is None or self._run.stage >= _LISTED)
        elif "bus bandwidth" in raw or "Out of bounds" in raw:
            self._take_footer(raw)
        elif "nccl-tests version" in raw or "Collective test" in raw or "rccl-tests: Version" in raw:
            self._take_name(raw)
        elif "Test CUDA failure" in raw or "Test timeout" in raw or "Test HIP failure" in raw:
            self._take_failure(raw)
        elif "_perf" in raw or "test" in raw:
            program = find_program(" " + raw if raw[:1] in "$#>" else raw)
            if program is not None:
                self._commands.add(program)
        elif self._run is not None:
            self._take_inside(self._run, raw, tokens)

    def _take_inside(self, run: _Run, raw: str, tokens: list[str]) -> None:
        """Take a line that has a meaning only inside a run."""
        if "Reducing maxBytes" in raw:
            run.notes.append(Note(self.line, raw.strip(" #\t")))
        elif "Blocking Enabled" in raw:
            run.settings["blocking"] = raw.partition("Blocking Enabled: ")[2].strip()
        elif "summary skips first" in raw:
            skipped = re.search(r"skips first (\d+) iter", raw)
            run.settings["skipped_iters"] = int(skipped[1]) if skipped is not None else None
        elif "in-place" in raw:
            self._in_place_only = "out-of-place" not in raw
        elif tokens[-1] == "..." and len(tokens) <= 2:
            run.notes.append(Note(self.line, "lines were cut out here"))
        elif run.stage == _TABLE:
            self._take_part_of_row(run, raw, tokens)

    def _at(self, stage: int, new: bool) -> _Run:
        """The run that a line of this stage belongs to."""
        if self._run is None or new:
            self._close()
            command = next(iter(self._commands)) if len(self._commands) == 1 else None
            self._commands.clear()
            self._run = _Run(self.line, command, stage)
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
            run = self._at(_NAMED, run is None or run.stage > _NAMED or "tool" in run.settings)
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
                if run is not None and run.stage >= _TABLE:
                    run.stage = _CLOSED
                    run.settings.setdefault("program", name)
                return
            run = self._at(_NAMED, run is None or run.stage > _NAMED or "program" in run.settings)
            run.settings["program"] = name

    def _take_settings(self, raw: str) -> None:
        found = _SETTING.findall(raw)
        # A line that does not end with one of these was cut, perhaps inside its last number.
        if found and found[-1][0] not in _LAST_FIELDS:
            found.pop()
        run = self._at(_SET, self._run is None or self._run.stage >= _SET)
        for name, value, kind in found:
            run.settings[_FIELDS[name]] = int(value)
            if name == "step" and kind:
                run.settings["step_kind"] = kind

    def _take_device(self, raw: str) -> None:
        match = DEVICE_LINE.search(raw)
        run = self._run
        if match is None:
            if run is not None:
                run.device_lost = True
            return
        if run is None or run.stage != _LISTED:
            run = self._at(_LISTED, run is None or run.stage > _LISTED)
        rank = int(match[1])
        if rank not in run.devices:
            run.devices[rank] = match[0]
            run.groups[match[2]] += 1

    def _take_header(self, tokens: list[str]) -> None:
        run = self._run
        run = self._at(_TABLE, run is None or run.stage == _CLOSED or run.has_header or len(run.rows) > 0)
        run.has_header = run.began_table = True
        start = next((index for index, token in enumerate(tokens) if token == "size"), 0)
        shape = read_header(tokens[start:], self._in_place_only)
        if shape is not None:
            run.rows = RowBuffer(shape)

    def _take_footer(self, raw: str) -> None:
        match = _FOOTER.search(raw)
        if match is None:
            return
        what, value, verdict = match.groups()
        run = self._at(_TABLE, self._run is None or self._run.stage == _CLOSED)
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
        run.stage = _CLOSED

    def _take_failure(self, raw: str) -> None:
        run = self._at(_NAMED, new=False)
        run.failure_lines += 1
        if len(run.failures) < _MOST_FAILURES:
            run.failures.append(Note(self.line, raw.strip()[:500]))
