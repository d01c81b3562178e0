"""Reports of RAS: texts of several versions, JSON, and what the rules say about them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._ras import RAS_REPORT, read_ras_reports
from meshlab.diagnosis.rules._ras_reports import (
    RAS_RULES,
    ras_consistent,
    ras_error,
    ras_incomplete,
    ras_mismatch,
    ras_output_unreliable,
    ras_timeout,
)

HEAD = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def report(row: str, errors: str = "", warnings: str = "", head: str = HEAD) -> Paste:
    """A report of ncclras."""
    return Paste(f"{head}{row}\n\nErrors\n======\n\n{errors}\nWarnings\n========\n\n{warnings}\n")


HEALTHY = "    0         1         2         4         8         8   RUNNING      OK"


def codes(paste: Paste) -> list[str]:
    return [finding.code for rule in RAS_RULES for finding in rule(paste)]


def test_a_report_without_differences_says_what_it_cannot_show() -> None:
    paste = report(HEALTHY)
    assert codes(paste) == ["ras-consistent"]
    assert "neither sizes" in next(iter(ras_consistent(paste))).why
    (read,) = read_ras_reports(paste)
    assert (read.nccl, read.n_nodes, read.n_processes, read.n_gpus, read.is_complete) == ("2.28.9", 2, 8, 8, True)


MISMATCH = "    0         1         2         4         8         8   RUNNING  MISMATCH"


def test_the_listed_ranks_may_be_ahead() -> None:
    paste = report(
        MISMATCH,
        warnings="""\
#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  7 ranks have launched up to operation 640
  Rank 2 has launched up to operation 641 -- GPU 2 (NVML 4) managed by process 3230 on node 10.0.0.124
""",
    )
    (finding,) = ras_mismatch(paste)
    assert finding.severity == "warning"
    assert finding.subject == "communicator fa93daea854b060b: 7 ranks at AllGather 640, rank 2 at AllGather 641"
    assert finding.why.startswith("7 ranks have not launched AllGather 641")
    assert "a difference of one is normal" in finding.why
    assert "rank 2" not in finding.do


def test_counts_of_versions_before_2_26_have_no_name() -> None:
    paste = report(
        MISMATCH,
        warnings="""\
#0-0 (ab) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 12
  2 ranks have launched up to operation 3
  Rank 4 -- GPU 0 managed by process 7 on node 10.0.0.2
  Rank 5 -- [process information not found]
""",
    )
    (finding,) = ras_mismatch(paste)
    assert finding.subject == "communicator ab: 6 ranks at collective 12, ranks 4 and 5 at collective 3"
    assert "ranks 4 and 5" in finding.do


def test_ranks_that_launched_nothing_are_behind() -> None:
    paste = report(
        MISMATCH,
        warnings="""\
#0-0 (ab) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 5
  Rank 6 has not launched any operations -- GPU 2 managed by process 9 on node 10.0.0.2
""",
    )
    assert "rank 6 at AllReduce 0" in next(iter(ras_mismatch(paste))).subject


def test_two_reports_with_the_same_counts_show_a_hang() -> None:
    warning = """\
#0-0 (ab) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 7 -- GPU 0 managed by process 1 on node 10.0.0.1
  Rank 1 has launched up to operation 6 -- GPU 1 managed by process 2 on node 10.0.0.1
"""
    first = report(MISMATCH, warnings=warning).text
    findings = list(ras_mismatch(Paste(first + first)))
    assert [finding.severity for finding in findings] == ["warning", "error"]
    moved = first.replace("operation 7", "operation 90").replace("operation 6", "operation 89")
    assert [finding.severity for finding in ras_mismatch(Paste(first + moved))] == ["warning"]


def test_different_states_are_found() -> None:
    paste = report(
        MISMATCH,
        warnings="""\
#0-0 (ab) MISMATCH
  Communicator ranks have different status
  7 ranks have status RUNNING
  Rank 3 has status INIT -- GPU 3 managed by process 4 on node 10.0.0.1
""",
    )
    assert next(iter(ras_mismatch(paste))).subject == "communicator ab: 7 ranks in RUNNING, rank 3 in INIT"


def test_processes_without_an_answer_and_dead_ones_are_named() -> None:
    paste = report(
        "    0         1         2         4         8         6   RUNNING  INCOMPLETE",
        errors="""\
INCOMPLETE
  Missing communicator data from 2 job processes
  Process 100 on node 10.0.0.3 managing GPU 3
  Process 101 on node 10.0.0.3 managing GPUs 4,5

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 100 on node 10.0.0.3 managing GPU 3

#0-0 (ab) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 6 -- GPU 3 managed by process 100 on node 10.0.0.3
  Rank 7 -- [process information not found]
""",
    )
    (finding,) = ras_incomplete(paste)
    assert "process 100 on 10.0.0.3 (GPU 3)" in finding.subject
    assert "ranks 6 and 7" in finding.subject
    assert "considered dead" in finding.why
    assert not list(ras_mismatch(paste))
    assert not list(ras_consistent(paste))


def test_errors_of_ranks_are_found() -> None:
    paste = report(
        "    0         1         2         4         8         8   RUNNING   ERROR",
        errors="""\
#0-0 (ab) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 1 reported Unhandled CUDA error -- GPU 1 managed by process 2 on node 10.0.0.1
""",
    )
    assert "rank 1: Unhandled CUDA error" in next(iter(ras_error(paste))).subject


def test_values_that_cannot_be_right_are_found() -> None:
    row = (
        "    0         1         2         4         8         8   RUNNING      OK\n"
        "    1         4         0         0         0         0    NOCOMM  INCOMPLETE"
    )
    paste = report(row, errors="#1-0 (ab) INCOMPLETE\n  Missing communicator data from 255 ranks\n")
    (finding,) = ras_output_unreliable(paste)
    assert finding.severity == "info"
    assert finding.subject == "group 1"
    assert not list(ras_output_unreliable(report(HEALTHY)))


def test_timeouts_of_ras_itself_are_found() -> None:
    paste = report(
        HEALTHY, warnings="TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n"
    )
    assert codes(paste) == ["ras-timeout"]
    assert list(ras_timeout(paste))


def test_a_report_that_is_cut_is_not_called_consistent() -> None:
    assert codes(Paste(f"{HEAD}{HEALTHY}\n")) == []
    assert RAS_REPORT.find(Paste(f"{HEAD}{HEALTHY}\n"))


def test_a_report_with_uneven_nodes_names_them() -> None:
    head = """\
NCCL version 2.24.3 compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs
          per node  per process
      1          8            1
      1          2            1

  Nodes  Processes         GPUs
(total)    (total)      (total)
      2         10           10

The outlier node:
  Node 10.0.0.13 running processes 6004,6035

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
    paste = report(
        "    0         1         2       2-8        10         9   RUNNING  INCOMPLETE",
        errors=(
            "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 6004 on node 10.0.0.13 "
            "managing GPU 0\n"
        ),
        head=head,
    )
    assert read_ras_reports(paste)[0].n_processes == 10
    assert "10.0.0.13 runs 2" in next(iter(ras_incomplete(paste))).why


def as_json(counts: dict[int, int], missing: list[dict[str, Any]] | None = None, **status: int) -> Paste:
    """The JSON of ncclras."""
    ranks = [
        {
            "rank": rank,
            "host": "10.0.0.1",
            "pid": 100 + rank,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": 0, "abort_flag": False, **status},
            "collective_counts": {"AllGather": 3, "AllReduce": count},
        }
        for rank, count in counts.items()
    ]
    size = len(counts) + len(missing or ())
    comm = {
        "hash": "0xab",
        "size": size,
        "ranks_count": len(counts),
        "missing_ranks_count": len(missing or ()),
        "ranks": ranks,
        "missing_ranks": missing or [],
    }
    value = {
        "nccl_version": "2.28.9",
        "cuda_driver_version": 13000,
        "communicators_count": 1,
        "communicators": [comm],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    return Paste("SERVER PROTOCOL 2\nOK\n" + json.dumps(value, indent=2))


def test_json_is_read_like_the_text() -> None:
    assert codes(as_json({0: 7, 1: 7})) == ["ras-consistent"]
    (finding,) = ras_mismatch(as_json({0: 7, 1: 6, 2: 7}))
    assert finding.subject == "communicator ab: rank 1 at AllReduce 6, ranks 0 and 2 at AllReduce 7"
    gone = {
        "rank": 2,
        "host": "10.0.0.2",
        "pid": 9,
        "cuda_dev": 0,
        "nvml_dev": 0,
        "status": {"unresponsive": True, "considered_dead": True},
    }
    (finding,) = ras_incomplete(as_json({0: 7, 1: 7}, [gone]))
    assert "process 9 on 10.0.0.2" in finding.subject
    assert "considered dead" in finding.why
    (finding,) = ras_error(as_json({0: 7, 1: 7}, async_error=6))
    assert "remote process error" in finding.subject


def test_operations_in_progress_are_no_errors() -> None:
    assert codes(as_json({0: 7, 1: 7}, async_error=7)) == ["ras-consistent"]


@pytest.mark.parametrize("end", [200, 600, 900])
def test_half_of_a_json_does_not_fail(end: int) -> None:
    assert codes(Paste(as_json({0: 7, 1: 6}).text[:end])) == []


def test_the_table_of_launches_has_one_row_per_rank() -> None:
    frame = RAS_REPORT.see(as_json({0: 7, 1: 6})).frames["launches"]()
    assert frame.query("collective == 'AllReduce'")[["rank", "launched"]].to_numpy().tolist() == [[0, 7], [1, 6]]


TROUBLE = """\
NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          2            1          2        2

Communicators... (5.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING  ERROR,MISMATCH
    1         1         0         0         0         0    NOCOMM  INCOMPLETE

Errors
======

#0-0 (ab) ERROR
  Asynchronous error on 1 rank
  Rank 0 reported Remote process error -- GPU 0 managed by process 11 on node 10.0.0.1

Warnings
========

TIMEOUT
  Encountered 1 communication timeout while gathering communicator data

#0-0 (ab) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 7 -- GPU 0 managed by process 11 on node 10.0.0.1
  Rank 1 has launched up to operation 6 -- GPU 1 managed by process 12 on node 10.0.0.1
"""
HEALTHY_REPORT = """\
NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         2         2         2   RUNNING      OK

Errors
======

Warnings
========
"""


def test_everything_in_one_report_is_found() -> None:
    assert codes(Paste(TROUBLE)) == ["ras-mismatch", "ras-error", "ras-output-unreliable", "ras-timeout"]
    assert codes(Paste(HEALTHY_REPORT)) == ["ras-consistent"]
