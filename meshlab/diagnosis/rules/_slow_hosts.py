"""Rules for tables of pairs of hosts: which host is slow."""

from __future__ import annotations

from collections.abc import Iterator

from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._pair_table import HostPair, read_host_pairs

_SLOW = 0.8
"""A pair below this part of the fast pairs is slow. Good pairs of equal machines differ by a few percent."""


def _split(pairs: tuple[HostPair, ...]) -> tuple[list[HostPair], dict[str, list[HostPair]], set[str], float]:
    """Return the slow pairs, the pairs of each host, the hosts with a fast pair, and the bandwidth of fast pairs."""
    ordered = sorted(one.value for one in pairs)
    fast = ordered[-max(len(ordered) // 3, 1)]  # the upper third is not affected by one outlier
    slow = [one for one in pairs if one.value < _SLOW * fast]
    by_host: dict[str, list[HostPair]] = {}
    for one in pairs:
        by_host.setdefault(one.a, []).append(one)
        by_host.setdefault(one.b, []).append(one)
    cleared = {name for name, ones in by_host.items() if any(one not in slow for one in ones)}
    return slow, by_host, cleared, fast


def _suspects(pairs: tuple[HostPair, ...]) -> dict[str, list[HostPair]]:
    """Return the hosts that are slow for certain: only slow pairs, each with a partner that is fast with others."""
    slow, by_host, cleared, _ = _split(pairs)
    return {
        name: ones
        for name, ones in by_host.items()
        if all(one in slow for one in ones) and any((one.b if one.a == name else one.a) in cleared for one in ones)
    }


@rule("slow-node", "One host is slower than the rest", source="NVIDIA/nccl-tests#106")
def slow_node(paste: Paste) -> Iterator[TextFinding]:
    """Look for a host whose pairs are all slow although its partners are fast with others."""
    pairs = paste.once(read_host_pairs)
    if not pairs:
        return
    fast = _split(pairs)[3]
    for name, ones in _suspects(pairs).items():
        partners = sorted({one.b if one.a == name else one.a for one in ones})
        values = sorted(one.value for one in ones)
        shown = f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"
        yield slow_node.finding(
            "warning",
            name,
            f"{_how_many(len(ones), name)} {'reaches' if len(ones) == 1 else 'reach'} {shown}, while its partners "
            f"({', '.join(partners)}) reach up to {fast:g} with other hosts.",
            f"Compare {name} with a good host: NCCL_TOPO_DUMP_FILE on a rank there, rate and width of NICs and PCIe "
            "(ibstat, lspci -vv), and GPU Direct RDMA on every NIC.",
            [one.line for one in ones],
        )


def _how_many(n: int, name: str) -> str:
    return {1: "Its only pair", 2: f"Both pairs with {name}"}.get(n, f"All {n} pairs with {name}")


@rule("slow-node-undecided", "A slow pair, and it is not clear which host is slow", source="NVIDIA/nccl-tests#106")
def slow_node_undecided(paste: Paste) -> Iterator[TextFinding]:
    """Look for slow pairs whose hosts were both measured only in slow pairs, or are both fast with others."""
    pairs = paste.once(read_host_pairs)
    if not pairs:
        return
    slow, _, cleared, fast = _split(pairs)
    suspects = _suspects(pairs)
    for one in slow:
        if one.a in suspects or one.b in suspects:
            continue
        good = sorted(cleared - {one.a, one.b})[:2]
        both = one.a in cleared and one.b in cleared
        yield slow_node_undecided.finding(
            "info",
            f"{one.a} or {one.b}" if not both else f"{one.a} with {one.b}",
            f"This pair reaches {one.value:g} of {fast:g}. "
            + (
                "Both hosts are fast with others, so the path between them is slow."
                if both
                else "Neither host was measured with a partner that is fast."
            ),
            f"Run {one.a} and {one.b} each with {' or '.join(good) or 'a host that is fast with others'}."
            if not both
            else "Compare the path between them: switch, rail, and routing.",
            [one.line],
        )


SLOW_HOST_RULES: tuple[Rule, ...] = (slow_node, slow_node_undecided)
"""Rules for tables of pairs of hosts."""
