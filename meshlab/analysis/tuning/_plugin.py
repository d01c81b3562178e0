"""Tuner configurations: the part of a tuning that NCCL's example tuner plugin can apply, in its CSV format."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.analysis.tuning._choice import mean_gain, size_ranges, trials_by_call, usable_trials
from meshlab.base._collectives import NCCL_FUNCTIONS
from meshlab.base._files import write_file
from meshlab.frames._schema import plain_value
from meshlab.frames._trials import CASE, as_trials, is_default

if TYPE_CHECKING:
    import pandas as pd

_COLLECTIVES = {name: function.in_plugins for name, function in NCCL_FUNCTIONS.items() if function.is_tuned}
"""The plugin's names of collectives. It takes any other name for allreduce, so no others may be written."""

_ALGORITHMS = {name: name for name in ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")}
_ALGORITHMS |= {"nvlstree": "nvls_tree"}
"""The plugin's names of algorithms. It takes any other name for ring."""

_ALL_PROTOCOLS = ("tree", "ring")
"""The algorithms that have several protocols. The others are always simple."""

_PROTOCOLS = ("ll", "ll128", "simple")
_LARGEST = 2**64 - 1
"""The plugin parses sizes with strtoull into size_t. Its README uses 4294967295, which ends at 4 GiB."""

_WIDTH = 100
"""Width of a comment. The plugin reads lines of up to 255 bytes, and would parse the rest of a longer one as a line."""

_SYMMETRIC = (
    "NCCL handles calls on symmetric windows before it calls the tuner, so a tuner cannot choose them. It cannot set "
    "registered buffers, minimum CTAs or a CTA policy either."
)

_NO_LINE = (
    "The example plugin of NCCL 2.30 requests one channel for every call without a line, and for lines with -1 "
    "channels. So every size has a line here, also if NCCL's own choice is as fast, and 0 channels keep NCCL's number."
)


@dataclass(frozen=True, slots=True)
class TunerLine:
    """One line of the file: the algorithm, protocol and channels of a range of sizes, both ends included."""

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int
    """Maximum number of channels. 0 for NCCL's own number."""
    n_nodes: int
    """The number of nodes of the communicators. -1 matches any number."""
    n_ranks: int

    def __str__(self) -> str:
        # Any number of operations in a group, and registered buffers or not: a captured call counts as registered.
        return ",".join(map(str, (_COLLECTIVES[self.collective], *astuple(self)[1:], -1, -1)))


@dataclass(frozen=True, slots=True)
class TunerGain:
    """The gain of a collective with a tuner plugin, and with everything that was tuned."""

    collective: str
    gain: float
    """1 - time / time of the default with the lines of the file, as a geometric mean over the sizes."""
    choice_gain: float
    """The same with a choice per size, which `Tuning.apply` makes."""

    def __str__(self) -> str:
        change = f"{100 * self.gain:.0f} % less time" if self.gain >= 0 else f"{-100 * self.gain:.0f} % more time"
        return f"{self.collective}: {change} with this file, {100 * self.choice_gain:.0f} % with all tuned options"


@dataclass(frozen=True, slots=True)
class TunerConfig:
    """A file for NCCL's example tuner plugin. ``str()`` returns its text."""

    lines: tuple[TunerLine, ...]
    """The lines. The plugin uses the first one that matches a call."""
    gains: tuple[TunerGain, ...]
    """The gain of each collective that has lines."""
    notes: tuple[str, ...]
    """Comments in the file: the limits of the plugin, and its treatment of calls without a line."""
    title: str = ""

    def __str__(self) -> str:
        comments = [self.title, *map(str, self.gains), *self.notes]
        head = [line for comment in comments if comment for line in textwrap.wrap(comment, _WIDTH)]
        names = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
        return "\n".join([*(f"# {line}" for line in [*head, names]), *map(str, self.lines)]) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the file. Set ``NCCL_TUNER_CONFIG_FILE`` to its path, and ``NCCL_TUNER_PLUGIN`` to the plugin."""
        return write_file(path, str(self))


def tuner_config(
    lines: Sequence[tuple[str, pd.DataFrame]], trials: pd.DataFrame, *, n_nodes: int, title: str
) -> TunerConfig:
    """Return the configuration of a tuner plugin. `n_nodes` is -1 if it is unknown. See `Tuning.to_tuner_config`."""
    trials = as_trials(trials)
    search = usable_trials(trials, "search")
    settable, defaults = _settable(trials), search[is_default(search)]
    written: list[TunerLine] = []
    gains: list[TunerGain] = []
    notes = [_SYMMETRIC]
    for label, tuned in lines:
        name = str(tuned["collective"].iloc[0])
        if name not in _COLLECTIVES:
            notes.append(f"{label} has no line, because NCCL calls tuners only for {', '.join(_COLLECTIVES)}.")
            continue
        chosen = _fastest(tuned, settable, defaults)
        if not len(chosen):
            notes.append(f"{label} has no line, because no measured option names both an algorithm and a protocol.")
            continue
        n_ranks = int(tuned["n_ranks"].iloc[0])
        ranges = size_ranges(chosen, reach=float("inf"))
        for number, part in enumerate(ranges):
            written.append(
                TunerLine(
                    name,
                    0 if number == 0 else part.min_bytes,
                    _LARGEST if number == len(ranges) - 1 else part.max_bytes,
                    _ALGORITHMS[str(part.row["algorithm"])],
                    str(part.row["protocol"]),
                    int(plain_value(part.row["max_ctas"]) or 0),
                    n_nodes,
                    n_ranks,
                )
            )
        gains.append(TunerGain(label, mean_gain(chosen), mean_gain(tuned)))
    if not written:
        notes.append("Do not use this file: without lines, the example plugin gives every call one channel.")
    else:
        notes.append(_NO_LINE)
        absent = [name for name in _COLLECTIVES if name not in {line.collective for line in written}]
        if absent:
            notes.append(f"Without lines, and therefore on one channel with that plugin: {', '.join(absent)}.")
    return TunerConfig(tuple(written), tuple(gains), tuple(notes), title)


def _settable(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the search that a plugin can reproduce: an algorithm, a protocol, and at most channels."""
    is_simple = trials["algorithm"].isin([name for name in _ALGORITHMS if name not in _ALL_PROTOCOLS])
    trials = trials.assign(protocol=trials["protocol"].mask(trials["protocol"].isna() & is_simple, "simple"))
    same = trials["launch"].fillna("search").eq("search") & trials["buffers"].eq("plain") & trials["setting"].isna()
    same &= trials["algorithm"].isin(list(_ALGORITHMS)) & trials["protocol"].isin(_PROTOCOLS)
    same &= trials["min_ctas"].isna() & trials["cta_policy"].fillna("default").eq("default")
    same &= trials["status"].fillna("ok").isin(["ok", "dropped"]) & ~trials["n_wrong"].gt(0).fillna(value=False)
    return trials[same & trials["time_us"].gt(0)]


def _fastest(tuned: pd.DataFrame, settable: pd.DataFrame, defaults: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest settable trial of each size, with the time of the default in the same search."""
    import pandas as pd

    by_call, default_by_call = trials_by_call(settable), trials_by_call(defaults)
    rows = []
    for row in tuned.astype(object).where(tuned.notna(), None).to_dict("records"):
        call = tuple(row[name] for name in CASE)
        if call in by_call and call in default_by_call:
            # Options that the search kept to its end have precedence: others have the time of a few rounds.
            complete = [trial for trial in by_call[call] if trial["status"] in (None, "ok")]
            best = min(complete or by_call[call], key=lambda trial: float(trial["time_us"]))
            rows.append({**best, "default_us": default_by_call[call][0]["time_us"]})
    return pd.DataFrame(rows)
