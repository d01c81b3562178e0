"""A tuning as a value: its verdicts, tables and choices, and what it refuses."""

from __future__ import annotations

import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import BenchError, CommunicatorError, MeshError
from meshlab.comm._backend import CallChoice, CallConfig
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._threads import ThreadWorld
from meshlab.frames._schema import RESULTS, describe
from meshlab.frames._trials import TRIALS, TUNED
from tests.analysis.trial_maker import CAPPED, DEFAULT, SYSTEM, WINDOW, a_tuning, both, trial, usual_rows

THIN = "\N{THIN SPACE}"


@pytest.fixture(scope="module")
def tuning() -> Tuning:
    return a_tuning([*usual_rows(), *usual_rows("all_gather")])


def test_the_frame_has_a_row_per_collective_and_size(tuning: Tuning) -> None:
    frame = tuning.frame()
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {one.name: one.dtype for one in TUNED}
    assert frame["collective"].tolist() == ["all_reduce"] * 4 + ["all_gather"] * 4
    own = frame.query("collective == 'all_reduce'")
    assert own["option"].tolist() == ["symmetric window, ≤ 4 CTAs"] * 2 + ["default", "tree LL128"]
    assert own["gain"].tolist() == pytest.approx([1 - 4 / 6, 1 - 4.2 / 6.4, 0, 1 - 7.5 / 9])
    frame.loc[:, "gain"] = 0.0
    assert tuning.frame()["gain"].max() > 0  # the caller has a copy


def test_columns_are_described() -> None:
    assert describe(TUNED).loc["gain", "meaning"].startswith("1 - time_us / default_us")
    assert ml.describe(ml.frames.TRIALS).loc["time_us", "dtype"] == "float64"
    assert [column.name for column in TRIALS][:3] == ["collective", "op", "dtype"]


def test_gains_are_geometric_means_over_sizes(tuning: Tuning) -> None:
    ratios = [4 / 6, 4.2 / 6.4, 1.0, 7.5 / 9]
    mean = (ratios[0] * ratios[1] * ratios[2] * ratios[3]) ** 0.25
    assert tuning.mean_gains()["all_reduce"] == pytest.approx(1 - mean)
    assert tuning.mean_gains(largest="2K")["all_reduce"] == pytest.approx(1 - (ratios[0] * ratios[1]) ** 0.5)
    assert tuning.mean_gains(smallest="8K")["all_reduce"] == pytest.approx(1 - ratios[3])
    with pytest.raises(BenchError, match="no tuned size is between 1M and None; the tuned sizes are"):
        tuning.mean_gains(smallest="1M")


def test_the_verdict_comes_first(tuning: Tuning) -> None:
    expected = (
        f"all_reduce: 22{THIN}% less time than NCCL's default over 1{THIN}KiB to 8{THIN}KiB, faster at 3 of 4 sizes"
    )
    assert tuning.verdicts[0] == expected
    lines = str(tuning).splitlines()
    assert lines[0] == "tp (groups of 2) · 2 × H200 · NCCL 2.32.3 · graph · float32 · in place"
    assert lines[1] == expected
    assert f"all_reduce  1{THIN}KiB to 2{THIN}KiB  symmetric window, ≤ 4 CTAs  33 to 34{THIN}%" in lines
    assert repr(tuning) == (
        "<Tuning of tp in tp=2 on 2 × H200 · NCCL 2.32.3: all_reduce 22 %, all_gather 22 %; next: .frame(), .plot(), "
        ".save(path)>"
    )
    html = tuning._repr_html_()
    assert html.index("22\N{THIN SPACE}% less time") < html.index("<svg") < html.index("<table")


def test_options_that_were_not_confirmed_are_counted() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 4.0), *both(WINDOW, 1024, 4.0, 4.0), trial(DEFAULT, 2048, 6.0)]
    tuning = a_tuning([*rows, trial(WINDOW, 2048, 4.0)])
    (verdict,) = tuning.verdicts
    assert verdict.startswith("all_reduce: no option is confirmed to be faster than NCCL's default over 1")
    assert "; 1 was faster in the search, but not on new ranks" in verdict
    assert "; 1 was faster in the search, but not measured again on new ranks" in verdict
    assert "not confirmed: symmetric window" in tuning._repr_html_()


def test_the_note_of_the_system_is_shown() -> None:
    note = "4 ranks on 2 cores"
    shown = a_tuning(usual_rows(), system={**SYSTEM, "note": note})
    assert note in str(shown)
    assert note in shown._repr_html_()


def test_choices_change_with_the_size(tuning: Tuning) -> None:
    own = [choice for choice in tuning.choices() if choice.collective == "all_reduce"]
    assert own == [
        CallChoice("all_reduce", 1023),
        CallChoice("all_reduce", 2896, CallConfig(max_ctas=4), "symmetric"),
        CallChoice("all_reduce", 5792),
        CallChoice("all_reduce", 8192, CallConfig(algorithm="tree", protocol="ll128")),
        CallChoice("all_reduce", None),
    ]


@pytest.mark.parametrize(
    ("size", "option"),
    [
        ("1", "default"),
        ("1K", "symmetric window, ≤ 4 CTAs"),
        ("3000", "default"),
        ("8K", "tree LL128"),
        ("1G", "default"),
    ],
)
def test_sizes_outside_the_tuned_range_keep_the_default(tuning: Tuning, size: str, option: str) -> None:
    assert tuning.option_for("all_reduce", size) == option


def test_an_unknown_collective_is_refused(tuning: Tuning) -> None:
    with pytest.raises(BenchError, match=r"all_reduse was not tuned \(did you mean 'all_reduce'\?\); choose one of"):
        tuning.option_for("all_reduse", 1024)


class FakeComm:
    """The facts that `apply` reads. Only GPUs have options that a call can choose."""

    name, size = "tp_0", 2

    def __init__(self, backend: str = "nccl", library: str = "NCCL 2.32.3", device: str = "NVIDIA H200") -> None:
        self._facts = SimpleNamespace(backend=backend, library=library, facts={"device": device})

    def capabilities(self) -> Any:
        return self._facts

    def chosen_by_size(self, choices: tuple[CallChoice, ...]) -> tuple[CallChoice, ...]:
        return choices


def test_apply_passes_the_choices_on(tuning: Tuning) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuning.apply(FakeComm()) == tuning.choices()  # type: ignore[arg-type, comparison-overlap]


def test_apply_refuses_another_group_size(tuning: Tuning) -> None:
    message = "the tuning is for groups of 2 ranks, but the communicator world has 1; tune groups of this size"
    with pytest.raises(CommunicatorError, match=message):
        tuning.apply(Communicator(ThreadWorld(1).backend(0)))


def test_apply_refuses_another_backend(tuning: Tuning) -> None:
    with pytest.raises(CommunicatorError, match="the tuning was made on nccl, but the communicator tp_0 uses mpi"):
        tuning.apply(FakeComm("mpi"))  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"library": "NCCL 2.28.9"}, {"device": "NVIDIA B200"}])
def test_apply_warns_on_another_library_or_machine(tuning: Tuning, other: dict[str, str]) -> None:
    given = next(iter(other.values()))
    with pytest.warns(UserWarning, match=f"made with .*, not with {given}, so other options may be faster; tune again"):
        tuning.apply(FakeComm(**other))  # type: ignore[arg-type]


def settings_rows() -> list[dict]:
    return [*both(DEFAULT, 1024, 6.0, 6.0), *both({"setting": "ring"}, 1024, 4.0, 4.0)]


def test_environment_variables_cannot_be_applied_to_a_call() -> None:
    tuning = a_tuning(settings_rows(), settings={"ring": {"NCCL_ALGO": "ring"}})
    for use in (tuning.choices, tuning.to_python, lambda: tuning.apply(FakeComm())):  # type: ignore[arg-type]
        with pytest.raises(BenchError, match=r"the tuning chose environment variables \(ring\), which .* env=tuning"):
            use()


def test_sizes_that_need_environment_variables_keep_the_default_next_to_others() -> None:
    rows = [*settings_rows(), *both(DEFAULT, 4096, 6.0, 6.0), *both(CAPPED, 4096, 4.0, 4.0)]
    tuning = a_tuning(rows, settings={"ring": {"NCCL_ALGO": "ring"}})
    with pytest.warns(UserWarning, match="1 sizes keep the default, because their faster options are environment"):
        choices = tuning.apply(FakeComm())  # type: ignore[arg-type]
    assert [choice.buffers for choice in choices] == ["plain", "plain", "symmetric", "plain"]
    assert "needs environment variables, ring" in tuning.to_python()


def test_two_dtypes_of_a_collective_are_two_lines_that_no_call_can_choose_from() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), *both(CAPPED, 1024, 4.0, 4.0)]
    other = [{**row, "dtype": "bfloat16", "count": 512} for row in rows]
    tuning = a_tuning([*rows, *other])
    assert [label for label, _ in tuning.lines] == ["all_reduce, float32", "all_reduce, bfloat16"]
    with pytest.raises(BenchError, match=r"all_reduce was tuned several times .* one element type"):
        tuning.choices()


def test_trials_of_another_group_size_are_refused() -> None:
    with pytest.raises(BenchError, match="the trials are of groups of 2 ranks, but the groups of tp in tp=4 have 4"):
        a_tuning(usual_rows(), mesh="tp=4")
    with pytest.raises(MeshError, match="dp"):
        a_tuning(usual_rows(), axis="dp")


def test_unknown_settings_and_columns_are_refused() -> None:
    with pytest.raises(BenchError, match="the trials name the setting 'ring', which is not in settings"):
        a_tuning(settings_rows())
    with pytest.raises(BenchError, match="unknown columns speed"):
        Tuning(trials=pd.DataFrame({"speed": [1.0]}), mesh="tp=2", axis="tp")


def test_a_tuning_can_be_sent_to_ranks(tuning: Tuning) -> None:
    again = pickle.loads(pickle.dumps(tuning))
    assert again.choices() == tuning.choices()
    assert dict(again.system) == SYSTEM
    with pytest.raises(TypeError):
        again.system["where"] = "elsewhere"


def test_its_results_are_the_times_of_the_default(tuning: Tuning) -> None:
    results = tuning.results
    assert [column.name for column in RESULTS] == list(results.columns)
    assert results["time_us"].tolist() == tuning.frame()["default_us"].tolist()
    assert results["n_wrong"].eq(0).all()
    assert results.attrs["where"] == SYSTEM["where"]
    assert results["busbw_gbs"].iloc[0] == pytest.approx(1024 / 6.0 / 1e3)


def test_a_tuning_without_results_says_so() -> None:
    empty = a_tuning([trial(WINDOW, 1024, 4.0)])
    assert empty.collectives == ()
    assert "no results" in repr(empty)
    assert "no results" in empty._repr_html_()
    assert str(empty).startswith("tp (groups of 2)")
    with pytest.raises(BenchError, match="the tuning has no results to draw"):
        empty.plot()


def test_a_view_of_a_real_communicator_takes_the_choices() -> None:
    """Without an option to configure, the view also works on threads."""
    rows = both(DEFAULT, 1024, 6.0, 6.0)
    tuning = a_tuning([{**row, "n_ranks": 1} for row in rows], mesh="tp=1", system={"backend": "threads"})
    comm = Communicator(ThreadWorld(1).backend(0))
    assert tuning.apply(comm).all_reduce(comm.xp.ones(3)).tolist() == [1.0, 1.0, 1.0]
    windows = a_tuning([*rows, *both(CAPPED, 1024, 4.0, 4.0)], system={"backend": "threads"})
    one = Tuning(windows.trials.assign(n_ranks=1), ml.DeviceMesh("tp=1"), "tp", {}, {"backend": "threads"})
    with pytest.raises(CommunicatorError, match="threads cannot configure calls"):
        one.apply(comm)
