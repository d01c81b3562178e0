"""The command that repeats a measurement."""

from __future__ import annotations

import shlex

from meshlab.base._units import parse_sizes
from meshlab.plans._options import OPTIONS
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling
from meshlab.runs._rundata import RunData

_LIBRARIES = ("NCCL_", "MPIR_CVAR_", "UCX_")
_SAMPLINGS = ("quick", "default", "thorough")


def repeat_command(run: RunData) -> str:
    """Return a shell command that measures the same again, or Python code if the command line cannot."""
    plan, mesh = run.plan, run.mesh
    sampling = next((name for name in _SAMPLINGS if Sampling.named(name) == plan.sampling), None)
    options = any(getattr(plan, name) not in (default, (default,)) for name, default in OPTIONS.items())
    is_simple = mesh.in_order and not mesh.custom_groups and plan.root == 0 and plan.check
    if plan.functions or plan.calls or options or sampling is None or not is_simple or len(plan.in_place) > 1:
        return f'ml.bench(ml.launch({mesh.world_size}, backend="{run.source}"), run.mesh, run.plan).wait()'
    words = [
        "meshlab",
        "bench",
        *plan.collective,
        "--mesh",
        ", ".join(f"{axis.name}={axis.size}" for axis in mesh.axes),
    ]
    words += ["--axis", ",".join(plan.axis), "--sizes", _sizes(plan.sizes)]
    defaults = Plan("all_reduce", plan.axis)  # a plan of send alone would be refused, because it needs pairs
    for name in ("dtype", "op", "mode", "grouping"):
        value = tuple(str(part) for part in getattr(plan, name))
        if value != tuple(str(part) for part in getattr(defaults, name)):
            words += [f"--{name}", ",".join(value)]
    words += ["--in-place"] * plan.in_place[0]
    for axis, collective in plan.concurrent:
        words += ["--concurrent", f"{axis}={collective}"]
    words += ["--launches", str(plan.launches)] if plan.launches > 1 else []
    words += ["--shuffle", "--seed", str(plan.seed)] if plan.shuffle else []
    words += ["--sampling", sampling] if sampling != "default" else []
    words += ["--backend", run.source]
    return with_settings(run, shlex.join(words))


def with_settings(run: RunData, command: str) -> str:
    """Return a shell command that runs with the settings of the communication library that a run had."""
    variables = run.attrs.get("environment") or {}
    settings = [f"{name}={shlex.quote(str(value))}" for name, value in variables.items() if name.startswith(_LIBRARIES)]
    return " ".join([*settings, command])


def _sizes(sizes: tuple[int, ...]) -> str:
    """Write sizes as a range, if they are one."""
    first, last = _short(sizes[0]), _short(sizes[-1])
    if len(sizes) > 1 and parse_sizes(f"{first}:{last}") == sizes:
        return f"{first}:{last}"
    return ",".join(map(_short, sizes))


def _short(size: int) -> str:
    for power, unit in ((3, "G"), (2, "M"), (1, "K")):
        if size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)
