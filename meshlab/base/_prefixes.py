"""The prefixes that launchers, log collectors and terminals put before the lines of programs."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from meshlab.base._numerals import whole

# How lines begin that a program printed. A prefix that could also be text, such as "worker: ", is removed only before
# one of these.
_NAME = r"[A-Za-z0-9][\w.-]*"
_FRAME = rf"{_NAME}:\d+:\d+ (?:\[-?\d+\] |NCCL )"  # NCCL: host, process, thread and device
_TIME = r"\d{4}-(?:\d\d|[A-Z][a-z]{2})-\d\d[T ]\d\d:\d\d:\d\d"
_PRINTED = (
    rf"{_FRAME}|\[?{_TIME}|\[\d+,\d+\]|\[[A-Za-z]+\d+(?:\|\d+)?\]:|\[\d+\](?:<std|:| {_FRAME})|\[[EWI]\d* |\[Rank \d"
    r"|\[[\w.@-]+,\d+\]|\(\w[\w ]* pid=|[NR]CCL version|NVRM: |Traceback \(most|nccl[A-Z]\w*Error|torch\.|#  |# nThread"
)
_FRAME_LATER = rf"|.{{0,160}}?(?<![\w.-]){_FRAME}"  # other prefixes are between

# Prefixes that launchers, log collectors, terminals and forums put before a line. They are nested, so they are removed
# repeatedly. Groups that begin with "rank" or "host" hold its value. PRINTED stands for the patterns above.
_PREFIXES = (
    rf"\[?{_TIME}(?:[.,:]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?\]?:? *(?:\| *)?",  # a log collector, NCCL's own time stamp
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=[\[<])",  # Open MPI with --timestamp-output
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host_syslog>[\w.-]+) [\w./-]+(?:\[\d+\])?: ",  # syslog
    # Open MPI with --tag-output or --output tag, Horovod
    r"\[(?:[\w.@-]*,)?(?P<rank_mpi>\d+)\](?:\[(?P<host_mpi>[\w.-]+):\d+\])?<std\w+>:?(?: (?! ))?",
    r"\[[\w.@-]*,(?P<rank_tag>\d+)\]:(?: (?! ))?",
    r" *(?P<rank_srun>\d+): (?!\S+: <)",  # srun --label; "2: eth0: <UP>" is the output of ip
    # mpiexec -prepend-rank; a desync report of PyTorch has lists of ranks
    r"\[(?P<rank_bracket>\d{1,4})\] (?=\S|[ \t]+(?:PRINTED))(?!finished |joined |started |Timeout at |never )",
    r"\[\d+\] (?=PRINTED)",  # a process
    # SkyPilot
    r"\((?P<host_sky>[\w.-]+), rank=(?P<rank_sky>\d+), pid=\d+(?:, ip=[\w.:-]+)?\) ?",
    # Ray, vLLM
    r"\((?:[\w.:<>]+ )?[\w.:-]*(?: ?(?:rank=(?P<rank_vllm>\d+)|[A-Z]+\d+))? ?pid=\d+(?:, ip=(?P<host_ray>[\w.:-]+))?\)"
    r"(?: ?\[repeated [^\]]*\])? ?",
    # the logger of vLLM
    r"(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]+:\d+\] ?|\w+\.py:\d+\] ?)",
    r"\[rank(?P<rank_torch>\d+)\]: ?",  # PyTorch
    r"\[[A-Za-z][A-Za-z_-]*\d+(?:\|\d+)?\]: ?",  # torchrun ("[default0]:"); the number is the rank on the host
    r"\[\d+\]:(?=\[|\S* ?Traceback|\S+:\d+:\d+ \[)",  # older torchrun; also the rank on the host
    r"\[pod/(?P<host_kubectl>[\w.-]+)/[\w.-]+\] ",  # kubectl logs --prefix
    rf"(?P<host_compose>{_NAME}[-_]\d+) +\| ?",  # docker compose
    rf"(?P<host_compose_name>{_NAME}) +\| ?(?=PRINTED)",
    r"(?P<host_address>\d+\.\d+\.\d+\.\d+): ",  # pdsh, DeepSpeed
    r"kernel: (?=PRINTED)",
    rf"(?P<host_pdsh>{_NAME}): +(?=PRINTED)",  # pdsh, names of pods
    r"[\w./-]*\.(?:log|txt|out|err)(?::(?:\d+:(?! \S))?|-\d+-)(?=PRINTED)",  # grep
    r"(?:> ?)+",  # a quotation
    r"[>`│|]+ *(?=PRINTED)",  # a quotation, Markdown, the frame of a terminal
    r"\[\d{0,3}(?:;\d+)*m(?![\w.@:-]*\]) ?",  # a colour without its escape character; "[mpiexec@node]" is none
    r"[ \t]+(?=PRINTED)",
)
_PREFIX = re.compile("|".join(_PREFIXES).replace("PRINTED", _PRINTED))
_PREFIX_OF_FRAME = re.compile("|".join(_PREFIXES).replace("PRINTED", _PRINTED + _FRAME_LATER))
_FRAME_START = re.compile(_FRAME)
_FRAME_END = re.compile(_FRAME.removeprefix(_NAME))
_TWO_NUMBERS = re.compile(r" *\d+ +\d")  # the beginning of a row of a table, and of no prefix
_KERNEL_TIME = re.compile(r"\[ *\d+\.\d+\] ")  # of dmesg, which no prefix begins with
_LONGEST = 1000  # characters of all prefixes of a line


class Prefix(NamedTuple):
    """The prefixes of a line: their length in characters, and the rank and the host that the innermost of them name."""

    length: int
    rank: int | None = None
    host: str | None = None


_NONE = Prefix(0)


def find_prefix(line: str) -> Prefix:
    """Return the prefixes of a line."""
    # Most lines of a long log are NCCL's, with a few different prefixes or none.
    line = line[:_LONGEST]
    if line[:1] == "[":
        if _KERNEL_TIME.match(line) is not None:
            return _NONE
    elif _FRAME_START.match(line, 0, 200) is not None:
        return _NONE
    # A search for the end of a frame, which begins with a colon, takes a tenth of the time of one for a name.
    has_frame = _FRAME_END.search(line, 0, 200) is not None
    frame = _FRAME_START.search(line, 0, 200) if has_frame else None
    if frame is None:
        return _NONE if _TWO_NUMBERS.match(line) is not None else _prefix_of(line, _PREFIX)
    start = frame.start()
    return _prefix_before_frame(line[:start], frame[0]) if start else _NONE


def may_have_prefix(text: str, start: int, end: int) -> bool:
    """Return whether a line of a text may have prefixes. A row of numbers has none but blanks."""
    return _TWO_NUMBERS.match(text, start, end) is None and find_prefix(text[start:end]).length > 0


def lines_by_source(text: str) -> str:
    """Return a text without prefixes, with the lines of each rank and host, which launchers mix, after each other."""
    sources: dict[tuple[int | None, str | None], list[str]] = {}
    for line in text.splitlines():
        length, rank, host = find_prefix(line)
        sources.setdefault((rank, host), []).append(line[length:])
    return "\n".join("\n".join(lines) for lines in sources.values())


@functools.lru_cache(4096)
def _prefix_before_frame(prefix: str, frame: str) -> Prefix:
    return _prefix_of(prefix + frame, _PREFIX_OF_FRAME)


def _prefix_of(raw: str, pattern: re.Pattern[str]) -> Prefix:
    rank: int | None = None
    host: str | None = None
    position = 0
    while match := pattern.match(raw, position):
        if match.end() == position:
            break
        position = match.end()
        if match.lastgroup:
            for name, value in match.groupdict().items():
                if value is not None and name.startswith("rank"):
                    rank = whole(value)
                elif value is not None:
                    host = value
    return Prefix(position, rank, host) if position else _NONE
