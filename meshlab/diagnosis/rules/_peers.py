"""Rules for GPUs and libraries as NCCL sees them: P2P, NVLink, NVLS, the fabric, the same GPU twice, versions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_lines import (
    CUDA_FAILURE,
    NOT_NAMED,
    affected,
    hosts_of,
    is_one_host,
    message_of,
    messages,
    number_list,
    pci_address,
    read_communicators,
    read_cuda_failures,
    read_versions,
    text_list,
    warnings_with,
)
from meshlab.diagnosis.rules._line_rules import (
    LineRule,
    Lines,
    cuda_failures,
    having,
    hosts_of_variables,
    matching,
    rules_of,
    variable_is,
    warnings_matching,
)
from meshlab.nccl_tests._info import version_from_code

_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLESHOOTING = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_PATHS = "NCCL src/graph/paths.cc"

# -- P2P ---------------------------------------------------------------------------------------------------------------

_DISABLED = re.compile(r"P2P is disabled between (?P<nvlink>NVLINK )?connected GPUs (\d+) and (\d+)")
_P2P_FAILURE = re.compile(
    r"(?:failed to open CUDA IPC handle|failed to peer with device [^:]*) ?: (?P<code>\d+) (?P<text>.*)"
)


def _disabled_pairs(paste: Paste, *, nvlink: bool) -> Lines:
    """Find the lines about GPUs without P2P that NVLink connects, or does not."""
    matches = paste.matches(_DISABLED, "P2P is disabled between ")
    return Lines([line.number for line, match in matches if bool(match["nvlink"]) == nvlink])


def _connected_gpus(paste: Paste, numbers: Sequence[int]) -> str:
    pairs = (match for number in numbers if (match := _DISABLED.search(paste.line(number).text)))
    gpus = number_list((whole(gpu) for match in pairs for gpu in match.group(2, 3)), "GPU")
    names = sorted(hosts_of(paste, numbers))
    return f"{gpus} of {text_list(names[:6])}" if names else gpus


def _p2p_failures(paste: Paste) -> Iterator[tuple[int, str]]:
    """Yield the lines of the P2P transport's warnings about CUDA, with the text of the error."""
    for item in warnings_with(paste, "Cuda failure ", "open CUDA IPC handle", "failed to peer with device"):
        match = CUDA_FAILURE.search(item.text) or _P2P_FAILURE.search(item.text)
        if match and "p2p.cc" in (item.source or ""):
            yield item.line, match["text"].strip()


def _failed_imports(paste: Paste) -> Lines:
    return Lines([number for number, text in _p2p_failures(paste) if "invalid device ordinal" in text])


def _other_p2p_failures(paste: Paste) -> Lines:
    """Find the failures that no other rule explains, and the text of the first."""
    explained = ("invalid device ordinal", "out of memory", "peer mapping resources")
    texts = {number: text for number, text in _p2p_failures(paste) if not any(word in text for word in explained)}
    return Lines(list(texts), {"text": next(iter(texts.values()), "")})


# -- NVLS and the fabric -----------------------------------------------------------------------------------------------


@rule(
    "nvls-fabric",
    "NVLink SHARP does not work",
    source=(f"{_ENV}#nccl-nvls-enable", "https://github.com/NVIDIA/nccl/issues/1788", "NCCL src/transport/nvls.cc"),
    causes=("rank-died",),
)
def nvls_fabric(paste: Paste) -> Iterator[TextFinding]:
    """Memory for NVLink SHARP cannot be bound, or the NVLS transport fails in CUDA."""
    lines = [line.number for line in paste.find("Failed to bind NVLink SHARP")]
    lines += [
        item.line
        for item, match in paste.once(read_cuda_failures)
        if "nvls.cc" in (item.source or "") and "out of memory" not in match["text"]
    ]
    if lines:
        who = affected(paste, lines)
        yield nvls_fabric.finding(
            "error",
            who if who != NOT_NAMED else f"the host of {NOT_NAMED}",
            "Setting up multicast memory for NVLink SHARP (NVLS) failed: the NVSwitches or the fabric manager of this "
            "host are in a bad state, or a container lacks what they need.",
            "On this host: systemctl status nvidia-fabricmanager, nvidia-smi -q (Fabric: Completed, Success), dmesg "
            "for Xid and SXid. Restart the fabric manager and reset the GPUs, or reboot. Until then, "
            "NCCL_NVLS_ENABLE=0 turns NVLS off, at the cost of bandwidth.",
            lines,
        )


_FABRIC = re.compile(r"MNNVL busId 0x(?P<bus>\w+) fabric UUID (?P<uuid>\S+) cliqueId \S+ state (?P<state>\d)")


@rule(
    "fabric-unhealthy",
    "The NVLink fabric is not ready",
    source=("https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/", "NCCL src/mnnvl.cc"),
    causes=("nvls-fabric", "rank-died"),
)
def fabric_not_ready(paste: Paste) -> Iterator[TextFinding]:
    """CUDA reports error 802, or NCCL sees a GPU whose registration with the fabric is not complete."""
    if lines := paste.find("system not yet initialized"):
        yield fabric_not_ready.finding(
            "error",
            affected(paste, lines),
            "CUDA error 802 (system not yet initialized): on machines with NVSwitch, CUDA cannot be used until the "
            "fabric manager has set up the switches.",
            "Start a fabric manager of the same version as the driver: systemctl enable --now nvidia-fabricmanager. "
            "Read its log (/var/log/fabricmanager.log).",
            lines,
        )
    # The fields are those of nvmlGpuFabricInfo_t: 1 is not started, 2 is in progress.
    waiting = [(line, match) for line, match in paste.matches(_FABRIC, "MNNVL busId ") if match["state"] in "12"]
    if waiting:
        gpus = [pci_address(match["bus"]) for _, match in waiting]
        yield fabric_not_ready.finding(
            "warning",
            f"{text_list(hosts_of(paste, [line.number for line, _ in waiting])[:6])}, GPU {text_list(gpus[:8])}".lstrip(
                ", "
            ),
            "The registration of these GPUs with the NVLink fabric is not complete, so NVLink SHARP and NVLink "
            "between hosts are not available to them.",
            "Check the fabric manager of this host (systemctl status nvidia-fabricmanager) and nvidia-smi -q (Fabric).",
            [line for line, _ in waiting],
        )


@rule(
    "imex-not-working",
    "NVLink between hosts is available, but it does not work",
    source=(f"{_ENV}#nccl-mnnvl-enable", "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/"),
    causes=("rank-died",),
)
def imex_not_working(paste: Paste) -> Iterator[TextFinding]:
    """NCCL warns that multi-node NVLink is available, but not working."""
    if lines := paste.find("is available but not working on this system"):
        channel = any("channel" in line.text for line in lines)
        yield imex_not_working.finding(
            "error",
            affected(paste, lines),
            "The GPUs belong to an NVLink domain of several hosts, but memory cannot be shared through it: the "
            + ("IMEX channel is missing in this process." if channel else "IMEX service does not connect these hosts."),
            "Check that nvidia-imex runs on every host with the same nodes_config.cfg (nvidia-imex-ctl -N), and that "
            "the container has a channel (ls /dev/nvidia-caps-imex-channels). NCCL_MNNVL_ENABLE=0 uses the network "
            "instead.",
            lines,
        )


# -- the same GPU, versions --------------------------------------------------------------------------------------------

_DUPLICATE = re.compile(r"Duplicate GPU detected : rank (\d+) and rank (\d+) both on CUDA device ([0-9a-f]+)")


@rule(
    "duplicate-gpu",
    "Several ranks use the same GPU",
    source=("NCCL src/init.cc (2.5 to 2.30)", "https://github.com/NVIDIA/nccl/issues/1241"),
    causes=("rank-died",),
)
def duplicate_gpu(paste: Paste) -> Iterator[TextFinding]:
    """NCCL reports ranks with the same GPU, in the old or the new wording."""
    do = (
        "Start at most as many ranks per host as it has GPUs, and select the GPU by the local rank before the first "
        "call: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), or CUDA_VISIBLE_DEVICES for each rank."
    )
    by_gpu: dict[tuple[str | None, str], tuple[set[int], list[int]]] = defaultdict(lambda: (set(), []))
    for line, match in paste.matches(_DUPLICATE, "Duplicate GPU detected"):
        ranks, lines = by_gpu[message_of(line).host, match[3]]
        ranks.update((whole(match[1]), whole(match[2])))
        lines.append(line.number)
    for (host, bus), (ranks, lines) in by_gpu.items():
        gpu = pci_address(bus)
        yield duplicate_gpu.finding(
            "error",
            f"{number_list(ranks, 'rank')} (GPU {gpu}{f' of {host}' if host else ''})",
            f"{number_list(ranks, 'rank').capitalize()} use the same GPU, {gpu}. There are more ranks than GPUs on "
            "this host, or every process takes its default device.",
            do,
            lines,
        )
    new = messages(paste, "Multiple Ranks are using the same GPU", "Multiple ranks detected using the same GPU")
    if new and not by_gpu:
        by_device: dict[tuple[str | None, int | None], set[int]] = defaultdict(set)
        for item in new:
            if item.pid is not None:
                by_device[item.host, item.device].add(item.pid)
        parts = [
            f"{number_list(pids, 'process')} of {host}" + (f", CUDA device {device}" if device is not None else "")
            for (host, device), pids in by_device.items()
        ]
        yield duplicate_gpu.finding(
            "error",
            "; ".join(parts[:6]),
            "Several ranks of this host use the same GPU. This version of NCCL does not name them"
            + ("; the lines show the processes and the device that each takes." if parts else "."),
            f"{do} Sharing a GPU on purpose needs NCCL 2.30 and the variable that allows it.",
            [item.line for item in new],
        )


_MISMATCH = re.compile(r"Mismatched NCCL version detected : rank (\d+) version (\d+) rank (\d+) version (\d+)")
_PEER_VERSION = re.compile(r"NCCL version mismatch with remote peer (\S+) \(local: (\d+), remote (\d+)\)")


def _spell(code: str) -> str:
    return version_from_code(whole(code)) or code


@rule(
    "version-mismatch",
    "Ranks use different versions of NCCL",
    source="NCCL src/init.cc (2.23 and newer)",
    causes=("rank-died",),
)
def version_mismatch(paste: Paste) -> Iterator[TextFinding]:
    """NCCL says so, or processes of one job print different versions."""
    do = (
        "Make all ranks use the same library: see which libnccl.so.2 each process loads (NCCL_DEBUG=VERSION, ldd, grep "
        "nccl /proc/PID/maps): the wheel of pip, the package of the system, or one from LD_LIBRARY_PATH or LD_PRELOAD."
    )
    hosts = {item.version.partition("+")[0]: item.host for item in paste.once(read_versions) if item.host}
    if mismatches := paste.matches(_MISMATCH, "Mismatched NCCL version detected"):
        sides: dict[str, set[int]] = defaultdict(set)
        for _, match in mismatches:
            sides[_spell(match[2])].add(whole(match[1]))
            sides[_spell(match[4])].add(whole(match[3]))
        parts = [
            f"{number_list(ranks, 'rank')}{f' on {hosts[version]}' if hosts.get(version) else ''} ({version})"
            for version, ranks in sides.items()
        ]
        lines = [line.number for line, _ in mismatches] + [item.line for item in paste.once(read_versions)]
        why = "The ranks loaded different versions of NCCL, which cannot work in one communicator."
        yield version_mismatch.finding("error", " against ".join(parts), why, do, lines)
        return
    if peers := paste.matches(_PEER_VERSION, "NCCL version mismatch with remote peer"):
        line, match = peers[0]
        subject = f"{affected(paste, [line])} ({_spell(match[2])}) against {match[1]} ({_spell(match[3])})"
        yield version_mismatch.finding(
            "error", subject, "A process with another version of NCCL connected.", do, [line for line, _ in peers]
        )
        return
    by_version: dict[str, dict[str, int]] = defaultdict(dict)
    for item in paste.once(read_versions):
        if item.host:
            by_version[item.version.partition("+")[0]].setdefault(item.host, item.line)
    comms = {item.comm for item in paste.once(read_communicators) if item.comm}
    worlds = {item.n_ranks for item in paste.once(read_communicators)}
    # Texts of several jobs may be pasted one after the other.
    if len(by_version) > 1 and is_one_host(paste) is False and (len(comms) == 1 or len(worlds) == 1):
        yield version_mismatch.finding(
            "warning",
            " against ".join(
                f"{text_list(list(version_hosts)[:6])} ({version})" for version, version_hosts in by_version.items()
            ),
            "The hosts print different versions of NCCL. If they belong to one job, it can hang or fail.",
            do,
            [line for version_hosts in by_version.values() for line in version_hosts.values()],
        )


@rule(
    "driver-too-old", "The driver is older than NCCL needs", source="NCCL src/misc/cudawrap.cc", causes=("rank-died",)
)
def driver_too_old_for_nccl(paste: Paste) -> Iterator[TextFinding]:
    """NCCL names the version of the driver that it found, and the one that it needs."""
    pattern = re.compile(r"CUDA Driver version found is (\d+)\. Minimum requirement is (\d+)")
    if matches := paste.matches(pattern, "CUDA Driver version found is "):
        have, need = (f"{whole(code) // 1000}.{whole(code) % 1000 // 10}" for code in matches[0][1].groups())
        yield driver_too_old_for_nccl.finding(
            "error",
            affected(paste, [line for line, _ in matches]),
            f"The driver supports CUDA {have}, and this build of NCCL needs a driver for CUDA {need} or newer.",
            "Update the driver of this host, or use an NCCL that was built for an older CUDA.",
            [line for line, _ in matches],
        )
        return
    drivers = paste.matches(re.compile(r"cudaDriverVersion (\d+)"), "cudaDriverVersion ")
    builds = [item for item in paste.once(read_versions) if "+cuda" in item.version]
    if drivers and builds:
        line, match = min(drivers, key=lambda item: whole(item[1][1]))
        have_major = whole(match[1]) // 1000
        need_text = builds[0].version.partition("+cuda")[2]
        need_major = whole(need_text.partition(".")[0]) if need_text.partition(".")[0].isdecimal() else 0
        # Within one major version of CUDA, newer libraries run on older drivers.
        if have_major < need_major:
            yield driver_too_old_for_nccl.finding(
                "warning",
                affected(paste, [line]),
                f"The driver supports CUDA {have_major}.{whole(match[1]) % 1000 // 10}, and this NCCL was built for "
                f"CUDA {need_text}, a newer major version.",
                f"Update this host's driver to one for CUDA {need_major}, or use an NCCL built for CUDA {have_major}.",
                [line.number, builds[0].line],
            )


_MISSING_KERNEL = re.compile("named symbol not found|invalid device function")
_NOT_SUPPORTED = re.compile("Cuda failure (?:801 )?'operation not supported")

_ENABLE_PEER = re.compile(r"^(?!.*NCCL WARN).*peer access is not supported between these two devices")

PEER_RULES = rules_of(
    __name__,
    LineRule(
        code="nvlink-p2p-broken",
        title="GPUs with NVLink cannot use P2P",
        looks_for="NCCL warns that P2P is disabled between GPUs that NVLink connects.",
        find=partial(_disabled_pairs, nvlink=True),
        subject=_connected_gpus,
        why="NCCL sees NVLink between these GPUs, but the driver does not allow P2P between them. NCCL treats this "
        "as a hardware fault.",
        do="On this host: nvidia-smi topo -p2p r, nvidia-smi nvlink -s, dmesg | grep -i xid, and on NVSwitch systems "
        "systemctl status nvidia-fabricmanager. Reset the GPUs or reboot. NCCL_IGNORE_DISABLED_P2P=1 only hides it.",
        source=(_PATHS, "https://github.com/NVIDIA/nccl/issues/2329"),
    ),
    duplicate_gpu,
    version_mismatch,
    driver_too_old_for_nccl,
    LineRule(
        code="unsupported-arch",
        title="NCCL has no code for this GPU",
        looks_for="A kernel of NCCL is missing in its library.",
        find=cuda_failures(_MISSING_KERNEL),
        why="The library of NCCL has no kernel for this generation of GPUs: it was built for others.",
        do="Use an official build, or build NCCL with NVCC_GENCODE for this GPU, for example "
        'make src.build NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90".',
        source="https://github.com/NVIDIA/nccl/issues/1372",
    ),
    LineRule(
        code="vgpu-unsupported",
        title="The virtual GPU lacks a function that NCCL needs",
        looks_for="The initialisation of NCCL fails because CUDA does not support an operation.",
        find=warnings_matching(_NOT_SUPPORTED, "Cuda failure ", r"^(?:src/)?init\.cc"),
        why="CUDA does not support a function that NCCL needs while it starts, most often memory pools. "
        "This is usual for virtual GPUs without unified memory, and for drivers that are too old.",
        do="For a vGPU, enable unified memory for it in the hypervisor (enable_uvm=1), or pass the whole GPU through. "
        "Otherwise update the driver.",
        source="https://github.com/NVIDIA/nccl/issues/2101",
    ),
    imex_not_working,
    fabric_not_ready,
    nvls_fabric,
    LineRule(
        code="p2p-import-across-containers",
        title="The memory of a GPU in another container cannot be imported",
        looks_for="The P2P transport fails because a device does not exist in this process.",
        find=_failed_imports,
        subject="{affected} and its peer on the same host",
        why="NCCL set up P2P with a GPU that does not exist in this process (CUDA error 101, invalid device ordinal). "
        "That happens between containers on one host that each see only their own GPU.",
        do="Let each container see all GPUs of the host that belong to the job, or put these ranks into one "
        "container. NCCL_P2P_DISABLE=1 works around it, or NCCL_CUMEM_ENABLE=0 with some versions.",
        source=("https://github.com/NVIDIA/nccl/issues/1647", "NCCL src/transport/p2p.cc"),
        causes=("rank-died",),
    ),
    LineRule(
        code="too-many-peers",
        title="A GPU has too many P2P peers",
        looks_for="CUDA reports that the resources for mapping peers are exhausted.",
        find=having("peer mapping resources exhausted"),
        why="CUDA allows P2P with at most 8 peers of one GPU in a process, unless an NVSwitch connects them. This "
        "process uses more GPUs.",
        do="Use one process per GPU, or fewer GPUs per process, or NCCL_P2P_DISABLE=1 as a test.",
        source="https://github.com/NVIDIA/nccl/issues/1874",
    ),
    LineRule(
        code="p2p-failed",
        title="P2P between GPUs could not be set up",
        looks_for="The P2P transport fails with another error of CUDA.",
        find=_other_p2p_failures,
        why="The connection between two GPUs of this host failed in CUDA ({text}). The text alone does not show "
        "whether the driver, the permissions of a container or the hardware is the reason.",
        do="Try NCCL_P2P_DISABLE=1, then NCCL_CUMEM_ENABLE=0: what helps shows which part fails. Check nvidia-smi topo "
        "-p2p r and dmesg | grep -i xid on this host, and that all ranks of a host share IPC and PID namespaces.",
        source=f"{_TROUBLESHOOTING}#gpu-direct",
        causes=("rank-died",),
    ),
    LineRule(
        code="p2p-failed",
        title="P2P between GPUs could not be set up",
        looks_for="RCCL cannot share the memory of a GPU with another process.",
        find=having("hipIpcGetMemHandle failed", "hipIpcOpenMemHandle failed"),
        why="A process could not share memory of its GPU with another process of the host (HIP IPC), which P2P between "
        "processes needs. Containers without access to all GPUs of the job, a driver that does not belong to this "
        "ROCm, and settings of the IOMMU are usual reasons; the line shows none.",
        do="Give each container all GPUs of its job (/dev/kfd, /dev/dri) with --ipc=host, check that amdgpu-dkms of "
        "the host fits the ROCm of the container and that iommu=pt is set. To check, run with NCCL_P2P_DISABLE=1.",
        source=("https://github.com/ROCm/rocm-systems/pull/7864", "RCCL src/transport/p2p.cc"),
        causes=("rank-died", "unknown-warning", "warning-missing"),
    ),
    LineRule(
        code="p2p-not-supported",
        title="These GPUs have no P2P",
        looks_for="A program turns P2P on between GPUs that do not have it.",
        find=matching(_ENABLE_PEER, "peer access is not supported"),
        subject=NOT_NAMED,
        why="A program asked CUDA for P2P between GPUs for which the driver offers none. The custom all-reduce of an "
        "inference engine needs it; NCCL itself does not.",
        do="If it is an inference engine, turn its custom all-reduce off (TensorRT-LLM: build without "
        "--use_custom_all_reduce, vLLM: --disable-custom-all-reduce). nvidia-smi topo -p2p r shows which pairs have "
        "P2P.",
        source="CUDA Runtime API, cudaErrorPeerAccessUnsupported",
    ),
    LineRule(
        code="p2p-not-supported",
        title="These GPUs have no P2P",
        looks_for="NCCL notes that P2P is disabled between GPUs that are connected by PCIe only.",
        find=partial(_disabled_pairs, nvlink=False),
        level="info",
        subject=_connected_gpus,
        why="The driver does not allow P2P between these GPUs, which have no NVLink. This is usual for GeForce cards, "
        "and in many virtual machines. NCCL uses shared memory instead: slower, but correct.",
        do="No action is needed, but the container needs enough /dev/shm. If the job crashes later, this line is not "
        "the cause: look for the first warning.",
        source=(_PATHS, "https://github.com/NVIDIA/nccl-tests/issues/287"),
    ),
    LineRule(
        code="p2p-limited-by-env",
        title="A variable limits P2P",
        looks_for="``NCCL_P2P_DISABLE=1`` is set, or ``NCCL_P2P_LEVEL`` forbids P2P.",
        find=variable_is(NCCL_P2P_DISABLE=("1",), NCCL_P2P_LEVEL=("LOC", "0")),
        level="info",
        subject=hosts_of_variables,
        why="{name}={value} forbids direct copies between GPUs, also over NVLink. "
        "Data within a host goes through shared memory or the network.",
        do="Remove {name}, unless it was set to find the cause of an error.",
        source=(f"{_ENV}#nccl-p2p-disable", f"{_ENV}#nccl-p2p-level"),
    ),
)
