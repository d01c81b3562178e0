"""Values of ``nvidia-smi -q``, as text and as XML (``-x``): the blocks that show the health of a GPU."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from meshlab.diagnosis._paste import Paste, PasteLine, check_matches, check_number
from meshlab.diagnosis.formats._kernel_log import host_of, short_bus

FABRIC, ECC, REMAPPED, RETIRED = "Fabric", "ECC Errors", "Remapped Rows", "Retired Pages"
CLOCKS, LINK, RESET, RECOVERY = "Clocks Event Reasons", "GPU Link Info", "GPU Reset Status", "GPU Recovery Action"

_BLOCKS = {block: block for block in (FABRIC, ECC, REMAPPED, RETIRED, CLOCKS, LINK, RESET)} | {
    "Clocks Throttle Reasons": CLOCKS  # its name before driver 530
}
_HEAD = re.compile(rf"(?:{'|'.join(_BLOCKS)})[ \t]*$", re.MULTILINE)
_GPU = re.compile(r"^\s*GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_VALUE = re.compile(r"^(\s*)([A-Za-z][\w()/.-]*(?: [\w()/.-]+)*)\s+: (.*\S|)\s*$")
_SECTION = re.compile(r"^(\s*)([A-Za-z][\w()/.-]*(?: [\w()/.-]+)*)\s*$")
_MOST_LINES = 400  # of one GPU

# -- XML: a name of an element, and the name of the same value in the text ---------------------------------------------

_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z_]\w{0,80})(?P<attributes>[^<>]{0,200})>(?P<value>[^<]{0,500})")
_RECOVERY_ELEMENT = "gpu_recovery_action"
_XML_BLOCKS = {
    "fabric": FABRIC,
    "ecc_errors": ECC,
    "remapped_rows": REMAPPED,
    "retired_pages": RETIRED,
    "clocks_event_reasons": CLOCKS,
    "clocks_throttle_reasons": CLOCKS,
    "pci_gpu_link_info": LINK,
    "gpu_reset_status": RESET,
}
_XML_SECTIONS = {
    "volatile": "Volatile",
    "aggregate": "Aggregate",
    "single_bit": "Single Bit",
    "double_bit": "Double Bit",
    "health": "Health",
    "pcie_gen": "PCIe Generation",
    "link_widths": "Link Width",
    "double_bit_retirement": "Double Bit ECC",
    "multiple_single_bit_retirement": "Single Bit ECC",
}
_XML_NAMES = {
    "cliqueId": "CliqueId",
    "clusterUuid": "ClusterUUID",
    "route_recovery_in_progress": "Route Recovery in progress",
    "sram_uncorrectable_parity": "SRAM Uncorrectable Parity",
    "sram_uncorrectable_secded": "SRAM Uncorrectable SEC-DED",
    "remapped_row_corr": "Correctable Error",
    "remapped_row_unc": "Uncorrectable Error",
    "remapped_row_pending": "Pending",
    "remapped_row_failure": "Remapping Failure Occurred",
    "row_remapper_histogram_none": "None",
    "pending_blacklist": "Pending Page Blacklist",
    "pending_retirement": "Pending Page Blacklist",
    "max_link_width": "Max",
    "current_link_width": "Current",
    "max_link_gen": "Max",
    "current_link_gen": "Current",
    _RECOVERY_ELEMENT: RECOVERY,
}
_WORDS = {"sram": "SRAM", "dram": "DRAM", "hw": "HW", "sw": "SW", "tpc": "TPC", "gpu": "GPU"}


@dataclass(frozen=True, slots=True)
class QueriedValue:
    """A value of ``nvidia-smi -q``, with the sections that contain it, outermost first."""

    line: PasteLine
    host: str | None
    bus_id: str | None
    product: str | None
    sections: tuple[str, ...]
    name: str
    value: str


def read_queried_values(paste: Paste) -> tuple[QueriedValue, ...]:
    """Read the blocks about the fabric, memory errors, clocks, the PCIe link, and the recovery of a GPU."""
    values = [*_blocks(paste), *_recovery_actions(paste), *_xml(paste)]
    return tuple(sorted(values, key=lambda item: item.line.number))


def _blocks(paste: Paste) -> Iterator[QueriedValue]:
    done = 0
    check_matches(paste, _HEAD, _BLOCKS, "blocks of nvidia-smi -q", most=20_000, length=1_000)
    for start in [line.number for line in paste.containing(_HEAD, *_BLOCKS)]:
        section = _SECTION.match(paste.line(start).text)
        if start <= done or section is None or section[2] not in _BLOCKS:
            continue
        bus_id, product = _owner(paste, start)
        path = [(len(section[1]), _BLOCKS[section[2]])]
        done = start
        for number in range(start + 1, min(len(paste), start + _MOST_LINES) + 1):
            line = paste.line(number)
            value, inner = _VALUE.match(line.text), _SECTION.match(line.text)
            match = value or inner
            if match is None or len(match[1]) <= len(section[1]):
                break
            done = number
            path = [entry for entry in path if entry[0] < len(match[1])]
            if value is None:
                path.append((len(match[1]), match[2]))
            else:
                names = tuple(name for _, name in path)
                yield QueriedValue(line, host_of(line), bus_id, product, names, value[2], value[3])


def _recovery_actions(paste: Paste) -> Iterator[QueriedValue]:
    """Read the only value that is outside the blocks."""
    check_number(paste, len(paste.numbers(RECOVERY)), "GPUs of nvidia-smi -q", most=5_000, length=5_000)
    for line, match in paste.matches(_VALUE, RECOVERY):
        if match[2] == RECOVERY:
            yield QueriedValue(line, host_of(line), *_owner(paste, line.number), (), match[2], match[3])


def _owner(paste: Paste, number: int) -> tuple[str | None, str | None]:
    """Return the bus ID and the product of the GPU that a section belongs to."""
    heads, products = paste.once(_heads)
    head = _last(heads, number)
    product = _last(products, number)
    is_here = product is not None and (head is None or product[0] > head[0])
    return None if head is None else head[1], product[1] if product is not None and is_here else None


def _heads(paste: Paste) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return the bus IDs of GPUs and their products, each with the number of its line."""
    heads = [(line.number, short_bus(match[1])) for line, match in paste.matches(_GPU, "GPU 0")]
    return heads, [(line.number, match[3]) for line, match in paste.matches(_VALUE, "Product Name")]


def _last(entries: list[tuple[int, str]], number: int) -> tuple[int, str] | None:
    """Return the last entry before a line, if it is near enough to belong to it."""
    index = bisect_left(entries, (number, ""))
    return entries[index - 1] if index and number - entries[index - 1][0] < _MOST_LINES else None


def _xml(paste: Paste) -> Iterator[QueriedValue]:
    """Read the XML line by line, because it is often cut, and pasted without its beginning."""
    if not paste.numbers(*(f"<{name}>" for name in (*_XML_BLOCKS, _RECOVERY_ELEMENT))):
        return
    check_number(paste, len(paste.numbers("<")), "elements of XML", most=50_000, length=100, hint="pass fewer hosts")
    bus_id = product = None
    path: list[str] = []  # elements inside a block; the first is the block
    for line in paste.find("<"):
        for tag in _TAG.finditer(line.text):
            name, value = tag["name"], tag["value"].strip()
            if tag["end"]:
                if name in path:
                    del path[path.index(name) :]
            elif name == "gpu":
                bus = re.search(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", tag["attributes"])
                bus_id, product, path = None if bus is None else short_bus(bus[0]), None, []
            elif name == "product_name":
                product = value
            elif name in _XML_BLOCKS:
                path = [name]
            elif (path and value) or name == _RECOVERY_ELEMENT:
                sections = tuple(_XML_BLOCKS.get(part) or _XML_SECTIONS.get(part) or _text(part) for part in path)
                yield QueriedValue(line, host_of(line), bus_id, product, sections, _text(name), value)
            elif path and len(path) < 8 and not tag["attributes"].endswith("/"):
                path.append(name)


def _text(name: str) -> str:
    """Return the name in the text of an element, such as ``HW Slowdown`` for ``clocks_event_reason_hw_slowdown``."""
    if name in _XML_NAMES:
        return _XML_NAMES[name]
    words = re.sub(r"^clocks_(?:event|throttle)_reason_", "", name).split("_")
    return " ".join(_WORDS.get(word, word.capitalize()) for word in words)
