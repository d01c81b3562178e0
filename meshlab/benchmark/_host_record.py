"""HostRecord: the conditions of the hosts while a run measures, as rows of its conditions frame."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshlab.benchmark.on_ranks._host_counters import HostCounters, counters_of_rank, read_counters
from meshlab.mesh._axes import WORLD
from meshlab.runs._host_loads import pack_loads

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines
    from meshlab.engines._lease import Lease
    from meshlab.runs._rundata import RunData

_PERIOD_S = 0.5  # 50 ticks of 10 ms, in which Linux counts the time of processes
_LEAST_S = 0.1
_REMOTE_PERIOD_S = 2.0  # a round to another host, and queries of the driver of GPUs, take milliseconds
_SHARE = 0.005  # largest share of the time that readings may take
_READINGS = 1000  # after which they become rarer: a run of ten hours has about 5,000


class HostRecord:
    """Reads the counters of all hosts between steps, and appends their differences to a run."""

    # Between steps, because a reading must not disturb a measurement. The counters of this host are read directly, and
    # those of other hosts on their first rank.

    def __init__(self, data: RunData, *, with_gpus: bool) -> None:
        self._data = data
        self._with_gpus = with_gpus
        self._here = socket.gethostname()
        self._pids: dict[str, set[int]] = {}
        self._remote: dict[str, int] = {}
        self._last: dict[str, HostCounters] = {}
        self._after: tuple[int, int] | None = None  # launch and index of the last step
        self._n_steps = 0
        self._began_s = self._due_s = time.monotonic()
        self._before_s = data.elapsed_s  # of an earlier part of the run

    def begin(self, lease: Lease) -> None:
        """Start with new ranks."""
        firsts = {info.host: info.rank for info in reversed(lease.engines.ranks)}
        self._remote = {host: rank for host, rank in firsts.items() if host != self._here}
        self._last, self._n_steps = self._read(lease), 0

    def count_step(self, lease: Lease, launch: int, step: int) -> None:
        """Count a step, and read the counters if the last reading is long enough ago."""
        self._after, self._n_steps = (launch, step), self._n_steps + 1
        if time.monotonic() >= self._due_s:
            self.update(lease)

    def update(self, lease: Lease) -> None:
        """Read the counters, and append a row per host, unless the ticks are too coarse for the time since the last."""
        launch, step = self._after or (None, None)
        is_short = time.monotonic() - self._last[self._here].at_s < _LEAST_S
        if is_short and (self._data.condition_rows or not self._n_steps):
            return
        counters = self._read(lease)
        at_s = time.monotonic() - self._began_s + self._before_s
        rows = [
            {"host": host, "launch": launch, "step": step, "n_steps": self._n_steps}
            | conditions_between(self._last[host], reading)
            | {"loads": loads_between(self._last[host], reading, at_s)}
            for host, reading in counters.items()
            if host in self._last
        ]
        self._data.add_conditions(rows)
        self._last, self._n_steps = counters, 0

    def _read(self, lease: Lease) -> dict[str, HostCounters]:
        self._pids = _own_processes(lease.engines, self._here)
        spent_s = -time.thread_time()  # on a busy host, a reading also waits for a core
        counters = {self._here: read_counters(self._pids[self._here], with_gpus=self._with_gpus)}
        spent_s += time.thread_time()
        if self._remote:
            spent_s -= time.monotonic()
            pids = {rank: self._pids[host] for host, rank in self._remote.items()}
            arguments = (pids, self._with_gpus)
            ranks = sorted(self._remote.values())
            replies = lease.round(counters_of_rank, self._data.mesh, WORLD, arguments, ranks=ranks).run()
            by_rank = {reply.rank: reply.value for reply in replies if reply.error is None}
            counters |= {host: by_rank[rank] for host, rank in self._remote.items() if rank in by_rank}
            spent_s += time.monotonic()
        now_s = time.monotonic()
        least_s = _REMOTE_PERIOD_S if self._remote or self._with_gpus else _PERIOD_S
        self._due_s = now_s + max(least_s, spent_s / _SHARE, (now_s - self._began_s) / _READINGS)
        return counters


def _own_processes(engines: Engines, here: str) -> dict[str, set[int]]:
    """Return the processes of a run on each host: the client, its ranks, and those with which they take turns."""
    pids = {here: {os.getpid()}}
    for in_turns in (engines, *engines.takes_turns_with):
        for info in in_turns.ranks:
            pids.setdefault(info.host, set()).add(info.pid)
    return pids


def conditions_between(first: HostCounters, second: HostCounters) -> dict[str, Any]:
    """Return the columns of a row that follow from two readings of a host. Unknown values are absent."""
    seconds = second.at_s - first.at_s
    row: dict[str, Any] = {"seconds": seconds, "cores": second.cores, "load": second.load, "cpu_mhz": second.cpu_mhz}
    if seconds > 0:
        own_s = sum(spent_s - first.own_s[pid] for pid, spent_s in second.own_s.items() if pid in first.own_s)
        # The counters have ticks of 10 ms, so that a small difference may be negative.
        for name, spent_s in (("own_cores", own_s), ("other_cores", second.busy_s - first.busy_s - own_s)):
            row[name] = min(max(spent_s / seconds, 0.0), float(second.cores))
        row["waiting_percent"] = min(100 * (second.waiting_s - first.waiting_s) / seconds, 100.0)
    if second.total_s > first.total_s:
        row["steal_percent"] = 100 * (second.steal_s - first.steal_s) / (second.total_s - first.total_s)
    row |= _gpu_conditions(second.gpus, set(second.own_s))
    return {name: value for name, value in row.items() if not (isinstance(value, float) and math.isnan(value))}


def loads_between(first: HostCounters, second: HostCounters, at_s: float) -> dict[str, Any]:
    """Return the loads of the devices of a host between two readings, see `pack_loads`."""
    seconds = second.at_s - first.at_s
    cores = [
        100 * min(max((busy_s - before[0]) / (total_s - before[1]), 0.0), 1.0) if total_s > before[1] else math.nan
        for (busy_s, total_s), before in zip(second.core_s, first.core_s, strict=False)
    ]
    nics = {
        name: tuple((count - old) / seconds / 1e9 for count, old in zip(counts, first.nic_bytes[name], strict=True))
        for name, counts in second.nic_bytes.items()
        if name in first.nic_bytes and seconds > 0
    }
    return pack_loads(at_s, cores, second.gpus, nics)  # type: ignore[arg-type]


def _gpu_conditions(gpus: Sequence[Mapping[str, Any]], ranks: set[int]) -> dict[str, Any]:
    """Summarise the readings of the GPUs of a host. `ranks` are the processes of the run on it."""
    row: dict[str, Any] = {}
    clocks = [gpu["clock_sm_mhz"] for gpu in gpus if "clock_sm_mhz" in gpu]
    if clocks:
        row["gpu_clock_mhz"] = min(clocks)
    reasons = [gpu["throttle"] for gpu in gpus if "throttle" in gpu]
    if reasons:
        words = [word for text in reasons for word in text.split(", ") if word]
        row["gpu_throttle"] = ", ".join(dict.fromkeys(words))
    listed = [set(gpu["pids"]) for gpu in gpus if "pids" in gpu]
    pids = set().union(*listed)
    # In a container, the driver lists either no process, or the numbers that processes have outside of it.
    if pids & ranks:
        row["gpu_other_processes"] = len(pids - ranks)
    return row
