"""Environment variables of ranks: the settings of several collectives, on as few sets of new ranks as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meshlab.benchmark.on_ranks._buffers import release_buffers
from meshlab.engines._launch import launch
from meshlab.engines._lease import Lease

if TYPE_CHECKING:
    from meshlab.benchmark.tuning._options import TuningOption
    from meshlab.engines._engines import Engines
    from meshlab.plans._steps import Step


@dataclass(frozen=True)
class Setting:
    """Environment variables of ranks."""

    variables: Mapping[str, str]
    may_share: bool
    """True if they concern one collective only, so that the same ranks may have those of another one."""


@dataclass(frozen=True, eq=False)
class Environment:
    """The variables of ranks to start, in addition to those of the engines."""

    variables: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The name of the setting of each collective that is tuned with them. Empty for the default."""

    @property
    def is_default(self) -> bool:
        """True if there are no additional variables."""
        return not self.names

    def has(self, step: Step, option: TuningOption) -> bool:
        """Return True if an option of a call belongs to this environment."""
        return option.setting is not None and self.names.get(step.collective) == option.setting

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(self.names.values())) or "default"


def distribute(settings: Mapping[str, Mapping[str, Setting]]) -> list[Environment]:
    """Distribute the settings of all collectives, by name, to as few sets of ranks as possible."""
    environments: list[Environment] = []
    for collective, choices in settings.items():
        for name, setting in choices.items():
            for index, environment in enumerate(environments):
                variables, names = environment.variables, environment.names
                is_same = dict(variables) == dict(setting.variables)
                is_apart = setting.may_share and not set(variables) & set(setting.variables)
                if collective not in names and (is_same or is_apart):
                    environments[index] = Environment({**variables, **setting.variables}, {**names, collective: name})
                    break
            else:
                environments.append(Environment(dict(setting.variables), {collective: name}))
    return environments


@contextmanager
def new_ranks(
    lease: Lease, variables: Mapping[str, str], on_start: Callable[[Engines], object] = lambda engines: None
) -> Iterator[Lease]:
    """Start ranks like those of a lease, with further variables. If that is impossible, open new communicators."""
    engines = lease.engines
    arguments = engines.launch_arguments
    if arguments is None:
        lease.relaunch()
        yield lease
        return
    lease.round(release_buffers).run()  # the new ranks need the memory
    env = {**(arguments["env"] or {}), **variables}
    started = launch(engines.world_size, **{**arguments, "env": env}, deadline_s=engines.deadline_s)
    on_start(started)
    with started, Lease(started, lease.task) as new:
        yield new
