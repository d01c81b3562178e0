"""Methods whose code is in a module above their own.

A mesh has `.plot()`, and an error explains its log, but plots are built on meshes, and explanations on errors. Such a
method has its signature and its documentation, and calls `implementation`, which returns the function from above:

    def plot(self, *, ax: Axes | None = None) -> Axes:
        return implementation(Node.plot)(self, ax=ax)

`meshlab._implementations` lists these functions. Importing any module of meshlab imports the list first, and the
function is imported when its method is called. So a module imports only modules below it, also inside functions.
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
