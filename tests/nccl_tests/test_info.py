from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.nccl_tests._info import FactCollector, merge_facts

LINES = """
node00:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to hsn
node00:1:1 [0] NCCL INFO Bootstrap : Using hsn1:10.0.0.1<0>
NCCL version 2.20.5+cuda12.4
node00:1:2 [0] NCCL INFO Using network AWS Libfabric
node00:1:2 [0] NCCL INFO NVLS multicast support is not available on dev 0
node00:1:2 [0] NCCL INFO NCCL_CROSS_NIC set by environment to 1.
node00:1:2 [0] NCCL INFO comm 0x55 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
node00:1:2 [0] NCCL INFO Channel 00/02 :    0   2   3   1
node00:1:2 [0] NCCL INFO Channel 01/02 :    0   1   3
node00:1:2 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] -1/-1/-1->0->1
node01:1:2 [0] NCCL INFO Trees [0] -1/-1/-1->2->0 [1] 3/-1/-1->2
node00:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node00:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node00:1:2 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via NET/AWS Libfabric/7/GDRDMA
node01:1:2 [0] NCCL INFO Channel 03/0 : 3[3] -> 7[3] [receive] via NET/AWS Libfabric/1/GDRDnode00:9:9 [3] NCCL INFO x
node01:1:2 [0] NCCL INFO Channel 02/0 : 3[3] -> 2[2] via P2P/CUMEM/re
node01:1:2 [0] NCCL INFO 2 coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer
node01:1:2 [0] transport.cc:1 NCCL WARN something <b>odd</b>
"""


def test_messages_of_nccl_are_read_without_a_table():
    facts = ml.nccl_tests.read(LINES).nccl
    assert facts.version == "2.20.5+cuda12.4"
    assert (facts.n_ranks, facts.n_nodes, facts.ranks_per_node) == (4, 2, 2)
    assert (facts.network, facts.nvls) == ("AWS Libfabric", False)
    assert dict(facts.channels) == {"coll": 2, "collnet": 0, "nvls": 0, "p2p": 4}
    assert dict(facts.transports) == {"P2P/CUMEM/read": 2, "NET/AWS Libfabric/GDRDMA": 1}
    assert dict(facts.environment) == {"NCCL_SOCKET_IFNAME": "hsn", "NCCL_CROSS_NIC": "1"}
    assert facts.problems == ("something <b>odd</b>",)


def test_a_truncated_ring_is_omitted_and_trees_map_ranks_to_parents():
    facts = ml.nccl_tests.read(LINES).nccl
    assert dict(facts.rings) == {0: (0, 2, 3, 1)}
    assert {channel: dict(tree) for channel, tree in facts.trees.items()} == {0: {0: -1, 2: 0}, 1: {0: 1}}


def test_communicators_of_several_sizes_leave_n_ranks_unknown():
    collector = FactCollector()
    for n in (8, 2):
        collector.add_info(f"comm 0x1 rank 0 nranks {n} cudaDev 0 busId 53000 - Init COMPLETE")
    assert collector.facts().n_ranks is None


def test_a_variable_that_differs_between_ranks_is_a_problem():
    collector = FactCollector()
    collector.add_variable("NCCL_ALGO", "Ring")
    collector.add_variable("NCCL_ALGO", "Tree")
    facts = collector.facts()
    assert dict(facts.environment) == {"NCCL_ALGO": "Ring"}
    assert facts.problems == ("NCCL_ALGO is 'Ring' and 'Tree'",)


def test_messages_belong_to_the_run_that_contains_them(make_log):
    first, second = make_log("2.17").lines(), make_log("2.17", "sendrecv").lines()
    lines = [
        *first[:-1],
        "n0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring",
        *second[:5],
        "n0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Tree",
        *second[5:],
    ]
    log = ml.nccl_tests.read("n0:1:1 [0] NCCL INFO NCCL_DEBUG set by environment to INFO\n" + "\n".join(lines))
    assert [dict(section.nccl.environment) for section in log.sections] == [
        {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"},
        {"NCCL_ALGO": "Tree"},
    ]
    assert log.nccl.environment["NCCL_ALGO"] == "Ring"


def test_logged_calls_determine_the_collective(make_log):
    call = "n0:1:1 [0] NCCL INFO AllGather: opCount 0 sendbuff 0x7f recvbuff 0x7f count 16 datatype 7 op 0 root 0"
    text = make_log("2.13", "all_gather", checked=False).text()
    assert ml.nccl_tests.read(f"{text}{call}\n").sections[0].collective == "all_gather"


def test_variables_are_read_from_a_shell_trace(make_log):
    log = ml.nccl_tests.read("+ export 'NCCL_NET=AWS Libfabric'\n+ NCCL_CROSS_NIC=0\n" + make_log().text())
    assert dict(log.nccl.environment) == {"NCCL_NET": "AWS Libfabric", "NCCL_CROSS_NIC": "0"}


def test_merged_facts_add_up_transports():
    facts = ml.nccl_tests.read(LINES).nccl
    both = merge_facts([facts, facts])
    assert both.n_ranks == 4
    assert both.transports["P2P/CUMEM/read"] == 4


@pytest.mark.parametrize(
    "message", ["Channel", "Channel via", "Trees [0", "comm nranks", "NCCL_X set", "", "Channel 0/"]
)
def test_truncated_messages_are_ignored(message):
    collector = FactCollector()
    collector.add_info(message)
    facts = collector.facts()
    assert (facts.n_ranks, dict(facts.rings), dict(facts.trees), dict(facts.transports)) == (None, {}, {}, {})
