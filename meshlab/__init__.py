"""Explore GPU collectives in notebooks: design a mesh, plot it, verify its groups, benchmark it, share a report.

>>> import meshlab as ml
>>> mesh = ml.DeviceMesh("dp=2, tp=2")
>>> with ml.launch(4, backend="threads") as engines:
...     checks = engines.verify(mesh)
...     results = ml.bench(engines, mesh, "all_reduce", axis="tp", sizes="1K:4K").wait()
>>> bool(checks["is_right"].all()), results["status"].unique().tolist()
(True, ['ok'])
"""

from typing import Any

import lazy_loader

# Every import of a part of meshlab runs this line, before a method can need its implementation.
from meshlab import _implementations as _implementations

# Exceptions name this module as theirs. If it is not imported, cloudpickle copies their classes into what it sends, and
# a function of the user does not catch them on a rank.
from meshlab import errors as errors
from meshlab.frames._display import register as _register_display

# The names are listed once, in the stub next to this file, and imported when they are first used. So
# `import meshlab` stays light, and type checkers see the real signatures.
_getattr, _dir, _names = lazy_loader.attach_stub(__name__, __file__)

__all__ = sorted({*_names, "plot"} - {"plots"})

_register_display()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    # The folder is meshlab.plots; the namespace is `plot`, so that calls read `ml.plot.bandwidth(run)`.
    return _getattr("plots" if name == "plot" else name)


def __dir__() -> list[str]:
    """Return the public names and the attributes that every module has."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
