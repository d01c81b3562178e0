"""The look of plots: new figures, titles and legends that fit, colours, and figures as PNG or SVG."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError
from meshlab.base._units import SEPARATOR
from meshlab.plots._theme import luminance, theme_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.text import Annotation

_INK, _PAPER = "currentColor", "var(--ml-paper, var(--jp-layout-color0, Canvas))"
_FOREGROUND = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_BACKGROUND = ("figure.facecolor", "axes.facecolor")

# Held while rcParams are changed and restored: they are global, so two threads would restore each other's values.
_settings = Lock()


def text_width(text: str, size: float, *, weight: str = "normal") -> float:
    """Return the width of a string in points, in the font of the current style."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    # What the family of the properties means depends on these.
    fonts = rcParams["font.sans-serif"], rcParams["font.serif"], rcParams["font.monospace"]
    return _measured_width(text, FontProperties(size=size, weight=weight), tuple(map(tuple, fonts)))


@lru_cache(maxsize=8192)
def _measured_width(text: str, font: FontProperties, fonts: tuple[tuple[str, ...], ...]) -> float:
    """Measure a text: figures of a machine ask for the width of the same few words thousands of times."""
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def font_size(size: float | str) -> float:
    """Return a font size in points. Settings like ``"xtick.labelsize"`` are numbers or words such as ``"medium"``."""
    from matplotlib.font_manager import FontProperties

    return float(FontProperties(size=size).get_size_in_points())


def axes_size(ax: Axes) -> tuple[float, float]:
    """Return width and height of the axes in points, before a layout engine moves them."""
    figure = ax.get_figure(root=True)
    if figure is None:
        return 360.0, 270.0
    box = ax.get_position()
    width, height = figure.get_size_inches()
    return float(box.width * width * 72), float(box.height * height * 72)


def room_right(ax: Axes) -> float:
    """Return the distance between the left edge of the axes and the right edge of the figure, in points."""
    figure = ax.get_figure(root=True)
    return axes_size(ax)[0] if figure is None else float((1 - ax.get_position().x0) * figure.get_size_inches()[0] * 72)


def label_room(ax: Axes) -> float:
    """Return the width in points of a label that is centred below the axes and inside the figure."""
    width, free = axes_size(ax)[0], room_right(ax)
    figure = ax.get_figure(root=True)
    before = 0.0 if figure is None else float(ax.get_position().x0 * figure.get_size_inches()[0] * 72)
    return width + 2 * max(0.0, min(free - width, before) - _EDGE)


def free_right(ax: Axes) -> float:
    """Return the width in points from the left of the axes to the next axes on their right, or to the figure's edge."""
    figure = ax.get_figure(root=True)
    if figure is None:
        return axes_size(ax)[0]
    box = ax.get_position()
    others = (other.get_position() for other in figure.axes if other is not ax)
    is_edge = all(other.x0 < box.x1 or other.y1 <= box.y0 or other.y0 >= box.y1 for other in others)
    # The gap to other axes is not counted, because their tick labels are there.
    return room_right(ax) - _EDGE if is_edge else axes_size(ax)[0]


Box = tuple[float, float, float, float]  # left, bottom, width and height of axes, as fractions of their figure
_LEAST_SCALE = 0.75  # of an SVG in a narrow page: type of 9 points is then 9 pixels high
_EDGE = 4.0  # free width at the right edge of a figure, in points


def _is_arranged(ax: Axes) -> bool:
    """Return whether a layout engine will move the axes, which may then have less room."""
    figure = ax.get_figure(root=True)
    return figure is not None and figure.get_layout_engine() is not None


def reserve(ax: Axes, *, left: float = 0.0, right: float = 0.0, above: float = 0.0, below: float = 0.0) -> None:
    """Shrink the axes if there are fewer points than this outside of them, so that text there is not clipped."""
    figure = ax.get_figure(root=True)
    if figure is None or _is_arranged(ax):  # a layout engine measures the text itself
        return
    box = ax.get_position()
    width, height = figure.get_size_inches() * 72
    x1 = min(box.x1, box.x0 + (free_right(ax) - right) / width) if right else box.x1
    x0, y1, y0 = max(box.x0, left / width), min(box.y1, 1 - above / height), max(box.y0, below / height)
    if x1 <= x0 or y1 <= y0:
        return  # the figure is too small for the text
    if (x0, x1, y0, y1) != (box.x0, box.x1, box.y0, box.y1):
        _place(ax, (x0, y0, x1 - x0, y1 - y0))


def _place(ax: Axes, box: Box) -> None:
    ax.set_position(box)
    ax.set_in_layout(True)  # set_position() excludes the axes from bbox_inches="tight"


def set_height(ax: Axes, height: float, *, above: float, below: float) -> None:
    """Set the height of the axes and of the space around them, in points. The figure gets as high as all of it."""
    figure = ax.get_figure(root=True)
    if figure is not None:
        total = height + above + below
        figure.set_figheight(total / 72)
        _place(ax, (ax.get_position().x0, below / total, ax.get_position().width, height / total))


class Margins(NamedTuple):
    """The space around axes, in points."""

    left: float
    below: float
    right: float
    above: float

    def box(self, width: float, height: float) -> Box:
        """Return the place of the axes as fractions of a figure with this width and height in points."""
        across, down = width - self.left - self.right, height - self.below - self.above
        return self.left / width, self.below / height, across / width, down / height


def open_axes(ax: Axes | None, width: float, height: float, margins: Margins | None = None) -> Axes:
    """Return the axes, or new ones in a figure of this size in points. Without margins, matplotlib lays them out."""
    # Most plots compute their margins. The number of ticks, the columns of a legend and the places of labels depend on
    # the size of the axes, which a layout engine decides only while it draws, so that labels overlap in small figures.
    # It also draws everything twice: an SVG of curves takes 130 ms instead of 50 ms. And it arranges axes in a figure
    # of a fixed size, whereas figures of cells, bars and machines get the size that their content needs.
    if ax is None:
        figure = new_figure((width / 72, height / 72), layout="constrained" if margins is None else None)
        ax = figure.add_subplot() if margins is None else figure.add_axes(margins.box(width, height))
    return ax


def light_grid(ax: Axes, axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw a light grid behind the data, and only the left and the lower edge of the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, axis=axis, alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)


def color_bar(ax: Axes, image: Any, write: Callable[[float], str], *, label: str = "", **options: Any) -> None:
    """Draw the colours of an image beside the axes, with values as `write` formats them."""
    from matplotlib.ticker import FuncFormatter

    figure = ax.get_figure(root=True)
    if figure is None:
        return
    # With a gridspec, the bar would move the axes back to their place before reserve().
    bar = figure.colorbar(image, ax=ax, pad=0.03, fraction=0.05, use_gridspec=False, **options)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=_NOTE)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    bar.ax.tick_params(labelsize=_NOTE)


def check_type(name: str, value: object, kind: type, hint: str) -> None:
    """Raise a BenchError if an argument is not of its type."""
    if not isinstance(value, kind):
        raise BenchError(f"{name} must be a {kind.__name__}, not {type(value).__name__}", hint=hint)


def new_figure(size: tuple[float, float], **options: Any) -> Figure:
    """Create a figure of pyplot that notebooks show as SVG in the colours of their theme."""
    from matplotlib import pyplot as plt

    return plt.figure(figsize=size, FigureClass=_themed_figure(), **options)


@lru_cache(maxsize=1)
def _themed_figure() -> type[Figure]:
    from matplotlib.figure import Figure

    class ThemedFigure(Figure):
        """A figure with an HTML form, which front ends prefer to PNG."""

        def _repr_html_(self) -> str:
            return f'<div style="overflow-x:auto">{figure_svg(self, label=_titles(self))}</div>'

    return ThemedFigure


def _titles(figure: Figure) -> str:
    titles = (ax.get_title(loc="left") or ax.get_title() for ax in figure.axes)
    return ". ".join(title.replace("\n", ". ") for title in titles if title)


def shortened(text: str, width: float, size: float) -> str:
    """Return the text, with an ellipsis in the middle if it is wider than `width` points."""
    if text_width(text, size) <= width:
        return text
    half = len(text) // 2
    while half > 4 and text_width(f"{text[:half]}…{text[-half:]}", size) > width:
        half -= 1
    return f"{text[:half]}…{text[-half:]}"


def wrap_parts(parts: Sequence[str], width: float, size: float) -> str:
    """Join parts with a middle dot, and break lines between them to stay within `width` points."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{SEPARATOR}{part}" if lines else part
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def wrap_title(parts: Sequence[str], width: float) -> str:
    """Join the parts of a title, see `wrap_parts`, in the font size of titles."""
    return wrap_parts(SEPARATOR.join(parts).split(SEPARATOR), width, _title_size())


def wrap_words(text: str, width: float, size: float | None = None) -> str:
    """Break a sentence between words to stay within `width` points, by default in the font size of titles."""
    lines: list[str] = []
    for word in text.split(" "):  # not at a thin space, which is between a number and its unit
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size or _title_size()) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return "\n".join(lines)


def set_title(
    ax: Axes, parts: Sequence[str], *, verdict: str = "", note: Sequence[str] = (), gap: float = 0.0
) -> float:
    """Set a left-aligned title inside the figure, and a smaller note `gap` points above the axes. Return its height."""
    import matplotlib as mpl

    # Hinting makes text up to 2 % wider at some resolutions than it is measured.
    width, size = 0.98 * (room_right(ax) - _EDGE - 24 * _is_arranged(ax)), _title_size()
    title = "\n".join(filter(None, [wrap_words(verdict, width), wrap_title(parts, width)]))
    pad = gap + float(mpl.rcParams["axes.titlepad"])
    if note:
        text = wrap_parts(note, width, _NOTE)
        write_beside(ax, text, (0, 1), (0, gap + 4), fontsize=_NOTE, linespacing=1.2, gid="note")
        pad += _NOTE * 1.25 * (1 + text.count("\n")) + 2
    ax.set_title(title, loc="left", fontsize=size, pad=pad, parse_math=False)
    return pad + size * (1.25 + 1.4 * title.count("\n")) + _EDGE  # lines are 1.2 × the font's height, 1.16 × its size


def write_beside(
    ax: Axes, text: str, point: tuple[float, float], shift: tuple[float, float], **look: Any
) -> Annotation:
    """Write a text at a distance in points from a point of the axes, by default one in fractions of their size."""
    look = {"xycoords": "axes fraction", "va": "bottom", "fontsize": _NOTE, **look}
    return ax.annotate(text, point, shift, textcoords="offset points", annotation_clip=False, parse_math=False, **look)


def legend_above(ax: Axes, handles: Sequence[Any], gap: float = 0.0) -> float:
    """Draw a legend above the axes, in as many columns as fit. Return its height with `gap` below it, in points."""
    from matplotlib.transforms import offset_copy

    widths = np.array([text_width(str(handle.get_label()), _NOTE) + 30 for handle in handles])
    room = room_right(ax) - 8 - 36 * _is_arranged(ax)

    def width(n_columns: int) -> float:
        # A legend fills its columns from top to bottom.
        return float(sum(column.max() for column in np.array_split(widths, n_columns)))

    n_columns = next((n for n in range(len(handles), 1, -1) if width(n) <= room), 1)
    place = offset_copy(ax.transAxes, ax.get_figure(root=True), y=gap + 4, units="points")
    spaces = {"borderpad": 0.0, "borderaxespad": 0.0, "handletextpad": 0.4, "columnspacing": 1.4, "labelspacing": 0.3}
    legend = ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        bbox_transform=place,
        ncols=n_columns,
        fontsize=_NOTE,
        frameon=False,
        handlelength=1.4,
        **spaces,
    )
    legend.set_in_layout(False)  # the title above it keeps its space free
    for text in legend.get_texts():
        text.set_parse_math(False)
    return gap + -(-len(handles) // n_columns) * _NOTE * 1.5 + 6


def tick_size() -> float:
    """Return the font size of tick labels, in points."""
    import matplotlib as mpl

    return font_size(mpl.rcParams["ytick.labelsize"])


_NOTE = 9.0  # font size of a note under a title, in points


def _title_size() -> float:
    import matplotlib as mpl

    return font_size(mpl.rcParams["axes.titlesize"]) * 0.9


def figure_png(figure: Figure, *, dpi: float = 144) -> bytes:
    """Render a figure to PNG.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure. It does not have to be registered with pyplot.
    dpi : float, default 144
        Resolution in pixels per inch.

    Returns
    -------
    bytes
        The PNG file, without the name of the software.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> figure_png(Figure(figsize=(4, 3)))[1:4]
    b'PNG'
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def figure_svg(figure: Figure, *, label: str = "") -> str:
    """Render a figure to SVG for an HTML page with a light or a dark theme.

    The colours of text and background in the current matplotlib style become ``currentColor`` and the page's
    ``--ml-paper``. The colours of the machine's picture become ``light-dark(…)``. All other colours are kept. Text
    remains text, in the system's sans-serif font. The figure has its natural width and shrinks with its container, but
    not below three quarters, where its type would be unreadable. It contains no date and no version, and the same
    figure always returns the same string.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        A figure that was drawn in the current style.
    label : str, default ""
        A description for screen readers.

    Returns
    -------
    str
        An ``<svg>`` element. Its ids start with a hash of its content, so that several elements can be on one page.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> svg = figure_svg(Figure(figsize=(4, 3)), label="an empty figure")
    >>> svg[:4], "currentColor" in svg, 'aria-label="an empty figure"' in svg
    ('<svg', True, True)
    """
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    buffer = io.StringIO()
    with _settings, mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "meshlab"}):
        figure.savefig(buffer, format="svg", transparent=True)
        settings: Mapping[str, Any] = dict(mpl.rcParams.items())
    paper = {to_hex(settings[name]) for name in _BACKGROUND}
    ink = {to_hex(settings[name]) for name in _FOREGROUND} - paper
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*|<style .*?</style>\s*", "", text, flags=re.DOTALL)
    for color in ink | paper:
        text = text.replace(color, _INK if color in ink else _PAPER)
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", _themed, text)
    text = re.sub(r"'[^;\":]*sans-serif", "system-ui, sans-serif", text)
    text = re.sub(r' transform="rotate\(-?0 [^"]*"', "", text)
    return _open_tag(_scope_ids(text), figure, label)


def _themed(match: re.Match[str]) -> str:
    """Return a colour of a theme for light and for dark pages. Browsers without light-dark() use the first value."""
    name, color = match[1], match[2]
    light, dark = theme_pairs().get(color, (color, color))
    return f"{name}: {color}" if light == dark else f"{name}: {light}; {name}: light-dark({light}, {dark})"


def _scope_ids(text: str) -> str:
    """Remove the ids without a reference, and make the others unique to this figure."""
    references = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    prefix = f"ml{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    text = re.sub(r' id="([^"]*)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in references else "", text)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", text)


def _open_tag(text: str, figure: Figure, label: str) -> str:
    from meshlab.base._markup import escape

    width, height = figure.get_size_inches() * 72
    # matplotlib omits fill="black", the default of SVG. The root's fill replaces that default by the page's colour.
    tag = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(label)}" viewBox="0 0 {width:g} {height:g}" fill="currentColor" '
        f'stroke-linejoin="round" stroke-linecap="butt" style="width:{width / 72:g}in;'
        f'min-width:{_LEAST_SCALE * width / 72:.4g}in;max-width:100%;height:auto">'
    )
    return tag + text[text.index(">") + 1 :]


Colors = npt.NDArray[np.float64]  # sRGB from 0 to 1, with the channels along the last axis
AXIS_GROUPS = {"tp": 0, "cp": 2, "ep": 3, "pp": 1, "dp": 5}
"""The numbers of the colours in `Theme.groups` that the usual axes of a job have in all figures."""

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
"""Okabe and Ito's colours, with grey instead of black, which is invisible on a dark background.

Neighbours also differ in lightness, so that they are distinguishable in black-and-white print.
"""

QUANTITY = "viridis"  # the colormap for quantities
# The colour of an earlier run, visible on white and on black.
PREVIOUS = "#8c8c8c"
# The colour of wrong results, and of nothing else; visible on white and on black.
WRONG = "#e53935"
# The colours of text on a light and on a dark cell. They are not pure black and white, which `figure_svg` replaces by
# the colours of the page, nor colours of a theme, which it replaces by those of both themes.
ON_LIGHT, ON_DARK = "#111111", "#fcfcfc"
_RGB: Colors = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in PALETTE])
_RGB.flags.writeable = False


def group_colors(n: int) -> Colors:
    """Return the colours of groups 0 to n-1. They repeat after eight.

    Parameters
    ----------
    n : int
        Number of groups.

    Returns
    -------
    numpy.ndarray
        float64 of shape (n, 3): sRGB from 0 to 1.

    Examples
    --------
    >>> group_colors(3).shape, bool(np.array_equal(group_colors(9)[0], group_colors(9)[8]))
    ((3, 3), True)
    """
    return _RGB[np.arange(n) % len(_RGB)]


def rank_colors(color: npt.NDArray[np.integer]) -> Colors:
    """Return the colour of each rank from the index of its group. Ranks without a group (-1) are transparent."""
    rgba = np.empty((*color.shape, 4))
    rgba[..., :3] = _RGB[color % len(_RGB)]
    rgba[..., 3] = color >= 0
    return rgba


def text_colors(rgb: npt.ArrayLike) -> npt.NDArray[np.str_]:
    """Return near black or near white for each colour, whichever has more contrast."""
    # Black and white have the same contrast, (L + 0.05) / 0.05 = 1.05 / (L + 0.05), at a luminance of L = 0.179.
    return np.where(luminance(rgb) > 0.179, ON_LIGHT, ON_DARK)
