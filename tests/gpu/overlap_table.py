"""What a collective and a matrix product cost each other on GPUs, by option, and whether a tuning finds the best pair.

    python tests/gpu/overlap_table.py --out FOLDER

Every option of a list is measured beside a float16 product: the exhaustive search. Then `tune(beside=...)` chooses, and
its choice is compared with the best of the list in the same rounds of a further measurement.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import meshlab as ml

CHOICES = [
    {"buffers": "symmetric"},
    {"buffers": "symmetric", "cta_policy": "zero"},
    {"buffers": "symmetric", "max_ctas": 8},
    {"buffers": "symmetric", "max_ctas": 16},
    {"max_ctas": 8},
    {"max_ctas": 16},
]
OLD = [{"buffers": "symmetric"}, {"setting": "at most 8 CTAs"}]
COLUMNS = ["compute_us", "communication_us", "both_us", "exposed_us", "compute_slowdown", "communication_slowdown"]


def as_choice(row: Any) -> dict[str, Any]:
    """Return the option of a row as an argument of `overlap`."""
    names = ("setting", "buffers", "algorithm", "protocol", "min_ctas", "max_ctas", "cta_policy")
    values = {name: row[name] for name in names if row[name] is not None and row[name] == row[name]}
    return {name: int(value) if name.endswith("ctas") else value for name, value in values.items()}


def judge(engines: ml.Engines, mesh: str, tuning: Any, table: Any, arguments: dict[str, Any], matrix: Any) -> None:
    """Measure the choice of a tuning and the best listed option of each call in the same rounds."""
    for row in tuning.frame().astype(object).where(tuning.frame().notna(), None).to_dict("records"):
        mask = table["collective"].eq(row["collective"]) & table["size_bytes"].eq(row["size_bytes"])
        rows = table[mask & table["status"].eq("ok")]
        if rows.empty:
            print(f"{row['collective']} {row['size_bytes'] >> 10} KiB: not in the list, tune chose {row['option']}")
            continue
        best = rows.loc[rows["both_us"].idxmin()]
        options = [as_choice(best.astype(object).where(best.notna(), None)), as_choice(row)]
        again = ml.benchmark.overlap(
            engines,
            mesh,
            collectives=row["collective"],
            sizes=row["size_bytes"],
            matrix=matrix,
            options=[option for option in options if option != {"buffers": "plain"}],
            **arguments,
        )
        times = dict(zip(again["option"], again["both_us"], strict=True))
        ratio = times[row["option"]] / min(times.values())
        print(
            f"{row['collective']} {row['size_bytes'] >> 10} KiB: tune chose {row['option']} ({row['verdict']}), "
            f"best of the list {best['option']}; the choice takes {ratio:.3f} of the best pair; "
            f"exposed {row['exposed_us']:.0f} of {row['alone_us']:.0f} us alone",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--collectives", nargs="*", default=["all_reduce", "all_gather", "reduce_scatter"])
    parser.add_argument("--sizes", default="16M, 128M")
    parser.add_argument("--matrix", type=int, default=8192)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--first", choices=["call", "product"], default="call")
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--tuned", nargs="*", default=["all_reduce", "all_gather"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    mesh = f"tp={options.ranks}"
    arguments: dict[str, Any] = {"axis": "tp", "dtype": options.dtype, "rounds": options.rounds, "first": options.first}
    with ml.launch(options.ranks, backend=options.backend) as engines:
        can = engines.capabilities()
        per_call = can.facts.get("algorithm choice per call") == "yes"
        is_gpu = options.backend == "nccl"
        choices = (CHOICES if per_call else OLD) if is_gpu else None
        print(f"{engines.where}, started after {time.monotonic() - begin:.1f} s", flush=True)
        table = ml.benchmark.overlap(
            engines,
            mesh,
            collectives=options.collectives,
            sizes=options.sizes,
            matrix=options.matrix,
            options=choices,
            **arguments,
        )
        table.insert(0, "library", can.library)
        table.insert(1, "first", options.first)
        table.to_csv(options.out / "overlap.csv", index=False)
        print(
            table[["collective", "size_bytes", "option", *COLUMNS, "gain", "gain_lo", "gain_hi"]].round(3).to_string()
        )
        print(table.loc[table["status"].ne("ok"), ["collective", "option", "status", "message"]].to_string())
        for sentence in table.attrs["verdicts"]:
            print(sentence)
        print(table.attrs["verdict"])
        print(f"{time.monotonic() - begin:.1f} s until the table", flush=True)
        (options.out / "overlap.svg").write_text(ml.plot.figure_svg(ml.plot.overlap(table).figure))
        if not options.tuned:
            return 0
        tuning = ml.tune(
            engines,
            mesh,
            options.tuned,
            axis="tp",
            sizes=options.sizes,
            beside=(options.matrix,) * 3,
            in_place=False,
            budget_s=40.0,
            progress=False,
            options=None if per_call or not is_gpu else "buffers",
        )
        tuning.save(options.out / "tuning-beside.json")
        print(tuning)
        print(
            f"exposed share {tuning.exposed_share():.2f}; {time.monotonic() - begin:.1f} s until the tuning", flush=True
        )
        judge(engines, mesh, tuning, table, arguments, options.matrix)
    print(f"{time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
