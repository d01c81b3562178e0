"""Readings of the load, next to ranks that measure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

import meshlab as ml
from meshlab.engines._monitor import LoadMonitor
from meshlab.engines._sampler import Sampler
from meshlab.plans._sampling import Sampling


def wait_for(condition: Callable[[], Any], limit_s: float = 60) -> Any:
    end = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


def samplers() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "meshlab.engines._sampler" in child.cmdline()
    ]


def test_this_host_is_read_until_the_monitor_is_closed(thread_engines: ml.Engines) -> None:
    monitor = LoadMonitor(thread_engines)
    (first,) = wait_for(monitor.read)
    (process,) = samplers()
    assert process.nice() == 19
    assert 0 < first["memory_used_bytes"] < first["memory_bytes"]
    assert first["cores"] >= 1
    assert 0 <= first["cpu_percent"] <= 100
    wait_for(lambda: monitor.read()[0]["at"] > first["at"])
    process.kill()
    (later,) = wait_for(monitor.read)
    wait_for(lambda: monitor.read() and monitor.read()[0]["at"] > later["at"])  # a new process has replaced it
    monitor.close()
    monitor.close()
    assert samplers() == []
    assert monitor.read() == []


def test_other_hosts_are_read_through_a_rank_between_the_steps(mpi_engines: ml.Engines) -> None:
    monitor = LoadMonitor(mpi_engines, this_host="elsewhere")
    (first,) = wait_for(monitor.read)
    assert first["host"] == mpi_engines.ranks[0].host
    long = Sampling(max_s=0.3, precision=1e-9, max_batches=10**6)
    names = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    run = ml.bench(mpi_engines, None, names, sizes="1K:1M", sampling=long)
    wait_for(lambda: mpi_engines.state == "busy" and run.progress.done)
    began = monitor.read()[0]["at"]
    wait_for(lambda: monitor.read()[0]["at"] > began)
    assert run.state == "running"
    run.cancel()
    run.wait(60)
    monitor.close()
    wait_for(lambda: samplers() == [])


def test_a_sampler_ends_with_its_parent() -> None:
    sampler = Sampler(30.0)
    (process,) = samplers()
    assert sampler._process.stdin is not None
    sampler._process.stdin.close()  # as the system does when a process is killed
    assert process.wait(60) == 0
    assert not sampler.is_running
    sampler.close()
