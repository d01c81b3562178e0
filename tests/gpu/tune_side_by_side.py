"""Tune on two GPUs, and compare the tuned calls with nccl-tests in the same minutes.

    python tests/gpu/tune_side_by_side.py --build NCCL_TESTS/build --out FOLDER

First all collectives are tuned. Then nccl-tests with its default buffers, nccl-tests with symmetric windows (``-R 2``),
the default of meshlab and the tuned calls take turns, three times. All of them replay graphs of twenty calls. The
tuning, its trials and the table of all times are written after each part, so that an interrupted run loses little.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.benchmark.on_ranks._buffers import StepBuffers, release_buffers
from meshlab.benchmark.on_ranks._step_calls import prepare_step, set_up_step
from meshlab.benchmark.tuning._options import TuningOption, chooses_per_call
from meshlab.comm._catalog import CATALOG
from meshlab.frames._trials import OPTION, option_key
from meshlab.plans._steps import Step

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "all_to_all": "alltoall_perf",
    "send_recv": "sendrecv_perf",
}
MAIN, OTHERS = ("all_reduce", "all_gather", "reduce_scatter"), ("all_to_all", "broadcast", "send_recv")
CALLS, SMALL = 20, 1 << 20  # -n and -G of nccl-tests; bytes up to which a batch replays twenty graphs
GOAL, GOAL_BYTES = 0.85, 16 << 20
SIDES = ("nccl_tests_r0", "nccl_tests_r2", "meshlab_default", "tuned")

began = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)


# -- nccl-tests --------------------------------------------------------------------------------------------------------


def theirs(build: Path, name: str, n: int, sizes: str, registration: int, timeout: float) -> dict[int, float]:
    first, last, factor = sizes.replace("*", ":").split(":")
    command = [str(build / PROGRAMS[name]), "-b", first, "-e", last, "-f", factor, "-t", str(n), "-g", "1"]
    command += ["-n", str(CALLS), "-w", "5", "-c", "0", "-G", str(CALLS), "-R", str(registration)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(timeout, 10))
    if done.returncode:
        say(f"{name} -R {registration} failed: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
        return {}
    frame = ml.nccl_tests.read(done.stdout).results
    wanted = frame["in_place"].fillna(False).astype(bool) == CATALOG[name].in_place
    frame = frame[wanted & (frame["size_bytes"] > 0)].drop_duplicates("size_bytes")
    return dict(zip(frame["size_bytes"].astype(int), frame["time_us"].astype(float), strict=True))


# -- meshlab -----------------------------------------------------------------------------------------------------------


def time_steps(comm: ml.Communicator, steps: Sequence[Step], tuning: Tuning | None) -> list[np.ndarray]:
    """Time calls in graphs: with the options of the steps, or as the tuning chooses them on its own memory."""
    found = []
    with comm.backend.local(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = block = None
        if tuning is not None:
            chosen = tuning.apply(comm)
            block = chosen.empty(max(2 * step.buffer_bytes for step in steps), "uint8")
        for step in steps:
            if chosen is None:
                call, _ = set_up_step(comm, step, False)
            else:
                call = prepare_step(chosen, step, buffers_in(block, comm, step))
            calls = CALLS * CALLS if (step.size_bytes or 0) <= SMALL else CALLS
            with call.held("graph", calls) as measure:
                measure(1)
                found.append(measure(3 if calls > CALLS else 10).time_us)
    return found


def buffers_in(block: Any, comm: ml.Communicator, step: Step) -> StepBuffers:
    """The buffers of a step in one block, in place if the collective can be."""
    row, count = CATALOG[step.collective], step.count or 0
    n_send, n_out = row.elements("sends", count, comm.size), row.elements("receives", count, comm.size)
    elements = block[: 4 * (block.size // 4)].view(step.dtype)
    if not step.in_place:
        start = -(-n_send // 4096) * 4096
        return StepBuffers(elements[:n_send], elements[start : start + n_out])
    larger = elements[: max(n_send, n_out)]
    own = larger[comm.rank * count :][:count]
    return StepBuffers(own if n_send < n_out else larger, own if n_out < n_send else larger)


def slowest(engines: ml.Engines, mesh: ml.DeviceMesh, steps: Sequence[Step], tuning: Tuning | None) -> dict[int, float]:
    values = engines.run(time_steps, mesh, axis="tp", arguments=(list(steps), tuning), deadline_s=120)["value"]
    by_step = zip(*values, strict=True)
    return {
        step.size_bytes or 0: float(np.median(np.max(np.stack(times), axis=0)))
        for step, times in zip(steps, by_step, strict=True)
    }


class Ours:
    """The calls of one collective: with their default, and as tuned."""

    def __init__(self, mesh: ml.DeviceMesh, tuning: Tuning, name: str) -> None:
        self.mesh, self.tuning = mesh, tuning
        frame = tuning.frame()
        self.rows = frame[frame["collective"] == name].set_index("size_bytes", drop=False)
        in_place = CATALOG[name].in_place
        sizes = [int(size) for size in self.rows.index]
        self.steps = ml.Plan(name, "tp", sizes=sizes, mode="graph", in_place=in_place).steps(mesh)

    def options(self) -> dict[int, TuningOption]:
        return {int(row["size_bytes"]): TuningOption(*option_key(row)) for row in self.rows.to_dict("records")}

    def default(self, engines: ml.Engines) -> dict[int, float]:
        return slowest(engines, self.mesh, self.steps, None)

    def tuned(self, engines: ml.Engines, n: int) -> dict[int, float]:
        options = self.options()
        if chooses_per_call(engines.ranks[0].capabilities) and hasattr(ml.Communicator, "chosen_by_size"):
            return slowest(engines, self.mesh, self.steps, self.tuning)
        # Before NCCL 2.31 one array cannot be plain for some calls and a window for others, and an environment needs
        # its own ranks.
        found = {}
        for setting in {option.setting for option in options.values()}:
            steps = [
                option.apply_to(step)
                for step in self.steps
                if (option := options[step.size_bytes or 0]).setting == setting
            ]
            if setting is None:
                found |= slowest(engines, self.mesh, steps, None)
            else:
                with ml.launch(n, backend="nccl", env=dict(self.tuning.settings[setting])) as others:
                    found |= slowest(others, self.mesh, steps, None)
        return found


# -- table -------------------------------------------------------------------------------------------------------------


def table_of(times: dict[tuple[str, int, str, int], float], tunings: Sequence[Tuning]) -> pd.DataFrame:
    """One row per collective and size: the repeats of each side, and the tuned option."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for (name, size, side, repeat), time_us in times.items():
        rows.setdefault((name, size), {"collective": name, "size_bytes": size})[f"{side}_{repeat}"] = round(time_us, 3)
    frame = pd.DataFrame(rows.values())
    chosen = pd.concat([tuning.frame() for tuning in tunings], ignore_index=True)
    chosen = chosen[["collective", "size_bytes", *OPTION, "option", "verdict", "gain"]]
    return frame.merge(chosen, on=["collective", "size_bytes"], how="left")


def judge(table: pd.DataFrame) -> list[str]:
    """Return the figures in words: the mean over small sizes, and the sizes at which the tuned call is slower."""
    found = []
    medians, spreads = {}, {}
    for side in SIDES:
        columns = [name for name in table if name.startswith(f"{side}_")]
        if not columns:
            continue
        values = table[columns].astype(float)
        medians[side] = values.median(axis=1)
        spreads[side] = (values.max(axis=1) - values.min(axis=1)) / medians[side]
    if not {"tuned", "nccl_tests_r0"} <= set(medians):
        return ["nothing to compare yet"]
    better = pd.concat([medians[one] for one in SIDES[:2] if one in medians], axis=1).min(axis=1)
    noise = pd.concat(spreads, axis=1)[[one for one in SIDES if one in spreads]].max(axis=1).clip(lower=0.02)
    for name, rows in table.groupby("collective", sort=False).groups.items():
        tuned = medians["tuned"].loc[rows]
        small = table.loc[rows, "size_bytes"] <= GOAL_BYTES
        ratio = (tuned / medians["nccl_tests_r0"].loc[rows])[small].dropna()
        mean = float(np.exp(np.log(ratio).mean())) if len(ratio) else float("nan")
        verdict = "reached" if mean <= GOAL else "missed"
        found.append(f"{name}: mean over {len(ratio)} sizes to 16 MiB {mean:.3f} of nccl-tests -R 0 (0.85 {verdict})")
        for what, other in (("nccl-tests -R 0", medians["nccl_tests_r0"]), ("the better of -R 0 and -R 2", better)):
            excess = tuned / other.loc[rows] - 1
            worse = excess[excess > noise.loc[rows]]
            sizes = ", ".join(f"{table.at[at, 'size_bytes']} B (+{excess[at]:.1%})" for at in worse.index)
            found.append(f"{name}: {f'slower than {what} at {sizes}' if len(worse) else f'nowhere slower than {what}'}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build folder of nccl-tests")
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", default="8:1G*2", help="of the first three collectives")
    parser.add_argument("--few-sizes", default="8:128M*16", help="of the other collectives")
    parser.add_argument("--collectives", nargs="*", default=[*MAIN, *OTHERS])
    parser.add_argument("--limit", type=float, default=530.0, help="seconds after which no further part begins")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    mesh = ml.DeviceMesh(tp=options.gpus)
    sizes = {name: options.sizes if name in MAIN else options.few_sizes for name in options.collectives}
    times: dict[tuple[str, int, str, int], float] = {}
    tunings: list[Tuning] = []

    def left_s() -> float:
        return began + options.limit - time.monotonic()

    def write() -> None:
        if times:
            table = table_of(times, tunings)
            table.to_csv(options.out / "tune_side_by_side.csv", index=False)

    with ml.launch(options.gpus, backend="nccl") as engines:
        say(engines.where)
        for part in (MAIN, OTHERS):
            names = [name for name in options.collectives if name in part]
            if not names or left_s() < 60:
                continue
            begin = time.monotonic()
            # Before NCCL 2.31 many environments need ranks of their own.
            is_quick = chooses_per_call(engines.ranks[0].capabilities)
            budget_s = None if is_quick else options.limit * (0.45 if part == MAIN else 0.12)
            tuning = ml.tune(engines, mesh, names, axis="tp", sizes=sizes[names[0]], budget_s=budget_s, progress=False)
            took = time.monotonic() - begin
            tunings.append(tuning)
            tuning.save(options.out / f"tuning_{part[0]}")
            tuning.trials.to_csv(options.out / f"trials_{part[0]}.csv", index=False)
            say(f"tuned {', '.join(names)} in {took:.0f} s, {len(tuning.trials)} trials")
            print(tuning, flush=True)
            print(tuning.trials.groupby(["launch", "status"]).size().to_string(), flush=True)
            problems = tuning.trials[tuning.trials["status"].isin(["failed", "wrong", "unsupported"])]
            if len(problems):
                print(problems.groupby(["collective", "status", "message"]).size().to_string(), flush=True)
            names_left = names
            for repeat in range(options.repeats):
                for name in names_left:
                    if left_s() < 20:
                        say(f"out of time before repeat {repeat + 1} of {name}")
                        break
                    ours = Ours(mesh, tuning, name)
                    engines.run(release_buffers)
                    sides: list[tuple[str, Any]] = [
                        ("nccl_tests_r0", lambda n=name: theirs(options.build, n, options.gpus, sizes[n], 0, left_s())),
                        ("meshlab_default", lambda one=ours: one.default(engines)),
                        ("tuned", lambda one=ours: one.tuned(engines, options.gpus)),
                        ("nccl_tests_r2", lambda n=name: theirs(options.build, n, options.gpus, sizes[n], 2, left_s())),
                    ]
                    for side, measure in sides[:: -1 if repeat % 2 else 1]:
                        try:
                            found = measure()
                        except (ml.MeshlabError, subprocess.TimeoutExpired) as error:
                            say(f"{name}, {side}: {error}")
                            continue
                        times |= {(name, size, side, repeat + 1): time_us for size, time_us in found.items()}
                    say(f"{name}: repeat {repeat + 1} of {options.repeats}")
                    write()
            if times:
                lines = judge(table_of(times, tunings))
                (options.out / "verdict.txt").write_text("\n".join(lines) + "\n")
                print("\n".join(lines), flush=True)
    if times:
        with pd.option_context("display.width", 250, "display.max_columns", 40, "display.max_rows", 500):
            print(table_of(times, tunings).drop(columns=list(OPTION)).to_string(), flush=True)
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
