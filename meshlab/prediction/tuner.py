"""NCCL's tuner as array functions: channels, latency and bandwidth of every algorithm and protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["NcclSettings", "TimingMode"]

TimingMode = Literal["graph", "pipelined", "isolated"]
"""How calls are timed, as in `meshlab.bench`."""


@dataclass(frozen=True)
class NcclSettings:
    """Settings of NCCL that change its choice, and how the calls are timed.

    Parameters
    ----------
    algorithms : tuple of str, optional
        The allowed algorithms, as in NCCL_ALGO. By default all.
    protocols : tuple of str, optional
        The allowed protocols, as in NCCL_PROTO. By default all that NCCL enables on the hardware.
    nvls : bool, default True
        False if NVLS is disabled or not available (NCCL_NVLS_ENABLE=0).
    sharp : bool, default False
        True if switches reduce between nodes (NCCL_COLLNET_ENABLE=1 and the SHARP plugin).
    plugin : str, optional
        Name of a tuner plugin. Its choice is unknown, so it is only reported.
    plugin_latency_us : float, optional
        Latency that the network plugin reports to NCCL. By default the network latency of the cluster.
    mode : {"pipelined", "graph", "isolated"}
        How calls are timed. It shifts the latency of all calls.
    version : str, default "2.30.7"
        The NCCL version of the tuner's constants.
    """

    algorithms: tuple[str, ...] | None = None
    protocols: tuple[str, ...] | None = None
    nvls: bool = True
    sharp: bool = False
    plugin: str | None = None
    plugin_latency_us: float | None = None
    mode: TimingMode = "pipelined"
    version: str = "2.30.7"
