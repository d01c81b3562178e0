"""The display of results in IPython: the columns that matter, instead of the first and the last of all."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_MODULES = ("pandas", "pandas.core.frame")  # of the class, since pandas 3 and before


def register() -> None:
    """Let IPython show frames of results by what matters. It shows all other frames as before."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    formatters = shell.display_formatter.formatters
    page, text = formatters["text/html"], formatters["text/plain"]
    # A formatter that is registered later, such as one for interactive tables, replaces this one.
    earlier_page, earlier_text = (_registered(formatter) for formatter in (page, text))

    def show_page(frame: pd.DataFrame) -> Any:
        from meshlab.frames._table import short_display

        parts = short_display(frame)
        if parts is not None:
            return parts[0]
        return frame._repr_html_() if earlier_page is None else earlier_page(frame)  # type: ignore[operator]

    def show_text(frame: pd.DataFrame, printer: Any, is_cycle: bool) -> None:
        from meshlab.frames._table import short_display

        parts = short_display(frame)
        if parts is not None:
            printer.text(parts[1])
        elif earlier_text is None:
            printer.text(repr(frame))
        else:
            earlier_text(frame, printer, is_cycle)

    for formatter, show in ((page, show_page), (text, show_text)):
        if "pandas" in sys.modules:
            formatter.for_type(sys.modules["pandas"].DataFrame, show)
        else:
            for name in _MODULES:
                formatter.for_type_by_name(name, "DataFrame", show)


def _registered(formatter: Any) -> Any:
    """Return the function of another library that shows frames, or None."""
    for name in _MODULES:
        with contextlib.suppress(KeyError):
            return formatter.lookup_by_type(f"{name}.DataFrame")
    return None
