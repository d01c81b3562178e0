"""Frames with a damaged value: every analysis and plot works, or raises an error of meshlab that names the problem."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

import meshlab as ml
from tests.examples import examples

Frames = tuple[pd.DataFrame, pd.DataFrame]

VALUES: list[Any] = ["many", np.inf, -np.inf, 1e308, -5, np.nan, None, [1], True, 10**30, b"x"]


def drawn(plot: Callable[[Any], Any]) -> Callable[[Frames], None]:
    def draw(frames: Frames) -> None:
        plot(frames).figure.canvas.draw()

    return draw


USES: dict[str, Callable[[Frames], Any]] = {
    "bandwidth": drawn(lambda frames: ml.plots.bandwidth(frames[0])),
    "latency": drawn(lambda frames: ml.plots.latency(frames[0])),
    "batches": drawn(ml.plots.batches),
    "stragglers": drawn(ml.plots.stragglers),
    "find_spikes": ml.analysis.find_spikes,
    "find_stragglers": ml.analysis.find_stragglers,
    "contention": ml.analysis.contention,
    "compare": lambda frames: str(ml.compare(frames, frames)),
    "report": lambda frames: str(ml.Report(frames, mesh="dp=2, tp=2")),
}


@pytest.fixture(scope="module")
def frames() -> Iterator[Frames]:
    with ml.launch(4, backend="threads") as engines:
        run = ml.bench(engines, "dp=2, tp=2", sizes="1K, 4K, 16K", sampling=ml.Sampling(max_s=0.02))
        run.wait()
    yield run.results, run.samples
    plt.close("all")


def check(name: str, damaged: Frames) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            USES[name](damaged)
        except ml.MeshlabError:
            pass
        finally:
            plt.close("all")


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_value_is_drawn_or_named(data: st.DataObject, frames: Frames) -> None:
    part = data.draw(st.sampled_from([0, 1]))
    column = data.draw(st.sampled_from(list(frames[part].columns)))
    value, is_whole = data.draw(st.sampled_from(VALUES)), data.draw(st.booleans())
    damaged = frames[part].copy()
    cells = damaged[column].astype(object)
    for index in range(len(cells) if is_whole else 1):
        cells.iat[index] = value
    damaged[column] = cells
    check(data.draw(st.sampled_from(list(USES))), (damaged, frames[1]) if part == 0 else (frames[0], damaged))


@pytest.mark.full
@pytest.mark.parametrize("name", list(USES))
def test_doubled_missing_and_shuffled_samples_are_used_or_named(name: str, frames: Frames) -> None:
    results, samples = frames
    check(name, (results, pd.concat([samples, samples.iloc[:9]])))
    check(name, (results, samples.sample(frac=0.7, random_state=1)))
    check(name, (results.sample(frac=1, random_state=1), samples.sample(frac=1, random_state=2)))


def test_a_doubled_batch_is_named(frames: Frames) -> None:
    results, samples = frames
    with pytest.raises(ml.MeshlabError, match="batch 0 of rank 0 in step 0 more than once"):
        ml.plots.batches((results, pd.concat([samples, samples])))


def test_a_step_with_warm_up_alone_is_named(frames: Frames) -> None:
    results, samples = frames
    with pytest.raises(ml.MeshlabError, match="all batches of this step are warm-up"):
        ml.plots.stragglers((results, samples.assign(is_warmup=True)))


def test_samples_without_ranks_are_named(frames: Frames) -> None:
    results, samples = frames
    for plot in (ml.plots.batches, ml.plots.stragglers):
        with pytest.raises(ml.MeshlabError, match="no rank or no batch"):
            plot((results, samples.assign(rank=pd.NA)))


def test_a_batch_that_a_rank_lacks_does_not_count_for_lateness(frames: Frames) -> None:
    results, samples = frames
    missing = samples.drop(samples.index[samples["rank"].eq(0) & samples["batch"].eq(samples["batch"].max())])
    assert ml.analysis.find_stragglers((results, missing))["late_us"].notna().all()
