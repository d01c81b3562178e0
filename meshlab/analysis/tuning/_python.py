"""A tuning as a Python module for nccl4py: windows, and a configuration for each call."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshlab.analysis.tuning._choice import SizeRange, size_ranges
from meshlab.base._collectives import COLLECTIVES, NCCL_FUNCTIONS, CollectiveFacts
from meshlab.base._units import format_size
from meshlab.comm.backends._nccl_binding import selection
from meshlab.frames._schema import plain_value

if TYPE_CHECKING:
    import pandas as pd


def _nccl4py_call(collective: CollectiveFacts, method: str) -> tuple[str, str, str, str]:
    """Return the method, its parameters, the arguments, and the buffer with the message size."""
    buffers = ["sendbuf", "recvbuf"]
    op, root = collective.reduces * ["op"], collective.rooted * ["root"]
    # The buffer that every rank has, and the larger of two.
    is_input = collective.sends == "count x n" or collective.only_root == "receives"
    return (
        method,
        ", ".join([*buffers, *root, *(f"{name}=nccl.SUM" for name in op)]),
        ", ".join([*buffers, *op, *root]),
        "sendbuf" if is_input else "recvbuf",
    )


NCCL4PY_CALLS = {
    name: _nccl4py_call(COLLECTIVES[name], function.nccl4py)
    for name, function in NCCL_FUNCTIONS.items()
    if function.nccl4py is not None
}
"""The methods of nccl4py's Communicator that take a configuration: name, parameters, arguments, and the buffer with the
message size."""

_HEAD = '''\
"""Collectives of {ranks} ranks with the options that were fastest on {where}.

{verdict}

meshlab wrote this file. It needs nccl4py 0.6 or newer{version}.

    tuned = Tuned(comm)                    # an nccl.core.Communicator of {ranks} ranks
    x = nccl.cupy.empty(1 << 20, "float32")  # or nccl.torch.empty: memory of NCCL, the same size on all ranks
    with tuned.window(x):                  # collective: all ranks register their buffer together
        tuned.{example}

A call on other buffers uses the options that need no window. Sizes that were not measured keep NCCL's defaults.
"""

from contextlib import contextmanager

import nccl.core as nccl

# For each collective: the largest message size in bytes, the buffers, and the options of the call (NCCLCollConfig).
# All-gather counts the whole output, and reduce-scatter and all-to-all the whole input. None means all larger sizes.
CHOICES = {{
{table}
}}


def choice(collective, size_bytes):
    """Return the buffers and the options for a message size."""
    for largest, buffers, options in CHOICES.get(collective, ()):
        if largest is None or size_bytes <= largest:
            return buffers, dict(options)
    return "plain", {{}}


class Tuned:
    """A communicator that chooses the options of each call by its size."""

    def __init__(self, comm):
        if comm.nranks != {ranks}:
            raise ValueError(f"the options are for {ranks} ranks, but this communicator has {{comm.nranks}}")
        self.comm = comm
        self._windows = []

    @contextmanager
    def window(self, buffer):
        """Register a buffer of NCCL's memory on all ranks. Collective, with the same size on all ranks."""
        handle = self.comm.register_window(buffer, nccl.WindowFlag.COLL_SYMMETRIC)
        span = (_address(buffer), _address(buffer) + buffer.nbytes)
        self._windows.append(span)
        try:
            yield buffer
        finally:
            self._windows.remove(span)
            handle.close()

    def config(self, collective, size_bytes, in_window):
        """Return the configuration of a call, or None for NCCL's defaults."""
        buffers, options = choice(collective, size_bytes)
        if buffers == "symmetric" and not in_window:
            return None  # measured on windows only
        if buffers != "symmetric" and in_window:
            options.setdefault("alg_selection", "^symk")  # ordinary kernels were faster, also on a window
        return nccl.NCCLCollConfig(**options) if options else None

    def _config(self, collective, size_bytes, *buffers):
        in_window = all(
            any(first <= _address(buffer) and _address(buffer) + buffer.nbytes <= last for first, last in self._windows)
            for buffer in buffers
        )
        return self.config(collective, size_bytes, in_window)
'''

_METHOD = """
    def {name}(self, {parameters}, *, stream=None):
        config = self._config("{name}", {measured}.nbytes, {buffers})
        self.comm.{method}({arguments}, stream=stream, config=config)
"""

_TAIL = '''

def _address(buffer):
    """Return the address of a CuPy array or a PyTorch tensor."""
    return buffer.data.ptr if hasattr(buffer.data, "ptr") else buffer.data_ptr()
'''


def python_source(lines: Sequence[tuple[str, pd.DataFrame]], *, where: str, verdicts: Sequence[str]) -> str:
    """Return the source of a module that applies a tuning with nccl4py. See `Tuning.to_python` and `Tuning.lines`."""
    tuned_calls = [(str(tuned["collective"].iloc[0]), tuned) for _, tuned in lines]
    tuned_calls = [(name, tuned) for name, tuned in tuned_calls if name in NCCL4PY_CALLS]
    ranks = int(lines[0][1]["n_ranks"].iloc[0])
    uses_options = any(_options(row) for _, tuned in tuned_calls for row in tuned.to_dict("records"))
    table = "\n".join(_table(name, tuned) for name, tuned in tuned_calls)
    example = _example(tuned_calls[0][0]) if tuned_calls else _ANY_EXAMPLE
    head = _HEAD.format(
        ranks=ranks,
        where=_one_line(where),
        verdict="\n".join(line for verdict in verdicts for line in textwrap.wrap(_one_line(verdict), 110)),
        version=", and NCCL 2.31 or newer for options of a call" if uses_options else "",
        example=example,
        table=table,
    )
    methods = "".join(
        _METHOD.format(
            name=name,
            method=NCCL4PY_CALLS[name][0],
            parameters=NCCL4PY_CALLS[name][1],
            arguments=NCCL4PY_CALLS[name][2],
            measured=NCCL4PY_CALLS[name][3],
            buffers="recvbuf" if name == "broadcast" else "sendbuf, recvbuf",
        )
        for name, _ in tuned_calls
    )
    return head + methods + _TAIL


_ANY_EXAMPLE = "config(collective, size_bytes, in_window=True)"


def _example(name: str) -> str:
    """Return a call that works in place."""
    collective = COLLECTIVES[name]
    if collective.rooted or not collective.in_place:
        return _ANY_EXAMPLE
    buffers = [
        "x[own]" if collective.has_total_size and elements == "count" else "x"
        for elements in (collective.sends, collective.receives)
    ]
    comment = "  # own: the slice of this rank" if "x[own]" in buffers else ""
    return f"{name}({', '.join(buffers)}){comment}"


def _one_line(text: str) -> str:
    """Return a text that cannot end a docstring."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _options(row: Any) -> dict[str, str]:
    """Return the arguments of nccl4py's NCCLCollConfig for the option of a row, as source."""
    if plain_value(row["setting"]) is not None:
        return {}
    values = {name: plain_value(row[name]) for name in ("algorithm", "protocol", "min_ctas", "max_ctas", "cta_policy")}
    chosen = selection(values["algorithm"], values["protocol"])
    options = {} if chosen is None else {"alg_selection": json.dumps(chosen)}
    options |= {name: str(int(values[name])) for name in ("min_ctas", "max_ctas") if values[name] is not None}
    if values["cta_policy"] is not None:
        options["cta_policy"] = f"nccl.CTAPolicy.{str(values['cta_policy']).upper()}"
    return options


def _table(collective: str, tuned: pd.DataFrame) -> str:
    """Return one entry of the table of choices."""
    ranges = size_ranges(tuned)
    lines = [f'    "{collective}": [']
    if ranges[0].min_bytes > 1:
        lines.append(f'        ({ranges[0].min_bytes - 1}, "plain", {{}}),  # not measured')
    for part in ranges:
        is_default = part.row is None or plain_value(part.row["setting"]) is not None
        options = {} if is_default else _options(part.row)
        buffers = "plain" if is_default else str(part.row["buffers"])
        words = ", ".join(f'"{name}": {value}' for name, value in options.items())
        lines.append(f'        ({part.max_bytes}, "{buffers}", {{{words}}}),  # {_note(part, tuned)}')
    return "\n".join([*lines, "    ],"])


def _note(part: SizeRange, tuned: pd.DataFrame) -> str:
    """Describe a range of sizes: the measured ones, and their gain."""
    if part.row is None:
        return "not measured"
    first, last = (format_size(size).replace("\N{THIN SPACE}", " ") for size in (part.sizes[0], part.sizes[-1]))
    span = first if first == last else f"{first} to {last}"
    if part.row["verdict"] != "faster":
        return f"{span}: NCCL's default"
    if plain_value(part.row["setting"]) is not None:
        return f"{span}: needs environment variables, {part.row['option']}"
    gains = 100 * tuned.loc[tuned["size_bytes"].isin(part.sizes), "gain"].to_numpy(float)
    low, high = f"{gains.min():.0f}", f"{gains.max():.0f}"
    return f"{span}: {low if low == high else f'{low} to {high}'} % less time"
