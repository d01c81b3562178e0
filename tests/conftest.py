"""Fixtures that several parts of the tests share: running engines, results made from a model, samples made by hand."""

from __future__ import annotations

import gc
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings

import meshlab as ml
from meshlab.base._errors import CommunicatorError
from meshlab.benchmark._executor import Executor
from meshlab.comm.backends import _gloo as gloo
from meshlab.engines import _rounds as rounds
from meshlab.engines._lease import Lease
from meshlab.frames._schema import RESULTS, SAMPLES, conform
from meshlab.frames._statistics import bandwidth
from tests.nccl_tests.log_maker import LogMaker

MakeResults = Callable[..., pd.DataFrame]

# Hypothesis also judges how long the examples and their generation take, which on a busy machine is no property of the
# code.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Tests that need another number of examples than these call `examples`. Both have the same examples in every run, so a
# check of a change fails for that change only. `random` searches for further ones, see CONTRIBUTING.md.
settings.register_profile("quick", PATIENT, max_examples=30, derandomize=True)
settings.register_profile("full", PATIENT, max_examples=100, derandomize=True)
settings.register_profile("random", PATIENT, max_examples=100)
settings.load_profile("quick")

# The workers of pytest-xdist get whole files. All files that start MPI ranks go to one worker, and all that start a
# browser to another, because each worker would start its own. The names with the most tests come first, so files
# with few tests that take long share one: in the end only short files are left, and no worker waits for the other.
SHARED_WORKER = {
    "ranks": (
        "analysis/test_concurrency",
        "base/test_backends",
        "base/test_collectives",
        "benchmark/",
        "chaos/",
        "cli/",
        "comm/",
        "commissioning/",
        "engines/",
        "test_readme",
        "widgets/test_measuring",
    ),
    "hosts": ("hosts/",),
    "browser": ("browser/", "notebooks/"),
    "long files": ("runs/", "prediction/test_calibrated_rows", "report/", "test_hostile_texts"),
}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected nor among them later: it took a quarter of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_sessionfinish() -> None:
    """Finalize MPI, which the example of `join` initializes.

    A worker of pytest-xdist that does not end in time is killed, and would leave MPI's file in /dev/shm.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the tests to the workers by `SHARED_WORKER`, and by file."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _shared_worker(nodeid) or nodeid.split("::")[0]

    return Scheduler(config, log)


def _shared_worker(nodeid: str) -> str | None:
    """Return the key in `SHARED_WORKER` of a test, or None if it is in no file that is listed there."""
    inside = nodeid.split("::")[0].removeprefix("tests/").removeprefix("meshlab/")
    return next((name for name, files in SHARED_WORKER.items() if inside.startswith(files)), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose files start processes."""
    for item in items:
        if _shared_worker(item.nodeid) in ("ranks", "hosts", "browser"):
            item.add_marker("processes")


@pytest.fixture(scope="session")
def mpi_set() -> Iterator[ml.Engines]:
    with ml.launch(4, backend="mpi") as engines:
        yield engines


@pytest.fixture
def mpi_engines(mpi_set: ml.Engines) -> ml.Engines:
    """The only set of MPI ranks, which starts again if a test has broken it."""
    if mpi_set.state != "ready":
        mpi_set.restart()
    return mpi_set


@pytest.fixture
def thread_engines() -> Iterator[ml.Engines]:
    with ml.launch(4, backend="threads") as engines:
        yield engines


@pytest.fixture(scope="session")
def gloo_set() -> Iterator[ml.Engines]:
    try:
        gloo.check_installed()
    except CommunicatorError as error:
        pytest.skip(error.message)
    # To import torch takes seconds, and all ranks do it at the same time.
    with ml.launch(4, backend="gloo", timeout_s=180) as engines:
        yield engines


@pytest.fixture
def gloo_engines(gloo_set: ml.Engines) -> ml.Engines:
    """The only set of Gloo ranks, which starts again if a test has broken it."""
    if gloo_set.state != "ready":
        gloo_set.restart()
    return gloo_set


ENGINES = {"threads": "thread_engines", "mpi": "mpi_engines", "gloo": "gloo_engines"}
"""The fixture of each backend."""


FULL_ON_MPI = ["threads", pytest.param("mpi", marks=pytest.mark.full), pytest.param("gloo", marks=pytest.mark.long)]
"""The backends of a test that takes seconds with MPI, and covers little more with it."""


# The conformance suite always runs on Gloo. Other tests cover little more with it, but have to import torch again after
# every fault.
@pytest.fixture(params=["threads", "mpi", pytest.param("gloo", marks=pytest.mark.long)])
def engines(request: pytest.FixtureRequest) -> ml.Engines:
    return request.getfixturevalue(ENGINES[request.param])


@pytest.fixture
def patient_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that all raise may do so at different times. By default, the others get a second after the first one."""
    monkeypatch.setattr(rounds, "_GRACE_S", 60.0)


class Responses(queue.SimpleQueue[Any]):
    """The responses of the ranks, counted."""

    n = 0

    def put(self, item: Any, *arguments: Any, **options: Any) -> None:
        super().put(item, *arguments, **options)
        self.n += 1


class FrozenClock:
    """A clock that does not advance until the ranks are where a test wants them, and then jumps far ahead.

    So a deadline passes neither earlier, because a rank was late, nor seconds later.
    """

    def __init__(self, entered: Sequence[int], n_inside: int | None, n_responses: int) -> None:
        self._entered, self._n_inside, self._n_responses = list(entered), n_inside, n_responses
        self._round: Any = None
        self._n_reached = 0

    def follow(self, one: rounds.Round) -> None:
        one._responses = Responses()
        self._round, self._n_reached = one, 0

    def monotonic(self) -> float:
        before, now = self._round._before, self._round.rank_set.positions()
        is_reached = (
            [one.since(other).calls for one, other in zip(now, before, strict=True)] == self._entered
            and self._n_inside in (None, sum(one.is_inside for one in now))
            and self._round._responses.n == self._n_responses
        )
        # A round reads the clock again 0.2 s later, in which responses are taken.
        self._n_reached = self._n_reached + 1 if is_reached else 0
        return 1e9 * (self._n_reached > 2)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # the ranks are not frozen


@pytest.fixture
def deadline_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the deadline of a call pass when the ranks have entered given numbers of collectives.

    As far as given, also a number of ranks must be inside a call, and a number of ranks must have responded.
    """
    original = rounds.Round.run

    def use(*entered: int, n_inside: int | None = None, n_responses: int = 0) -> None:
        clock = FrozenClock(entered, n_inside, n_responses)

        def run(self: rounds.Round, *arguments: Any) -> Any:
            clock.follow(self)
            return original(self, *arguments)

        monkeypatch.setattr(rounds.Round, "run", run)
        monkeypatch.setattr(rounds, "time", clock)

    return use


@pytest.fixture
def hold_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., threading.Event]]:
    """Lets runs measure only a number of steps until an event is set, so that none ends before a test has acted."""
    may_go = threading.Event()

    def use(*, after: int = 0) -> threading.Event:
        original = Executor._rounds
        n_begun: Counter[int] = Counter()

        def measure(self: Executor, lease: Lease, *arguments: Any) -> Any:
            if lease.task.startswith("estimating"):  # blocks that are repeated before a longer run are not steps of it
                return original(self, lease, *arguments)
            n_begun[id(self)] += 1
            if n_begun[id(self)] > after:
                may_go.wait(60)
            return original(self, lease, *arguments)

        monkeypatch.setattr(Executor, "_rounds", measure)
        return may_go

    yield use
    may_go.set()


@pytest.fixture(scope="session")
def make_results() -> MakeResults:
    """Makes results such as a run would: times from latency and bandwidth, with intervals, for all groups."""
    return model_results


def model_results(
    mesh: str = "dp=2, tp=2",
    *,
    collectives: Sequence[str] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
    axes: Sequence[str] = ("tp", "dp"),
    exponents: Sequence[int] = tuple(range(10, 25)),
    source: str = "mpi",
    where: str = "4 ranks · MPI on this CPU",
    seed: int = 0,
    **columns: Any,
) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    layout = ml.DeviceMesh(mesh)
    rows = []
    for axis_number, axis in enumerate(axes):
        groups = layout[axis]
        for collective_number, collective in enumerate(collectives):
            latency = 6.0 + 2.5 * collective_number + 1.5 * axis_number
            rate = (4.2 - 0.7 * collective_number) / (1 + 0.55 * axis_number)  # GB/s
            for exponent in exponents:
                for number, group in enumerate(groups.names):
                    size = 1 << exponent
                    time = (latency + size / rate / 1e3 * (1 + 0.04 * number)) * random.lognormal(0, 0.03)
                    spread = time * random.uniform(0.01, 0.04)
                    n_samples = int(random.integers(30, 200))
                    rows.append(
                        {
                            "run_id": "r1",
                            "launch": 0,
                            "step": len(rows) // len(groups),
                            "source": source,
                            "collective": collective,
                            "op": "sum" if "reduce" in collective else None,
                            "dtype": "float32",
                            "root": 0 if collective == "broadcast" else None,
                            "in_place": False,
                            "mode": "pipelined",
                            "axis": axis,
                            "group": group,
                            "n_ranks": groups.size,
                            "count": size // 4,
                            "size_bytes": size,
                            "n_samples": n_samples,
                            "calls": 32,
                            "time_us": time,
                            "time_us_lo": time - spread,
                            "time_us_hi": time + 1.3 * spread,
                            "p95_us": time * 1.12,
                            "p99_us": time * 1.3 if n_samples >= 100 else None,
                            "min_us": time * 0.93,
                            "max_us": time * 1.6,
                            "skew_us": time * 0.02,
                            "n_wrong": 0,
                            "status": "ok",
                            "stop_reason": "precise",
                            "mesh_fingerprint": layout.fingerprint,
                        }
                        | columns
                    )
    frame = pd.DataFrame(rows)
    frame["algbw_gbs"], frame["busbw_gbs"] = bandwidth(
        frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"]
    )
    results = conform(frame, RESULTS)
    results.attrs["where"] = where
    return results


def planted_samples(
    *, times: np.ndarray, starts: np.ndarray | None = None, warmup: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Samples and results of one step on one group, from times (and starts) in µs of shape (ranks, batches)."""
    step = {"run_id": "r1", "launch": 0, "step": 0, "axis": "tp", "group": "tp_0"}
    offsets = np.full(times.shape, np.nan) if starts is None else starts - starts.min(axis=0)
    samples = [
        step
        | {
            "rank": rank,
            "batch": batch,
            "calls": 1,
            "time_us": times[rank, batch],
            "host_us": times[rank, batch],
            "start_offset_us": offsets[rank, batch],
            "is_warmup": batch < warmup,
            "status": "ok",
        }
        for rank in range(len(times))
        for batch in range(times.shape[1])
    ]
    used = slice(warmup, None)
    result = step | {
        "source": "mpi",
        "collective": "all_reduce",
        "op": "sum",
        "dtype": "float32",
        "mode": "pipelined" if starts is None else "isolated",
        "n_ranks": len(times),
        "count": 256,
        "size_bytes": 1024,
        "time_us": float(np.median(times[:, used].max(axis=0))),
        "alignment_us": float(np.median(np.ptp(offsets[:, used], axis=0))),
        "n_wrong": 0,
        "status": "ok",
    }
    frames = conform(pd.DataFrame(samples), SAMPLES), conform(pd.DataFrame([result]), RESULTS)
    for frame in frames:
        frame.attrs["where"] = f"{len(times)} ranks · MPI on this CPU"
    return frames


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., tuple[pd.DataFrame, pd.DataFrame]]:
    """Makes samples and results of one step from times and starts."""
    return planted_samples


@pytest.fixture(scope="session")
def make_log() -> Callable[..., LogMaker]:
    """Makes logs in the layouts of nccl-tests; its arguments are the fields of `LogMaker`."""
    return LogMaker
