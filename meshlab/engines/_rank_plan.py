"""The ranks that engines of any launcher become: their backend, their order, their devices, and what forbids it."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshlab.base._backends import BACKENDS, GPU_BACKENDS, PROCESS_BACKENDS, automatic_backend
from meshlab.base._errors import EngineError, MeshlabError
from meshlab.base._version import __version__
from meshlab.comm._worlds import process_module
from meshlab.engines._launchers import launch_of, local_rank
from meshlab.engines._rank_hosts import CLOCK_FIX, clock_problem, network_interfaces


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The facts about an engine that is not a rank yet."""

    host: str
    pid: int
    python: str
    meshlab: str
    addresses: tuple[str, ...] = ()  # of its host
    local_index: int | None = None  # on its host, as its launcher has set it
    launch: tuple[int, int] | None = None  # the rank and the number of processes that the launcher started together
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the packages that a backend lacks
    devices: tuple[str, ...] = ()  # the unique names of the GPUs that CUDA shows to it, in CUDA's order
    libraries: Mapping[str, str] = field(default_factory=dict)  # versions of NCCL and the driver, where there are GPUs
    time_s: float = field(default_factory=time.time, compare=False)  # on the clock of its host


def read_engine_facts() -> EngineFacts:
    """Return the facts about this process. Runs on an engine."""
    launch = launch_of()
    missing = {name: tuple(BACKENDS[name].missing_packages()) for name in PROCESS_BACKENDS}
    devices: tuple[str, ...] = ()
    libraries: dict[str, str] = {}
    for name in GPU_BACKENDS:
        module: Any = process_module(name)
        if not missing[name] and hasattr(module, "visible_devices"):
            try:
                devices, libraries = module.visible_devices()
            except MeshlabError as error:
                libraries = {"problem": error.summary}
    return EngineFacts(
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        meshlab=__version__,
        addresses=tuple(text.split("/")[0] for _, text in network_interfaces() if text),
        local_index=local_rank(),
        launch=None if launch is None else (launch.rank, launch.size),
        missing=missing,
        devices=devices,
        libraries=libraries,
    )


def chosen_backend(engines: Mapping[int, EngineFacts]) -> str:
    """Return the backend that ``"auto"`` stands for: NCCL, or else MPI, or else Gloo."""
    # Engines without a launcher cannot be ranks of MPI. If they lack torch too, the error about MPI has the cure.
    backend = automatic_backend(has_gpus=_has_gpus(engines.values()))
    if backend in GPU_BACKENDS or _is_one_launch(engines.values()):
        return backend
    others = (name for name in PROCESS_BACKENDS if name not in GPU_BACKENDS and BACKENDS[name].starts == "separately")
    return next((name for name in others if not any(facts.missing.get(name) for facts in engines.values())), backend)


def _has_gpus(engines: Iterable[EngineFacts]) -> bool:
    """Return whether each engine can have a GPU of its own."""
    by_host = _by_host(dict(enumerate(engines)))
    return all(
        len({device for facts in members.values() for device in facts.devices}) >= len(members)
        for members in by_host.values()
    )


def _is_one_launch(engines: Iterable[EngineFacts]) -> bool:
    """Return whether a launcher has started all engines, and no other process, together."""
    places = [facts.launch for facts in engines]
    ranks = {place[0] for place in places if place is not None and place[1] == len(places)}
    return len(ranks) == len(places)


def _by_host(engines: Mapping[int, EngineFacts]) -> dict[str, dict[int, EngineFacts]]:
    by_host: dict[str, dict[int, EngineFacts]] = {}
    for engine, facts in engines.items():
        by_host.setdefault(facts.host, {})[engine] = facts
    return dict(sorted(by_host.items(), key=lambda item: _natural(item[0])))


def _natural(host: str) -> list[tuple[int, str]]:
    """Return a key that sorts node10 behind node2."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", host)]


def ordered_engines(engines: Mapping[int, EngineFacts]) -> list[int]:
    """Return the engines in the order of their ranks: by host, and on a host by the index of the launcher."""
    return [
        engine
        for members in _by_host(engines).values()
        for engine, _ in sorted(members.items(), key=_place_on_host(members.values()))
    ]


def _place_on_host(engines: Iterable[EngineFacts]) -> Callable[[tuple[int, EngineFacts]], tuple[int, int]]:
    """Return the key that sorts the engines of a host, as pairs of a number and facts."""
    members = list(engines)
    # Engines of different launchers may have the same index. The controller numbers engines in any order.
    has_indices = len({facts.local_index for facts in members} - {None}) == len(members)

    def key(item: tuple[int, EngineFacts]) -> tuple[int, int]:
        engine, facts = item
        return (facts.local_index if has_indices and facts.local_index is not None else facts.pid, engine)

    return key


def device_indices(engines: Mapping[int, EngineFacts]) -> dict[int, int]:
    """Return the CUDA device index of each engine, or raise if a host has fewer GPUs than engines."""
    indices: dict[int, int] = {}
    for host, members in _by_host(engines).items():
        taken: set[str] = set()
        order = sorted(members.items(), key=_place_on_host(members.values()))
        for engine, facts in order:
            # The launcher may show one GPU to each engine, or all GPUs to all of them.
            free = [index for index, device in enumerate(facts.devices) if device not in taken]
            if not free:
                raise _too_few_gpus(host, [facts for _, facts in order])
            indices[engine] = free[0]
            taken.add(facts.devices[free[0]])
    return indices


def _too_few_gpus(host: str, members: Sequence[EngineFacts]) -> EngineError:
    names = {device for facts in members for device in facts.devices}
    problem = next((facts.libraries["problem"] for facts in members if "problem" in facts.libraries), "")
    n = len(members)
    count = f"{len(names) or 'no'} GPU{'s' * (len(names) != 1)}"
    more = f" ({problem})" if problem else ""
    return EngineError(
        f"{host} shows {count} to {n} engine{'s' * (n != 1)}{more}, so that two ranks would have to share one"
        if names
        else f"{host} shows {count} to its engines{more}",
        hint="start one engine per GPU, and check CUDA_VISIBLE_DEVICES and the --gpus options of the launcher",
        host=host,
    )


def check_engines(engines: Mapping[int, EngineFacts], backend: str) -> None:
    """Raise an `EngineError` if the engines cannot be ranks of one world, and warn if their hosts differ."""
    by_host = _by_host(engines)
    missing = {
        host: [facts.missing.get(backend, ()) for facts in members.values()] for host, members in by_host.items()
    }
    lacking = {host: max(packages, key=len) for host, packages in missing.items() if any(packages)}
    if lacking:
        host, packages = next(iter(lacking.items()))
        more = f" and {len(lacking) - 1} other host{'s' * (len(lacking) != 2)} do" if len(lacking) > 1 else " does"
        raise EngineError(
            f"backend {backend!r} needs {' and '.join(packages)}, which {host}{more} not have",
            hint="install the same packages on all hosts, or choose another backend",
            host=host,
        )
    check_versions([replace(own_versions(), host="the client"), *engines.values()])
    if backend in GPU_BACKENDS:
        _check_same("NCCL", engines.values(), lambda facts: facts.libraries.get("NCCL", ""))
        _warn_of_differences(by_host)


def own_versions() -> EngineFacts:
    """Return the host and the versions of this process, without what takes longer to find out."""
    return EngineFacts(socket.gethostname(), os.getpid(), platform.python_version(), __version__)


def check_versions(processes: Sequence[EngineFacts]) -> None:
    """Raise an `EngineError` if processes have versions that do not understand each other."""
    _check_same("meshlab", processes, lambda facts: facts.meshlab)
    # Functions travel as bytecode, which another minor version cannot run.
    _check_same("Python", processes, lambda facts: ".".join(facts.python.split(".")[:2]))


def warn_of_clocks(processes: Iterable[EngineFacts], before_s: float, after_s: float) -> None:
    """Warn of hosts with another clock. The processes have described themselves between two times of this one."""
    middle_s, uncertainty_s = (before_s + after_s) / 2, abs(after_s - before_s) / 2
    offsets = {facts.host: facts.time_s - middle_s for facts in processes}
    problems = [text for host, offset_s in offsets.items() if (text := clock_problem(host, offset_s, uncertainty_s))]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        warnings.warn(f"{problems[0]}{more}, so the times of logs and files will not match; {CLOCK_FIX}", stacklevel=5)


def _check_same(what: str, engines: Iterable[EngineFacts], version: Callable[[EngineFacts], str]) -> None:
    places = _places(engines, version)
    if len(places) > 1:
        raise EngineError(
            f"the hosts have different versions of {what}: {_places_text(places)}",
            hint="install the same version on all hosts",
        )


def _warn_of_differences(by_host: Mapping[str, Mapping[int, EngineFacts]]) -> None:
    engines = [facts for members in by_host.values() for facts in members.values()]
    drivers = _places(engines, lambda facts: facts.libraries.get("CUDA driver", "unknown"))
    if len(drivers) > 1:
        warnings.warn(f"the hosts have different CUDA drivers: {_places_text(drivers)}", stacklevel=6)
    counts: dict[str, list[str]] = {}
    for host, members in by_host.items():
        n = len({device for facts in members.values() for device in facts.devices})
        counts.setdefault(f"{n} GPU{'s' * (n != 1)}", []).append(host)
    if len(counts) > 1:
        warnings.warn(f"the hosts show different numbers of GPUs: {_places_text(counts)}", stacklevel=6)


def _places(engines: Iterable[EngineFacts], version: Callable[[EngineFacts], str]) -> dict[str, list[str]]:
    """Return the hosts of each version."""
    places: dict[str, dict[str, None]] = {}
    for facts in engines:
        places.setdefault(version(facts), {})[facts.host] = None
    return {text: list(hosts) for text, hosts in places.items()}


def _places_text(places: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(
        f"{version} on {', '.join(hosts[:3])}{f' and {len(hosts) - 3} more' if len(hosts) > 3 else ''}"
        for version, hosts in places.items()
    )
