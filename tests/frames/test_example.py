"""The results of a real GPU run that are included in the package."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.frames._example import EXAMPLES
from meshlab.frames._schema import RESULTS


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_an_example_is_a_results_frame_of_gpus(name: str) -> None:
    results = ml.example(name)
    assert {column: str(dtype) for column, dtype in results.dtypes.items()} == {c.name: c.dtype for c in RESULTS}
    assert (results["source"] == "nccl").all()
    assert (results["status"] == "ok").all()
    assert (results["n_wrong"] == 0).all()
    assert "H200" in results.attrs["where"]
    assert results["time_us"].between(results["time_us_lo"], results["time_us_hi"]).all()


def test_two_h200_reach_the_bandwidth_of_nccl_tests() -> None:
    """nccl-tests on the same two cards: 323 to 327 GB/s at 1 GiB, 5.5 to 6.4 µs in a graph."""
    results = ml.example("h200x2")
    graph = results[(results["mode"] == "graph") & (results["collective"] == "all_reduce")].set_index("size_bytes")
    assert len(results) == 3 * 4 * 14
    assert graph["busbw_gbs"].max() == pytest.approx(315, rel=0.02)
    assert 5.0 < graph["time_us"].min() < 6.5


def test_plots_reports_and_tables_show_the_example(tmp_path: object) -> None:
    from matplotlib.figure import Figure

    from meshlab.frames._table import results_table

    results = ml.example()
    assert "2 × H200" in ml.plot.bandwidth(results, ax=Figure().add_subplot()).get_title(loc="left")
    assert "All 168 results are correct." in ml.Report(results).markdown()
    assert "2 × H200 · NCCL 2.28.9 · graph" in str(results_table(results))
    assert len(ml.compare(results, results).frame()) == 168


def test_an_unknown_example_raises_with_the_available_names() -> None:
    with pytest.raises(BenchError, match="unknown example 'b200'; choose one of h200x2"):
        ml.example("b200")
