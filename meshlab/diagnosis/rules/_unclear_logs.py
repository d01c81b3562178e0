"""Rules for logs that are not wrong but show less than they seem to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_lines import affected, messages, read_last_errors
from meshlab.diagnosis.formats._nccl_tests_starts import read_test_starts

_ALONE = re.compile(r"(?<![\w.-])(?P<host>[\w.-]+):(?P<pid>\d+):\d+ .*\brank 0 n[rR]anks 1 ")


@rule("communicator-of-one", "A communicator of one rank", source="NVIDIA/nccl#1267")
def communicator_of_one(paste: Paste) -> Iterator[TextFinding]:
    """Look for communicators with nranks 1, which move nothing. They are normal for an axis of size 1."""
    if not (matches := paste.matches(_ALONE, "nranks 1 ", "nRanks 1 ")):
        return
    larger = re.compile(r"\bn[rR]anks (?!1 )\d+")
    has_larger = any(True for _ in paste.matches(larger, " nranks ", " nRanks "))
    processes = {(match["host"], match["pid"]) for _, match in matches}
    hosts = dict.fromkeys(match["host"] for _, match in matches)
    yield communicator_of_one.finding(
        "info",
        f"{', '.join(hosts)}, rank 0" + (f" of {len(processes)} processes" if len(processes) > 1 else ""),
        "A communicator has one rank only, so nothing is transferred."
        + (
            " The text has larger ones too, so it may be an axis of size 1."
            if has_larger
            else " If the job should have more ranks, each process thinks that it is alone: the world size did not "
            "reach it."
        ),
        "Check WORLD_SIZE and RANK in each process, and --nnodes, --nproc-per-node and the rendezvous of torchrun."
        if not has_larger
        else "",
        [line for line, _ in matches],
    )


_LATER = ("Using network", "Init START", "NCCL WARN", "Connected all", " via ", "Trees [", "comm 0x", "nranks")
_TROUBLE = ("ailure", "ailed", "rror")


@rule("log-ends-early", "The text stops before anything went wrong", source="NVIDIA/nccl-tests#244")
def log_ends_early(paste: Paste) -> Iterator[TextFinding]:
    """Look for a log of NCCL that ends right after the bootstrap, without an error."""
    if any(mark in paste.text for mark in _LATER):
        return
    lines = messages(paste, "Bootstrap : Using", "Bootstrap: Using")
    starts = [item for item in lines if item.level and item.pid is not None]
    # "Plugin load returned 2: … No such file" is how NCCL says that there is no plugin.
    trouble = [line for line in paste.find(*_TROUBLE) if "NET/Plugin" not in line.text and "PROFILER/" not in line.text]
    if not starts or trouble:
        return
    devices = [device for start in paste.once(read_test_starts) for device in start.devices]
    hosts = dict.fromkeys(item.host for item in starts if item.host is not None)
    yield log_ends_early.finding(
        "info",
        rank_list(device.rank for device in devices) if devices else ", ".join(hosts),
        "The text ends right after the bootstrap. Nothing in it is an error, so it does not show where the job stops.",
        'Paste the lines up to "Init COMPLETE" or the first NCCL WARN, of all ranks (NCCL_DEBUG=INFO).',
        [item.line for item in starts],
    )


_FAILED = re.compile(
    r"(?P<what>unhandled system error|unhandled cuda error|internal error - please report|remote process exited or "
    r"there was a network error|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError"
    r"|(?<=failed: )invalid (?:usage|argument)|(?<=NCCL Error 5: )invalid usage|(?<=')invalid usage(?= ?[/'(])"
    r"|invalid (?:usage|argument)(?=, NCCL version)"
    r"|(?<=NCCL INFO )(?:\S*/)?(?:group|init|enqueue)\.(?:cc|cu):\d+(?: \(\w+\))? -> [1-6]\b)"
)
_CAUSES = (
    *("NCCL WARN", "Watchdog caught", "out of memory", "OutOfMemory", "Too many open files", "CUDA error"),
    *("Test CUDA failure", "exceeds device/fn maxSharedMem", "Xid", "exited on signal", "failed (exitcode: -"),
    "Unable to load NCCL library",
)
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?:: (?P<text>.*)|$)")
# Exceptions that only report another one, or NCCL's failure.
_REPORTS = re.compile(
    r"nccl|ChildFailedError|HorovodInternalError|initialization failed|ProcessRaisedException|RayTaskError|failed core",
    re.IGNORECASE,
)


def _has_other_exception(paste: Paste) -> bool:
    """Return whether an exception of the program, rather than one about NCCL, may be the cause."""
    matches = other_lines(paste).matches(_EXCEPTION, "Error", "Exception", "Interrupt")
    return any(_REPORTS.search(line.text) is None for line, _ in matches)


@rule("warning-missing", "NCCL failed, and its warning is not in the text", source="NVIDIA/nccl/src/debug.cc")
def warning_missing(paste: Paste) -> Iterator[TextFinding]:
    """Look for a failure of NCCL without the warning that says why. The name of the error is too general."""
    matches = other_lines(paste).matches(
        _FAILED,
        *("unhandled ", "internal error", "remote process exited", "ncclSystem", "ncclInternal", "ncclRemote"),
        *("invalid usage", "invalid argument"),
    ) or paste.matches(_FAILED, "group.cc:", "init.cc:", "enqueue.cc:", "group.cu:", "init.cu:", "enqueue.cu:")
    if not matches or any(mark in paste.text for mark in _CAUSES) or paste.once(read_last_errors):
        return
    if _has_other_exception(paste):
        return
    hosts = dict.fromkeys(match[1] for line, _ in matches if (match := re.match(r"([\w.-]+): Test NCCL", line.text)))
    yield warning_missing.finding(
        "warning",
        ", ".join(hosts) or affected(paste, [line for line, _ in matches]),
        f'NCCL failed with "{matches[0][1]["what"]}", which names only the kind of the error. The warning that says '
        "what happened is not in the text."
        + (" Often two ranks use the same GPU." if "invalid usage" in matches[0][1]["what"] else ""),
        "Run again with NCCL_DEBUG=WARN (INFO for all details), and paste the first NCCL WARN line of each rank.",
        [line for line, _ in matches],
    )


UNCLEAR_LOG_RULES: tuple[Rule, ...] = (communicator_of_one, log_ends_early, warning_missing)
