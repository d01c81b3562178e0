"""Lines of XLA and JAX about the processes of a job: its coordination service, and threads that wait for each other."""

from __future__ import annotations

import re
from typing import NamedTuple

from meshlab.base._numerals import whole
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen, TextFormat

_TASK = r"/job:\w+/replica:\d+/task:(?P<task>\d+)"
_TASKS = re.compile(_TASK)
_BARRIER = re.compile(
    r"Barrier timed out\. (?:Barrier_id|Id): (?P<name>[^\s.]+(?:\.[^\s.]+)*?)\.?(?:\s|$)"
    r"|Stopping coordination service as cluster registration failed"
)
_HEARTBEAT = re.compile(
    rf"Task {_TASK} heartbeat timeout|The following tasks are unhealthy \(stopped sending heartbeats\):"
)
_WAITING = re.compile(
    r"This thread has been waiting for `(?P<name>[^`]*)`(?: \([^)]*\))? for (?P<seconds>\d+) seconds? and may be "
    r"stuck(?:[.:]|\s)+(?:Expected (?P<expected>\d+) threads to join the rendezvous, but (?:only (?P<arrived>\d+)|not)"
    r"|(?P<all>All \d+ threads joined))"
)
_CLIQUE = re.compile(r"initialize clique for rank (?P<rank>\d+)|acquire clique|init(?:ialize)? (?:nccl|gpu) ", re.I)
_REFUSED = re.compile(
    r"ipv[46]:(?P<address>\[[^\]]+\]:\d+|[\d.]+:\d+): Failed to connect to remote host: (?P<why>[\w ]+)"
)
_OF_COORDINATION = re.compile(
    r"CoordinationService|coordination[_ ](?:service|agent)|WatchTasks|distributed[./_]client|jax[._]distributed", re.I
)
_LITERALS = (
    *("xla/", "XlaRuntimeError", "JaxRuntimeError", "coordination service", "CoordinationService", "jax_worker"),
    *("threads to join the rendezvous", "threads joined the rendezvous", "xla.gpu.", "WatchTasksAsync"),
)
_BELOW = 64  # lines of a list of tasks


class LateTasks(NamedTuple):
    """A barrier of the coordination service that timed out."""

    barrier: str  # empty if the text does not name it
    tasks: tuple[int, ...]  # those that did not come, as far as the text names them
    lines: tuple[int, ...]


class WaitingThread(NamedTuple):
    """A thread of one device that waits for the threads of the other devices of its process."""

    line: int
    name: str
    seconds: int
    expected: int | None  # None if all threads came
    arrived: int | None  # None if the text does not contain it
    is_setup: bool  # they create a communicator of NCCL
    ended: bool  # the process ended because of it


def read_late_tasks(paste: Paste) -> tuple[LateTasks, ...]:
    """Return the barriers that timed out, each once."""
    barriers: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for line, match in other_lines(paste).matches(_BARRIER, "Barrier timed out", "cluster registration failed"):
        tasks = [whole(task) for task in _TASKS.findall(line.text)]
        lines = [line.number]
        for number in range(line.number + 1, min(line.number + _BELOW, len(paste)) + 1):
            below = paste.line(number).text.strip()
            if (task := _TASKS.match(below)) is None:
                break
            tasks.append(whole(task["task"]))
            lines.append(number)
        barriers.setdefault((match["name"] or "", tuple(sorted(set(tasks)))), []).extend(lines)
    return tuple(LateTasks(name, tasks, tuple(lines)) for (name, tasks), lines in barriers.items())


def read_silent_tasks(paste: Paste) -> dict[int, list[int]]:
    """Return the tasks that sent no heartbeats any more, each with the numbers of its lines."""
    silent: dict[int, list[int]] = {}
    for line, match in other_lines(paste).matches(_HEARTBEAT, "heartbeat timeout", "stopped sending heartbeats"):
        if match["task"] is not None:
            silent.setdefault(whole(match["task"]), []).append(line.number)
            continue
        texts = [line.text[match.end() :]]
        for number in range(line.number + 1, min(line.number + _BELOW, len(paste)) + 1):
            if _TASKS.match(paste.line(number).text.strip()) is None:
                break
            texts.append(paste.line(number).text)
        for text in texts:
            for task in _TASKS.findall(text):
                silent.setdefault(whole(task), []).append(line.number)
    return silent


def read_waiting_threads(paste: Paste) -> tuple[WaitingThread, ...]:
    """Return the threads that wait at a rendezvous within their process, unless they went on later."""
    literals = ("threads to join the rendezvous", "threads joined the rendezvous")
    ended = bool(other_lines(paste).numbers("Termination timeout for"))
    return tuple(
        WaitingThread(
            line.number,
            match["name"],
            whole(match["seconds"]),
            None if match["all"] else whole(match["expected"]),
            whole(match["arrived"]) if match["arrived"] else None,
            _CLIQUE.search(match["name"]) is not None,
            ended,
        )
        for line, match in other_lines(paste).matches(_WAITING, *literals)
    )


def read_refused_coordinators(paste: Paste) -> dict[tuple[str, str], list[int]]:
    """Return the addresses of a coordination service that could not be reached, and why, with their lines."""
    matches = other_lines(paste).matches(_REFUSED, "Failed to connect to remote host")
    if not matches or _OF_COORDINATION.search(paste.text) is None:
        return {}
    refused: dict[tuple[str, str], list[int]] = {}
    for line, match in matches:
        refused.setdefault((match["address"], match["why"].strip()), []).append(line.number)
    return refused


def _find(paste: Paste) -> list[int]:
    return other_lines(paste).numbers(*_LITERALS)


def _see(paste: Paste) -> Seen:
    return Seen()


XLA_LOG = TextFormat("XLA log", _find, _see, "the log of a JAX job")
