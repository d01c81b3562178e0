"""What runs on the ranks: buffers, the check of results, and when sampling stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark import Plan, Sampling
from meshlab.benchmark.timing import buffers, count_wrong, measure_step, prepare_step
from meshlab.comm import CATALOG
from meshlab.comm.threads import ThreadBackend

MESH = ml.DeviceMesh("tp=4")
MEASURABLE = [name for name, row in CATALOG.items() if row.is_measurable]


def steps(**arguments: Any) -> Any:
    given = {"collective": MEASURABLE, "axis": "tp", "sizes": "64", **arguments}
    return Plan(**given).steps(MESH)


def test_buffers_have_the_sizes_of_the_catalog(thread_engines: ml.Engines) -> None:
    for step in steps(in_place=[True, False]):
        row = CATALOG[step.collective]

        def look(comm: Any, step: Any = step, row: Any = row) -> list[bool]:
            send, out = buffers(comm, step)
            return [
                send.size == row.elements("sends", step.count, comm.size),
                out.size == row.elements("receives", step.count, comm.size),
                np.shares_memory(send, out) == step.in_place,
            ]

        assert thread_engines.run(look, MESH, axis="tp")["value"].tolist() == [[True, True, True]] * 4


def test_right_results_count_as_right(engines: ml.Engines) -> None:
    for step in steps(in_place=[True, False], dtype=["float32", "bfloat16"], op=["sum", "avg"], root=1):
        frame = engines.run(measure_step, MESH, axis="tp", arguments=(step, Sampling(max_s=0.01, min_batches=6), True))
        assert frame["error"].isna().all(), frame["error"].tolist()
        assert [value.n_wrong for value in frame["value"]] == [0] * 4, step


@pytest.mark.parametrize("collective", MEASURABLE)
def test_a_planted_wrong_element_is_counted(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch, collective: str
) -> None:
    honest = ThreadBackend.prepare

    def corrupt(self: ThreadBackend, call: Any) -> Any:
        prepared = honest(self, call)
        work = type(prepared).__call__

        class Corrupted(type(prepared)):  # type: ignore[misc]
            def __call__(self) -> None:
                work(self)
                if self._backend.rank == 2:
                    self._calls[0].recv.reshape(-1)[:3] += 1

        prepared.__class__ = Corrupted
        return prepared

    monkeypatch.setattr(ThreadBackend, "prepare", corrupt)
    (step,) = steps(collective=collective, root=2)

    def count(comm: Any) -> int:
        send, out = buffers(comm, step)
        return count_wrong(comm, step, prepare_step(comm, step, send, out), send, out)

    assert thread_engines.run(count, MESH, axis="tp")["value"].tolist() == [0, 0, 3, 0]


def test_all_ranks_stop_alike_and_say_why(engines: ml.Engines) -> None:
    (step,) = steps(collective="all_reduce")
    cases = {
        "batches": Sampling(precision=1e-9, min_batches=6, max_batches=12, max_s=60),
        "time": Sampling(precision=1e-9, min_batches=6, max_batches=10**6, max_s=0.05),
        "precise": Sampling(precision=1e9, min_batches=12, max_s=60),
    }
    for reason, sampling in cases.items():
        values = engines.run(measure_step, MESH, axis="tp", arguments=(step, sampling, False))["value"]
        assert {value.stop_reason for value in values} == {reason}
        assert len({len(value.time_us) for value in values}) == 1
        assert len({value.calls for value in values}) == 1
        assert {value.n_wrong for value in values} == {None}
        assert {int(value.is_warmup.sum()) for value in values} == {sampling.warmup_batches}


def test_isolated_calls_come_one_by_one_with_their_starts(engines: ml.Engines) -> None:
    (step,) = steps(collective="all_reduce", mode="isolated")
    values = engines.run(measure_step, MESH, axis="tp", arguments=(step, Sampling(max_s=0.05), False))["value"]
    assert {value.calls for value in values} == {1}
    assert all(len(value.start_us) == len(value.time_us) for value in values)
    (pipelined,) = steps(collective="all_reduce")
    values = engines.run(measure_step, MESH, axis="tp", arguments=(pipelined, Sampling(max_s=0.05), False))["value"]
    assert all(value.start_us is None for value in values)
    assert replace(pipelined, mode="isolated") == step
