"""Lines of NCCL that look wrong but are normal, a log without faults, and warnings that no rule knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_channels import read_patterns
from meshlab.diagnosis.formats._nccl_lines import (
    NOT_NAMED,
    LastError,
    NcclMessage,
    affected,
    hosts_of,
    is_one_host,
    messages,
    number_list,
    read_communicators,
    read_hosts,
    read_last_errors,
    read_networks,
    read_ports,
    read_warnings,
    text_list,
    warnings_with,
)
from meshlab.diagnosis.rules._jobs import is_echo_text, read_echoes
from meshlab.diagnosis.rules._line_rules import LineRule, Lines, having, rules_of

_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_MOST = 200  # lines of one kind that are named

# -- normal ------------------------------------------------------------------------------------------------------------


@rule("plugin-not-found", "NCCL uses its own network code", source=f"{_ENV}#nccl-net-plugin")
def plugin_not_found(paste: Paste) -> Iterator[TextFinding]:
    """No external plugin was found, or an older or newer interface of a plugin was tried first."""
    lines = paste.numbers("No plugin found", "Could not find: libnccl", "librccl-net.so: cannot open", "Plugin load")
    lines = [number for number in lines if "lugin" in paste.line(number).text]
    symbols = [
        item.line
        for item in messages(paste, "Failed to find nccl", "Failed to find ncclNetPlugin_v")
        if re.search(r"Plugin(?:_v\d+)? symbol", item.text)
    ]
    for numbers, why in (
        (
            lines,
            "NCCL looks for optional plugins (network, tuner, profiler) and uses its own code without them, also "
            "for InfiniBand and RoCE.",
        ),
        (
            symbols,
            "NCCL tries the interfaces of a plugin from the newest to the oldest. A symbol that is not found "
            "only means that the plugin has a different one.",
        ),
    ):
        if numbers:
            hosts = text_list(hosts_of(paste, numbers[:_MOST])[:8])
            yield plugin_not_found.finding("normal", hosts, why, lines=numbers[:_MOST])


@rule("pattern-without-channels", "A pattern is not possible on this machine", source="NCCL src/graph/search.cc")
def pattern_without_channels(paste: Paste) -> Iterator[TextFinding]:
    """The search found no channels for CollNet or NVLS."""
    unused = [item for item in paste.once(read_patterns) if item.n_channels == 0 and item.pattern in (3, 5, 6)]
    if unused:
        names = {3: "CollNet trees", 5: "NVLS", 6: "direct CollNet"}
        kinds = text_list([names[pattern] for pattern in sorted({item.pattern for item in unused})])
        yield pattern_without_channels.finding(
            "normal",
            text_list(list(dict.fromkeys(item.host for item in unused if item.host))[:8]),
            f"A pattern with 0 channels only means that {kinds} cannot be used here. The patterns that matter are "
            "rings (4) and trees (1 and 2).",
            lines=[item.line for item in unused[:_MOST]],
        )


@rule("no-rdma-device", "No RDMA device", source="NCCL src/transport/net_ib.cc")
def no_rdma_device(paste: Paste) -> Iterator[TextFinding]:
    """There is no InfiniBand or RoCE device, and the job does not need one."""
    lines = paste.numbers("NET/IB : No device found", "Failed to open libibverbs", "Failed to initialize NET plugin IB")
    if lines and is_one_host(paste) is True:
        yield no_rdma_device.finding(
            "normal",
            text_list(hosts_of(paste, lines[:_MOST])[:8]),
            "There is no RDMA device. A job on one host does not need a network.",
            lines=lines[:_MOST],
        )
    elif (
        not paste.once(read_networks)
        and not paste.numbers("NET/Socket")
        and (warnings := [item.line for item in warnings_with(paste, "Failed to open libibverbs")])
    ):
        yield no_rdma_device.finding(
            "info",
            text_list(hosts_of(paste, warnings[:_MOST])[:8]) or NOT_NAMED,
            "NCCL did not find the library for InfiniBand and RoCE, and goes on without it. A job on one host does not "
            "need it. Between hosts, NCCL then uses TCP.",
            "If the hosts have RDMA NICs, install libibverbs (rdma-core), also in the container.",
            warnings[:_MOST],
        )


@rule("device-number-odd", "A thread without a device", source="NCCL src/debug.cc")
def device_number_odd(paste: Paste) -> Iterator[TextFinding]:
    """The number in brackets is -1 or very large."""
    threads = [
        number
        for number in paste.numbers(" [-1] NCCL", "] NCCL INFO Bootstrap", "] NCCL INFO cudaDriverVersion")[:_MOST]
        if (match := re.search(r"\d \[(-?\d+)\] NCCL", paste.line(number).text)) and not 0 <= whole(match[1]) < 128
    ]
    if threads:
        yield device_number_odd.finding(
            "normal",
            text_list(hosts_of(paste, threads)[:8]),
            "The number in brackets is the CUDA device of the thread, not the rank. Before a thread has a device, it "
            "is -1 or arbitrary.",
            lines=threads,
        )


@rule("connect-retried", "A connection was tried again", source="NCCL src/misc/socket.cc")
def connect_retried(paste: Paste) -> Iterator[TextFinding]:
    """A connection was refused and is tried again."""
    lines = [
        item.line
        for item in messages(paste, "Connection refused, retrying", "Connection refused), retrying", "retrying (")
        if item.level != "WARN"
    ]
    if not lines:
        return
    echoes = paste.once(read_echoes)
    if not any("onnect" in item.text and item.line not in echoes for item in paste.once(read_warnings)):
        yield connect_retried.finding(
            "normal",
            affected(paste, lines[:_MOST]),
            "A rank tried to connect before its peer was ready, and tries again. Only a warning after the last "
            "attempt is an error.",
            lines=lines[:_MOST],
        )


_RETURN = re.compile(r"^(?:\S*/)?\w+\.(?:cc|cu|h|c|cpp):\d+(?: \(\w+\))? -> \d+")
_GENERIC = (
    "please report this issue to the NCCL developers",
    "unhandled system error (run with",
    "Internal check failed",
)


def _traces(paste: Paste) -> tuple[NcclMessage, ...]:
    """Return the lines with which each function that passes an error on names itself."""
    sources = messages(paste, ".cc:", ".cu:", ".h:", ".cpp:")
    return tuple(item for item in sources if item.level == "INFO" and _RETURN.match(item.text))


@rule("nccl-echo", "Lines that repeat an error", source="NCCL src/include/checks.h, src/proxy.cc")
def nccl_echo(paste: Paste) -> Iterator[TextFinding]:
    """Return traces, and warnings that only say that something failed before."""
    warnings = paste.once(read_warnings)
    echoes = sorted(paste.once(read_echoes))
    traces = [item.line for item in paste.once(_traces)]
    generic = paste.numbers(*_GENERIC)
    has_cause = len(echoes) < len(warnings)
    if (echoes and has_cause) or traces or generic:
        lines = [*(echoes if has_cause else ()), *traces, *generic]
        yield nccl_echo.finding(
            "normal",
            affected(paste, lines[:_MOST]),
            "These lines pass an error on. The cause is in the first warning before them; the last line of all, such "
            'as "internal error" or "unhandled system error", does not show it.',
            lines=lines[:_MOST],
        )


# -- a log without faults ----------------------------------------------------------------------------------------------

_FAILURES = (
    *("Traceback (most recent", "Test NCCL failure", "Test CUDA failure", "Cuda failure", "ncclInternalError"),
    *("ncclSystemError", "ncclUnhandledCudaError", "ncclInvalidUsage", "ncclRemoteError", "Signal: "),
    *("Watchdog caught", "Segmentation fault", "Killed", "hang", "Abort COMPLETE", "timed out", "SIGTERM", "error:"),
)


@rule("nothing-wrong", "NCCL's lines show a healthy state", source="NCCL src/init.cc, src/graph/paths.cc")
def nccl_healthy(paste: Paste) -> Iterator[TextFinding]:
    """There is no warning or failure, and NCCL connected its ranks, or lists its network or its paths."""
    if paste.once(read_warnings) or paste.numbers(*_FAILURES):
        return
    comms = paste.once(read_communicators)
    complete = [item for item in comms if item.state in ("complete", "destroyed")]
    connected = messages(paste, "Connected all rings", "Connected all trees")
    fast = [item for item in paste.once(read_networks) if item.name != "Socket"]
    paths = [item for item in messages(paste, "/LOC)", "/NVL)") if re.match(r"(?:GPU|NET)/\S+ :", item.text)]
    if complete:
        ranks = sorted({item.rank for item in complete if item.n_ranks == max(c.n_ranks for c in complete)})
        sentence = f"{number_list(ranks, 'rank').capitalize()} finished the setup of NCCL without a warning."
        lines = [item.line for item in complete]
    elif connected:
        lines = [item.line for item in connected]
        sentence = f"{affected(paste, lines)} connected all rings{_and_trees(connected)} without a warning."
    elif fast:
        lines = [item.line for item in fast]
        ports = {item.host: item.devices for item in paste.once(read_ports)}
        counts = sorted({len(devices) for devices in ports.values() if devices})
        nics = f" with {counts[0]} RDMA port{'s' if counts[0] > 1 else ''}" if len(counts) == 1 else ""
        sentence = f"NCCL uses the network {fast[0].name}{nics}, and prints no warning."
    elif paths:
        lines = [item.line for item in paths]
        sentence = f"The paths between GPUs and NICs are complete: {_path_summary(paths)}."
    else:
        return
    yield nccl_healthy.finding(
        "info",
        affected(paste, lines[:_MOST]) or text_list(paste.once(read_hosts)[:8]),
        f"{sentence} Nothing in these lines of NCCL is wrong.",
        "If the job hangs anyway, it hangs after these lines: collect flight recorder dumps or the output of ncclras, "
        "and the logs of all ranks."
        if connected and not complete
        else "",
        lines[:_MOST],
    )


def _and_trees(connected: list[NcclMessage]) -> str:
    return " and trees" if any("trees" in item.text for item in connected) else ""


_STEP = re.compile(r"(GPU|NET)/([0-9A-Fa-f-]+) \(\d+/([\d.]+)/(\w+)\)")


def _path_summary(paths: list[NcclMessage]) -> str:
    parts = []
    for item in paths[:4]:
        node = item.text.partition(" :")[0]
        steps = [match for match in _STEP.findall(item.text) if f"{match[0]}/{match[1]}" != node]
        gpus = {kind for what, _, _, kind in steps if what == "GPU"}
        best = [
            kind
            for kind in ("PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
            if any(s[0] == "NET" and s[3] == kind for s in steps)
        ]
        nets = [f"NET/{number}" for what, number, _, kind in steps if what == "NET" and best and kind == best[0]]
        text = f"{node} reaches the other GPUs by {text_list(sorted(gpus))}" if gpus else node
        parts.append(f"{text}, and {text_list(nets[:8])} by {best[0]}" if nets else text)
    return "; ".join(parts)


# -- warnings that no rule knows ---------------------------------------------------------------------------------------

_EXPLAINED = (
    *("onnect to ", "Call to connect", "interface found", "no device found", "is neither AF_INET", "address info"),
    *("from procs", "already checked in", "wrong magic", "wrong type", "exceeded ", "NET/OFI", "libibverbs", "async"),
    *("Got completion", "modify_qp", "incompatible", "ibv_reg", "ibv_create", "RLIMIT", "GID table", "mixed local"),
    *("Unable to open device", "Unable to query device", "shared memory", "/dev/shm", "posix_fallocate", "same GPU"),
    *("P2P is disabled", "NVLink SHARP", "not working on this system", "Duplicate GPU", "Mismatched"),
    *("version mismatch", "Driver version", "mismatch error", "truncated", "incorrect receive", "collective mismatch"),
    *('Missing "', "NUMA auto", "out of memory", "Failed to CUDA", "Too many open files", "uncorrectable ECC"),
    *("IPC handle", "hipIpcGetMemHandle", "hipIpcOpenMemHandle"),
)
_EXPLAINED_CUDA = (
    *("illegal memory access", "unspecified launch failure", "misaligned address", "illegal instruction", "assert"),
    *("out of memory", "system not yet initialized", "named symbol not found", "invalid device function", "ECC"),
    *("no kernel image", "driver version is insufficient", "peer mapping resources", "operation not supported"),
)


def _is_explained(item: NcclMessage, words: Sequence[str]) -> bool:
    if "Cuda failure" in item.text:
        by_source = any(name in (item.source or "") for name in ("shm.cc", "p2p.cc", "nvls.cc"))
        return by_source or any(text in item.text for text in _EXPLAINED_CUDA)
    return any(map(item.text.__contains__, words))


# The files of NCCL whose functions a program calls. A trace that reaches them is a call that failed.
_FAILED_CALL = re.compile(
    r"(?:^|/)(?:group|init|enqueue|collectives|dev_runtime|register)\.(?:cc|cu):\d+(?: \(\w+\))? -> ([1-6])\b"
)
_RESULTS = {
    "1": "an error of CUDA",
    "2": "a system error",
    "3": "an internal error",
    "4": "an invalid argument",
    "5": "an invalid usage",
    "6": "an error of another process",
}
_ISSUES = "https://github.com/NVIDIA/nccl/issues"


@rule("unknown-warning", "A warning that no rule knows", source="NCCL src")
def unknown_warning(paste: Paste) -> Iterator[TextFinding]:
    """The first warning of NCCL that is neither known nor an echo, also as PyTorch repeats it."""
    echoes = paste.once(read_echoes)
    normal = paste.once(_taken_ras_ports)
    words = [word for word in _EXPLAINED if paste.may_contain(word)]
    warnings = paste.once(read_warnings)
    passed_over = (item.line in echoes or item.line in normal or _is_explained(item, words) for item in warnings)
    unknown = [item for item, is_known in zip(warnings, passed_over, strict=True) if not is_known]
    if unknown:
        yield _warning_finding(paste, unknown)
    elif not warnings and (last := _last_error(paste, is_known=_is_known_text)) is not None:
        yield _last_error_finding(last)


def overlooked_warnings(paste: Paste, findings: Sequence[TextFinding]) -> Iterator[TextFinding]:
    """Return a finding about warnings of NCCL that no other finding covers, so that none is under "no problem"."""
    if any(item.severity == "error" for item in findings):
        return
    covered = {line for item in findings if item.code != nccl_echo.code for line in item.lines}
    causes = {line for item in findings if item.severity == "warning" for line in item.lines}
    warnings = paste.once(read_warnings)
    echoes = paste.once(read_echoes) if any(item.line in causes for item in warnings) else frozenset()
    if rest := [item for item in warnings if item.line not in covered and item.line not in echoes]:
        yield _warning_finding(paste, rest)
    elif not warnings and not causes and (last := _last_error(paste)) is not None and last.line.number not in covered:
        yield _last_error_finding(last)


def _warning_finding(paste: Paste, warnings: Sequence[NcclMessage]) -> TextFinding:
    first = warnings[0]
    where = f" ({first.source})" if first.source else ""
    text = first.text if len(first.text) <= 160 else f"{first.text[:159]}…"
    why = f'NCCL warns: "{text.strip()}"{where}. meshlab has no rule for this warning.'
    if failed := _failed_calls(paste):
        why += f" The call of the program failed with {_RESULTS[failed[-1][1]]} (ncclResult {failed[-1][1]})."
    elif (result := re.search(r"\b(?:res=|retcode )([1-6])\b", first.text)) is not None:
        why += f" The result {result[1]} is {_RESULTS[result[1]]}; ranks that wait for this one hang."
    do = f"Read the lines around it, and search for its text in {_ISSUES}."
    lines = [item.line for item in warnings[:_MOST]]
    return unknown_warning.finding("error" if failed else "warning", affected(paste, [first]), why, do, lines)


def _failed_calls(paste: Paste) -> list[re.Match[str]]:
    """Return the traces that reach a function that the program calls."""
    return [match for item in paste.once(_traces) if (match := _FAILED_CALL.search(item.text))]


def _last_error_finding(last: LastError) -> TextFinding:
    return unknown_warning.finding(
        "warning",
        "the rank that prints it" if last.line.rank is None else f"rank {last.line.rank}",
        f'The last error of NCCL is "{last.text[:160]}". meshlab has no rule for it.'
        + (" XLA notes that it may be unrelated to the call that failed." if last.may_be_unrelated else ""),
        "Run again with NCCL_DEBUG=INFO, read the first NCCL WARN of each rank, and search for this text in "
        f"{_ISSUES}.",
        [last.line],
    )


def _is_known_text(text: str) -> bool:
    """Return whether a rule may know the text of a last error."""
    words: tuple[str, ...] = _EXPLAINED_CUDA if "Cuda failure" in text else (*_EXPLAINED, "reverse path")
    return is_echo_text(text) or any(word in text for word in words)


def _last_error(paste: Paste, is_known: Callable[[str], bool] = lambda text: False) -> LastError | None:
    """Return the first last error that a framework prints, if no rule knows it."""
    return next((last for last in paste.once(read_last_errors) if not is_known(last.text)), None)


# -- the port of RAS ---------------------------------------------------------------------------------------------------


def _taken_ras_ports(paste: Paste) -> frozenset[int]:
    """Return the lines about the port of RAS: it has one number per host, and the first job takes it."""
    binds = warnings_with(paste, "Call to bind failed: Address already in use")
    ras = [item.line for item in messages(paste, "RAS failed to establish a client listening socket")]
    may_be_ras = "" if _failed_calls(paste) else "ras/"  # a line without the file of its source
    return frozenset([*ras, *(item.line for item in binds if "ras/" in (item.source or may_be_ras))])


@rule("ras-port-taken", "The port of RAS is taken", source="NCCL src/ras/client_support.cc (2.24 and newer)")
def ras_port_taken(paste: Paste) -> Iterator[TextFinding]:
    """The socket for clients of RAS, which all jobs of a host open at the same port, is taken."""
    if lines := sorted(paste.once(_taken_ras_ports))[:_MOST]:
        yield ras_port_taken.finding(
            "normal",
            text_list(hosts_of(paste, lines)[:8]),
            "NCCL opens a port for ncclras, 28028 by default, and another process of this host has it, usually one of "
            "another job. The job runs as usual; only ncclras cannot ask it. NCCL_RAS_ADDR gives it another port, and "
            "NCCL_RAS_ENABLE=0 none.",
            lines=lines,
        )


_DETAILS = (
    *("Topology detection : could not read", "Could not find real path of", "dlvsym failed on"),
    *("is not a PCI device (virtio)", "Affinity for GPU", "Failed to open mlx5dv symbols", "Failed to open libmlx5"),
)


def _details_not_read(paste: Paste) -> Lines:
    """Find the notes about details. Of a warning about one, NCCL may not continue."""
    warnings = {item.line for item in warnings_with(paste, *_DETAILS)}
    return Lines([number for number in paste.numbers(*_DETAILS) if number not in warnings])


NCCL_NORMAL_RULES = rules_of(
    __name__,
    nccl_healthy,
    unknown_warning,
    ras_port_taken,
    plugin_not_found,
    LineRule(
        code="nvls-not-available",
        title="NVLink SHARP is not available",
        looks_for="NVLS is not available, or has no channels.",
        find=having("NVLS multicast support is not available", ", 0 nvls channels"),
        level="normal",
        why=(
            "NVLink SHARP needs Hopper or newer with NVSwitches of the third generation or newer. "
            "Without it there are 0 NVLS channels, and NCCL uses rings and trees."
        ),
        source=f"{_ENV}#nccl-nvls-enable",
    ),
    pattern_without_channels,
    LineRule(
        code="p2p-not-used-for-pair",
        title="NCCL does not use P2P for a pair of GPUs",
        looks_for="NCCL notes that it cannot enable P2P between two GPUs.",
        find=having("Could not enable P2P between dev"),
        level="normal",
        why=(
            "NCCL tests P2P for each pair of GPUs. Without P2P, data goes through shared memory: slower, but correct."
        ),
        source="NCCL src/transport/p2p.cc",
    ),
    LineRule(
        code="not-readable",
        title="Details of the machine cannot be read",
        looks_for="NCCL cannot read a file below ``/sys``, or does not find an optional symbol.",
        find=_details_not_read,
        level="normal",
        subject="{hosts}",
        why=(
            "In virtual machines and containers some files of /sys are missing, and older libraries lack optional "
            "functions. NCCL continues without them; it may then know less about speeds and distances."
        ),
        source="NCCL src/graph/xml.cc, src/transport/net_socket.cc",
    ),
    no_rdma_device,
    device_number_odd,
    connect_retried,
    nccl_echo,
)
