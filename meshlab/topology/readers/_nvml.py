"""Queries of the NVIDIA driver. This is the only module that imports pynvml; it runs on the GPU hosts.

All results are plain data, because they travel from the ranks to the client. A driver may reject any query, depending
on the GPU, the driver version and virtualisation. The field is then missing, and ``unknown`` contains the message.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from meshlab.topology.model._hardware import format_cpus
from meshlab.topology.model._links import UNKNOWN
from meshlab.topology.readers._sysfs import normal_bus_id, pci_path, pci_word, read_nics, read_processors

_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_WORDS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
_P2P_READ = 0  # pynvml 13 defines NVML_P2P_CAPS_INDEX_READ as a tuple by mistake
_REMOTES = {0: "gpu", 1: "npu", 2: "switch"}
_MASK_WORDS = 64  # of 64 bits, so up to 4,096 CPUs
_NVLINK_COUNTERS = 4  # replays, recoveries, and both kinds of checksum errors
_THROTTLES = {
    0x02: "application clocks",
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}  # without bit 1: idle clocks are not throttled
_CORES_PER_SM = {5: 128, 6: 128, 7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}  # by major compute capability
_MEGAHERTZ = {"sm": "NVML_CLOCK_SM", "memory": "NVML_CLOCK_MEM"}


class _Queries:
    """The results of queries of one device, and the reasons of those that failed."""

    def __init__(self, nvml: ModuleType) -> None:
        self.nvml = nvml
        self.fields: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}

    def query(
        self, field: str, function: str, *arguments: Any, then: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        """Call a function of NVML. If it fails, store the reason under `field` and return None."""
        try:
            return then(getattr(self.nvml, function)(*arguments))
        except self.nvml.NVMLError as error:
            self.unknown[field] = str(error)
        except (AttributeError, TypeError, ValueError) as error:
            # This pynvml does not have the function, or the result has an unexpected type.
            self.unknown[field] = f"{function} failed: {error}"
        return None

    def set(self, field: str, function: str, *arguments: Any, then: Callable[[Any], Any] = lambda value: value) -> None:
        """Call a function of NVML and store its result as a field of `Device`."""
        value = self.query(field, function, *arguments, then=then)
        if value is not None:
            self.fields[field] = value


def read_host(root: str = "/") -> dict[str, Any]:
    """Return the hardware of this host as plain data that can be pickled.

    Without GPUs, ``devices`` is empty and ``notes`` contains the reason.

    Parameters
    ----------
    root : str, default "/"
        The folder that contains ``proc`` and ``sys``.

    Returns
    -------
    dict
        ``name``, ``devices`` (fields of `Device`), ``nics`` (fields of `Nic`), ``words`` (link words of both), ``p2p``,
        ``notes``, and the fields of `Node` for processors and memory. `cluster_from_hosts` accepts it.

    Examples
    --------
    >>> import meshlab as ml
    >>> sorted(ml.topology.read_host())
    ['cpu_count', 'cpu_model', 'devices', 'memory_bytes', 'name', 'nics', 'notes', 'numa', 'p2p', 'sockets', 'words']
    """
    place = Path(root)
    notes: list[str] = []
    devices: list[dict[str, Any]] = []
    gpu_words: list[list[str]] = []
    p2p: list[list[str]] = []
    nvml, why = _start()
    if nvml is None:
        notes.append(f"no GPU found: {why}")
    else:
        try:
            devices, gpu_words, p2p = read_devices(nvml)
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
        if not devices:
            notes.append("no GPU found: the driver is running, but lists no GPUs; a container may hide them")
    nics = read_nics(place)
    ends = [(end.get("bus_id"), end.get("numa")) for end in (*devices, *nics)]
    paths = [pci_path(bus_id, place) for bus_id, _ in ends]
    words = [
        ["X" if i == j else pci_word(paths[i], paths[j], (ends[i][1], ends[j][1])) for j in range(len(ends))]
        for i in range(len(ends))
    ]
    # The driver reports links outside the PCI tree, such as NVLink. If it does not respond, keep the PCI word.
    for i, row in enumerate(gpu_words):
        for j, word in enumerate(row):
            if word != UNKNOWN:
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
    """Return the live readings, one dict per GPU. The list is empty without GPUs."""
    # Utilisation, memory, temperature, power, clocks, the reasons for reduced clocks as `throttle`, and counters of
    # errors since the driver was loaded.
    nvml, _ = _start()
    if nvml is None:
        return []
    try:
        readings = []
        for index in range(nvml.nvmlDeviceGetCount()):
            queries = _Queries(nvml)
            handle = queries.query("handle", "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                _read_live(queries, handle)
                _read_counters(queries, handle)
            readings.append({"id": index, **queries.fields})
        return readings
    finally:
        nvml.nvmlShutdown()


class _RepeatedReader:
    """Repeated readings of all GPUs, with the traffic of their NVLinks since the last one."""

    def __init__(self) -> None:
        # NVML stays open, because opening it takes longer than all readings.
        self._nvml, _ = _start()
        self._counted: dict[int, tuple[float, int, int]] = {}

    def _read_nvlink(self, queries: _Queries, handle: Any, index: int) -> None:
        """Compute the rates from counters, which never decrease."""
        time_s = time.monotonic()
        counts = queries.query("nvlink", "nvmlDeviceGetFieldValues", handle, _NVLINK_FIELDS, then=_nvlink_counts)
        if counts is None:
            return
        before = self._counted.get(index)
        self._counted[index] = (time_s, *counts)
        if before is not None and time_s > before[0]:
            for name, count, earlier in zip(("tx", "rx"), counts, before[1:], strict=True):
                queries.fields[f"nvlink_{name}_gbs"] = max(count - earlier, 0) * 1024 / (time_s - before[0]) / 1e9


class LiveReader(_RepeatedReader):
    """Repeated readings of all GPUs, with their traffic since the last one. Without GPUs there are none."""

    def read(self) -> list[dict[str, Any]]:
        """Return the readings of `sample` per GPU without error counters, but with names, limits and GB/s."""
        if self._nvml is None:
            return []
        nvml = self._nvml
        readings = []
        for index in range(_Queries(nvml).query("count", "nvmlDeviceGetCount") or 0):
            queries = _Queries(nvml)
            handle = queries.query("handle", "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                queries.set("name", "nvmlDeviceGetName", handle, then=_decode)
                queries.set("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", handle, then=lambda value: value / 1000)
                queries.set("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1))
                _read_live(queries, handle)
                queries.set("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", handle, then=_throttle_text)
                for direction, counter in (("tx", 0), ("rx", 1)):
                    name = f"pcie_{direction}_gbs"
                    queries.set(name, "nvmlDeviceGetPcieThroughput", handle, counter, then=lambda kb_s: kb_s / 1e6)
                self._read_nvlink(queries, handle, index)
            readings.append({"id": index, **queries.fields})
        return readings


class ClockReader(_RepeatedReader):
    """Repeated readings of what explains a measurement: clocks, load, and the processes on all GPUs."""

    # Without the traffic of PCIe, because each query of it takes the 20 ms over which the driver counts.

    def read(self) -> list[dict[str, Any]]:
        """Return `clock_sm_mhz`, `throttle`, `pids` and the load per GPU, as far as the driver has them."""
        if self._nvml is None:
            return []
        nvml, readings = self._nvml, []
        for index in range(_Queries(nvml).query("count", "nvmlDeviceGetCount") or 0):
            queries = _Queries(nvml)
            handle = queries.query("handle", "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                clock = getattr(nvml, "NVML_CLOCK_SM", 1)
                queries.set("clock_sm_mhz", "nvmlDeviceGetClockInfo", handle, clock, then=float)
                queries.set("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", handle, then=_throttle_text)
                queries.set("pids", "nvmlDeviceGetComputeRunningProcesses", handle, then=_pids)
                rates = queries.query("utilisation_percent", "nvmlDeviceGetUtilizationRates", handle)
                if rates is not None:
                    queries.fields["utilisation_percent"] = float(rates.gpu)
                memory = queries.query("memory_used_bytes", "nvmlDeviceGetMemoryInfo", handle)
                if memory is not None:
                    queries.fields["memory_used_bytes"] = int(memory.used)
                queries.set("temperature_c", "nvmlDeviceGetTemperature", handle, 0, then=float)
                queries.set("power_w", "nvmlDeviceGetPowerUsage", handle, then=lambda milliwatts: milliwatts / 1000)
                self._read_nvlink(queries, handle, index)
            readings.append({"id": index, **queries.fields})
        return readings


def _pids(processes: Any) -> tuple[int, ...]:
    return tuple(int(process.pid) for process in processes)


_ALL_LINKS = 0xFFFFFFFF
_MOST_LINKS = 18
_NVLINK_TX, _NVLINK_RX = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB
_NVLINK_FIELDS = [(field, link) for link in (_ALL_LINKS, *range(_MOST_LINKS)) for field in (_NVLINK_TX, _NVLINK_RX)]


def _nvlink_counts(values: Any) -> tuple[int, int] | None:
    """Return the sent and the received data of all links in KiB, or None if the GPU does not count them."""
    counted = [int(value.value.ullVal) if value.nvmlReturn == 0 else None for value in values]
    totals = counted[:2]
    if None in totals:  # not every driver has the sum over all links
        sides = [[count for count in counted[2 + side :: 2] if count is not None] for side in (0, 1)]
        totals = [sum(counts) if counts else None for counts in sides]
    return None if totals[0] is None or totals[1] is None else (totals[0], totals[1])


def _start() -> tuple[ModuleType | None, str]:
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver did not respond ({error})"
    return pynvml, ""


def read_devices(nvml: ModuleType) -> tuple[list[dict[str, Any]], list[list[str]], list[list[str]]]:
    """Return the fields of `Device` for every GPU, and the link words and the peer access between GPUs."""
    system = _Queries(nvml)
    count = system.query("count", "nvmlDeviceGetCount") or 0
    driver = system.query("driver_version", "nvmlSystemGetDriverVersion", then=_decode)
    cuda = system.query("cuda_version", "nvmlSystemGetCudaDriverVersion", then=_cuda_text)
    devices: list[dict[str, Any]] = []
    handles: list[Any] = []
    for index in range(count):
        queries = _Queries(nvml)
        handle = queries.query("name", "nvmlDeviceGetHandleByIndex", index)
        handles.append(handle)
        if handle is not None:
            _read_device(queries, handle)
        for field, value in (("driver_version", driver), ("cuda_version", cuda)):
            if value is not None:
                queries.fields[field] = value
            else:
                queries.unknown[field] = system.unknown[field]
        devices.append({"id": index, **queries.fields, "unknown": queries.unknown})
    words = [["X" if i == j else _word(nvml, devices, handles, i, j) for j in range(count)] for i in range(count)]
    p2p = [["X" if i == j else _p2p(nvml, handles, i, j, _P2P_READ) for j in range(count)] for i in range(count)]
    return devices, words, p2p


def _read_device(queries: _Queries, handle: Any) -> None:
    """Query the constant facts of a GPU, then its live readings, partitions and links."""
    nvml = queries.nvml
    queries.set("name", "nvmlDeviceGetName", handle, then=_decode)
    queries.set("uuid", "nvmlDeviceGetUUID", handle, then=_decode)
    queries.set("bus_id", "nvmlDeviceGetPciInfo", handle, then=lambda info: normal_bus_id(_decode(info.busId)))
    queries.set("compute_capability", "nvmlDeviceGetCudaComputeCapability", handle, then=tuple)
    queries.set("sm_count", "nvmlDeviceGetNumGpuCores", handle, then=lambda cores: _sm_count(queries.fields, cores))
    queries.set("ecc", "nvmlDeviceGetEccMode", handle, then=lambda modes: bool(modes[0]))
    if queries.fields.get("ecc"):
        queries.set("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", handle, 1, 0)  # since the driver was loaded
    queries.set("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", handle, then=lambda milliwatts: milliwatts / 1000)
    queries.set("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1))
    queries.set("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    queries.set("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", handle)
    queries.set("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    queries.set("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", handle)
    queries.set("cpus", "nvmlDeviceGetCpuAffinity", handle, _MASK_WORDS, then=_bits)
    queries.set("numa", "nvmlDeviceGetMemoryAffinity", handle, _MASK_WORDS, 0, then=_bits)
    _read_live(queries, handle)
    _read_mig(queries, handle)
    _read_nvlinks(queries, handle)
    _read_fabric(queries, handle)


def _read_live(queries: _Queries, handle: Any) -> None:
    memory = queries.query("memory_bytes", "nvmlDeviceGetMemoryInfo", handle)
    if memory is not None:
        queries.fields |= {"memory_bytes": int(memory.total), "memory_used_bytes": int(memory.used)}
    rates = queries.query("utilisation_percent", "nvmlDeviceGetUtilizationRates", handle)
    if rates is not None:
        queries.fields["utilisation_percent"] = float(rates.gpu)
    queries.set("temperature_c", "nvmlDeviceGetTemperature", handle, 0, then=float)
    queries.set("power_w", "nvmlDeviceGetPowerUsage", handle, then=lambda milliwatts: milliwatts / 1000)
    for name, constant in _MEGAHERTZ.items():
        queries.set(f"clock_{name}_mhz", "nvmlDeviceGetClockInfo", handle, getattr(queries.nvml, constant))


def _read_counters(queries: _Queries, handle: Any) -> None:
    """Query the reasons for reduced clocks, and the counters of errors."""
    queries.set("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons", handle, then=_throttle_text)
    queries.set("ecc_corrected", "nvmlDeviceGetTotalEccErrors", handle, 0, 0)
    queries.set("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    counts = []
    for link in range(getattr(queries.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        for counter in range(_NVLINK_COUNTERS):
            count = queries.query("nvlink_errors", "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
            if count is None:
                break
            counts.append(int(count))
        if count is None:
            break
    if counts:
        queries.fields["nvlink_errors"] = sum(counts)


def _cuda_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _throttle_text(bits: int) -> str:
    return ", ".join(word for bit, word in _THROTTLES.items() if bits & bit)


def _read_mig(queries: _Queries, handle: Any) -> None:
    """Query the MIG partitions of a GPU."""
    mode = queries.query("mig", "nvmlDeviceGetMigMode", handle)
    if mode is None:
        # A GPU without MIG reports "not supported". MIG is then off, not unknown.
        if queries.unknown["mig"] == str(queries.nvml.NVMLError(queries.nvml.NVML_ERROR_NOT_SUPPORTED)):
            del queries.unknown["mig"]
            queries.fields["mig"] = ""
        return
    if not mode[0]:
        queries.fields["mig"] = ""
        return
    names: list[str] = []
    for index in range(queries.query("mig", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = queries.query("mig partition", "nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if part is not None:
            name = queries.query("mig partition", "nvmlDeviceGetName", part, then=_decode) or "partition"
            names.append(name.rpartition("MIG ")[2])
    queries.unknown.pop("mig partition", None)
    queries.fields["mig"] = ", ".join(f"{n} × {name}" for name, n in Counter(names).items()) or "on, no partition"


def _read_nvlinks(queries: _Queries, handle: Any) -> None:
    """Query the state and the remote endpoint of every NVLink."""
    remotes: Counter[tuple[str, str]] = Counter()
    up = 0
    for link in range(getattr(queries.nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        state = queries.query("nvlink_count", "nvmlDeviceGetNvLinkState", handle, link)
        if state is None:  # the GPU has no further links
            break
        if state != 1:
            continue
        up += 1
        kind = queries.query("nvlink_remotes", "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, then=_REMOTES.get)
        bus_id = queries.query("nvlink_remotes", "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        remotes[kind or "unknown", normal_bus_id(_decode(bus_id.busId)) if bus_id is not None else "unknown"] += 1
    if up or "nvlink_count" not in queries.unknown:
        queries.unknown.pop("nvlink_count", None)
        queries.fields["nvlink_count"] = up
        queries.fields["nvlink_remotes"] = tuple((kind, bus_id, n) for (kind, bus_id), n in sorted(remotes.items()))


def _read_fabric(queries: _Queries, handle: Any) -> None:
    """Query the NVLink fabric that a GPU has joined."""

    # NVML fills a structure of the caller, whose class is an attribute of pynvml like the functions.
    def read(nvml_struct: Any) -> Any:
        queries.nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(nvml_struct))
        return nvml_struct

    info = queries.query("fabric", "c_nvmlGpuFabricInfoV_t", then=read)
    if info is None:
        return
    cluster = bytes(info.clusterUuid).hex()
    if info.state != queries.nvml.NVML_GPU_FABRIC_STATE_COMPLETED:
        states = {0: "not supported", 1: "not started", 2: "in progress"}
        queries.unknown["fabric"] = f"the NVLink fabric is {states.get(info.state, f'in state {info.state}')}"
    elif cluster.strip("0"):
        queries.fields["fabric"] = f"{cluster}/{info.cliqueId}"


def _word(nvml: ModuleType, devices: list[dict[str, Any]], handles: list[Any], i: int, j: int) -> str:
    """Return the link word between two GPUs: NVLinks if peers may use them, otherwise the PCIe path."""
    if handles[i] is None or handles[j] is None:
        return UNKNOWN
    direct = [n for kind, bus_id, n in devices[i].get("nvlink_remotes", ()) if bus_id == devices[j].get("bus_id")]
    if direct:
        return f"NV{sum(direct)}"
    # Inside a virtual machine the type of the remote endpoint is often unknown, although it is an NVSwitch. Peer access
    # over NVLink then decides. It is also missing while the fabric manager is not running.
    through_switch = [
        sum(n for kind, _, n in devices[k].get("nvlink_remotes", ()) if kind in ("switch", "unknown")) for k in (i, j)
    ]
    if min(through_switch) and _p2p(nvml, handles, i, j, nvml.NVML_P2P_CAPS_INDEX_NVLINK) in ("OK", UNKNOWN):
        return f"NV{min(through_switch)}"
    queries = _Queries(nvml)
    ancestor = queries.query("word", "nvmlDeviceGetTopologyCommonAncestor", handles[i], handles[j])
    return _ANCESTORS.get(ancestor, UNKNOWN) if ancestor is not None else UNKNOWN


def _p2p(nvml: ModuleType, handles: list[Any], i: int, j: int, what: int) -> str:
    if handles[i] is None or handles[j] is None:
        return UNKNOWN
    status = _Queries(nvml).query("p2p", "nvmlDeviceGetP2PStatus", handles[i], handles[j], what)
    return _P2P_WORDS.get(status, UNKNOWN) if status is not None else UNKNOWN


def _decode(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _bits(words: Any) -> str | None:
    mask = sum(int(word) << 64 * index for index, word in enumerate(words))
    return format_cpus(tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)) or None


def _sm_count(fields: dict[str, Any], cores: int) -> int | None:
    """Return the number of multiprocessors from the CUDA cores, or None for architectures that are not in the table."""
    capability = fields.get("compute_capability", (0, 0))
    per_sm = 64 if capability in ((6, 0), (8, 0)) else _CORES_PER_SM.get(capability[0])
    return None if per_sm is None or cores % per_sm else int(cores) // per_sm
