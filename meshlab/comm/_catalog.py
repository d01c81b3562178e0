"""The catalog of the collectives: the facts of `meshlab.base._collectives`, with the expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from meshlab.base._collectives import COLLECTIVES, CollectiveFacts
from meshlab.base._errors import CommunicatorError, did_you_mean
from meshlab.comm._correctness import EXPECTED, Case, Expected, Index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collective(CollectiveFacts):
    """Description of a collective: the facts of `meshlab.base._collectives.CollectiveFacts`, and its expected output.

    Parameters
    ----------
    expected : callable or None
        ``expected(case, index)`` returns the expected output of a member at the positions `index`. None if the
        collective has no output.
    """

    expected: Callable[[Case, Index], Expected] | None


CATALOG: Mapping[str, Collective] = MappingProxyType(
    {
        name: Collective(
            **{fact.name: getattr(facts, fact.name) for fact in fields(facts)}, expected=EXPECTED.get(name)
        )
        for name, facts in COLLECTIVES.items()
    }
)
"""The collectives, by name."""

NATIVE = tuple(name for name, row in CATALOG.items() if not row.is_composed)
"""The collectives that every library has. `meshlab.comm._compositions` has the others."""

WITHOUT_OUTPUT = tuple(name for name, row in CATALOG.items() if row.expected is None)
"""The collectives that return nothing, so nothing of them can be wrong."""


def find_collective(name: str) -> Collective:
    """Return the collective with a name. Raise a `CommunicatorError` that lists the names if it is unknown."""
    try:
        return CATALOG[name]
    except (KeyError, TypeError):
        raise CommunicatorError(
            f"unknown collective {name!r}{did_you_mean(name, CATALOG)}; choose one of {', '.join(CATALOG)}"
        ) from None
