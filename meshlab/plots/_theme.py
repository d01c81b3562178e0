"""Colours of the machine's picture, for light and dark pages.

A figure is drawn in the colours of one theme. `figure_svg` replaces each by ``light-dark(…)``, so that the figure
follows the page's theme, also when it is switched. So every colour of the picture comes from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

N_GROUPS = 6  # number of group colours, after which they repeat
_LOADS = 8  # steps between an idle and the busiest link
_RESTING = 0.25  # of the background in the cell of a group that is not picked


@dataclass(frozen=True)
class Theme:
    """The colours of a theme, as hex strings."""

    background: str  # of the page
    panel: str  # of boxes on the page
    ink: str  # of text
    ink2: str  # of less important text
    line: str  # thin lines
    line2: str  # idle links
    cell: str  # idle boxes
    accent: str  # the route of a group
    nvlink: str
    load: str  # the busiest link
    conflict: str  # a link that limits an axis because it is shared
    groups: tuple[str, ...]  # of picked groups

    def resting(self, group: int) -> str:
        """Return the colour of a cell whose group is not picked."""
        return mix(self.groups[group % N_GROUPS], self.background, _RESTING)

    def heat(self, share: float) -> str:
        """Return the colour of a link from its share in the busiest link's time, from 0 (idle) to 1."""
        step = max(1, round(share * _LOADS)) if share > 0 else 0
        return mix(self.line2, self.load, 0.15 + 0.85 * step / _LOADS) if step else self.line2

    def faint(self, color: str, share: float) -> str:
        """Return a colour mixed with the background."""
        return mix(color, self.background, share)

    def text_on(self, color: str) -> str:
        """Return the colour of text on a colour of this theme: near black or near white, for the higher contrast."""
        # Its last digits are the number of the colour, because the other theme may need the opposite.
        names = _named(self)
        number = next((k for k, candidate in enumerate(names) if candidate == color), len(names))
        low, high, third = number % 16, 0xFF - number % 8, number // 16
        if float(luminance([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])) > 0.179:
            return f"#{low:02x}{third:02x}02"
        return f"#{high:02x}{0xFE - third:02x}{0xFF - number // 8:02x}"


# The colours of both themes stand one below the other, to compare them.
LIGHT = Theme(
    background="#ffffff", panel="#f6f7f9", ink="#1b1f24", ink2="#586069", line="#d0d5dc", line2="#aab2bd",
    cell="#e4e8ed", accent="#0b57a4", nvlink="#3f7d20", load="#4a5b73", conflict="#c44a00",
    groups=("#0072b2", "#8ecdf2", "#98bf5b", "#d3688c", "#a0956a", "#624670"),
)  # fmt: skip

DARK = Theme(
    background="#15181c", panel="#1d2126", ink="#e8ebef", ink2="#a3acb8", line="#353c45", line2="#566170",
    cell="#2c333b", accent="#7cc0ff", nvlink="#8fce6a", load="#9fb3cc", conflict="#ff7a33",
    groups=("#3d9bdc", "#a9def8", "#578450", "#a27594", "#d6d07c", "#64ffd0"),
)  # fmt: skip

FAINT = (0.2, 0.25, 0.3, 0.45, 0.6, 0.7)  # the shares of background that `Theme.faint` is used with


def mix(first: str, second: str, share: float) -> str:
    """Mix two colours, the second one with this share."""
    channels = (
        round(int(first[i : i + 2], 16) * (1 - share) + int(second[i : i + 2], 16) * share + 1e-9) for i in (1, 3, 5)
    )
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def luminance(rgb: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the relative luminance from 0 (black) to 1 (white), as defined by WCAG 2.2."""
    channels = np.asarray(rgb, dtype=np.float64)[..., :3]
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ np.array([0.2126, 0.7152, 0.0722]))


def current_theme() -> Theme:
    """Return the theme that suits the background of the current matplotlib style."""
    from matplotlib import rcParams
    from matplotlib.colors import to_rgb

    return LIGHT if float(luminance(to_rgb(rcParams["figure.facecolor"]))) > 0.2 else DARK


@lru_cache(maxsize=2)
def _named(theme: Theme) -> tuple[str, ...]:
    """Return all colours of a theme but those of text, in a fixed order."""
    plain = (theme.panel, theme.ink, theme.ink2, theme.line, theme.line2, theme.cell, theme.accent, theme.nvlink)
    resting = [theme.resting(group) for group in range(N_GROUPS)]
    heats = [theme.heat(step / _LOADS) for step in range(1, _LOADS + 1)]
    faint = [theme.faint(color, share) for color in (theme.nvlink, theme.load, theme.conflict) for share in FAINT]
    return (*plain, theme.load, theme.conflict, *theme.groups, *resting, *heats, *faint, theme.background)


@lru_cache(maxsize=1)
def theme_pairs() -> dict[str, tuple[str, str]]:
    """Return for every colour of both themes its light and its dark form."""
    pairs: dict[str, tuple[str, str]] = {}
    for light, dark in zip(_named(LIGHT), _named(DARK), strict=True):
        texts = LIGHT.text_on(light), DARK.text_on(dark)
        for pair in ((light, dark), texts):
            for color in pair:
                pairs.setdefault(color, pair)
    for color in (LIGHT.background, DARK.background):  # of the page, which has its own
        pairs.pop(color)
    return pairs
