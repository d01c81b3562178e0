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
from meshlab.mesh._axes import MAX_RANKS, WORLD, axis_pairs, short
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._parsing import (
    Devices,
    Evaluator,
    WorldSize,
    assignments_in,
    called,
    calls_in,
    dotted,
    parse_code,
)
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
    tree = parse_code(text, _SIGNATURES)
    reader = Evaluator(assignments_in(tree), {}, counts_ranks=True)
    arguments = _first_mesh(tree, reader, text)
    if "=" in str(arguments.get("device_type")):
        raise ParseError("this text is meshlab's own DeviceMesh", hint="run it instead of reading it", text=text)
    if isinstance(arguments.get("device_type"), (tuple, int)):
        # DeviceMesh((2, 4), 'cuda', stride=(4, 1)) is the repr of a mesh without names.
        raise ParseError(
            "this repr of a torch mesh has no axis names", hint="write them, such as (dp=2, tp=4)", text=text
        )
    return {**arguments, **_derived(tree, reader, arguments.get("mesh_dim_names"))}


def _first_mesh(tree: ast.Module, reader: Evaluator, text: str) -> dict[str, Any]:
    """Return the arguments of the first mesh whose sizes are known, and the number of further meshes."""
    calls: list[Mapping[str, Any]] = []
    failures: list[ParseError] = []
    for node in calls_in(tree, _SIGNATURES):
        try:
            calls.append(reader.call(node, _SIGNATURES[called(node)]).arguments)
        except ParseError as error:
            failures.append(error)
    if not calls:
        raise failures[0] if failures else ParseError("no mesh of torch found", text=text.strip())
    others = len({str(call) for call in calls} - {str(calls[0])}) + len(failures)
    return {**calls[0], **({"others": others} if others else {})}


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


_UNFLATTEN = ["dim", "mesh_sizes", "mesh_dim_names", "backend_override"]

_Step = tuple[Any, ...]
"""Part of the way from the complete mesh to another one: ("slice", dims), ("flatten", name) or ("split", dim, axes)."""


def _derived(tree: ast.Module, reader: Evaluator, dims: Any) -> dict[str, Any]:
    """Return the meshes that a text derives from its mesh, and the slice that is its result."""
    names = assignments_in(tree)
    failures: list[ParseError] = []
    parts: dict[str, Any] = {"flattened": {}, "views": [], "inside": []}
    unread = {called(node) for node in calls_in(tree, ("_concatenate", "from_group"))}
    for node in calls_in(tree, ("_flatten", "_unflatten")):
        try:
            steps = _steps_to(node, names, reader)
        except ParseError as error:
            if called(node) == "_flatten":
                raise
            unread.add("_unflatten")
            failures.append(error)
            continue
        if called(node) == "_unflatten":
            parts["views"].append(steps)
        elif any(step[0] == "split" for step in steps):
            parts["inside"].append(steps)
        else:
            merged = steps[0][1] if len(steps) > 1 else None
            parts["flattened"][str(steps[-1][1] or "_".join(merged or ()))] = merged
    if failures and not parts["views"] and dims in ([WORLD], (WORLD,), WORLD):
        raise failures[0]  # one axis of all ranks is not a layout, unless its parts are known
    parts["unread"] = sorted(unread)
    statement = tree.body[-1] if len(tree.body) == 1 else None
    if isinstance(statement, (ast.Assign, ast.Expr, ast.AnnAssign)) and isinstance(statement.value, ast.Subscript):
        steps = _steps_to(statement.value, names, reader)
        if len(steps) == 1:
            parts["slice"] = steps[0][1]
    return {name: value for name, value in parts.items() if value}


def _steps_to(node: ast.expr, names: Mapping[str, ast.expr], reader: Evaluator) -> tuple[_Step, ...]:
    """Return the steps from the complete mesh to the mesh of an expression; none for the complete mesh."""
    steps: list[_Step] = []
    for _ in range(_LONGEST_WAY):
        if dotted(node) in names:
            node = names[dotted(node)]
        elif isinstance(node, ast.Subscript):
            try:
                dims = ast.literal_eval(node.slice)
            except (ValueError, TypeError):
                raise ParseError(
                    f"the slice {short(ast.unparse(node.slice))[1:-1]} is not a literal",
                    hint="write the names of the axes",
                ) from None
            steps.append(("slice", (dims,) if isinstance(dims, str) else tuple(map(str, dims))))
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) == "_flatten":
            values = [*node.args, *(item.value for item in node.keywords if item.arg == "mesh_dim_name")]
            name = values[0].value if values and isinstance(values[0], ast.Constant) else None
            steps.append(("flatten", name))
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) == "_unflatten":
            dim, sizes, dims, _ = (reader.call(node, _UNFLATTEN).arguments.get(name) for name in _UNFLATTEN)
            steps.append(("split", dim, axis_pairs(sizes, dims)))
            node = node.func.value
        else:
            break
    return tuple(reversed(steps))


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    if not _has_experts(arguments):
        reject_experts("torch", experts)
    mesh = _complete(arguments, world_size)
    views = arguments.get("views") or []
    of_experts = [steps for steps in views if _holds_experts(steps)]
    chosen = of_experts if experts else [steps for steps in views if steps not in of_experts]
    if not chosen and len(mesh.axes) == 1:
        chosen = views
    if not chosen:
        return _with_flattened(mesh, arguments.get("flattened") or {})
    way = chosen[0]
    rest = [steps[len(way) :] for steps in arguments.get("inside") or () if steps[: len(way)] == way]
    dims = {
        steps[-1][1]: steps[0][1] if len(steps) > 1 else None for steps in rest if steps[0][0] in ("slice", "flatten")
    }
    return _with_flattened(_followed(mesh, way), {name or "_".join(axes or ()): axes for name, axes in dims.items()})


def _complete(arguments: Mapping[str, Any], world_size: int | None) -> DeviceMesh:
    """Return the mesh of the arguments, before anything is derived from it."""
    (names,) = require(arguments, "torch", "mesh_dim_names")
    # torch's own name for all ranks is a reserved name here. Only a mesh that is split has to have one.
    names = [_WORLD if name == WORLD and arguments.get("views") else name for name in names]
    backends = {}
    # Keys are axis names or indices; values are a backend or a pair of a backend and its options.
    for axis, choice in (arguments.get("backend_override") or {}).items():
        backends[names[axis] if isinstance(axis, int) else axis] = choice[0] if isinstance(choice, tuple) else choice
    if isinstance(arguments.get("mesh"), Devices):  # torch.arange(world_size), in a shape that may contain a -1
        return DeviceMesh(arguments["mesh"].shape, names, world_size=world_size, backends=backends)
    if arguments.get("mesh") is not None:
        ranks = rank_array("torch", arguments["mesh"])
        return DeviceMesh(ranks.shape, names, ranks=ranks, world_size=world_size, backends=backends)
    (shape,) = require(arguments, "torch", "mesh_shape")
    shape = _filled(shape, world_size)
    strides = arguments.get("strides")
    placed = _ranks_of_strides(DeviceMesh(shape, names), strides, world_size) if strides else None
    if placed is not None and world_size is None:
        world_size = int(placed.max()) + 1  # the slice of one rank: more ranks may follow
    return DeviceMesh(shape, names, ranks=placed, world_size=world_size, backends=backends)


def _filled(shape: Any, world_size: int | None) -> Any:
    """Return a shape with the number of ranks in place of what code computes from it."""
    if not isinstance(shape, (tuple, list)):
        return shape
    return [size.of(world_size) if isinstance(size, WorldSize) else size for size in shape]


_WORLD = "all_ranks"

_LONGEST_WAY = 20

_EXPERT_DIM = re.compile(r"e(?:|t|d|fsd)p$|(?:expert|expt|moe)", re.IGNORECASE)


def _holds_experts(steps: Sequence[_Step]) -> bool:
    """Return whether a derived mesh has a dim for experts."""
    return any(_EXPERT_DIM.match(name) for step in steps if step[0] == "split" for name, _ in step[2])


def _has_experts(arguments: Mapping[str, Any]) -> bool:
    views = arguments.get("views") or []
    of_experts = sum(map(_holds_experts, views))
    return bool(of_experts) and (of_experts < len(views) or len(arguments.get("mesh_dim_names") or ()) > 1)


def _followed(mesh: DeviceMesh, steps: Sequence[_Step]) -> DeviceMesh:
    """Return the mesh after some steps. A slice restricts the following steps, not the mesh."""
    dims = mesh.axis_names
    for kind, *details in steps:
        if kind == "slice":
            dims = tuple(_WORLD if dim == WORLD else dim for dim in details[0])
        elif kind == "flatten":
            name = details[0] or "_".join(dims)
            mesh, dims = (mesh.flatten(*dims, name=name), (name,)) if len(dims) > 1 else (mesh, dims)
        else:
            dim, pairs = details
            axis = dims[dim] if isinstance(dim, int) and -len(dims) <= dim < len(dims) else dim
            sizes = [(name, size.of(mesh.size()) if isinstance(size, WorldSize) else size) for name, size in pairs]
            mesh = mesh.split_axis(axis, sizes)
            dims = tuple(new for old in dims for new in ([name for name, _ in pairs] if old == axis else [old]))
    return mesh


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
    if sum(not _holds_experts(steps) for steps in arguments.get("views") or ()) > 1:
        notes.append("torch: the text splits the mesh in several ways, and the first one was read; paste one of them")
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
    has_experts=_has_experts,
    omissions=_omissions,
)
