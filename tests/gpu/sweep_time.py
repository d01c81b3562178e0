"""Compare the wall time of a sweep with that of nccl-tests on the same machine.

    python tests/gpu/sweep_time.py --build NCCL_TESTS/build

Both measure the same collectives and sizes and check the results. The time to start the engines is printed separately,
because a sweep does not need new ones. nccl-tests starts a program per collective, and measures in place and out of
place.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import meshlab as ml
from meshlab.benchmark import _executor

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
}
LIMITS = {"graph": 1.3, "pipelined": 2.0}  # of the time of nccl-tests


def theirs(build: Path, n: int, sizes: str, mode: str) -> float:
    first, last = sizes.split(":")
    begin = time.monotonic()
    for program in PROGRAMS.values():
        command = [str(build / program), "-b", first, "-e", last, "-f", "2", "-t", str(n), "-g", "1"]
        subprocess.run([*command, *(["-G", "20"] if mode == "graph" else [])], capture_output=True, check=True)
    return time.monotonic() - begin


def explain(run: ml.Run, spent: list[tuple[float, float]], took: float) -> None:
    """Print the time of the steps next to their estimate, by range of sizes."""
    order = [run.steps[index] for index in run.plan.order(len(run.steps), 0)]
    first = 0
    for last in (64 << 10, 4 << 20, 64 << 20, 1 << 40):
        pairs = [pair for step, pair in zip(order, spent, strict=False) if first < (step.size_bytes or 0) <= last]
        if pairs:
            real, expected = (sum(column) for column in zip(*pairs, strict=True))
            each = 1e3 * (real - expected) / len(pairs)
            text = f"{len(pairs)} steps, {real:.2f} s, estimated {expected:.2f} s, {each:+.1f} ms each"
            print(f"    to {last >> 10} KiB: {text}")
        first = last
    steps_s = sum(real for real, _ in spent)
    print(f"    before, between and after the steps: {took - steps_s:.2f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, help="build folder of nccl-tests")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--sizes", default="8:1G")
    parser.add_argument("--modes", nargs="*", default=list(LIMITS))
    parser.add_argument("--samplings", nargs="*", default=["quick", "default"])
    parser.add_argument("--backend", default="nccl")
    options = parser.parse_args()
    spent: list[tuple[float, float]] = []
    work = _executor.Work

    def record(seconds: float, expected_s: float) -> Any:
        spent.append((seconds, expected_s))
        return work(seconds, expected_s)

    _executor.Work = record  # type: ignore[assignment, misc]
    begin = time.monotonic()
    with ml.launch(options.gpus, backend=options.backend) as engines:
        print(f"start: {time.monotonic() - begin:.1f} s, {engines.where}", flush=True)
        for mode in options.modes:
            yardstick = theirs(options.build, options.gpus, options.sizes, mode) if options.build else float("nan")
            print(f"{mode}: nccl-tests {yardstick:.1f} s, limit {LIMITS.get(mode, 1) * yardstick:.1f} s", flush=True)
            for sampling in options.samplings:
                spent.clear()
                begin = time.monotonic()
                run = ml.bench(
                    engines, None, list(PROGRAMS), sizes=options.sizes, mode=mode, sampling=sampling, deadline_s=120
                )
                results = run.wait(600, progress=False)
                took = time.monotonic() - begin
                expected = run.estimate
                measured_s = run.samples.eval("time_us * calls").groupby(run.samples["rank"]).sum().max() / 1e6
                counts = {name: results[name].value_counts().to_dict() for name in ("status", "stop_reason")}
                print(
                    f"  {sampling}: {took:.1f} s for {len(run.steps)} steps, estimated {expected.seconds:.1f} s "
                    f"({expected.min_seconds:.1f} to {expected.max_seconds:.1f}), "
                    f"{measured_s:.1f} s of it measured; {counts}",
                    flush=True,
                )
                explain(run, spent, took)
    return 0


if __name__ == "__main__":
    sys.exit(main())
