"""The acceptance of each node by itself, in tasks that a launcher has started on all of them without MPI."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshlabError, ParseError
from meshlab.base._files import write_file
from meshlab.cli._output import OK, print_text
from meshlab.engines._launchers import local_rank

if TYPE_CHECKING:
    import argparse

    from meshlab.commissioning._outcome import Acceptance

_VERDICT = "verdict.json"
_NOT_RUN = "did not run"  # the outcome of a node whose ranks did not start


class _PrefixedLines(io.TextIOBase):
    """Writes lines to a stream with the name of this host, because the launcher mixes those of all hosts."""

    def __init__(self, host: str) -> None:
        self._host, self._stream, self._line = host, sys.stdout, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        if lines:
            self._stream.write("".join(f"{self._host}: {line}".rstrip() + "\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def accept_per_node(
    options: argparse.Namespace, accept: Callable[[argparse.Namespace], tuple[int, Acceptance | None]]
) -> int:
    """Accept this node with ranks that start here, in a folder of its own. The last node also prints all verdicts."""
    folder = options.out or options.resume
    if local_rank() not in (None, 0):
        return OK  # another task of this node does it
    host = socket.gethostname()
    if folder is not None:
        options.out = options.out and str(Path(options.out) / host)
        options.resume = options.resume and str(Path(options.resume) / host)
    if options.files:
        raise BenchError(
            "-o names one file for all nodes", hint="omit it: --out has a folder with the reports of each node"
        )
    try:
        with contextlib.redirect_stdout(_PrefixedLines(host)):
            code, result = accept(options)
    except (
        EngineError,
        CommunicatorError,
    ) as error:  # of this node alone, and the verdicts are printed when all are there
        if folder is not None:
            with contextlib.suppress(OSError, MeshlabError):
                _conclude(Path(folder), host, _NOT_RUN, f"The acceptance did not run: {error.message}")
        raise
    if folder is not None and result is not None:
        _conclude(Path(folder), host, result.outcome, result.verdict)
    return code


def _conclude(folder: Path, host: str, outcome: str, verdict: str) -> None:
    """Write the verdict of this node, and print those of all nodes if it is the last one."""
    step = ".".join(os.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    document = {"host": host, "outcome": outcome, "verdict": verdict, "step": step}
    (folder / host).mkdir(parents=True, exist_ok=True)
    write_file(folder / host / _VERDICT, json.dumps(document) + "\n")
    _summarise(folder, step, os.environ.get("SLURM_STEP_NUM_NODES", ""))


def _summarise(folder: Path, step: str, n_nodes: str) -> None:
    """Print the verdicts of all nodes and join their JUnit files, if this is the last one of its step to end."""
    verdicts = [verdict for path in sorted(folder.glob(f"*/{_VERDICT}")) if (verdict := _read(path))["step"] == step]
    if not n_nodes.isdecimal() or len(verdicts) < int(n_nodes):
        return
    try:  # two nodes may end at the same time
        (folder / f".summary-{step}").touch(exist_ok=False)
    except FileExistsError:
        return
    others = [verdict for verdict in verdicts if verdict["outcome"] != "passed"]
    width = max(len(str(verdict["host"])) for verdict in verdicts)
    print_text(f"\n{len(verdicts) - len(others)} of {len(verdicts)} nodes accepted")
    for verdict in [*others, *(verdict for verdict in verdicts if verdict not in others)]:
        sign = {"passed": "✓", "failed": "✕", _NOT_RUN: "✕"}.get(str(verdict["outcome"]), "–")
        print_text(f"{sign} {str(verdict['host']).ljust(width)}  {verdict['verdict']}")
    suites = ET.Element("testsuites")
    for verdict in verdicts:
        if verdict["outcome"] == _NOT_RUN:  # its file would be that of an earlier acceptance
            suites.append(_suite_of_error(str(verdict["host"]), str(verdict["verdict"])))
            continue
        with contextlib.suppress(OSError, ET.ParseError):  # it could not be written, which that node has reported
            for suite in ET.parse(folder / str(verdict["host"]) / "junit.xml").getroot():
                suite.set("name", f"{verdict['host']}: {suite.get('name', '')}")
                suites.append(suite)
    ET.indent(suites)
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'
    print_text(write_file(folder / "junit.xml", text))


def _suite_of_error(host: str, text: str) -> ET.Element:
    """Return the JUnit suite of a node on which nothing was measured."""
    suite = ET.Element("testsuite", name=f"{host}: meshlab acceptance", tests="1", failures="0", errors="1")
    ET.SubElement(ET.SubElement(suite, "testcase", name="start"), "error", message=text)
    return suite


def _read(path: Path) -> Mapping[str, object]:
    """Return the verdict of a node, with an empty step if another program wrote the file."""
    from meshlab.base._documents import read_own_json

    try:
        document = read_own_json(path)
    except (OSError, ValueError, ParseError):
        document = None
    is_verdict = isinstance(document, dict) and {"host", "outcome", "verdict", "step"} <= document.keys()
    return document if is_verdict and isinstance(document, dict) else {"step": None}
