"""Functions that take keyword arguments as ``**arguments``: their signature for `help`, and the error for others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from meshlab.base._errors import did_you_mean

_F = TypeVar("_F", bound=Callable[..., Any])


def lists_keywords(types: type, defaults: Mapping[str, Any]) -> Callable[[_F], _F]:
    """Return a decorator that lists the keywords of `defaults` in a signature, with their annotations in `types`."""

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        *parameters, _ = signature.parameters.values()
        for name, default in defaults.items():
            kind = types.__annotations__[name].__forward_arg__
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate


def check_keywords(function: str, names: Iterable[str], keywords: Mapping[str, Any]) -> None:
    """Raise a TypeError for an unknown name, as Python does for a function that lists its arguments."""
    for name in names:
        if name not in keywords:
            hint = did_you_mean(name, keywords)
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
