"""Predictions in sentences: the links of a line, NCCL's choices, the largest size, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from meshlab.base._units import format_bandwidth, format_number, format_range, format_size, format_time_us

if TYPE_CHECKING:
    from meshlab.prediction._predictions import PredictedLine

BASES: Mapping[str, str] = {
    "calibrated": "measured on these groups",
    "other collective": "measured with other collectives on these groups, within 25 %",
    "extrapolated": "measured on fewer ranks, or at other sizes",
    "published": "measured by others on machines of this class",
    "formula only": "no run of this class is published",
}
"""The evidence for a predicted time, from strong to weak."""

_SPELLED = {
    "collnet_direct": "CollNetDirect",
    "collnet_chain": "CollNetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
    "ll": "LL",
    "ll128": "LL128",
    "simple": "Simple",
}
"""NCCL's spelling of its algorithms and protocols, for prose and figures."""


_SOURCES_SHOWN = 3


def spelled(algorithm: str, protocol: str) -> str:
    """Write an algorithm and a protocol in NCCL's spelling."""
    return " ".join(_SPELLED.get(name, name) for name in (algorithm, protocol) if name)


def described(line: PredictedLine) -> str:
    """Return one line as sentences."""
    text = f"{line.title}: "
    if line.nodes:
        text += "inside one NVLink domain. " if line.nodes == 1 else f"across {line.nodes} NVLink domains. "
    if len(line.choices) > 1:
        steps = [f"{name} from {format_size(line.size_bytes[k])}" for k, name in line.choices[1:]]
        text += f"NCCL takes {line.choices[0][1]}, then {', '.join(steps)}. "
    elif line.choices:
        text += f"NCCL takes {line.choices[0][1]}. "
    band = format_range(format_time_us(line.time_us_lo[-1]), format_time_us(line.time_us_hi[-1]))
    text += (
        f"{format_size(line.size_bytes[-1])} takes {format_time_us(line.time_us[-1])} ({band}), "
        f"{format_bandwidth(line.busbw_gbs[-1])} busbw"
    )
    if np.isfinite(line.bound_gbs):
        share = line.of_bound[-1]
        text += f"{'' if np.isnan(share) else f', {100 * share:.0f} % of the bound'}. "
        bound = format_bandwidth(line.bound_gbs)
        if line.bound_gbs_lo < 0.995 * line.bound_gbs:
            bound = format_range(format_bandwidth(line.bound_gbs_lo), bound)
        text += f"The bound is {bound}: {line.bound}"
    text += "."
    if line.traffic is not None:
        busiest = line.traffic.busiest
        text += (
            f" Traffic {line.traffic.name}: member {busiest.rank} of a group {busiest.direction} "
            f"{format_number(line.traffic.imbalance)} times the mean"
            + (f", and {line.busiest_nic} is the busiest NIC." if line.busiest_nic else ".")
        )
    if line.above_wire:
        text += f" busbw may exceed the bandwidth of a wire: {line.above_wire}."
    return text


UNMEASURED = (
    "No run on a machine of this class is published, so these times are those of the formula alone, and the band is "
    "that of its errors on other machines."
)


def evidence_text(line: PredictedLine) -> str:
    """Return a sentence about the basis of a line."""
    bases = [
        f"{basis} ({BASES[basis]})" + ("" if len(set(line.basis)) == 1 else f" {_range(line, basis)}")
        for basis in dict.fromkeys(line.basis)
    ]
    sources = ""
    if line.sources:
        first, others = line.sources[:_SOURCES_SHOWN], len(line.sources) - _SOURCES_SHOWN
        sources = f" Published runs: {', '.join(first)}{f' and {others} more' if others > 0 else ''}."
    return f" Basis: {'; '.join(bases)}.{sources}"


def _range(line: PredictedLine, basis: str) -> str:
    sizes = [size for size, of_size in zip(line.size_bytes, line.basis, strict=True) if of_size == basis]
    return (
        f"from {format_size(sizes[0])} to {format_size(sizes[-1])}" if len(sizes) > 1 else f"at {format_size(sizes[0])}"
    )
