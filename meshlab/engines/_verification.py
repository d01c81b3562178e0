"""Verification of a mesh: whether every communicator has the ranks that its group should have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshlab.base._errors import CommunicatorError
from meshlab.base._hints import NEW_RANKS, Hint
from meshlab.engines._rounds import Reply
from meshlab.mesh._axes import WORLD
from meshlab.mesh._groups import Group
from meshlab.mesh._mesh import DeviceMesh

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.engines._lease import Lease


def verify_mesh(lease: Lease, mesh: DeviceMesh) -> pd.DataFrame:
    """Run `Engines.verify` within a lease."""
    import pandas as pd

    for reply in lease.on_every_rank("fingerprint", mesh):
        if reply.value != mesh.fingerprint:
            raise CommunicatorError(
                f"rank {reply.rank} computes the mesh fingerprint {reply.value or reply.error}, but expected "
                f"{mesh.fingerprint}",
                hint="install the same version of meshlab on all hosts",
                rank=reply.rank,
            )
    rows = []
    for name in (WORLD, *mesh.axis_names, *(group.name for group in mesh.custom_groups)):
        replies = {reply.rank: reply for reply in lease.call(_members_and_sum, mesh, name)}
        for group in mesh[name]:
            for rank in group:
                _check_member(group, replies[rank])
            rows.append((name, group.name, len(group), group.ranks, True, tuple(replies[group.ranks[0]].value[0])))
    return pd.DataFrame(rows, columns=["axis", "group", "n_ranks", "ranks", "is_right", "seen"])


def _members_and_sum(comm: Any) -> tuple[list[int], int]:
    """Return the global ranks of the group, and the sum of (rank + 1) over the group. Runs on every rank."""
    # The gathered ranks show the members and their order, and the sum shows that reductions cover the same members.
    me = comm.xp.asarray([comm.world_rank], dtype="int64")
    return [int(rank) for rank in comm.all_gather(me)], int(comm.all_reduce(me + 1)[0])


def _check_member(group: Group, reply: Reply) -> None:
    if reply.error is not None:
        raise CommunicatorError(
            f"rank {reply.rank} failed while group {group.name} was being verified: {reply.error}",
            group=group.name,
            rank=reply.rank,
        )
    seen, total = reply.value
    if tuple(seen) != group.ranks or total != sum(rank + 1 for rank in group.ranks):
        raise CommunicatorError(
            f"group {group.name}: expected ranks {list(group.ranks)}, but rank {reply.rank} is grouped with "
            f"{list(seen)} (rank-coded sum {total})",
            hint=Hint("{}, and report a bug if it happens again", NEW_RANKS),
            group=group.name,
            rank=reply.rank,
        )
