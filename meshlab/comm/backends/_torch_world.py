"""torch's default process group on a rank, and torch's device meshes with the groups of meshlab's meshes.

The group has the store and the network of the `gloo` backend. Its calls are torch's own: no module of meshlab issues
one, except to verify the groups.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from operator import itemgetter
from typing import Any, NamedTuple

from meshlab.base._backends import BACKENDS
from meshlab.base._documents import mapping_or_empty, objects_in, parse_json
from meshlab.base._errors import CommunicatorError, ParseError
from meshlab.comm._backend import Backend, Rendezvous
from meshlab.comm._monitor import torch_label
from meshlab.comm.backends._gloo_world import INTERFACE, TIMEOUT, find_store, first_line, load_torch
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh

_OLDEST = (2, 6)
_INSTALL = "run pip install '.[gloo]' in meshlab's folder"
_UPGRADE = f"run pip install --upgrade 'torch>={_OLDEST[0]}.{_OLDEST[1]}'"
_LOOPBACK = "127."
_RECORDED = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}  # calls, and the former name
_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # of the calls on GPUs, and of all others


def check_installed() -> None:
    """Raise a `CommunicatorError` unless torch is installed. Does not import it."""
    if any(facts.missing_packages() for facts in BACKENDS.values() if facts.opens_beside):
        raise CommunicatorError("engines.torch needs torch, which is not installed", hint=_INSTALL)


def load(on_gpu: bool) -> str:
    """Import torch, and return its version. Raise a `CommunicatorError` if it cannot open its groups on this rank."""
    check_installed()
    for name, value in _RECORDED.items():  # the default of newer versions, before the first group reads it
        os.environ.setdefault(name, value)
    torch, distributed, _ = load_torch()
    version = str(torch.__version__)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        raise CommunicatorError(
            f"torch {version} is too old for engines.torch, which needs {_OLDEST[0]}.{_OLDEST[1]}", hint=_UPGRADE
        )
    if on_gpu and not (torch.cuda.is_available() and distributed.is_nccl_available()):
        raise CommunicatorError(
            f"torch {version} cannot use the GPUs of these engines",
            hint="install torch with CUDA, or start engines that run on the CPU",
        )
    return version


class TorchCall(NamedTuple):
    """The call of torch in which a rank is, or its last one."""

    group: str  # such as "torch's tp_0"
    call: str
    number: int  # in its group since the task began, from 1, or 0 for a message
    is_inside: bool


class TorchWorld:
    """One rank's part of torch's default process group, and its device meshes by the fingerprint of meshlab's."""

    def __init__(self, rendezvous: Rendezvous, backend: Backend) -> None:
        self._rank, self._size = rendezvous.rank, rendezvous.size
        self._gpu = backend.device
        self._store, self._interface = find_store(rendezvous)
        self._prefix = ""
        self._n_opened = 0
        self._opened_ns = 0  # calls that are recorded before belong to groups of the same names that are gone
        self._sources: dict[str, DeviceMesh] = {}
        self.meshes: dict[str, Any] = {}
        """The device meshes of torch."""
        self._labels: dict[str, str] = {}  # of groups, by their names in torch
        self._counts: dict[str, int] = {}  # of their collectives, when the task began
        self._replaced: dict[str, str | None] = {}  # variables of the environment, with their former values

    @property
    def device(self) -> str:
        """The type of device on which the groups move data."""
        return "cpu" if self._gpu is None else "cuda"

    @property
    def is_set_up(self) -> bool:
        """Whether `open` was called, and neither `close` nor `abort` after it."""
        return bool(self._prefix)

    @property
    def is_open(self) -> bool:
        """Whether the default process group is open. A function can destroy it."""
        return self.is_set_up and bool(load_torch().distributed.is_initialized())

    def open(self, prefix: str) -> None:
        """Open the default process group. All ranks must call this with the same prefix, which is new in the store."""
        torch, distributed, _ = load_torch()
        if self.is_set_up:  # by an earlier client of the same processes
            self.close()
        if distributed.is_initialized():
            raise CommunicatorError(
                "torch has a default process group already, which meshlab did not open",
                hint="call torch.distributed.destroy_process_group() on every rank first",
                rank=self._rank,
            )
        self._prefix, self._n_opened = prefix, 0
        self._set_environment()
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)
        self._open()
        self._counts = call_counts()

    def _open(self) -> None:
        torch, distributed, _ = load_torch()
        self._n_opened += 1
        self._opened_ns = time.time_ns()
        try:
            distributed.init_process_group(
                distributed.Backend.default_device_backend_map[self.device],
                store=distributed.PrefixStore(f"{self._prefix}.{self._n_opened}/", self._store),
                rank=self._rank,
                world_size=self._size,
                timeout=TIMEOUT,  # the deadline of the engines is shorter, and names the rank
                device_id=None if self._gpu is None else torch.device(self.device, self._gpu),
            )
        except RuntimeError as error:
            raise CommunicatorError(
                f"torch cannot open its default process group: {first_line(error)}", rank=self._rank
            ) from error
        self._labels = {distributed.group.WORLD.group_name: torch_label(WORLD)}

    def _set_environment(self) -> None:
        """Set the variables that a program reads under torchrun, and the network interface of groups that it opens."""
        interface = self._interface or _loopback_interface()
        variables = {
            "RANK": str(self._rank),
            "WORLD_SIZE": str(self._size),
            # Programs take it as the number of their GPU.
            "LOCAL_RANK": str(self._rank if self._gpu is None else self._gpu),
            **({} if interface is None else {INTERFACE: interface}),
        }
        for name, value in variables.items():
            self._replaced.setdefault(name, os.environ.get(name))
            os.environ[name] = value

    def add(self, mesh: DeviceMesh) -> dict[str, tuple[int, ...]]:
        """Create the device mesh of torch, and return the members of this rank's group of each axis. Collective."""
        self._sources[mesh.fingerprint] = mesh
        self.meshes[mesh.fingerprint] = torch_mesh = device_mesh(mesh, self.device)
        members = members_of(torch_mesh, mesh.axis_names)
        for axis, ranks in members.items():
            group = torch_mesh.get_group(axis)
            self._labels.setdefault(group.group_name, torch_label(mesh[axis].of(self._rank).name))
            if mesh.backend_of(axis) is None:  # the exchange of another backend may not support the device
                self._check_exchange(axis, ranks, group)
        self._counts = call_counts()
        return members

    def _check_exchange(self, axis: str, ranks: tuple[int, ...], group: Any) -> None:
        """Gather the ranks of a group with torch, and raise unless they are its members."""
        torch, distributed, _ = load_torch()
        sent = torch.tensor([self._rank], device=self.device)
        received = [torch.empty_like(sent) for _ in ranks]
        distributed.all_gather(received, sent, group=group)
        seen = tuple(int(number) for number in received)
        if seen != ranks:
            raise CommunicatorError(
                f"axis {axis!r}: rank {self._rank} is grouped with {list(seen)}, but torch names {list(ranks)}",
                rank=self._rank,
            )

    def remove(self, fingerprint: str) -> None:
        """Close the groups of a mesh. Collective."""
        distributed = load_torch().distributed
        self._sources.pop(fingerprint, None)
        torch_mesh = self.meshes.pop(fingerprint, None)
        if torch_mesh is None or not self.is_open:
            return
        others = {group.group_name for other in self.meshes.values() for group in _groups_of(other)}
        for group in _groups_of(torch_mesh):
            if group.group_name not in {*others, distributed.group.WORLD.group_name}:
                self._labels.pop(group.group_name, None)
                distributed.destroy_process_group(group)

    def start_task(self) -> None:
        """Count the calls of a new task from here, and open again what a function has destroyed."""
        # A script ends with destroy_process_group(), on all ranks.
        if not self.is_open:
            self._open()
            for mesh in list(self._sources.values()):
                self.add(mesh)
        self._counts = call_counts()

    def position(self) -> TorchCall | None:
        """Return the call in which this rank is, or its last one. None if torch records no calls. For any thread."""
        entries = self._recorded_calls()
        active = [entry for entry in entries if _is_pending(entry)]
        if not entries:
            return None
        entry = active[0] if active else entries[-1]
        name, description = _group_of(entry)
        label = self._labels.get(name) or torch_label(description or f"group {name}")
        number = 0 if entry.get("is_p2p") else int(entry.get("collective_seq_id") or 0) - self._counts.get(name, 0)
        call = str(entry.get("profiling_name", "")).rpartition(":")[2].partition(" ")[0]
        return TorchCall(label, call or "a call", max(0, number), bool(active))

    def _recorded_calls(self) -> list[Mapping[str, Any]]:
        """Return the calls in torch's flight recorders, oldest first. Empty if it has none, or cannot write JSON."""
        library = load_torch().torch._C._distributed_c10d
        # meshlab's own communicators of the same library are recorded too, without a name.
        names = {str(group.group_name) for group in list(load_torch().c10d._world.pg_map)}
        calls: list[tuple[int, Mapping[str, Any]]] = []
        for name in _RECORDERS:
            dump = getattr(library, name, None)
            with suppress(ParseError, RuntimeError):
                document = {} if dump is None else mapping_or_empty(parse_json(bytes(dump(True, False)).decode()))
                entries = objects_in(document.get("entries"))
                calls += [(int(entry.get("time_created_ns") or 0), entry) for entry in entries]
        calls.sort(key=itemgetter(0))
        return [entry for time_ns, entry in calls if time_ns >= self._opened_ns and _group_of(entry)[0] in names]

    def _has_pending(self) -> bool:
        return any(map(_is_pending, self._recorded_calls()))

    def local(self, backend: Backend) -> AbstractContextManager[object]:
        """Return a context in which work of torch is in the stream of a backend on the GPU."""
        if self._gpu is None or not self.is_open:
            return nullcontext()
        cuda = load_torch().torch.cuda
        stream = getattr(backend, "stream", None)
        return nullcontext() if stream is None else cuda.stream(cuda.ExternalStream(stream.ptr, device=self._gpu))

    def is_clean(self) -> bool:
        """Whether this rank has issued no call in the current task, so that its groups are in step with other ranks."""
        return self.is_open and not self._has_pending() and call_counts() == self._counts

    def close(self) -> None:
        """Close all groups. Collective, unless a call of them is pending: then it does not wait for other ranks."""
        self._end(is_abort=self._has_pending())

    def abort(self) -> None:
        """End all groups without waiting for other ranks."""
        self._end(is_abort=True)

    def _end(self, *, is_abort: bool) -> None:
        _, distributed, c10d = load_torch()
        self.meshes, self._sources, self._labels = {}, {}, {}
        if self.is_open:
            end = c10d._abort_process_group if is_abort else distributed.destroy_process_group
            with suppress(RuntimeError):
                end()
        self._prefix = ""
        for name, value in self._replaced.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._replaced = {}


def device_mesh(mesh: DeviceMesh, device: str) -> Any:
    """Return torch's device mesh with the axes and the groups of a mesh. Collective over the default process group."""
    torch, distributed, _ = load_torch()
    usual = distributed.Backend.default_device_backend_map.get(device)
    others = {
        axis: name for axis, name in mesh.backends.items() if BACKENDS[name].opens_beside and name not in (usual, None)
    }
    # A pair of the name and of options for each axis. Older versions lack the argument.
    override = {"backend_override": tuple((others.get(axis), None) for axis in mesh.axis_names)} if others else {}
    ranks = torch.tensor(mesh.ranks.tolist(), dtype=torch.int)
    try:
        return distributed.device_mesh.DeviceMesh(device, ranks, mesh_dim_names=mesh.axis_names, **override)
    except TypeError as error:
        if not override:
            raise
        raise CommunicatorError(
            f"torch {torch.__version__} has one backend for all axes, but {next(iter(others))} has another one",
            hint="create the mesh without backends=, or install a newer torch",
        ) from error


def members_of(torch_mesh: Any, axes: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the members of this rank's group of each axis of a device mesh of torch."""
    if torch_mesh.get_coordinate() is None:  # the rank is not in the mesh
        return {}
    distributed = load_torch().distributed
    return {axis: tuple(distributed.get_process_group_ranks(torch_mesh.get_group(axis))) for axis in axes}


def _groups_of(torch_mesh: Any) -> list[Any]:
    """Return the groups of this rank in a device mesh. None if the rank is not in the mesh."""
    return [] if torch_mesh.get_coordinate() is None else list(torch_mesh.get_all_groups())


def call_counts() -> dict[str, int]:
    """Return the number of calls that this rank has issued on each of its groups in torch, by name."""
    counts = {}
    for group in list(load_torch().c10d._world.pg_map):  # with the groups that functions have opened
        with suppress(RuntimeError):
            counts[str(group.group_name)] = int(group._get_sequence_number_for_group())
    return counts


def _is_pending(entry: Mapping[str, Any]) -> bool:
    """Return whether a recorded call has not ended. Gloo records no states, and NCCL retires calls with a delay."""
    return not entry.get("retired", True) and entry.get("state") != "completed"


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the description of the group of a recorded call."""
    name, description, *_ = (*map(str, entry.get("process_group") or ()), "", "")
    return name, description


def _loopback_interface() -> str | None:
    import psutil

    return next(
        (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(address.address.startswith(_LOOPBACK) for address in addresses)
        ),
        None,
    )
