"""Keyword arguments that functions take as ``**arguments``: their types, defaults and place in a signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from meshlab.base._errors import did_you_mean

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Arguments:
    """The types of keyword arguments, as a TypedDict, and the default of each."""

    kinds: Any
    defaults: Mapping[str, Any]

    def check(self, function: str, names: Iterable[str]) -> None:
        """Raise a TypeError for an unknown name, as Python does for a function that lists its arguments."""
        for name in names:
            if name not in self.defaults:
                hint = did_you_mean(name, self.defaults)
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")

    def complete(self, function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments, with the defaults of those that were not passed, or raise for an unknown name."""
        self.check(function, arguments)
        return {**self.defaults, **arguments}

    def shown(self, function: _F) -> _F:
        """Show the arguments in the signature of a function that has them as ``**arguments``."""
        signature = inspect.signature(function)
        *parameters, _ = signature.parameters.values()
        for name, default in self.defaults.items():
            kind = self.kinds.__annotations__[name].__forward_arg__
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function
