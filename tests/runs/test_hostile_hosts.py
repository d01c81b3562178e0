"""Runs that are written while the disk fills up or becomes read-only, or while somebody sets the clock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 240

START = """
import errno, os, subprocess, sys, time, warnings
from pathlib import Path

import numpy as np
import meshlab as ml

place = Path(sys.argv[1])
warnings.simplefilter("always")
heard = []
warnings.showwarning = lambda message, *_: heard.append(str(message))


def after(run, n_steps):
    while run.progress.done < n_steps and not run.has_ended:
        time.sleep(0.001)
    assert not run.has_ended


engines = ml.launch(2, backend=sys.argv[2], timeout_s=120)
sampling = ml.Sampling(max_s=0.05, precision=1e-9)
run = ml.bench(engines, "tp=2", ["all_reduce", "broadcast"], sizes="1K:512K", sampling=sampling, out=place / "run")
after(run, 4)
"""

END = """
results = run.wait(120, progress=False)
assert run.state == "done"
assert results["status"].eq("ok").all() and len(results) == 20, results
"""

FULL = """
rest = place / "rest"
with rest.open("wb", 0) as file:
    try:
        while True:
            file.write(b"x" * 512)
    except OSError as error:
        assert error.errno == errno.ENOSPC
n_full = run.progress.done
after(run, n_full + 4)
assert any("No space left on device; the run continues in memory" in text for text in heard), heard
known = ml.Run.load(place / "run")
assert 4 <= len(known.results) <= n_full + 2 and known.results["status"].eq("ok").all()
"""

FREED = """
rest.unlink()
"""

COMPLETE = """
known = ml.Run.load(place / "run")
assert (known.state, known.results.equals(results), known.samples.equals(run.samples)) == ("done", True, True)
assert sorted(path.name for path in place.iterdir()) == ["run"]
"""

PARTIAL = """
assert "the run is not saved completely: " in run.out_problem, run.out_problem
known = ml.Run.load(place / "run")
n_known = len(known.results)
assert 4 <= n_known < 20
assert known.results.equals(results.head(n_known))
rest.unlink()
again = ml.bench(engines, resume=known, out=place / "run")
assert len(again.wait(120, progress=False)) == 20
known = ml.Run.load(place / "run")
assert (known.state, len(known.results)) == ("done", 20)
assert known.results.head(n_known)["time_us"].equals(results.head(n_known)["time_us"])
"""

READ_ONLY = """
# The journal is open below the new mount, so its file can still be written.
subprocess.run(["mount", "--bind", place, place], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
results = run.wait(120, progress=False)
assert run.state == "done"
assert "the run is not saved completely: " in run.out_problem, run.out_problem
known = ml.Run.load(place / "run")
assert known.results.equals(results) and known.samples.equals(run.samples)
try:
    ml.bench(engines, "tp=2", sizes="1K", out=place / "other")
except ml.MeshlabError as error:
    assert "Read-only file system; choose a different folder" in str(error), error
else:
    raise AssertionError("a run started that cannot be written")
subprocess.run(["umount", place], check=True)
run.save(place / "run", overwrite=True)
assert ml.Run.load(place / "run").results.equals(results)
"""

CLOCK = """
clock = Path(os.environ["SHIFT_FILE"])
began, elapsed = time.monotonic(), run.progress.elapsed_s
for number, step in enumerate((3 * 3600, -2 * 86400, 7200)):
    before = time.time()
    clock.write_text(str(step))
    assert abs(time.time() - before) > 3000
    after(run, 6 + 4 * number)
    run.progress, repr(run), run.conditions
results = run.wait(120, progress=False)
assert abs((run.progress.elapsed_s - elapsed) - (time.monotonic() - began)) < 5
assert run.state == "done" and results["status"].eq("ok").all() and len(results) == 20
assert results["time_us"].between(0, 1e6).all()
assert run.samples["time_us"].gt(0).all()
known = ml.Run.load(place / "run")
assert known.results.equals(results)
engines.run(lambda comm: comm.barrier())
engines.restart()
assert engines.verify("tp=2")["is_right"].all()
"""


# Adds the seconds in a file to the time of the day, and to no other clock, as a person who sets the clock does. The
# library libfaketime also changes the sleeps of Python, which then fail.
SHIFT = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = {0};
    const char *path = getenv("SHIFT_FILE");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && id == CLOCK_REALTIME) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
"""


def in_a_small_disk(code: str, place: Path, backend: str) -> None:
    """Run code whose folder is a disk of 2 MiB, which exists only for its processes."""
    mount = 'mount -t tmpfs -o size=2m tmpfs "$1" && exec "${@:2}"'
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", mount, "-", str(place)]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"disks cannot be mounted here: {probe.stderr.strip()}")
    run_python(code, place, backend, command=command)


def run_python(code: str, place: Path, backend: str, *, command: list[str] | None = None, **environment: str) -> None:
    ending = f"{code}\nengines.close()\n"
    done = subprocess.run(
        [*(command or []), sys.executable, "-c", ending, str(place), backend],
        env=os.environ | {"MESHLAB_PROGRESS": "0", **environment},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("backend", ["threads", "mpi"])
@pytest.mark.parametrize(
    "code",
    [START + FULL + FREED + END + COMPLETE, START + FULL + END + PARTIAL, START + READ_ONLY],
    ids=["full for a while", "full until the end", "read-only"],
)
def test_a_disk_that_cannot_be_written_costs_no_rows(tmp_path: Path, code: str, backend: str) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    in_a_small_disk(code, place, backend)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["threads", "mpi"])
def test_a_clock_that_is_set_changes_no_measurement(tmp_path: Path, backend: str) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no compiler of C")
    clock, place, source, library = (tmp_path / name for name in ("clock", "place", "shift.c", "shift.so"))
    source.write_text(SHIFT)
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    clock.write_text("0")
    place.mkdir()
    run_python(
        START + CLOCK,
        place,
        backend,
        LD_PRELOAD=str(library),
        SHIFT_FILE=str(clock),
    )
