"""The syntax trees of the files of meshlab, for the tests of its source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from meshlab.base._garbage import collector_paused


@cache
def tree_of(path: Path) -> ast.Module:
    # Up to Python 3.11.7, a parser fails if the collector runs a finalizer that lets another thread parse
    # (https://github.com/python/cpython/issues/106905).
    with collector_paused():
        return ast.parse(path.read_text(encoding="utf-8"))
