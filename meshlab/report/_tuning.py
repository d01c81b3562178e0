"""The section of a report about a tuning, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from meshlab.analysis.tuning._tuning import Tuning
from meshlab.report._tables import MOST_ROWS, Cell


@dataclass(frozen=True, slots=True)
class TuningSection:
    """The chosen options of a tuning, and the forms in which programs can use them."""

    title: str  # axis, system, mode, element type, and the note of the system
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: tuple[int, ...]  # columns of words rather than numbers
    more: int  # omitted rows
    facts: tuple[tuple[str, str], ...]  # term and text: the method, and what variables and a tuner plugin gain and lose
    spans: tuple[tuple[str, int], ...] = ()


def tuning_section(tuning: Tuning) -> TuningSection:
    """Return the section about a tuning."""
    header, rows = tuning.table()
    return TuningSection(
        title=". ".join(part.rstrip(".") for part in tuning.heading()) + ".",
        header=tuple(header),
        rows=tuple(tuple(Cell(text) for text in row) for row in rows[:MOST_ROWS]),
        texts=(0, 2, len(header) - 1),
        more=max(0, len(rows) - MOST_ROWS),
        facts=tuple(_facts(tuning)),
    )


def _facts(tuning: Tuning) -> list[tuple[str, str]]:
    """Describe the method of a tuning, and what its other forms lose."""
    facts = [
        (
            "Choice",
            "All options of a size were measured in turns. The fastest one was measured again with the default, on new "
            "ranks, and is chosen only if its 95 % interval there is below that of the default.",
        )
    ]
    if not tuning.lines:
        return facts
    environment = tuning.to_env()
    variables = " ".join(f"{name}={value}" for name, value in environment.variables.items())
    losses = ". ".join(map(str, environment.losses))
    facts.append(("Environment for all sizes", f"{variables or 'none is faster than the default'}. {losses}."))
    if tuning.is_on_nccl:
        config = tuning.to_tuner_config()
        gains = ". ".join(map(str, config.gains)) or "This tuning contains no choices that the plugin can make"
        facts.append(("NCCL's tuner plugin", f"{gains}. {' '.join(config.notes)}"))
    return facts
