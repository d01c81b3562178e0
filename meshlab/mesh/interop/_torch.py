"""PyTorch: ``init_device_mesh``, ``DeviceMesh``, slices of them, ``_flatten``, and the repr of a mesh.

The last axis is the fastest, as in meshlab.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshlab.base._errors import MeshError, ParseError
from meshlab.base._hints import Argument, Hint
from meshlab.mesh._axes import MAX_RANKS, short
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._parsing import assignments_in, called, calls_in, find_calls, parse_source
from meshlab.mesh.interop._recipe import Format, Recipe, code, rank_array, reject_experts, require, unsupported

_SIGNATURES = {
    "init_device_mesh": ["device_type", "mesh_shape", "mesh_dim_names", "backend_override"],
    "DeviceMesh": ["device_type", "mesh", "mesh_dim_names", "backend_override"],
}

# DeviceMesh((dp=2, tp=4), 'cuda', stride=(4, 1)), and "stride: (4, 1)" in other versions. A stride may itself be a
# tuple: () for an axis of one rank, and (8, 1) for an axis that was flattened from two.
_REPR = re.compile(r"DeviceMesh\(\((?P<axes>[^()]*)\)(?P<rest>[^\n]*)")

_STRIDES = re.compile(r"stride\s*[=:]\s*(?P<strides>\((?:[^()]|\([^()]*\))*\))")

_RANKS = re.compile(r"[Mm]esh\s*[=:]\s*(?:tensor\()?(?P<ranks>\[[\[\]\d,\s]*\])")  # with TORCH_DISTRIBUTED_DEBUG=DETAIL


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    reject_experts("torch", experts)
    arguments: dict[str, Any] = {"device_type": "cuda"}
    if mesh.in_order:
        function, arguments["mesh_shape"], layout = "init_device_mesh", mesh.shape, code(mesh.shape)
    else:
        function, arguments["mesh"], layout = "DeviceMesh", mesh.ranks, code(mesh.ranks.tolist())
    arguments["mesh_dim_names"] = mesh.axis_names
    text = f'{function}("cuda", {layout}, mesh_dim_names={code(mesh.axis_names)}'
    backends = {name: backend for name, backend in mesh.backends.items() if name in mesh.axis_names}
    if backends:
        arguments["backend_override"] = backends
        text += f", backend_override={code(backends)}"
    notes = unsupported(mesh, "torch", keeps_backends=True)
    # torch.distributed.new_group sorts the ranks of a group.
    sorted_away = [name for name in mesh.axis_names if (np.diff(mesh[name].array, axis=1) < 0).any()]
    if sorted_away:
        notes += (f"torch sorts the ranks of a group, so the rank order along {', '.join(sorted_away)} is lost",)
    return Recipe("torch", text + ")", arguments, notes)


def _parse(text: str) -> Mapping[str, Any]:
    match = _REPR.search(text)
    if match is not None and (match["axes"].strip() == "" or "=" in match["axes"]):
        return _parse_repr(match)
    calls = find_calls(text, _SIGNATURES)
    arguments = dict(calls[0].arguments)
    if "=" in str(arguments.get("device_type")):
        raise ParseError("this text is meshlab's own DeviceMesh", hint="run it instead of reading it", text=text)
    if isinstance(arguments.get("device_type"), (tuple, int)):
        # DeviceMesh((2, 4), 'cuda', stride=(4, 1)) is the repr of a mesh without names.
        raise ParseError(
            "this repr of a torch mesh has no axis names", hint="write them, such as (dp=2, tp=4)", text=text
        )
    others = [call for call in calls[1:] if str(call.arguments) != str(calls[0].arguments)]
    if others:
        arguments["others"] = len(others)
    return {**arguments, **_derived(text)}


def _parse_repr(match: re.Match[str]) -> dict[str, Any]:
    """Return the arguments in the repr of a mesh."""
    pairs = [part.split("=") for part in match["axes"].split(",") if part.strip()]
    if not pairs:
        raise ParseError("this torch mesh has no axes", hint="paste the mesh before it was sliced", text=match[0])
    if not all(len(pair) == 2 and pair[1].strip().isdecimal() for pair in pairs):
        raise ParseError(f"{short(match['axes'])} are not axes of torch", hint="paste the repr as it is", text=match[0])
    arguments: dict[str, Any] = {
        "mesh_shape": tuple(int(size) for _, size in pairs),
        "mesh_dim_names": tuple(name.strip() for name, _ in pairs),
    }
    ranks = _RANKS.search(match["rest"])
    if ranks is not None:
        return {"mesh": ast.literal_eval(ranks["ranks"]), "mesh_dim_names": arguments["mesh_dim_names"]}
    strides = _STRIDES.search(match["rest"])
    if strides is None:
        return arguments
    try:
        arguments["strides"] = ast.literal_eval(strides["strides"])
    except (ValueError, SyntaxError):
        raise ParseError(
            f"{short(strides['strides'])} are not strides", hint="paste the repr as it is", text=match[0]
        ) from None
    if not isinstance(arguments["strides"], tuple):  # stride=(8) of one axis
        arguments["strides"] = (arguments["strides"],)
    return arguments


def _derived(text: str) -> dict[str, Any]:
    """Return the axes of a text that are flattened under a new name, and the slice that is its result."""
    tree = parse_source(text)
    names = assignments_in(tree)
    flattened = {}
    for node in calls_in(tree, ("_flatten",)):
        if not isinstance(node.func, ast.Attribute):
            continue
        dims = _slice_of(node.func.value, names)
        values = [*node.args, *(item.value for item in node.keywords if item.arg == "mesh_dim_name")]
        name = values[0].value if values and isinstance(values[0], ast.Constant) else None
        flattened[str(name or "_".join(dims or ()))] = dims
    parts: dict[str, Any] = {"flattened": flattened} if flattened else {}
    unread = sorted({called(node) for node in calls_in(tree, ("_unflatten", "_concatenate", "from_group"))})
    if unread:
        parts["unread"] = unread
    statement = tree.body[-1] if len(tree.body) == 1 else None
    if isinstance(statement, (ast.Assign, ast.Expr, ast.AnnAssign)) and isinstance(statement.value, ast.Subscript):
        dims = _slice_of(statement.value, names)
        if dims:
            parts["slice"] = dims
    return parts


def _slice_of(node: ast.expr, names: Mapping[str, ast.expr]) -> tuple[str, ...] | None:
    """Return the axes of a slice such as ``mesh["dp", "cp"]``; None for a complete mesh."""
    seen = 0
    while isinstance(node, ast.Name) and node.id in names and seen < 10:
        node, seen = names[node.id], seen + 1
    if not isinstance(node, ast.Subscript):
        return None
    try:
        dims = ast.literal_eval(node.slice)
    except (ValueError, TypeError):
        raise ParseError(
            f"the slice {short(ast.unparse(node.slice))[1:-1]} is not a literal", hint="write the names of the axes"
        ) from None
    return (dims,) if isinstance(dims, str) else tuple(map(str, dims))


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("torch", experts)
    (names,) = require(arguments, "torch", "mesh_dim_names")
    backends = {}
    # Keys are axis names or indices; values are a backend or a pair of a backend and its options.
    for axis, choice in (arguments.get("backend_override") or {}).items():
        backends[names[axis] if isinstance(axis, int) else axis] = choice[0] if isinstance(choice, tuple) else choice
    if arguments.get("mesh") is not None:
        ranks = rank_array("torch", arguments["mesh"])
        mesh = DeviceMesh(ranks.shape, names, ranks=ranks, world_size=world_size, backends=backends)
        return _with_flattened(mesh, arguments.get("flattened") or {})
    (shape,) = require(arguments, "torch", "mesh_shape")
    strides = arguments.get("strides")
    placed = _ranks_of_strides(DeviceMesh(shape, names), strides, world_size) if strides else None
    if placed is not None and world_size is None:
        world_size = int(placed.max()) + 1  # the slice of one rank: more ranks may follow
    mesh = DeviceMesh(shape, names, ranks=placed, world_size=world_size, backends=backends)
    return _with_flattened(mesh, arguments.get("flattened") or {})


def _with_flattened(mesh: DeviceMesh, flattened: Mapping[str, Sequence[str] | None]) -> DeviceMesh:
    """Add the groups of flattened axes under their new name, as torch adds them to the mesh."""
    axes: dict[str, tuple[str, ...]] = {}
    for name, dims in flattened.items():
        merged = [axis for dim in dims or mesh.axis_names for axis in axes.get(dim, (dim,))]
        axes[name] = tuple(merged)
        if (name,) != axes[name]:  # a single axis that keeps its name
            mesh = mesh.with_groups(name, mesh[merged].array)
    return mesh


def _ranks_of_strides(mesh: DeviceMesh, strides: tuple[Any, ...], world_size: int | None) -> Any:
    if len(strides) != len(mesh.axes):
        raise MeshError(f"strides {strides} do not match the axes {mesh}", hint="pass one stride per axis")
    options = [list(_positions(axis.size, stride)) for axis, stride in zip(mesh.axes, strides, strict=True)]
    # The repr omits the sizes inside a flattened axis. Only some of them place every rank once, inside the world.
    layouts: dict[bytes, Any] = {}
    for chosen in itertools.product(*options):
        ranks: Any = np.zeros((1,), dtype=np.int64)
        for offsets in chosen:
            ranks = (ranks[:, None] + offsets[None, :]).reshape(-1)
        fits = len(np.unique(ranks)) == len(ranks) and (world_size is None or ranks.max() < world_size)
        if fits or len(options) == sum(map(len, options)):  # with a single choice, the mesh reports the fault itself
            layouts[ranks.tobytes()] = ranks
    if len(layouts) == 1:
        return next(iter(layouts.values()))
    raise MeshError(
        f"the strides {strides} of {mesh} do not contain the sizes inside a flattened axis, and "
        f"{len(layouts) or 'no'} layouts match",
        hint=Hint("pass {}, or paste the mesh before it was flattened", Argument("world_size")),
    )


def _positions(size: int, stride: Any) -> Iterator[Any]:
    """Return the possible offsets of the ranks along one axis."""
    if isinstance(stride, int):
        yield np.arange(size, dtype=np.int64) * stride
        return
    steps = stride if isinstance(stride, tuple) else None
    if steps is None or not all(isinstance(step, int) for step in steps):
        raise MeshError(f"stride {short(stride)} is not a number or a tuple of numbers", hint="paste the repr as it is")
    if len(steps) > 6:
        raise MeshError(f"stride {short(stride)} has more than 6 parts", hint="paste the mesh before it was flattened")
    for sizes in _factorisations(size, len(steps)):
        offsets: Any = np.zeros((1,), dtype=np.int64)
        for count, step in zip(sizes, steps, strict=True):
            offsets = (offsets[:, None] + (np.arange(count, dtype=np.int64) * step)[None, :]).reshape(-1)
        yield offsets


def _factorisations(size: int, count: int) -> Iterator[tuple[int, ...]]:
    """Return the ways to write a size as a product of factors of at least 2: none of 0 factors unless the size is 1."""
    if count == 0:
        if size == 1:
            yield ()
        return
    if size > MAX_RANKS:
        return
    for factor in range(2, size + 1):
        if size % factor == 0 and (count > 1 or factor == size):
            for rest in _factorisations(size // factor, count - 1):
                yield (factor, *rest)


def _omissions(arguments: Mapping[str, Any]) -> Sequence[str]:
    notes = []
    if arguments.get("others"):
        notes.append(
            f"torch: the text creates {arguments['others'] + 1} meshes, and the first one was read; paste one of them"
        )
    if arguments.get("slice"):
        axes = ", ".join(code(name) for name in arguments["slice"])
        notes.append(
            f"torch: the slice [{axes}] differs from rank to rank, so the complete mesh was read; call "
            f"submesh({axes}, rank=…) for the slice of one rank"
        )
    if arguments.get("unread"):
        notes.append(f"torch: {', '.join(arguments['unread'])} of the text was not read")
    if _skips_ranks(arguments.get("mesh_shape"), arguments.get("strides")):
        notes.append(
            "torch: the strides skip ranks, so this is the slice of one rank; it was read as that of rank 0, and the "
            "other ranks are idle"
        )
    return notes


def _skips_ranks(shape: Any, strides: Any) -> bool:
    """Return whether the ranks of a repr are not all those from 0 to the last one."""
    if not strides or not isinstance(shape, tuple):
        return False
    steps = [step for stride in strides for step in (stride if isinstance(stride, tuple) else (stride,))]
    if not any(isinstance(stride, tuple) for stride in strides):
        last = sum((size - 1) * step for size, step in zip(shape, steps, strict=False) if isinstance(step, int))
        return bool(last + 1 != math.prod(shape))
    return all(step != 1 for step in steps)


def _from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "mesh_dim_names") or not hasattr(source, "mesh"):
        return None
    return {"mesh": source.mesh.tolist(), "mesh_dim_names": source.mesh_dim_names}


FORMAT = Format(
    "torch",
    re.compile(r"init_device_mesh\s*\(|DeviceMesh\s*\("),
    _write,
    _parse,
    _build,
    _from_object,
    omissions=_omissions,
)
