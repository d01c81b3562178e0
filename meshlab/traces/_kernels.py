"""Names of GPU kernels and of host operations that communicate."""

from __future__ import annotations

import re
from functools import lru_cache

from meshlab.base._collectives import NCCL_FUNCTIONS
from meshlab.traces._rank_trace import collective_name

# By the beginning or a part of the name. NCCL and RCCL share their names. The others are kernels that frameworks and
# vendors run in the place of a collective of NCCL, mostly without a process group in the trace.
_OTHERS = (
    ("vLLM or SGLang (custom all-reduce)", r"cross_device_reduce|quick_?reduce"),
    ("TensorRT-LLM or FlashInfer", r"all_?reduce_fusion|AllReduceFusion|(?:one|two)ShotAllReduce|trtllm_.*all_?reduce"),
    ("PyTorch (symmetric memory)", r"(?:one_shot|two_shot)_all_reduce|multimem_(?:one_shot|all_)"),
    ("MSCCL++", r"mscclpp"),
    ("MSCCL", r"mscclKernel|msccl_"),
    ("DeepEP", r"deep_ep::"),
    ("NVSHMEM", r"\bnvshmem"),
    ("rocSHMEM", r"\brocshmem"),
    ("oneCCL", r"\boneccl|\bccl_(?:all|reduce|broadcast)"),
    ("HCCL", r"\bhcom_|\bHcclKernel"),
    ("CNCL", r"\bcncl[A-Z]"),
    ("XCCL", r"\bxccl[_:A-Z]"),
)
_VENDORS = re.compile("|".join(f"(?P<_{number}>{pattern})" for number, (_, pattern) in enumerate(_OTHERS)))
_NCCL = re.compile(r"\bnccl(?:Dev)?Kernel|\bncclSymk|\bncclSymDevKernel|\brcclKernel|\bncclKernel")
_FUNCTIONS = tuple(
    (re.compile(rf"_{function.name}(?![a-z])", re.IGNORECASE), name)
    for name, function in NCCL_FUNCTIONS.items()
    if function.algorithms  # messages run under the name SendRecv, which any call of messages has
)

_RANGE = re.compile(r"[a-z]{2,8}:(?!:)([a-z_]+)(?: \d.*)?")


@lru_cache(maxsize=4096)
def is_backend_range(name: str) -> bool:
    """Return whether a range of the host is that of a backend of torch around a call, such as ``nccl:all_reduce``."""
    match = _RANGE.fullmatch(name)
    return match is not None and collective_name(match[1]) is not None


def communicates(kernel: str) -> bool:
    """Return whether a kernel moves data between ranks."""
    return _NCCL.search(kernel) is not None or _VENDORS.search(kernel) is not None


def is_nccl(kernel: str) -> bool:
    """Return whether a kernel is one of NCCL or RCCL."""
    return _NCCL.search(kernel) is not None


def library_of(kernel: str) -> str:
    """Return the library, other than NCCL, that a kernel is of."""
    match = _VENDORS.search(kernel)
    return "" if match is None or match.lastgroup is None else _OTHERS[int(match.lastgroup[1:])][0]


def collective_of_kernel(kernel: str) -> str | None:
    """Return the collective in the name of NCCL's kernel. None for SendRecv and Generic, which run several."""
    head = kernel.partition("(")[0]
    return next((name for pattern, name in _FUNCTIONS if pattern.search(head)), None)
