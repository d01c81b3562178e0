"""The table of all rules."""

from __future__ import annotations

from meshlab.diagnosis.rules.ended_ranks import ENDED_RANK_RULES
from meshlab.diagnosis.rules.gpu_faults import GPU_RULES
from meshlab.diagnosis.rules.hangs import HANG_RULES
from meshlab.diagnosis.rules.host_links import LINK_RULES
from meshlab.diagnosis.rules.interface_rules import INTERFACE_RULES
from meshlab.diagnosis.rules.job_rules import JOB_RULES
from meshlab.diagnosis.rules.launching import LAUNCH_RULES
from meshlab.diagnosis.rules.measured_results import MEASURED_RESULT_RULES
from meshlab.diagnosis.rules.memory_rules import MEMORY_RULES
from meshlab.diagnosis.rules.nccl_normal import NCCL_NORMAL_RULES
from meshlab.diagnosis.rules.network_rules import NETWORK_RULES
from meshlab.diagnosis.rules.peer_rules import PEER_RULES
from meshlab.diagnosis.rules.port_faults import PORT_RULES
from meshlab.diagnosis.rules.program_errors import PROGRAM_ERROR_RULES
from meshlab.diagnosis.rules.ras_reports import RAS_RULES
from meshlab.diagnosis.rules.rdma_rules import RDMA_RULES
from meshlab.diagnosis.rules.rendezvous import RENDEZVOUS_RULES
from meshlab.diagnosis.rules.slow_hosts import SLOW_HOST_RULES
from meshlab.diagnosis.rules.software_versions import SOFTWARE_VERSION_RULES
from meshlab.diagnosis.rules.unclear_logs import UNCLEAR_LOG_RULES
from meshlab.diagnosis.text_findings import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *INTERFACE_RULES,
    *NETWORK_RULES,
    *RDMA_RULES,
    *MEMORY_RULES,
    *PEER_RULES,
    *HANG_RULES,
    *RAS_RULES,
    *ENDED_RANK_RULES,
    *PROGRAM_ERROR_RULES,
    *RENDEZVOUS_RULES,
    *LAUNCH_RULES,
    *SOFTWARE_VERSION_RULES,
    *SLOW_HOST_RULES,
    *MEASURED_RESULT_RULES,
    *UNCLEAR_LOG_RULES,
    *GPU_RULES,
    *PORT_RULES,
    *LINK_RULES,
    *JOB_RULES,
    *NCCL_NORMAL_RULES,
)
"""All rules. The order decides only between findings that are equally severe."""
