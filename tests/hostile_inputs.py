"""Measures the time and the memory that every entry point takes for hostile inputs of 10 MB.

Run ``python -m tests.hostile_inputs`` for a table, or with ``--entry`` and ``--kind`` for a part of it. Each pair runs
in a process of its own. An entry point may return or raise a `MeshlabError`, within 2 s and 300 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import MeshlabError, did_you_mean
from meshlab.base._units import parse_size, parse_sizes
from meshlab.cli._main import main as command_line
from meshlab.runs._store import as_results
from meshlab.topology.readers._hostlists import expand_hosts
from meshlab.topology.readers._slurm import read_slurm_topology

MOST_SECONDS = 2.0
MOST_MEGABYTES = 300.0
LONGEST_MESSAGE = 1000
_PATIENCE = 4

# -- inputs ------------------------------------------------------------------------------------------------------------

HEADER = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 "
    "graph: 0\n#\n# Using devices\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong  "
    "   time   algbw   busbw #wrong\n"
)
HALF = "    20.00   52.43   91.75      0"
ROW = f"     1048576        262144     float     sum      -1{HALF}{HALF}\n"
INFO = "node1:100:101 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n"
WATCHDOG = (
    "[rank3]:[E1129 01:05:54.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
    "timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600029 ms\n"
)
ENTRY = '{"record_id": 1, "pg_id": 0, "process_group": ["0", "default"], "collective_seq_id": 7, "state": "started"}, '


def repeated(text: str, start: str = "", end: str = "") -> Callable[[int], str]:
    """Return a function that repeats a text up to a length."""
    return lambda size: start + text * max(1, (size - len(start) - len(end)) // len(text)) + end


def numbered(line: str, start: str = "", end: str = "") -> Callable[[int], str]:
    """Return a function that repeats a line with the numbers 0, 1, 2 … up to a length."""

    def make(size: int) -> str:
        n = size // (len(line) + 4)
        return start + "".join([line.replace("%", str(index)) for index in range(n)]) + end

    return make


def _laughs(size: int) -> str:
    names = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9) if level else 'lol'}]" for level in range(30)]
    return "\n".join([*names, "b: " + "x" * (size - 2000)])


def _json_of_depth(size: int) -> str:
    inner = "[" * 400 + "]" * 400
    return '{"entries": [' + ", ".join([inner] * (size // 802)) + "]}"


KINDS: dict[str, Callable[[int], str | bytes]] = {
    **{
        f"only {name}": repeated(sign)
        for name, sign in {
            "letters": "x",
            "digits": "1",
            "spaces": " ",
            "line breaks": "\n",
            "brackets": "[",
            "closing brackets": "]",
            "braces": "{",
            "quotes": '"',
            "backslashes": "\\",
            "commas": ",",
            "colons": ":",
            "equals signs": "=",
            "dashes": "-",
            "dots": ".",
            "tags": "<a",
            "nuls": "\0",
            "tabs": "\t",
            "hashes": "#",
            "slashes": "/",
            "carriage returns": "\r",
            "escapes": "\x1b[",
            "parentheses": "(",
            "pipes": "|",
            "at signs": "@",
        }.items()
    },
    "a number, spaces, a letter": lambda size: "1" + " " * (size - 2) + "x",
    "a word, spaces, a word": lambda size: "Rank" + " " * (size - 8) + "Rank",
    "words": repeated("node rank "),
    "numbers": repeated("12 "),
    "numbers with dots": repeated("1.5 "),
    "numbers with commas": repeated("1,"),
    "equal pairs": repeated("dp=2,"),
    "equal pairs with new names": numbered("a%=1, "),
    "different words": numbered("w% "),
    "short lines": repeated("a\n"),
    "lines of a number": repeated("1\n"),
    "lines of a bracket": repeated("[\n"),
    "lines of a brace": repeated("{\n"),
    "lines of a quote": repeated('"\n'),
    "lines of a minus": repeated("- \n"),
    "lines with a colon": repeated("a:\n"),
    "lines of different keys": numbered("k%: 1\n"),
    "paths": repeated("/a"),
    "words with colons": repeated("a:"),
    "a JSON list": repeated("1,", "[", "1]"),
    "a cut JSON list": repeated("1,", "["),
    "a JSON list of objects": repeated('{"a": 1}, ', "[", "{}]"),
    "a JSON list of short lists": _json_of_depth,
    "a cut JSON list of objects": repeated('{"a": 1}, ', "["),
    "lines of JSON": repeated('{"a": 1}\n'),
    "lines of cut JSON": repeated('{"a": \n'),
    "JSON of many keys": numbered('"k%": 1, ', "{", '"z": 1}'),
    "nested JSON": repeated('{"a":'),
    "a dump of the flight recorder": repeated(ENTRY, '{"version": "2.3", "pg_config": {}, "entries": [', "{}]}"),
    "a cut dump of the flight recorder": repeated(ENTRY, '{"version": "2.3", "pg_config": {}, "entries": ['),
    "cut dumps of the flight recorder": repeated('{"version": "2.3", "entries": [{"record_id": 1, "pg_id"\n'),
    "cut JSON of nccl-tests": repeated(
        '{"size": 8, "count": 2, "type": "float", "out_of_place": {"time": 1.5}}, ',
        '{"version": 3, "args": ["all_reduce_perf"], "results": [',
    ),
    "cut results of nccl-tests": repeated('{"size": 8, "out_of_place": {"time": ', '{"version": 3, "results": ['),
    "documents of nccl-tests": repeated('{"version": 3, "args": ["all_reduce_perf"], "results": []}\n'),
    "lines of rccl-tests": repeated('{"inPlace": 0, "busBw": 1.5, "gpus": 4, "size": 8, "type": "float"}\n'),
    "cut RAS reports": repeated('{"communicators_count": 1, "communicators": [\n'),
    "rows": repeated(ROW, HEADER),
    "rows of one letter less": repeated(ROW[:-2] + "\n", HEADER),
    "interrupted rows": repeated(ROW[:40] + INFO, HEADER),
    "rows in pieces": repeated(ROW[:60] + "\n", HEADER),
    "halves of rows": repeated(ROW[52:], HEADER),
    "sizes before messages": repeated("     1048576" + INFO, HEADER),
    "headers": repeated(HEADER),
    "messages of NCCL": repeated(INFO),
    "environment of NCCL": numbered("node1:100:101 [0] NCCL INFO NCCL_VAR_% set by environment to %\n"),
    "messages of different hosts": numbered("host%:100:101 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"),
    "warnings of NCCL": numbered("host%:100:101 [0] x.cc:1 NCCL WARN Call to connect returned %\n"),
    "messages of the watchdog": repeated(WATCHDOG),
    "tracebacks": repeated('Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x\n'),
    "kernel messages": numbered("[   12.5] NVRM: Xid (PCI:0000:17:00): 79, pid=%, GPU has fallen off the bus.\n"),
    "nested tags": repeated("<a>"),
    "a wide tree of tags": repeated("<a/>", "<system>", "</system>"),
    "a tag of many attributes": numbered('a%="1" ', "<system ", "/>"),
    "an XML bomb": lambda size: (
        '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "' + "x" * (size - 100) + '">'
        '<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><system>&b;&b;</system>'
    ),
    "CSV of many columns": repeated("a,", "time_us,", "b\n1\n"),
    "CSV of many rows": repeated("all_reduce,8,1.5\n", "collective,size_bytes,time_us\n"),
    "a table of GPUs": numbered("GPU%\t X \tNV18\n", "\tGPU0\tGPU1\n"),
    "a wide table of GPUs": numbered("\tGPU%"),
    "switches": numbered("SwitchName=s% Nodes=n[1-10]\n"),
    "switches of a switch": numbered("SwitchName=s% Switches=s[0-9]\n"),
    "switches of many nodes": repeated("SwitchName=s1 Nodes=n[1-999999]\n"),
    "one switch of many nodes": repeated("n1,", "SwitchName=s1 Nodes=", "n2"),
    "YAML of switches": numbered("- switch: s%\n  nodes: n[1-9]\n", "- topology: a\n"),
    "a host list of brackets": repeated("n[1-2]"),
    "a host list of huge ranges": repeated("n[1-999999999],"),
    "a host list of large ranges": repeated("n[1-999999],"),
    "YAML aliases": _laughs,
    "a YAML list": repeated("1, ", "a: [", "1]"),
    "YAML lines": repeated("- a: 1\n"),
    "TOML keys": numbered("k% = 1\n"),
    "TOML tables": numbered("[t%]\n"),
    "nested TOML keys": repeated("a.", "", "b = 1"),
    "an option of many values": repeated("--tp 2 "),
    "options of a command": numbered("--option-% "),
    "a gzip bomb": lambda size: gzip.compress(b"\0" * (400 << 20), 1),
    "random bytes": lambda size: bytes((index * 7919 >> 3) & 255 for index in range(1 << 16)) * (size >> 16),
}


# -- entry points ------------------------------------------------------------------------------------------------------


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _as_file(read: Callable[[Path], Any], name: str) -> Callable[[str | bytes], Any]:
    def call(value: str | bytes) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(value.encode(errors="surrogatepass") if isinstance(value, str) else value)
            return read(path)

    return call


def _shown(value: Any) -> None:
    repr(value)
    html = getattr(value, "_repr_html_", None)
    if html is not None:
        html()


def _command(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        command_line(["explain", str(path)])


ENTRIES: dict[str, Callable[[str | bytes], Any]] = {
    "read": lambda value: _shown(ml.read(value)),
    "explain": lambda value: _shown(ml.explain(value)),
    "explain a file": _as_file(lambda path: ml.explain(path), "log.txt"),
    "mesh": lambda value: ml.DeviceMesh(_text(value)),
    "mesh of a file": lambda value: ml.DeviceMesh.read(_text(value)),
    "topology": lambda value: ml.topology.read(value),
    "slurm": lambda value: read_slurm_topology(_text(value)),
    "nccl-tests": lambda value: _shown(ml.nccl_tests.read(_text(value) + "\n")),
    "run": _as_file(lambda path: ml.Run.load(path.parent), "run.json"),
    "tuning": _as_file(lambda path: Tuning.load(path.parent), "tuning.json"),
    "results": _as_file(as_results, "results.csv"),
    "size": lambda value: parse_size(_text(value)),
    "sizes": lambda value: parse_sizes(_text(value)),
    "hosts": lambda value: expand_hosts(_text(value)),
    "preset": lambda value: ml.preset(_text(value)),
    "did you mean": lambda value: did_you_mean(_text(value), ["all_reduce", "all_gather"]),
    "job": lambda value: ml.Job.preset(_text(value)),
    "plan": lambda value: ml.Plan(_text(value), "all_reduce"),
    "command": _as_file(_command, "log.txt"),
}


# -- measuring ---------------------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """What an entry point took for an input: processor time, the peak of its memory, and how it ended."""

    seconds: float
    megabytes: float
    outcome: str

    @property
    def is_allowed(self) -> bool:
        """Whether the cost is within the limits, and the end is a value or an error of meshlab."""
        is_cheap = self.seconds <= MOST_SECONDS and self.megabytes <= MOST_MEGABYTES
        return is_cheap and self.outcome in ("returned", "refused")


def warm_up() -> None:
    """Import what the entry points import when they are called first."""
    for call in ENTRIES.values():
        for text in ("dp=2", '{"a": 1}', "<system/>", "NCCL version 2.26.6\n", "a: 1", HEADER + ROW, "a,b\n1,2\n"):
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(text)


def cost(entry: str, value: str | bytes) -> Cost:
    """Call an entry point in a child process, and return what it took."""
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        code = 1
        try:
            result = _cost_here(entry, value)
            os.write(write_end, json.dumps(result).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return Cost(*json.loads(data)) if data else Cost(float("inf"), float("nan"), "killed")


def _cost_here(entry: str, value: str | bytes) -> Cost:
    import resource

    # The signal reaches Python code and regular expressions, and the limit of the kernel ends everything else.
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 3 * _PATIENCE, resource.RLIM_INFINITY))
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _PATIENCE)
    warnings.simplefilter("ignore")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _memory("VmRSS")
    start = time.process_time()
    try:
        ENTRIES[entry](value)
        outcome = "returned"
    except MeshlabError as error:
        outcome = "refused" if len(str(error)) <= LONGEST_MESSAGE else f"a message of {len(str(error)):,} characters"
    except FileNotFoundError:
        outcome = "refused"
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/meshlab/" in frame.filename]
        where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        outcome = f"raised {type(error).__name__}{where}: {str(error)[:80]}"
    return Cost(time.process_time() - start, _memory("VmHWM") - before, outcome)


class _NoResultError(BaseException):
    """The time is up. It is no `Exception`, so that no handler of meshlab takes it for the failure of a part."""


def _give_up(number: int, frame: Any) -> None:
    raise _NoResultError


def _memory(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def costs(entries: Sequence[str], kinds: Sequence[str], size: int) -> Iterator[tuple[str, str, Cost]]:
    """Yield the costs of all pairs."""
    for kind in kinds:
        value = KINDS[kind](size)
        for entry in entries:
            yield entry, kind, cost(entry, value)


def main() -> None:
    """Print the costs that exceed the limits, and the largest cost of each entry point."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--entry", action="append", choices=list(ENTRIES))
    parser.add_argument("--kind", action="append", choices=list(KINDS))
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="print what takes longer")
    parser.add_argument("--all", action="store_true", help="print every pair")
    arguments = parser.parse_args()
    warm_up()
    worst: dict[str, tuple[float, float]] = {}
    n_pairs = n_bad = 0
    size = int(arguments.megabytes * 1e6)
    for entry, kind, found in costs(arguments.entry or list(ENTRIES), arguments.kind or list(KINDS), size):
        n_pairs += 1
        is_bad = not found.is_allowed or found.seconds > arguments.seconds
        n_bad += is_bad
        if arguments.all or is_bad:
            print(f"{found.seconds:8.2f} s {found.megabytes:7.0f} MB  {entry} · {kind} · {found.outcome}", flush=True)
        seconds, megabytes = worst.get(entry, (0.0, 0.0))
        worst[entry] = max(seconds, found.seconds), max(megabytes, found.megabytes)
    print(f"{n_pairs} pairs, {n_bad} beyond the limits")
    for entry, (seconds, megabytes) in worst.items():
        print(f"{entry:20} at most {seconds:6.2f} s {megabytes:6.0f} MB")


if __name__ == "__main__":
    main()
