"""Picture: a machine on a canvas, with the groups of a mesh, their routes, and the load of the links."""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Unpack

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from meshlab.base._arguments import Arguments
from meshlab.base._collectives import usual_collective
from meshlab.base._errors import MeshError, TopologyError
from meshlab.base._hints import Argument, Hint
from meshlab.base._markup import escape
from meshlab.base._units import parse_size
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.prediction._axis_loads import LOAD_ARGUMENTS, LoadArguments
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import ClusterLike, as_cluster
from meshlab.topology.placement._layout import locate
from meshlab.topology.placement._loads import LinkFinding, Loads
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._view import View, make_view
from meshlab.widgets._assets import script, style, with_fallback
from meshlab.widgets._drawings import AxisFacts, Drawing, view_with

PAGE_NOTE = (
    "A saved view. Here you can point at everything, find ranks and hosts, zoom, and choose the axis and the colours. "
    "The machine and the mesh are changed in Python with meshlab."
)
COLORS = ("group", "sharing", "load")
_NO_VALUES: Mapping[str, npt.ArrayLike] = MappingProxyType({})


class Checked(traitlets.Any):
    """A trait whose values have one class, such as Mapping. Others, also None, are errors with its `description`."""

    allow_none = False  # with None, traitlets would not call the validators

    def __init__(self, default: Any, kind: type[Any], description: str) -> None:
        super().__init__(default)
        self._kind, self._description = kind, description

    def validate(self, obj: Any, value: Any) -> Any:
        """Raise if the value is of a different kind."""
        if not isinstance(value, self._kind):
            raise MeshError(f"{self.name} must be {self._description}, not {reprlib.repr(value)}")
        return value


class Text(traitlets.Unicode):  # type: ignore[type-arg]
    """A trait with a text. Other values are errors of meshlab."""

    def error(self, obj: Any, value: Any, error: Exception | None = None, info: str | None = None) -> NoReturn:
        """Raise for a value of a different kind."""
        raise MeshError(f"{self.name} must be a text, not {reprlib.repr(value)}")


class Number(traitlets.Int):  # type: ignore[type-arg]
    """A trait with an integer. Other values are errors of meshlab."""

    def error(self, obj: Any, value: Any, error: Exception | None = None, info: str | None = None) -> NoReturn:
        """Raise for a value of a different kind."""
        raise MeshError(f"{self.name} must be an integer, not {reprlib.repr(value)}")


def reject_mesh(cluster: object) -> None:
    """Raise if a mesh was passed as the cluster, because their order is easily confused."""
    if isinstance(cluster, DeviceMesh):
        raise TopologyError(
            "cluster must be a Cluster, not a DeviceMesh", hint=Hint("pass the mesh as {}", Argument("mesh"))
        )


class PictureArguments(LoadArguments, total=False):
    """The arguments of a picture after the mesh and the machine. `Picture` documents them."""

    axis: str | None
    pick: int | None
    color: str
    focus: str
    values: Mapping[str, npt.ArrayLike]
    height: int


ARGUMENTS = Arguments(
    PictureArguments,
    {
        "axis": None,
        "pick": None,
        "color": "group",
        "focus": "all",
        **LOAD_ARGUMENTS.defaults,
        "values": _NO_VALUES,
        "height": 540,
    },
)


class Picture(anywidget.AnyWidget):
    """A machine on a canvas, with the groups of a mesh, their routes, and the load of the links.

    The wheel, the keys + and −, and a double click zoom: from one cell per GPU to every link. Pointing at a GPU shows
    the route of its group, and a click keeps it. All attributes can be set from any thread, and follow the user's
    actions.

    If the mesh does not fit the machine, the axis is unknown, or a part of the machine is not described, then the
    machine is drawn, and a sentence reports what is missing.

    Parameters
    ----------
    mesh : DeviceMesh or str, optional
        The mesh. By default only the machine is drawn.
    cluster : Cluster or str, optional
        The machine, or the name of a preset. By default the ranks are drawn without hardware.
    axis : str, optional
        The axis or group whose groups are shown: one axis, several as ``"dp-cp"``, or the name of a group. Without a
        mesh, a level of the cluster. By default the fastest axis or the outermost level.
    pick : int, optional
        The rank whose group stays highlighted; without a mesh, the device.
    color : str, default "group"
        ``"group"``, ``"sharing"`` (the groups that share links with the picked one), ``"load"`` (only the links are
        coloured), or the name of one of the `values`.
    focus : str, default "all"
        The part in view: ``"all"``, ``"pod:2"``, ``"leaf:35"``, ``"rack:0"``, ``"node:17"``, ``"device:9"``, or the
        name of a host.
    size : int or str, default "256M"
        Message size that the loads assume, as in nccl-tests.
    collective : str, optional
        The collective that causes the loads. By default send_recv for pp, all_to_all for ep, else all_reduce.
    values : mapping of str to array_like, optional
        Measured values, one per rank, such as ``{"time_us": …}``. A `pandas.DataFrame` is accepted.
    height : int, default 540
        Largest height of the canvas, in CSS pixels.

    Raises
    ------
    TopologyError
        If neither a mesh nor a cluster is given.
        If the place of `focus` is unknown.
    MeshError
        If `pick`, `color` or `values` does not match the mesh.

    Examples
    --------
    >>> import meshlab as ml
    >>> picture = ml.widgets.Picture("dp=2, tp=8", ml.preset("dgx-h100", nodes=2), axis="dp")
    >>> picture.pick = 3
    >>> print(picture.describe().splitlines()[2])
    ◆ dp leaves the host: 8 groups share 8 NICs, one each, 48.0\u2009GB/s per group; it stays inside one leaf switch
    """

    _bundle = "picture"
    _esm = script(_bundle)
    _css = style(_bundle)

    mesh = traitlets.Any(None, allow_none=True)
    """The mesh, or None. Set it to a `DeviceMesh` or a string."""

    cluster = traitlets.Any(None, allow_none=True)
    """The machine, or None. Set it to a `Cluster` or the name of a preset."""

    axis = Text("").tag(sync=True)
    """The axis or group whose groups are shown."""

    pick = Number(None, allow_none=True).tag(
        sync=True,
        from_json=lambda rank, picture: rank if isinstance(rank, int) and 0 <= rank < picture._n_picks else None,
    )
    """The rank whose group is highlighted, or None. Without a mesh, the device."""

    color = Text("group").tag(
        sync=True, from_json=lambda name, picture: name if name in (*COLORS, *picture.values) else "group"
    )
    """The meaning of the colours: ``"group"``, ``"sharing"``, ``"load"``, or the name of one of the `values`."""

    focus = Text("all").tag(sync=True, from_json=lambda place, picture: picture._known_place(place))
    """The part in view, such as ``"all"`` or ``"pod:2"``."""

    selected = Checked((), Iterable, "a sequence of ranks").tag(
        sync=True,
        to_json=lambda ranks, _: np.asarray(ranks, dtype="<i4").tobytes(),
        from_json=lambda data, picture: picture._existing(_ranks_in(data)),
    )
    """The selected ranks, ascending."""

    size = Checked("256M", object, "a size")
    """Message size that the loads assume."""

    collective = Text(None, allow_none=True)
    """The collective that causes the loads, or None for the usual one of the axis."""

    values = Checked(_NO_VALUES, Mapping, "numbers by name")
    """Measured values by name, one per rank."""

    height = Number(540, min=160).tag(sync=True)
    """Largest height of the canvas, in CSS pixels."""

    # Number of the last edit in the front end. Answers carry it, so that late ones are dropped.
    _edit = traitlets.Int(0).tag(sync=True)
    _scene = traitlets.Dict().tag(sync=True)  # `Scene.to_dict` with the arrays as little-endian int32
    # The mesh on the machine: rank and group of every device, sentences and findings.
    _view = traitlets.Dict().tag(sync=True)
    _loads = traitlets.Dict().tag(sync=True)  # The load of every link for the shown axis. Empty without a placement.
    _values = traitlets.Dict().tag(sync=True)  # the values that match the mesh, as little-endian float32 by name

    @ARGUMENTS.shown
    def __init__(
        self, mesh: MeshLike | None = None, cluster: ClusterLike | None = None, **arguments: Unpack[PictureArguments]
    ) -> None:
        choice = ARGUMENTS.complete("Picture", arguments)
        self._lock = threading.RLock()
        self._is_writing = True  # no updates until all arguments are set
        self._drawing: Drawing | None = None
        self._facts = AxisFacts()
        super().__init__(height=choice["height"])
        with self._lock:
            if isinstance(mesh, Cluster):
                raise TopologyError(
                    "mesh must be a DeviceMesh, not a Cluster", hint=Hint("pass the machine as {}", Argument("cluster"))
                )
            self.cluster, self.mesh = cluster, mesh
            self.size, self.collective = choice["size"], choice["collective"]
            self.axis = choice["axis"] or ""
            self._update(keep_axis=bool(choice["axis"]))
            self.values = choice["values"]
            self.color, self.focus, self.pick = (choice[name] for name in ("color", "focus", "pick"))
            self._is_writing = False
            self._send_picture()

    # -- values --------------------------------------------------------------------------------------------------------

    @property
    def placement(self) -> Placement | None:
        """The mesh on the machine, None if one of them is missing or they do not match."""
        return self._drawn_view.placement

    @property
    def loads(self) -> Loads | None:
        """The load of every link for the shown axis, None without a placement."""
        with self._lock:
            drawing = self._drawn
            return drawing.loads_of(drawing.view.word) if drawing.has_loads else None

    @property
    def findings(self) -> tuple[LinkFinding, ...]:
        """The findings about the loads of all axes, with their places in the picture."""
        with self._lock:
            return self._drawn.findings

    def show(self, mesh: MeshLike | None = None, cluster: ClusterLike | None = None, axis: str | None = None) -> None:
        """Change the mesh, the machine and the axis together, in one message to the front end.

        Parameters
        ----------
        mesh : DeviceMesh or str, optional
            The new mesh. By default it is kept.
        cluster : Cluster or str, optional
            The new machine. By default it is kept.
        axis : str, optional
            The new axis. By default it is kept if the mesh has it.

        Examples
        --------
        >>> picture = Picture("dp=2, tp=4")
        >>> picture.show("dp=4, tp=2", axis="dp")
        >>> picture.mesh, picture.axis
        (DeviceMesh('dp=4, tp=2'), 'dp')
        """
        with self._lock, self.hold_sync():
            with self._writing():
                if cluster is not None:
                    self.cluster = cluster
                if mesh is not None:
                    self.mesh = mesh
                if axis is not None:
                    self.axis = axis
            self._update(keep_axis=axis is not None)
            self._send_picture()

    def describe(self) -> str:
        """Return the picture as text: the machine, the mesh, its axes, the findings, and the busiest links."""
        with self._lock:
            view = self._drawn_view
            if view.placement is not None:
                lines = [view.placement.describe(size=self.size)]
            else:
                lines = [f"machine: {view.cluster.summary}"] if view.cluster is not None else []
                lines += [f"mesh: {self.mesh}"] if self.mesh is not None else []
                lines += view.scene.notes
            return "\n".join([*lines, *view.notes, *self._unmatched])

    def save(self, path: str | Path) -> Path:
        """Write the picture as one page for readers without Python: interactive, without a kernel or a network.

        Zoom, hover, colours and the choice of the axis work. The parts that need Python are missing.

        Parameters
        ----------
        path : path
            The file, such as ``"page.html"``.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        BenchError
            If the file cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Picture("dp=2, tp=4").save(f"{folder}/page.html").name
        'page.html'
        """
        from meshlab.widgets._page import save_page

        return save_page(self, path, title=self._drawn_view.title or "meshlab", note=PAGE_NOTE)

    # -- validation ----------------------------------------------------------------------------------------------------

    @traitlets.validate("mesh")
    def _check_mesh(self, proposal: Any) -> DeviceMesh | None:
        mesh = proposal["value"]
        if mesh is None:
            if self.cluster is None:
                raise TopologyError("no mesh and no cluster given", hint="pass a mesh, a cluster, or both")
            return None
        return as_mesh(mesh, fill=self.cluster.n_devices or None if self.cluster is not None else None)

    @traitlets.validate("cluster")
    def _check_cluster(self, proposal: Any) -> Cluster | None:
        reject_mesh(proposal["value"])
        if proposal["value"] is None and self.mesh is None and self._drawing is not None:
            raise TopologyError("no mesh and no cluster given", hint="pass a mesh, a cluster, or both")
        return None if proposal["value"] is None else as_cluster(proposal["value"])

    @traitlets.validate("_edit")
    def _check_edit(self, proposal: Any) -> int:
        return max(self._edit, int(proposal["value"]))  # a choice of an axis may arrive after a later edit

    @traitlets.validate("pick")
    def _check_pick(self, proposal: Any) -> int | None:
        pick: int | None = proposal["value"]
        if pick is not None and not 0 <= pick < self._n_picks:
            raise MeshError(f"rank {pick} does not exist; pick a rank from 0 to {self._n_picks - 1}")
        return pick

    @traitlets.validate("color")
    def _check_color(self, proposal: Any) -> str:
        color: str = proposal["value"]
        if color not in (*COLORS, *self.values):
            raise MeshError(f"unknown color {color!r}; choose one of {', '.join((*COLORS, *self.values))}")
        return color

    @traitlets.validate("focus")
    def _check_focus(self, proposal: Any) -> str:
        place: str = proposal["value"]
        if place != "all":
            locate(self._drawn_view.scene, place)  # raises if it is unknown
        return place

    @traitlets.validate("selected")
    def _check_selected(self, proposal: Any) -> tuple[int, ...]:
        return check_ranks(proposal["value"], self._world)

    @traitlets.validate("size")
    def _check_size(self, proposal: Any) -> int | str:
        parse_size(proposal["value"])  # raises if it is not a size
        return proposal["value"]  # type: ignore[no-any-return]

    @traitlets.validate("values")
    def _check_values(self, proposal: Any) -> Mapping[str, npt.NDArray[np.float32]]:
        checked = {}
        for name, column in dict(proposal["value"]).items():
            if name in COLORS:
                raise MeshError(f"values has a column named {name!r}, which is a mode of colour; rename it")
            array = _array(column)
            if array.ndim != 1 or array.dtype.kind not in "iufb":
                raise MeshError(
                    f"values[{name!r}] must be one number per rank, not {array.dtype} of shape {array.shape}"
                )
            checked[str(name)] = array.astype("<f4")
        return MappingProxyType(checked)

    @property
    def _world(self) -> int:
        return 0 if self.mesh is None else self.mesh.world_size

    @property
    def _n_picks(self) -> int:
        """Number of ranks or, without a mesh, of devices."""
        return self._drawn_view.scene.n_devices if self.mesh is None else self._world

    def _existing(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Drop ranks that the mesh does not have, because a selection may arrive after the mesh has become smaller."""
        return tuple(rank for rank in ranks if 0 <= rank < self._world)

    def _known_place(self, place: Any) -> str:
        """Return a place, or "all" if the machine has changed and no longer has it."""
        if not isinstance(place, str):
            return "all"
        try:
            locate(self._drawn_view.scene, place)
        except TopologyError:
            return "all"
        return place

    # -- updates -------------------------------------------------------------------------------------------------------

    @property
    def _drawn(self) -> Drawing:
        assert self._drawing is not None  # set by __init__
        return self._drawing

    @property
    def _drawn_view(self) -> View:
        return self._drawn.view

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Set attributes without an update after each."""
        before, self._is_writing = self._is_writing, True
        try:
            yield
        finally:
            self._is_writing = before

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Apply a change from the front end. May be called on any thread."""
        with self._lock:
            super().set_state(sync_data)

    @traitlets.observe("mesh", "cluster", "axis", "size", "collective", "values")
    def _changed(self, change: Any) -> None:
        with self._lock:
            if not self._is_writing:
                self._take(change["name"])

    def _take(self, name: str) -> None:
        """Update the picture after a change of one attribute."""
        with self.hold_sync():
            if name in ("mesh", "cluster", "axis"):
                self._update(keep_axis=name == "axis")
            self._send_picture()

    def _update(self, *, keep_axis: bool) -> None:
        """Place the mesh. `keep_axis` reports an unknown axis in a note, instead of choosing a different one."""
        before = None if self._drawing is None else self._drawing.view
        if keep_axis:
            view = make_view(self.mesh, self.cluster, self.axis or None, before=before)
        else:
            view = view_with(self.mesh, self.cluster, self.axis, before)
        self._drawing = Drawing(self.mesh, self.cluster, view, self._call_of, self._facts)
        with self._writing(), self.hold_sync():
            if not keep_axis or not self.axis:
                self.axis = view.word
            if self.pick is not None and self.pick >= self._n_picks:
                self.pick = None
            self.selected = self._existing(self.selected)
            if self.focus != "all":
                self.focus = self._known_place(self.focus)

    def _call_of(self, axis: str) -> tuple[str, int | str]:
        """Return the collective and the size that cause the loads of an axis."""
        return self.collective or usual_collective(axis), self.size

    @property
    def _unmatched(self) -> list[str]:
        """A sentence for each of the values that is not for this number of ranks."""
        names = [name for name, column in self.values.items() if len(column) != self._world]
        return [f"the values {name!r} are not one per rank of {self._world:,}: they are not shown" for name in names]

    def _send_picture(self) -> None:
        """Send the picture in one message, because the front end would misread a new mesh with an old machine."""
        with self.hold_sync():
            self._scene, self._view, self._loads = self._pack(self._displayed)
            self._values = {n: c.tobytes() for n, c in self.values.items() if len(c) == self._world}

    @property
    def _displayed(self) -> Drawing:
        """What the front end displays."""
        return self._drawn

    def _pack(self, drawing: Drawing) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the scene, the view and the loads of a drawing."""
        return drawing.pack(self._edit, self._unmatched)

    # -- display -------------------------------------------------------------------------------------------------------

    def figure_svg(self) -> str:
        """Return the picture as SVG: the machine as in the first view, the groups of the axis, and the picked group."""
        with self._lock:
            groups, pick = self._drawn_view.groups, self.pick
            group = None if groups is None or pick is None or groups.color[pick] < 0 else int(groups.color[pick])
            return self._drawn.svg(self.axis, group, (self.collective, self.size))

    def fallback(self) -> str:
        """Return the picture as HTML without JavaScript: a figure, and its description as text."""
        text = escape(self.describe())
        return f'<figure style="margin:0">{self.figure_svg()}<figcaption><pre>{text}</pre></figcaption></figure>'

    def __repr__(self) -> str:
        parts = [] if self.mesh is None else [repr(str(self.mesh))]
        parts += [] if self.cluster is None else [f"cluster=<{self.cluster.summary}>"]
        return f"{type(self).__name__}({', '.join([*parts, f'axis={self.axis!r}'])})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return with_fallback(super()._repr_mimebundle_(**kwargs), lambda: {"text/html": self.fallback()})


def _ranks_in(data: Any) -> list[int]:
    """Return the ranks in a message of the front end, and none if it has something else."""
    try:
        ranks: list[int] = np.frombuffer(data, dtype="<i4").tolist()
    except (TypeError, ValueError, BufferError):
        return []
    return ranks


def _array(values: Any) -> npt.NDArray[Any]:
    """Return values as an array. Lists of different lengths become one of objects, which no caller accepts."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(values, dtype=object)


def check_ranks(ranks: Iterable[int], world_size: int) -> tuple[int, ...]:
    """Return ranks in ascending order and without duplicates, or raise if one is not a rank of the mesh."""
    selected = _array(list(ranks))
    if selected.size and (selected.dtype.kind not in "iu" or selected.ndim != 1):
        raise MeshError("selected must be a sequence of integers; pass ranks such as (0, 1, 5)")
    outside = selected[(selected < 0) | (selected >= world_size)]
    if outside.size:
        raise MeshError(f"rank {outside[0]} does not exist; select ranks from 0 to {world_size - 1}")
    return tuple(np.unique(selected).tolist())
