"""Clean-up: no process, shared-memory file or folder remains, regardless of how the client exits.

The tests look only at processes and files of their own run, because other runs may be active on the same machine, and
wait for conditions with a generous deadline, because the machine may be busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import meshlab as ml
from meshlab.engines._reaper import Reaper, clean_up, is_running, marked_processes, started_at

PATIENCE_S = 60.0

# Hydra writes a file to /tmp, regardless of TMPDIR, unless a variable prevents it. Only the proxy that created the file
# has its name, so the client looks for it in the memory of the proxy.
CLIENT = """
import json, os, re, sys, time
import meshlab as ml
from meshlab.engines._reaper import marked_processes


def hydra_files(processes):
    for process in processes:
        if process.name().startswith("hydra_"):
            with open(f"/proc/{process.pid}/maps") as maps, open(f"/proc/{process.pid}/mem", "rb", 0) as memory:
                heap = next(line for line in maps if "[heap]" in line)
                start, end = (int(address, 16) for address in heap.split()[0].split("-"))
                memory.seek(start)
                for name in re.findall(rb"/tmp/hydra_hwloc_xmlfile_\\\\w+", memory.read(end - start)):
                    yield name.decode()


engines = ml.launch(2, backend="mpi")
rank_set = engines._rank_set
segments = [path for info in engines.ranks for path in info.segments]
assert segments and os.path.exists(segments[0])
run = {"id": rank_set._id, "reaper": rank_set._reaper.pid, "folder": str(rank_set._folder), "segments": segments}
run["hydra"] = sorted(set(hydra_files(marked_processes("MESHLAB_RUN", rank_set._id))))
print(json.dumps(run), flush=True)
engines.run(lambda comm: comm.barrier())
""".replace("\\\\", "\\")

ENDINGS: dict[str, tuple[str, Callable[[subprocess.Popen[str]], None] | None]] = {
    "a normal end with close": ("engines.close()", None),
    "a normal end without close": ("", None),
    "an error": ("raise SystemError('as if')", None),
    "os._exit": ("os._exit(3)", None),
    "Ctrl-C while idle": ("time.sleep(600)", lambda client: client.send_signal(signal.SIGINT)),
    "Ctrl-C while ranks work": (
        "engines.run(lambda comm: time.sleep(600))",
        lambda client: client.send_signal(signal.SIGINT),
    ),
    "kill -15": ("time.sleep(600)", lambda client: client.terminate()),
    "kill -9": ("time.sleep(600)", lambda client: client.kill()),
    "kill -9 while ranks work": ("engines.run(lambda comm: time.sleep(600))", lambda client: client.kill()),
    "kill -9 while a forked child lives on": (
        "os.fork() or time.sleep(5) or os._exit(0); time.sleep(600)",
        lambda client: client.kill(),
    ),
}


def leftovers(run: dict[str, Any]) -> list[str]:
    left = [f"process {process.pid}" for process in marked_processes("MESHLAB_RUN", run["id"])]
    left += [path for path in [run["folder"], *run["segments"], *run["hydra"]] if Path(path).exists()]
    try:
        os.kill(run["reaper"], 0)
        if Path(f"/proc/{run['reaper']}/stat").read_text().split()[2] != "Z":
            left.append("the reaper")
    except (ProcessLookupError, FileNotFoundError):
        pass
    return left


def wait_until_nothing_is_left(run: dict[str, Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := leftovers(run):
        assert time.monotonic() < deadline, f"still there after {PATIENCE_S} s: {left}"
        time.sleep(0.05)


# Every ending starts a set of ranks. Those that differ most run in CI, and one of them always.
MARKS = {name: [pytest.mark.long] for name in ENDINGS} | {
    "a normal end with close": [pytest.mark.full],
    "os._exit": [pytest.mark.full],
    "Ctrl-C while ranks work": [pytest.mark.full],
    "kill -9 while ranks work": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS[name]) for name in ENDINGS])
def test_nothing_is_left_after(name: str) -> None:
    last_line, act = ENDINGS[name]
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT + last_line],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with client:
        assert client.stdout is not None
        run = json.loads(client.stdout.readline())
        assert leftovers(run), "the client has nothing to clean up, so the test would not test anything"
        assert run["hydra"] == []
        if act is not None:
            time.sleep(0.4)
            act(client)
        client.wait(PATIENCE_S)
        wait_until_nothing_is_left(run)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("how", ["restart", pytest.param("kill", marks=pytest.mark.long)])
def test_nothing_is_left_after_a_kernel_is_gone(how: str) -> None:
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE_S)
        printed: list[str] = []
        reply = client.execute_interactive(
            CLIENT, timeout=PATIENCE_S, output_hook=lambda message: printed.append(message["content"].get("text", ""))
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        run = json.loads("".join(printed))
        assert leftovers(run)
        if how == "restart":
            manager.restart_kernel(now=False)
        else:
            manager.shutdown_kernel(now=True)
        wait_until_nothing_is_left(run)
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.mark.full
@pytest.mark.slow
def test_nothing_is_left_after_a_client_is_killed_while_engines_start(tmp_path: Path) -> None:
    code = f"import tempfile, meshlab as ml; tempfile.tempdir = {str(tmp_path)!r}; ml.launch(2)"
    client = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob("meshlab-*/calls-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.5)
    client.kill()
    client.wait()
    deadline = time.monotonic() + PATIENCE_S
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


STARTING = """
import os, signal, sys, threading, time
from pathlib import Path
import psutil
import meshlab as ml
from meshlab.engines._reaper import segments
from tests.chaos.processes import abandoned_segments


def strike():
    while True:
        for path in Path(sys.argv[1]).glob("meshlab-*/processes-1"):
            lines = [line.split() for line in path.read_text().splitlines()]
            if len(lines) == 2 and (sys.argv[2] == "early" or set(segments()) - before):
                shell, pid, rank = lines[1]
                os.kill(int(pid), int(sys.argv[3]))
                print(rank, pid, flush=True)
                return
        time.sleep(0.001)


before = set(segments())
threading.Thread(target=strike, daemon=True).start()
try:
    ml.launch(2, backend=sys.argv[4], timeout_s=120)
except ml.MeshlabError as error:
    print(error, flush=True)
print(abandoned_segments(before))  # other tests may start ranks at the same time
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "what", "backend"),
    [
        ("late", signal.SIGKILL, "killed by signal 9", "mpi"),
        pytest.param("early", signal.SIGKILL, "killed by signal 9", "mpi", marks=pytest.mark.full),
        pytest.param("late", signal.SIGSTOP, "stopped by a signal", "mpi", marks=pytest.mark.full),
        pytest.param("early", signal.SIGKILL, "killed by signal 9", "gloo", marks=pytest.mark.full),
        pytest.param("early", signal.SIGSTOP, "stopped by a signal", "gloo", marks=pytest.mark.full),
    ],
)
def test_a_rank_that_is_lost_while_ranks_start_is_named_and_leaves_nothing(
    tmp_path: Path, moment: str, number: int, what: str, backend: str
) -> None:
    if backend == "gloo":
        pytest.importorskip("torch")
    command = [sys.executable, "-c", STARTING, str(tmp_path), moment, str(int(number)), backend]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    completed = subprocess.run(
        command,
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S * 3,
    )
    output = completed.stdout
    victim, error, *_, segments = output.splitlines()
    rank, pid = victim.split()
    assert error.startswith(f"rank {rank} (process {pid}) was {what} during start-up"), output
    assert segments == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.slow
def test_a_daemon_without_the_environment_of_its_rank_ends_with_the_engines() -> None:
    def start(comm: ml.Communicator) -> int:
        code = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); os.close(1);"
        command = [sys.executable, "-c", code + "time.sleep(600)"]
        return int(subprocess.run(command, env={}, stdout=subprocess.PIPE, check=True).stdout)

    with ml.launch(1, backend="mpi") as engines:
        pid = int(engines.run(start)["value"].iloc[0])
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    with contextlib.suppress(psutil.NoSuchProcess):  # a container may have no process that waits for it
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def run_python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 3)


DYING = """
import os, signal, sys, tempfile, time
import psutil
import meshlab as ml


def die():
    processes = [process.pid for process in psutil.Process().children(recursive=True)]
    for pid in (*processes, os.getpid()):
        os.kill(pid, signal.SIGKILL)


def die_with_a_reaper_at_work():
    rank_set._reaper._process.stdin.close()
    time.sleep(float(sys.argv[3]))
    die()


tempfile.tempdir = sys.argv[1]
engines = ml.launch(1, backend="mpi", timeout_s=120)
rank_set = engines._rank_set
print(*engines.ranks[0].segments, flush=True)
if sys.argv[2] == "idle":
    die()
elif sys.argv[2] == "while the ranks end":
    rank_set._end_ranks = die
else:
    rank_set._reaper.release = die_with_a_reaper_at_work
engines.close()
"""


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", ["idle", "while the ranks end", *(f"while the reaper works for {ms} ms" for ms in (20, 100, 300))]
)
def test_the_next_client_cleans_up_after_one_that_was_killed_with_its_reaper(tmp_path: Path, moment: str) -> None:
    milliseconds = int("".join(filter(str.isdigit, moment)) or 0)
    first = run_python(DYING, tmp_path, moment, str(milliseconds / 1000))
    assert first.returncode == -signal.SIGKILL, first.stderr
    segments = first.stdout.split()
    assert segments
    left = list(tmp_path.glob("meshlab-*"))  # unless the reaper was faster
    assert left or milliseconds
    code = "import sys, tempfile, meshlab as ml; tempfile.tempdir = sys.argv[1]; ml.launch(1, timeout_s=120).close()"
    second = run_python(code, tmp_path)
    assert second.returncode == 0, second.stderr
    assert not list(tmp_path.glob("meshlab-*"))
    assert not [path for path in segments if Path(path).exists()]


def test_the_owner_of_a_folder_is_removed_last(tmp_path: Path) -> None:
    reaper = Reaper("MESHLAB_RUN", "none", make_folder(tmp_path))
    (tmp_path / "meshlab-run" / "tmp").mkdir()

    def fail(path: object, **options: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meshlab.engines._reaper.shutil.rmtree", fail)
        with pytest.raises(KeyboardInterrupt):
            clean_up("MESHLAB_RUN", "none", str(tmp_path / "meshlab-run"))
    assert (tmp_path / "meshlab-run" / "owner").exists()
    reaper.release(PATIENCE_S)
    assert not (tmp_path / "meshlab-run").exists()


def test_a_step_of_the_clock_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pid, start, created = os.getpid(), started_at(os.getpid()), psutil.Process().create_time()
    # The kernel derives the time of the boot, which psutil adds, from the present time.
    stepped = psutil.boot_time() - 3600
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: stepped)
    assert psutil.Process().create_time() < created - 3000
    assert is_running(pid, start)
    assert not is_running(pid, start - 100)


@pytest.mark.parametrize("library", ["mpich_shm_", "ucx_shm_posix_", "nccl-"])
def test_a_segment_that_no_process_of_a_start_has_open_any_more_is_removed(tmp_path: Path, library: str) -> None:
    reaper = Reaper("MESHLAB_RUN", "none", make_folder(tmp_path))
    old, new = (Path(f"/dev/shm/{library}{secrets.token_hex(8)}") for _ in range(2))
    old.touch()
    try:
        starting = reaper.starting()
        starting.__enter__()
        new.touch()  # its creator is killed before it has unlinked or reported it, so the start does not end
        reaper.release(PATIENCE_S)
        assert old.exists()
        assert not new.exists()
    finally:
        reaper.release()
        for path in (old, new):
            path.unlink(missing_ok=True)


def make_folder(parent: Path) -> Path:
    folder = parent / "meshlab-run"
    folder.mkdir()
    return folder
