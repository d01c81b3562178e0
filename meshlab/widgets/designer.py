"""Designer: edit a mesh with the keyboard or the mouse, and use it in Python."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ipywidgets
import numpy as np
import traitlets

from meshlab.errors import MeshError, MeshlabError, TopologyError
from meshlab.markup import escape
from meshlab.mesh.axes import WELL_KNOWN_AXES, nearest_axes
from meshlab.mesh.mesh import DeviceMesh, as_mesh
from meshlab.topology.model.presets import ClusterLike, as_cluster
from meshlab.units import SEPARATOR
from meshlab.widgets.picture import Picture, check_ranks

__all__ = ["AxisRows", "Designer", "Pairs", "button"]


Pairs = tuple[tuple[str, int], ...]
"""Names and sizes of axes, which may be invalid."""


class AxisRows:
    """Rows of controls, one per axis of a mesh.

    Parameters
    ----------
    edited : callable
        Called with the new names and sizes after each edit by the user, on the thread of that edit.
    lock : threading.RLock
        Held during each change.
    """

    def __init__(self, edited: Callable[[Pairs], None], lock: threading.RLock) -> None:
        self._edited = edited
        self._lock = lock
        self._is_writing = False
        self._rows: list[_Row] = []
        self._spare: list[_Row] = []  # of removed axes: the kernel keeps every widget, so they are used again
        self._list = ipywidgets.VBox(layout={"overflow": "visible"})
        add = button("Add axis", "Add an axis of size 1 as the fastest axis.", self._add)
        self.box = ipywidgets.VBox([self._list, add], layout={"overflow": "visible", "align_items": "flex-start"})

    @property
    def pairs(self) -> Pairs:
        """The names and sizes in the rows."""
        return tuple((row.name.value.strip(), row.size.value) for row in self._rows)

    def write(self, pairs: Pairs) -> None:
        """Show one row per axis without calling `edited`."""
        with self._lock:
            self._is_writing = True
            if len(self._rows) != len(pairs):
                while len(self._rows) > len(pairs):
                    self._spare.append(self._rows.pop())
                while len(self._rows) < len(pairs):
                    new = self._spare or [_Row(len(self._rows), self._changed, self._move, self._remove)]
                    self._rows.append(new.pop())
                self._list.children = [row.box for row in self._rows]
            for index, (row, (name, size)) in enumerate(zip(self._rows, pairs, strict=True)):
                row.write(name, size, is_first=index == 0, is_last=index == len(pairs) - 1)
            self._is_writing = False

    def _changed(self, _: Any) -> None:
        with self._lock:
            if not self._is_writing:
                self._edited(self.pairs)

    def _move(self, row: _Row, by: int) -> None:
        with self._lock:
            pairs = list(self.pairs)
            here = self._rows.index(row)
            pairs.insert(max(0, here + by), pairs.pop(here))
            self._edited(tuple(pairs))

    def _remove(self, row: _Row) -> None:
        with self._lock:
            pairs = list(self.pairs)
            del pairs[self._rows.index(row)]
            self._edited(tuple(pairs))

    def _add(self) -> None:
        with self._lock:
            taken = {name for name, _ in self.pairs}
            names = [*WELL_KNOWN_AXES, *(f"axis{number}" for number in range(len(taken) + 1))]
            self._edited((*self.pairs, (next(name for name in names if name not in taken), 1)))


class _Row:
    """The controls of one axis.

    To move an axis, rows exchange their values. The controls stay in place, so the focus stays on the same button.
    """

    def __init__(
        self,
        index: int,
        changed: Callable[[Any], None],
        move: Callable[[_Row, int], None],
        remove: Callable[[_Row], None],
    ) -> None:
        self.name = ipywidgets.Text(
            description=f"Axis {index + 1}",
            continuous_update=False,
            tooltip="Name of the axis.",
            style={"description_width": "48px"},
            layout={"width": "152px"},
        )
        self.size = ipywidgets.IntText(
            value=1,
            description="size",
            continuous_update=False,
            tooltip="Number of ranks along the axis.",
            style={"description_width": "32px"},
            layout={"width": "112px"},
        )
        self.up = button("Up", "Move the axis up, so that it varies slower.", lambda: move(self, -1))
        self.down = button("Down", "Move the axis down, so that it varies faster.", lambda: move(self, 1))
        self.remove = button("Remove", "Remove the axis.", lambda: remove(self))
        self.name.observe(changed, "value")
        self.size.observe(changed, "value")
        self.box = ipywidgets.HBox(
            [self.name, self.size, self.up, self.down, self.remove],
            layout={"flex_flow": "row wrap", "overflow": "visible"},
        )

    def write(self, name: str, size: int, *, is_first: bool, is_last: bool) -> None:
        self.name.value = name
        self.size.value = size
        self.up.disabled = is_first
        self.down.disabled = is_last
        self.remove.disabled = is_first and is_last


def button(text: str, tooltip: str, do: Callable[[], None]) -> ipywidgets.Button:
    """Return a button with a label, a tooltip and an action."""
    control = ipywidgets.Button(description=text, tooltip=tooltip, layout={"width": "auto"})
    control.on_click(lambda _: do())
    return control


_MOST_UNDOS = 100

_MOST_SUGGESTIONS = 3


class Designer(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets is untyped
    """An editor for the names, sizes and order of the axes of a mesh, above the picture of its groups.

    Invalid sizes are explained, and the nearest valid sizes are offered. `mesh` keeps the last valid value. All
    controls work with the keyboard, and all attributes can be set from any thread.

    Parameters
    ----------
    cluster : Cluster or str, optional
        The machine, or the name of a preset. It defines the number of ranks, and is drawn with the links they use.
    mesh : DeviceMesh or str, optional
        The initial mesh. By default it has two axes.
    world_size : int, optional
        The number of ranks that each mesh must have. By default the number of devices of the cluster. Without a
        cluster, any number is valid.

    Raises
    ------
    MeshError
        If the mesh does not have `world_size` ranks.
        If `world_size` exceeds the number of devices of the cluster.

    Examples
    --------
    >>> designer = Designer(mesh="dp=2, tp=4", world_size=8)
    >>> designer.mesh = "dp=4, tp=2"
    >>> designer.selected = [0, 1]
    >>> designer.undo()
    >>> designer.mesh, designer.selected
    (DeviceMesh('dp=2, tp=4'), (0, 1))
    """

    mesh = traitlets.Any()
    """The mesh. Set it to a `DeviceMesh` or a string, and use ``observe`` to be notified of changes."""

    selected = traitlets.Any(())
    """The ranks that are selected in the picture, ascending. Settable."""

    def __init__(
        self,
        cluster: ClusterLike | None = None,
        mesh: DeviceMesh | str | None = None,
        world_size: int | None = None,
    ) -> None:
        if isinstance(cluster, DeviceMesh):
            raise TopologyError("cluster must be a Cluster, not a DeviceMesh", hint="pass the mesh as mesh=")
        machine = None if cluster is None else as_cluster(cluster)
        self._cluster = machine if machine is not None and machine.n_devices else None
        if self._cluster is not None:
            n_devices = self._cluster.n_devices
            world_size = n_devices if world_size is None else world_size
            if world_size > n_devices:
                raise MeshError(
                    f"world_size={world_size} exceeds the {n_devices} devices of the cluster; "
                    f"choose at most {n_devices}"
                )
        self._world_size = world_size
        self._past: tuple[DeviceMesh, ...] = ()
        self._future: tuple[DeviceMesh, ...] = ()
        self._problem: MeshlabError | None = None
        self._is_writing = False
        first = self._as_mesh(self._first_mesh() if mesh is None else mesh)
        self.picture = Picture(first, self._cluster)
        self._lock = self.picture._lock  # one lock for both, because with two a lasso and an edit could deadlock
        super().__init__()
        with self._writing():
            self._build()
            self.mesh = first
        self._show()
        self.picture.observe(self._picture_selected, "selected")

    # -- the value -----------------------------------------------------------------------------------------------------

    @property
    def axis(self) -> str:
        """The axis or custom group whose groups the picture shows. Settable."""
        return self.picture.axis

    @axis.setter
    def axis(self, axis: str) -> None:
        with self._lock:
            options = (*self.mesh.axis_names, *(group.name for group in self.mesh.custom_groups))
            if axis not in options:
                raise MeshError(f"unknown axis {axis!r}; choose one of {', '.join(options)}")
            self.picture.axis = axis

    @property
    def code(self) -> str:
        """The mesh as Python code."""
        return repr(self.mesh).replace("'", '"')

    def undo(self) -> None:
        """Discard an invalid edit, or undo the last change of the mesh."""
        with self._lock:
            if self._problem is None and self._past:
                *past, target = self._past
                self._travel(target, tuple(past), (self.mesh, *self._future))
            else:
                self._show()

    def redo(self) -> None:
        """Redo the last change that `undo` reverted."""
        with self._lock:
            if self._future:
                target, *future = self._future
                self._travel(target, (*self._past, self.mesh), tuple(future))

    def _travel(self, target: DeviceMesh, past: tuple[DeviceMesh, ...], future: tuple[DeviceMesh, ...]) -> None:
        with self._writing():
            self.mesh = target
        self._past, self._future = past, future
        self._show()

    def _first_mesh(self) -> DeviceMesh:
        if self._world_size is None:
            return DeviceMesh("dp=2, tp=4")
        inner = self._devices_per_node() or math.gcd(self._world_size, 8)
        if self._world_size % inner:
            return DeviceMesh(dp=self._world_size)
        return DeviceMesh(dp=self._world_size // inner, tp=inner)

    def _as_mesh(self, mesh: DeviceMesh | str) -> DeviceMesh:
        if isinstance(mesh, str):
            return DeviceMesh(mesh, world_size=self._world_size)
        mesh = as_mesh(mesh)
        DeviceMesh(
            [(axis.name, axis.size) for axis in mesh.axes], world_size=self._world_size
        )  # raises with the nearest sizes
        return mesh

    @traitlets.validate("mesh")
    def _check_mesh(self, proposal: Any) -> DeviceMesh:
        return self._as_mesh(proposal["value"])

    @traitlets.observe("mesh")
    def _mesh_changed(self, change: Any) -> None:
        with self._lock:
            if self._is_writing:
                return
            self._past, self._future = (*self._past, change["old"])[-_MOST_UNDOS:], ()
            self._show()

    @traitlets.validate("selected")
    def _check_selected(self, proposal: Any) -> tuple[int, ...]:
        return check_ranks(proposal["value"], self.mesh.world_size)

    @traitlets.observe("selected")
    def _selected_changed(self, _: Any) -> None:
        with self._lock:
            self.picture.selected = self.selected

    def _picture_selected(self, _: Any) -> None:
        with self._lock:  # another thread may have set a smaller mesh since the selection
            self.selected = tuple(rank for rank in self.picture.selected if rank < self.mesh.world_size)

    # -- the controls --------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self._undo = button("Undo", "Undo the last change.", self.undo)
        self._redo = button("Redo", "Redo the last undone change.", self.redo)
        self._code_button = button("Show code", "Show the mesh as Python code to copy.", self._toggle_code)
        self._rows = AxisRows(self._edit, self._lock)
        self._sentence = ipywidgets.HTML()
        self._suggestions = ipywidgets.VBox(layout={"overflow": "visible", "align_items": "flex-start"})
        self._options: list[Pairs] = []
        self._option_buttons = [self._suggestion(index) for index in range(_MOST_SUGGESTIONS)]
        self._code = ipywidgets.Textarea(
            description="Code",
            rows=2,
            continuous_update=False,
            style={"description_width": "48px"},
            layout={"width": "auto", "max_width": "640px", "margin": "2px 2px 8px", "display": "none"},
        )
        # Revert each edit instead of disabling the box, because a disabled box cannot be reached with the keyboard.
        self._code.observe(lambda _: self._show_code(), "value")
        for box in (self._undo, self._redo, self._code_button):
            box.layout.margin = "2px 8px 8px 2px"
        wrap = {"flex_flow": "row wrap", "overflow": "visible"}
        tools = ipywidgets.HBox([self._undo, self._redo, self._code_button], layout=wrap)
        controls = ipywidgets.VBox(
            [self._rows.box, self._sentence, self._suggestions],
            layout={"margin": "0 0 8px", "overflow": "visible"},
        )
        self.picture.layout.margin = "0 2px"
        self.picture.layout.min_width = "0"
        self.children = [tools, self._code, controls, self.picture]
        self.layout.overflow = "visible"
        self.add_class("meshlab-designer")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Set controls without triggering their handlers."""
        with self._lock:
            before, self._is_writing = self._is_writing, True
            try:
                yield
            finally:
                self._is_writing = before

    def _edit(self, pairs: Pairs) -> None:
        """Set the mesh from the rows, or explain why they are not a valid mesh."""
        with self._lock:
            try:
                mesh = DeviceMesh(pairs, world_size=self._world_size)
                for group in self.mesh.custom_groups:
                    if group.array.max() < mesh.world_size:
                        mesh = mesh.with_group(group.name, group.array)
            except MeshlabError as error:
                self._problem = error
                self._rows.write(pairs)
                self._show_sentence()
                return
            if mesh == self.mesh:
                self._show()
            else:
                self.mesh = mesh

    def _toggle_code(self) -> None:
        with self._lock:
            is_hidden = self._code.layout.display == "none"
            self._code.layout.display = None if is_hidden else "none"
            self._code_button.description = "Hide code" if is_hidden else "Show code"

    # -- display -------------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        """Update all controls from the mesh."""
        with self._lock:
            self._problem = None
            self._rows.write(tuple((axis.name, axis.size) for axis in self.mesh.axes))
            self.picture.show(self.mesh)
            self._show_sentence()
            self._show_code()

    def _show_sentence(self) -> None:
        options: list[Pairs] = []
        if self._problem is None:
            product = " × ".join(str(size) for size in self.mesh.shape)
            sentence = f"{product} = {self.mesh.world_size:,}" if len(self.mesh.shape) > 1 else product
            if self._cluster is None:
                sentence += " ranks"
            else:
                sentence += f" of {self._cluster.n_devices:,} devices"
            sentence += f"{SEPARATOR}{self.mesh.axis_names[-1]} is the fastest axis"
            html = f'<div role="status" style="line-height:1.45">{escape(sentence)}</div>'
        else:
            html = (
                '<div role="alert" style="line-height:1.45">'
                '<b style="color:var(--jp-error-color1,#c62828)">Invalid mesh:</b> '
                f"{escape(self._problem)}.<br>The picture still shows {escape(self.mesh)}.</div>"
            )
            pairs = self._rows.pairs
            if self._world_size is not None and all(size > 0 for _, size in pairs) and len(dict(pairs)) == len(pairs):
                names, sizes = zip(*pairs, strict=True)
                options = nearest_axes(names, sizes, self._world_size, most=_MOST_SUGGESTIONS)
        with self._writing():
            self._undo.disabled = not self._past and self._problem is None
            self._redo.disabled = not self._future
            self._sentence.value = html
            self._options = options
            for control, pairs in zip(self._option_buttons, options, strict=False):
                control.description = f"Use {', '.join(f'{name}={size}' for name, size in pairs)}"
            self._suggestions.children = self._option_buttons[: len(options)]

    def _suggestion(self, index: int) -> ipywidgets.Button:
        return button("Use", "Set these sizes.", lambda: self._edit(self._options[index]))

    def _show_code(self) -> None:
        with self._lock:
            self._code.value = self.code

    def _devices_per_node(self) -> int:
        """Return the number of devices per node, or 0 if it differs between nodes or is unknown."""
        if self._cluster is None:
            return 0
        counts = np.bincount(self._cluster.node_of)
        return int(counts[0]) if np.all(counts == counts[0]) else 0

    def __repr__(self) -> str:
        return f"Designer({self.mesh!r})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        data = super()._repr_mimebundle_(**kwargs)
        return {**data, "text/html": self.picture.fallback()}
