"""What the commands share: exit codes, and how they speak."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meshlab.errors import MeshError

if TYPE_CHECKING:
    from meshlab.mesh.mesh import DeviceMesh

__all__ = ["BAD_INPUT", "GOOD", "INTERRUPTED", "WRONG", "lay", "say", "warnings_as_sentences"]

GOOD, WRONG, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def say(text: object) -> None:
    """Print at once, also into a pipe: some lines are minutes apart."""
    print(text, flush=True)


def lay(text: str, n: int | None) -> DeviceMesh:
    """Read a mesh; what is wrong is told in the words of the command line."""
    from meshlab.mesh.mesh import DeviceMesh

    try:
        return DeviceMesh(text, world_size=n)
    except MeshError as error:
        raise MeshError(re.sub(r"world_size=(\d*)", lambda found: f"--ranks {found[1] or 'N'}", str(error))) from None


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print warnings as all else that is said on standard error, without a place in the code."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"meshlab: {message}", file=sys.stderr)
        yield
