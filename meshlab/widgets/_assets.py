"""The JavaScript and the style sheets of the widgets, and their display without JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshlab.plots._tokens import widget_tokens

_FOLDER = Path(__file__).parent / "static"  # written by `npm run build` in js/


def script(name: str) -> str:
    """Return the module that anywidget loads."""
    return f"{bundle(name)}export default widget.default;\n"


def bundle(name: str) -> str:
    """Return the JavaScript of a widget. Its last statement defines the variable `widget`."""
    return (_FOLDER / f"{name}.js").read_text(encoding="utf-8")


def style(name: str) -> str:
    """Return the style sheet of a widget."""
    return widget_tokens() + (_FOLDER / f"{name}.css").read_text(encoding="utf-8")


def with_fallback(bundle: Any, fallback: Callable[[], Mapping[str, str]]) -> Any:
    """Add to the MIME bundle of a widget the data for front ends that cannot draw it, such as a saved notebook."""
    if bundle is None:  # the widget is closed
        return None
    data, metadata = bundle
    return {**data, **fallback()}, metadata
