"""Thousands of random calls on every backend, compared with numpy."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.comm._catalog import CATALOG
from meshlab.comm._elements import DTYPES
from tests.comm import test_conformance
from tests.comm.test_conformance import Checker, Given, cases
from tests.conftest import ENGINES

for module in (test_conformance, sys.modules[__name__]):
    cloudpickle.register_pickle_by_value(module)

N_CALLS = 10_000
MESH = ml.DeviceMesh("dp=2, tp=2").with_group("three", [3, 0, 1])


def check_random(comm: Any, seed: int, n: int) -> tuple[int, list[str]]:
    """Return the number of calls and those with a wrong result. All ranks draw the same calls."""
    checker, can = Checker(comm), comm.capabilities()
    random = np.random.default_rng([seed, comm.size, *(ord(letter) for letter in comm.name)])
    names = [name for name in can.collectives if CATALOG[name].is_measurable]
    for _ in range(n):
        name, dtype = str(random.choice(names)), str(random.choice(can.dtypes))
        size = int(random.choice([0, 1, 2, int(random.integers(3, 40)), int(random.integers(40, 5000))]))
        if CATALOG[name].counted:
            checker.check_counts(size % 50, DTYPES[dtype], Given())
            continue
        if name in ("send", "recv"):
            checker.check_messages(size, DTYPES[dtype], Given())
            continue
        given = [given for found, given in cases(comm, dtype) if found == name]
        if given:  # the dtype may have no reductions
            checker.check(name, given[int(random.integers(len(given)))], size, DTYPES[dtype])
    return n, checker.wrong


@pytest.fixture(params=ENGINES)
def engines(request: pytest.FixtureRequest) -> ml.Engines:
    return request.getfixturevalue(ENGINES[request.param])


@pytest.mark.long
def test_random_calls_agree_with_numpy(engines: ml.Engines) -> None:
    axes = {"world": 0.4, "dp": 0.2, "tp": 0.2, "three": 0.2}
    total = 0
    for number, (axis, share) in enumerate(axes.items()):
        # In groups that run at the same time, each with its own calls.
        arguments = number, round(share * N_CALLS)
        frame = engines.run(check_random, MESH, axis=axis, arguments=arguments, deadline_s=1800)
        wrong = [text for _, texts in frame["value"] for text in texts]
        assert not wrong, f"{len(wrong)} calls are wrong:\n" + "\n".join(wrong[:20])
        total += arguments[1]
    assert total == N_CALLS
