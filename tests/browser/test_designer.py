"""The designer and the workbench in a real JupyterLab with a real kernel."""

from __future__ import annotations

import pytest

from tests.browser.lab import Lab, Notebook
from tests.browser.pages import overlapping_texts, scrolls_sideways

ROOT = ".meshlab-workbench"

# Milliseconds from a click on + or − to the frame in which Python's answer is painted.
WATCH = """() => {
  window.times = [];
  let start = 0;
  document.addEventListener("click", event => {
    if (event.target.closest(".ml-step")) start = performance.now();
  }, true);
  new MutationObserver(() => {
    if (start) requestAnimationFrame(() => { times.push(performance.now() - start); start = 0; });
  }).observe(document.querySelector(".ml-table"), { childList: true, subtree: true });
}"""


def show(lab: Lab, page, name: str, code: str, *, theme: str = "Light") -> Notebook:
    lab.theme(theme)
    lab.write_notebook(name, [f"import meshlab as ml\nwb = {code}\nwb"])
    page.set_viewport_size({"width": 1400, "height": 1000})
    notebook = lab.open(page, name)
    notebook.run_all()
    page.wait_for_selector(f"{ROOT} canvas")
    page.wait_for_function("() => document.querySelector('.ml-summary').textContent")
    return notebook


def wait_for_summary(page, text: str) -> None:
    page.wait_for_function("text => document.querySelector('.ml-summary').textContent.includes(text)", arg=text)


def test_a_person_designs_a_mesh_and_python_follows(lab, page):
    notebook = show(lab, page, "person.ipynb", "ml.widgets.Designer(mesh='dp=2, tp=4')")
    size = page.get_by_label("Size of dp", exact=True)
    size.fill("4")
    page.keyboard.press("Enter")
    notebook.wait_for("wb.mesh", "DeviceMesh('dp=4, tp=4')")
    wait_for_summary(page, "dp=4, tp=4")
    page.get_by_label("Move dp", exact=True).focus()
    page.keyboard.press("Alt+ArrowDown")
    notebook.wait_for("wb.mesh", "DeviceMesh('tp=4, dp=4')")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Move dp"

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
    notebook.wait_for("wb.selected", "(0, 1, 2, 3, 4, 5, 6, 7)")
    stage.focus()
    page.keyboard.press("Escape")
    notebook.wait_for("wb.selected", "()")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+Space")
    notebook.wait_for("wb.selected", "(4,)")
    page.keyboard.press("Enter")
    notebook.wait_for("wb.pick", "4")
    assert page.evaluate("document.activeElement.className") == "ml-stage"  # the notebook took no key
    page.keyboard.press("Control+b")  # JupyterLab still receives its own shortcuts
    page.locator("#jp-left-stack").wait_for(state="hidden")
    page.keyboard.press("Control+z")  # the workbench's, not the notebook's
    notebook.wait_for("wb.mesh", "DeviceMesh('dp=4, tp=4')")

    page.locator(f"{ROOT} .ml-axis").select_option("tp")
    notebook.wait_for("wb.axis", "'tp'")
    page.get_by_role("button", name="Undo", exact=True).click()
    notebook.wait_for("wb.mesh", "DeviceMesh('dp=2, tp=4')")
    notebook.ask("setattr(wb, 'mesh', 'pp=2, dp=2, tp=2')")
    wait_for_summary(page, "pp=2, dp=2, tp=2")
    assert page.locator(".ml-name").all_inner_texts() == ["pp", "dp", "tp"]
    notebook.ask("setattr(wb, 'selected', [3, 1])")
    page.wait_for_function("() => document.querySelector('.ml-status').textContent === '2 selected: 1, 3'")


@pytest.mark.full
@pytest.mark.parametrize("theme", ["Light", pytest.param("Dark", marks=pytest.mark.long)])
def test_a_machine_and_a_mesh_are_designed_and_the_code_runs(lab, page, serious_faults, say, theme):
    notebook = show(lab, page, f"design{theme}.ipynb", "ml.Workbench('dgx-h100', 'dp=2, tp=4')", theme=theme)
    page.keyboard.press("Control+b")  # the side bar goes
    page.get_by_label("Hosts", exact=True).fill("4")
    page.keyboard.press("Enter")
    notebook.wait_for("wb.mesh", "DeviceMesh('dp=8, tp=4')")
    page.get_by_label("Size of tp", exact=True).fill("3")
    page.keyboard.press("Enter")
    alert = page.locator(f"{ROOT} .ml-problem:not([hidden])")
    alert.wait_for()
    assert "tp=3 does not divide 32" in alert.inner_text()
    assert notebook.ask("wb.mesh") == "DeviceMesh('dp=8, tp=4')"
    for width in (600, 1400):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_timeout(300)
        assert overlapping_texts(page, ROOT) == []
        assert not scrolls_sideways(page, ROOT)
    assert serious_faults(ROOT) == []
    alert.get_by_role("button", name="dp=16, tp=2").click()
    notebook.wait_for("wb.mesh", "DeviceMesh('dp=16, tp=2')")
    notebook.ask("wb.fail('node2/NIC5')")
    page.locator(".ml-chip").wait_for()
    assert notebook.ask("(lambda names: (exec(wb.code, names), names['wb'].cluster == wb.cluster)[1])({})") == "True"

    notebook.ask("setattr(wb, 'cluster', ml.preset('dgx-h100', nodes=2048, nodes_per_pod=512))")
    wait_for_summary(page, "2,048 hosts")
    page.evaluate(WATCH)
    for count in range(1, 7):
        page.get_by_label(f"Size of tp: {['more', 'less'][count % 2]}").click()
        page.wait_for_function("count => times.length === count", arg=count)
    times = sorted(page.evaluate("() => times"))
    say(f"step of a size to Python's answer on the screen, 16,384 GPUs: {times[0]:.0f} to {times[-1]:.0f} ms")
    assert times[0] < 600  # 140 on an idle machine


@pytest.mark.long
def test_a_person_walks_from_a_preset_to_a_report_without_code(lab, page):
    notebook = show(lab, page, "walk.ipynb", "ml.Workbench('dgx-a100', 'dp=2, tp=4')")
    root = page.locator(ROOT)
    button = lambda name, within=root: within.get_by_role("button", name=name, exact=True)  # noqa: E731
    page.keyboard.press("Control+b")
    root.locator(".ml-preset").select_option("dgx-h100")
    notebook.wait_for("wb.cluster == ml.preset('dgx-h100')", "True")
    page.get_by_label("Hosts", exact=True).fill("4")
    page.keyboard.press("Enter")
    notebook.wait_for("str(wb.mesh)", "'dp=8, tp=4'")

    stage = root.locator(".meshlab-picture .ml-stage")
    stage.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    bar = root.locator(".ml-part")
    bar.locator("select").select_option("node0/NIC0")
    button("Fail", bar).click()
    notebook.wait_for("wb.failed", "('node0/NIC0',)")
    page.get_by_label("Move tp", exact=True).focus()
    page.keyboard.press("Alt+ArrowUp")
    notebook.wait_for("str(wb.mesh)", "'tp=4, dp=8'")
    page.keyboard.press("Control+z")
    notebook.wait_for("str(wb.mesh)", "'dp=8, tp=4'")
    button("Pin as A").click()
    page.get_by_label("Size of tp: less", exact=True).click()
    notebook.wait_for("str(wb.mesh)", "'dp=16, tp=2'")
    root.locator(".ml-table", has_text="to A").wait_for()

    root.get_by_role("tab", name="Measure").click()
    engines, form = root.get_by_label("Engines", exact=True), root.get_by_label("Next run", exact=True)
    engines.locator("option", has_text="4 MPI ranks").wait_for(state="attached")
    button("Start", engines).click()
    notebook.wait_for("wb.engines is not None and wb.engines.state", "'ready'")
    button("Use dp=2, tp=2", form).click()
    form.locator("input[name=sizes]").fill("1K:64K*4")
    page.keyboard.press("Enter")
    for count in (1, 2):
        button("Start", form).click()
        notebook.wait_for(f"len(wb.runs) == {count} and wb.run.state", "'done'")
    assert root.locator(".meshlab-curve svg").is_visible()
    form.locator("input[name=sizes]").fill("1K:64M")
    page.keyboard.press("Enter")
    button("Start", form).click()
    button("Stop after this step").click()
    notebook.wait_for("wb.run.state", "'cancelled'")

    root.get_by_role("tab", name="Runs").click()
    for box in root.get_by_label("Compare").all()[-2:]:
        box.check()
    root.get_by_label("Comparison", exact=True).locator("table").wait_for()
    for item, name in (("Report of the run HTML", "report.html"), ("Interactive page HTML", "page.html")):
        button("Export").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=item).click()
        assert download.value.suggested_filename == name

    same = "names['wb'].cluster == wb.cluster and names['wb'].mesh == wb.mesh and names['wb'].pinned == wb.pinned"
    assert notebook.ask(f"(lambda names: (exec(wb.code, names), {same})[1])({{}})") == "True"
    notebook.ask("wb.close()")
