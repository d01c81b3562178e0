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

from meshlab.base._errors import BenchError, ParseError
from meshlab.base._files import write_file
from meshlab.cli._output import OK, print_text

if TYPE_CHECKING:
    import argparse

    from meshlab.commissioning._outcome import Acceptance

_VERDICT = "verdict.json"
_LOCAL_RANKS = ("SLURM_LOCALID", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK")


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
    environ, folder = os.environ, options.out or options.resume
    if next((environ[name] for name in _LOCAL_RANKS if environ.get(name)), "0") != "0":
        return OK  # another task of this node does it
    host = socket.gethostname()
    if folder is not None:
        options.out = options.out and str(Path(options.out) / host)
        options.resume = options.resume and str(Path(options.resume) / host)
    if options.files:
        raise BenchError(
            "-o names one file for all nodes", hint="omit it: --out has a folder with the reports of each node"
        )
    with contextlib.redirect_stdout(_PrefixedLines(host)):
        code, result = accept(options)
    if folder is not None and result is not None:
        step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
        document = {"host": host, "outcome": result.outcome, "verdict": result.verdict, "step": step}
        write_file(Path(folder) / host / _VERDICT, json.dumps(document) + "\n")
        _summarise(Path(folder), step, environ.get("SLURM_STEP_NUM_NODES", ""))
    return code


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
        sign = {"passed": "✓", "failed": "✕"}.get(str(verdict["outcome"]), "–")
        print_text(f"{sign} {str(verdict['host']).ljust(width)}  {verdict['verdict']}")
    suites = ET.Element("testsuites")
    for verdict in verdicts:
        with contextlib.suppress(OSError, ET.ParseError):  # it could not be written, which that node has reported
            for suite in ET.parse(folder / str(verdict["host"]) / "junit.xml").getroot():
                suite.set("name", f"{verdict['host']}: {suite.get('name', '')}")
                suites.append(suite)
    ET.indent(suites)
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'
    print_text(write_file(folder / "junit.xml", text))


def _read(path: Path) -> Mapping[str, object]:
    """Return the verdict of a node, with an empty step if another program wrote the file."""
    from meshlab.base._documents import read_own_json

    try:
        document = read_own_json(path)
    except (OSError, ValueError, ParseError):
        document = None
    is_verdict = isinstance(document, dict) and {"host", "outcome", "verdict", "step"} <= document.keys()
    return document if is_verdict and isinstance(document, dict) else {"step": None}
