"""How processes of a job ended, as launchers, schedulers and the kernel print it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from meshlab.base._numerals import whole
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis._seen import Seen, TextFormat
from meshlab.diagnosis.formats._torch_lines import last_rank_prefix

_ELASTIC = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")
_BLOCK_FIELD = re.compile(r"^ *(?P<name>rank|exitcode|host|traceback) *: (?P<value>.*)$")
_BLOCK_RANK = re.compile(r"(?<!\d)(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_BLOCK_CODE = re.compile(r"(?P<code>-?(?<!\d)\d+) \(pid: (?P<pid>\d+)\)")
_MPI = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<signal>\d+)"
)
# Open MPI and PRRTE, whose sentences continue on the next lines.
_MPI_IMPROPER = re.compile(
    r"exited due to process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exiting improperly"
)
_MPI_CODE = re.compile(r"Process name: \[(?:\[\d+,\d+\]|[\w.@-]+),(?P<rank>\d+)\] +Exit code: +(?P<code>\d+)")
_MPI_ABORT = re.compile(r"MPI_ABORT was invoked on rank (?P<rank>\d+) in communicator MPI_?COMM_?WORLD\b")
_HYDRA = re.compile(r"(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT (?:[^\s@]+@)?(?P<host>[^\s@]+)")
# MPICH 3.0 did not name the process. The exit code is the number of the signal, if there was one.
_HYDRA_BARE = re.compile(r"PROCESSES[= ]+EXIT CODE: (?:(?P<signal>[46789]|11|15)|(?P<code>\d+))\b")
_HYDRA_CODE = re.compile(r"EXIT CODE: (?P<code>\d+)|(?:EXIT STRING: .*\(signal |KILLED BY SIGNAL: )(?P<signal>\d+)")
_MPD = re.compile(r"exit status of rank (?P<rank>\d+): (?:killed by signal (?P<signal>\d+)|return code (?P<code>\d+))")
_PALS = re.compile(
    r"(?<![\w.-])(?P<host>[\w.-]+): rank (?P<rank>\d+) "
    r"(?:died from signal (?P<signal>\d+)|exited with code (?P<code>\d+))"
)
_FLUX = re.compile(r"rank (?P<rank>\d+) on host (?P<host>\S+) (?:failed|exited) and exit-(?:on-error|timeout)")
_SLURM = re.compile(
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<rank>[\d,-]+): (?P<what>Killed|Out Of Memory|Segmentation fault|"
    r"Bus error|Aborted|Floating point exception|Terminated|Exited with exit code (?P<code>\d+))"
)
_SPAWN = re.compile(r"process (?P<local>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))")
# DeepSpeed and torch.distributed.launch name the command of their last process here, whichever ended.
_DIED = re.compile(r"died with <Signals\.(?P<signal>SIG\w+): \d+>")
_RETURN = re.compile(r"exits with return code = (?P<code>-?\d+)")
_KERNEL = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]*)\)"
)
_CRASH = re.compile(
    r"\[(?P<host>[\w.-]+):(?P<pid>\d+) ?(?::\d+:\d+)?\] "
    r"(?:Caught signal (?P<caught>\d+) |Signal: [\w ]+\((?P<signal>\d+)\))"
)
_PYTHON_CRASH = re.compile(
    r"Fatal Python error: (?P<what>Segmentation fault|Aborted|Floating point exception|Bus error)"
)
_EXIT_CODE = re.compile(r"(?:exit(?:ed)?(?: with)?|terminated with) (?:exit )?(?:code|status):? 137\b")
_OOM_EVENT = re.compile(
    r"[Dd]etected \d+ oom[-_]kill event|\bOOMKilled\b|killed due to (?:the node running low on )?memory"
)

_OOM_LITERALS = ("oom_kill event", "oom-kill event", "OOMKilled", "killed due to")
_SIGNALS = {
    "Killed": 9,
    "Out Of Memory": 9,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Floating point exception": 8,
    "Terminated": 15,
}


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """A process that ended."""

    rank: int | None  # global rank
    local_rank: int | None
    pid: int | None
    host: str | None
    signal: int | None
    code: int | None
    is_first: bool  # false if another process ended before it, as far as the text shows
    is_out_of_memory: bool  # the host, or the container, ran out of memory
    lines: tuple[int, ...]
    ranks: str | None = None  # several ranks that ended alike, such as "0-3,5"
    reason: str = ""  # in words, if the text has neither a signal nor an exit code

    @property
    def is_named(self) -> bool:
        """Whether the text names the process, and not only its host."""
        return any(name is not None for name in (self.rank, self.ranks, self.local_rank, self.pid))

    @property
    def how(self) -> str:
        """How it ended, such as ``"SIGKILL"`` or ``"exit code 1"``."""
        return self.reason or (f"exit code {self.code}" if self.signal is None else signal_name(self.signal))

    def __str__(self) -> str:
        if self.rank is not None:
            name = f"rank {self.rank}"
        elif self.ranks is not None:
            name = f"ranks {self.ranks}"
        else:
            name = "a process" if self.local_rank is None else f"local rank {self.local_rank}"
        pid = "" if self.pid is None else f" (pid {self.pid})"
        return name + pid + ("" if self.host is None else f" on {self.host}")


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_process_exits(paste: Paste) -> tuple[ProcessExit, ...]:
    """Read how processes ended. Messages about one process are merged."""
    ends = list(_exits(paste))
    has_root = any(end.is_first and end.rank is not None for end in ends)
    merged: list[ProcessExit] = []
    for end in ends:
        same = next(
            (
                position
                for position, other in enumerate(merged)
                if (other.signal, other.code, other.reason) == (end.signal, end.code, end.reason)
                and (other.pid == end.pid if end.pid else other == replace(end, lines=other.lines))
            ),
            None,
        )
        if same is None:
            merged.append(end)
            continue
        other = merged[same]
        merged[same] = replace(
            other,
            rank=other.rank if other.rank is not None else end.rank,
            local_rank=other.local_rank if other.local_rank is not None else end.local_rank,
            host=other.host or end.host,
            is_first=(other.is_first or end.is_first) if has_root else other.is_first and end.is_first,
            is_out_of_memory=other.is_out_of_memory or end.is_out_of_memory,
            lines=(*other.lines, *end.lines),
        )
    return tuple(merged)


def _exit(lines: tuple[int, ...], code: int | None, number: int | None, **fields: Any) -> ProcessExit:
    if code is not None and code < 0:
        number, code = -code, None
    elif code is not None and 128 < code < 160:  # a shell's way to say that a signal ended the process
        number, code = code - 128, None
    missing = dict.fromkeys(("rank", "local_rank", "pid", "host"))
    defaults = {**missing, "is_first": True, "is_out_of_memory": False}  # the class has those of the others
    return ProcessExit(**{**defaults, **fields}, signal=number, code=code, lines=lines)


class _Message(NamedTuple):
    """A message about one process, whose named groups are the fields of its end."""

    pattern: re.Pattern[str]
    literals: tuple[str, ...]
    has_prefix: bool = False  # the rank is that of the prefix of the line
    signal: int | None = None
    is_out_of_memory: bool = False
    n_lines: int = 1  # over which a sentence may be broken
    reason: str = ""


_MESSAGES = (
    _Message(_MPI, ("noticed that process rank", "exited on signal"), n_lines=2),
    _Message(_MPI_IMPROPER, ("exited due to process rank",), n_lines=3, reason="no call of MPI_Finalize"),
    _Message(_MPI_CODE, ("Process name: ",), n_lines=2),
    _Message(_MPI_ABORT, ("MPI_ABORT was invoked",), reason="a call of MPI_Abort"),
    _Message(_HYDRA_BARE, ("BAD TERMINATION OF ONE OF YOUR",), n_lines=3),
    _Message(_MPD, ("exit status of rank",)),
    _Message(_PALS, ("died from signal", "exited with code")),
    _Message(_FLUX, ("and exit-on-error", "and exit-timeout"), reason="an early exit or an error"),
    _Message(_SLURM, ("srun: error:",)),
    _Message(_SPAWN, ("terminated with",)),
    _Message(_DIED, ("died with <Signals.",), has_prefix=True),
    _Message(_RETURN, ("exits with return code =",), has_prefix=True),
    _Message(_KERNEL, ("ut of memory: Kill",), signal=9, is_out_of_memory=True),
    _Message(_CRASH, ("Caught signal", "] Signal: "), has_prefix=True),
    _Message(_PYTHON_CRASH, ("Fatal Python error",), has_prefix=True),
    _Message(_EXIT_CODE, (" 137",), has_prefix=True, signal=9),
    _Message(_OOM_EVENT, _OOM_LITERALS, has_prefix=True, signal=9, is_out_of_memory=True),
)


def _matches(paste: Paste, message: _Message) -> Iterator[tuple[PasteLine, re.Match[str]]]:
    if message.n_lines == 1:
        yield from other_lines(paste).matches(message.pattern, *message.literals)
        return
    for line in other_lines(paste).find(*message.literals):
        last = min(line.number + message.n_lines, len(paste) + 1)
        texts = (paste.line(number).text.strip() for number in range(line.number, last))
        if match := message.pattern.search(" ".join(texts)):
            yield line, match


def _ends_in(paste: Paste, message: _Message) -> Iterator[ProcessExit]:
    for line, match in _matches(paste, message):
        named = {name: value for name, value in match.groupdict().items() if value is not None}
        numbers = {name: whole(named[name]) for name in ("rank", "local", "pid") if named.get(name, "").isdecimal()}
        what, ended_by = named.get("what", ""), named.get("signal") or named.get("caught")
        number = message.signal or _SIGNALS.get(what)
        if ended_by is not None:
            number = whole(ended_by) if ended_by.isdecimal() else getattr(signal, ended_by, None)
            if number is None:
                continue
        yield _exit(
            (line.number,),
            whole(named["code"]) if "code" in named else None,
            number,
            rank=last_rank_prefix(line, len(line.raw)) if message.has_prefix else numbers.get("rank"),
            local_rank=numbers.get("local"),
            pid=numbers.get("pid") or None,
            host=named.get("host", line.host),
            is_out_of_memory=message.is_out_of_memory or what == "Out Of Memory",
            ranks=named["rank"] if "rank" in named and "rank" not in numbers else None,
            reason=message.reason,
        )


def _exits(paste: Paste) -> Iterator[ProcessExit]:
    yield from _ends_in(paste, _Message(_ELASTIC, ("failed (exitcode:",)))
    yield from _blocks(paste)
    for line, match in other_lines(paste).matches(_HYDRA, "RUNNING AT"):
        rank = None if match["rank"] is None else whole(match["rank"])
        for number in range(line.number, min(line.number + 8, len(paste) + 1)):
            if code := _HYDRA_CODE.search(paste.line(number).text):
                value = whole(code["code"] or code["signal"])
                # mpiexec prints the number of a signal as the exit code, too.
                is_signal = code["code"] is None or value in (*_SIGNALS.values(), 4)
                ended_by = (None, value) if is_signal else (value, None)
                yield _exit((line.number, number), *ended_by, rank=rank, pid=whole(match["pid"]), host=match["host"])
                break
    for message in _MESSAGES:
        yield from _ends_in(paste, message)


def _blocks(paste: Paste) -> Iterator[ProcessExit]:
    """Read the summary of torchrun, whose root cause comes last."""
    root = min(other_lines(paste).numbers("Root Cause (first observed failure)"), default=None)
    for number in other_lines(paste).numbers("exitcode  :"):
        fields: dict[str, str] = {}
        for position in range(max(number - 3, 1), min(number + 3, len(paste) + 1)):
            if field := _BLOCK_FIELD.match(paste.line(position).text):
                fields[field["name"]] = field["value"].strip()
        rank = _BLOCK_RANK.match(fields.get("rank", ""))
        code = _BLOCK_CODE.match(fields.get("exitcode", ""))
        if rank and code:
            host = fields.get("host")
            yield _exit(
                (number,),
                whole(code["code"]),
                None,
                rank=whole(rank["rank"]),
                local_rank=whole(rank["local"]),
                pid=whole(code["pid"]),
                host=None if host in (None, "localhost") else host,
                is_first=root is None or number > root,
            )


_LITERALS = (
    *("failed (exitcode:", "exitcode  :", "closing signal SIGTERM", "Root Cause (first observed failure)"),
    *(
        "ChildFailedError",
        "exited on signal",
        "noticed that process rank",
        "srun: error:",
        "slurmstepd: error:",
        "terminated with signal",
    ),
    *("exits with return code =", "BAD TERMINATION OF ONE OF YOUR", "oom_kill event", "OOMKilled", "ORTE", "PMIX"),
    *("pmix", "prterun", "Caught signal", "Fatal Python error", "CANCELLED AT", "Worker exit type:", "PRTE has lost"),
    *("MPI_ABORT was invoked", "exited due to process rank", "non-zero status, thus causing", "exit status of rank"),
    *("died from signal", "flux-shell[", "job.exception ", "PBS: job killed:", "TERM_RUNLIMIT:", "TERM_MEMLIMIT:"),
    *("HYDU_", "HYD_pmci_", "HYD_pmcd_", "HYDT_"),
)


def _find(paste: Paste) -> list[int]:
    return other_lines(paste).numbers(*_LITERALS)


def _see(paste: Paste) -> Seen:
    ends = paste.once(read_process_exits)
    text = "; ".join(f"{end}: {end.how}" for end in ends[:8])
    return Seen(facts={"ended": text} if text else {})


PROCESS_EXITS = TextFormat("launcher messages", _find, _see, "what torchrun, mpirun or srun print when a job fails")
