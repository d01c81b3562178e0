"""Every function with a mesh argument also accepts text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import MeshError, ParseError
from meshlab.frames._schema import empty_results
from meshlab.mesh._mesh import DeviceMesh, as_mesh

CLUSTER = ml.preset("dgx-h100")
TAKERS: dict[str, Callable[[Any], Any]] = {
    "place": lambda mesh: ml.place(mesh, CLUSTER).mesh,
    "topology_text": lambda mesh: ml.topology.text(mesh, CLUSTER),
    "plot_topology": lambda mesh: ml.plot.topology(mesh, ax=Figure().add_subplot()).get_title(loc="left"),
    "plot_membership": lambda mesh: ml.plot.membership(mesh, "tp", ax=Figure().add_subplot()).get_title(loc="left"),
    "Report": lambda mesh: ml.Report(empty_results(), mesh=mesh).mesh,
    "Plan.steps": lambda mesh: ml.Plan("all_reduce", "tp", sizes="1K").steps(mesh),
    "Plan.estimate": lambda mesh: str(ml.Plan("all_reduce", "tp", sizes="1K").estimate(mesh)),
    "Picture": lambda mesh: ml.widgets.Picture(mesh).mesh,
    "Designer": lambda mesh: ml.widgets.Designer(mesh=mesh).mesh,
}


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS.keys())
def test_text_is_accepted_as_a_mesh(take: Callable[[Any], Any]) -> None:
    assert take("dp=2, tp=4") == take(DeviceMesh("dp=2, tp=4"))


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS.keys())
def test_everything_else_is_rejected(take: Callable[[Any], Any]) -> None:
    with pytest.raises(MeshError, match=r"mesh must be a DeviceMesh or text such as 'dp=2, tp=4', not int"):
        take(8)


def test_engines_and_benchmarks_fill_a_size_of_minus_one() -> None:
    with ml.launch(4, backend="threads") as engines:
        assert engines.verify("dp=2, tp=2")["is_right"].all()
        assert engines.run(lambda comm: comm.size, "dp=-1, tp=2", axis="tp")["value"].tolist() == [2] * 4
        run = ml.bench(engines, "dp=-1, tp=2", "all_reduce", axis="tp", sizes="1K")
        assert run.mesh == DeviceMesh("dp=2, tp=2")
        assert run.wait()["status"].tolist() == ["ok", "ok"]
        with pytest.raises(MeshError, match="mesh must be a DeviceMesh or text such as 'dp=2, tp=4', not int"):
            engines.verify(4)  # type: ignore[arg-type]


def test_a_size_of_minus_one_is_filled_from_the_devices_of_the_cluster() -> None:
    assert ml.place("dp=-1, tp=4", CLUSTER).mesh == DeviceMesh("dp=2, tp=4")
    assert ml.place("dp=-1, tp=2", CLUSTER, devices=[4, 5, 6, 7]).mesh == DeviceMesh("dp=2, tp=2")
    with pytest.raises(MeshError, match="world_size"):
        as_mesh("dp=-1, tp=4")


def test_invalid_text_is_a_parse_error() -> None:
    with pytest.raises(ParseError, match="'dgx-h100' is not an axis; write name=size"):
        ml.place("dgx-h100", CLUSTER)
