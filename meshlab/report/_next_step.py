"""The recommended next step of a report, which follows from its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshlab.analysis._verdicts import Verdict, most_serious, verdict_of
from meshlab.diagnosis._after_verdict import what_to_measure
from meshlab.frames._labels import CPU_SOURCES
from meshlab.report._answers import LOGGED, NO_MESH, UNCERTAIN, Answer, ReportEvidence
from meshlab.report._stages import Stages
from meshlab.report._words import UNFINISHED

_NOTHING = "No action is needed."


def next_step(evidence: ReportEvidence, answers: Sequence[Answer]) -> Answer:
    """Return the next step of the reader, the most urgent first."""
    return Answer("next step", "plain", tuple(_steps(evidence, {answer.question: answer for answer in answers})))


def _steps(evidence: ReportEvidence, answers: dict[str, Answer]) -> Iterator[str]:
    # The first reason to act hides the others: the speed of wrong results, for example, does not matter.
    sources = set(evidence.results["source"].dropna())
    is_cpu = bool(sources) and sources <= set(CPU_SOURCES)
    bad = {question for question, answer in answers.items() if answer.state == "bad"}
    if evidence.state in UNFINISHED:
        yield "Continue the run in its folder: `meshlab bench --resume FOLDER`. The log at the end shows the reason."
        return
    if evidence.progress:
        yield "Write the report again when the run has ended."
        return
    if not len(evidence.results):
        yield "Run a measurement, for example with `meshlab bench all_reduce`."
        return
    if "correct" in bad:
        yield (
            "Do not use these ranks until the wrong results are explained. Check the installation with "
            "`meshlab doctor`, and measure again: if the same groups are wrong again, suspect their devices and links."
        )
        return
    slow = bad & {"fast enough", "thresholds"}
    is_unknown = "fast enough" in answers and answers["fast enough"].state == "plain"
    logged = _logged_verdict(evidence) if "fast enough" in answers else None
    if slow and logged is not None:
        yield what_to_measure(logged)
    elif slow:
        yield (
            "Find out what is slow: `meshlab doctor` checks the machine, and `ml.bench_pairs(engines)` measures every "
            "pair of ranks, which shows a slow link or device."
        )
    elif "changed" in bad:
        yield "Compare the environments of both runs, and measure both again, in turns, before you search for a cause."
    if UNCERTAIN in answers:
        yield "Measure again while the hosts are idle, because another run would give different times."
    elif answers["unusual"].state == "note":
        yield (
            "Measure again on an idle machine. If the same results are unusual again, look at their ranks, devices and "
            "links."
        )
    elif answers["correct"].state == "note":
        yield "Measure again with checked results, because these may be wrong."
    elif is_cpu and not bad:
        causes = (
            "memory, scheduling and the network of CPUs"
            if evidence.results.attrs.get("n_hosts")
            else ("memory and scheduling on this CPU")
        )
        yield f"To judge GPUs, measure on GPUs. These times only reflect MPI, {causes}."
    elif not bad and evidence.no_bounds == NO_MESH:
        yield 'For a verdict on the speed, pass the mesh too: `meshlab report RUN --mesh "dp=2, tp=4" --cluster …`.'
    elif not bad and is_unknown and evidence.results["size_bytes"].notna().any():
        yield "For a verdict on the speed, name the machine: `meshlab report RUN --cluster dgx-h200`, or a file."
    elif not bad and logged is not None and logged.outcome == "not decided":
        yield "For a verdict on the speed, state what is missing: `meshlab report LOG --nodes 2 --cluster dgx-h100`."
    elif not bad:
        yield (
            f"{_NOTHING} Keep this run as a baseline: `meshlab report NEW --baseline THIS` compares a later run "
            "with it."
        )


def _logged_verdict(evidence: ReportEvidence) -> Verdict | None:
    """Return the most serious verdict on a log, or None for other results."""
    expected, sources = evidence.expected, set(evidence.results["source"].dropna())
    if expected is None or not len(expected) or sources != {LOGGED}:
        return None
    return most_serious([verdict_of(row) for _, row in expected.iterrows()])


def next_step_of_acceptance(stages: Stages) -> Answer:
    """Return the next step after an acceptance."""
    if stages.outcome == "failed":
        text = "Fix the problems that the failed stages name, and repeat the acceptance. Its command is under “Method”."
    elif stages.outcome == "passed":
        text = f"{_NOTHING} Keep this folder, so that a later acceptance can be compared with it."
    else:
        text = "Remove the reason, and repeat the acceptance. Its command is under “Method”."
    return Answer("next step", "plain", (text,))
