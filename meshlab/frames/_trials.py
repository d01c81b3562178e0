"""The frames of a search for the fastest options: what was tried, and what was chosen for each size.

An option is how a call runs: the memory of its buffers, NCCL's configuration of the call, or environment variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.frames._schema import RESULTS, Column, columns_of, conform, plain_value
from meshlab.plans._options import CALL_OPTIONS, OPTIONS

if TYPE_CHECKING:
    import pandas as pd

CASE = ("collective", "op", "dtype", "in_place", "mode", "axis", "n_ranks", "count", "size_bytes")
"""The columns that identify a call. Options are only compared within the same call."""

OPTION = ("setting", *(name for name, option in CALL_OPTIONS.items() if option.is_tuned))
"""The columns that identify an option. The default has plain buffers, and all others are missing."""

DEFAULT = tuple(OPTIONS.get(name) for name in OPTION)
"""The values of the default in the columns of `OPTION`."""

_CASE_COLUMNS = (
    Column("collective", "string", "Name of the collective, in snake case."),
    *columns_of(RESULTS, "op", "dtype", "in_place", "mode"),
    Column("axis", "string", "The axis of the mesh."),
    Column("n_ranks", "Int64", "Number of ranks in the group."),
    *columns_of(RESULTS, "count"),
    Column(
        "size_bytes",
        "Int64",
        "Message size in bytes, S of nccl-tests: the total over ranks for gather-like collectives.",
    ),
)

_OPTION_COLUMNS = (
    Column("setting", "string", "Name of the environment variables of the ranks. Missing for none."),
    *(Column(name, option.dtype, option.text) for name, option in CALL_OPTIONS.items() if option.is_tuned),
)

TRIALS = (
    *_CASE_COLUMNS,
    *_OPTION_COLUMNS,
    Column("launch", "string", "search, or confirmation: measured again on new ranks."),
    Column("n_rounds", "Int64", "Number of rounds, each of which measured all options."),
    Column("time_us", "float64", "Median over the rounds of the slowest rank's time per call, in µs."),
    Column("time_us_lo", "float64", "Lower bound of the 95 % interval over the rounds, in µs."),
    Column("time_us_hi", "float64", "Upper bound of the 95 % interval over the rounds, in µs."),
    Column(
        "compute_us", "float64", "Time of the matrix product alone, in µs. Missing without a product beside the call."
    ),
    Column("alone_us", "float64", "Time of the call without the product, in µs. Missing without a product."),
    Column("n_wrong", "Int64", "Number of elements on all ranks that differ from the expected result."),
    Column(
        "status",
        "string",
        "ok, wrong, failed, unsupported, or dropped because other options were faster after the first rounds.",
    ),
    Column("message", "string", "The error of an option that failed or is not supported."),
)
"""Columns of the trials: one row per call, option and launch."""

TUNED = (
    *_CASE_COLUMNS,
    *_OPTION_COLUMNS,
    Column("option", "string", "The chosen option in a few words."),
    Column("time_us", "float64", "Time per call of the chosen option, in µs."),
    Column("time_us_lo", "float64", "Lower bound of its 95 % interval, in µs."),
    Column("time_us_hi", "float64", "Upper bound of its 95 % interval, in µs."),
    Column("default_us", "float64", "Time per call of the default in the same rounds, in µs."),
    Column("default_us_lo", "float64", "Lower bound of its 95 % interval, in µs."),
    Column("default_us_hi", "float64", "Upper bound of its 95 % interval, in µs."),
    Column(
        "compute_us", "float64", "Time of the matrix product alone, in µs. Missing without a product beside the call."
    ),
    Column("alone_us", "float64", "Time of the call without the product, in µs. Missing without a product."),
    Column("exposed_us", "float64", "Time that the call adds to that of the product: time_us - compute_us."),
    Column("gain", "float64", "1 - time_us / default_us: 0.2 is 20 % less time than the default. 0 for the default."),
    Column("is_confirmed", "boolean", "True if the option was clearly faster than the default again, on new ranks."),
    Column(
        "verdict",
        "string",
        "faster; default, because no option was clearly faster; not confirmed, because an option was faster in the "
        "search only; or not repeated, because the fastest option of the search was not measured on new ranks.",
    ),
    Column("candidate", "string", "The fastest option of the search in a few words. Missing if it is the default."),
    Column("candidate_us", "float64", "Its time in the search, in µs. Missing if it is the default."),
    Column("candidate_gain", "float64", "1 - candidate_us / time of the default in the search."),
)
"""Columns of a tuning: one row per call with its chosen option."""

_BUFFERS = {"symmetric": "symmetric window", "registered": "registered buffers"}


def as_trials(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with exactly the columns of `TRIALS`. Missing buffers become plain."""
    trials = conform(frame, TRIALS).reset_index(drop=True)
    trials["buffers"] = trials["buffers"].fillna("plain")
    return trials


def is_default(frame: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Select the rows of the default: plain buffers, and everything else chosen by the library."""
    others = [name for name in OPTION if name != "buffers"]
    plain = frame["buffers"].fillna("plain").eq("plain").to_numpy(bool)
    return np.asarray(plain & frame[others].isna().all(axis=1).to_numpy(bool))


def option_key(row: Any) -> tuple[Any, ...]:
    """Return the option of a row as a tuple in the order of `OPTION`, with None for missing values."""
    return tuple(plain_value(row[name]) if name != "buffers" else row[name] for name in OPTION)


def option_label(row: Any) -> str:
    """Describe the option of a row in a few words, such as "ring LL128, 8 CTAs" or "symmetric window, ≤ 4 CTAs"."""
    setting, buffers, algorithm, protocol, low, high, policy = option_key(row)
    names = {"ll": "LL", "ll128": "LL128"}
    method = " ".join(filter(None, [algorithm, names.get(protocol, protocol)]))
    if low is not None and high is not None:
        ctas = f"{low} CTAs" if low == high else f"{low} to {high} CTAs"
    else:
        ctas = f"≥ {low} CTAs" if low is not None else f"≤ {high} CTAs" if high is not None else ""
    rule = f"CTA policy {policy}" if policy is not None else ""
    return ", ".join(filter(None, [setting, _BUFFERS.get(buffers, ""), method, ctas, rule])) or "default"
