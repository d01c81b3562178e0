"""The frames inside an HTML report: compressed, and read back without executing anything."""

from __future__ import annotations

import base64
import gzip
import re
import zlib
from typing import TYPE_CHECKING

from meshlab.base._errors import ParseError
from meshlab.base._files import LARGEST_TEXT
from meshlab.frames._files import frame_from_json, frame_to_json
from meshlab.frames._schema import RESULTS, SAMPLES, empty_samples
from meshlab.runs._store import Frames

if TYPE_CHECKING:
    import pandas as pd

_MOST_SAMPLES = 300_000
# The largest compressed frame of samples. Samples are many, and a report has to fit into an e-mail.
_MOST_BYTES = 2 << 20
_DATA = re.compile(r'<script type="application/gzip" id="meshlab-(results|samples)">([A-Za-z0-9+/=\s]*)</script>')


def embedded(results: pd.DataFrame, samples: pd.DataFrame) -> dict[str, str]:
    """Return the frames of a report as base64 text, by name. Samples that are too large are left out."""
    frames = {"results": _packed(results)}
    if 0 < len(samples) <= _MOST_SAMPLES:
        packed = _packed(samples)
        if len(packed) <= _MOST_BYTES:
            frames["samples"] = packed
    return frames


def _packed(frame: pd.DataFrame) -> str:
    # The modification time is zero, so that the same results give the same file. Level 6 takes twice as long for 3 %.
    return base64.b64encode(gzip.compress(frame_to_json(frame).encode(), 4, mtime=0)).decode()


def read_embedded(text: str, file: str) -> Frames:
    """Return the frames of an HTML report."""
    frames = dict(_DATA.findall(text))
    if "results" not in frames:
        raise ParseError(
            "the file contains no meshlab results", hint="pass an HTML file that Report.save wrote", file=file
        )
    results = frame_from_json(_unpacked(frames["results"], file), RESULTS, file=file)
    samples = empty_samples()
    if "samples" in frames:
        samples = frame_from_json(_unpacked(frames["samples"], file), SAMPLES, file=file)
    return Frames(results, samples, file)


def _unpacked(packed: str, file: str) -> str:
    # With a limit, because a small file could decompress to more than the memory.
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(base64.b64decode(packed), LARGEST_TEXT).decode()
    except (zlib.error, ValueError) as error:
        raise ParseError(f"the results are damaged: {error}", hint="copy the file again", file=file) from error
    if not reader.eof:
        fault = f"larger than {LARGEST_TEXT >> 20} MiB" if reader.unconsumed_tail else "incomplete"
        raise ParseError(f"the results are {fault}", hint="copy the file again", file=file)
    return content
