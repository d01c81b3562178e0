"""Every exception that meshlab raises on purpose.

::

    MeshlabError
    ├── ParseError          a text could not be read
    ├── MeshError           a mesh, an axis or a group is not possible
    ├── TopologyError       a description of hardware does not hold together
    ├── CommunicatorError   a collective call is wrong, or the library refused it
    ├── EngineError         a rank died, raised, or did not answer in time
    └── BenchError          a plan, a run or a frame of results is not possible

A message says what was given, what was wanted and what to do about it.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BenchError",
    "CommunicatorError",
    "EngineError",
    "MeshError",
    "MeshlabError",
    "ParseError",
    "TopologyError",
]


class MeshlabError(Exception):
    """The root of all errors that meshlab raises on purpose."""


class ParseError(MeshlabError, ValueError):
    """A text could not be read; says where, and shows the place.

    Parameters
    ----------
    message : str
        What is wrong and what would be right.
    text : str
        The text, or the line of it, that was being read.
    column : int, optional
        Where in `text` the trouble starts, counted from 0.
    file : str, optional
        The file the text came from.
    line : int, optional
        The line number in that file, counted from 1.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str = "",
        column: int | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.message = message
        self.excerpt = text[:200]
        self.column = column
        self.file = file
        self.line = line
        super().__init__(self._compose())

    def _compose(self) -> str:
        where = ", ".join(part for part in (self.file, f"line {self.line}" if self.line is not None else None) if part)
        message = f"{where}: {self.message}" if where else self.message
        if self.column is not None and self.excerpt:
            message += f"\n  {self.excerpt}\n  {' ' * self.column}^"
        return message

    def __reduce__(self) -> tuple[object, ...]:
        return (_parse_error, (self.message, self.excerpt, self.column, self.file, self.line))


def _parse_error(message: str, text: str, column: int | None, file: str | None, line: int | None) -> ParseError:
    return ParseError(message, text=text, column=column, file=file, line=line)


class MeshError(MeshlabError, ValueError):
    """A mesh, an axis or a group is not possible."""


class TopologyError(MeshlabError, ValueError):
    """A description of hardware does not hold together."""


class CommunicatorError(MeshlabError):
    """A collective call is wrong, or the library refused it.

    Parameters
    ----------
    message : str
        What is wrong and what to do.
    collective : str, optional
        The collective that was called.
    group : str, optional
        The name of the communicator's group.
    rank : int, optional
        The global rank that called.
    code : int, optional
        The error code of the library below.
    """

    def __init__(
        self,
        message: str,
        *,
        collective: str | None = None,
        group: str | None = None,
        rank: int | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.collective = collective
        self.group = group
        self.rank = rank
        self.code = code


class EngineError(MeshlabError):
    """A rank died, raised, or did not answer in time.

    Parameters
    ----------
    message : str
        What happened and what to do.
    rank : int, optional
        The global rank that is to blame.
    host : str, optional
        The host it ran on.
    log : str, optional
        The tail of its log or its traceback.
    measured : object, optional
        What was measured before it happened, of a call that makes several runs.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        log: str = "",
        measured: Any = None,
    ) -> None:
        super().__init__(f"{message}\n{log.rstrip()}" if log.strip() else message)
        self.summary = message
        self.rank = rank
        self.host = host
        self.log = log
        self.measured = measured


class BenchError(MeshlabError, ValueError):
    """A plan, a run or a frame of results is not possible."""
