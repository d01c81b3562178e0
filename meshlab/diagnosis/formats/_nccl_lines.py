"""Lines that NCCL and RCCL print with ``NCCL_DEBUG``: the processes that printed them, and the setup that they show."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import line_numbers
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine, check_number
from meshlab.nccl_tests._info import LIBRARY_VERSION, VARIABLE, variable_value
from meshlab.nccl_tests._log import DEVICE_LINE

NOT_NAMED = "the rank that prints it"
"""The subject of a finding whose lines name no rank, host or device."""

_WHAT = "messages of NCCL about its setup and its faults"
_MOST_HEADS = 20_000  # different beginnings of lines that are read for the names of hosts

# Some logs have the host and the device only.
_HEAD = re.compile(
    r"(?:(?<![A-Za-z0-9])(?P<host>[A-Za-z0-9][\w.-]*):(?P<pid>\d+):(?P<thread>\d+)|"
    r"(?<!\S)(?P<only>[A-Za-z][\w.-]*)(?= \[\d+\]))"
    r"(?: \[(?P<device>-?\d+)\])?(?: [\d.]+)?(?: (?P<source>[^\s:]+:\d+)(?: \(\w*\))?)?$"
)
_PROCESS = re.compile(r"\[([A-Za-z][\w.-]*):(\d+) ?\]")
# A line without prefixes, as nearly all of them are, in one step.
_FRAMED = re.compile(
    r"([A-Za-z0-9][\w.-]*+):(\d{1,18}+):(\d{1,18}+)"
    r"(?: \[(-?\d{1,18}+)\](?: [\d.]++)?(?: (?!NCCL )([^\s:]++:\d++)(?: \(\w*+\))?)?)? NCCL (\w*+) "
)
_LONGEST_FRAME = 200
_MOST_DEVICES = 128
# What is left of the frame where a forum or a person removed the host, the process and the thread.
_CUT_HEAD = re.compile(r"(?:^\[(?P<device>-?\d{1,18})\] ?)?(?:(?<!\S)(?P<source>[\w./-]+:\d+)(?: \(\w*\))? ?)?$")
# Up to 2.2 the word NCCL is missing.
_OLD_HEAD = re.compile(r"[A-Za-z0-9][\w.-]*:\d+:\d+ \[-?\d+\](?: [^\s:]+:\d+)? (?=(?:INFO|WARN) )")


class NcclMessage(NamedTuple):
    """A line that NCCL printed."""

    line: int
    level: str  # "INFO", "WARN", "TRACE", or "" for a text without the frame, as frameworks print it
    text: str
    host: str | None
    pid: int | None
    thread: int | None
    device: int | None  # CUDA device of the thread, not the rank. None if the thread has no device yet
    source: str | None
    rank: int | None


class _Head(NamedTuple):
    host: str
    pid: int | None
    thread: int | None
    device: int | None
    source: str | None


@functools.lru_cache(8192)
def _read_head(head: str) -> _Head | None:
    if (match := _HEAD.search(head)) is None:
        return None
    pid, thread = (whole(digits) if digits else None for digits in match.group("pid", "thread"))
    return _Head(match["host"] or match["only"], pid, thread, _device(match["device"]), match["source"])


def _device(text: str | None) -> int | None:
    """Return the number of a device, or None for -1 or a random number: the thread has none."""
    device = whole(text) if text else -1
    return device if 0 <= device < _MOST_DEVICES else None


def message_of(line: PasteLine) -> NcclMessage:
    """Return a line as a message of NCCL. Without the frame, the level is empty and the text is the complete line."""
    head, mark, rest = line.text.partition(" NCCL ")
    if not mark and (old := _OLD_HEAD.match(line.text)):
        head, mark, rest = line.text[: old.end() - 1], "NCCL", line.text[old.end() :]
    elif not mark and line.text.startswith("NCCL "):
        head, mark, rest = "", "NCCL", line.text[len("NCCL ") :]
    frame = _read_head(head) if mark else None
    if frame is None:
        level, _, text = rest.partition(" ") if mark else ("", "", "")
        if level in ("INFO", "WARN", "TRACE"):  # the beginning of the line was cut
            cut = _CUT_HEAD.search(line.raw[: line.raw.find("NCCL ")][-_LONGEST_FRAME:].rstrip())
            device, source = cut.group("device", "source") if cut is not None else (None, None)
            rank = line.rank if device is None else None  # the number in brackets is the device
            return NcclMessage(line.number, level, text, line.host, None, None, _device(device), source, rank)
        process = _PROCESS.match(line.text)  # as Open MPI and libibverbs name it
        host, pid = (process[1], whole(process[2])) if process else (line.host, None)
        return NcclMessage(line.number, "", line.text, host, pid, None, None, None, line.rank)
    level, _, text = rest.partition(" ")
    return NcclMessage(line.number, level, text, *frame, line.rank)


def _message_cache(paste: Paste) -> dict[int, NcclMessage]:
    """Return the messages that were read so far, by the number of their line, because many rules need the same."""
    return {}


def _messages_at(paste: Paste, numbers: Sequence[int]) -> list[NcclMessage]:
    cache = paste.once(_message_cache)
    new = [number for number in numbers if number not in cache]
    check_number(paste, len(cache) + len(new), _WHAT)
    cache.update(zip(new, _read_messages(paste, new), strict=True))
    return [cache[number] for number in numbers]


def _read_messages(paste: Paste, numbers: Sequence[int]) -> Iterator[NcclMessage]:
    text, bounds, frame, make = paste.text, paste.bounds, _FRAMED.match, NcclMessage._make
    for number in numbers:
        start, end = bounds(number)
        match = frame(text, start, min(end, start + _LONGEST_FRAME))
        if match is None or text[end - 1] == "│":  # the border of a terminal
            yield message_of(paste.line(number))
            continue
        host, pid, thread, device, source, level = match.groups()
        gpu = -1 if device is None else int(device)  # -1 or a random number: the thread has no device
        cuda_device = gpu if 0 <= gpu < _MOST_DEVICES else None
        rest = text[match.end() : end]
        yield make((number, level, rest, host, int(pid), int(thread), cuda_device, source, None))


def messages(paste: Paste, *literals: str) -> list[NcclMessage]:
    """Return the lines that contain one of the strings, as messages."""
    numbers = paste.numbers(*literals)
    check_number(paste, len(numbers), _WHAT)
    return _messages_at(paste, numbers)


def read_warnings(paste: Paste) -> tuple[NcclMessage, ...]:
    """Return all warnings of NCCL, in order."""
    return tuple(item for item in messages(paste, "NCCL WARN", "] WARN ", " WARN ") if item.level == "WARN")


def warnings_with(paste: Paste, *literals: str) -> list[NcclMessage]:
    """Return the warnings of NCCL in the lines that contain one of the strings, in order."""
    numbers = set(paste.numbers(*literals))
    return [item for item in paste.once(read_warnings) if item.line in numbers] if numbers else []


CUDA_FAILURE = re.compile(r"Cuda failure (?:(?P<code>\d+) )?'(?P<text>[^']*)'")
"""An error of CUDA in a warning of NCCL, with its ``code``, which older versions do not print, and its ``text``."""


def read_cuda_failures(paste: Paste) -> tuple[tuple[NcclMessage, re.Match[str]], ...]:
    """Return the warnings of NCCL about an error of CUDA, with its ``code`` and its ``text``."""
    failures = ((item, CUDA_FAILURE.search(item.text)) for item in warnings_with(paste, "Cuda failure "))
    return tuple((item, match) for item, match in failures if match is not None)


class LastError(NamedTuple):
    """The last error of NCCL as a framework repeats it."""

    line: PasteLine
    text: str
    may_be_unrelated: bool  # XLA says so


# PyTorch prints it behind or below "Last error:", and XLA in quotes.
_XLA_LAST_ERROR = re.compile(
    r"Last NCCL warning\(error\) log entry \(may be unrelated\):? '?(?P<text>.*?)(?:'\.|'?;|'?$)"
)


def read_last_errors(paste: Paste) -> tuple[LastError, ...]:
    """Return the last errors that are not empty, in order."""
    return tuple(_last_errors(paste))


def _last_errors(paste: Paste) -> Iterator[LastError]:
    for number in other_lines(paste).numbers("Last error:"):
        line = paste.line(number)
        if text := line.text.partition("Last error:")[2].strip():
            yield LastError(line, text, False)
        elif number < len(paste):
            below = paste.line(number + 1)
            if below.text.strip() and not below.text.startswith("Traceback (most recent"):
                yield LastError(below, below.text.strip(), False)
    for line, match in other_lines(paste).matches(_XLA_LAST_ERROR, "Last NCCL warning(error)"):
        if match["text"].strip():
            yield LastError(line, match["text"].strip(), True)


# -- communicators -----------------------------------------------------------------------------------------------------

_COMM = re.compile(
    r"(?:\[Rank \d+\] )?(?:\b(?P<function>\w+) )?comm (?P<pointer>0x[0-9a-f]+) rank (?P<rank>\d+) "
    r"n[rR]anks (?P<n_ranks>\d+)(?P<rest>.*)"
)
_FIELDS = re.compile(r"\b(cudaDev|nvmlDev|busId|commId|nNodes|localRanks|localRank) (0x[0-9a-f]+|[0-9a-f]+)\b")
_STATES = {
    "Init START": "started",
    "Init COMPLETE": "complete",
    "Abort COMPLETE": "aborted",
    "Destroy COMPLETE": "destroyed",
}


@dataclass(frozen=True, slots=True)
class CommRank:
    """One rank of one communicator, as its process announces it."""

    comm: str | None  # commId, which all ranks of a communicator have in common (2.15 and later)
    rank: int
    n_ranks: int
    host: str | None
    pid: int | None
    thread: int | None
    device: int | None = None  # as CUDA counts
    nvml_device: int | None = None
    bus_id: str | None = None
    # Hosts of the communicator, its ranks on this host, and the rank among them (2.20 and later).
    n_nodes: int | None = None
    local_ranks: int | None = None
    local_rank: int | None = None
    state: str = "started"
    function: str | None = None  # the call that created it (2.21 and later)
    line: int = 0  # number of the first line that names it


def pci_address(bus_id: str) -> str:
    """Return the PCI address for the number that NCCL prints."""
    number = whole(bus_id, 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def read_communicators(paste: Paste) -> tuple[CommRank, ...]:
    """Return each rank of each communicator once, in the order of the text."""
    comm_ranks: dict[tuple[str | None, int | None, str, int], CommRank] = {}
    generation: dict[tuple[str | None, int | None, str], int] = defaultdict(int)
    for item in messages(paste, " nranks ", " nRanks "):
        if (match := _COMM.match(item.text)) is None:
            continue
        fields = dict(_FIELDS.findall(match["rest"]))
        state = next((name for text, name in _STATES.items() if text in match["rest"]), None)
        address = (item.host, item.pid, match["pointer"])
        comm_rank = comm_ranks.get((*address, generation[address]))
        # The memory of a communicator that was destroyed is used again.
        if comm_rank is not None and state == "started" and comm_rank.state != "started":
            generation[address] += 1
            comm_rank = None
        if comm_rank is None:
            comm_rank = CommRank(
                None,
                whole(match["rank"]),
                whole(match["n_ranks"]),
                item.host,
                item.pid,
                item.thread,
                line=item.line,
                function=match["function"] if match["function"] != "Rank" else None,
            )
        comm_ranks[(*address, generation[address])] = replace(
            comm_rank,
            comm=fields.get("commId", comm_rank.comm),
            device=_number(fields.get("cudaDev"), comm_rank.device),
            nvml_device=_number(fields.get("nvmlDev"), comm_rank.nvml_device),
            bus_id=pci_address(fields["busId"]) if "busId" in fields else comm_rank.bus_id,
            n_nodes=_number(fields.get("nNodes"), comm_rank.n_nodes),
            local_ranks=_number(fields.get("localRanks"), comm_rank.local_ranks),
            local_rank=_number(fields.get("localRank"), comm_rank.local_rank),
            state=state or comm_rank.state,
        )
    return tuple(comm_ranks.values())


def _number(text: str | None, otherwise: int | None) -> int | None:
    return whole(text) if text is not None and text.isdecimal() else otherwise


# -- the setup of a process --------------------------------------------------------------------------------------------


class VersionLine(NamedTuple):
    """A version of the library."""

    version: str
    library: str
    host: str | None
    pid: int | None
    line: int


def read_versions(paste: Paste) -> tuple[VersionLine, ...]:
    """Return the versions of NCCL or RCCL that the text names. Before 2.22 only rank 0 prints it, without its host."""
    versions = []
    for item in messages(paste, "NCCL version", "RCCL version"):
        if (match := LIBRARY_VERSION.search(item.text)) is not None:
            library = "RCCL" if match[0].startswith("R") else "NCCL"
            versions.append(VersionLine(match[1].rstrip(".,;)"), library, item.host, item.pid, item.line))
    return tuple(versions)


class Variable(NamedTuple):
    """An environment variable that NCCL read, or that a command sets."""

    name: str
    value: str
    host: str | None
    pid: int | None
    line: int


_ASSIGNMENT = re.compile(r"\b((?:NCCL|FI|RCCL|HSA|AWS_OFI)_[A-Z0-9_]+)=(\"[^\"]*\"|'[^']*'|[^\s,;)\"']*)")
_COMMAND = re.compile(
    r"^\W*(?:export |env |-x |[A-Z][A-Z0-9_]+=)"
    r"|mpirun|mpiexec|srun|torchrun|docker|python|environment|started with|_perf"
)


def read_variables(paste: Paste) -> tuple[Variable, ...]:
    """Return the variables that NCCL reports, and those that a pasted command sets."""
    reported = messages(paste, " set by environment to ", " set to ")
    matches = ((item, VARIABLE.search(item.text)) for item in reported)
    variables = [Variable(m[1], variable_value(m[2]), item.host, item.pid, item.line) for item, m in matches if m]
    others = set(paste.numbers("NCCL_", "FI_PROVIDER=")).difference(item.line for item in reported if item.level)
    for number in sorted(others):
        if "=" not in paste.raw(number):
            continue
        line = paste.line(number)
        # A message such as "set NCCL_X=1 to ignore this" sets nothing.
        if "=" in line.text and " NCCL " not in line.text and _COMMAND.search(line.text):
            for name, value in _ASSIGNMENT.findall(line.text):
                variables.append(Variable(name, value.strip("\"'"), line.host, None, line.number))
    return tuple(variables)


class NetworkChoice(NamedTuple):
    """The network that a process uses for a communicator."""

    name: str
    host: str | None
    pid: int | None
    line: int


def read_networks(paste: Paste) -> tuple[NetworkChoice, ...]:
    """Return the networks in use (2.7 and later)."""
    return tuple(
        NetworkChoice(item.text.partition("Using network ")[2].strip(), item.host, item.pid, item.line)
        for item in messages(paste, "Using network ")
    )


class NetworkPorts(NamedTuple):
    """The ports that the InfiniBand transport of a process uses: names of devices, and their link layers."""

    devices: tuple[str, ...]
    layers: tuple[str, ...]
    host: str | None
    pid: int | None
    line: int


_PORT = re.compile(r"(?<![A-Za-z])([A-Za-z][\w.-]*):(\d+)/([A-Za-z]+)")


def read_ports(paste: Paste) -> tuple[NetworkPorts, ...]:
    """Return what ``NET/IB : Using`` lists."""
    port_lists = []
    for item in messages(paste, "NET/IB : Using", "NET/IB: Using"):
        ports = _PORT.findall(item.text.partition("Using")[2].partition("OOB")[0])
        devices = tuple(name if port == "1" else f"{name}:{port}" for name, port, _ in ports)
        layers = tuple(dict.fromkeys(layer for _, _, layer in ports))
        port_lists.append(NetworkPorts(devices, layers, item.host, item.pid, item.line))
    return tuple(port_lists)


class BootstrapAddress(NamedTuple):
    """The interface on which a process waits for the others during the setup."""

    interface: str
    address: str
    host: str | None
    pid: int | None
    line: int


_INTERFACE = re.compile(r"(?:Bootstrap ?: Using|NET : Using interface) ?(?:\[0\])?([^\s:]+):(\S+?)<\d+>")


def read_bootstrap(paste: Paste) -> tuple[BootstrapAddress, ...]:
    """Return the first interface of each process."""
    addresses: dict[tuple[str | None, int | None], BootstrapAddress] = {}
    for item in messages(paste, "Bootstrap : Using", "Bootstrap: Using", "NET : Using interface"):
        match = _INTERFACE.search(item.text)
        key = (item.host, item.pid)
        if match is not None and key not in addresses:
            addresses[key] = BootstrapAddress(match[1], match[2], *key, item.line)
    return tuple(addresses.values())


# -- hosts and ranks ---------------------------------------------------------------------------------------------------

_FRAME_HOST = re.compile(r"([\w.-]+):\d+:\d+ \[")
_TEST_HOST = re.compile(r"(?:^|sum|none)([A-Za-z][\w.-]*): Test (?:CUDA|NCCL) failure")  # also at the end of a cut row


def source_host(line: PasteLine) -> str | None:
    """Return the host that printed a line: that of a prefix, of NCCL's frame, or of an error of nccl-tests."""
    if line.host is not None:
        return line.host
    match = _FRAME_HOST.match(line.text) or _TEST_HOST.search(line.text)
    return None if match is None else match[1]


def read_hosts(paste: Paste) -> tuple[str, ...]:
    """Return the names of the hosts that printed lines of NCCL, in order."""
    numbers = paste.numbers(" NCCL ")
    heads = paste.before(" NCCL ", numbers)
    lines_of = Counter(heads)
    first: dict[str, int] = {}
    for head, number in zip(heads, numbers, strict=True):
        if head not in first:
            first[head] = number
            if len(first) == _MOST_HEADS:
                break
    counts: Counter[tuple[str, int]] = Counter()
    for head, item in zip(first, _messages_at(paste, list(first.values())), strict=True):
        if item.host is not None and item.pid is not None:
            counts[item.host, item.pid] += lines_of[head]
    most: dict[int, int] = defaultdict(int)
    for (_, pid), count in counts.items():
        most[pid] = max(most[pid], count)
    # Ranks write into each other's lines, so the name of a host may begin with the end of another message.
    return tuple(dict.fromkeys(host for (host, pid), count in counts.items() if count * 20 >= most[pid]))


def hosts_of(paste: Paste, lines: Iterable[int]) -> tuple[str, ...]:
    """Return the hosts that printed some lines, in order."""
    hosts = dict.fromkeys(item.host for item in _messages_at(paste, sorted(set(lines))))
    return tuple(host for host in hosts if host is not None)


# vLLM; torchrun and DeepSpeed when they start; torch's address of the first rank, which only one host can use.
_ONE_NODE = re.compile(
    r"Detected 1 nodes? in the distributed environment|(?<![\w-])--standalone\b|\bnnodes=1\b, num_local_procs="
    r"|init_method=tcp://(?:127\.\d+\.\d+\.\d+|localhost|\[::1\]):\d+|WORLD INFO DICT: \{'[^']*': \[[\d, ]*\]\}"
)
_MANY_NODES = re.compile(
    r"Detected (?!1 )\d+ nodes? in the distributed environment|\bnnodes=(?!1\b)\d+, num_local_procs="
    r"|(?<![\w-])--nnodes[= ](?!1\b)\d+"
)
_NODE_WORDS = ("in the distributed environment", "--standalone", "nnodes", "init_method=tcp://", "WORLD INFO DICT")


def is_one_host(paste: Paste) -> bool | None:
    """Return True if all ranks of the job are on one host, False if not, and None if the text does not show it."""
    answer = _hosts_by_nccl(paste)
    if answer is not None:
        return answer
    # Frameworks print the number of nodes, too.
    lines = paste.find(*_NODE_WORDS)
    if any(_MANY_NODES.search(line.raw) for line in lines):
        return False
    return True if any(_ONE_NODE.search(line.raw) for line in lines) else None


def _hosts_by_nccl(paste: Paste) -> bool | None:
    """Return whether all ranks are on one host, as far as the lines of NCCL and of nccl-tests show it."""
    hosts = paste.once(read_hosts)
    comms = paste.once(read_communicators)
    if len(hosts) > 1 or any(item.n_nodes is not None and item.n_nodes > 1 for item in comms):
        return False
    for item in comms:
        if item.local_ranks is not None and item.local_ranks < item.n_ranks:
            return False
    if devices := [match for _, match in paste.matches(DEVICE_LINE, " Pid ")]:
        return len({match[4] for match in devices}) == 1
    if comms:
        largest = max(comms, key=lambda item: item.n_ranks)
        if largest.n_nodes == 1 or largest.local_ranks == largest.n_ranks:
            return True
        if len({item.rank for item in comms if item.n_ranks == largest.n_ranks}) == largest.n_ranks > 1:
            return len(hosts) == 1
    return None


@dataclass(frozen=True, slots=True)
class _Ranks:
    by_thread: dict[tuple[str | None, int | None, int | None], int]
    by_device: dict[tuple[str | None, int | None, int | None], int]
    by_process: dict[tuple[str | None, int | None], int]


_PROXY = re.compile(r"\[Proxy Service (\d+)\]")


def _read_ranks(paste: Paste) -> _Ranks:
    """Find the rank of each thread, device and process, in its largest communicator."""
    by_thread: dict[tuple[str | None, int | None, int | None], int] = {}
    by_device: dict[tuple[str | None, int | None, int | None], int] = {}
    of_process: dict[tuple[str | None, int | None], set[int]] = defaultdict(set)
    largest: dict[tuple[str | None, int | None], int] = {}
    for item in sorted(paste.once(read_communicators), key=lambda item: -item.n_ranks):
        process = (item.host, item.pid)
        if largest.setdefault(process, item.n_ranks) != item.n_ranks:
            continue
        by_thread.setdefault((item.host, item.pid, item.thread), item.rank)
        if item.device is not None:
            by_device.setdefault((item.host, item.pid, item.device), item.rank)
        of_process[process].add(item.rank)
    for line, match in paste.matches(_PROXY, "[Proxy Service "):
        message = message_of(line)
        if (message.host, message.pid) not in of_process:
            by_thread.setdefault((message.host, message.pid, message.thread), whole(match[1]))
    by_process = {process: next(iter(ranks)) for process, ranks in of_process.items() if len(ranks) == 1}
    return _Ranks(by_thread, by_device, by_process)


def rank_of(paste: Paste, item: NcclMessage) -> int | None:
    """Return the rank that printed a message, if the text shows it."""
    if item.pid is None:
        return item.rank
    ranks = paste.once(_read_ranks)
    candidates = (
        ranks.by_thread.get((item.host, item.pid, item.thread)),
        ranks.by_process.get((item.host, item.pid)),
        ranks.by_device.get((item.host, item.pid, item.device)),
    )
    return next((rank for rank in candidates if rank is not None), item.rank)


def affected(paste: Paste, lines: Iterable[int | PasteLine | NcclMessage]) -> str:
    """Name the ranks, GPUs and hosts that printed some lines, such as ``"nodeA ranks 0-3, nodeB rank 8"``."""
    numbers = list(line_numbers(line.line if isinstance(line, NcclMessage) else line for line in lines))
    ranks: dict[str | None, set[int]] = defaultdict(set)
    devices: dict[str | None, set[int]] = defaultdict(set)
    for item in _messages_at(paste, numbers):
        rank = rank_of(paste, item)
        ranks[item.host].update(() if rank is None else (rank,))
        devices[item.host].update(() if item.device is None or rank is not None else (item.device,))
    parts = []
    for host in ranks:
        which = number_list(ranks[host], "rank") if ranks[host] else number_list(devices[host], "GPU")
        parts.append(" ".join(text for text in (host, which) if text))
    parts = [part for part in parts if part] or ([NOT_NAMED] if numbers else [])
    return ", ".join(parts) if len(parts) <= 8 else f"{', '.join(parts[:8])} and {len(parts) - 8} more hosts"


def number_list(numbers: Iterable[int], noun: str, most_parts: int | None = 12) -> str:
    """Return numbers with a noun, and consecutive numbers as a range."""
    ordered = sorted(set(numbers))
    parts: list[str] = []
    for _, group in itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    nouns = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    if not parts:
        return ""
    if most_parts is not None and len(parts) > most_parts:
        return f"{len(ordered)} {nouns}, from {ordered[0]} to {ordered[-1]}"
    return f"{noun} {parts[0]}" if len(ordered) == 1 else f"{nouns} {text_list(parts)}"


def text_list(parts: Sequence[str], word: str = "and") -> str:
    """Join texts as in a sentence."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {word} {parts[-1]}" if parts else ""
