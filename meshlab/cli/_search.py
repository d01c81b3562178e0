"""The command ``meshlab search``, and the description of a job in options."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError, MeshlabError, TopologyError, did_you_mean

if TYPE_CHECKING:
    from meshlab.prediction._search import Layouts
    from meshlab.topology.model._cluster import Cluster


_DEGREES = ("pp", "dp", "cp", "tp", "ep", "interleave")
_ASSIGNMENT = re.compile(r"(?<!× )\b(\w+)(?:=| = )(?:'(\w+)'|(\w+))?")
_FILES = (".csv", ".png", ".svg")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``meshlab search`` to its parser."""
    parser.add_argument("job", help="a model, such as llama3-405b; a wrong name prints the list")
    parser.add_argument(
        "--cluster", required=True, metavar="NAME", help="a preset such as dgx-h100, or a file that describes hardware"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="number of hosts of a preset (default: its smallest)")
    parser.add_argument("--ranks", type=int, metavar="N", help="number of ranks (default: all devices)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change the job, such as recompute=full"
    )
    for name in _DEGREES:
        what = "model chunks per stage" if name == "interleave" else f"sizes of {name}"
        parser.add_argument(
            f"--{name}", type=_integers, metavar="N", help=f"{what} to consider, separated by commas (default: all)"
            if name != "interleave" else f"{what} to consider, separated by commas (default: that of the job)",
        )  # fmt: skip
    parser.add_argument("--order", metavar="AXES", help='order of the axes, such as "pp, dp, cp, tp" (default: all)')
    parser.add_argument("--memory", type=float, metavar="GIB", help="memory of a device (default: that of the cluster)")
    parser.add_argument("--peak", type=float, metavar="TFLOPS", help="peak of a device (default: that of its product)")
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="layouts to print (default: %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="write the table (.csv) or the figure (.png, .svg)")


def search(options: argparse.Namespace) -> int:
    """Print the layouts on which a job can run, best first."""
    from meshlab.mesh._describe import wrapped
    from meshlab.prediction._job import Job
    from meshlab.prediction._search import search as find_layouts

    if options.out and Path(options.out).suffix not in _FILES:
        raise BenchError(f"--out {options.out} must end in one of {', '.join(_FILES)}")
    if options.rows < 1:
        raise BenchError(f"--rows {options.rows} must be positive")
    cluster, changes = _cluster(options.cluster, options.nodes), job_fields(options.set)
    with job_hints(*_DEGREES, "peak"):
        layouts = find_layouts(
            cluster,
            Job.preset(options.job, **changes),
            world_size=options.ranks,
            order=options.order,
            memory_gib=options.memory,
            peak=options.peak,
            **{name: getattr(options, name) for name in _DEGREES},
        )
    width = shutil.get_terminal_size().columns
    print(f"{layouts.summary(options.rows)}\n\n{wrapped(layouts.explain(), width)}", flush=True)
    if options.out:
        _write(layouts, Path(options.out), options.rows)
    return 0


def job_fields(words: Sequence[str]) -> dict[str, object]:
    """Parse changes of a job, such as ``global_batch=64``.

    Examples
    --------
    >>> job_fields(["global_batch=64", "sequence_parallel=false", "recompute=full"])
    {'global_batch': 64, 'sequence_parallel': False, 'recompute': 'full'}
    """
    from meshlab.prediction._job import Job

    known = [field.name for field in fields(Job)]
    found: dict[str, object] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals or name not in known:
            raise BenchError(
                f"--set {word} is not a change of the job{did_you_mean(name, known)}",
                hint=f"write --set global_batch=64; the fields are {', '.join(known)}",
            )
        value: object = text
        if text.lower() in ("true", "false"):
            value = text.lower() == "true"
        else:
            with contextlib.suppress(ValueError):
                value = int(text)
        found[name] = value
    return found


@contextlib.contextmanager
def job_hints(*names: str) -> Iterator[None]:
    """Replace arguments in the hints of errors by options: ``--set`` for fields of the job, or an option of that name.

    Examples
    --------
    >>> with job_hints("tp"):
    ...     raise MeshlabError("too large", hint="use tp=4, or pass recompute='full' and zero=3")
    Traceback (most recent call last):
    meshlab.errors.MeshlabError: too large; use --tp 4, or pass --set recompute=full and --set zero=3
    """
    from meshlab.prediction._job import Job

    known = {field.name for field in fields(Job)}

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or found[3]
        if name in names:
            return f"--{name} {value or 'N'}"
        return f"--set {name}={value or 'N'}" if name in known else found[0]

    try:
        yield
    except MeshlabError as error:
        raise error.with_hint(_ASSIGNMENT.sub(option, error.hint)) from None


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer or several; write 8 or 4,8") from None


def _cluster(name: str, nodes: int | None) -> Cluster:
    """Return a preset with a number of hosts, or the cluster that a file describes."""
    from meshlab.base._files import is_file
    from meshlab.topology.model._presets import as_cluster, preset
    from meshlab.topology.readers._detect import read

    if not is_file(name):
        try:
            return preset(name, nodes)
        except TopologyError as error:
            hint = error.hint.replace("read a file with ml.topology.read()", "pass a file that describes hardware")
            raise error.with_hint(hint) from None
    if nodes is None:
        return as_cluster(read(Path(name)))
    raise BenchError("--nodes is the size of a preset, but --cluster is a file", hint="omit --nodes")


def _write(layouts: Layouts, path: Path, rows: int) -> None:
    from matplotlib.figure import Figure

    from meshlab.base._files import write_file
    from meshlab.frames._files import without_formulas
    from meshlab.plots._style import figure_png, figure_svg

    if path.suffix == ".csv":
        data = without_formulas(layouts.frame()).to_csv(index=False).encode()
    else:
        figure = layouts.plot(most=rows, ax=Figure((8, 1.5 + 0.4 * min(rows, len(layouts)))).add_subplot()).figure
        assert isinstance(figure, Figure)
        data = figure_png(figure) if path.suffix == ".png" else figure_svg(figure, label=layouts.verdict).encode()
    write_file(path, data)
    print(f"\n{path}", flush=True)
