"""Rules for the health that ``nvidia-smi`` reports: every value of a block is judged, and an unknown one is named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Rule, TextFinding, first_names, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._host_settings import read_services
from meshlab.diagnosis.formats._smi_query import (
    CLOCKS,
    FABRIC,
    LINK,
    RECOVERY,
    RESET,
    QueriedValue,
    read_queried_values,
)
from meshlab.diagnosis.formats._smi_table import read_gpu_rows

_FABRIC = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
_SMI = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
_RECOVERY_FLAGS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html"

_NOT_REPORTED = frozenset(("", "n/a", "[n/a]", "not supported", "[not supported]"))
_NO = frozenset(("no", "false", "none"))

MEMORY_ANSWERS: Mapping[str, frozenset[str]] = dict.fromkeys(
    (
        *("sram threshold exceeded", "channel repair pending", "tpc repair pending", "unrepairable memory"),
        *("pending", "remapping failure occurred", "pending page blacklist", "pending retirement"),
    ),
    _NO,
)
"""The healthy values of the blocks about memory that are no counters, by name in lower case."""

_FABRIC_VALUES: Mapping[str, frozenset[str]] = {
    "state": frozenset(("completed",)),
    "status": frozenset(("success",)),
    "summary": frozenset(("healthy",)),
    "bandwidth": frozenset(("full",)),
    "route recovery in progress": _NO,
    "route unhealthy": _NO,
    "access timeout recovery": _NO,
    "access timeout recovery in progress": _NO,
    "incorrect configuration": _NO,
}
_FABRIC_FAULTS: Mapping[str, frozenset[str]] = {
    "state": frozenset(("in progress", "not started")),
    "summary": frozenset(("unhealthy", "limited capacity")),
    "bandwidth": frozenset(("degraded",)),
}
_FABRIC_NAMES = ("cliqueid", "clusteruuid")  # of the domain, not its health
_WORDS = frozenset.union(*_FABRIC_VALUES.values())


def unhealthy_values(
    values: Sequence[QueriedValue], healthy: Mapping[str, frozenset[str]]
) -> dict[str, list[QueriedValue]]:
    """Return the values that are reported, but not as healthy, by their names and texts."""
    items = (
        item
        for item in values
        if (expected := healthy.get(item.name.lower())) is not None
        and item.value.lower() not in expected | _NOT_REPORTED
    )
    return grouped((f"{item.name} {item.value}", item) for item in items)


def queried_gpus(items: Sequence[QueriedValue]) -> str:
    """Return the GPUs of some values as the subject of a finding."""
    names = list(
        dict.fromkeys(f"{i.bus_id}" + (f" of {i.host}" if i.host else "") for i in items if i.bus_id is not None)
    )
    if not names:
        return "the GPU of this block"
    return f"GPU{'s' * (len(names) > 1)} {first_names(names)}"


# -- the NVLink fabric -------------------------------------------------------------------------------------------------


@rule("fabric-unhealthy", "A GPU did not register with the NVLink fabric", source=_FABRIC, causes=("nvls-fabric",))
def fabric_unhealthy(paste: Paste) -> Iterator[TextFinding]:
    """Looks at all values of the section Fabric of nvidia-smi -q, its Health included, and at the services."""
    values = [item for item in paste.once(read_queried_values) if FABRIC in item.sections]
    problems = _fabric_problems(values)
    for problem, items in problems.items():
        clique = [item for item in values if item.name.lower() in _FABRIC_NAMES]
        zero = [item for item in clique if set(item.value) <= set("0-")]
        is_known = _is_known_fault(items[0])
        why = f"nvidia-smi -q reports for the fabric: {problem}."
        why += "" if is_known else " meshlab does not know this value, so it does not count as healthy."
        # Zero is normal in hosts without NVLink to other hosts, so it means something only with a failed status.
        if len(zero) == len(clique) == 2 * len({item.bus_id for item in clique}) and "Status" in problem:
            why += " Clique and cluster UUID are zero, so the GPU is in no NVLink domain of several hosts."
        if items[0].name == "Summary" and is_known:
            why += " The GPU is attached to the fabric, but NVLink to other GPUs may be slow or fail."
        yield fabric_unhealthy.finding(
            "error" if is_known else "warning",
            queried_gpus(items),
            why,
            "Check the fabric manager (systemctl status nvidia-fabricmanager, /var/log/fabricmanager.log) or, in a "
            "rack with NVLink switches, NMX and nvidia-imex. Drain the node until it reports State Completed and "
            "Status Success, and a healthy summary.",
            [item.line for item in items],
        )
    if values and not problems:
        yield from _registered(values)
    yield from _services(paste)


def _fabric_problems(values: Sequence[QueriedValue]) -> dict[str, list[QueriedValue]]:
    """Return the values that are not healthy, by what is wrong. Names that meshlab does not know are judged too."""
    others = {
        name: _WORDS
        for item in values
        if (name := item.name.lower()) not in _FABRIC_VALUES
        and name not in _FABRIC_NAMES
        and not re.fullmatch(r"[0-9a-fA-Fx-]+", item.value)  # a number or an identifier
    }
    return unhealthy_values(values, {**others, **_FABRIC_VALUES})


def _is_known_fault(item: QueriedValue) -> bool:
    name, value = item.name.lower(), item.value.lower()
    if name in ("status", "incorrect configuration"):  # the name of an error, of which there are many
        return value not in ("unknown", "unknown error")
    return value in _FABRIC_FAULTS.get(name, ()) or (name in _FABRIC_VALUES and value in ("true", "yes"))


def _registered(values: Sequence[QueriedValue]) -> Iterator[TextFinding]:
    """Judge GPUs that registered with the fabric: in a rack with NVLink switches they also need a cluster."""
    ready = [item for item in values if item.name == "Status" and item.value.lower() == "success"]
    zero = [item for item in values if item.name.lower() == "clusteruuid" and set(item.value) <= set("0-")]
    if in_rack := [item for item in zero if re.search(r"GB[23]00", item.product or "")]:
        yield fabric_unhealthy.finding(
            "warning",
            queried_gpus(in_rack),
            "The GPU registered with the fabric, but its cluster UUID is zero. In an NVL72 rack this means that it is "
            "in no NVLink domain of several hosts.",
            "Check NMX and the NVLink switches of the rack, and nvidia-imex.",
            [item.line for item in in_rack],
        )
    elif ready:
        judged = [item for item in values if item.name.lower() in _FABRIC_VALUES]
        healthy = [item for item in judged if item.value.lower() not in _NOT_REPORTED]
        texts = dict.fromkeys(f"{item.name} {item.value}" for item in healthy)
        missing = dict.fromkeys(item.name for item in judged if item not in healthy)
        yield TextFinding(
            "nothing-wrong",
            queried_gpus(ready),
            "info",
            f"The GPU registered with the NVLink fabric: {', '.join(texts)}."
            + (f" The driver does not report: {', '.join(missing)}." if missing else "")
            + (" A cluster UUID of zero is normal in hosts without NVLink to other hosts." if zero else ""),
            "",
            tuple(item.line.number for item in ready),
        )


def _services(paste: Paste) -> Iterator[TextFinding]:
    """Judge the services that NVSwitches need."""
    services = [
        item
        for item in paste.once(read_services)
        if item.name in ("nvidia-fabricmanager", "nvidia-imex") and item.state in ("inactive", "failed")
    ]
    nothing_to_do = paste.find("NV_WARN_NOTHING_TO_DO")
    for service in services:
        host = f" of {service.host}" if service.host else ""
        if nothing_to_do:
            yield fabric_unhealthy.finding(
                "info",
                f"{service.name}{host}",
                "The fabric manager found no NVSwitch (NV_WARN_NOTHING_TO_DO). Without NVSwitches it is not needed; on "
                "HGX B200 and later it means that the package nvlsm is missing.",
                "Disable the service on hosts without NVSwitches, or install nvlsm.",
                [*service.lines, *nothing_to_do],
            )
        else:
            yield fabric_unhealthy.finding(
                "error" if service.state == "failed" else "warning",
                f"{service.name}{host}",
                f"The service is {service.state}. GPUs with NVSwitches cannot be used without it.",
                f"Start it: systemctl start {service.name}; if it fails, read its log. Its version must be the same "
                "as that of the driver.",
                service.lines,
            )


# -- clocks, the PCIe link, recovery -----------------------------------------------------------------------------------

_SLOWDOWNS = {
    "hw slowdown": frozenset(("not active",)),
    "hw thermal slowdown": frozenset(("not active",)),
    "hw power brake slowdown": frozenset(("not active",)),
    "sw thermal slowdown": frozenset(("not active",)),
}
_RECOVERIES = {RECOVERY.lower(): frozenset(("none",)), "reset required": _NO, "drain and reset recommended": _NO}


@rule("gpu-slowed-down", "The hardware or the driver lowers the clocks of a GPU", source=_SMI)
def gpu_slowed_down(paste: Paste) -> Iterator[TextFinding]:
    """Looks in nvidia-smi -q for reasons of low clocks that are faults: heat, and the power brake."""
    values = [item for item in paste.once(read_queried_values) if CLOCKS in item.sections]
    by_reasons: dict[tuple[str, ...], list[QueriedValue]] = {}
    slow = [item for group in unhealthy_values(values, _SLOWDOWNS).values() for item in group]
    for items in grouped(((item.host, item.bus_id), item) for item in slow).values():
        reasons_of_gpu = tuple(dict.fromkeys(f"{item.name} {item.value}" for item in items))
        by_reasons.setdefault(reasons_of_gpu, []).extend(items)
    for reasons, items in by_reasons.items():
        brake = any("Power Brake" in reason for reason in reasons)
        heat = any("Thermal" in reason for reason in reasons)
        yield gpu_slowed_down.finding(
            "warning",
            queried_gpus(items),
            f"nvidia-smi -q reports for the clocks: {', '.join(reasons)}. The GPU computes more slowly, and every "
            "collective waits for it. The values are those of one moment.",
            " ".join(
                [
                    *(["Check the power supplies and the power cables of the host: its power brake is on."] * brake),
                    *(
                        ["Check the cooling: fans, filters, and the temperatures in nvidia-smi -q -d TEMPERATURE."]
                        * heat
                    ),
                    "Run nvidia-smi -q -d PERFORMANCE again during a job.",
                ]
            ),
            [item.line for item in items],
        )


_RESET = "reset it: nvidia-smi -r -i GPU. In a virtual machine, only the host may be able to do it."
_ACTIONS = (  # the longer names contain the shorter ones
    (
        "drain and reset",
        "The GPU works with reduced capacity after a fault.",
        f"Place no new jobs on the GPU. When its jobs have ended, {_RESET}",
    ),
    (
        "drain p2p",
        "A fault requires that peer-to-peer transfers with the GPU stop.",
        "End the jobs that use the GPU together with others.",
    ),
    ("reboot", "A fault may have left the operating system in an inconsistent state.", "Reboot the host."),
    ("reset", "The GPU had a fault, and only a reset makes it usable again.", f"End the jobs on the GPU, and {_RESET}"),
)


def recovery_action(text: str) -> tuple[str, str]:
    """Return what an action of the driver means and what to do, for the text of nvidia-smi -q or of Xid 154."""
    meanings = ((meaning, do) for name, meaning, do in _ACTIONS if name in text.lower())
    return next(meanings, ("meshlab does not know this action.", "Look it up in the manual of nvidia-smi."))


@rule(
    "gpu-needs-recovery",
    "The driver asks for the recovery of a GPU",
    source=(_SMI, _RECOVERY_FLAGS),
    causes=("cuda-error", "gpu-unavailable", "driver-message"),
)
def gpu_needs_recovery(paste: Paste) -> Iterator[TextFinding]:
    """Looks in nvidia-smi -q for a GPU Recovery Action other than None, and for a reset that is required."""
    values = [item for item in paste.once(read_queried_values) if RESET in item.sections or item.name == RECOVERY]
    for problem, items in unhealthy_values(values, _RECOVERIES).items():
        meaning, do = recovery_action(items[0].name if items[0].value.lower() == "yes" else items[0].value)
        yield gpu_needs_recovery.finding(
            "error",
            queried_gpus(items),
            f"nvidia-smi -q reports: {problem}. {meaning}",
            f"Look for the Xid in dmesg. {do}",
            [item.line for item in items],
        )
    if lines := paste.find("NV_ERR_RESET_REQUIRED"):
        yield gpu_needs_recovery.finding(
            "error",
            "a GPU of this host, which the line does not name",
            "The driver refuses work because a GPU has to be reset (NV_ERR_RESET_REQUIRED).",
            "Find the GPU and the first error in dmesg (Xid), and end its processes; then reset it (nvidia-smi -r -i "
            "N), or reboot.",
            lines,
        )


@rule("pcie-width", "A PCIe device uses fewer lanes or a lower speed than it could", source=_SMI)
def queried_pcie_width(paste: Paste) -> Iterator[TextFinding]:
    """Looks in nvidia-smi -q for GPUs with fewer lanes than possible. Idle GPUs lower the generation by design."""
    links = [item for item in paste.once(read_queried_values) if {LINK, "Link Width"} <= set(item.sections)]
    for items in grouped(((item.host, item.bus_id), item) for item in links).values():
        widths = {item.name: item for item in items if re.fullmatch(r"\d{1,3}x", item.value)}
        if "Max" not in widths or "Current" not in widths:
            continue
        most, current = (whole(widths[name].value[:-1]) for name in ("Max", "Current"))
        if current < most:
            yield queried_pcie_width.finding(
                "warning",
                queried_gpus(items),
                f"The PCIe link has {current} of {most} lanes.",
                "Reseat the card or the riser, and check the slot and the BIOS. Virtual machines may report wrong "
                "values.",
                [widths["Max"].line, widths["Current"].line],
            )


@rule("gpu-not-readable", "The driver cannot read the values of a GPU", source=_SMI)
def gpu_not_readable(paste: Paste) -> Iterator[TextFinding]:
    """Looks for ERR! in the table of nvidia-smi."""
    rows = [row for row in paste.once(read_gpu_rows) if row.failed]
    for is_lost, group in grouped((_is_lost(" ".join(i.text for i in row.failed)), row) for row in rows).items():
        names = [f"{row.gpu} ({row.bus_id})" + (f" of {row.host}" if row.host else "") for row in group]
        yield gpu_not_readable.finding(
            "error" if is_lost else "warning",
            f"GPU{'s' * (len(names) > 1)} {first_names(names)}",
            "nvidia-smi prints ERR! for "
            + (
                "several values: the GPU probably no longer responds, and then jobs on it fail."
                if is_lost
                else "some values. Some boards have no sensor for them, and then it is harmless; otherwise the GPU may "
                "be failing."
            ),
            "Look for Xid messages in dmesg, then reset the GPU (nvidia-smi -r -i GPU) or reboot."
            if is_lost
            else "Compare with other GPUs of the same product, and look for Xid messages in dmesg.",
            [line for row in group for line in row.failed],
        )


def _is_lost(text: str) -> bool:
    return text.count("ERR!") > 2


HEALTH_RULES: tuple[Rule, ...] = (
    gpu_needs_recovery,
    gpu_not_readable,
    fabric_unhealthy,
    gpu_slowed_down,
    queried_pcie_width,
)
