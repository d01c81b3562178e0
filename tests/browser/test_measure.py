"""The panels around a run in a real browser: what they show, what their buttons send, keys, widths and themes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meshlab as ml
from meshlab.plans._sampling import Sampling
from meshlab.widgets._live import LiveView
from meshlab.widgets._readings import load_rows
from tests.browser.pages import overlapping_texts, scrolls_sideways, state_of
from tests.widgets.measure_widget import MeasureWidget

QUICK = Sampling(max_s=0.02, min_batches=6)
SLOW = Sampling(max_s=0.2, precision=1e-9, max_batches=10**6)


@pytest.fixture(scope="module")
def engines() -> Iterator[ml.Engines]:
    with ml.launch(4, backend="threads") as started:
        yield started


def wait_until(condition: Callable[[], Any], limit_s: float = 120) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def measured(engines: ml.Engines) -> Iterator[MeasureWidget]:
    """Panels with two runs: one with contention, and one with pairs, which is shown."""
    widget = MeasureWidget()
    widget.measuring.engines = engines
    first = widget.measuring.start(
        axis="tp", sizes="1K:16K", sampling=QUICK, mode="isolated", grouping="together, alone"
    )
    first.wait(60)
    pairs = widget.measuring.start(
        collective=["send", "send_recv"], axis="world", grouping="pairs", sizes="1K", sampling=QUICK
    )
    pairs.wait(60)
    wait_until(lambda: "pairs" in [tab["name"] for tab in widget._details])
    wait_until(lambda: widget._bench["can_start"])
    yield widget
    widget.measuring.close()


@pytest.fixture
def sent(page: Any) -> Callable[[], list[dict[str, Any]]]:
    """The messages to Python since the last call."""
    return lambda: page.evaluate("() => model.messages.splice(0)")


def names(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_text_contents()]


def test_a_run_is_paused_stopped_and_ended_with_buttons(bare, page, sent, engines, hold_runs):
    may_go = hold_runs(after=2)
    run = ml.bench(engines, "dp=2, tp=2", axis="tp", sizes="1K:64M", sampling=SLOW)
    view = LiveView(run)
    wait_until(lambda: run.progress.done)
    shown = bare("live", view)
    assert page.locator(".ml-run-headline").inner_text().startswith("running · step ")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    assert sent() == [{"type": "run.pause"}]
    run.pause()
    may_go.set()
    wait_until(lambda: run.state == "paused")
    wait_until(lambda: view._run["state"] == "paused")
    shown.receive(view, "_run")
    assert page.locator(".ml-run-headline").inner_text().startswith("paused · ")
    assert page.evaluate("() => document.activeElement.textContent") == "Resume"  # the focus stays where it was
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop after this step").click()
    assert sent() == [{"type": "run.resume"}, {"type": "run.stop"}]
    page.get_by_role("button", name="Kill the ranks").click()
    assert page.get_by_role("alertdialog").is_visible()
    assert page.evaluate("() => document.activeElement.textContent") == "Keep running"
    page.keyboard.press("Escape")
    assert not page.get_by_role("alertdialog").is_visible()
    assert sent() == []
    page.get_by_role("button", name="Kill the ranks").click()
    page.locator(".ml-run-danger").click()
    assert sent() == [{"type": "run.end"}]
    run.cancel()
    run.wait(120)
    wait_until(lambda: view._details and view._curve["lines"])
    shown.receive(view, "_run", "_details", "_curve")
    assert not page.locator(".ml-run-controls").is_visible()
    assert page.locator(".ml-curve-line").count() == 1


def test_the_tabs_of_a_run_that_has_ended(bare, page, measured):
    bare("measure", measured)
    tabs = page.locator(".ml-run [role=tab]")
    assert tabs.all_inner_texts() == ["Curve", "Stragglers", "Pairs", "Spikes"]
    tabs.first.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert page.locator("[role=tab][aria-selected=true]").inner_text() == "Pairs"
    cells = names(page, ".ml-run-matrix text:not(.ml-run-end)")
    assert len(cells) == 12  # every two of four ranks, in both directions
    assert all(float(cell) > 0 for cell in cells)
    page.keyboard.press("ArrowRight")
    assert "batches" in page.locator(".ml-run-verdict").first.inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(".ml-run .meshlab-curve").is_visible()


def test_the_form_sends_its_edits_and_marks_what_is_wrong(bare, page, sent, measured):
    shown = bare("measure", measured)
    page.get_by_label("Sizes").fill("1K:banana")
    page.get_by_label("Sizes").press("Tab")
    (message,) = sent()
    assert (message["type"], message["edit"], message["form"]["sizes"]) == ("measure.form", 1, "1K:banana")
    measured.measuring.receive(message)
    shown.receive(measured, "_bench")
    assert "banana" in page.locator(".ml-run-problem:visible").inner_text()
    assert page.get_by_label("Sizes").get_attribute("aria-invalid") == "true"
    assert page.locator(".ml-run-form .ml-run-main").is_disabled()
    page.get_by_label("Sizes").fill("1K, 4K")
    page.get_by_label("Sizes").press("Tab")
    page.get_by_role("button", name="broadcast").click()
    (first, second) = sent()
    measured.measuring.receive(first)
    shown.receive(measured, "_bench")  # late: it has no broadcast yet
    assert second["form"]["collectives"] == ["all_reduce", "broadcast"]
    measured.measuring.receive({**second, "form": {**second["form"], "sizes": "1K, 4K"}})
    shown.receive(measured, "_bench")
    assert names(page, ".ml-run-form [aria-pressed=true]") == ["all_reduce", "broadcast"]
    page.locator(".ml-run-form .ml-run-main").click()
    assert sent() == [{"type": "measure.start"}]
    measured.measuring.receive({"type": "measure.form", "edit": 0, "form": {"collectives": ["all_reduce"]}})


def test_engines_are_started_and_restarted_with_buttons(bare, page, sent):
    empty = MeasureWidget()
    shown = bare("measure", empty)
    main = (
        "() => [...document.querySelectorAll('button.ml-run-main')].filter(e => e.offsetParent).map(e => e.textContent)"
    )
    assert page.evaluate(main) == ["Start ranks"]  # one at a time
    page.get_by_label("Backend").select_option("threads, for experiments")
    page.get_by_label("Ranks", exact=True).nth(1).fill("3")
    page.locator(".ml-run-engines").get_by_role("button", name="Start").click()
    (message,) = sent()
    assert (message["action"], message["n"], message["backend"]) == ("start", 3, "threads")
    message["n"] = 4
    empty.measuring.receive(message)
    wait_until(lambda: empty._engines["state"] == "ready")
    shown.receive(empty, "_engines")
    assert names(page, ".ml-run-chip") == ["0", "1", "2", "3"]
    assert page.locator(".ml-run-chips").get_attribute("aria-label") == "4 ranks idle"
    shown.receive(empty, "_bench")
    assert page.evaluate(main) == ["Measure"]
    colour = "() => [...document.querySelectorAll('.ml-run-chip')].map(e => e.getAttribute('style'))"
    by_tp = page.evaluate(colour)
    assert (by_tp[0], by_tp[2]) == (by_tp[1], by_tp[3]) != (by_tp[2], by_tp[0])
    page.locator(".ml-run-axis", has_text="dp").click()
    assert page.evaluate(colour)[0] == page.evaluate(colour)[2]
    empty.measuring.engines.kill()  # type: ignore[union-attr]
    empty.measuring.show_all()
    shown.receive(empty, "_engines")
    assert page.locator(".ml-run-engines .ml-run-alert").inner_text() == "The ranks have stopped: they were killed"
    page.get_by_role("button", name="Restart").click()
    assert sent() == [{"type": "measure.engines", "action": "restart"}]
    empty.measuring.close()
    empty.close()


def test_two_runs_are_picked_and_compared(bare, page, sent, measured):
    shown = bare("measure", measured)
    boxes = page.locator(".ml-run-list input[type=checkbox]")
    assert boxes.count() == 2
    boxes.nth(0).check()
    assert "another run" in page.locator(".ml-run-listbox").inner_text()
    boxes.nth(1).check()
    message = sent()[-1]
    assert (message["type"], len(message["keys"])) == ("run.compare", 2)
    measured.measuring.receive(message)
    wait_until(lambda: "compared" in measured._runs)
    shown.receive(measured, "_runs")
    assert "collective" in page.locator(".ml-run-compared").inner_text()  # pairs and groups are not comparable
    boxes.nth(0).uncheck()
    assert not page.locator(".ml-run-compared").is_visible()
    page.get_by_role("button", name="Show", exact=True).click()
    assert sent()[-1]["type"] == "run.open"


GPU = {
    "id": 0, "utilisation_percent": 87.0, "memory_bytes": 80 << 30, "memory_used_bytes": 40 << 30, "power_w": 612.0,
    "power_limit_w": 700.0, "temperature_c": 61.0, "clock_sm_mhz": 1980, "clock_memory_mhz": 2619, "throttle": "",
    "nvlink_tx_gbs": 210.0, "nvlink_rx_gbs": 208.0, "pcie_tx_gbs": 1.2, "pcie_rx_gbs": 0.5,
}  # fmt: skip


def eight_gpus(widget: MeasureWidget) -> None:
    devices = [{**GPU, "id": k, "throttle": "power cap" if k == 3 else ""} for k in range(8)]
    ranks = {("n", k): f"rank {k}" for k in range(8)}
    rows = load_rows({"host": "n", "devices": devices}, ranks, False)
    history = [0.1, 0.5, 0.9] * 20
    widget._monitor = {"rows": [{**row, "history": history} for row in rows], "at": 1.0}


def test_the_monitor_opens_updates_its_rows_and_closes(bare, page, sent, measured):
    shown = bare("measure", measured)
    page.get_by_role("button", name="Monitor").click()
    assert sent() == [{"type": "monitor.open"}]
    eight_gpus(measured)
    shown.receive(measured, "_monitor")
    assert names(page, ".ml-run-monitor tbody th")[3] == "GPU 3 · rank 3"
    assert names(page, ".ml-run-throttle") == ["▲ throttled: power cap"]
    kept = page.locator(".ml-run-monitor tbody tr").first.element_handle()
    measured._monitor = {**measured._monitor, "at": 2.0}
    shown.receive(measured, "_monitor")
    assert kept.evaluate("row => row.isConnected")  # changed in place
    page.get_by_role("button", name="Monitor").click()
    assert sent() == [{"type": "monitor.close"}]
    assert not page.locator(".ml-run-monitor").is_visible()
    measured._monitor = {}


@pytest.mark.parametrize("width", [600, 900, 1400])
def test_nothing_overlaps_or_scrolls_sideways(bare, page, measured, width):
    page.set_viewport_size({"width": width, "height": 900})
    eight_gpus(measured)
    bare("measure", measured)
    assert overlapping_texts(page, ".meshlab-run") == []
    assert not scrolls_sideways(page, ".meshlab-run")
    measured._monitor = {}


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_panels_have_no_serious_accessibility_faults(bare, page, serious_faults, measured, theme):
    eight_gpus(measured)
    bare("measure", measured, theme=theme)
    page.get_by_role("tab", name="Spikes").click()
    assert serious_faults(".meshlab-run") == []
    measured._monitor = {}


def test_the_theme_is_followed_while_it_is_shown(bare, page, measured):
    shown = bare("measure", measured, theme="light")
    scheme = lambda: page.locator(".meshlab-run.ml-run-alone").get_attribute("data-scheme")  # noqa: E731
    assert scheme() == "light"
    shown.theme("dark")
    shown.settle()
    assert scheme() == "dark"


def test_fifty_displays_leave_no_listener_no_element_and_no_timer(bare, page, measured):
    eight_gpus(measured)
    bare("measure", measured)
    page.evaluate("""async () => {
      cleanup();
      const { default: widget } = await import("/measure.js");
      const el = document.querySelector("#host");
      for (let k = 0; k < 50; k++) (await widget.render({ model, el }))();
    }""")
    assert page.evaluate("() => [model.handlers.length, document.querySelector('#host').children.length]") == [0, 0]
    page.evaluate("state => receive(state)", state_of(measured))
    measured._monitor = {}


@pytest.mark.parametrize("where", ["shadow", "iframe"])
def test_the_live_view_works_in_a_shadow_root_and_in_an_iframe(bare, page, measured, where):
    bare("live", measured)
    page.evaluate(
        """async (where) => {
      cleanup();
      const css = await (await fetch("/live.css")).text(), host = document.querySelector("#host");
      const style = document.createElement("style");
      style.textContent = css;
      let el, render = (await import("/live.js")).default.render;
      if (where === "shadow") {
        el = document.createElement("div");
        host.attachShadow({ mode: "open" }).append(style, el);
      } else {
        const frame = document.createElement("iframe");
        frame.style = "width: 900px; height: 700px";
        host.append(frame);
        el = frame.contentDocument.createElement("div");
        frame.contentDocument.body.append(style, el);
      }
      window.cleanup = render({ model, el });
    }""",
        where,
    )
    page.wait_for_timeout(50)
    inside = page.frame_locator("iframe") if where == "iframe" else page
    inside.locator("[role=tab]", has_text="Pairs").focus()
    page.keyboard.press("ArrowRight")
    inside.locator("[role=tab][aria-selected=true]").wait_for()
    inside.locator("[role=tab]", has_text="Pairs").click()
    assert inside.locator(".ml-run-matrix text").count() == 12 + 8
    page.evaluate("() => cleanup()")


def test_runs_are_named_filtered_deleted_and_restored(bare, page, sent, measured):
    measured.measuring.receive({"type": "run.uncompare"})
    shown = bare("measure", measured)
    run = measured.measuring.runs[0]
    try:
        page.get_by_label(f"Name of {run.run_id}").fill("before the update")
        page.get_by_label(f"Name of {run.run_id}").press("Enter")
        (message,) = sent()
        assert (message["type"], message["name"]) == ("run.label", "before the update")
        measured.measuring.receive(message)
        shown.receive(measured, "_runs")
        assert run.name == "before the update"
        assert f"{run.run_id} · done" in page.locator(".ml-run-list tbody").inner_text()  # the id is the subtitle
        page.get_by_label("Filter runs").fill("UPDATE before")
        assert page.locator(".ml-run-list tbody tr").count() == 1
        assert "1 of 2 runs" in page.locator(".ml-run-listbox").inner_text()
        page.locator(".ml-run-list input[type=checkbox]").check()
        page.get_by_role("button", name="Delete", exact=True).click()
        measured.measuring.receive(sent()[-1])
        shown.receive(measured, "_runs")
        assert "Deleted before the update." in page.locator(".ml-run-deleted").inner_text()
        assert len(measured.measuring.runs) == 2  # nothing is gone yet
        page.get_by_role("button", name="Undo", exact=True).click()
        measured.measuring.receive(sent()[-1])
        shown.receive(measured, "_runs")
        assert page.locator(".ml-run-list tbody tr").count() == 1
    finally:
        run.name = ""
        measured.measuring.receive({"type": "run.undelete"})


def test_latency_is_a_switch_and_other_runs_are_drawn_next_to_it(bare, page, sent, measured):
    measured.measuring.receive({"type": "run.uncompare"})
    shown = bare("measure", measured)
    page.locator(".ml-run").get_by_role("button", name="Latency").click()
    shown.settle()
    chart = page.locator(".ml-run .meshlab-curve")
    assert "time (µs)" in chart.locator(".ml-curve-scale").text_content()
    assert chart.locator(".ml-curve-line").count() > 0
    page.locator(".ml-run").get_by_role("button", name="Bandwidth").click()
    shown.settle()
    assert "busbw (GB/s)" in chart.locator(".ml-curve-scale").text_content()
    page.locator(".ml-run-overlay summary").click()
    page.locator(".ml-run-overlays input").first.check()
    message = sent()[-1]
    assert (message["type"], len(message["keys"])) == ("run.overlay", 1)
    measured.measuring.receive(message)
    shown.receive(measured, "_runs", "_curve")
    shown.settle()
    assert chart.locator(".ml-curve-overlaid").count() >= 1
    measured.measuring.receive({"type": "run.overlay", "keys": []})


def test_the_record_of_the_hosts_is_below_the_curve(bare, page, measured):
    bare("measure", measured)
    record = page.locator(".ml-load")
    assert "CPU · " in record.locator(".ml-load-row b").first.inner_text()
    assert record.locator(".ml-load-axis").inner_text().startswith("0 s")
    record.locator(".ml-load-strip").first.hover()
    assert "CPU · " in record.locator(".ml-load-reading").inner_text()
