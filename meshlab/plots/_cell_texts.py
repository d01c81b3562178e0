"""The texts of many cells as one artist, because matplotlib needs a millisecond for each `Text`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

if TYPE_CHECKING:
    from matplotlib.backend_bases import RendererBase


class CellText(NamedTuple):
    """A text in a cell."""

    text: str
    x: float  # of the centre, in data coordinates
    y: float
    color: str
    is_bold: bool = False


class CellTexts(Artist):
    """Texts centred in cells, not clipped, of which those with a centre outside the axes are not drawn."""

    def __init__(self, texts: Sequence[CellText], size: float) -> None:
        super().__init__()
        self.texts, self.size = tuple(texts), size
        self.set_in_layout(False)
        self.set_zorder(3)

    def draw(self, renderer: RendererBase) -> None:
        """Draw the texts."""
        if not self.get_visible() or self.axes is None or not self.texts:
            return
        renderer.open_group("cells")
        height = renderer.get_canvas_width_height()[1]
        fonts = [FontProperties(size=self.size, weight=weight) for weight in ("normal", "bold")]
        # The height of all letters, so that all texts have the same baseline in their cells.
        tall = [renderer.get_text_width_height_descent("lp", font, False)[1:] for font in fonts]
        widths: dict[tuple[str, bool], float] = {}
        contexts: dict[str, Any] = {}
        # An SVG contains the centre of a text, because the browser may have another font.
        anchor = Text(0, 0, "", ha="center", transform=IdentityTransform())
        places = self.axes.transData.transform([(cell.x, cell.y) for cell in self.texts])
        for cell, (x, y) in zip(self.texts, places.tolist(), strict=True):
            if not self.axes.bbox.contains(x, y):
                continue
            font, (rise, fall) = fonts[cell.is_bold], tall[cell.is_bold]
            key = cell.text, cell.is_bold
            if key not in widths:
                widths[key] = renderer.get_text_width_height_descent(cell.text, font, False)[0]
            if cell.color not in contexts:
                contexts[cell.color] = renderer.new_gc()
                contexts[cell.color].set_foreground(cell.color)
            anchor.set_position((x, y))
            baseline = y + fall - rise / 2
            down = height - baseline if renderer.flipy() else baseline
            renderer.draw_text(contexts[cell.color], x - widths[key] / 2, down, cell.text, font, 0, False, anchor)
        for context in contexts.values():
            context.restore()
        renderer.close_group("cells")
        self.stale = False
