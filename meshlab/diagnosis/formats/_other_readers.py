"""Texts that other readers of meshlab take: nccl-tests logs, files that describe hardware, and layouts of meshes."""

from __future__ import annotations

import re
import warnings
from types import MappingProxyType

from meshlab.base._documents import LimitError
from meshlab.base._errors import MeshlabError
from meshlab.base._units import format_size
from meshlab.diagnosis._paste import LONGEST_LINE, Paste
from meshlab.diagnosis._seen import Seen, TextFormat
from meshlab.mesh._mesh import DeviceMesh
from meshlab.nccl_tests._json import looks_like_json
from meshlab.nccl_tests._log import Log
from meshlab.nccl_tests._reader import read as read_log
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.readers._detect import read as read_hardware
from meshlab.topology.readers._nccl_graph import NcclGraphs

# -- nccl-tests --------------------------------------------------------------------------------------------------------

_TESTS_LITERALS = (
    *("# nThread", "# Using devices", "nccl-tests version", "Avg bus bandwidth", "Out of bounds values"),
    "out-of-place",
)
_HEADER_LITERALS = ("(elements)", "algbw", "Rank  ")
_HEADER = re.compile(r"\(B\) ++\(elements\)|size ++count |#\s++Rank ++\d++ (?:Group|Pid)")
_ROW_LITERALS = tuple(
    f" {name} "
    for name in ("float", "half", "double", "bfloat16", "int8", "uint8", "int32", "int64", "uint64", "uint32")
)
_MOST_JSON = 64 << 20
_MOST_LOG = 1 << 20  # characters that are read completely
_ROW = re.compile(r"\s*+\d++ ++\d++ ++[a-z]++\d*+ ++(?:\w+ +)?(?:-?\d+ +)?[\d.]+ +[\d.]+ +[\d.]+ ")


def _find_tests_log(paste: Paste) -> list[int]:
    """Return the lines of the settings, the device list, the tables and the footers."""
    if _is_json(paste):
        return list(range(1, len(paste) + 1)) if paste.once(read_tests_log) is not None else []
    certain = paste.numbers(*_TESTS_LITERALS)
    rows = paste.starting_with(_ROW, paste.numbers(*_ROW_LITERALS))
    if not certain and not rows:
        return []
    headers = [line.number for line, _ in paste.matches(_HEADER, *_HEADER_LITERALS)]
    return sorted({*certain, *rows, *headers})


def _is_json(paste: Paste) -> bool:
    return len(paste.text) <= _MOST_JSON and looks_like_json(paste.text[:65536])


def read_tests_log(paste: Paste) -> Log | None:
    """Return the log of nccl-tests in a paste, or None if it has none."""
    text = paste.text
    if len(text) > _MOST_LOG and not _is_json(paste):
        # Other lines may interrupt a row, but reading all of them would take seconds.
        lines = [""] * len(paste)  # keeps the numbers of the lines
        for number in paste.once(_find_tests_log):
            lines[number - 1] = paste.raw(number)[:LONGEST_LINE]
        text = "\n".join(lines)
    try:
        # A line break at the end, because a single line is the name of a file for the reader.
        log = read_log(f"{text}\n")
    except MeshlabError:
        return None
    return log if log.sections else None


def _see_tests_log(paste: Paste) -> Seen:
    if (log := paste.once(read_tests_log)) is None:
        return Seen()
    facts: dict[str, str] = {}
    for section in log.sections[:5]:
        name = f"{section.collective or 'unknown collective'}"
        name = f"{name} ({section.number})" if len(log.sections) > 1 else name
        sizes = section.table.size_bytes
        parts = [] if section.n_ranks is None else [f"{section.n_ranks} rank{'s' * (section.n_ranks != 1)}"]
        if len(sizes):
            parts.append(f"{len(sizes)} sizes from {format_size(sizes.min())} to {format_size(sizes.max())}")
            peak = section.table.values[..., 2][section.table.present]
            if peak.size and section.n_ranks != 1:
                parts.append(f"peak busbw {peak.max():.1f} GB/s")
        facts[name] = ", ".join([*parts, section.status])
    if len(log.sections) > 5:
        facts["more tests"] = str(len(log.sections) - 5)
    if log.warnings:
        more = f" and {len(log.warnings) - 3} more" if len(log.warnings) > 3 else ""
        facts["warnings"] = "; ".join(str(note) for note in log.warnings[:3]) + more
    frames = {"results": lambda: log.results} if any(len(section.table) for section in log.sections) else {}
    return Seen(MappingProxyType(facts), MappingProxyType(frames))


NCCL_TESTS_LOG = TextFormat(
    "nccl-tests log", lambda paste: paste.once(_find_tests_log), _see_tests_log, "a log of nccl-tests"
)

# -- hardware ----------------------------------------------------------------------------------------------------------

_XML_LITERALS = (
    *("<system", "</system>", "<cpu ", "</cpu>", "<pci ", "</pci>", "<gpu ", "</gpu>", "<nic", "</nic>", "<nvlink "),
    *("<net ", "<graphs", "</graphs>", "<graph ", "</graph>", "<channel>", "</channel>"),
)
_MOST_SWITCHES = 100_000
_SLURM = re.compile(r"^\s*(?:SwitchName|BlockName)\s*=\s*\S+", re.IGNORECASE)


def _find_hardware(paste: Paste) -> list[int]:
    """Return the lines of an XML of NCCL, or of a topology file of Slurm."""
    if paste.numbers("<system", "<graphs"):
        return paste.numbers(*_XML_LITERALS)
    numbers: list[int] = []
    for number in paste.numbers("SwitchName", "switchname", "BlockName", "blockname"):
        if _SLURM.match(paste.line(number).text):
            numbers.append(number)
            if len(numbers) > _MOST_SWITCHES:
                raise LimitError(
                    f"the text has more than {_MOST_SWITCHES:,} switches or blocks of Slurm",
                    hint="pass the topology.conf of one cluster",
                )
    return numbers


def _read_hardware(paste: Paste) -> Cluster | NcclGraphs | None:
    """Return what the lines describe, or None if they are incomplete or describe several machines."""
    numbers = paste.once(_find_hardware)
    is_xml = bool(paste.numbers("<system", "<graphs"))
    lines = range(numbers[0], numbers[-1] + 1) if is_xml else numbers
    try:
        return read_hardware("\n".join(["", *(paste.line(number).text for number in lines)]))
    except MeshlabError:
        return None


def _see_hardware(paste: Paste) -> Seen:
    hardware = _read_hardware(paste)
    if isinstance(hardware, NcclGraphs):
        facts = {}
        for graph in hardware.graphs:
            n = len(graph.channels)
            facts[f"{graph.algorithm} of NCCL"] = f"{n} channel{'s' * (n != 1)}, GPUs over {graph.gpu_path}"
        return Seen(MappingProxyType(facts), MappingProxyType({"graphs": hardware.frame}))
    return Seen() if hardware is None else Seen(MappingProxyType({"hardware": hardware.summary}), cluster=hardware)


HARDWARE_FILE = TextFormat(
    "topology file",
    lambda paste: paste.once(_find_hardware),
    _see_hardware,
    "a topology or graph XML of NCCL, or a topology file of Slurm",
)

# -- meshes ------------------------------------------------------------------------------------------------------------

_LAYOUT_LITERALS = (
    *("init_device_mesh(", "DeviceMesh(", "RankGenerator(", "make_mesh(", " Mesh(", "tensor-model-parallel-size"),
    *("pipeline-model-parallel-size", "tensor-parallel-size", "tensor_parallel_degree", "ProcessTopology("),
    "PipeModelDataParallelTopology(",
)
_SHORT_LAYOUT = re.compile(r"=|\s-(?:tp|pp|dp)\b")  # meshlab's own text, and flags of vLLM
_OWN = re.compile(r"DeviceMesh\((['\"])(?P<axes>[^'\"]*)\1\)")
_MOST_LINES = 50  # a layout is a call or a command, not a log


def _find_layout(paste: Paste) -> list[int]:
    """Return the lines of a call, a command or a text that defines a mesh."""
    is_short = len(paste) <= 3 and len(paste.text) < 4096 and _SHORT_LAYOUT.search(paste.text) is not None
    if is_short and paste.once(read_mesh_layout) is not None:
        return list(range(1, len(paste) + 1))
    numbers = paste.numbers(*_LAYOUT_LITERALS) or ([1] if paste.text.startswith("Mesh(") else [])
    return numbers if numbers and paste.once(read_mesh_layout) is not None else []


def read_mesh_layout(paste: Paste) -> DeviceMesh | str | None:
    """Return the mesh that a paste defines, why it is incomplete, or None if it defines none."""
    if len(paste) > _MOST_LINES:
        texts = ["\n".join(line.text.strip() for line in paste.find(*_LAYOUT_LITERALS)[:_MOST_LINES])]
    else:
        texts = [paste.text, *(line.text for line in paste.find(*_LAYOUT_LITERALS))]
    own_text = _OWN.search(texts[-1] if len(paste) > _MOST_LINES else paste.text)
    texts = [own_text["axes"], *texts] if own_text is not None else texts
    problem = None
    for text in texts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # experts on the same ranks; the layout of the dense part is shown
                return DeviceMesh.read(text)
        except MeshlabError as error:
            if "number of ranks" in error.message:
                problem = error.message
    return problem


def _see_layout(paste: Paste) -> Seen:
    mesh = paste.once(read_mesh_layout)
    if not isinstance(mesh, DeviceMesh):
        return Seen(MappingProxyType({"mesh": mesh} if mesh else {}))
    axes = ", ".join(f"{axis.name} of {axis.size}" for axis in mesh.axes)
    facts = {"mesh": f"{mesh}: {mesh.world_size:,} rank{'s' * (mesh.world_size != 1)}, axes {axes}"}
    return Seen(MappingProxyType(facts), mesh=mesh)


MESH_LAYOUT = TextFormat("mesh", _find_layout, _see_layout, "the layout of a mesh")
