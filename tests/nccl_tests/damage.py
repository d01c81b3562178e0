"""Damages logs of nccl-tests in the ways in which logs are damaged, and judges whether the reader notices.

Run ``python -m tests.nccl_tests.damage FOLDER`` to interrupt every row of all logs in a folder at every position, and
to change their rows at random. It lists the damage that changed the numbers without a warning.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import meshlab as ml
from meshlab.base._errors import ParseError
from meshlab.nccl_tests._log import DTYPE_OF_TYPE

_TYPE = "|".join(sorted(DTYPE_OF_TYPE, key=len, reverse=True))
ROW = re.compile(rf"(?<![\w.])\d+\s+\d+\s+(?:{_TYPE})\s.*\d.*$")
CELL = re.compile(r"\S+")


@dataclass(frozen=True)
class Reading:
    """What a reader got from a log: the numbers, and everything that warns about them."""

    cells: Counter[tuple[Any, ...]]
    n_unparsable: int
    notes: Counter[str]
    status: str

    def is_warned(self, whole: Reading) -> bool:
        """Return whether this reading has a remark that the reading of the whole log has not."""
        return bool(self.n_unparsable > whole.n_unparsable or self.notes - whole.notes or self.status != whole.status)


def read(text: str) -> Reading:
    """Read a log. A text without any run has no cells."""
    try:
        log = ml.nccl_tests.read(text + "\n")
    except ParseError:
        return Reading(Counter(), 1, Counter(), "nothing")
    cells: Counter[tuple[Any, ...]] = Counter()
    notes: Counter[str] = Counter()
    for section in log.sections:
        notes.update(re.sub(r"line \d+", "line", note.text) for note in section.warnings)
        for row in section.rows:
            key = (section.collective, section.n_ranks, row.size_bytes, row.count, row.type, row.op, row.root)
            cells[(*key, repr(row.out_of_place), repr(row.in_place), row.timestamp)] += 1
    return Reading(cells, sum(section.unparsable_rows for section in log.sections), notes, log.status)


def judge(whole: Reading, damaged: Reading) -> str:
    """Return "same", "noticed" or "silent": whether the numbers changed, and whether a remark is about the change."""
    if damaged.cells == whole.cells:
        return "same"
    return "noticed" if damaged.is_warned(whole) else "silent"


# -- other output in the middle of a row -------------------------------------------------------------------------------

INFO = "node00:1000:1004 [5] NCCL INFO 64 Bytes -> Algo 0 proto 0 time 49.6"
INTERRUPTIONS = {
    "message": f"{INFO}\n",
    "messages": f"{INFO}\n{INFO}\n",
    "line": "\n",
    "line and message": f"\n{INFO}\n",
    "message without an end": INFO,
    "message with a numeric host": "10.0.0.7:1000:1004 [5] NCCL INFO Connected all rings\n",
    "output of a rank": "rank 3: loading the model\n",
    "output of a rank without an end": "rank 3: loading the model",
}


def rows_of(lines: Sequence[str]) -> list[tuple[int, int]]:
    """Return the index of each line with a row, and the position of its size."""
    found = [(index, match.start()) for index, line in enumerate(lines) if (match := ROW.search(line))]
    return [(index, start) for index, start in found if "NCCL" not in lines[index]]


def interruptions(lines: Sequence[str], row: int, start: int) -> Iterator[tuple[str, int, str]]:
    """Yield a name, a position and the log for all kinds of output at all positions of a row."""
    line = lines[row]
    first = len(line[:start].rstrip())
    for name, between in INTERRUPTIONS.items():
        for at in range(first, len(line) + 1):
            yield name, at, "\n".join([*lines[:row], line[:at] + between + line[at:], *lines[row + 1 :]])


# -- rows that are not those of the run --------------------------------------------------------------------------------


def mutations(lines: Sequence[str], foreign: Sequence[str], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield a kind and a changed log without an end. `foreign` are rows of other logs."""
    rows = [index for index, _ in rows_of(lines)]
    while rows:
        kind = rng.choice(list(KINDS))
        changed = list(lines)
        KINDS[kind](changed, rows, foreign, rng)
        if changed != list(lines):
            yield kind, "\n".join(changed)


def _repeat(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    row = rng.choice(rows)
    lines.insert(row, lines[row])


def _repeat_elsewhere(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    lines.insert(rng.choice(rows), lines[rng.choice(rows)])


def _repeat_block(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    first, last = sorted((rng.choice(rows), rng.choice(rows)))
    lines[last + 1 : last + 1] = [lines[row] for row in rows if first <= row <= last]


def _remove(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    del lines[rng.choice(rows)]


def _swap(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    one, other = rng.choice(rows), rng.choice(rows)
    lines[one], lines[other] = lines[other], lines[one]


def _join(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    one, other = rng.choice(rows), rng.choice(rows)
    at = rng.randrange(len(lines[one]) + 1)
    lines[one] = lines[one][:at] + lines[other][at:]


def _join_and_remove(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    index = rng.randrange(max(1, len(rows) - 1))
    one, other = rows[index], rows[min(index + 1, len(rows) - 1)]
    at = rng.randrange(len(lines[one]) + 1)
    lines[one : other + 1] = [lines[one][:at] + lines[other][at:]]


def _other_busbw(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    one, other = rng.choice(rows), rng.choice(rows)
    cells, others = list(CELL.finditer(lines[one])), list(CELL.finditer(lines[other]))
    column = -2 if rng.random() < 0.5 else -6
    if len(cells) >= 11 and len(others) >= 11:
        lines[one] = _replaced(lines[one], cells[column], others[column][0])


def _other_cell(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    one, other = rng.choice(rows), rng.choice(rows)
    cells, others = list(CELL.finditer(lines[one])), list(CELL.finditer(lines[other]))
    column = rng.randrange(min(len(cells), len(others)))
    lines[one] = _replaced(lines[one], cells[column], others[column][0])


def _replaced(line: str, cell: re.Match[str], text: str) -> str:
    """Replace a cell, and keep the width of its column."""
    room = line[: cell.start()]
    wanted = cell.end() - len(text)
    left = room[:wanted] if wanted <= len(room) else room.ljust(wanted)
    return (left if not left or left[-1].isspace() else room) + text + line[cell.end() :]


def _drop_cell(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    row = rng.choice(rows)
    cell = rng.choice(list(CELL.finditer(lines[row])))
    blank = "" if rng.random() < 0.5 else " " * len(cell[0])
    lines[row] = lines[row][: cell.start()] + blank + lines[row][cell.end() :]


def _drop_column(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    column = rng.randrange(len(CELL.findall(lines[rng.choice(rows)])))
    for row in rows:
        cells = list(CELL.finditer(lines[row]))
        if column < len(cells):
            lines[row] = lines[row][: cells[column].start()] + lines[row][cells[column].end() :]


def _shift(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    row = rng.choice(rows)
    cell = rng.choice(list(CELL.finditer(lines[row])))
    lines[row] = (
        lines[row][: cell.start()] + rng.choice(("0", "0.00", "1", cell[0])) + "  " + lines[row][cell.start() :]
    )


def _foreign(lines: list[str], rows: list[int], foreign: Sequence[str], rng: random.Random) -> None:
    if foreign:
        row = rng.choice(rows)
        lines[row : row + rng.randrange(2)] = [rng.choice(foreign)]


KINDS = {
    "repeat a row": _repeat,
    "repeat a row elsewhere": _repeat_elsewhere,
    "repeat several rows": _repeat_block,
    "remove a row": _remove,
    "swap two rows": _swap,
    "join two rows": _join,
    "join two rows to one": _join_and_remove,
    "the busbw of another row": _other_busbw,
    "a cell of another row": _other_cell,
    "drop a cell": _drop_cell,
    "drop a column": _drop_column,
    "shift the columns": _shift,
    "a row of another table": _foreign,
}


def logs_in(folder: Path) -> dict[str, str]:
    """Return the texts in a folder that have rows."""
    texts = {
        path.name: path.read_text(errors="replace").rstrip("\n")
        for path in sorted(folder.rglob("*.txt"))
        if path.stat().st_size < 200_000
    }
    return {name: text for name, text in texts.items() if rows_of(text.split("\n"))}


def main() -> None:
    """Damage all logs of a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutations", type=int, default=150, help="per log")
    parser.add_argument("--rows", type=int, default=1000, help="interrupted rows per log")
    parser.add_argument("--show", type=int, default=20)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    logs = logs_in(arguments.folder)
    all_rows = {name: [text.split("\n")[row] for row, _ in rows_of(text.split("\n"))] for name, text in logs.items()}
    counts: Counter[tuple[str, str]] = Counter()
    shown: Counter[str] = Counter()
    for name, text in logs.items():
        lines, whole = text.split("\n"), read(text)
        if not whole.cells:
            continue
        rows = rows_of(lines)
        for row, start in rng.sample(rows, min(arguments.rows, len(rows))):
            for kind, at, damaged in interruptions(lines, row, start):
                found = read(damaged)
                verdict = judge(whole, found)
                if found.cells - whole.cells:
                    verdict = "altered"
                counts[f"interrupt: {kind}", verdict] += 1
                if verdict in ("silent", "altered") and shown[kind] < arguments.show:
                    shown[kind] += 1
                    print(f"{verdict} · {kind} · {name}:{row + 1} at {at} of {lines[row]!r}")
        foreign = [row for other, found_rows in all_rows.items() if other != name for row in found_rows]
        generator = mutations(lines, foreign, rng)
        for _ in range(arguments.mutations):
            kind, damaged = next(generator)
            verdict = judge(whole, found := read(damaged))
            counts[f"change: {kind}", verdict] += 1
            if verdict == "silent" and shown[kind] < arguments.show:
                shown[kind] += 1
                print(f"silent · {kind} · {name}")
                for sign, changed in (("-", whole.cells - found.cells), ("+", found.cells - whole.cells)):
                    for cell in list(changed)[:3]:
                        print(f"    {sign} {' '.join(map(str, cell))}".replace("Timing", "").replace("=None", "="))
    print(f"{'':42}{'same':>9}{'noticed':>9}{'silent':>9}{'altered':>9}")
    kinds = sorted({kind for kind, _ in counts})
    for kind in kinds:
        print(f"{kind:42}" + "".join(f"{counts[kind, verdict]:9,}" for verdict in VERDICTS))
    for group in ("interrupt", "change"):
        sums = [sum(counts[kind, verdict] for kind in kinds if kind.startswith(group)) for verdict in VERDICTS]
        print(f"{'all of ' + group:42}" + "".join(f"{count:9,}" for count in sums))


VERDICTS = ("same", "noticed", "silent", "altered")

if __name__ == "__main__":
    main()
