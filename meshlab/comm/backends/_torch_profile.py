"""A profile of a function on a rank, recorded with torch's profiler."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshlab.base._documents import mapping_or_empty, objects_in, parse_json
from meshlab.base._errors import ParseError
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._gloo_world import load_torch
from meshlab.comm.backends._torch_world import call_counts

_HEADER = b'"distributedInfo": '
_LEVEL = 1  # of gzip: a trace has tens of MB, and shrinks to a tenth at any level


def record_steps(comm: Communicator, function: Callable[..., Any], steps: int, arguments: tuple[Any, ...]) -> bytes:
    """Return the trace of some steps of a function, or of the callable that it returns, as JSON in gzip."""
    torch = load_torch().torch
    returned = function(comm, *arguments)
    if not callable(returned):  # the function itself is the step, and has run once

        def work() -> None:
            function(comm, *arguments)

    else:
        work = returned
        work()
    counts = call_counts()
    on_gpu = comm.torch_mesh.device_type == "cuda"
    profiler = torch.profiler
    activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profiler.profile(
            activities=activities,
            # The profiler discards its first step, in which it starts.
            schedule=profiler.schedule(wait=0, warmup=1, active=steps, repeat=1),
            record_shapes=True,  # without them, a call of Gloo has no size
            on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
        ) as profile:
            for number in range(1 + steps):
                work()
                if on_gpu and number in (0, steps):  # the steps between them overlap on the GPU, as they do in training
                    torch.cuda.synchronize()
                profile.step()
        content = path.read_bytes()
    return gzip.compress(content if on_gpu else _with_used_groups(content, counts), _LEVEL)


def _with_used_groups(content: bytes, before: Mapping[str, int]) -> bytes:
    """Return a trace whose header has only the groups with calls since then."""
    # A call of Gloo does not name its group, so a reader has to choose among all of them.
    after = call_counts()
    start = content.find(_HEADER) + len(_HEADER)
    end = content.find(b"\n", start)
    if start < len(_HEADER) or end < 0:
        return content
    line = content[start:end].rstrip()
    try:
        header = mapping_or_empty(parse_json(line.rstrip(b",").decode(errors="replace")))
    except ParseError:
        return content
    groups = objects_in(header.get("pg_config"))
    names = {name for name, count in after.items() if count != before.get(name, 0)}
    listed = [group for group in groups if group.get("pg_name") in names]
    header = {**header, "pg_config": listed, "pg_count": len(listed)}
    comma = b"," if line.endswith(b",") else b""
    return content[:start] + json.dumps(header).encode() + comma + content[end:]
