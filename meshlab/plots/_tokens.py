"""The colours of HTML pages and widgets as CSS custom properties, from the table of the machine's picture."""

from __future__ import annotations

from meshlab.plots._theme import DARK, LIGHT, Theme

# Of controls and messages, which a figure has not: light and dark.
_CONTROLS = {
    "edge": ("#7b8490", "#7d8897"),  # the outlines of controls, at least 3:1
    "good": ("#3a741d", "#8fce6a"),  # text, at least 4.5:1 also on a row that is picked
    "warning": ("#b34300", "#ff7a33"),  # text, in the hue of a conflict
    "wrong": ("#b3261e", "#ff8a80"),  # text and borders of errors
    "strong": ("#0b57a4", "#1d6fbf"),  # the background of a main button
    "danger": ("#b3261e", "#b3261e"),  # the background of a button that destroys
    "on-strong": ("#ffffff", "#ffffff"),  # text on both
}

# With forced colours the system chooses: a colour here is the system's name of it.
_FORCED = {
    "bg": "Canvas",
    "panel": "Canvas",
    "ink": "CanvasText",
    "ink2": "CanvasText",
    "line": "GrayText",
    "line2": "CanvasText",
    "edge": "CanvasText",
    "accent": "Highlight",
}


def _colors(theme: Theme) -> dict[str, str]:
    names = ("panel", "ink", "ink2", "line", "line2", "cell", "accent", "nvlink", "load", "conflict")
    groups = {f"g{group}": color for group, color in enumerate(theme.groups)}
    controls = {name: pair[theme is DARK] for name, pair in _CONTROLS.items()}
    return {"bg": theme.background, **{name: getattr(theme, name) for name in names}, **groups, **controls}


def widget_tokens() -> str:
    """Return the custom properties of widgets, such as ``--ml-ink``: they follow the `color-scheme` of the element."""
    dark = _colors(DARK)
    pairs = {name: f"light-dark({light}, {dark[name]})" for name, light in _colors(LIGHT).items()}
    pairs["bg"] = f"var(--jp-layout-color1, var(--vscode-editor-background, {pairs['bg']}))"
    return (
        f".meshlab {{ {_properties(pairs)} }}\n"
        f"@media (forced-colors: active) {{ .meshlab {{ {_properties(_FORCED)} }} }}\n"
    )


def page_tokens() -> str:
    """Return the custom properties of a page: they follow the browser, and are light on paper."""
    return (
        f":root {{ {_properties(_colors(LIGHT))} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_properties(_colors(DARK))} }} }}\n"
    )


def _properties(colors: dict[str, str]) -> str:
    return " ".join(f"--ml-{name}: {color};" for name, color in colors.items())
