"""The table of all rules."""

from __future__ import annotations

from meshlab.diagnosis._findings import Rule
from meshlab.diagnosis.rules._ended_ranks import ENDED_RANK_RULES
from meshlab.diagnosis.rules._gpu_faults import GPU_RULES
from meshlab.diagnosis.rules._gpu_health import HEALTH_RULES
from meshlab.diagnosis.rules._gpu_tests import GPU_TEST_RULES
from meshlab.diagnosis.rules._hangs import HANG_RULES
from meshlab.diagnosis.rules._host_links import LINK_RULES
from meshlab.diagnosis.rules._interfaces import INTERFACE_RULES
from meshlab.diagnosis.rules._jobs import JOB_RULES
from meshlab.diagnosis.rules._launching import LAUNCH_RULES
from meshlab.diagnosis.rules._layouts import LAYOUT_RULES
from meshlab.diagnosis.rules._measured_results import MEASURED_RESULT_RULES
from meshlab.diagnosis.rules._memory import MEMORY_RULES
from meshlab.diagnosis.rules._nccl_normal import NCCL_NORMAL_RULES
from meshlab.diagnosis.rules._network import NETWORK_RULES
from meshlab.diagnosis.rules._other_transports import OTHER_TRANSPORT_RULES
from meshlab.diagnosis.rules._peers import PEER_RULES
from meshlab.diagnosis.rules._port_faults import PORT_RULES
from meshlab.diagnosis.rules._program_errors import PROGRAM_ERROR_RULES
from meshlab.diagnosis.rules._ras_reports import RAS_RULES
from meshlab.diagnosis.rules._rdma import RDMA_RULES
from meshlab.diagnosis.rules._rendezvous import RENDEZVOUS_RULES
from meshlab.diagnosis.rules._slow_hosts import SLOW_HOST_RULES
from meshlab.diagnosis.rules._software_versions import SOFTWARE_VERSION_RULES
from meshlab.diagnosis.rules._timeouts import TIMEOUT_RULES
from meshlab.diagnosis.rules._ucx import UCX_RULES
from meshlab.diagnosis.rules._unclear_logs import UNCLEAR_LOG_RULES
from meshlab.diagnosis.rules._xla_jobs import XLA_RULES

RULES: tuple[Rule, ...] = (
    *INTERFACE_RULES,
    *NETWORK_RULES,
    *RDMA_RULES,
    *UCX_RULES,
    *OTHER_TRANSPORT_RULES,
    *MEMORY_RULES,
    *PEER_RULES,
    *HANG_RULES,
    *TIMEOUT_RULES,
    *RAS_RULES,
    *ENDED_RANK_RULES,
    *PROGRAM_ERROR_RULES,
    *RENDEZVOUS_RULES,
    *LAUNCH_RULES,
    *XLA_RULES,
    *LAYOUT_RULES,
    *SOFTWARE_VERSION_RULES,
    *SLOW_HOST_RULES,
    *MEASURED_RESULT_RULES,
    *UNCLEAR_LOG_RULES,
    *GPU_RULES,
    *HEALTH_RULES,
    *GPU_TEST_RULES,
    *PORT_RULES,
    *LINK_RULES,
    *JOB_RULES,
    *NCCL_NORMAL_RULES,
)
"""All rules. The order decides only between findings that are equally severe."""
