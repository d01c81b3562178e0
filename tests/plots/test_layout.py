"""Figures that are saved without options: nothing is clipped, and type stays readable."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.analysis._comparison import compare
from meshlab.plots._rings import crossings_of_links


@pytest.fixture(autouse=True)
def _closed_figures() -> Any:
    yield
    plt.close("all")


def edges(figure: Figure, dpi: float) -> list[str]:
    """The edges of a saved figure at which there is ink."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png")
    buffer.seek(0)
    pixels = plt.imread(buffer)[..., :3].min(axis=2)
    sides = {"left": pixels[:, 0], "right": pixels[:, -1], "top": pixels[0], "bottom": pixels[-1]}
    return [name for name, side in sides.items() if (side < 0.8).any()]


def sweep(collectives: list[str]) -> pd.DataFrame:
    results = ml.example().query("mode == 'graph' and collective == 'all_reduce'")
    parts = [results.assign(collective=name, axis=axis) for name in collectives for axis in ("dp", "tp")]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("dpi", [72, 100, 144])
def test_step_times_and_batches_are_not_clipped(dpi: float, thread_engines: ml.Engines) -> None:
    layouts = ml.search(ml.preset("dgx-h100", nodes=16), "llama3-70b")
    assert edges(ml.plot.step_times(layouts).get_figure(root=True), dpi) == []  # type: ignore[arg-type]
    run = ml.bench(thread_engines, "tp=4", "all_reduce", sizes="1K", sampling=ml.Sampling(max_s=0.05))
    run.wait(60)
    assert edges(ml.plot.batches(run).get_figure(root=True), dpi) == []  # type: ignore[arg-type]


def test_crowded_curves_have_a_panel_per_axis() -> None:
    ax = ml.plot.bandwidth(sweep(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]))
    figure = ax.get_figure(root=True)
    assert figure is not None
    panels = figure.axes[1:]
    assert [panel.texts[0].get_text() for panel in panels] == ["dp", "tp"]
    assert len({panel.get_ylim() for panel in panels}) == 1
    legend = ax.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    assert len(ml.plot.bandwidth(sweep(["all_reduce"])).get_figure(root=True).axes) == 1  # type: ignore[union-attr]


def test_a_comparison_without_verdicts_is_small() -> None:
    results = sweep(["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
    before = results.assign(time_us_lo=np.nan, time_us_hi=np.nan)
    comparison = compare(before, before.assign(time_us=before["time_us"] * 1.3))
    assert comparison.counts["UNCLEAR"] == len(comparison.rows)
    ax = ml.plot.comparison(comparison)
    figure = ax.get_figure(root=True)
    assert figure is not None
    assert figure.get_figheight() * 100 < 400
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == ["all_gather dp", "all_gather tp"]


def pairs(slow_until: float) -> pd.DataFrame:
    ends = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    times = [10.0] * 5 + [20.0]
    frame = pd.DataFrame(ends, columns=["src_rank", "dst_rank"]).assign(
        time_us=times, time_us_lo=[9.0] * 5 + [slow_until], time_us_hi=[11.0] * 5 + [30.0]
    )
    frame = frame.assign(busbw_gbs=1e5 / frame["time_us"], collective="send_recv", axis="world", grouping="pairs")
    return frame.assign(status="ok", size_bytes=1 << 20, mode="isolated", dtype="float32")


def test_a_pair_whose_interval_contains_the_median_is_not_slow() -> None:
    assert ml.plot.matrix(pairs(18.0)).get_title(loc="left").startswith("Slow: 2↔3")
    noisy = ml.plot.matrix(pairs(9.5))
    assert noisy.get_title(loc="left").startswith("No slow pairs")
    assert noisy.get_title(loc="left").count("\n") <= 1


def test_pairs_on_shared_cores_are_not_judged() -> None:
    frame = ml.analysis.pair_matrix(pairs(18.0))
    frame.attrs["oversubscribed"] = "4 ranks share 2 cores"
    ax = ml.plot.matrix(frame)
    assert ax.get_title(loc="left").startswith("No pair is judged, because 4 ranks share 2 cores")
    assert not ax.patches


def test_a_ring_shows_the_links_that_it_crosses_twice() -> None:
    ax = ml.plot.ring("tp=8", "pcie-l40s")
    assert [text.get_text() for text in ax.texts if text.get_gid() == "repeat"] == ["2×", "2×"]
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_texts()[-1].get_text() == "2 hops share a link with others, up to 2×"
    inside = ml.plot.ring("tp=8", "dgx-h100")
    assert not [text for text in inside.texts if text.get_gid() == "repeat"]


def test_an_uplink_counts_in_one_direction() -> None:
    cluster = ml.preset("superpod-h100", nodes=64)
    placement = ml.place("pp=64, tp=8", cluster)
    order = placement.mesh["pp"][0].array
    kinds = np.full(len(order), 5 * 16, dtype=np.int16)
    in_order = crossings_of_links(placement, order, kinds)
    shuffled = np.random.default_rng(0).permutation(order)
    assert in_order.max() == 1
    assert crossings_of_links(placement, shuffled.astype(np.int32), kinds).max() > 1


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-a100"])
def test_the_headers_of_links_do_not_touch(name: str) -> None:
    ax = ml.plot.links(name)
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    gaps = [(right.x0 - left.x1) * 72 / figure.dpi for left, right in pairwise(boxes)]
    assert min(gaps) >= 5


def test_an_svg_does_not_shrink_below_readable_type() -> None:
    svg = ml.plot.figure_svg(Figure(figsize=(8, 3)))
    assert re.search(r"width:8in;min-width:6in;max-width:100%", svg)


@pytest.mark.long
def test_the_functions_have_types_for_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = "import meshlab as ml\nml.plot.anything\nwidth: int = ml.plot.bandwidth\n"
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 'program.py:2: error: Module has no attribute "anything"' in done.stdout
    assert "program.py:3: error: Incompatible types" in done.stdout
