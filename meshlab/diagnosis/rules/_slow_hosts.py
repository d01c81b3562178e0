"""Rules for tables of pairs of hosts: which host is slow."""

from __future__ import annotations

from collections.abc import Iterator

from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._pair_table import HostPair, read_host_pairs

_SLOW = 0.8
"""A pair below this part of the fast pairs is slow. Good pairs of equal machines differ by a few percent."""


def _split(pairs: tuple[HostPair, ...]) -> tuple[list[HostPair], dict[str, list[HostPair]], set[str], float]:
    """Return the slow pairs, the pairs of each host, the hosts with a fast pair, and the bandwidth of fast pairs."""
    ordered = sorted(pair.value for pair in pairs)
    fast = ordered[-max(len(ordered) // 3, 1)]  # the upper third is not affected by one outlier
    slow = [pair for pair in pairs if pair.value < _SLOW * fast]
    by_host = grouped((name, pair) for pair in pairs for name in (pair.a, pair.b))
    cleared = {name for name, host_pairs in by_host.items() if any(pair not in slow for pair in host_pairs)}
    return slow, by_host, cleared, fast


def _suspects(pairs: tuple[HostPair, ...]) -> dict[str, list[HostPair]]:
    """Return the hosts that are slow for certain: only slow pairs, each with a partner that is fast with others."""
    slow, by_host, cleared, _ = _split(pairs)
    return {
        name: host_pairs
        for name, host_pairs in by_host.items()
        if all(pair in slow for pair in host_pairs)
        and any((pair.b if pair.a == name else pair.a) in cleared for pair in host_pairs)
    }


@rule("slow-node", "One host is slower than the rest", source="NVIDIA/nccl-tests#106")
def slow_node(paste: Paste) -> Iterator[TextFinding]:
    """Look for a host whose pairs are all slow although its partners are fast with others."""
    if not (pairs := paste.once(read_host_pairs)):
        return
    fast = _split(pairs)[3]
    for name, host_pairs in _suspects(pairs).items():
        partners = sorted({pair.b if pair.a == name else pair.a for pair in host_pairs})
        values = sorted(pair.value for pair in host_pairs)
        values_text = f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} to {values[-1]:g}"
        count = len(host_pairs)
        pairs_text = {1: "Its only pair", 2: f"Both pairs with {name}"}.get(count, f"All {count} pairs with {name}")
        yield slow_node.finding(
            "warning",
            name,
            f"{pairs_text} {'reaches' if count == 1 else 'reach'} {values_text}, "
            f"while its partners ({', '.join(partners)}) reach up to {fast:g} with other hosts.",
            f"Compare {name} with a good host: NCCL_TOPO_DUMP_FILE on a rank there, rate and width of NICs and PCIe "
            "(ibstat, lspci -vv), and GPU Direct RDMA on every NIC.",
            [pair.line for pair in host_pairs],
        )


@rule("slow-node-undecided", "A slow pair, and it is not clear which host is slow", source="NVIDIA/nccl-tests#106")
def slow_node_undecided(paste: Paste) -> Iterator[TextFinding]:
    """Look for slow pairs whose hosts were both measured only in slow pairs, or are both fast with others."""
    if not (pairs := paste.once(read_host_pairs)):
        return
    slow, _, cleared, fast = _split(pairs)
    suspects = _suspects(pairs)
    for pair in slow:
        if pair.a in suspects or pair.b in suspects:
            continue
        good = sorted(cleared - {pair.a, pair.b})[:2]
        are_cleared = pair.a in cleared and pair.b in cleared
        yield slow_node_undecided.finding(
            "info",
            f"{pair.a} or {pair.b}" if not are_cleared else f"{pair.a} with {pair.b}",
            f"This pair reaches {pair.value:g} of {fast:g}. "
            + (
                "Both hosts are fast with others, so the path between them is slow."
                if are_cleared
                else "Neither host was measured with a partner that is fast."
            ),
            f"Run {pair.a} and {pair.b} each with {' or '.join(good) or 'a host that is fast with others'}."
            if not are_cleared
            else "Compare the path between them: switch, rail, and routing.",
            [pair.line],
        )


SLOW_HOST_RULES: tuple[Rule, ...] = (slow_node, slow_node_undecided)
