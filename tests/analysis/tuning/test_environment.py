"""One environment for all sizes: which variables, and what they lose against a choice per size."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from meshlab.base._errors import BenchError
from tests.analysis.trial_maker import CAPPED, DEFAULT, TREE, WINDOW, a_tuning, both, trial, usual_rows

LL = {"algorithm": "ring", "protocol": "ll"}


def test_the_default_is_the_environment_if_options_lose_elsewhere() -> None:
    found = a_tuning(usual_rows()).to_env()
    assert found.variables == {}
    assert "No single environment is faster" in str(found)
    (loss,) = found.losses
    assert (loss.gain, loss.option) == (0.0, "default")
    assert loss.loss == pytest.approx(1 / (1 - loss.choice_gain) - 1)


def test_an_option_that_is_faster_at_all_sizes_becomes_variables_of_its_collective() -> None:
    rows = []
    for collective, option in (("all_reduce", TREE), ("all_gather", LL)):
        for size, default, faster in ((1024, 6.0, 5.0), (2048, 7.0, 5.5)):
            rows += [*both(DEFAULT, size, default, default, collective=collective)]
            rows += both(option, size, faster, faster, collective=collective)
            rows += [trial(WINDOW, size, 4.5, collective=collective)]
    found = a_tuning(rows).to_env()
    assert found.variables == {
        "NCCL_ALGO": "AllReduce:tree;AllGather:ring",
        "NCCL_PROTO": "AllReduce:ll128;AllGather:ll",
    }
    assert [loss.option for loss in found.losses] == ["tree LL128", "ring LL"]


def test_limits_of_ctas_hold_for_all_collectives() -> None:
    rows = []
    for collective in ("all_reduce", "all_gather"):
        rows += both(DEFAULT, 1024, 6.0, 6.0, collective=collective)
        rows += both({"max_ctas": 8}, 1024, 5.0, 5.0, collective=collective)
    rows += both({"max_ctas": 2}, 1024, 3.0, 3.0)  # only measured for all_reduce
    found = a_tuning(rows).to_env()
    assert found.variables == {"NCCL_MAX_CTAS": "8"}
    assert found.losses[0].loss == pytest.approx(5 / 3 - 1)
    assert found.frame()["loss"].tolist() == [loss.loss for loss in found.losses]


def test_buffers_cannot_be_variables() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), *both(CAPPED, 1024, 3.0, 3.0)]
    assert a_tuning(rows).to_env().variables == {}


def test_a_size_that_suffers_is_named() -> None:
    rows = []
    for size, default, tree in ((1024, 6.0, 7.5), (2048, 10.0, 2.0)):
        rows += [*both(DEFAULT, size, default, default), *both(TREE, size, tree, tree)]
    found = a_tuning(rows).to_env()
    assert found.variables["NCCL_ALGO"] == "AllReduce:tree"
    assert "25 % more than the default at 1\N{THIN SPACE}KiB" in str(found)


def mpi_rows(setting: str, collective: str, time_us: float, again_us: float) -> list[dict]:
    return [
        *both(DEFAULT, 1024, 6.0, 6.0, collective=collective),
        *both({"setting": setting}, 1024, time_us, again_us, collective=collective),
    ]


MPI = {"backend": "mpi", "library": "MPICH 5.0.2", "where": "2 ranks · MPI on this CPU"}
SETTINGS = {
    "ring": {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"},
    "brucks": {"MPIR_CVAR_ALLGATHER_INTRA_ALGORITHM": "brucks"},
    "tree": {"NCCL_ALGO": "tree"},
}


def test_settings_of_several_collectives_are_combined() -> None:
    rows = [*mpi_rows("ring", "all_reduce", 3.0, 3.0), *mpi_rows("brucks", "all_gather", 3.0, 3.0)]
    found = a_tuning(rows, settings=SETTINGS, system=MPI).to_env()
    assert found.variables == SETTINGS["ring"] | SETTINGS["brucks"]


def test_a_setting_that_was_not_confirmed_is_not_offered() -> None:
    rows = mpi_rows("ring", "all_reduce", 3.0, 6.0)
    assert a_tuning(rows, settings=SETTINGS, system=MPI).to_env().variables == {}


def test_settings_that_concern_all_collectives_are_not_combined() -> None:
    rows = [*mpi_rows("tree", "all_reduce", 3.0, 3.0), *mpi_rows("brucks", "all_gather", 3.0, 3.0)]
    assert a_tuning(rows, settings=SETTINGS).to_env().variables == {}


def test_a_shell_reads_the_text() -> None:
    value = "ring; $(touch no) 'x'"
    rows = mpi_rows("ring", "all_reduce", 3.0, 3.0)
    text = str(a_tuning(rows, settings={"ring": {"MPIR_CVAR_X": value}}, system=MPI).to_env())
    out = subprocess.run(["sh", "-c", f'{text}\nprintf %s "$MPIR_CVAR_X"'], capture_output=True, text=True, check=True)
    assert out.stdout == value
    assert shlex.quote(value) in text


def test_no_results_are_an_error() -> None:
    with pytest.raises(BenchError, match="the default was not measured; tune again"):
        a_tuning([trial(TREE, 1024, 3.0)]).to_env()
