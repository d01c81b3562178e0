"""Slow hosts, rails and paths are named, and their innocent neighbours are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._nodes import (
    CPU_LIMITS,
    GPU_LIMITS,
    Limits,
    Paths,
    SlowPart,
    compare_nodes,
    describe_slowness,
    node_verdicts,
    paths_between,
    slow_alone,
    slow_parts,
    times_alone,
    without_waits,
)
from meshlab.frames._schema import RESULTS, SAMPLES, conform

Cost = Callable[[str, str, int, int], float]
SIZES = (1024, 1 << 20)


def usual(a: str, b: str, rail: int, size: int) -> float:
    return 20.0 if size == SIZES[0] else 400.0


def pairs_of(hosts: Sequence[str], cost: Cost, noise: float = 0.0, seed: int = 0) -> tuple[pd.DataFrame, list[int]]:
    """Return the results of pairs of ranks with the same index on their hosts."""
    random = np.random.default_rng(seed)
    local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    rows = []
    for a, b in combinations(range(len(hosts)), 2):
        if hosts[a] == hosts[b] or local[a] != local[b]:
            continue
        for size in SIZES:
            time = cost(hosts[a], hosts[b], local[a], size) * float(np.exp(noise * random.standard_normal()))
            row = {"src_rank": a, "dst_rank": b, "size_bytes": size, "time_us": time, "min_us": time}
            rows += [row | {"collective": name} for name in ("send", "send_recv")]
    frame = pd.DataFrame(rows).assign(grouping="pairs", status="ok", axis="node", run_id="r", launch=0)
    return conform(frame, RESULTS), local


def parts_of(hosts: Sequence[str], cost: Cost, limits: Limits = GPU_LIMITS, **noise: float) -> list[SlowPart]:
    results, local = pairs_of(hosts, cost, **noise)  # type: ignore[arg-type]
    return list(slow_parts(paths_between(results, hosts, local, limits)))


def slow_host(name: str, factor: float = 5.0) -> Cost:
    return lambda a, b, rail, size: usual(a, b, rail, size) * (factor if name in (a, b) else 1.0)


@pytest.mark.parametrize("n_hosts", [3, 4, 7])
@pytest.mark.parametrize("n_rails", [1, 2])
def test_a_slow_host_is_named_alone(n_hosts: int, n_rails: int) -> None:
    hosts = [f"h{k}" for k in range(n_hosts) for _ in range(n_rails)]
    assert parts_of(hosts, usual) == []
    assert parts_of(hosts, slow_host("h1")) == [SlowPart(("h1",))]


def test_only_the_faster_rank_of_the_fastest_batch_counts() -> None:
    hosts = ["h0", "h1", "h2"]
    results, _ = pairs_of(hosts, usual)
    messages = results[results["collective"] == "send_recv"].assign(step=range(6))
    rows = [
        {"step": step, "src_rank": a, "dst_rank": b, "rank": rank, "batch": batch, "time_us": time}
        for step, a, b in messages[["step", "src_rank", "dst_rank"]].itertuples(index=False)
        for rank, times in ((a, (1.0, 400.0, 9_000.0, 70.0)), (b, (1.0, 80.0, 5_000.0, 8_000.0)))
        for batch, time in enumerate(times)
    ]
    samples = conform(pd.DataFrame(rows).assign(launch=0, status="ok", is_warmup=False), SAMPLES)
    samples.loc[samples["batch"] == 0, "is_warmup"] = True
    assert without_waits(messages, samples)["min_us"].tolist() == [70.0] * 6
    assert without_waits(messages, samples[:0])["min_us"].tolist() == messages["min_us"].tolist()


def test_up_to_half_of_the_hosts_may_be_slow() -> None:
    def two(a: str, b: str, rail: int, size: int) -> float:
        return usual(a, b, rail, size) * (5.0 if {a, b} & {"h0", "h3"} else 1.0)

    assert parts_of(["h0", "h1", "h2", "h3"], two) == [SlowPart(("h0",)), SlowPart(("h3",))]


def test_a_slow_rail_of_a_host_is_named_with_its_number() -> None:
    def rail(a: str, b: str, rail: int, size: int) -> float:
        return usual(a, b, rail, size) * (5.0 if rail == 1 and "h2" in (a, b) else 1.0)

    (part,) = parts_of(["h1", "h1", "h2", "h2", "h3", "h3"], rail)
    assert part == SlowPart(("h2",), 1)
    assert str(part) == "rail 1 of h2"


def test_a_slow_path_blames_neither_of_its_hosts() -> None:
    def path(a: str, b: str, rail: int, size: int) -> float:
        return usual(a, b, rail, size) * (5.0 if {a, b} == {"h1", "h3"} else 1.0)

    (part,) = parts_of(["h0", "h1", "h2", "h3"], path)
    assert (part.hosts, part.is_host, str(part)) == (("h1", "h3"), False, "h1 ↔ h3")


def test_a_host_that_is_slow_only_with_small_messages_is_named_at_their_size() -> None:
    def latency(a: str, b: str, rail: int, size: int) -> float:
        return 10_000.0 if size == SIZES[0] and "h1" in (a, b) else usual(a, b, rail, size)

    hosts = ["h0", "h1", "h2"]
    results, local = pairs_of(hosts, latency)
    parts = slow_parts(paths_between(results, hosts, local, CPU_LIMITS))
    assert list(parts) == [SlowPart(("h1",))]
    text = describe_slowness(SlowPart(("h1",)), parts[SlowPart(("h1",))])
    assert text.replace("\u2009", " ") == (
        "1 KiB messages to every other host take 10.0 ms, 500 times as long as elsewhere (20.0 µs)"
    )


def test_the_only_path_of_two_hosts_is_not_judged() -> None:
    assert parts_of(["h0", "h1"], slow_host("h1")) == []


def test_one_rail_of_two_hosts_is_compared_with_the_others() -> None:
    def rail(a: str, b: str, rail: int, size: int) -> float:
        return usual(a, b, rail, size) * (5.0 if rail == 1 else 1.0)

    assert parts_of(["h0", "h0", "h1", "h1"], rail) == [SlowPart(("h0", "h1"), 1)]


@pytest.mark.parametrize("seed", range(20))
def test_noise_of_a_time_slice_names_nothing_twice_on_a_cpu(seed: int) -> None:
    # Times differ by factors of up to eight, by far less than a time slice.
    hosts = [f"h{k}" for k in range(5)]
    first, second = (
        paths_between(*(results, hosts, local), CPU_LIMITS)
        for results, local in (pairs_of(hosts, usual, 0.5, number) for number in (seed, 1000 + seed))
    )
    assert not any(part.is_host for part in slow_parts(first))
    assert slow_parts([before.fastest(after) for before, after in zip(first, second, strict=True)]) == {}


def test_verdicts_have_the_times_and_the_findings_of_each_host() -> None:
    hosts = ["h0", "h0", "h1", "h1", "h2", "h2"]
    results, local = pairs_of(hosts, slow_host("h1"))
    paths = paths_between(results, hosts, local, GPU_LIMITS)
    parts = slow_parts(paths)
    verdicts = node_verdicts(hosts, paths, {"h0": 5.0, "h1": 5.0, "h2": 5.0}, {"h1": ["it is slow"]})
    assert [verdict.outcome for verdict in verdicts] == ["passed", "failed", "passed"]
    assert [verdict.ranks for verdict in verdicts] == [(0, 1), (2, 3), (4, 5)]
    assert [verdict.latency_us for verdict in verdicts] == [20.0, 100.0, 20.0]
    comparison = compare_nodes(verdicts, paths, parts)
    matrix = comparison.matrix()
    assert math.isnan(matrix.loc["h0", "h0"])
    assert comparison.text.startswith("Slow: h1 (others ")
    assert comparison.slow == ((0, 1), (1, 0), (1, 2), (2, 1))
    ax = ml.plot.matrix(matrix)
    assert ax.get_title(loc="left").startswith("Slow: h1")
    assert len(ax.patches) == 4
    assert comparison.frame()["outcome"].tolist() == ["passed", "failed", "passed"]


def test_hosts_without_a_comparison_are_not_decided() -> None:
    assert [verdict.outcome for verdict in node_verdicts(["a", "b"], [], {}, {})] == ["not decided"] * 2
    assert compare_nodes(node_verdicts(["a", "b"], [], {}, {}), [], {}).hosts == ()


def test_a_host_whose_own_ranks_are_slow_is_named() -> None:
    mesh, hosts = ml.DeviceMesh("node=3, local=2"), ["a", "a", "b", "b", "c", "c"]
    rows = [
        {"axis": axis, "group": group, "grouping": "alone", "size_bytes": 1 << 20, "time_us": time, "min_us": time}
        for axis, group, time in (
            *(("local", "local_0", 100.0), ("local", "local_1", 300.0), ("local", "local_2", 101.0)),
            *(("node", "node_0", 900.0), ("node", "node_1", 900.0)),
        )
    ]
    frame = pd.DataFrame(rows).assign(collective="all_reduce", status="ok", run_id="r", launch=0)
    times = times_alone(conform(frame, RESULTS), mesh, hosts, GPU_LIMITS)
    assert times == {"a": 100.0, "b": 300.0, "c": 101.0}
    assert slow_alone(times, GPU_LIMITS) == {"b": pytest.approx(300 / 101)}
    assert slow_alone(times, CPU_LIMITS) == {}
    assert slow_alone({"a": 1.0}, GPU_LIMITS) == {}


def test_paths_of_no_pairs_are_empty() -> None:
    results, local = pairs_of(["a", "b", "c"], usual)
    assert paths_between(results[:0], ["a", "b", "c"], local, GPU_LIMITS) == []
    assert isinstance(paths_between(results, ["a", "b", "c"], local, GPU_LIMITS)[0], Paths)
