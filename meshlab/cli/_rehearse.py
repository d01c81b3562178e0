"""The command ``meshlab rehearse``: rehearse the communication of a training step."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshlab.base._errors import BenchError, EngineError, MeshError
from meshlab.cli._arguments import Command, add_out, add_ranks, add_start
from meshlab.cli._fitting import fitted
from meshlab.cli._jobs import job_fields, job_hints
from meshlab.cli._output import FAILED, OK, error_text, print_error, print_text, write_csv
from meshlab.cli._ranks import check_choice, opened_engines, system_label
from meshlab.engines._launchers import launched_as


def _run(options: argparse.Namespace) -> int:
    """Rehearse the communication of a training step on one or several layouts."""
    from meshlab.benchmark.rehearsal._rehearse import rehearse
    from meshlab.engines._checks import check_mesh_size
    from meshlab.mesh._mesh import as_mesh
    from meshlab.prediction._job import Job

    if options.out and Path(options.out).suffix != ".csv":
        raise BenchError(f"--out {options.out} must end in .csv")
    if options.out and not Path(options.out).parent.is_dir():
        raise BenchError(f"--out {options.out} is in a folder that does not exist", hint="create it first")
    process = launched_as()
    if process is not None:
        check_choice(process[1], options.ranks)
    n = options.ranks if process is None else process[1]
    meshes = [as_mesh(text, fill=n) for text in options.mesh]
    if n is None:
        n = meshes[0].world_size
        if any(mesh.world_size != n for mesh in meshes):
            texts = [f"{mesh} has {mesh.world_size}" for mesh in meshes]
            raise MeshError(f"the layouts need the same number of ranks: {', '.join(texts)}", hint="change a mesh")
    for mesh in meshes:
        check_mesh_size(mesh, n)
    changes = job_fields(options.set)
    with job_hints():
        job = Job.preset(options.job, **changes)
        for mesh in meshes:  # before any process starts
            job.step(mesh, options.experts)
    with opened_engines(n, options.backend, joins=process is not None, timeout_s=options.timeout_s) as engines:
        if engines is None:
            return OK
        print_text(fitted(f"{system_label(engines)}: {job.title}"))
        try:
            rehearsal = rehearse(
                engines,
                meshes,
                job,
                experts=options.experts,
                scale=options.scale,
                size_scale=options.size_scale,
                compute=options.compute,
                tflops=options.tflops,
                rounds=options.rounds,
                steps=options.steps,
            )
        except EngineError as error:
            print_error(error_text(error))
            if error.measured is not None:
                print_text(fitted(error.measured))
            return FAILED
    print_text(fitted(rehearsal))
    if options.out:
        write_csv(Path(options.out), rehearsal.frame())
        print_text(f"frame: {options.out}")
    return FAILED if (rehearsal.frame()["n_wrong"].fillna(0) > 0).any() else OK


def _auto_or_number(text: str) -> float | str:
    """Parse a number, or the word auto."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("job", help="a preset, such as llama3-8b; an unknown name lists them")
    add("--mesh", action="append", required=True, help="a layout; repeat it to compare several")
    add("--experts", metavar="MESH", help='the layout of the experts, such as "edp=2, ep=4"')
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the job, such as global_batch=64")
    add_ranks(parser)
    add("--rounds", type=int, default=6, metavar="N", help="rounds (default: %(default)s)")
    add("--steps", type=int, default=5, metavar="N", help="steps per round (default: %(default)s)")
    add("--scale", type=_auto_or_number, default="auto", help="part of a step to run (default: %(default)s)")
    add("--size-scale", type=_auto_or_number, default="auto", help="size of the messages (default: %(default)s)")
    add(
        "--compute", choices=("auto", "products", "wait"), default="auto", help="the computation (default: %(default)s)"
    )
    add("--tflops", type=float, default=400.0, metavar="X", help="rate of waits, in TFLOP/s (default: %(default)g)")
    add_out(parser, "FILE", "write the frame as CSV")
    add_start(parser)


REHEARSE = Command(
    "rehearse",
    "rehearse the communication of a training step",
    "Runs the collectives of a training job with its volumes and in its order, with matrix products between them on "
    "GPUs and waits otherwise, and prints the exposed and hidden time of each axis. Several meshes are measured in "
    "turns and compared. Long steps are shortened to a few layers and micro-batches, and extrapolated.",
    _run,
    _add_options,
)
