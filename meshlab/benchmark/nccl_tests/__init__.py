"""Other people's numbers: logs of nccl-tests and rccl-tests as frames, and frames as such logs."""

from meshlab.nccl_tests.info import NcclFacts
from meshlab.nccl_tests.log import NcclTestsLog, Section
from meshlab.benchmark.nccl_tests.read import read_nccl_tests
from meshlab.nccl_tests.writer import to_nccl_tests

__all__ = ["NcclFacts", "NcclTestsLog", "Section", "read_nccl_tests", "to_nccl_tests"]
