"""Explore GPU collectives: design a mesh, benchmark its groups, and find out what slows a job down.

Write ``ml.`` before a name, as in ``ml.DeviceMesh("dp=2, tp=2")``. Its ``help()`` has examples.

Describe a job
    DeviceMesh    ranks with named axes: from text, or .read() of a framework's flags or config
    Group         the ranks of a group, mesh["tp"][0]; mesh.plot() draws them
    Job           a model and its batch: Job.preset("llama3-70b")
    Traffic       the bytes between the ranks of an uneven all-to-all: Traffic.zipf(1.2)

Describe a machine
    preset        a machine by its name: preset("dgx-h100", nodes=4)
    probe         this machine; probe().health() lists its problems, each with a fix
    Cluster       hosts, GPUs and links; topology.read() reads nvidia-smi, rocm-smi, XML, Slurm
    place         put a mesh on a machine: which links every group uses

Decide, without ranks
    Workbench     design machine, mesh and job interactively
    predict       time and bandwidth of calls, and the bound of the hardware
    search        the best layouts of a job on a machine
    calibrate     fit predictions to your measurements

Measure, on running ranks
    launch        start ranks: NCCL on GPUs, otherwise MPI
    attach        use engines that another process started
    Engines       run functions on all ranks, and own torch code: .torch(mesh), .profile(step, mesh)
    bench         collectives or your own function, with intervals and checked results
    bench_pairs   every pair of ranks, to find a slow link
    tune          the fastest options of NCCL
    compare_env   environment variables of NCCL or MPI, in turns
    rehearse      the communication of a whole training step
    acceptance    the check of a new machine, from its hosts to its report
    Run, Plan, Sampling    a measurement, what it measures, and how often

Understand numbers, logs and traces
    read          any file: a log, a trace, a run, a config, a machine
    judge         is a number normal? compares with published runs
    explain       a pasted log or error: what is wrong, and what to do
    compare       two runs: faster, slower or unclear
    Trace         the collectives of a training job by axis, from profiler traces
    Report        a page with verdict, numbers and figures: Report(run).save("report.html")
    example       results and a tuning of real GPUs, to try all of this
    describe      the columns of the frames
    MeshlabError  base of all errors; each has a hint, and .explain()

Namespaces for more
    plot, widgets         figures of every value, and interactive views
    mesh, topology        values of meshes and machines, readers and writers
    prediction, analysis  cost models; contention, stragglers, published curves
    engines, benchmark    more ways to start ranks and to measure: compare_now, overlap
    runs, nccl_tests      saved runs; logs of nccl-tests
    diagnosis, comm       rules of explain(); communicators and their options
    errors                all exceptions

>>> import meshlab as ml
>>> mesh = ml.DeviceMesh("dp=2, tp=2")
>>> with ml.launch(4, backend="threads") as engines:
...     checks = engines.verify(mesh)
...     results = ml.bench(engines, mesh, axis="tp", sizes="1K:4K").wait()
>>> bool(checks["is_right"].all()), results["status"].unique().tolist()
(True, ['ok'])
"""

from typing import Any

import lazy_loader

# Every import of a part of meshlab runs this line, before a method can need its implementation.
from meshlab import _implementations as _implementations

# Exceptions name this module as theirs. If it is not imported, cloudpickle copies their classes into what it sends, and
# a function of the user does not catch them on a rank.
from meshlab import errors as errors
from meshlab.frames._display import register as _register_display

# The names are listed once, in the stub next to this file, and imported when they are first used. So
# `import meshlab` stays light, and type checkers see the real signatures.
_getattr, _dir, _names = lazy_loader.attach_stub(__name__, __file__)

__all__ = sorted({*_names, "plot"} - {"plots"})

# Names that dir() leaves out, because other names lead to them: functions on ranks receive a communicator, and Plan,
# Sampling, Trace and describe are at the top.
_LEFT_OUT = {"Communicator", "__version__", "frames", "plans", "traces"}

_register_display()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    # The folder is meshlab.plots; the namespace is `plot`, so that calls read `ml.plot.bandwidth(run)`.
    return _getattr("plots" if name == "plot" else name)


def __dir__() -> list[str]:
    """Return the names to choose from, and the attributes that every module has."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__} - _LEFT_OUT)
