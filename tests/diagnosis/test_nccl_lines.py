"""What the lines of NCCL say: who printed them, communicators, networks, rings, trees and channels."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_channels import network_devices, read_patterns
from meshlab.diagnosis.formats._nccl_lines import (
    affected,
    is_one_host,
    message_of,
    messages,
    number_list,
    pci_address,
    read_bootstrap,
    read_communicators,
    read_cuda_failures,
    read_hosts,
    read_networks,
    read_ports,
    read_variables,
    read_versions,
    read_warnings,
    text_list,
    warnings_with,
)

TWO_HOSTS = """\
nodeA:100:100 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
nodeA:100:100 [0] NCCL INFO NCCL version 2.27.7+cuda12.9
nodeA:100:110 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
nodeA:100:110 [0] NCCL INFO Using network IB
nodeA:100:110 [0] NCCL INFO ncclCommInitRank comm 0x5570 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1c000 commId 0xabc - Init START
nodeA:101:111 [1] NCCL INFO ncclCommInitRank comm 0x5571 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 1901000 commId 0xabc - Init START
nodeB:200:210 [0] NCCL INFO ncclCommInitRank comm 0x6570 rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 1c000 commId 0xabc - Init START
nodeB:201:211 [1] NCCL INFO ncclCommInitRank comm 0x6571 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 1d000 commId 0xabc - Init START
nodeA:100:110 [0] NCCL INFO comm 0x5570 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
nodeA:100:110 [0] NCCL INFO Channel 00/02 :    0   1   2   3
nodeA:100:110 [0] NCCL INFO Channel 01/02 :    0   3   2   1
nodeA:100:110 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] -1/-1/-1->0->1
nodeA:101:111 [1] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] 0/-1/-1->1->-1
nodeA:100:110 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
nodeA:100:110 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
nodeA:101:111 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1(0)/GDRDMA/Shared
nodeA:100:110 [0] NCCL INFO ncclCommInitRank comm 0x5570 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1c000 commId 0xabc - Init COMPLETE
"""  # noqa: E501


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodeA:12:34 [3] NCCL INFO Connected all rings", ("INFO", "nodeA", 12, 34, 3, None, "Connected all rings")),
        (
            "node-1.x:1:92 [0] init.cc:1057 (initRank) NCCL WARN No",
            ("WARN", "node-1.x", 1, 92, 0, "init.cc:1057", "No"),
        ),
        ("a:1:2 [0] /usr/src/rccl/init.cc:136 NCCL WARN No", ("WARN", "a", 1, 2, 0, "/usr/src/rccl/init.cc:136", "No")),
        ("a:1:2 [32581] NCCL INFO Early", ("INFO", "a", 1, 2, None, None, "Early")),
        ("a:1:2 [-1] NCCL INFO Early", ("INFO", "a", 1, 2, None, None, "Early")),
        ("a:1:2 [0] 136.580392 ofi_init:1396 NCCL TRACE NET", ("TRACE", "a", 1, 2, 0, "ofi_init:1396", "NET")),
        ("a:1:2 [0] include/socket.h:360 WARN Call", ("WARN", "a", 1, 2, 0, "include/socket.h:360", "Call")),
        ("[2025-03-18 21:25:51] a:1:2 [0] p2p.cc:2 NCCL WARN No", ("WARN", "a", 1, 2, 0, "p2p.cc:2", "No")),
        (":34 [0] NCCL INFO the beginning is cut", ("INFO", None, None, None, None, None, "the beginning is cut")),
        ("Last error: no frame", ("", None, None, None, None, None, "Last error: no frame")),
    ],
)
def test_the_frame_of_a_line(text: str, expected: tuple[object, ...]) -> None:
    item = message_of(Paste(text).line(1))
    assert (item.level, item.host, item.pid, item.thread, item.device, item.source, item.text) == expected


def test_communicators_have_ranks_hosts_gpus_and_states() -> None:
    comm_ranks = read_communicators(Paste(TWO_HOSTS))
    assert [(item.rank, item.host, item.pid, item.state) for item in comm_ranks] == [
        (0, "nodeA", 100, "complete"),
        (1, "nodeA", 101, "started"),
        (2, "nodeB", 200, "started"),
        (3, "nodeB", 201, "started"),
    ]
    assert (comm_ranks[0].comm, comm_ranks[0].n_ranks, comm_ranks[0].n_nodes, comm_ranks[0].function) == (
        "0xabc",
        4,
        2,
        "ncclCommInitRank",
    )
    assert [item.bus_id for item in comm_ranks[:2]] == ["0000:1c:00.0", "0019:01:00.0"]


@pytest.mark.parametrize(
    "line",
    [
        "comm 0x7f19bc4046d0 rank 3 nranks 4",
        "comm 0x7f19bc4046d0 rank 3 nranks 4 cudaDev 1 busId 1c000 - Init COMPLETE",
        "[Rank 3] ncclCommSplit comm 0x7f rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 1c000 parent 0x8 - Init START",
    ],
)
def test_communicators_of_all_versions(line: str) -> None:
    (item,) = read_communicators(Paste(f"a:1:2 [1] NCCL INFO {line}"))
    assert (item.rank, item.n_ranks) == (3, 4)


def test_an_address_that_is_used_again_is_another_communicator() -> None:
    text = "\n".join(
        f"a:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks {n} cudaDev 0 nvmlDev 0 busId 60 commId 0x{n} - {state}"
        for n, state in ((2, "Init START"), (2, "Destroy COMPLETE"), (4, "Init START"))
    )
    assert [(item.comm, item.n_ranks, item.state) for item in read_communicators(Paste(text))] == [
        ("0x2", 2, "destroyed"),
        ("0x4", 4, "started"),
    ]


def test_the_setup_of_a_process() -> None:
    paste = Paste(TWO_HOSTS)
    assert read_versions(paste)[0][:4] == ("2.27.7+cuda12.9", "NCCL", "nodeA", 100)
    assert read_networks(paste)[0].name == "IB"
    assert read_ports(paste)[0][:2] == (("mlx5_0", "mlx5_1"), ("IB",))
    assert read_bootstrap(paste)[0][:2] == ("eth0", "10.0.0.1")
    assert read_hosts(paste) == ("nodeA", "nodeB")
    assert is_one_host(paste) is False


def test_merged_and_missing_ports() -> None:
    merged = "a:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [RO]; OOB b0:10.0.6.9<0>"
    none = "a:1:2 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>"
    assert [item.devices for item in read_ports(Paste(f"{merged}\n{none}"))] == [("mlx5_2", "mlx5_3"), ()]


def test_variables_are_those_that_nccl_read_and_that_a_command_sets() -> None:
    paste = Paste(
        "a:1:2 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n"
        "a:1:2 [0] NCCL INFO NCCL_CROSS_NIC set by environment to 1.\n"
        "$ mpirun -x NCCL_P2P_DISABLE=1 -x NCCL_DEBUG=INFO ./all_reduce_perf\n"
        "a:1:2 [0] NCCL INFO P2P is disabled. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.\n"
        "Disable NVLS (NCCL_NVLS_ENABLE=0) if you wish to avoid this error.\n"
    )
    assert [(item.name, item.value, item.host) for item in read_variables(paste)] == [
        ("NCCL_IB_HCA", "mlx5_0", "a"),
        ("NCCL_CROSS_NIC", "1", "a"),
        ("NCCL_P2P_DISABLE", "1", None),
        ("NCCL_DEBUG", "INFO", None),
    ]


def test_a_glued_line_is_not_another_host() -> None:
    lines = ["nodeA:7:8 [0] NCCL INFO x"] * 40
    assert read_hosts(Paste("\n".join([*lines, "0 AnodeA:7:8 [0] NCCL INFO y"]))) == ("nodeA",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0", True),
        ("a:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0", False),
        ("#  Rank  0 Group  0 Pid 1 on a device  0 [0x07] X\n#  Rank  1 Group  0 Pid 2 on a device  1 [0x08] X", True),
        ("#  Rank  0 Group  0 Pid 1 on a device  0 [0x07] X\n#  Rank  1 Group  0 Pid 2 on b device  0 [0x08] X", False),
        ("a:1:2 [0] NCCL INFO Using network Socket", None),
    ],
)
def test_whether_all_ranks_are_on_one_host(text: str, expected: bool | None) -> None:
    assert is_one_host(Paste(text)) is expected


def test_affected_ranks_are_found_by_thread_device_process_and_launcher() -> None:
    paste = Paste(
        TWO_HOSTS + "nodeA:101:999 [1] proxy.cc:1 NCCL WARN one\nnodeB:200:210 [0] x.cc:1 NCCL WARN two\n"
        "[1,9]<stdout>:nodeC:5:6 [4] x.cc:1 NCCL WARN three\nnodeD:5:6 [4] x.cc:1 NCCL WARN four\n"
    )
    assert affected(paste, read_warnings(paste)) == "nodeA rank 1, nodeB rank 2, nodeC rank 9, nodeD GPU 4"


def test_a_proxy_names_the_rank_of_its_thread() -> None:
    paste = Paste(
        "a:1:2 [0] misc/ibvwrap.cc:187 NCCL WARN Call to x failed\n"
        "a:1:2 [0] proxy.cc:1519 NCCL WARN [Proxy Service 6] Failed to execute operation Connect from rank 6\n"
    )
    assert affected(paste, [1]) == "a rank 6"


def test_the_tables_of_a_log() -> None:
    explanation = ml.explain(TWO_HOSTS)
    assert explanation.tables == ("communicators", "channels", "rings", "trees")
    assert explanation.facts["ranks"] == "4 on 2 hosts"
    rings = explanation.table("rings")
    assert list(rings.columns) == ["comm", "channel", "rank", "next"]
    ring = rings.query("channel == 1")
    assert dict(zip(ring["rank"], ring["next"], strict=True)) == {0: 3, 3: 2, 2: 1, 1: 0}
    trees = explanation.table("trees").query("channel == 0").set_index("rank")["parent"]
    assert trees[1] == 0
    assert trees.isna()[0]
    channels = explanation.table("channels")[["rank", "peer", "direction", "via", "net_device"]]
    assert channels.astype(object).where(channels.notna(), None).values.tolist() == [
        [0, 3, "receive", "NET/IB/GDRDMA", 0],
        [0, 1, "send", "P2P/CUMEM/read", None],
        [1, 2, "send", "NET/IB/GDRDMA/Shared", 1],
    ]
    assert set(explanation.table("rings")["comm"]) == {"0xabc"}


def test_rings_and_trees_of_single_ranks() -> None:
    explanation = ml.explain(
        "a:1:2 [0] NCCL INFO Ring 00 : 3 -> 0 -> 1\na:1:2 [0] NCCL INFO Tree 0 : -1 -> 0 -> 1/-1/-1\n"
        "a:1:3 [1] NCCL INFO Ring 00 : 0 -> 1 -> 2\na:1:3 [1] NCCL INFO Tree 0 : 0 -> 1 -> -1/-1/-1\n"
    )
    assert explanation.table("rings")[["rank", "next"]].values.tolist() == [[0, 1], [1, 2]]
    assert explanation.table("trees")["parent"].tolist()[1] == 0


def test_a_truncated_channel_is_left_out() -> None:
    text = "a:1:2 [0] NCCL INFO Channel 02/0 : 1[1] -> 2[2] via P2P/CUMEM/reb:4:4 [1] NCCL INFO cudaDriverVersion 12020"
    assert "channels" not in ml.explain(text).tables or ml.explain(text).table("channels").empty


def test_the_nics_of_a_rank() -> None:
    uses = network_devices(Paste(TWO_HOSTS))
    assert [(use.network, use.device, use.gpu_direct, use.rank) for use in uses] == [
        ("IB", 0, True, 0),
        ("IB", 1, True, 1),
    ]


def test_the_patterns_of_all_versions() -> None:
    paste = Paste(
        "a:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, speed 12.0/12.0, type PHB/PIX, sameChannels 1\n"
        "a:1:2 [0] NCCL INFO Pattern 3, crossNic 0, nChannels 0, bw 0.000000/0.000000, type NVL/PIX, sameChannels 1\n"
    )
    assert [(item.pattern, item.n_channels, item.bw_inter_gbs) for item in read_patterns(paste)] == [
        (4, 2, 12.0),
        (3, 0, 0),
    ]


def test_a_line_without_process_and_thread_has_a_host() -> None:
    message = message_of(
        Paste("[2026-05-22 10:26:17] gpu7 [5] misc/socket.cc:46 NCCL WARN Call to send failed").line(1)
    )
    assert (message.host, message.pid, message.device, message.source) == ("gpu7", None, 5, "misc/socket.cc:46")
    assert message_of(Paste("the message [5] of NCCL WARN x").line(1)).host is None


@pytest.mark.parametrize("prefix", ["", "[1,3]<stdout>:", "nodeB: ", "> ", "1048576  ", "x" * 300])
@pytest.mark.parametrize(
    "head",
    [
        "nodeA:1:2",
        "nodeA:1:2 [0]",
        "10.0.0.1:1:2 [-1]",
        "nodeA:1:2 [4711]",
        "nodeA:1:2 [3] 12.5",
        "nodeA:1:2 [3] misc/socket.cc:49",
        "nodeA:1:2 [3] 12.5 init.cc:1 (f)",
        "nodeA:1:2 misc/socket.cc:49",
        "nodeA:1:99999999999999999999 [0]",
        "nodeA [0]",
        "node A:1",
    ],
)
@pytest.mark.parametrize(
    "rest", ["INFO x", "WARN  x NCCL INFO y", "INFO", "INFO  x │", "version 2.20.3", "WARN-x y", ""]
)
def test_a_line_without_prefixes_is_the_same_message(prefix: str, head: str, rest: str) -> None:
    """Most lines are read in one step, and all others after their prefixes are removed."""
    paste = Paste(f"before\n{prefix}{head} NCCL {rest}\nafter")
    assert messages(paste, "NCCL") == [message_of(paste.line(2))]


def test_warnings_are_found_by_their_words() -> None:
    lines = [
        "nodeA:1:2 [0] NCCL INFO Cuda failure 'a'",
        "nodeA:1:2 [0] NCCL WARN Cuda failure 217 'peer access'",
        "nodeA:1:2 [0] NCCL WARN Cuda failure",
        "nodeA:1:2 [0] NCCL WARN other",
    ]
    paste = Paste("\n".join(lines))
    assert [item.line for item in warnings_with(paste, "Cuda failure")] == [2, 3]
    assert warnings_with(paste, "missing") == []
    assert [(item.line, match["code"], match["text"]) for item, match in read_cuda_failures(paste)] == [
        (2, "217", "peer access")
    ]


def test_numbers_of_buses_are_pci_addresses() -> None:
    assert [pci_address(bus) for bus in ("1c000", "1901000", "60")] == ["0000:1c:00.0", "0019:01:00.0", "0000:00:06.0"]


def test_numbers_and_texts_in_words() -> None:
    assert [number_list([3, 1, 0, 2, 7], "rank"), number_list([5], "GPU"), number_list([], "GPU")] == [
        "ranks 0-3 and 7",
        "GPU 5",
        "",
    ]
    assert [text_list(["a", "b", "c"][:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
