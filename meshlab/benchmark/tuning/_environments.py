"""Environment variables of ranks: the settings of several collectives, on as few sets of ranks as possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshlab.benchmark.tuning._options import TuningOption
    from meshlab.plans._steps import Step


@dataclass(frozen=True)
class Setting:
    """Environment variables of ranks.

    Parameters
    ----------
    variables : mapping of str to str
        The variables.
    may_share : bool
        True if they concern one collective only, so that the same ranks may have those of another one.
    """

    variables: Mapping[str, str]
    may_share: bool


@dataclass(frozen=True, eq=False)
class Environment:
    """Ranks to start.

    Parameters
    ----------
    variables : mapping of str to str
        Environment variables, in addition to those of the engines.
    names : mapping of str to str
        The name of the setting of each collective that is tuned with them. Empty for the default.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

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
    """Distribute the settings of all collectives to as few sets of ranks as possible.

    Parameters
    ----------
    settings : mapping of str to mapping of str to Setting
        The settings of each collective, by name. A name stands for one set of variables.

    Examples
    --------
    >>> ring = {"ring": Setting({"A": "ring"}, may_share=True)}
    >>> [one.variables for one in distribute({"all_reduce": ring, "broadcast": {"tree": Setting({"B": "tree"}, True)}})]
    [{'A': 'ring', 'B': 'tree'}]
    """
    found: list[Environment] = []
    for collective, choices in settings.items():
        for name, setting in choices.items():
            for index, one in enumerate(found):
                is_same = dict(one.variables) == dict(setting.variables)
                is_apart = setting.may_share and not set(one.variables) & set(setting.variables)
                if collective not in one.names and (is_same or is_apart):
                    found[index] = Environment({**one.variables, **setting.variables}, {**one.names, collective: name})
                    break
            else:
                found.append(Environment(dict(setting.variables), {collective: name}))
    return found
