"""A run as a card of static HTML: state, progress, error, and the table of what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab import markup
from meshlab.units import format_bandwidth, format_seconds, format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.run import Run

__all__ = ["PICTURE", "run_card"]

PICTURE = "<!-- picture -->"
"""Where a picture goes: frames know nothing of plots, so whoever draws one puts it here."""


def run_card(run: Run) -> str:
    """Write a run as HTML that is good without JavaScript."""
    now = run.progress
    times = f"{format_seconds(now.elapsed_s)} elapsed"
    if run.state == "running":
        times += f", about {format_seconds(now.left_s)} left"
    says = f"{run.state} · {now.done} of {now.total} steps · {times}"
    parts = [markup.bar(now.done / max(now.total, 1), says)]
    if now.step:
        parts.append(f"<div>{markup.escape(now.step)}</div>")
    if run.error is not None:
        parts.append(f'<div class="ml-bad">{markup.escape(str(run.error).splitlines()[0])}</div>')
    if run.alert:
        parts.append(f'<div class="ml-bad">{markup.escape(run.alert)}</div>')
    parts += [PICTURE, _results_table(run.results)]
    return markup.card(f"Run {run.run_id} · {run.where}", says, *parts)


def _results_table(results: pd.DataFrame) -> str:
    names = ["collective", "axis", "group", "size_bytes", "time_us", "algbw_gbs", "busbw_gbs", "n_wrong", "status"]
    shown = results[names].copy()
    shown["n_wrong"] = shown["n_wrong"].astype(object).where(shown["n_wrong"].notna(), "–")
    shown["size_bytes"] = shown["size_bytes"].astype(object).where(shown["size_bytes"].notna(), None)
    for name, write in (
        ("size_bytes", lambda size: "–" if size is None else format_size(size)),
        ("time_us", format_time_us),
        ("algbw_gbs", format_bandwidth),
        ("busbw_gbs", format_bandwidth),
    ):
        shown[name] = shown[name].map(write)
    rows = shown.to_numpy().tolist()
    header = ["collective", "axis", "group", "size", "time", "algbw", "busbw", "wrong", "status"]
    return markup.table(header, rows, most=20)
