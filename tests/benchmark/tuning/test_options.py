"""The options that a tuning tries: which ones there are at a size, and their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meshlab.base._errors import BenchError
from meshlab.benchmark.tuning._options import (
    OPTION_NAMES,
    TuningOption,
    check_options,
    known_options,
    options_for,
    settings_for,
)
from meshlab.comm._backend import Capabilities

MEASURABLE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")


def capabilities(backend: str = "nccl", *, windows: bool = True, per_call: bool = True, **facts: str) -> Capabilities:
    known = {
        "symmetric memory": "yes" if windows else "no: NCCL 2.26.2 has none, 2.27 is needed",
        "algorithm choice per call": "yes" if per_call else "no: NCCL 2.28.9 has none, 2.31 is needed",
        "NVLS multicast": "no",
    }
    library = "NCCL 2.32.3" if backend == "nccl" else "MPICH 5.0.2"
    return Capabilities(backend, library, "", "", (), (), (), (), True, known | facts)


@pytest.mark.parametrize("collective", [*MEASURABLE, "send_recv"])
@pytest.mark.parametrize("size", [8, 1 << 16, 1 << 22, 1 << 30])
def test_the_default_is_first_and_no_option_is_tried_twice(collective: str, size: int) -> None:
    options = options_for(capabilities(), collective, size)
    assert options[0].is_default
    assert not any(option.is_default for option in options[1:])
    assert len(set(options)) == len(set(map(str, options))) == len(options) <= 40


def test_a_library_without_choice_per_call_has_only_buffers() -> None:
    old = capabilities(per_call=False)
    assert [option.buffers for option in options_for(old, "all_reduce", 1024)] == ["plain", "registered", "symmetric"]
    older = capabilities(per_call=False, windows=False)
    assert [option.buffers for option in options_for(older, "all_reduce", 1024)] == ["plain", "registered"]
    assert options_for(capabilities("mpi"), "all_reduce", 1024) == [TuningOption()]


def test_options_that_cannot_differ_are_left_out() -> None:
    small, large = (options_for(capabilities(), "all_reduce", size) for size in (1024, 1 << 22))
    assert {option.max_ctas for option in small if option.buffers == "plain"} == {None, 1}
    assert {option.max_ctas for option in large if option.buffers == "plain"} == {None, 1, 2, 4, 8, 16, 32}
    assert all(option.min_ctas is None for option in small)
    # Kernels that use the multicast of NVSwitch, and algorithms between hosts.
    assert not any("MC" in (option.algorithm or "") or option.algorithm == "nvls" for option in large)
    with_multicast = options_for(capabilities(**{"NVLS multicast": "yes"}), "all_reduce", 1 << 22)
    assert TuningOption(algorithm="nvls", protocol="simple") in with_multicast
    assert TuningOption(buffers="symmetric", algorithm="SYMK_AGxLLMC_R") in with_multicast
    assert not any(option.algorithm == "pat" for option in options_for(capabilities(), "all_gather", 1024))
    assert any(option.algorithm == "pat" for option in options_for(capabilities(), "all_gather", 1024, n_hosts=2))
    # Copy engines cannot reduce, and a message has no configuration.
    assert not any(option.cta_policy == "zero" for option in large)
    assert any(option.cta_policy == "zero" for option in options_for(capabilities(), "all_gather", 1024))
    assert len(options_for(capabilities(), "send_recv", 1 << 22)) == 3


def test_options_can_be_restricted() -> None:
    only = options_for(capabilities(), "all_reduce", 1 << 20, only=["buffers", "max_ctas"])
    assert {option.algorithm for option in only} == {None}
    assert TuningOption(buffers="symmetric", max_ctas=8) in only
    tree = options_for(capabilities(), "all_reduce", 1 << 20, only=["tree"])
    assert [str(option) for option in tree] == ["default", "tree", "tree LL", "tree LL128", "tree simple"]
    assert set(OPTION_NAMES) <= set(known_options(capabilities(), ["all_reduce"]))


def test_unknown_options_are_rejected_with_the_known_ones() -> None:
    with pytest.raises(BenchError, match=r"unknown option 'max_cta' \(did you mean 'max_ctas'\?\); nccl has buffers"):
        check_options(["max_cta"], capabilities(), ["all_reduce"])
    with pytest.raises(BenchError, match=r"unknown option 'buffers'; mpi has recursive_doubling, "):
        check_options(["buffers"], capabilities("mpi"), ["all_reduce"])
    with pytest.raises(BenchError, match="options is empty"):
        check_options([], capabilities(), ["all_reduce"])
    check_options(None, capabilities(), ["all_reduce"])


def test_an_older_nccl_gets_its_algorithms_from_the_environment() -> None:
    settings = settings_for(capabilities(per_call=False), "all_reduce")
    assert settings["tree"] == {"NCCL_ALGO": "Tree"}
    assert settings["at most 8 CTAs"] == {"NCCL_MAX_CTAS": "8"}
    assert "tree" not in settings_for(capabilities(per_call=False), "all_gather")
    assert list(settings_for(capabilities(per_call=False), "all_reduce", only=["protocol"])) == [
        "ll",
        "ll128",
        "simple",
    ]
    assert settings_for(capabilities(per_call=True), "all_reduce") == {}


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "broadcast"])
def test_each_environment_can_be_chosen_by_its_name(collective: str) -> None:
    can = capabilities(per_call=False)
    for name in settings_for(can, collective):
        check_options([name], can, [collective])
        assert list(settings_for(can, collective, only=[name])) == [name]
    check_options(["buffers"], can, ["send_recv"])  # a message has no environment of its own
    with pytest.raises(BenchError, match="unknown option 'll128'"):
        check_options(["ll128"], can, ["send_recv"])


@pytest.mark.parametrize("collective", MEASURABLE)
def test_the_variables_of_mpich_exist_in_the_installed_library(collective: str) -> None:
    """Also the values: MPICH does not start with an unknown one."""
    libraries = sorted((Path(sys.prefix) / "lib").glob("libmpi.so.*"))
    if not libraries:
        pytest.skip("the wheel mpich is not installed")
    content = libraries[0].read_bytes()
    settings = settings_for(capabilities("mpi"), collective)
    assert settings
    for variables in settings.values():
        for text in {*variables, *variables.values()} - {"0"}:
            assert text.encode() + b"\0" in content, text
