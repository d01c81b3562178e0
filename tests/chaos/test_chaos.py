"""Random faults, a few by default and many by hand: every one is named, mended and leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

import meshlab as ml
from tests.chaos.faults import Fault, draw_all
from tests.chaos.harness import Settings, attack_all
from tests.chaos.judging import summarise, to_frame

# Bounds for a machine that is busy with other tests. By hand, ``python -m tests.chaos`` has tighter ones.
PATIENT = {"deadline_s": 8.0, "timeout_s": 60.0, "hang_s": 60.0, "gone_s": 60.0, "notice_s": 20.0}


def assert_all_good(settings: Settings, faults: Sequence[Fault], seed: int) -> None:
    frame = to_frame(list(attack_all(settings, faults, seed)))
    bad = frame[~frame["is_good"]].drop(columns=["seed", "is_good"])
    assert bad.empty, f"\n{bad.T.to_string()}\n\n{summarise(frame)}"


@pytest.mark.full
def test_a_few_random_faults_of_mpi_ranks() -> None:
    # A different call, an interrupt of the client, and a rank that is killed between two steps.
    seed, moments = 37, ("call", "between", "step")
    chosen = {"kinds": ("kill", "interrupt", "other_call"), "targets": ("rank", "client"), "moments": moments}
    faults = draw_all(seed, 3, backend="mpi", ranks=2, **chosen)
    assert_all_good(Settings("mpi", 2, step_s=0.05, **PATIENT), faults, seed)


@pytest.mark.full
def test_a_few_random_faults_of_threads() -> None:
    # Functions that fail, an interrupt of a save, and a client that is killed between two steps.
    seed, kinds = 363, ("kill", "interrupt", "raise", "memory", "sys_exit")
    moments = ("start", "idle", "call", "step", "between", "save", "close", "exit", "restart")
    faults = draw_all(seed, 4, backend="threads", ranks=2, kinds=kinds, moments=moments)
    assert_all_good(Settings("threads", 2, step_s=0.05, **PATIENT), faults, seed)


@pytest.mark.long
def test_a_few_random_faults_of_ranks_that_a_function_starts() -> None:
    # Ranks of compare_env() are killed, with a Jupyter kernel as the client.
    seed, chosen = 2, {"kinds": ("kill",), "targets": ("rank",), "moments": ("compare_env",), "client": "kernel"}
    faults = draw_all(seed, 2, backend="mpi", ranks=2, **chosen)
    assert_all_good(Settings("mpi", 2, step_s=0.05, **PATIENT), faults, seed)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["mpi", "threads"])
def test_many_random_faults(backend: str) -> None:
    seed = int(os.environ.get("MESHLAB_SEED", "1"))
    faults = draw_all(seed, 200, backend=backend, ranks=4, client="mixed")
    assert_all_good(Settings(backend, 4, **PATIENT), faults, seed)


@pytest.mark.long
def test_random_faults_of_ranks_without_mpi(gloo_engines: ml.Engines) -> None:
    seed, backend = int(os.environ.get("MESHLAB_SEED", "1")), gloo_engines.backend
    faults = draw_all(seed, 50, backend=backend, ranks=2, client="mixed")
    assert_all_good(Settings(backend, 2, **PATIENT), faults, seed)


@pytest.mark.full
def test_a_few_random_faults_in_calls_of_torch(gloo_engines: ml.Engines) -> None:
    # A rank that is killed, one that raises, and one that stays away while the others wait in torch.
    seed, backend = 6, gloo_engines.backend
    chosen = {"kinds": ("kill", "raise", "stay_away"), "targets": ("rank",), "moments": ("call",)}
    faults = draw_all(seed, 3, backend=backend, ranks=2, **chosen)
    assert_all_good(Settings(backend, 2, torch=True, **PATIENT), faults, seed)
