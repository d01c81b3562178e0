"""The preparations of runs, tunings and turns: the sizes of registered buffers, and the ranks that vote."""

from __future__ import annotations

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark._preparation import plan_registered, usable_memory, voting_ranks
from meshlab.benchmark.on_ranks import _buffers
from meshlab.benchmark.on_ranks._buffers import block_bytes, release_buffers
from meshlab.engines._lease import Lease

MESH = ml.DeviceMesh("dp=2, tp=2")


def test_buffers_that_exist_at_the_same_time_add_up(thread_engines: ml.Engines) -> None:
    small, large = ml.Plan("all_reduce", "tp", sizes="1K, 8M", buffers="symmetric").steps(MESH)
    (plain,) = ml.Plan("all_reduce", "tp", sizes="64M").steps(MESH)
    with Lease(thread_engines, "planning buffers") as lease:
        assert plan_registered(lease, [[plain]], 1 << 30) == []
        replies = plan_registered(lease, [(small, large), (large, plain)], 1 << 30)
        assert len(replies) == 4
        sizes = [reply.value for reply in lease.round(_largest).run()]
        lease.round(release_buffers).run()
    assert sizes == 4 * [{"symmetric": block_bytes(small) + block_bytes(large)}]


def _largest(comm: object) -> dict[str, int]:
    return dict(_buffers._kept.largest)


def test_the_memory_is_that_of_the_rank_with_the_least(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshlab.benchmark._preparation.usable_bytes", lambda free, hosts: np.array([7, 5, 6, 9]))
    with Lease(thread_engines, "reading the free memory") as lease:
        assert usable_memory(lease, "preparing") == 5


def test_a_single_group_votes_by_itself_and_several_in_the_world() -> None:
    name, (array,) = voting_ranks(MESH["tp"])
    assert name == "world"
    assert array.tolist() == [[0, 1], [2, 3]]
    whole = MESH["dp-tp"]
    name, (array,) = voting_ranks(whole)
    assert name == whole.name
    assert array.tolist() == [[0, 1, 2, 3]]
