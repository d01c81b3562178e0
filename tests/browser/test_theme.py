"""Light and dark: each root of a widget follows the page around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshlab.plots._theme import DARK, LIGHT
from meshlab.widgets import Curve, PasteBox, Picture, Workbench
from tests.browser.pages import state_of

ROOTS = "() => [...document.querySelectorAll('.meshlab')].map(root => root.dataset.scheme)"
# Jupyter renders a widget before its element is in the page.
DETACHED = """async ([name, state]) => {
  cleanup();
  const { default: widget } = await import(`/${name}.js`);
  const el = document.createElement("div");
  window.model = new Model(state);
  window.cleanup = await widget.render({ model, el });
  await painted();
  document.querySelector("#host").append(el);
  await painted();
}"""
WIDGETS: dict[str, Callable[[], Any]] = {
    "workbench": lambda: Workbench("dgx-h100", "dp=2, tp=4"),
    "picture": lambda: Picture("dp=2, tp=4", "dgx-h100"),
    "curve": Curve,
    "paste_box": PasteBox,
}


def rgb(color: str) -> str:
    return f"rgb({', '.join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))})"


def wait_for_scheme(page: Any, scheme: str) -> None:
    page.wait_for_function(f"scheme => new Set(({ROOTS})()).size === 1 && ({ROOTS})()[0] === scheme", arg=scheme)


@pytest.mark.parametrize("name", WIDGETS)
def test_an_element_that_enters_a_dark_page_later_is_dark(bare, page, name):
    widget = WIDGETS[name]()
    bare(name, widget)
    page.evaluate("() => { delete document.documentElement.dataset.theme; document.body.style.background = '#111'; }")
    page.evaluate(DETACHED, [name, state_of(widget)])
    wait_for_scheme(page, "dark")
    assert len(page.evaluate(ROOTS)) == (2 if name == "workbench" else 1)


ANNOUNCEMENTS = {
    "JupyterLab": ("body.dataset.jpThemeLight = '{}'", "true", "false"),
    "VS Code": ("body.className = 'vscode-{}'", "light", "dark"),
    "VS Code, high contrast": ("body.className = 'vscode-{}'", "high-contrast-light", "high-contrast"),
    "marimo": ("body.className = '{}'", "light", "dark"),
    "Colab": ("documentElement.setAttribute('theme', '{}')", "light", "dark"),
    "a page with a background": ("body.style.background = '{}'", "#fafafa", "rgb(24, 24, 24)"),
    "a page with a scheme": ("documentElement.style.colorScheme = '{}'", "light", "dark"),
}


@pytest.mark.parametrize("front_end", ANNOUNCEMENTS)
def test_the_theme_of_a_front_end_is_followed(bare, page, front_end):
    code, light, dark = ANNOUNCEMENTS[front_end]
    bare("workbench", Workbench("dgx-h100", "dp=2, tp=4"))
    page.evaluate("() => { delete document.documentElement.dataset.theme; document.body.style.background = 'none'; }")
    for value, scheme in ((dark, "dark"), (light, "light"), (dark, "dark")):
        page.evaluate(f"() => {{ document.{code.format(value)} }}")
        wait_for_scheme(page, scheme)


def test_the_nearest_background_counts(bare, page):
    bare("picture", WIDGETS["picture"]())
    page.evaluate("""() => {
      delete document.documentElement.dataset.theme;
      const dark = document.createElement("div");
      dark.style = "background: #202020; color: #eeeeee";
      document.body.append(dark);
      dark.append(document.querySelector("#host"));
    }""")
    wait_for_scheme(page, "dark")


def test_a_sheet_that_arrives_later_colours_the_picture(bare, page):
    bare("picture", WIDGETS["picture"]())
    page.evaluate("""() => {
      const sheet = document.createElement("style");
      sheet.textContent = "body { --jp-layout-color1: #112233 }";
      document.head.append(sheet);
    }""")
    pixel = "() => [...document.querySelector('canvas').getContext('2d').getImageData(2, 2, 1, 1).data].join()"
    page.wait_for_function(f"() => ({pixel})() === '17,34,51,255'")


@pytest.mark.full  # test_themes.py has the same for all widgets, without the exact colours
def test_the_theme_of_jupyterlab_is_switched_under_a_workbench(lab, page):
    lab.theme("Light")
    lab.write_notebook("themes.ipynb", ["import meshlab as ml\nwb = ml.Workbench('dgx-h100', 'dp=2, tp=4')\nwb"])
    notebook = lab.open(page, "themes.ipynb")
    notebook.run_all()
    page.locator(".meshlab-workbench .ml-stage").wait_for()
    wait_for_scheme(page, "light")
    for name, scheme in (("dark", DARK), ("light", LIGHT)):
        page.click('text="Settings"')
        page.hover('.lm-Menu-itemLabel:text-is("Theme")')
        page.click(f'.lm-Menu-itemLabel:text-is("JupyterLab {name.title()}")')
        wait_for_scheme(page, name)
        colors = page.evaluate("""() => [[".ml-side", "background-color"], [".ml-side button", "color"]].map(
          ([selector, name]) => getComputedStyle(document.querySelector(selector)).getPropertyValue(name))""")
        assert colors == [rgb(scheme.panel), rgb(scheme.ink)]
