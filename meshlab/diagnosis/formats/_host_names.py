"""Names of hosts that programs could not resolve: ssh, MPI's launchers, Python."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine

_UNKNOWN = re.compile(
    r"Could not resolve host(?:name)?:? (?P<ssh>[\w.-]+(?::\d+(?=:|\s|$))?)"
    r"|unable to get host address for (?P<hydra>[\w.-]+)"
    r"|gethostbyname error on (?P<own>[\w.-]+)"
    r"|gaierror: \[Errno -[235]\] .+|getaddrinfo failed: .*"
    r"|host not found: (?:Name or service not known|Temporary failure in name resolution)"
)
_SLOTS = re.compile(r":\d+$")


class UnknownHost(NamedTuple):
    """A line about a name of a host that has no address."""

    name: str  # empty if the line does not contain it
    is_temporary: bool  # the name server did not answer, so the name may exist
    text: str
    line: PasteLine

    @property
    def has_slots(self) -> bool:
        """Whether the name ends with a number of slots, as in ``node1:8``."""
        return _SLOTS.search(self.name) is not None


def read_unknown_hosts(paste: Paste) -> tuple[UnknownHost, ...]:
    """Read the lines of ssh, of launchers and of Python. Those of PyTorch's sockets are not among them."""
    literals = ("Could not resolve host", "unable to get host address for", "gethostbyname error on")
    matches = other_lines(paste).matches(_UNKNOWN, *literals, "gaierror", "getaddrinfo failed", "host not found: ")
    return tuple(
        UnknownHost(
            next((name for name in match.groups() if name), "").rstrip(".:"),
            "Temporary failure" in line.text or "[Errno -3]" in line.text,
            match[0].strip(),
            line,
        )
        for line, match in matches
    )
