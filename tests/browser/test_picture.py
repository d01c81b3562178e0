"""The picture's JavaScript in a real browser."""

from __future__ import annotations

import numpy as np
import pytest

import meshlab as ml
from meshlab.plots._theme import LIGHT
from meshlab.topology.placement._layout import fit, layout
from meshlab.widgets._picture import Picture
from tests.browser.pages import HIDDEN_FOR_AN_INSTANT, overlapping_texts, scrolls_sideways, state_of

ROOT = ".meshlab-picture"
PIXEL = """([canvas, x, y]) => {
  const pen = document.querySelectorAll("canvas")[canvas].getContext("2d");
  return [...pen.getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data];
}"""
# Number of pixels on a canvas that are nearly the colour of a CSS variable.
COUNT = """([canvas, name]) => {
  const probe = document.querySelector(".ml-probe"), seen = document.querySelectorAll("canvas")[canvas];
  probe.style.color = `var(--ml-${name})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
  const data = seen.getContext("2d").getImageData(0, 0, seen.width, seen.height).data;
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    const away = Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b);
    if (away < 12 && data[i + 3] > 200) found++;
  }
  return found;
}"""

# Records the boxes of the texts that are written on a canvas.
RECORD = """() => {
  window.written = [];
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const m = this.getTransform(), w = this.measureText(text).width;
    const from = { left: 0, start: 0, center: w / 2, right: w }[this.textAlign];
    const toPage = ([px, py]) => [m.a * px + m.c * py + m.e, m.b * px + m.d * py + m.f];
    const ends = [[x - from, y - 5], [x - from + w, y + 5]].map(toPage);
    const [xs, ys] = [0, 1].map((k) => ends.map((end) => end[k]).sort((a, b) => a - b));
    written.push([text, this.canvas === document.querySelector("canvas"), xs[0], ys[0], xs[1], ys[1]]);
    return fillText.call(this, text, x, y);
  };
}"""
WRITTEN_OVER = """() => {
  const base = written.filter((one) => one[1]), found = [];
  base.forEach(([a, , x0, y0, x1, y1], i) => base.slice(i + 1).forEach(([b, , p0, q0, p1, q1]) => {
    if (Math.min(x1, p1) - Math.max(x0, p0) > 1 && Math.min(y1, q1) - Math.max(y0, q0) > 1) found.push(`${a} | ${b}`);
  }));
  return [base.length, found];
}"""
LARGE = """([name, times]) => new Promise(async done => {
  const stage = document.querySelector(".ml-stage"), box = stage.getBoundingClientRect(), took = [];
  const event = {
    hover: k => new PointerEvent("pointermove", { clientX: box.left + box.width * (0.2 + 0.6 * ((k * 37) % 80) / 80),
      clientY: box.top + box.height * (0.25 + 0.6 * ((k * 17) % 80) / 80), pointerId: 1, bubbles: true }),
    zoom: k => new WheelEvent("wheel", { clientX: box.left + box.width * 0.6, clientY: box.top + box.height / 2,
      deltaY: k < times / 2 ? -60 : 60, ctrlKey: true, bubbles: true, cancelable: true }),
  }[name];
  for (let k = 0; k < times; k++) {
    frames.length = 0;
    const start = performance.now();
    stage.dispatchEvent(event(k));
    const own = performance.now() - start;
    await painted();
    took.push(own + frames.reduce((all, one) => all + one, 0));
  }
  done(took.sort((a, b) => a - b));
})"""


class Hand:
    """A hand on the picture: positions are devices of the fitted machine."""

    def __init__(self, shown, picture: Picture) -> None:
        self.page, self.shown = shown.page, shown
        self.scene = picture._drawn_view.scene
        self.look()

    def look(self) -> None:
        self.box = self.page.locator(".meshlab-picture .ml-stage").bounding_box()
        width = self.page.evaluate("() => document.querySelector('.meshlab-picture .ml-stage').clientWidth")
        height = self.page.evaluate("() => document.querySelector('.meshlab-picture .ml-stage').clientHeight")
        self.drawn = layout(self.scene, fit(self.scene, width, min(540, max(round(width * 0.75), 320))))
        self.x = (width - self.drawn.width) / 2
        unit = self.drawn.unit
        tall = self.drawn.height if len(self.drawn.pod) > 1 else (unit[:, 1] + unit[:, 3]).max()
        self.y = min((height - tall) / 2, 24) if tall + 20 <= height else min(max(0, height - tall - 10), 10)

    def inside(self, x: float, y: float) -> tuple[float, float]:
        """A point of the layout, from the upper left of the canvas."""
        return x + self.x, y + self.y

    def at(self, device: int, dx: float = 0.5, dy: float = 0.5) -> tuple[float, float]:
        """A point of a device on the page."""
        x, y, w, h = self.drawn.device[device]
        left, top = self.inside(x + w * dx, y + h * dy)
        return self.box["x"] + 1 + left, self.box["y"] + 1 + top

    def point(self, device: int) -> None:
        self.page.mouse.move(*self.at(device))
        self.shown.settle()

    def tip(self) -> list[str]:
        return self.page.locator(".ml-tip").inner_text().splitlines()


@pytest.fixture
def picture() -> Picture:
    return Picture("dp=4, tp=8", ml.preset("gcp-a3-high", nodes=4, nodes_per_leaf=4, rails=4), axis="dp")


@pytest.fixture
def shown(bare, picture):
    return bare("picture", picture)


@pytest.fixture
def hand(shown, picture) -> Hand:
    return Hand(shown, picture)


@pytest.fixture(scope="module")
def pods() -> ml.Cluster:
    return ml.preset("tapered-h100", nodes=64, nodes_per_leaf=8, nodes_per_pod=32, rails=8)


def model(page, name: str):
    return page.evaluate("name => model.get(name)", name)


def test_pointing_at_a_gpu_shows_its_group_its_route_and_its_load(shown, hand):
    assert shown.page.evaluate(COUNT, [1, "accent"]) == 0
    hand.point(3)
    title, where, peers, load, *_ = [line for line in hand.tip() if line]
    assert title == "rank 3"
    assert where == "dp=0 · tp=3"
    assert peers.startswith("node0 · GPU 3")
    assert load.startswith("dp_3 with 3 peers: 11, 19, 27")
    assert "2 dp groups · 768\u2009MiB" in hand.tip()[-2]
    assert hand.tip()[-1] == "▲ limits dp"
    assert shown.page.evaluate(COUNT, [1, "conflict"]) > 300  # the shared NICs of its route
    member, other = hand.inside(*hand.drawn.device[11][:2] + 9), hand.inside(*hand.drawn.device[12][:2] + 9)
    assert shown.page.evaluate(PIXEL, [1, *member]) == [0xD3, 0x68, 0x8C, 255]  # the pure colour of group 3
    assert shown.page.evaluate(PIXEL, [1, *other])[3] < 200  # only a veil
    shown.page.mouse.move(5, 5)
    shown.settle()
    assert shown.page.locator(".ml-tip").is_hidden()
    assert shown.page.evaluate(COUNT, [1, "conflict"]) == 0


def test_links_have_tooltips_too(shown, hand):
    page, drawn = shown.page, hand.drawn
    for array, expected in (
        (drawn.nic, "NIC1 of node0"),
        (drawn.leaf, "leaf switch of rail 1"),
        (drawn.bar, "NVSwitches of node1"),
    ):
        x, y, w, h = array[1]
        left, top = hand.inside(x + w / 2, y + h / 2)
        page.mouse.move(hand.box["x"] + 1 + left, hand.box["y"] + 1 + top)
        shown.settle()
        assert hand.tip()[0] == expected


def test_the_tooltip_stays_while_the_pointer_rests_and_when_it_enters(shown, hand):
    page, tip = shown.page, shown.page.locator(".ml-tip")
    hand.point(3)
    page.mouse.move(*hand.at(3, 0.6, 0.6))
    shown.settle()
    box = tip.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 12, steps=4)
    shown.settle()
    assert hand.tip()[0] == "rank 3"
    page.wait_for_timeout(400)  # longer than the delay after which something crossed would replace it
    assert hand.tip()[0] == "rank 3"
    page.keyboard.press("Tab")
    page.locator(".meshlab-picture .ml-stage").focus()
    page.keyboard.press("Escape")
    shown.settle()
    assert tip.is_hidden()


def test_a_click_keeps_a_group_and_python_knows(shown, hand, picture):
    page = shown.page
    page.mouse.click(*hand.at(5))
    page.mouse.move(5, 5)
    shown.settle()
    assert model(page, "pick") == 5
    assert page.evaluate(COUNT, [1, "conflict"]) > 300
    assert page.locator(".ml-live").inner_text().startswith("rank 5, dp_5: dp leaves the host")
    page.mouse.click(*hand.at(5))
    assert model(page, "pick") is None
    picture.pick = 9
    shown.receive(picture, "pick")
    assert page.locator(".ml-live").inner_text().startswith("rank 9, dp_1")


def test_a_conflict_is_orange_and_hatched_and_a_clean_mesh_has_no_orange(shown, hand, picture):
    page = shown.page
    x, y, w, _ = hand.drawn.nic[0]
    colours = {tuple(page.evaluate(PIXEL, [0, *hand.inside(x + dx, y + 2)])) for dx in np.arange(1, w - 1)}
    assert len(colours) > 3  # stripes
    assert page.evaluate(COUNT, [0, "conflict"]) > 300
    picture.axis = "tp"
    shown.receive(picture)
    assert page.evaluate(COUNT, [0, "conflict"]) == 0
    assert page.locator(".ml-verdict").inner_text().startswith("● tp stays inside NVLink")


def test_the_keyboard_moves_keeps_zooms_and_clears(shown, hand):
    page = shown.page
    page.locator(".meshlab-picture .ml-stage").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):  # the first one only enters
        page.keyboard.press(key)
    shown.settle()
    assert model(page, "pick") == 9
    assert page.locator(".ml-live").inner_text().startswith("rank 9, dp_1")
    page.keyboard.press("]")
    shown.settle()
    assert (model(page, "axis"), model(page, "_edit")) == ("tp", 1)
    page.keyboard.press("+")
    shown.settle()
    page.wait_for_function("() => model.get('focus') !== 'all'")
    page.keyboard.press("0")
    shown.settle()
    assert model(page, "focus") == "all"
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate("() => model.selected()") == [9, 17]
    for _ in range(2):  # the tooltip, then the pick
        page.keyboard.press("Escape")
    assert model(page, "pick") is None
    page.keyboard.press("Escape")
    assert page.evaluate("() => model.selected()") == []


def test_the_wheel_scrolls_the_page_unless_the_picture_has_the_focus(shown, hand):
    page = shown.page
    page.set_viewport_size({"width": 1000, "height": 400})
    page.mouse.move(*hand.at(3))
    page.mouse.wheel(0, 120)
    page.wait_for_function("() => scrollY > 0")
    assert page.locator(".ml-crumbs").inner_text().startswith("32 GPUs")
    page.evaluate("() => scrollTo(0, 0)")
    page.evaluate("() => document.querySelector('.meshlab-picture .ml-stage').focus({ preventScroll: true })")
    page.mouse.wheel(0, -400)
    page.wait_for_function("() => document.querySelector('.ml-crumbs').innerText.includes('node')")
    assert page.evaluate("() => scrollY") == 0


def test_shift_and_drag_selects_and_a_plain_drag_does_not(shown, hand, picture):
    page = shown.page
    page.keyboard.down("Shift")
    page.mouse.move(*hand.at(0, -0.2, -0.1))
    page.mouse.down()
    page.mouse.move(*hand.at(9, 1.1, 1.1), steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert page.evaluate("() => model.selected()") == [0, 1, 8, 9]
    shown.settle()
    assert page.locator(".ml-status").inner_text() == "4 selected: 0, 1, 8, 9"
    sent = page.evaluate("() => [...new Uint8Array(model.get('selected').buffer)]")
    picture.set_state({"selected": memoryview(bytes(sent))})
    assert picture.selected == (0, 1, 8, 9)
    page.mouse.move(*hand.at(16))
    page.mouse.down()
    page.mouse.move(*hand.at(24), steps=5)
    page.mouse.up()
    assert page.evaluate("() => model.selected()") == [0, 1, 8, 9]


@pytest.mark.parametrize("name", ["pods", "racks", "mixed"])
def test_far_away_every_cell_has_the_colour_of_its_group(bare, pods, name):
    nodes = [ml.preset("dgx-h100").node(0), ml.preset("pcie-l40s").node(0)]
    cluster = {
        "pods": lambda: ml.preset("tapered-h100", nodes=512, nodes_per_leaf=32, nodes_per_pod=128, rails=8),
        "racks": lambda: ml.preset("gb200-nvl72", nodes=18 * 50),
        "mixed": lambda: ml.Cluster.from_nodes([nodes[k % 3 == 0] for k in range(700)]),
    }[name]()
    ranks = cluster.n_devices - 40  # some devices have no rank
    picture = Picture(ml.DeviceMesh(dp=ranks // 4, tp=4), cluster, axis="tp")
    shown = bare("picture", picture)
    hand, page = Hand(shown, picture), shown.page
    assert hand.drawn.detail == 0
    group = np.frombuffer(picture._view["group_of"], "<i4")
    devices = [*range(0, cluster.n_devices, 61), cluster.n_devices - 1]
    x, y, w, h = hand.drawn.device[devices].T
    left, top = hand.inside(x + w / 2, y + h / 2)
    seen = page.evaluate(
        "([x, y]) => { const pen = document.querySelector('canvas').getContext('2d');"
        "return x.map((_, k) => [...pen.getImageData(x[k], y[k], 1, 1).data].slice(0, 3)); }",
        [left.tolist(), top.tolist()],
    )
    colours = np.array([[int(LIGHT.resting(k)[i : i + 2], 16) for i in (1, 3, 5)] for k in range(6)])
    placed = group[devices] >= 0
    assert np.abs(np.array(seen)[placed] - colours[group[devices][placed] % 6]).max() <= 1
    assert not placed[-1]
    assert np.abs(np.array(seen)[-1] - colours).max(axis=1).min() > 10


def test_zoom_keeps_the_gpu_under_the_pointer(bare, pods):
    picture = Picture("dp=64, tp=8", pods, axis="dp")
    shown = bare("picture", picture)
    hand, page = Hand(shown, picture), shown.page
    x, y = hand.at(77)
    page.locator(".meshlab-picture .ml-stage").focus()
    for _ in range(6):
        page.mouse.move(x, y)
        page.mouse.wheel(0, -150)
        shown.settle()
    page.mouse.move(x, y + 1)
    shown.settle()
    assert hand.tip()[0] == "rank 77"


def test_a_double_click_and_a_finding_and_the_breadcrumb_go_to_a_place(bare, pods):
    picture = Picture("pp=2, dp=32, tp=8", pods, axis="dp")
    shown = bare("picture", picture)
    hand, page = Hand(shown, picture), shown.page
    page.mouse.dblclick(*hand.at(200))
    shown.settle()
    place = model(page, "focus")
    assert place in ("leaf:3", "node:25")
    page.get_by_role("button", name="512 GPUs").click()
    shown.settle()
    assert model(page, "focus") == "all"
    page.locator(".ml-findings button").first.click()
    shown.settle()
    assert (model(page, "axis"), model(page, "focus")) == ("pp", picture.findings[0].place)
    picture.focus = "node:25"
    shown.receive(picture, "focus")
    assert page.locator(".ml-crumbs").inner_text() == "512 GPUs▸pod 0▸leaf 3▸node25· every link"


def test_a_late_answer_is_dropped_and_cells_change_at_once(shown, hand, picture):
    page = shown.page
    early = state_of(picture, "_view", "_loads")
    page.locator(".ml-axis").select_option("tp")
    shown.settle()
    corner = hand.inside(*hand.drawn.device[1][:2] + 9)
    first = page.evaluate(PIXEL, [0, *corner])
    assert first == page.evaluate(PIXEL, [0, *hand.inside(*hand.drawn.device[0][:2] + 9)])  # one group of tp
    page.evaluate("state => receive(state)", early)
    assert page.locator(".ml-axis").input_value() == "tp"
    assert page.evaluate(PIXEL, [0, *corner]) == first
    picture.set_state({"axis": "tp", "_edit": 1})
    shown.receive(picture, "_view", "_loads")
    assert page.locator(".ml-verdict").inner_text().startswith("● tp")
    assert page.evaluate(PIXEL, [0, *corner]) == first


def test_colours_by_load_by_sharing_and_by_a_measured_column(shown, hand, picture):
    page = shown.page
    resting = [hand.inside(*hand.drawn.device[k][:2] + 9) for k in (0, 1, 2)]
    page.locator(".ml-color").select_option("load")
    shown.settle()
    assert len({tuple(page.evaluate(PIXEL, [0, *one])) for one in resting}) == 1
    page.locator(".ml-color").select_option("sharing")
    page.mouse.move(*hand.at(1))
    shown.settle()
    zero, one, two = (page.evaluate(PIXEL, [0, *point]) for point in resting)
    assert zero != two  # ranks 0 and 1 share a NIC, rank 2 has a different one
    assert one != two
    picture.values = {"time_us": np.arange(32.0)}
    picture.color = "time_us"
    page.mouse.move(5, 5)
    shown.receive(picture, "_values", "_view", "color")
    assert page.evaluate(PIXEL, [0, *resting[0]]) == [0x44, 0x01, 0x54, 255]
    assert "time_us: 0 to 31.0" in page.locator(".meshlab-picture .ml-legend").inner_text()


def test_legend_entries_switch_marks_off(shown):
    page = shown.page
    entry = page.get_by_role("button", name="shared, and it limits dp")
    entry.click()
    shown.settle()
    assert entry.get_attribute("aria-pressed") == "false"
    assert page.evaluate(COUNT, [0, "conflict"]) == 0
    assert page.evaluate("() => document.activeElement.dataset.toggle") == "conflict"  # the focus stays


def test_a_change_of_theme_repaints_at_once(shown):
    page = shown.page
    assert page.evaluate(PIXEL, [0, 2, 2]) == [255, 255, 255, 255]
    shown.theme("dark")
    shown.settle()
    assert page.evaluate(PIXEL, [0, 2, 2]) == [0x15, 0x18, 0x1C, 255]
    assert page.locator(ROOT).get_attribute("data-scheme") == "dark"
    page.evaluate("() => document.body.style.setProperty('--jp-layout-color1', '#112233')")  # as JupyterLab's themes do
    shown.settle()
    assert page.evaluate(PIXEL, [0, 2, 2]) == [0x11, 0x22, 0x33, 255]


def test_size_density_and_a_hidden_page_are_followed(shown, page, picture):
    wide = page.locator("canvas").first.evaluate("c => [c.width, c.clientWidth]")
    page.set_viewport_size({"width": 600, "height": 900})
    page.wait_for_function("wide => document.querySelector('canvas').width < wide[0]", arg=wide)
    before = page.locator("canvas").first.evaluate("c => c.width")
    denser = {"width": 600, "height": 890, "deviceScaleFactor": 2, "mobile": False}
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setDeviceMetricsOverride", denser)
    page.wait_for_function("before => document.querySelector('canvas').width === 2 * before", arg=before)
    session.detach()  # the other tests have this page too, in its normal density
    picture.axis = "tp"
    page.evaluate(HIDDEN_FOR_AN_INSTANT, state_of(picture, "axis", "_view", "_loads"))
    page.wait_for_function("() => document.querySelector('.ml-verdict').innerText.startsWith('● tp')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overlaps_or_is_hard_to_reach(bare, picture, serious_faults, theme):
    shown = bare("picture", picture, theme=theme)
    assert serious_faults(ROOT) == []
    for width in (600, 900, 1400):
        shown.page.set_viewport_size({"width": width, "height": 900})
        shown.settle()
        shown.settle()
        assert overlapping_texts(shown.page, ROOT) == []
        assert not scrolls_sideways(shown.page, ".ml-bar")
        assert shown.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", ["host", "four", "rack", "128"])
def test_texts_on_the_canvas_do_not_overlap(bare, page, picture, name):
    shown = bare(
        "picture",
        {
            "host": lambda: Picture("dp=2, tp=4", "dgx-h100"),
            "four": lambda: picture,
            "rack": lambda: Picture("dp=9, tp=8", "gb200-nvl72"),
            "128": lambda: Picture("pp=4, dp=32, tp=8", ml.preset("dgx-h100", nodes=128), axis="pp"),
        }[name](),
    )
    page.evaluate(RECORD)
    for width, zooms in ((600, 0), (900, 0), (1400, 0), (1400, 3)):
        page.set_viewport_size({"width": width, "height": 900})
        shown.settle()
        for _ in range(zooms):
            page.get_by_role("button", name="Zoom in").click()
        shown.settle()
        page.evaluate("() => { written.splice(0); model.set('color', model.get('color')); }")  # paint again
        shown.settle()
        number, found = page.evaluate(WRITTEN_OVER)
        assert number > 0
        assert found == []


def test_forced_colours_are_those_of_the_system(shown, page):
    page.emulate_media(forced_colors="active")
    shown.settle()
    shown.settle()
    canvas = page.evaluate(
        "() => { const probe = document.querySelector('.ml-probe'); probe.style.color = 'Canvas';"
        "return getComputedStyle(probe).color.match(/[0-9]+/g).slice(0, 3).map(Number); }"
    )
    assert page.evaluate(PIXEL, [0, 2, 2])[:3] == canvas
    page.emulate_media(forced_colors="none")


def test_a_thousand_changes_leave_nothing_behind(shown, page, picture):
    states = []
    for mesh in ("dp=4, tp=8", "dp=8, tp=4"):
        picture.mesh = mesh
        states.append(state_of(picture, "_view", "_loads"))
    # What is kept after the first changes stays the same.
    counted = page.evaluate(
        """async states => {
      const left = () => [model.handlers.length, document.querySelectorAll("*").length];
      for (const state of states) await receive(state);
      const before = left();
      for (let k = 0; k < 1000; k++) {
        model.receive(states[k % 2]);
        if (k % 50 === 0) await painted();
      }
      await painted();
      return [before, left()];
    }""",
        states,
    )
    assert counted[0] == counted[1]


@pytest.mark.long
def test_sixteen_thousand_gpus_are_fluid(bare, say):
    cluster = ml.preset("tapered-h100", nodes=2048, nodes_per_leaf=32, nodes_per_pod=512, rails=8)
    picture = Picture("pp=16, dp=128, tp=8", cluster, axis="pp")
    shown = bare("picture", picture)
    changes = []
    for turn in range(10):
        picture.mesh = ("pp=16, dp=256, tp=4", "pp=16, dp=128, tp=8")[turn % 2]
        changes.append(shown.receive(picture, "_view", "_loads"))
    hover, zoom = (shown.page.evaluate(LARGE, [name, 60]) for name in ("hover", "zoom"))
    say(
        f"16,384 GPUs: first draw {shown.first_paint_ms:.0f} ms, change of the mesh {np.median(changes):.0f} ms, "
        f"zoom p50 {zoom[30]:.1f} ms, hover p50 {hover[30]:.1f} and p95 {hover[57]:.1f} ms"
    )
    # The limits are several times the goals, because other jobs may run on the machine.
    assert np.median(changes) < 200
    assert zoom[30] < 80
    assert hover[30] < 40


def test_a_finger_scrolls_the_page_and_two_fingers_zoom(chromium, picture, shown, hand):
    page = shown.page
    tools = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        tools.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": x, "y": y, "id": k} for k, (x, y) in enumerate(points)]},
        )

    tools.send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})
    touch("touchStart", hand.at(3))
    touch("touchEnd")
    page.wait_for_function("() => model.get('pick') === 3")
    x, y = hand.at(12)
    touch("touchStart", (x - 20, y), (x + 20, y))
    for spread in (40, 80, 140):
        touch("touchMove", (x - spread, y), (x + spread, y))
    touch("touchEnd")
    page.wait_for_function("() => model.get('focus') !== 'all'")
    tools.detach()
    assert (
        page.locator(".meshlab-picture .ml-stage").evaluate("stage => getComputedStyle(stage).touchAction") == "pan-y"
    )


def test_cleaning_up_leaves_no_listener_and_no_element(shown, page):
    page.evaluate("() => cleanup()")
    assert page.evaluate("() => model.handlers.length") == 0
    assert page.evaluate("() => document.querySelector('#host').children.length") == 0
    page.set_viewport_size({"width": 500, "height": 500})
    shown.theme("dark")  # the page fixture fails on any error that a forgotten listener raises


def test_it_works_in_a_shadow_root(page, bare, picture):
    shown = bare("picture", picture)
    page.evaluate("""async () => {
      cleanup();
      const root = document.querySelector("#host").attachShadow({ mode: "open" });
      const el = document.createElement("div"), style = document.createElement("style");
      style.textContent = await (await fetch("/picture.css")).text();
      root.append(style, el);
      (await import("/picture.js")).default.render({ model, el });
    }""")
    shown.settle()
    stage = page.locator(".meshlab-picture .ml-stage")  # playwright looks into shadow roots
    stage.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    assert model(page, "pick") == 1


def test_ranks_without_a_machine_and_a_machine_without_a_mesh(bare):
    ranks = Picture("dp=2, tp=4", pick=5)
    shown = bare("picture", ranks)
    assert shown.page.locator(".ml-verdict").inner_text() == "tp (2 groups of 4) · dp=2, tp=4"
    Hand(shown, ranks).point(5)
    assert Hand(shown, ranks).tip() == ["rank 5", "dp=1 · tp=1", "tp_1 with 3 peers: 4, 6, 7"]
    grouped = Picture(ml.DeviceMesh("dp=2, tp=4").with_group("pair", [1, 5]), axis="pair")
    shown = bare("picture", grouped)
    Hand(shown, grouped).point(0)
    assert Hand(shown, grouped).tip() == ["rank 0", "dp=0 · tp=0", "not in pair"]
    assert "no rank" in shown.page.locator(".meshlab-picture .ml-legend").inner_text()
    machine = Picture(None, "dgx-h100", pick=2)
    shown = bare("picture", machine)
    Hand(shown, machine).point(2)
    assert Hand(shown, machine).tip()[0] == "GPU 2, no rank"
