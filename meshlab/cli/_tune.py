"""The command ``meshlab tune``: find the fastest options, and write files for programs that use them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError, EngineError, MeshlabError
from meshlab.cli._arguments import (
    Command,
    add_collectives,
    add_gpus,
    add_out,
    add_ranks,
    add_redact,
    add_sizes,
    add_start,
    gpus_of,
)
from meshlab.cli._fitting import fitted
from meshlab.cli._output import FAILED, INTERRUPTED, OK, error_text, print_error
from meshlab.cli._ranks import opened_engines
from meshlab.engines._launchers import launched_as

if TYPE_CHECKING:
    from meshlab.analysis.tuning._tuning import Tuning

_SAVED = "tuning.json"
_OTHERS = ("tuning.csv", "tuning.html", "tuning.env", "tuned.py", "nccl_tuner.conf")


def _run(options: argparse.Namespace) -> int:
    """Search for the fastest options along an axis, and write the tuning."""
    from meshlab.benchmark.tuning._tune import check_calls, tune
    from meshlab.mesh._mesh import as_mesh

    if launched_as() is not None:
        raise BenchError(
            "tune starts its own ranks several times, so it cannot run under mpiexec or srun",
            hint="start it as a single process",
        )
    folder = Path(options.out) if options.out else None
    if folder is not None and (folder / _SAVED).exists() and not options.force:
        raise BenchError(f"the folder {folder} holds another tuning", hint="choose another folder, or pass --force")
    mesh = as_mesh(options.mesh, fill=options.ranks)
    devices = gpus_of(options.gpus)
    # Check all input before any process starts.
    calls = {name: getattr(options, name) for name in ("axis", "sizes", "dtype", "op")}
    check_calls(mesh, options.collectives, **calls)
    trouble: MeshlabError | KeyboardInterrupt | None = None
    tuning: Tuning | None = None
    with opened_engines(
        mesh.world_size, options.backend, joins=False, timeout_s=options.timeout_s, devices=devices
    ) as engines:
        assert engines is not None
        print(f"{mesh.world_size} ranks, {engines.ranks[0].capabilities.library}", flush=True)
        try:
            tuning = tune(
                engines,
                mesh,
                options.collectives,
                **calls,
                in_place=not options.out_of_place,
                options=options.options,
                rounds=options.rounds,
                budget_s=options.seconds,
                confirm=not options.no_confirm,
            )
        except (EngineError, KeyboardInterrupt) as error:  # what was measured so far is part of the error
            trouble, tuning = error, getattr(error, "measured", None)
            if tuning is None:
                raise
    if trouble is not None:
        print_error("interrupted" if isinstance(trouble, KeyboardInterrupt) else error_text(trouble))
    if tuning is not None and options.redact:
        tuning = tuning.redacted()
    print(fitted(tuning))
    if folder is not None and tuning is not None:
        for path in write_folder(tuning, folder):
            print(path)
    return OK if trouble is None else INTERRUPTED if isinstance(trouble, KeyboardInterrupt) else FAILED


def write_folder(tuning: Tuning, folder: Path) -> list[Path]:
    """Write a tuning with everything that programs can use of it, completely or not at all. Return the files."""
    from meshlab.base._folders import staged_folder
    from meshlab.frames._files import without_formulas
    from meshlab.report._report import Report

    with staged_folder(folder, pointer=_SAVED, replaces=_OTHERS) as stage:
        tuning.save(stage / _SAVED)
        without_formulas(tuning.frame()).to_csv(stage / "tuning.csv", index=False)
        names = [_SAVED, "tuning.csv"]
        if tuning.lines:
            Report(tuning).save(stage / "tuning.html")
            (stage / "tuning.env").write_text(str(tuning.to_env()), encoding="utf-8")
            names += ["tuning.html", "tuning.env"]
        if tuning.lines and tuning.is_on_nccl:
            try:
                (stage / "tuned.py").write_text(tuning.to_python(), encoding="utf-8")
                names.append("tuned.py")
            except BenchError as error:  # nothing but environment variables is faster
                print_error(error_text(error))
            config = tuning.to_tuner_config()
            if config.lines:
                config.save(stage / "nccl_tuner.conf")
                names.append("nccl_tuner.conf")
    return [folder / name for name in names]


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_collectives(parser)
    parser.add_argument("--mesh", required=True, help='for example "dp=2, tp=2"; the last axis varies fastest')
    parser.add_argument("--axis", required=True, help="the axis whose groups are measured")
    add_ranks(parser)
    add_sizes(parser, None, "8:1G on GPUs, 8:16M elsewhere")
    parser.add_argument("--dtype", default="float32", help="element type (default: %(default)s)")
    parser.add_argument("--op", default="sum", help="reduce operation (default: %(default)s)")
    parser.add_argument("--out-of-place", action="store_true", help="use different buffers for input and output")
    parser.add_argument(
        "--options",
        metavar="NAMES",
        help="options to vary, separated by commas, such as buffers,max_ctas (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="rounds per size (default: %(default)s)")
    parser.add_argument("--seconds", type=float, metavar="S", help="time limit of the search and its confirmation")
    parser.add_argument("--no-confirm", action="store_true", help="do not measure the fastest options on new ranks")
    add_gpus(parser)
    add_out(parser, "DIR", "output folder: the tuning, its table and report, and files for programs")
    add_redact(parser)
    parser.add_argument("--force", action="store_true", help="replace another tuning in the folder")
    add_start(parser)


TUNE = Command(
    "tune",
    "find the fastest option of each message size",
    "Options of NCCL (buffers, algorithm, protocol, thread blocks) or algorithms of MPICH are measured in turns. An "
    "option is chosen if it is clearly faster than the default, also on new ranks. Prints the choice. With --out, also "
    "writes it (tuning.json), its table (tuning.csv) and report (tuning.html), the best environment for all sizes "
    "(tuning.env), and for NCCL a module for nccl4py (tuned.py) and a file for NCCL's example tuner plugin "
    "(nccl_tuner.conf).",
    _run,
    _add_options,
)
