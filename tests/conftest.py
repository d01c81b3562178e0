"""Engines that many tests share: four ranks over MPI, and four as threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import meshlab as ml


@pytest.fixture(scope="session")
def mpi_engines() -> Iterator[ml.Engines]:
    with ml.launch(4, backend="mpi") as engines:
        yield engines


@pytest.fixture
def thread_engines() -> Iterator[ml.Engines]:
    with ml.launch(4, backend="threads") as engines:
        yield engines


@pytest.fixture(params=["threads", "mpi"])
def engines(request: pytest.FixtureRequest) -> ml.Engines:
    return request.getfixturevalue("thread_engines" if request.param == "threads" else "mpi_engines")
