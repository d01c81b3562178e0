"""Rules for ranks that ended: killed, crashed, or closed their connections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._process_exits import ProcessExit, read_process_exits, signal_name
from meshlab.diagnosis.formats._torch_lines import last_rank_prefix, read_torch_log

_ELASTIC = "pytorch/torch/distributed/elastic/multiprocessing/api.py"

_CRASHES = {
    4: "an instruction that the CPU does not have",
    6: "the program aborted itself",
    7: "a page of memory could not be provided, which usually means that /dev/shm is full",
    8: "an arithmetic error",
    11: "an invalid memory access",
}


def _names(ends: Sequence[ProcessExit]) -> str:
    """Return ranks and processes in words. Processes of which only the host is known are one item."""
    named = [str(end) for end in ends if end.rank is not None or end.local_rank is not None or end.pid is not None]
    hosts = list(dict.fromkeys(end.host for end in ends if end.host))
    if not named and hosts:
        names = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
        return f"{'processes' if len(ends) > 1 else 'a process'} on {names}"
    return ", ".join(list(dict.fromkeys(named))[:6]) or "a process"


@rule("rank-killed", "A process was killed by a signal", source=_ELASTIC, causes=("rank-died", "nccl-timeout"))
def rank_killed(paste: Paste) -> Iterator[TextFinding]:
    """Look for processes that ended by SIGKILL. Those that the launcher ends afterwards are not affected."""
    ends = [end for end in paste.once(read_process_exits) if end.signal == 9 and end.is_first]
    if not ends:
        return
    memory = any(end.is_out_of_memory for end in ends)
    named = [end for end in ends if end.rank is not None or end.local_rank is not None or end.pid is not None] or ends
    why = (
        "The kernel, or the limit of the container, killed it because memory of the host ran out."
        if memory
        else "It ended by signal 9 (SIGKILL), which no library of the job sends. Usually the kernel kills a process "
        "because the host runs out of memory; the text does not say who did it."
    )
    yield rank_killed.finding(
        "error",
        _names(named),
        f"{why} It is not GPU memory, and the other ranks only ended with it.",
        "On that host, run dmesg -T | grep -i -E 'killed process|oom', or ask the scheduler for the memory of the step "
        "(sacct -o MaxRSS). Then load the model on one rank at a time, use fewer data workers, or ask for more memory.",
        [line for end in ends for line in end.lines],
    )


@rule("rank-died", "A process ended, and the others noticed", source=_ELASTIC, causes=("nccl-timeout",))
def rank_died(paste: Paste) -> Iterator[TextFinding]:
    """Look for processes that crashed, and for connections that a rank closed by ending.

    A process that its watchdog aborts after a timeout did not crash.
    """
    log = paste.once(read_torch_log)
    ends = paste.once(read_process_exits)
    aborts_itself = bool(log.timeouts) or bool(other_lines(paste).numbers("watchdog thread terminated with exception"))
    crashed = [
        end for end in ends if end.signal in _CRASHES and end.is_first and not (end.signal == 6 and aborts_itself)
    ]
    for crash in crashed[:6]:
        assert crash.signal is not None  # _CRASHES has only numbers
        yield rank_died.finding(
            "error",
            str(crash),
            f"It ended by {signal_name(crash.signal)} ({_CRASHES[crash.signal]}); the other ranks only ended with it.",
            "Read the log of this rank above this line, and get its stack: PYTHONFAULTHANDLER=1, or a core dump "
            "(ulimit -c unlimited).",
            crash.lines,
        )
    lost = other_lines(paste).find(
        "Worker exit type: SYSTEM_ERROR", "worker died or was killed while executing a task by an unexpected system"
    )
    if lost and not crashed and not any(end.signal == 9 for end in ends):
        hosts = dict.fromkeys(
            match[1] for line in lost if (match := re.search(r"\bip(?:=|: )([\d.]+)", line.raw)) is not None
        )
        yield rank_died.finding(
            "error",
            "a worker of Ray" + (f" on {', '.join(hosts)}" if hosts else ""),
            "Ray lost the process of a worker: it crashed, or was killed, usually because memory of the host ran out.",
            "Read the worker's own file under /tmp/ray/session_latest/logs (worker-*.err), and run dmesg -T | grep -i "
            "-E 'killed process|oom' on its host.",
            lost,
        )
    if not crashed and not any(end.signal == 9 for end in ends) and not log.timeouts:
        yield from _closed_connections(paste)
        yield from _closed_store(paste)


_CLOSED = re.compile(
    r"Connection closed by remote peer (?P<peer>\S+?)<"
    r"|Call to recv from (?P<other>\S+?)<\d+> failed ?: (?:Connection reset by peer|Broken pipe)"
)
_OTHER_CAUSES = (
    *("NCCL WARN", "Got completion", "No space left", "failed to extend", "posix_fallocate", "out of memory"),
    *("OutOfMemoryError", "uncorrectable", "CUDA error", "Duplicate GPU", "has timed out after", "connectFullMesh"),
    "Xid",
)


def _closed_connections(paste: Paste) -> Iterator[TextFinding]:
    """Find ranks that only report that another one closed its connection, if the text has no other cause."""
    if other_lines(paste).numbers("ncclRemoteError", "NCCL error in:", "NCCL error:"):
        matches = other_lines(paste).matches(_CLOSED, "Connection closed by remote peer", "Call to recv from")
        peers = list(dict.fromkeys(match["peer"] or match["other"] for _, match in matches))
        if peers and not paste.numbers(*_OTHER_CAUSES):
            yield rank_died.finding(
                "warning",
                f"a rank on {', '.join(peers[:6])}",
                f"The rank that prints this lost its connection to {', '.join(peers[:6])}: a process there ended, or "
                "the network between them broke. Its own lines do not show which.",
                "Read the log of the rank on that host: its last lines before this time show why it ended.",
                [line for line, _ in matches],
            )


@rule("worker-exited", "A worker ended with an error of its own", source=_ELASTIC)
def worker_exited(paste: Paste) -> Iterator[TextFinding]:
    """Look for workers with an exit code, which have printed their error themselves."""
    if ends := [end for end in paste.once(read_process_exits) if end.code and end.is_first]:
        yield worker_exited.finding(
            "info",
            _names(ends),
            f"It ended with exit code {ends[0].code}, so it raised an exception; this line is not the cause.",
            "Read the first traceback of this rank. If there is none, start with torchrun --redirects 3 --log-dir "
            "FOLDER, or decorate main with torch.distributed.elastic.multiprocessing.errors.record.",
            [line for end in ends for line in end.lines],
        )


@rule(
    "ended-by-launcher",
    "Processes that the launcher or the scheduler ended",
    source=(_ELASTIC, "slurm/src/slurmd/slurmstepd/req.c"),
    causes=("rank-killed", "rank-died", "worker-exited"),
)
def ended_by_launcher(paste: Paste) -> Iterator[TextFinding]:
    """Look for SIGTERM, by which a launcher ends the other ranks, or a scheduler ends the launcher."""
    ends = [end for end in paste.once(read_process_exits) if end.signal == 15]
    lines = [
        *other_lines(paste).numbers("closing signal SIGTERM", "Killing subprocess"),
        *(line for end in ends for line in end.lines),
    ]
    terminated = other_lines(paste).find(
        "Received 15 death signal", "got signal: 15", "Received Signals.SIGTERM death signal"
    )
    if terminated:
        yield ended_by_launcher.finding(
            "info",
            "the launcher",
            "The launcher itself received SIGTERM: from the scheduler (time limit, preemption), or from a person.",
            "If nobody ended the job, look for its time limit (scontrol show job ID, sacct).",
            [line.number for line in terminated],
        )
    for line, match in other_lines(paste).matches(_CANCELLED, "CANCELLED AT"):
        yield ended_by_launcher.finding(
            "error",
            f"{match['what'].lower()} {match['id']} on {match['nodes']}",
            f"Slurm ended the job: {match['why'].lower()}. What the ranks print after this follows from it.",
            "Ask for more time (--time), or write checkpoints in time (--signal=B:USR1@300)."
            if match["why"] == "TIME LIMIT"
            else "Look at these hosts (sinfo -R, scontrol show node), and start again without them.",
            [line],
        )
    if lines:
        yield ended_by_launcher.finding(
            "normal",
            _others(ends),
            "The launcher ends the remaining ranks by SIGTERM after the first one failed. They did not fail.",
            lines=lines,
        )


_CANCELLED = re.compile(
    r"\*\*\* (?P<what>STEP|JOB) (?P<id>\S+) ON (?P<nodes>\S+) CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT|"
    r"NODE FAILURE|PREEMPTION)"
)


def _others(ends: list[ProcessExit]) -> str:
    return ", ".join(str(end) for end in ends[:6]) or "the remaining ranks"


_STORE = re.compile(
    r"(?:sendBytes|recvBytes|recvVector|recvValue\w*) failed on SocketImpl\(.*remote=\[(?P<host>[^\]]+)\]:\d+"
    r"|store->get\('[^']*'\) got error: (?P<error>Connection reset by peer|Broken pipe|failed to recv, got 0 bytes)"
)


def _closed_store(paste: Paste) -> Iterator[TextFinding]:
    """Find ranks that lost the store, which lives in the process of rank 0. At the end of a job, this is harmless."""
    matches = other_lines(paste).matches(_STORE, "failed on SocketImpl", "store->get(")
    if not matches or paste.numbers(*_OTHER_CAUSES):
        return
    hosts = list(dict.fromkeys(match["host"] for _, match in matches if match["host"]))
    failed = any(match["error"] for _, match in matches)
    yield rank_died.finding(
        "warning" if failed else "info",
        "rank 0, which holds the store" + (f", on {', '.join(hosts)}" if hosts else ""),
        "The connection to the store closed, so the process of rank 0 had ended."
        + (" At the regular end of a job, this is harmless." if not failed else ""),
        "Read the log of rank 0: its last lines before this time show why it ended.",
        [line for line, _ in matches],
    )


_MEMORY = re.compile(
    r"(?:torch\.(?:cuda\.)?OutOfMemoryError|RuntimeError|OutOfMemoryError): (?:CUDA|HIP) out of memory"
    r"|(?:CUDA|HIP) error: out of memory|Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:c|m)alloc"
    r"|(?<![\w.])(?:CUDA|HIP) out of memory\. Tried to allocate"
)
_AMOUNT = re.compile(r"Tried to allocate (?P<amount>[\d.]+ [KMGTPE]i?B)")
_GPU = re.compile(r"GPU (?P<gpu>\d+)(?:;| has a total)")


@rule(
    "oom-rank",
    "A rank has no GPU memory left",
    source="pytorch/c10/cuda/CUDACachingAllocator.cpp",
    causes=("rank-died", "worker-exited", "nccl-timeout"),
)
def oom_rank(paste: Paste) -> Iterator[TextFinding]:
    """Look for a failed allocation of GPU memory, of PyTorch or of NCCL.

    An allocation of exabytes is a size that never arrived because a collective failed before.
    """
    ranks: dict[str, list[int]] = {}
    amount = ""
    for line, _ in other_lines(paste).matches(_MEMORY, "out of memory", "Failed to CUDA"):
        if re.search(r"nvls|NVLink SHARP|[Mm]ulticast|more than 1EB|oom-kill|cgroup", line.text):
            continue
        # PyTorch names the amount and the GPU in the sentences after the first one, which a terminal may have wrapped.
        near = " ".join(paste.line(number).text for number in range(line.number, min(line.number + 3, len(paste) + 1)))
        rank = last_rank_prefix(line, len(line.raw))
        gpu = _GPU.search(near)
        frame = re.match(r"(?P<host>[\w.-]+):\d+:\d+ \[(?P<gpu>-?\d+)\]", line.text)
        where = "" if rank is None else f"rank {rank}"
        if frame:
            where = (f"{where}, " if where else "") + f"{frame['host']} GPU {frame['gpu']}"
        elif gpu:
            where = (f"{where}, " if where else "") + f"GPU {gpu['gpu']}"
        tried = _AMOUNT.search(near)
        amount = amount or (tried["amount"] if tried else "")
        ranks.setdefault(where or line.host or "the rank that prints it", []).append(line.number)
    if ranks:
        who = list(ranks)
        yield oom_rank.finding(
            "error",
            "; ".join(who[:8]),
            "An allocation of GPU memory failed"
            + (f" ({amount})" if amount else "")
            + ", so this rank ended; other ranks then lose their connections or wait for it.",
            "Use a smaller batch or shard more of the model, and check with nvidia-smi whether another process uses "
            "this GPU. If the failing call is NCCL's, leave memory for its buffers, or lower NCCL_BUFFSIZE or "
            "NCCL_MAX_NCHANNELS.",
            [number for numbers in ranks.values() for number in numbers],
        )
    if odd := other_lines(paste).find("more than 1EB memory"):
        yield oom_rank.finding(
            "normal",
            "an allocation of exabytes",
            "This is not a lack of memory: the size of the tensor came from a collective that failed before.",
            lines=odd,
        )


ENDED_RANK_RULES: tuple[Rule, ...] = (rank_killed, oom_rank, rank_died, worker_exited, ended_by_launcher)
