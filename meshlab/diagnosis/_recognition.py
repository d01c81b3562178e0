"""The entry point of all readers, which recognises a text or a file and reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base import _markup as markup
from meshlab.base._documents import LimitError
from meshlab.base._errors import ParseError, printable
from meshlab.base._files import (
    TextSource,
    decode_text,
    describe_text,
    is_folder,
    is_like_name,
    open_file,
    path_of,
    text_of,
)
from meshlab.base._garbage import collector_paused
from meshlab.diagnosis._explain import OtherToolError, check_length, explain_paste
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._flight_recorder import refuse_pickle
from meshlab.diagnosis.formats._other_readers import read_tests_log
from meshlab.mesh._axes import LONGEST_TEXT
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._frameworks import OWN, mesh_text_kind
from meshlab.nccl_tests._reader import read as read_log
from meshlab.runs._rundata import RunData
from meshlab.runs._store import as_results, run_id_in
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.readers._detect import read as read_hardware
from meshlab.traces._reading import is_trace_file, trace_files
from meshlab.traces._trace import Trace

_HINT = (
    "pass a mesh or a framework's config, a log of nccl-tests, the output of nvidia-smi topo -m, a file of NCCL or "
    "Slurm, the folder of a run, results as Parquet, CSV or JSON, traces of a job, or a log or report that "
    "ml.explain() reads"
)
_LONGEST_NAME = 256


@dataclass(frozen=True)
class Reading:
    """What was read, and what it was taken for.

    Parameters
    ----------
    kind : str
        What the text or the file is, such as ``"nccl-tests log"`` or ``"flags of vllm"``.
    value : DeviceMesh, Cluster, NcclGraphs, Log, RunData, DataFrame, Tuning or Explanation
        Its content.
    """

    kind: str
    value: Any

    def __repr__(self) -> str:
        return f"<Reading: {self.kind}; next: .value>\n{self.value!r}"

    def __str__(self) -> str:
        return f"{self.kind}: {self.value}"

    def _repr_html_(self) -> str:
        show = getattr(self.value, "_repr_html_", None)
        content = show() if show is not None else None
        return f"<div><b>{markup.escape(self.kind)}</b></div>{content or markup.escape(str(self.value))}"


@overload
def read(source: TextSource, *, world_size: int | None = None) -> Any: ...


@overload
def read(source: Iterable[str | os.PathLike[str]], *, world_size: int | None = None) -> Trace: ...


def read(source: TextSource | Iterable[str | os.PathLike[str]], *, world_size: int | None = None) -> Reading | Trace:
    r"""Read a text, a file or a folder of any kind that meshlab supports, and report its kind.

    Nothing is executed or unpickled. A text of several kinds is taken for the first of: results or a log of nccl-tests,
    a description of hardware, a mesh or a framework's config. Anything else is explained.

    Parameters
    ----------
    source : str, bytes, path, or iterable of paths
        The text, or the path of a file or a folder. A single line that names an existing file is a path. Several paths
        are the traces of the ranks of a job.
    world_size : int, optional
        Number of ranks of a config that does not contain it, such as the flags of Megatron.

    Returns
    -------
    Reading or Trace
        The kind of the source, and its content: a mesh, a cluster, graphs of NCCL, a log, a run, a results frame, a
        tuning, or an explanation. Files with calls of a job are a `Trace`: traces of PyTorch's profiler, logs of NCCL
        Inspector, dumps of the flight recorder as JSON, or a folder with them.

    Raises
    ------
    ParseError
        If the source is none of these, or is binary.
    MeshlabError
        If the kind is clear, but the content is invalid. The error is that of the reader of this kind.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> reading = ml.read("vllm serve model --tensor-parallel-size 4 --pipeline-parallel-size 2")
    >>> reading.kind, reading.value
    ('layout of vllm', DeviceMesh('pp=2, tp=4'))
    >>> ml.read("GPU0  X  NV18\nGPU1  NV18  X").kind
    'description of hardware'
    """
    paths = list(source) if isinstance(source, (list, tuple, Iterator)) else []
    if paths and all(isinstance(path, (str, os.PathLike)) for path in paths):
        return Trace.read(paths)
    if isinstance(source, (str, os.PathLike)) and len(str(source)) < _LONGEST_NAME and is_folder(source):
        folder = Path(source)
        if run_id_in(folder) is None and trace_files(folder):
            return Trace.read(folder)
        if run_id_in(folder) is None:
            raise ParseError("this folder has no saved run", hint="pass one of its files", file=str(folder))
        return Reading("saved run", RunData.load(folder))
    text_source: Any = source  # of another type, it is refused
    path = path_of(text_source)
    if path is not None and path.suffix.lower() in (".parquet", ".csv"):
        return Reading("results", as_results(path))
    if path is not None and path.suffix.lower() == ".json" and (reading := _own_json(path)) is not None:
        return reading
    if path is not None and is_trace_file(path):
        return Trace.read(path)
    text, name = text_of(text_source, hint=_HINT)
    refuse_pickle(text[:8], name)
    with collector_paused():
        return _reading_of(text, name, world_size, may_be_name=isinstance(source, str))


def _reading_of(text: str, name: str | None, world_size: int | None, *, may_be_name: bool) -> Reading:
    """Read a text that is no saved run and no table of results."""
    # With a line break at the end, the text is never the name of a file.
    whole = f"{text}\n"
    log = _tried(read_log, whole)
    if log is not None and any(len(section.table) or section.devices for section in log.sections):
        return Reading("nccl-tests log", log)
    check_length(text, name)
    if (hardware := _tried(read_hardware, whole)) is not None:
        return Reading("description of hardware" if isinstance(hardware, Cluster) else "graphs of NCCL", hardware)
    kind = mesh_text_kind(text) if len(text) <= LONGEST_TEXT else None
    if kind is not None:
        return Reading("mesh" if kind == OWN else f"layout of {kind}", DeviceMesh.read(text, world_size=world_size))
    paste = Paste(printable(whole))
    paste.remember(read_tests_log, log if log is not None and log.sections else None)
    try:
        explanation = explain_paste(paste)
    except OtherToolError as error:
        raise OtherToolError(error.message, hint=error.hint, file=name) from error
    except ParseError as error:
        described = describe_text(text, may_be_name=may_be_name)
        is_name = may_be_name and is_like_name(text)
        hint = "check the path, or pass the text itself" if is_name else _HINT
        raise ParseError(f"nothing was recognised: {described}", hint=hint, file=name) from error
    kinds = dict.fromkeys(span.kind for span in explanation.recognised)
    return Reading(" and ".join(kinds) or "text", explanation)


def _own_json(path: Path) -> Reading | None:
    """Return a tuning or results that meshlab wrote as JSON, or None for other JSON."""
    with open_file(path) as file:
        start = decode_text(file.read(600))
    if '"meshlab tuning"' in start:
        return Reading("saved tuning", Tuning.load(path))
    return Reading("results", as_results(path)) if '"columns"' in start[:100] else None


def _tried(reader: Callable[[str], Any], text: str) -> Any:
    """Return the content of a text, or None if it is not of the kind that a reader reads."""
    try:
        return reader(text)
    except LimitError:
        raise
    except ParseError:
        return None
