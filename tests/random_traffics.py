"""Send random traffics over real ranks, and check every element of every result.

    python -m tests.random_traffics --backend mpi --ranks 4 --number 10000 --seed 1

Rows and columns may be empty, and the chunks have from 0 to a few thousand elements of several types. The exit code is
1 if an element is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

import meshlab as ml
from meshlab.benchmark.on_ranks._step_calls import set_up_step
from meshlab.comm._communicator import Communicator
from meshlab.plans._steps import Step

DTYPES = ("float32", "int8", "float64", "bfloat16", "int64")
BATCH = 200


def random_traffic(random: np.random.Generator, n: int) -> ml.Traffic:
    """Return a matrix of bytes, in which some cells, rows or columns are empty."""
    most = int(random.choice([16, 256, 4096, 65536]))
    table = random.integers(0, most, (n, n)) * (random.random((n, n)) < random.choice([0.2, 0.6, 1.0]))
    table[random.random(n) < 0.15] = 0
    table[:, random.random(n) < 0.15] = 0
    if not (table >= 16).any():
        table[0, -1] = 16
    return ml.Traffic.matrix(table)


def check(comm: Communicator, steps: list[Step]) -> list[int]:
    """Return the number of wrong elements of this rank for each step."""
    return [set_up_step(comm, step, check=True)[1] or 0 for step in steps]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="threads")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random, began, n_checked, n_wrong = np.random.default_rng(options.seed), time.monotonic(), 0, 0
    mesh = f"ep={options.ranks}"
    with ml.launch(options.ranks, backend=options.backend) as engines:
        while n_checked < options.number:
            steps = []
            for index in range(min(BATCH, options.number - n_checked)):
                traffic = random_traffic(random, options.ranks).named(f"random {index}")
                dtype = str(random.choice(DTYPES))
                steps += ml.Plan("all_to_all_v", "ep", sizes="1K", traffic=traffic, dtype=dtype).steps(mesh)
            replies = engines.run(check, mesh, axis="ep", arguments=(steps,), deadline_s=120)
            wrong = np.array(list(replies["value"])).sum(axis=0)
            n_wrong += int((wrong > 0).sum())
            n_checked += len(steps)
    print(f"{n_wrong} of {n_checked:,} traffics wrong on {options.backend}, {time.monotonic() - began:.0f} s")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
