"""Proof, on the running ranks, that everybody means the same mesh and that every group contains who it should."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshlab.errors import CommunicatorError
from meshlab.mesh.axes import WORLD
from meshlab.mesh.mesh import DeviceMesh
from meshlab.mesh.groups import Group

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.engines.lease import Lease
    from meshlab.engines.rankset import Reply

__all__ = ["verify_mesh"]


def verify_mesh(lease: Lease, mesh: DeviceMesh) -> pd.DataFrame:
    """Do what `meshlab.engines.Engines.verify` promises."""
    import pandas as pd

    for reply in lease.everywhere("fingerprint", mesh):
        if reply.value != mesh.fingerprint:
            raise CommunicatorError(
                f"rank {reply.rank} sees mesh {reply.value or reply.error} and not {mesh.fingerprint}; "
                "install the same version of meshlab everywhere",
                rank=reply.rank,
            )
    rows = []
    for name in (WORLD, *mesh.axis_names, *(group.name for group in mesh.custom_groups)):
        replies = {reply.rank: reply for reply in lease.call(_who_is_here, mesh, name)}
        for group in mesh.group_set(name):
            for rank in group:
                _check_member(group, replies[rank])
            rows.append((name, group.name, len(group), group.ranks, True, tuple(replies[group.ranks[0]].value[0])))
    return pd.DataFrame(rows, columns=["axis", "group", "n_ranks", "ranks", "is_right", "seen"])


def _who_is_here(comm: Any) -> tuple[list[int], int]:
    """Runs on every rank: tell each other who we are, and add up a number that only the right ranks give."""
    me = comm.xp.asarray([comm.world_rank], dtype="int64")
    return [int(rank) for rank in comm.all_gather(me)], int(comm.all_reduce(me + 1)[0])


def _check_member(group: Group, reply: Reply) -> None:
    if reply.error is not None:
        raise CommunicatorError(
            f"rank {reply.rank} failed while group {group.name} was verified: {reply.error}",
            group=group.name,
            rank=reply.rank,
        )
    seen, total = reply.value
    if tuple(seen) != group.ranks or total != sum(rank + 1 for rank in group.ranks):
        raise CommunicatorError(
            f"group {group.name} should be {list(group.ranks)}, but rank {reply.rank} is together with {list(seen)}, "
            f"and their sum is {total}",
            group=group.name,
            rank=reply.rank,
        )
