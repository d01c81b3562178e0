"""User-defined functions that have an expected result, so that what they return can be checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshlab.base._errors import BenchError
from meshlab.plans._steps import Function


@dataclass(frozen=True, slots=True)
class CheckedFunction:
    """A function to time, and one that returns what it has to return on a rank."""

    function: Function
    expected: Function

    @property
    def __name__(self) -> str:
        return name_of(self.function)

    def __call__(self, comm: Any) -> Any:
        return self.function(comm)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, with which its rows are marked."""
    return str(getattr(function, "__name__", type(function).__name__))


def with_expected(collective: Any, expected: Function | Mapping[str, Function] | None) -> Any:
    """Return the collectives of a plan, whose functions have expected results."""
    if expected is None:
        return collective
    single = collective is None or isinstance(collective, str) or callable(collective)
    parts: list[Any] = [collective] if single else list(collective or ())
    functions = [part for part in parts if callable(part)]
    by_name = expected if isinstance(expected, Mapping) else dict.fromkeys(map(name_of, functions), expected)
    if len(functions) != 1 and not isinstance(expected, Mapping):
        raise BenchError(
            f"expected is one function, but there are {len(functions)} functions to measure",
            hint="pass a mapping from their names to functions that return the expected results",
        )
    if unknown := [name for name in by_name if name not in map(name_of, functions)]:
        raise BenchError(f"expected has a result for {unknown[0]!r}, which is no function to measure")
    checked = [
        CheckedFunction(part, by_name[name_of(part)]) if callable(part) and name_of(part) in by_name else part
        for part in parts
    ]
    return checked[0] if single else checked
