"""Rules for software that does not fit: drivers, GPU generations, and NCCL versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._nccl_lines import source_host
from meshlab.diagnosis.formats._nccl_tests_starts import read_test_starts
from meshlab.diagnosis.rules._line_rules import LineRule, others_matching, rules_of

_ARCHITECTURES = (
    (r"GeForce RTX 50\d\d|RTX PRO \d000 Blackwell", "sm_120", "12.0"),
    (r"\bG?B[23]00\b", "sm_100", "10.0"),
    (r"\b(?:G?H100|G?H200|GH200|H800|H20)\b", "sm_90", "9.0"),
    (r"GeForce RTX 40\d\d|\bL4(?:0S?)?\b|RTX [A-Z0-9 ]*Ada", "sm_89", "8.9"),
    (r"GeForce RTX 30\d\d|RTX A\d000|\bA(?:10|16|40)\b", "sm_86", "8.6"),
    (r"\bA(?:100|800|30)\b", "sm_80", "8.0"),
    (r"\bT4\b|RTX 20\d\d|2080|Quadro RTX", "sm_75", "7.5"),
    (r"\bV100\b|TITAN V\b", "sm_70", "7.0"),
    (r"\bP100\b", "sm_60", "6.0"),
    (r"\bP(?:4|40)\b|GTX 10\d\d|TITAN Xp", "sm_61", "6.1"),
    (r"\bM(?:40|60)\b|GTX 9\d\d", "sm_52", "5.2"),
    (r"\bK80\b", "sm_37", "3.7"),
    (r"\bK(?:20|40)\w*\b", "sm_35", "3.5"),
)
"""Names of GPUs, their architecture, and their compute capability (NVIDIA's list of CUDA GPUs)."""

_FIRST_NCCL = {"sm_120": (2, 26, 2), "sm_100": (2, 25, 1), "sm_90": (2, 15, 1)}
"""First version of NCCL that works on an architecture: makefiles/common.mk of each release, and NVIDIA/nccl-tests#287
for sm_120, whose kernels of 2.25.1 need more shared memory than the GPU has."""


def _architecture(name: str) -> tuple[str, str] | None:
    return next(((arch, capability) for pattern, arch, capability in _ARCHITECTURES if re.search(pattern, name)), None)


def _gpu_names(paste: Paste) -> list[str]:
    """Return the names of GPUs that the text contains, of device lines first."""
    names = [device.name for start in paste.once(read_test_starts) for device in start.devices if device.name]
    pattern = re.compile(r"(?:NVIDIA |Tesla |GeForce )+[A-Z][\w ]*?\d\w*(?: ?(?:Ti|SUPER|Blackwell|Ada))?|\bTesla \w+")
    for _, match in other_lines(paste).matches(pattern, "NVIDIA ", "Tesla ", "GeForce "):
        if "NVIDIA-SMI" not in match[0] and _architecture(match[0]):
            names.append(match[0].strip())
    return list(dict.fromkeys(names))


def _where(paste: Paste, lines: Sequence[PasteLine]) -> str:
    """Return the hosts and ranks of device lines, else what the lines name."""
    devices = [device for start in paste.once(read_test_starts) for device in start.devices]
    if devices:
        hosts = dict.fromkeys(device.host for device in devices)
        return f"{rank_list(device.rank for device in devices)} on {', '.join(hosts)}"
    hosts = dict.fromkeys(host for line in lines if (host := source_host(line)))
    ranks = {line.rank for line in lines if line.rank is not None}
    return ", ".join(hosts) or (rank_list(ranks) if ranks else "")


_NO_IMAGE = re.compile(
    r"no kernel image is available for execution on the device|invalid device function|cudaErrorNoKernelImageForDevice"
)
_INCOMPATIBLE = re.compile(
    r"(?<![\w -])(?P<name>[\w -]+?) with CUDA capability (?P<arch>sm_\w+) "
    r"is not compatible with the current PyTorch installation"
)


@rule(
    "unsupported-arch",
    "The program has no code for this GPU generation",
    source=("CUDA Runtime API, cudaErrorNoKernelImageForDevice", "NVIDIA/nccl-tests#79"),
    causes=("worker-exited", "rank-died"),
)
def unsupported_arch(paste: Paste) -> Iterator[TextFinding]:
    """Look for kernels that were not built for the GPU of the text. Such an error of NCCL itself is another rule."""
    warned = other_lines(paste).matches(_INCOMPATIBLE, "is not compatible with the current PyTorch installation")
    matches = other_lines(paste).matches(_NO_IMAGE, "no kernel image", "invalid device function", "NoKernelImage")
    matches = [pair for pair in matches if "NCCL WARN" not in pair[0].text]
    if not warned and not matches:
        return
    lines = [line for line, _ in (*warned, *matches)]
    if warned:
        name, arch = warned[0][1]["name"].strip(), warned[0][1]["arch"]
        subject = f"{name} ({arch})"
        program = "this PyTorch"
    else:
        names = [name for name in _gpu_names(paste) if _architecture(name)]
        architecture = _architecture(names[0]) if names else None
        arch = architecture[0] if architecture else "its architecture"
        subject = (
            f"{names[0]} (compute capability {architecture[1]})"
            if architecture
            else "the GPU of the rank that prints it"
        )
        program = "the program"
    where = _where(paste, lines)
    build = (
        f"Install a PyTorch whose wheel has {arch} (torch.cuda.get_arch_list()), usually one for a newer CUDA; older "
        "GPUs need an older PyTorch."
        if warned or not paste.once(read_test_starts)
        else "Build nccl-tests and NCCL with "
        f"NVCC_GENCODE=-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch} and a CUDA version that supports "
        "this GPU."
    )
    yield unsupported_arch.finding(
        "error",
        subject + (f", {where}" if where else ""),
        f"{program.capitalize()} contains no code for {arch}, so its first kernel cannot start. The driver is not the "
        "cause.",
        build,
        lines,
    )


_TOO_OLD = re.compile(
    r"CUDA driver version is insufficient for CUDA runtime version|cudaErrorInsufficientDriver"
    r"|NVIDIA driver on your system is too old|compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion"
)
_DRIVER = re.compile(r"Driver Version: (?P<smi>[\d.]+)|found version (?P<torch>\d+)|cudaDriverVersion (?P<nccl>\d+)")


@rule(
    "driver-too-old",
    "The driver is older than the CUDA of the program",
    source=("CUDA Compatibility, table of driver versions", "NVIDIA/nccl-tests#7"),
    causes=("worker-exited", "rank-died"),
)
def driver_too_old(paste: Paste) -> Iterator[TextFinding]:
    """Look for CUDA's error that the driver is too old for its runtime or for compiled code."""
    matches = other_lines(paste).matches(
        _TOO_OLD,
        "driver version is insufficient",
        "InsufficientDriver",
        "is too old",
        "unsupported toolchain",
        "UnsupportedPtx",
    )
    if not matches:
        return
    lines = [line for line, _ in matches]
    versions = [match for _, match in paste.matches(_DRIVER, "Driver Version:", "found version", "cudaDriverVersion")]
    version = ""
    if versions:
        raw = next(value for value in versions[0].groups() if value)
        # 12040 is how CUDA writes 12.4.
        version = raw if "." in raw else f"for CUDA {whole(raw) // 1000}.{whole(raw) % 1000 // 10}"
    where = _where(paste, lines)
    smi = other_lines(paste).find("Driver Version:")
    yield driver_too_old.finding(
        "error",
        f"driver {version}".rstrip() + f" on {where or 'this host'}",
        f"The program was built with a newer CUDA than the driver {version or 'of this host'} supports, so it stops "
        "before NCCL starts.",
        "Update the driver (the header of nvidia-smi shows the newest CUDA that it supports), or use a build for that "
        "CUDA version. Within one major version of CUDA, the package cuda-compat also helps on data-center GPUs.",
        [*lines, *smi[:1]],
    )


_LIBRARY = re.compile(
    r"(?P<message>Driver/library version mismatch|system has unsupported display driver / cuda driver combination"
    r"|forward compatibility was attempted on non supported HW)"
)

_IN_NCCL = re.compile(
    r"NCCL WARN .*(?:named symbol not found|no kernel image is available|invalid device function|no device function)"
)
_WORDS_OF_MISSING = (
    "named symbol not found",
    "no kernel image is available",
    "invalid device function",
    "no device function",
)
_SHARED_MEMORY = re.compile(r"ncclMaxSharedMem (?P<wanted>\d+) exceeds device/fn maxSharedMem (?P<there>\d+)")
_VERSION = re.compile(r"NCCL version (?P<v>\d+\.\d+\.\d+)")
_FAILED = (
    *("illegal memory access", "Test CUDA failure", "Test NCCL failure", "NCCL WARN", "unhandled cuda error"),
    *("DistBackendError", "invalid argument"),
)


@rule(
    "nccl-too-old-for-gpu",
    "This version of NCCL does not fit the GPU",
    source=("NVIDIA/nccl/makefiles/common.mk of 2.8 to 2.28", "NVIDIA/nccl-tests#287", "NVIDIA/nccl#1637"),
    causes=("unsupported-arch", "cuda-error", "worker-exited", "rank-died"),
)
def nccl_too_old_for_gpu(paste: Paste) -> Iterator[TextFinding]:
    """Look for failures of a version of NCCL that was built before the GPU of the text existed."""
    versions = paste.matches(_VERSION, "NCCL version ")
    version = versions[0][1]["v"] if versions else ""
    number = tuple(whole(part) for part in version.split(".")) if version else ()
    names = _gpu_names(paste)
    for _, match in other_lines(paste).matches(
        _INCOMPATIBLE, "is not compatible with the current PyTorch installation"
    ):
        names.append(match["name"].strip())
    name, arch = next(((name, a[0]) for name in names if (a := _architecture(name)) and a[0] in _FIRST_NCCL), ("", ""))
    first = _FIRST_NCCL.get(arch, ())
    in_nccl = paste.matches(_IN_NCCL, *_WORDS_OF_MISSING)
    memory = paste.matches(_SHARED_MEMORY, "exceeds device/fn maxSharedMem")
    is_older = bool(number and first and number < first)
    lines = [line for line, _ in (*in_nccl, *memory, *versions[:1])]
    # NCCL from before Hopper misreads its NVLinks. On an older GPU the same line means a link that is broken.
    one_way = paste.find("Failed to find reverse path from remNode")
    if one_way and number and number < _FIRST_NCCL["sm_90"] and (name or not names):
        yield nccl_too_old_for_gpu.finding(
            "error",
            f"NCCL {version} on {name or 'this GPU'}" + (f", {w}" if (w := _where(paste, one_way)) else ""),
            f"NCCL {version} sees an NVLink from one side only. It is older than NCCL's support for H100 and "
            "H200, where it fails in this way"
            + ("." if name else "; the text does not name the GPU. On an older GPU, an NVLink is broken."),
            "Use NCCL 2.18 or newer (a newer nvidia-nccl-cu12, or a newer container). If the GPU is an A100 or older, "
            "look at nvidia-smi nvlink -s and nvidia-smi topo -m instead.",
            [*one_way, *(line for line, _ in versions[:1])],
        )
        return
    if memory and number and number < _FIRST_NCCL["sm_120"]:
        required = ".".join(str(part) for part in _FIRST_NCCL["sm_120"])
        why = (
            f"The kernels of NCCL {version} need {memory[0][1]['wanted']} bytes of shared memory, and this GPU has "
            f"{memory[0][1]['there']}, so collectives fail or hang."
        )
    elif in_nccl or (is_older and paste.numbers(*_FAILED)):
        required = ".".join(str(part) for part in first)
        why = (
            f"NCCL {version or 'of this program'} contains no code for {name or 'this GPU'}"
            + (f" ({arch})" if arch else "")
            + (f"; it came with {required}." if is_older else ", so its first kernel cannot start.")
        )
    else:
        return
    yield nccl_too_old_for_gpu.finding(
        "error",
        f"NCCL {version or '(version unknown)'} on {name or 'this GPU'}"
        + (f", {w}" if (w := _where(paste, lines)) else ""),
        why,
        f"Use NCCL {required or '2.26.2'} or newer: install a PyTorch with a newer nvidia-nccl-cu12, or build NCCL "
        "for this GPU and put it first in LD_LIBRARY_PATH.",
        lines,
    )


def _where_printed(paste: Paste, numbers: Sequence[int]) -> str:
    return _where(paste, [paste.line(number) for number in numbers]) or "the host that prints it"


SOFTWARE_VERSION_RULES = rules_of(
    __name__,
    driver_too_old,
    LineRule(
        code="driver-library-mismatch",
        title="The library of the driver does not belong to the loaded driver",
        looks_for="Look for a libcuda that does not fit the kernel module: after an update, or in a container.",
        find=others_matching(_LIBRARY, "Driver/library", "unsupported display driver", "forward compatibility"),
        subject=_where_printed,
        why="{message}: the library of the driver and the loaded kernel module have different versions.",
        do="Reboot the host, or reload the module, after an update of the driver. In a container, remove cuda-compat "
        "or use an image whose CUDA the driver supports.",
        source="CUDA Runtime API, cudaErrorSystemDriverMismatch and cudaErrorCompatNotSupportedOnDevice",
        causes=("worker-exited", "rank-died"),
    ),
    nccl_too_old_for_gpu,
    unsupported_arch,
)
