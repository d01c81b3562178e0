"""Rules for ranks that ended: killed, crashed, or closed their connections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.diagnosis._findings import Rule, TextFinding, first_names, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._nccl_lines import NOT_NAMED, message_of
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
    named = list(dict.fromkeys(str(end) for end in ends if end.is_named))
    hosts = list(dict.fromkeys(end.host for end in ends if end.host))
    if not named and hosts:
        return f"{'processes' if len(ends) > 1 else 'a process'} on {first_names(hosts)}"
    if len(named) > 2 and all(end.rank is not None for end in ends):
        of_host = grouped((end.host, end.rank) for end in ends if end.rank is not None)
        named = [rank_list(ranks) + (f" on {host}" if host else "") for host, ranks in of_host.items()]
    return first_names(named, 6) or "a process"


def _rest(ends: Sequence[ProcessExit], subjects: Sequence[ProcessExit], *, is_cause: bool = False) -> str:
    """Return a sentence about the other processes that ended, from what the text contains about them."""
    others = [end for end in ends if end not in subjects]
    # The launcher sends SIGTERM, and then SIGKILL.
    by_launcher = [end for end in others if end.signal == 15 or (end.signal == 9 and not end.is_first)]
    if alike := [end for end in others if end not in by_launcher]:
        how = ", ".join(dict.fromkeys(end.how for end in alike))
        order = "" if is_cause else ", and not which of them caused the other"
        return f" The text also shows that {_names(alike)} ended ({how}){order}."
    if by_launcher:
        return f" The launcher then ended {_names(by_launcher)}."
    return " Errors of other ranks after it usually follow from it." if len(subjects) == 1 else ""


@rule("rank-killed", "A process was killed by a signal", source=_ELASTIC, causes=("rank-died", "nccl-timeout"))
def rank_killed(paste: Paste) -> Iterator[TextFinding]:
    """Look for processes that ended by SIGKILL. Those that the launcher ends afterwards are not affected."""
    all_ends = paste.once(read_process_exits)
    ends = [end for end in all_ends if end.signal == 9 and end.is_first]
    if not ends:
        return
    memory = any(end.is_out_of_memory for end in ends)
    named = [end for end in ends if end.is_named] or ends
    # An invalid access ends one process, and the launcher then kills the others. An abort may follow from a kill.
    crashed = [end for end in all_ends if end.signal in _CRASHES and end.signal != 6]
    pronoun = "They" if len(named) > 1 or named[0].ranks else "It"
    why = (
        f"The kernel, or the limit of the container, killed {'it' if pronoun == 'It' else 'them'} because memory of "
        "the host ran out. This is not GPU memory."
        if memory
        else f"{pronoun} ended by signal 9 (SIGKILL). Launchers send it to the ranks that remain after one failed, and "
        "the text shows one that did."
        if crashed
        else f"{pronoun} ended by signal 9 (SIGKILL). Usually the kernel sends it because memory of the host, not of "
        "the GPU, runs out; the text does not show who sent it."
    )
    yield rank_killed.finding(
        "info" if crashed and not memory else "error",
        _names(named),
        why + _rest(all_ends, ends, is_cause=memory),
        "On that host, run dmesg -T | grep -i -E 'killed process|oom', or ask the scheduler for the memory of the step "
        "(sacct -o MaxRSS). Then load the model on one rank at a time, use fewer data workers, or ask for more memory.",
        [line for end in ends for line in end.lines],
    )


@rule("rank-died", "A process of the job ended", source=_ELASTIC, causes=("nccl-timeout",))
def rank_died(paste: Paste) -> Iterator[TextFinding]:
    """Look for processes that crashed, and for connections that a rank closed by ending.

    A process that its watchdog aborts after a timeout did not crash.
    """
    log = paste.once(read_torch_log)
    ends = paste.once(read_process_exits)
    aborts_itself = bool(log.timeouts) or bool(other_lines(paste).numbers("watchdog thread terminated with exception"))
    crashed = [end for end in ends if end.signal in _CRASHES and not (end.signal == 6 and aborts_itself)]
    by_signal = grouped((end.signal, end) for end in crashed)
    # A process that torchrun noticed later may have ended in the same way for the same reason.
    first_signals = dict.fromkeys(end.signal for end in crashed if end.is_first)
    for number in first_signals:
        assert number is not None  # _CRASHES has only numbers
        same = by_signal[number]
        yield rank_died.finding(
            "error",
            _names(same),
            _crash_text(number, same) + _rest(ends, same),
            "Read the log of each of them above this line, and find which failed first. "
            if len(same) > 1
            else "Read the log of this rank above this line, and get its stack: PYTHONFAULTHANDLER=1, or a core dump "
            "(ulimit -c unlimited).",
            [line for end in same for line in end.lines],
        )
    killed = any(end.signal == 9 for end in ends)
    if not first_signals and not killed:
        yield from _lost_by_ray(paste)
    if not first_signals and not killed and not log.timeouts:
        yield from _closed_connections(paste)
        yield from _closed_store(paste)
        yield from _closed_gloo(paste)


def _crash_text(number: int, same: Sequence[ProcessExit]) -> str:
    """Return what it means that processes ended by a signal."""
    if len(same) == 1 and same[0].ranks is None:
        return f"It ended by {signal_name(number)} ({_CRASHES[number]})."
    text = f"They ended by {signal_name(number)} ({_CRASHES[number]}), so none of these lines shows the cause."
    if number == 6:
        text += " PyTorch's watchdog aborts each rank like this after a timeout or an error of NCCL."
    if any(not end.is_first for end in same):
        text += " The first observed failure is the one that the launcher noticed first."
    return text


_RAY_LOST = (
    "Worker exit type: SYSTEM_ERROR",
    "worker died or was killed while executing a task by an unexpected system",
)
_RAY_HOST = re.compile(r"Worker IP address: ?(?P<host>[\da-fA-F.:]+)|\bip(?:=|: )(?P<ip>[\d.]+)")
_RAY_PID = re.compile(r"Worker PID: ?(?P<pid>\d+)")
_RAY_NODE = re.compile(
    r"The node with (?:node|client) (?:id|ID):? ?\w+(?: and (?:address|ip): (?P<node>\S+))?.{0,200} has been marked "
    r"dead"
)
_RAY_ACTOR = re.compile(r"(?:^|\s)(?P<name>pid|ip): (?P<value>[\d.]+)\s*$")


def _lost_by_ray(paste: Paste) -> Iterator[TextFinding]:
    """Find workers whose process Ray lost. Terminals wrap its long line, and an actor's fields are on lines before."""
    workers: dict[str, None] = {}
    pids: set[str] = set()
    lines = other_lines(paste).find(*_RAY_LOST)
    for line in lines:
        after = "".join(paste.line(number).raw for number in range(line.number, min(line.number + 4, len(paste) + 1)))
        host, pid = _RAY_HOST.search(line.raw) or _RAY_HOST.search(after), _RAY_PID.search(after)
        before = (paste.line(number).text for number in range(max(line.number - 7, 1), line.number))
        fields = {match["name"]: match["value"] for text in before if (match := _RAY_ACTOR.search(text))}
        address = (host["host"] or host["ip"]) if host else fields.get("ip")
        number = pid["pid"] if pid else fields.get("pid")
        if (address or number) and not (number and number in pids):
            pids.add(number or "")
            workers[
                (f" (pid {number})" if number else "") + (f" on {address}" if address and address != "0.0.0.0" else "")
            ] = None
    dead = other_lines(paste).matches(_RAY_NODE, "has been marked dead")
    if dead:
        hosts = list(dict.fromkeys(match["node"] for _, match in dead if match["node"]))
        yield rank_died.finding(
            "error",
            "; ".join(f"the host {host} of Ray" for host in hosts[:6]) or "a host of Ray",
            "Ray got no heartbeats from this host: its raylet ended, or the host or the network is too slow. Its "
            "workers are lost with it.",
            "Look whether the host, its pod and its raylet still run, and why they ended (dmesg -T, kubectl describe "
            "pod).",
            [line for line, _ in dead],
        )
    if lines:
        yield rank_died.finding(
            "error",
            "; ".join(f"a worker of Ray{worker}" for worker in list(workers)[:6]) or "a worker of Ray",
            "Ray lost the process of a worker: it crashed, or was killed, usually because memory of the host ran out.",
            "Read the worker's own file under /tmp/ray/session_latest/logs (worker-*.err), and run dmesg -T | grep -i "
            "-E 'killed process|oom' on its host.",
            lines,
        )


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


_GLOO_CLOSED = re.compile(
    r"pair\.cc:\d+\] (?:Connection closed by peer \[(?P<peer>[^\]]+)\]"
    r"|(?:Read|Write|writev|Send) error \[(?P<other>[^\]]+)\]:\d+: (?:Connection reset by peer|Broken pipe))"
)


def _closed_gloo(paste: Paste) -> Iterator[TextFinding]:
    """Find ranks whose connection of Gloo, which connects the CPUs, the other side closed."""
    matches = other_lines(paste).matches(_GLOO_CLOSED, "pair.cc:")
    if not matches or paste.numbers(*_OTHER_CAUSES):
        return
    peers = list(dict.fromkeys(match["peer"] or match["other"] for _, match in matches))
    yield rank_died.finding(
        "warning",
        f"a rank on {', '.join(peers[:6])}",
        f"Gloo, which connects the CPUs of the ranks, lost its connection to {', '.join(peers[:6])}: a process there "
        "ended, or the network between them broke. These lines do not show which.",
        "Read the logs of the other ranks: the one that ended first has the cause (an exception, a kill for lack of "
        "memory).",
        [line for line, _ in matches],
    )


@rule("worker-exited", "A worker ended with an error of its own", source=_ELASTIC)
def worker_exited(paste: Paste) -> Iterator[TextFinding]:
    """Look for workers with an exit code, which have printed their error themselves."""
    if ends := [end for end in paste.once(read_process_exits) if (end.code or end.reason) and end.is_first]:
        how = ", ".join(dict.fromkeys(end.how for end in ends))
        pronoun = "They" if len(ends) > 1 or ends[0].ranks else "It"
        yield worker_exited.finding(
            "info",
            _names(ends),
            f"{pronoun} ended with {how}, usually after an exception; this line is not the cause.",
            "Read the first traceback of this rank. If there is none, start with torchrun --redirects 3 --log-dir "
            "FOLDER, or decorate main with torch.distributed.elastic.multiprocessing.errors.record.",
            [line for end in ends for line in end.lines],
        )
    for literals, subject, do in _REPORTERS:
        if lines := other_lines(paste).find(*literals):
            yield worker_exited.finding(
                "info",
                subject,
                "These lines only report that a process failed, and are not the cause.",
                do,
                lines,
                title="A process reports the failure of another one",
            )


# What the parent of the processes prints, the process that it means, and where the cause is.
_REPORTERS = (
    (
        (
            *(
                "WorkerProc initialization failed due to an exception in a background process",
                "EngineCore failed to start",
            ),
            *("Engine core initialization failed. See root cause above", "EngineCore encountered a fatal error"),
            "EngineDeadError",
        ),
        "a worker of vLLM",
        "Read upwards to the first traceback of a worker (VllmWorker, Worker_TP, RayWorkerWrapper): its last line is "
        "the cause. If the text has none, paste the part before.",
    ),
    (
        ("Horovod has been shut down. This ",),
        "another rank of Horovod",
        "Read the logs of all ranks for the first exception before the first of these lines.",
    ),
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
    yield from _ended_by_scheduler(paste)
    if lines:
        failed = any(end.signal != 15 for end in paste.once(read_process_exits))
        yield ended_by_launcher.finding(
            "normal",
            _others(ends),
            "The launcher ends the remaining ranks by SIGTERM "
            + (
                "because it received SIGTERM itself."
                if terminated
                else "after another one failed. Their SIGTERM is not the cause."
                if failed
                else "after one failed, or if it is ended itself. The text does not show which, and SIGTERM is not the "
                "cause."
            ),
            lines=lines,
        )


_CANCELLED = re.compile(
    r"\*\*\* (?P<what>STEP|JOB) (?P<id>\S+) ON (?P<nodes>\S+) CANCELLED AT \S+ DUE TO (?P<why>TIME LIMIT|"
    r"NODE FAILURE|PREEMPTION)"
)
_CANCELLED_BY = re.compile(
    r"\*\*\* (?P<what>STEP|JOB) (?P<id>\S+) ON (?P<nodes>\S+) CANCELLED AT [\d:TZ+-]+(?: DUE TO (?P<why>SIGNAL \w+))? "
    r"\*\*\*"
)
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (?P<node>[\w.,\[\]-]+)")
_LIMIT = re.compile(r"(?:=>> PBS: job killed: |TERM_)(?P<text>(?P<what>v?mem|walltime|cput|MEMLIMIT|RUNLIMIT)\b.*)")


def _ended_by_scheduler(paste: Paste) -> Iterator[TextFinding]:
    """Find the reason for which Slurm, PBS or LSF ended a job."""
    failures = other_lines(paste).matches(_NODE_FAILURE, "srun: error: Node failure on")
    failed = ", ".join(dict.fromkeys(match["node"] for _, match in failures))
    cancelled = other_lines(paste).matches(_CANCELLED, "CANCELLED AT")
    for line, match in cancelled:
        step = f"{match['what'].lower()} {match['id']}"
        is_node = match["why"] == "NODE FAILURE"
        do = "Start it again, and write checkpoints in time (--signal=B:USR1@300), or use another partition."
        if is_node:
            do = "Find the host that failed (sinfo -R, scontrol show node), and start again without it."
        elif match["why"] == "TIME LIMIT":
            do = "Ask for more time (--time), or write checkpoints in time (--signal=B:USR1@300)."
        yield ended_by_launcher.finding(
            "error",
            f"{failed}, {step}" if is_node and failed else f"{step} on {match['nodes']}",
            f"Slurm ended the job: {match['why'].lower()}. What the ranks print after this follows from it."
            + (f" {match['nodes']} is the first host of the step, whichever failed." if is_node else ""),
            do,
            [line, *(failure for failure, _ in failures if is_node)],
        )
    if failures and not cancelled:
        yield ended_by_launcher.finding(
            "error",
            failed,
            "Slurm lost this host while the job ran, and ends the job.",
            "Look at the host (sinfo -R, scontrol show node), and start again without it.",
            [line for line, _ in failures],
        )
    if not cancelled and not failures:
        yield from _cancelled_without_reason(paste)
    for line, match in other_lines(paste).matches(_LIMIT, "PBS: job killed:", "TERM_"):
        is_memory = "mem" in match["what"].lower()
        by = "PBS" if "=>>" in match[0] else "LSF"
        limit = match["text"].strip().rstrip(".")
        yield ended_by_launcher.finding(
            "error",
            f"the job, limit of {'memory' if is_memory else 'time'}",
            f"{by} ended the job: {limit}. What the ranks print after this follows from it.",
            "Ask for more memory." if is_memory else "Ask for more time, or write checkpoints in time.",
            [line],
        )


def _cancelled_without_reason(paste: Paste) -> Iterator[TextFinding]:
    """Find steps of Slurm that were cancelled by a person, by scancel, or by srun after one of its tasks failed."""
    matches = other_lines(paste).matches(_CANCELLED_BY, "CANCELLED AT")
    if not matches:
        return
    steps = dict.fromkeys(f"{match['what'].lower()} {match['id']} on {match['nodes']}" for _, match in matches)
    failed = [end for end in paste.once(read_process_exits) if end.signal != 15 and (end.signal or end.code)]
    yield ended_by_launcher.finding(
        "normal" if failed else "info",
        "; ".join(list(steps)[:4]),
        "Slurm ended the step, and the line names no reason, such as a time limit: somebody cancelled it, or srun did "
        "after a task of it failed." + (" The text shows a task that failed." if failed else ""),
        ""
        if failed
        else "Ask for the reason (sacct -j ID -o JobID,State,ExitCode,Reason), and look in the log above "
        "for the first task that failed.",
        [line for line, _ in matches],
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
    may_have_ended = not failed and not paste.numbers("Traceback (most recent", "ChildFailedError", "Error: ")
    yield rank_died.finding(
        "warning" if failed else "info",
        "rank 0, which holds the store" + (f", on {', '.join(hosts)}" if hosts else ""),
        "The connection to the store closed, so the process that holds it had ended: that of rank 0, or torchrun on "
        "its host." + (" At the regular end of a job, this is harmless." if may_have_ended else ""),
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
        message = message_of(line)
        place = f"GPU {gpu['gpu']}" if gpu else ""
        if message.device is not None and message.pid is None:
            rank = message.rank  # the number in brackets is the device, where the host was cut
        if message.device is not None:
            place = f"{message.host or ''} GPU {message.device}".strip()
        where = ", ".join(text for text in ("" if rank is None else f"rank {rank}", place) if text)
        tried = _AMOUNT.search(near)
        amount = amount or (tried["amount"] if tried else "")
        ranks.setdefault(where or message.host or NOT_NAMED, []).append(line.number)
    if ranks:
        who = list(ranks)
        yield oom_rank.finding(
            "error",
            "; ".join(who[:8]),
            "An allocation of GPU memory failed"
            + (f" ({amount})" if amount else "")
            + ". Unless the program catches it, the rank ends, and others lose their connections or wait for it.",
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
