"""The controls of a mesh's axes: one row each with name, size, order and removal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ipywidgets

from meshlab.mesh.axes import WELL_KNOWN_AXES

__all__ = ["AxisRows", "Pairs", "button"]

Pairs = tuple[tuple[str, int], ...]
"""Names and sizes of axes, possible or not."""


class AxisRows:
    """Rows of controls that hold axes, and tell what a person makes of them.

    Parameters
    ----------
    edited : callable
        Hears the new names and sizes after each change by a person, on the thread that brings it.
    lock : threading.RLock
        Held while anything changes.
    """

    def __init__(self, edited: Callable[[Pairs], None], lock: threading.RLock) -> None:
        self._edited = edited
        self._lock = lock
        self._is_writing = False
        self._rows: list[_Row] = []
        self._list = ipywidgets.VBox(layout={"overflow": "visible"})
        add = button("Add axis", "Add an axis of size 1; it becomes the fastest", self._add)
        self.box = ipywidgets.VBox([self._list, add], layout={"overflow": "visible", "align_items": "flex-start"})

    @property
    def pairs(self) -> Pairs:
        """What the rows say now."""
        return tuple((row.name.value.strip(), row.size.value) for row in self._rows)

    def write(self, pairs: Pairs) -> None:
        """Fill the rows, as many as there are axes, without calling `edited`."""
        with self._lock:
            self._is_writing = True
            if len(self._rows) != len(pairs):
                while len(self._rows) < len(pairs):
                    self._rows.append(_Row(len(self._rows), self._changed, self._move, self._remove))
                self._rows = self._rows[: len(pairs)]
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
    """The controls of one axis; they keep their place while axes move through them, so that the focus stays."""

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
            tooltip="The name of the axis",
            style={"description_width": "48px"},
            layout={"width": "152px"},
        )
        self.size = ipywidgets.IntText(
            value=1,
            description="size",
            continuous_update=False,
            tooltip="How many ranks lie along the axis",
            style={"description_width": "32px"},
            layout={"width": "112px"},
        )
        self.up = button("Up", "Make the axis slower", lambda: move(self, -1))
        self.down = button("Down", "Make the axis faster", lambda: move(self, 1))
        self.remove = button("Remove", "Remove the axis", lambda: remove(self))
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
    """A button that says what it does."""
    made = ipywidgets.Button(description=text, tooltip=tooltip, layout={"width": "auto"})
    made.on_click(lambda _: do())
    return made
