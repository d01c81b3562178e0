"""Colours: groups in colours that colour-blind readers can tell apart, quantities in viridis, red for what is wrong."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "ON_DARK",
    "ON_LIGHT",
    "PALETTE",
    "PREVIOUS",
    "QUANTITY",
    "WRONG",
    "group_colors",
    "luminance",
    "rank_colors",
    "text_colors",
]

Colors = npt.NDArray[np.float64]
"""sRGB between 0 and 1, with the channels along the last axis."""

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's colours with grey for black, which vanishes on dark paper.

Neighbours differ in lightness too, so that print keeps them apart.
"""

QUANTITY = "viridis"
"""The colormap for quantities."""

PREVIOUS = "#8c8c8c"
"""What an earlier run is drawn in; readable on white and on black."""

WRONG = "#e53935"
"""What is wrong, and nothing else; readable on white and on black."""

ON_LIGHT, ON_DARK = "#111111", "#fdfdfd"
"""Text on a light and on a dark cell: near black and near white, so that `figure_svg`, which lets the figure's own
black and white follow the page, leaves them alone."""

_RGB: Colors = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in PALETTE])
_RGB.flags.writeable = False


def group_colors(n: int) -> Colors:
    """Colours for groups 0, 1, … n-1; they repeat after eight.

    Returns
    -------
    numpy.ndarray
        float64 of shape (n, 3): sRGB between 0 and 1.

    Examples
    --------
    >>> group_colors(3).shape, bool(np.array_equal(group_colors(9)[0], group_colors(9)[8]))
    ((3, 3), True)
    """
    return _RGB[np.arange(n) % len(_RGB)]


def rank_colors(color: npt.NDArray[np.integer]) -> Colors:
    """One colour per rank from the number of its group; a rank in no group (-1) is transparent.

    Parameters
    ----------
    color : numpy.ndarray
        Whole numbers of any shape, such as `Groups.color`.

    Returns
    -------
    numpy.ndarray
        float64 of that shape and 4 channels: sRGB and opacity.

    Examples
    --------
    >>> rank_colors(np.array([0, -1]))[:, 3].tolist()
    [1.0, 0.0]
    """
    rgba = np.empty((*color.shape, 4))
    rgba[..., :3] = _RGB[color % len(_RGB)]
    rgba[..., 3] = color >= 0
    return rgba


def luminance(rgb: npt.ArrayLike) -> Colors:
    """Relative luminance between 0 (black) and 1 (white), as WCAG 2.2 defines it.

    Parameters
    ----------
    rgb : array_like
        sRGB between 0 and 1, channels along the last axis.

    Examples
    --------
    >>> luminance([[0, 0, 0], [1, 1, 1]]).tolist()
    [0.0, 1.0]
    """
    channels = np.asarray(rgb, dtype=np.float64)[..., :3]
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ np.array([0.2126, 0.7152, 0.0722]))


def text_colors(rgb: npt.ArrayLike) -> npt.NDArray[np.str_]:
    """Near black or near white, whichever stands out more on each colour.

    Examples
    --------
    >>> text_colors([[1, 1, 0], [0, 0, 0.5]]).tolist()
    ['#111111', '#fdfdfd']
    """
    # Black and white have the same contrast (L + 0.05) / 0.05 = 1.05 / (L + 0.05) at L = 0.179.
    return np.where(luminance(rgb) > 0.179, ON_LIGHT, ON_DARK)
