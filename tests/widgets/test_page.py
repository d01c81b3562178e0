"""Pages that someone without Python can open."""

from __future__ import annotations

import json
import re
from pathlib import Path

import meshlab as ml
from meshlab.plans._sampling import Sampling
from meshlab.widgets import Curve, Picture
from meshlab.widgets._page import page_of


def state_in(page: str) -> dict:
    (text,) = re.findall(r'<script type="application/json" id="state">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_a_page_has_the_loads_of_every_axis_and_asks_no_other_host(tmp_path: Path) -> None:
    picture = Picture("pp=2, dp=8, tp=8", ml.preset("dgx-h100", nodes=16), axis="dp", pick=3)
    path = picture.save(tmp_path / "page.html")
    page = path.read_text()
    state = state_in(page)
    assert state["state"]["pick"] == 3
    assert {axis: one["_loads"]["axis"] for axis, one in state["answers"]["axis"].items()} == {
        axis: axis for axis in ("pp", "dp", "tp")
    }
    assert picture.axis == "dp"
    assert not re.findall(r"""(?:src|href|import|fetch)\s*[=(]\s*["']?https?:""", page)
    assert "<noscript><figure" in page


def test_names_in_a_page_are_escaped() -> None:
    curve = Curve(title="</script><b>")
    curve.set_series("</script><img src=x onerror=alert(1)>", [1, 2], [1, 2])
    page = page_of(curve, title="<b>")
    assert "<img src=x" not in page.replace('<img alt="', "")
    assert "<title>&lt;b&gt;</title>" in page
    assert state_in(page)["state"]["title"] == "</script><b>"


def test_a_run_is_saved_as_a_page(tmp_path: Path, thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, axis="world", sizes="1K, 4K", sampling=Sampling(max_s=0.02, min_batches=6))
    run.wait(120)
    page = run.view.save(tmp_path / "run.html").read_text()
    assert state_in(page)["state"]["_run"]["state"] == "done"
