"""Write a widget as one self-contained page for readers without Python: interactive, without a kernel or a network."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from meshlab.base._files import write_file
from meshlab.base._markup import escape
from meshlab.base._version import __version__
from meshlab.plots._tokens import page_tokens
from meshlab.widgets._assets import bundle

_NOT_STATE = ("_esm", "_css", "_anywidget_id", "layout", "tabbable", "tooltip", "comm", "keys")

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="meshlab {version}">
<title>{title}</title>
<style>
{tokens}:root {{ color-scheme: light dark; }}
body {{ margin: 24px auto; max-width: 1400px; padding: 0 24px; background: var(--ml-bg);
  color: var(--ml-ink); font: 13px/1.45 system-ui, sans-serif; }}
body > h1 {{ font-size: 20px; margin: 0 0 4px; }}
body > p {{ margin: 0 0 16px; opacity: 0.8; }}
@media (max-width: 640px) {{ body {{ margin: 12px auto; padding: 0 12px; }} }}
{style}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{note}</p>
<div id="widget"></div>
<noscript>{fallback}</noscript>
<script type="application/json" id="state">{state}</script>
<script type="module">
{script}
</script>
</body>
</html>
"""


def page_of(widget: Any, *, title: str, note: str = "") -> str:
    """Return a page with a widget in its current state, below a heading and a note."""
    # The model has no `send`, so that JavaScript can hide the controls that need Python.
    display = widget._repr_mimebundle_()
    fallback = "" if display is None else display[0].get("text/html", "")
    state = json.dumps({"state": _state(widget), "answers": _answers(widget)}, separators=(",", ":"))
    return _PAGE.format(
        version=__version__,
        title=escape(title),
        note=escape(note),
        tokens=page_tokens(),
        style=str(widget._css),
        fallback=fallback,
        state=state.replace("<", "\\u003c"),  # a name may contain "</script>"
        script=f"{bundle(widget._bundle)}{bundle('page')}page.default(widget.default);",
    )


def save_page(widget: Any, path: str | Path, *, title: str, note: str = "") -> Path:
    """Write the page of `page_of` to a file, and return its path."""
    return write_file(path, page_of(widget, title=title, note=note))


def _state(widget: Any) -> dict[str, Any]:
    return {name: _encoded(value) for name, value in widget.get_state().items() if name not in _NOT_STATE}


def _answers(widget: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, for every axis of a picture, the traits that are different with it."""
    view = getattr(widget, "_view", None)
    if not isinstance(view, dict) or not view.get("options"):
        return {}
    axis, states = widget.axis, {}
    # Held back, so that a front end that shows the widget sees nothing of this.
    with widget._lock, widget.hold_sync():
        try:
            for option in view["options"]:
                widget.axis = option
                states[option] = _state(widget)
        finally:
            widget.axis = axis
    first = states[view["options"][0]]
    names = [name for name in first if name != "axis" and any(state[name] != first[name] for state in states.values())]
    return {"axis": {option: {name: state[name] for name in names} for option, state in states.items()}}


def _encoded(value: Any) -> Any:
    if isinstance(value, (bytes, memoryview)):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _encoded(entry) for name, entry in value.items()}
    return [_encoded(entry) for entry in value] if isinstance(value, (list, tuple)) else value
