"""The table of all rules."""

from __future__ import annotations

from meshlab.diagnosis.rules.interface_rules import INTERFACE_RULES
from meshlab.diagnosis.rules.job_rules import JOB_RULES
from meshlab.diagnosis.rules.memory_rules import MEMORY_RULES
from meshlab.diagnosis.rules.nccl_normal import NCCL_NORMAL_RULES
from meshlab.diagnosis.rules.network_rules import NETWORK_RULES
from meshlab.diagnosis.rules.peer_rules import PEER_RULES
from meshlab.diagnosis.rules.rdma_rules import RDMA_RULES
from meshlab.diagnosis.text_findings import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *INTERFACE_RULES,
    *NETWORK_RULES,
    *RDMA_RULES,
    *MEMORY_RULES,
    *PEER_RULES,
    *JOB_RULES,
    *NCCL_NORMAL_RULES,
)
"""All rules. The order decides only between findings that are equally severe."""
