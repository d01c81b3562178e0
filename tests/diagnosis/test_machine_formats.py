"""What tools print about a host, read as plain values, and joined to one cluster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._gpu_tools import read_nvlink_counters, read_nvlinks
from meshlab.diagnosis.formats._host_settings import read_access_control, read_limits, read_pcie_links, read_services
from meshlab.diagnosis.formats._kernel_log import _XID, host_of, read_kernel_log, short_bus
from meshlab.diagnosis.formats._machine_text import MACHINE_FORMATS, machine_of
from meshlab.diagnosis.formats._rdma_ports import _plain, read_ports
from meshlab.diagnosis.formats._smi_query import read_queried_values
from meshlab.diagnosis.formats._smi_table import read_gpu_rows
from tests import hostile_inputs
from tests.examples import examples

MATRIX = """\
        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      NV12    PIX     0-31            0
GPU1    NV12     X      SYS     32-63           1
mlx5_0  PIX     SYS      X
"""

IBSTAT = """\
CA 'mlx5_0'
        CA type: MT4129
        Number of ports: 1
        Port 1:
                State: Active
                Physical state: LinkUp
                Rate: 400
                Base lid: 987
                SM lid: 359
                Port GUID: 0x9c63c003005548ae
                Link layer: InfiniBand
CA 'mlx5_1'
        Port 1:
                State: Down
                Physical state: Disabled
                Rate: 10
                Base lid: 65535
                SM lid: 0
                Link layer: InfiniBand
"""


def nvlinks(gpu: int, rates: list[str], product: str = "NVIDIA A100-SXM4-80GB") -> str:
    rows = [f"\t Link {k}: {rate}" for k, rate in enumerate(rates)]
    return "\n".join([f"GPU {gpu}: {product} (UUID: GPU-00000000-0000-0000-0000-00000000000{gpu})", *rows, ""])


# -- kernel log --------------------------------------------------------------------------------------------------------


def test_xids_of_all_spellings_are_read() -> None:
    log = read_kernel_log(
        Paste(
            "[  966.503025] NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000\n"
            "Nov 28 10:00:00 node7 kernel: [12.5] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', "
            "name=<unknown>, Graphics\n"
            "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error\n"
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x0)\n"
            "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)\n"
            "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149\n"
            "NVRM: Xid (PCI:0000:D8:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on "
            "link 14(0x1)\n"
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406)\n"
        )
    )
    assert [item.code for item in log.xids] == [31, 13, 94, 149, 145, 45, 74, 149]
    assert [item.bus_id for item in log.xids][:3] == ["0000:01:00", "0000:cb:00", "0000:9b:00"]
    assert log.xids[1].host == "node7"
    assert (log.xids[2].pid, log.xids[2].process) == (1234, "python3")
    assert [(item.link, item.fatal) for item in log.xids[3:5]] == [(0, True), (13, False)]
    assert log.xids[5].cause == 149
    assert (log.xids[6].bus_id, log.xids[6].link, log.xids[6].fatal) == ("0000:d8:00", 14, True)
    assert log.xids[7].link is None


@pytest.mark.parametrize("end", ["", "│", "  │ │", ", pid=7, name=a│", "│ x"])
@pytest.mark.parametrize(
    "start", ["", "[1,3]<stdout>:", "[   12.5] ", "node7: ", "Nov 28 10:00:00 node7 kernel: ", "> "]
)
def test_an_xid_is_read_from_the_raw_line_as_from_its_text(start: str, end: str) -> None:
    paste = Paste(f"{start}NVRM: Xid (PCI:0000:9b:00): 94{end}\nx")
    line = paste.line(1)
    expected = [(host_of(line), match[3] or "") for match in [_XID.search(line.text)] if match is not None]
    assert [(item.host, item.text) for item in read_kernel_log(paste).xids] == expected


def test_no_line_is_created_for_an_xid() -> None:
    paste = Paste(hostile_inputs.KINDS["kernel messages"](10_000))
    assert len(read_kernel_log(paste).xids) == len(paste)
    assert not paste._lines


def test_errors_of_switches_and_links_of_interfaces_are_read() -> None:
    log = read_kernel_log(
        Paste(
            "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)\n"
            "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
            "[12.1] mlx5_core 0000:5e:00.0 ens1f0np0: Link down\n"
            "[13.1] mlx5_core 0000:5e:00.0 ens1f0np0: Link up\n"
        )
    )
    assert [(item.code, item.fatal, item.link) for item in log.sxids] == [(28006, False, 46), (20034, True, 30)]
    assert [(change.interface, change.up) for change in log.link_changes] == [("ens1f0np0", False), ("ens1f0np0", True)]


def test_a_gpu_off_the_bus_is_found_in_one_line_in_three_lines_and_once() -> None:
    log = read_kernel_log(
        Paste(
            "[1.0] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
            "      NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            "      NVRM: fallen off the bus and is not responding to commands.\n"
            "[2.0] NVRM: Xid (PCI:0000:44:00): 79, pid=1122, GPU has fallen off the bus.\n"
            "[2.1] NVRM: GPU 0000:44:00.0: GPU has fallen off the bus.\n"
            "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error\n"
            "I think that a card of ours has fallen off the bus\n"
        )
    )
    assert {loss.bus_id for loss in log.bus_losses} == {"0000:b3:00", "0000:44:00", "0000:65:00"}
    assert next(loss for loss in log.bus_losses if loss.bus_id == "0000:b3:00").pci_id == "10de:26b5"
    assert next(loss for loss in log.bus_losses if loss.bus_id == "0000:44:00").lines == (5, 4)
    assert [loss.bus_id for loss in log.bus_losses if loss.by_xid] == ["0000:44:00"]


# -- ports -------------------------------------------------------------------------------------------------------------


def test_ports_of_four_tools_are_read_the_same() -> None:
    texts = [
        IBSTAT.partition("CA 'mlx5_1'")[0],
        "Infiniband device 'mlx5_0' port 1 status:\n"
        "        default gid:     fe80:0000:0000:0000:8ae9:a4ff:fe9c:7f1a\n"
        "        base lid:        0x3db\n        sm lid:          0x167\n        state:           4: ACTIVE\n"
        "        phys state:      5: LinkUp\n        rate:            400 Gb/sec (4X NDR)\n"
        "        link_layer:      InfiniBand\n",
        "hca_id: mlx5_0\n        transport:                      InfiniBand (0)\n        phys_port_cnt:  1\n"
        "                port:   1\n                        state:                  PORT_ACTIVE (4)\n"
        "                        sm_lid:                 359\n                        port_lid:               987\n"
        "                        link_layer:             InfiniBand\n",
        "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 987 sm_lid 359 lmc 0 state ACTIVE physical_state "
        "LINK_UP\n",
    ]
    for text in texts:
        (port,) = read_ports(Paste(text))
        assert (port.device, port.port, port.state, port.lid, port.sm_lid) == ("mlx5_0", 1, "ACTIVE", 987, 359)
        assert port.link_layer == "InfiniBand"
        assert port.physical in ("LINKUP", None)
    assert [read_ports(Paste(text))[0].gbits for text in texts[:2]] == [400.0, 400.0]


def test_a_list_of_ports_may_have_gaps_other_commands_and_roce() -> None:
    text = (
        "$ ibstat\n" + IBSTAT + "$ rdma link\n"
        "link mlx5_4/1 state ACTIVE physical_state LINK_UP netdev enp97s0f0\n"
        "0/1: mlx5_5/1: subnet_prefix fe80:0000:0000:0000 lid 3 sm_lid 1 lmc 0 state DOWN physical_state POLLING\n"
    )
    ports = read_ports(Paste(text))
    assert [(port.device, port.state) for port in ports] == [
        ("mlx5_0", "ACTIVE"),
        ("mlx5_1", "DOWN"),
        ("mlx5_4", "ACTIVE"),
        ("mlx5_5", "DOWN"),
    ]
    assert ports[2].link_layer == "Ethernet"
    assert ports[2].netdev == "enp97s0f0"


# -- nvidia-smi --------------------------------------------------------------------------------------------------------


def test_links_of_nvlink_s_are_active_or_not() -> None:
    text = (
        nvlinks(0, ["25.781 GB/s", "<inactive>"]) + "GPU 1: NVIDIA H100 NVL (UUID: GPU-1)\n\t all links are inActive\n"
    )
    links = read_nvlinks(Paste(text))
    assert [(link.gpu, link.link, link.gbs) for link in links] == [(0, 0, 25.781), (0, 1, None), (1, None, None)]
    assert links[0].product == "NVIDIA A100-SXM4-80GB"


def test_counters_of_nvlink_e_are_read() -> None:
    text = (
        "GPU 0: NVIDIA GB300\n\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 2\n\t Link 11: CRC Errors: 31\n"
    )
    counters = read_nvlink_counters(Paste(text))
    assert [(item.link, item.counter, item.count) for item in counters] == [
        (0, "Replay Errors", 0),
        (0, "Recovery Errors", 2),
        (11, "CRC Errors", 31),
    ]


def test_rows_of_the_table_of_gpus_are_read() -> None:
    rows = read_gpu_rows(
        Paste(
            "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:29:00.0 Off |                    3 |\n"
            "|   1  NVIDIA GeForce ...  Off  | 00000000:05:00.0 Off |                  N/A |\n"
        )
    )
    assert [(row.gpu, row.product, row.bus_id, row.ecc) for row in rows] == [
        (0, "NVIDIA A100-SXM4-80GB", "0000:29:00.0", 3),
        (1, "NVIDIA GeForce ...", "0000:05:00.0", None),
    ]


def test_sections_of_nvidia_smi_q_are_read_with_their_gpu() -> None:
    values = read_queried_values(
        Paste(
            "GPU 00000000:1B:00.0\n"
            "    Product Name                          : NVIDIA H100 80GB HBM3\n"
            "    ECC Errors\n"
            "        Volatile\n"
            "            DRAM Uncorrectable            : 2\n"
            "        Aggregate\n"
            "            DRAM Uncorrectable            : 5\n"
            "    Fabric\n"
            "        State                             : In Progress\n"
            "        Health\n"
            "            Bandwidth                     : N/A\n"
            "    Processes                             : None\n"
        )
    )
    assert [(value.sections, value.name, value.value) for value in values] == [
        (("ECC Errors", "Volatile"), "DRAM Uncorrectable", "2"),
        (("ECC Errors", "Aggregate"), "DRAM Uncorrectable", "5"),
        (("Fabric",), "State", "In Progress"),
        (("Fabric", "Health"), "Bandwidth", "N/A"),
    ]
    assert {value.bus_id for value in values} == {"0000:1b:00"}


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_of_the_host_are_read() -> None:
    paste = Paste(
        "40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] GPP Bridge\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
        "41:00.0 3D controller: NVIDIA Corporation GH100\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported\n"
        "\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)\n"
        "max locked memory       (kbytes, -l) 64\n"
        "open files                      (-n) 1024\n"
        "$ ulimit -l\n"
        "unlimited\n"
        "shm              64M     0   64M   0% /dev/shm\n"
        "● nvidia-fabricmanager.service - NVIDIA fabric manager service\n"
        "     Loaded: loaded\n"
        "     Active: failed (Result: exit-code) since Mon\n"
    )
    (control,) = read_access_control(paste)
    assert (control.device, control.on) == ("40:01.1", ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"))
    (link,) = read_pcie_links(paste)
    assert (link.device, link.width, link.most_width, link.speed) == ("41:00.0", 8, 16, 16.0)
    limits = {(item.name, item.value) for item in read_limits(paste)}
    assert limits == {("memlock", 64 << 10), ("files", 1024), ("memlock", None), ("shm", 64 << 20)}
    (service,) = read_services(paste)
    assert (service.name, service.state) == ("nvidia-fabricmanager", "failed")


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_all_parts_of_a_paste_describe_one_cluster() -> None:
    text = (
        "$ nvidia-smi topo -m\n"
        + MATRIX
        + "$ nvidia-smi nvlink -s\n"
        + nvlinks(0, ["25.781 GB/s"] * 12)
        + nvlinks(1, ["25.781 GB/s"] * 11 + ["<inactive>"])
        + "$ ibstat\n"
        + IBSTAT
        + "|   1  NVIDIA A100-SXM4-80GB          On  | 00000000:29:00.0 Off |                    0 |\n"
        "[5.0] NVRM: Xid (PCI:0000:29:00): 79, GPU has fallen off the bus\n"
    )
    explanation = ml.explain(text)
    assert explanation.cluster is not None
    node = explanation.cluster.node(0)
    assert node.words[0] == ("X", "NV12", "PIX")
    assert [device.nvlink_count for device in node.devices] == [12, 11]
    assert node.devices[0].name == "NVIDIA A100-SXM4-80GB"
    assert (node.nics[0].state, node.nics[0].gbits) == ("ACTIVE", 400.0)
    assert "lost" in explanation.cluster.health().codes
    assert {span.kind for span in explanation.recognised} == {
        "nvidia-smi topo",
        "nvidia-smi nvlink",
        "nvidia-smi",
        "RDMA ports",
        "kernel log",
    }
    assert set(explanation.tables) == {"gpus", "links", "ports", "xids"}
    assert explanation.table("ports")["state"].tolist() == ["ACTIVE", "DOWN"]
    assert explanation.facts["RDMA ports"] == "1 of 2 active"


def test_the_tree_of_nccl_adds_bus_ids_to_the_matrix_of_the_same_host() -> None:
    tree = """\
a:7:8 [0] NCCL INFO === System : maxBw 240.0 totalBw 240.0 ===
a:7:8 [0] NCCL INFO CPU/0-0 (1/2/-1)
a:7:8 [0] NCCL INFO + PCI[24.0] - GPU/0-16000 (0)
a:7:8 [0] NCCL INFO               + NVL[240.0] - NVS/0-0
a:7:8 [0] NCCL INFO + PCI[24.0] - GPU/0-29000 (1)
a:7:8 [0] NCCL INFO               + NVL[240.0] - NVS/0-0
a:7:8 [0] NCCL INFO ==========================================
"""
    cluster = machine_of(Paste(MATRIX + tree))
    assert cluster is not None
    assert cluster.names == ("a",)
    assert cluster.device(1).bus_id == "0000:29:00.0"
    assert cluster.device(1).numa == "1"  # from the matrix


def test_matrices_of_several_machines_are_several_nodes() -> None:
    cluster = machine_of(Paste(f"host one:\n{MATRIX}\nhost two:\n{MATRIX}"))
    assert cluster is not None
    assert cluster.n_nodes == 2


def test_every_command_that_health_recommends_is_recognised() -> None:
    texts = {
        "nvidia-smi topo -m": MATRIX,
        "nvidia-smi nvlink -s": nvlinks(0, ["25.781 GB/s"]),
        "nvidia-smi nvlink -e": "GPU 0: NVIDIA GB300\n\t Link 0: CRC Errors: 0\n",
        "nvidia-smi -q -d ECC": "    ECC Errors\n        Volatile\n            DRAM Uncorrectable : 0\n",
        "nvidia-smi": "|   0  NVIDIA L4          On  | 00000000:29:00.0 Off |                    0 |\n",
        "ibstat": IBSTAT,
        "dmesg": "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus\n",
        "lspci -vv": "41:00.0 3D controller: NVIDIA\n\tLnkCap: Speed 32GT/s, Width x16\n\tLnkSta: Speed 32GT/s, "
        "Width x16\n",
        "systemctl status": "● nvidia-imex.service - IMEX\n     Active: active (running) since Mon\n",
    }
    for command, text in texts.items():
        assert ml.explain(text).recognised, command


@settings(max_examples=examples(60), deadline=None)
@given(st.text(alphabet=st.sampled_from("GPU0123:[]()<>|/ \t\n.XidNVRMLinkStateCA'"), max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    paste = Paste(text + "\nCA 'mlx5_0'\nGPU 0: x\n Link 0: 1 GB/s\nFabric\n Active: x\n" + text)
    for form in MACHINE_FORMATS:
        if form.find(paste):
            form.see(paste)


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(2, 8), st.integers(0, 3), st.data())
def test_a_matrix_that_is_cut_anywhere_never_has_a_wrong_link(gpus: int, nics: int, data: st.DataObject) -> None:
    names = [f"GPU{k}" for k in range(gpus)] + [f"NIC{k}" for k in range(nics)]
    word = {True: "NV18", False: "PHB"}

    def cell(i: int, j: int) -> str:
        return "X" if i == j else word[True] if max(i, j) < gpus else ("PIX" if i % 3 == j % 3 else "SYS")

    rows = ["\t".join([f"{name}", *(cell(i, j) for j in range(len(names))), "0-31\t0"]) for i, name in enumerate(names)]
    text = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\n" + "\n".join(rows) + "\n"
    first = data.draw(st.integers(0, len(text) // 2))
    last = data.draw(st.integers(first, len(text)))
    cluster = machine_of(Paste(text[first:last]))
    if cluster is None:
        return
    node = cluster.node(0)
    for i, end in enumerate(node.ends):
        for j, other in enumerate(node.ends):
            if end in names and other in names and end.startswith("GPU") and other.startswith("GPU"):
                assert node.words[i][j] in ("?", cell(names.index(end), names.index(other)))
    assert {item.code for item in cluster.health() if item.severity == "error"} == set()


def test_tools_spell_buses_and_states_of_ports_differently() -> None:
    assert [short_bus("00000000:DC:00.0"), short_bus("0000:1b:00")] == ["0000:dc:00", "0000:1b:00"]
    states = [_plain(text) for text in ("5: LinkUp", "LINK_UP", "PORT_ACTIVE (4)")]
    assert states == ["LINKUP", "LINKUP", "PORTACTIVE"]
