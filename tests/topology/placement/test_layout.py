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
from meshlab.topology.model.cluster import Cluster, Level
from meshlab.topology.placement.layout import fit, layout, look_at
from meshlab.topology.placement.route import route
from meshlab.topology.placement.scene import Scene, scene_of, scene_of_ranks

SCRIPT = Path(ml.__file__).parent / "widgets" / "js" / "layout.js"


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
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
const out = cases.map(({ scene, groups, places, views }) => {
  for (const name of Object.keys(scene)) {
    if (scene[name]?.int32) scene[name] = Int32Array.from(scene[name].int32);
  }
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
            "scene": {key: plain(value) for key, value in scene.to_dict().items()},
            "groups": groups_of(scene),
            "places": places_of(scene),
            "views": views_of(scene),
        }
        for scene in scenes.values()
    ]
    text = json.dumps(cases, allow_nan=False)
    script = SCRIPT.read_text() + RUN
    done = subprocess.run([node(), "-e", script], input=text, capture_output=True, text=True, check=True)
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
                assert [found.nics.tolist(), found.leaves.tolist(), found.pods.tolist()] == [
                    their["nics"], their["leaves"], their["pods"]
                ]  # fmt: skip
                assert canonical([(one.kind, one.points.tolist()) for one in found.stretches]) == canonical(
                    [(one["kind"], one["points"]) for one in their["stretches"]]
                )


def canonical(stretches: list[tuple[str, list[list[float]]]]) -> list[tuple[str, list[list[int]]]]:
    return sorted((kind, [[math.floor(v * 8 + 0.5) for v in point] for point in points]) for kind, points in stretches)
