"""The search for the fastest options: with planted times on threads, and with the algorithms of MPICH."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import BenchError, EngineError, MeshError
from meshlab.benchmark.on_ranks import _option_trials as option_trials
from meshlab.benchmark.tuning import _environments as tuning_environments
from meshlab.benchmark.tuning import _search as tuning_search
from meshlab.benchmark.tuning._environments import Setting, distribute
from meshlab.benchmark.tuning._options import TuningOption
from meshlab.benchmark.tuning._search import SearchEffort, TuningSearch
from meshlab.plans._steps import Step
from tests.benchmark.on_ranks.planted_options import PlantedOptions

CTAS = (None, 1, 4, 16)


class Bar(SimpleNamespace):
    def __init__(self) -> None:
        super().__init__(n=0, total=0, shown=[])

    def set_description(self, text: str, refresh: bool) -> None:
        self.shown.append(text)

    def update(self, n: int) -> None:
        self.n += n

    def refresh(self) -> None:
        pass


def search_on(
    engines: ml.Engines,
    set_up: Any,
    sizes: str = "1K, 64K",
    ctas: Sequence[int | None] = CTAS,
    mesh: str = "tp=4",
    settings: dict[str, dict[str, Setting]] | None = None,
    **arguments: Any,
) -> TuningSearch:
    layout = ml.DeviceMesh(mesh)
    effort = SearchEffort(**({"rounds": 6, "budget_s": None, "confirms": True, "deadline_s": None} | arguments))
    return TuningSearch(
        engines,
        layout,
        ml.Plan("all_reduce", "tp", sizes=sizes, in_place=True).steps(layout),
        effort,
        options=lambda step: [TuningOption(max_ctas=limit) for limit in ctas],
        settings=settings or {},
        set_up=set_up,
    )


def four_is_best(step: Step, rank: int) -> float:
    """Four blocks are faster up to 1 KiB, and nothing is at 64 KiB."""
    times: dict[int | None, float] = {None: 100, 1: 150, 4: 80 if step.size_bytes == 1024 else 110, 16: 105}
    return times[step.max_ctas]


def test_a_tuning_has_the_fastest_confirmed_option_of_each_size(thread_engines: ml.Engines) -> None:
    search = search_on(thread_engines, PlantedOptions(four_is_best, noise=0.02))
    search.run(Bar())
    found = search.result()
    assert isinstance(found, Tuning)
    frame = found.frame()
    assert frame["size_bytes"].tolist() == [1024, 65536]
    assert frame["max_ctas"].fillna(0).tolist() == [4, 0]
    assert frame["is_confirmed"].tolist() == [True, False]
    assert frame["gain"].tolist() == pytest.approx([0.2, 0.0], abs=0.03)
    trials = found.trials
    again = trials[trials["launch"] == "confirmation"]
    assert again[["size_bytes", "max_ctas", "n_rounds"]].fillna(0).to_numpy().tolist() == [[1024, 0, 12], [1024, 4, 12]]
    assert (trials["n_wrong"] == 0).all()
    assert trials[["time_us_lo", "time_us_hi"]].notna().all().all()
    assert found.system["backend"] == "threads"
    assert found.system["where"] == thread_engines.where
    assert thread_engines.state == "ready"


def test_calls_beside_a_product_have_their_exposed_time(thread_engines: ml.Engines) -> None:
    planted = PlantedOptions(four_is_best)

    def beside(comm: Any, step: Step, check: bool) -> Any:
        call, n_wrong = planted(comm, step, check)
        call.alone_us = (60.0, 20.0 + comm.world_rank)
        return call, n_wrong

    search = search_on(thread_engines, beside)
    search.run(Bar())
    tuning = search.result()
    frame = tuning.frame()
    assert frame[["compute_us", "alone_us"]].to_numpy().tolist() == [[60.0, 23.0]] * 2
    assert frame["exposed_us"].tolist() == [20.0, 40.0]
    assert tuning.exposed_share() == pytest.approx(60 / 46)
    with pytest.raises(BenchError, match="the tuning has no product beside all_gather"):
        tuning.exposed_share("all_gather")


@pytest.mark.full
def test_a_tuning_beside_a_product_measures_pairs_over_mpi(mpi_engines: ml.Engines) -> None:
    tuning = ml.tune(
        mpi_engines, "tp=4", axis="tp", sizes="4K", options="no device", beside=(32, 16, 8), rounds=2, confirm=False
    )
    assert tuning.system["beside"] == "32 × 16 × 8 float32"
    assert "beside a product of 32 × 16 × 8 float32" in str(tuning)
    assert tuning.trials["compute_us"].gt(0).all()
    assert re.match("all_reduce(?: with its product)?: ", tuning.verdicts[0])  # the first if an option is faster


def test_without_confirmation_nothing_is_confirmed(thread_engines: ml.Engines) -> None:
    search = search_on(thread_engines, PlantedOptions(four_is_best), confirms=False)
    search.run(Bar())
    found = search.result()
    assert set(found.trials["launch"]) == {"search"}
    assert not found.frame()["is_confirmed"].any()


def test_the_default_stays_if_new_ranks_do_not_confirm_an_option(thread_engines: ml.Engines) -> None:
    worlds: list[int] = []

    def time_us(step: Step, rank: int) -> float:
        return 80.0 if step.max_ctas == 4 and len(worlds) < 2 else 100.0

    original = thread_engines._rank_set.start

    def start(timeout_s: float) -> Any:
        worlds.extend([0, 0])
        return original(timeout_s)

    thread_engines._rank_set.start = start  # type: ignore[method-assign]
    search = search_on(thread_engines, PlantedOptions(time_us), sizes="1K")
    search.run(Bar())
    row = search.result().frame().iloc[0]
    assert (row["verdict"], row["gain"]) == ("not confirmed", 0.0)
    assert row["candidate"] == "≤ 4 CTAs"


def test_options_that_limit_the_bandwidth_are_not_tried_again_at_larger_sizes(thread_engines: ml.Engines) -> None:
    def time_us(step: Step, rank: int) -> float:
        slow = step.max_ctas == 1 and (step.size_bytes or 0) > 1024
        return (step.size_bytes or 0) / 10 * (5 if slow else 1)

    planted = PlantedOptions(time_us)
    search = search_on(thread_engines, planted, sizes="1K, 4K, 16K", confirms=False)
    search.run(Bar())
    trials = search.frame()
    one = trials[trials["max_ctas"] == 1].set_index("size_bytes")
    assert one["status"].tolist() == ["ok", "dropped", "dropped"]
    assert one.loc[16384, "message"] == "not tried, because it took 5.0 times as long at 4\u2009KiB"
    assert (16384, 1) not in {(size, ctas) for size, ctas, _ in planted.log}
    assert len(trials) == 12


def test_unsupported_and_wrong_options_are_rows(thread_engines: ml.Engines) -> None:
    from meshlab.base._errors import CommunicatorError

    problem = CommunicatorError("NCCL rejected all_reduce: invalid usage")
    planted = PlantedOptions(
        four_is_best, errors={(1, rank): problem for rank in range(4)}, n_wrong={(16, 1): 5, (16, 3): 2}
    )
    search = search_on(thread_engines, planted, sizes="1K")
    search.run(Bar())
    trials = search.frame().query("launch == 'search'").set_index("max_ctas", drop=False)
    assert trials["status"].tolist() == ["ok", "unsupported", "ok", "wrong"]
    assert trials.loc[1, "message"] == "NCCL rejected all_reduce: invalid usage"
    assert trials.loc[16, "n_wrong"] == 7
    assert search.result().frame()["max_ctas"].tolist() == [4]


def test_two_groups_are_measured_at_the_same_time(thread_engines: ml.Engines) -> None:
    # Option 4 is fast in the first group only, so it is not the fastest one of the axis.
    def time_us(step: Step, rank: int) -> float:
        return {None: 100.0, 1: 150.0, 4: 50.0 if rank < 2 else 120.0, 16: 90.0}[step.max_ctas]

    search = search_on(thread_engines, PlantedOptions(time_us), sizes="1K", mesh="dp=2, tp=2")
    search.run(Bar())
    assert search.result().frame()["max_ctas"].tolist() == [16]


# -- budget, progress, interrupts and failures -------------------------------------------------------------------------


def slowly(time_us: Callable[[Step, int], float], seconds: float) -> Callable[[Step, int], float]:
    def wait(step: Step, rank: int) -> float:
        time.sleep(seconds)
        return time_us(step, rank)

    return wait


def test_a_budget_that_is_used_up_leaves_out_sizes_and_says_so(thread_engines: ml.Engines) -> None:
    planted = PlantedOptions(slowly(four_is_best, 0.01))
    search = search_on(thread_engines, planted, sizes="1K, 2K, 4K", rounds=1000, budget_s=1e-3)
    with pytest.raises(BenchError, match=r"nothing could be measured: not measured, because budget_s=0.001 was used"):
        search.run(Bar())
    trials = search.frame()
    assert set(trials["status"]) == {"dropped"}
    assert set(trials["message"]) == {"not measured, because budget_s=0.001 was used up"}
    assert len(trials) == 12


class CountingClock:
    """A clock that is 5 ms later whenever it is read."""

    def __init__(self) -> None:
        self._n_reads = itertools.count()

    def monotonic(self) -> float:
        return 0.005 * next(self._n_reads)

    perf_counter = monotonic


def test_a_budget_limits_the_rounds(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CountingClock()
    for module in (tuning_search, option_trials):
        monkeypatch.setattr(module, "time", clock)
    search = search_on(thread_engines, PlantedOptions(four_is_best), rounds=100_000, budget_s=2.0)
    search.run(Bar())
    trials = search.frame()
    left = trials[trials["status"] == "ok"]
    assert set(left["size_bytes"]) == {1024, 65536}
    assert left["n_rounds"].between(6, 100).all()


def test_progress_counts_calls_and_names_them(thread_engines: ml.Engines) -> None:
    bar = Bar()
    search_on(thread_engines, PlantedOptions(slowly(four_is_best, 0.003))).run(bar)
    assert bar.n == bar.total == 3  # two sizes, and one that is confirmed
    assert any(text == "all_reduce, 64\u2009KiB" for text in bar.shown)


def test_an_interrupt_keeps_what_was_measured(thread_engines: ml.Engines) -> None:
    search = search_on(thread_engines, PlantedOptions(slowly(four_is_best, 0.003)), sizes="1K, 64K, 1M")
    bar = Bar()

    def interrupt(text: str, refresh: bool) -> None:
        bar.shown.append(text)
        if "64" in text and "interrupted" not in text:
            raise KeyboardInterrupt

    bar.set_description = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt) as caught:
        search.run(bar)
    found = caught.value.measured  # type: ignore[attr-defined]
    assert isinstance(found, Tuning)
    assert found.frame()["size_bytes"].tolist() == [1024, 65536]  # the call that had begun is complete
    assert bar.shown[-1].startswith("interrupted, completing all_reduce, 64")
    assert thread_engines.run(lambda comm: comm.rank)["value"].tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("patient_rounds")
def test_a_failure_names_the_call_and_keeps_what_was_measured(thread_engines: ml.Engines) -> None:
    def time_us(step: Step, rank: int) -> float:
        if step.size_bytes == 65536 and step.max_ctas == 16:
            raise OSError("a bad cable")
        return four_is_best(step, rank)

    with pytest.raises(EngineError, match=r"tuning failed at all_reduce, 64.KiB: .*a bad cable") as caught:
        search_on(thread_engines, PlantedOptions(time_us)).run(Bar())
    assert caught.value.measured.frame()["size_bytes"].tolist() == [1024]


@pytest.mark.usefixtures("patient_rounds")
def test_an_immediate_failure_leaves_nothing(thread_engines: ml.Engines) -> None:
    def fail(step: Step, rank: int) -> float:
        raise OSError("a bad cable")

    with pytest.raises(EngineError, match=r"1.KiB: .*a bad cable") as caught:
        search_on(thread_engines, PlantedOptions(fail)).run(Bar())
    assert caught.value.measured is None


def test_sizes_beyond_the_memory_are_rows_that_say_so(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    monkeypatch.setattr(tuning_search, "usable_memory", lambda lease, task: 5000)
    search = search_on(thread_engines, PlantedOptions(four_is_best))
    search.run(Bar())
    failed = search.frame().query("status == 'failed'")
    assert failed["size_bytes"].tolist() == [65536]
    assert "its buffers take 64" in failed["message"].item()
    monkeypatch.setattr(tuning_search, "usable_memory", lambda lease, task: 1)
    with pytest.raises(BenchError, match="no size fits into the memory of the ranks: its buffers take"):
        search_on(thread_engines, PlantedOptions(four_is_best)).run(Bar())


# -- environments ------------------------------------------------------------------------------------------------------


def test_collectives_share_ranks_if_their_variables_do_not_interfere() -> None:
    ring, tree = Setting({"A_RING": "1"}, True), Setting({"A_TREE": "1"}, True)
    other = Setting({"B_RING": "1"}, True)
    found = distribute({"all_reduce": {"ring": ring, "tree": tree}, "all_gather": {"gather ring": other}})
    assert [dict(one.names) for one in found] == [
        {"all_reduce": "ring", "all_gather": "gather ring"},
        {"all_reduce": "tree"},
    ]
    assert found[0].variables == {"A_RING": "1", "B_RING": "1"}
    # The variables of NCCL hold for all collectives.
    ring, low = Setting({"NCCL_ALGO": "Ring"}, False), Setting({"NCCL_PROTO": "LL"}, False)
    found = distribute({"all_reduce": {"ring": ring}, "all_gather": {"ll": low, "ring": ring}})
    assert [dict(one.names) for one in found] == [{"all_reduce": "ring", "all_gather": "ring"}, {"all_gather": "ll"}]


class Launches:
    """Starts threads instead of processes, whose environment the planted options see."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, engines: ml.Engines, fails: Callable[[dict[str, str]], bool]
    ) -> None:
        self.environments: list[dict[str, str]] = []
        self.of_engines: dict[ml.Engines, dict[str, str]] = {}
        self.now: dict[str, str] = {}
        self.fails = fails
        self.original = tuning_environments.launch
        monkeypatch.setattr(tuning_environments, "launch", self.launch)
        launch_arguments = {"backend": "threads", "env": {"USER_SET": "1"}, "checks": "first", "devices": None}
        monkeypatch.setattr(type(engines), "launch_arguments", property(lambda self: launch_arguments))

        original = TuningSearch._try

        def try_on_ranks(search: TuningSearch, lease: Any, *arguments: Any) -> None:
            self.now = self.of_engines.get(lease.engines, {})
            original(search, lease, *arguments)

        monkeypatch.setattr(TuningSearch, "_try", try_on_ranks)

    def time_us(self, step: Step, rank: int) -> float:
        return {"": 100.0, "ring": 80.0, "tree": 300.0, "smp": 120.0}[self.now.get("ALGORITHM", "")]

    def launch(self, n: int, **arguments: Any) -> ml.Engines:
        env = arguments.pop("env")
        self.environments.append(env)
        if self.fails(env):
            raise EngineError("the ranks did not start")
        engines = self.original(n, **arguments)
        self.of_engines[engines] = env
        return engines


def search_with(engines: ml.Engines, launches: Launches, names: Sequence[str]) -> TuningSearch:
    settings = {"all_reduce": {name: Setting({"ALGORITHM": name}, True) for name in names}}
    return search_on(engines, PlantedOptions(launches.time_us), sizes="1K", ctas=[None], settings=settings)


def test_environments_get_new_ranks_in_turns_and_the_best_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    launches = Launches(monkeypatch, thread_engines, lambda env: env.get("ALGORITHM") == "broken")
    search = search_with(thread_engines, launches, ["ring", "tree", "smp", "broken"])
    search.run(Bar())
    started = [one.get("ALGORITHM", "") for one in launches.environments]
    # All of them, then those that are left, and at last the default and the best one at the same time.
    assert started == ["ring", "tree", "smp", "broken", "ring", "", "ring"]
    assert all(one["USER_SET"] == "1" for one in launches.environments)
    trials = search.frame()
    found = trials[trials["launch"] == "search"].set_index("setting", drop=False)
    assert found.loc[["ring", "tree", "smp", "broken"], "status"].tolist() == ["ok", "dropped", "dropped", "failed"]
    assert found.loc["broken", "message"] == "the ranks did not start"
    assert found.loc["tree", "message"] == "dropped after its first ranks, at 3.00 times the default"
    again = trials[trials["launch"] == "confirmation"]
    assert again["setting"].fillna("").tolist() == ["", "ring"]
    assert again["n_rounds"].tolist() == [12, 12]
    tuning = search.result()
    assert tuning.frame()[["setting", "is_confirmed"]].to_numpy().tolist() == [["ring", True]]
    assert dict(tuning.settings["ring"]) == {"ALGORITHM": "ring"}


def test_the_default_stays_if_ranks_with_an_environment_do_not_start_again(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    launches = Launches(monkeypatch, thread_engines, lambda env: len(launches.environments) == 4)
    search = search_with(thread_engines, launches, ["ring"])
    search.run(Bar())
    assert [one.get("ALGORITHM", "") for one in launches.environments] == ["ring", "ring", "", "ring"]
    again = search.frame().query("launch == 'confirmation'")
    assert again["status"].tolist() == ["failed", "ok"]
    assert not search.result().frame()["is_confirmed"].any()


def test_a_failure_on_new_ranks_with_the_default_ends_the_tuning(
    monkeypatch: pytest.MonkeyPatch, thread_engines: ml.Engines
) -> None:
    launches = Launches(monkeypatch, thread_engines, lambda env: "ALGORITHM" not in env)
    search = search_with(thread_engines, launches, ["ring"])
    with pytest.raises(EngineError, match=r"tuning failed at starting new ranks: the ranks did not start") as caught:
        search.run(Bar())
    assert caught.value.measured.frame()["candidate"].tolist() == ["ring"]
    assert thread_engines.state == "ready"


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_threads_have_nothing_to_tune(thread_engines: ml.Engines) -> None:
    with pytest.raises(BenchError, match=r"threads have one algorithm per collective, so there is nothing to tune"):
        ml.tune(thread_engines, "tp=4", axis="tp")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"axis": "dp"}, BenchError, "the groups of dp have one rank, so nothing is sent; choose tp"),
        ({"axis": "pp"}, MeshError, "pp"),
        ({"axis": "tp, dp"}, BenchError, "a tuning has one axis, not tp, dp"),
        ({"mesh": "tp=2"}, MeshError, "tp=2 has 2 ranks, but there are 4 engines"),
        ({"mode": "graph"}, BenchError, "mpi cannot capture calls into graphs"),
        ({"mode": "isolated"}, BenchError, "mode 'isolated' times single calls; choose pipelined"),
        ({"mode": "fast"}, BenchError, "unknown mode 'fast'"),
        ({"sizes": []}, BenchError, "sizes is empty"),
        ({"sizes": ""}, BenchError, "sizes is empty"),
        ({"options": "max_ctas"}, BenchError, "unknown option 'max_ctas'; mpi has recursive_doubling"),
        ({"options": ["rings"]}, BenchError, r"unknown option 'rings' \(did you mean 'ring'\?\)"),
        ({"options": []}, BenchError, "options is empty"),
        ({"rounds": 0}, BenchError, "rounds must be an integer of at least 1, not 0"),
        ({"budget_s": -1}, BenchError, "budget_s must be a positive number, not -1"),
        ({"deadline_s": 0}, BenchError, "deadline_s must be a positive number, not 0"),
        ({"collectives": []}, BenchError, "collectives is empty"),
        ({"collectives": "all_reduse"}, ml.MeshlabError, "all_reduse"),
        ({"collectives": "barrier"}, BenchError, "barrier moves no data"),
        ({"dtype": "float32, int8"}, BenchError, "a tuning has one dtype, not float32, int8"),
    ],
)
def test_bad_input_is_refused_in_words(
    mpi_engines: ml.Engines, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"mesh": "dp=1, tp=4", "collectives": "all_reduce", "axis": "tp"} | arguments
    with pytest.raises(error, match=message):
        ml.tune(mpi_engines, given.pop("mesh"), given.pop("collectives"), **given)
    assert mpi_engines.state == "ready"


def test_other_mpi_libraries_are_refused(monkeypatch: pytest.MonkeyPatch, mpi_engines: ml.Engines) -> None:
    from dataclasses import replace

    other = replace(mpi_engines.ranks[0].capabilities, library="Open MPI v5.0.8")
    monkeypatch.setattr(mpi_engines, "ranks", tuple(replace(one, capabilities=other) for one in mpi_engines.ranks))
    with pytest.raises(BenchError, match=r"MPICH's algorithms can be tuned, but these engines run Open MPI v5.0.8"):
        ml.tune(mpi_engines, "tp=4", axis="tp")


def test_engines_know_how_to_start_the_same_ranks_again(mpi_engines: ml.Engines, thread_engines: ml.Engines) -> None:
    assert mpi_engines.launch_arguments == {"backend": "mpi", "devices": None, "env": {}, "checks": "first"}
    assert thread_engines.launch_arguments is None


def test_engines_that_were_started_elsewhere_are_refused(mpi_engines: ml.Engines) -> None:
    with (
        ml.attach(mpi_engines.client) as attached,
        pytest.raises(BenchError, match=r"another process started these engines; use engines of ml.launch\(\)"),
    ):
        ml.tune(attached, "tp=4", axis="tp")


@pytest.mark.full
@pytest.mark.slow
def test_an_algorithm_of_mpich_is_measured_on_its_own_ranks() -> None:
    with ml.launch(2, backend="mpi") as engines:
        before = engines.process_set
        found = ml.tune(engines, "tp=2", axis="tp", sizes="256K", options="recursive_doubling", rounds=3, confirm=False)
        assert engines.process_set == before
        assert engines.state == "ready"
    trials = found.trials[found.trials["launch"] == "search"]
    assert trials["setting"].fillna("").tolist() == ["", "recursive_doubling"]
    assert (trials["n_wrong"] == 0).all()
    assert (trials["time_us"] > 0).all()
    assert dict(found.settings["recursive_doubling"]) == {
        "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": "0",
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling",
    }
    assert found.system["library"].startswith("MPICH")
    assert len(found.frame()) == 1


@pytest.mark.long
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast"])
def test_all_algorithms_of_mpich_are_right_and_the_best_is_confirmed_or_the_default_stays(collective: str) -> None:
    with ml.launch(2, backend="mpi") as engines:
        found = ml.tune(engines, "tp=2", collective, axis="tp", sizes="1K, 64K, 1M", rounds=8)
    print(found)
    trials = found.trials
    assert set(trials["status"]) <= {"ok", "dropped"}, trials[["setting", "status", "message"]]
    assert (trials["n_wrong"] == 0).all()
    frame = found.frame()
    assert frame["size_bytes"].tolist() == [1 << 10, 1 << 16, 1 << 20]
    confirmed = frame[frame["is_confirmed"]]
    assert (confirmed["time_us_hi"] < confirmed["default_us_lo"]).all()
    assert (frame.loc[~frame["is_confirmed"], "gain"] == 0).all()
