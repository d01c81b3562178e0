"""The machine around a run: what it is, and how its GPUs are before and after."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshlab.benchmark import environment, memory
from meshlab.frames.schema import Column, conform
from meshlab.topology.readers import nvml
from meshlab.topology.readers.hosts import cluster_from_hosts

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DEVICES",
    "describe_rank",
    "device_lines",
    "device_rows",
    "devices_frame",
    "differing_settings",
    "machine_text",
    "sample_rank",
]

_UNITS = (
    ("clock_sm_mhz", "{:.0f} MHz"),
    ("temperature_c", "{:.0f} °C"),
    ("power_w", "{:.0f} W"),
    ("throttle", "held down by {}"),
    ("ecc_corrected", "{} ECC errors corrected"),
    ("ecc_uncorrected", "{} not"),
    ("nvlink_errors", "{} NVLink errors"),
)

DEVICES = (
    Column("when", "string", "before or after the run."),
    Column("host", "string", "The host."),
    Column("device", "Int64", "The GPU's index as the driver counts."),
    Column("clock_sm_mhz", "float64", "Clock of the multiprocessors."),
    Column("clock_memory_mhz", "float64", "Clock of the memory."),
    Column("temperature_c", "float64", "Temperature."),
    Column("power_w", "float64", "Power drawn."),
    Column("utilisation_percent", "float64", "How much of the last moment a kernel ran."),
    Column("memory_bytes", "Int64", "Memory in all."),
    Column("memory_used_bytes", "Int64", "Memory in use."),
    Column("throttle", "string", "What holds the clocks down; empty for nothing."),
    Column("ecc_corrected", "Int64", "Memory errors that were corrected, since the driver came."),
    Column("ecc_uncorrected", "Int64", "Memory errors that were not."),
    Column("nvlink_errors", "Int64", "Replays, recoveries and checksum errors of all NVLinks."),
)
"""Columns of the frame of devices: one row per GPU, before and after a run; what a driver does not say is missing."""


def describe_rank(comm: Any, firsts: Collection[int]) -> dict[str, Any]:
    """What a rank knows of its surroundings; runs on the engines.

    Parameters
    ----------
    comm : Communicator
        The world.
    firsts : collection of int
        The ranks that speak for their hosts.
    """
    told: dict[str, Any] = {"settings": environment.read_settings(), "free": memory.free_bytes(comm)}
    if comm.world_rank in firsts:
        told |= {"host": nvml.read_host(), "devices": nvml.sample()}
    return told


def sample_rank(comm: Any, firsts: Collection[int]) -> list[dict[str, Any]]:
    """How the GPUs of this rank's host are, if it speaks for the host; runs on the engines."""
    return nvml.sample() if comm.world_rank in firsts else []


def machine_text(hosts: Iterable[Mapping[str, Any]]) -> str:
    """What the machine is, in a sentence, from answers of `meshlab.topology.readers.nvml.read_host`."""
    return cluster_from_hosts(list(hosts)).summary


def differing_settings(settings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The settings that are not the same on all ranks, with what they are where.

    Examples
    --------
    >>> differing_settings([{"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Ring"}, {}])
    {'NCCL_ALGO': 'Ring on ranks 0, 1; not set on rank 2'}
    """
    found = {}
    for name in sorted({name for one in settings for name in one}):
        ranks: dict[str, list[str]] = {}
        for rank, one in enumerate(settings):
            ranks.setdefault(one.get(name, "not set"), []).append(str(rank))
        if len(ranks) > 1:
            told = [f"{value} on rank{'s' * (len(who) > 1)} {', '.join(who)}" for value, who in ranks.items()]
            found[name] = "; ".join(told)
    return found


def device_rows(when: str, host: str, readings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the frame of devices, from what `meshlab.topology.readers.nvml.sample` says of one host."""
    names = {column.name for column in DEVICES}
    return [
        {"when": when, "host": host, "device": reading["id"]}
        | {name: value for name, value in reading.items() if name in names}
        for reading in readings
    ]


def devices_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame of devices."""
    import pandas as pd

    return conform(pd.DataFrame(rows, columns=[column.name for column in DEVICES], dtype=object), DEVICES)


def device_lines(rows: Iterable[Mapping[str, Any]], *, with_host: bool) -> dict[str, str]:
    """The same in words, one line per GPU; what is zero or not known is left out.

    Examples
    --------
    >>> device_lines([{"host": "n", "device": 0, "clock_sm_mhz": 1980, "throttle": ""}], with_host=False)
    {'GPU 0': '1980 MHz'}
    """
    lines = {}
    for row in rows:
        told = [form.format(row[name]) for name, form in _UNITS if row.get(name)]
        lines[f"{row['host']}, GPU {row['device']}" if with_host else f"GPU {row['device']}"] = " · ".join(told)
    return lines
