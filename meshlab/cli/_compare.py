"""The command ``meshlab compare``: compare two runs row by row."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TextIO

from meshlab.base._errors import BenchError, MeshlabError
from meshlab.base._markup import visible
from meshlab.cli._arguments import Command, add_redact
from meshlab.cli._fitting import fitted
from meshlab.cli._output import BAD_INPUT, FAILED, OK, error_text, plain_warnings, print_error


def _run(options: argparse.Namespace) -> int:
    """Compare two runs or logs. Return 1 if a row clearly became slower, or if its results are wrong."""
    several = [options.before, options.after]
    sides = several if all(several) and not options.sides else options.sides
    if len(sides) != 2 or (options.sides and any(several)):
        print_error("compare needs two sides: meshlab compare BEFORE AFTER, or --before FILE… --after FILE…")
        return BAD_INPUT
    with plain_warnings():
        return print_comparison(*sides, threshold=options.threshold, anyway=options.anyway, redact=options.redact)


def print_comparison(
    before: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    after: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    threshold: float = 0.05,
    anyway: bool = False,
    redact: bool = False,
    file: TextIO | None = None,
) -> int:
    """Compare two files or lists of files, print the comparison, and return the exit code."""
    # Errors go to standard error, unless a file takes the output.
    from meshlab.analysis._comparison import compare

    try:
        if not threshold > 0:
            raise BenchError(
                f"threshold must be positive, not {threshold:g}",
                hint="0.05, or 5%, reports rows that take 5 % more time",
            )
        sides = [paths if isinstance(paths, (str, os.PathLike)) else list(paths) for paths in (before, after)]
        comparison = compare(*sides, effect=min(threshold, 0.05), anyway=anyway, redact=redact)
    except (MeshlabError, OSError) as error:
        print_error(error_text(error) if isinstance(error, MeshlabError) else error, file)
        return BAD_INPUT
    lines = [str(comparison)]
    regressions = comparison.regressions(threshold)
    n_wrong = int((regressions["verdict"] == "WRONG").sum())
    n_slower = len(regressions) - n_wrong
    if n_wrong:
        lines.append(f"{n_wrong} {'row is' if n_wrong == 1 else 'rows are'} wrong after")
    if n_slower:
        but = f", not counted because {comparison.oversubscribed}" if comparison.oversubscribed else ""
        word = "regression" if n_slower == 1 else "regressions"
        lines.append(f"{n_slower} {word} beyond {100 * threshold:g}%{but}")
    if not n_wrong and not n_slower and comparison.outcome == "not decided":
        lines.append("not decided: no row is slower or wrong, but not every row has a verdict")
    text = "\n".join(lines)
    print(visible(text if file else fitted(text)), file=file)
    return FAILED if n_wrong or (n_slower and not comparison.oversubscribed) else OK


def _fraction(text: str) -> float:
    """Parse a positive fraction: 0.05, or 5%."""
    number, percent, rest = text.strip().partition("%")
    try:
        fraction = float(number) / (100 if percent else 1)
    except ValueError:
        fraction = float("nan")
    if rest or not 0 < fraction < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive fraction; write 0.05 or 5% for 5 % more time")
    return fraction


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sides",
        nargs="*",
        metavar="run",
        help="two of them: the baseline, and the run, frame or log to compare with it",
    )
    parser.add_argument("--before", nargs="+", default=[], metavar="FILE", help="several launches of the baseline")
    parser.add_argument("--after", nargs="+", default=[], metavar="FILE", help="several launches to compare with it")
    parser.add_argument(
        "--threshold",
        type=_fraction,
        default=0.05,
        help="slowdown that counts as a regression: 0.05 or 5%% (default: %(default)s)",
    )
    parser.add_argument("--anyway", action="store_true", help="compare even if machines or settings differ")
    add_redact(parser)


COMPARE = Command(
    "compare",
    "compare two runs row by row",
    "Accepts folders of runs, results as Parquet, CSV or JSON, and logs of nccl-tests. Lists the differences of the "
    "two systems first, and rejects runs that are not comparable. Only the variation between launches shows whether a "
    "difference is real, so measure with 'bench --launches 3', or pass several logs with --before and --after. Exits "
    "with 1 if a row is clearly slower than the threshold allows or its results are wrong, and with 2 if nothing can "
    "be compared. Slower rows do not count if ranks shared cores.",
    _run,
    _add_options,
)
