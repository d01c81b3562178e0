"""Run all of meshlab on meshes over all GPUs of this machine, and save the output.

    python -m tests.gpu.real_meshes --out FOLDER "dp=2, tp=2" "dp=4"

For each mesh: placement, verified groups, a sweep of all collectives along every axis, groups together and alone, two
concurrent axes if the backend supports them, a killed rank and the recovery; with GPUs also the overlap with a matrix
product. Then all pairs of ranks. `--backend mpi --ranks 4` runs without GPUs, and `--build` adds nccl-tests.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pandas as pd

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError
from meshlab.comm._catalog import CATALOG
from meshlab.commissioning._doctor import checks_text, run_checks
from tests.gpu.side_by_side import PROGRAMS

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NAMES = [row.name for row in CATALOG.values() if row.is_measurable]
QUICK = ml.Sampling(max_s=0.1)
DEADLINE_S = 120.0


def die_in_a_collective(comm: Any) -> None:
    """Call all_reduce repeatedly, until the last rank of the world kills itself."""
    x = comm.xp.ones(1 << 20)
    for round_number in range(100_000):
        comm.all_reduce(x, x, op="max")
        if round_number == 200 and comm.world_rank == comm.ranks[-1] and comm.ranks[-1] % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if round_number % 50 == 0:
            comm.barrier()


def recover(engines: ml.Engines, mesh: ml.DeviceMesh) -> dict[str, Any]:
    """Kill a rank in the middle of a collective along the fastest axis; return the times to detection and recovery."""
    before = {info.rank: info.pid for info in engines.ranks}
    begin = time.monotonic()
    try:
        engines.run(die_in_a_collective, mesh, axis=mesh.axis_names[-1], deadline_s=10)
    except EngineError as error:
        message = str(error)
    else:
        raise AssertionError("the death of a rank was not detected")
    known = time.monotonic()
    engines.restart()
    again = time.monotonic()
    is_right = bool(engines.verify(mesh)["is_right"].all())
    return {
        "mesh": str(mesh),
        "known_s": known - begin,
        "restart_s": again - known,
        "verified_s": time.monotonic() - again,
        "is_right": is_right,
        "replaced": sum(before[info.rank] != info.pid for info in engines.ranks),
        "message": message,
    }


def finish(run: ml.Run) -> pd.DataFrame:
    """Wait for a run, and print the rows that failed or are wrong."""
    results = run.wait(500, progress=False)
    bad = results[~results["status"].isin(["ok", "skipped"]) | (results["n_wrong"].fillna(0) > 0)]
    if len(bad):
        print(bad[["collective", "axis", "group", "size_bytes", "status", "n_wrong", "stop_reason"]].to_string())
    return results


def go_through(engines: ml.Engines, mesh: ml.DeviceMesh, cluster: ml.Cluster, sizes: str, out: Path) -> dict[str, Any]:
    """Run every part on one mesh, and print a line with the elapsed time after each."""
    out.mkdir(parents=True, exist_ok=True)
    is_gpu = engines.backend == "nccl"
    modes = ["graph", "pipelined"] if is_gpu else ["pipelined"]
    axes = [axis.name for axis in mesh.axes if axis.size > 1]
    began = time.monotonic()

    def note(what: str) -> None:
        print(f"{mesh} · {what}: {time.monotonic() - began:.0f} s", flush=True)

    groups = engines.verify(mesh)
    groups.to_csv(out / "verified.csv", index=False)
    if cluster.n_devices >= mesh.world_size:
        placement = ml.place(mesh, cluster)
        (out / "placement.txt").write_text(placement.explain() + "\n")
    note(f"{len(groups)} groups verified")

    plan = ml.Plan(NAMES, axes, sizes=sizes, mode=modes, sampling=QUICK)
    sweep = ml.bench(engines, mesh, plan, deadline_s=DEADLINE_S)
    finish(sweep).to_csv(out / "sweep.csv", index=False)
    shown = cluster if cluster.n_devices >= mesh.world_size else None
    ml.Report(sweep, cluster=shown, redact=True).save(out / "report.md", pictures=True)
    note("sweep")

    plan = ml.Plan("all_reduce", axes, sizes="1M, 64M", mode=modes[-1], grouping=["together", "alone"], sampling=QUICK)
    alone = ml.bench(engines, mesh, plan, deadline_s=DEADLINE_S)
    finish(alone)
    alone.contention().to_csv(out / "contention.csv", index=False)
    note("contention")

    if len(axes) > 1:
        concurrent = {axes[0]: "reduce_scatter"}
        try:
            plan = ml.Plan("all_reduce", axes[-1], sizes="1M, 64M", concurrent=concurrent, sampling=QUICK)
            both = ml.bench(engines, mesh, plan, deadline_s=DEADLINE_S)
        except BenchError as error:
            print(error)
        else:
            finish(both)
            both.interference().to_csv(out / "interference.csv", index=False)
        note("concurrent axes")
    if is_gpu:
        overlap = [ml.benchmark.overlap(engines, mesh, axis=axis, sizes="16M, 256M") for axis in axes]
        pd.concat(overlap).to_csv(out / "overlap.csv", index=False)
        note("overlap")
    times = recover(engines, mesh)
    note("killed and recovered")
    return times


def pairs(engines: ml.Engines, n: int, out: Path) -> None:
    """Measure every pair of ranks."""
    mesh = ml.DeviceMesh(all=n)
    run = ml.bench_pairs(engines, mesh, axis="all", sizes="64M", sampling=QUICK)
    finish(run)
    run.matrix().to_csv(out / "pairs.csv")
    figure = ml.plot.matrix(run).figure
    figure.savefig(out / "pairs.png", dpi=144)


def yardstick(build: Path, n: int, sizes: str) -> pd.DataFrame:
    """Run nccl-tests over all GPUs, with and without graphs."""
    first, last, factor = re.split(r"[:*]", sizes)
    parts = []
    for program in PROGRAMS.values():
        for extra in ([], ["-G", "20"]):
            command = [str(build / program), "-b", first, "-e", last, "-f", factor, "-t", str(n), "-g", "1"]
            done = subprocess.run(
                [*command, "-c", "0", *extra], capture_output=True, text=True, timeout=300, check=True
            )
            parts.append(ml.nccl_tests.read(done.stdout).results)
    return pd.concat(parts, ignore_index=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("meshes", nargs="+", help='for example "dp=2, tp=2"')
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--ranks", type=int, help="number of ranks (default: one per GPU)")
    parser.add_argument("--backend", default="nccl", choices=["nccl", "mpi"])
    parser.add_argument("--sizes", default="8:1G*8")
    parser.add_argument("--build", type=Path, help="build folder of nccl-tests")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    cluster = ml.probe()
    (out / "doctor.txt").write_text(checks_text(run_checks()) + "\n")
    (out / "health.txt").write_text("\n".join(map(str, cluster.health())) + "\n")
    (out / "links.txt").write_text(pd.DataFrame(cluster.link_words()).to_string() + "\n")
    cluster.frame().drop(columns=["uuid", "node"], errors="ignore").to_csv(out / "devices.csv", index=False)
    n = options.ranks or cluster.n_devices
    with ml.launch(n, backend=options.backend) as engines:
        print(engines.where)
        faults = []
        for text in options.meshes:
            mesh = ml.DeviceMesh(text)
            folder = out / re.sub(r"\W+", "_", str(mesh))
            faults.append(go_through(engines, mesh, cluster, options.sizes, folder))
            pd.DataFrame(faults).to_csv(out / "faults.csv", index=False)
        pairs(engines, n, out)
    if options.build:
        yardstick(options.build, n, options.sizes).to_csv(out / "nccl_tests.csv", index=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
