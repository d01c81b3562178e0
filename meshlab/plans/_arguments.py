"""The arguments of a plan: their types and defaults, and the signature of functions that pass them on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from meshlab.base._arguments import Arguments
from meshlab.comm._elements import ReduceOp
from meshlab.plans._options import OPTIONS, OptionArguments
from meshlab.plans._sampling import Sampling


class PlanArguments(OptionArguments, total=False):
    """The arguments of a plan after its sizes, each with one value or several. `Plan` documents them."""

    dtype: str | Sequence[str]
    op: str | ReduceOp | Sequence[str | ReduceOp]
    mode: str | Sequence[str]
    in_place: bool | Sequence[bool]
    root: int
    sampling: Sampling | str | None
    check: bool
    grouping: str | Sequence[str]
    concurrent: Mapping[str, str] | Sequence[tuple[str, str]]
    launches: int
    shuffle: bool
    seed: int


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "dtype": "float32",
        "op": "sum",
        "mode": "pipelined",
        "in_place": False,
        "root": 0,
        "sampling": None,
        "check": True,
        "grouping": "together",
        "concurrent": (),
        "launches": 1,
        "shuffle": False,
        "seed": 0,
        **OPTIONS,
    }
)
"""The default of each of these arguments."""


_ARGUMENTS = Arguments(PlanArguments, DEFAULTS)
check_arguments, takes_plan_arguments = _ARGUMENTS.check, _ARGUMENTS.shown


def add_documentation(plan: type, function: Callable[..., Any]) -> None:
    """Document the arguments that a function passes to a plan in the same words, so that `help` shows them."""
    # `python -OO` removes docstrings.
    if plan.__doc__ and function.__doc__:
        entries = inspect.cleandoc(plan.__doc__).partition("\nsizes : ")[2].partition("\nfunctions : ")[0]
        before, _, after = inspect.cleandoc(function.__doc__).partition("sizes, **arguments\n")
        function.__doc__ = f"{before}sizes : {entries}\n{after.partition(chr(10))[2]}"
