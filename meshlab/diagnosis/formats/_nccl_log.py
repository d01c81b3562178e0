"""The format of a log of NCCL or RCCL: how it is recognised, and what it shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from types import MappingProxyType

from meshlab.diagnosis._paste import Paste, check_number
from meshlab.diagnosis._seen import Seen, TextFormat
from meshlab.diagnosis.formats._nccl_channels import tables_of
from meshlab.diagnosis.formats._nccl_lines import (
    number_list,
    read_bootstrap,
    read_communicators,
    read_hosts,
    read_networks,
    read_ports,
    read_variables,
    read_versions,
    text_list,
)
from meshlab.nccl_tests._info import transport_kind

_VIA = re.compile(r" via ([^\n]*)")


def _find(paste: Paste) -> list[int]:
    check_number(paste, len(paste.numbers("NCCL WARN")), "warnings of NCCL")
    return paste.numbers("NCCL INFO", "NCCL WARN", "NCCL TRACE", "NCCL version", "RCCL version", "INFO NET : Using")


def _see(paste: Paste) -> Seen:
    return Seen(MappingProxyType(_facts(paste)), MappingProxyType(tables_of(paste)))


def _facts(paste: Paste) -> dict[str, str]:
    facts: dict[str, str] = {}
    versions = paste.once(read_versions)
    for library in dict.fromkeys(item.library for item in versions):
        facts[library] = text_list(_distinct(item.version for item in versions if item.library == library))
    hosts = paste.once(read_hosts)
    if comms := paste.once(read_communicators):
        largest = max(comms, key=lambda item: item.n_ranks)
        members = {item.rank for item in comms if item.n_ranks == largest.n_ranks}
        n_nodes = largest.n_nodes or (len(hosts) if len(members) == largest.n_ranks else None)
        ranks = f"{largest.n_ranks}" if n_nodes is None else f"{largest.n_ranks} on {_count(n_nodes, 'host')}"
        facts["ranks"] = (
            ranks if len(members) == largest.n_ranks else f"{ranks}, lines of {number_list(members, 'rank')}"
        )
        n_comms = len(_distinct(item.comm for item in comms if item.comm))
        if n_comms > 1:
            facts["communicators"] = str(n_comms)
    if hosts:
        facts["hosts"] = text_list(hosts) if len(hosts) <= 8 else f"{len(hosts)}, from {hosts[0]} to {hosts[-1]}"
    for name, texts in (
        ("network", [item.name for item in paste.once(read_networks)]),
        ("NICs", [", ".join(item.devices) for item in paste.once(read_ports) if item.devices]),
        ("bootstrap", [item.interface for item in paste.once(read_bootstrap)]),
        ("transports", _transports(paste)),
        ("variables", [f"{item.name}={item.value}" for item in paste.once(read_variables)]),
    ):
        if distinct := _distinct(texts):
            more = f" and {len(distinct) - 12} more" if len(distinct) > 12 else ""
            facts[name] = (", " if name == "variables" else "; ").join(distinct[:12]) + more
    return facts


def _transports(paste: Paste) -> list[str]:
    ways = Counter(_VIA.findall(paste.text)) if paste.may_contain(" via ") else Counter()
    kinds: Counter[str] = Counter()
    for how, count in ways.items():
        if kind := transport_kind(how.rstrip(" │")):
            kinds[kind] += count
    return [f"{kind} ({count})" for kind, count in kinds.most_common()]


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _count(n: int, noun: str) -> str:
    return f"1 {noun}" if n == 1 else f"{n} {noun}s"


NCCL_LOG = TextFormat("NCCL log", _find, _see, "the output of a program that runs with NCCL_DEBUG=INFO")
