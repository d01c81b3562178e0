"""The report in a real browser: it fits, loads nothing, and no two labels of a figure overlap."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import meshlab as ml
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.report._report import Report
from meshlab.runs._rundata import RunData

OVERLAPS = """() => {
  const touching = [];
  for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([a, p], i) => texts.slice(0, i).forEach(([b, q]) => {
      const width = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const height = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      // A box has the complete line height, so boxes of lines that do not touch may overlap by up to a third of it.
      if (width > 1 && height > Math.min(p.height, q.height) / 3) touching.push([a, b]);
    }));
  }
  return touching;
}"""

OUTSIDE = """() => [...document.querySelectorAll("svg text")].filter((text) => {
  const box = text.getBoundingClientRect(), frame = text.ownerSVGElement.getBoundingClientRect();
  return box.left < frame.left - 1 || box.right > frame.right + 1
    || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
}).map((text) => text.textContent)"""

SMALLEST = """() => Math.min(...[...document.querySelectorAll("p, li, td, th, h1, h2, h3, svg text")].map((node) => {
  const svg = node.ownerSVGElement;
  const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  return parseFloat(getComputedStyle(node).fontSize) * scale;
}))"""

CONTRAST = """() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const paper = light(getComputedStyle(document.documentElement).backgroundColor);
  return Math.min(...[...document.querySelectorAll("p, li, td, th, h1, h2, h3")].map((node) => {
    const ink = light(getComputedStyle(node).color);
    return Math.max(ink, paper) / Math.min(ink, paper);
  }));
}"""


def run_of(results: pd.DataFrame, mesh: str = "dp=2, tp=2", **details: Any) -> RunData:
    values = {"run_id": "r1", "source": "mpi", "where": "4 ranks", "state": "done", **details}
    return RunData(Plan("all_reduce", "tp"), DeviceMesh(mesh), results=results, **values)


def good(make_results):
    return run_of(make_results(), log=["done"] * 300)


def bad(make_results):
    results = make_results()
    results.loc[results.index[[3, 50, 51]], ["status", "n_wrong"]] = ["wrong", 12]
    results.loc[results.index[120:124], "status"] = "failed"
    long = {"host": {"cpu": "x" * 400, "a key that is rather long for its column": "y"}}
    return run_of(results, state="cancelled", environment=long)


def large(make_results):
    results = make_results(
        "pp=2, dp=8, tp=8", axes=("tp", "pp", "dp"), exponents=range(10, 33, 2), source="nccl", where=""
    )
    return run_of(results, "pp=2, dp=8, tp=8")


@pytest.mark.parametrize("make_run", [bad, *(pytest.param(make, marks=pytest.mark.full) for make in (good, large))])
def test_the_page_fits_is_readable_and_loads_nothing(chromium, tmp_path, make_results, make_run):
    path = Report(make_run(make_results)).save(tmp_path / "report.html")
    page = chromium.new_page(viewport={"width": 600, "height": 900})
    requests, messages = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(path.as_uri())
    for width in (600, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(OVERLAPS) == []
        assert page.evaluate(OUTSIDE) == []
        assert page.evaluate(SMALLEST) >= 11.9  # 9 pt are 12 px
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) >= 4.5
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    assert messages == []
    page.close()


def compared(make_results):
    run = large(make_results)
    earlier = run.results.assign(time_us=run.results["time_us"] / 1.4)
    machine = ml.preset("dgx-h100", nodes=16)
    limits = '[[limits]]\nmetric = "busbw_gbs"\ncollective = "all_reduce"\nmin_size = "1G"\nat_least = 300'
    return Report(run, cluster=machine, baseline=earlier, thresholds=limits)


@pytest.mark.full
@pytest.mark.parametrize(
    "make", [bad, *(pytest.param(make, marks=pytest.mark.long, id=make.__name__) for make in (good, compared))]
)
def test_axe_finds_nothing_serious_in_a_report(chromium, axe, tmp_path, make_results, make):
    made = make(make_results)
    path = (made if isinstance(made, Report) else Report(made)).save(tmp_path / "report.html")
    page = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page.goto(path.as_uri())
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.evaluate(axe)
    # The dark page has other colours, and everything else is the same.
    of_colors = "{runOnly: {type: 'rule', values: ['color-contrast', 'link-in-text-block']}}"
    for scheme, rules in (("light", "{}"), ("dark", of_colors)):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(f"axe.run(document, {rules})")
        assert "color-contrast" in [one["id"] for one in found["passes"]], scheme
        faults = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]
        assert not [fault for fault, one in zip(faults, found["violations"], strict=True) if one["impact"] != "minor"]
    page.close()


def test_a_column_sorts_by_its_numbers_and_the_order_returns(chromium, tmp_path, make_results):
    path = Report(good(make_results)).save(tmp_path / "report.html")
    page = chromium.new_page()
    page.goto(path.as_uri())
    table = page.locator("table.sortable").first
    column = "table => [...table.tBodies[0].rows].map(row => Number(row.cells[2].dataset.v))"
    given = table.evaluate(column)
    heading = table.locator("thead tr:last-child th").nth(2)
    for order in ("ascending", "descending"):
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == order
        assert table.evaluate(column) == sorted(given, reverse=order == "descending")
    heading.locator("button").click()
    assert table.evaluate(column) == given
    page.close()


@pytest.mark.full
def test_a_report_prints_within_the_page(chromium, tmp_path, make_results):
    path = compared(make_results).save(tmp_path / "report.html")
    page = chromium.new_page(viewport={"width": 718, "height": 1000})  # A4 between its margins
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    assert page.evaluate(OUTSIDE) == []
    page.close()


def test_a_report_is_printed_as_pdf(chromium, tmp_path, make_results):
    path = Report(good(make_results)).save(tmp_path / "report.pdf")
    assert path.read_bytes().startswith(b"%PDF")


def test_the_checks_find_known_faults(chromium):
    page = chromium.new_page()
    page.set_content(
        '<p style="color: #aaa">pale</p><svg viewBox="0 0 200 50" width="100"><text y="30">one</text>'
        '<text x="5" y="30">two</text><text x="190" y="30">outside</text></svg>'
    )
    page.add_style_tag(content="html { background: #fff }")
    assert page.evaluate(OVERLAPS) == [["two", "one"]]
    assert page.evaluate(OUTSIDE) == ["outside"]
    assert page.evaluate(SMALLEST) == 8
    assert page.evaluate(CONTRAST) < 3
    page.close()
