"""Reads the options of a test program from its command line, where the log has no other record of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from meshlab.base._numerals import whole


class CommandOptions(NamedTuple):
    """Options that change what a test measures. None if the command line may have one that is not visible."""

    local_register: int | None = None  # -R: 0 for plain buffers, 1 for registered ones, 2 for symmetric windows
    cta_policy: int | None = None  # -x: NCCL's policy for thread blocks, -1 if it is not set
    agg_iters: int | None = None  # -m: the number of aggregated calls
    unalign: int | None = None  # -u: the index of the first element in the aligned buffer


# The defaults and the names of src/common.cu in NVIDIA/nccl-tests.
_DEFAULTS = CommandOptions(local_register=0, cta_policy=-1, agg_iters=1, unalign=0)
_FIELDS = {"R": "local_register", "x": "cta_policy", "m": "agg_iters", "u": "unalign"}
_LONG = dict(
    re.findall(
        r"(\w+)=(\w)",
        "nthreads=t ngpus=g minbytes=b maxbytes=e stepbytes=i stepfactor=f iters=n agg_iters=m warmup_iters=w "
        "run_cycles=N parallel_init=p check=c op=o datatype=d root=r blocking=z stream_null=y timeout=T cudagraph=G "
        "report_cputime=C report_timestamps=S output_file=J average=a local_register=R cta_policy=x "
        "device_implementation=D device_cta_count=V memory=M unalign=u per_iter_timing=I per_iter_skip=K help=h",
    )
)

_END = re.compile(r"\s(?:\|\|?|&&?|;|\d?>>?|<|#)|\s\d?>&|;(?:\s|$)")  # where the shell ends a command
_LAUNCHER = re.compile(r"(?<![\w.-])(?:mpirun|mpiexec|srun|orterun|prterun)\b")
_PROCESSES = re.compile(r"\s(?:-np?|--np|--ntasks)[ =]+(\d{1,7})(?=\s)")
_PER_PROCESS = (re.compile(r"-(?:t *|-nthreads[ =])(\d{1,4})(?!\S)"), re.compile(r"-(?:g *|-ngpus[ =])(\d{1,4})(?!\S)"))
_VARIABLE = re.compile(r"[$`]")


def read_options(arguments: Sequence[str]) -> CommandOptions:
    """Return the options in the arguments of a program, without its name, as ``getopt_long`` reads them."""
    options: dict[str, int | None] = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if token == "--":
            break
        if token.startswith("--"):
            name, has_value, value = token[2:].partition("=")
            matches = [name] if name in _LONG else [option for option in _LONG if option.startswith(name)]
            if len(matches) != 1:
                continue
            letter = _LONG[matches[0]]
        elif token.startswith("-") and len(token) > 1:
            letter, value = token[1], token[2:]
            has_value = value
        else:
            continue
        if letter == "h":
            continue
        if not has_value:
            value = rest.pop(0) if rest else ""
        if letter in _FIELDS:
            options[_FIELDS[letter]] = _number(value)
    return _DEFAULTS._replace(**options)


def options_in_line(line: str) -> CommandOptions:
    """Return the options of the test program in a line of a shell. All are None if a part is unknown."""
    _, arguments = _split(line)
    return CommandOptions() if arguments is None else read_options(arguments)


def launched_ranks(line: str) -> int | None:
    """Return the number of ranks that ``mpirun -np`` or ``srun -n`` starts in a line of a shell, or None."""
    launcher, arguments = _split(line)
    processes = set(_PROCESSES.findall(launcher))
    if arguments is None or len(processes) != 1 or _LAUNCHER.search(launcher) is None or "NCCL_TESTS_SPLIT" in launcher:
        return None
    per_process = 1
    for pattern in _PER_PROCESS:
        values = pattern.findall(" ".join(arguments))
        per_process *= whole(values[-1]) if values else 1
    return whole(processes.pop()) * per_process or None


def _split(line: str) -> tuple[str, list[str] | None]:
    """Return what is in front of the test program in a line of a shell, and its arguments if all are known."""
    command = re.split(r"(?<=[\w'\"])_perf(?:_\w{1,60})?(?=['\"\s]|$)", line, maxsplit=1)
    if len(command) != 2:
        return line, None
    text = _END.split(f" {command[1].lstrip(chr(39) + chr(34))} ", maxsplit=1)[0].strip()
    is_known = _VARIABLE.search(text) is None and not text.endswith("\\")
    return command[0], text.replace("'", "").replace('"', "").split() if is_known else None


def _number(text: str) -> int | None:
    """Return a number as ``strtol`` reads it, or None if it is not one."""
    match = re.fullmatch(r"([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)", text)
    if match is None:
        return None
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if len(digits) > 1 and digits[0] == "0" else 10
    return whole(match[1] + digits, base)
