"""The starts of nccl-tests in a text: headers, device lines, and the lines of a start before its first result."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meshlab.base._numerals import whole
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.nccl_tests._log import DEVICE_LINE

_HEADER = re.compile(r"^(?:# *)?nThreads?:? *\d+ +nGpus:? *(?P<gpus>\d+) ")
_ROW = re.compile(r" *+\d++ ++\d++ ++\w++ ++\S++ .*\d\.\d\d")
_TYPES = ("  float ", "  half ", "  double ", "  bfloat16 ", "  int8 ", "  int32 ", "  int64 ", "  uint8 ", "  f8e")
_ENDS = ("Avg bus bandwidth", "Out of bounds values", "Test failure", "Test NCCL failure", "Test CUDA failure")
_PROMPT = re.compile(r"^(?:[^\s@]+@[^\s:~]+[:~].*?[$#] |\$ |\+ )?\s*(?:\S*/)?(?:mpirun|mpiexec|srun|prun|orterun)\b.* ")


@dataclass(frozen=True, slots=True)
class TestDevice:
    """A device line: the GPU of one rank."""

    rank: int
    pid: int
    device: int
    host: str
    name: str
    line: int


@dataclass
class TestStart:
    """The lines of one start, up to the next one."""

    headers: list[int] = field(default_factory=list)
    devices: list[TestDevice] = field(default_factory=list)
    n_rows: int = 0
    command: int | None = None


def read_test_starts(paste: Paste) -> tuple[TestStart, ...]:
    """Read the starts of nccl-tests. Headers without a device, a result or an error between them belong together."""
    numbers = other_lines(paste).numbers("nThread", " Pid ", "mpirun", "mpiexec", "srun", *_ENDS)
    if not other_lines(paste).numbers("nThread", "Using devices") and not other_lines(paste).numbers(" Pid "):
        return ()
    rows = set(paste.starting_with(_ROW, other_lines(paste).numbers(*_TYPES)))
    starts = [TestStart()]
    for number in sorted({*numbers, *rows}):
        current = starts[-1]
        if number in rows:
            current.n_rows += 1
            continue
        text = paste.line(number).text
        if any(mark in text for mark in _ENDS):
            current.n_rows += 1
        elif _PROMPT.match(text):
            starts.append(TestStart(command=number))
        elif _HEADER.match(text):
            # Processes of one launch print the same header, and another test of a script usually a different one.
            is_other = bool(current.headers) and paste.line(current.headers[0]).text.strip() != text.strip()
            if current.devices or current.n_rows or is_other:
                starts.append(current := TestStart())
            current.headers.append(number)
        elif match := DEVICE_LINE.search(text):
            rank, pid, device = whole(match[1]), whole(match[3]), whole(match[5])
            current.devices.append(TestDevice(rank, pid, device, match[4], match[7].strip(), number))
    return tuple(start for start in starts if start.headers or start.devices)
