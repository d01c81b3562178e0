"""Rules for what test programs found out about GPUs and links: nvbandwidth, samples of CUDA, dcgmi, and perftest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from meshlab.diagnosis._findings import Level, Rule, TextFinding, first_names, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._dcgm import (
    DiagnosticTest,
    LinkStates,
    read_diagnostics,
    read_health_reports,
    read_link_states,
)
from meshlab.diagnosis.formats._gpu_pairs import (
    PairMatrix,
    read_failed_cases,
    read_pair_matrices,
    read_peer_access,
    read_test_devices,
    read_wrong_copies,
)
from meshlab.diagnosis.formats._nccl_lines import text_list
from meshlab.diagnosis.formats._perftest import read_failed_completions, read_failed_registrations
from meshlab.diagnosis.rules._gpu_faults import always_has_nvlink

_NVBANDWIDTH = "https://github.com/NVIDIA/nvbandwidth"
_SAMPLES = "https://github.com/NVIDIA/cuda-samples"
_DIAGNOSTICS = "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html"
_PERFTEST = "https://github.com/linux-rdma/perftest/issues/126"

# -- nvbandwidth and the samples of CUDA -------------------------------------------------------------------------------


@rule("wrong-results", "A copy returned wrong data", source=(_NVBANDWIDTH, _SAMPLES))
def wrong_copy(paste: Paste) -> Iterator[TextFinding]:
    """Looks for nvbandwidth and simpleP2P reporting data that differ from what was written."""
    copies = paste.once(read_wrong_copies)
    lines = [copy.line.number for copy in copies]
    tests = list(dict.fromkeys(copy.test or copy.tool for copy in copies))
    for first, name, error in paste.once(read_failed_cases):
        if "h_errorFlag" in error or "pattern" in error:
            lines.append(first)
            tests.append(name)
    if not lines:
        return
    is_between = any("device_to_device" in name or name == "simpleP2P" for name in tests)
    yield wrong_copy.finding(
        "error",
        text_list(tests[:4]),
        f"The data {'that a GPU copied from another' if is_between else 'after a copy'} differ from what was written, "
        "so results on this machine may be wrong without any error. Over PCIe, the usual reason is an IOMMU or ACS "
        "that redirects peer-to-peer transfers; over NVLink or within a GPU, it is failing hardware.",
        "Turn off the IOMMU (or boot with iommu=pt) and ACS, and repeat the test. NCCL_P2P_DISABLE=1 avoids such "
        "copies until then. Look for Xid and ECC errors in dmesg and nvidia-smi -q -d ECC.",
        lines,
    )


@rule("p2p-not-supported", "The driver offers no peer access between GPUs", source=_SAMPLES)
def no_peer_access(paste: Paste) -> Iterator[TextFinding]:
    """Looks in p2pBandwidthLatencyTest and simpleP2P for pairs of GPUs without peer access."""
    access = paste.once(read_peer_access)
    denied = [item for item in access if not item.allowed]
    if not denied:
        return
    names = read_test_devices(paste)
    gpus = sorted({item.gpu for item in access} | {item.peer for item in access})
    pairs = {(min(item.gpu, item.peer), max(item.gpu, item.peer)) for item in denied}
    groups = _groups(gpus, {(item.gpu, item.peer) for item in access if item.allowed})
    products = {name for gpu in gpus if (name := names.get(gpu)) is not None}
    has_nvlink = any(always_has_nvlink(name) for name in products)
    why = f"CUDA allows no peer access for {len(pairs)} pair{'s' * (len(pairs) > 1)} of GPUs"
    why += f", only within {text_list(groups)}." if groups else "."
    if len(products) > 1 and all(names.get(i) != names.get(j) for i, j in pairs):
        why += f" These are pairs of different products ({text_list(sorted(products))})."
    why += (
        " These products have NVLink, so peer access should be possible."
        if has_nvlink
        else " Between GeForce cards this is by design of the driver, and in virtual machines it is usual."
    )
    yield no_peer_access.finding(
        "warning" if has_nvlink else "info",
        f"GPUs {', '.join(map(str, sorted({k for pair in pairs for k in pair})))}",
        f"{why} NCCL uses shared memory between such GPUs: slower, but correct.",
        "Check the fabric manager, nvidia-smi topo -p2p r, and that MIG mode is off."
        if has_nvlink
        else "Put ranks that exchange most into one of these groups."
        if groups
        else "",
        [item.line for item in denied],
    )


def _groups(gpus: Sequence[int], allowed: set[tuple[int, int]]) -> list[str]:
    """Return the sets of GPUs that all access each other, such as ``0 and 1``, if they do not overlap."""
    sets: list[set[int]] = []
    for gpu in gpus:
        peers = {gpu} | {other for other in gpus if {(gpu, other), (other, gpu)} <= allowed}
        if len(peers) > 1 and peers not in sets:
            sets.append(peers)
    if sum(map(len, sets)) != len(set().union(*sets)):
        return []
    return [text_list(list(map(str, sorted(group)))) for group in sets]


@rule("acs-iommu-p2p", "Peer-to-peer transfers are slower than copies through the host", source=_SAMPLES)
def slow_peers(paste: Paste) -> Iterator[TextFinding]:
    """Compares the bandwidths of p2pBandwidthLatencyTest with and without P2P."""
    matrices = [m for m in paste.once(read_pair_matrices) if m.direction == "unidirectional" and m.p2p is not None]
    off, on = (next((_between(m) for m in matrices if m.p2p is state), {}) for state in (False, True))
    common = sorted(pair for pair in off.keys() & on.keys() if off[pair] > 0 and on[pair] > 0)
    if slow := [pair for pair in common if on[pair] < 0.8 * off[pair]]:
        gpus = sorted({gpu for pair in slow for gpu in pair})
        yield slow_peers.finding(
            "warning",
            f"GPUs {', '.join(map(str, gpus[:16]))}",
            f"Copies between {len(slow)} of {len(common)} pairs of GPUs are slower with P2P (median "
            f"{median(on[pair] for pair in slow):.4g} GB/s) than without ({median(off[pair] for pair in slow):.4g} "
            "GB/s). ACS or an IOMMU that sends them through the root complex has this effect, and so have processors "
            "that forward PCIe transfers slowly.",
            "Look at ACS (sudo lspci -vvv | grep ACSCtl) and the IOMMU. If they are off, compare a run with "
            "NCCL_P2P_DISABLE=1, or with NCCL_P2P_LEVEL=PXB.",
            [number for m in matrices for number in m.lines],
        )


def _between(matrix: PairMatrix) -> Mapping[tuple[int, int], float]:
    return {(a, b): value for a, b, value in matrix.pairs() if a is not None and b is not None and a != b}


# -- dcgmi -------------------------------------------------------------------------------------------------------------

_LONGEST_MESSAGE = 300


@rule("gpu-test-failed", "A diagnostic test of DCGM did not pass", source=_DIAGNOSTICS)
def gpu_test_failed(paste: Paste) -> Iterator[TextFinding]:
    """Looks in dcgmi diag for tests with the result Fail or Warn, and names the test, the GPUs and the reason."""
    for test in paste.once(read_diagnostics):
        if test.status not in ("Fail", "Warn"):
            continue
        message = " ".join(dict.fromkeys(" ".join(text.split()) for text in test.messages))
        level, meaning, do = _judged(test, message)
        yield gpu_test_failed.finding(
            level,
            f"{test.test}, {_gpus(test)}",
            f"The test {test.test} ended with {test.status}" + _excerpt(message) + f" {meaning}".rstrip(),
            do,
            test.lines,
        )


@rule("gpu-test-skipped", "A diagnostic test of DCGM did not run", source=_DIAGNOSTICS)
def gpu_test_skipped(paste: Paste) -> Iterator[TextFinding]:
    """Looks in dcgmi diag for tests that have no result, so that the text shows nothing about them."""
    tests = [test for test in paste.once(read_diagnostics) if test.status not in ("Pass", "Fail", "Warn")]
    if tests:
        names = list(dict.fromkeys(test.test for test in tests))
        yield gpu_test_skipped.finding(
            "info",
            first_names(names),
            f"{'These tests' if len(names) > 1 else 'This test'} did not run "
            f"({', '.join(dict.fromkeys(test.status or 'no result' for test in tests))}). DCGM skips tests that do not "
            "support the product, and those that an earlier failure prevented.",
            "Run the test by its name (dcgmi diag -r NAME), and look for its reason in the log of DCGM.",
            [number for test in tests for number in test.lines],
        )


@rule("gpu-tests-passed", "All diagnostic tests of DCGM passed", source=_DIAGNOSTICS)
def gpu_tests_passed(paste: Paste) -> Iterator[TextFinding]:
    """Looks in dcgmi diag for results that are all Pass."""
    tests = paste.once(read_diagnostics)
    if tests and all(test.status == "Pass" for test in tests):
        yield TextFinding(
            "nothing-wrong",
            ", ".join(list(dict.fromkeys(test.test for test in tests))[:8]),
            "info",
            "All tests of DCGM that the text shows passed. They test GPUs one by one, and not NCCL or all links.",
            "",
            tuple(sorted({number for test in tests for number in test.lines})),
        )


@rule("gpu-test-failed", "DCGM reports a GPU that is not healthy", source=_DIAGNOSTICS)
def unhealthy_report(paste: Paste) -> Iterator[TextFinding]:
    """Looks in dcgmi health -c for another result than Healthy, and names it even if it is unknown."""
    for report in paste.once(read_health_reports):
        if report.health.lower() == "healthy":
            continue
        yield unhealthy_report.finding(
            "error" if report.health.lower() == "failure" else "warning",
            f"GPU{'s' * (len(report.gpus) > 1)} {', '.join(map(str, report.gpus[:16]))}"
            if report.gpus
            else "this host",
            f"The overall health is {report.health or 'not reported'}" + _excerpt(" ".join(report.text.split())),
            "Take these GPUs out of the job, run dcgmi diag -r 3 on them, and look for Xid errors in dmesg. Links that "
            "are down are normal on boards without NVLink.",
            report.lines,
        )


def _excerpt(message: str) -> str:
    """Return the end of a sentence: the beginning of a message of DCGM, if there is one."""
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:_LONGEST_MESSAGE].rpartition(' ')[0]} …"
    return f": {message}" if message else "."


def _gpus(test: DiagnosticTest) -> str:
    numbers = ", ".join(map(str, test.gpus[:16]))
    return f"GPU{'s' * (len(test.gpus) > 1)} {numbers}" if test.gpus else "all GPUs of the run"


def _judged(test: DiagnosticTest, message: str) -> tuple[Level, str, str]:
    """Return the severity of a test that did not pass, what else to know about it, and what to do."""
    lower = message.lower()
    if "nvlink" in lower and "down" in lower:
        return (
            "warning",
            "DCGM reports links of boards without NVLink, or without its bridge, as down too: then this is no fault.",
            "Run nvidia-smi nvlink -s and nvidia-smi topo -m. If the board has NVLink, look for Xid errors in dmesg, "
            "and read the log of the fabric manager.",
        )
    if "internal error" in lower or "child process" in lower:
        return (
            "warning",
            "DCGM itself failed, so this shows nothing about the GPUs.",
            "Run the test again alone on the host, with all processors and NUMA nodes (in Slurm with --exclusive), and "
            "read the log of DCGM.",
        )
    if "persistence mode" in lower or "graphics process" in lower or "environment variable" in lower:
        return (
            "info",
            "This is a setting of the host, not a fault of the GPU.",
            "Turn on persistence mode with nvidia-smi -pm 1." if "persistence mode" in lower else "",
        )
    return (
        "error" if test.status == "Fail" else "warning",
        "",
        "Take these GPUs out of the job, and run the test again while nothing else uses them. If it fails again, look "
        "for Xid errors in dmesg, and have the GPU checked (nvidia-bug-report.sh collects the evidence).",
    )


@rule("nvlinks-inactive", "Some NVLinks of a GPU are inactive", source="dcgmi nvlink -h")
def links_down(paste: Paste) -> Iterator[TextFinding]:
    """Looks in dcgmi nvlink -s for links that are down, of GPUs with other links up and of whole GPUs."""
    states = paste.once(read_link_states)
    gpus = [item for item in states if not item.is_switch]
    partly = [item for item in gpus if {"U", "D"} <= set(item.states)]  # ports of a switch may be unused
    none = [item for item in gpus if "U" not in item.states and "D" in item.states]
    if partly:
        counts = {item.states.count("U") for item in partly}
        is_alike = len(counts) == 1 and len(gpus) > 1 and len(partly) + len(none) == len(gpus)
        yield links_down.finding(
            "info" if is_alike else "warning",
            _named(partly),
            "; ".join(
                f"{_named([item])} has {item.states.count('D')} links down and {item.states.count('U')} up"
                for item in partly[:8]
            )
            + ". Boards with a bridge use only some of their links, such as 12 of 18 of an H100 NVL"
            + (", and all GPUs with NVLink have the same number, so this is probably normal." if is_alike else "."),
            "Compare with nvidia-smi topo -m, and look for NVLink errors in dmesg.",
            [line for item in partly for line in item.lines],
        )
    if none and any("U" in item.states for item in gpus):
        yield links_down.finding(
            "error",
            _named(none),
            "All NVLinks are down, but other GPUs of the text have links that are up.",
            "Look for NVLink errors in dmesg (Xid 74, 144 to 150) and in the log of the fabric manager, then reset the "
            "GPU or reboot. Place no ranks on it until then.",
            [line for item in none for line in item.lines],
        )
    elif none:
        yield links_down.finding(
            "warning",
            _named(none),
            "No NVLink is up on the GPUs of the text. DCGM reports the same for boards without NVLink and for boards "
            "without a bridge, and its diagnostic may pass anyway.",
            "Run nvidia-smi topo -m: if these GPUs should have NVLink, check the bridges or the fabric manager, and "
            "look for Xid errors in dmesg. Otherwise nothing is wrong.",
            [line for item in none for line in item.lines],
        )


@rule("nvlinks-active", "All NVLinks are active", source="dcgmi nvlink -h")
def links_up(paste: Paste) -> Iterator[TextFinding]:
    """Looks for the output of dcgmi nvlink -s in which all links that the boards have are up."""
    gpus = [item for item in paste.once(read_link_states) if not item.is_switch]
    if gpus and all("U" in item.states and not {"D", "X"} & set(item.states) for item in gpus):
        yield TextFinding(
            "nothing-wrong",
            _named(gpus),
            "info",
            "All NVLinks that DCGM reports are up.",
            "",
            tuple(line.number for item in gpus for line in item.lines),
        )


def _named(items: Sequence[LinkStates]) -> str:
    names = [f"{'NVSwitch ' if item.is_switch else 'GPU'}{item.id}" for item in items]
    hosts = {item.host for item in items} - {None}
    return first_names(names, 16) + (f" of {next(iter(hosts))}" if len(hosts) == 1 else "")


# -- perftest ----------------------------------------------------------------------------------------------------------


@rule("gdr-registration-failed", "Memory of a GPU cannot be registered with the NIC", source=_PERFTEST)
def registration_failed(paste: Paste) -> Iterator[TextFinding]:
    """Looks for perftest with CUDA that could not register its buffer with the NIC."""
    if lines := [line for line, is_gpu in paste.once(read_failed_registrations) if is_gpu]:
        yield registration_failed.finding(
            "error",
            "the GPU and the NIC of this test",
            "perftest allocated memory on the GPU, but the NIC could not register it. GPU Direct RDMA does not work "
            "for this pair: usually the kernel module nvidia-peermem is not loaded.",
            "Load it (modprobe nvidia-peermem; lsmod | grep peermem), or use DMA-BUF with the open GPU driver "
            "(--use_cuda_dmabuf). GeForce cards and some virtual GPUs do not support it.",
            lines,
        )


# Numbers of ibv_wc_status, with the finding that has the same meaning in a log of NCCL.
_STATUSES = {
    4: ("gdr-protection-error", "the NIC was not allowed to access the memory"),
    9: ("ib-remote-invalid-request", "the peer rejected the request"),
    12: ("ib-retry-exceeded", "the peer did not answer"),
    13: ("ib-receiver-not-ready", "the peer had no receive posted"),
}


@rule(
    "rdma-test-failed", "A request of an RDMA test failed", source="https://github.com/linux-rdma/perftest/issues/173"
)
def rdma_request_failed(paste: Paste) -> Iterator[TextFinding]:
    """Looks for the status with which perftest ends after a failed completion."""
    for status, failures in grouped((item.status, item) for item in paste.once(read_failed_completions)).items():
        code, meaning = _STATUSES.get(status, (rdma_request_failed.code, "see ibv_wc_status in infiniband/verbs.h"))
        memory = next((item.gpu for item in failures if item.gpu), None)
        finding = rdma_request_failed.finding(
            "error",
            next((item.device for item in failures if item.device), "the NIC of this test"),
            f"perftest stopped because a request completed with status {status}: {meaning}."
            + (f" The buffer was memory of the GPU {memory}." if memory else ""),
            "Check that both ports are active and in one network (ibstat), the index of the GID (-x) and the routes "
            "between them; repeat without --use_cuda to see whether the network alone works.",
            [item.line for item in failures],
        )
        yield replace(finding, code=code)


GPU_TEST_RULES: tuple[Rule, ...] = (
    wrong_copy,
    gpu_test_failed,
    unhealthy_report,
    gpu_test_skipped,
    gpu_tests_passed,
    links_down,
    registration_failed,
    rdma_request_failed,
    slow_peers,
    no_peer_access,
    links_up,
)
