"""All exceptions that meshlab raises deliberately.

::

    MeshlabError
    ├── ParseError          input text could not be parsed
    ├── MeshError           a mesh, an axis or a group is invalid
    ├── TopologyError       a description of hardware is invalid
    ├── CommunicatorError   a collective call is invalid, or its library failed
    ├── EngineError         a rank died, raised, or missed a deadline
    └── BenchError          a plan, a run or a table of results is invalid

A message states what was given and what was expected. Its hint states the fix.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Self

from meshlab.base._forwarding import implementation

if TYPE_CHECKING:
    from meshlab.diagnosis._explanation import Explanation


_LONGEST_VALUE = 200
_LONGEST_MESSAGE = 1000
_LONGEST_NAME, _MOST_NAMES = 200, 5000  # that a name is compared with
# An apostrophe, as in "a framework's config", does not begin a value. The b of bytes does.
_LONG_VALUE = re.compile(rf"(?<!\w\w)'[^']{{{_LONGEST_VALUE},}}(?:'|\Z)|\"[^\"]{{{_LONGEST_VALUE},}}(?:\"|\Z)")
_LONG_WORD = re.compile(rf"[^\s'\"]{{{_LONGEST_VALUE + 2},}}")


class MeshlabError(Exception):
    """Base class of all exceptions that meshlab raises deliberately.

    Parameters
    ----------
    message : str
        The problem: what was given, and what was expected.
    hint : str, optional
        The fix, as an imperative. A `Hint` names arguments that a command line shows as options. By default the message
        is complete without one.

    Attributes
    ----------
    message, hint : str
        The arguments. A quoted value or a word is cut after 200 characters, and the text after 1,000.
    page : str
        The page about such errors, which ``meshlab docs PAGE`` prints. Notebooks and the command line name it.

    Examples
    --------
    The hint names the fix in Python. An interface that is not Python replaces it:

    >>> error = BenchError("the folder 'out' holds a different run", hint="pass overwrite=True to replace it")
    >>> print(error)
    the folder 'out' holds a different run; pass overwrite=True to replace it
    >>> print(error.with_hint("pass --force"))
    the folder 'out' holds a different run; pass --force
    """

    page: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = _shortened(printable(message))
        self.hint = _shortened(printable(hint))
        super().__init__(self.message)

    @property
    def summary(self) -> str:
        """The message and the hint, without a log or an excerpt of the input."""
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def with_hint(self, hint: str) -> Self:
        """Return a copy of the error with a different hint.

        Parameters
        ----------
        hint : str
            The fix, in terms of the caller's interface. An empty string removes the hint.
        """
        error = copy.copy(self)  # keeps the class and its attributes, like pickling
        error.hint = hint
        error.__cause__ = self.__cause__
        return error.with_traceback(self.__traceback__)

    def __str__(self) -> str:
        return self.summary

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines: its traceback, an explanation of logs, and the page about such errors.
        return implementation(MeshlabError._render_traceback_)(self)


class ParseError(MeshlabError, ValueError):
    """Input text could not be parsed. The error shows the file, the line and the position.

    Parameters
    ----------
    message, hint : str
        The problem and its fix, see `MeshlabError`.
    text : str, optional
        The text that was parsed, or the line with the problem. At most 200 characters are kept.
    column : int, optional
        Index in `text` at which the problem starts, counted from 0.
    file : str, optional
        The file that contains the text.
    line : int, optional
        The line number in that file, counted from 1.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        text: str = "",
        column: int | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        if text and column is not None and column > _LONGEST_VALUE:  # show the part of the line with the problem
            text, column = f"…{text[column - 60 :]}", 61
        self.excerpt = printable(text[:200])
        self.column = column
        self.file = None if file is None else printable(file)
        self.line = line

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.file, f"line {self.line}" if self.line is not None else None) if part)
        text = f"{where}: {self.summary}" if where else self.summary
        if self.column is not None and self.excerpt:
            text += f"\n  {self.excerpt}\n  {' ' * self.column}^"
        return text


class MeshError(MeshlabError, ValueError):
    """A mesh, an axis or a group is invalid."""

    page = "frameworks"


class TopologyError(MeshlabError, ValueError):
    """A description of hardware is invalid."""

    page = "machines"


class CommunicatorError(MeshlabError):
    """A collective call is invalid, or its library failed.

    Parameters
    ----------
    message, hint : str
        The problem and its fix, see `MeshlabError`.
    collective, group : str, optional
        The names of the collective and of the communicator's group.
    rank : int, optional
        The global rank of the caller.
    code : int, optional
        The error code of the library.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        collective: str | None = None,
        group: str | None = None,
        rank: int | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.collective = collective
        self.group = group
        self.rank = rank
        self.code = code


class EngineError(MeshlabError):
    """A rank died, raised, or missed a deadline.

    Parameters
    ----------
    message, hint : str
        The problem and its fix, see `MeshlabError`.
    rank : int, optional
        The global rank that caused the error.
    host : str, optional
        The host of that rank.
    log : str, optional
        The last lines of the rank's log, or its traceback. ``str(error)`` appends them. Notebooks and the command line
        also print the explanation of the logs, see `explain`.
    library_log : str, optional
        What all ranks and their library printed, for `explain`. NCCL prints only if NCCL_DEBUG is set.
    measured : object, optional
        The results measured before the error, if the call consists of several runs.
    """

    page = "hangs"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        rank: int | None = None,
        host: str | None = None,
        log: str = "",
        library_log: str = "",
        measured: Any = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.rank = rank
        self.host = host
        self.log = log
        self.library_log = library_log
        self.measured = measured

    def explain(self) -> Explanation | None:
        """Explain the logs of the error. Returns None if nothing in them is recognised. See `meshlab.explain`."""
        if not self.library_log and not self.log:
            return None  # without importing all rules, for example while the interpreter exits
        return implementation(EngineError.explain)(self)

    def __str__(self) -> str:
        return "\n".join(part for part in (self.summary, self.log.rstrip()) if part)


class BenchError(MeshlabError, ValueError):
    """A plan, a run or a table of results is invalid."""

    page = "measuring"


# A traceback shows the path under which a program imports the class.
for _error in (MeshlabError, ParseError, MeshError, TopologyError, CommunicatorError, EngineError, BenchError):
    _error.__module__ = "meshlab.errors"
del _error


def brief_explanation(error: BaseException) -> str:
    """Return the brief explanation of the logs of an error. Empty if it has none, or nothing in them is recognised."""
    explanation = error.explain() if isinstance(error, EngineError) else None
    return "" if explanation is None else explanation.brief()


def page_note(error: BaseException) -> str:
    """Return the line that names the page about an error. Empty if there is none."""
    page = error.page if isinstance(error, MeshlabError) else ""
    return f"more: meshlab docs {page}" if page else ""


def explained_text(error: BaseException) -> str:
    """Return the text of an error for a person: ``str(error)``, and below it the brief explanation of its logs."""
    return "\n".join(part for part in (str(error), brief_explanation(error)) if part)


def printable(text: str) -> str:
    """Return a text with a replacement character for each half of a surrogate pair, which no encoding can write."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def did_you_mean(name: object, known: Iterable[str], *, synonyms: Mapping[str, str] | None = None) -> str:
    """Return " (did you mean 'all_reduce'?)" for the most similar known name, or an empty string if none is similar."""
    similar = similar_name(name, known, synonyms=synonyms)
    return "" if similar is None else f" (did you mean {similar!r}?)"


def similar_name(name: object, names: Iterable[str], *, synonyms: Mapping[str, str] | None = None) -> str | None:
    """Return the most similar known name, or None if none is similar."""
    # Synonyms are in lower case, without spaces, hyphens and underscores.
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        return None
    plain = {_plain(candidate): candidate for candidate in islice(names, _MOST_NAMES)} | dict(synonyms or {})
    start = _plain(name)
    similar = [candidate for candidate in plain if len(start) > 2 and candidate.startswith(start)]
    if len(similar) != 1:
        similar = get_close_matches(start, plain, n=1, cutoff=0.7)
    return plain[similar[0]] if similar else None


def _shortened(text: str) -> str:
    """Cut the parts of a message that a caller's value makes very long."""
    if len(text) <= _LONGEST_VALUE:
        return text
    # The start is enough, because the result is not longer. Looking for values in all of it may take long.
    cut = _LONG_VALUE.sub(lambda match: f"{match[0][:_LONGEST_VALUE]}…{match[0][0]}", text[: 8 * _LONGEST_MESSAGE])
    cut = _LONG_WORD.sub(lambda match: f"{match[0][:_LONGEST_VALUE]}…", cut)
    cut = cut if len(cut) <= _LONGEST_MESSAGE else f"{cut[: _LONGEST_MESSAGE - 1]}…"
    return text if cut == text else cut  # a `Hint` that is short enough stays one


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]+", "", name.lower())
