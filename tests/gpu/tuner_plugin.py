"""Load the file of a tuning with NCCL's example tuner plugin, and check in NCCL's log that calls use its choices.

    python tests/gpu/tuner_plugin.py --plugin nccl/plugins/tuner/example --build NCCL_TESTS/build --tuning tuning.json

Builds the plugin with the C compiler, and asks it directly for the choice of each size, which needs no GPU. With
``--build``, nccl-tests runs with the plugin, and its lines of the subsystem TUNING are compared with the file. Two more
runs show what the plugin does with -1 channels and with sizes that have no line. Without ``--tuning``, or if the tuning
has no line, the file has lines made up for this check.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import meshlab as ml
from meshlab.analysis.tuning._plugin import TunerConfig, TunerLine
from meshlab.base._units import format_size

FUNCTIONS = {"broadcast": 0, "reduce": 1, "all_gather": 2, "reduce_scatter": 3, "all_reduce": 4}  # ncclFunc_t
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
}
LOGGED = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce): (\d+) Bytes -> Algo (\w+) proto (\w+) "
    r"channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}"
)
NAMES = {name.replace("_", ""): name for name in PROGRAMS}
LARGEST = 2**64 - 1

Choice = tuple[str, str, int]
"""Algorithm, protocol and channels."""


class Plugin(ctypes.Structure):
    """ncclTuner_v5_t."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.c_void_p),
        ("get_coll_info", ctypes.c_void_p),
        ("finalize", ctypes.c_void_p),
    ]


def build(folder: Path, out: Path) -> Path:
    """Compile the plugin."""
    library = (out / "libnccl-tuner-example.so").resolve()
    source = [f"-I{folder / 'nccl'}", f"-I{folder}", str(folder / "plugin.c")]
    subprocess.run([os.environ.get("CC", "cc"), "-fPIC", "-shared", "-o", str(library), *source], check=True)
    return library


def ask(library: Path, config: Path, asked: Sequence[tuple[str, int]], n_ranks: int) -> list[Choice | None]:
    """Return what the plugin chooses for collectives and sizes. NCCL calls it in the same way, on the host."""
    os.environ["NCCL_TUNER_CONFIG_FILE"] = str(config)
    plugin = Plugin.in_dll(ctypes.CDLL(str(library)), "ncclTunerPlugin_v5")
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    init = ctypes.CFUNCTYPE(number, pointer, ctypes.c_uint64, size, size, pointer, pointer, pointer)(plugin.init)
    choose = ctypes.CFUNCTYPE(number, pointer, number, size, number, pointer, number, number, number, pointer)(
        plugin.get_coll_info
    )
    context = pointer()
    assert init(ctypes.byref(context), 0, n_ranks, 1, None, None, None) == 0
    found: list[Choice | None] = []
    for collective, n_bytes in asked:
        costs = np.full((len(ALGORITHMS), len(PROTOCOLS)), 10.0, dtype=np.float32)
        channels = number(0)
        code = choose(
            context, FUNCTIONS[collective], n_bytes, 1, costs.ctypes.data, *costs.shape, 0, ctypes.addressof(channels)
        )
        assert code == 0
        row, column = np.unravel_index(int(costs.argmin()), costs.shape)
        is_chosen = costs.min() == 0
        found.append((ALGORITHMS[row], PROTOCOLS[column], channels.value) if is_chosen else None)
    return found


def expected(config: TunerConfig, collective: str, n_bytes: int) -> Choice | None:
    for line in config.lines:
        if line.collective == collective and line.min_bytes <= n_bytes <= line.max_bytes:
            return line.algorithm, line.protocol, line.channels
    return None


def check_plugin(library: Path, config: TunerConfig, path: Path, n_ranks: int) -> bool:
    """Compare the plugin's choices with the lines, at their ends and in between."""
    edges = {edge for line in config.lines for edge in (line.min_bytes, line.max_bytes)}
    sizes = sorted({*edges, *(1 << power for power in range(3, 40)), LARGEST})
    asked = [(line, size) for line in dict.fromkeys(line.collective for line in config.lines) for size in sizes]
    answers = ask(library, path, asked, n_ranks)
    wrong = [(pair, answer) for pair, answer in zip(asked, answers, strict=True) if answer != expected(config, *pair)]
    for (collective, size), answer in wrong[:5]:
        print(f"  {collective} {size} B: the plugin chose {answer}, expected {expected(config, collective, size)}")
    (other,) = ask(library, path, [(config.lines[0].collective, 1024)], n_ranks + 1)
    print(f"plugin: {len(asked) - len(wrong)} of {len(asked)} choices as in the file; other group sizes: {other}")
    return not wrong and other is None


def made_up(n_ranks: int) -> TunerConfig:
    """Lines that differ from NCCL's own choices."""
    parts = (
        (0, 65535, "tree", "ll", 2),
        (65536, (1 << 20) - 1, "ring", "ll128", 0),
        ((1 << 20), (1 << 24) - 1, "ring", "simple", 4),
        (1 << 24, LARGEST, "tree", "simple", 0),
    )
    lines = [TunerLine("all_reduce", *part, 1, n_ranks) for part in parts]
    return TunerConfig((*lines, TunerLine("all_gather", 0, LARGEST, "ring", "ll", 0, 1, n_ranks)), (), ())


def run(program: Path, n: int, sizes: str, environment: dict[str, str], log: Path) -> dict[int, set[Choice]]:
    """Run nccl-tests, and return the logged choices by size, where channels is the number that a call used."""
    first, last = sizes.split(":")
    command = [str(program), "-b", first, "-e", last, "-f", "2", "-g", str(n), "-n", "2", "-w", "1", "-c", "0"]
    debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "TUNING,INIT,ENV"}
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **debug, **environment}, timeout=300, check=False
    )
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed, see {log}\n{done.stderr[-2000:]}")
    if environment and "tuner plugin" not in done.stdout:
        print(f"  the log {log} does not mention a tuner plugin")
    found: dict[int, set[Choice]] = {}
    for name, count_bytes, algorithm, protocol, low, high in LOGGED.findall(done.stdout):
        # NCCL logs the bytes of the count argument, which is per rank for these two, and asks the tuner for the total.
        total = int(count_bytes) * (n if name in ("AllGather", "ReduceScatter") else 1)
        choice = (algorithm.lower(), protocol.lower(), int(high) - int(low) + 1)
        found.setdefault(total, set()).add(choice)
    return found


def same(one: str, other: str) -> bool:
    return one.replace("_", "") == other.replace("_", "")


def check_calls(build: Path, library: Path, config: TunerConfig, path: Path, out: Path, n: int, sizes: str) -> bool:
    """Compare the choices in NCCL's log with the lines."""
    plugin = {"NCCL_TUNER_PLUGIN": str(library), "NCCL_TUNER_CONFIG_FILE": str(path)}
    right = True
    for collective in dict.fromkeys(line.collective for line in config.lines):
        program = build / PROGRAMS[collective]
        tuned = run(program, n, sizes, plugin, out / f"{collective}.log")
        default = run(program, n, sizes, {}, out / f"{collective}_default.log")
        n_right, troubles = 0, []
        for size, choices in sorted(tuned.items()):
            wanted = expected(config, collective, size)
            for algorithm, protocol, channels in choices:
                is_right = wanted is None or (same(algorithm, wanted[0]) and same(protocol, wanted[1]))
                if wanted is not None and wanted[2]:
                    is_right &= channels <= wanted[2]
                elif wanted is not None:  # 0 channels: as many as by default with the same algorithm and protocol
                    usual = {c for a, p, c in default.get(size, ()) if same(a, algorithm) and same(p, protocol)}
                    is_right &= not usual or channels in usual
                n_right += is_right
                if not is_right:
                    troubles.append(f"{format_size(size)}: {algorithm} {protocol} {channels}, expected {wanted}")
        total = sum(map(len, tuned.values()))
        print(f"{collective}: {n_right} of {total} logged calls as in the file, {len(default)} sizes by default")
        print(*(f"  {line}" for line in troubles[:8]), sep="\n")
        right &= n_right == total > 0
    return right


def show_traps(build: Path, library: Path, out: Path, n: int) -> None:
    """Print the channels of an all_reduce with -1 channels, and without a line for its size."""
    line = TunerLine("all_reduce", 0, LARGEST, "ring", "simple", -1, -1, n)
    for name, what in ((line, "-1 channels"), (replace(line, collective="broadcast"), "no line")):
        path = out / "trap.conf"
        path.write_text(f"{name}\n")
        plugin = {"NCCL_TUNER_PLUGIN": str(library), "NCCL_TUNER_CONFIG_FILE": str(path)}
        tuned = run(build / PROGRAMS["all_reduce"], n, "16M:16M", plugin, out / "trap.log")
        default = run(build / PROGRAMS["all_reduce"], n, "16M:16M", {}, out / "trap_default.log")
        print(f"all_reduce of 16 MiB with {what}: {tuned.get(1 << 24)}, without a plugin: {default.get(1 << 24)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", type=Path, required=True, help="the folder plugins/tuner/example of NCCL")
    parser.add_argument("--build", type=Path, help="the build folder of nccl-tests; without it, no GPU is used")
    parser.add_argument("--tuning", type=Path, help="a tuning that Tuning.save wrote")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="8:256M")
    parser.add_argument("--out", type=Path, default=Path("tuner_plugin"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    n = options.ranks
    library = build(options.plugin, options.out)
    configs = {"made up": made_up(n)}
    if options.tuning is not None:
        tuning = ml.analysis.Tuning.load(options.tuning)
        n = tuning.mesh[tuning.axis].size
        config = tuning.to_tuner_config()
        print(config)
        if config.lines:
            configs = {"tuning": config}
    right = True
    for name, config in configs.items():
        path = config.save(options.out / f"{name.replace(' ', '_')}.conf").resolve()
        print(f"-- {name}: {len(config.lines)} lines", flush=True)
        right &= check_plugin(library, config, path, n)
        if options.build is not None:
            right &= check_calls(options.build, library, config, path, options.out, n, options.sizes)
    if options.build is not None:
        show_traps(options.build, library, options.out, n)
    print("OK" if right else "FAILED")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
