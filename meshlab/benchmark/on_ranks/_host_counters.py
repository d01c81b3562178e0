"""Counters of a host and its GPUs, read in a fraction of a millisecond, in the client and on ranks of other hosts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from meshlab.topology.readers._nvml import ClockReader
from meshlab.topology.readers._sysfs import read_nic_bytes

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator

_PRESSURE = "/proc/pressure/cpu"


@dataclass(frozen=True, slots=True)
class HostCounters:
    """Counters of a host at one moment. Their differences describe the time in between."""

    at_s: float  # on a clock of the host that only runs forwards
    busy_s: float  # time of all cores in which they executed processes
    steal_s: float  # time of all cores that the hypervisor gave to other virtual machines
    total_s: float  # time of all cores
    waiting_s: float = math.nan  # time in which a process waited for a core
    load: float = math.nan  # processes that ran or waited, averaged over a minute
    cores: int = 1
    cpu_mhz: float = math.nan  # mean over the cores
    own_s: Mapping[int, float] = field(default_factory=dict)  # time of the processes of the run
    gpus: Sequence[Mapping[str, Any]] = ()  # readings of `ClockReader`
    core_s: Sequence[tuple[float, float]] = ()  # busy time and all time of each core
    nic_bytes: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # sent and received, by name


def read_counters(pids: Collection[int], *, with_gpus: bool) -> HostCounters:
    """Read the counters of this host. `pids` are the processes of the run on it."""
    import psutil

    # Linux counts the time of guests also as time of their users.
    times = psutil.cpu_times()._asdict()
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    steal_s = times.get("steal", 0.0)
    own_s = {}
    for pid in pids:
        # A rank may end at any time, and some systems hide the processes of other users.
        with suppress(psutil.Error, OSError):
            spent = psutil.Process(pid).cpu_times()
            own_s[pid] = spent.user + spent.system
    return HostCounters(
        at_s=time.monotonic(),
        busy_s=total_s - times["idle"] - times.get("iowait", 0.0) - steal_s,
        steal_s=steal_s,
        total_s=total_s,
        waiting_s=_waiting_s(),
        load=load_average(),
        cores=host_cores(),
        cpu_mhz=_cpu_mhz(),
        own_s=own_s,
        gpus=_clock_reader().read() if with_gpus else (),
        core_s=[_core_s(core._asdict()) for core in psutil.cpu_times(percpu=True)],
        nic_bytes=read_nic_bytes(),
    )


def _core_s(times: Mapping[str, float]) -> tuple[float, float]:
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return total_s - times["idle"] - times.get("iowait", 0.0) - times.get("steal", 0.0), total_s


def counters_of_rank(comm: Communicator, pids: Mapping[int, Collection[int]], with_gpus: bool) -> HostCounters:
    """Read the counters of the host of this rank. `pids` are the processes of the run on each host, by its first rank.

    Runs on the engines.
    """
    return read_counters(pids[comm.world_rank], with_gpus=with_gpus)


@cache
def _clock_reader() -> ClockReader:
    # The driver stays open in this process, because opening it takes longer than all readings.
    return ClockReader()


def _waiting_s() -> float:
    """Return the time in which at least one process waited for a core. Only Linux counts it, and not everywhere."""
    try:
        with open(_PRESSURE, encoding="ascii") as file:  # noqa: PTH123
            line = file.readline()  # "some avg10=… total=…", in µs
        return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return math.nan


def _cpu_mhz() -> float:
    """Return the mean frequency of the cores. Many containers and virtual machines do not show it."""
    import psutil

    try:
        frequency = psutil.cpu_freq()
    except (OSError, RuntimeError, NotImplementedError, AttributeError):
        return math.nan
    return float(frequency.current) if frequency is not None and frequency.current else math.nan


def load_average() -> float:
    """Return the number of processes that ran or waited for a core in the last minute. NaN if it is not counted."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def host_cores() -> int:
    """Return the number of cores of this host, of which the processes of `load_average` may use all."""
    return os.cpu_count() or 1


def slowdown_of_load(n_ranks: int) -> float:
    """Return how much longer processes take that share the cores of this host with those that run now. 1 if none do."""
    slowdown = (load_average() + n_ranks) / host_cores()
    return slowdown if slowdown > 1 else 1.0  # also if the load is NaN
