"""Heat maps of pairs: slow links are marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.plots._style import WRONG


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(6, 5), layout="constrained").subplots()


def matrix(n: int = 8, slow: tuple[tuple[int, int], ...] = (), **attrs: object) -> pd.DataFrame:
    values = np.full((n, n), 40.0)
    np.fill_diagonal(values, np.nan)
    for a, b in slow:
        values[a, b] = values[b, a] = 12.0
    frame = pd.DataFrame(values)
    frame.attrs = {"collective": "send_recv", "size_bytes": 1 << 26, "axis": "world", "where": "8 × H200", **attrs}
    return frame


def frames(ax: Axes) -> list[tuple[float, float]]:
    return [(round(patch.get_y() + 0.44), round(patch.get_x() + 0.44)) for patch in ax.patches]


def test_a_slow_pair_has_a_frame_and_is_named_in_the_title(ax: Axes) -> None:
    assert ml.plot.matrix(matrix(slow=((2, 5),)), ax=ax) is ax
    assert sorted(frames(ax)) == [(2, 5), (5, 2)]
    assert all(patch.get_edgecolor()[:3] == pytest.approx((0.898, 0.224, 0.208), abs=0.01) for patch in ax.patches)
    assert WRONG == "#e53935"
    first, second = ax.get_title(loc="left").splitlines()[:2]
    assert first == "Slow: 2↔5 12.0\u2009GB/s (median 40.0\u2009GB/s)"
    assert second.startswith("send_recv 64\u2009MiB · both directions · world · 8 × H200")
    ax.get_figure().draw_without_rendering()


def test_a_rank_that_is_slow_with_all_others_is_named_once(ax: Axes) -> None:
    ml.plot.matrix(matrix(slow=tuple((3, other) for other in range(8) if other != 3)), ax=ax)
    assert ax.get_title(loc="left").startswith("Slow: 7 pairs, all with rank 3, 12.0\u2009GB/s")


def test_many_slow_pairs_do_not_make_the_title_leave_the_figure() -> None:
    figure = Figure(figsize=(5.75, 4.6), layout="constrained")
    ax = ml.plot.matrix(matrix(slow=((0, 1), (2, 3), (4, 5), (6, 7))), ax=figure.subplots())
    figure.draw_without_rendering()
    assert "and 1 more" in ax.get_title(loc="left").replace("\n", " ")
    assert ax._left_title.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize("size", [(6, 4), (5, 5), (9, 7)])
def test_no_label_leaves_the_figure(n: int, size: tuple[float, float]) -> None:
    figure = Figure(size)
    ax = figure.add_subplot()
    ml.plot.matrix(matrix(n), ax=ax)
    figure.draw_without_rendering()
    (bar,) = (other for other in figure.axes if other is not ax)
    low, high = bar.get_ylim()
    ticks = [label for label, at in zip(bar.get_yticklabels(), bar.get_yticks(), strict=True) if low <= at <= high]
    for text in [ax._left_title, ax.xaxis.label, ax.yaxis.label, *ticks]:  # type: ignore[attr-defined]
        x0, y0, x1, y1 = text.get_window_extent().extents
        assert 0 <= x0 < x1 <= figure.bbox.width, text
        assert 0 <= y0 < y1 <= figure.bbox.height, text


def test_an_even_matrix_has_no_frames(ax: Axes) -> None:
    ml.plot.matrix(matrix(), ax=ax)
    assert frames(ax) == []
    assert ax.get_title(loc="left").startswith("No slow pairs: 40.0")


def test_large_times_are_slow(ax: Axes) -> None:
    times = matrix(slow=((0, 1),), value="time_us", collective="send")
    ml.plot.matrix(times.replace(12.0, 90.0), ax=ax)
    assert (0, 1) in frames(ax)
    assert "90.0\u2009µs" in ax.get_title(loc="left")


def test_numbers_are_in_the_cells_only_if_there_is_room(ax: Axes) -> None:
    ml.plot.matrix(matrix(), ax=ax)
    assert sum(text.get_text() == "40" for text in ax.texts) == 8 * 7
    other = Figure(figsize=(6, 5)).subplots()
    ml.plot.matrix(matrix(64), ax=other)
    assert not other.texts


def test_frames_that_are_not_a_matrix_are_rejected(ax: Axes) -> None:
    with pytest.raises(BenchError, match=r"must be square .* not of shape \(2, 3\)"):
        ml.plot.matrix(pd.DataFrame(np.ones((2, 3))), ax=ax)
    with pytest.raises(BenchError, match=r"at least one number, .* with 0 numbers; pass a run"):
        ml.plot.matrix(pd.DataFrame(np.full((2, 2), np.nan)), ax=ax)
    with pytest.raises(BenchError, match="must have numbers in all cells"):
        ml.plot.matrix(pd.DataFrame([["a", "b"], ["c", "d"]]), ax=ax)
    with pytest.raises(BenchError, match="mode= selects pairs of a run, but a matrix was passed; pass the run instead"):
        ml.plot.matrix(matrix(), mode="graph", ax=ax)


def test_a_run_its_folder_and_its_results_are_drawn_like_their_matrix(
    thread_engines: ml.Engines, tmp_path: Path
) -> None:
    run = ml.bench_pairs(thread_engines, sizes="1K, 4K", sampling=ml.Sampling(max_s=0.02, min_batches=6))
    run.wait(120)
    run.save(tmp_path / "run")
    choice = {"collective": "send", "size_bytes": 1024}
    sources = [(run, choice), (run.results, choice), (tmp_path / "run", choice), (run.matrix(**choice), {})]
    titles = {
        # In narrow axes, a long sentence about slow pairs leaves the collective to the note.
        ml.plot.matrix(source, ax=Figure(figsize=(12, 5)).subplots(), **chosen).get_title(loc="left")
        for source, chosen in sources
    }
    assert len(titles) == 1
    assert "send 1\u2009KiB" in titles.pop().replace("\n", " ")


def test_unsuitable_runs_are_rejected_with_a_fix(ax: Axes, make_results: Any) -> None:
    with pytest.raises(BenchError, match=r"no pairs were measured .*; measure them with bench"):
        ml.plot.matrix(make_results(), ax=ax)
    with pytest.raises(BenchError, match="int has no results; pass a run or its folder"):
        ml.plot.matrix(3, ax=ax)
    with pytest.raises(BenchError, match=r"unknown argument 'size' \(did you mean 'size_bytes'\?\); choose one of"):
        ml.plot.matrix(make_results(), size=1024, ax=ax)


@pytest.mark.parametrize("size", [(8, 4.5), (5, 3.6), (4, 3)])
def test_names_and_legend_of_links_are_inside_the_figure(size: tuple[float, float]) -> None:
    figure = Figure(size)
    ax = ml.plot.links("dgx-a100", ax=figure.add_subplot())
    figure.draw_without_rendering()
    legend = ax.get_legend()
    assert legend is not None
    for text in [*legend.get_texts(), *ax.get_yticklabels(), *ax.get_xticklabels()]:
        x0, y0, x1, y1 = text.get_window_extent().extents
        assert -1 <= x0 <= x1 <= figure.bbox.width + 1, text
        assert -1 <= y0 <= y1 <= figure.bbox.height + 1, text
