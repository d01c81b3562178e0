"""Traces of PyTorch's profiler (Kineto), in the format of Chrome's trace events."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshlab.base._documents import mapping_or_empty, objects_in, parse_json
from meshlab.base._errors import ParseError
from meshlab.base._numerals import whole_or_none
from meshlab.traces._kernels import collective_of_kernel, communicates, is_backend_range, is_nccl, library_of
from meshlab.traces._rank_trace import (
    COALESCED,
    HOST_BACKENDS,
    LATEST_US,
    MESSAGES,
    NO_INTERVALS,
    PROFILE,
    SENDS,
    UNEVEN,
    CallRows,
    OtherKernels,
    ProcessGroup,
    RankTrace,
    collective_name,
    element_type,
    gaps,
    key_of,
    merged,
    rank_number,
    sequence_number,
    size_in_bytes,
)

_STEP = re.compile(r"ProfilerStep#(\d{1,12})$")
_PEERS = re.compile(r"\b(send|recv) (\d{1,9})(->|<-)(\d{1,9})")
_COMMS = "record_param_comms"
_LEAST_GAP_US = 50.0  # of the host. Shorter ones are between the operations of any program
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "xpu_runtime"})
_HOST_OPERATIONS = frozenset({"cpu_op", "operator"})
_HOST_TRANSFERS = tuple(f"{name}:" for name in HOST_BACKENDS)
_DEVICE_RANGES = "gpu_user_annotation"  # copies of the host's ranges, which would count each call twice
_DEEPEST = 4  # ranges around a launch

Event = Mapping[str, Any]


def is_trace(document: object) -> bool:
    """Return whether a JSON document is a trace of events, also one without its header."""
    if isinstance(document, dict):
        return isinstance(document.get("traceEvents"), list)
    return isinstance(document, list) and bool(document) and isinstance(document[0], dict) and "ph" in document[0]


def read_trace(document: Any, file: str) -> RankTrace:
    """Return the calls of a trace."""
    root = document if isinstance(document, dict) else {"traceEvents": document}
    return _Reader(root, file).read()


class _Range(NamedTuple):
    """A range of the host: its times, its thread and its arguments."""

    start: float
    end: float
    thread: Any
    name: str
    arguments: Event


class _HostCall(NamedTuple):
    """A call on the host: the range of the backend, such as ``nccl:all_reduce``, and its event with the arguments."""

    range: _Range | None
    arguments: Event
    start: float


class _Ranges:
    """Ranges of the host by thread, to find the innermost one at a time."""

    def __init__(self, ranges: Sequence[_Range]) -> None:
        self._by_thread: dict[Any, tuple[list[_Range], list[float]]] = {}
        for item in sorted(ranges, key=lambda item: item.start):
            items, starts = self._by_thread.setdefault(item.thread, ([], []))
            items.append(item)
            starts.append(item.start)

    def at(self, thread: Any, time: float) -> _Range | None:
        """Return the innermost range of a thread that contains a time."""
        items, starts = self._by_thread.get(thread, ([], []))
        last = bisect.bisect_right(starts, time) - 1
        for position in range(last, max(last - _DEEPEST, -1), -1):
            if items[position].end >= time:
                return items[position]
        return None


class _Reader:
    """The events of a trace, sorted by what they are."""

    def __init__(self, root: Event, file: str) -> None:
        self.root, self.file = root, file
        info = mapping_or_empty(root.get("distributedInfo"))
        self.rank, self.world = rank_number(info.get("rank")), rank_number(info.get("world_size"))
        self.backend = str(info.get("backend") or "")
        self.groups: list[ProcessGroup] = [_group_of(item) for item in _group_list(info.get("pg_config"))]
        self._index = {group.name: number for number, group in enumerate(self.groups)}
        self.kernels: list[Event] = []
        self.compute: list[tuple[float, float]] = []
        self.ranges: list[_Range] = []
        self.comms: list[_Range] = []
        self.launches: dict[Any, tuple[Any, float]] = {}
        self.steps: list[tuple[float, float, int]] = []
        self.busy: list[tuple[float, float]] = []
        self.others: dict[str, list[float]] = {}

    def read(self) -> RankTrace:
        """Return the calls."""
        self._sort_events()
        self.steps.sort()
        self._step_starts = [start for start, _, _ in self.steps]
        rows = CallRows()
        host_ranges = [item for item in self.ranges if item.name.startswith(_HOST_TRANSFERS)]
        calls = self._host_calls([item for item in self.ranges if not item.name.startswith(_HOST_TRANSFERS)])
        missing = self._add_kernels(rows, calls)
        for call in missing:
            rows.add(start_us=np.nan, duration_us=np.nan, launch_us=call.start, **self._facts(call))
        self._add_host_transfers(rows, host_ranges)
        return RankTrace(
            self.file,
            PROFILE,
            self.rank,
            self.world,
            tuple(self.groups),
            rows.columns(),
            host=str(self.root.get("host_name") or ""),
            gpu=next((str(gpu.get("name") or "") for gpu in objects_in(self.root.get("deviceProperties"))), ""),
            zero_ns=whole_or_none(self.root.get("baseTimeNanoseconds")),
            is_cpu=bool(host_ranges) and not self.kernels,
            compute=merged(self.compute) if self.compute else NO_INTERVALS if self.kernels or self.others else None,
            idle=gaps(merged([*self.busy, *((item.start, item.end) for item in host_ranges)]), _LEAST_GAP_US),
            others=tuple(OtherKernels(library, len(times), sum(times)) for library, times in self.others.items()),
            n_groups=whole_or_none(mapping_or_empty(self.root.get("distributedInfo")).get("pg_count")),
        )

    def _sort_events(self) -> None:
        launches, busy, compute = self.launches, self.busy, self.compute
        is_communication: dict[str, bool] = {}  # a trace has few different kernels, and many events of each
        for event in self.root.get("traceEvents") or ():
            if not isinstance(event, dict) or event.get("ph") != "X":
                continue
            category, name = event.get("cat"), event.get("name")
            if not isinstance(category, str) or not isinstance(name, str):
                continue
            try:
                start = float(event["ts"])
                end = start + float(event.get("dur") or 0.0)
            except (KeyError, TypeError, ValueError):
                continue
            if not -LATEST_US < start <= end < LATEST_US:
                continue
            kind = category.lower()
            if kind in _LAUNCHES:
                busy.append((start, end))
                correlation = mapping_or_empty(event.get("args")).get("correlation")
                if isinstance(correlation, (int, str)):
                    launches[correlation] = (key_of(event.get("tid")), start)
            elif kind == "kernel":
                if name not in is_communication:
                    is_communication[name] = communicates(name)
                if is_communication[name] and is_nccl(name):
                    self.kernels.append(event)
                elif is_communication[name]:
                    self.others.setdefault(library_of(name), []).append(end - start)
                else:
                    compute.append((start, end))
            elif kind == _DEVICE_RANGES:
                continue
            elif is_backend_range(name):
                self.ranges.append(_range_of(event, name, start, end))
            elif kind in _HOST_OPERATIONS:
                busy.append((start, end))
                if name == _COMMS:
                    self.comms.append(_range_of(event, name, start, end))
            elif (step := _STEP.match(name)) is not None:
                self.steps.append((start, end, int(step[1])))

    # -- calls with kernels --------------------------------------------------------------------------------------------

    def _host_calls(self, ranges: Sequence[_Range]) -> list[_HostCall]:
        """Join the ranges of the backend with the events that contain their arguments."""
        comms = _Ranges(self.comms)
        calls, joined = [], set()
        for item in ranges:
            around = comms.at(item.thread, item.start)
            joined.add(id(around))
            calls.append(_HostCall(item, around.arguments if around is not None else {}, item.start))
        for around in self.comms:
            name = around.arguments.get("Collective name")
            if id(around) not in joined and name is not None and name != "wait":
                # The arguments of a call of a single rank, and of traces without the ranges of the backend.
                calls.append(_HostCall(around, around.arguments, around.start))
        return calls

    def _add_kernels(self, rows: CallRows, calls: Sequence[_HostCall]) -> list[_HostCall]:
        """Add a row per kernel that communicates. Return the calls whose kernel is not in the file."""
        by_range = {id(call.range): number for number, call in enumerate(calls)}
        by_id = {
            key_of(call.arguments["External id"]): number
            for number, call in enumerate(calls)
            if "External id" in call.arguments
        }
        ranges = _Ranges([call.range for call in calls if call.range is not None])
        comms = _Ranges(self.comms)
        by_comms = {id(call.arguments): number for number, call in enumerate(calls) if call.arguments}
        launched = set()
        for kernel in self.kernels:
            arguments = mapping_or_empty(kernel.get("args"))
            correlation = key_of(arguments.get("correlation"))
            thread, launch = self.launches.get(correlation, (None, np.nan))
            inside, around = ranges.at(thread, launch), comms.at(thread, launch)
            number = by_range.get(id(inside)) if inside is not None else None
            if number is None and around is not None:
                number = by_comms.get(id(around.arguments))
            event_id = key_of(arguments.get("External id"))
            if number is None and event_id != correlation:
                # In old traces both numbers are equal, and the number is that of another event.
                number = by_id.get(event_id)
            call = None if number is None else calls[number]
            if number is not None:
                launched.add(number)
            self._add_kernel(rows, kernel, arguments, launch, call)
        return [call for number, call in enumerate(calls) if number not in launched]

    def _add_kernel(
        self, rows: CallRows, kernel: Event, arguments: Event, launch: float, call: _HostCall | None
    ) -> None:
        name, start = str(kernel["name"]), float(kernel["ts"])
        if call is None:
            call = _HostCall(None, {}, launch if np.isfinite(launch) else start)
        if "Collective name" in arguments:
            call = call._replace(arguments=arguments)
        facts = self._facts(call)
        if facts["collective"] is None:
            facts["collective"] = collective_of_kernel(name)
        rows.add(start_us=start, duration_us=float(kernel.get("dur") or 0.0), kernel=name, launch_us=launch, **facts)

    # -- calls on the host ---------------------------------------------------------------------------------------------

    def _add_host_transfers(self, rows: CallRows, ranges: Sequence[_Range]) -> None:
        """Add the calls of a backend whose range on the host lasts as long as the transfer."""
        # Their group is not in the file. A rank with several groups gets it from the other ranks, see `with_groups`.
        groups = [number for number, group in enumerate(self.groups) if (group.n_ranks or 0) > 1 and group.is_on_host]
        workers = {thread: number for number, thread in enumerate(sorted({item.thread for item in ranges}, key=_order))}
        for item in ranges:
            facts = self._facts(_HostCall(item, {}, item.start))
            if len(groups) == 1:
                facts["group"] = groups[0]
                facts["peers"] = self._pair(facts["collective"], self.groups[groups[0]].ranks)
                facts["size_bytes"], _, _ = _size_of_dims(
                    facts["collective"], item.arguments, self.groups[groups[0]].n_ranks
                )
            rows.add(
                start_us=item.start,
                duration_us=item.end - item.start,
                launch_us=item.start,
                worker=workers[item.thread],
                input_bytes=_size_of_dims(facts["collective"], item.arguments, None)[2],
                **facts,
            )

    # -- facts about a call --------------------------------------------------------------------------------------------

    def _facts(self, call: _HostCall) -> dict[str, Any]:
        """Return collective, group, type, size, sequence number, peers and step of a call, as far as it has them."""
        arguments = call.arguments
        title = call.range.name if call.range is not None else ""
        peers = _PEERS.search(title)
        name = str(arguments.get("Collective name") or (title.rpartition(":")[2].split(" ")[0] if title else ""))
        collective = collective_name(name) if name and name != _COMMS else None
        group = self._group(arguments)
        n = self.groups[group].n_ranks if group >= 0 else rank_number(arguments.get("Group size"))
        splits = (_numbers(arguments.get("In split size")), _numbers(arguments.get("Out split size")))
        if collective is not None and collective in UNEVEN and any(len(set(split)) > 1 for split in splits):
            collective = UNEVEN[collective]
        dtype, itemsize = element_type(arguments.get("dtype"))
        inputs, outputs = (whole_or_none(arguments.get(f"{side} msg nelems")) for side in ("In", "Out"))
        size = size_in_bytes(collective, inputs, outputs, itemsize, n)
        if inputs is None and outputs is None and call.range is not None:
            size, dtype, _ = _size_of_dims(collective, call.range.arguments, n)
        return {
            "collective": collective,
            "group": group,
            "dtype": dtype,
            "size_bytes": size,
            "sequence": _sequence(arguments),
            "step": self._step(call.start),
            "peers": self._message(collective, peers, arguments, group),
        }

    def _group(self, arguments: Event) -> int:
        """Return the index of a call's process group, or -1 if the file does not name it."""
        key = arguments.get("Process Group Name", arguments.get("Process Group ID"))
        if key is None or key == "":
            return -1
        ranks = _numbers(arguments.get("Process Group Ranks"))
        size = rank_number(arguments.get("Group size"))
        number = self._index.get(str(key))
        if number is not None and (self.groups[number].ranks or len(ranks) != size):
            return number
        group = ProcessGroup(
            str(key), str(arguments.get("Process Group Description") or ""), ranks if len(ranks) == size else (), size
        )
        if number is None:
            self._index[group.name] = len(self.groups)
            self.groups.append(group)
            return len(self.groups) - 1
        self.groups[number] = group
        return number

    def _message(
        self, collective: str | None, peers: re.Match[str] | None, arguments: Event, group: int
    ) -> tuple[int, int]:
        """Return the global ranks of the sender and of the receiver of a message, -1 if they are unknown."""
        if collective not in MESSAGES:
            return -1, -1
        source, destination = (rank_number(arguments.get(f"{side} Rank")) for side in ("Src", "Dst"))
        if source is not None and destination is not None and source != destination:
            return source, destination
        if peers is None:
            return -1, -1
        first, second = int(peers[2]), int(peers[4])
        pair = (first, second) if peers[3] == "->" else (second, first)
        ranks = self.groups[group].ranks if group >= 0 else ()
        if all(position < len(ranks) for position in pair):  # positions in the group
            return ranks[pair[0]], ranks[pair[1]]
        return (-1, -1) if group >= 0 else pair

    def _pair(self, collective: str | None, ranks: Sequence[int]) -> tuple[int, int]:
        """Return the sender and the receiver of a message between this rank and the only other one of its group."""
        if collective not in MESSAGES or len(ranks) != 2 or self.rank not in ranks:
            return -1, -1
        rank, peer = (int(rank) for rank in sorted(ranks, key=self.rank.__ne__))
        return (rank, peer) if collective in SENDS else (peer, rank)

    def _step(self, time: float) -> int:
        """Return the number of the profiler's step at a time of the host, -1 outside all of them."""
        position = bisect.bisect_right(self._step_starts, time) - 1
        return self.steps[position][2] if position >= 0 and time <= self.steps[position][1] else -1


def _range_of(event: Event, name: str, start: float, end: float) -> _Range:
    return _Range(start, end, key_of(event.get("tid")), name, mapping_or_empty(event.get("args")))


def _group_list(config: object) -> list[Event]:
    """Return the process groups of a header, which some versions write as a string of JSON."""
    if isinstance(config, str):
        try:
            config = parse_json(config)
        except ParseError:
            return []
    return objects_in(config)


def _group_of(item: Event) -> ProcessGroup:
    ranks = _numbers(item.get("ranks"))
    size = rank_number(item.get("pg_size"))
    is_complete = size is None or len(ranks) == size
    name = item.get("pg_name", item.get("uid", ""))
    description, backend = str(item.get("pg_desc") or ""), str(item.get("backend_config") or "")
    return ProcessGroup(str(name), description, ranks if is_complete else (), size, backend)


def _order(thread: Any) -> tuple[int, str]:
    """Return a key that sorts the numbers of threads, which the system counts up, before other names."""
    return (thread, "") if isinstance(thread, int) else (0, str(thread))


def _numbers(value: object) -> tuple[int, ...]:
    """Return a list of numbers, which can be a string, and end with dots if it was cut."""
    if isinstance(value, str):
        return () if "..." in value else tuple(int(digits) for digits in re.findall(r"\d{1,18}", value))
    if isinstance(value, list):
        return tuple(number for number in map(whole_or_none, value) if number is not None)
    return ()


def _sequence(arguments: Event) -> int:
    for key in ("Seq", "seq", "Sequence number"):
        if (number := sequence_number(arguments.get(key))) >= 0:
            return number
    return -1


def _size_of_dims(collective: str | None, arguments: Event, n: int | None) -> tuple[float, str | None, float]:
    """Return size and type of a call, and the bytes of its input, by the dims that the backend's range has."""
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    if not (isinstance(dims, list) and isinstance(types, list) and len(dims) == len(types) == 1):
        return np.nan, None, np.nan
    shape = _numbers(dims[0])
    dtype, itemsize = element_type(types[0])
    # If chunks may have different sizes, the input of a rank is not the size.
    if (
        collective is None
        or collective in UNEVEN
        or collective == COALESCED
        or not shape
        or not isinstance(dims[0], list)
    ):
        return np.nan, dtype, np.nan
    count = math.prod(shape)
    return size_in_bytes(collective, count, None, itemsize, n), dtype, float(count * itemsize) if itemsize else np.nan
