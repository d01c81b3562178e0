"""Reads a log of nccl-tests: decodes the text, sorts its lines into sections, and closes each section.

Launchers, other ranks and NCCL's messages interrupt the lines, and runs are killed. So rows are found by their element
type, and all other lines by keywords.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from meshlab.base._errors import ParseError
from meshlab.base._files import open_log, path_of, text_encoding
from meshlab.base._garbage import collector_paused
from meshlab.base._numerals import whole
from meshlab.nccl_tests._command_line import CommandOptions, launched_ranks, options_in_line
from meshlab.nccl_tests._infer import MOST_SECTIONS, SectionParts, find_program, make_section, too_many_sections
from meshlab.nccl_tests._info import NO_FACTS, FactCollector, merge_facts, version_from_code
from meshlab.nccl_tests._json import MOST_JSON, looks_like_json, read_json_sections
from meshlab.nccl_tests._log import DEVICE_LINE, DeviceLines, Footer, Log, LogTable, Note, Preamble, Section
from meshlab.nccl_tests._pieces import (
    TYPES,
    Fragment,
    beginnings_of_row,
    cells_only,
    ends_before_message,
    has_type_and_cells,
    is_part_of_row,
    may_have_type,
    row_after_message,
    starts_row,
    without_prefix,
)
from meshlab.nccl_tests._rows import RowBuffer, ranks_in_size, read_header, repeated_rows
from meshlab.nccl_tests._uneven import SUMMARY, TrafficCollector

# -- from a file or a string to lines ----------------------------------------------------------------------------------

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 16
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_OVERWRITTEN = re.compile(r"(?m)^[^\n]*\r")


def read(source: str | os.PathLike[str]) -> Log:
    """Read a log of nccl-tests or rccl-tests: text of every version since 2.0, or JSON.

    Rows that are truncated or mixed with other output are omitted and counted. A value that the log does not contain
    is None or missing. Nothing is guessed. If results were not checked, ``n_wrong`` is missing, not 0.

    Parameters
    ----------
    source : str or path
        A file, or the text itself (a string with a line break).

    Returns
    -------
    Log
        `sections` has one entry per run of a test, in file order. `results` is a frame of all rows, with the columns of
        `meshlab.frames.RESULTS`.

    Raises
    ------
    ParseError
        If the source contains neither a run nor a message of NCCL. The error describes the content.
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
            with collector_paused():
                return Log(name, tuple(read_json_sections(source)))
        blocks = (source[start : start + _BLOCK] for start in range(0, len(source), _BLOCK))
        return _read_text(name, blocks)
    path = path_of(source, hint="pass a log, or load the folder of a run with ml.Run.load()")
    if path is None:
        excerpt = str(source)[:80]
        raise ParseError(
            f"no nccl-tests output found: {excerpt!r} is neither a file nor text with a line break",
            hint="pass the path of a log, or its text",
            text=excerpt,
        )
    with open_log(path) as file:
        start = file.read(_LONGEST_LINE)
        encoding = text_encoding(start)
        file.seek(0)
        if looks_like_json(start.decode(encoding, errors="replace")) and path.stat().st_size <= MOST_JSON:
            text = file.read(MOST_JSON).decode(encoding, errors="replace")
            with collector_paused():
                return Log(path.name, tuple(read_json_sections(text, file=path.name)))
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        return _read_text(path.name, (decoder.decode(block) for block in iter(lambda: file.read(_BLOCK), b"")))


def _read_text(name: str, blocks: Iterator[str]) -> Log:
    reader = LogReader()
    start = ""
    with collector_paused():
        for lines in _lines(blocks):
            start = start or next((line.strip()[:200] for line in lines if line and not line.isspace()), "")
            reader.feed(lines)
        sections = reader.finish()
    prelude = reader.prelude.facts()
    if not sections and reader.other_tool:
        raise ParseError(
            f"this is a table of {reader.other_tool}, which meshlab does not read",
            hint="measure with nccl-tests, or pass its log",
            text=start,
            file=name,
        )
    if not sections and prelude == NO_FACTS:
        raise ParseError(
            f"no nccl-tests output found: {_describe(start, reader.line)}",
            hint="pass a log with lines such as '# nThread 1 nGpus 8 minBytes …', and a table of size, count, type, "
            "time, algbw and busbw",
            text=start,
            file=name,
        )
    return Log(name, sections, prelude)


def _describe(start: str, lines: int) -> str:
    """Describe a text that is not a log, for a person who passed the wrong file."""
    if not start:
        return "the text is empty"
    if "\0" in start or "\N{REPLACEMENT CHARACTER}" in start:
        return "it is binary data"
    if start.lower().startswith(("<!doctype html", "<html")):
        return "it looks like HTML"
    return f"it has {lines:,} {'line' if lines == 1 else 'lines'}, the first is {start[:80]!r}"


def _lines(blocks: Iterator[str]) -> Iterator[list[str]]:
    """Split blocks into lines. Only the start of a very long line is kept, so that memory stays bounded."""
    tail, skipping = "", False
    for block in blocks:
        if skipping:
            _, newline, block = block.partition("\n")
            if not newline:
                continue
            yield [_clean(tail)]
            tail, skipping = "", False
        text = tail + block
        if end := text.rfind("\n") + 1:
            yield _clean(text[: end - 1]).split("\n")
        tail = text[end:]
        if len(tail) > _LONGEST_LINE:
            tail, skipping = tail[:_LONGEST_LINE], True
    if tail:
        yield [_clean(tail)]


def _clean(text: str) -> str:
    """Return the text as a terminal shows it: no control sequences, and each line from its last carriage return on."""
    if "\x1b" in text:
        text = _CONTROL.sub("", text)
    if "\r" in text:
        text = _OVERWRITTEN.sub("", text.replace("\r\n", "\n").rstrip("\r"))
    return text


# -- from lines to sections --------------------------------------------------------------------------------------------

_MOST_FAILURES = 1000
# Texts that are tried as interrupted rows in a run and in a file, and lines of messages with parts of rows in a file,
# so that a broken text takes no minutes.
_MOST_JOINED, _MOST_JOINED_IN_FILE = 20_000, 100_000
_MOST_PIECES = 20_000
_COPY_LINES = 8  # lines between the same line of two copies of a test that start together
_SHORTEST_WORD = 4  # that means something before a run begins
_LONGEST_COMMAND = 1 << 14
# Other tools have columns with the same names, in another order or without the type.
_OTHER_TOOLS = {
    "MSCCL++": "mscclpp-test of MSCCL++",
    "algbw(GB/s)": "nccom-test of AWS Neuron or a test of NVSHMEM",
}
_OWN_WORDS = ("minBytes", "ccl-tests version", "Collective test", "_perf")
# One of them is in every line that means something before a run begins.
_WORDS_OUTSIDE = (
    *("NCCL", "RCCL", " device ", "algbw", "minBytes", "Using devices", "bus bandwidth", "Out of bounds"),
    *("ccl-tests", "Collective", "Test", "test", "in-place", "_perf", *_OTHER_TOOLS, *TYPES),
)
_HASH = ["#"]
_TAG = re.compile(r"(\[[^\]\s<]*\])(?![<:])|\[[^\]\s<]*\](?:<std\w+>)?:?|\w[\w.-]*: ")
_SIZE_AT_END = re.compile(r"(?<=[:>\])|])\d+$")

_SETTING = re.compile(
    r"(nThread|nGpus(?:\(perProc\))?|minBytes|maxBytes|step|warmup iters|agg iters|iters|validation|graph|unalign):? +"
    r"(-?\d+)(?:\((\w+)\))?"
)
_FIELDS = {name: name.replace(" ", "_") for name in ("step", "warmup iters", "iters", "agg iters")}
_FIELDS |= {"nThread": "threads", "nGpus": "gpus", "nGpus(perProc)": "gpus"}
_FIELDS |= {"minBytes": "min_bytes", "maxBytes": "max_bytes"}
_FIELDS |= {name: name for name in ("validation", "graph", "unalign")}
_LAST_FIELDS = frozenset(("validation", "graph", "unalign"))

_FOOTER = re.compile(r"(Out of bounds values|Avg bus bandwidth) *: *(\S*)(?: +(OK|FAILED))?")
_TESTS_VERSION = re.compile(r"([nr]ccl-tests) version +(\S+)")
_CODES = re.compile(r"[nr]ccl-headers=(\d+) [nr]ccl-library=(\d+)")
_PROGRAM = re.compile(r"Collective test (starting|concluded): *(?:\S*/)?(\w+?)_perf(?:_\w+)?\s*$")
_EXPORT = re.compile(r"\+ (?:export )?'?(NCCL_[A-Z0-9_]+)='?([^']*)'?\s*$")


class Stage(IntEnum):
    """The part of a run that was printed last. A run prints its parts in this order, and each may be missing."""

    NAMED = 0  # versions and the name of the test
    SET = 1  # the line of settings, "# nThread 1 …"
    LISTED = 2  # the device list
    TABLE = 3  # the header, a row or a part of one
    CLOSED = 4  # the average, or the end of the test


class TestCommand(NamedTuple):
    """A command line that starts a test."""

    options: CommandOptions = CommandOptions()
    ranks: int | None = None

    @classmethod
    def of(cls, line: str) -> TestCommand:
        return cls(options_in_line(line), launched_ranks(line))


class LogReader:
    """Sorts the lines of a log into sections, without looking ahead or keeping lines."""

    def __init__(self) -> None:
        self.line = 0
        self.prelude = FactCollector()
        self._facts = self.prelude  # of the open section; the prelude's before the first one
        self._closed: list[Section] = []
        self._open: OpenSection | None = None
        # The tests in the command lines since the last section, with the options of each line.
        self._programs: dict[str, list[TestCommand]] = {}
        self._unfinished: tuple[str, str] | None = None  # a program and its command, which continues in the next line
        self._in_place_only = False
        self.other_tool = ""  # of the last table that is not one of nccl-tests
        self._is_other = False  # in such a table
        self._n_joined = 0  # texts that were tried as complete rows, in sections before the open one
        self._n_pieces = 0  # lines of messages with parts of rows

    def feed(self, lines: list[str]) -> None:
        """Read the next lines."""
        if self._open is None and self._unfinished is None:
            text = "\n".join(lines)
            if not any(word in text for word in _WORDS_OUTSIDE):
                self.line += len(lines)
                return
        # The tests are cheap and ordered by frequency: debug messages, rows, words. A log may have 10 million lines.
        for raw in lines:
            self.line += 1
            if not raw or (len(raw) < _SHORTEST_WORD and self._open is None and self._unfinished is None):
                continue
            if ("NCCL" in raw and self._read_message(raw)) or (" device " in raw and self._read_device(raw)):
                continue
            if raw[:1] != " " and (tag := _TAG.match(raw)) is not None and raw.count(tag[0]) > 1:
                # Some launchers put the rank before every write, and the tool writes a row in several parts.
                raw = raw.replace(f"{tag[0]} ", "").replace(tag[0], "") if tag[1] else raw.replace(tag[0], "")
            if (note := raw.find(SUMMARY)) >= 0:
                if self._open is not None:
                    self._open.traffic.begin(raw[note:])
                raw = raw[:note]
            tokens = raw.split()
            if self._is_other and self._is_in_other_table(raw, tokens):
                continue
            if len(tokens) > 2:
                if tokens[2] in TYPES and tokens[0].isdecimal() and tokens[1].isdecimal():
                    self._read_row(tokens, raw.strip())
                elif TYPES.isdisjoint(tokens[2:9]) or not self._read_prefixed_row(tokens, raw):
                    self._read_words(raw, tokens)
            elif tokens and tokens != _HASH:
                self._read_words(raw, tokens)

    def _is_in_other_table(self, raw: str, tokens: list[str]) -> bool:
        """Return whether a line belongs to the table of another tool, which ends where a run of nccl-tests begins."""
        for mark, tool in _OTHER_TOOLS.items():
            if mark in raw:
                self.other_tool, self._is_other = tool, True
                if self._open is not None and (self._open.rows or self._open.began_table):
                    self._open.notes.append(Note(self.line, f"a table of {tool} begins here, and is not read"))
                    self._close()
                return True
        is_own = any(word in raw for word in _OWN_WORDS) or ("algbw" in raw and "type" in tokens)
        self._is_other = self._is_other and not is_own
        return self._is_other

    def finish(self) -> tuple[Section, ...]:
        """Close the open section, and return all sections."""
        self._close()
        return tuple(self._closed)

    def _is_copied(self, what: str) -> bool:
        """Return whether a line that starts a run belongs to a copy of the open run that prints at the same time."""
        section = self._open
        if section is None or section.failure_lines or len(section.rows) or section.stage == Stage.CLOSED:
            return False
        last = section.printed.get(what)
        if last is None or self.line - last > _COPY_LINES or (section.devices and what != "header"):
            return False
        section.repeats[what] += 1
        section.printed[what] = self.line
        return True

    # A line belongs to the open section if that has not passed the stage of the line. Otherwise it starts a new one, as
    # in files with several runs, or files that begin in the middle of a run.
    def _enter(self, stage: Stage, *, new: bool) -> OpenSection:
        """Return the section that a line of this stage belongs to, and move it to the stage."""
        if self._open is None or new:
            self._close()
            # Several different command lines are usually a script that runs all tests, so none of them names this one.
            program, commands = None, [TestCommand()]
            if len(self._programs) == 1:
                ((program, commands),) = self._programs.items()
            self._programs.clear()
            # A line that was printed twice, as by the shell and by the launcher, is one command.
            first = commands[0] if len(set(commands)) == 1 else TestCommand()
            self._open = OpenSection(self.line, program, stage, first)
            self._facts = self._open.facts
        self._open.stage = max(self._open.stage, stage)
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            number = len(self._closed) + 1
            if number > MOST_SECTIONS:
                raise too_many_sections(None)
            self._n_joined += self._open.n_joined
            self._closed.append(self._open.close(number, self.prelude if number == 1 else None))
            self._open = None

    # -- NCCL's messages -----------------------------------------------------------------------------------------------

    def _read_message(self, raw: str) -> bool:
        """Read a line that contains NCCL. Return False if it may also be a different kind of line."""
        at = raw.find("NCCL INFO ")
        if at >= 0:
            self._facts.add_info(raw[at + 10 :])
        elif (at := raw.find("NCCL WARN ")) >= 0:
            self._facts.add_problem(raw[at + 10 :])
        elif "Test NCCL failure" in raw:
            self._read_failure(raw)
            return True
        elif "NCCL version" in raw:
            self._facts.add_version(raw)
            return True
        else:
            if (match := _EXPORT.search(raw)) is not None:
                self._facts.add_variable(match[1], match[2])
            return False
        # A message may start in the middle of a row, or end in front of one. A row has wide gaps, but the host, pid and
        # thread that NCCL prints before its messages have none.
        section = self._open
        if section is not None and section.stage == Stage.TABLE and "  " in raw:
            if self._n_pieces < _MOST_PIECES:
                if raw.find("  ", 0, at) >= 0:
                    self._read_before_message(section, raw, at)
                self._read_after_message(section, raw, at)
            elif self._n_pieces == _MOST_PIECES:
                self._n_pieces += 1
                text = f"{_MOST_PIECES:,} messages of NCCL have parts of rows; those in later messages are not read"
                section.notes.append(Note(self.line, text))
        return True

    # -- rows ----------------------------------------------------------------------------------------------------------
    #
    # A row is usually one line. If other output interrupts it, its beginning becomes the fragment of the section, and
    # later lines are tried as its continuation. A fragment without a continuation counts as a broken row, and so does
    # a continuation without a beginning. Nothing that has the numbers of a row is skipped without a remark.

    def _read_prefixed_row(self, tokens: list[str], raw: str) -> bool:
        """Read a row that follows a prefix. Return False if the line has none."""
        for index in range(min(len(tokens) - 2, 7)):
            if tokens[index + 2] in TYPES and tokens[index + 1].isdecimal():
                size = tokens[index]
                if not size.isdecimal():
                    glued = _SIZE_AT_END.search(size)  # a prefix without a space, as in "[1,0]<stdout>:1024"
                    if glued is None:
                        return False
                    size = glued[0]
                rest = raw.split(None, index)[-1].rstrip()
                self._read_row([size, *tokens[index + 1 :]], rest[len(tokens[index]) - len(size) :])
                return True
        return False

    def _read_row(self, tokens: list[str], text: str) -> None:
        section = self._open
        if section is None or section.stage != Stage.TABLE:
            section = self._enter(Stage.TABLE, new=section is None or section.stage == Stage.CLOSED)
            section.began_table = True
        # The end of a size and the rest of its row look like a row, but like one whose size does not fit.
        is_rest = section.fragment is not None and ranks_in_size(whole(tokens[0]), whole(tokens[1]), tokens[2]) < 0
        if is_rest and self._continue_row(section, [text]):
            return
        section.drop_fragment()
        if not section.rows.add(tokens, text, self.line):
            section.fragment = Fragment.of_row(self.line, text)

    def _read_before_message(self, section: OpenSection, raw: str, at: int) -> None:
        """Read the beginning or the middle of a row, which a message interrupts."""
        texts, likely = ends_before_message(raw, at)
        if self._is_exhausted(section):
            texts = [likely]
        if section.fragment is not None and (
            self._continue_row(section, without_prefix(likely))
            or self._extend_row(section, [rest for text in texts for rest in without_prefix(text)])
        ):
            self._n_pieces += 1
            return
        beginnings = beginnings_of_row(texts)
        if all(len(text.split()) == 1 for text in beginnings) and is_part_of_row(likely, likely.split()):
            section.count_part(self.line)  # and not the beginning of a row
        elif beginnings and not section.rows.add_joined(beginnings_of_row([likely]), self.line, halves=False):
            self._n_pieces += 1
            self._keep_beginning(section, beginnings)

    def _read_after_message(self, section: OpenSection, raw: str, at: int) -> None:
        """Read a row, or a part of one, that follows a message without a line break."""
        if not may_have_type(raw, at):
            return
        if (row := row_after_message(raw, at)) is None:
            if has_type_and_cells(raw, at):
                self._n_pieces += 1
                section.count_part(self.line)
        elif not section.rows.add_joined([row], self.line):
            self._n_pieces += 1
            self._keep_beginning(section, [row])

    def _keep_beginning(self, section: OpenSection, texts: Sequence[str]) -> None:
        section.drop_fragment()
        section.fragment = Fragment(self.line, texts)

    def _continue_row(self, section: OpenSection, rests: Sequence[str]) -> bool:
        """Add the row that the fragment and one of several texts make. Return False if there is not exactly one."""
        fragment = section.fragment
        if fragment is None or self._is_exhausted(section):
            return False
        joined = fragment.joined(rests)
        section.n_joined += len(joined)
        if not section.rows.add_joined(joined, fragment.line, halves=False):
            return False
        section.notes.append(Note(fragment.line, f"the row continues in line {self.line}"))
        section.fragment = None
        return True

    def _is_exhausted(self, section: OpenSection) -> bool:
        """Return whether so many texts were tried as rows that no more are."""
        return section.n_joined > _MOST_JOINED or self._n_joined + section.n_joined > _MOST_JOINED_IN_FILE

    def _extend_row(self, section: OpenSection, middles: Sequence[str]) -> bool:
        """Append the middle of a row, which is interrupted again, to the fragment. Return False if it is not one."""
        fragment, cells = section.fragment, cells_only(middles)
        section.n_joined += len(middles)
        if fragment is None or not cells or self._is_exhausted(section):
            return False
        longer = fragment.joined(cells)
        if all(len(text.split()) > section.rows.most_cells for text in longer):
            return False
        section.fragment = Fragment(fragment.line, longer)
        return True

    def _read_part_of_row(self, section: OpenSection, raw: str, tokens: list[str]) -> None:
        """Read a line that may be the continuation of a row, or the beginning of one."""
        if section.fragment is not None:
            rests = without_prefix(raw)
            if self._continue_row(section, rests):
                return
            if not starts_row(tokens) and self._extend_row(section, rests):
                return
        if is_part_of_row(raw, tokens):
            section.count_part(self.line)
        elif starts_row(tokens):
            self._keep_beginning(section, [raw.lstrip()])

    # -- everything else -----------------------------------------------------------------------------------------------

    def _read_words(self, raw: str, tokens: list[str]) -> None:
        if self._unfinished is not None and self._read_continuation(raw, tokens):
            return
        if ("MSCCL" in raw or "algbw" in raw) and self._is_in_other_table(raw, tokens):
            return
        if "algbw" in raw and "busbw" in raw:
            self._read_header(tokens)
        elif "minBytes" in raw:
            self._read_settings(raw)
        elif "Using devices" in raw:
            if not self._is_copied("devices"):
                section = self._enter(Stage.LISTED, new=self._open is None or self._open.stage >= Stage.LISTED)
                section.printed["devices"] = self.line
        elif "bus bandwidth" in raw or "Out of bounds" in raw:
            self._read_footer(raw)
        elif "ccl-tests version" in raw or "Collective test" in raw or "rccl-tests: Version" in raw:
            self._read_name(raw)
        elif "Test CUDA failure" in raw or "Test timeout" in raw or "Test HIP failure" in raw:
            self._read_failure(raw)
        elif "in-place" in raw:
            self._in_place_only = "out-of-place" not in raw
        elif "RCCL version" in raw:
            self._facts.add_version(raw)
        elif "_perf" in raw or "test" in raw:
            if (program := find_program(raw)) is not None:
                self._programs.setdefault(program, []).append(TestCommand.of(raw))
                self._unfinished = (program, raw) if raw.endswith("\\") else None
        elif self._open is not None:
            self._read_detail(self._open, raw, tokens)

    def _read_continuation(self, raw: str, tokens: list[str]) -> bool:
        """Read the next line of a command. Return False if it is a different line."""
        if self._unfinished is None or tokens[0][:1] != "-":
            self._unfinished = None
            return False
        program, start = self._unfinished
        command = f"{start[:_LONGEST_COMMAND].rstrip(chr(92))} {raw.strip()}"
        self._unfinished = (program, command) if command.endswith("\\") else None
        if commands := self._programs.get(program):
            commands[-1] = TestCommand.of(command)
        return True

    def _read_detail(self, section: OpenSection, raw: str, tokens: list[str]) -> None:
        """Read a line that is meaningful only inside a section."""
        if "Reducing maxBytes" in raw:
            section.notes.append(Note(self.line, raw.strip(" #\t")))
        elif "Blocking Enabled" in raw:
            section.settings["blocking"] = raw.partition("Blocking Enabled: ")[2].strip()
        elif "summary skips first" in raw:
            skipped = re.search(r"skips first (\d+) iter", raw)
            section.settings["skipped_iters"] = whole(skipped[1]) if skipped is not None else None
        elif section.stage == Stage.LISTED and ("Rank " in raw or " device " in raw):
            section.device_lost = True  # a truncated line of the device list
        elif tokens[-1] == "..." and len(tokens) <= 2:
            section.notes.append(Note(self.line, "lines are omitted here"))
        elif section.stage == Stage.TABLE and not section.traffic.add(raw.lstrip()):
            self._read_part_of_row(section, raw, tokens)

    def _read_name(self, raw: str) -> None:
        section = self._open
        if "ccl-tests version" in raw:
            if self._is_copied("version"):
                return
            version, codes = _TESTS_VERSION.search(raw), _CODES.search(raw)
            new = section is None or section.stage > Stage.NAMED or "tool" in section.settings
            section = self._enter(Stage.NAMED, new=new)
            # A library code with fewer digits than the headers' code was truncated.
            library = whole(codes[2]) if codes is not None and len(codes[2]) == len(codes[1]) else 0
            section.settings["tool"] = "nccl-tests" if version is None else version[1]
            section.settings["tool_version"] = None if version is None else version[2]
            section.settings["library_version"] = version_from_code(library)
            section.printed["version"] = self.line
        elif "rccl-tests: Version" in raw:
            if section is not None:
                section.settings["tool"] = "rccl-tests"
                section.settings["tool_version"] = raw.partition("rccl-tests: Version")[2].strip() or None
        else:
            match = _PROGRAM.search(raw)
            name = match[2] if match is not None else None
            if "concluded" in raw:
                if section is not None and section.stage >= Stage.TABLE:
                    section.stage = Stage.CLOSED
                    section.settings.setdefault("program", name)
                return
            if self._is_copied("program"):
                return
            new = section is None or section.stage > Stage.NAMED or "program" in section.settings
            section = self._enter(Stage.NAMED, new=new)
            section.settings["program"] = name
            section.printed["program"] = self.line

    def _read_settings(self, raw: str) -> None:
        settings = _SETTING.findall(raw)
        # A line that does not end with one of these was truncated, perhaps inside its last number.
        if settings and settings[-1][0] not in _LAST_FIELDS:
            settings.pop()
        is_same = self._open is not None and self._open.has_settings(settings)
        if is_same and self._is_copied("settings"):
            return
        section = self._enter(Stage.SET, new=self._open is None or self._open.stage >= Stage.SET)
        section.printed["settings"] = self.line
        for name, value, kind in settings:
            section.settings[_FIELDS[name]] = whole(value)
            if name == "step" and kind:
                section.settings["step_kind"] = kind

    def _read_device(self, raw: str) -> bool:
        """Read a line of the device list. Return False if it is not one, or only a part of one."""
        match = DEVICE_LINE.search(raw)
        section = self._open
        if match is None:
            return False
        if section is not None and section.stage == Stage.TABLE and section.is_copied and not len(section.rows):
            pass  # one of the copies has already printed the header
        elif section is None or section.stage != Stage.LISTED:
            section = self._enter(Stage.LISTED, new=section is None or section.stage > Stage.LISTED)
        rank, group, pid, host = match.group(1, 2, 3, 4)
        section.processes[whole(rank)].add((host, pid))
        if whole(rank) in section.devices:
            return True
        section.devices[whole(rank)] = match[0]
        section.groups[group] += 1
        return True

    def _read_header(self, tokens: list[str]) -> None:
        if self._is_copied("header"):
            return
        section = self._open
        new = section is None or section.stage == Stage.CLOSED or section.has_header or len(section.rows) > 0
        section = self._enter(Stage.TABLE, new=new)
        section.has_header = section.began_table = True
        section.printed["header"] = self.line
        start = next((index for index, token in enumerate(tokens) if token in ("size", "bytes")), 0)
        if (shape := read_header(tuple(tokens[start:]), self._in_place_only)) is not None:
            section.rows = RowBuffer(shape)

    def _read_footer(self, raw: str) -> None:
        if (match := _FOOTER.search(raw)) is None:
            return
        what, value, verdict = match.groups()
        if self._open is not None and self._open.stage == Stage.CLOSED and self._open.copies() > 1:
            return  # the end of another copy
        section = self._enter(Stage.TABLE, new=self._open is None or self._open.stage == Stage.CLOSED)
        section.drop_fragment()
        ok = None if verdict is None else verdict == "OK"
        if what == "Out of bounds values":
            section.bounds = (whole(value) if value.isdecimal() else None, ok)
            return
        try:
            average: float | None = float(value)
        except ValueError:
            average = None
        if average is None or average != average:
            section.notes.append(Note(self.line, f"the printed average is {value!r}, not a number"))
            average = None
        section.average = (average, ok)
        section.stage = Stage.CLOSED

    def _read_failure(self, raw: str) -> None:
        section = self._enter(Stage.NAMED, new=False)  # a failure belongs to the open section, at any stage
        section.failure_lines += 1
        if len(section.failures) < _MOST_FAILURES:
            section.failures.append(Note(self.line, raw.strip()[:500]))


class OpenSection:
    """A section while it is being read."""

    def __init__(self, line: int, program: str | None, stage: Stage, command: TestCommand) -> None:
        self.line = line
        self.program = program
        self.options = command.options
        self.launched_ranks = command.ranks
        self.stage = stage
        self.settings: dict[str, Any] = {}
        self.printed: dict[str, int] = {}  # the last line of each part of the preamble
        self.repeats: Counter[str] = Counter()  # parts that copies of the run printed too
        self.processes: defaultdict[int, set[tuple[str, str | None]]] = defaultdict(set)  # by rank
        self.devices: dict[int, str] = {}
        self.groups: Counter[str | None] = Counter()
        self.device_lost = False
        self.rows = RowBuffer()
        self.has_header = False
        self.began_table = False
        self.fragment: Fragment | None = None  # the beginning of an interrupted row
        self.n_joined = 0  # texts that were tried as complete rows
        self.broken: list[int] = []
        self.bounds: tuple[int | None, bool | None] = (None, None)
        self.average: tuple[float | None, bool | None] = (None, None)
        self.failures: list[Note] = []
        self.failure_lines = 0
        self.notes: list[Note] = []
        self.facts = FactCollector()
        self.traffic = TrafficCollector()

    def has_settings(self, settings: Sequence[tuple[str, str, str]]) -> bool:
        """Return whether all settings of a line are those of the run."""
        return all(self.settings.get(_FIELDS[name]) == whole(value) for name, value, _ in settings)

    @property
    def is_copied(self) -> bool:
        """Whether copies of the run print its preamble too."""
        return bool(self.repeats) or any(len(ids) > 1 for ids in self.processes.values())

    def copies(self, table: LogTable | None = None) -> int:
        """Return the number of copies of the test that printed into the section, whose rows are in a table."""
        listed = max((len(ids) for ids in self.processes.values()), default=1)
        return max(listed, 1 + max(self.repeats.values(), default=0), repeated_rows(table or self.rows.table()[0]))

    def drop_fragment(self) -> None:
        """Count an interrupted row without a continuation as broken."""
        if (fragment := self.fragment) is not None:
            if fragment.is_certain:
                self.broken.append(fragment.line)
            self.fragment = None

    def count_part(self, line: int) -> None:
        """Count a part of a row as broken. It is the rest of the fragment, if there is one."""
        self.broken.append(line if self.fragment is None else self.fragment.line)
        self.fragment = None

    def close(self, number: int, prelude: FactCollector | None) -> Section:
        """Return the section. The first one also gets the facts that NCCL printed before it."""
        self.drop_fragment()
        table, truncated = self.rows.table()
        facts = self.facts.facts()
        if prelude is not None:
            facts = merge_facts([facts, prelude.facts()])
        return make_section(
            SectionParts(
                number=number,
                line=self.line,
                preamble=Preamble(**self._with_options()),
                command=self.program,
                devices=DeviceLines(list(self.devices.values())),
                listed_ranks=self._listed_ranks(),
                launched_ranks=self.launched_ranks if self._has_own_options() else None,
                copies=self.copies(table),
                began_table=self.began_table,
                table=table,
                broken=sorted(self.broken + truncated),
                footer=Footer(*self.bounds, *self.average),
                failures=self.failures,
                failure_lines=self.failure_lines,
                notes=self.notes,
                nccl=facts,
                summaries=self.traffic.summaries,
            )
        )

    def _with_options(self) -> dict[str, Any]:
        """Return the settings, and those of the command line that belongs to the section."""
        options = {name: value for name, value in self.options._asdict().items() if value is not None}
        return {**options, **self.settings} if self._has_own_options() else self.settings

    def _has_own_options(self) -> bool:
        """Return whether the command line belongs to the section, and not to a different run."""
        options = {name: getattr(self.options, name) for name in ("agg_iters", "unalign")}
        return self.settings.get("program") in (None, self.program) and all(
            value is None or self.settings.get(name, value) == value for name, value in options.items()
        )

    def _listed_ranks(self) -> int | None:
        """Return the number of ranks in the device list, or None if the list seems truncated."""
        if self.is_copied and {"threads", "gpus"} <= self.settings.keys():
            return int(self.settings["threads"] * self.settings["gpus"])  # each process is a run of its own
        # If the text ends in the list, more devices may be missing.
        is_last = self.stage == Stage.LISTED and not self.failure_lines
        if not self.devices or self.device_lost or is_last:
            return None
        if len(self.groups) > 1:
            return next(iter(self.groups.values()))
        n_ranks = max(self.devices) + 1
        per_process = self.settings.get("threads", 1) * self.settings.get("gpus", 1)
        return n_ranks if per_process and n_ranks % per_process == 0 else None
