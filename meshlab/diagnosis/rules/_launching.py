"""Rules for jobs that do not start as intended: MPI, Slurm, the driver, and the GPUs that a job gets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._host_names import read_unknown_hosts
from meshlab.diagnosis.formats._nccl_lines import read_hosts, source_host
from meshlab.diagnosis.formats._nccl_tests_starts import TestDevice, TestStart, read_test_starts
from meshlab.diagnosis.formats._process_exits import read_process_exits

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


class _Phrase(NamedTuple):
    """What a launcher prints when it fails. A group ``node`` or ``to`` names the host, and ``reason`` the reason."""

    kind: str
    pattern: re.Pattern[str]
    literals: tuple[str, ...]
    launcher: str = "the launcher"  # the subject if the text names no host
    near: re.Pattern[str] | None = None  # a line below that names the host


_ON_NODE = re.compile(r"(?:Remote daemon *: *\S+ on node|hostname:|^\s*Node:|Remote host:) +(?P<node>\S+)")
_PROGRAM = re.compile(r"^(?:Executable|Application name): +(?P<program>\S+)")
_REJECTED = re.compile(r"credential expired|Invalid job credential")

_PHRASES = (
    _Phrase(
        "pmix",
        re.compile(r"pmixp_coll_ring_reset_if_to: (?P<node>\S+) .*collective timeout"),
        ("collective timeout seq",),
    ),
    _Phrase(
        "lost",
        re.compile(r"(?P<name>ORTE|PRTE|PRRTE) has lost communication with (?:a remote|its) daemon.*"),
        ("has lost communication with",),
        "a host of mpirun",
        _ON_NODE,
    ),
    _Phrase(
        "daemon",
        re.compile(
            r"(?:ORTE|PRTE|PRRTE|mpirun|prterun) (?:was unable to reliably start|daemon has unexpectedly failed).*"
            r"|A daemon on node (?P<node>\S+) failed to start as expected.*"
            r"|\b(?P<reason>(?:orted|prted|hydra_pmi_proxy): (?:command )?not found)"
        ),
        (
            *("was unable to reliably start", "daemon has unexpectedly failed", "A daemon on node"),
            *("orted: ", "prted: ", "hydra_pmi_proxy: "),
        ),
        "mpirun",
    ),
    _Phrase(
        "launch",
        re.compile(r"(?:mpirun|mpiexec|prterun|orterun) was unable to (?:launch|start|find)\b.*"),
        ("was unable to",),
        "mpirun",
        _ON_NODE,
    ),
    _Phrase(
        "launch",
        re.compile(r"\[[\w:]+@(?P<node>[^\]]+)\] .*?(?P<reason>execvp error on file (?P<program>\S+) \([^)]*\))"),
        ("execvp error on file",),
    ),
    _Phrase(
        "launch",
        re.compile(r"slurmstepd: error: (?P<reason>execve\(\): .*?: (?:No such file or directory|Permission denied))"),
        ("slurmstepd: error: execve()",),
        "srun",
        re.compile(r"srun: error: (?P<node>[\w.-]+): tasks? [\d,-]+: Exited with exit code (?:2|13)\b"),
    ),
    _Phrase(
        "launch",
        re.compile(r"task (?P<rank>\d+)(?: \(host (?P<node>[^)\s]+)\))?: (?P<reason>start failed: .*?)\"?$"),
        (": start failed: ",),
        "flux",
    ),
    _Phrase(
        "slots",
        re.compile(
            r"There are not enough slots available.*|A sequential map was requested, but not enough node entries.*"
        ),
        ("not enough slots", "A sequential map was requested"),
        "mpirun",
    ),
    _Phrase(
        "bind",
        re.compile(r"\[[\w:]+@(?P<node>[^\]]+)\] HYDT_topo_bind .*?: (?P<reason>no topology library available)"),
        ("HYDT_topo_bind",),
    ),
    _Phrase(
        "exchange",
        re.compile(
            r"mpi/pmix\w*: (?:_dmdx_req|_process_server_request): (?P<node>[^\s\[]+) .*?: "
            r"(?P<reason>(?:Bad request|unexpected contrib) from .*)"
        ),
        ("_dmdx_req:", "unexpected contrib from"),
    ),
    _Phrase(
        "direct",
        re.compile(r"The application appears to have been direct launched using \"srun\".*"),
        ("direct launched",),
        "srun",
    ),
    _Phrase(
        "plugin",
        re.compile(r"srun: error: (?:Couldn't find the specified plugin name for mpi/\S+.*|cannot find mpi plugin.*)"),
        ("srun: error:",),
        "srun",
    ),
    _Phrase(
        "step",
        re.compile(
            r"srun: error: (?:Task launch for (?:StepId=)?[\d.+]+ failed on node (?P<node>[^\s:]+)"
            r"|Unable to create step(?: for job \d+)?|Unable to confirm allocation(?: for job \d+)?"
            r"|Application launch failed): ?(?P<reason>.*)"
            r"|(?:srun|sbatch|salloc): error: (?:Unable to allocate resources|Batch job submission failed): (?P<why>.*)"
            r"|slurm_receive_msgs: \[\[(?P<node_message>[^\]]+)\]:\d+\] failed: (?P<what>.*)"
        ),
        ("srun: error:", "sbatch: error:", "salloc: error:"),
        "Slurm",
    ),
    _Phrase(
        "ssh",
        re.compile(
            r"ssh: connect to host (?P<node>\S{1,255}) port \d+: (?P<reason>.*)|Host key verification failed.*"
            r"|(?:ssh|kex)_exchange_identification: .*"
            r"|(?:(?<![\w.-])(?P<to>[\w.-]{1,255}): )?Permission denied \(publickey.*"
            r"|pdsh@[^\s:]+: (?P<node_pdsh>[^\s:]{1,255}): (?:ssh exited with exit code 255|connect: .*)"
            r"|host=(?P<node_deepspeed>\S{1,255}) was not reachable via ssh"
            r"|ssh -o PasswordAuthentication=no (?P<node_check>\S{1,255}) hostname' returned non-zero exit status 255"
        ),
        (
            *("ssh: connect", "Host key verification", "exchange_identification: ", "Permission denied (publickey"),
            "pdsh@",
            *("not reachable via ssh", "ssh -o PasswordAuthentication=no"),
        ),
        "ssh",
    ),
    _Phrase(
        "server",
        re.compile(
            r"(?P<reason>unable to connect from \"[^\"]*\" to \"(?P<to>[^\"]+)\" \([^)]*\)"
            r"|unable to connect to server (?P<server>\S+) at port \d+)"
        ),
        ("unable to connect from", "unable to connect to server"),
    ),
    _Phrase(
        "server",
        re.compile(r"(?P<reason>A process or daemon was unable to complete a TCP connection).*"),
        ("unable to complete a TCP connection",),
        "mpirun",
        _ON_NODE,
    ),
    _Phrase(
        "init",
        re.compile(
            r"It looks like MPI_INIT failed.*|PMI2_Init failed.*|(?:OPAL|PMIX) ERROR: .*|Fatal error in "
            r"(?:internal_|P?MPI_)+Init\w*.*"
        ),
        ("MPI_INIT failed", "PMI2_Init failed", "OPAL ERROR", "PMIX ERROR", "Fatal error in"),
        "MPI_Init",
    ),
    _Phrase(
        "cxi",
        re.compile(r"(?:start failed on (?P<node>\S+): )?CXI alloc failed on .*"),
        ("CXI alloc failed",),
    ),
)
_LAUNCH_DO = {
    "pmix": "Look at the host that did not answer: is slurmstepd up there, do host names resolve in both directions, "
    "is the container image there already (import it before the job), do ports between the slurmstepds pass? For slow "
    "starts, raise PMIxTimeout in mpi.conf.",
    "lost": "Look whether that host, its pod or its daemon still runs, and why it ended (dmesg -T, kubectl describe "
    "pod, sacct); if it does, test the TCP connection between the hosts.",
    "daemon": "Check that the daemon of MPI starts on every host (ssh HOST which orted or prted) with the same version "
    "and PATH, and that it may connect back: --mca oob_tcp_if_include INTERFACE.",
    "launch": "Check that the program exists on every host under the same path and may be executed, and the options "
    "before it: a launcher takes the first word that is no option for the program.",
    "slots": "Ask for as many slots as processes: --host node1:8,node2:8 or slots=8 in the host file, or pass "
    "--map-by :OVERSUBSCRIBE if you want more.",
    "bind": "This MPICH was built without hwloc: start without -bind-to, or install one that has it.",
    "exchange": "Use one version of PMIx in Slurm and in the MPI of the program, the same on all hosts.",
    "direct": "Start with srun --mpi=pmix (or pmi2) if Open MPI was built for it, else with mpirun in an allocation.",
    "plugin": "List the PMI types with srun --mpi=list and use one that the MPI of the program was built for.",
    "credential": "Compare the clocks of the hosts (chronyc tracking, date), check munge on each of them (munge -n | "
    "ssh HOST unmunge), and the log of slurmd. A node that starts late, after a long prolog, rejects it too: raise "
    "cred_expire.",
    "step": "Look at the allocation and the nodes (squeue, sinfo -N -l, scontrol show node), at the logs of slurmctld "
    "and slurmd, and whether all of them have the same key of munge.",
    "ssh": "Make ssh to every host work without a password from the first host (ssh HOST true), or launch with Slurm.",
    "server": "Check that the hosts resolve each other's names to addresses of the network between them, that no "
    "firewall closes the ports, and that mpiexec still runs.",
    "init": "Check that the MPI of the program is the one whose launcher starts it (ldd PROGRAM | grep mpi; "
    "which mpirun) and that both use the same PMIx.",
    "cxi": "Ask for fewer resources of the Slingshot NIC per job, or let the scheduler allocate them "
    "(--network=disable_rdzv_get is a site's choice); ask the site's administrators.",
}


class _Failure(NamedTuple):
    """A line of a launcher that failed."""

    kind: str
    line: PasteLine
    match: re.Match[str]
    node: str
    program: str
    launcher: str

    @property
    def reason(self) -> str:
        """What the launcher prints, without the part that names the host."""
        named = self.match.groupdict()
        reasons = (named.get("reason"), named.get("why"), named.get("what"), self.match[0])
        return next(text for text in reasons if text).strip().rstrip('.,"')


_NODES = ("node", "to", "server")  # how the names of groups begin
_BELOW = 14  # lines in which a launcher names the host after its sentence


def _failures(paste: Paste) -> Iterator[_Failure]:
    for phrase in _PHRASES:
        for line, match in other_lines(paste).matches(phrase.pattern, *phrase.literals):
            named = match.groupdict()
            node = next((value for name, value in named.items() if value and name.startswith(_NODES)), "")
            kind = "credential" if _REJECTED.search(named.get("reason") or "") else phrase.kind
            below = range(line.number, min(line.number + _BELOW, len(paste) + 1)) if phrase.near else ()
            texts = [paste.line(number).text for number in below]
            if not node and phrase.near is not None:
                node = next((match_below["node"] for text in texts if (match_below := phrase.near.search(text))), "")
            program = next((match_below["program"] for text in texts if (match_below := _PROGRAM.search(text))), "")
            yield _Failure(kind, line, match, node.strip("'\",.:"), program, phrase.launcher)


@rule(
    "launcher-failed",
    "The launcher failed",
    source=("slurm/src/plugins/mpi/pmix/pmixp_coll_ring.c", "Open MPI help texts", "NVIDIA/deepops#1179"),
    causes=("worker-exited", "rank-died"),
)
def launcher_failed(paste: Paste) -> Iterator[TextFinding]:
    """Look for launchers that could not start the processes or bring them together, or that lost a host later.

    A start that failed because a name cannot be resolved is a part of that finding.
    """
    failures = sorted(_failures(paste), key=lambda failure: failure.line.number)
    has_started = bool(paste.once(read_hosts)) or bool(_devices(paste))
    if paste.once(read_unknown_hosts):
        failures = [failure for failure in failures if failure.kind not in ("daemon", "server", "ssh")]
    if has_started:  # Open MPI prints such errors, and goes on without what failed
        failures = [failure for failure in failures if not re.match("(?:OPAL|PMIX) ERROR", failure.match[0])]
    if not failures:
        return
    # A failed start prints several of these messages. The first one is closest to the cause.
    first = failures[0]
    same = [failure for failure in failures if failure.kind == first.kind]
    nodes = list(dict.fromkeys(failure.node or failure.line.host or "" for failure in same))
    # srun names a host with its domain in one line and without it in the next.
    shorter = (node for node in nodes if "." not in node or node.partition(".")[0] not in nodes)
    subject = ", ".join(node for node in shorter if node) or first.launcher
    lines = [failure.line for failure in failures]
    if first.kind == "pmix":
        neighbour = paste.matches(re.compile(r"neighbor id: next \d+:(\S+?), prev \d+:(\S+)"), "neighbor id:")
        other = ", ".join(sorted({name for _, ids in neighbour for name in ids.groups()} - {first.node}))
        subject = f"slurmstepd on {first.node}" + (f" waiting for {other}" if other else "")
        why = (
            f"The launcher did not get its processes together: the PMIx fence of {first.node} timed out"
            + (f" waiting for {other}" if other else "")
            + ", before any call of NCCL."
        )
        lines += [message for message, _ in neighbour]
    elif first.kind == "lost" and any(failure.kind == "daemon" for failure in failures):
        why = f"The daemon of mpirun on {subject} ended, or its connection broke, before the job began."
    elif first.kind == "lost":
        why = (
            f"mpirun lost its daemon on {subject}, which had started: the host or the pod ended, the daemon crashed, "
            "or the TCP connection broke. The processes there are lost, and mpirun then ends the job."
        )
    elif first.kind == "init":
        innermost, stack = innermost_error(paste, first.line.number)
        lines += stack
        why = f"The processes started, but MPI could not initialise: {innermost or first.reason}."
        if "fi_getinfo" in why or "addrinfo() failed" in why:
            why += " MPI found no network of libfabric that it can use."
    elif first.kind == "credential":
        why = (
            f"Slurm did not start the job: slurmd rejected its credential ({first.reason}). It accepts one for a few "
            "minutes after slurmctld made it, by its own clock."
        )
    elif first.program:
        why = f"The launcher could not start the program {first.program} on {subject}."
    elif first.kind == "ssh":
        why = f"ssh failed: {first.reason}. A launcher that uses it cannot start its processes there."
    else:
        why = f"The launcher could not start the job: {first.reason}."
    if first.kind not in ("pmix", "lost") and not has_started:
        why += " NCCL has no part in this."
    title = "The launcher lost a host while the job ran" if first.kind == "lost" and "had started" in why else ""
    finding = launcher_failed.finding("error", subject, why, _LAUNCH_DO[first.kind], lines, title=title)
    # The daemon of a host, or the command that runs in its pod, may be what was killed.
    killed = first.kind == "lost" and any(end.signal == 9 for end in paste.once(read_process_exits))
    yield replace(finding, follows="rank-killed") if killed else finding


_STACK = re.compile(r"^\w+\(\d+\)\.*: ?(?P<text>.*)$")


def innermost_error(paste: Paste, number: int) -> tuple[str, list[PasteLine]]:
    """Return the last text of the error stack of MPICH below a line, which is closest to the cause."""
    innermost = ""
    lines: list[PasteLine] = []
    for line in (paste.line(below) for below in range(number + 1, min(number + _BELOW, len(paste) + 1))):
        if (match := _STACK.match(line.text.strip())) is None:
            break
        if match["text"].strip():
            innermost, lines = match["text"].strip(), [line]
    return innermost, lines


_ORDINAL = re.compile(r"invalid device ordinal|cudaErrorInvalidDevice\b")
_REQUESTED = re.compile(
    r"Invalid number of GPUs: (?P<asked>\d+) requested but only (?P<there>\d+) were found"
    r"|ProcessGroup\w+ is only supported with GPUs, no GPUs found"
    r"|The number of required GPUs exceeds the total number of available GPUs.*"
    r"|no CUDA-capable device is detected|No CUDA GPUs are available"
    r"|local_world_size \((?P<local>\d+)\) must be less than or equal to the number of visible devices "
    r"\((?P<visible>\d+)\)"
    r"|Current node has no GPU available|No slot '\d+' specified on host '[^']*'"
)
_PLACEMENT = re.compile(r"Waiting for creating a placement group of specs for (?P<seconds>\d+) seconds")


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
        _REQUESTED,
        *("requested but only", "no GPUs found", "number of required GPUs", "no CUDA-capable", "No CUDA GPUs"),
        *("number of visible devices", "has no GPU available", "specified on host"),
    )
    if not matches:
        yield from _waits_for_gpus(paste)
        return
    lines = [line for line, _ in matches]
    pairs = (
        (match["asked"] or match["local"], match["there"] or match["visible"])
        for _, match in matches
        if match.re is _REQUESTED
    )
    counted = next((pair for pair in pairs if pair[0]), None)
    hosts = _hosts(lines) or ", ".join(dict.fromkeys(device.host for device in _devices(paste)))
    asked = ""
    for _, match in other_lines(paste).matches(re.compile(r"\bnGpus:? (\d+)"), "nGpus"):
        asked = f" Each process asks for {match[1]} GPUs" if match[1] != "1" else " Each process takes one GPU"
        asked += ", and processes on one host take the next ones."
        break
    why = (
        f"{counted[0]} GPUs are asked for and {counted[1]} are visible."
        if counted
        else "Ray has fewer free GPUs than the layout of the engine asks for."
        if all("required GPUs" in match[0] for _, match in matches)
        else "The GPUs that DeepSpeed should use (--include) are not all in its host file or on the host."
        if all("No slot" in match[0] for _, match in matches)
        else "The engine of vLLM was started on a host on which Ray has no free GPU."
        if all("Current node" in match[0] for _, match in matches)
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


def _waits_for_gpus(paste: Paste) -> Iterator[TextFinding]:
    """Find an engine that waits until Ray has enough free GPUs, which may still come."""
    if matches := other_lines(paste).matches(_PLACEMENT, "Waiting for creating a placement group"):
        seconds = max(whole(match["seconds"]) for _, match in matches)
        yield too_few_gpus.finding(
            "warning",
            "the cluster of Ray",
            f"vLLM has waited {seconds} s for Ray to reserve its GPUs: not enough of them are free, or the host that "
            "the first reservation names is not one of Ray's.",
            "Compare ray status with the GPUs that the layout needs, end jobs that still hold GPUs, and set "
            "VLLM_HOST_IP on each host to the address under which Ray lists it.",
            [line for line, _ in matches],
        )


def _hosts(lines: Sequence[PasteLine]) -> str:
    """Return the hosts that the lines name, else their ranks."""
    hosts = dict.fromkeys(host for line in lines if (host := source_host(line)))
    ranks = [line.rank for line in lines if line.rank is not None]
    return ", ".join(hosts) or (rank_list(ranks) if ranks else "")


def _devices(paste: Paste) -> list[TestDevice]:
    return [device for start in paste.once(read_test_starts) for device in start.devices]


LAUNCH_RULES: tuple[Rule, ...] = (two_copies, launcher_failed, too_few_gpus)
