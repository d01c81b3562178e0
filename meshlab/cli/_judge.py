"""The command ``meshlab judge``: whether the numbers of a log are normal."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from meshlab.base._errors import BenchError
from meshlab.cli._arguments import Command, add_nodes, add_out, cluster_of
from meshlab.cli._output import FAILED, OK, plain_warnings, print_error, print_text

_SUFFIXES = (".csv", ".json")


def _run(options: argparse.Namespace) -> int:
    """Judge logs, runs or results. Return 0 if everything is normal."""
    from meshlab.analysis._judge import judge
    from meshlab.analysis._site_curves import add_curves
    from meshlab.base._files import is_folder, write_file
    from meshlab.mesh._describe import wrapped
    from meshlab.runs._rundata import RunData

    if options.out and Path(options.out).suffix not in _SUFFIXES:
        raise BenchError(f"--out {options.out} must end in one of {', '.join(_SUFFIXES)}")
    if options.add and (options.out or options.runs or options.leave_out):
        raise BenchError("--add judges nothing, so --out, --runs and --leave-out have no effect", hint="omit them")
    if "-" in options.sources and sys.stdin.isatty():
        print_error("paste the log, and press Ctrl-D on an empty line to finish")
    sources = [
        sys.stdin.buffer.read() if name == "-" else RunData.load(name) if is_folder(name) else Path(name)
        for name in options.sources
    ]
    source = sources[0] if len(sources) == 1 else sources
    facts = {
        "gpu": options.gpu,
        "nodes": options.nodes,
        "nics": options.nics,
        "cluster": cluster_of(options.cluster),
        "mesh": options.mesh,
    }
    with plain_warnings():
        if options.add:
            library, names = add_curves(source, system=options.add, **facts)
            print_text(f"{len(names)} curve{'s' * (len(names) != 1)} added to {library}: {', '.join(names)}")
            return OK
        judgement = judge(source, leave_out=options.leave_out or (), **facts)
    width = shutil.get_terminal_size().columns
    for sentence in judgement.sentences:
        print_text(wrapped(sentence, width))
    print_text(wrapped(f"next step: {judgement.next_step}", width))
    if options.runs and len(judgement.references):
        runs = judgement.references[["collective", "source", "date", "system", "size_bytes", "busbw_gbs"]]
        print_text(f"\n{runs.to_string(index=False, float_format='{:.1f}'.format, na_rep='–')}")
    if options.out:
        frame = judgement.frame()
        text = frame.to_csv(index=False) if options.out.endswith(".csv") else frame.to_json(orient="records", indent=1)
        print_text(f"\n{write_file(options.out, text)}")
    return OK if judgement.outcome == "passed" else FAILED


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="LOG",
        help="a log of nccl-tests or rccl-tests, the folder of a run, or results (Parquet, CSV, JSON); - for standard "
        "input",
    )
    add("--gpu", metavar="NAME", help="the GPU, such as H100, if the log does not list it")
    add_nodes(parser)
    add("--nics", metavar="NxRATE", help='the NICs of a host: "8x400", in Gb/s, or the sum of their rates')
    add("--cluster", metavar="NAME|FILE", help="the machine: a preset, which gets as many hosts as the log, or a file")
    add("--mesh", help="the mesh of results that have an axis")
    add("--runs", action="store_true", help="list the published runs that the verdicts name")
    add(
        "--leave-out",
        action="append",
        metavar="SOURCE",
        help="ignore published runs of a source, an address as in --runs; may be repeated",
    )
    add(
        "--add",
        metavar="SYSTEM",
        help="add the curves to the library of this site, under this name of the machine, instead of judging them",
    )
    add_out(parser, "FILE", "write the verdicts as .csv or .json")


JUDGE = Command(
    "judge",
    "compare the numbers of a log with published runs",
    "Recognises the machine from the log, or names the fact that is missing. Compares the largest size at which "
    "published runs of such a machine agree, and names the bound of the hardware. Starts nothing. Exits with 1 if "
    "something is slow, or if a verdict is not known.",
    _run,
    _add_options,
)
