import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.base._units import THIN
from meshlab.frames._schema import empty_results
from meshlab.plots._curves import curve_box, run_figure, run_figure_html, spread_labels
from meshlab.plots._style import PREVIOUS, WRONG, figure_png, figure_svg
from meshlab.runs._rundata import RunData
from tests.examples import examples

PLOTS = (ml.plot.bandwidth, ml.plot.latency)


def new_axes():
    return Figure((7.2, 4.2)).add_axes(curve_box((7.2, 4.2)))


def only(results, **columns):
    for name, value in columns.items():
        results = results[results[name] == value]
    return results.copy()


def labels(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() != "note"]


def note(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() == "note"]


def texts_outside(figure):
    """Return the visible texts that are not completely inside the figure."""
    figure.draw_without_rendering()
    texts = []
    for ax in figure.axes:
        texts += [*ax.texts, ax.get_children()[ax.get_children().index(ax.title) + 1], ax.xaxis.label, ax.yaxis.label]
        texts += [] if ax.get_legend() is None else ax.get_legend().get_texts()
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    page = figure.bbox.padded(0.5)
    boxes = {text.get_text(): Text.get_window_extent(text) for text in texts if text.get_text()}
    return [
        name for name, box in boxes.items() if not (page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1))
    ]


def no_text_overlaps(ax):
    ax.figure.draw_without_rendering()
    # Text's own method: an annotation's counts its leading line too.
    boxes = [Text.get_window_extent(text) for text in [*ax.texts, *ax.get_xticklabels(), ax.xaxis.label]]
    return not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize("plot", PLOTS)
def test_up_to_five_lines_are_labelled_at_their_ends(make_results, plot):
    ax = plot(only(make_results(), axis="tp"), ax=new_axes())
    assert labels(ax) == ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    assert ax.get_legend() is None
    assert no_text_overlaps(ax)


@pytest.mark.parametrize("plot", PLOTS)
def test_more_lines_have_a_legend(make_results, plot):
    ax = plot(make_results(), ax=new_axes())
    assert labels(ax) == []
    assert [text.get_text() for text in ax.get_legend().get_texts()][:2] == ["all_reduce · tp", "all_gather · tp"]


@pytest.mark.parametrize("plot", PLOTS)
def test_many_lines_look_different_and_have_a_legend_next_to_the_axes(make_results, plot):
    modes = [make_results(mode=mode, axes=["tp"]) for mode in ("isolated", "pipelined", "graph")]
    ax = plot(pd.concat(modes, ignore_index=True))
    lines = [line for line in ax.lines if len(line.get_xdata())]
    assert len(lines) == 12
    assert len({(line.get_color(), line.get_marker(), str(line._dash_pattern)) for line in lines}) == 12
    assert len({line.get_color() for line in lines}) == 4  # one for each collective
    figure = ax.get_figure()
    figure.draw_without_rendering()
    legend = ax.get_legend().get_window_extent()
    assert legend.x0 > ax.get_window_extent().x1
    assert legend.x1 <= figure.bbox.x1
    plt.close(figure)


def noisy(make_results, mesh="dp=2, tp=2", **columns):
    """Results of an axis whose first group is ten times as fast as the others, with wide intervals."""
    results = make_results(mesh, collectives=["all_reduce"], axes=["tp"], **columns)
    fast = results["group"] == "tp_0"
    for name in ("time_us", "time_us_lo", "time_us_hi"):
        results.loc[~fast, name] *= 10
    for name in ("algbw_gbs", "busbw_gbs"):
        results.loc[~fast, name] /= 10
    results["time_us_lo"], results["time_us_hi"] = results["time_us"] / 1.2, results["time_us"] * 1.2
    return results


@pytest.mark.parametrize("plot", PLOTS)
def test_the_band_belongs_to_the_slowest_group_and_thin_lines_show_the_others(make_results, plot):
    ax = plot(noisy(make_results), ax=new_axes())
    band, thin = ax.collections
    (thick,) = ax.lines
    values = dict(thick.get_xydata())
    for x, y in band.get_paths()[0].vertices:
        assert values[x] / 1.3 < y < values[x] * 1.3
    assert isinstance(thin, LineCollection)
    segments = thin.get_segments()
    assert len(segments) == 2
    assert thin.get_linewidths()[0] < thick.get_linewidth() / 2
    extreme = np.max if plot is ml.plot.latency else np.min
    assert thick.get_ydata() == pytest.approx(extreme([segment[:, 1] for segment in segments], axis=0))
    bottom, top = ax.get_ylim()
    assert all(bottom < segment[:, 1].min() and segment[:, 1].max() < top for segment in segments)
    assert note(ax) == ["thick: slowest group at each size · band: its 95 % interval · thin: every group"]


def test_many_groups_are_one_pale_artist_and_an_image_in_an_svg(make_results):
    few, many = (
        ml.plot.bandwidth(noisy(make_results, mesh, exponents=range(10, 20)), ax=new_axes())
        for mesh in ("dp=8, tp=2", "dp=512, tp=2")
    )
    assert [len(ax.collections) for ax in (few, many)] == [2, 2]
    assert len(many.collections[1].get_segments()) == 512
    assert many.collections[1].get_alpha() < few.collections[1].get_alpha()
    assert "<image" in figure_svg(many.figure)
    assert "<image" not in figure_svg(few.figure)
    assert len(figure_svg(many.figure)) < 1_000_000


@pytest.mark.parametrize("plot", PLOTS)
def test_the_axis_ends_at_the_data_and_labels_are_in_the_margin(make_results, plot):
    ax = plot(only(make_results(), axis="tp"), ax=new_axes())
    left, right = np.log2(ax.get_xlim())
    assert 10 - left == pytest.approx(right - 24)
    assert 0 < right - 24 < 0.02 * 14
    ax.figure.draw_without_rendering()
    for text in ax.texts:
        if text.get_gid() != "note":
            assert Text.get_window_extent(text).x0 > ax.get_window_extent().x1


@pytest.mark.parametrize("width", [8, 5])
@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("plot", PLOTS)
def test_no_text_is_clipped(make_results, plot, width, layout):
    for results in (only(make_results(), axis="tp"), make_results(axes=["tp"], collectives=["all_reduce"])):
        figure = Figure((width, 3.6), layout=layout)
        plot(results, ax=figure.add_subplot())
        assert texts_outside(figure) == []


def test_axes_next_to_others_keep_their_labels_in_their_own_area(make_results):
    figure = Figure((10, 4))
    left, right = figure.subplots(1, 2)
    edge = left.get_position().x1
    ml.plot.bandwidth(only(make_results(), axis="tp"), ax=left)
    figure.draw_without_rendering()
    assert max(Text.get_window_extent(text).x1 for text in left.texts if text.get_gid() != "note") <= (
        edge * figure.bbox.width + 1
    )
    assert right.get_position().x0 > edge


def test_a_single_size_shows_its_interval_and_its_groups(make_results):
    ax = ml.plot.bandwidth(noisy(make_results, exponents=[20]), ax=new_axes())
    (_, bar, groups) = ax.collections
    ((low, high),) = [segment[:, 1] for segment in bar.get_segments()]
    assert low < ax.lines[0].get_ydata()[0] < high
    assert len(groups.get_offsets()) == 2


def test_a_legend_that_is_too_long_for_the_figure_counts_the_remaining_lines(make_results):
    parts = [make_results(dtype=f"type{index}", exponents=[10, 12]) for index in range(6)]
    ax = ml.plot.bandwidth(pd.concat(parts, ignore_index=True), ax=new_axes())
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names[-1] == f"and {48 - len(names) + 1} more lines"
    assert texts_outside(ax.figure) == []


@pytest.mark.parametrize("plot", PLOTS)
def test_the_band_is_inside_the_axes(make_results, plot):
    results = make_results(collectives=["all_reduce"], axes=["tp"], exponents=[10, 12])
    results["time_us_lo"], results["time_us_hi"] = results["time_us"] / 40, results["time_us"] * 40
    ax = plot(results, ax=new_axes())
    bottom, top = ax.get_ylim()
    ends = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert bottom <= ends.min()
    assert ends.max() <= top


def test_labels_of_lines_that_end_at_the_same_height_do_not_overlap(make_results):
    results = make_results(collectives=["all_reduce"])
    results["time_us"] = results["size_bytes"] / 1e3
    results["busbw_gbs"] = 1.0
    ax = ml.plot.bandwidth(results, ax=new_axes())
    assert labels(ax) == ["tp", "dp"]
    assert no_text_overlaps(ax)


@pytest.mark.parametrize("plot", PLOTS)
def test_the_title_has_collective_axis_system_and_mode(make_results, plot):
    ax = plot(only(make_results(), axis="tp", collective="all_reduce"), ax=new_axes())
    title = ax.get_title(loc="left")
    assert title == "all_reduce · tp (2 groups of 2) · 4 ranks · MPI on this CPU · pipelined"


def test_a_long_title_breaks_between_its_parts_and_stays_inside_the_figure(make_results):
    where = "1,024 × NVIDIA H200 in 128 nodes · 8 × 400 Gb/s InfiniBand · NCCL 2.32.3 with NVLS · MPI on this CPU"
    ax = ml.plot.bandwidth(make_results(axes=["tp"], where=where))
    ax.figure.draw_without_rendering()
    box = ax.get_children()[ax.get_children().index(ax.title) + 1].get_window_extent()
    assert ax.get_title(loc="left").count("\n") == 1
    assert box.y1 <= ax.figure.bbox.y1
    assert box.x1 <= ax.figure.bbox.x1
    plt.close(ax.figure)


def test_sizes_are_ticked_in_binary_units_and_never_beyond_the_data(make_results):
    ax = ml.plot.bandwidth(only(make_results(), axis="tp"), ax=new_axes())
    ticks = [text.get_text() for text in ax.get_xticklabels()]
    assert ticks[0] == f"1{THIN}KiB"
    assert ax.get_xticks().max() <= 1 << 24
    assert no_text_overlaps(ax)


def test_bandwidth_starts_at_zero_and_latency_is_logarithmic(make_results):
    assert ml.plot.bandwidth(make_results(), ax=new_axes()).get_ylim()[0] == 0
    assert ml.plot.latency(make_results(), ax=new_axes()).get_yscale() == "log"


def test_algbw_can_be_drawn_instead_and_other_columns_cannot(make_results):
    ax = ml.plot.bandwidth(make_results(), ax=new_axes(), y="algbw_gbs")
    assert ax.get_ylabel() == "algorithm bandwidth (GB/s)"
    with pytest.raises(BenchError, match="y='time_us' is not a bandwidth column; choose busbw_gbs or algbw_gbs"):
        ml.plot.bandwidth(make_results(), ax=new_axes(), y="time_us")


@pytest.mark.parametrize("plot", PLOTS)
def test_wrong_rows_are_red_crosses_and_the_legend_counts_them(make_results, plot):
    results = only(make_results(), axis="tp", collective="all_reduce")
    results.loc[results.index[[4, 5, 9]], ["status", "n_wrong"]] = ["wrong", 2]
    ax = plot(results, ax=new_axes())
    (cross,) = [line for line in ax.lines if line.get_color() == WRONG]
    assert cross.get_marker() == "x"
    assert sorted(cross.get_xdata()) == [1 << 12, 1 << 12, 1 << 14]
    assert 1 << 12 not in ax.lines[0].get_xdata()
    assert ax.get_legend().get_texts()[0].get_text() == "3 wrong results, not in the line"


def test_red_is_absent_when_nothing_is_wrong(make_results):
    ax = ml.plot.bandwidth(make_results(), ax=new_axes())
    assert WRONG not in {to_hex(line.get_color()) for line in ax.lines}


@pytest.mark.parametrize("plot", PLOTS)
def test_a_previous_run_is_grey_and_both_are_named(make_results, plot):
    results = only(make_results(), axis="tp", collective="all_reduce")
    before = only(make_results(seed=1), axis="tp", collective="all_reduce")
    ax = plot(results, ax=new_axes(), previous=before)
    assert ax.lines[0].get_color() == PREVIOUS
    assert labels(ax) == ["previous", "this run"]
    assert no_text_overlaps(ax)


@pytest.mark.parametrize("plot", PLOTS)
def test_many_previous_lines_share_one_entry_of_the_legend_inside_the_figure(make_results, plot):
    modes = [make_results(mode=mode, axes=["tp"]) for mode in ("isolated", "pipelined", "graph")]
    ax = plot(pd.concat(modes, ignore_index=True), previous=pd.concat(modes, ignore_index=True))
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names[0] == "previous run"
    assert len(names) == 1 + 12
    assert not any("previous" in name for name in names[1:])
    figure = ax.get_figure()
    figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().x0 > ax.get_window_extent().x1
    assert ax.get_legend().get_window_extent().x1 <= figure.bbox.x1
    plt.close(figure)


def test_the_legend_of_a_run_with_many_lines_is_next_to_the_axes(make_results):
    modes = [make_results(mode=mode, axes=["tp"]) for mode in ("isolated", "pipelined", "graph")]
    plan, mesh = ml.Plan("all_reduce", "tp"), ml.DeviceMesh("dp=2, tp=2")
    data = RunData(plan, mesh, run_id="r1", source="mpi", where="4 ranks", results=pd.concat(modes, ignore_index=True))
    figure = run_figure(data)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    assert ax.get_legend().get_window_extent().x0 > ax.get_window_extent().x1
    assert ax.get_legend().get_window_extent().x1 <= figure.bbox.x1


def test_references_are_dashed_lines_labelled_with_their_rates(make_results):
    references = {"link": 4.5, "memory copy": 4.6}
    ax = ml.plot.bandwidth(only(make_results(), axis="tp"), ax=new_axes(), references=references)
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in dashed] == [4.5, 4.6]
    assert labels(ax)[:2] == [f"link 4.50{THIN}GB/s", f"memory copy 4.60{THIN}GB/s"]
    assert ax.get_ylim()[1] > 4.6
    assert no_text_overlaps(ax)


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("rows", ["none", "all failed", "one size"])
def test_incomplete_results_are_drawn_too(make_results, plot, rows):
    results = {
        "none": empty_results(),
        "all failed": make_results(status="failed"),
        "one size": make_results(exponents=[20]),
    }[rows]
    ax = plot(results, ax=new_axes())
    assert (labels(ax) == ["nothing to draw"]) == (rows != "one size")
    assert figure_png(ax.figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_text_has_the_colour_of_the_style(make_results, style):
    with plt.style.context(style):
        ax = ml.plot.bandwidth(only(make_results(), axis="tp"), ax=new_axes(), references={"link": 4.5})
        texts = [*ax.texts, ax.xaxis.label, *ax.get_xticklabels(), ax.get_children()[-1]]
        assert {to_hex(text.get_color()) for text in texts if hasattr(text, "get_color")} == {
            to_hex(plt.rcParams["text.color"])
        }


def test_names_with_dollars_and_underscores_are_not_markup(make_results):
    results = make_results(axes=["tp"], collectives=["all_reduce", "all_gather"], where="$10 a \\frac hour")
    results["collective"] = results["collective"].replace({"all_reduce": "_$x", "all_gather": "$\\nothing$"})
    figure_png(ml.plot.bandwidth(results, ax=new_axes()).figure)


@pytest.mark.parametrize("plot", PLOTS)
def test_a_run_its_folder_its_results_and_a_list_are_accepted(thread_engines, tmp_path, plot):
    run = ml.bench(thread_engines, "dp=2, tp=2", axis="tp", sizes="1K, 2K", sampling=ml.Sampling(max_s=0.02))
    run.wait(120)
    run.save(tmp_path / "run")
    data = ml.Run.load(tmp_path / "run")
    drawn = [
        plot(source, previous=source, ax=new_axes())
        for source in (run, data, tmp_path / "run", str(tmp_path / "run" / "results.csv"), run.results)
    ]
    points = [[line.get_ydata().tolist() for line in ax.lines] for ax in drawn]
    assert all(found == points[0] for found in points)
    assert [len(ys) for ys in points[0]] == [2, 2]
    assert {ax.get_title(loc="left").replace("\n", " ") for ax in drawn[:3]} == {
        "all_reduce · tp (2 groups of 2) · 4 ranks · threads in this process · pipelined"
    }
    assert labels(plot([run, data], ax=new_axes())) == [f"run {index}:{run.run_id}" for index in (0, 1)]
    if plot is ml.plot.bandwidth:
        assert run.plot(ax=new_axes()).lines[0].get_ydata().tolist() == points[0][1]


@pytest.mark.parametrize("plot", PLOTS)
def test_other_sources_are_rejected_with_a_fix(plot, tmp_path, make_results):
    with pytest.raises(BenchError, match="int has no results; pass a run or its folder"):
        plot(3)
    with pytest.raises(BenchError, match="an empty list has no results; pass at least one run"):
        plot([])
    with pytest.raises(BenchError, match=r"cannot read .*nowhere"):
        plot(tmp_path / "nowhere")
    with pytest.raises(BenchError, match="int has no results"):
        plot(make_results(), ax=new_axes(), previous=3)


def test_the_figure_of_a_run_is_an_svg_and_empty_without_times(thread_engines):
    plan = ml.Plan("all_reduce", "tp", sizes="1K")
    mesh = ml.DeviceMesh("dp=2, tp=2")
    run = RunData(plan, mesh, run_id="r1", source="threads", where="4 ranks")
    assert run_figure_html(run) == ""
    done = ml.bench(thread_engines, mesh, plan)
    done.wait(120)
    svg = run_figure_html(done)
    assert svg.startswith("<svg")
    assert 'aria-label="all_reduce · tp (2 groups of 2)' in svg
    data = RunData(plan, mesh, run_id="r1", source="threads", where="4 ranks", results=done.results)
    assert "<svg" in data._repr_html_()


def test_without_axes_a_figure_is_created_and_with_axes_none_is(make_results):
    before = plt.get_fignums()
    ml.plot.bandwidth(make_results(), ax=new_axes())
    assert plt.get_fignums() == before
    ax = ml.plot.latency(make_results())
    assert len(plt.get_fignums()) == len(before) + 1
    plt.close(ax.figure)


@given(wanted=st.lists(st.floats(0, 1), min_size=1, max_size=6), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=examples(60))
def test_spread_labels_keep_their_distance_and_move_least(wanted, seed):
    gap = 0.1
    places = spread_labels(wanted, gap, -10, 10)
    order = np.argsort(wanted, kind="stable")
    assert np.diff(places[order]).min(initial=gap) >= gap - 1e-9
    # No other arrangement that keeps the distance has moved less.
    steps = gap + np.random.default_rng(seed).exponential(0.1, len(wanted) - 1)
    other = np.concatenate([[0], np.cumsum(steps)])
    other += np.mean(np.array(wanted)[order] - other)
    assert ((places - wanted) ** 2).sum() <= ((other - np.array(wanted)[order]) ** 2).sum() + 1e-9


def test_spread_labels_stay_between_their_bounds():
    assert spread_labels([0.99, 1.0, 0.98], 0.1, 0.0, 1.0) == pytest.approx([0.9, 1.0, 0.8])
