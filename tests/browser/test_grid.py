"""The grid's JavaScript in a real browser."""

from __future__ import annotations

import numpy as np
import pytest

from meshlab.mesh.mesh import DeviceMesh
from meshlab.widgets.grid import Grid
from tests.browser.pages import HIDDEN_FOR_AN_INSTANT, overlapping_texts, scrolls_sideways, state_of

CELL = 48  # of a small grid
PIXEL = """([canvas, x, y]) => {
  const all = document.querySelectorAll("canvas");
  return [...all[canvas].getContext("2d").getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data];
}"""
GUTTER = """() => {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `12px ${getComputedStyle(document.querySelector(".meshlab-grid")).fontFamily}`;
  return Math.ceil(context.measureText("7").width) + 8;
}"""


class Hand:
    """A hand on the grid: positions are ranks."""

    def __init__(self, bare, columns: int) -> None:
        self.page = bare.page
        self.columns = columns
        self.box = bare.page.locator("canvas").last.bounding_box()
        self.left = bare.page.evaluate(GUTTER)

    def at(self, rank: float, *, dx: float = 0, dy: float = 0) -> tuple[float, float]:
        x = self.box["x"] + self.left + (rank % self.columns + 0.5) * CELL + dx
        return x, self.box["y"] + (rank // self.columns + 0.5) * CELL + dy

    def lasso(self, *points: tuple[float, float], shift: bool = False) -> None:
        if shift:
            self.page.keyboard.down("Shift")
        self.page.mouse.move(*points[0])
        self.page.mouse.down()
        for point in points[1:]:
            self.page.mouse.move(*point, steps=6)
        self.page.mouse.up()
        if shift:
            self.page.keyboard.up("Shift")


@pytest.fixture
def grid() -> Grid:
    return Grid(DeviceMesh("dp=2, tp=4"), "tp")


@pytest.fixture
def small(bare, grid):
    return bare("grid", grid)


@pytest.fixture
def hand(small) -> Hand:
    return Hand(small, columns=4)


def selected(page) -> list[int]:
    return page.evaluate("() => model.selected()")


def test_pointing_at_a_rank_tells_its_place_and_its_peers(small, hand):
    small.page.mouse.move(*hand.at(5))
    small.settle()
    tip = small.page.locator(".ml-tip")
    assert tip.inner_text().splitlines() == ["rank 5", "dp=1 · tp=1", "tp_1 with 3 peers: 4, 6, 7"]
    small.page.mouse.move(900, 800)
    small.settle()
    assert tip.is_hidden()


def test_cells_carry_the_colour_of_their_group(small, hand):
    box = hand.box
    for rank, colour in ((0, [0, 114, 178, 255]), (3, [0, 114, 178, 255]), (4, [230, 159, 0, 255])):
        x, y = hand.at(rank, dx=-18, dy=-18)
        assert small.page.evaluate(PIXEL, [0, x - box["x"], y - box["y"]]) == colour


def test_the_group_under_the_pointer_is_outlined(small, hand):
    corner = [1, hand.left, CELL + 10]
    assert small.page.evaluate(PIXEL, corner)[3] == 0
    small.page.mouse.move(*hand.at(6))
    small.settle()
    assert small.page.evaluate(PIXEL, corner)[3] > 0


def test_a_lasso_selects_the_ranks_whose_centres_it_encloses(small, hand):
    corners = [hand.at(rank, dx=dx, dy=dy) for rank, dx, dy in ((0, -9, -9), (1, 9, -9), (5, 9, 9), (4, -9, 9))]
    hand.lasso(*corners)
    assert selected(small.page) == [0, 1, 4, 5]
    assert small.page.evaluate("() => model.sent.length") == 1
    small.settle()
    assert small.page.locator(".ml-status").inner_text() == "4 selected: 0, 1, 4, 5"


def test_a_straight_drag_selects_the_ranks_under_it(small, hand):
    hand.lasso(hand.at(0), hand.at(2))
    assert selected(small.page) == [0, 1, 2]


def test_shift_adds_to_the_selection_and_a_plain_click_replaces_it(small, hand):
    hand.lasso(hand.at(0), hand.at(1))
    hand.lasso(hand.at(6), hand.at(7), shift=True)
    assert selected(small.page) == [0, 1, 6, 7]
    small.page.keyboard.down("Shift")
    small.page.mouse.click(*hand.at(6))
    small.page.keyboard.up("Shift")
    assert selected(small.page) == [0, 1, 7]
    small.page.mouse.click(*hand.at(3))
    assert selected(small.page) == [3]


def test_python_reads_the_bytes_that_a_lasso_sends(small, hand, grid):
    hand.lasso(hand.at(1), hand.at(3))
    sent = small.page.evaluate("() => [...new Uint8Array(model.get('selected').buffer)]")
    grid.set_state({"selected": memoryview(bytes(sent))})
    assert grid.selected == (1, 2, 3)


def test_a_selection_made_in_python_is_shown(small, grid):
    grid.selected = [2, 3]
    small.receive(grid, "selected")
    assert small.page.locator(".ml-status").inner_text() == "2 selected: 2, 3"


def test_the_keyboard_moves_selects_and_clears(small):
    page = small.page
    page.keyboard.press("Tab")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Space"):
        page.keyboard.press(key)
    small.settle()
    status = page.locator(".ml-status")
    assert status.get_attribute("aria-live") == "polite"
    assert status.inner_text() == "rank 5 · dp=1 · tp=1 · tp_1 · selected (1 selected: 5)"
    page.keyboard.press("Shift+ArrowRight")
    assert selected(page) == [5, 6]
    page.keyboard.press("Space")
    assert selected(page) == [5]
    page.keyboard.press("Escape")
    assert selected(page) == []
    page.keyboard.press("ArrowDown")  # there is no rank below 6
    small.settle()
    assert status.inner_text().startswith("rank 6 ·")


def test_keys_typed_faster_than_the_screen_are_all_counted(small):
    small.page.locator(".ml-stage").focus()
    small.page.evaluate(
        "() => ['ArrowRight', ' ', 'ArrowRight', ' ', 'ArrowRight', ' '].forEach(key =>"
        "document.querySelector('.ml-stage').dispatchEvent(new KeyboardEvent('keydown', { key })))"
    )
    assert selected(small.page) == [0, 1, 2]


def test_escape_gives_up_a_lasso_that_is_being_drawn(small, hand):
    small.page.locator(".ml-stage").focus()
    small.page.mouse.move(*hand.at(0))
    small.page.mouse.down()
    small.page.mouse.move(*hand.at(2), steps=5)
    small.page.keyboard.press("Escape")
    small.page.mouse.up()
    assert selected(small.page) == []


def test_a_change_of_theme_repaints_the_canvas(small, hand):
    label = [0, 0, 0, hand.left - 4, CELL]
    darkest = """([canvas, x, y, w, h]) => {
      const data = document.querySelectorAll("canvas")[canvas].getContext("2d").getImageData(x, y, w, h).data;
      let ink = null;
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 250) ink = data[i];
      return ink;
    }"""
    assert small.page.evaluate(darkest, label) == 0
    small.theme("dark")
    small.settle()
    assert small.page.evaluate(darkest, label) == 255


def test_the_canvas_follows_the_width_and_the_density_of_the_page(page, bare):
    mesh = DeviceMesh("dp=8, tp=32")
    shown = bare("grid", Grid(mesh, "tp"))
    wide = page.locator("canvas").first.evaluate("c => [c.width, c.clientWidth, c.clientHeight]")
    page.set_viewport_size({"width": 500, "height": 800})
    shown.settle()
    shown.settle()
    narrow = page.locator("canvas").first.evaluate("c => [c.width, c.clientWidth, c.clientHeight]")
    assert narrow[1] < wide[1]
    assert narrow[2] < wide[2]
    denser = {"width": 500, "height": 790, "deviceScaleFactor": 2, "mobile": False}
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setDeviceMetricsOverride", denser)
    page.wait_for_function("([before]) => document.querySelector('canvas').width === 2 * before", arg=narrow)
    session.detach()  # the other tests have this page too, in its normal density


def test_a_hidden_grid_paints_itself_when_it_is_shown(page, bare):
    grid = Grid(DeviceMesh("dp=2, tp=4"), "tp")
    shown = bare("grid", grid)
    page.evaluate("() => { cleanup(); document.querySelector('#host').style.display = 'none'; }")
    page.evaluate(
        "async () => (await import('/grid.js')).default.render({ model, el: document.querySelector('#host') })"
    )
    assert page.locator(".ml-caption").text_content() == ""
    page.evaluate("() => { document.querySelector('#host').style.display = 'block'; }")
    shown.settle()
    shown.settle()
    assert page.locator(".ml-caption").text_content() == "8 ranks, coloured by tp: 2 groups of 4"


def test_a_change_while_the_page_hides_the_widget_for_an_instant_is_not_lost(bare, page, grid):
    shown = bare("grid", grid)
    grid.selected = [2, 3]
    change = state_of(grid, "selected")
    page.evaluate(HIDDEN_FOR_AN_INSTANT, change)
    shown.settle()
    shown.settle()
    assert page.locator(".ml-status").inner_text() == "2 selected: 2, 3"


def test_cleaning_up_leaves_no_listener_and_no_element(small):
    small.page.evaluate("() => cleanup()")
    assert small.page.evaluate("() => model.handlers.length") == 0
    assert small.page.evaluate("() => document.querySelector('#host').children.length") == 0
    small.page.set_viewport_size({"width": 500, "height": 500})
    small.settle()  # the page fixture fails on any error that a forgotten listener raises


def test_a_group_made_by_hand_leaves_the_other_ranks_grey(bare, page):
    mesh = DeviceMesh("dp=2, tp=4").with_group("rail", [1, 5])
    shown = bare("grid", Grid(mesh, "rail"))
    hand = Hand(shown, columns=4)
    page.mouse.move(*hand.at(0))
    shown.settle()
    assert page.locator(".ml-tip span").inner_text() == "dp=0 · tp=0\nnot in rail"
    page.mouse.move(*hand.at(5))
    shown.settle()
    assert page.locator(".ml-tip span").inner_text() == "dp=1 · tp=1\nrail with 1 peer: 1"


def test_nodes_stand_apart_and_their_names_are_in_the_tip(bare, page):
    ranks = np.arange(16)
    mesh = DeviceMesh("dp=2, tp=8")
    shown = bare("grid", Grid(mesh, "dp", columns=16, block=8, places={"node": ranks // 8, "device": ranks % 8}))
    page.locator(".ml-stage").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    shown.settle()
    assert page.locator(".ml-status").inner_text().startswith("rank 9 · dp=1 · tp=1 · node=1 · device=1 · dp_1")


def test_sixteen_thousand_ranks_are_fluid(bare, page, say):
    grid = Grid(DeviceMesh("dp=2048, tp=8"), "tp")
    shown = bare("grid", grid)
    say(f"first paint of 16,384 ranks, fetching the script included: {shown.first_paint_ms:.0f} ms")
    assert shown.first_paint_ms < 500
    works = []
    for mesh in ("dp=1024, tp=16", "dp=512, tp=32", "dp=2048, tp=8"):
        grid.show(DeviceMesh(mesh), "tp")
        works.append(shown.receive(grid, "_groups", "_coordinates", "_shape"))
    say(f"work in a frame for another mesh: {np.median(works):.1f} ms")
    grid.selected = range(4096)
    say(f"work in a frame for a selection of 4,096: {shown.receive(grid, 'selected'):.1f} ms")
    box = page.locator("canvas").last.bounding_box()
    page.evaluate("() => { frames.length = 0; }")
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.move(box["x"] + 300, box["y"] + 200, steps=30)
    shown.settle()
    frames = page.evaluate("() => frames")
    say(f"work in a frame while hovering: median {np.median(frames):.1f} ms, most {max(frames):.1f} ms")
    assert page.locator(".ml-tip b").inner_text().startswith("rank ")


@pytest.mark.parametrize("size", [200, 300, 70_000])
def test_coordinates_of_any_size_are_read_right(bare, page, size):
    grid = Grid(DeviceMesh(dp=size, tp=1), "tp")
    grid.selected = [size - 1]
    shown = bare("grid", grid)
    page.locator(".ml-stage").focus()
    page.keyboard.press("ArrowRight")  # the cursor begins at what is selected
    shown.settle()
    where = f"rank {size - 1} · dp={size - 1} · tp=0 · tp_{size - 1} · selected"
    assert page.locator(".ml-status").inner_text().startswith(where)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("axes", ["dp=2, tp=4", "pp=2, dp=4, tp=8", "dp=128, tp=8", "dp=2048, tp=8"])
def test_nothing_overlaps_or_scrolls_sideways(bare, page, axes, theme):
    shown = bare("grid", Grid(DeviceMesh(axes), "dp"), theme=theme)
    for width in (600, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        shown.settle()
        shown.settle()
        assert overlapping_texts(page, ".meshlab-grid") == []
        assert not scrolls_sideways(page, ".meshlab-grid")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(bare, grid, serious_faults, theme):
    bare("grid", grid, theme=theme)
    assert serious_faults("#host") == []
