"""How fast long texts are explained."""

from __future__ import annotations

import pytest

import meshlab as ml

SIZE = 10 << 20
CHANNEL = "node{b}:10{b}0:10{b}9 [{b}] NCCL INFO Channel 0{b}/0 : {b}[0] -> 1[1] [send] via NET/IB/{b}/GDRDMA\n"
CALL = (
    "2025-06-02T16:13:44.{a}Z: [1,{b}]<stdout>:node{b}:1000:1009 [{b}] NCCL INFO AllReduce: opCount {a:x} sendbuff "
    "0x7fe7970{a:05x} recvbuff 0x7fe7970{a:05x} count 1 datatype 1 op 0 root 0 comm 0x7fe748008fb0 [nranks=8]\n"
)


def lines(pattern: str) -> str:
    """Ten MiB of lines that differ in their numbers."""
    parts = [pattern.format(a=number, b=number % 8) for number in range(SIZE // len(pattern))]
    return "".join(parts)[:SIZE]


@pytest.mark.parametrize("pattern", [CHANNEL, CALL], ids=["channels", "calls"])
def test_explaining_10_mib(benchmark, pattern):
    text = lines(pattern)
    benchmark.pedantic(ml.explain, (text,), rounds=3)


def test_removing_the_prefixes_of_10_mib(benchmark):
    text = lines("[1,{b}]<stdout>:" + CHANNEL)
    benchmark.pedantic(lambda: ml.diagnosis.Paste(text).lines(), rounds=3)
