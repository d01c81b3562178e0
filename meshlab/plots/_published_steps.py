"""Figure of the published training steps: predicted against published seconds, by source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.plots._style import Margins, light_grid, open_axes
from meshlab.plots._theme import N_GROUPS, current_theme
from meshlab.prediction._step_range import published_steps as step_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vP"
_MARGINS = Margins(left=58.0, below=46.0, right=14.0, above=16.0)
_BAND = 1.2  # the band around equality, as a factor


def published_steps(*, ax: Axes | None = None) -> Axes:
    """Draw the predicted time of published training steps against the published time, coloured by source.

    Each prediction is from a fit without the rows of the same model and source. Filled marks are dense models, and open
    ones have experts. The band is 20 % around equality.

    Parameters
    ----------
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.published_steps(ax=Figure().add_subplot())
    >>> ax.get_xlabel()
    'published seconds per step'
    """
    frame, theme = step_frame(), current_theme()
    ax = open_axes(ax, 6.4 * 72, 5.2 * 72, _MARGINS)
    low = 0.7 * min(frame["published_s"].min(), frame["predicted_s"].min())
    high = 1.4 * max(frame["published_s"].max(), frame["predicted_s"].max())
    ends = np.array([low, high])
    ax.fill_between(ends, ends / _BAND, ends * _BAND, color=theme.cell, linewidth=0, zorder=0)
    ax.plot(ends, ends, color=theme.ink2, linewidth=0.8, zorder=1)
    for number, (source, rows) in enumerate(frame.groupby("source", sort=True)):
        color = theme.groups[number % N_GROUPS]
        mark: Any = {"marker": _MARKERS[number % len(_MARKERS)], "s": 26, "edgecolors": color, "linewidths": 1.1}
        dense, mixture = rows[~rows["has_experts"]], rows[rows["has_experts"]]
        median = 100 * float(np.median(np.abs(np.expm1(rows["error"]))))
        label = f"{source}: {len(rows)} steps, median {median:.0f} %"
        ax.scatter(dense["published_s"], dense["predicted_s"], color=color, label=label, **mark)
        ax.scatter(mixture["published_s"], mixture["predicted_s"], facecolors="none", **mark)
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    ax.set_xlabel("published seconds per step")
    ax.set_ylabel("predicted seconds per step, fitted without that model and source")
    light_grid(ax)
    ax.legend(loc="upper left", fontsize=8, frameon=False, title="filled: dense, open: with experts", title_fontsize=8)
    return ax
