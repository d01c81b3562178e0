"""The next step after a verdict on speed: what the same text shows to be wrong, or what to measure."""

from __future__ import annotations

from meshlab.analysis._judge import Judgement
from meshlab.analysis._verdicts import Verdict
from meshlab.base._errors import ParseError
from meshlab.diagnosis._explain import explain
from meshlab.diagnosis._findings import TextFinding

_NOTHING = "No action is needed."
_INSIDE = (
    "Measure pairs of GPUs (`sendrecv_perf` on two, or `ml.bench_pairs(engines)`): a slow pair has a slow link. "
    "`nvidia-smi topo -m` and `nvidia-smi nvlink -s` show links that are missing."
)
_BETWEEN = (
    "Run the test once on one host, and once between two hosts with one GPU each: the first shows NVLink, the second "
    "one NIC. Set NCCL_DEBUG=INFO, and pass the log to `meshlab explain`: it names the network that NCCL uses."
)
_ENOUGH = "Measure sizes up to 8 GiB (-b 8 -e 8G -f 2), where published runs agree."


def next_step(judgement: Judgement) -> str:
    """Return what to do after a judgement."""
    verdict = judgement.verdict
    if verdict.outcome == "passed":
        return _NOTHING
    cause = _cause(judgement.text)
    if verdict.outcome == "failed":
        measure = what_to_measure(verdict)
        return measure if cause is None else f"{cause.why} {cause.do} {measure}"
    if cause is not None:
        return f"{cause.why} {cause.do}".strip()
    return _ENOUGH if "16 MiB" in verdict.reason else f"{verdict.reason[:1].upper()}{verdict.reason[1:]}."


def what_to_measure(verdict: Verdict) -> str:
    """Return the measurements that show which link is slow."""
    return _BETWEEN if verdict.has_network else _INSIDE


def _cause(text: str) -> TextFinding | None:
    """Return the most important finding in the text of a log, or None if nothing is wrong with it."""
    if not text.strip():
        return None
    try:
        findings = explain(f"{text}\n").findings
    except ParseError:
        return None
    return next((finding for finding in findings if finding.severity in ("error", "warning") and finding.do), None)
