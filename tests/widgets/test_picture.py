"""The Python half of the picture."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from ipywidgets.widgets.widget import _instances

import meshlab as ml
from meshlab.base._errors import MeshError, TopologyError
from meshlab.prediction._axis_loads import loads
from meshlab.widgets._picture import Picture

POD = {"nodes": 8, "nodes_per_leaf": 2, "nodes_per_pod": 4, "rails": 8}


@pytest.fixture(scope="module")
def cluster() -> ml.Cluster:
    return ml.preset("tapered-h100", **POD)


@pytest.fixture
def picture(cluster) -> Picture:
    return Picture("pp=2, dp=4, tp=8", cluster, axis="dp")


def unpacked(value, dtype, length: int) -> np.ndarray:
    """What the front end reads: bytes, or one number for an array of equal values."""
    return np.frombuffer(value, dtype) if isinstance(value, bytes) else np.full(length, value, dtype)


def test_the_script_is_valid_javascript_without_network(tmp_path: Path):
    node = shutil.which("node")
    if node is None:
        playwright = pytest.importorskip("playwright")
        node = str(Path(playwright.__file__).parent / "driver" / "node")
    script = tmp_path / "picture.mjs"
    script.write_text(Picture._esm, encoding="utf-8")
    subprocess.run([node, "--check", str(script)], check=True)
    assert "http" not in str(Picture._esm)
    assert str(Picture._esm).count("export default") == 1


def test_the_groups_of_every_device_are_sent(picture, cluster):
    view = picture._view
    group = np.frombuffer(view["group_of"], "<i4")
    assert (group == picture.mesh["dp"].color).all()
    assert view["rank_of"] is None  # rank r uses device r
    assert view["options"] == ["pp", "dp", "tp"]
    assert (view["n_groups"], view["group_size"], view["axis"]) == (16, 4, "dp")
    assert view["verdict"] == ml.place(picture.mesh, cluster).explain("dp")
    hosts = np.frombuffer(picture._scene["host"], "<i4")
    assert hosts.tolist() == list(range(8))
    assert picture._scene["kinds"][0]["names"] == [f"GPU {k}" for k in range(8)]


def test_the_loads_of_the_shown_axis_are_sent(picture, cluster):
    expected = loads(ml.place(picture.mesh, cluster), "dp")
    sent = picture._loads
    assert [link["name"] for link in sent["links"]] == [link.name for link in expected.links]
    for link, one in zip(sent["links"], expected.links, strict=True):
        assert (unpacked(link["groups"], "<i4", link["n"]) == one.groups).all()
        assert unpacked(link["bytes"], "<f4", link["n"]) == pytest.approx(one.bytes)
        share = unpacked(link["share"], "<f4", link["n"])
        assert share == pytest.approx(one.seconds / expected.seconds, rel=1e-6)
    limiting = [row for row in sent["rows"] if row["limits"]]
    assert [row["share"] for row in limiting] == [1.0]
    picture.axis = "tp"
    assert (picture._loads["axis"], picture._view["axis"]) == ("tp", "tp")
    picture.size = "1M"
    assert picture._loads["size"] == "1\u2009MiB"


def test_findings_have_a_place_that_the_picture_knows(cluster):
    picture = Picture("pp=2, dp=32", cluster, axis="pp")
    marks = [one.mark for one in picture.findings]
    assert "■" in marks
    for one in picture._view["findings"]:
        picture.focus = one["place"]
    assert Picture("dp=2, tp=4", "dgx-h100").findings == ()  # nothing to find on one host


def test_one_message_per_change(picture, monkeypatch):
    sent: list[set[str]] = []
    monkeypatch.setattr(Picture, "send_state", lambda self, key=None: sent.append(set(key or ())))
    picture.show("pp=4, dp=2, tp=8", axis="tp")
    assert len(sent) == 1
    assert {"_view", "_loads", "axis"} <= sent[0]
    assert "_scene" not in sent[0]  # the machine is the same


def test_an_axis_that_the_mesh_lacks_is_replaced_after_a_change_and_reported_if_it_was_asked_for(picture):
    picture.mesh = "cp=8, tp=8"
    assert picture.axis == "tp"
    assert picture._view["notes"] == []
    picture.axis = "experts"
    assert picture._view["notes"] == ["cp=8, tp=8 has no axis or group 'experts': the groups of tp are shown"]
    assert picture._view["axis"] == "tp"


def test_a_mesh_that_does_not_fit_leaves_the_machine_and_a_sentence(picture):
    picture.mesh = "dp=100, tp=8"
    assert picture.placement is None
    assert picture._loads == {}
    assert picture._view["notes"] == ["dp=100, tp=8 has 800 ranks, but the cluster has 64 devices: it is not placed"]
    assert len(np.frombuffer(picture._view["group_of"], "<i4")) == 64
    picture.mesh = "dp=8, tp=8"
    assert picture._view["notes"] == []


def test_a_machine_without_described_links_is_drawn():
    bare = ml.Cluster.from_nodes([ml.preset("dgx-h100").node(0)] * 2, title="unknown")
    picture = Picture("dp=16", bare)
    assert "the source does not describe the network between the hosts" in picture._view["notes"]
    assert Picture(None, "dgx-h100")._view["options"][0] == "nvlink"


def test_everything_can_be_set_from_code_and_errors_name_the_choices(picture):
    picture.pick = 63
    picture.color = "sharing"
    picture.focus = "pod:1"
    picture.values = {"time_us": np.arange(64.0), "old": np.arange(8)}
    picture.color = "time_us"
    assert list(picture._values) == ["time_us"]
    assert picture._view["notes"] == ["the values 'old' are not one per rank of 64: they are not shown"]
    for name, value, message in (
        ("pick", 64, "rank 64 does not exist; pick a rank from 0 to 63"),
        ("color", "red", "unknown color 'red'; choose one of group, sharing, load, time_us, old"),
        ("focus", "pod:9", "unknown place 'pod:9'"),
        ("selected", [70], "rank 70 does not exist; select ranks from 0 to 63"),
        ("values", {"load": [1]}, "values has a column named 'load'"),
        ("values", {"x": ["a"]}, "must be one number per rank, not <U1 of shape"),
        ("cluster", ml.DeviceMesh("dp=2"), "cluster must be a Cluster, not a DeviceMesh; pass the mesh as mesh="),
        ("mesh", 8, "not int"),
    ):
        with pytest.raises((MeshError, TopologyError), match=message):
            setattr(picture, name, value)
    with pytest.raises(TopologyError, match="no mesh and no cluster given"):
        Picture()
    picture.mesh = None
    assert picture.pick == 63  # a device now
    with pytest.raises(TopologyError, match="no mesh and no cluster given"):
        picture.cluster = None
    picture.cluster = "dgx-h100"
    assert (picture.pick, picture.focus) == (None, "all")


def test_what_the_front_end_sends_late_is_dropped(picture):
    picture.mesh = "dp=8"
    picture.set_state({"pick": 40, "focus": "pod:7", "color": "gone"})
    assert (picture.pick, picture.focus, picture.color) == (None, "all", "group")
    picture.set_state({"selected": np.array([2, 40], dtype="<i4").tobytes()})
    assert picture.selected == (2,)


def test_answers_carry_the_number_of_the_edit(picture):
    picture.set_state({"axis": "tp", "_edit": 7})
    assert (picture._view["edit"], picture._view["axis"], picture._loads["edit"]) == (7, "tp", 7)


def test_the_description_has_machine_axes_findings_and_links(picture):
    lines = picture.describe().splitlines()
    assert picture.cluster.summary in lines[0]
    assert lines[1] == "mesh: pp=2, dp=4, tp=8"
    assert [line[0] for line in lines[2:5]] == ["■", "◆", "●"]
    assert any(line.startswith("▸ NIC") for line in lines)
    picture.mesh = "dp=1000"
    assert picture.describe().splitlines()[1:] == ["mesh: dp=1000", *picture._view["notes"]]


def test_an_exported_notebook_shows_a_figure_and_the_text():
    before = plt.get_fignums()
    picture = Picture("dp=2, tp=4", "dgx-h100", pick=5)
    data, _ = picture._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<svg" in data["text/html"]
    assert "tp stays inside NVLink" in data["text/html"]
    assert plt.get_fignums() == before  # else the notebook would show the figure too


def test_a_thousand_changes_leave_one_model_and_no_listeners(picture):
    def listeners() -> int:
        return sum(len(found) for kinds in picture._trait_notifiers.values() for found in kinds.values())

    before, models = listeners(), len(_instances)
    kept = Picture("dp=8, tp=8")  # without a machine each change takes little
    for turn in range(1000):
        kept.mesh = ("dp=4, tp=16", "dp=8, tp=8")[turn % 2]
    picture.mesh = "dp=8, tp=8"
    assert listeners() == before
    assert len(_instances) <= models + 2  # the picture and its layout
    assert len(kept._facts.loads._values) <= len(kept.mesh.axis_names)


def test_edits_from_several_threads_leave_a_consistent_picture(picture):
    faults: list[BaseException] = []

    def work(act) -> None:
        try:
            for turn in range(8):
                act(turn)
        except BaseException as fault:
            faults.append(fault)

    acts = [
        lambda turn: setattr(picture, "mesh", ("dp=8, tp=8", "pp=2, dp=4, tp=8")[turn % 2]),
        lambda turn: picture.set_state({"axis": ("dp", "tp")[turn % 2], "pick": turn}),
        lambda turn: picture.show(cluster=("dgx-h100", picture.cluster)[turn % 2]),
        lambda turn: picture.describe(),
    ]
    threads = [threading.Thread(target=work, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not faults
    picture.show("dp=8, tp=8", ml.preset("tapered-h100", **POD), axis="dp")
    assert (np.frombuffer(picture._view["group_of"], "<i4") == picture.mesh["dp"].color).all()
