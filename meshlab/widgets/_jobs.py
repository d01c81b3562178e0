"""The job of a workbench: its fields, its step on the layout on the screen, and the layouts that a search finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from meshlab.base._errors import MeshError, MeshlabError
from meshlab.base._hints import Advice, Argument, Hint
from meshlab.base._units import THIN
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._job import Job
from meshlab.prediction._models import MODELS, LatentAttention
from meshlab.prediction._search import Layouts, search
from meshlab.prediction._step_parts import CAVEAT, range_text, seconds_text
from meshlab.prediction._step_time import StepTime, step_time
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.placement._placement import Placement
from meshlab.widgets._source import python

_MOST_LAYOUTS = 8
_CUSTOM = "custom, from "


class Field(NamedTuple):
    """A field of the panel: its label, and its values if it is a choice."""

    label: str
    choices: tuple[str, ...] = ()
    is_model: bool = False  # an argument of the architecture, which a preset has from a publication
    needs_experts: bool = False
    most: float = 0.0  # of a slider from 0 on, 0 for a field to type in


# The fields of the panel by the argument of `Job` that they set.
FIELDS: Mapping[str, Field] = {
    "global_batch": Field("Batch, sequences"),
    "micro_batch": Field("Micro-batch"),
    "sequence": Field("Sequence, tokens"),
    "dtype": Field("Precision", ("bfloat16", "float16", "float32", "float8_e4m3fn")),
    "recompute": Field("Recomputation", ("none", "selective", "full")),
    "zero": Field("ZeRO stage", ("0", "1", "2", "3")),
    "interleave": Field("Chunks per stage"),
    "skew": Field("Skew of experts", needs_experts=True, most=2.0),
    "layers": Field("Layers", is_model=True),
    "hidden": Field("Hidden size", is_model=True),
    "heads": Field("Heads", is_model=True),
    "kv_heads": Field("KV heads", is_model=True),
    "ffn_hidden": Field("FFN size", is_model=True),
    "vocabulary": Field("Vocabulary", is_model=True),
    "experts": Field("Experts", is_model=True),
    "top_k": Field("Experts per token", is_model=True, needs_experts=True),
    "expert_hidden": Field("Expert size", is_model=True, needs_experts=True),
}

_ARCHITECTURE = (
    *("layers", "hidden", "heads", "kv_heads", "head_size", "latent", "ffn_hidden", "gated", "vocabulary", "tied"),
    *("experts", "top_k", "expert_hosts", "expert_hidden", "shared_experts", "dense_layers"),
)


# -- values ------------------------------------------------------------------------------------------------------------


def as_job(value: Any) -> Job | None:
    """Return a job, the job of the name of a model, or None."""
    if value is None or isinstance(value, Job):
        return value
    if isinstance(value, str):
        return Job.preset(value)
    raise MeshError(f"job must be a Job or the name of a model, not {value!r}", hint="see ml.Job.preset")


def model_of(job: Job) -> str:
    """Return the name of the preset that a job was made from, or an empty string."""
    title = job.name.removeprefix(_CUSTOM)
    return next((name for name, model in MODELS.items() if model.title == title), "")


def with_model(job: Job | None, name: str) -> Job | None:
    """Return the job of a preset, which keeps how the present job trains. None for no model."""
    return None if not name else Job.preset(name)


def with_field(job: Job, name: str, text: str) -> Job:
    """Return the job with a field of the panel as typed by hand."""
    if name not in FIELDS:
        raise MeshError(f"unknown field {name!r} of a job; choose one of {', '.join(FIELDS)}")
    field = FIELDS[name]
    typed = text.replace(",", "").replace("\N{THIN SPACE}", "").strip()
    if field.choices and typed not in field.choices:
        raise MeshError(f"{field.label} must be one of {', '.join(field.choices)}, not {text!r}")
    value: Any = typed
    if field.most:
        value = _number(field, typed, text)
    elif not field.choices or name == "zero":
        if not typed.isdecimal() or len(typed) > 15:
            raise MeshError(f"{field.label} must be a positive integer, not {text!r}")
        value = int(typed)
    changes: dict[str, Any] = {name: value}
    if name == "dtype" and job.dispatch_dtype == job.dtype:
        changes["dispatch_dtype"] = value
    if name in ("hidden", "heads") and job.head_size and job.head_size * job.heads == job.hidden:
        changes["head_size"] = None
    if name == "heads" and job.kv_heads == job.heads:
        changes["kv_heads"] = value
    if name == "experts" and value and not job.experts and (job.top_k or 0) > value:
        changes["top_k"] = value
    return _renamed(job.replace(**changes))


def _number(field: Field, typed: str, text: str) -> float:
    """Return the number of a slider."""
    try:
        number = float(typed)
    except ValueError:
        number = -1.0
    if not 0 <= number <= field.most:
        raise MeshError(f"{field.label} must be a number from 0 to {field.most:g}, not {text!r}")
    return number


def _renamed(job: Job) -> Job:
    """Return a job whose name tells whether its architecture is the published one."""
    model = model_of(job)
    if not model:
        return job
    preset = Job.preset(model)
    is_same = all(getattr(job, name) == getattr(preset, name) for name in _ARCHITECTURE)
    name = preset.name if is_same else f"{_CUSTOM}{preset.name}"
    return job if name == job.name else job.replace(name=name)


def job_code(job: Job) -> str:
    """Return an expression for a job: a preset with the changed arguments, if it was made from one."""
    model = model_of(job)
    base = Job.preset(model) if model else None
    parts = [] if base is None else [python(model)]
    for field in fields(Job):
        value = getattr(job, field.name)
        default = field.default if base is None else getattr(base, field.name)
        is_derived = field.name in ("parameters", "active_parameters")
        if is_derived or value == default or (field.name == "dispatch_dtype" and value == job.dtype and base is None):
            continue
        parts.append(f"{field.name}={_value_code(value)}")
    return f"ml.Job{'.preset' if base else ''}({', '.join(parts)})"


def _value_code(value: Any) -> str:
    if isinstance(value, LatentAttention):
        return f"ml.prediction.LatentAttention({', '.join(map(python, value))})"
    return python(value)


# -- the step ----------------------------------------------------------------------------------------------------------


class JobStep(NamedTuple):
    """The step of a job on a layout, or why there is none."""

    time: StepTime | None
    problem: str = ""
    fix: str = ""


def step_of(job: Job, placement: Placement | None, experts: str) -> JobStep:
    """Return the step of a job on a mesh on a machine."""
    if placement is None:
        return JobStep(None, "a step needs a mesh on a machine")
    try:
        return JobStep(step_time(job, placement, experts=experts or None))
    except MeshlabError as error:
        return JobStep(None, error.message, error.hint or "")


def _arguments(hint: str | None) -> list[Argument]:
    return [part for part in hint.parts if isinstance(part, Argument)] if isinstance(hint, Hint) else []


def _edits_of(hint: str) -> list[list[str]]:
    """Return the edits that follow a hint, none if it has no values for fields of the panel."""
    parts = [part for part in _arguments(hint) if part.value is not None]
    return [[part.name, str(part.value)] for part in parts if part.name in FIELDS]


def _in_fields(hint: str) -> str:
    """Return a hint in the words of the panel: "set ZeRO stage 3" instead of "pass zero=3"."""

    def words(part: Argument | Advice) -> str:
        if not isinstance(part, Argument) or part.name not in FIELDS:
            return str(part)
        return f"{FIELDS[part.name].label} {'' if part.value is None else part.value}".strip()

    text = hint.reworded(words) if isinstance(hint, Hint) else hint
    return f"set {text[5:]}" if text.startswith("pass ") else text


def fitting_experts(experts: str, mesh: DeviceMesh) -> str:
    """Return an expert layout if it has the ranks of a mesh, else an empty string."""
    if not experts:
        return ""
    try:
        mesh.view(experts)
    except MeshlabError:
        return ""
    return experts


def step_lines(step: JobStep, experts: str = "") -> list[str]:
    """Return the step as text."""
    if step.time is None:
        return [f"step: {step.problem}{f' ({_in_fields(step.fix)})' if step.fix else ''}"]
    lines = step.time.explain().splitlines()
    lines[0] = f"step: {lines[0]}"
    return [*lines[:-1], *([f"  experts on {experts}"] if experts else []), step.time.limit, lines[-1]]


# -- the search --------------------------------------------------------------------------------------------------------


class Search(NamedTuple):
    """The layouts of a job on a machine, or why there are none."""

    job: Job
    cluster: Cluster
    layouts: Layouts | None
    note: str = ""

    def suits(self, job: Job | None, cluster: Cluster | None) -> bool:
        """Return whether the layouts are those of a job on a machine. The chunks per stage belong to a layout."""
        if job is None or self.cluster is not cluster:
            return False
        return job == self.job or job.replace(interleave=self.job.interleave) == self.job


def find_layouts(job: Job, cluster: Cluster, world_size: int) -> Search:
    """Search the layouts on all devices or, if there are none, on fewer: as the error or the mesh suggests."""
    total = cluster.n_devices
    try:
        return Search(job, cluster, search(cluster, job))
    except MeshlabError as error:
        reason = str(error)
        sizes = [part.value for part in _arguments(error.hint) if part.name == "world_size"]
    sizes += [world_size, 1 << (max(total, 1).bit_length() - 1)]
    for ranks in dict.fromkeys(int(size) for size in sizes if size and 0 < int(size) < total):
        try:
            layouts = search(cluster, job, world_size=ranks)
        except MeshlabError:
            continue
        return Search(job, cluster, layouts, f"On {ranks:,} of {total:,} GPUs, because none fits on all")
    return Search(job, cluster, None, reason)


# -- the panel ---------------------------------------------------------------------------------------------------------


def job_panel(
    job: Job | None,
    experts: str,
    step: JobStep | None,
    listing: Search | None,
    mesh: DeviceMesh,
    routing: str | None,
) -> dict[str, Any]:
    """Return the content of the job panel. `routing` is markup, None without experts."""
    model = "" if job is None else model_of(job)
    return {
        "models": [[name, facts.title] for name, facts in MODELS.items()],
        "model": model,
        "title": "" if job is None else job.title,
        "about": "" if job is None else about(job),
        "source": _source(model),
        "fields": [] if job is None else [_field(job, name, model) for name in FIELDS if _is_shown(job, name)],
        "experts": experts if job is not None and job.experts else None,
        "step": None if step is None else _pack_step(step),
        "routing": routing,
        "search": None if listing is None else _pack_search(listing, mesh, experts),
    }


def about(job: Job) -> str:
    """Return the parameters and tokens of a job in one line."""
    active = f", {job.active_parameters / 1e9:.3g} B per token" if job.experts else ""
    return f"{job.n_parameters / 1e9:.3g} B parameters{active}, {job.tokens / 1e6:.3g} M tokens per step"


def _source(model: str) -> str:
    if not model:
        return ""
    facts = MODELS[model]
    active = f" ({facts.active:g} B per token)" if facts.active != facts.parameters else ""
    return f"Published: {facts.parameters:g} B parameters{active}. {facts.source}"


def _is_shown(job: Job, name: str) -> bool:
    field = FIELDS[name]
    if field.needs_experts or name == "experts":
        return job.experts > 0
    return not (name == "ffn_hidden" and job.moe_layers == job.layers)


def _field(job: Job, name: str, model: str) -> dict[str, Any]:
    """Return a field with its origin: published, chosen by meshlab, or changed."""
    field, value = FIELDS[name], getattr(job, name)
    note = _skew_note(job) if name == "skew" else ""
    if model and not note:
        facts, preset = MODELS[model], getattr(Job.preset(model), name)
        if value != preset:
            note = f"{'published' if name in facts.fields and name not in facts.chosen else 'preset'}: {_text(preset)}"
        elif name in facts.chosen:
            note = "chosen by meshlab"
        elif name in facts.fields:
            note = "published"
    return {
        "name": name,
        "label": field.label,
        "value": _text(value),
        "choices": list(field.choices),
        "slider": {"type": "range", "min": 0, "max": field.most, "step": 0.1} if field.most else {},
        "is_model": field.is_model,
        "note": note,
    }


def _skew_note(job: Job) -> str:
    """Return the value beside the slider, which does not have it."""
    return "measured" if isinstance(job.skew, tuple) else f"Zipf {job.skew:g}" if job.skew else "balanced"


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "0" if isinstance(value, tuple) else str(value)


def _pack_step(step: JobStep) -> dict[str, Any]:
    time = step.time
    if time is None:
        edits = _edits_of(step.fix) if len(_arguments(step.fix)) == 1 else []  # several are alternatives
        return {"problem": step.problem, "fix": _in_fields(step.fix), "edits": edits}
    most = max(time.high_s, time.compute_s + time.bubble_s + time.exposed_s[1])
    memory = time.memory
    parts = [
        {
            "name": name,
            "label": label,
            "low": value / most,
            "high": value / most,
            "text": seconds_text(value),
            "why": why,
        }
        for name, label, value, why in (
            ("compute", "computation", time.compute_s, _compute_words(time)),
            ("bubble", "bubble", time.bubble_s, f"{time.micro_batches:,} micro-batches"),
        )
        if value > 0
    ]
    parts += [
        {
            "name": axis.name,
            "label": axis.name,
            "low": axis.low_s / most,
            "high": axis.high_s / most,
            "text": range_text(axis.low_s, axis.high_s),
            "why": axis.limit,
        }
        for axis in time.axes
    ]
    named = ("weights", "gradients", "optimizer", "activations", "other")
    low, high = time.mfu
    return {
        "problem": "",
        "time": f"{range_text(time.low_s, time.high_s)} per step",
        "mfu": f"{100 * low:.0f} to {100 * high:.0f}{THIN}% of the peak",
        "memory": f"{_gib(memory.total)} of {_gib(time.memory_limit)} per GPU",
        "memory_parts": [
            [name, getattr(memory, name) / time.memory_limit, _gib(getattr(memory, name))] for name in named
        ],
        "fits": time.fits,
        "fix": _in_fields(time.memory_fix),
        "edits": _edits_of(time.memory_fix),
        "limit": time.limit,
        "parts": parts,
        "caveat": CAVEAT,
    }


def _compute_words(time: StepTime) -> str:
    return time.hardware.rate_text


def _pack_search(listing: Search, mesh: DeviceMesh, experts: str) -> dict[str, Any]:
    if listing.layouts is None:
        return {"rows": [], "note": listing.note, "more": ""}
    layouts, frame = listing.layouts, listing.layouts.frame(_MOST_LAYOUTS)
    rows = []
    most = float(frame["step_s_hi"].max())
    for i, row in frame.iterrows():
        on = str(row["experts"]) if listing.job.experts else ""
        chunks = int(row["interleave"])
        rows.append(
            {
                "mesh": str(row["mesh"]),
                "experts": on,
                "interleave": chunks,
                "place": int(row["tie"]) + 1,
                "step": range_text(row["step_s_lo"], row["step_s_hi"]),
                "low": float(row["step_s_lo"]) / most,
                "high": float(row["step_s_hi"]) / most,
                "memory": f"{row['memory_gib']:.0f}{THIN}GiB{'' if row['memory'] == 'fits' else ', ' + row['memory']}",
                "shown": layouts.mesh(int(i)) == mesh and on == experts,  # type: ignore[call-overload]
            }
        )
    count = len(layouts)
    tied = layouts.n_tied
    ties = f"{tied:,} tied for the first place" if tied > 1 else "one is first"
    fitting = int((layouts.frame()["memory"] != "over").sum())
    more = f"{count:,} layout{'s' * (count != 1)}, of which {fitting:,} fit the memory; {ties}"
    return {"rows": rows, "note": listing.note, "more": more}


def search_lines(listing: Search) -> list[str]:
    """Return the first layouts as text."""
    if listing.layouts is None:
        return [f"search: {listing.note}"]
    return ["layouts:", *([listing.note] if listing.note else []), listing.layouts.summary(5)]


def _gib(size: float) -> str:
    return f"{size / 2**30:.0f}{THIN}GiB" if size >= 9.5 * 2**30 else f"{size / 2**30:.1f}{THIN}GiB"
