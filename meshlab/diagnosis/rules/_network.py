"""Rules for the network that NCCL chose: plugins, TCP instead of RDMA, EFA, the number of NICs, GPU Direct RDMA."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Level, TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._nccl_channels import network_devices, read_patterns
from meshlab.diagnosis.formats._nccl_lines import (
    affected,
    hosts_of,
    is_one_host,
    message_of,
    messages,
    read_communicators,
    read_hosts,
    read_networks,
    read_ports,
    read_variables,
    text_list,
)

_ENV = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TROUBLESHOOTING = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
_EFA = "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html"

_OFF = ("0", "LOC")
_FOR_RDMA = ("FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TC")


def _set_to(paste: Paste, name: str, *values: str) -> list[int]:
    """Return the lines that set a variable to one of the values."""
    return [item.line for item in paste.once(read_variables) if item.name == name and item.value in values]


def _set_lines(paste: Paste, *names: str) -> list[int]:
    """Return the lines that set one of the variables."""
    return [item.line for item in paste.once(read_variables) if item.name in names]


def _has_several_hosts(paste: Paste) -> bool:
    """Return whether the text shows several hosts, or a channel over the network, which NCCL uses between hosts."""
    return is_one_host(paste) is False or bool(paste.once(network_devices))


# -- TCP instead of RDMA -----------------------------------------------------------------------------------------------


@rule(
    "socket-fallback",
    "NCCL uses TCP between hosts",
    source=(f"{_TROUBLESHOOTING}#networking-issues", "NCCL src/plugin/net.cc, src/transport/net_ib.cc"),
)
def socket_fallback(paste: Paste) -> Iterator[TextFinding]:
    """``Using network Socket``, or a line of the TCP transport, although the job may need InfiniBand, RoCE or EFA."""
    sockets = [item.line for item in paste.once(read_networks) if item.name == "Socket"]
    others = [item for item in paste.once(read_networks) if item.name != "Socket"]
    if not sockets and not others:  # before 2.7
        sockets = [line.number for line in paste.find("NET/Socket : Using")]
    if not sockets or is_one_host(paste) is True:
        return
    forced = _set_to(paste, "NCCL_NET", "Socket") + _set_to(paste, "NCCL_IB_DISABLE", "1")
    if forced and not others:
        return
    missing = [line.number for line in paste.find("NET/IB : No device found", "Failed to open libibverbs")]
    failed_plugin = [line.number for line in paste.find("NET/OFI", "Failed to initialize NET plugin")]
    hints = _set_lines(paste, *_FOR_RDMA)
    if any("NET/OFI" in paste.line(number).text for number in failed_plugin):
        hints += failed_plugin
    hosts = text_list(hosts_of(paste, sockets)[:8])
    verbs = any("libibverbs" in paste.line(number).text for number in missing)
    reason = (
        "libibverbs could not be opened, so NCCL sees no RDMA device"
        if verbs
        else "NCCL found no RDMA device"
        if missing
        else "the text does not show why"
    )
    severity: Level = "warning" if hints or others else "info"
    is_certain = _has_several_hosts(paste)
    between = "Traffic between hosts" if is_certain else "Traffic between hosts, if the job has several,"
    why = f"{between} goes over TCP (NET/Socket): {reason}."
    if hints:
        names = sorted({item.name for item in paste.once(read_variables) if item.name in _FOR_RDMA})
        if names:
            why += f" {text_list(names)} {'shows' if len(names) == 1 else 'show'} that RDMA is wanted."
    else:
        why += " This is expected on hosts without InfiniBand, RoCE or EFA."
    efa = any(item.name.startswith("FI_") for item in paste.once(read_variables)) or failed_plugin
    do = (
        "Check in the environment of the ranks that the devices are visible (ibv_devices, ls /dev/infiniband"
        + (", fi_info -p efa" if efa else "")
        + ") and that libibverbs is installed (rdma-core). In a container, pass /dev/infiniband through"
        + (
            ", and put the directories of libnccl-net.so and libfabric on LD_LIBRARY_PATH: LD_PRELOAD does not load a "
            "plugin."
            if efa
            else "."
        )
    )
    yield socket_fallback.finding(
        severity,
        hosts or "the rank that prints it",
        why,
        do,
        [*sockets, *missing, *hints],
        title="" if is_certain else "NCCL would use TCP between hosts",
    )


_PROVIDER = re.compile(r"Selected [Pp]rovider is ([\w;.-]+)")
_SLOW_PROVIDERS = ("tcp", "sockets", "udp", "net", "shm")
_NO_PROVIDER = (
    *("NET/OFI Couldn't find any optimal provider", "NET/OFI Could not find any optimal provider"),
    *("NET/OFI Only EFA provider is supported", "Unable to find a protocol that worked"),
    *("No eligible providers were found", "provider efa output empty list"),
)


@rule(
    "efa-missing",
    "The plugin of AWS found no EFA device",
    source=(_EFA, "aws-ofi-nccl src/nccl_ofi_net.cpp"),
    causes=("socket-fallback",),
)
def efa_missing(paste: Paste) -> Iterator[TextFinding]:
    """The OFI plugin chose a TCP provider, or found no provider."""
    slow = [
        (line, match)
        for line, match in paste.matches(_PROVIDER, "Provider is ", "provider is ")
        if match[1].partition(";")[0] in _SLOW_PROVIDERS
    ]
    none = paste.find(*_NO_PROVIDER)
    if not slow and not none:
        return
    lines = [*(line for line, _ in slow), *none]
    what = (
        f"took the {slow[0][1][1]} provider of libfabric" if slow else "found no provider of libfabric that it can use"
    )
    yield efa_missing.finding(
        "error",
        affected(paste, lines),
        f"The OFI plugin {what}, so it sees no EFA device. Warnings of NET/OFI that follow come from this choice.",
        "Run fi_info -p efa where the ranks run. In a container pass the devices through "
        "(--device=/dev/infiniband/uverbs0 and so on, or the EFA device plugin of Kubernetes), install the EFA "
        "installer's libfabric, and use an instance type with EFA.",
        lines,
    )


@rule(
    "ib-disable-without-effect",
    "NCCL_IB_DISABLE does not turn off an external plugin",
    source=f"{_ENV}#nccl-ib-disable",
)
def ib_disable_without_effect(paste: Paste) -> Iterator[TextFinding]:
    """``NCCL_IB_DISABLE=1`` is set, and a plugin carries the traffic."""
    disabled = _set_to(paste, "NCCL_IB_DISABLE", "1")
    plugins = [item for item in paste.once(read_networks) if item.name not in ("IB", "Socket")]
    if disabled and plugins:
        hosts = text_list(hosts_of(paste, [item.line for item in plugins])[:8])
        name = plugins[0].name
        yield ib_disable_without_effect.finding(
            "warning",
            f"{hosts}, plugin {name}".lstrip(", "),
            f"NCCL_IB_DISABLE=1 turns off only NCCL's own InfiniBand code. Here the external plugin {name} carries "
            "the traffic anyway.",
            "To use TCP, set NCCL_NET=Socket, or NCCL_NET_PLUGIN=none together with NCCL_IB_DISABLE=1. Otherwise "
            "remove NCCL_IB_DISABLE.",
            [*disabled, *(item.line for item in plugins)],
        )


# -- plugins and NICs that differ --------------------------------------------------------------------------------------


@rule(
    "net-plugin-too-old",
    "A network plugin has no interface that this NCCL knows",
    source=("https://github.com/NVIDIA/nccl/tree/master/plugins/net", "NCCL src/plugin/net.cc"),
)
def net_plugin_too_old(paste: Paste) -> Iterator[TextFinding]:
    """A ``libnccl-net.so`` was found, and none of its interfaces is supported."""
    lines = paste.find("ncclNetPlugin symbols v", "External network plugin ")
    lines = [line for line in lines if "not supported" in line.text or "is unsupported" in line.text]
    if lines and not paste.numbers("Loaded net plugin", "Successfully loaded external network plugin"):
        yield net_plugin_too_old.finding(
            "info",
            f"{text_list(hosts_of(paste, [line.number for line in lines])[:8])}, libnccl-net.so".lstrip(", "),
            "A libnccl-net.so was found that offers only interfaces that this version of NCCL no longer supports, so "
            "NCCL uses its own network code instead.",
            "Update the plugin to the version for this NCCL (HPC-X, AWS, Google and others publish it), or remove it "
            "from the library path.",
            lines,
        )


@rule(
    "net-plugin-differs",
    "Hosts use different networks or plugins",
    source=(f"{_ENV}#nccl-net-plugin", "https://github.com/NVIDIA/nccl/issues/1634"),
    causes=("net-unreachable", "rank-died", "single-nic", "socket-fallback"),
)
def net_plugin_differs(paste: Paste) -> Iterator[TextFinding]:
    """One host loads a network plugin or uses a network that another host of the job does not use."""
    by_host: dict[str, dict[str, int]] = defaultdict(dict)
    for item in paste.once(read_networks):
        if item.host:
            by_host[item.host].setdefault(item.name, item.line)
    names = {frozenset(networks) for networks in by_host.values()}
    if len(by_host) > 1 and len(names) > 1:
        yield _plugins_differ(
            {host: (", ".join(networks), min(networks.values())) for host, networks in by_host.items()}
        )
        return
    if names and len(by_host) == len(paste.once(read_hosts)):
        return  # all hosts name their network, and it is the same
    without = {item.host: item.line for item in messages(paste, "NET/IB : No device found") if item.host}
    with_ports = {item.host: item for item in paste.once(read_ports) if item.host and item.devices}
    if not by_host and with_ports and without and not with_ports.keys() & without.keys():
        sides = {host: ("InfiniBand or RoCE", item.line) for host, item in with_ports.items()}
        yield _plugins_differ(sides | {host: ("no RDMA device", line) for host, line in without.items()})
        return
    plugins: dict[str, tuple[str, int]] = {}
    for message in messages(paste, "NET/Plugin", "Plugin Path :", "external network plugin"):
        if message.host is None or re.search(r"CollNet|collnet", message.text):
            continue
        if re.search(r"Plugin Path :|Loaded net plugin|Successfully loaded external network plugin", message.text):
            plugins[message.host] = ("an external plugin", message.line)
        elif re.search(r"No plugin found|Could not find|Using internal", message.text):
            plugins.setdefault(message.host, ("no plugin", message.line))
    if len({name for name, _ in plugins.values()}) > 1:
        yield _plugins_differ(plugins)


def _sides_text(sides: dict[str, tuple[str, int]]) -> str:
    groups = grouped((what, who) for who, (what, _) in sides.items())
    return "; ".join(
        f"{text_list(names[:6])}{' …' if len(names) > 6 else ''}: {what}" for what, names in groups.items()
    )


def _plugins_differ(sides: dict[str, tuple[str, int]]) -> TextFinding:
    return net_plugin_differs.finding(
        "error",
        _sides_text(sides),
        "The hosts do not use the same network code. Ranks that speak different protocols cannot connect, and the job "
        "hangs or fails at its first connection.",
        "Make the library path the same on all hosts: either libnccl-net.so is found on each (LD_LIBRARY_PATH, "
        "NCCL_NET_PLUGIN) or on none (NCCL_NET_PLUGIN=none), and give NCCL_NET the same value everywhere.",
        [line for _, line in sides.values()],
    )


_MIXED = re.compile(r"Detected mixed local (Net|CollNet) device counts across ranks \(min (\d+), max (\d+)\)")
_OF_RANK = re.compile(r"Rank (\d+) has (\d+) local Net devices \(max (\d+)\)")
_MOST_CHANNELS = 2_000
_UNUSABLE = re.compile(r"NET/IB : Unable to (?:open|query) device ([\w.-]+)")


@rule(
    "nic-sets-differ",
    "Ranks use different sets of NICs",
    source=("NCCL src/init.cc (2.30)", "https://github.com/NVIDIA/nccl/issues/2428", f"{_ENV}#nccl-ib-hca"),
    causes=("ib-device-unusable", "single-nic"),
)
def nic_sets_differ(paste: Paste) -> Iterator[TextFinding]:
    """NCCL says so, or hosts list different numbers of ports, or build channels on different numbers of NICs."""
    # From the surest evidence to the weakest: a message of NCCL, the lists of ports, the NICs of channels.
    mixed = paste.matches(_MIXED, "Detected mixed local ")
    of_rank = paste.matches(_OF_RANK, " local Net devices (max ")
    if mixed or any(match[2] != match[3] for _, match in of_rank):
        few = [(line, match) for line, match in of_rank if match[2] != match[3]]
        ranks = ", ".join(f"rank {match[1]} has {match[2]} of {match[3]} NICs" for _, match in few[:8])
        lines = [*(line for line, _ in mixed), *(line for line, _ in few)]
        span = f"between {mixed[0][1][2]} and {mixed[0][1][3]}" if mixed else "different numbers"
        yield nic_sets_differ.finding(
            "error" if mixed else "warning",
            ranks or affected(paste, lines),
            f"The ranks see {span} network devices, so they cannot build the same channels.",
            "Make the same NICs usable on every rank: compare ibv_devinfo, NCCL_IB_HCA and the devices of the "
            "containers. Do not set NCCL_IGNORE_NET_MISMATCH=1: the channels on the additional NICs then wait forever.",
            lines,
        )
        return
    ports: dict[str, tuple[tuple[str, ...], int]] = {}
    for item in paste.once(read_ports):
        if item.host and item.devices:
            ports.setdefault(item.host, (item.devices, item.line))
    if len({len(devices) for devices, _ in ports.values()}) > 1:
        counted = {host: (f"{len(names)} ({', '.join(names)})", line) for host, (names, line) in ports.items()}
        yield _nics_differ(paste, counted)
        return
    devices_of: dict[str, dict[int, int]] = defaultdict(dict)
    for use in paste.once(network_devices):
        who = use.host if len(paste.once(read_hosts)) > 1 else f"rank {use.rank}" if use.rank is not None else None
        if who and use.network != "Socket":
            devices_of[who].setdefault(use.device, use.line)
    sides = {
        who: (f"NIC {', '.join(map(str, sorted(devices)))}", min(devices.values()))
        for who, devices in devices_of.items()
    }
    if _asymmetric(paste):
        yield _nics_differ(paste, sides)
        return
    unusable = paste.numbers("NET/IB : Unable to open device", "NET/IB : Unable to query device")
    ignored = _set_to(paste, "NCCL_IGNORE_NET_MISMATCH", "1")
    if (unusable or ignored) and len({frozenset(devices) for devices in devices_of.values()}) > 1:
        yield _nics_differ(paste, sides, [*unusable, *ignored])
    elif unusable and ignored:
        yield _nics_differ(paste, {}, [*unusable, *ignored])


def _asymmetric(paste: Paste) -> bool:
    """Return True if two hosts show the same channels, one host over one NIC and another over several."""
    by_host: dict[str, tuple[set[str], set[int]]] = defaultdict(lambda: (set(), set()))
    for number in paste.numbers("via NET/")[:_MOST_CHANNELS]:
        item = message_of(paste.line(number))
        match = re.match(r"Channel (\d+)(?:/\d+)? : .* via NET/(?!Socket)[^/]+/(\d+)", item.text)
        if match and item.host:
            channels, devices = by_host[item.host]
            channels.add(match[1])
            devices.add(whole(match[2]))
    channel_sets = {frozenset(channels) for channels, _ in by_host.values()}
    sizes = {len(devices) for _, devices in by_host.values()}
    return (
        len(by_host) > 1
        and len(channel_sets) == 1
        and len(next(iter(channel_sets))) > 1
        and len(sizes) > 1
        and 1 in sizes
    )


def _nics_differ(paste: Paste, sides: dict[str, tuple[str, int]], more: list[int] | None = None) -> TextFinding:
    return nic_sets_differ.finding(
        "error" if more else "warning",
        _sides_text(sides) or affected(paste, more or ()),
        "Ranks of one job do not use the same set of NICs. A channel over a NIC that the other side does not have "
        "waits for a peer that never answers, or falls back to a slower path.",
        "Make the same NICs usable on every host (ibv_devinfo, the devices of the containers), or name the common "
        "ones in NCCL_IB_HCA on all hosts.",
        [*(line for _, line in sides.values()), *(more or ())],
    )


@rule(
    "ib-device-unusable",
    "An RDMA device is listed, but it cannot be opened",
    source=("NCCL src/transport/net_ib/init.cc",),
)
def ib_device_unusable(paste: Paste) -> Iterator[TextFinding]:
    """NCCL cannot open or query a device."""
    if matches := paste.matches(_UNUSABLE, "NET/IB : Unable to "):
        devices = text_list(list(dict.fromkeys(match[1] for _, match in matches)))
        yield ib_device_unusable.finding(
            "warning",
            f"{affected(paste, [line for line, _ in matches])}, {devices}".lstrip(", "),
            f"The RDMA device {devices} is visible, but this process may not open it. NCCL continues without it, so "
            "this rank may have fewer NICs than others.",
            "Pass the character devices (/dev/infiniband/uverbs*) of all NICs into the container, or leave the device "
            "out with NCCL_IB_HCA on every host.",
            [line for line, _ in matches],
        )


@rule(
    "single-nic",
    "NCCL uses one NIC only",
    source=(f"{_ENV}#nccl-ib-hca", "https://github.com/NVIDIA/nccl-tests/issues/128"),
)
def single_nic(paste: Paste) -> Iterator[TextFinding]:
    """The InfiniBand transport lists one port, and the job has several GPUs on a host, or measures bandwidth."""
    by_host: dict[str | None, tuple[tuple[str, ...], int]] = {}
    for item in paste.once(read_ports):
        by_host.setdefault(item.host, (item.devices, item.line))
    single = {host: ports for host, ports in by_host.items() if len(ports[0]) == 1}
    if not single or len(single) < len(by_host) or is_one_host(paste) is True:
        return
    comms = paste.once(read_communicators)
    per_host = max((item.local_ranks or 0 for item in comms), default=0)
    per_host = max([per_host, *(sum(item.host == host for item in comms) for host in single)])
    measures = bool(paste.numbers("#wrong", "busbw"))
    if per_host == 1 or (per_host == 0 and not measures and paste.numbers("NCCL WARN")):
        return
    names = sorted({ports[0][0] for ports in single.values()})
    limited = _set_lines(paste, "NCCL_IB_HCA")
    hosts = text_list([host for host in single if host][:8])
    why = f"NCCL found one RDMA port ({text_list(names)}), so all traffic between hosts goes through it"
    why += ". " if _has_several_hosts(paste) else ", if the job has several. "
    why += "Only the GPUs near this NIC can use it directly."
    why += (
        " NCCL_IB_HCA limits the choice."
        if limited
        else " If the host has more NICs, they are down or not visible here."
    )
    yield single_nic.finding(
        "info" if limited or not (measures or per_host > 1) else "warning",
        f"{hosts}, {text_list(names)}".lstrip(", "),
        why,
        "Compare with ibv_devinfo or ibstat where the ranks run: each port should be Active. Check NCCL_IB_HCA, and "
        "in a container the devices that are passed through.",
        [*(ports[1] for ports in single.values()), *limited],
    )


# -- GPU Direct RDMA ---------------------------------------------------------------------------------------------------

_GDR = re.compile(r"NET/(?P<network>[\w ]+?) ?: GPU Direct RDMA Disabled for HCA \d+ '(?P<device>[^']*)'")


def _gdr_disabled(paste: Paste) -> list[tuple[int, str]]:
    return [
        (line.number, match["device"])
        for line, match in paste.matches(_GDR, "GPU Direct RDMA Disabled for HCA")
        if match["network"] != "Socket"
    ]


@rule(
    "gdr-disabled",
    "GPU Direct RDMA is off",
    source=(f"{_TROUBLESHOOTING}#gpu-to-nic-communication", f"{_ENV}#nccl-net-gdr-level"),
    causes=("gdr-not-used",),
)
def gdr_disabled(paste: Paste) -> Iterator[TextFinding]:
    """NCCL reports for an RDMA device that GPU Direct RDMA is off."""
    disabled = _gdr_disabled(paste)
    if not disabled or is_one_host(paste) is True:
        return
    devices = list(dict.fromkeys(name for _, name in disabled))
    off = _set_to(paste, "NCCL_NET_GDR_LEVEL", *_OFF) + _set_to(paste, "NCCL_IB_CUDA_SUPPORT", "0")
    why = f"GPU Direct RDMA is off for {text_list(devices[:8])}, so data goes through the memory of the host. "
    loaded = paste.matches(re.compile(r"^nv(?:idia)?_peer_?mem +\d+ +\d+"), "nvidia_peermem ", "nv_peer_mem ")
    why += (
        "A variable turns it off."
        if off
        else "The kernel module is loaded on this host, but NCCL does not find it, and no DMA-BUF support for this NIC."
        if loaded
        else "NCCL found neither the kernel module nvidia-peermem (or nv_peer_mem) nor DMA-BUF support for this NIC."
    )
    yield gdr_disabled.finding(
        "info" if off else "warning",
        f"{text_list(hosts_of(paste, [line for line, _ in disabled])[:8])}, {text_list(devices[:8])}".lstrip(", "),
        why,
        "Remove the variable."
        if off
        else "Load the module on each host (modprobe nvidia-peermem; lsmod | grep peermem), or use the open GPU driver "
        "with DMA-BUF on Linux 5.12 or newer. NCCL before 2.23 does not recognise every name of the module, "
        "so update NCCL if it is loaded already. In a container, /sys/module must be visible.",
        [*(line for line, _ in disabled), *off],
    )


@rule(
    "gdr-not-used",
    "Channels over the network do not use GPU Direct RDMA",
    source=f"{_TROUBLESHOOTING}#gpu-to-nic-communication",
)
def gdr_not_used(paste: Paste) -> Iterator[TextFinding]:
    """No channel over an RDMA network has the mark ``GDRDMA``."""
    uses = [use for use in paste.once(network_devices) if use.network != "Socket"]
    if not uses or any(use.gpu_direct for use in uses) or _gdr_disabled(paste):
        return
    names = sorted({f"NET/{use.network}/{use.device}" for use in uses})
    hosts = text_list(list(dict.fromkeys(use.host for use in uses if use.host))[:8])
    yield gdr_not_used.finding(
        "info",
        f"{hosts}, channels over {text_list(names[:8])}".lstrip(", "),
        "The channels over the network carry no GDRDMA mark, so data goes through the memory of the host. "
        "NCCL does that if GPU Direct RDMA is not available, and also if the NIC is far from the GPU.",
        'Look for lines with "GPU Direct RDMA" (NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH), check lsmod | grep peermem, and '
        "compare the NIC of each GPU in nvidia-smi topo -m.",
        [use.line for use in uses],
    )


# -- speed -------------------------------------------------------------------------------------------------------------

_NET_NODE = re.compile(r"\bNET/(?:\w+-)?([0-9a-fA-F]+)\b")
_SLOW_GBS = 3.0  # less than 25 Gb/s per channel


@rule(
    "slow-network",
    "NCCL plans with a slow network",
    source=("NCCL src/graph/search.cc, src/graph/topo.cc", f"{_ENV}#nccl-topo-file"),
)
def slow_network(paste: Paste) -> Iterator[TextFinding]:
    """The search for rings and trees found less than 3 GB/s per channel between hosts."""
    slow = [
        item
        for item in paste.once(read_patterns)
        if item.pattern in (1, 2, 4) and item.n_channels > 0 and 0 < item.bw_inter_gbs < _SLOW_GBS
    ]
    if not slow:
        return
    chains = [item for item in messages(paste, " NET/") if re.match(r" *\d+ : ", item.text)]
    networks = sorted({whole(number, 16) for item in chains for number in _NET_NODE.findall(item.text)})
    if not networks and is_one_host(paste) is not False:
        return
    item = min(slow, key=lambda pattern: pattern.bw_inter_gbs)
    unknown = [line.number for line in paste.find("Defaulting to 10 Gbps")]
    hosts = text_list(list(dict.fromkeys(pattern.host for pattern in slow if pattern.host))[:8])
    nets = f", NET/{networks[0]}-{networks[-1]}" if len(networks) > 1 else f", NET/{networks[0]}" if networks else ""
    why = (
        f"NCCL plans {item.n_channels} channels of {item.bw_inter_gbs:g} GB/s between hosts, which is the speed of a "
        f"{item.bw_inter_gbs * 8:.0f} Gb/s link."
    )
    if "SYS" in (item.type_intra, item.type_inter):
        why += " Some paths to GPUs or NICs lead across the CPU sockets (SYS)."
    why += " NCCL could not read the speed of an interface and assumes 10 Gb/s." if unknown else ""
    yield slow_network.finding(
        "warning",
        f"{hosts}{nets}".lstrip(", "),
        why,
        "Compare with the real speed: cat /sys/class/net/*/speed, ibstat. If the NICs are faster, NCCL does not see "
        "it (as with virtual interfaces): use the RDMA devices, or give the speed in a file for NCCL_TOPO_FILE. "
        "Otherwise the network itself is the limit.",
        [*(pattern.line for pattern in slow), *unknown[:3]],
    )


NETWORK_RULES = (
    efa_missing,
    net_plugin_differs,
    nic_sets_differ,
    ib_device_unusable,
    socket_fallback,
    ib_disable_without_effect,
    net_plugin_too_old,
    single_nic,
    gdr_disabled,
    gdr_not_used,
    slow_network,
)
