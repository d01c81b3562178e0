"""Output of perftest: ``ib_write_bw``, ``ib_send_lat`` and the other programs that measure RDMA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshlab.base._numerals import whole
from meshlab.base._units import format_size
from meshlab.diagnosis._paste import Paste, PasteLine, check_number
from meshlab.diagnosis._seen import Seen, TextFormat, frame_of
from meshlab.diagnosis.formats._kernel_log import host_of

if TYPE_CHECKING:
    import pandas as pd

_TITLE = re.compile(r"^\s*(?P<test>(?:RDMA_Write|RDMA_Read|Send|Atomic|Raw)\b[\w ()-]*\b(?:BW|Latency) Test)\s*$")
_DEVICE = re.compile(r"\bDevice\s*: (\S+)")
_GPU = re.compile(r"\[pid = \d+, dev = (?P<number>\d+)\] device name = \[(?P<name>[^\]]+)\]")
_HEAD = re.compile(r"^\s*#bytes\s+(?:#sl\s+)?#iterations\s")
_COLUMN = re.compile(
    r"#\w+|(?:(?:BW|MsgRate|tps|\d{1,3}(?:\.\d{1,3})?%) ?)?[A-Za-z_]\w*(?: ?(?:Port\d))?(?:\[[^\]]+\])?"
)
_ROW = re.compile(r"^\s*\d+(?:\s+\d+(?:\.\d+)?){2,12}\s*$")
_RATES = {"MiB/sec": 2**20 / 1e9, "MB/sec": 2**20 / 1e9, "Gb/sec": 0.125, "MB/s": 2**20 / 1e9}
_MR_FAILURE = ("Couldn't allocate MR", "failed to create mr", "Failed to create MR")
_FAILED_STATUS = re.compile(r"Failed status (\d{1,3})\b.*\bsyndrom\b")
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class RdmaMeasurement:
    """A row of a test. Bandwidths are in GB/s, and the latency in microseconds."""

    line: PasteLine
    host: str | None
    test: str
    device: str | None
    gpu: str | None  # the product whose memory was used, or None for the memory of the host
    size_bytes: int
    iterations: int
    peak_gbs: float | None
    average_gbs: float | None
    latency_us: float | None


def read_rdma_measurements(paste: Paste) -> tuple[RdmaMeasurement, ...]:
    """Read the rows of all tests in a paste."""
    heads = len(paste.numbers("#iterations", *_MR_FAILURE, " syndrom 0x"))
    check_number(paste, heads, "tests of perftest", most=5_000, length=5_000, hint="pass fewer tests")
    return tuple(_rows(paste))


def read_failed_registrations(paste: Paste) -> tuple[tuple[PasteLine, bool], ...]:
    """Find the messages about memory that the NIC could not register, and whether it is that of a GPU."""
    return tuple((line, bool(_before(paste, line.number, _GPU))) for line in paste.find(_MR_FAILURE[0]))


@dataclass(frozen=True, slots=True)
class FailedCompletion:
    """A request that ended with an error, with the number of ``ibv_wc_status``."""

    line: PasteLine
    status: int
    device: str | None
    gpu: str | None


def read_failed_completions(paste: Paste) -> tuple[FailedCompletion, ...]:
    """Find the errors with which a test stopped."""
    failures = []
    for line, match in paste.matches(_FAILED_STATUS, " syndrom 0x"):
        device, gpu = (_before(paste, line.number, pattern) for pattern in (_DEVICE, _GPU))
        failures.append(FailedCompletion(line, whole(match[1]), device and device[1], gpu and gpu["name"]))
    return tuple(failures)


def measurement_frame(rows: tuple[RdmaMeasurement, ...]) -> pd.DataFrame:
    """Return the rows as a table."""
    names = ("test", "device", "gpu", "size_bytes", "iterations", "peak_gbs", "average_gbs", "latency_us")
    return frame_of(rows, "host", *names).astype(dict.fromkeys(names[-3:], "float64"))


def _rows(paste: Paste) -> Iterator[RdmaMeasurement]:
    for head in paste.find("#iterations"):
        if _HEAD.match(head.text) is None:
            continue
        columns = _COLUMN.findall(head.text)
        title, device, gpu = (_before(paste, head.number, pattern) for pattern in (_TITLE, _DEVICE, _GPU))
        for number in range(head.number + 1, min(head.number + _MOST_ROWS, len(paste)) + 1):
            line = paste.line(number)
            if _ROW.match(line.text) is None:
                if line.text.strip():
                    break
                continue
            values = dict(zip(columns, line.text.split(), strict=False))
            yield RdmaMeasurement(
                line,
                host_of(line),
                "unknown test" if title is None else title["test"],
                None if device is None else device[1],
                None if gpu is None else gpu["name"],
                whole(values["#bytes"]),
                whole(values.get("#iterations", "0").partition(".")[0]),
                _rate(values, "BW peak"),
                _rate(values, "BW average"),
                next((float(values[name]) for name in ("t_typical[usec]", "t_avg[usec]") if name in values), None),
            )


def _rate(values: dict[str, str], name: str) -> float | None:
    """Return a bandwidth in GB/s. A peak of 0 was not measured."""
    for column, text in values.items():
        if column.startswith(name):
            unit = column.partition("[")[2].rstrip("]")
            return float(text) * _RATES[unit] if unit in _RATES and float(text) else None
    return None


def _before(paste: Paste, number: int, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the last match of a pattern before a line, in the head of the same test."""
    for k in range(number, max(0, number - 80), -1):
        if (match := pattern.search(paste.line(k).text)) is not None:
            return match
    return None


def _find(paste: Paste) -> list[int]:
    titles = [line.number for line, _ in paste.matches(_TITLE, "BW Test", "Latency Test")]
    numbers = [row.line.number for row in paste.once(read_rdma_measurements)]
    failures = [line.number for line, _ in paste.once(read_failed_registrations)]
    failures += [item.line.number for item in paste.once(read_failed_completions)]
    starts = paste.numbers("* Waiting for client to connect", "Perftest doesn't support", "Perftest supports")
    return [*titles, *numbers, *failures, *starts]


def _see(paste: Paste) -> Seen:
    rows = paste.once(read_rdma_measurements)
    facts: dict[str, str] = {}
    for row in rows:
        where = f", {row.device}" if row.device else ""
        where += f", memory of {row.gpu}" if row.gpu else ""
        text = f"{row.average_gbs:.4g} GB/s" if row.average_gbs is not None else f"{row.latency_us or 0:.4g} us"
        facts[f"{row.test}{where}"] = f"{text} with {format_size(row.size_bytes)}"  # the last size
    if not rows:
        for _, match in paste.matches(_TITLE, "BW Test", "Latency Test"):
            facts[match["test"]] = "no result in the text"
    frames = {"rdma": lambda: measurement_frame(rows)} if rows else {}
    return Seen(MappingProxyType(facts), MappingProxyType(frames))


PERFTEST = TextFormat("perftest", _find, _see, "the output of ib_write_bw or another program of perftest")
