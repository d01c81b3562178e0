"""Output: what commands print and write, and their exit codes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from meshlab.base._errors import MeshlabError, explained_text, page_note, printable
from meshlab.base._hints import NEW_RANKS, READ_A_FILE, Advice, Argument, Hint
from meshlab.base._markup import visible
from meshlab.plans._options import CALL_OPTIONS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

OK, FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

# The options in the place of arguments, which hints of errors name. Not every command has all of them.
OPTIONS = {
    "anyway": "--anyway",
    "backend": "--backend",
    "cluster": "--cluster",
    "compute": "--compute",
    "concurrent": "--concurrent",
    "dtype": "--dtype",
    "experts": "--experts",
    "grouping": "--grouping",
    "in_place": "--in-place",
    "memory_gib": "--memory",
    "mesh": "--mesh",
    "mode": "--mode",
    "overwrite": "--force",
    "resume": "--resume",
    "size_scale": "--size-scale",
    "sizes": "--sizes",
    "timeout_s": "--timeout",
    "world_size": "--ranks",
    **{name: f"--{name.replace('_', '-')}" for name in CALL_OPTIONS},
}
_AGAIN = "run the command again"  # the ranks end with the command


def print_text(text: object) -> None:
    """Print immediately, because some lines are minutes apart. Text that was read cannot control the terminal."""
    print(visible(printable(str(text))), flush=True)


def print_error(text: object, file: TextIO | None = None) -> None:
    """Print a message, by default to standard error."""
    print(visible(printable(f"meshlab: {text}")), file=file or sys.stderr)


def report_error(error: MeshlabError, again: str = _AGAIN) -> None:
    """Print the text of an error, and the page about such errors."""
    print_error("\n".join(filter(None, (error_text(error, again), page_note(error)))))


def error_text(error: MeshlabError, again: str = _AGAIN) -> str:
    """Return the text of an error for the command line. `again` replaces the advice to start new ranks."""
    if isinstance(error.hint, Hint):
        error = error.with_hint(error.hint.reworded(lambda part: option_text(part, again)))
    return explained_text(error)


def option_text(part: Argument | Advice, again: str = _AGAIN) -> str:
    """Return the words for an argument or advice in a command line, or those of Python if it has none."""
    if isinstance(part, Advice):
        return {NEW_RANKS: again, READ_A_FILE: "pass a file that describes hardware"}.get(part, part.text)
    option = OPTIONS.get(part.name)
    if option is None:
        return str(part)
    if part.value is None:
        return f"{option} N" if part.name == "world_size" else option
    return option if part.value is True else f"{option} {part.value}"


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings as single lines, without the position in the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print_error(message)
        yield


def is_vacant(folder: Path) -> bool:
    """Return whether a folder does not exist or is empty, so that all it will contain is the command's."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a frame as CSV in which no spreadsheet finds a formula."""
    from meshlab.base._files import write_file
    from meshlab.frames._files import without_formulas

    write_file(path, without_formulas(frame).to_csv(index=False).encode())


def write_table(path: Path, frame: pd.DataFrame, draw: Callable[[], Figure], *, label: str = "") -> None:
    """Write a frame as CSV or its figure, depending on the suffix of the path, and print the path."""
    from meshlab.base._files import write_file
    from meshlab.plots._style import figure_png, figure_svg

    if path.suffix == ".csv":
        write_csv(path, frame)
    else:
        figure = draw()
        write_file(path, figure_png(figure) if path.suffix == ".png" else figure_svg(figure, label=label).encode())
    print_text(f"\n{path}")
