"""Ask the NVIDIA driver; the only module that imports pynvml. It runs where the GPUs are and answers in plain data.

A driver may refuse any single question: the field then stays out, and ``unknown`` holds its words.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from meshlab.topology.model.hardware import format_cpus
from meshlab.topology.readers.sysfs import normal_bus_id, pci_path, pci_word, read_nics, read_processors

__all__ = ["read_host", "sample"]

_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_WORDS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
_P2P_READ = 0  # pynvml 13 defines NVML_P2P_CAPS_INDEX_READ as a tuple by mistake.
_REMOTES = {0: "gpu", 1: "npu", 2: "switch"}
_MASK_WORDS = 64  # 64 bits each: room for 4,096 CPUs
_NVLINK_COUNTERS = 4  # replays, recoveries, and both kinds of checksum errors
_THROTTLES = {
    0x02: "application clocks",
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat, by the driver",
    0x40: "heat, by the hardware",
    0x80: "power brake",
    0x100: "display clocks",
}  # bit 1, idle, holds nothing down
_MEGAHERTZ = {"sm": "NVML_CLOCK_SM", "memory": "NVML_CLOCK_MEM"}


class _Answers:
    """Asks one device, and keeps what it would not say."""

    def __init__(self, nvml: ModuleType) -> None:
        self.nvml = nvml
        self.fields: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}

    def ask(self, field: str, function: str, *arguments: Any, then: Callable[[Any], Any] = lambda value: value) -> Any:
        """Call a function of NVML; None, and a note under `field`, when it fails."""
        try:
            return then(getattr(self.nvml, function)(*arguments))
        except self.nvml.NVMLError as error:
            self.unknown[field] = str(error)
        except (AttributeError, TypeError, ValueError) as error:
            # An older pynvml without the function, or an answer that makes no sense.
            self.unknown[field] = f"{function} failed: {error}"
        return None

    def set(self, field: str, function: str, *arguments: Any, then: Callable[[Any], Any] = lambda value: value) -> None:
        """Ask, and keep the answer as a field of `Device`."""
        value = self.ask(field, function, *arguments, then=then)
        if value is not None:
            self.fields[field] = value


def read_host(root: str = "/") -> dict[str, Any]:
    """Everything that can be known about this host, as plain data that pickles.

    No GPU is an answer too: ``devices`` is then empty and ``notes`` says why.

    Parameters
    ----------
    root : str, default "/"
        Where ``proc`` and ``sys`` lie.

    Returns
    -------
    dict
        ``name``, ``devices`` (fields of `Device`, with ``unknown``), ``nics`` (fields of `Nic`), ``words`` over both,
        ``p2p``, the fields of `Node` about processors and memory, and ``notes``. `cluster_from_hosts` reads it.

    Examples
    --------
    >>> host = read_host()
    >>> sorted(host)
    ['cpu_count', 'cpu_model', 'devices', 'memory_bytes', 'name', 'nics', 'notes', 'numa', 'p2p', 'sockets', 'words']
    """
    place = Path(root)
    notes: list[str] = []
    devices: list[dict[str, Any]] = []
    gpu_words: list[list[str]] = []
    p2p: list[list[str]] = []
    nvml, why = _start()
    if nvml is None:
        notes.append(f"no GPU was seen: {why}")
    else:
        try:
            devices, gpu_words, p2p = read_devices(nvml)
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
        if not devices:
            notes.append("no GPU was seen: the driver runs, but lists none; a container may hide them")
    nics = read_nics(place)
    ends = [(end.get("bus_id"), end.get("numa")) for end in (*devices, *nics)]
    paths = [pci_path(bus_id, place) for bus_id, _ in ends]
    words = [
        ["X" if i == j else pci_word(paths[i], paths[j], (ends[i][1], ends[j][1])) for j in range(len(ends))]
        for i in range(len(ends))
    ]
    for i, row in enumerate(gpu_words):
        for j, word in enumerate(row):
            if word != "?":
                words[i][j] = word
    return {
        "name": socket.gethostname(),
        "devices": devices,
        "nics": nics,
        "words": words,
        "p2p": p2p,
        "notes": notes,
        **read_processors(place),
    }


def sample() -> list[dict[str, Any]]:
    """The readings that change, one dict per GPU; none without GPUs.

    Utilisation, memory, temperature, power and clocks; under ``throttle`` what holds the clocks down, in words; and the
    counters ``ecc_corrected``, ``ecc_uncorrected`` and ``nvlink_errors``, since the driver came.

    Examples
    --------
    >>> isinstance(sample(), list)
    True
    """
    nvml, _ = _start()
    if nvml is None:
        return []
    try:
        readings = []
        for index in range(nvml.nvmlDeviceGetCount()):
            answers = _Answers(nvml)
            handle = answers.ask("handle", "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                _read_live(answers, handle)
                _read_counters(answers, handle)
            readings.append({"id": index, **answers.fields})
        return readings
    finally:
        nvml.nvmlShutdown()


def _start() -> tuple[ModuleType | None, str]:
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver did not answer ({error})"
    return pynvml, ""


def read_devices(nvml: ModuleType) -> tuple[list[dict[str, Any]], list[list[str]], list[list[str]]]:
    """Read every GPU and what joins them.

    Parameters
    ----------
    nvml : module
        pynvml, initialised.

    Returns
    -------
    tuple
        Fields of `Device` per GPU, link words between GPUs, and peer access between GPUs.
    """
    system = _Answers(nvml)
    count = system.ask("count", "nvmlDeviceGetCount") or 0
    driver = system.ask("driver_version", "nvmlSystemGetDriverVersion", then=_decode)
    cuda = system.ask("cuda_version", "nvmlSystemGetCudaDriverVersion", then=lambda v: f"{v // 1000}.{v % 1000 // 10}")
    devices: list[dict[str, Any]] = []
    handles: list[Any] = []
    for index in range(count):
        answers = _Answers(nvml)
        handle = answers.ask("name", "nvmlDeviceGetHandleByIndex", index)
        handles.append(handle)
        if handle is not None:
            _read_device(answers, handle)
        for field, value in (("driver_version", driver), ("cuda_version", cuda)):
            if value is not None:
                answers.fields[field] = value
            else:
                answers.unknown[field] = system.unknown[field]
        devices.append({"id": index, **answers.fields, "unknown": answers.unknown})
    words = [["X" if i == j else _word(nvml, devices, handles, i, j) for j in range(count)] for i in range(count)]
    p2p = [["X" if i == j else _p2p(nvml, handles, i, j, _P2P_READ) for j in range(count)] for i in range(count)]
    return devices, words, p2p


def _read_device(answers: _Answers, handle: Any) -> None:
    nvml = answers.nvml
    answers.set("name", "nvmlDeviceGetName", handle, then=_decode)
    answers.set("uuid", "nvmlDeviceGetUUID", handle, then=_decode)
    answers.set("bus_id", "nvmlDeviceGetPciInfo", handle, then=lambda info: normal_bus_id(_decode(info.busId)))
    answers.set("compute_capability", "nvmlDeviceGetCudaComputeCapability", handle, then=tuple)
    answers.set("sm_count", "nvmlDeviceGetNumGpuCores", handle, then=lambda cores: _sm_count(answers.fields, cores))
    answers.set("ecc", "nvmlDeviceGetEccMode", handle, then=lambda modes: bool(modes[0]))
    if answers.fields.get("ecc"):
        answers.set(
            "ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", handle, 1, 0
        )  # uncorrected, since the driver came
    answers.set("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", handle, then=lambda milliwatts: milliwatts / 1000)
    answers.set("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1))
    answers.set("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    answers.set("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", handle)
    answers.set("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    answers.set("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", handle)
    answers.set("cpus", "nvmlDeviceGetCpuAffinity", handle, _MASK_WORDS, then=_bits)
    answers.set("numa", "nvmlDeviceGetMemoryAffinity", handle, _MASK_WORDS, 0, then=_bits)
    _read_live(answers, handle)
    _read_mig(answers, handle)
    _read_nvlinks(answers, handle)
    _read_fabric(answers, handle)


def _read_live(answers: _Answers, handle: Any) -> None:
    memory = answers.ask("memory_bytes", "nvmlDeviceGetMemoryInfo", handle)
    if memory is not None:
        answers.fields |= {"memory_bytes": int(memory.total), "memory_used_bytes": int(memory.used)}
    rates = answers.ask("utilisation_percent", "nvmlDeviceGetUtilizationRates", handle)
    if rates is not None:
        answers.fields["utilisation_percent"] = float(rates.gpu)
    answers.set("temperature_c", "nvmlDeviceGetTemperature", handle, 0, then=float)
    answers.set("power_w", "nvmlDeviceGetPowerUsage", handle, then=lambda milliwatts: milliwatts / 1000)
    for name, constant in _MEGAHERTZ.items():
        answers.set(f"clock_{name}_mhz", "nvmlDeviceGetClockInfo", handle, getattr(answers.nvml, constant))


def _read_counters(answers: _Answers, handle: Any) -> None:
    answers.set("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", handle, then=_throttle_text)
    answers.set("ecc_corrected", "nvmlDeviceGetTotalEccErrors", handle, 0, 0)
    answers.set("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    counts = []
    for link in range(getattr(answers.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        for counter in range(_NVLINK_COUNTERS):
            count = answers.ask("nvlink_errors", "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
            if count is None:
                break
            counts.append(int(count))
        if count is None:
            break
    if counts:
        answers.fields["nvlink_errors"] = sum(counts)


def _throttle_text(bits: int) -> str:
    return ", ".join(word for bit, word in _THROTTLES.items() if bits & bit)


def _read_mig(answers: _Answers, handle: Any) -> None:
    mode = answers.ask("mig", "nvmlDeviceGetMigMode", handle)
    if mode is None:
        # A GPU without MIG answers "not supported": that is off, not unknown.
        if answers.unknown["mig"] == str(answers.nvml.NVMLError(answers.nvml.NVML_ERROR_NOT_SUPPORTED)):
            del answers.unknown["mig"]
            answers.fields["mig"] = ""
        return
    if not mode[0]:
        answers.fields["mig"] = ""
        return
    names: list[str] = []
    for index in range(answers.ask("mig", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = answers.ask("mig partition", "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if part is not None:
            name = answers.ask("mig partition", "nvmlDeviceGetName", part, then=_decode) or "partition"
            names.append(name.rpartition("MIG ")[2])
    answers.unknown.pop("mig partition", None)
    answers.fields["mig"] = ", ".join(f"{n} × {name}" for name, n in Counter(names).items()) or "on, no partition"


def _read_nvlinks(answers: _Answers, handle: Any) -> None:
    remotes: Counter[tuple[str, str]] = Counter()
    up = 0
    for link in range(getattr(answers.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = answers.ask("nvlink_count", "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:
            break
        if state != 1:
            continue
        up += 1
        kind = answers.ask("nvlink_remotes", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, then=_REMOTES.get)
        bus_id = answers.ask("nvlink_remotes", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        remotes[kind or "unknown", normal_bus_id(_decode(bus_id.busId)) if bus_id is not None else "unknown"] += 1
    if up or "nvlink_count" not in answers.unknown:
        answers.unknown.pop("nvlink_count", None)
        answers.fields["nvlink_count"] = up
        answers.fields["nvlink_remotes"] = tuple((kind, bus_id, n) for (kind, bus_id), n in sorted(remotes.items()))


def _read_fabric(answers: _Answers, handle: Any) -> None:
    def read(nvml_struct: Any) -> Any:
        answers.nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(nvml_struct))
        return nvml_struct

    info = answers.ask("fabric", "c_nvmlGpuFabricInfoV_t", then=read)
    if info is None:
        return
    cluster = bytes(info.clusterUuid).hex()
    if info.state != answers.nvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        states = {0: "not supported", 1: "not started", 2: "in progress"}
        answers.unknown["fabric"] = f"the NVLink fabric is {states.get(info.state, f'in state {info.state}')}"
    elif cluster.strip("0"):
        answers.fields["fabric"] = f"{cluster}/{info.cliqueId}"


def _word(nvml: ModuleType, devices: list[dict[str, Any]], handles: list[Any], i: int, j: int) -> str:
    """The link word between two GPUs: NVLinks if they can be used, else what PCIe path they have."""
    if handles[i] is None or handles[j] is None:
        return "?"
    direct = [n for kind, bus_id, n in devices[i].get("nvlink_remotes", ()) if bus_id == devices[j].get("bus_id")]
    if direct:
        return f"NV{sum(direct)}"
    through_switch = [
        sum(n for kind, _, n in devices[k].get("nvlink_remotes", ()) if kind in ("switch", "unknown")) for k in (i, j)
    ]
    if min(through_switch) and _p2p(nvml, handles, i, j, nvml.NVML_P2P_CAPS_INDEX_NVLINK) in ("OK", "?"):
        return f"NV{min(through_switch)}"
    answers = _Answers(nvml)
    ancestor = answers.ask("word", "nvmlDeviceGetTopologyCommonAncestor", handles[i], handles[j])
    return _ANCESTORS.get(ancestor, "?") if ancestor is not None else "?"


def _p2p(nvml: ModuleType, handles: list[Any], i: int, j: int, what: int) -> str:
    if handles[i] is None or handles[j] is None:
        return "?"
    status = _Answers(nvml).ask("p2p", "nvmlDeviceGetP2PStatus", handles[i], handles[j], what)
    return _P2P_WORDS.get(status, "?") if status is not None else "?"


def _decode(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _bits(words: Any) -> str | None:
    mask = sum(int(word) << 64 * index for index, word in enumerate(words))
    return format_cpus(tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)) or None


def _sm_count(fields: dict[str, Any], cores: int) -> int | None:
    """Streaming multiprocessors, from CUDA cores and the cores each has (CUDA programming guide)."""
    capability = fields.get("compute_capability")
    if capability is None:
        return None
    per_sm = 64 if capability in ((6, 0), (7, 0), (7, 2), (7, 5), (8, 0)) else 128
    return int(cores) // per_sm if cores % per_sm == 0 else None
