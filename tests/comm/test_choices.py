"""A view that chooses by size takes the same configuration on all ranks, and delegates everything else."""

from __future__ import annotations

import re
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import CallChoice, CallConfig
from meshlab.comm._catalog import CATALOG
from meshlab.comm._choices import SizeChoices, message_bytes
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._nccl_binding import selection
from meshlab.comm.backends._threads import ThreadWorld
from tests.comm import test_conformance as suite
from tests.comm import threads_with_windows
from tests.comm.threads_with_windows import with_windows

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(suite)
cloudpickle.register_pickle_by_value(threads_with_windows)

RING, TREE, FEW = CallConfig(algorithm="ring"), CallConfig(algorithm="tree"), CallConfig(max_ctas=4)
CONFIGURABLE = [name for name, row in CATALOG.items() if row.is_configurable]


@given(st.lists(st.integers(1, 100), unique=True), st.booleans(), st.integers(0, 120))
def test_a_call_takes_the_smallest_limit_that_is_not_below_it(limits: list[int], has_last: bool, size: int) -> None:
    choices = [CallChoice("all_reduce", limit, CallConfig(max_ctas=limit)) for limit in limits]
    choices += [CallChoice("all_reduce", None, CallConfig(max_ctas=1000))] if has_last else []
    found = SizeChoices(choices).find(CATALOG["all_reduce"], np.zeros(size, np.uint8), None, 2)
    fitting = [limit for limit in limits if limit >= size]
    expected = min(fitting, default=1000 if has_last else None)
    assert (None if found is None else found.max_ctas) == expected


@pytest.mark.parametrize("name", CONFIGURABLE)
@pytest.mark.parametrize("n", [1, 3, 4])
def test_all_ranks_compute_the_size_that_the_results_have(name: str, n: int) -> None:
    row, count = CATALOG[name], 5
    sizes = set()
    for is_root in (True, False):
        send, out = (
            np.zeros(row.elements(side, count, n), "float32") if row.has(side, is_root) else None
            for side in ("sends", "receives")
        )
        for pair in ((send, out), (send, None), (None, out)):
            if any(array is not None for array in pair):
                sizes.add(message_bytes(row, *pair, n))
    assert sizes == {row.size_bytes(count, 4, n)}


def test_windows_exclude_symmetric_kernels_for_choices_without_them() -> None:
    choices = [
        CallChoice("all_reduce", 64, CallConfig(), "symmetric"),
        CallChoice("all_reduce", 128, FEW, "registered"),
        CallChoice("all_reduce", 256, RING),
        CallChoice("all_reduce", None),
    ]
    found = SizeChoices(choices)
    row = CATALOG["all_reduce"]
    algorithms = [found.find(row, np.zeros(n, np.uint8), None, 2).algorithm for n in (64, 65, 200, 300)]  # type: ignore[union-attr]
    assert algorithms == [None, "^symk", "ring", "^symk"]
    assert SizeChoices(choices[1:]).find(row, np.zeros(300, np.uint8), None, 2) == CallConfig()


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            [CallChoice("all_reduce", 8), CallChoice("all_reduce", 8)],
            "two choices are for all_reduce and sizes up to 8 b",
        ),
        ([CallChoice("reduce", None)] * 2, "two choices are for reduce and all larger sizes"),
        ([CallChoice("all_reduced", 8)], "unknown collective 'all_reduced' (did you mean 'all_reduce'?)"),
        ([CallChoice("send_recv", 8)], "send_recv has no configuration, because NCCL runs it as messages"),
        ([CallChoice("all_to_all_v", 8)], "all_to_all_v has no configuration"),
        ([CallChoice("all_reduce", 0)], "max_bytes must be a positive number of bytes or None, not 0"),
        ([CallChoice("all_reduce", 1.5)], "max_bytes must be a positive number of bytes or None, not 1.5"),
        ([CallChoice("all_reduce", 8, buffers="window")], "unknown buffers 'window'; choose one of plain, registered"),
        ([CallChoice("all_reduce", 8, CallConfig(protocol="fast"))], "unknown protocol 'fast'"),
        (["all_reduce"], "a choice must be a CallChoice, not str"),
    ],
)
def test_impossible_choices_are_refused(choices: Any, message: str) -> None:
    with pytest.raises(CommunicatorError, match=re.escape(message)):
        Communicator(ThreadWorld(1).backend(0)).chosen_by_size(choices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "LL"}, "unknown protocol 'LL' (did you mean 'll'?); choose one of ll, ll128, simple"),
        ({"cta_policy": "none"}, "unknown cta_policy 'none'"),
        ({"algorithm": 3}, "algorithm must be the name of an algorithm of NCCL, such as 'ring', not 3"),
        ({"min_ctas": 0}, "min_ctas must be a positive integer, not 0"),
        ({"max_ctas": True}, "max_ctas must be a positive integer, not True"),
        ({"min_ctas": 8, "max_ctas": 4}, "min_ctas=8 is larger than max_ctas=4"),
        ({"max_ctas": 4}, "threads cannot configure calls; only nccl supports this"),
    ],
)
def test_impossible_configurations_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CommunicatorError, match=re.escape(message)):
        Communicator(ThreadWorld(1).backend(0)).configured(**options)


@pytest.mark.parametrize(
    ("algorithm", "protocol", "message"),
    [
        ("symk", "ll", "algorithm 'symk' cannot be combined with protocol 'll'; omit protocol="),
        ("RING_LL", "ll", "algorithm 'ring_ll' cannot be combined with protocol 'll'"),
        ("nvls", "ll128", "algorithm 'nvls' has no protocol 'll128'; choose one of simple"),
        ("^ring, tree", "ll", "algorithm '^ring, tree' excludes all algorithms with protocol 'll'"),
    ],
)
def test_algorithms_and_protocols_that_exclude_each_other_are_refused(
    algorithm: str, protocol: str, message: str
) -> None:
    with pytest.raises(CommunicatorError, match=re.escape(message)):
        selection(algorithm, protocol)


def calls_by_size(comm: Communicator) -> dict[str, Any]:
    group, backend = with_windows(comm)
    chosen = group.chosen_by_size(
        [
            CallChoice("all_reduce", 64, RING),
            CallChoice("all_reduce", 1024, TREE),
            CallChoice("broadcast", None, FEW),
        ]
    )
    n = comm.size
    right = [
        bool((chosen.all_reduce(np.ones(8)) == n).all()),
        bool((chosen.all_reduce(np.ones(9)) == n).all()),
        bool((chosen.all_reduce(np.ones(1000)) == n).all()),
        bool((chosen.broadcast(np.full(4, comm.rank), root=1) == 1).all()),
        chosen.all_gather(np.ones(2)).size == 2 * n,
    ]
    x = np.ones(2)
    prepared = chosen.prepare("all_reduce", x, x)
    prepared()
    right.append(bool((x == n).all()))
    with chosen.batch() as batch:
        got = batch.all_reduce(np.ones(1))
    right.append(bool(got[0] == n))
    configs = list(backend.configs)
    chosen.close()
    try:
        chosen.all_reduce(np.ones(1))
    except CommunicatorError as error:
        closed = str(error)
    return {"right": right, "configs": configs, "closed": closed, "open": float(group.all_reduce(np.ones(1))[0])}


def test_calls_take_the_configuration_of_their_size(thread_engines: ml.Engines) -> None:
    for found in thread_engines.run(calls_by_size)["value"]:
        assert all(found["right"])
        assert found["configs"] == [
            ("all_reduce", RING),
            ("all_reduce", TREE),
            ("all_reduce", None),
            ("broadcast", FEW),
            ("all_gather", None),
            ("all_reduce", RING),
        ]
        assert "is closed" in found["closed"]
        assert found["open"] == 4


def arrays_of_view(comm: Communicator) -> list[str]:
    group, backend = with_windows(comm)
    group.chosen_by_size([CallChoice("all_reduce", None, RING)]).empty(4, "int64")
    chosen = group.chosen_by_size([CallChoice("all_reduce", 64, buffers="symmetric"), CallChoice("all_reduce", None)])
    chosen.empty(8, "int64")
    return [entry for entry in backend.log if entry != "wait"]


def test_arrays_of_the_view_are_symmetric_if_a_choice_wants_it(thread_engines: ml.Engines) -> None:
    assert thread_engines.run(arrays_of_view)["value"].tolist() == [["register 64"]] * 4


def chosen_results(comm: Communicator) -> Any:
    return suite.check_all(comm.chosen_by_size([CallChoice(name, 16) for name in CONFIGURABLE]))


def test_a_view_without_configurations_has_the_results_of_numpy(thread_engines: ml.Engines) -> None:
    assert [wrong for wrong in thread_engines.run(chosen_results)["value"] if wrong] == []
