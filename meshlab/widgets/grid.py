"""Grid: every rank of a mesh as one cell of a canvas, coloured by its group."""

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
    """All ranks as cells of one canvas, coloured by group; hover, lasso, or move with the arrow keys.

    Group numbers and coordinates travel as bytes, so a grid of 16,384 ranks is as fluid as one of 8.

    Parameters
    ----------
    mesh : DeviceMesh or str
        What to show.
    axis : str, optional
        What colours the cells: an axis, several as ``"dp-cp"``, ``"world"``, or a group by name. The fastest axis when
        left out.
    columns : int, optional
        Ranks in one row; chosen from the mesh when left out.
    block : int, default 0
        Set every `block` ranks apart, such as the devices of a node; 0 for none. Each row holds whole blocks when
        `columns` is left out.
    places : mapping of str to array, optional
        More to say about every rank, one whole number per rank, such as ``{"node": …, "device": …}``.

    Raises
    ------
    MeshError
        If the mesh has no such axis or group, or the arguments do not fit the mesh.

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
    """The ranks that are selected, ascending; set it to select from code."""

    _groups = traitlets.Bytes(b"").tag(sync=True)
    """The number of every rank's group, -1 for none: little-endian int32 of shape (ranks,)."""

    _coordinates = traitlets.Bytes(b"").tag(sync=True)
    """Coordinates and places: the smallest unsigned dtype that holds them, little-endian, of shape (fields, ranks)."""

    _shape = traitlets.Dict().tag(sync=True)
    """Ranks, columns, block, the names of the fields, and what the groups are called."""

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
        """The mesh that is shown; `show` changes it."""
        return self._mesh

    @property
    def axis(self) -> str:
        """What colours the cells; `show` changes it."""
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
        """Show another mesh, or the same one coloured by another axis; the front end hears of it in one message.

        Selected ranks that the new mesh does not have are dropped. The parameters are those of the class.

        Raises
        ------
        MeshError
            If the mesh has no such axis or group, or the arguments do not fit the mesh.

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
        if block < 0 or (columns is not None and columns < 1):
            raise MeshError(f"columns={columns}, block={block} is not possible; give at least one column")
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
        """Take over what the front end says. Called by the front end, on any thread."""
        with self._lock:
            super().set_state(sync_data)

    def _existing(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Leave out ranks that the mesh does not have: a lasso may be on its way while the mesh shrinks."""
        return tuple(rank for rank in ranks if rank < self._mesh.world_size)

    @traitlets.validate("selected")
    def _check_selected(self, proposal: Any) -> tuple[int, ...]:
        return check_ranks(proposal["value"], self._mesh.world_size)

    def fallback(self) -> dict[str, str]:
        """The grid for places without JavaScript, by MIME type: a picture, and HTML with the picture and words."""
        with self._lock:
            groups, columns = self._mesh[self._axis], self._shape["columns"]
            what = escape(f"{self._mesh} · {_caption(self._mesh, groups)}")
        picture = base64.b64encode(_picture(groups, columns)).decode()
        html = (
            f'<figure style="margin:0"><img alt="{what}" style="image-rendering:pixelated" '
            f'src="data:image/png;base64,{picture}">'
            f'<figcaption style="font:13px system-ui,sans-serif">{what}</figcaption></figure>'
        )
        return {"text/html": html, "image/png": picture}

    def __repr__(self) -> str:
        return f"Grid({self._mesh!r}, {self._axis!r})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:  # the widget was closed
            return None
        data, metadata = bundle
        return {**data, **self.fallback()}, metadata


def grid_columns(mesh: DeviceMesh, block: int = 0) -> int:
    """How many ranks to put in a row, so that rows begin where blocks or the fastest axes begin.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh; ranks are laid out in row-major order.
    block : int, default 0
        Ranks that stay together, such as those of a node; 0 to follow the mesh's axes.

    Returns
    -------
    int
        A whole number of blocks, near a picture twice as wide as it is high.

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


def _even_part(whole: int, most: int) -> int:
    """The largest divisor up to `most`; `most` itself when only far smaller ones divide, as for a prime."""
    divisor = next(part for part in range(min(whole, most), 0, -1) if whole % part == 0)
    return divisor if 2 * divisor >= min(whole, most) else min(whole, most)


def check_ranks(ranks: Iterable[int], world_size: int) -> tuple[int, ...]:
    """Put ranks in ascending order, each once.

    Raises
    ------
    MeshError
        If one is not a rank of the mesh.
    """
    given = np.asarray(list(ranks))
    if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):
        raise MeshError("ranks are whole numbers; select with a sequence such as (0, 1, 5)")
    outside = given[(given < 0) | (given >= world_size)]
    if outside.size:
        raise MeshError(f"rank {outside[0]} cannot be selected; ranks go from 0 to {world_size - 1}")
    return tuple(np.unique(given).tolist())


def _caption(mesh: DeviceMesh, groups: Groups) -> str:
    """What the grid shows, in words."""
    many = f"{len(groups):,} groups" if len(groups) > 1 else "1 group"
    return f"{mesh.world_size:,} ranks, coloured by {groups.name}: {many} of {groups.size:,}"


def _fields(mesh: DeviceMesh, places: Mapping[str, npt.ArrayLike]) -> tuple[npt.NDArray[Any], list[str]]:
    rows = [*mesh.coordinate_array.T]
    for name, values in places.items():
        row = np.asarray(values)
        if row.shape != (mesh.world_size,) or row.dtype.kind not in "iu" or row.min() < 0:
            raise MeshError(f"the place {name!r} must hold {mesh.world_size} whole numbers from 0, one for each rank")
        rows.append(row)
    stacked = np.stack(rows)
    return stacked.astype(np.min_scalar_type(stacked.max()).newbyteorder("<")), [*mesh.axis_names, *places]


def _picture(groups: Groups, columns: int) -> bytes:
    """The grid as a PNG with a palette: one rank is one square, with lines between when there is room."""
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
    """Write palette indices as a PNG; the format is W3C's PNG specification, third edition."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape
    colours = np.frombuffer(bytes.fromhex("".join(c[1:] for c in palette)), dtype=np.uint8).reshape(-1, 4)
    lines = np.zeros((height, width + 1), dtype=np.uint8)  # each line begins with its filter, 0
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
