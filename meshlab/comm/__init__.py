"""Communicators: one face for every library that moves data between ranks."""

from meshlab.comm.backend import MODES, Call, Capabilities, Mode, Timings
from meshlab.comm.catalog import CATALOG, DTYPES, OPS, Collective
from meshlab.comm.communicator import Communicator, PreparedCall

__all__ = [
    "CATALOG",
    "DTYPES",
    "MODES",
    "OPS",
    "Call",
    "Capabilities",
    "Collective",
    "Communicator",
    "Mode",
    "PreparedCall",
    "Timings",
]
