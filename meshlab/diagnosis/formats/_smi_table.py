"""The table that ``nvidia-smi`` prints without options: GPUs, their memory, MIG devices and processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshlab.base._numerals import whole
from meshlab.diagnosis._paste import Paste, PasteLine, check_number
from meshlab.diagnosis._seen import frame_of
from meshlab.diagnosis.formats._kernel_log import host_of, short_bus

if TYPE_CHECKING:
    import pandas as pd

_HEAD = re.compile(
    r"NVIDIA-SMI \s*+\S{1,40}.{0,80}?Driver Version:\s*+(?P<driver>[\w.]+)(?:\s+CUDA Version:\s*(?P<cuda>[\w.!]+))?"
)
_ROW = re.compile(
    r"^[\s>]*\|\s+(?P<gpu>\d+)\s+(?P<product>\S+(?: \S+)*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM|ERR!)\s*\|\s*"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+\S+\s*\|\s*(?P<ecc>\S+)"
)
_BUS_LITERALS = ("| 0000", "|  0000", "|   0000")  # the width of the column depends on the version
_USE = re.compile(
    r"^[\s>]*\|\s*(?P<fan>\S+)\s+(?P<temperature>\S+)\s+(?P<state>\S+)\s.*?\|\s*"
    r"(?:(?P<used>\d+)\s*MiB\s*/\s*(?P<total>\d+)\s*MiB|[^|]{1,40}?)\s*+\|\s*(?:(?P<busy>\d+)%|(?:\S+))\s"
)
_MIG = re.compile(r"^[\s>]*\|\s+\|\s+\|\s*(?P<mig>Enabled\*?|Disabled\*?|N/A|ERR!)\s*\|")
_PROCESS = re.compile(
    r"^[\s>]*\|\s+(?P<gpu>\d+)\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d+)\s+(?P<kind>C\+G|M\+C|[CGM])\s+"
    r"(?P<name>\S.{0,300}?)\s{1,99}(?:(?P<memory>\d+)MiB|N/A|Insufficient.{0,40}?)\s*+\|"
)
_KINDS = ("    C   ", "    G   ", "  C+G   ", "  M+C   ")
_FAILED = "ERR!"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU in the table of ``nvidia-smi``. Values that the table does not show are None.

    `ecc` is the number of uncorrectable errors, None if the GPU has no ECC.
    """

    line: PasteLine
    host: str | None
    gpu: int
    product: str | None
    bus_id: str
    ecc: int | None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    utilisation_percent: int | None = None
    mig: bool | None = None
    failed: tuple[PasteLine, ...] = ()  # the lines with values that the driver could not read


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU. The memory is None if the table does not show it."""

    line: PasteLine
    host: str | None
    gpu: int
    pid: int
    kind: str  # C for compute, G for graphics
    name: str
    memory_mib: int | None


def read_gpu_rows(paste: Paste) -> tuple[GpuRow, ...]:
    """Read the GPUs of the table, each with the two lines below it."""
    check_number(paste, len(paste.numbers(*_BUS_LITERALS)), "GPUs of nvidia-smi", most=10_000, length=2_000)
    rows = []
    for line, match in paste.matches(_ROW, *_BUS_LITERALS):
        below = [paste.line(k) for k in range(line.number + 1, min(line.number + 2, len(paste)) + 1)]
        use = _USE.match(below[0].text) if below and _ROW.match(below[0].text) is None else None
        mig = _MIG.match(below[1].text) if use is not None and len(below) > 1 else None
        lines = [line, *below[: (use is not None) + (mig is not None)]]
        rows.append(
            GpuRow(
                line,
                host_of(line),
                whole(match["gpu"]),
                None if match["product"] == _FAILED else match["product"],
                short_bus(match["bus"]) + match["bus"][-2:],
                _number(match["ecc"]),
                _number(None if use is None else use["used"]),
                _number(None if use is None else use["total"]),
                _number(None if use is None else use["busy"]),
                None if mig is None or mig["mig"][0] not in "ED" else mig["mig"].startswith("Enabled"),
                tuple(item for item in lines if _FAILED in item.text),
            )
        )
    return tuple(rows)


def read_gpu_processes(paste: Paste) -> tuple[GpuProcess, ...]:
    """Read the processes below the table."""
    if not (starts := paste.numbers("| Processes:")):
        return ()
    check_number(paste, len(paste.numbers(*_KINDS)), "processes of nvidia-smi", most=20_000, length=1_000)
    return tuple(
        GpuProcess(
            line,
            host_of(line),
            whole(match["gpu"]),
            whole(match["pid"]),
            match["kind"],
            match["name"],
            _number(match["memory"]),
        )
        for line, match in paste.matches(_PROCESS, *_KINDS)
        if line.number > starts[0]
    )


def read_driver_versions(paste: Paste) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the versions of the driver, and the newest versions of CUDA that they support."""
    heads = [match for _, match in paste.matches(_HEAD, "NVIDIA-SMI")]
    drivers = dict.fromkeys(match["driver"] for match in heads)
    return tuple(drivers), tuple(dict.fromkeys(match["cuda"] for match in heads if match["cuda"]))


def gpu_frame(rows: tuple[GpuRow, ...]) -> pd.DataFrame:
    """Return the GPUs as a table."""
    import pandas as pd

    sizes = ("memory_used_mib", "memory_total_mib", "utilisation_percent")
    frame = frame_of(rows, "host", "gpu", "product", "bus_id", "ecc", *sizes, "mig")
    # By way of floats, the largest integers would not be exact.
    integers = {name: pd.array([getattr(row, name) for row in rows], dtype="Int64") for name in ("ecc", *sizes)}
    return frame.assign(**integers, mig=frame["mig"].astype("boolean"))


def process_frame(processes: tuple[GpuProcess, ...]) -> pd.DataFrame:
    """Return the processes as a table."""
    import pandas as pd

    frame = frame_of(processes, "host", "gpu", "pid", "kind", "name", "memory_mib")
    return frame.assign(memory_mib=pd.array([item.memory_mib for item in processes], dtype="Int64"))


def _number(word: str | None) -> int | None:
    return whole(word) if word is not None and word.isdecimal() else None
