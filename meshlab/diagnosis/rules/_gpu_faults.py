"""Rules for faults of GPUs: errors in the kernel log, memory errors, and the NVLink fabric."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from meshlab.diagnosis._findings import Rule, TextFinding, first_names, rule
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._dcgm import read_link_counters
from meshlab.diagnosis.formats._gpu_tools import read_nvlink_counters, read_nvlinks
from meshlab.diagnosis.formats._kernel_log import SXid, Xid, host_of, read_driver_messages, read_kernel_log, short_bus
from meshlab.diagnosis.formats._nccl_lines import text_list
from meshlab.diagnosis.formats._smi_query import ECC, REMAPPED, RETIRED, QueriedValue, read_queried_values
from meshlab.diagnosis.formats._smi_table import read_gpu_rows
from meshlab.diagnosis.rules._gpu_health import MEMORY_ANSWERS, queried_gpus, recovery_action, unhealthy_values
from meshlab.topology.model._products import is_bridged

_CATALOG = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_MEMORY = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"

_NVLINK = frozenset((74, 137, 144, 145, 146, 147, 148, 149, 150))
_RECOVERABLE = (144, 145, 146, 147, 148, 149, 150)  # since Blackwell: the text says fatal or nonfatal
_UNCORRECTABLE = {48: "double-bit error", 95: "uncontained memory error", 140: "unrecovered memory error"}
_ROW_REMAPPING = {63: "a memory row was marked for remapping", 64: "remapping a memory row failed"}
_CONSEQUENCES = {
    43: "the driver stopped the channel of a process",
    45: "the driver cleaned up the channels of a process",
}
_APPLICATION = {13: "an exception in a kernel", 31: "an access to an invalid address"}
_GSP = (119, 120)
_RECOVERY = 154
_HANDLED = {*_NVLINK, *_UNCORRECTABLE, *_ROW_REMAPPING, *_CONSEQUENCES, *_APPLICATION, *_GSP, _RECOVERY, 79, 94}
_WORSE_THAN_REMAPPING = {*_UNCORRECTABLE, 94}
_HARDWARE = {*_NVLINK, *_UNCORRECTABLE, 79, 94}
_VICTIM_CODES = ("nccl-timeout", "rank-missing", "rank-died", "net-unreachable")


def _gpu(item: Xid | SXid, *, function: bool = False) -> str:
    return f"{item.bus_id}{'.0' * function}" + (f" of {item.host}" if item.host else "")


def _names(values: Iterable[str], noun: str = "GPU") -> str:
    """Return names after a noun: ``GPU a`` or ``GPUs a and b``."""
    names = list(dict.fromkeys(values))
    if len(names) == 1:
        return f"{noun} {names[0]}"
    return f"{noun}s {first_names(names) if len(names) > 8 else text_list(names)}"


def _lines(items: Iterable[Xid | SXid]) -> list[PasteLine | int]:
    return [item.line for item in items]


@rule("gpu-off-bus", "A GPU no longer responds on PCIe", source=_CATALOG, causes=_VICTIM_CODES)
def gpu_off_bus(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 79, "fallen off the bus" (the driver prints it without an Xid when it loads), and lost handles."""
    for loss in paste.once(read_kernel_log).bus_losses:
        where = "a GPU that the text does not name" if loss.bus_id is None else f"GPU {loss.bus_id}.0"
        where += f" ({loss.pci_id})" if loss.pci_id else ""
        where += f" of {loss.host}" if loss.host else ""
        when = (
            "Xid 79: it fell off the bus while it was running, so every rank that uses it or waits for it fails or "
            "hangs"
            if loss.by_xid
            else "the driver gets no answer from it on PCIe"
        )
        yield gpu_off_bus.finding(
            "error",
            where,
            f"{when[0].upper()}{when[1:]}. The text does not show whether power, heat, the slot or the GPU is at "
            "fault.",
            "Drain the host and power it off completely (a reboot is not always enough). If it happens again, "
            "reseat or replace the card, and check power and riser. nvidia-bug-report.sh collects the evidence.",
            loss.lines,
        )


@rule(
    "nvlink-error",
    "An NVLink failed",
    source=(_CATALOG, "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"),
    causes=_VICTIM_CODES,
)
def nvlink_error(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 74, 137 and 144 to 150 that are not marked nonfatal, for fatal SXids, and for what Xid 45 names."""
    log = paste.once(read_kernel_log)
    items, named = paste.once(_nvlink_items)
    switches = [item for item in log.sxids if item.fatal]
    if not items and not named and not switches:
        return
    if items or named:
        lines = [*_lines(items), *_lines(named)]
        codes = sorted({item.code for item in items} | {item.cause for item in named if item.cause is not None})
        links = sorted({item.link for item in items if item.link is not None})
        why = f"The driver logged NVLink errors: Xid {', '.join(map(str, codes))}"
        why += f" on link{'s' * (len(links) > 1)} {', '.join(map(str, links))}." if links else "."
        if named:
            why += " Xid 45 is only the cleanup of the processes afterwards, and names these errors as its cause."
        if 145 in codes and 149 in codes:
            why += " Xid 149 is reported by the network interface of the link, Xid 145 by GPUs that received bad data."
        why += (
            " All communication over these links stops or fails. The text does not show whether the GPU, the cable or "
            "the switch is at fault."
        )
        yield nvlink_error.finding(
            "error",
            _nvlink_subject(items, named),
            why,
            "Run nvidia-smi nvlink -s and nvidia-smi nvlink -e on that host, and read /var/log/fabricmanager.log. "
            "Reset the GPUs or reboot. If the same GPU or link fails again, report the node.",
            lines,
        )
    if switches:
        yield nvlink_error.finding(
            "error",
            _names((_gpu(item) for item in switches), "NVSwitch"),
            "The driver logged fatal NVSwitch errors: SXid "
            f"{', '.join(str(c) for c in sorted({s.code for s in switches}))}. GPUs that use this switch hang or "
            "get Xid 45.",
            "Read /var/log/fabricmanager.log, reset all GPUs of the host together or reboot it, and report the node "
            "if it happens again.",
            _lines(switches),
        )


@rule("nvlink-warning", "An NVLink recovered from an error", source=_CATALOG)
def nvlink_warning(paste: Paste) -> Iterator[TextFinding]:
    """Looks for nonfatal SXids, and for Xid 144 to 150 that are marked nonfatal, if no error stopped a process."""
    log = paste.once(read_kernel_log)
    errors, named = paste.once(_nvlink_items)
    failed = {(item.host, item.bus_id) for item in (*errors, *named)}  # their nonfatal errors belong to the same event
    items: list[Xid | SXid] = [
        item
        for item in log.xids
        if item.code in _RECOVERABLE and item.fatal is False and (item.host, item.bus_id) not in failed
    ]
    items += [item for item in log.sxids if item.fatal is False]
    if items:
        codes = ", ".join(str(code) for code in sorted({item.code for item in items}))
        links = sorted({item.link for item in items if item.link is not None})
        on = f" on link{'s' * (len(links) > 1)} {', '.join(map(str, links))}" if links else ""
        gpus = {(item.host, item.bus_id) for item in items}
        has_ended = any(item.code in _CONSEQUENCES and (item.host, item.bus_id) in gpus for item in log.xids)
        yield nvlink_warning.finding(
            "warning",
            _names(map(_gpu, items), "GPU" if isinstance(items[0], Xid) else "NVSwitch"),
            f"The driver logged NVLink errors that it calls nonfatal ({codes}){on}: the links recovered. "
            + (
                "A process on the same GPU ended (Xid 43 or 45), but the text does not show whether this was the "
                "reason."
                if has_ended
                else "Many of them announce a link that fails."
            ),
            "Count them: run nvidia-smi nvlink -e on that host now and after the next job. Drain the host if the "
            "counters of a link keep growing.",
            _lines(items),
        )


def _nvlink_items(paste: Paste) -> tuple[list[Xid], list[Xid]]:
    """Return NVLink errors that stop traffic, and consequences that name an NVLink error as their cause."""
    xids = paste.once(read_kernel_log).xids
    named = [item for item in xids if item.cause in _NVLINK]
    errors = [item for item in xids if item.code in _NVLINK]
    stopping = [item for item in errors if item.code not in _RECOVERABLE or item.fatal is not False]
    if not stopping and not named:
        return [], []
    # A nonfatal error of a GPU with one that stopped a process belongs to the same event.
    failed = {(item.host, item.bus_id) for item in (*stopping, *named)}
    return [item for item in errors if (item.host, item.bus_id) in failed], named


def _nvlink_subject(items: Sequence[Xid], named: Sequence[Xid]) -> str:
    """Return the GPU that reports the fault of its own interface first, then those that only noticed it."""
    codes: dict[str, list[int]] = {}
    for item in (*items, *named):
        code = item.cause if item.cause is not None else item.code
        gpu_codes = codes.setdefault(_gpu(item), [])
        if code not in gpu_codes:
            gpu_codes.append(code)
    texts = {gpu: f"{gpu} (Xid {', '.join(map(str, numbers))})" for gpu, numbers in codes.items()}
    roots = [gpu for gpu, numbers in codes.items() if 149 in numbers]
    others = [gpu for gpu in codes if gpu not in roots]
    links = sorted({item.link for item in items if item.link is not None})
    suffix = f", link{'s' * (len(links) > 1)} {', '.join(map(str, links))}" if links else ""
    if roots and others:
        return f"{_names(texts[gpu] for gpu in roots)}{suffix}, noticed by {', '.join(texts[gpu] for gpu in others)}"
    return _names(texts.values()) + suffix


@rule("ecc-uncorrectable", "The memory of a GPU has an error that ECC could not correct", source=(_MEMORY, _CATALOG))
def ecc_uncorrectable(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 48, 95 and 140, and for counters of uncorrectable errors since the driver was loaded."""
    log = paste.once(read_kernel_log)
    contained = {(item.host, item.bus_id) for item in log.xids if item.code == 94}
    uncontained = {(item.host, item.bus_id) for item in log.xids if item.code in (95, 140)}
    items = [
        item
        for item in log.xids
        # Xid 48 together with 94 is one error, and it was contained.
        if item.code in _UNCORRECTABLE and ((item.host, item.bus_id) not in contained - uncontained or item.code != 48)
    ]
    if items:
        kinds = ", ".join(dict.fromkeys(f"Xid {item.code} ({_UNCORRECTABLE[item.code]})" for item in items))
        yield ecc_uncorrectable.finding(
            "error",
            _names(map(_gpu, items)),
            f"The driver logged {kinds}. Data in the memory of the GPU is lost, and all processes on it are affected.",
            _MEMORY_FIX,
            _lines(items),
        )
    yield from _counted_errors([item for item in paste.once(read_queried_values) if ECC in item.sections])
    if rows := [row for row in paste.once(read_gpu_rows) if row.ecc]:
        yield ecc_uncorrectable.finding(
            "error",
            _names(f"{row.gpu} ({row.bus_id})" + (f" of {row.host}" if row.host else "") for row in rows),
            "nvidia-smi counts memory errors that ECC could not correct since the driver was loaded.",
            _MEMORY_FIX,
            [row.line for row in rows],
        )


def _counted_errors(values: Sequence[QueriedValue]) -> Iterator[TextFinding]:
    """Judge the block ECC Errors of nvidia-smi -q: counters since the driver was loaded, and answers of yes or no."""
    counters = [
        item
        for item in values
        if ("Uncorrectable" in item.name or "Double Bit" in item.sections)
        and item.value.isdecimal()
        and item.value.strip("0")
    ]
    if recent := [item for item in counters if "Volatile" in item.sections]:
        yield ecc_uncorrectable.finding(
            "error",
            queried_gpus(recent),
            "nvidia-smi -q counts memory errors that ECC could not correct since the driver was loaded: "
            + ", ".join(dict.fromkeys(f"{item.name} {item.value}" for item in recent))
            + ".",
            _MEMORY_FIX,
            [item.line for item in recent],
        )
    elif counters:
        yield ecc_uncorrectable.finding(
            "info",
            queried_gpus(counters),
            "nvidia-smi -q counts memory errors that ECC could not correct in the lifetime of the GPU, but not since "
            "the driver was loaded: "
            + ", ".join(dict.fromkeys(f"{item.name} {item.value}" for item in counters))
            + ".",
            "Watch whether the counters grow.",
            [item.line for item in counters],
        )
    for problem, items in unhealthy_values(values, MEMORY_ANSWERS).items():
        is_known = items[0].value.lower() == "yes"
        yield ecc_uncorrectable.finding(
            "error" if is_known and "Pending" not in items[0].name else "warning",
            queried_gpus(items),
            f"nvidia-smi -q reports for the memory: {problem}."
            + ("" if is_known else " meshlab does not know what this value means."),
            _MEMORY_FIX,
            [item.line for item in items],
        )


_MEMORY_FIX = (
    "Take the GPU out of the job, run nvidia-smi -q -d ECC,ROW_REMAPPER, and reset it with nvidia-smi -r -i GPU or "
    "reboot. If the error comes back, or remapping failed, have the GPU replaced."
)


@rule("ecc-contained", "A memory error of a GPU stopped one process", source=_MEMORY)
def ecc_contained(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 94, with Xid 48 and 63 of the same GPU."""
    xids = paste.once(read_kernel_log).xids
    hit = {(item.host, item.bus_id) for item in xids if item.code == 94}
    items = [item for item in xids if (item.host, item.bus_id) in hit and item.code in (48, 63, 94)]
    if items:
        processes = list(dict.fromkeys(f"{i.process or 'process'} (pid {i.pid})" for i in items if i.pid is not None))
        yield ecc_contained.finding(
            "error",
            _names(_gpu(item) for item in items),
            "Xid 94: the memory of the GPU had an uncorrectable error, but it was contained. "
            + (f"The driver ended {', '.join(processes[:3])}; " if processes else "The driver ended the process; ")
            + "other processes on the GPU are not affected.",
            "Restart the job. At the next chance, reset the GPU (nvidia-smi -r -i GPU), so that the memory row is "
            "remapped, and check nvidia-smi -q -d ROW_REMAPPER: replace the GPU if remapping failed.",
            _lines(items),
        )


@rule("row-remapping", "A GPU replaces a memory row", source=_MEMORY)
def row_remapping(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 63 and 64 without other memory errors of the GPU, and for Remapped Rows and Retired Pages."""
    xids = paste.once(read_kernel_log).xids
    worse = {(i.host, i.bus_id) for i in xids if i.code in _WORSE_THAN_REMAPPING}
    items = [i for i in xids if i.code == 64 or (i.code == 63 and (i.host, i.bus_id) not in worse)]
    values = [item for item in paste.once(read_queried_values) if {REMAPPED, RETIRED} & set(item.sections)]
    answers = [item for group in unhealthy_values(values, MEMORY_ANSWERS).values() for item in group]
    used_up = [item for item in values if item.name == "None" and item.value[:1].isdecimal() and item.value[0] != "0"]
    failed = [item for item in (*answers, *used_up) if "Pending" not in item.name]
    pending = [item for item in answers if "Pending" in item.name]
    has_failed = bool(failed) or any(item.code == 64 for item in items)
    if items or failed or pending:
        yield row_remapping.finding(
            "error" if has_failed else "warning",
            _names(map(_gpu, items)) if items else queried_gpus([*failed, *pending]),
            ("Remapping a memory row failed." if has_failed else "A memory row or page waits to be replaced.")
            + _reported([*failed, *pending]),
            "Have the GPU replaced."
            if has_failed
            else "Reset the GPU (nvidia-smi -r -i GPU) or reboot when no job runs on it; jobs may continue until then.",
            [*_lines(items), *(item.line for item in (*failed, *pending))],
        )


def _reported(values: Sequence[QueriedValue]) -> str:
    """Return a sentence with values of nvidia-smi -q, or nothing without any."""
    texts = dict.fromkeys(f"{item.name} {item.value}" for item in values)
    return f" nvidia-smi -q reports: {', '.join(texts)}." if texts else ""


@rule("application-fault", "A kernel of the program failed", source=_CATALOG)
def application_fault(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 13 and 31, if no hardware fault of the same GPU explains them."""
    xids = paste.once(read_kernel_log).xids
    broken = {(i.host, i.bus_id) for i in xids if i.code in _HARDWARE}
    items = [item for item in xids if item.code in _APPLICATION and (item.host, item.bus_id) not in broken]
    if items:
        kinds = ", ".join(dict.fromkeys(f"Xid {item.code} ({_APPLICATION[item.code]})" for item in items))
        processes = list(dict.fromkeys(f"{i.process or 'process'} (pid {i.pid})" for i in items if i.pid is not None))
        whose = f" of {', '.join(processes[:3])}" if processes else ""
        yield application_fault.finding(
            "error",
            _names(map(_gpu, items)),
            f"The driver logged {kinds}{whose}. Usually the program or a library is at fault, not the GPU. NCCL of "
            "the other ranks then waits for this one.",
            "Run the program under compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1 to find the kernel. "
            "If only one GPU fails with different programs, test it with dcgmi diag -r 3.",
            _lines(items),
        )


@rule("gsp-timeout", "The firmware of a GPU does not respond", source=_CATALOG, causes=_VICTIM_CODES)
def gsp_timeout(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 119 and 120."""
    if items := [item for item in paste.once(read_kernel_log).xids if item.code in _GSP]:
        yield gsp_timeout.finding(
            "error",
            _names(map(_gpu, items)),
            "Xid 119 or 120: the processor that runs the firmware of the GPU (GSP) does not respond or failed.",
            "Reset the GPU or reboot. If it comes back, update the driver, and report it with nvidia-bug-report.sh.",
            _lines(items),
        )


@rule("xid-consequence", "An Xid that only follows from another error", source=_CATALOG)
def xid_consequence(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xid 43 and 45, which the driver logs when it ends a process, whatever the reason is."""
    xids = paste.once(read_kernel_log).xids
    if items := [item for item in xids if item.code in _CONSEQUENCES]:
        has_cause = any(item.cause is not None or item.code not in _CONSEQUENCES for item in xids)
        kinds = "; ".join(dict.fromkeys(f"Xid {item.code}: {_CONSEQUENCES[item.code]}" for item in items))
        yield xid_consequence.finding(
            "normal",
            _names(map(_gpu, items)),
            f"{kinds}. This happens whenever a process ends while its GPU is busy, also after Ctrl+C. It is never a "
            "cause.",
            "" if has_cause else "Look for an earlier Xid in dmesg, or for what ended the process.",
            _lines(items),
        )


@rule("other-xid", "Another error of the GPU driver", source=_CATALOG)
def other_xid(paste: Paste) -> Iterator[TextFinding]:
    """Looks for Xids that no other rule knows, and for the recovery action that Xid 154 asks for."""
    xids = paste.once(read_kernel_log).xids
    if others := [item for item in xids if item.code not in _HANDLED]:
        yield other_xid.finding(
            "warning",
            _names(map(_gpu, others)),
            f"The driver logged Xid {', '.join(str(code) for code in sorted({item.code for item in others}))}, "
            "for which meshlab has no rule.",
            f"Look the number up in {_CATALOG}.",
            _lines(others),
        )
    asks = [item for item in xids if item.code == _RECOVERY and "(None)" not in item.text.rpartition("to")[2]]
    if asks:
        alone = not any(item.code not in (_RECOVERY, *_CONSEQUENCES) for item in xids)
        action = next((i.text.rpartition("(")[2].partition(")")[0] for i in asks if "(" in i.text), "unknown")
        meaning, do = recovery_action(action)
        yield other_xid.finding(
            "warning" if alone else "info",
            _names(map(_gpu, asks)),
            f"Xid 154: after an error, the driver recommends an action: {action}. {meaning}",
            do,
            _lines(asks),
        )


@rule("driver-not-loaded", "The driver does not respond to nvidia-smi", source="nvidia-smi(1)")
def driver_not_loaded(paste: Paste) -> Iterator[TextFinding]:
    """Looks for the messages of nvidia-smi and NVML about the driver itself."""
    for literals, why, do in _DRIVER_FAULTS:
        if lines := paste.find(*literals):
            yield driver_not_loaded.finding("error", "the NVIDIA driver of this host", why, do, lines)


_INIT = re.compile(
    r"NVRM: GPU (?:at PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
    r".*RmInitAdapter failed! \((?P<code>[^)]{3,40})\)"
)
_PROBED = re.compile(r"nvidia(?:: probe of)? (?P<bus>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\.")
_FIRMWARE = ("Cannot initialize GSP firmware", "GfwBoot", "GFW_BOOT", "GFW boot")
_PROBE = ("nvidia: probe of ", "probe with driver nvidia failed")
_INIT_MARKS = ("RmInitAdapter", "rm_init_adapter", *_PROBE, *_FIRMWARE)


@rule("gpu-init-failed", "The driver cannot initialise a GPU", source=_CATALOG, causes=("driver-not-loaded",))
def gpu_init_failed(paste: Paste) -> Iterator[TextFinding]:
    """Looks for RmInitAdapter failures of the kernel module, which have no Xid."""
    lines = [line for line in paste.once(read_driver_messages) if any(mark in line.raw for mark in _INIT_MARKS)]
    if not lines:
        return
    failures = [(line, match) for line in lines if (match := _INIT.search(line.text) or _PROBED.search(line.text))]
    codes = list(dict.fromkeys(match["code"] for _, match in failures if match.re is _INIT))
    gpus = [short_bus(match["bus"]) + (f" of {host}" if (host := host_of(line)) else "") for line, match in failures]
    yield gpu_init_failed.finding(
        "error",
        _names(gpus) if gpus else "a GPU that the text does not name",
        f"The driver failed to initialise the GPU{f' (RmInitAdapter, {codes[0]})' if codes else ''}, so no program can "
        "use it."
        + " Its firmware did not start." * any(mark in line.raw for mark in _FIRMWARE for line in lines)
        + " The text does not show whether the driver, the settings of the BIOS or the GPU is at fault.",
        "Power the host off completely and on again. If it fails again, try another version of the driver, check Above "
        "4G Decoding and the power cables, and swap the card with another one.",
        lines,
    )


_TROUBLE = re.compile(
    r"fail|error|assert|timeout|timed out|invalid|mismatch|cannot|unable|not supported", re.IGNORECASE
)


@rule("driver-message", "The GPU driver logged a message without a rule", source=_CATALOG)
def driver_message(paste: Paste) -> Iterator[TextFinding]:
    """Looks for messages of NVRM without an Xid about something that failed, if no other rule is for them."""
    judged = {mark for marks, _, _ in _DRIVER_FAULTS for mark in marks} | set(_INIT_MARKS)
    lines = [
        line
        for line in paste.once(read_driver_messages)
        if _TROUBLE.search(line.text) and not any(mark in line.raw for mark in judged)
    ]
    if lines:
        yield driver_message.finding(
            "info",
            "the NVIDIA driver of this host",
            f"{'Messages' if len(lines) > 1 else 'A message'} of the driver (NVRM) without an Xid "
            f"report{'s' * (len(lines) == 1)} that something failed. meshlab has no rule for this; often it "
            "accompanies another error.",
            "Look for the first of them, and for an Xid near it.",
            lines[:200],
        )


_DRIVER_FAULTS = (
    (
        ("NVRM: API mismatch:",),
        "The kernel module and a library of the driver have different versions. This happens after an update without "
        "a reboot, and in containers with their own library.",
        "Reboot, or reload the kernel modules while no process uses a GPU. In a container, use the libraries of the "
        "host's driver.",
    ),
    (
        ("requires use of the NVIDIA open kernel modules", "is not supported by the NVIDIA"),
        "The loaded kernel module does not support a GPU of this host.",
        "Install the version of the driver that the message names; from Blackwell on, it has to be the open kernel "
        "module.",
    ),
    (
        ("NVRM: No NVIDIA GPU found", "NVRM: None of the NVIDIA", "The NVIDIA probe routine was not called"),
        "The kernel module started without a GPU: none is visible on PCIe, or another driver (nouveau, vfio-pci) took "
        "it first.",
        "Look at lspci -nnk for the GPUs and the driver that each uses.",
    ),
    (
        ("I/O region assigned to your NVIDIA device is invalid",),
        "The BIOS gave a GPU no address range for its memory (BAR).",
        "Turn on Above 4G Decoding in the BIOS, or boot with pci=realloc.",
    ),
    (
        ("Driver/library version mismatch",),
        "The loaded kernel module and the libraries of the driver have different versions, because the driver was "
        "updated without a reboot.",
        "Reboot, or unload and load the kernel modules while no process uses a GPU.",
    ),
    (
        ("couldn't communicate with the NVIDIA driver", "No devices were found"),
        "nvidia-smi finds no driver or no GPU.",
        "Check that the module is loaded (lsmod | grep nvidia), that dmesg has no error of NVRM, and that the "
        "container was started with GPUs.",
    ),
)


@rule("gpu-without-nvlink", "A GPU has no NVLink, but others have", source="nvidia-smi nvlink -h")
def gpu_without_nvlink(paste: Paste) -> Iterator[TextFinding]:
    """Looks for a GPU of which all NVLinks are inactive, next to GPUs of the same product with active ones."""
    links = paste.once(read_nvlinks)
    active = {(link.host, link.gpu): 0 for link in links}
    for link in links:
        active[link.host, link.gpu] += link.gbs is not None
    products = {(link.host, link.gpu): link.product for link in links}
    for key, count in active.items():
        peers = [other for other in active if other != key and products[other] == products[key]]
        is_certain = any(active[other] for other in peers)
        if count or not (is_certain or (peers and always_has_nvlink(products[key]))):
            continue
        # Bridges connect an even number of cards, so an odd one misses this one.
        if is_bridged(products[key]) and not sum(active[other] > 0 for other in peers) % 2:
            yield gpu_without_nvlink.finding(
                "info",
                f"GPU{key[1]} ({products[key]})" + (f" of {key[0]}" if key[0] else ""),
                "All its NVLinks are inactive, and other GPUs of the same product have active ones. A bridge connects "
                "such cards in pairs or groups, so a card without a bridge is normal.",
                "If it has a bridge, check that it is seated, and look for NVLink errors in dmesg.",
                [link.line for link in links if (link.host, link.gpu) == key],
            )
            continue
        yield gpu_without_nvlink.finding(
            "error" if is_certain else "warning",
            f"GPU{key[1]} ({products[key]})" + (f" of {key[0]}" if key[0] else ""),
            "All its NVLinks are inactive, "
            + (
                "but other GPUs of the same product have active ones."
                if is_certain
                else "like those of the other GPUs, but this product has NVLink. In some virtual machines this is "
                "by design."
            ),
            "Look for NVLink errors in dmesg (Xid 74, 144 to 150) and in the log of the fabric manager, then reset "
            "the GPU or reboot. Place no ranks on it until then.",
            [link.line for link in links if (link.host, link.gpu) == key],
        )


@rule("nvlinks-inactive", "Some NVLinks of a GPU are inactive", source="nvidia-smi nvlink -h")
def nvlinks_inactive(paste: Paste) -> Iterator[TextFinding]:
    """Looks for GPUs with fewer active NVLinks than others of the same product, or than SXM modules have."""
    links = paste.once(read_nvlinks)
    for host, gpu in dict.fromkeys((link.host, link.gpu) for link in links):
        gpu_links = [link for link in links if (link.host, link.gpu) == (host, gpu)]
        active = sum(link.gbs is not None for link in gpu_links)
        dead = [link.link for link in gpu_links if link.gbs is None and link.link is not None]
        same = [link for link in links if link.product == gpu_links[0].product and link.gbs is not None]
        counts = Counter((link.host, link.gpu) for link in same)
        most = max(counts.values(), default=0)
        if not active or not dead or not (most > active or always_has_nvlink(gpu_links[0].product)):
            continue
        compared = f"other GPUs of this product have {most}" if most > active else f"this product has {len(gpu_links)}"
        yield nvlinks_inactive.finding(
            "warning",
            f"GPU{gpu} ({gpu_links[0].product})" + (f" of {host}" if host else ""),
            f"{active} of {len(gpu_links)} NVLinks are active, and {compared}: link{'s' * (len(dead) > 1)} "
            f"{', '.join(map(str, dead))} {'are' if len(dead) > 1 else 'is'} inactive. In a virtual machine that has "
            "only some of the GPUs of its host, this is by design.",
            "Compare with nvidia-smi topo -m, and look for errors with nvidia-smi nvlink -e. A GPU reset may restore "
            "failed links.",
            [link.line for link in gpu_links if link.gbs is None],
        )


@rule("nvlinks-active", "All NVLinks are active", source="nvidia-smi nvlink -h")
def nvlinks_active(paste: Paste) -> Iterator[TextFinding]:
    """Looks for the output of nvidia-smi nvlink -s in which all links of all GPUs are active."""
    links = paste.once(read_nvlinks)
    if not links or any(link.gbs is None for link in links):
        return
    counts = Counter((link.host, link.gpu) for link in links)
    if len(set(counts.values())) == 1:  # otherwise the text is truncated
        gpus = [f"GPU{gpu}" + (f" of {host}" if host else "") for host, gpu in counts]
        yield TextFinding(
            "nothing-wrong",
            first_names(gpus),
            "info",
            f"All {next(iter(counts.values()))} NVLinks of {'each GPU' if len(gpus) > 1 else 'the GPU'} are active.",
            "",
            tuple(link.line.number for link in links),
        )


@rule("nvlink-error-counters", "NVLinks count errors", source="nvidia-smi nvlink -h")
def nvlink_error_counters(paste: Paste) -> Iterator[TextFinding]:
    """Looks in nvidia-smi and dcgmi nvlink -e for counters that are not zero since the driver was loaded."""
    counters_of_tools = (*paste.once(read_nvlink_counters), *paste.once(read_link_counters))
    counted = [item for item in counters_of_tools if item.count]
    for host, gpu in dict.fromkeys((item.host, item.gpu) for item in counted):
        counters = [item for item in counted if (item.host, item.gpu) == (host, gpu)]
        counts = ", ".join(f"link {item.link}: {item.count:,} {item.counter}" for item in counters[:4])
        yield nvlink_error_counters.finding(
            "warning",
            f"GPU{gpu}" + (f" of {host}" if host else ""),
            "The counters of NVLink errors since the driver was loaded are not zero: "
            f"{counts}{' and more' * (len(counters) > 4)}. Corrected errors cost bandwidth; the text does not show "
            "when they happened.",
            "Run nvidia-smi nvlink -e again after a job. If a counter grows, reset the GPU or have its link checked.",
            [item.line for item in counters],
        )


def always_has_nvlink(product: str) -> bool:
    """Return whether a product is an SXM module, of which every link is connected in a complete machine."""
    return "SXM" in product.upper() or "HBM3" in product.upper()


GPU_RULES: tuple[Rule, ...] = (
    gpu_off_bus,
    nvlink_error,
    ecc_uncorrectable,
    ecc_contained,
    gpu_without_nvlink,
    gsp_timeout,
    gpu_init_failed,
    driver_not_loaded,
    application_fault,
    nvlink_warning,
    nvlinks_inactive,
    nvlink_error_counters,
    nvlinks_active,
    row_remapping,
    other_xid,
    xid_consequence,
    driver_message,
)
