"""A mesh on a cluster: which links each group crosses, and what it shares with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from meshlab import markup
from meshlab.errors import MeshError, TopologyError
from meshlab.mesh.groups import Groups
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.topology.model.cluster import INNER_LEVELS, Cluster, Ints
from meshlab.topology.model.links import Distance
from meshlab.topology.model.presets import ClusterLike, as_cluster
from meshlab.topology.placement.crossings import Crossings, cross
from meshlab.topology.placement.rank_map import RankMap, devices_of_ranks
from meshlab.units import format_bandwidth

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Placement", "place", "sentence", "slowest_gbs"]


_NVLINK = INNER_LEVELS.index("nvlink")


def sentence(placement: Placement, axis: str) -> str:
    """Say in one sentence what the groups of an axis cross, and what that leaves them.

    Parameters
    ----------
    placement : Placement
    axis : str
        An axis, or a group by name.
    """
    answer = placement.of(axis)
    name, groups = placement.groups(axis)
    if groups.size == 1:
        return f"{name} has one rank per group: nothing crosses a link"
    worst = int(np.argmax(answer.worst_level * 16 + answer.worst_distance))
    level = int(answer.worst_level[worst])
    gbs = slowest_gbs(answer)
    rate = "" if gbs is None else f", {format_bandwidth(gbs)}"
    word = placement.worst_words(axis)[worst]
    if level == 0:
        return f"{name} stays on one device: {int(answer.ranks_per_node[1].max())} ranks share it"
    if level == _NVLINK:
        racks = "" if answer.domains[_HOST].max() == 1 else f" across {int(answer.domains[_HOST].max())} hosts"
        some = "; not every two of its devices have NVLink between them" if _has_unlinked_pair(answer) else ""
        return f"{name} stays inside NVLink{racks}: {'NVLink' if word == 'nvlink' else word}{rate}{some}"
    if level == _HOST:
        return f"{name} stays inside the host{_why_no_nvlink(placement, answer, worst)}: its worst link is {word}{rate}"
    return f"{name} leaves the host: {_sharing(placement, answer)}; {_crossing(placement, answer)}"


def _has_unlinked_pair(answer: Crossings) -> bool:
    """Whether a group whose ring is all NVLink has two ranks that are not linked: all_to_all goes between them too."""
    return bool(((answer.domains[_HOST] == 1) & (answer.domains[_NVLINK] > 1)).any())


def _why_no_nvlink(placement: Placement, answer: Crossings, worst: int) -> str:
    template = placement.cluster.templates[placement.rank_map.kind[answer.worst[0, worst]]]
    if template.devices and template.devices[0].backend == "cpu":
        return ", on CPUs"
    if not template.nvlink_known:
        return ", and the source does not say whether NVLink joins it"
    return " but leaves NVLink" if (template.distance == Distance.NVLINK).any() else ""


def _sharing(placement: Placement, answer: Crossings) -> str:
    groups = answer.groups_per_node
    who = f"{groups} group{'s' * (groups > 1)} share{'s' * (groups == 1)}"
    nics = _nics_per_node(placement, answer)
    if not nics:
        return f"{who} the host's NICs, which are not known"
    busiest = float(np.nanmax(answer.groups_per_nic))
    slowest = np.nanmin(answer.node_gbs) if np.isfinite(answer.node_gbs).any() else None
    rate = "" if slowest is None else f", {format_bandwidth(float(slowest))} a group"
    if groups == 1:
        return f"it has the host's {nics} NIC{'s' * (nics > 1)} for itself{rate.removesuffix(' a group')}"
    if busiest == 1:
        each = ", one each"
    elif busiest > 1:
        each = f", {busiest:g} to a NIC"
    else:
        each = f", {1 / busiest:g} each"
    return f"{who} {nics} NIC{'s' * (nics > 1)}{each}{rate}"


def _nics_per_node(placement: Placement, answer: Crossings) -> int:
    """The NICs that groups leaving a host use there, on the host with the fewest."""
    leaving = answer.worst_level > _HOST
    kinds = np.unique(placement.rank_map.kind[answer.worst[0][leaving]])
    return min(int(placement.cluster.templates[k].near_nics.any(axis=0).sum()) for k in kinds)


def _crossing(placement: Placement, answer: Crossings) -> str:
    names = placement.cluster.level_names
    outermost = int(answer.worst_level.max())
    span = int(answer.span.max())
    below = outermost - 1
    if below > _HOST:
        text = f"it crosses {int(answer.domains[below].max())} {_plural(names[below])}"
    elif answer.domains[outermost].max() == 1:
        text = f"it stays inside {_article(names[outermost])}"
    else:
        text = "every hop stays on its rail"
    if below > _HOST and names[outermost] != names[-1] and span == outermost:
        text += f" and stays inside {_article(names[outermost])}"
    taper = float(answer.taper.max())
    gbs = slowest_gbs(answer)
    if taper > 1:
        text += f" and pays the 1:{taper:g} taper"
        if gbs is not None and gbs < np.nanmin(answer.node_gbs):
            text += f", {format_bandwidth(gbs)} a group"
    return text


def slowest_gbs(answer: Crossings) -> float | None:
    """GB/s of the slowest hop of all groups of an axis; None where none is known."""
    known = answer.ring_gbs[np.isfinite(answer.ring_gbs)]
    return float(known.min()) if known.size else None


def _plural(level: str) -> str:
    return {"leaf": "leaf switches"}.get(level, f"{level}s")


def _article(level: str) -> str:
    return {"leaf": "one leaf switch", "cluster": "the cluster"}.get(level, f"a {level}")


_HOST = INNER_LEVELS.index("host")


@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """Where every rank of a mesh runs, and what follows for its groups.

    Parameters
    ----------
    mesh : DeviceMesh
    cluster : Cluster
    devices : numpy.ndarray
        int32 of shape (world_size,): the device of every rank.
    rank_map : RankMap
        The cluster as the ranks see it.
    answers : dict of str to Crossings
        By axis or group set, filled as they are asked for.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> placement = place(DeviceMesh("pp=8, dp=96, tp=8"), preset("tapered-h100", nodes=768))
    >>> print(placement.explain("tp"))
    tp stays inside NVLink: NV18, 371 GB/s
    >>> print(placement.explain("dp"))
    dp leaves the host: 8 groups share 8 NICs, one each, 48.0 GB/s a group; it crosses 48 leaf switches and
    stays inside a pod
    >>> print(placement.explain("pp"))
    pp leaves the host: 8 groups share 8 NICs, one each, 48.0 GB/s a group; it crosses 2 pods and pays the
    1:7 taper, 27.4 GB/s a group
    """

    mesh: DeviceMesh
    cluster: Cluster
    devices: Ints
    rank_map: RankMap
    answers: dict[str, Crossings] = field(default_factory=dict)

    def of(self, axis: str | Sequence[str]) -> Crossings:
        """What the groups of one axis, several axes, or one group by name cross and share, as arrays."""
        name, groups = self.groups(axis)
        if name not in self.answers:
            self.answers[name] = cross(self.rank_map, groups.array)
        return self.answers[name]

    def groups(self, axis: str | Sequence[str]) -> tuple[str, Groups]:
        """The name and the groups of one axis, several axes, or one group by name."""
        groups = self.mesh.group_set(axis)
        return groups.name, groups

    @property
    def _shown(self) -> list[str]:
        """The axes from the fastest to the slowest, then the groups added by hand."""
        return [*reversed(self.mesh.axis_names), *(group.name for group in self.mesh.custom_groups)]

    def frame(self, *axes: str) -> pd.DataFrame:
        """One row per group: what it crosses, what it shares, and its slowest hop.

        Parameters
        ----------
        *axes : str
            Axes or groups as in `DeviceMesh.group_set`; all axes and all groups added by hand when left out.

        Returns
        -------
        pandas.DataFrame
            ``axis``, ``group``, ``n_ranks``; ``nodes`` and ``ranks_per_node_min``, ``ranks_per_node_max``;
            ``<level>_domains`` and ``<level>_hops`` per level; ``span``, the innermost level that holds the group;
            ``worst_link``, a link word inside a host or the level outside; ``nics`` within reach on its worst host,
            ``groups_per_nic``, ``node_gbs`` out of that host, ``taper``; and ``ring_gbs``, GB/s of the slowest hop of
            its ring while all groups of the axis run.

        Examples
        --------
        >>> from meshlab.topology.model.presets import preset
        >>> frame = place(DeviceMesh("dp=2, tp=8"), preset("dgx-h100", nodes=2)).frame()
        >>> frame[["axis", "group", "nodes", "worst_link", "ring_gbs"]].iloc[[0, 2]].values.tolist()
        [['tp', 'tp_0', 1, 'NV18', 370.8], ['dp', 'dp_0', 2, 'leaf', 48.0]]
        """
        import pandas as pd

        return pd.concat([self._frame(axis) for axis in axes or self._shown], ignore_index=True)

    def _frame(self, axis: str) -> pd.DataFrame:
        import pandas as pd

        answer = self.of(axis)
        name, groups = self.groups(axis)
        levels = np.array(self.cluster.level_names, dtype=object)
        columns: dict[str, object] = {
            "axis": name,
            "group": groups.names,
            "n_ranks": groups.size,
            "nodes": answer.domains[_HOST],
            "ranks_per_node_min": answer.ranks_per_node[0],
            "ranks_per_node_max": answer.ranks_per_node[1],
        }
        columns |= {f"{level}_domains": answer.domains[i] for i, level in enumerate(levels)}
        columns |= {f"{level}_hops": answer.hops[i] for i, level in enumerate(levels)}
        columns |= {
            "span": levels[answer.span],
            "worst_link": self.worst_words(axis),
            "nics": answer.nics,
            "groups_per_nic": answer.groups_per_nic,
            "node_gbs": answer.node_gbs,
            "taper": answer.taper,
            "ring_gbs": answer.ring_gbs,
        }
        return pd.DataFrame(columns, index=range(len(groups)))

    def worst_words(self, axis: str) -> list[str]:
        """For every group the word of its worst hop: of nvidia-smi inside a host, else the level that joins it."""
        answer = self.of(axis)
        one, other = answer.worst
        together = (answer.worst_level <= _HOST) & (self.rank_map.node[one] == self.rank_map.node[other])
        keys = np.stack([self.rank_map.kind[one], self.rank_map.local[one], self.rank_map.local[other]], axis=1)
        keys = np.where(together[:, None], keys, np.stack([-1 - answer.worst_level] * 3, axis=1))
        unique, number = np.unique(keys, axis=0, return_inverse=True)
        words = [
            self.cluster.level_names[-1 - kind] if kind < 0 else self._word(kind, i, j)
            for kind, i, j in unique.tolist()
        ]
        return [words[k] for k in number.ravel().tolist()]

    def word_between(self, one: int, other: int) -> str:
        """The word of the link between two ranks: of nvidia-smi inside a host, else the level that joins them."""
        if self.rank_map.node[one] == self.rank_map.node[other]:
            return self._word(
                int(self.rank_map.kind[one]), int(self.rank_map.local[one]), int(self.rank_map.local[other])
            )
        joined = self.rank_map.domains[:, one] == self.rank_map.domains[:, other]
        return self.cluster.level_names[int(joined.argmax())]

    def _word(self, kind: int, i: int, j: int) -> str:
        words = self.cluster.templates[kind].words
        return words[i][j] if words[i][j] != "?" else words[j][i]

    # -- words ---------------------------------------------------------------------------------------------------------

    def explain(self, axis: str | None = None) -> str:
        """One sentence per axis, the fastest first; or of one axis only."""
        if axis is not None:
            return sentence(self, axis)
        return "\n".join(sentence(self, name) for name in self._shown)

    # -- results and devices -------------------------------------------------------------------------------------------

    def join(self, results: pd.DataFrame) -> pd.DataFrame:
        """Put what each group crosses beside what was measured on it.

        Parameters
        ----------
        results : pandas.DataFrame
            Rows with ``axis`` and ``group``, as a benchmark gives them.

        Returns
        -------
        pandas.DataFrame
            The same rows in the same order, with the columns of `frame` behind them, and ``of_ring``: ``busbw_gbs``
            as a share of ``ring_gbs``, where both are there. Groups that this mesh does not have get missing values.

        Raises
        ------
        TopologyError
            If a column is missing.

        Examples
        --------
        >>> import pandas as pd
        >>> from meshlab.topology.model.presets import preset
        >>> results = pd.DataFrame({"axis": ["dp"], "group": ["dp_1"], "busbw_gbs": [36.0]})
        >>> place(DeviceMesh("dp=2, tp=8"), preset("dgx-h100", nodes=2)).join(results)["of_ring"].tolist()
        [0.75]
        """
        missing = [name for name in ("axis", "group") if name not in results.columns]
        if missing:
            raise TopologyError(f"results need the columns axis and group; {' and '.join(missing)} is missing")
        known = []
        for axis in results["axis"].dropna().unique():
            try:
                known.append(self._frame(str(axis)))
            except MeshError:
                continue
        import pandas as pd

        facts = pd.concat(known, ignore_index=True) if known else self._frame(self.mesh.axis_names[-1]).iloc[:0]
        facts = facts.drop(columns=[c for c in facts.columns if c in results.columns and c not in ("axis", "group")])
        keys = {name: facts[name].astype(results[name].dtype) for name in ("axis", "group")}
        joined = results.merge(facts.assign(**keys), on=["axis", "group"], how="left", validate="many_to_one")
        joined.index = results.index
        if "busbw_gbs" in joined.columns:
            joined["of_ring"] = joined["busbw_gbs"] / joined["ring_gbs"]
        return joined

    def ranks(self) -> pd.DataFrame:
        """One row per rank: its coordinates, device, host, product, backend and memory."""
        import pandas as pd

        facts = self.cluster.frame().iloc[self.devices].reset_index(drop=True)
        names = ["device", "node", "local_id", "name", "backend", "memory_bytes", "bus_id"]
        columns: dict[str, object] = {"rank": np.arange(self.mesh.world_size, dtype=np.int32)}
        columns |= {axis: self.mesh.coordinate_array[:, i] for i, axis in enumerate(self.mesh.axis_names)}
        return pd.concat([pd.DataFrame(columns), facts[names]], axis=1)

    def totals(self, axis: str) -> pd.DataFrame:
        """One row per group of an axis, and one for all of them: its devices, added up where they are alike.

        Returns
        -------
        pandas.DataFrame
            ``group``, ``backends``, ``devices`` (distinct ones), ``models`` such as ``8 × H100 80GB``, ``mixed``, and
            ``memory_gib``, ``memory_gib_min`` (of one device), ``sm_count``. A group of unlike devices has no totals:
            the smallest device decides what fits, and sums would hide that.

        Examples
        --------
        >>> from meshlab.topology.model.presets import preset
        >>> totals = place(DeviceMesh("dp=2, tp=8"), preset("dgx-h100", nodes=2)).totals("tp")
        >>> totals[["group", "models", "memory_gib"]].values.tolist()[-1]
        ['all tp', '16 × H100 80GB', 1280.0]
        """
        import pandas as pd

        name, groups = self.groups(axis)
        devices = [device for template in self.cluster.templates for device in template.devices]
        starts = np.cumsum([0, *(len(template.devices) for template in self.cluster.templates[:-1])])
        kind = (starts[self.rank_map.kind] + self.rank_map.local).astype(np.int64)
        used = sorted(
            {
                (devices[k].backend, devices[k].name, devices[k].memory_bytes, devices[k].sm_count)
                for k in np.unique(kind)
            },
            key=repr,
        )
        numbers = {facts: number for number, facts in enumerate(used)}
        product = np.array([numbers.get((d.backend, d.name, d.memory_bytes, d.sm_count), -1) for d in devices])[kind]
        members = [*groups.array, np.unique(groups.array)]
        rows = []
        seen: dict[bytes, tuple[object, ...]] = {}
        for group, ranks in zip([*groups.names, f"all {name}"], members, strict=True):
            mine = product[ranks]
            if not self.rank_map.one_rank_each:
                mine = mine[np.unique(self.devices[ranks], return_index=True)[1]]
            counts = np.bincount(mine, minlength=len(used))
            key = counts.tobytes()
            if key not in seen:
                seen[key] = _total([(used[k], int(counts[k])) for k in np.flatnonzero(counts)])
            rows.append((group, *seen[key]))
        columns = ["group", "backends", "devices", "models", "mixed", "memory_gib", "memory_gib_min", "sm_count"]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return f"<Placement of {self.mesh} on {self.cluster.summary}>"

    def _repr_html_(self) -> str:
        rows = []
        for axis in self._shown:
            answer = self.of(axis)
            gbs = slowest_gbs(answer)
            rows.append(
                [
                    axis,
                    f"{len(self.mesh.group_set(axis)):,} of {self.mesh.group_set(axis).size:,}",
                    int(answer.domains[_HOST].max()),
                    self.cluster.level_names[int(answer.span.max())],
                    "–" if gbs is None else format_bandwidth(gbs),
                    sentence(self, axis),
                ]
            )
        header = ["axis", "groups", "hosts per group", "held by", "slowest hop", "in words"]
        return markup.card(
            f"Placement · {self.mesh}", f"on {self.cluster.title} · {self.cluster.summary}", markup.table(header, rows)
        )


def _total(parts: Sequence[tuple[tuple[str, str, int | None, int | None], int]]) -> tuple[object, ...]:
    """Backends, devices, models, mixed, memory, smallest memory and SMs of a set of devices."""
    names = [name for (_, name, _, _), _ in parts]
    mixed = len(parts) > 1
    memory = [size for (_, _, size, _), _ in parts if size is not None]
    (_, _, size, sms), count = parts[0]
    return (
        ", ".join(sorted({backend for (backend, _, _, _), _ in parts})),
        sum(number for _, number in parts),
        ", ".join(f"{number:,} × {name}" for name, (_, number) in zip(names, parts, strict=True)),
        mixed,
        None if mixed or size is None else size * count / 2**30,
        min(memory) / 2**30 if len(memory) == len(parts) else None,
        None if mixed or sms is None else sms * count,
    )


def place(mesh: MeshLike, cluster: ClusterLike, devices: Sequence[int] | Ints | None = None) -> Placement:
    """Lay a mesh on a cluster.

    Parameters
    ----------
    mesh : DeviceMesh or str
    cluster : Cluster or str
        A cluster, or the name of a preset. Without GPUs the ranks run on CPU slots of its hosts.
    devices : sequence of int, optional
        The device of every rank, as numbered in the whole cluster: another rank order, a part of the machine, or
        several ranks on one device. Rank r runs on device r when left out.

    Returns
    -------
    Placement

    Raises
    ------
    TopologyError
        If the mesh does not fit, or the map does not name one existing device per rank.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> place(DeviceMesh("dp=2, tp=8"), preset("dgx-h100", nodes=2)).of("tp").domains[2].tolist()
    [1, 1]
    """
    cluster = as_cluster(cluster)
    mesh = as_mesh(mesh, fill=(cluster.n_devices or None) if devices is None else len(devices))
    cluster, of_rank = devices_of_ranks(mesh, cluster, devices)
    placement = Placement(mesh, cluster, of_rank, RankMap.of(cluster, of_rank))
    for axis in mesh.axis_names:
        placement.of(axis)
    return placement
