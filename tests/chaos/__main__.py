"""Run the chaos test by hand: ``python -m tests.chaos --seed 1 --faults 200``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.chaos.faults import CLIENTS, KINDS, MOMENTS, TARGETS, draw
from tests.chaos.harness import Settings, attack_all
from tests.chaos.judging import HANG_S, NOTICE_S, summarise, to_frame


def main() -> int:
    """Attack, print one line per fault and the counts, and return 1 if a fault was not handled well."""
    choices = {"kinds": KINDS, "targets": TARGETS, "moments": MOMENTS}
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=20, help="the number of faults")
    parser.add_argument("--first", type=int, default=0, help="the number of the first fault, to repeat a part")
    parser.add_argument("--backend", choices=("mpi", "gloo", "nccl", "threads"), default="mpi")
    parser.add_argument("--ranks", type=int, help="by default 4, or 2 for nccl")
    parser.add_argument("--devices", help="for nccl: the GPU of each rank, such as 0,0")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE, an environment variable of the ranks")
    for name, known in choices.items():
        parser.add_argument(f"--{name}", default="", help=f"some of {', '.join(known)}; separated by commas")
    parser.add_argument("--deadline", type=float, help="seconds until ranks are considered stuck")
    parser.add_argument("--timeout", type=float, help="seconds for a start")
    parser.add_argument("--step", type=float, default=0.15, help="seconds per step of a benchmark")
    parser.add_argument("--hang", type=float, default=HANG_S, help="seconds that anything but a start may take")
    parser.add_argument("--notice", type=float, default=NOTICE_S, help="seconds until a rank lost in a start is named")
    parser.add_argument("--client", choices=(*CLIENTS, "mixed"), default="mixed", help="the process that is attacked")
    parser.add_argument("--torch", action="store_true", help="let the ranks call collectives of torch too")
    parser.add_argument("--out", type=Path, help="a file for the rows, .csv or .parquet")
    given = parser.parse_args()
    is_nccl = given.backend == "nccl"
    settings = Settings(
        given.backend,
        given.ranks or (2 if is_nccl else 4),
        tuple(int(number) for number in given.devices.split(",")) if given.devices else (),
        dict(one.split("=", 1) for one in given.env) or None,
        given.deadline or (8.0 if is_nccl else 6.0),
        given.timeout or {"nccl": 60.0, "gloo": 30.0}.get(given.backend, 14.0),  # libraries that load for seconds
        given.step,
        given.hang,
        notice_s=given.notice,
        torch=given.torch,
    )
    chosen = {name: tuple(filter(None, getattr(given, name).split(","))) for name in choices}
    if is_nccl and not any(chosen.values()):
        chosen = {
            "kinds": ("kill", "stop", "raise", "stay_away"),
            "targets": ("rank",),
            "moments": ("step", "between", "graph"),
        }
    for name, known in choices.items():
        if unknown := set(chosen[name]) - set(known):
            parser.error(f"unknown {name}: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    numbers = range(given.first, given.first + given.faults)
    options = {"backend": given.backend, "ranks": settings.ranks, "client": given.client, **chosen}
    faults = [draw(given.seed, number, **options) for number in numbers]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the harness ends what it has started
    rows = []
    for fault, row in zip(faults, attack_all(settings, faults, given.seed), strict=True):
        rows.append(row)
        print(f"{'ok ' if row['is_good'] else 'BAD'} {fault.number:3} {row['seconds']:5.1f} s  {fault}", flush=True)
        for name in ("late", "hang", "orphans", "left_files", "lost_rows", "recovery_error", "stacks"):
            if row[name]:
                print(f"        {name}: {row[name]}", flush=True)
        if row["error"] or not row["named_right"]:
            verdict = "" if row["named_right"] else "WRONG: "
            print(f"        {verdict}named {row['named'] or 'nothing'}: {row['error']}", flush=True)
        if given.out is not None:  # after every fault, because it may be the last one
            frame = to_frame(rows)
            frame.to_parquet(given.out) if given.out.suffix == ".parquet" else frame.to_csv(given.out, index=False)
    frame = to_frame(rows)
    print(f"\n{summarise(frame)}")
    return int(not frame["is_good"].all())


if __name__ == "__main__":
    raise SystemExit(main())
