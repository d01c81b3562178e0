"""The workbench without a browser: edits as the front end sends them, state from code, and the program it prints."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
from ipywidgets.widgets.widget import _instances

import meshlab as ml
from meshlab.base._errors import MeshError, MeshlabError, TopologyError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.widgets._machines import DIALS
from meshlab.widgets._prices import predicted_lines
from meshlab.widgets._workbench import Workbench

SLURM = "SwitchName=s0 Nodes=a[0-3]\nSwitchName=s1 Nodes=a[4-7]\nSwitchName=top Switches=s[0-1]"


@pytest.fixture
def wb() -> Workbench:
    return Workbench(ml.preset("dgx-h100", nodes=4), "dp=4, tp=8", axis="dp")


def do(wb: Workbench, action: str, **content: Any) -> None:
    """An edit by hand."""
    wb._handle_custom_msg({"type": "edit", "edit": wb._edit + 1, "action": action, **content}, [])


def problem(wb: Workbench) -> dict[str, Any]:
    return next(iter(wb._panel["problems"]), None)


def rerun(wb: Workbench) -> Workbench:
    """The workbench that the printed program creates."""
    names: dict[str, Any] = {}
    exec(wb.code, names)
    return names["wb"]


def state(wb: Workbench) -> tuple[Any, ...]:
    pinned = wb.pinned
    settings = (wb.axis, wb.size, wb.pick, wb.failed, wb.rest, dict(wb.per_axis), wb.focus, wb.color)
    return wb.cluster, wb.mesh, settings, pinned


# -- the mesh ----------------------------------------------------------------------------------------------------------


def test_a_smaller_tp_gives_the_rest_to_dp(wb):
    do(wb, "size", axis="tp", value="4")
    assert wb.mesh == DeviceMesh("dp=8, tp=4")
    do(wb, "undo")
    do(wb, "step", axis="tp", by=-1)
    assert wb.mesh == DeviceMesh("dp=8, tp=4")
    assert [wb._panel["mesh"]["rows"][1][key] for key in ("less", "more")] == [
        (("dp", 16), ("tp", 2)),
        (("dp", 4), ("tp", 8)),
    ]
    assert wb._panel["mesh"]["sum"] == "8 × 4 = 32 of 32 GPUs"


def test_a_size_that_does_not_fit_keeps_the_mesh_and_offers_others(wb):
    do(wb, "size", axis="tp", value="3", where="size:tp")
    assert wb.mesh == DeviceMesh("dp=4, tp=8")
    assert (problem(wb)["where"], problem(wb)["value"]) == ("size:tp", "3")
    assert problem(wb)["text"] == "tp=3 does not divide 32"
    options = [label for label, _ in problem(wb)["options"]]
    assert options == ["dp=8, tp=4", "dp=16, tp=2", "dp=32, tp=1"]  # the present mesh is not an answer
    do(wb, **problem(wb)["options"][0][1])
    assert wb.mesh == DeviceMesh("dp=8, tp=4")
    assert problem(wb) is None


@pytest.mark.parametrize(
    ("axis", "value", "message", "first"),
    [
        ("tp", "0", "the size of tp must be at least 1, not 0", "dp=32, tp=1"),
        ("tp", "x", "the size of tp must be a number, not 'x'", None),
        ("tp", "2.5", "the size of tp must be an integer, not 2.5", None),
        ("tp", "64", "tp=64 does not divide 32", "dp=1, tp=32"),
        ("tp", "", "the size of tp must be a number, not ''", None),
    ],
)
def test_wrong_sizes_are_explained(wb, axis, value, message, first):
    do(wb, "size", axis=axis, value=value)
    assert problem(wb)["text"] == message
    assert next((label for label, _ in problem(wb)["options"]), None) == first
    assert wb.mesh == DeviceMesh("dp=4, tp=8")


def test_axes_are_moved_added_removed_and_renamed(wb):
    do(wb, "move", axis="tp", to=0)
    assert wb.mesh == DeviceMesh("tp=8, dp=4")
    do(wb, "move", axis="dp", to=0)
    do(wb, "add", name="pp")
    assert wb.mesh == DeviceMesh("pp=1, dp=4, tp=8")  # where pp usually is, not as the fastest axis
    do(wb, "step", axis="pp", by=1)
    assert wb.mesh == DeviceMesh("pp=2, dp=2, tp=8")
    do(wb, "rename", axis="pp", value="stages")
    do(wb, "rest", axis="tp")
    assert (wb.mesh, wb.rest) == (DeviceMesh("stages=2, dp=2, tp=8"), "tp")
    do(wb, "remove_axis", axis="stages")
    assert wb.mesh == DeviceMesh("dp=2, tp=16")
    do(wb, "rename", axis="tp", value="dp")
    assert "appears 2 times" in problem(wb)["text"]
    do(wb, "rename", axis="tp", value="a b")
    assert "invalid axis name 'a b'" in problem(wb)["text"]


def test_flags_and_text_are_pasted(wb):
    do(wb, "paste", text="--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2")
    assert wb.mesh == DeviceMesh("pp=2, dp=4, tp=4")
    do(wb, "paste", text="init_device_mesh('cuda', (4, 8), mesh_dim_names=('dp', 'tp'))")
    assert wb.mesh == DeviceMesh("dp=4, tp=8")
    do(wb, "paste", text="pp=2, dp=-1, tp=8", where="paste")
    assert wb.mesh == DeviceMesh("pp=2, dp=2, tp=8")
    do(wb, "paste", text="pp=2, tp=8", where="paste")
    assert problem(wb)["text"] == "2 × 8 = 16 ranks, but the machine has 32 GPUs"
    assert [label for label, _ in problem(wb)["options"]] == ["pp=2, tp=16", "pp=4, tp=8", "pp=1, tp=32"]
    do(wb, "paste", text="what is this", where="paste")
    assert problem(wb)["text"].startswith("this is not a mesh; write axes such as dp=4, tp=8, or paste flags")
    assert "megatron" in problem(wb)["text"]
    do(wb, "paste", text="--expert-model-parallel-size 8 --tensor-model-parallel-size 8")
    assert "also places experts on these ranks" in wb._panel["note"]


def test_layouts_are_offered_for_the_machine(wb):
    offered = dict(wb._panel["mesh"]["templates"])
    assert offered["pp, dp, tp"] == "pp=2, dp=2, tp=8"
    do(wb, "template", text=offered["HSDP"])
    assert wb.mesh == DeviceMesh("dp_replicate=4, dp_shard=8")


def test_two_hundred_random_edits_of_the_mesh_keep_the_product(wb):
    pick = random.Random(3)
    for _ in range(200):
        axis = pick.choice(wb.mesh.axis_names)
        edit = pick.choice(["step", "step", "size", "move", "add", "remove_axis", "rest", "template", "undo", "redo"])
        content = {
            "step": {"axis": axis, "by": pick.choice([-1, 1])},
            "size": {"axis": axis, "value": str(pick.choice([1, 2, 3, 4, 5, 8, 16, 64]))},
            "move": {"axis": axis, "to": pick.randrange(4)},
            "template": {"text": pick.choice(wb._panel["mesh"]["templates"])[1]},
        }.get(edit, {"axis": axis})
        do(wb, edit, **content)
        assert wb.mesh.world_size == 32


# -- the machine -------------------------------------------------------------------------------------------------------


def test_numbers_of_the_machine_change_it_and_the_mesh_follows(wb):
    do(wb, "turn", dial="nodes", by=1)
    assert (wb.cluster, wb.mesh) == (ml.preset("dgx-h100", nodes=8), DeviceMesh("dp=8, tp=8"))
    do(wb, "dial", dial="devices", value="4")
    assert (wb.cluster.n_devices, wb.mesh) == (32, DeviceMesh("dp=4, tp=8"))
    do(wb, "dial", dial="nics", value="2")
    do(wb, "dial", dial="nodes_per_leaf", value="2")
    do(wb, "dial", dial="rails", value="2")
    do(wb, "dial", dial="nodes_per_pod", value="4")
    do(wb, "dial", dial="taper", value="1:7")
    do(wb, "dial", dial="nvlink_domain", value="2")
    levels = {level.name: (level.of_node.max() + 1, level.rails, level.taper) for level in wb.cluster.levels}
    assert levels == {"leaf": (4, 2, 1), "pod": (2, 1, 1), "cluster": (1, 1, 7)}
    assert (len(wb.cluster.node(0).nics), np.bincount(wb.cluster.domain("nvlink")).max()) == (2, 2)
    values = {dial["name"]: dial["value"] for dial in wb._panel["machine"]["dials"]}
    assert values == {
        "nodes": "8", "devices": "4", "nics": "2", "nodes_per_leaf": "2", "rails": "2", "nodes_per_pod": "4",
        "taper": "1:7", "nvlink_domain": "2",
    }  # fmt: skip
    assert rerun(wb).cluster == wb.cluster
    for _ in range(8):
        wb.undo()
    assert (wb.cluster, wb.mesh) == (ml.preset("dgx-h100", nodes=4), DeviceMesh("dp=4, tp=8"))


@pytest.mark.parametrize(
    ("dial", "value", "message", "options"),
    [
        ("nodes", "0", "Hosts must be at least 1, not 0", ["1", "2", "4"]),
        ("nodes", "99999999", "799,999,992 GPUs exceed the limit of 131,072", ["16384", "8192", "4"]),
        ("nodes_per_pod", "33", "a pod of 33 hosts is not a multiple of the 32 hosts per leaf", ["32", "64", "0"]),
        ("nvlink_domain", "3", "size must be a divisor or a multiple of 8", ["4", "2", "1"]),
        ("devices", "65", "devices must be an integer from 1 to 64", ["64", "32", "8"]),
        ("rails", "many", "Rails must be a number, not 'many'", ["8", "4"]),
    ],
)
def test_wrong_numbers_of_the_machine_are_explained(wb, dial, value, message, options):
    before = wb.cluster
    do(wb, "dial", dial=dial, value=value, where=f"dial:{dial}")
    assert message in problem(wb)["text"]
    assert problem(wb)["where"] == f"dial:{dial}"
    assert [label for label, _ in problem(wb)["options"]] == options
    assert wb.cluster is before
    do(wb, **problem(wb)["options"][0][1])
    assert problem(wb) is None


def test_presets_keep_the_number_of_hosts(wb):
    do(wb, "preset", name="gcp-a3-high")
    assert wb.cluster == ml.preset("gcp-a3-high", nodes=4)
    do(wb, "preset", name="gb200-nvl72")
    assert wb.cluster == ml.preset("gb200-nvl72")  # a rack is the smallest machine
    assert wb.mesh == DeviceMesh("dp=9, tp=8")


def test_pasted_machines(wb):
    do(wb, "paste_machine", text=SLURM)
    assert wb.cluster.names[:2] == ("a0", "a1")
    assert (wb.cluster.n_devices, wb.mesh) == (64, DeviceMesh("dp=8, tp=8"))
    assert "the hosts are those of DGX H100" in wb._panel["note"]
    assert rerun(wb).cluster == wb.cluster
    do(wb, "paste_machine", text="hello\nworld", where="paste_machine")
    assert "unknown format: the text begins with 'hello'" in problem(wb)["text"]
    assert "nvidia-smi topo -m" in problem(wb)["text"]
    assert "Slurm" in problem(wb)["text"]
    assert wb.cluster.n_devices == 64


def test_this_host_without_gpus_is_explained(wb, monkeypatch):
    bare = ml.Cluster.from_nodes([ml.topology.Node("laptop")])
    monkeypatch.setattr("meshlab.widgets._actions.probe", lambda: bare)
    do(wb, "this_host")
    assert "this host has no GPU" in problem(wb)["text"]
    monkeypatch.setattr("meshlab.widgets._actions.probe", lambda: ml.preset("dgx-a100"))
    do(wb, "this_host")
    assert wb.cluster == ml.preset("dgx-a100")
    assert "cluster = ml.probe()" in wb.code


def test_parts_fail_are_restored_and_removed(wb):
    do(wb, "fail", part="node1/NIC3")
    do(wb, "fail", part="node2/GPU4")
    assert (wb.failed, wb.cluster.n_devices) == (("node1/NIC3", "node2/GPU4"), 31)
    assert wb.mesh == DeviceMesh("dp=3, tp=8")
    assert wb._panel["machine"]["failed"] == [["node1/NIC3", "NIC3 of node1"], ["node2/GPU4", "GPU4 of node2"]]
    marks = {mark["name"]: (mark["kind"], mark["host"], mark["row"]) for mark in wb._view["failed"]}
    assert marks == {"node1/NIC3": ("nic", 1, 3.5), "node2/GPU4": ("device", 2, 4.0)}
    do(wb, "restore", part="node2/GPU4")
    assert (wb.failed, wb.mesh) == (("node1/NIC3",), DeviceMesh("dp=4, tp=8"))
    do(wb, "fail", part="node1")
    assert (wb.failed, wb.cluster.n_nodes, wb.cluster.n_devices) == (("node1",), 4, 24)
    do(wb, "remove", part="node0")
    assert (wb.cluster.n_nodes, wb.cluster.n_devices) == (3, 16)
    assert wb.machine == 'ml.preset("dgx-h100", nodes=4).without_node("node0")'
    do(wb, "fail", part="node3/GPU1-GPU5")
    do(wb, "fail", part="node9")
    assert "unknown part 'node9'" in problem(wb)["text"]
    again = rerun(wb)
    assert (again.cluster, again.failed) == (wb.cluster, ("node1", "node3/GPU1-GPU5"))
    do(wb, "restore")
    assert (wb.failed, wb.cluster.n_devices) == ((), 24)


def test_switches_uplinks_cables_and_rates_fail_together_and_are_restored(wb):
    wb.cluster = ml.preset("dgx-h100", nodes=8, nodes_per_leaf=4, nodes_per_pod=4)
    steps = len(wb._history.past)
    do(wb, "fail", parts=["leaf:5", "node1/NIC3/cable", "leaf:9/uplink"])
    assert len(wb._history.past) == steps + 1
    do(wb, "fail", part="leaf:9/uplink")
    do(wb, "rate", part="node6/NIC2", value="200 Gb/s")
    assert wb.failed == ("leaf:5", "node1/NIC3/cable", "leaf:9/uplink*2", "node6/NIC2=50%")
    marks = {mark["name"]: (mark["kind"], mark["level"], mark["index"], mark["share"]) for mark in wb._view["failed"]}
    assert marks == {
        "leaf:5": ("switch", "leaf", 5, 0.0),
        "node1/NIC3/cable": ("cable", "", 3, 0.0),
        "leaf:9/uplink*2": ("uplink", "leaf", 9, 0.5),
        "node6/NIC2=50%": ("nic", "", 2, 0.5),
    }
    assert ["node6/NIC2=50%", "NIC2 of node6 at 50 %"] in wb._panel["machine"]["failed"]
    assert "Because of leaf switch 5" in wb.describe()
    again = rerun(wb)
    assert (again.cluster, again.failed) == (wb.cluster, wb.failed)
    do(wb, "fail", part="leaf:5")
    assert "leaf switch 5 has failed already" in problem(wb)["text"]
    do(wb, "remove", part="leaf:6")
    assert "leaf switch 6 can fail, but cannot be removed" in problem(wb)["text"]
    do(wb, "restore", parts=["leaf:9/uplink", "node6/NIC2"])
    assert wb.failed == ("leaf:5", "node1/NIC3/cable")
    do(wb, "restore")
    assert (wb.failed, wb.cluster) == ((), ml.preset("dgx-h100", nodes=8, nodes_per_leaf=4, nodes_per_pod=4))
    wb.undo()
    assert wb.failed == ("leaf:5", "node1/NIC3/cable")


def test_a_cluster_with_failed_parts_is_a_machine_whose_parts_can_be_restored():
    wb = Workbench(ml.preset("dgx-h100", nodes=4).with_failed("leaf:3"), "dp=4, tp=8", failed=["node1/NIC0"])
    assert (wb.failed, wb.machine) == (("leaf:3", "node1/NIC0"), 'ml.preset("dgx-h100", nodes=4)')
    wb.restore("leaf:3")
    wb.set_rate("node1/GPU3/NVLink", rate=0.5)
    assert wb.failed == ("node1/NIC0", "node1/GPU3/NVLink=50%")
    wb.remove("node1/NIC1")
    assert wb.machine == 'ml.preset("dgx-h100", nodes=4).without_nic("node1", "NIC1").as_intact()'


def test_hosts_of_one_machine_may_differ(wb):
    do(wb, "hosts", nodes=["node2", "node3"], dial="devices", value="4")
    assert (wb.cluster.n_devices, wb.mesh.world_size) == (24, 24)
    do(wb, "hosts", like="node3", dial="nics", value="4")
    machine = wb._panel["machine"]
    assert (machine["title"], machine["preset"]) == ("custom, from DGX H100", "")
    assert [(row["like"], row["count"], row["devices"], row["nics"]) for row in machine["hosts"]] == [
        ("node0", 2, 8, 8),
        ("node2", 2, 4, 4),
    ]
    assert wb.machine == ('ml.preset("dgx-h100", nodes=4).with_devices(devices=4, nics=4, nodes=["node2", "node3"])')
    do(wb, "copy_host", like="node3")
    assert [len(node.devices) for node in wb.cluster.nodes] == [8, 8, 4, 4, 4]
    again = rerun(wb)
    assert (again.cluster, again.machine) == (wb.cluster, wb.machine)
    assert Workbench(wb.cluster).machine == wb.machine
    do(wb, "dial", dial="nodes", value="2")
    assert wb.machine == 'ml.preset("dgx-h100", nodes=2)'
    do(wb, "hosts", nodes=["node1"], dial="rails", value="4")
    assert "unknown number 'rails' of a host" in problem(wb)["text"]


def test_a_paste_of_the_matrix_of_each_host_is_a_machine_of_these_hosts(wb):
    pair = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-31\nGPU1\tNV12\t X \t0-31\n"
    single = "\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0-31\nNIC0\tPIX\t X \n"
    do(wb, "paste_machine", text=f"GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n{pair}\n{pair}\n{single}")
    assert [len(node.devices) for node in wb.cluster.nodes] == [2, 2, 1]
    assert wb.cluster.devices[4].compute_capability == (8, 0)
    assert rerun(wb).cluster == wb.cluster


def test_pastes_of_gpus_of_amd_are_machines(wb):
    table = "=== Link Type between two GPUs ===\n  GPU0  GPU1\nGPU0  0  XGMI\nGPU1  XGMI  0\n"
    do(wb, "paste_machine", text=f"GPU[0] : Card Series: AMD Instinct MI300X\n{table}")
    assert wb.cluster.summary == "1 node, 2 × AMD Instinct MI300X, XGMI domains of 2"
    assert rerun(wb).cluster == wb.cluster
    do(wb, "paste_machine", text=table * 3)
    assert wb.cluster.n_nodes == 3
    assert rerun(wb).cluster == wb.cluster


def test_failed_parts_are_forgotten_with_their_hosts(wb):
    wb.failed = ["node3/NIC0", "node0/GPU0"]
    do(wb, "dial", dial="nodes", value="2")
    assert wb.failed == ("node0/GPU0",)
    do(wb, "turn", dial="nics", by=-1)
    assert (wb.failed, wb.cluster.n_devices) == (("node0/GPU0",), 15)


# -- state, history, code ----------------------------------------------------------------------------------------------


def random_edit(wb: Workbench, pick: random.Random) -> None:
    axis = pick.choice(wb.mesh.axis_names)
    dial = pick.choice([*DIALS])
    host = pick.choice(wb.cluster.names)
    part = pick.choice(
        [f"{host}/NIC{pick.randrange(4)}", f"{host}/GPU{pick.randrange(8)}", host, f"{host}/GPU1/NVLink"]
    )
    action, content = pick.choice(
        [
            ("step", {"axis": axis, "by": pick.choice([-1, 1])}),
            ("size", {"axis": axis, "value": str(pick.randrange(1, 12))}),
            ("move", {"axis": axis, "to": pick.randrange(3)}),
            ("rename", {"axis": axis, "value": pick.choice(["dp", "tp", "pp", "rows"])}),
            ("add", {"name": pick.choice(["pp", "cp", "ep"])}),
            ("remove_axis", {"axis": axis}),
            ("rest", {"axis": axis}),
            ("template", {"text": pick.choice(wb._panel["mesh"]["templates"])[1]}),
            ("use_all", {}),
            ("turn", {"dial": dial, "by": pick.choice([-1, 1])}),
            ("dial", {"dial": dial, "value": str(pick.randrange(1, 20))}),
            ("preset", {"name": pick.choice(["dgx-h100", "gcp-a3-high", "pcie-l40s", "dgx-a100", "aws-p5"])}),
            ("fail", {"part": part}),
            ("fail", {"part": part}),
            ("remove", {"part": part}),
            ("restore", {"part": pick.choice([*wb.failed, "x"])}),
            ("message_step", {"by": pick.choice([-1, 1])}),
            ("call", {"axis": axis, "collective": pick.choice(["all_gather", "all_reduce"]), "value": "1G"}),
            ("pin", {}),
            ("swap", {}),
        ]
    )
    do(wb, action, **content)


@pytest.mark.parametrize(
    "seed",
    [0, pytest.param(2, marks=pytest.mark.full), *(pytest.param(k, marks=pytest.mark.long) for k in range(3, 12))],
)
def test_the_code_rebuilds_the_state_after_fifty_random_edits(seed):
    pick = random.Random(seed)
    wb = Workbench(ml.preset("dgx-h100", nodes=4), "dp=4, tp=8")
    start, steps = state(wb), 0
    for turn in range(50):
        before = wb._history
        random_edit(wb, pick)
        steps += wb._history is not before
        if turn % 10 == 9:
            wb.axis = pick.choice(wb.mesh.axis_names)
            wb.pick = pick.randrange(wb.mesh.world_size)
            assert state(rerun(wb)) == state(wb)
    if problem(wb) is not None:
        wb.undo()  # discards the edit that is not possible
    end = state(wb)
    for _ in range(steps):
        wb.undo()
    assert state(wb)[:2] == start[:2]
    assert wb.failed == ()
    assert not wb._panel["undo"]
    for _ in range(steps):
        wb.redo()
    assert state(wb)[:2] == end[:2]
    assert (wb.failed, wb.rest, wb.size, wb.per_axis, wb.pinned) == (end[2][3], end[2][4], end[2][1], end[2][5], end[3])


def test_one_edit_is_one_step_and_a_hundred_steps_are_kept(wb):
    for _ in range(70):
        do(wb, "step", axis="tp", by=-1)
        do(wb, "step", axis="tp", by=1)
    assert len(wb._history.past) == 100
    do(wb, "undo")
    assert wb.mesh == DeviceMesh("dp=8, tp=4")
    do(wb, "redo")
    do(wb, "step", axis="tp", by=1)  # a different future
    assert wb._history.future == ()


def test_undo_discards_an_invalid_edit_first(wb):
    do(wb, "step", axis="tp", by=-1)
    do(wb, "size", axis="tp", value="3")
    wb.undo()
    assert problem(wb) is None
    assert wb.mesh == DeviceMesh("dp=8, tp=4")
    wb.undo()
    assert wb.mesh == DeviceMesh("dp=4, tp=8")


def test_all_state_is_settable_from_code_and_observable(wb):
    seen = []
    wb.observe(lambda change: seen.append(change["name"]), ["mesh", "cluster", "failed"])
    wb.mesh = "dp=2, tp=16"
    wb.cluster = ml.preset("dgx-h100", nodes=2)
    assert wb.mesh == DeviceMesh("dp=1, tp=16")
    wb.failed = ["node1/NIC0"]
    wb.size = "1G"
    wb.rest = "tp"
    wb.per_axis = {"dp": ("all_gather", "2G")}
    wb.pinned = ("dgx-h100", "dp=1, tp=8")
    assert set(seen) == {"mesh", "cluster", "failed"}
    assert state(rerun(wb)) == state(wb)
    assert wb._table["rows"][0]["collective"] == "all_gather"
    for _ in range(7):
        wb.undo()
    assert (wb.cluster, wb.mesh, wb.size) == (ml.preset("dgx-h100", nodes=4), DeviceMesh("dp=4, tp=8"), "256M")


def test_a_machine_and_a_mesh_are_shown_together(wb):
    wb.show("pp=2, dp=4, tp=8", ml.preset("dgx-h100", nodes=8), axis="pp")
    assert (wb.cluster.n_nodes, wb.mesh, wb.axis) == (8, DeviceMesh("pp=2, dp=4, tp=8"), "pp")
    wb.show(cluster="dgx-h100")
    assert wb.mesh.world_size == 8
    with pytest.raises(MeshError, match="8 × 8 = 64 ranks, but the machine has 8 GPUs; nearest"):
        wb.show("dp=8, tp=8")
    wb.undo()
    wb.undo()
    assert (wb.cluster.n_nodes, wb.mesh) == (4, DeviceMesh("dp=4, tp=8"))


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("mesh", "dp=8, tp=8", MeshError, "8 × 8 = 64 ranks, but the machine has 32 GPUs; nearest: dp=8, tp=4"),
        ("mesh", 8, MeshError, "not int"),
        ("cluster", "dgx-x", TopologyError, "unknown preset"),
        ("failed", "node1", TopologyError, "failed must be a list of parts"),
        ("failed", ["node1/NIC9"], TopologyError, "node1 has no part 'NIC9'"),
        ("rest", "pp", MeshError, "unknown axis 'pp'; choose one of dp, tp"),
        ("per_axis", {"pp": ("all_reduce", "1M")}, MeshError, "unknown axis 'pp'"),
        ("per_axis", {"dp": ("all", "1M")}, MeshError, "unknown collective 'all'"),
        ("per_axis", {"dp": "all_reduce"}, MeshError, "must be a collective and a size"),
        ("pinned", 3, MeshError, "pinned must be a cluster and a mesh"),
        ("panels", ["all"], MeshError, "unknown panel 'all'"),
    ],
)
def test_wrong_values_from_code_raise_and_change_nothing(wb, name, value, error, message):
    before = state(wb)
    with pytest.raises(error, match=message.replace("(", r"\(")):
        setattr(wb, name, value)
    assert state(wb) == before
    assert wb._history.past == ()


def test_a_mesh_with_idle_devices_stays_until_all_are_used(wb):
    wb.mesh = "dp=2, tp=8"
    assert wb._panel["mesh"]["idle"]
    do(wb, "step", axis="tp", by=-1)
    assert wb.mesh == DeviceMesh("dp=4, tp=4")
    do(wb, "use_all")
    assert wb.mesh == DeviceMesh("dp=8, tp=4")


def test_custom_groups_survive_edits(wb):
    wb.mesh = wb.mesh.with_group("pair", [0, 9])
    do(wb, "step", axis="tp", by=-1)
    assert wb.mesh.group("pair").ranks == (0, 9)
    assert [row["axis"] for row in wb._table["rows"]] == ["dp", "tp", "pair"]
    assert rerun(wb).mesh == wb.mesh


def test_the_first_display_without_arguments(monkeypatch):
    monkeypatch.setattr("meshlab.widgets._edits.probe", lambda: ml.Cluster.from_nodes([ml.topology.Node("laptop")]))
    wb = Workbench()
    assert (wb.cluster, wb.mesh) == (ml.preset("dgx-h100", nodes=4), DeviceMesh("dp=4, tp=8"))
    assert "not this machine" in wb._panel["note"]
    assert Workbench(mesh="dp=16, tp=8").cluster == ml.preset("dgx-h100", nodes=16)
    monkeypatch.setattr("meshlab.widgets._edits.probe", lambda: ml.preset("dgx-a100"))
    wb = Workbench()
    assert (wb.cluster, wb.mesh, wb._panel["note"]) == (ml.preset("dgx-a100"), DeviceMesh("dp=1, tp=8"), "")
    with pytest.raises(TopologyError, match="cluster must be a Cluster, not a DeviceMesh"):
        Workbench(DeviceMesh("dp=2"))
    with pytest.raises(MeshError, match="but the machine has 8 GPUs"):
        Workbench("dgx-h100", "dp=2, tp=8")


# -- candidates, tables, exports ---------------------------------------------------------------------------------------


def test_candidates_are_compared(wb):
    times = dict(zip(wb.table()["axis"], wb.table()["time_us"], strict=True))
    do(wb, "pin")
    assert wb.pinned == (wb.cluster, wb.mesh)
    assert wb._panel["pinned"]["lines"] == ["no difference"]
    do(wb, "turn", dial="nics", by=-1)
    do(wb, "fail", part="node1/NIC3")
    assert wb._panel["pinned"]["lines"] == ["machine: NICs per host 8 → 4 · Rails 8 → 4 · failed: node1/NIC3"]
    do(wb, "undo")
    do(wb, "undo")
    do(wb, "move", axis="tp", to=0)
    row = next(row for row in wb._table["rows"] if row["axis"] == "tp")
    assert row["pinned"] < row["share"]
    assert row["change"].startswith("+")
    assert row["change"].endswith("%")
    assert "tp: 32 ranks get different peers" in wb.describe()
    table = wb.table()
    assert table["axis"].tolist() == ["tp", "dp"]
    assert (table["time_us"] > 0).all()
    assert table["pinned_time_us"].tolist() == pytest.approx([times["tp"], times["dp"]])
    do(wb, "swap")
    assert wb.mesh == DeviceMesh("dp=4, tp=8")
    assert wb.pinned[1] == DeviceMesh("tp=8, dp=4")
    wb._handle_custom_msg({"type": "flick", "on": True}, [])
    assert wb._view["axes"] == [["tp", 8], ["dp", 4]]
    assert wb.mesh == DeviceMesh("dp=4, tp=8")
    wb._handle_custom_msg({"type": "flick", "on": False}, [])
    assert wb._view["axes"] == [["dp", 4], ["tp", 8]]
    do(wb, "unpin")
    assert wb.pinned is None
    with pytest.raises(MeshError, match="no candidate is pinned"):
        wb.swap()


def test_the_time_of_an_axis_is_predicted_with_its_interval(wb):
    price = ml.predict(wb.mesh, wb.cluster, {"dp": "all_reduce"}, "256M").frame().iloc[0]
    row = wb.table().iloc[0]
    assert row[["time_us", "time_us_lo", "time_us_hi"]].tolist() == pytest.approx(
        price[["time_us", "time_us_lo", "time_us_hi"]].tolist()
    )
    assert (row["axis"], row["basis"]) == ("dp", price["basis"])
    shown = wb._table["rows"][0]
    assert shown["low"] < shown["share"] < shown["high"] <= 1
    assert wb._table["head"] == "Predicted time"
    assert shown["detail"].startswith("NCCL takes ring ")
    assert shown["detail"].endswith(" % of the bound")
    wb.mesh = "pp=4, dp=1, tp=8"
    assert [row["basis"] for row in wb._table["rows"]] == ["formula only", "slowest link", "published"]


def test_the_predicted_curves_of_a_plan_have_the_names_of_its_lines():
    plan = Plan(["all_reduce", "all_gather"], "dp", sizes="1M:4M")
    lines = predicted_lines(DeviceMesh("dp=4, tp=8"), ml.preset("dgx-h100", nodes=4), plan)
    assert list(lines) == ["all_reduce", "all_gather"]
    for line in lines.values():
        assert line.size.tolist() == [1 << 20, 1 << 21, 1 << 22]
        assert (line.low < line.value).all()
        assert (line.value < line.high).all()


def test_the_call_of_an_axis_is_editable(wb):
    do(wb, "call", axis="dp", collective="all_gather")
    assert wb.per_axis == {"dp": ("all_gather", "256M")}
    do(wb, "call", axis="dp", value="1 GiB")
    assert wb.per_axis == {"dp": ("all_gather", "1G")}
    do(wb, "message", value="64M")
    assert {row["axis"]: (row["collective"], row["bytes"]) for row in wb._table["rows"]} == {
        "dp": ("all_gather", "1\u2009GiB"),
        "tp": ("all_reduce", "64\u2009MiB"),
    }
    assert wb.loads.size_bytes == 1 << 30
    do(wb, "call", axis="dp", collective="all_reduce", value="64M")
    assert wb.per_axis == {}
    do(wb, "call", axis="dp", value="much", where="call:dp")
    assert problem(wb)["where"] == "call:dp"


@pytest.mark.parametrize(
    ("what", "kind", "part"),
    [
        ("svg", "image/svg+xml", "<svg"),
        ("csv", "text/csv", "axis,size,collective"),
        ("groups", "text/csv", "axis,group"),
        ("text", "text/plain", "mesh: dp=4, tp=8"),
        ("report", "text/html", "The slowest axis is dp: it leaves the host"),
        ("page", "text/html", "4 hosts × 8 GPUs · NVLink domains of 8 · dp=4, tp=8"),
    ],
)
def test_exports(wb, what, kind, part):
    sent = []
    wb.send = lambda content, buffers=None: sent.append(content)
    wb._handle_custom_msg({"type": "export", "what": what}, [])
    (answer,) = sent
    assert (answer["what"], answer["kind"]) == (what, kind)
    assert part in answer["text"]


def test_the_code_of_frameworks_is_sent_with_reasons(wb):
    wb.mesh = "rows=4, tp=8"
    sent = []
    wb.send = lambda content, buffers=None: sent.append(content)
    wb._handle_custom_msg({"type": "export", "what": "frameworks"}, [])
    code = {one["name"]: one for one in sent[0]["frameworks"]}
    assert code["torch"]["text"].startswith('init_device_mesh("cuda", (4, 8)')
    assert code["megatron"]["text"] == ""
    assert "rows" in code["megatron"]["problem"]


def test_an_exported_notebook_has_the_picture_and_the_table(wb):
    data = wb._repr_mimebundle_()[0]
    assert "<svg" in data["text/html"]
    assert "mesh: dp=4, tp=8" in data["text/html"]


# -- many edits --------------------------------------------------------------------------------------------------------


def test_edits_create_no_widgets_and_keep_nothing(wb):
    do(wb, "size", axis="tp", value="3")
    models = len(_instances)
    for _ in range(20):
        do(wb, "step", axis="tp", by=-1)
        do(wb, "fail", part="node1/NIC3")
        do(wb, "undo")
    assert len(_instances) == models


def test_edits_from_several_threads_leave_a_consistent_state(wb):
    faults: list[BaseException] = []

    def work(act) -> None:
        try:
            for turn in range(8):
                act(turn)
        except MeshlabError:
            pass
        except BaseException as fault:
            faults.append(fault)

    acts = [
        lambda turn: do(wb, "step", axis="tp", by=1 - 2 * (turn % 2)),
        lambda turn: do(wb, "turn", dial="nodes", by=1 - 2 * (turn % 2)),
        lambda turn: (wb.undo(), wb.redo()),
        lambda turn: setattr(wb, "failed", ["node0/NIC1"] * (turn % 2)),
        lambda turn: setattr(wb, "axis", ("dp", "tp")[turn % 2]),
    ]
    threads = [threading.Thread(target=work, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not faults
    assert wb.mesh == wb._design.mesh
    assert wb.cluster == wb._design.machine.cluster
    assert wb.mesh.world_size <= wb.cluster.n_devices
    assert state(rerun(wb))[:2] == state(wb)[:2]


def test_unknown_messages_are_ignored_or_explained(wb):
    wb._handle_custom_msg({"type": "?"}, [])
    wb._handle_custom_msg("text", [])
    do(wb, "dance")
    assert "unknown action 'dance'" in problem(wb)["text"]


@pytest.mark.parametrize("name", ["selected", "values", "size", "failed", "per_axis", "panels", "pinned"])
def test_a_value_of_the_wrong_kind_is_an_error_of_meshlab(name: str) -> None:
    workbench = Workbench("dgx-h100", mesh="dp=2, tp=4")
    before = getattr(workbench, name)
    for value in (None, True, object(), [["a"], "b"], {"x": [[1], [1, 2]]}, [float("nan")]):
        if value is not None or name != "pinned":
            with pytest.raises(MeshlabError):
                setattr(workbench, name, value)
    assert getattr(workbench, name) is before or getattr(workbench, name) == before
    with pytest.raises(MeshlabError, match="unknown place"):
        workbench.focus = f"device:{'1' * 5000}"


def test_a_message_of_the_wrong_kind_changes_nothing() -> None:
    workbench = Workbench("dgx-h100", mesh="dp=2, tp=4")
    for name in ("selected", "pick", "focus", "color"):
        before = getattr(workbench, name)
        for value in (None, b"x", "", "x", b"\xff\xff\xff\xff"):
            workbench.set_state({name: value})
            assert getattr(workbench, name) == before


def test_the_code_recreates_the_tab_the_selection_and_the_panels() -> None:
    wb = Workbench("dgx-h100", "dp=2, tp=4", panels=("mesh", "table", "measure"))
    assert "tab=" not in wb.code
    wb.tab, wb.selected, wb.pick = "measure", (2, 3, 4, 5), 3
    assert 'selected=range(2, 6), tab="measure", panels=("mesh", "table", "measure")' in wb.code
    again = rerun(wb)
    assert (again.tab, again.selected, again.pick, again.panels) == (wb.tab, wb.selected, wb.pick, wb.panels)
    assert again.code == wb.code
    wb.selected = (0, 5)
    assert rerun(wb).selected == (0, 5)


def test_a_refused_edit_stays_marked_until_the_page_has_seen_it(wb: Workbench) -> None:
    send = {"type": "edit", "action": "dial", "dial": "nodes", "where": "dial:nodes"}
    wb._handle_custom_msg({**send, "edit": 1, "seen": 0, "value": "0"}, [])
    size = {"type": "edit", "action": "size", "axis": "tp", "where": "size:tp"}
    wb._handle_custom_msg({**size, "edit": 2, "seen": 0, "value": "3"}, [])
    wb._handle_custom_msg({**size, "edit": 3, "seen": 0, "value": "4"}, [])
    assert wb.mesh == DeviceMesh("dp=8, tp=4")
    assert [problem["where"] for problem in wb._panel["problems"]] == ["dial:nodes"]
    wb._handle_custom_msg({**size, "edit": 4, "seen": 3, "value": "2"}, [])
    assert wb._panel["problems"] == []
