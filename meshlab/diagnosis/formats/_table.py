"""The table of all formats that are recognised in a pasted text."""

from __future__ import annotations

from meshlab.diagnosis._seen import TextFormat
from meshlab.diagnosis.formats._dcgm import DCGM_FORMATS
from meshlab.diagnosis.formats._flight_recorder import FLIGHT_RECORDER
from meshlab.diagnosis.formats._gpu_pairs import PAIR_FORMATS
from meshlab.diagnosis.formats._horovod import HOROVOD
from meshlab.diagnosis.formats._inspector import INSPECTOR
from meshlab.diagnosis.formats._machine_text import MACHINE_FORMATS
from meshlab.diagnosis.formats._nccl_log import NCCL_LOG
from meshlab.diagnosis.formats._other_readers import HARDWARE_FILE, MESH_LAYOUT, NCCL_TESTS_LOG
from meshlab.diagnosis.formats._pair_table import PAIR_TABLE
from meshlab.diagnosis.formats._perftest import PERFTEST
from meshlab.diagnosis.formats._process_exits import PROCESS_EXITS
from meshlab.diagnosis.formats._ras import RAS_REPORT
from meshlab.diagnosis.formats._torch_lines import TORCH_LOG
from meshlab.diagnosis.formats._ucx_lines import UCX_LOG
from meshlab.diagnosis.formats._xla_lines import XLA_LOG

FORMATS: tuple[TextFormat, ...] = (
    FLIGHT_RECORDER,
    RAS_REPORT,
    TORCH_LOG,
    NCCL_LOG,
    NCCL_TESTS_LOG,
    PAIR_TABLE,
    *PAIR_FORMATS,
    *DCGM_FORMATS,
    PERFTEST,
    INSPECTOR,
    PROCESS_EXITS,
    HOROVOD,
    XLA_LOG,
    UCX_LOG,
    HARDWARE_FILE,
    *MACHINE_FORMATS,
    MESH_LAYOUT,
)
"""All formats, most specific first."""
