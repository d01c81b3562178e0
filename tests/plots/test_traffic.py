"""The heat map of a traffic: its cells, sums and titles."""

from __future__ import annotations

import time

import numpy as np
import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.plots._traffic import figure_of

MATRIX = ml.Traffic.matrix([[0, 640, 0], [0, 0, 0], [160, 0, 4800]])


def title(traffic: ml.Traffic, **options: object) -> list[str]:
    ax = ml.plot.traffic(traffic, ax=Figure((7, 6)).add_subplot(), **options)  # type: ignore[arg-type]
    return ax.get_title(loc="left").replace("\N{THIN SPACE}", " ").splitlines()


def test_the_title_names_the_rank_or_the_host_that_decides() -> None:
    assert title(MATRIX) == ["Rank 2 sends 4.84 KiB, 2.66 × the mean", "matrix traffic · 3 ranks"]
    assert title(MATRIX, hosts=["a", "b", "b"])[0] == "Host b receives 5.31 KiB, 1.94 × the mean"
    assert title(ml.Traffic.even().of(4, 64))[0] == "Every rank sends and receives 64 B"
    shares = ml.Traffic.routing([[3, 1], [1, 3]])
    assert title(shares)[0] == "Every rank sends and receives 100 %"


def test_cells_have_the_bytes_and_nothing_where_nothing_is_sent() -> None:
    ax = MATRIX.plot(ax=Figure((7, 6)).add_subplot())
    (image,) = ax.images
    assert np.array_equal(image.get_array().filled(0), MATRIX.array)
    assert image.get_array().mask.tolist() == (MATRIX.array == 0).tolist()
    notes = [text.get_text().replace("\N{THIN SPACE}", " ") for text in ax.texts]
    assert any("largest pair 0 → 1: 640 B · 86 % stays on its rank" in note for note in notes)


def test_a_popular_rank_is_seen_among_a_thousand() -> None:
    traffic = ml.Traffic.zipf(1.2).of(1024, "64M")
    (image,) = figure_of(traffic).axes[0].images
    blocks = image.get_array()
    assert max(blocks.shape) <= 256
    assert blocks.max() == traffic.array.max()


def test_notebooks_show_the_figure_of_a_traffic_and_the_text_of_a_pattern() -> None:
    assert MATRIX._repr_html_().startswith("<svg")  # type: ignore[union-attr]
    assert ml.Traffic.zipf(1.2)._repr_html_() is None
    with pytest.raises(ml.MeshlabError, match="is a pattern, which has no bytes yet"):
        ml.Traffic.zipf(1.2).plot()


def test_reports_draw_the_traffics_of_a_run() -> None:
    with ml.launch(3, backend="threads") as engines:
        sampling = ml.Sampling(max_s=0.02, min_batches=6)
        run = ml.bench(engines, "ep=3", "all_to_all_v", sizes="3K", traffic=["even", "zipf:1.2"], sampling=sampling)
        run.wait()
    page = ml.Report(run).html()
    assert "<h2>Traffic</h2>" in page
    assert "zipf 1.2 traffic along ep" in page
    assert "compared with even traffic" in page
    assert "## Traffic" in ml.Report(run).markdown()
    assert "largest number of bytes that a rank sends or receives" in page


@pytest.mark.full
def test_a_thousand_ranks_take_less_than_half_a_second() -> None:
    ml.Traffic.zipf(1.2).of(8, "64M")._repr_html_()  # imports
    times = []
    for _ in range(3):
        start = time.process_time()
        traffic = ml.Traffic.zipf(1.2).of(1024, "64M")
        assert traffic.imbalance > traffic.per_node(8).imbalance
        assert traffic._repr_html_()
        times.append(time.process_time() - start)
    assert min(times) < 0.5


@pytest.mark.parametrize("new", [True, False])
def test_long_names_of_hosts_stay_in_the_figure(new: bool) -> None:
    hosts = ["n0", *(f"gpu-{'x' * 30 * (number % 2)}{number}.cluster.example" for number in range(1, 7)), "n7"]
    ax = None if new else Figure((9, 7)).add_subplot()
    ax = ml.plot.traffic(ml.Traffic.zipf(1.2).of(16, "64M"), hosts=[host for host in hosts for _ in range(2)], ax=ax)
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    labels = [*ax.get_xticklabels(), *ax.get_yticklabels(), ax.title, ax._left_title]  # type: ignore[attr-defined]
    labels += [text for text in ax.texts if text.get_gid() == "note"]
    boxes = {text: text.get_window_extent() for text in labels if text.get_text()}
    for text, box in boxes.items():
        assert figure.bbox.x0 <= box.x0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    notes = [box for text, box in boxes.items() if text.get_gid() == "note"]
    assert all(not box.overlaps(note) for text, box in boxes.items() for note in notes if text.get_gid() != "note")
    assert [label.get_text() for label in ax.get_yticklabels()][:3:2] == ["n0", "gpu-2"]
