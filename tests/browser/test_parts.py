"""Every part of the picture can be picked, with the mouse and with the keyboard, and several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meshlab as ml
from meshlab.widgets._workbench import Workbench
from tests.browser.pages import Wired
from tests.browser.test_picture import COUNT, Hand

PARTS = {
    "device": ("GPU 3 of node0", "node0/GPU3"),
    "nvlink": ("NVLink of GPU 3", "node0/GPU3/NVLink"),
    "nic": ("NIC3 of node0", "node0/NIC3"),
    "cable": ("cable of NIC3", "node0/NIC3/cable"),
    "leaf": ("leaf switch 3", "leaf:3"),
    "up": ("an uplink of each of 8 leaf switches", "leaf:0/uplink"),
    "host": ("node0", "node0"),
}
KEYS = ("device", "nvlink", "nic", "cable", "leaf", "up", "host")  # in the order of the key N


@pytest.fixture
def wb() -> Iterator[Workbench]:
    machine = ml.preset("tapered-h100", nodes=4, nodes_per_leaf=2, nodes_per_pod=2, rails=8)
    workbench = Workbench(machine, "pp=2, dp=2, tp=8", axis="dp")
    yield workbench
    workbench.close()


@pytest.fixture
def shown(wired: Callable[..., Wired], wb: Workbench, page: Any) -> Wired:
    page.set_viewport_size({"width": 1300, "height": 1100})
    return wired("workbench", wb)


@pytest.fixture
def hand(shown: Wired, wb: Workbench) -> Hand:
    return Hand(shown, wb)


def on_page(hand: Hand, x: float, y: float) -> tuple[float, float]:
    left, top = hand.inside(x, y)
    return hand.box["x"] + 1 + left, hand.box["y"] + 1 + top


def place_of(hand: Hand, kind: str) -> tuple[float, float]:
    """A point of the page at which a part of the first host, or next to it, is drawn."""
    drawn = hand.drawn
    device, nic, leaf = drawn.device[3], drawn.nic[3], drawn.leaf[3]
    uplink = drawn.uplink[0].ravel()
    return on_page(
        hand,
        *{
            "device": (device[0] + device[2] / 2, device[1] + device[3] / 2),
            "nvlink": (device[0] - 5, device[1] + device[3] / 2),
            "nic": (nic[0] + nic[2] / 2, nic[1] + nic[3] / 2),
            "cable": (nic[0] + nic[2] / 2, nic[1] + nic[3] + 6),
            "leaf": (leaf[0] + leaf[2] / 2, leaf[1] + leaf[3] / 2),
            "up": (uplink[2], (uplink[1] + uplink[-1]) / 2),
            "host": (drawn.host[0][0] + 30, drawn.host[0][1] + 8),
        }[kind],
    )


def picked(page: Any) -> str:
    """The first meaning of what is picked."""
    options = page.locator(".ml-part option").all_inner_texts()
    return str(options[0] if options else page.locator(".ml-part b").inner_text())


def press(shown: Wired, name: str) -> None:
    shown.page.locator(".ml-part").get_by_role("button", name=name, exact=True).click()
    shown.wait()


def test_every_part_is_picked_and_outlined_with_the_mouse(shown: Wired, hand: Hand, page: Any, wb: Workbench) -> None:
    for kind, (text, name) in PARTS.items():
        page.mouse.click(*place_of(hand, kind))
        page.mouse.move(5, 5)
        shown.wait()
        assert picked(page) == text
        assert page.evaluate(COUNT, [1, "ink"]) > 40, kind
        bar, stage = (page.locator(name).bounding_box() for name in (".ml-part", ".ml-stage"))
        assert bar["y"] >= stage["y"] + stage["height"]  # it hides no rank
        press(shown, "Fail")
        assert name in wb.failed
        assert [mark["kind"] for mark in wb._view["failed"]]
        wb.undo()
        shown.push(lambda: None)
        shown.receive(wb)


def test_every_part_is_picked_with_the_keyboard(shown: Wired, page: Any, wb: Workbench) -> None:
    stage = page.locator(".ml-stage")
    for steps, kind in enumerate(KEYS):
        stage.focus()
        for _ in range(4):
            page.keyboard.press("ArrowDown")
        for _ in range(steps):
            page.keyboard.press("n")
        page.keyboard.press("Enter")
        shown.wait()
        assert picked(page) == PARTS[kind][0]
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.evaluate("document.activeElement.blur()")
    stage.focus()
    for key in ("ArrowDown", "n", "n", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    shown.wait()
    assert page.locator(".meshlab-picture .ml-live").inner_text().startswith("NIC1 of node1")
    page.keyboard.press("p")
    shown.wait()
    assert page.locator(".meshlab-picture .ml-live").inner_text().startswith("NVLink of GPU 1")


def test_several_parts_fail_in_one_step_and_all_say_so(shown: Wired, hand: Hand, page: Any, wb: Workbench) -> None:
    before = wb.table().set_index("axis").loc["dp", "time_us"]
    page.mouse.click(*place_of(hand, "leaf"))
    page.keyboard.down("Shift")
    page.mouse.click(*place_of(hand, "nic"))
    page.mouse.click(*place_of(hand, "cable"))
    page.mouse.click(*place_of(hand, "cable"))  # and not this one
    page.keyboard.up("Shift")
    shown.wait()
    assert page.locator(".ml-part b").inner_text() == "2 parts: leaf switch 3, NIC3 of node0"
    assert page.locator(".ml-part").get_by_role("button").all_inner_texts() == ["Fail", "✕"]  # a switch is not removed
    press(shown, "Fail")
    assert wb.failed == ("leaf:3", "node0/NIC3")
    assert [mark["kind"] for mark in wb._view["failed"]] == ["switch", "nic"]
    assert page.locator(".ml-chip").all_inner_texts() == ["✕ leaf switch 3", "✕ NIC3 of node0"]
    assert page.evaluate(COUNT, [0, "conflict"]) > 100  # the crosses
    assert wb.table().set_index("axis").loc["dp", "time_us"] > before
    page.mouse.click(*place_of(hand, "leaf"))
    shown.wait()
    assert page.locator(".ml-part b").inner_text() == "leaf switch 3: failed"
    press(shown, "Restore")
    assert wb.failed == ("node0/NIC3",)
    wb.undo()
    wb.undo()
    assert wb.failed == ()


def test_a_rate_is_set_and_a_wrong_one_is_explained(shown: Wired, hand: Hand, page: Any, wb: Workbench) -> None:
    page.mouse.click(*place_of(hand, "nic"))
    page.get_by_label("Rate", exact=True).fill("50 %")
    page.keyboard.press("Enter")
    shown.wait()
    assert wb.failed == ("node0/NIC3=50%",)
    page.mouse.click(*place_of(hand, "nic"))
    page.get_by_label("Rate", exact=True).fill("quickly")
    page.keyboard.press("Enter")
    shown.wait()
    assert page.locator(".ml-part-row").get_by_role("alert").inner_text()
    assert wb.failed == ("node0/NIC3=50%",)


def test_ranks_and_hosts_are_found_by_name(shown: Wired, page: Any, wb: Workbench) -> None:
    search = page.get_by_label("Find a rank or a host")
    for text, focus, pick in (("rank 12", "device:12", 12), ("31", "device:31", 31), ("node2", "node:2", 31)):
        search.fill(text)
        page.keyboard.press("Enter")
        shown.wait()
        assert (wb.focus, wb.pick) == (focus, pick)
    search.fill("rank 99")
    page.keyboard.press("Enter")
    shown.wait()
    assert page.locator(".ml-status").inner_text() == "no rank, host or other place is named rank 99"


def test_all_names_of_ranks_have_one_form(shown: Wired, page: Any) -> None:
    page.evaluate("""() => {
      window.texts = [];
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
        texts.push(text);
        return fillText.call(this, text, ...where);
      };
    }""")
    for width in (900, 1100, 1300, 1600):
        page.set_viewport_size({"width": width, "height": 1000})
        shown.settle()
        page.evaluate("() => { texts.splice(0); model.set('color', model.get('color')); }")
        shown.settle()
        texts = page.evaluate("() => texts")
        forms = {form for form in ("GPU 0 · rank 0", "rank 0", "0") if form in texts}
        assert len(forms) == 1
        last = forms.pop().replace("GPU 0", "GPU 7").replace("rank 0", "rank 31")
        assert ("31" if last == "0" else last) in texts
        if width >= 1100:
            assert {"NIC", "leaf 0"} <= set(texts)


def test_a_screen_reader_gets_names_in_the_order_of_reading(shown: Wired, page: Any) -> None:
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    by_id = {node["nodeId"]: node for node in nodes}
    names, stack = [], [nodes[0]]
    while stack:
        node = stack.pop()
        stack += [by_id[child] for child in reversed(node["childIds"]) if child in by_id]
        if not node["ignored"]:
            # Chromium 150 ends the name of a label that contains its control with a space.
            names.append((node["role"]["value"], node.get("name", {}).get("value", "").strip()))
    controls = {"button", "combobox", "textbox", "searchbox", "tab", "menuitem", "application"}
    assert [name for role, name in names if role in controls and not name] == []
    wanted = [
        ("tab", "Design"),
        ("combobox", "Machine"),
        ("textbox", "Hosts"),
        ("button", "Move pp"),
        ("textbox", "Size of dp"),
        ("searchbox", "Find a rank or a host"),
        ("combobox", "Colour"),
    ]
    positions = [names.index(entry) for entry in wanted]
    assert positions == sorted(positions)
    (picture,) = [name for role, name in names if role == "application"]
    assert "N and P along the links of a GPU" in picture


def test_a_saved_page_has_no_field_that_cannot_work(page: Any, tmp_path: Any, wb: Workbench) -> None:
    wb.failed = ["node1/NIC3"]
    page.goto(wb.save(tmp_path / "page.html").as_uri())
    page.locator(".meshlab-workbench").wait_for()
    fields = page.locator(".ml-side").locator("input, select, textarea, [aria-disabled]")
    assert fields.filter(visible=True).count() == 0
    # They choose the axis.
    assert page.locator(".ml-side button").filter(visible=True).all_inner_texts() == ["pp", "dp", "tp"]
    assert page.locator(".ml-failed li").all_inner_texts() == ["NIC3 of node1"]
    assert "Here you can point at everything" in page.locator("body > p").inner_text()
    assert page.locator(".ml-part, .ml-part-hint, :disabled").count() == 0
    page.locator(".ml-side").get_by_role("button", name="tp", exact=True).click()
    page.wait_for_function("() => document.querySelector('.ml-table .ml-on').textContent.includes('tp')")
    page.get_by_label("Find a rank or a host").fill("rank 9")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.ml-crumbs').textContent.includes('node1')")
