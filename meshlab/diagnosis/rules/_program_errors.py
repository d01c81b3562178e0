"""Rules for errors of the program or of the GPU that PyTorch's text shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.base._collectives import COLLECTIVES, TORCH_FUNCTIONS
from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._nccl_lines import source_host
from meshlab.diagnosis.formats._torch_lines import rank_in_line
from meshlab.diagnosis.rules._line_rules import LineRule, Subject, having, others_having, others_matching, rules_of


def _who(lines: Sequence[PasteLine], default: str) -> str:
    """Return the ranks, else the hosts, that the lines or the prefixes name."""
    ranks = {rank for line in lines if (rank := rank_in_line(line, len(line.raw))) is not None}
    hosts = dict.fromkeys(host for line in lines if (host := source_host(line)))
    return rank_list(ranks) if ranks else ", ".join(hosts) or default


def _who_or(default: str) -> Subject:
    """Return the subject of a row: the ranks or hosts that `_who` finds, or a default."""
    return lambda paste, numbers: _who([paste.line(number) for number in numbers], default)


def _nvlinks_of(paste: Paste, numbers: Sequence[int]) -> str:
    return f"the NVLinks of the GPU of {_who_or('the process that prints it')(paste, numbers)}"


_CAPTURE = re.compile(
    r"operation not permitted when stream is capturing|operation failed due to a previous error during capture"
    r"|operation would make the legacy stream depend on a capturing|cudaErrorStreamCapture\w+"
    r"|(?i:capturing a graph|stream capture) (?:is )?not supported by NCCL"
)
# Functions in a traceback of Python. Functions called reduce, gather or scatter usually belong to other libraries.
_FUNCTIONS = [
    function
    for name, torch in TORCH_FUNCTIONS.items()
    if COLLECTIVES[name].only_root is None
    for function in torch.names
]
_IN_FUNCTIONS = [f"in {function}" for function in _FUNCTIONS]
_CALL = re.compile(rf"\bin ({'|'.join(_FUNCTIONS)})\b")


@rule(
    "graph-capture",
    "A call that is not allowed while a graph is captured",
    source="CUDA Runtime API, cudaErrorStreamCaptureUnsupported",
    causes=("worker-exited",),
)
def graph_capture(paste: Paste) -> Iterator[TextFinding]:
    """Look for calls that CUDA or HIP refuse while a stream is being captured."""
    matches = other_lines(paste).matches(_CAPTURE, "captur", "cudaErrorStreamCapture")
    if not matches:
        return
    lines = [line for line, _ in matches]
    call = next((match[1] for _, match in other_lines(paste).matches(_CALL, *_IN_FUNCTIONS)), "")
    yield graph_capture.finding(
        "error",
        _who(lines, "the rank that prints it") + (f", {call} inside a graph capture" if call else ""),
        "A call inside a graph capture needs something that a capturing stream may not do, such as creating a "
        "communicator, allocating memory or querying an event. The GPU and the library are not at fault.",
        "Run each collective once before the capture, so that its communicator exists; capture on the stream that runs "
        "it; and call nothing that synchronizes. To check, run without graphs (vLLM: --enforce-eager).",
        lines,
    )


_DTYPE = re.compile(
    r"Unconvertible NCCL type (?P<one>\w+)|(?P<kind>Input tensor|tensor) data type is not supported for NCCL process "
    r"group: (?P<two>[\w.]+)|Unsupported (?P<three>\w+) type for NCCL (?:reduction|reduce)"
    r"|(?:expected scalar type|NCCL does not support) (?P<four>Complex\w*|BFloat16|Float8\w*)"
)
_METHOD = re.compile(rf"\bpg\.(\w+)\(|\bin ({'|'.join(_FUNCTIONS)})\b")


@rule(
    "dtype-unsupported",
    "The data type is not in this build",
    source="pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp, getNcclDataType",
    causes=("worker-exited",),
)
def dtype_unsupported(paste: Paste) -> Iterator[TextFinding]:
    """Look for types that this build of PyTorch cannot pass to NCCL."""
    matches = other_lines(paste).matches(
        _DTYPE, "Unconvertible NCCL type", "not supported for NCCL", "type for NCCL", "NCCL does not support"
    )
    if not matches:
        return
    lines = [line for line, _ in matches]
    dtype = next(name for name in (matches[0][1][key] for key in ("one", "two", "three", "four")) if name)
    methods = [
        name
        for _, match in other_lines(paste).matches(_METHOD, "pg.", *_IN_FUNCTIONS)
        for name in match.groups()
        if name
    ]
    call = f", {methods[-1].removeprefix('i')}" if methods else ""
    version = next((match[1] for _, match in paste.matches(re.compile(r"NCCL version ([\d.]+)"), "NCCL version")), "")
    yield dtype_unsupported.finding(
        "error",
        f"{_who(lines, 'the rank that prints it')}{call}, {dtype}",
        f"PyTorch does not pass {dtype} to NCCL: its build does not know this type"
        + (f". The NCCL that runs ({version}) is not the limit." if version else ", or NCCL has no such type."),
        "Use a PyTorch that was built with a newer NCCL (bfloat16: NCCL 2.10 and CUDA 11, PyTorch 1.10; float8: NCCL "
        "2.24), or cast before the collective, for example tensor.view(torch.uint8) if nothing is reduced.",
        lines,
    )


@rule(
    "ecc-uncorrectable",
    "GPU memory returned an uncorrectable error",
    source="CUDA Runtime API, cudaErrorECCUncorrectable",
    causes=("nccl-timeout", "rank-died", "worker-exited"),
)
def ecc_in_program(paste: Paste) -> Iterator[TextFinding]:
    """Look for an uncorrectable ECC error that a program received. The thread that prints it only met it."""
    lines = other_lines(paste).find("uncorrectable ECC error encountered", "cudaErrorECCUncorrectable")
    if not lines:
        return
    local = {match[1] for line in lines if (match := re.search(r"\[default(\d+)\]", line.raw))}
    where = _who(lines, "the process that prints it")
    yield ecc_in_program.finding(
        "error",
        f"the GPU of {where}" + (f" (local rank {', '.join(sorted(local))} of its host)" if local else ""),
        "The memory of this GPU returned an error that ECC could not correct. NCCL and its watchdog only met it.",
        "On that host, look for Xid 48, 63, 64, 94 and 95 in dmesg and run nvidia-smi -q -d ECC,ROW_REMAPPER. Reset "
        "the GPU (nvidia-smi -r -i N), and have it replaced if the error comes back.",
        lines,
    )


# Xids and warnings of NCCL are about the same error, but have their own rules.
_CUDA_ERROR = re.compile(
    r"^(?!.*(?:Xid|NCCL WARN)).*?(?P<error>an illegal memory access was encountered|device-side assert triggered"
    r"|unspecified launch failure|misaligned address)"
)

_NO_GRADIENT = re.compile(
    r"did not receive grad for rank (?P<rank>\d+)|Expected to have finished reduction in the prior iteration"
)
_SIZES_OF_GLOO = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<sent>\d+) vs (?P<expected>\d+)")
_UNAVAILABLE = re.compile(
    r"CUDA-capable device\(s\) is/are busy or unavailable|all CUDA-capable devices are busy or unavailable"
    r"|cudaErrorDevicesUnavailable"
)

PROGRAM_ERROR_RULES = rules_of(
    __name__,
    ecc_in_program,
    LineRule(
        code="gpu-unavailable",
        title="CUDA cannot use a GPU",
        looks_for="Look for a GPU that is there, but on which CUDA cannot start.",
        find=others_matching(_UNAVAILABLE, "busy or unavailable", "cudaErrorDevicesUnavailable"),
        subject=_who_or("the process that prints it"),
        why="The GPU is there, but CUDA could not start on it: another process has it for itself (compute mode "
        "Exclusive), or the GPU or its driver is in a bad state and needs a reset.",
        do="On that host, look at nvidia-smi -q -d COMPUTE and the processes of nvidia-smi, and at dmesg for Xid and "
        '"Reset required". Reset the GPU (nvidia-smi -r -i N) or reboot.',
        source="CUDA Runtime API, cudaErrorDevicesUnavailable",
        causes=("worker-exited", "rank-died", "nccl-timeout", "driver-message"),
    ),
    LineRule(
        code="unused-parameters",
        title="Parameters without a gradient stop DDP",
        looks_for="Look for the error of DDP about parameters that the loss does not depend on.",
        find=others_matching(_NO_GRADIENT, "did not receive grad for rank", "Expected to have finished reduction"),
        subject=_who_or("the ranks that print it"),
        why="DDP waits for a gradient of every parameter, and some got none in the last step: the loss does not depend "
        "on them, on all ranks or only on this one. NCCL and the network are not at fault.",
        do="Pass find_unused_parameters=True to DistributedDataParallel, or freeze what is not used "
        "(requires_grad=False). TORCH_DISTRIBUTED_DEBUG=DETAIL prints the names; if they differ between ranks, look "
        "for a branch that depends on the data.",
        source="pytorch/torch/csrc/distributed/c10d/reducer.cpp",
        causes=("worker-exited", "nccl-timeout"),
    ),
    LineRule(
        code="size-mismatch",
        title="Two ranks disagree on the size of a transfer",
        looks_for="Look for a message of Gloo that is larger than the buffer of its receiver.",
        find=others_matching(_SIZES_OF_GLOO, "op.preamble.length <= op.nbytes"),
        subject=_who_or("the rank that prints it"),
        why="Gloo got a message of {sent} bytes where this rank expected {expected}: the ranks are in different "
        "collectives, or call the same one with different sizes or types.",
        do="Check that all ranks make the same calls on the CPU group in the same order, with equal shapes and types; "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL compares them.",
        source="pytorch/gloo gloo/transport/tcp/pair.cc",
        causes=("rank-died", "worker-exited"),
    ),
    LineRule(
        code="workers-slow",
        title="An engine waits for its workers",
        looks_for="Look for vLLM's message queue that its readers do not empty.",
        find=others_having("No available shared memory broadcast block found", "No available block found in"),
        level="info",
        subject=_who_or("the engine that prints it"),
        why="The engine of vLLM has waited a minute or longer for its workers. During compilation, loading or a long "
        "step this is normal. If it repeats without an end, a worker hangs or has ended; these lines do not show "
        "which.",
        do="If it repeats, look for the first error of a worker above, and get the stacks of all workers (py-spy dump "
        "--native). /dev/shm is not the reason, whatever the text suggests.",
        source="vllm/distributed/device_communicators/shm_broadcast.py",
    ),
    LineRule(
        code="nvlink-error",
        title="A program met an uncorrectable NVLink error",
        looks_for="Look for an uncorrectable NVLink error that a program received. It does not show which end of the "
        "link failed.",
        find=others_having("uncorrectable NVLink error", "cudaErrorNvlinkUncorrectable"),
        subject=_nvlinks_of,
        why="An NVLink of this GPU had an error that could not be corrected, so the driver ended the work on it. The "
        "text does not show which link, or which end of it.",
        do="On that host, look for Xid 74 and 144 to 150 and SXid in dmesg, and run nvidia-smi nvlink -e. Reset the "
        "GPUs (nvidia-smi -r) with the fabric manager, and take the host out if it happens again.",
        source="CUDA Runtime API, cudaErrorNvlinkUncorrectable",
        causes=("nccl-timeout", "rank-died", "worker-exited"),
    ),
    LineRule(
        code="fork-after-init",
        title="CUDA was used before a fork",
        looks_for="Look for a child process that uses CUDA although its parent had started it before the fork.",
        find=others_having("Cannot re-initialize CUDA in forked subprocess"),
        subject=_who_or("the child processes"),
        why="The parent process had already used CUDA when it forked. A child of such a fork can use neither CUDA nor "
        "NCCL.",
        do="Start the processes with torch.multiprocessing.set_start_method('spawn') or 'forkserver', or do not touch "
        "CUDA (torch.cuda.is_available() included) before the fork. vLLM: VLLM_WORKER_MULTIPROC_METHOD=spawn.",
        source="pytorch/torch/cuda/__init__.py, _lazy_init",
        causes=("worker-exited",),
    ),
    graph_capture,
    dtype_unsupported,
    LineRule(
        code="cuda-error",
        title="A kernel failed on the GPU",
        looks_for="Look for failed kernels. The error appears at a later call, such as one of the watchdog.",
        find=others_matching(
            _CUDA_ERROR, "illegal memory access", "device-side assert", "launch failure", "misaligned"
        ),
        subject=_who_or("the rank that prints it"),
        why="A kernel failed ({error}). CUDA reports it at a later call, so the line that prints it, which often "
        "comes from NCCL's watchdog, is usually not where it failed.",
        do="Run with CUDA_LAUNCH_BLOCKING=1, or with compute-sanitizer on one rank, to find the kernel. Check whether "
        "one host is always affected (dmesg for Xid), and whether NCCL is recent enough for the GPU.",
        source="CUDA Runtime API, error codes",
        causes=("nccl-timeout", "rank-died", "worker-exited"),
    ),
    LineRule(
        code="too-many-open-files",
        title="The limit of open files is reached",
        looks_for="Look for the error of the system about open files, which sockets count as.",
        find=having("Too many open files", "received 0 items of ancdata"),
        subject=_who_or("the process that prints it"),
        why="A process reached its limit of open files. NCCL opens sockets per rank and channel, so the number grows "
        "with the job.",
        do='Raise the limit in the shell or unit that starts the ranks: ulimit -n "$(ulimit -Hn)" before srun or '
        "mpirun, LimitNOFILE= for systemd, --ulimit nofile=1048576 for Docker. Check it with ulimit -n on every host.",
        source="accept(2), socket(2): EMFILE",
        causes=("rank-died", "worker-exited", "net-unreachable"),
    ),
)
