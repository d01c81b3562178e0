"""Actions: the edits that the panels of a workbench offer, as functions from a design and a message to a design."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from meshlab.base._collectives import usual_collective
from meshlab.base._errors import MeshError, MeshlabError, ParseError, TopologyError
from meshlab.base._prefixes import lines_by_source
from meshlab.base._units import format_size, parse_size
from meshlab.mesh._axes import nearest_axes
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._job import Job
from meshlab.topology.model._presets import PRESETS, as_cluster
from meshlab.topology.readers._amd_smi import looks_like_amd_smi, read_amd_smi
from meshlab.topology.readers._detect import read
from meshlab.topology.readers._hosts import probe
from meshlab.topology.readers._nvidia_smi import looks_like_nvidia_smi, read_nvidia_smi
from meshlab.widgets import _edits as edits
from meshlab.widgets._edits import Design, MisfitError, Pairs, pairs_text
from meshlab.widgets._jobs import with_field
from meshlab.widgets._machines import DIALS, MOST_DEVICES, Machine
from meshlab.widgets._panels import number_text
from meshlab.widgets._source import cluster_code, python

Content = Mapping[str, Any]

_NUMBER = re.compile(r"(?:1\s*:\s*)?([+-]?\d{1,15}(?:\.\d{1,6})?)")


def act(design: Design, action: str, content: Content, total: int | None) -> tuple[Design, str]:
    """Return the design after an action of the front end, and a remark on it, which is usually empty."""
    if action not in ACTIONS:
        raise MeshError(f"unknown action {action!r}; choose one of {', '.join(ACTIONS)}")
    result = ACTIONS[action](design, content, total)
    return result if isinstance(result, tuple) else (result, "")


def field_of(content: Content) -> str:
    """Return the name of the field that an edit comes from."""
    return str(content.get("where", content.get("action", "")))


def problem_of(design: Design, error: MeshlabError, content: Content) -> dict[str, Any]:
    """Return the content of a field with an invalid edit: the reason, and valid values near it."""
    options: list[tuple[str, dict[str, Any]]] = []
    if isinstance(error, MisfitError):
        options = [(pairs_text(option), {"action": "axes", "axes": option}) for option in error.options]
    elif content.get("action") == "dial" and design.machine is not None and content.get("dial") in DIALS:
        dial = str(content["dial"])
        number = _NUMBER.fullmatch(str(content.get("value", "")).replace(",", "").strip())
        target = float(number[1]) if number is not None else float(design.machine.values[dial] or 1)
        options = [
            (number_text(dial, value), {"action": "dial", "dial": dial, "value": number_text(dial, value)})
            for value in design.machine.nearest(dial, target)
        ]
    return {
        "where": field_of(content),
        "edit": int(content.get("edit", 0)),
        "text": _sentence(error),
        "value": str(content.get("value", content.get("text", ""))),
        "options": [[label, edit] for label, edit in options[: edits.MOST_OPTIONS]],
    }


def _sentence(error: MeshlabError) -> str:
    if isinstance(error, ParseError) and error.hint:
        return f"{error.message}. {error.hint[0].upper()}{error.hint[1:]}."
    return error.summary


# -- the mesh ----------------------------------------------------------------------------------------------------------


def _with_pairs(design: Design, pairs: Pairs | None, renamed: Mapping[str, str] = MappingProxyType({})) -> Design:
    return design if pairs is None else design.with_mesh(edits.rebuilt(design.mesh, pairs, renamed))


def _step(design: Design, content: Content, total: int | None) -> Design:
    by = 1 if _integer(content, "by") > 0 else -1
    return _with_pairs(design, edits.step_axis(edits.pairs_of(design.mesh), str(content["axis"]), by, design.rest))


def _size(design: Design, content: Content, total: int | None) -> Design:
    axis, pairs = str(content["axis"]), edits.pairs_of(design.mesh)
    size = _whole(content, f"the size of {axis}")
    product = design.mesh.world_size if total is not None else None
    try:
        return _with_pairs(design, edits.type_size(pairs, axis, size, product, design.rest))
    except MisfitError:
        if total is None or total == product:
            raise
        return _with_pairs(design, edits.type_size(pairs, axis, size, total, design.rest))


def _axes(design: Design, content: Content, total: int | None) -> Design:
    pairs = tuple((str(name), int(size)) for name, size in content["axes"])
    return _with_pairs(design, pairs)


def _move(design: Design, content: Content, total: int | None) -> Design:
    pairs = edits.pairs_of(design.mesh)
    return _with_pairs(design, edits.move_axis(pairs, str(content["axis"]), _integer(content, "to")))


def _rename(design: Design, content: Content, total: int | None) -> Design:
    old, new = str(content["axis"]), str(content["value"]).strip()
    pairs = edits.rename_axis(edits.pairs_of(design.mesh), old, new)
    calls = {new if axis == old else axis: call for axis, call in design.per_axis.items()}
    mesh = edits.rebuilt(design.mesh, pairs, {old: new})
    rest = new if design.rest == old else design.rest
    return replace(design, rest=rest, per_axis=MappingProxyType(calls)).with_mesh(mesh)


def _add(design: Design, content: Content, total: int | None) -> Design:
    pairs = edits.pairs_of(design.mesh)
    name = str(content.get("name") or edits.free_names(pairs)[0])
    return _with_pairs(design, edits.add_axis(pairs, name))


def _remove_axis(design: Design, content: Content, total: int | None) -> Design:
    pairs = edits.pairs_of(design.mesh)
    return _with_pairs(
        design, edits.remove_axis(pairs, str(content["axis"]), design.rest, keeps_product=total is not None)
    )


def _rest(design: Design, content: Content, total: int | None) -> Design:
    axis = edits.check_rest(str(content["axis"]), design.mesh)
    return replace(design, rest="" if design.rest == axis else axis)


def _paste(design: Design, content: Content, total: int | None) -> tuple[Design, str]:
    mesh, note = edits.paste_mesh(str(content["text"]), total)
    return design.with_mesh(mesh), note


def _use_all(design: Design, content: Content, total: int | None) -> Design:
    if total is None or design.mesh.world_size == total:
        return design
    pairs = edits.pairs_of(design.mesh)
    other = edits.rest_axis(pairs, "", design.rest)
    assert other is not None  # a mesh has an axis
    try:
        return _with_pairs(design, edits.type_size(pairs, other, -1, total))
    except MisfitError:
        names, sizes = zip(*pairs, strict=True)
        return _with_pairs(design, nearest_axes(names, sizes, total, most=1)[0])


# -- the machine -------------------------------------------------------------------------------------------------------


def _preset(design: Design, content: Content, total: int | None) -> Design:
    """Choose a preset. It gets the number of hosts of the present machine if there are several."""
    machine = Machine.of(str(content["name"]))
    before = design.machine
    hosts = before.whole.n_nodes if before is not None else 1
    if hosts > 1:
        least = PRESETS[machine.name].nodes
        machine = machine.turned("nodes", max(hosts, least))
    return design.with_machine(machine)


def _dial(design: Design, content: Content, total: int | None) -> Design:
    dial = str(content["dial"])
    if dial not in DIALS:
        raise TopologyError(f"unknown dial {dial!r}", hint=f"choose one of {', '.join(DIALS)}")
    label = DIALS[dial].label
    value: int | float = _number(content, label) if dial == "taper" else _whole(content, label)
    if value < DIALS[dial].least:
        raise TopologyError(f"{label} must be at least {DIALS[dial].least}, not {value:g}")
    return design.with_machine(design.present_machine.turned(dial, value))


def _turn(design: Design, content: Content, total: int | None) -> Design:
    dial, machine = str(content["dial"]), design.present_machine
    less, more = machine.steps(dial)
    value = more if _integer(content, "by") > 0 else less
    return design if value is None else design.with_machine(machine.turned(dial, value))


def _hosts(design: Design, content: Content, total: int | None) -> Design:
    """Change a number of some hosts: those of `nodes`, or all that are like one host."""
    machine, dial = design.present_machine, str(content["dial"])
    value = _whole(content, DIALS[dial].label if dial in DIALS else dial)
    if content.get("nodes") is not None:
        names = [str(name) for name in content["nodes"]]
    else:
        cluster = machine.whole
        kind = cluster.kinds[cluster.node_index(str(content["like"]))]
        names = [cluster.names[index] for index in np.flatnonzero(cluster.kinds == kind).tolist()]
    return design.with_machine(machine.with_hosts(names, dial, value))


def _copy_host(design: Design, content: Content, total: int | None) -> Design:
    count = _integer(content, "count") if "count" in content else 1
    return design.with_machine(design.present_machine.with_copies(str(content["like"]), count))


def _this_host(design: Design, content: Content, total: int | None) -> Design:
    here = probe()
    if not here.n_devices:
        raise TopologyError("this host has no GPU: the kernel runs on a machine without one")
    return design.with_machine(Machine(here, "ml.probe()"))


def _paste_machine(design: Design, content: Content, total: int | None) -> tuple[Design, str]:
    """Use a pasted description. One that lists hosts without GPUs, as Slurm does, gets the hosts of the machine."""
    text = str(content["text"])
    if not text.strip():
        raise TopologyError(
            "nothing pasted",
            hint="paste the output of nvidia-smi topo -m, rocm-smi --showtopo or amd-smi topology, a topology XML of "
            "NCCL, or a topology.conf of Slurm",
        )
    note, source = "", f"ml.topology.read({python(text)})"
    bare = lines_by_source(text)
    tools = ((looks_like_amd_smi, read_amd_smi), (looks_like_nvidia_smi, read_nvidia_smi))
    reader = next((read_tool for looks_like, read_tool in tools if looks_like(bare)), None)
    if reader is not None and (cluster := reader(bare, machine="all")).n_nodes > 1:  # of each host
        source = f'ml.topology.{reader.__name__}({python(bare)}, machine="all")'
    else:
        cluster = as_cluster(text.strip() if text.strip() in PRESETS else read(text))
    if not cluster.n_devices:
        before = design.machine
        if before is None or not before.whole.n_devices:
            raise TopologyError("the description lists hosts, but no GPUs", hint="choose a preset for the hosts first")
        host = max(before.whole.templates, key=lambda template: len(template.devices))
        cluster = replace(cluster, templates=(host,), kinds=cluster.kinds * 0, title=before.whole.title)
        note = f"The description lists no GPUs, so the hosts are those of {before.whole.title or host.name}."
        source = ""
    if cluster.n_devices > MOST_DEVICES:
        raise TopologyError(f"{cluster.n_devices:,} GPUs exceed the limit of {MOST_DEVICES:,}")
    machine = Machine.of(cluster)
    if not machine.name:
        machine = Machine(cluster, source or cluster_code(cluster))
    return design.with_machine(machine), note


def _parts(content: Content) -> list[str]:
    """Return the names of the parts of a message: one, or several that change together."""
    parts = content.get("parts")
    names = [content.get("part")] if parts is None else list(parts)
    return [str(name) for name in names if name is not None]


def _fail(design: Design, content: Content, total: int | None) -> Design:
    return design.with_machine(design.present_machine.without(*_parts(content)))


def _remove(design: Design, content: Content, total: int | None) -> Design:
    return design.with_machine(design.present_machine.without(*_parts(content), is_removed=True))


def _restore(design: Design, content: Content, total: int | None) -> Design:
    return design.with_machine(design.present_machine.restored(*_parts(content)))


def _rate(design: Design, content: Content, total: int | None) -> Design:
    rate = str(content["value"]).strip()
    return design.with_machine(design.present_machine.with_rate(*_parts(content), rate=rate))


# -- messages, candidates ----------------------------------------------------------------------------------------------


def _message_step(design: Design, content: Content, total: int | None) -> Design:
    size, by = parse_size(design.size), _integer(content, "by")
    return replace(design, size=_short_size(min(size * 2, 1 << 40) if by > 0 else max(size // 2, 1)))


def _call(design: Design, content: Content, total: int | None) -> Design:
    axis = str(content["axis"])
    before = design.per_axis.get(axis, (usual_collective(axis), design.size))
    collective = str(content.get("collective") or before[0])
    size = _short_size(parse_size(str(content["value"]))) if content.get("value") else before[1]
    calls = {**design.per_axis, axis: (collective, size)}
    if (collective, parse_size(size)) == (usual_collective(axis), parse_size(design.size)):
        del calls[axis]
    return replace(design, per_axis=MappingProxyType(calls))


# -- the job -----------------------------------------------------------------------------------------------------------


def _job(design: Design, content: Content, total: int | None) -> Design:
    """Choose a model, or none."""
    name = str(content["name"])
    return design.with_job(Job.preset(name) if name else None)


def _job_field(design: Design, content: Content, total: int | None) -> Design:
    if design.job is None:
        raise MeshError("there is no job; choose a model first")
    changes = content.get("fields") or [(content["field"], content["value"])]
    job = design.job
    for name, value in changes:
        job = with_field(job, str(name), str(value))
    return design.with_job(job)


def _experts(design: Design, content: Content, total: int | None) -> Design:
    text = str(content["value"]).strip()
    return replace(design, experts=edits.check_experts(text, design.mesh))


def _layout(design: Design, content: Content, total: int | None) -> Design:
    """Use a layout that a search has found: the mesh, the expert layout, and the chunks per stage."""
    if design.job is None:
        raise MeshError("there is no job; choose a model first")
    mesh = edits.check_fit(DeviceMesh(str(content["mesh"])), design.machine)
    experts, interleave = str(content.get("experts", "")), _integer(content, "interleave")
    job = design.job if design.job.interleave == interleave else design.job.replace(interleave=interleave)
    return design.with_job(job).with_mesh(mesh, experts=edits.check_experts(experts, mesh))


# The edits of the front end by name. Arguments: the design, the message, and the number of ranks of a mesh or None.
ACTIONS: Mapping[str, Callable[[Design, Content, int | None], Design | tuple[Design, str]]] = MappingProxyType(
    {
        "step": _step,
        "size": _size,
        "axes": _axes,
        "move": _move,
        "rename": _rename,
        "add": _add,
        "remove_axis": _remove_axis,
        "rest": _rest,
        "template": lambda design, content, total: design.with_mesh(DeviceMesh(str(content["text"]))),
        "paste": _paste,
        "use_all": _use_all,
        "preset": _preset,
        "dial": _dial,
        "turn": _turn,
        "this_host": _this_host,
        "paste_machine": _paste_machine,
        "fail": _fail,
        "rate": _rate,
        "hosts": _hosts,
        "copy_host": _copy_host,
        "remove": _remove,
        "restore": _restore,
        "message": lambda design, content, total: replace(design, size=_short_size(parse_size(str(content["value"])))),
        "message_step": _message_step,
        "call": _call,
        "pin": lambda design, content, total: design.with_pin(),
        "unpin": lambda design, content, total: replace(design, pinned=None),
        "job": _job,
        "job_field": _job_field,
        "experts": _experts,
        "layout": _layout,
        "swap": lambda design, content, total: design.swapped(),
    }
)


# -- numbers -----------------------------------------------------------------------------------------------------------


def _number(content: Content, label: str) -> float:
    text = str(content["value"]).replace(",", "").strip()
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise MeshError(f"{label} must be a number, not {text!r}")
    return float(match[1])


def _whole(content: Content, label: str) -> int:
    number = _number(content, label)
    if not number.is_integer():
        raise MeshError(f"{label} must be an integer, not {number:g}")
    return int(number)


def _integer(content: Content, name: str) -> int:
    value = content.get(name)
    if not isinstance(value, int):
        raise MeshError(f"{name} must be an integer, not {value!r}")
    return value


def _short_size(size: int) -> int | str:
    """Return a size such as "256M", which reads better in code than 268435456."""
    text = format_size(size)
    number, _, unit = text.partition("\N{THIN SPACE}")
    short = number + unit.removesuffix("iB").removesuffix("B")
    return short if parse_size(short) == size else size
