"""Methods whose code is in a module above their own, such as `.plot()`.

Such a method has its signature and its documentation, and calls the function from above:

    def plot(self, *, ax: Axes | None = None) -> Axes:
        return implementation(Node.plot)(self, ax=ax)

`meshlab._implementations`, which any import of meshlab imports, lists these functions. They are imported when their
method is called, so a module imports only modules below it, also inside functions.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

targets: dict[str, str] = {}
"""The module and the name of the implementation of each method. Names of classes are unique in meshlab."""


def implementation(method: Callable[P, R]) -> Callable[P, R]:
    """Return the function that implements a method. Its first parameter is the ``self`` of the method."""
    function: Callable[P, R] = resolve_name(f"meshlab.{targets[method.__qualname__]}")
    return function
