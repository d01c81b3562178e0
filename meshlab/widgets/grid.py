"""Grid: the ranks of a mesh as cells of a canvas, coloured by group."""

from __future__ import annotations

import base64
import math
import struct
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from meshlab.errors import MeshError
from meshlab.markup import escape
from meshlab.mesh.groups import Groups
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plots.style import PALETTE

__all__ = ["Grid", "grid_columns"]

_NO_GROUP = "#80808040"
_NO_PLACES: Mapping[str, npt.ArrayLike] = MappingProxyType({})
_PICTURE_SIDE = 384


class Grid(anywidget.AnyWidget):
    """The ranks of a mesh as cells of a canvas, coloured by group.

    The pointer and the arrow keys show the group of a rank. A lasso, a click and the space bar select ranks. Group
    indices and coordinates are sent as bytes, so that a grid of 16,384 ranks is as fast as one of 8.

    Parameters
    ----------
    mesh : DeviceMesh or str
        The mesh.
    axis : str, optional
        The axis or group that colours the cells: one axis, several as ``"dp-cp"``, ``"world"``, or the name of a group.
        By default the fastest axis.
    columns : int, optional
        Number of ranks per row. By default it is derived from the mesh, with complete blocks in each row.
    block : int, default 0
        Number of ranks between two gaps, such as the devices of a node. 0 for no gaps.
    places : mapping of str to array_like, optional
        Additional coordinates for the tooltip, one integer per rank, such as ``{"node": …, "device": …}``.

    Raises
    ------
    MeshError
        If the axis or group is unknown.
        If `columns`, `block` or `places` is invalid.

    Examples
    --------
    >>> grid = Grid(DeviceMesh("dp=2, tp=4"), "tp")
    >>> grid.selected = [5, 4, 4]
    >>> grid.selected
    (4, 5)
    """

    _esm = Path(__file__).parent / "grid.js"
    _css = Path(__file__).parent / "grid.css"

    selected = traitlets.Any(()).tag(
        sync=True,
        to_json=lambda ranks, _: np.asarray(ranks, dtype="<i4").tobytes(),
        from_json=lambda data, grid: grid._existing(np.frombuffer(data, dtype="<i4").tolist()),
    )
    """The selected ranks, ascending. Settable."""

    _groups = traitlets.Bytes(b"").tag(sync=True)
    """The index of the group of each rank, -1 for no group: little-endian int32 of shape (ranks,)."""

    _coordinates = traitlets.Bytes(b"").tag(sync=True)
    """Coordinates and places in the smallest unsigned dtype, little-endian, of shape (fields, ranks)."""

    _shape = traitlets.Dict().tag(sync=True)
    """Number of ranks and columns, block, the names of the fields and of the groups, and the caption."""

    _palette = traitlets.List(traitlets.Unicode(), list(PALETTE)).tag(sync=True)

    def __init__(
        self,
        mesh: MeshLike,
        axis: str | None = None,
        *,
        columns: int | None = None,
        block: int = 0,
        places: Mapping[str, npt.ArrayLike] = _NO_PLACES,
    ) -> None:
        mesh = as_mesh(mesh)
        self._lock = threading.RLock()
        self._mesh = mesh
        self._axis = ""
        super().__init__()
        self.show(mesh, axis, columns=columns, block=block, places=places)

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh. Change it with `show`."""
        return self._mesh

    @property
    def axis(self) -> str:
        """The axis or group that colours the cells. Change it with `show`."""
        return self._axis

    def show(
        self,
        mesh: MeshLike,
        axis: str | None = None,
        *,
        columns: int | None = None,
        block: int = 0,
        places: Mapping[str, npt.ArrayLike] = _NO_PLACES,
    ) -> None:
        """Show a different mesh, or colour the mesh by a different axis, in one message to the front end.

        Selected ranks that the new mesh does not have are deselected.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh.
        axis : str, optional
            The axis or group that colours the cells. By default the fastest axis.
        columns : int, optional
            Number of ranks per row. By default it is derived from the mesh.
        block : int, default 0
            Number of ranks between two gaps. 0 for no gaps.
        places : mapping of str to array_like, optional
            Additional coordinates for the tooltip, one integer per rank.

        Raises
        ------
        MeshError
            If the axis or group is unknown.
            If `columns`, `block` or `places` is invalid.

        Examples
        --------
        >>> grid = Grid(DeviceMesh("dp=2, tp=4"))
        >>> grid.show(DeviceMesh("dp=4, tp=2"), "dp")
        >>> grid.axis
        'dp'
        """
        mesh = as_mesh(mesh)
        axis = mesh.axis_names[-1] if axis is None else axis
        groups = mesh[axis]
        if block < 0:
            raise MeshError(f"block must not be negative, not {block}; pass 0 for no gaps")
        if columns is not None and columns < 1:
            raise MeshError(f"columns must be at least 1, not {columns}; omit it to derive it from the mesh")
        columns = grid_columns(mesh, block) if columns is None else columns
        coordinates, fields = _fields(mesh, places)
        shape = {
            "ranks": mesh.world_size,
            "columns": columns,
            "block": block,
            "fields": fields,
            "caption": _caption(mesh, groups),
            "group": groups.name,
            "single": groups.single,
            "groups": len(groups),
        }
        with self._lock, self.hold_sync():
            self._mesh, self._axis = mesh, axis
            self._groups = groups.color.astype("<i4").tobytes()
            self._coordinates = coordinates.tobytes()
            self._shape = shape
            self.selected = self._existing(self.selected)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Apply a change from the front end. May be called on any thread."""
        with self._lock:
            super().set_state(sync_data)

    def _existing(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Drop ranks that the mesh does not have, because a lasso may arrive after the mesh has become smaller."""
        return tuple(rank for rank in ranks if rank < self._mesh.world_size)

    @traitlets.validate("selected")
    def _check_selected(self, proposal: Any) -> tuple[int, ...]:
        return check_ranks(proposal["value"], self._mesh.world_size)

    def fallback(self) -> dict[str, str]:
        """Return the grid by MIME type, for front ends without JavaScript: a PNG, and HTML with PNG and caption."""
        with self._lock:
            groups, columns = self._mesh[self._axis], self._shape["columns"]
            caption = escape(f"{self._mesh} · {_caption(self._mesh, groups)}")
        picture = base64.b64encode(_picture(groups, columns)).decode()
        html = (
            f'<figure style="margin:0"><img alt="{caption}" style="image-rendering:pixelated" '
            f'src="data:image/png;base64,{picture}">'
            f'<figcaption style="font:13px system-ui,sans-serif">{caption}</figcaption></figure>'
        )
        return {"text/html": html, "image/png": picture}

    def __repr__(self) -> str:
        return f"Grid({self._mesh!r}, {self._axis!r})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:  # the widget is closed
            return None
        data, metadata = bundle
        return {**data, **self.fallback()}, metadata


def grid_columns(mesh: DeviceMesh, block: int = 0) -> int:
    """Return the number of ranks per row, so that each row starts with a block or with a position along a fast axis.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh. Ranks are laid out in row-major order.
    block : int, default 0
        Number of ranks that stay together, such as those of a node. 0 to follow the axes of the mesh.

    Returns
    -------
    int
        A multiple of `block`, chosen so that the grid is about twice as wide as high.

    Examples
    --------
    >>> [grid_columns(DeviceMesh(axes)) for axes in ("dp=2, tp=4", "pp=2, dp=4, tp=8", "dp=2048, tp=8")]
    [4, 8, 128]
    >>> grid_columns(DeviceMesh("dp=16384"), block=8)
    128
    """
    most = math.isqrt(2 * mesh.world_size)
    if block:
        return block * _even_part(-(-mesh.world_size // block), max(1, most // block))
    columns = 1
    for size in reversed(mesh.shape):
        if columns == 1 and size <= 16:
            columns = size
        elif columns * size <= most:
            columns *= size
        else:
            return columns * _even_part(size, max(1, most // columns))
    return columns


def _even_part(total: int, most: int) -> int:
    """Return the largest divisor up to `most`, or `most` if the largest divisor is far smaller, as for a prime."""
    divisor = next(part for part in range(min(total, most), 0, -1) if total % part == 0)
    return divisor if 2 * divisor >= min(total, most) else min(total, most)


def check_ranks(ranks: Iterable[int], world_size: int) -> tuple[int, ...]:
    """Return ranks in ascending order and without duplicates.

    Raises
    ------
    MeshError
        If one of them is not a rank of the mesh.
    """
    selected = np.asarray(list(ranks))
    if selected.size and (selected.dtype.kind not in "iu" or selected.ndim != 1):
        raise MeshError("selected must be a sequence of integers; pass ranks such as (0, 1, 5)")
    outside = selected[(selected < 0) | (selected >= world_size)]
    if outside.size:
        raise MeshError(f"rank {outside[0]} does not exist; select ranks from 0 to {world_size - 1}")
    return tuple(np.unique(selected).tolist())


def _caption(mesh: DeviceMesh, groups: Groups) -> str:
    """Return the number of ranks and groups, and the axis that colours them."""
    count = f"{len(groups):,} groups" if len(groups) > 1 else "1 group"
    return f"{mesh.world_size:,} ranks, coloured by {groups.name}: {count} of {groups.size:,}"


def _fields(mesh: DeviceMesh, places: Mapping[str, npt.ArrayLike]) -> tuple[npt.NDArray[Any], list[str]]:
    rows = [*mesh.coordinate_array.T]
    for name, values in places.items():
        row = np.asarray(values)
        if row.shape != (mesh.world_size,) or row.dtype.kind not in "iu" or row.min() < 0:
            raise MeshError(
                f"places[{name!r}] must be {mesh.world_size} non-negative integers, one per rank, not {row.dtype} of "
                f"shape {row.shape}"
            )
        rows.append(row)
    stacked = np.stack(rows)
    return stacked.astype(np.min_scalar_type(stacked.max()).newbyteorder("<")), [*mesh.axis_names, *places]


def _picture(groups: Groups, columns: int) -> bytes:
    """Return the grid as a PNG: one square per rank, with lines between them if the squares are large enough."""
    rows = -(-groups.world_size // columns)
    cells = np.full(rows * columns, len(PALETTE) + 1, dtype=np.uint8)
    color = groups.color
    cells[: groups.world_size] = np.where(color < 0, len(PALETTE), color % len(PALETTE))
    side = max(1, min(24, _PICTURE_SIDE // max(rows, columns)))
    pixels = cells.reshape(rows, columns).repeat(side, axis=0).repeat(side, axis=1)
    if side >= 8:
        pixels[side - 1 :: side] = len(PALETTE) + 1
        pixels[:, side - 1 :: side] = len(PALETTE) + 1
    return _png(pixels, [*(f"{color}ff" for color in PALETTE), _NO_GROUP, "#00000000"])


def _png(pixels: npt.NDArray[np.uint8], palette: list[str]) -> bytes:
    """Return palette indices as a PNG, as specified by W3C (third edition)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape
    colours = np.frombuffer(bytes.fromhex("".join(c[1:] for c in palette)), dtype=np.uint8).reshape(-1, 4)
    lines = np.zeros((height, width + 1), dtype=np.uint8)  # each line starts with its filter type, 0
    lines[:, 1:] = pixels
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            chunk(b"PLTE", colours[:, :3].tobytes()),
            chunk(b"tRNS", colours[:, 3].tobytes()),
            chunk(b"IDAT", zlib.compress(lines.tobytes())),
            chunk(b"IEND", b""),
        ]
    )
