"""Logs that are not wrong but show less than they seem to."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._unclear_logs import communicator_of_one, log_ends_early, warning_missing

BOOTSTRAP = """\
nodeA:1189:1189 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.83<0>
nodeA:1189:1189 [0] NCCL INFO NET/Plugin: Plugin load returned 2 : libnccl-net.so: \
cannot open shared object file: No such file
nodeB:1213:1213 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.84<0>
"""
ALONE = (
    "node4:1017:1189 [0] NCCL INFO comm 0x55 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 30 commId 0x7e - Init START\n"
)


def test_a_log_that_ends_after_the_bootstrap_shows_nothing_wrong() -> None:
    (finding,) = log_ends_early(Paste(BOOTSTRAP))
    assert (finding.severity, finding.subject) == ("info", "nodeA, nodeB")


def test_a_log_that_goes_on_or_fails_does_not_end_early() -> None:
    assert not list(log_ends_early(Paste(BOOTSTRAP + "nodeA:1:1 [0] NCCL INFO Using network IB\n")))
    assert not list(log_ends_early(Paste(BOOTSTRAP + "nodeA:1:1 [0] socket.cc:1 NCCL WARN Net : no route\n")))
    assert not list(log_ends_early(Paste("hello")))


def test_a_communicator_of_one_rank_is_worth_knowing() -> None:
    (finding,) = communicator_of_one(Paste(ALONE))
    assert (finding.severity, finding.subject) == ("info", "node4, rank 0")
    assert "WORLD_SIZE" in finding.do


def test_several_processes_that_are_alone_are_counted() -> None:
    text = ALONE + ALONE.replace(":1017:", ":1018:")
    assert next(iter(communicator_of_one(Paste(text)))).subject == "node4, rank 0 of 2 processes"


def test_a_communicator_of_one_beside_larger_ones_may_be_an_axis_of_size_one() -> None:
    larger = ALONE.replace("rank 0 nranks 1 ", "rank 3 nranks 8 ")
    (finding,) = communicator_of_one(Paste(ALONE + larger))
    assert "axis of size 1" in finding.why
    assert not list(communicator_of_one(Paste(larger)))


FAILED = "node00: Test NCCL failure common.cu:1012 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '"


def test_a_failure_without_its_warning_says_what_to_collect() -> None:
    (finding,) = warning_missing(Paste(FAILED))
    assert (finding.severity, finding.subject) == ("warning", "node00")
    assert "NCCL_DEBUG=WARN" in finding.do


def test_a_failure_with_its_warning_needs_no_other() -> None:
    assert not list(warning_missing(Paste(FAILED + "\nnode00:1:2 [0] NCCL WARN Call to connect failed")))
    last = "ncclSystemError: System call failed.\nLast error:\n{}"
    assert not list(warning_missing(Paste(last.format("Error while creating shared memory segment"))))
    assert list(warning_missing(Paste(last.format(""))))


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: NCCL error in: ../c10d/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8",
        "[1,0]<stderr>:horovod.common.exceptions.HorovodInternalError: ncclCommInitRank failed: invalid usage",
        "Traceback (most recent call last):\n  File x\nRuntimeError: NCCL error in: a.cpp:7, unhandled system error, "
        "NCCL 2.7",
        "[rank1]: DistBackendError: NCCL error in: a.cpp:7, internal error - please report\n[rank1]: Last error:\n\n"
        "[rank2]: Traceback (most recent call last):",
    ],
)
def test_a_traceback_about_nccl_does_not_hide_that_the_warning_is_missing(text: str) -> None:
    (finding,) = warning_missing(Paste(text))
    assert finding.severity == "warning"
    assert ("same GPU" in finding.why) == ("invalid usage" in text)


def test_an_exception_of_the_program_may_be_the_cause() -> None:
    assert not list(warning_missing(Paste(f"{FAILED}\nTraceback (most recent call last):\nValueError: wrong shape")))
    assert not list(warning_missing(Paste("ValueError: invalid argument, invalid usage of a tensor")))
