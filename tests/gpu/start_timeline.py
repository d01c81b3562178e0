"""Where the time goes while engines start: a timeline of the client and of every rank.

    python tests/gpu/start_timeline.py --backend nccl

A thread of each process looks at the stack of its main thread every 10 ms. The timeline names the function of meshlab,
or the package that is being imported, and omits parts of less than 0.1 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import meshlab as ml

SAMPLER = '''
"""Records what the main thread does, in the folder of the environment variable START_TIMELINE."""
import json, os, sys, threading, time

def label(frame):
    names, imported = [], ""
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if name == "<module>" and "site-packages/" in file:
            imported = file.split("site-packages/")[1].split("/")[0].removesuffix(".py")
        if "/meshlab/" in file and name != "<module>" and not imported:
            names.append(os.path.basename(file).removesuffix(".py") + "." + name)
        elif "/meshlab/" in file and not names:
            imported = imported or "meshlab"
        frame = frame.f_back
    return ("import " + imported) if imported else (names[0] if names else "")

def sample(main, path):
    rows = []
    while True:
        frame = sys._current_frames().get(main)
        text = label(frame) if frame is not None else ""
        now = time.time()
        if rows and rows[-1][0] == text:
            rows[-1][2] = now
        else:
            rows.append([text, rows[-1][2] if rows else now, now])
        if int(now * 100) % 20 == 0:
            try:
                with open(path + ".new", "w") as file:
                    json.dump(rows, file)
                os.replace(path + ".new", path)
            except FileNotFoundError:  # the folder is deleted at the end
                return
        time.sleep(0.01)

def begin():
    path = os.path.join(os.environ["START_TIMELINE"], f"{os.getpid()}.json")
    main = threading.main_thread().ident
    threading.Thread(target=sample, args=(main, path), daemon=True).start()
'''
START = "import os\nif 'START_TIMELINE' in os.environ and 'MESHLAB_RANK' in os.environ:\n    _timeline.begin()\n"


def shown(rows: list[Any], origin: float, least: float) -> str:
    parts = [(name, begin - origin, end - begin) for name, begin, end in rows if name and end - begin >= least]
    return "\n".join(f"    {begin:6.2f} s  {length:5.2f} s  {name}" for name, begin, length in parts)


def timeline(options: argparse.Namespace) -> tuple[float, str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        (Path(folder) / "_timeline.py").write_text(SAMPLER)
        (Path(folder) / "sitecustomize.py").write_text("import _timeline\n" + START)
        env = {"START_TIMELINE": folder, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        os.environ["START_TIMELINE"] = folder
        sys.path.insert(0, folder)
        import _timeline

        _timeline.begin()
        origin = time.time()
        with ml.launch(options.ranks, backend=options.backend, env=env) as engines:
            took = time.time() - origin
            pids = [info.pid for info in engines.ranks]
            time.sleep(0.5)
            text = []
            for name, pid in [("client", os.getpid()), *((f"rank {rank}", pid) for rank, pid in enumerate(pids))]:
                path = Path(folder) / f"{pid}.json"
                rows = json.loads(path.read_text()) if path.exists() else []
                rows = [row for row in rows if row[1] < origin + took]
                text.append(f"  {name}, first sample at {rows[0][1] - origin if rows else -1:.2f} s")
                text.append(shown(rows, origin, options.least))
        sys.path.remove(folder)
    return took, "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.1, help="shortest part that is printed, in seconds")
    options = parser.parse_args()
    from meshlab.engines import _local

    name = _local.DEVICES
    times: dict[str, list[float]] = {"CUDA starts early": [], "CUDA starts late": []}
    for number in range(2 * options.starts):
        kind = list(times)[number % 2]
        _local.DEVICES = name if number % 2 == 0 else "UNUSED"  # type: ignore[misc]
        begin = time.monotonic()
        with ml.launch(options.ranks, backend=options.backend) as engines:
            times[kind].append(time.monotonic() - begin)
            where = engines.where
    _local.DEVICES = name  # type: ignore[misc]
    for kind, seconds in times.items():
        print(f"{where}, {kind}: started in {', '.join(f'{value:.2f}' for value in seconds)} s")
    took, text = timeline(options)
    print(f"timeline of a start in {took:.2f} s:\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
