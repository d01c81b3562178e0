"""Lines of UCX, through which MPI, NIXL and others move data, and the processes that printed them."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen, TextFormat

_HEAD = (
    r"(?:\[(?P<host>[A-Za-z0-9][\w.-]{0,100}):\d{1,9}(?::\w{1,9}){1,2}\] +)?"
    r"(?P<source>(?<![\w./+-])[\w./+-]{1,120}\.(?:c|cc|cpp|cu|h|inl):\d+) +"
)
_LEVEL = r"UCX +(?P<level>ERROR|WARN|FATAL|DIAG) +"
# What ends the process is printed without the level.
_FATAL = r"(?=Fatal: |(?:Transport |Receiver[- ]|Remote |Local |Bad |Memory ).+ on \S+:\d+/(?:IB|RoCE)\b)"
_MESSAGE = re.compile(rf"{_HEAD}(?:{_LEVEL}|{_FATAL})(?P<text>.+)")
_LITERALS = ("UCX  ERROR", "UCX ERROR", "UCX  WARN", "UCX WARN", "UCX  FATAL", "_log.c:", "ud_ep.c:", "ud_iface.c:")


class UcxMessage(NamedTuple):
    """A message of UCX about something that failed."""

    line: int
    host: str | None
    level: str  # "FATAL" if it ended the process
    text: str


def read_ucx_messages(paste: Paste) -> tuple[UcxMessage, ...]:
    """Return the errors and warnings of UCX, in order."""
    return tuple(
        UcxMessage(line.number, match["host"] or line.host, match["level"] or "FATAL", match["text"].strip())
        for line, match in other_lines(paste).matches(_MESSAGE, *_LITERALS)
    )


def _find(paste: Paste) -> list[int]:
    return [item.line for item in paste.once(read_ucx_messages)]


def _see(paste: Paste) -> Seen:
    hosts = dict.fromkeys(item.host for item in paste.once(read_ucx_messages) if item.host)
    return Seen(facts={"hosts with messages of UCX": ", ".join(list(hosts)[:8])} if hosts else {})


UCX_LOG = TextFormat("UCX log", _find, _see, "the errors of UCX")
