"""The shape of a command, and the arguments that several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._backends import BACKENDS, automatic_backend
from meshlab.base._errors import BenchError
from meshlab.base._units import SIZES_NOTE

if TYPE_CHECKING:
    from meshlab.analysis._thresholds import Thresholds
    from meshlab.topology.model._cluster import Cluster

TABLE_SUFFIXES = (".csv", ".png", ".svg")


@dataclass(frozen=True)
class Command:
    """A command of the command line."""

    name: str
    summary: str
    details: str
    run: Callable[[argparse.Namespace], int]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add ``--force``."""
    parser.add_argument("--force", action="store_true", help="replace a different run in the folder, and its report")


def add_start(parser: argparse.ArgumentParser) -> None:
    """Add ``--backend`` and ``--timeout``, the options of every command that starts ranks."""
    names = [automatic_backend(has_gpus=has_gpus) for has_gpus in (True, False)]
    roles = "; ".join(f"{name}: {facts.role}" for name, facts in BACKENDS.items())
    parser.add_argument(
        "--backend",
        choices=["auto", *BACKENDS],
        default="auto",
        metavar="NAME",
        help=f"auto: {names[0]} if every rank has a GPU, otherwise {names[1]}; {roles} (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        type=_duration,
        default=120.0,  # some hosts may read the environment from a slow disk
        metavar="S",
        help="maximum start-up time of the ranks, in seconds, also of those that a launcher starts (default: "
        "%(default)g)",
    )


def _duration(text: str) -> float:
    """Parse a number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def add_redact(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add ``--redact``. The note states when the files are written."""
    text = "write hashes instead of the names of hosts and users, addresses, serial numbers and secrets"
    parser.add_argument("--redact", action="store_true", help=text + note)


def add_ranks(parser: argparse.ArgumentParser, text: str = "number of ranks, if the size of an axis is -1") -> None:
    """Add ``--ranks``, which is the world size of the mesh."""
    parser.add_argument("--ranks", "--world-size", dest="ranks", type=int, metavar="N", help=text)


def add_out(
    parser: argparse.ArgumentParser, metavar: str, text: str, *, default: str | None = None, action: str = "store"
) -> None:
    """Add ``-o`` and ``--out`` for the output of a command, a FILE or a DIR."""
    parser.add_argument("-o", "--out", metavar=metavar, default=default, action=action, help=text)


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add ``--nodes``, the number of hosts of the machine."""
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="number of hosts (default: those of the source, or as many as needed)"
    )


def add_sizes(parser: argparse.ArgumentParser, default: str | None, text: str = "%(default)s") -> None:
    """Add ``--sizes``."""
    parser.add_argument(
        "--sizes",
        default=default,
        help=f'message sizes: 1K:16M, 8:1G*4 or "1K, 1M" (default: {text}); {SIZES_NOTE}',
    )


def add_collectives(parser: argparse.ArgumentParser) -> None:
    """Add the collectives to measure, as words without an option."""
    parser.add_argument(
        "collectives", nargs="*", default=["all_reduce"], metavar="COLLECTIVE", help="default: all_reduce"
    )


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Add ``--gpus``, for `gpus_of`."""
    parser.add_argument("--gpus", metavar="LIST", help="CUDA device indices of the ranks, such as 0,1")


def gpus_of(text: str | None) -> list[int] | None:
    """Parse the value of ``--gpus``."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BenchError(f"--gpus {text!r} is not a list of integers", hint="write --gpus 0,1") from None


def split_commas(words: Sequence[str]) -> list[str]:
    """Return the parts of words that commas separate."""
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def check_table_suffix(out: str | None) -> None:
    """Raise if a table or a figure cannot be written under this name."""
    if out and Path(out).suffix not in TABLE_SUFFIXES:
        raise BenchError(f"--out {out} must end in one of {', '.join(TABLE_SUFFIXES)}")


def cluster_of(name: str | None) -> Cluster | str | None:
    """Return a cluster from the path of a file. The name of a preset is returned unchanged."""
    from meshlab.base._files import is_file
    from meshlab.topology.model._presets import as_cluster
    from meshlab.topology.readers._detect import read

    return as_cluster(read(Path(name))) if name is not None and is_file(name) else name


def sized_cluster_of(name: str | None, nodes: int | None) -> Cluster | str | None:
    """Return a cluster from the path of a file, or a preset with a number of hosts."""
    from meshlab.topology.model._presets import preset

    cluster = cluster_of(name)
    if nodes is None:
        return cluster
    if isinstance(cluster, str):
        return preset(cluster, nodes)
    raise BenchError(
        "--nodes is the size of a preset, but --cluster is " + ("missing" if cluster is None else "a file"),
        hint="pass --cluster dgx-h100" if cluster is None else "omit --nodes",
    )


def read_thresholds(name: str | None) -> Thresholds | None:
    """Return the thresholds in a file, or those with a name. None if no name is given."""
    from meshlab.analysis._thresholds import Thresholds
    from meshlab.base._files import is_file

    if name is None:
        return None
    # Other names than those of files are passed on, because the error then lists the presets.
    return Thresholds.read(Path(name) if name not in Thresholds.presets() and is_file(name) else name)
