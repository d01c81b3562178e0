"""Rules for ports of the network, NICs and PCIe: down, waiting for a subnet manager, unstable, or with errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.diagnosis._findings import Level, Rule, TextFinding, first_names, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._kernel_log import LinkChange, host_of, read_kernel_log
from meshlab.diagnosis.formats._rdma_ports import PortState, read_ports

_IBSTAT = "https://docs.nvidia.com/networking/display/ofedv561046/infiniband+fabric+utilities"
_NO_LIDS = (0, 0xFFFF)
_VICTIM_CODES = ("ib-retry-exceeded", "net-unreachable", "socket-fallback", "single-nic")


def _is_flapping(states: Sequence[PortState], devices: int) -> bool:
    """Return whether several states surely belong to one port, and differ."""
    if len(states) < 2 or len({(port.state, port.physical) for port in states}) < 2:
        return False
    # Without the name of the host, two lists of ports may come from two hosts.
    addresses = {port.lid for port in states}
    is_one_address = len(addresses) == 1 and addresses.isdisjoint({None, *_NO_LIDS})
    is_one_guid = len({port.guid for port in states}) == 1 and states[0].guid is not None
    return is_one_address or is_one_guid or devices == 1 or states[0].host is not None


@rule("ib-port-flap", "A network port goes up and down", source=_IBSTAT, causes=_VICTIM_CODES)
def ib_port_flap(paste: Paste) -> Iterator[TextFinding]:
    """Looks for one port with different states in the same paste, and for links in dmesg that went down repeatedly."""
    histories = _histories(paste)
    for states in histories.values():
        if not _is_flapping(states, len({device for _, device, _ in histories})):
            continue
        seen = ", ".join(f"{port.state}/{port.physical}" for port in states[:6])
        yield ib_port_flap.finding(
            "error",
            states[0].name,
            f"The state of the port changes between calls: {seen}. This fits a failing cable, transceiver or switch "
            "port.",
            f"Take the host, or {states[0].device} with NCCL_IB_HCA=^{states[0].device}, out of the job. Check the "
            "cable, and compare the counters of the port (symbol errors, link downed) with those of another host.",
            [line for port in states for line in port.lines],
        )
    for (host, interface), changes in _changes(paste).items():
        downs = sum(not change.up for change in changes)
        if downs > 1:
            yield ib_port_flap.finding(
                "error",
                interface + (f" of {host}" if host else ""),
                f"The kernel log shows {downs} times that the link went down.",
                "Check the cable, the transceiver and the switch port, and exclude the NIC with NCCL_IB_HCA or "
                "NCCL_SOCKET_IFNAME until it is stable.",
                [change.line for change in changes],
            )


@rule("ib-port-down", "A network port is not active", source=_IBSTAT, causes=_VICTIM_CODES)
def ib_port_down(paste: Paste) -> Iterator[TextFinding]:
    """Looks at the last state of every port. A port that is disabled next to active ones may be unused."""
    histories = _histories(paste)
    devices = len({device for _, device, _ in histories})
    last = [states[-1] for states in histories.values()]
    stable = [states[-1] for states in histories.values() if not _is_flapping(states, devices)]
    inactive = [port for port in stable if port.state not in ("ACTIVE", "UNKNOWN")]
    groups = grouped((_judged(port, last), port) for port in inactive)
    for (severity, why, do), ports in groups.items():
        do = re.sub(r"\bNETDEV\b", ports[0].netdev or "NETDEV", re.sub(r"\bDEV\b", ports[0].device, do))
        lines = [line for port in ports for line in port.lines]
        yield ib_port_down.finding(severity, _names(ports), why, do, lines)
    if odd := [port for port in stable if port.state == "ACTIVE" and port.physical not in (None, "LINKUP")]:
        yield ib_port_down.finding(
            "warning",
            _names(odd),
            f"The port is active, but its physical state is {', '.join(sorted({str(port.physical) for port in odd}))}.",
            "Check the cable and the transceiver, and compare the counters of the port with those of another host.",
            [line for port in odd for line in port.lines],
            title="The physical state of a port is not LinkUp",
        )
    if interfaces := [port for port in stable if port.state == "UNKNOWN"]:
        yield ib_port_down.finding(
            "info",
            _names(interfaces),
            "ibdev2netdev prints that the interface for IP over InfiniBand is down. NCCL does not need it, and the "
            "port itself may be active: the text does not show its state.",
            f"Run ibstat {interfaces[0].device}: if the state is not Active, check the cable and the switch port.",
            [line for port in interfaces for line in port.lines],
            title="The network interface of a port is down",
        )
    for (host, interface), changes in _changes(paste).items():
        if sum(not change.up for change in changes) == 1 and not changes[-1].up:
            yield ib_port_down.finding(
                "warning",
                interface + (f" of {host}" if host else ""),
                "The kernel log shows that the link went down, and not that it came up again.",
                f"Check its present state with ip link show {interface} and rdma link.",
                [changes[-1].line],
            )


def _names(ports: Sequence[PortState]) -> str:
    return first_names([port.name for port in ports])


def _judged(port: PortState, all_ports: Sequence[PortState]) -> tuple[Level, str, str]:
    """Return the severity of a port that is not active, why, and what to do. Similar ports get equal answers."""
    active = sum(other.host == port.host and other.state == "ACTIVE" for other in all_ports)
    if port.is_netdev_state:
        return (
            "info" if active else "warning",
            "ibdev2netdev prints that the network interface of the port is down, and RoCE needs it."
            + " Other ports of the host are active, so this one may be unused on purpose." * bool(active),
            "If the job needs it, run ip link set NETDEV up, and check the cable and the switch port; otherwise "
            "exclude it with NCCL_IB_HCA=^DEV.",
        )
    if port.state in ("INIT", "ARMED") and port.link_layer != "Ethernet":
        return (
            "error",
            "The link is up, but no subnet manager has given the port an address (state Initializing).",
            "Start a subnet manager: on a managed switch, or opensm on one host of the fabric. If one runs (sminfo), "
            "check that it sees this port.",
        )
    if port.physical == "LINKUP" and port.link_layer != "Ethernet":
        why = "The link itself is up, but the port has no address"
        why += f" (lid {port.lid})" if port.lid in _NO_LIDS else ""
        why += ", so NCCL does not use it."
        if port.sm_lid not in (None, *_NO_LIDS):
            why += f" A subnet manager exists (lid {port.sm_lid}). This fits a virtual function without a GUID."
        return (
            "error",
            why,
            "In a virtual machine or pod, give the virtual function a GUID and a link state (ip link set NETDEV vf N "
            "node_guid …, port_guid …, state auto), and enable virtualisation in the subnet manager. Then check that "
            "ibstat DEV prints State: Active.",
        )
    why = "The port is down" if port.state == "DOWN" else f"The state of the port is {port.state}, and not ACTIVE"
    why += f" (physical state {(port.physical or 'unknown').lower()})."
    if active:
        why += f" {active} other port{'s' * (active > 1)} of the host {'are' if active > 1 else 'is'} active, so "
        why += "this one may be unused on purpose."
    severity: Level = "error" if not active else "info" if port.physical == "DISABLED" else "warning"
    do = "If the job needs it, check the cable and the switch port, and enable it; otherwise exclude it with "
    return severity, why, do + "NCCL_IB_HCA=^DEV."


@rule("ports-active", "All network ports are active", source=_IBSTAT)
def ports_active(paste: Paste) -> Iterator[TextFinding]:
    """Looks for lists of ports that are all active, and names what may look wrong in them."""
    histories = _histories(paste)
    last = [states[-1] for states in histories.values()]
    devices = len({device for _, device, _ in histories})
    if not last or any(port.state != "ACTIVE" or port.physical not in (None, "LINKUP") for port in last):
        return
    if any(_is_flapping(states, devices) for states in histories.values()):
        return
    roce = [port for port in last if port.link_layer == "Ethernet" and port.lid in (0, None)]
    if roce and any(port.lid == 0 for port in roce):
        yield ports_active.finding(
            "normal",
            _names(roce),
            "These ports have lid 0, because RoCE (link layer Ethernet) has no lids.",
            "",
            [line for port in roce for line in port.lines],
        )
    yield TextFinding(
        "nothing-wrong",
        _names(last),
        "info",
        f"{'All ' + str(len(last)) + ' ports are' if len(last) > 1 else 'The port is'} active.",
        "",
        tuple(line.number for port in last for line in port.lines),
    )


def _histories(paste: Paste) -> dict[tuple[str | None, str, int], list[PortState]]:
    """Return the states of every port in the order of the text."""
    return grouped(((port.host, port.device, port.port), port) for port in paste.once(read_ports))


_NIC = r"mlx5_core (?P<bus>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])"
_NIC_FAULTS: tuple[tuple[re.Pattern[str], tuple[str, ...], Level, str, str], ...] = (
    (
        re.compile(rf"{_NIC}.*(?:health compromised|Fatal error \d+ detected|assert_var\[0\])"),
        ("health compromised", "Fatal error", "assert_var[0]"),
        "error",
        "The firmware of the NIC stopped or reported a fatal error, so nothing goes through it until it is reset.",
        "Take the host out, save the output of mstdump or sysinfo-snapshot for NVIDIA, update the firmware "
        "(mlxfwmanager) and power the host off and on. If it happens again, replace the NIC.",
    ),
    (
        re.compile(rf"{_NIC}.*TX timeout"),
        ("TX timeout",),
        "error",
        "Packets that the driver gave to the NIC were not sent in time: its transmit queues, or the processor that "
        "serves them, are stuck.",
        "Look in dmesg around it for a soft lockup and for errors of the firmware, reset the interface or reboot, and "
        "update driver and firmware if it happens again.",
    ),
    (
        re.compile(rf"{_NIC}.*status (?:limits exceeded|no resources)"),
        ("status limits exceeded", "status no resources"),
        "warning",
        "The NIC has no more of a resource that the command asked for, such as memory registrations or queue pairs.",
        "Use fewer ranks or connections per NIC, and check that old processes do not still hold registrations (rdma "
        "resource show). For Open MPI, use UCX instead of the openib transport.",
    ),
    (
        re.compile(rf"{_NIC}.*ACCESS_REG.*status bad (?:operation|parameter)"),
        ("ACCESS_REG",),
        "normal",
        "A tool asked the NIC for a register that it does not have, as monitoring does. Data is not affected.",
        "",
    ),
)


@rule("nic-fault", "The kernel reports a fault of a NIC", source="linux drivers/net/ethernet/mellanox/mlx5/core")
def nic_fault(paste: Paste) -> Iterator[TextFinding]:
    """Looks in the kernel log for faults of NICs of NVIDIA, and for refused commands that are harmless."""
    for pattern, literals, level, why, do in _NIC_FAULTS:
        if matches := paste.matches(pattern, *literals):
            buses = dict.fromkeys(match["bus"] for _, match in matches)
            hosts = dict.fromkeys(host for line, _ in matches if (host := host_of(line)))
            yield nic_fault.finding(
                level,
                f"NIC {first_names(list(buses))}" + (f" of {first_names(list(hosts))}" if hosts else ""),
                why,
                do,
                [line for line, _ in matches],
            )


_MANY_CORRECTED = 10  # lines in a paste
_AER = re.compile(
    r"AER: (?:Multiple )?(?P<kind>Corrected|Uncorrected"
    r"|Uncorrectable) ?(?:\((?P<fatal>[^)]*)\) )?error (?:message )?received"
    r":? (?:from )?(?P<bus>[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])"
)


@rule("pcie-errors", "PCIe reports transfers with errors", source="linux Documentation/PCI/pcieaer-howto.rst")
def pcie_errors(paste: Paste) -> Iterator[TextFinding]:
    """Looks in the kernel log for errors of PCIe (AER), which the link repeated or could not repair."""
    matches = paste.matches(_AER, "AER: ")
    for is_corrected in (False, True):
        same = [(line, match) for line, match in matches if (match["kind"] == "Corrected") == is_corrected]
        if not same:
            continue
        buses = dict.fromkeys(match["bus"] for _, match in same)
        yield pcie_errors.finding(
            "error" if not is_corrected else "warning" if len(same) >= _MANY_CORRECTED else "info",
            f"PCIe device {first_names(list(buses))}",
            f"{len(same)} error{'s' * (len(same) > 1)} of PCIe that the link corrected: transfers were repeated. A few "
            "are harmless; many of them slow the device down, and come from a poor contact, riser or slot."
            if is_corrected
            else "A transfer over PCIe failed and was not repaired, so the device or its driver usually stops.",
            "Find the device below this port (lspci -tv). Reseat the card and the riser, update the BIOS, and compare "
            "the counters later (aer_dev_correctable in /sys/bus/pci/devices).",
            [line for line, _ in same],
        )


def _changes(paste: Paste) -> dict[tuple[str | None, str], list[LinkChange]]:
    changes = paste.once(read_kernel_log).link_changes
    return grouped(((change.host, change.interface), change) for change in changes)


PORT_RULES: tuple[Rule, ...] = (ib_port_flap, ib_port_down, nic_fault, pcie_errors, ports_active)
