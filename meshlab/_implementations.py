"""The functions that implement methods of modules below them: plots, displays, explanations and analyses.

`meshlab.base._forwarding` explains the mechanism. The package imports this module, and no other module does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meshlab.base._forwarding import implements

if TYPE_CHECKING:
    from meshlab.diagnosis._explanation import Explanation

__all__: list[str] = []

# -- errors ------------------------------------------------------------------------------------------------------------


@implements("EngineError.explain")
def _explanation() -> Callable[..., Explanation | None]:
    from meshlab.diagnosis._explain import explain_error

    return explain_error


@implements("EngineError._render_traceback_")
def _traceback() -> Callable[..., list[str]]:
    from meshlab.widgets._tracebacks import explained_traceback

    return explained_traceback
