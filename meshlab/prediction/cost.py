"""Cost of collectives: NCCL's choice by its own belief, priced with the bandwidth that the group really has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshlab.prediction.links import GroupLinks
from meshlab.prediction.tuner import NcclSettings
from meshlab.topology.placement.rank_map import Floats

__all__ = ["COLLECTIVES", "Cost", "Line", "cost", "line"]

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
)
"""The collectives that have a cost model."""


@dataclass(frozen=True, eq=False)
class Cost:
    """Predicted cost of a collective: k signatures by s sizes.

    Parameters
    ----------
    collective : str
        The collective.
    sizes : numpy.ndarray
        int64 of shape (s,): message sizes in bytes, as in nccl-tests.
    algorithm, protocol : numpy.ndarray
        int8 of shape (k, s): NCCL's choice, as an index into `ALGORITHMS` and `PROTOCOLS`.
    latency_us, transfer_us : numpy.ndarray
        float64 of shape (k, s): the part that does not depend on the size, and the part that does.
    bus_factor : numpy.ndarray
        float64 of shape (k,): busbw / algbw.
    bound_gbs : numpy.ndarray
        float64 of shape (k,): the bus bandwidth that the hardware allows. Infinite for groups of one rank.
    bound : tuple of str
        The hardware that sets the bound, such as ``"8 NICs, 1 of 8 groups"``.
    above_wire : tuple of str
        Why busbw may exceed the bandwidth of the wire. Empty if it cannot.
    version : str
        The NCCL version of the constants.
    """

    collective: str
    sizes: npt.NDArray[np.int64]
    algorithm: npt.NDArray[np.int8]
    protocol: npt.NDArray[np.int8]
    latency_us: Floats
    transfer_us: Floats
    bus_factor: Floats
    bound_gbs: Floats
    bound: tuple[str, ...]
    above_wire: tuple[str, ...]
    version: str

    @property
    def time_us(self) -> Floats:
        """Predicted time in µs."""
        return self.latency_us + self.transfer_us

    @property
    def busbw_gbs(self) -> Floats:
        """Predicted bus bandwidth in GB/s, as in nccl-tests."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Line:
    """Latency and bandwidth of every algorithm and protocol of a collective, to price any sizes.

    `time_us` takes matching arrays of rows and sizes, so that a search prices the exact size of every layout.
    """

    def time_us(self, rows: npt.NDArray[np.integer], sizes: npt.ArrayLike) -> Floats:
        """Return the predicted time of a call of each size on the signature of each row, broadcast together."""
        raise NotImplementedError


def line(
    links: GroupLinks, collective: str, *, dtype: str = "float32", settings: NcclSettings = NcclSettings()
) -> Line:
    """Return latency and bandwidth per algorithm and protocol of one collective."""
    raise NotImplementedError


def cost(
    links: GroupLinks,
    collective: str,
    sizes: npt.ArrayLike,
    *,
    dtype: str = "float32",
    settings: NcclSettings = NcclSettings(),
) -> Cost:
    """Predict the time of a collective on every signature for every size.

    Parameters
    ----------
    links : GroupLinks
        The signatures.
    collective : str
        One of `COLLECTIVES`.
    sizes : array_like of int
        Message sizes in bytes, as in nccl-tests: the total for all_gather, reduce_scatter and all_to_all.
    dtype : str, default "float32"
        Data type. NCCL avoids long rings for fp8, which would lose precision.
    settings : NcclSettings, optional
        Settings of NCCL, and the timing mode.

    Returns
    -------
    Cost

    Raises
    ------
    MeshlabError
        If the collective has no cost model.
    """
    raise NotImplementedError
