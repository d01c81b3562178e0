"""Streams, events, tags and barriers with NCCL on real GPUs."""

from __future__ import annotations

import sys
import time
from typing import Any

import cloudpickle
import pytest

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError

cloudpickle.register_pickle_by_value(sys.modules[__name__])

N = 1 << 24


def total_of(comm: Any, factor: float = 1.0) -> float:
    return factor * sum(range(1, comm.size + 1))


def fill_slowly(xp: Any, x: Any, value: float) -> None:
    """Keep the current stream busy for some milliseconds before the array has its value."""
    for _ in range(200):
        x *= 1.0001
    x.fill(value)


def enqueued_after_the_user(comm: Any) -> list[Any]:
    xp = comm.xp
    user = xp.cuda.Stream(non_blocking=True)
    x, total = xp.ones(N, "float32"), xp.empty(N, "float32")
    call = comm.prepare("all_reduce", x, total)
    call()
    comm.sync()
    found = []
    for repetition in range(5):
        with user:
            fill_slowly(xp, x, comm.rank + 1.0 + repetition)
            comm.wait(comm.record(comm.current_stream))
            call.enqueue()
            done = comm.record()
            was_done = done.done
            comm.wait(done, user)
            copy = total + 0
        user.synchronize()
        expected = total_of(comm) + comm.size * repetition
        found.append((was_done, done.done, bool((copy == expected).all())))
    return found


def test_events_order_a_call_with_the_stream_of_the_user(gpu_engines: ml.Engines) -> None:
    for value in gpu_engines.run(enqueued_after_the_user)["value"]:
        assert {(done, right) for _, done, right in value} == {(True, True)}
        assert not all(was_done for was_done, _, _ in value)  # the host does not wait


def eager_after_an_event(comm: Any) -> list[bool]:
    """A call in a stream that has already called must wait for an event of a third stream."""
    xp = comm.xp
    user, other = xp.cuda.Stream(non_blocking=True), xp.cuda.Stream(non_blocking=True)
    x, right = xp.ones(N, "float32"), []
    for repetition in range(5):
        with user:
            comm.all_reduce(x)
        user.synchronize()
        with other:
            fill_slowly(xp, x, comm.rank + 1.0 + repetition)
        comm.wait(comm.record(other))
        with user:
            total = comm.all_reduce(x)
            right.append(bool((comm.to_host(total) == total_of(comm) + comm.size * repetition).all()))
    return right


def test_later_calls_in_any_stream_wait_for_an_event(gpu_engines: ml.Engines) -> None:
    for value in gpu_engines.run(eager_after_an_event)["value"]:
        assert value == [True] * 5


def synchronise(comm: Any) -> list[bool]:
    xp = comm.xp
    x, total = xp.ones(N, "float32"), xp.empty(N, "float32")
    enqueued = comm.prepare("all_reduce", x, total)
    enqueued()
    comm.sync()
    native = xp.cuda.Event(disable_timing=True)
    for _ in range(50):
        enqueued.enqueue()
    native.record(comm.stream)
    comm.sync()
    after_enqueue = bool(native.done)
    user = xp.cuda.Stream(non_blocking=True)
    with user:
        for _ in range(50):
            comm.all_reduce(x, total)
        native.record(user)
    comm.sync()  # also waits for calls in streams of the user
    comm.wait(native)
    event = comm.record()
    event.wait()
    return [after_enqueue, bool(native.done), event.done, bool((total == comm.size).all())]


def test_sync_waits_for_enqueued_and_eager_calls(gpu_engines: ml.Engines) -> None:
    for value in gpu_engines.run(synchronise)["value"]:
        assert value == [True] * 4


def portable(comm: Any) -> list[float]:
    x = comm.xp.full(4, comm.rank + 1.0)
    total = comm.xp.empty_like(x)
    call = comm.prepare("all_reduce", x, total)
    comm.wait(comm.record(comm.current_stream))
    with comm.stream:
        call.enqueue()
    comm.wait(comm.record(), comm.current_stream)
    comm.sync()
    return [float(value) - total_of(comm) for value in comm.to_host(total)]


def test_the_lines_of_the_cpu_backends_run_on_gpus(gpu_engines: ml.Engines) -> None:
    assert gpu_engines.run(portable)["value"].tolist() == [[0.0] * 4] * gpu_engines.world_size


def refused(comm: Any) -> list[str]:
    x = comm.xp.ones(4)
    messages = []
    for call in (
        lambda: comm.record("main"),
        lambda: comm.wait(None),
        lambda: comm.send_recv(x, dest=comm.rank, source=comm.rank, tag=3),
    ):
        try:
            call()
        except CommunicatorError as error:
            messages.append(str(error))
    messages.append(comm.send_recv(x, dest=comm.rank, source=comm.rank, tag=0).tolist() == x.tolist())
    return messages


def test_wrong_streams_and_tags_are_refused(gpu_engines: ml.Engines) -> None:
    *refusals, right = gpu_engines.run(refused)["value"][0]
    text = "\n".join(refusals)
    assert "event must be the result of record()" in text
    assert "tag must be 0, not 3: nccl has no tags and matches the messages between two ranks in order" in text
    assert right


def wait_for_a_missing_rank(comm: Any) -> None:
    x = comm.xp.ones(N, "float32")
    call = comm.prepare("all_reduce", x, x)
    call()
    comm.sync()
    if comm.rank == 0:
        call.enqueue()
        comm.sync()
    else:
        time.sleep(60)


def test_the_deadline_ends_sync(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    begin = time.monotonic()
    with pytest.raises(EngineError, match="within"):
        gpu_engines.run(wait_for_a_missing_rank, deadline_s=3)
    gpu_engines.restart()
    assert time.monotonic() - begin < 30
    assert gpu_engines.verify(mesh)["is_right"].all()


@pytest.mark.parametrize("mode", ["isolated", "pipelined", "graph"])
def test_a_barrier_is_measured(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, mode: str) -> None:
    run = ml.bench(gpu_engines, mesh, "barrier", axis="tp", mode=mode)
    results = run.wait(120)
    assert results["size_bytes"].isna().all()
    assert (results["time_us"] > 0).all()
    assert results["busbw_gbs"].isna().all()
    assert set(results["status"]) == {"ok"}


def test_sharp_is_known(gpu_engines: ml.Engines) -> None:
    facts = gpu_engines.ranks[0].capabilities.facts
    assert facts["SHARP"].split(":")[0] in ("yes", "no"), facts["SHARP"]
