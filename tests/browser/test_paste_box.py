"""The field for a text in a real browser, and the HTML of an explanation in both themes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.diagnosis import _explain as explaining
from meshlab.diagnosis._html import as_page
from meshlab.widgets import PasteBox
from tests.browser.pages import overlapping_texts, scrolls_sideways
from tests.diagnosis.questions import QUESTIONS
from tests.diagnosis.texts_with_rules import HOSTILE, RULES, printer_text

ROOT = ".meshlab-paste"
PICTURES = os.environ.get("MESHLAB_PICTURES")


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(explaining.explain.__kwdefaults__, "rules", [*ml.diagnosis.RULES, *RULES])


def picture(page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


def test_a_person_pastes_a_text_and_explains_it_with_the_keyboard(wired, page):
    box = PasteBox()
    shown = wired("paste_box", box)
    field = page.get_by_label("Log, matrix or report")
    field.focus()
    page.keyboard.insert_text(printer_text())
    page.keyboard.press("Control+Enter")
    shown.wait()
    assert box.text == printer_text()
    assert box.explanation.findings[0].code == "paper-jam"
    status = page.get_by_role("status")
    assert status.text_content() == box.explanation.verdict
    assert "lp0: jam in tray 1" in page.get_by_role("region", name="Explanation").inner_text()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Explain"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Clear
    shown.wait()
    assert (box.text, box.explanation) == ("", None)
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    assert page.get_by_role("region", name="Explanation").count() == 0


def test_a_text_that_nobody_knows_is_an_alert_and_the_next_one_removes_it(wired, page):
    shown = wired("paste_box", PasteBox())
    for text, message in (("hello", "nothing was recognised"), ("hello you", "nothing was recognised"), ("dp=2", "")):
        page.get_by_label("Log, matrix or report").fill(text)
        page.get_by_role("button", name="Explain").click()
        shown.wait()
        assert page.locator("[role=alert]").inner_text().startswith(message) if message else True
    assert page.locator("[role=alert]").inner_text() == ""
    assert page.get_by_role("button", name="Copy as Markdown").is_visible()


def test_a_text_that_breaks_the_connection_is_not_sent(wired, page):
    box = PasteBox()
    wired("paste_box", box)
    # Each of these characters has six bytes in a message.
    page.evaluate("() => { document.querySelector('textarea').value = '\\u0001'.repeat(1.5e6); }")
    page.get_by_role("button", name="Explain").click()
    assert "too long for the connection" in page.locator("[role=alert]").inner_text()
    assert box.text == ""


def test_a_new_text_of_python_appears_in_the_field(wired, page):
    box = PasteBox("dp=2, tp=4")
    shown = wired("paste_box", box)
    assert page.get_by_label("Log, matrix or report").input_value() == "dp=2, tp=4"
    shown.push(lambda: setattr(box, "text", printer_text()))
    assert page.get_by_label("Log, matrix or report").input_value() == printer_text()
    assert page.get_by_role("status").text_content() == box.explanation.verdict


def test_nothing_that_was_pasted_becomes_a_part_of_the_page(wired, page):
    text = "\n".join(
        printer_text(one) + f"\n{one} toner low\n{one}: job cancelled" for one in HOSTILE if "\ud800" not in one
    )
    shown = wired("paste_box", PasteBox(text))
    shown.settle()
    assert page.locator(f"{ROOT} :is(script, img, h1, a, iframe, svg, b, em)").count() == 0
    attributes = page.evaluate(
        "root => [...document.querySelectorAll(`${root} *`)].flatMap(one => one.getAttributeNames())", ROOT
    )
    assert not [name for name in attributes if name.startswith("on")]
    assert page.locator(".ml-raw", has_text="<script>alert(1)</script>").count() > 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_explanation_is_readable_in_both_themes_and_on_a_narrow_screen(wired, page, theme):
    text = printer_text("\n".join("lp0: jam in tray 1 " + "x" * 300 for _ in range(9)))
    wired("paste_box", PasteBox(text), theme=theme)
    for width in (400, 1000):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(50)
        for details in page.locator("details").all():
            details.evaluate("one => one.open = true")
        assert overlapping_texts(page, ROOT) == []
        assert not scrolls_sideways(page, f"{ROOT} .ml-paste-result")
        picture(page, f"paste_box_{theme}_{width}")
    scheme = page.evaluate("document.querySelector('.meshlab-paste').dataset.scheme")
    assert scheme == theme


def test_people_with_a_screen_reader_can_use_the_field(wired, page, serious_faults):
    wired("paste_box", PasteBox(printer_text()))
    assert serious_faults(ROOT) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_an_explanation_needs_no_script(page, tmp_path, scheme):
    path = tmp_path / "page.html"
    path.write_text(as_page(ml.explain(printer_text())), encoding="utf-8")
    page.emulate_media(color_scheme=scheme)
    page.goto(path.as_uri())
    assert page.locator("script").count() == 0
    ink = page.evaluate("getComputedStyle(document.querySelector('.ml-title')).color")
    assert ink == ("rgb(0, 0, 0)" if scheme == "light" else "rgb(255, 255, 255)")
    picture(page, f"explanation_{scheme}")
    page.emulate_media(color_scheme="light")


@pytest.mark.long
@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_a_person_pastes_a_text_in_jupyterlab(lab, page, theme):
    lab.theme(theme)
    name = f"paste{theme}.ipynb"
    lab.write_notebook(name, ["import meshlab as ml\nbox = ml.widgets.PasteBox()\nbox"])
    notebook = lab.open(page, name)
    notebook.run_all()
    field = page.get_by_label("Log, matrix or report")
    field.wait_for()
    field.fill(QUESTIONS[3].text)
    page.keyboard.press("Control+Enter")  # JupyterLab would run the cell again
    notebook.wait_for("box.explanation.findings[0].code", f"'{QUESTIONS[3].code}'")
    page.get_by_role("region", name="Explanation").wait_for()
    assert page.locator(".jp-InputPrompt").first.inner_text() == "[1]:"
    page.keyboard.press("Escape")  # not the command mode of the notebook
    page.keyboard.type("dd")
    assert page.locator(".jp-Cell").count() == 1
    assert not scrolls_sideways(page, f"{ROOT} .ml-paste-result")
    page.wait_for_function(
        "([root, scheme]) => document.querySelector(root).dataset.scheme === scheme", arg=[ROOT, theme.lower()]
    )
    picture(page, f"paste_box_lab_{theme}")
