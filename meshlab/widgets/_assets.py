"""The JavaScript and the style sheets of the widgets, and their display without JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def joined_scripts(*names: str) -> str:
    """Join files of JavaScript. The browser receives them as one text, so they cannot import each other."""
    return "\n".join((_FOLDER / "js" / f"{name}.js").read_text(encoding="utf-8") for name in names)


def joined_styles(*names: str) -> str:
    """Join style sheets, because a widget has one."""
    return "\n".join((_FOLDER / f"{name}.css").read_text(encoding="utf-8") for name in names)


def with_fallback(bundle: Any, fallback: Callable[[], Mapping[str, str]]) -> Any:
    """Add to the MIME bundle of a widget the data for front ends that cannot draw it, such as a saved notebook."""
    if bundle is None:  # the widget is closed
        return None
    data, metadata = bundle
    return {**data, **fallback()}, metadata
