"""Rules for memory that processes of one host share: ``/dev/shm`` and CUDA's host allocations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._nccl_lines import affected, message_of, messages
from meshlab.diagnosis.rules._line_rules import (
    LineRule,
    Lines,
    cuda_failures,
    hosts_of_variables,
    matching,
    rules_of,
    variable_is,
    warnings_matching,
)

_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_SHM = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory"
_SHMUTILS = "NCCL src/misc/shmutils.cc (2.4 to 2.30)"

_ENLARGE = (
    "Give the container more shared memory: docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with "
    "medium: Memory mounted at /dev/shm. Check with df -h /dev/shm, and remove stale files (rm /dev/shm/nccl-*) if no "
    "job runs."
)

_EXTEND = re.compile(r"failed to extend (?P<path>/dev/shm/\S*) to (?P<size>\d+) bytes(?:, error: (?P<error>[^(]+))?")
_CREATE = re.compile(
    r"Error while creating shared memory segment (?P<path>\S*) \(size (?P<size>\d+)\)(?:, error: (?P<error>[^(]+))?"
)
_REFUSED = re.compile(
    r"Error while creating shared memory segment \S* \(size \d+\), "
    r"error: (?P<error>(?:Permission|Read-only|No such file|Operation not)[^(]*)"
)
_ATTACH = re.compile(
    r"Error while attaching to shared memory segment (?P<path>.*?) ?\(size (?P<size>-?\d+)\)"
    r"(?:, error: (?P<error>[^(]+))?"
)
_NAME = re.compile(r"/dev/shm/nccl-\w{6}$|/dev/shm/nccl-[\w.-]{3,}$|/dev/shm/\w+$")
_NO_SPACE = "No space left on device"


@rule(
    "shm-too-small",
    "/dev/shm is full or too small",
    source=(_SHM, _SHMUTILS),
    causes=("rank-died", "net-unreachable", "rank-killed"),
)
def shm_too_small(paste: Paste) -> Iterator[TextFinding]:
    """A segment in ``/dev/shm`` could not be created or filled, or a bus error ended a process while NCCL connected."""
    segments: list[tuple[PasteLine, int]] = []
    failed = paste.matches(_EXTEND, "failed to extend ") + paste.matches(_CREATE, "Error while creating shared memory")
    for line, match in failed:
        error = (match["error"] or "").strip()
        if not error or error.startswith((_NO_SPACE, "Success", "Cannot allocate", "Disk quota")):
            segments.append((line, whole(match["size"])))
    lines = [line for line, _ in segments]
    calls = paste.find("posix_fallocate failed", "Call to fallocate failed", "insufficient shared memory (shm)")
    lines += [line for line in calls if "shm" in line.text or _NO_SPACE in line.text]
    lines += [line for line in paste.find("/dev/shm") if _NO_SPACE in line.text]
    if lines:
        size = max((number for _, number in segments), default=0)
        what = f" A segment of {size / 1e6:.1f} MB could not be made." if size else ""
        yield shm_too_small.finding(
            "error",
            f"{affected(paste, lines)}, /dev/shm".lstrip(", "),
            f"/dev/shm is full.{what} Broken sockets and aborts of other ranks that follow are consequences.",
            _ENLARGE,
            lines,
        )
        return
    crashed = [
        line
        for line in paste.find("Bus error", "SIGBUS")
        if re.search(
            r"Signal: Bus error|Bus error \(|SIGBUS|signal 7\b|exit(?:ed)? on signal 7|Bus error$|signal: Bus error",
            line.text,
        )
    ]
    loaders = [line for line in crashed if "DataLoader worker" in line.text]  # its queues are in /dev/shm
    if loaders and not paste.numbers(" NCCL "):
        yield shm_too_small.finding(
            "error",
            f"{affected(paste, loaders)}, /dev/shm".lstrip(", "),
            "A worker of a data loader died of a bus error: it hands its batches over in /dev/shm, which is full.",
            f"{_ENLARGE} Or use fewer workers (num_workers).",
            loaders,
        )
    elif crashed and paste.numbers(" NCCL ", "/dev/shm", "nccl"):
        item = message_of(crashed[0])
        who = f"{item.host}, pid {item.pid}" if item.pid is not None else affected(paste, crashed)
        yield shm_too_small.finding(
            "error",
            f"{who}, /dev/shm".lstrip(", "),
            "A bus error while NCCL connects its ranks is what a full /dev/shm usually looks like: the segment could "
            "be created, but not filled. The text does not show how full it was.",
            _ENLARGE,
            crashed,
        )


# -- host memory of CUDA -----------------------------------------------------------------------------------------------

_NO_PEER_ACCESS = re.compile("Cuda failure (?:217 )?'peer access")
_OTHER_THAN_PEER_ACCESS = re.compile("^(?!.*peer access)")

_FELL_BACK = "cuMem host allocations do not appear to be working"


def _malformed(path: str, size: int) -> bool:
    """Return True for a name that NCCL never gives to a file: what it read is not a name."""
    return size <= 0 or not _NAME.match(path.strip())


@rule(
    "cumem-host-asymmetric",
    "Ranks of one host disagree on how to share host memory",
    source=(
        "https://github.com/NVIDIA/nccl/issues/2190",
        f"{_ENV}#nccl-cumem-host-enable",
        "NCCL src/transport/shm.cc",
    ),
    causes=("rank-died",),
)
def cumem_host_asymmetric(paste: Paste) -> Iterator[TextFinding]:
    """A rank attaches to a segment whose name makes no sense, or only some ranks fall back to ``/dev/shm``."""
    odd = [
        line
        for line, match in paste.matches(_ATTACH, "attaching to shared memory segment")
        if _malformed(match["path"], whole(match["size"]))
    ]
    fell_back = messages(paste, _FELL_BACK)
    if odd:
        yield cumem_host_asymmetric.finding(
            "error",
            affected(paste, odd),
            "A rank tried to attach to a shared memory segment without a valid name or size. So it read something "
            "that is not a file of /dev/shm: its peer shares host memory through CUDA (cuMem), and this rank does "
            "not. /dev/shm itself is not full.",
            "Set NCCL_CUMEM_HOST_ENABLE=0 on all ranks. The reason is usually that CUDA cannot allocate host memory on "
            "some NUMA nodes: compare numactl -H and the CPU set of the container for each rank.",
            [*odd, *(item.line for item in fell_back)],
        )
        return
    hosts = {item.host for item in fell_back}
    processes = {(item.host, item.pid) for item in fell_back}
    others = {(item.host, item.pid) for item in messages(paste, "NCCL version", "Init START") if item.host in hosts}
    if fell_back and others - processes and paste.numbers("NCCL WARN"):
        yield cumem_host_asymmetric.finding(
            "warning",
            affected(paste, fell_back),
            "Some ranks of this host fall back to /dev/shm because CUDA's host allocations do not work for them, "
            "and others do not report it. Ranks that share memory in different ways cannot connect.",
            "Set NCCL_CUMEM_HOST_ENABLE=0 on all ranks, and compare numactl -H and the CPU set of each rank.",
            [item.line for item in fell_back],
        )


def _absent_segments(paste: Paste) -> Lines:
    """Find the lines of ranks that attach to a segment with a valid name, and do not find it."""
    attached = paste.matches(_ATTACH, "attaching to shared memory segment")
    named = [(line, match) for line, match in attached if not _malformed(match["path"], whole(match["size"]))]
    return Lines([line.number for line, match in named if "No such file" in (match["error"] or "No such file")])


MEMORY_RULES = rules_of(
    __name__,
    shm_too_small,
    LineRule(
        code="shm-not-writable",
        title="A process may not use /dev/shm",
        looks_for="A segment in ``/dev/shm`` could not be created because of permissions or because the folder is "
        "missing.",
        find=matching(_REFUSED, "Error while creating shared memory"),
        subject="{affected}, /dev/shm",
        why="The process could not create a file in /dev/shm ({error}).",
        do="Check ls -ld /dev/shm and mount | grep shm where the ranks run: it must be a tmpfs with mode 1777.",
        source=(_SHM, _SHMUTILS),
        causes=("rank-died",),
    ),
    cumem_host_asymmetric,
    LineRule(
        code="shm-not-shared",
        title="A shared memory segment of another rank is not visible",
        looks_for="A rank cannot attach to a segment with a valid name, because the file does not exist.",
        find=_absent_segments,
        subject="{affected}, /dev/shm",
        why="A rank could not attach to the shared memory segment of another rank on its host, because the file is "
        "missing: the ranks are in containers with separate /dev/shm, the file was removed, or its owner had already "
        "failed.",
        do="Look for the first warning of the other ranks on this host. For containers on one host, share it (docker "
        "--ipc=host or --ipc=container:NAME), or give each container its own host name so that NCCL uses the network.",
        source=(_SHM, _SHMUTILS),
        causes=("rank-died",),
    ),
    LineRule(
        code="cumem-host-no-p2p",
        title="Sharing host memory through CUDA needs P2P, which these GPUs do not have",
        looks_for="The transport for shared memory fails with CUDA error 217.",
        find=warnings_matching(_NO_PEER_ACCESS, "Cuda failure ", r"shm\.cc"),
        why="The shared memory transport failed in CUDA's host allocations (cuMem), on GPUs that cannot reach each "
        "other directly. This is a fault of that way to share memory on such GPUs, and not of /dev/shm.",
        do="Set NCCL_CUMEM_HOST_ENABLE=0, or use a newer NCCL and driver.",
        source=(
            "https://github.com/NVIDIA/nccl/issues/1838",
            f"{_ENV}#nccl-cumem-host-enable",
            "NCCL src/transport/shm.cc",
        ),
        causes=("rank-died",),
    ),
    LineRule(
        code="cumem-host-failed",
        title="Sharing host memory through CUDA failed",
        looks_for="The transport for shared memory fails with another CUDA error.",
        find=cuda_failures(_OTHER_THAN_PEER_ACCESS, r"shm\.cc"),
        why="The shared memory transport failed in a call of CUDA ({text}). It shares host memory between the "
        "processes of a host, and the call is refused here.",
        do="Try NCCL_CUMEM_HOST_ENABLE=0, which uses /dev/shm instead (it must be large enough). "
        "If that helps, update the driver, and check the NUMA nodes and the permissions of the container.",
        source=(f"{_ENV}#nccl-cumem-host-enable", "NCCL src/transport/shm.cc"),
        causes=("rank-died",),
    ),
    LineRule(
        code="shm-disabled-by-env",
        title="A variable turns off shared memory",
        looks_for="``NCCL_SHM_DISABLE=1`` is set.",
        find=variable_is(NCCL_SHM_DISABLE=("1",)),
        level="info",
        subject=hosts_of_variables,
        why="NCCL_SHM_DISABLE=1 turns off shared memory, so ranks of one host without P2P talk over the network.",
        do="Remove it, unless it was set to find the cause of an error.",
        source=f"{_ENV}#nccl-shm-disable",
    ),
)
