"""Output: what commands print and write, and their exit codes."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from meshlab.base._errors import MeshlabError, printable
from meshlab.diagnosis._quoting import visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

OK, FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

# Hints of errors name arguments of Python functions, which a shell does not have. An argument within a call, as in
# DeviceMesh("tp=-1", world_size=8), stays Python.
_OPTIONS = {
    "anyway": "--anyway",
    "backend": "--backend",
    "concurrent": "--concurrent",
    "grouping": "--grouping",
    "in_place": "--in-place",
    "memory_gib": "--memory",
    "mesh": "--mesh",
    "mode": "--mode",
    "overwrite": "--force",
    "redact": "--redact",
    "resume": "--resume",
    "world_size": "--ranks",
}
RESTART = re.compile(r"call engines\.restart\(\)(?: to start new ranks)?")
_ARGUMENT = re.compile(rf"(?<!\()(?<!, )\b({'|'.join(_OPTIONS)})=('?)(\w*)\2")


def print_text(text: object) -> None:
    """Print immediately, because some lines are minutes apart. Text that was read cannot control the terminal."""
    print(visible(printable(str(text))), flush=True)


def print_error(text: object, file: TextIO | None = None) -> None:
    """Print a message, by default to standard error."""
    print(visible(printable(f"meshlab: {text}")), file=file or sys.stderr)


def error_text(error: MeshlabError, again: str = "run the command again") -> str:
    """Return the text of an error, with options instead of Python's arguments in its hint.

    Parameters
    ----------
    error : MeshlabError
        The error.
    again : str, optional
        The advice that replaces the one to restart the engines, which end with the command.

    Examples
    --------
    >>> from meshlab.base._errors import BenchError, EngineError
    >>> error_text(BenchError("the folder 'out' holds a different run", hint="pass overwrite=True to replace it"))
    "the folder 'out' holds a different run; pass --force to replace it"
    >>> error_text(BenchError("dp=-1 needs the number of ranks", hint="pass world_size="))
    'dp=-1 needs the number of ranks; pass --ranks N'
    >>> error_text(BenchError("send is one side of a message", hint="measure it with grouping='pairs'"))
    'send is one side of a message; measure it with --grouping pairs'
    >>> error_text(EngineError("rank 1 was killed by signal 9", hint="call engines.restart() to start new ranks"))
    'rank 1 was killed by signal 9; run the command again'
    """

    def option(found: re.Match[str]) -> str:
        name, _, value = found.groups()
        if value == "True":
            return _OPTIONS[name]
        return (
            f"{_OPTIONS[name]} {value}" if value else f"{_OPTIONS[name]} N" if name == "world_size" else _OPTIONS[name]
        )

    text = str(error.with_hint(_ARGUMENT.sub(option, error.hint)) if error.hint else error)
    return RESTART.sub(again, text)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings as single lines, without the position in the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print_error(message)
        yield


def write_table(path: Path, frame: pd.DataFrame, draw: Callable[[], Figure], *, label: str = "") -> None:
    """Write a frame as CSV or its figure, depending on the suffix of the path, and print the path."""
    from meshlab.base._files import write_file
    from meshlab.frames._files import without_formulas
    from meshlab.plots._style import figure_png, figure_svg

    if path.suffix == ".csv":
        data = without_formulas(frame).to_csv(index=False).encode()
    else:
        data = figure_png(draw()) if path.suffix == ".png" else figure_svg(draw(), label=label).encode()
    write_file(path, data)
    print_text(f"\n{path}")
