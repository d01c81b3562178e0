"""Rules for jobs that do not start as intended: MPI, Slurm, the driver, and the GPUs that a job gets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._nccl_tests_starts import TestDevice, TestStart, read_test_starts

_TESTS = "NVIDIA/nccl-tests/src/common.cu"


@rule(
    "two-copies-no-mpi",
    "Several independent runs that each think they are the whole job",
    source=("NVIDIA/nccl-tests#27", "NVIDIA/nccl-tests#109", "NVIDIA/nccl-tests#213", "NVIDIA/nccl-tests#254"),
    causes=("duplicate-gpu",),
)
def two_copies(paste: Paste) -> Iterator[TextFinding]:
    """Look for several processes that call themselves rank 0 at once, or that all print the header of nccl-tests.

    Runs that follow each other have results, an error or a command between them.
    """
    for start in paste.once(read_test_starts):
        roots = {(device.host, device.pid): device for device in start.devices if device.rank == 0}
        if len(roots) > 1 or len(start.headers) > 1:
            yield _copies(paste, start)


def _copies(paste: Paste, start: TestStart) -> TextFinding:
    roots = [device for device in start.devices if device.rank == 0]
    hosts = list(dict.fromkeys(device.host for device in start.devices))
    number = max(len({(root.host, root.pid) for root in roots}), len(start.headers))
    lines = [*start.headers, *(root.line for root in roots)]
    if start.command is not None:
        lines.append(start.command)
    command = paste.line(start.command).text if start.command is not None else ""
    node = re.search(r"--nodelist[= ](\S+)|-w (\S+)", command)
    where = ", ".join(hosts) or (next(name for name in node.groups() if name) if node else "")
    tool = "srun" if "srun" in command else "mpirun" if "mpirun" in command else "the launcher"
    each = (
        "each of them calls itself rank 0"
        if len(roots) > 1
        else "each prints the header, which only rank 0 of a job does"
    )
    plugins = [line.text.removeprefix("srun: ").strip() for line in other_lines(paste).find("srun: ")]
    types = [plugin for plugin in plugins if re.fullmatch(r"(?:pmi\w*|pmix\w*|openmpi|cray_shasta|none)", plugin)]
    if types:
        do = (
            "Start with the PMI type that the MPI library of the program was built for. "
            f"This Slurm offers {', '.join(types)}"
            + ("" if any("pmix" in name for name in types) else " and no pmix, which Open MPI needs")
            + ". Check also that nccl-tests was built with MPI=1."
        )
    else:
        do = (
            "Rebuild nccl-tests from clean (make clean; make MPI=1 MPI_HOME=…) with the MPI whose mpirun or srun --mpi "
            "type starts it, and check that the new binary runs: the device list must then show ranks 0 to N-1 once."
        )
    return two_copies.finding(
        "error",
        f"all {number} processes of {tool}" + (f" on {where}" if where else ""),
        f"{number} processes started, and {each}, so these are independent runs and not one job. Their results are "
        "not those of a job over all GPUs.",
        do,
        lines,
    )


_LAUNCH = re.compile(
    r"(?P<pmix>pmixp_coll_ring_reset_if_to: (?P<node>\S+) .*collective timeout)"
    r"|(?P<daemon>(?:ORTE|PRTE|PRRTE) (?:was unable to reliably start|daemon has unexpectedly failed|has lost "
    r"communication with a remote daemon).*)"
    r"|(?P<launch>mpirun was unable to (?:launch|start|find)\b.*|prterun was unable to (?:launch|start)\b.*)"
    r"|(?P<slots>There are not enough slots available.*)"
    r"|(?P<direct>The application appears to have been direct launched using \"srun\".*)"
    r"|(?P<plugin>srun: error: (?:Couldn't find the specified plugin name for mpi/\S+.*|cannot find mpi plugin.*|"
    r"Unable to create step.*|Unable to confirm allocation.*|Task launch for \S+ failed.*|Application launch failed.*))"
    r"|(?P<ssh>ssh: connect to host (?P<host>\S+) port \d+: .*|Host key verification failed.*|Permission denied "
    r"\(publickey.*)"
    r"|(?P<init>It looks like MPI_INIT failed.*|PMI2_Init failed.*|(?:OPAL|PMIX) ERROR: .*|Fatal error in "
    r"(?:internal_)?P?MPI_Init\w*.*)"
    r"|(?P<cxi>(?:start failed on \S+: )?CXI alloc failed on .*)"
)
_LAUNCH_LITERALS = (
    *("collective timeout seq", "ORTE ", "PRTE ", "PRRTE ", "mpirun was unable to", "prterun was unable to"),
    *("not enough slots", "direct launched", "srun: error:", "ssh: connect", "Host key verification"),
    *("Permission denied (publickey", "MPI_INIT failed", "PMI2_Init failed", "OPAL ERROR", "PMIX ERROR"),
    *("Fatal error in", "CXI alloc failed"),
)
_LAUNCH_DO = {
    "pmix": "Look at the host that did not answer: is slurmstepd up there, do host names resolve in both directions, "
    "is the container image there already (import it before the job), do ports between the slurmstepds pass? For slow "
    "starts, raise PMIxTimeout in mpi.conf.",
    "daemon": "Check that the daemon of MPI starts on every host (ssh HOST which orted or prted) with the same version "
    "and PATH, and that it may connect back: --mca oob_tcp_if_include INTERFACE.",
    "launch": "Check that the program exists on every host under the same path, and the host list.",
    "slots": "Ask for as many slots as processes: --host node1:8,node2:8 or slots=8 in the host file, or pass "
    "--map-by :OVERSUBSCRIBE if you want more.",
    "direct": "Start with srun --mpi=pmix (or pmi2) if Open MPI was built for it, else with mpirun in an allocation.",
    "plugin": "List the PMI types with srun --mpi=list and use one that the MPI of the program was built for; check "
    "the allocation (squeue, sinfo).",
    "ssh": "Make ssh to every host work without a password from the first host (ssh HOST true), or launch with Slurm.",
    "init": "Check that the MPI of the program is the one whose launcher starts it (ldd PROGRAM | grep mpi; "
    "which mpirun) and that both use the same PMIx.",
    "cxi": "Ask for fewer resources of the Slingshot NIC per job, or let the scheduler allocate them "
    "(--network=disable_rdzv_get is a site's choice); ask the site's administrators.",
}


@rule(
    "launcher-failed",
    "The launcher failed before NCCL started",
    source=("slurm/src/plugins/mpi/pmix/pmixp_coll_ring.c", "Open MPI help texts", "NVIDIA/deepops#1179"),
    causes=("worker-exited", "rank-died"),
)
def launcher_failed(paste: Paste) -> Iterator[TextFinding]:
    """Look for launchers that could not start the processes or bring them together."""
    matches = other_lines(paste).matches(_LAUNCH, *_LAUNCH_LITERALS)
    kinds: dict[str, list[tuple[PasteLine, re.Match[str]]]] = {}
    for line, match in matches:
        kind = next(name for name in _LAUNCH_DO if match[name] is not None)
        kinds.setdefault(kind, []).append((line, match))
    if not kinds:
        return
    # A failed start prints several of these messages. The first one is closest to the cause.
    kind = min(kinds, key=lambda name: kinds[name][0][0].number)
    line, match = kinds[kind][0]
    lines = [message for messages in kinds.values() for message, _ in messages]
    if kind == "pmix":
        neighbour = paste.matches(re.compile(r"neighbor id: next \d+:(\S+?), prev \d+:(\S+)"), "neighbor id:")
        others = sorted({name for _, ids in neighbour for name in ids.groups()} - {match["node"]})
        other = ", ".join(others)
        subject = f"slurmstepd on {match['node']}" + (f" waiting for {other}" if other else "")
        why = (
            f"The launcher did not get its processes together: the PMIx fence of {match['node']} timed out"
            + (f" waiting for {other}" if other else "")
            + ", before any call of NCCL."
        )
        lines += [message for message, _ in neighbour]
    else:
        host = match["host"] or line.host or ""
        named = re.search(r"(?:start failed on|on node|Task launch for) (\S+?)[:. ]", line.text)
        subject = host or (named[1] if named else "") or f"line {line.number}"
        why = f"The launcher could not start the job: {match[0].strip().rstrip('.')}. NCCL has no part in this."
    yield launcher_failed.finding("error", subject, why, _LAUNCH_DO[kind], lines)


_ORDINAL = re.compile(r"invalid device ordinal|cudaErrorInvalidDevice\b")
_REQUESTED = re.compile(
    r"Invalid number of GPUs: (?P<asked>\d+) requested but only (?P<there>\d+) were found"
    r"|ProcessGroup\w+ is only supported with GPUs, no GPUs found"
    r"|The number of required GPUs exceeds the total number of available GPUs.*"
    r"|no CUDA-capable device is detected|No CUDA GPUs are available"
)


@rule(
    "too-few-gpus",
    "More GPUs are used than the host has",
    source=(_TESTS, "NVIDIA/nccl-tests#165", "NVIDIA/nccl-tests#323"),
    causes=("worker-exited", "rank-died"),
)
def too_few_gpus(paste: Paste) -> Iterator[TextFinding]:
    """Look for a device number that does not exist, or a check that counts fewer GPUs than are asked for."""
    matches = other_lines(paste).matches(_ORDINAL, "invalid device ordinal", "cudaErrorInvalidDevice")
    # In NCCL's own calls, the number is of a peer: a GPU that this container does not see, which another rule finds.
    matches = [pair for pair in matches if "NCCL WARN" not in pair[0].text]
    matches += other_lines(paste).matches(
        _REQUESTED, "requested but only", "no GPUs found", "number of required GPUs", "no CUDA-capable", "No CUDA GPUs"
    )
    if not matches:
        return
    lines = [line for line, _ in matches]
    counted = next((match for _, match in matches if match.re is _REQUESTED and match["asked"]), None)
    hosts = _hosts(lines) or ", ".join(dict.fromkeys(device.host for device in _devices(paste)))
    asked = ""
    for _, match in other_lines(paste).matches(re.compile(r"\bnGpus:? (\d+)"), "nGpus"):
        asked = f" Each process asks for {match[1]} GPUs" if match[1] != "1" else " Each process takes one GPU"
        asked += ", and processes on one host take the next ones."
        break
    why = (
        f"{counted['asked']} GPUs are asked for and {counted['there']} are visible."
        if counted
        else "No GPU is visible to the process."
        if all("ordinal" not in match[0] and "InvalidDevice" not in match[0] for _, match in matches)
        else "A process uses a device number that does not exist on its host: there are more processes, or GPUs per "
        "process, than GPUs that it sees."
    )
    yield too_few_gpus.finding(
        "error",
        hosts or "the host that prints it",
        why + asked,
        "Start one process for each GPU of a host, with -g 1 (mpirun -N 8, srun --ntasks-per-node, --nproc-per-node). "
        "Check what a process sees: mpirun … nvidia-smi -L, CUDA_VISIBLE_DEVICES, --gres, and the GPUs of the "
        "container.",
        lines,
    )


def _hosts(lines: Sequence[PasteLine]) -> str:
    """Return the hosts that the lines name, else their ranks."""
    hosts: dict[str, None] = {}
    for line in lines:
        frame = re.search(r"(?:^|sum|none)([A-Za-z][\w.-]*): Test (?:CUDA|NCCL) failure", line.text)
        frame = frame or re.match(r"([\w.-]+):\d+:\d+ \[", line.text)
        if line.host or frame:
            hosts[line.host or (frame[1] if frame else "")] = None
    ranks = [line.rank for line in lines if line.rank is not None]
    return ", ".join(hosts) or (rank_list(ranks) if ranks else "")


def _devices(paste: Paste) -> list[TestDevice]:
    return [device for start in paste.once(read_test_starts) for device in start.devices]


LAUNCH_RULES: tuple[Rule, ...] = (two_copies, launcher_failed, too_few_gpus)
