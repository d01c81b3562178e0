"""The ranks that engines of any launcher become: their backend, order and devices, and what forbids or warns."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import EngineError
from meshlab.base._version import __version__
from meshlab.engines._rank_plan import (
    EngineFacts,
    check_engines,
    chosen_backend,
    device_indices,
    ordered_engines,
    read_engine_facts,
    warn_of_clocks,
)

NO_GPUS = {"nccl": ("CuPy", "nccl4py")}
NO_TORCH = {"gloo": ("torch",)}
VERSIONS = {"NCCL": "2.32.3", "CUDA driver": "13.0"}


def engine(host: str, pid: int = 1, **facts: Any) -> EngineFacts:
    return EngineFacts(host, pid, platform.python_version(), __version__, **facts)


def on_gpus(*hosts: tuple[str, str], **facts: Any) -> dict[int, EngineFacts]:
    """Return engines, each with its host and the names of the GPUs that it sees."""
    return {
        number: engine(host, number, devices=tuple(names.split()), libraries=VERSIONS, **facts)
        for number, (host, names) in enumerate(hosts)
    }


def test_this_process_describes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "3")
    facts = read_engine_facts()
    assert (facts.python, facts.meshlab, facts.local_index) == (platform.python_version(), __version__, 3)
    assert set(facts.missing) == {"nccl", "mpi", "gloo"}


@pytest.mark.parametrize(
    ("engines", "backend"),
    [
        ({0: engine("a", missing=NO_GPUS), 1: engine("b", missing=NO_GPUS)}, "gloo"),
        ({0: engine("a", missing=NO_GPUS | NO_TORCH), 1: engine("b", missing=NO_GPUS)}, "mpi"),
        ({0: engine("a", launch=(1, 2)), 1: engine("b", launch=(0, 2))}, "mpi"),
        ({0: engine("a", launch=(0, 2)), 1: engine("b", launch=(0, 2))}, "gloo"),  # of two launches
        ({0: engine("a", launch=(0, 4)), 1: engine("b", launch=(1, 4))}, "gloo"),  # half of one
        (on_gpus(("a", "x"), ("b", "y")), "nccl"),
        (on_gpus(("a", "x y"), ("a", "x y")), "nccl"),
        (on_gpus(("a", "x"), ("a", "x")), "gloo"),  # two engines see the same GPU
    ],
)
def test_the_backend_follows_from_the_gpus_the_launcher_and_the_packages(
    engines: Mapping[int, EngineFacts], backend: str
) -> None:
    assert chosen_backend(engines) == backend


def test_ranks_are_in_the_order_of_hosts_and_local_ranks() -> None:
    places = [("n10", 0), ("n2", 1), ("n2", 0), ("n1", 1), ("n10", 1), ("n1", 0)]
    engines = {number: engine(host, 50 - number, local_index=index) for number, (host, index) in enumerate(places)}
    assert [places[number] for number in ordered_engines(engines)] == sorted(
        places, key=lambda p: (int(p[0][1:]), p[1])
    )


def test_engines_of_two_launchers_on_one_host_are_in_the_order_of_their_processes() -> None:
    engines = {0: engine("a", 30, local_index=0), 1: engine("a", 10, local_index=0), 2: engine("a", 20)}
    assert ordered_engines(engines) == [1, 2, 0]


@pytest.mark.parametrize(
    ("engines", "indices"),
    [
        (on_gpus(("a", "x y"), ("a", "x y"), ("b", "z u"), ("b", "z u")), [0, 1, 0, 1]),  # all GPUs are visible to all
        (on_gpus(("a", "x"), ("a", "y")), [0, 0]),  # the launcher shows one to each
        (on_gpus(("a", "x y"), ("a", "y x")), [0, 0]),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(engines: Mapping[int, EngineFacts], indices: list[int]) -> None:
    assert [device_indices(engines)[number] for number in sorted(engines)] == indices


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        (on_gpus(("a", "x"), ("b", "y"), ("b", "y")), "^b shows 1 GPU to 2 engines, so that two ranks would have to"),
        (on_gpus(("a", "x"), ("b", "")), "^b shows no GPUs to its engines; start one engine per GPU, and check CUDA_"),
    ],
)
def test_fewer_gpus_than_engines_are_an_error(engines: Mapping[int, EngineFacts], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        device_indices(engines)


@pytest.mark.parametrize(
    ("backend", "facts", "message"),
    [
        ("nccl", {"missing": NO_GPUS}, "^backend 'nccl' needs CuPy and nccl4py, which b does not have; install"),
        ("gloo", {"meshlab": "9.9"}, r"^the hosts have different versions of meshlab: .* on the client, a, 9\.9 on b;"),
        ("gloo", {"python": "2.7.18"}, r"^the hosts have different versions of Python: .* on the client, a, 2\.7 on b"),
        ("nccl", {"libraries": {"NCCL": "2.1"}}, r"versions of NCCL: 2\.32\.3 on a, 2\.1 on b; install the same"),
    ],
)
def test_what_differs_between_hosts_is_an_error(backend: str, facts: dict[str, Any], message: str) -> None:
    same = {"host": "b", "pid": 2, "python": platform.python_version(), "meshlab": __version__, "libraries": VERSIONS}
    engines = {0: engine("a", libraries=VERSIONS), 1: EngineFacts(**{**same, **facts})}
    with pytest.raises(EngineError, match=message):
        check_engines(engines, backend)
    check_engines({0: engines[0], 1: EngineFacts(**same)}, backend)


def test_other_drivers_and_numbers_of_gpus_are_warnings() -> None:
    engines = on_gpus(("a", "x y"), ("b", "z"))
    with pytest.warns(UserWarning, match="the hosts show different numbers of GPUs: 2 GPUs on a, 1 GPU on b"):
        check_engines(engines, "nccl")
    driver = {"NCCL": "2.32.3", "CUDA driver": "12.4"}
    engines = {0: engine("a", libraries=VERSIONS), 1: engine("b", libraries=driver)}
    with pytest.warns(UserWarning, match=r"the hosts have different CUDA drivers: 13\.0 on a, 12\.4 on b"):
        check_engines(engines, "nccl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_engines(engines, "gloo")


def test_a_backend_of_threads_cannot_be_attached() -> None:
    with pytest.raises(EngineError, match=r"unknown backend 'threads'.*; choose one of auto, nccl, mpi, gloo"):
        ml.attach(None, backend="threads")


def test_other_clocks_are_a_warning_that_names_the_first_host() -> None:
    processes = [engine("a", time_s=101.0), engine("b", time_s=400.0), engine("c", time_s=-200.0)]
    text = "the clock of b is 299.0 s ahead of that of this host, and 1 more, so the times of logs and files will not"
    with pytest.warns(UserWarning, match=text):
        warn_of_clocks(processes, 100.0, 102.0)


def test_the_time_until_an_answer_is_no_difference_of_clocks() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_clocks([engine("a", time_s=100.2), engine("b", time_s=131.5)], 100.0, 131.0)
