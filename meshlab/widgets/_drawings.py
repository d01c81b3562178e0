"""Drawings: a mesh on a machine with a call per axis, the loads and times of the calls, and all of it as a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError
from meshlab.base._units import format_size, format_time_us, parse_size
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plots._painter import link_shares
from meshlab.prediction._axis_loads import loads
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.placement._axis_keys import AxisCache
from meshlab.topology.placement._layout import layout_facts
from meshlab.topology.placement._loads import MARKS, LinkFinding, Loads, find_places
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._view import View, make_view
from meshlab.widgets._prices import Price, price_of

Call = tuple[str, int | str]  # a collective and a size
CallOf = Callable[[str], Call]

_MOST_LOADS = 24
_MOST_PRICES = 64


class AxisFacts:
    """What was computed about axes, also about those of earlier meshes and of candidates."""

    def __init__(self) -> None:
        self.loads: AxisCache[Loads] = AxisCache(_MOST_LOADS)
        self.words: AxisCache[str] = AxisCache(_MOST_LOADS)
        self.prices: AxisCache[Price] = AxisCache(_MOST_PRICES)


@dataclass(frozen=True, eq=False)
class Drawing:
    """A mesh on a machine as it is drawn, with the call of each axis."""

    mesh: DeviceMesh | None
    cluster: Cluster | None
    view: View
    call_of: CallOf
    facts: AxisFacts

    @property
    def placement(self) -> Placement | None:
        """The mesh on the machine, None if one of them is missing or they do not match."""
        return self.view.placement

    @property
    def has_loads(self) -> bool:
        """True if the axis that is drawn has groups on a machine."""
        return self.placement is not None and self.view.groups is not None

    def loads_of(self, axis: str, call: Call | None = None) -> Loads:
        """Return the loads of an axis with a call, by default its own."""
        placement, (collective, size) = self.placement, call or self.call_of(axis)
        assert placement is not None

        def make() -> Loads:
            return loads(placement, axis, collective=collective, size=size, scene=self.view.scene)

        return self.facts.loads.get(placement, axis, (axis, collective, parse_size(size)), make)

    def price_of(self, axis: str) -> Price:
        """Return the predicted time of the call of an axis."""
        placement, axis_loads = self.placement, self.loads_of(axis)
        assert placement is not None
        call = (axis_loads.collective, axis_loads.size_bytes)
        return self.facts.prices.get(placement, axis, call, lambda: price_of(placement, axis_loads))

    def words_of(self, axis: str) -> str:
        """Return which links the groups of an axis use, in words."""
        placement = self.placement
        assert placement is not None
        return self.facts.words.get(placement, axis, (axis,), lambda: placement.explain(axis))

    @property
    def findings(self) -> tuple[LinkFinding, ...]:
        """The findings about the loads of all axes, with their places."""
        cluster = self.view.cluster
        if self.placement is None or cluster is None or cluster.n_nodes < 2:
            return ()
        return find_places([self.loads_of(axis) for axis in self.placement.mesh.axis_names])

    def svg(self, axis: str, group: int | None, default: tuple[str | None, int | str]) -> str:
        """Return the groups of an axis as SVG, with the failed parts. Without groups it has the `default` call."""
        from meshlab.plots._machine import topology_figure
        from meshlab.plots._style import figure_svg

        collective, size = self.call_of(axis) if self.view.groups is not None else default
        # Without pyplot, because the notebook would show its figure next to the widget.
        figure = topology_figure(
            self.mesh, self.cluster, axis=axis or None, group=group, collective=collective, size=size
        )
        return figure_svg(figure, label=self.view.title)

    def pack(self, edit: int, notes: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the scene, the view and the loads as an answer to an edit, with further notes."""
        axis_loads = self.loads_of(self.view.word) if self.has_loads else None
        packed = {} if axis_loads is None else {**_pack_loads(axis_loads), "edit": edit}
        return _pack_scene(self.view), {"edit": edit, **self._pack_view(notes)}, packed

    def _pack_view(self, notes: Sequence[str]) -> dict[str, Any]:
        mesh, view, options = self.mesh, self.view, self._options
        world = 0 if mesh is None else mesh.world_size
        is_plain = np.array_equal(view.rank_of[:world], np.arange(world)) and not (view.rank_of[world:] >= 0).any()
        return {
            "title": view.title,
            "is_mesh": view.groups is not None,
            "is_placed": self.placement is not None,
            "world": world if view.groups is not None else 0,
            "axes": [[axis.name, axis.size] for axis in mesh.axes] if mesh is not None else [],
            "axis": view.word,
            "options": options if view.word in options or not view.word else [*options, view.word],
            "n_groups": view.n_groups,
            "group_size": 0 if view.groups is None else view.groups.size,
            "single": view.groups is not None and view.groups.single,
            "rank_of": None if is_plain and view.groups is not None else view.rank_of.astype("<i4").tobytes(),
            "group_of": view.group_of.astype("<i4").tobytes(),
            "verdict": self.words_of(view.word) if self.has_loads else "",
            "findings": [
                {"mark": link.mark, "text": link.text, "axis": link.axes[0] if link.axes else "", "place": link.place}
                for link in self.findings
            ],
            "marks": [words for state, words in MARKS.items() if state not in ("none", "host")],
            "notes": list(dict.fromkeys([*view.notes, *view.scene.notes, *notes])),
        }

    @property
    def _options(self) -> list[str]:
        """The axes or, without groups, the levels that can be chosen."""
        if self.mesh is not None and self.view.groups is not None:
            return list(self.mesh.creation_order)
        return [] if self.cluster is None else [name for name in self.cluster.level_names if name != "device"]


def view_with(mesh: DeviceMesh | None, cluster: Cluster | None, axis: str, before: View | None) -> View:
    """Return a mesh on a machine with an axis, or with the usual one if there is no such axis."""
    view = make_view(mesh, cluster, axis or None, before=before)
    if view.notes and not _has_axis(mesh, cluster, axis):
        view = make_view(mesh, cluster, before=before)
    return view


def _has_axis(mesh: DeviceMesh | None, cluster: Cluster | None, axis: str) -> bool:
    if mesh is None:
        return cluster is not None and axis in cluster.level_names
    try:
        mesh[axis]
    except MeshError:
        return False
    return True


# -- bytes -------------------------------------------------------------------------------------------------------------


def _pack(array: npt.NDArray[Any], dtype: str) -> bytes | float | None:
    """Return an array as little-endian bytes or, if all entries are equal, as one number. NaN is None."""
    if array.size and (array == array[0]).all():
        return array[0].item()  # type: ignore[no-any-return]
    if array.dtype.kind == "f" and np.isnan(array).all():
        return None
    return array.astype(dtype).tobytes()


def _pack_scene(view: View) -> dict[str, Any]:
    scene = view.scene.to_dict()
    packed = {k: v.astype("<i4").tobytes() if isinstance(v, np.ndarray) else v for k, v in scene.items()}
    templates = view.cluster.templates if view.cluster is not None else ()
    kinds = [dict(kind) for kind in scene["kinds"]]
    for kind, template in zip(kinds, templates, strict=False):
        kind["names"] = [f"{'CPU' if device.backend == 'cpu' else 'GPU'} {device.id}" for device in template.devices]
        kind["nic_names"] = [nic.name for nic in template.nics]
    return {**packed, "kinds": kinds, "layout": layout_facts(view.scene)}


def _rows(loads: Loads) -> list[dict[str, Any]]:
    """Return the busiest link of each kind as text."""
    rows = []
    for link in loads.links:
        k = link.busiest
        row: dict[str, Any] = {"link": link.label, "groups": "–", "bytes": "–", "time": "–", "share": 0.0, "place": ""}
        row["limits"] = k is not None and link.name == loads.limit
        if k is not None:
            row |= {
                "groups": f"{int(link.groups[k]):,}",
                "bytes": format_size(float(link.bytes[k])),
                "time": format_time_us(float(link.seconds[k]) * 1e6),
                "share": float(link_shares(loads, link)[k]),
                "place": link.place(k),
            }
        rows.append(row)
    return rows


def _pack_loads(loads: Loads) -> dict[str, Any]:
    mark, meaning = MARKS[loads.state]
    return {
        "axis": loads.axis,
        "collective": loads.collective,
        "size": format_size(loads.size_bytes),
        "algorithm": loads.algorithm_words,
        "mark": mark,
        "meaning": meaning,
        "limit": loads.limit,
        "is_conflict": loads.is_conflict,
        "conflict_word": "oversubscribed" if loads.state == "taper" else "shared",
        "n_groups": len(loads.climbs),
        "climbs": _pack(loads.climbs.astype(np.uint8), "u1"),
        "links": [
            {
                "name": link.name,
                "label": link.label,
                "drawn_as": link.drawn_as,
                "n": len(link.groups),
                "groups": _pack(link.groups, "<i4"),
                "bytes": _pack(link.bytes, "<f4"),
                "gbs": _pack(link.gbs, "<f4"),
                "share": _pack(link_shares(loads, link), "<f4"),
            }
            for link in loads.links
        ],
        "rows": _rows(loads),
    }
