"""The JavaScript and the style sheets of the widgets."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def joined_scripts(*names: str) -> str:
    """Join files of JavaScript. The browser receives them as one text, so they cannot import each other."""
    return "\n".join((_FOLDER / "js" / f"{name}.js").read_text(encoding="utf-8") for name in names)


def joined_styles(*names: str) -> str:
    """Join style sheets, because a widget has one."""
    return "\n".join((_FOLDER / f"{name}.css").read_text(encoding="utf-8") for name in names)
