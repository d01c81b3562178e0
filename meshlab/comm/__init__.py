"""Communicators: one face for every library that moves data between ranks."""

from meshlab.comm.backend import MODES, Call, Capabilities, Mode, Timings
from meshlab.comm.batch import Batch
from meshlab.comm.catalog import CATALOG, Collective
from meshlab.comm.dtypes import DTYPES
from meshlab.comm.elements import OPS
from meshlab.comm.communicator import Communicator
from meshlab.comm.hierarchical import Hierarchical
from meshlab.comm.elements import ReduceOp, pre_mul_sum
from meshlab.comm.prepared import PreparedCall

__all__ = [
    "CATALOG",
    "DTYPES",
    "MODES",
    "OPS",
    "Batch",
    "Call",
    "Capabilities",
    "Collective",
    "Communicator",
    "Hierarchical",
    "Mode",
    "PreparedCall",
    "ReduceOp",
    "Timings",
    "pre_mul_sum",
]
