"""The designer in a real JupyterLab with a real kernel."""

from __future__ import annotations

import pytest

from tests.browser.lab import Lab, Notebook
from tests.browser.pages import overlapping_texts, scrolls_sideways

ROOT = ".meshlab-designer"

# Milliseconds from the Enter key to the frame in which the picture shows the new mesh.
WATCH = """() => {
  window.times = [];
  let start = 0;
  document.addEventListener("keydown", event => { if (event.key === "Enter") start = performance.now(); }, true);
  new MutationObserver(() => requestAnimationFrame(() => times.push(performance.now() - start)))
    .observe(document.querySelector(".meshlab-picture .ml-verdict"), { childList: true, characterData: true });
}"""


def show(lab: Lab, page, name: str, arguments: str, *, theme: str = "Light") -> Notebook:
    lab.theme(theme)
    lab.write_notebook(name, [f"from meshlab.widgets import Designer\ndesigner = Designer({arguments})\ndesigner"])
    page.set_viewport_size({"width": 1400, "height": 1000})
    notebook = lab.open(page, name)
    notebook.run_all()
    page.wait_for_selector(f"{ROOT} canvas")
    page.wait_for_function("() => document.querySelector('.meshlab-picture .ml-verdict').textContent")
    return notebook


def size_box(page, axis: int):
    return page.locator(f"{ROOT} input[type=number]").nth(axis)


def type_size(page, axis: int, size: int) -> None:
    size_box(page, axis).focus()
    page.keyboard.press("Control+a")
    page.keyboard.type(str(size))
    page.keyboard.press("Enter")


def wait_for_code(page, code: str) -> None:
    page.wait_for_function("code => document.querySelector('.meshlab-designer textarea').value === code", arg=code)


def test_a_person_designs_a_mesh_and_python_follows(lab, page):
    notebook = show(lab, page, "person.ipynb", "mesh='dp=2, tp=4'")
    type_size(page, 0, 4)
    notebook.wait_for("designer.mesh", "DeviceMesh('dp=4, tp=4')")
    page.wait_for_function("() => document.querySelector('.ml-verdict').textContent.includes('dp=4, tp=4')")

    page.get_by_role("button", name="Down", exact=True).first.press("Enter")
    notebook.wait_for("designer.mesh", "DeviceMesh('tp=4, dp=4')")
    assert page.evaluate("document.activeElement.textContent") == "Down"  # the focus stays where the hand is

    stage = page.locator(f"{ROOT} .ml-stage")
    stage.scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # until JupyterLab has stopped moving cells
    box = stage.bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 4, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    notebook.wait_for("designer.selected", "(0, 1, 2, 3, 4, 5, 6, 7)")
    stage.focus()
    page.keyboard.press("Escape")
    notebook.wait_for("designer.selected", "()")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+Space")
    notebook.wait_for("designer.selected", "(4,)")
    page.keyboard.press("Enter")
    notebook.wait_for("designer.picture.pick", "4")
    assert page.evaluate("document.activeElement.className") == "ml-stage"  # the notebook took no key
    page.keyboard.press("Control+b")  # JupyterLab still receives its own shortcuts
    page.locator("#jp-left-stack").wait_for(state="hidden")

    page.locator(f"{ROOT} .ml-axis").select_option("tp")
    notebook.wait_for("designer.axis", "'tp'")
    page.get_by_role("button", name="Undo").click()
    notebook.wait_for("designer.mesh", "DeviceMesh('dp=4, tp=4')")

    notebook.ask("setattr(designer, 'mesh', 'pp=2, dp=2, tp=2')")
    page.wait_for_function("() => document.querySelectorAll('.meshlab-designer input[type=number]').length === 3")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.meshlab-designer input[type=number]')].every(box => box.value === '2')"
    )
    notebook.ask("setattr(designer, 'selected', [3, 1])")
    page.wait_for_function("() => document.querySelector('.ml-status').textContent === '2 selected: 1, 3'")


@pytest.mark.parametrize("theme", ["Light", pytest.param("Dark", marks=pytest.mark.long)])
def test_sizes_that_do_not_fit_are_answered_and_everything_stays_readable(lab, page, serious_faults, theme):
    notebook = show(lab, page, f"fit{theme}.ipynb", "mesh='dp=2, tp=4', world_size=8", theme=theme)
    type_size(page, 1, 3)
    alert = page.locator(f"{ROOT} [role=alert]")
    alert.wait_for()
    assert "dp=2 × tp=3 is 6 ranks, but 8 were given; tp=3 does not divide 8; nearest: dp=2, tp=4" in alert.inner_text()
    assert notebook.ask("designer.mesh") == "DeviceMesh('dp=2, tp=4')"
    page.get_by_role("button", name="Show code").click()
    assert serious_faults(ROOT) == []
    page.keyboard.press("Control+b")  # the side bar goes
    for width in (600, 1400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_timeout(300)
        assert overlapping_texts(page, ROOT) == []
        assert not scrolls_sideways(page, ROOT)
    page.get_by_role("button", name="Use dp=4, tp=2").click()
    notebook.wait_for("designer.mesh", "DeviceMesh('dp=4, tp=2')")
    code = page.locator(f"{ROOT} textarea")
    wait_for_code(page, 'DeviceMesh("dp=4, tp=2")')
    code.fill("something else")
    code.blur()
    wait_for_code(page, 'DeviceMesh("dp=4, tp=2")')


def test_a_size_of_sixteen_thousand_ranks_is_repainted_at_once(lab, page, say):
    show(lab, page, "large.ipynb", "mesh='dp=2048, tp=8'")
    page.evaluate(WATCH)
    for count, size in enumerate((1024, 2048, 512, 2048, 256, 2048), start=1):
        type_size(page, 0, size)
        page.wait_for_function("count => times.length === count", arg=count)
        page.wait_for_timeout(100)
    times = sorted(page.evaluate("() => times"))
    say(f"size typed to picture repainted, 16,384 ranks, through the kernel: {times[0]:.0f} to {times[-1]:.0f} ms")
    assert times[0] < 100
