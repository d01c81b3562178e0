"""Tools whose output is not a text to explain, and what only they print, so that messages can name them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_START = 16_384  # characters in which a document shows what it is
_RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]{0,400}?"rank"\s*:\s*(\d{1,9})')


@dataclass(frozen=True, slots=True)
class OtherTool:
    """A tool whose output is not read: its name, strings that only it prints, and what to pass instead."""

    name: str
    marks: tuple[str, ...]
    instead: str
    is_document: bool = False  # JSON of this tool alone, which shows its marks at the beginning
    reason: str = "it is not read yet"

    def printed(self, text: str) -> bool:
        """Return whether a text is the output of this tool, or contains it."""
        if self.is_document:
            text = text[:_START].lstrip("\ufeff \t\r\n")
            return text[:1] in ("{", "[") and any(mark in text for mark in self.marks)
        return any(mark in text for mark in self.marks)


_NO_LINKS = "meshlab reads the types of links between GPUs in it, which are missing or cut"
_WITH_LINKS = "pass the whole output of rocm-smi --showtopo or amd-smi topology"
_INSTEAD = "pass the log of the job (NCCL_DEBUG=INFO), with the lines around its first error"

_TRACE = OtherTool(
    "a profiler trace (Kineto, in the format of Chrome)",
    ('"traceEvents"', '"deviceProperties"', '"ph": "X"', '"ph":"X"'),
    "pass its file to ml.read(), or to meshlab trace",
    is_document=True,
    reason="a trace contains times, but no messages to explain",
)
OTHER_TOOLS: tuple[OtherTool, ...] = (
    _TRACE,
    OtherTool(
        "the output of rocm-smi, which is a tool for AMD's GPUs",
        ("ROCm System Management Interface", "Link Type between two GPUs", "ROCM-SMI", "End of ROCm SMI Log"),
        _WITH_LINKS,
        reason=_NO_LINKS,
    ),
    OtherTool(
        "the output of amd-smi, which is a tool for AMD's GPUs",
        (
            *("AMD-SMI", "AMDSMI Tool:", "ACCESS TABLE:", "LINK TYPE TABLE:", "HOPS TABLE:", "WEIGHT TABLE:"),
            *("NUMA BW TABLE:", "CACHE COHERENCY TABLE:", "ATOMICS TABLE:", "DMA TABLE:", "BI-DIRECTIONAL TABLE:"),
            *('"link_type": "XGMI"', "amd-smi topology"),
        ),
        _WITH_LINKS,
        reason=_NO_LINKS,
    ),
    OtherTool("the output of UCC", ("UCC  ERROR", "UCC ERROR", "UCC  WARN", "UCC WARN", "ucc_perftest"), _INSTEAD),
    OtherTool("the output of ucx_perftest", ("ucx_perftest",), _INSTEAD),
    OtherTool(
        "a log of the NVIDIA Fabric Manager",
        ("Fabric Manager version", "Fabric Manager - version", "nv-fabricmanager: ", "FM starting NvLink"),
        "pass systemctl status nvidia-fabricmanager, nvidia-smi -q and dmesg",
    ),
    OtherTool("the output of MSCCL++", ("mscclpp", "MSCCLPP", "MSCCL++"), _INSTEAD),
    OtherTool("the output of Horovod", ("[horovod/", "horovod.runner", "horovodrun", "Stalled ops:"), _INSTEAD),
    OtherTool("the output of oneCCL", ("|CCL_WARN|", "|CCL_ERROR|", "|CCL_INFO|", "oneCCL"), _INSTEAD),
    OtherTool("the output of HCCL, the library of Ascend", ("[HCCL]", "HCCL_", "hcclComm"), _INSTEAD),
    OtherTool(
        "a report of Nsight Systems", ("nsys-report", "(cuda_gpu_kern_sum)", "CUDA GPU Kernel Summary"), _INSTEAD
    ),
)
"""The tools that are only named. The first that matches counts."""


def other_tool(text: str) -> OtherTool | None:
    """Return the tool that printed a text, or None if it is not one that meshlab knows by name only."""
    return next((tool for tool in OTHER_TOOLS if tool.printed(text)), None)


def is_other_document(text: str) -> bool:
    """Return whether a text is a document of another tool, so that nothing else is looked for in it."""
    return any(tool.is_document and tool.printed(text) for tool in OTHER_TOOLS)


def name_of(tool: OtherTool, text: str) -> str:
    """Return what a text of another tool is, such as ``a profiler trace … of rank 3``."""
    rank = _RANK.search(text[:_START]) if tool is _TRACE else None
    return tool.name if rank is None else f"{tool.name} of rank {rank[1]}"
