"""The caveats of a report, and its method, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab.base._backends import BACKENDS
from meshlab.base._units import THIN
from meshlab.comm._catalog import CATALOG
from meshlab.frames._labels import CPU_SOURCES, GPU_SOURCES, SOURCES, axis_labels
from meshlab.frames._table import MODES_MARK
from meshlab.report._words import UNFINISHED, count, listed, results_have, size_text, span
from meshlab.runs._certainty import WIDE_TEXT, certainty_of
from meshlab.topology.model._products import models_in

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.topology.model._cluster import Cluster

_MOST_NAMED = 3
_FEW_SAMPLES = 30


_UNEVEN = "For uneven traffic it is the largest number of bytes that a rank sends or receives. "


def caveats(results: pd.DataFrame, *, fingerprint: str, cluster: Cluster | None = None) -> list[str]:
    """Return the reasons to distrust the numbers."""
    doubts = _different_machine(results, cluster) if cluster is not None else []
    sources = set(results["source"].dropna())
    for name, facts in BACKENDS.items():
        if name in sources and facts.caveat:
            doubts.append(f"{_axes_of(results, name) if sources != {name} else 'These numbers'} {facts.caveat}")
    settings = _library_settings(results) if sources & set(GPU_SOURCES) else ""
    if settings:
        doubts.append(f"NCCL did not run with its defaults: {settings}.")
    if results.attrs.get("note"):
        doubts.append(str(results.attrs["note"]))
    stopped = results[results["status"].isin(UNFINISHED)]
    if len(stopped):
        reasons = [str(reason) for reason in stopped["stop_reason"].dropna().unique()[:_MOST_NAMED]]
        doubts.append(f"{count(len(stopped), 'measurement')} did not finish{': ' * bool(reasons)}{'; '.join(reasons)}.")
    measured = results[results["status"].eq("ok").fillna(value=False)]
    is_settled = measured["stop_reason"].eq("precise").fillna(value=False)  # few batches were enough
    few = measured[measured["n_samples"].lt(_FEW_SAMPLES).fillna(value=False) & ~is_settled]
    if len(few):
        sizes = sorted(few["size_bytes"].dropna().unique())
        where = f", at {listed(map(size_text, sizes))}" if 0 < len(sizes) <= 2 else ""
        doubts.append(
            f"{results_have(len(few))} fewer than {_FEW_SAMPLES} batches{where}, so the median is less certain."
        )
    if without := int(measured["time_us_lo"].isna().sum()):
        doubts.append(f"{results_have(without)} no interval.")
    if n_wide := certainty_of(measured).n_wide:
        doubts.append(f"{results_have(n_wide)} an interval {WIDE_TEXT} of the median.")
    others = set(results["mesh_fingerprint"].dropna()) - {fingerprint}
    if fingerprint and others:
        doubts.append("Some results were measured on a different mesh than the one in this report.")
    return doubts


def _library_settings(results: pd.DataFrame) -> str:
    """Return the environment variables that change what NCCL does."""
    environment = results.attrs.get("environment") or {}
    return ", ".join(
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG")
    )


def _axes_of(results: pd.DataFrame, source: str) -> str:
    """Describe the numbers of a source, if other axes have another source."""
    axes = results.loc[results["source"].eq(source).fillna(value=False), "axis"].dropna().unique()
    return f"The numbers along {', '.join(map(str, axes))}" if len(axes) else "Some of these numbers"


def _different_machine(results: pd.DataFrame, cluster: Cluster) -> list[str]:
    """Return a caveat if the results cannot have been measured on the cluster of the report."""
    sources = set(results["source"].dropna())
    gpus = {device.name for host in cluster.templates for device in host.devices if device.backend != "cpu"}
    gpu = str(results.attrs.get("gpu") or "")
    if sources and sources <= set(CPU_SOURCES):
        measured = "a CPU" if gpus else ""
    elif gpu:
        models = models_in(gpu)
        machine_models = {model for name in gpus for model in models_in(name)}
        # Names without a model, such as "some GPU", cannot be compared, so they produce no caveat.
        is_different = not gpus or bool(models and machine_models and not models & machine_models)
        measured = gpu if is_different else ""
    else:
        measured = ""
    if not measured:
        return []
    return [f"These numbers were measured on {measured}, but this report shows a different machine: {cluster.summary}."]


_MODES = {
    "isolated": "isolated: one call at a time, from an aligned start until it is complete",
    "pipelined": "pipelined: calls back to back, as nccl-tests does by default; for small messages this is the cost of "
    "one call among many, not the latency of a single call",
    "graph": "graph: calls captured once in a CUDA graph and replayed, as with nccl-tests -G",
}

# The reasons why the measurement of a result ended.
_STOPPED = {
    "precise": "an interval that is narrow enough",
    "time": "the limit of time",
    "batches": "the limit of batches",
}


def method(results: pd.DataFrame) -> list[tuple[str, str]]:
    """Explain how the numbers were measured and what they mean, as pairs of term and text."""
    modes = [_MODES.get(str(mode), str(mode)) for mode in results["mode"].dropna().unique()]
    sources = set(results["source"].dropna())
    facts = [("Mode", "; ".join(modes))] if modes else []
    if len(sources & BACKENDS.keys()) > 1:
        axis_sources = results[["axis", "source"]].dropna().drop_duplicates()
        texts = [
            f"{axis}: {SOURCES.get(source, source)}" for axis, source in axis_sources.itertuples(index=False, name=None)
        ]
        facts.append(("Backends", "; ".join(texts) + "."))
    if loads := _loads(results):
        facts.append(("Axes", " ".join(loads)))
    if sources - {"nccl-tests"}:
        facts.append(
            (
                "Time",
                "The time of a call is that of its slowest rank. Each result is the median over batches of calls, "
                "with a nonparametric 95 % interval (order statistics; missing below 6 batches). Warm-up batches are "
                "excluded. Outliers are included.",
            )
        )
    if "nccl-tests" in sources:
        facts.append(
            (
                "Time from nccl-tests",
                "The mean over all iterations, by default averaged over ranks, without an interval.",
            )
        )
    if batches := span(results["n_samples"]):
        calls = span(results["calls"])
        calls_text = f", with {calls} call{'s' * (calls != '1')} each" if calls else ""
        facts.append(("Batches", f"{batches} per result{calls_text}"))
    facts += [
        (
            "Digits",
            "The first tables show as many digits as the 95 % intervals leave significant. "
            f"{MODES_MARK} marks times with two levels, between which the median may jump.",
        ),
        (
            "Curves",
            "The thick line is at the median of the slowest group at each size, and the band is the interval of this "
            "group. With several launches, it ranges from the lowest to the highest bound of their intervals. Thin "
            "lines show every group.",
        ),
        (
            "algbw",
            "size S / time t, in GB/s (10⁹ bytes per second). S is the buffer size of one rank, or the total over "
            f"ranks for {_totals(results)}, as in nccl-tests. "
            + _UNEVEN * bool(results["imbalance"].gt(1).any())
            + "Sizes are binary: 1 KiB is 1,024 bytes.",
        ),
        (
            "busbw",
            "algbw × a factor that makes it comparable with the rate of a link for any number of ranks: "
            f"{_factors(results)}.",
        ),
        (
            "Wrong",
            "The number of elements on all ranks that differ from the exact result, checked outside the timed region.",
        ),
    ]
    if "bound_gbs" in results and results["bound_gbs"].notna().any():
        facts.append(
            (
                "Bound",
                "The bus bandwidth that the slowest link on the way allows, by the rates of NCCL's own model. For "
                "example, an NVLink of an H100 or H200 has 20.6 GB/s in each direction, which is less than its "
                "signalling rate of 25 GB/s. Shares of the bound are shown from 16 MiB on.",
            )
        )
    reasons = results["stop_reason"].dropna().value_counts()
    if len(reasons):
        parts = (f"{_STOPPED.get(str(reason), reason)} ({number:,})" for reason, number in reasons.head(8).items())
        facts.append(("Ended by", ", ".join(parts)))
    return facts


def _loads(results: pd.DataFrame) -> list[str]:
    """Explain the axis labels of rows that are not plain."""
    groupings, concurrent = set(results["grouping"].dropna()), results[results["concurrent_axis"].notna()]
    sentences = []
    if "alone" in groupings:
        sentences.append(
            "One group at a time: the other groups are idle. Otherwise all groups of an axis run together. A ratio of "
            "the two is the median over alternating blocks of batches, with a nonparametric 95 % interval."
        )
    if "pairs" in groupings:
        sentences.append(
            "Pairs: every pair of ranks in a group, in rounds of disjoint pairs. A figure frames the pairs below "
            f"80{THIN}% of the median bandwidth. Such a pair is clearly slow if the interval of its time does not "
            "contain the median."
        )
    if len(concurrent):
        first = concurrent.iloc[:1]
        label, axis, other = axis_labels(first).iloc[0], first["axis"].iloc[0], first["concurrent_axis"].iloc[0]
        sentences.append(f"“{label}”: measured along {axis}, while a second thread of every rank runs along {other}.")
    return sentences


def _totals(results: pd.DataFrame) -> str:
    """Return the collectives of the results whose size is a total, or an example."""
    names = results["collective"].dropna().unique()
    return listed(name for name in names if name in CATALOG and CATALOG[name].has_total_size) or "all_gather"


def _factors(results: pd.DataFrame) -> str:
    pairs = results[["collective", "n_ranks"]].dropna().drop_duplicates().itertuples(index=False)
    factors = [
        f"{name} {CATALOG[name].bus_factor(int(n)):.4g} for {int(n)} ranks"
        for name, n in pairs
        if name in CATALOG and n > 1
    ]
    return ", ".join(factors) if factors else "see PERFORMANCE.md of nccl-tests"
