"""The layout of the picture: the same in Python and in JavaScript, nothing overlaps, and all of it is inside."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import TopologyError
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._levels import Floats, Level
from meshlab.topology.placement._layout import fit, layout, layout_facts, locate, look_at
from meshlab.topology.placement._route import route
from meshlab.topology.placement._scene import Scene, scene_of, scene_of_ranks

SCRIPTS = Path(ml.__file__).parent / "widgets" / "js"


def mixed() -> Cluster:
    """Hosts of three kinds in leaves of different sizes, with a broken NVLink and a missing NIC."""
    nodes = [ml.preset(name).node(0) for name in ("dgx-h100", "pcie-l40s", "aws-p5")]
    hosts = [nodes[k % 3] for k in range(23)]
    leaf = np.array([0] * 3 + [1] * 9 + [2] + [3] * 10, dtype=np.int32)
    levels = (Level("leaf", leaf, rails=2), Level("spine", leaf // 2), Level("cluster", leaf * 0, taper=3))
    names = [f"host{k}" for k in range(23)]
    cluster = Cluster.from_nodes(hosts, names=names, levels=levels, title="mixed")
    return cluster.without_nic(0, 3).without_link(2)


CASES: dict[str, Callable[[], Scene]] = {
    "host": lambda: scene_of(ml.preset("dgx-h100")),
    "four": lambda: scene_of(ml.preset("dgx-h100", nodes=4)),
    "shared nic": lambda: scene_of(ml.preset("gcp-a3-high", nodes=4, nodes_per_leaf=4, rails=4)),
    "rack": lambda: scene_of(ml.preset("gb200-nvl72")),
    "racks": lambda: scene_of(ml.preset("gb200-nvl72", nodes=144)),
    "many racks": lambda: scene_of(ml.preset("gb200-nvl72", nodes=700)),
    "128": lambda: scene_of(ml.preset("dgx-h100", nodes=128)),
    "2048": lambda: scene_of(ml.preset("tapered-h100", nodes=2048, nodes_per_leaf=32, nodes_per_pod=512, rails=8)),
    "small leaves": lambda: scene_of(ml.preset("tapered-h100", nodes=2048)),
    "unknown network": lambda: scene_of(ml.preset("aws-p5", nodes=60)),
    "mixed": lambda: scene_of(mixed()),
    "two domains in a host": lambda: scene_of(ml.preset("dgx-h100", nodes=3).with_nvlink_domain(4)),
    "no nvlink": lambda: scene_of(ml.preset("pcie-l40s", nodes=40)),
    "ranks": lambda: scene_of_ranks("dp=4, tp=24", tuple(f"dp {k}" for k in range(4)), 24),
}
SIZES = [(600, 540, 1.0), (912, 540, 2.0), (1400, 700, 1.0)]


def groups_of(scene: Scene) -> list[list[int]]:
    """Groups of several shapes: neighbours, a rail, and devices far apart."""
    n = scene.n_devices
    wanted = [range(min(n, 4)), range(1, min(n, 800), 8), range(0, n, max(n // 7, 1)), [n - 1, 0]]
    return [list(dict.fromkeys(group)) for group in wanted]


def views_of(scene: Scene) -> list[tuple[tuple[float, float, float], list[float]]]:
    """Sizes and zooms. One of each has to do for large scenes, which take long as text."""
    return [((912, 540, 2.0), [9.0])] if len(scene.host) > 500 else [(size, [1.0, 9.0, 60.0]) for size in SIZES]


def node() -> str:
    """Return a JavaScript engine: the system's, or the one that comes with playwright."""
    found = shutil.which("node")
    if found is None:
        playwright = pytest.importorskip("playwright")
        found = str(Path(playwright.__file__).parent / "driver" / "node")
    return found


RUN = """
const cases = JSON.parse(readFileSync(0, "utf8"));
const out = cases.map(({ scene: raw, groups, places, views }) => {
  for (const name of Object.keys(raw)) {
    if (raw[name]?.int32) raw[name] = new DataView(Int32Array.from(raw[name].int32).buffer);
  }
  const scene = readScene(raw);
  return views.map(([[width, height, dpr], zooms]) => {
    const chosen = fit(scene, width, height, dpr);
    const looks = places.map((place) => lookAt(scene, chosen, place, width, height));
    return { chosen: Object.values(chosen), looks, zooms: zooms.map((zoom) => {
      const drawn = layout(scene, chosen, zoom), arrays = {};
      for (const [name, value] of Object.entries(drawn)) {
        if (ArrayBuffer.isView(value)) arrays[name] = Array.from(value, (v) => (Number.isNaN(v) ? null : v));
      }
      return { arrays, size: [drawn.width, drawn.height, drawn.detail], labels: drawn.labels.map(Object.values),
               routes: groups.map((group) => route(scene, drawn, group, true)) };
    }) };
  });
});
process.stdout.write(JSON.stringify(out));
"""


@pytest.fixture(scope="module")
def scenes() -> dict[str, Scene]:
    return {name: build() for name, build in CASES.items()}


def places_of(scene: Scene) -> list[str]:
    last = len(scene.names) - 1
    return ["all", scene.names[last], f"node:{scene.host[last // 2]}", "nic:0" if scene.n_nics else "device:0"]


@pytest.fixture(scope="module")
def in_javascript(scenes: dict[str, Scene]) -> list[Any]:
    def plain(value: Any) -> Any:
        return {"int32": value.tolist()} if isinstance(value, np.ndarray) else value

    cases = [
        {
            "scene": {key: plain(value) for key, value in scene.to_dict().items()} | {"layout": layout_facts(scene)},
            "groups": groups_of(scene),
            "places": places_of(scene),
            "views": views_of(scene),
        }
        for scene in scenes.values()
    ]
    text = json.dumps(cases, allow_nan=False)
    imports = ['import { readFileSync } from "node:fs";']
    for name, file in (("{ fit, layout, lookAt, route }", "layout.js"), ("{ readScene }", "data.js")):
        imports.append(f"import {name} from {json.dumps((SCRIPTS / file).as_uri())};")
    command = [node(), "--input-type=module", "-e", "\n".join(imports) + RUN]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def snake(name: str) -> str:
    return re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", name)


@pytest.mark.parametrize("index", range(len(CASES)), ids=list(CASES))
def test_python_and_javascript_place_everything_in_the_same_way(
    scenes: dict[str, Scene], in_javascript: list[Any], index: int
) -> None:
    scene = list(scenes.values())[index]
    for ((width, height, dpr), zooms), theirs in zip(views_of(scene), in_javascript[index], strict=True):
        chosen = fit(scene, width, height, dpr)
        np.testing.assert_allclose(theirs["chosen"], chosen, atol=1e-6)
        for place, look in zip(places_of(scene), theirs["looks"], strict=True):
            np.testing.assert_allclose(look, look_at(scene, chosen, place, width, height), atol=0.5, err_msg=place)
        for zoom, other in zip(zooms, theirs["zooms"], strict=True):
            mine = layout(scene, chosen, zoom)
            assert other["size"] == pytest.approx([mine.width, mine.height, mine.detail], abs=0.5)
            arrays = {snake(name): np.array(value, dtype=float) for name, value in other["arrays"].items()}
            for name, value in mine.boxes().items():
                np.testing.assert_allclose(arrays[name], value.ravel().astype(float), atol=0.5, err_msg=name)
            assert len(mine.labels) == len(other["labels"])
            for label, their in zip(mine.labels, other["labels"], strict=True):
                kind, number, *box, align = astuple(label)
                assert their[:2] + their[6:] == [kind, number, align]
                assert their[2:6] == pytest.approx(box, abs=0.5)
            for group, their in zip(groups_of(scene), other["routes"], strict=True):
                found = route(scene, mine, np.array(group, dtype=np.int32), climbs=True)
                for name in ("nics", "leaves", "pods"):
                    assert getattr(found, name).tolist() == their[name]
                assert canonical([(one.kind, one.points.tolist()) for one in found.stretches]) == canonical(
                    [(one["kind"], one["points"]) for one in their["stretches"]]
                )


def canonical(stretches: list[tuple[str, list[list[float]]]]) -> list[tuple[str, list[list[int]]]]:
    return sorted((kind, [[math.floor(v * 8 + 0.5) for v in point] for point in points]) for kind, points in stretches)


def corners(boxes: Floats) -> tuple[Floats, Floats]:
    return boxes[:, :2], boxes[:, :2] + boxes[:, 2:4]


def overlapping(boxes: Floats) -> int:
    """Number of pairs of boxes that overlap by more than a hundredth of a pixel."""
    low, high = corners(boxes)
    both = np.ones((len(boxes), len(boxes)), dtype=bool)
    for k in range(2):
        both &= (low[:, None, k] + 0.01 < high[None, :, k]) & (low[None, :, k] + 0.01 < high[:, None, k])
    return int(np.triu(both, 1).sum())


def is_inside(inner: Floats, outer: Floats) -> bool:
    low, high = corners(inner)
    least, most = corners(outer)
    return bool((low >= least - 0.01).all() and (high <= most + 0.01).all())


@pytest.mark.parametrize("size", [(600, 560), (912, 560), (1400, 700)])
@pytest.mark.parametrize("name", list(CASES))
def test_nothing_overlaps_and_everything_is_inside(scenes: dict[str, Scene], name: str, size: tuple[int, int]) -> None:
    scene = scenes[name]
    width, height = size
    chosen = fit(scene, width, height)
    for zoom in (1.0, 3.0, 12.0):
        drawn = layout(scene, chosen, zoom)
        if zoom == 1.0:
            assert drawn.width <= width
            assert drawn.height <= height
        for boxes in (drawn.host, drawn.box, drawn.unit, drawn.pod, drawn.leaf):
            assert overlapping(boxes) == 0
        order = np.argsort(scene.first_device, kind="stable")
        host = order[np.searchsorted(scene.first_device[order], np.arange(scene.n_devices), side="right") - 1]
        assert is_inside(drawn.device, drawn.host[host])
        for number in {0, len(scene.host) // 2, len(scene.host) - 1}:
            assert overlapping(drawn.device[host == number]) == 0
        assert is_inside(drawn.host, drawn.box[scene.box_of])
        assert is_inside(drawn.box, drawn.unit[scene.unit_of])
        assert is_inside(drawn.unit, drawn.pod[scene.pod_of])
        whole = np.array([[0.0, 0.0, drawn.width, drawn.height]])
        assert is_inside(drawn.pod, whole)
        if len(drawn.nic):
            counts = np.array([scene.kinds[k].nics for k in scene.kind_of])
            in_cluster = np.argsort(scene.host)
            of_nic = np.repeat(in_cluster, counts[in_cluster])
            assert is_inside(drawn.nic, drawn.host[of_nic])
            for number in {0, len(scene.host) - 1}:
                mine = np.concatenate([drawn.nic[of_nic == number], drawn.device[host == number]])
                assert overlapping(mine) == 0
        labels = np.array([[label.x, label.y, label.width, label.height] for label in drawn.labels]).reshape(-1, 4)
        if len(labels) < 3000:
            assert overlapping(labels) == 0
        assert all(label.height >= 12 for label in drawn.labels)


def test_scale_up_goes_down_and_scale_out_goes_across() -> None:
    drawn = layout(*(lambda scene: (scene, fit(scene, 912, 560)))(scene_of(ml.preset("dgx-h100", nodes=4))))
    devices = drawn.device.reshape(4, 8, 4)
    assert (np.diff(devices[:, :, 0], axis=1) == 0).all()  # the GPUs of a host are in one column
    assert (np.diff(devices[:, :, 1], axis=0) == 0).all()  # the same GPU of every host is in one row
    assert (np.diff(devices[:, :, 1], axis=1) > 0).all()
    assert (np.diff(devices[:, :, 0], axis=0) > 0).all()


def test_a_place_is_in_the_middle_after_looking_at_it(scenes: dict[str, Scene]) -> None:
    scene = scenes["2048"]
    chosen = fit(scene, 912, 560)
    for place in ("pod:2", "leaf:35", "node:1125", "node1125", "nic:9000", "device:9000"):
        zoom, x, y = look_at(scene, chosen, place, 912, 560)
        name, index = locate(scene, place)
        drawn = layout(scene, chosen, zoom)
        box = drawn.host[1125] if name in ("nic", "device") else getattr(drawn, name)[index]
        assert box[0] + box[2] / 2 - x == pytest.approx(456, abs=1)
        assert 0 <= box[1] - y <= 560
        assert zoom > 1


def test_unknown_places_are_explained(scenes: dict[str, Scene]) -> None:
    for place in ("pod:9", "leaf:64", "node:x", "somewhere", "nic:16384", ""):
        with pytest.raises(TopologyError, match=r"unknown place .*choose all, 'node0', or a number such as pod:0"):
            locate(scenes["2048"], place)


def test_the_funnel_of_a_pod_is_as_narrow_as_its_oversubscription(scenes: dict[str, Scene]) -> None:
    scene = scenes["2048"]
    drawn = layout(scene, fit(scene, 912, 560))
    assert drawn.funnel.shape == (4, 5)
    np.testing.assert_allclose(drawn.funnel[:, 4] / drawn.funnel[:, 3], 7)


def test_the_scene_names_what_is_unknown() -> None:
    unknown = scene_of(ml.preset("aws-p5", nodes=4))
    assert (unknown.network, unknown.rails, unknown.unit_word) == ("unknown", 0, "")
    assert unknown.notes == ("the source does not describe the network between the hosts",)
    assert len(layout(unknown, fit(unknown, 912, 560)).leaf) == 1  # the dashed box
    known = scene_of(ml.preset("azure-ndv5", nodes=64))
    assert (known.network, known.unit_word, known.top_word) == ("known", "leaf", "cluster")


def test_four_levels_of_switches_are_reduced_to_three_and_reported() -> None:
    number = np.arange(16, dtype=np.int32)
    levels = tuple(Level(name, number // size) for name, size in (("leaf", 2), ("row", 4), ("hall", 8), ("site", 16)))
    node = ml.preset("dgx-h100").node(0)
    scene = scene_of(Cluster.from_nodes([node] * 16, names=[f"n{k}" for k in range(16)], levels=levels))
    assert (scene.unit_word, scene.pod_word, scene.top_word) == ("leaf", "hall", "site")
    assert scene.notes == ("the level row is not drawn",)


def test_an_nvlink_domain_inside_a_host_has_its_own_bar() -> None:
    scene = scene_of(ml.preset("dgx-h100").with_nvlink_domain(4))
    drawn = layout(scene, fit(scene, 912, 560))
    assert len(drawn.bar) == 2
    assert not scene.is_joined.any()
    inside = route(scene, drawn, np.arange(4, dtype=np.int32))
    assert {one.kind for one in inside.stretches} == {"nvlink"}
    across = route(scene, drawn, np.array([0, 4], dtype=np.int32))
    assert {one.kind for one in across.stretches} == {"host"}
