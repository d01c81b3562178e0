"""Rules for reports of NCCL's RAS subsystem."""

from __future__ import annotations

from collections.abc import Iterator

from meshlab.diagnosis._findings import Rule, TextFinding, first_names, rule
from meshlab.diagnosis._late_ranks import rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._ras import RasCommunicator, RasMismatch, RasReport, RasState, read_ras_reports

_SOURCE = "NVIDIA/nccl/src/ras/client_support.cc, 2.24 to 2.30"


@rule("ras-incomplete", "RAS got no answer from some processes", source=_SOURCE)
def ras_incomplete(paste: Paste) -> Iterator[TextFinding]:
    """Look for processes that did not answer RAS, or that it considers dead."""
    for report in paste.once(read_ras_reports):
        if not report.n_missing and not report.n_dead and not any(_missing(comm) for comm in report.communicators):
            continue
        named = list(dict.fromkeys(str(process) for process in (*report.missing, *report.dead)))
        ranks = sorted({rank for comm in report.communicators for rank, _ in _missing(comm)})
        if not named:
            named = [rank_list(ranks)] if ranks else [f"{max(report.n_missing, 1)} process(es), not named"]
        elif ranks and len(ranks) <= 16:
            named.append(rank_list(ranks))
        dead = (
            f" {report.n_dead} of them {'is' if report.n_dead == 1 else 'are'} considered dead: unreachable over the "
            "RAS network for about a minute."
            if report.n_dead
            else ""
        )
        uneven = _uneven(report)
        yield ras_incomplete.finding(
            "error",
            first_names(named),
            "These processes did not answer RAS: they are stuck, have ended, are unreachable, or belong to an earlier "
            f"start of the job.{dead}{uneven}",
            "Look at these processes on their hosts (alive? py-spy dump, dmesg), and make sure that no processes of "
            "an earlier job are left there.",
            [
                *(process.line for process in (*report.missing, *report.dead)),
                *(line for comm in report.communicators if _missing(comm) for line in comm.lines),
            ],
        )


def _missing(comm: RasCommunicator) -> list[tuple[int, object]]:
    return [(rank, process) for rank, process in comm.missing if rank not in comm.odd_ranks]


def _uneven(report: RasReport) -> str:
    if not report.outliers:
        return ""
    outliers = ", ".join(f"{node} runs {number}" for node, number in report.outliers[:4])
    return f" The hosts run different numbers of processes: {outliers}, unlike the others."


@rule("ras-mismatch", "Ranks of a communicator have launched different numbers of operations", source=_SOURCE)
def ras_mismatch(paste: Paste) -> Iterator[TextFinding]:
    """Look for ranks that differ in their operation counts or in their status.

    RAS counts launches, and a running job shows differences of one. The ranks that ncclras lists are those of the
    smaller group, which may be ahead.
    """
    reports = sorted(paste.once(read_ras_reports), key=lambda report: report.first)
    seen: dict[tuple[str, str], RasMismatch] = {}
    for report in reports:
        for comm in report.communicators:
            for mismatch in comm.mismatches:
                before = seen.get((comm.name, mismatch.what))
                seen[comm.name, mismatch.what] = mismatch
                if before is None or before.states == mismatch.states:
                    yield _mismatch(comm, mismatch, stands_still=before is not None)


def _ranks(state: RasState) -> str:
    return rank_list(state.ranks) if state.ranks else f"{state.n_ranks} ranks"


def _mismatch(comm: RasCommunicator, mismatch: RasMismatch, *, stands_still: bool) -> TextFinding:
    name = f"communicator {comm.name}"
    if mismatch.what == "status":
        states = ", ".join(f"{_ranks(state)} in {state.value}" for state in mismatch.states)
        return ras_mismatch.finding(
            "warning",
            f"{name}: {states}",
            f"The ranks of this communicator are in different states: {states}. While a communicator is created or "
            "destroyed, this is normal for a moment.",
            "Query RAS again after some seconds. If the states stay, look at the ranks that are not in RUNNING.",
            mismatch.lines,
        )
    counted = [state for state in mismatch.states if isinstance(state.value, int)]
    if not counted:
        return ras_mismatch.finding(
            "warning", name, f"The {mismatch.what} counts of its ranks differ.", "Query RAS again.", mismatch.lines
        )
    states = ", ".join(f"{_ranks(state)} at {mismatch.what} {state.value}" for state in counted)
    low = min(counted, key=lambda state: int(state.value))
    high = max(counted, key=lambda state: int(state.value))
    ahead = int(high.value) - int(low.value)
    by = "one" if ahead == 1 else f"{ahead:,}"
    listed = (
        " ncclras lists the smaller group, whether it is ahead or behind."
        if any(not state.ranks for state in counted)
        else ""
    )
    late = (
        f"{_ranks(low).capitalize()} {'has' if low.n_ranks == 1 else 'have'} not launched {mismatch.what} "
        f"{high.value}, which {_ranks(high)} launched ({by} ahead).{listed}"
    )
    if stands_still:
        return ras_mismatch.finding(
            "error",
            f"{name}: {states}",
            f"{late} Two reports show the same counts, so the job makes no progress: the ranks that are behind did "
            "not arrive.",
            f"Get the stacks of {_ranks(low)} (py-spy dump --pid PID).",
            mismatch.lines,
        )
    return ras_mismatch.finding(
        "warning",
        f"{name}: {states}",
        f"{late} RAS counts launches, and in a running job, "
        + ("a difference of one is normal." if ahead == 1 else "ranks may be some calls ahead of each other."),
        "Query RAS again after some seconds. If the counts stand still, look at "
        + (_ranks(low) if low.ranks else f"the {_ranks(low)} that are behind (ncclras -v lists them)")
        + ". If the counts grow, nothing hangs.",
        mismatch.lines,
    )


@rule("ras-error", "Ranks of a communicator reported an error", source=_SOURCE)
def ras_error(paste: Paste) -> Iterator[TextFinding]:
    """Look for errors that NCCL stored in a communicator."""
    for report in paste.once(read_ras_reports):
        for comm in report.communicators:
            if not comm.errors:
                continue
            errors = "; ".join(f"{_ranks(state)}: {state.value}" for state in comm.errors)
            yield ras_error.finding(
                "error",
                f"communicator {comm.name}: {errors}",
                f"NCCL stored an error in this communicator: {errors}. A remote process error is only a consequence "
                "of a rank that ended or of a broken connection.",
                "Look for the first NCCL WARN line in the logs of these ranks (NCCL_DEBUG=WARN).",
                comm.lines,
            )


@rule("ras-output-unreliable", "A RAS report contradicts itself", source="NVIDIA/nccl#1762")
def ras_output_unreliable(paste: Paste) -> Iterator[TextFinding]:
    """Look for values that cannot be right: communicators without ranks, or more ranks than the job has."""
    for report in paste.once(read_ras_reports):
        if faults := list(_contradictions(report)):
            odd = [text for text, _, _ in faults]
            groups = sorted({group for _, group, _ in faults if group is not None})
            where = f"group{'s' * (len(groups) > 1)} {' and '.join(map(str, groups))}" if groups else "the report"
            yield ras_output_unreliable.finding(
                "info",
                where,
                f"The report contradicts itself: {'; '.join(odd[:4])}. RAS of some versions mixes up its data (a bug "
                "was reported for 2.27.3)" + (f"; this one is {report.nccl}." if report.nccl else "."),
                "Don't rely on these entries. Update NCCL, and query RAS again.",
                [line for _, _, lines in faults for line in lines],
            )


def _contradictions(report: RasReport) -> Iterator[tuple[str, int | None, tuple[int, ...]]]:
    """Yield what cannot be right, with its group and lines."""
    size = report.n_gpus or report.n_processes
    for row in report.rows:
        n_ranks, has_missing = row.n_comms * row.n_ranks, "INCOMPLETE" in row.errors
        fault = ""
        if row.n_comms and (row.n_ranks == 0 or row.n_nodes == 0):
            fault = f"{row.n_comms} communicators with 0 ranks"
        elif size and row.n_ranks > size * 2:
            fault = f"{row.n_ranks} ranks, and the job has {size}"
        elif row.n_answers > n_ranks or (row.n_answers < n_ranks and not has_missing):
            fault = f"{row.n_comms} × {row.n_ranks} ranks and data of {row.n_answers}, and is "
            fault += ",".join(row.errors) or "OK"
        if fault:
            yield f"group {row.group} has {fault}", row.group, (row.line,)
    for comm in report.communicators:
        if size and comm.n_missing > size:
            fault = f"communicator {comm.name} misses {comm.n_missing} ranks, and the job has {size}"
            yield fault, comm.group, comm.lines
        elif comm.odd_ranks:
            yield f"communicator {comm.name} has a rank {comm.odd_ranks[0]}", comm.group, comm.lines


@rule("ras-timeout", "RAS itself timed out", source=_SOURCE)
def ras_timeout(paste: Paste) -> Iterator[TextFinding]:
    """Look for communication timeouts within the RAS network."""
    for report in paste.once(read_ras_reports):
        if report.n_timeouts:
            yield ras_timeout.finding(
                "warning",
                f"{report.n_timeouts} connection{'s' if report.n_timeouts > 1 else ''} of the RAS network",
                "RAS could not reach some processes in time, so its report may be incomplete. The cause is a process "
                "or a host that does not answer, or the network that RAS uses.",
                "Query RAS again with a longer timeout (ncclras -t 30), and look at the hosts without an answer.",
                other_lines(paste).numbers("communication timeout", '"timeouts_count"'),
            )


@rule("ras-consistent", "RAS shows no difference between the ranks", source=_SOURCE)
def ras_consistent(paste: Paste) -> Iterator[TextFinding]:
    """Look for a complete report without errors and warnings, and say what it cannot show."""
    for report in paste.once(read_ras_reports):
        if not report.is_complete or report.n_missing or report.n_dead or report.n_timeouts:
            continue
        bad = any(row.errors for row in report.rows)
        bad = bad or any(comm.mismatches or comm.errors or comm.n_missing for comm in report.communicators)
        if not bad and (report.rows or report.communicators):
            number = sum(row.n_comms for row in report.rows) or len(report.communicators)
            yield ras_consistent.finding(
                "info",
                f"{number} communicator{'s' * (number != 1)}",
                "All ranks answered and have launched the same number of operations. RAS counts launches: it shows "
                "neither sizes and order, nor whether an operation completes.",
                "If the job hangs anyway, compare flight recorder dumps, or set TORCH_DISTRIBUTED_DEBUG=DETAIL.",
                [report.first, report.last],
            )


RAS_RULES: tuple[Rule, ...] = (
    ras_incomplete,
    ras_mismatch,
    ras_error,
    ras_output_unreliable,
    ras_timeout,
    ras_consistent,
)
