"""What the reference does that no library does: it notices when ranks do not make the same call."""

from __future__ import annotations

import numpy as np
import pytest

import meshlab as ml


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda c: c.all_reduce(np.ones(1 + c.rank % 2)), "count=1 .* count=2"),
        (lambda c: c.all_reduce(np.ones(1, ["float32", "float64"][c.rank % 2])), "dtype=float32 .* dtype=float64"),
        (lambda c: c.all_reduce(np.ones(1), op=["sum", "max"][c.rank % 2]), "op=sum.* op=max"),
        (lambda c: c.broadcast(np.ones(1), root=c.rank % 2), "root=0.* root=1"),
        (lambda c: c.barrier() if c.rank else c.all_reduce(np.ones(1)), "calls all_reduce .* calls barrier"),
        (lambda c: c.barrier() if c.rank else c.split(0), "calls split, .* calls barrier"),
    ],
)
def test_ranks_that_disagree_are_told(thread_engines: ml.Engines, function: object, told: str) -> None:
    frame = thread_engines.run(function)  # type: ignore[arg-type]
    assert frame["error"].notna().all()
    assert frame["error"].str.contains("ranks disagree").all()
    assert frame["error"].str.contains(told).any()


def test_after_a_disagreement_the_engines_go_on(thread_engines: ml.Engines) -> None:
    thread_engines.run(lambda c: c.all_reduce(np.ones(1 + c.rank % 2)))
    assert thread_engines.run(lambda c: float(c.all_reduce(np.ones(1))[0]))["value"].tolist() == [4.0] * 4
