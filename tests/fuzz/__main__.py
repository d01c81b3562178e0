"""The fuzzer: ``python -m tests.fuzz --seconds 600 --seed 0`` passes bad inputs to every entry point of meshlab.

An entry point has to return, or to raise a `MeshlabError` with a short message. Anything else is reported with the
smallest input that was found. Set MESHLAB_CASES to a folder with real files, to use them too.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import sys
import time
from pathlib import Path

from tests.fuzz.campaign import Campaign, file_name
from tests.fuzz.entries import ENTRIES
from tests.fuzz.seeds import case_files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="other inputs for each seed (default: %(default)s)")
    parser.add_argument(
        "--entry", action="append", choices=sorted(ENTRIES), help="an entry point; repeat it for several"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the inputs that fail, with their tracebacks")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="pass a saved input (.pickle) again, and raise its error"
    )
    options = parser.parse_args()
    if options.again is not None:
        return again(options.again)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    current = None if options.out is None else options.out / "current.pickle"
    campaign = Campaign(options.seed, tuple(options.entry or ENTRIES), current)
    end = time.monotonic() + options.seconds
    with contextlib.suppress(KeyboardInterrupt):
        campaign.run(lambda: time.monotonic() < end)
    print(report(campaign))
    if options.out is not None:
        (options.out / "report.txt").write_text(report(campaign) + "\n", errors="backslashreplace")
        for failure in campaign.failures.values():
            path = options.out / file_name(failure)
            path.with_suffix(".pickle").write_bytes(pickle.dumps((failure.entry, failure.example)))
            path.with_suffix(".txt").write_text(
                f"{failure.entry}: {failure.kind} in {failure.place}\n{failure.example!r}\n\n{failure.trace}",
                errors="backslashreplace",
            )
    return 1 if campaign.failures else 0


def report(campaign: Campaign) -> str:
    """Return the counts of each entry point, and the places that failed."""
    lines = [f"seed {campaign.first}, {len(case_files())} files of MESHLAB_CASES"]
    for name, count in campaign.counts.items():
        lines.append(f"{name:18} {count:9,} inputs  {campaign.seconds[name]:7.1f} s")
    total, failed = sum(campaign.counts.values()), sum(one.count for one in campaign.failures.values())
    lines.append(f"{'total':18} {total:9,} inputs, {failed:,} failed at {len(campaign.failures)} places")
    for one in sorted(campaign.failures.values(), key=lambda one: -one.count):
        example = repr(one.example)
        shown = example if len(example) <= 200 else f"{example[:200]}… ({len(example):,} characters)"
        lines.append(f"\n{one.kind} in {one.place} ({one.entry}, {one.count} times): {one.message}\n    {shown}")
    return "\n".join(lines)


def again(path: Path) -> int:
    """Pass a saved input to its entry point."""
    import tempfile

    name, value = pickle.loads(path.read_bytes())
    with tempfile.TemporaryDirectory(prefix="meshlab-fuzz-") as folder:
        kept, empty = Path(folder) / "kept", Path(folder) / "empty"
        kept.mkdir()
        empty.mkdir()
        ENTRIES[name].call(value, empty)
    return 0


if __name__ == "__main__":
    sys.exit(main())
