"""A saved page, opened as a file, without a kernel and without a network."""

from __future__ import annotations

import meshlab as ml
from meshlab.plans._sampling import Sampling
from meshlab.widgets import Picture


def test_a_saved_picture_is_interactive_without_python(page, tmp_path):
    picture = Picture("dp=16, tp=8", ml.preset("dgx-h100", nodes=16), axis="tp")
    page.goto(picture.save(tmp_path / "page.html").as_uri())
    verdict = page.locator(".ml-verdict")
    verdict.wait_for()
    assert verdict.inner_text().startswith("● tp") or "tp" in verdict.inner_text()
    page.locator("select").first.select_option("dp")
    page.wait_for_function("() => document.querySelector('.ml-verdict').textContent.includes('dp')")
    assert page.locator(".ml-waiting").count() == 0  # the loads of the other axis are in the page
    picture.axis = "dp"
    assert picture.placement.explain("dp") in verdict.text_content()
    page.locator(".ml-stage").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".ml-tip:visible").first.wait_for()
    page.locator("[data-zoom='1']").click()
    page.wait_for_function("() => document.querySelector('.ml-crumbs').textContent.includes('▸')")


def test_a_saved_run_has_its_tabs(page, tmp_path):
    with ml.launch(3, backend="threads") as engines:
        run = ml.bench_pairs(engines, sizes="1K", sampling=Sampling(max_s=0.02, min_batches=6))
        run.wait(120)
        path = run.view.save(tmp_path / "run.html")
    page.goto(path.as_uri())
    page.get_by_role("tab", name="Pairs").click()
    assert page.locator(".ml-run-matrix text").count() == 6 + 6
