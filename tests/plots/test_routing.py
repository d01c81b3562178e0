"""The figure of a routing: one curve per placement, its busiest rank in the title, and no worse one."""

from __future__ import annotations

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import BenchError, MeshError
from meshlab.plots._routing import figure_html, routing


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(7, 4)).add_subplot()


def labels(ax: Axes) -> list[str]:
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text().replace("\N{THIN SPACE}", " ") for text in legend.get_texts()]


def title(ax: Axes) -> str:
    return ax.get_title(loc="left").replace("\N{THIN SPACE}", " ")


JOB = ml.Job.preset("mixtral-8x7b", experts=32, top_k=4, skew=0.8, parameters=None, name="a mixture")


def test_a_curve_per_placement_and_the_best_in_the_title(ax: Axes) -> None:
    routing(JOB.routing("ep=8"), ax=ax)
    assert title(ax) == "The busiest rank has 1.86 × the mean, and 1.00 × with 8 replicas\na mixture, ep=8"
    assert [label.split(":")[0] for label in labels(ax)] == ["before", "other places", "8 replicas"]


def test_balanced_experts_have_one_curve(ax: Axes) -> None:
    routing(JOB.routing("ep=8", skew=0), ax=ax)
    assert title(ax).startswith("All ranks have the same tokens")
    assert len(labels(ax)) == 1


def test_without_replicas_there_may_be_no_better_place(ax: Axes) -> None:
    """Each rank has one expert."""
    routing(JOB.routing("ep=32"), 0, ax=ax)
    assert "and no better placement was found" in title(ax)


def test_the_busiest_nic_is_named(ax: Axes) -> None:
    placed = JOB.routing("ep=16", ml.preset("dgx-h100", nodes=2))
    routing(placed, 16, ax=ax)
    (note,) = [text.get_text() for text in ax.texts if text.get_gid() == "note"]
    assert placed.loads().busiest_nic in note


def test_wrong_arguments_are_explained(ax: Axes) -> None:
    with pytest.raises(BenchError, match="pass job"):
        routing("ep=8", ax=ax)  # type: ignore[arg-type]
    with pytest.raises(MeshError, match="do not fill the slots"):
        routing(JOB.routing("ep=8"), 3, ax=ax)
    with pytest.raises(MeshError, match="replicas must be an integer"):
        routing(JOB.routing("ep=8"), 1.5, ax=ax)  # type: ignore[arg-type]
    with pytest.raises(MeshError, match="replicas must be an integer"):
        routing(JOB.routing("ep=8"), False, ax=ax)


def test_a_page_has_the_traffic_before_and_after() -> None:
    html = figure_html(JOB.routing("ep=8"))
    assert html.count("<svg") == 3
    assert "dispatch with 8 replicas" in html
    assert figure_html(JOB.routing("ep=8", skew=0)).count("<svg") == 2
